"""What reshard says before, in the middle and after: --dry-run, Ctrl-C, --verify, and how it goes on."""
import itertools
import signal
import subprocess
import unittest

from cli_test import SHARDWISE, Cli
from diff_test import weights


class Reshard(Cli):
    def test_it_takes_an_order_of_devices_and_a_part_of_the_names(self):
        source = weights(self.dir / "m.safetensors", **{"model.a": [1, 2], "model.b": [3, 4], "head": [5, 6]})
        self.ok("import", source, self.dir / "in", "--step", 1)
        self.ok("reshard", self.dir / "in", self.dir / "out", "--mesh", "x=2", "--devices", "5,3", "--spec", "*=x", "--strip-prefix",
                "model.")
        found = self.ok_json("inspect", self.dir / "out")["tensors"]
        self.assertEqual([(t["name"], t["mesh"], t["spec"]) for t in found], [("a", "x=2@5,3", "x"), ("b", "x=2@5,3", "x")])
        self.assertTrue(self.ok_json("diff", self.dir / "out", weights(self.dir / "ab.safetensors", a=[1, 2], b=[3, 4]))["equal"])
        self.fails(2, ["--devices gives another"], "reshard", self.dir / "in", self.dir / "x", "--mesh", "x=2@0,1", "--devices", "5,3")
        self.fails(2, ["none."], "reshard", self.dir / "in", self.dir / "x", "--mesh", "1", "--strip-prefix", "none.")


class DryRun(Cli):
    def large(self):
        source = self.dir / "large"
        self.ok("bench", "save", source, "--keep", "--tensors", 3, "--shape", "1024,1024", "--repeat", 1, "--mesh", "a=2", "--spec",
                "a,-")
        return source

    def test_it_says_what_a_run_then_does_and_writes_nothing(self):
        source, out = self.large(), self.dir / "out"
        command = ("reshard", source, out, "--mesh", "b=4", "--spec", "*=-,b", "--writers", 2, "--codec", "none", "--cast", "*=bf16")
        plan = self.ok_json(*command, "--dry-run")
        self.assertFalse(out.exists())
        self.assertEqual([plan[key] for key in ("step", "mesh", "tensors", "source_tensors", "logical_bytes", "needed_bytes", "files")],
                         [1, "b=4", 3, 3, 6 << 20, 12 << 20, 2])
        self.assertGreaterEqual(plan["decodes"], plan["chunks"])
        self.assertEqual(plan["amplification"], plan["decoded_bytes"] / plan["needed_bytes"])
        self.assertTrue(plan["fits"])
        done = self.ok_json(*command)
        self.assertEqual((done["logical_bytes"], done["chunks"]), (plan["logical_bytes"], plan["file_chunks"]))
        written = sum(file.stat().st_size for file in (out / "step-00000001").iterdir())
        self.assertGreaterEqual(plan["most_file_bytes"], written)
        self.assertLess(plan["most_file_bytes"], 2 * written)

    def test_a_bound_of_the_files_holds_for_many_small_tensors(self):
        source, out = self.dir / "w.safetensors", self.dir / "out"
        weights(source, **{f"t{i}": [i] for i in range(500)})
        self.ok("import", source, self.dir / "in", "--step", 1)
        plan = self.ok_json("reshard", self.dir / "in", out, "--mesh", "a=8", "--writers", 4, "--dry-run")
        self.ok("reshard", self.dir / "in", out, "--mesh", "a=8", "--writers", 4)
        self.assertGreaterEqual(plan["most_file_bytes"], sum(file.stat().st_size for file in (out / "step-00000001").iterdir()))

    def test_a_part_needs_a_part(self):
        source = self.large()
        names = [tensor["name"] for tensor in self.ok_json("inspect", source)["tensors"]]
        whole = self.ok_json("reshard", source, self.dir / "out", "--mesh", "1", "--spec", "*=-", "--dry-run")
        part = self.ok_json("reshard", source, self.dir / "out", "--mesh", "1", "--spec", "*=-", "--dry-run", "--select",
                            names[0])
        self.assertEqual((whole["chunks"], whole["tensors"]), (3 * part["chunks"], 3))
        self.assertEqual((whole["amplification"], part["amplification"], part["source_tensors"]), (1, 1, 3))

    def test_in_words(self):
        source, out = self.large(), self.dir / "out"
        text = self.ok("reshard", source, out, "--mesh", "b=2", "--spec", "*=-", "--dry-run")
        self.assertRegex(text, r"(?s)^.*large/step-00000001 -> .*out: mesh b=2, step 1; nothing is written\n  tensors  3 of 3, 12\.00 MiB\n"
                               r"  reads .*\(amplification 1\.00\)\n  memory   256\.00 MiB at most, and .*\n  writes .* in 1 shard "
                               r"file, .* at most, if nothing shrinks\n  room .* are free on the target's disk\n$")
        self.assertFalse(out.exists())

    def test_errors_of_a_run_are_found(self):
        root, step = self.root()
        out = self.dir / "out"
        (self.dir / "file").write_text("")

        def dry(target, *more):
            return ("reshard", root, target, "--mesh", "a=2", "--dry-run", *more)

        self.fails(2, ["w11", "none"], *dry(out, "--spec", "w11=-"))
        self.fails(2, ['rename "w11=x" matches none'], *dry(out, "--rename", "w11=x"))
        self.fails(2, ["is a checkpoint, needed is a directory outside"], *dry(step / "x", "--spec", "*=-"))
        self.fails(3, ["is already there; --replace"], *dry(root, "--spec", "*=-"))
        self.ok(*dry(root, "--spec", "*=-", "--replace"))
        self.assertIn("is already there: nothing would be written\n", self.ok(*dry(root, "--spec", "*=-", "--skip-existing")))
        self.assertTrue(self.ok_json(*dry(root, "--spec", "*=-", "--skip-existing"))["skipped"])
        self.fails(2, ["--processes-per-file: found 3, needed a divisor of the number of processes, 1"], *dry(out, "--spec", "*=-", "--processes-per-file", 3))
        self.fails(3, ["found a file"], *dry(self.dir / "file"))
        self.fails(2, ["--verify"], *dry(out, "--verify"))
        self.assertFalse(out.exists())


