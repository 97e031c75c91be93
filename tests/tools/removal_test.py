"""shardwise du, rm and gc, as their users meet them."""
import json
import os
import pathlib
import shutil
import unittest

from cli_test import Cli, GOLDEN, run

ID = "0123456789abcdef" * 2


def lease(path, host):
    """A lease of a process on another machine: it may be alive, as nothing is known of it here."""
    path.write_text(json.dumps({"pid": 7, "pid_namespace": 1, "start": 1, "time_namespace": 1, "image": 1,
                                "boot": "another", "machine": "another", "host": host}))
    return path


class Removal(Cli):
    def roots(self, *steps):
        """A root of these steps of the golden checkpoints (1 to 4)."""
        root = self.dir / "root"
        for step in steps:
            shutil.copytree(GOLDEN / f"step-0000000{step}", root / f"step-0000000{step}")
        return root

    @staticmethod
    def steps(root):
        return sorted(int(path.name[5:]) for path in root.glob("step-*"))

    def left(self, root, *arguments):
        """What rm says if it leaves steps."""
        result = run("rm", root, *arguments)
        self.assertEqual((result.returncode, result.stderr), (1, ""), result)
        return result.stdout


class Rm(Removal):
    def test_steps_are_removed(self):
        root = self.roots(1, 2, 3, 4)
        self.assertEqual(self.ok("rm", root, 3, 1, 3), "removed step 1\nremoved step 3\n")
        self.assertEqual(self.ok_json("rm", root, 2), {"root": str(root), "removed": [2], "left": []})
        self.assertEqual(sorted(path.name for path in root.iterdir()), ["step-00000004"])

    def test_what_saves_did_goes_with_their_steps(self):
        root = self.roots(1, 2, 3)
        for step in (1, 2, 3):
            (root / f"stats-step-0000000{step}.json").write_text(f'{{"directory":"step-0000000{step}"}}\n')
        self.ok("rm", root, 1)
        self.ok("rm", root, 2, "--force")
        self.assertEqual(sorted(path.name for path in root.iterdir()), ["stats-step-00000003.json", "step-00000003"])

    def test_the_last_valid_step_is_left(self):
        root = self.roots(1, 2, 3)
        (root / "step-00000003" / "manifest.json").write_text("{}")
        said = "left step 2: no other step of the directory is valid; --force removes it\n"
        self.assertEqual(self.left(root, 1, 2), "removed step 1\n" + said)
        self.assertEqual(self.steps(root), [2, 3])
        result = run("rm", root, 2, 3, "--json")
        self.assertEqual(result.returncode, 1)
        found = json.loads(result.stdout)
        self.assertEqual(found["removed"], [3])
        self.assertEqual(found["left"], [{"step": 2, "reason": "no other step of the directory is valid"}])
        self.assertEqual(self.ok("rm", root, 2, "--force"), "removed step 2\n")
        self.assertEqual(self.steps(root), [])

    def test_a_step_that_is_set_aside_stands_in_for_none_of_the_run(self):
        root = self.roots(1, 2, 3)
        (root / ".aside-step-00000003").touch()
        said = "left step 2: no other step of the directory is valid and not set aside; --force removes it\n"
        self.assertEqual(self.left(root, 1, 2), "removed step 1\n" + said)
        self.assertEqual(self.ok("rm", root, 3), "removed step 3\n")
        self.assertEqual(self.steps(root), [2])

    def test_a_damaged_step_goes_even_as_the_only_one(self):
        root = self.roots(1)
        (root / "step-00000001" / "manifest.json").write_text("{}")
        self.assertEqual(self.ok("rm", root, 1), "removed step 1\n")

    def test_a_step_that_somebody_reads_is_left(self):
        root = self.roots(1, 2, 3)
        lease(root / f".pin-step-00000001.{ID}", "node17")
        self.assertEqual(self.left(root, 1, 2),
                         "left step 1: somebody reads it; --force removes it\nremoved step 2\n")
        self.assertEqual(self.steps(root), [1, 3])
        self.ok("rm", root, 1, "--force")
        self.assertEqual(self.steps(root), [3])

    def test_wrong_words_remove_nothing(self):
        root = self.roots(1, 2)
        self.fails(3, ["find step 7", "its steps are 1, 2"], "rm", root, 1, 7)
        self.fails(2, ['found "one", needed its number or directory'], "rm", root, "one")
        self.fails(2, ["rm: step is required"], "rm", root)
        self.fails(2, ["step-00000001 is a checkpoint; needed is the directory that holds it, "],
                   "rm", root / "step-00000001", 1)
        self.fails(3, ["nowhere does not exist"], "rm", self.dir / "nowhere", 1)
        self.assertEqual(self.steps(root), [1, 2])

    def test_a_step_that_cannot_be_read_now_is_not_taken_for_damaged(self):
        root = self.roots(1)
        step = root / "step-00000001"
        step.rename(root / "elsewhere")
        step.symlink_to(step)  # a circle, which the system refuses to follow
        self.fails(3, ["step-00000001", "symbolic links"], "rm", root, 1)
        self.assertEqual(self.steps(root), [1])
        self.assertEqual(self.ok("rm", root, 1, "--force"), "removed step 1\n")


