"""Other formats' files and folders are named, with what to type."""
import json
import os
import shlex
import shutil
import signal
import sys
import unittest
import unittest.mock

from cli_test import Cli, GOLDEN, run
from diff_test import weights


class Foreign(Cli):
    COMMANDS = (("verify",), ("du",))
    LOOKS = (("ls",), ("inspect",), ("stats",))  # these take other formats, too

    def folder(self, name, *files):
        path = self.dir / name
        path.mkdir(parents=True)
        for file in files:
            (path / file).write_bytes(b"")
        return path

    def named(self, path, *said, is_taken=False):
        looks = () if is_taken else self.LOOKS
        for command in self.COMMANDS + looks:
            self.fails(3, said, *command, path)
        self.fails(3, said, "reshard", path, self.dir / "out", "--mesh", "1")
        self.fails(3, said, "export", path, self.dir / "out.safetensors")

    def test_folders(self):
        for name, files, needed in (
                ("st", ["model.safetensors"], "it seems to be safetensors: `shardwise import {} ROOT --step 0` makes"),
                ("gpt2", ["config.json", "model-00001-of-00002.safetensors"],
                 "a model of Hugging Face in safetensors: `shardwise import {} ROOT --step 0` makes"),
                ("old", ["config.json", "pytorch_model.bin"], "a model in PyTorch's own files: from_pretrained"),
                ("dcp", [".metadata", "__0_0.distcp"],
                 "(DCP): `shardwise import {} ROOT --step 0` makes"),
                ("step-00000100", [".metadata"], "`shardwise import {} ROOT --step 0` makes"),
                ("orbax", ["_CHECKPOINT_METADATA"], "a checkpoint of Orbax: `shardwise import {} ROOT --step 0` makes"),
                ("item", ["_METADATA"], "`shardwise import {} ROOT --step 0` makes")):
            path = self.folder(name, *files)
            self.named(path, f"{path} holds no committed checkpoint; it seems to be ", needed.format(path),
                       is_taken=name != "old")

    def test_what_python_reads_is_named_whole(self):
        for name, file, what in (("dcp", ".metadata", "a distributed checkpoint of PyTorch (DCP)"),
                                 ("of orbax's", "_METADATA", "a checkpoint of Orbax")):
            path = self.folder(name, file)
            for words in (("verify", path), ("du", path), ("parity", path), ("bench", "restore", path), ("rm", path, "1")):
                done = run(*words)
                self.assertEqual(done.returncode, 3, words)
                self.assertEqual(done.stderr, f"shardwise: {path} holds no committed checkpoint; it seems to be {what}: "
                                              f"`shardwise import {shlex.quote(str(path))} ROOT --step 0` makes a checkpoint "
                                              f"of it\n", words)
            self.assertEqual(shlex.split(done.stderr.split("`")[1])[2], str(path))

    def test_folders_of_checkpoints_of_others(self):
        step = self.folder("runs/7", "_CHECKPOINT_METADATA")
        newest = self.folder("runs/10", "_CHECKPOINT_METADATA")
        self.named(step.parent, f"several, such as {newest}, a checkpoint of Orbax: ",
                   f"`shardwise import {newest} ROOT --step 0` makes")
        self.fails(3, [f"several, such as {newest}", f"`shardwise import {newest} ROOT --step 0` makes"], "import", step.parent,
                   self.dir / "root", "--step", 0)

    def test_what_to_type_without_the_python_package(self):
        root = self.dir / "root"
        for name, file, words in (("dcp", ".metadata", ["torch", "import_dcp"]),
                                  ("orbax", "_METADATA", ["orbax-checkpoint", "import_orbax"])):
            path = self.folder(name, file)
            for python, said in (("/nowhere/python3", "/nowhere/python3: No such file or directory"),
                                 (sys.executable, "No module named 'shardwise'")):
                with unittest.mock.patch.dict(os.environ, {"SHARDWISE_PYTHON": python, "PYTHONPATH": ""}):
                    self.assertEqual(self.fails(3, [said, f'{words[1]}("{path}", "NAME")', *words], "import", path, root, "--step", 1),
                                     "unsupported")
            self.assertEqual(sorted(entry.name for entry in self.dir.iterdir() if entry.name not in ("dcp", "orbax")), [])

    def test_looks_say_what_to_install_without_the_python_package(self):
        ours = GOLDEN / "step-00000001"
        for name, file, package in (("dcp", ".metadata", "torch"), ("orbax", "_METADATA", "orbax-checkpoint")):
            path = self.folder(name, file)
            with unittest.mock.patch.dict(os.environ, {"SHARDWISE_PYTHON": "/nowhere/python3"}):
                for words in (("ls", path), ("inspect", path), ("cat", path, "w"), ("stats", path, "w")):
                    self.assertEqual(self.fails(3, [f"read {path}: the Python package reads this format", "/nowhere/python3",
                                                    f"needed is a python3 with shardwise and {package}"], *words), "unsupported")
                for words in (("diff", path, ours), ("diff", ours, path), ("stats", path)):
                    self.fails(3, [f"import {path}: ", f"needed is a python3 with shardwise and {package}"], *words)

    def python(self, script):
        """A stand-in for python3; its arguments: -m shardwise._convert.import_command FORMAT SOURCE [TARGET]."""
        path = self.dir / "python3"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return unittest.mock.patch.dict(os.environ, {"SHARDWISE_PYTHON": str(path)})

    def test_what_python_says_of_tensors_is_checked(self):
        path = self.folder("dcp", ".metadata")
        with self.python("""echo noise; echo '[["w", "f32", [2, 3]], ["a", "bf16", []]]'"""):
            self.assertEqual([(t["name"], t["dtype"], t["shape"], t["logical_bytes"]) for t in self.ok_json("inspect", path)["tensors"]],
                             [("a", "bf16", [], 2), ("w", "f32", [2, 3], 24)])
            self.assertEqual(self.ok_json("ls", path), {"path": str(path), "format": "dcp", "tensors": 2, "logical_bytes": 26})
            self.fails(2, ["--svg: found dcp, needed is a checkpoint"], "inspect", path, "--svg", self.dir / "a.svg")
            self.fails(3, ['has no tensor "x"'], "inspect", path, "--tensor", "x")
        with self.python("""echo '[["w", "f99", [2]]]'"""):  # a dtype that this library lacks
            self.assertEqual([(t["name"], t["dtype"], t["logical_bytes"]) for t in self.ok_json("inspect", path)["tensors"]],
                             [("w", "f99", 0)])
        for answer in ("nothing", "", "7", "{}", '[["w", "", [2]]]', '[["w", "f32", [-1]]]', '[["w", "f32", [2.5]]]', '[["w", "f32"]]',
                       '[[3, "f32", [2]]]', '[["w", "f32", [4611686018427387904, 4]]]', '[["w", "f32", 7]]', '["w"]',
                       f'[["w", "f32", {[1] * 17}]]', '[["w", "f32", [1]], ["w", "f32", [1]]]', '[["w", "f32", [18446744073709551615]]]'):
            with self.python(f"echo '{answer}'"):
                for command in ("ls", "inspect"):
                    self.assertEqual(self.fails(3, [f"read {path}: the Python package has given "], command, path), "corrupt", answer)

    def test_a_command_that_is_interrupted_leaves_nothing(self):
        path = self.folder("dcp", ".metadata")
        scratch = self.folder("tmp")
        script = """if [ -z "$5" ]; then echo '[["w", "f32", [2]]]'; exit 0; fi; mkdir "$5"; touch "$5/part"; kill -%s $PPID; exit 1"""
        for name in ("INT", "TERM"):
            for words in (("diff", path, GOLDEN / "step-00000001"), ("stats", path), ("cat", path, "w")):
                with self.python(script % name), unittest.mock.patch.dict(os.environ, {"TMPDIR": str(scratch)}):
                    self.assertEqual(run(*words).returncode, -getattr(signal, f"SIG{name}"), words)
                self.assertEqual(list(scratch.iterdir()), [])
        with unittest.mock.patch.dict(os.environ, {"TMPDIR": str(self.dir / "none")}):
            self.fails(3, [f"import {path}: found no folder for temporary files, needed is one, which TMPDIR may name"], "diff", path,
                       GOLDEN / "step-00000001")

    def stand_in(self):
        """For python3 with the package: all checkpoints of DCP and Orbax hold the tensors of one of ours."""
        ours = self.dir / "ours"
        step = json.loads(run("import", weights(self.dir / "w.safetensors", w=[1, 2, float("nan")], v=[3]), ours, "--step", "0", "--json").stdout)
        return self.python(f"""echo "$4 $6" >> {self.dir}/calls
            if [ -n "$5" ]; then cp -r {step["directory"]} "$5"; else echo '[["w", "f32", [3]], ["v", "f32", [1]]]'; fi""")

    def test_every_command_takes_every_format_or_says_what_to_type(self):
        """Commands that look at tensors take all that import takes; others name the import."""
        with self.stand_in():
            self.folder("dcp", ".metadata"), self.folder("orbax", "_CHECKPOINT_METADATA")
            self.folder("dcps/step_9", ".metadata"), self.folder("dcps/step_10", ".metadata")
            self.folder("orbaxes/9", "_METADATA"), self.folder("orbaxes/10", "_METADATA")
            (self.dir / "st").mkdir()
            weights(self.dir / "st/model.safetensors", w=[1, 2, float("nan")], v=[3])
            self.ok("export", self.dir / "ours", self.dir / "w.npz"), self.ok("export", self.dir / "ours", self.dir / "w.h5")
            (self.dir / "w.pt").write_bytes(b"PK\3\4")
            taken = ["ours", "w.safetensors", "st", "w.npz", "w.h5", "dcp", "orbax", "dcps@9", "dcps@10", "dcps/step_9", "dcps/9", "dcps@latest",
                     "orbaxes@9", "orbaxes/10"]
            for name in taken:
                path = self.dir / name
                self.assertEqual(self.ok("cat", path, "w"), "[  1,   2, nan]\n", name)
                self.assertEqual(self.ok("cat", path, "w[:2]"), "[1, 2]\n", name)
                self.fails(3, ['has no tensor "x" among its 2'], "cat", path, "x")
                self.assertEqual({one["name"]: one["nan"] for one in self.ok_json("stats", path)["tensors"]}, {"v": 0, "w": 1}, name)
                self.assertEqual([one["name"] for one in self.ok_json("stats", path, "v*")["tensors"]], ["v"], name)
                self.assertEqual(run("stats", path, "--nan").returncode, 1, name)
                self.fails(3, ['has no tensor "x*" among its 2'], "stats", path, "x*")
                self.assertEqual([one["name"] for one in self.ok_json("inspect", path)["tensors"]], ["v", "w"], name)
                self.assertTrue(self.ok_json("diff", path, self.dir / "ours")["equal"], name)
                self.ok_json("ls", path)
                if name not in ("st", "w.npz", "dcp", "orbaxes@9"):
                    continue
                for words in (["verify"], ["du"], ["parity"], ["bench", "restore"]):
                    self.fails(3, ["` makes a checkpoint of it", "`shardwise import "], *words, path)
                self.fails(3, ["`shardwise import "], "reshard", path, self.dir / "out", "--mesh", 1)
                self.fails(3, ["`shardwise import "], "export", path, self.dir / "out.npz")
            for name, newest in (("dcps", "dcps/step_10"), ("orbaxes", "orbaxes/10"), ("w.pt", "w.pt")):
                path = self.dir / name
                for words in (["inspect"], ["ls"], ["stats"], ["verify"], ["du"], ["parity"], ["bench", "restore"]):
                    self.fails(3, [str(self.dir / newest), "` makes a checkpoint of it"], *words, path)
                self.fails(3, [str(self.dir / newest), "` makes a checkpoint of it"], "cat", path, "w")
                self.fails(3, [str(self.dir / newest), "` makes a checkpoint of it"], "diff", self.dir / "ours", path)
            self.assertTrue(self.ok_json("diff", self.dir / "dcps", 9, 10)["equal"])
            self.assertEqual(self.ok("cat", self.dir / "dcps", 10, "w"), "[  1,   2, nan]\n")
            self.fails(3, ["such as "], "cat", self.dir / "dcps@11", "w")

    def test_only_what_is_shown_is_imported(self):
        path = self.folder("dcp", ".metadata")
        with self.stand_in():
            for words, selected in ((("cat", path, "w[0]"), ["w"]), (("stats", path, "v*"), ["v*"]), (("stats", path), [])):
                (self.dir / "calls").write_text("")
                self.ok(*words)
                _, said = (self.dir / "calls").read_text().splitlines()[-1].split(" ", 1)
                self.assertEqual(json.loads(said), {"select": selected, "exclude": []}, words)
            (self.dir / "calls").write_text("")
            self.assertEqual(self.ok("completion", "names", "cat", path, ""), "v\nw\n")  # of a completion
            self.assertEqual((self.dir / "calls").read_text().split(" ", 1)[1].strip(), "")

    def test_files(self):
        cases = {"m.safetensors": b"", "renamed.bin": b"\2\0\0\0\0\0\0\0{}", "m.safetensors.index.json": b"{}"}
        for name, content in cases.items():
            path = self.dir / name
            path.write_bytes(content)
            self.named(path, f"{name} is not a directory, needed is a checkpoint", "safetensors",
                       f"`shardwise import {path} ROOT --step 0` makes a checkpoint of it", is_taken=True)
        for name, content, said in (("a.npz", b"PK\3\4", "an archive of numpy's: `shardwise import {} ROOT --step 0` makes"),
                                    ("a.pt", b"PK\3\4", "torch.load(\"{}\""),
                                    ("a.npy", b"\x93NUMPY\1\0", "numpy.load(\"{}\")"),
                                    ("a.gguf", b"GGUF\3\0\0\0", "it seems to be GGUF")):
            path = self.dir / name
            path.write_bytes(content)
            self.named(path, "is not a directory", said.format(path), is_taken=name == "a.npz")
        path = self.dir / "a.h5"
        path.write_bytes(b"\x89HDF\r\n\x1a\n")
        self.named(path, "it seems to be HDF5: `shardwise import", is_taken=True)

    def test_what_is_named_can_be_typed(self):
        path = weights(self.dir / "m.safetensors", w=[1, 2])
        said = run("verify", path).stderr.split("`")[1].replace("ROOT", str(self.dir / "root"))
        self.ok(*said.split()[1:])
        self.ok("inspect", self.dir / "root")

    def test_a_file_of_a_checkpoint(self):
        step = GOLDEN / "step-00000001"
        for name in ("index.h5", "manifest.json"):
            self.named(step / name, f"it seems to be a file of the checkpoint {step}")

    def test_a_folder_above_the_root(self):
        root = self.dir / "runs" / "a"
        shutil.copytree(GOLDEN, root)
        for command in ("inspect", "verify"):
            self.fails(3, [f"{root.parent} holds no committed checkpoint; {root} in it does"], command, root.parent)


if __name__ == "__main__":
    unittest.main()