class Verify(Cli):
    def test_it_compares_what_was_written(self):
        root, step = self.root()
        done = self.ok("reshard", root, self.dir / "out", "--mesh", "a=3", "--spec", "*=-", "--verify")
        self.assertIn("; verified: every tensor is that of the source\n", done)
        name = self.ok_json("inspect", step)["tensors"][0]["name"]
        edits = ("--select", name, "--rename", f"{name}=x", "--spec", "*=-")
        self.assertTrue(self.ok_json("reshard", root, self.dir / "two", "--mesh", 1, *edits, "--verify")["verified"])
        self.assertFalse(self.ok_json("reshard", root, self.dir / "three", "--mesh", 1, "--spec", "*=-")["verified"])


class Interrupted(Cli):
    """Ends runs when a given number of shard files is whole: no test waits for a time."""

    def setUp(self):
        super().setUp()
        self.source, self.out = self.dir / "large", self.dir / "out"
        self.ok("bench", "save", self.source, "--keep", "--tensors", 16, "--shape", "1024,2048", "--repeat", 1, "--mesh", "a=8",
                "--spec", "a,-")

    def command(self, out, writers=8, *more):
        return [SHARDWISE, "reshard", self.source, out, "--mesh", "b=8", "--spec", "*=-,b", "--writers", str(writers), "--threads",
                "1", *more]

    def whole(self):
        try:
            return len(list(self.out.glob(".step-*/*.whole")))
        except FileNotFoundError:  # it has just been committed
            return 0

    def ended(self, number, files, writers=8):
        """A run that got a signal when that many files were whole; None if it was faster."""
        job = subprocess.Popen(self.command(self.out, writers), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while job.poll() is None and not self.is_done() and self.whole() < files:
            pass
        job.send_signal(number)
        shown = job.communicate(timeout=240)
        return None if self.is_done() else (job.returncode, *shown)

    def is_done(self):
        return (self.out / "step-00000001").exists()

    def files(self, root):
        return {file.name: file.read_bytes() for file in (root / "step-00000001").iterdir() if file.suffix == ".h5"}

    def test_ctrl_c_says_what_is_kept_and_the_same_command_goes_on(self):
        for _ in range(10):
            ended = self.ended(signal.SIGINT, 2)
            if ended:
                break
            subprocess.run(["rm", "-r", self.out])
        status, shown, message = ended
        self.assertEqual((status, shown), (-signal.SIGINT, ""))
        kept = self.whole()
        self.assertGreaterEqual(kept, 2)
        self.assertRegex(message, rf"^shardwise: reshard: interrupted; .*out/\.step-00000001\..*\.tmp keeps what was written, for when the "
                                  rf"same is begun again: whole are {kept} shard files; the same command goes on from them\n$")
        text = self.ok(*self.command(self.out)[1:])
        self.assertRegex(text, rf"^went on from {kept} whole shard files \([\d.]+ MiB\) of the run that was interrupted\n")
        self.ok(*self.command(self.dir / "whole")[1:])
        self.assertEqual(self.files(self.out), self.files(self.dir / "whole"))
        self.assertEqual([path.name for path in self.out.iterdir()], ["step-00000001"])

    def test_with_one_file_it_says_that_nothing_is_kept(self):
        job = subprocess.Popen(self.command(self.out, 1), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while job.poll() is None and not list(self.out.glob(".step-*")):
            pass
        job.send_signal(signal.SIGINT)
        message = job.communicate(timeout=240)[1]
        if not self.is_done():
            self.assertEqual((job.returncode, message), (-signal.SIGINT, "shardwise: reshard: interrupted; nothing is kept; with "
                                                         "--writers 2 or more, whole shard files are\n"))
            self.assertEqual(list(self.out.iterdir()), [])

    def test_an_import_says_that_nothing_is_kept(self):
        self.ok("export", self.source, self.dir / "w.safetensors")
        job = subprocess.Popen([SHARDWISE, "import", self.dir / "w.safetensors", self.out, "--step", "1", "--threads", "1"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while job.poll() is None and not list(self.out.glob(".step-*")):
            pass
        job.send_signal(signal.SIGTERM)
        message = job.communicate(timeout=240)[1]
        if not self.is_done():
            self.assertEqual((job.returncode, message), (-signal.SIGTERM, "shardwise: import: interrupted; nothing is kept\n"))
            self.assertEqual(list(self.out.iterdir()), [])

    def test_killed_again_and_again_it_ends_as_if_it_had_not_been(self):
        self.ok(*self.command(self.dir / "whole")[1:])
        for files in itertools.count(1):
            if self.ended(signal.SIGKILL, files) is None:
                break
        self.assertEqual(self.files(self.out), self.files(self.dir / "whole"))
        self.assertEqual(list(self.out.glob("*.tmp")), [])

    def test_other_edits_do_not_go_on_from_it(self):
        """Tensors that change places would fit what is there."""
        ended = self.ended(signal.SIGKILL, 4)
        if ended is None:
            return
        names = [tensor["name"] for tensor in self.ok_json("inspect", self.source)["tensors"]]
        swap = ("--rename", f"{names[0]}={names[1]}", "--rename", f"{names[1]}={names[0]}")
        self.ok(*self.command(self.out)[1:], *swap, "--verify")


if __name__ == "__main__":
    unittest.main()