class Pin(Removal):
    def test_a_pinned_step_stays_until_its_name_is_taken_away(self):
        root = self.roots(1, 2)
        self.assertEqual(self.ok("pin", root, 1, "before-lr-drop"), "step 1 is pinned as before-lr-drop\n")
        self.assertEqual(self.ok_json("pin", root, 1, "b"), {"root": str(root), "step": 1, "name": "b"})
        self.assertIn("before-lr-drop", self.ok("ls", root))
        self.assertEqual([step["pinned"] for step in self.ok_json("ls", root)["steps"]], [["b", "before-lr-drop"], []])
        for force in ([], ["--force"]):
            left = run("rm", root, 1, *force)
            self.assertEqual((left.returncode, left.stdout), (1, "left step 1: it is pinned as b; unpin takes the name away\n"))
        self.assertEqual(self.ok("unpin", root, "b"), "b pins no step any more\n")
        self.assertEqual(self.ok_json("unpin", root, "before-lr-drop"), {"root": str(root), "unpinned": ["before-lr-drop"]})
        self.assertEqual(self.ok("rm", root, 1), "removed step 1\n")

    def test_mistakes(self):
        root = self.roots(1)
        self.fails(3, [f"find step 7 in {root}: its steps are 1"], "pin", root, 7, "x")
        self.fails(3, ["pin a step: the name is \"a b\", needed are 1 to 100 letters, digits, '.', '-', '_'"], "pin", root, 1, "a b")
        self.fails(3, [f'unpin "x" in {root}: there are none'], "unpin", root, "x")
        self.fails(2, ["found \"one\", needed its number or directory"], "pin", root, "one", "x")


class Gc(Removal):
    def test_what_nobody_holds_is_removed(self):
        root = self.roots(1)
        names = [f".shardwise.model.{ID}.tmp", f".step-00000009.{ID}.tmp", f".trash-step-00000002.{ID}"]
        for name in names:
            (root / name).mkdir()
            (root / name / "bytes").write_bytes(b"x" * 1000)
        (root / ".hidden").mkdir()
        said = self.ok("gc", root)
        self.assertEqual(sorted(said.splitlines()), sorted("removed " + name for name in names))
        self.assertEqual(sorted(path.name for path in root.iterdir()), [".hidden", "step-00000001"])
        self.assertEqual(self.ok("gc", root), f"{root}: nothing to remove\n")

    def test_what_a_process_of_another_host_holds_is_kept_until_that_host_is_named(self):
        attempt, held = f".shardwise.model.{ID}.tmp", f".shardwise.model.{ID}.lease"
        (self.dir / attempt).mkdir()
        lease(self.dir / held, "node17")
        why = ('process 7 of host node17 may use it; if that host is gone for good, "--dead-host node17" removes it')
        self.assertEqual(self.ok("gc", self.dir), f"kept {attempt}: {why}\nkept {held}: {why}\n"
                         f"{self.dir}: nothing to remove\n")
        found = self.ok_json("gc", self.dir, "--dead-host", "node18")
        self.assertEqual(found["removed"], [])
        self.assertEqual(found["kept"][0], {"name": attempt, "reason": why, "host": "node17", "pid": 7})
        found = self.ok_json("gc", self.dir, "--dead-host", "node18", "--dead-host", "node17")
        self.assertEqual((sorted(found["removed"]), found["kept"]), ([held, attempt], []))
        self.assertEqual(list(self.dir.iterdir()), [])

    def test_a_checkpoint_is_no_place_for_it(self):
        root = self.roots(1)
        self.fails(2, ["step-00000001 is a checkpoint; needed is the directory that holds it"], "gc",
                   root / "step-00000001")
        self.fails(3, ["nowhere does not exist"], "gc", self.dir / "nowhere")
        self.assertFalse((self.dir / "nowhere").exists())


