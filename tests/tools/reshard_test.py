"""What reshard says before, in the middle and after: --dry-run, Ctrl-C, --verify."""
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
    """Ends runs when they have begun to write: no test waits for a time."""

    def setUp(self):
        super().setUp()
        self.source, self.out = self.dir / "large", self.dir / "out"
        self.ok("bench", "save", self.source, "--keep", "--tensors", 16, "--shape", "1024,2048", "--repeat", 1, "--mesh", "a=8",
                "--spec", "a,-")
        self.ok("export", self.source, self.dir / "w.safetensors")

    def ended(self, number, *command):
        """Status and last words of a run that got a signal when it had begun to write; None if it was
        faster."""
        job = subprocess.Popen([SHARDWISE, *command, "--threads", "1"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
        while job.poll() is None and not list(self.out.glob(".step-*/*.h5")):
            pass
        job.send_signal(number)
        message = job.communicate(timeout=240)[1]
        return None if (self.out / "step-00000001").exists() else (job.returncode, message)

    def reshard(self, out):
        return ["reshard", self.source, out, "--mesh", "b=8", "--spec", "*=-,b", "--writers", "8"]

    def test_ctrl_c_and_sigterm_say_that_nothing_is_kept(self):
        commands = {"reshard": self.reshard(self.out),
                    "import": ["import", self.dir / "w.safetensors", self.out, "--step", "1"]}
        for name, command in commands.items():
            for number in (signal.SIGINT, signal.SIGTERM):
                ended = self.ended(number, *command)
                if ended:
                    self.assertEqual(ended, (-number, f"shardwise: {name}: interrupted; nothing is kept\n"))
                    self.assertEqual(list(self.out.iterdir()), [])
                subprocess.run(["rm", "-rf", self.out], check=True)

    def test_after_a_kill_the_same_command_writes_the_same_files(self):
        self.ok(*self.reshard(self.dir / "whole"))
        for _ in range(3):
            self.ended(signal.SIGKILL, *self.reshard(self.out))
        if not (self.out / "step-00000001").exists():
            self.ok(*self.reshard(self.out))
        files = [{file.name: file.read_bytes() for file in (root / "step-00000001").glob("*.h5")}
                 for root in (self.out, self.dir / "whole")]
        self.assertEqual(files[0], files[1])
        self.assertEqual([path.name for path in self.out.iterdir()], ["step-00000001"])


if __name__ == "__main__":
    unittest.main()
