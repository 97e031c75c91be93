"""shardwise export to DCP and Orbax, which the Python package writes: here a shell script stands for it."""
import json
import os
import signal
import unittest
import unittest.mock

from cli_test import Cli, GOLDEN, run

STEP = GOLDEN / "step-00000001"


class ExportByPython(Cli):
    def python(self, script):
        """Its arguments are -m shardwise._convert.export_command FORMAT SOURCE FOLDER OPTIONS."""
        path = self.dir.parent / f"{self.dir.name}-python3"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        self.addCleanup(path.unlink, missing_ok=True)
        return unittest.mock.patch.dict(os.environ, {"SHARDWISE_PYTHON": str(path)})

    def left(self):
        return sorted(entry.name for entry in self.dir.iterdir())

    def test_what_the_package_is_told(self):
        out = self.dir / "out"
        with self.python('echo "$2" > "$5/.metadata"; echo "$3" >> "$5/.metadata"; echo "$4" >> "$5/.metadata"; '
                         'echo "$6" >> "$5/.metadata"; echo progress 3 40; echo \'{"logical_bytes": 40}\''):
            said = self.ok_json("export", STEP, out, "--format", "dcp", "--select", "a*", "--exclude", "ab", "--rename", "a*=c*",
                                "--cast", "*=bf16", "--transpose", "a=1,0", "--split", "c=d,e@0", "--join", "f,g=h@+0",
                                "--resize", "h=pad:9,-", "--max-shard", "5GB", "--memory-budget", "16M", "--threads", 3)
        self.assertEqual(said["files"], [str(out / ".metadata")])
        self.assertEqual(said["logical_bytes"], 40)
        module, format, source, options = (out / ".metadata").read_text().splitlines()
        self.assertEqual((module, format, source), ("shardwise._convert.export_command", "dcp", str(STEP)))
        self.assertEqual(json.loads(options), {
            "target": str(out), "max_shard": 5 * 10**9, "memory": 16 << 20, "threads": 3,
            "edits": [["a*"], ["ab"], [["a*", "c*"]], [["*", "bf16"]], [["a", "1,0"]], [["c", "d,e@0"]], [["f,g", "h@+0"]],
                      [["h", "pad:9,-"]]]})
        with self.python('echo "$6" > "$5/.metadata"; echo \'{"logical_bytes": 0}\''):
            self.ok("export", STEP, self.dir / "prefix", "--format", "dcp", "--strip-prefix", "model.")
        edits = json.loads((self.dir / "prefix" / ".metadata").read_text())["edits"]
        self.assertEqual(edits[:3], [["model.*"], [], [["model.*", "*"]]])

    def test_an_existing_target(self):
        out = self.dir / "out"
        with self.python('echo one > "$5/_METADATA"; echo \'{"logical_bytes": 4}\''):
            self.ok("export", STEP, out, "--format", "orbax")
        with self.python('echo two > "$5/_METADATA"; echo \'{"logical_bytes": 4}\''):
            self.assertEqual(self.fails(3, [f"export to {out}: it exists: --replace"], "export", STEP, out, "--format", "orbax"),
                             "already_exists")
            self.assertIn("already there", self.ok("export", STEP, out, "--format", "orbax", "--skip-existing"))
            self.assertEqual((out / "_METADATA").read_text(), "one\n")
            self.fails(3, ['holds "_METADATA", too'], "export", STEP, out, "--format", "dcp", "--replace")
            self.ok("export", STEP, out, "--format", "orbax", "--replace")
            self.assertEqual((out / "_METADATA").read_text(), "two\n")
        self.assertEqual(self.left(), ["out"])

    def test_what_the_package_raises(self):
        for code, status in (("unsupported", 3), ("io", 3), ("corrupt", 3), ("invalid_argument", 2)):
            error = json.dumps({"code": code, "message": "export to out: x"})
            with self.python(f"touch \"$5/.metadata\"; echo noise; echo '{error}'; exit 3"):
                self.assertEqual(self.fails(status, ["shardwise: export to out: x"], "export", STEP, self.dir / "out", "--format", "dcp"),
                                 "usage" if status == 2 else code)
        for script in ("exit 0", "echo 7", "echo '{\"logical_bytes\": -1}'"):
            with self.python(script):
                self.fails(3, ["the Python package has ended with"], "export", STEP, self.dir / "out", "--format", "dcp")
        self.assertEqual(self.left(), [])

    def test_without_the_package(self):
        for format, package in (("dcp", "torch"), ("orbax", "orbax-checkpoint")):
            with unittest.mock.patch.dict(os.environ, {"SHARDWISE_PYTHON": "/nowhere/python3"}):
                code = self.fails(3, [f"export to {self.dir / 'out'}: the Python package writes this format",
                                      "/nowhere/python3: No such file or directory",
                                      f"needed is a python3 with shardwise and {package}, which SHARDWISE_PYTHON may name"],
                                  "export", STEP, self.dir / "out", "--format", format)
                self.assertEqual(code, "unsupported")
        self.assertEqual(self.left(), [])

    def test_words_that_do_not_fit(self):
        with self.python("exit 1"):
            for more, needed in (((self.dir / "x.npz",), "the format is dcp, but its name ends in .npz"),
                                 ((self.dir / "x.pt",), "found the ending .pt"),
                                 ((self.dir / "x", "--config-from", self.dir), "a config needs a folder of safetensors"),
                                 ((self.dir / "x", "--cast", "bf17"), "--cast"),
                                 ((self.dir / "x", "--strip-prefix", "m", "--select", "m*"), "--strip-prefix")):
                self.fails(2, [needed], "export", STEP, *more, "--format", "dcp")
            self.fails(3, ["is no folder; needed is one to make"], "export", STEP, self.dir / "no/such/x", "--format", "dcp")
        self.assertEqual(self.left(), [])

    def test_one_that_is_interrupted_leaves_nothing(self):
        for name in ("INT", "TERM"):
            # It goes on for ever, until it is killed.
            with self.python(f'mkdir "$5/d"; touch "$5/d/part"; kill -{name} $PPID; while :; do :; done'):
                done = run("export", STEP, self.dir / "out", "--format", "orbax")
            self.assertEqual(done.returncode, -getattr(signal, f"SIG{name}"), done.stderr)
            self.assertEqual(self.left(), [])


if __name__ == "__main__":
    unittest.main()