def size(path):
    return sum(file.stat().st_size for file in pathlib.Path(path).rglob("*") if file.is_file())


class Du(Removal):
    def test_of_a_root_the_largest_step_comes_first_and_parts_make_the_total(self):
        root = self.roots(1, 2, 4)
        trash = root / f".trash-step-00000003.{ID}"
        trash.mkdir()
        (trash / "bytes").write_bytes(b"x" * 5000)
        found = self.ok_json("du", root)
        self.assertEqual(found["total_bytes"], size(root))
        self.assertEqual(found["roots"][0]["root"], str(root))
        self.assertEqual(found["roots"][0]["unfinished"], [{"name": trash.name, "total_bytes": 5000}])
        steps = found["roots"][0]["steps"]
        self.assertEqual([step["name"] for step in steps], ["step-00000004", "step-00000002", "step-00000001"])
        for step in steps:
            self.assertEqual(step["total_bytes"], size(root / step["name"]))
            self.assertEqual(step["index_bytes"], sum((root / step["name"] / name).stat().st_size
                                                      for name in ("manifest.json", "index.h5")))
            self.assertEqual(step["total_bytes"], sum(step[part + "_bytes"] for part in ("tensor", "padding", "index", "parity")))
            stored = sum(tensor["stored_bytes"] for tensor in self.ok_json("inspect", root / step["name"])["tensors"])
            self.assertEqual(step["tensor_bytes"], stored)
        lines = self.ok("du", root).splitlines()
        self.assertEqual(lines[0].split(), ["step", "tensors", "padding", "index", "parity", "shared", "total"])
        self.assertEqual([line.split()[0] for line in lines[1:]],
                         ["step-00000004", "step-00000002", "step-00000001", trash.name, "all"])
        self.assertRegex(lines[4], r"-  +-  +-  +4\.88 KiB$")

    def test_what_steps_share_is_counted_once(self):
        root = self.roots(1, 2)
        shard = next((root / "step-00000001").glob("shards-*"))
        os.link(shard, root / "step-00000002" / "linked-0.h5")
        bytes_ = shard.stat().st_size
        found = self.ok_json("du", root)
        self.assertEqual(found["total_bytes"], size(root) - bytes_)
        self.assertEqual([step["shared_bytes"] for step in found["roots"][0]["steps"]], [bytes_, bytes_])
        for step in self.ok_json("ls", root)["steps"]:
            self.assertEqual(step["shared_bytes"], bytes_)
            self.assertEqual(step["alone_bytes"], size(root / f"step-{step['step']:08d}") - bytes_)
        self.assertIn("shared", self.ok("ls", root).splitlines()[0].split())

    def test_of_a_step_it_is_one_row(self):
        root = self.roots(1, 2)
        self.assertEqual(len(self.ok("du", root / "step-00000001").splitlines()), 2)

    def test_of_a_folder_of_roots_each_is_a_row(self):
        root = self.roots(1, 2)
        other = self.dir / "runs" / "b"
        shutil.copytree(GOLDEN / "step-00000004", other / "step-00000004")
        found = self.ok_json("du", self.dir)
        self.assertEqual([one["root"] for one in found["roots"]], [str(other), str(root)])
        self.assertEqual(found["total_bytes"], size(self.dir))
        text = self.ok("du", self.dir)
        self.assertRegex(text, rf"(?m)^{root} +2 ")
        self.assertIn(" in 2 directories\n", text)

    def test_of_a_damaged_step_the_total_is_known(self):
        root = self.roots(1)
        (root / "step-00000001" / "manifest.json").write_text("{}")
        step = self.ok_json("du", root)["roots"][0]["steps"][0]
        self.assertEqual((step["tensor_bytes"], step["padding_bytes"], step["total_bytes"]), (None, None, size(root)))
        self.assertRegex(self.ok("du", root), "(?m)^step-00000001 +- +- ")

    def test_a_folder_without_steps_is_refused(self):
        self.fails(3, ["holds no committed checkpoint"], "du", self.dir)
        self.fails(3, ["nowhere does not exist"], "du", self.dir / "nowhere")


if __name__ == "__main__":
    unittest.main()
