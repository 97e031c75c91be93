"""Which checkpoint words mean: every command that looks at one takes a step of a root in each of these forms."""
import json
import pathlib
import re
import shutil
import struct
import unittest

import numpy

from cli_test import Cli, run
from diff_test import weights


class Steps(Cli):
    def setUp(self):
        super().setUp()
        self.root = self.dir / "run"
        for step in (20, 30, 100):
            weights(self.dir / "x.safetensors", w=[step, 1, 2, 3], v=[1])
            self.ok("import", self.dir / "x.safetensors", self.root, "--step", step)
        self.ok("pin", self.root, 20, "before")
        self.step = self.root / "step-00000020"

    def forms(self, step="20"):
        """A step as words after the command."""
        number = f"{int(step):08}"
        return [(f"{self.root}@{step}",), (f"{self.root}/{step}",), (f"{self.root}/step-{step}",), (f"{self.root}/step-{number}/",),
                (f"{self.root}/@{step}",), (f"{self.root}@{number}",), (self.root, "--step", step), (f"{self.root}@before",),
                (self.root, "--step", "before"), (f"{self.root}/@before",)]

    def test_every_command_takes_every_form(self):
        for form in self.forms():
            self.assertEqual(self.ok_json("cat", form[0], "w", *form[1:])["values"], [20, 1, 2, 3], form)
            self.assertEqual(self.ok_json("inspect", *form)["step"], 20, form)
            stats = {t["name"]: t for t in self.ok_json("stats", *form)["tensors"]}
            self.assertEqual(stats["w"]["max"], 20, form)
            self.assertEqual([pathlib.Path(c["directory"]).name for c in self.ok_json("verify", *form)["checkpoints"]],
                             [self.step.name], form)
            self.assertEqual([s["step"] for s in self.ok_json("ls", *form)["steps"]], [20], form)
            self.assertEqual([s["name"] for r in self.ok_json("du", *form)["roots"] for s in r["steps"]], [self.step.name], form)
            self.assertEqual([c["removed"] for c in self.ok_json("parity", *form, "--remove")["checkpoints"]], [0], form)
            out = self.dir / "out.safetensors"
            self.ok("export", form[0], out, *form[1:], "--replace")
            self.ok("diff", out, self.step)
            self.ok("bench", "restore", *form, "--repeat", "1", "--json")
            copy = self.dir / "copy"
            self.ok("reshard", form[0], copy, *form[1:], "--mesh", "1", "--replace")
            self.ok("diff", copy, self.step)
            shutil.rmtree(copy)
            self.assertEqual(self.ok_json("cp", *form, copy)["directory"], str(copy / self.step.name), form)
            self.assertEqual([file.read_bytes() for file in sorted((copy / self.step.name).iterdir())],
                             [file.read_bytes() for file in sorted(self.step.iterdir())], form)
            shutil.rmtree(copy)

    def test_cp_replaces_another_step_of_the_number_if_asked(self):
        other = self.dir / "other"
        weights(self.dir / "x.safetensors", w=[7], v=[1])
        self.ok("import", self.dir / "x.safetensors", other, "--step", 20)
        self.fails(3, ["other bytes; --replace puts"], "cp", self.step, other)
        copied = self.ok_json("cp", self.step, other, "--replace", "--requests", 2)
        self.assertEqual((copied["directory"], copied["present_bytes"]), (str(other / "step-00000020.g2"), 0))
        again = self.ok_json("cp", self.step, other)
        self.assertEqual(again["present_bytes"], again["bytes"])
        self.ok("diff", f"{other}@20", self.step)

    def test_a_number_after_the_root_is_a_step(self):
        for word in ("20", "00000020", "step-20", "before"):
            self.assertEqual(self.ok_json("cat", self.root, word, "w")["values"][0], 20)
            self.assertEqual([s["step"] for s in self.ok_json("ls", self.root, word)["steps"]], [20])
            self.assertEqual(len(self.ok_json("verify", self.root, word)["checkpoints"]), 1)
            self.assertEqual(len(self.ok_json("du", self.root, word)["roots"][0]["steps"]), 1)
            self.ok("export", self.root, word, self.dir / "y.npz", "--replace")
            self.assertEqual(numpy.load(self.dir / "y.npz")["w"][0], 20)
            self.ok("reshard", self.root, word, self.dir / "r", "--mesh", "1", "--replace")
            self.ok("diff", self.dir / "r", self.step)
        self.assertEqual(self.ok_json("inspect", self.root, "20", "w")["step"], 20)
        self.assertEqual([t["name"] for t in self.ok_json("inspect", self.root, "20", "w")["tensors"]], ["w"])
        self.assertEqual([t["max"] for t in self.ok_json("stats", self.root, "20", "w")["tensors"]], [20])
        self.assertEqual(self.ok_json("inspect", self.root, "latest")["step"], 100)
        self.assertEqual(self.ok_json("inspect", f"{self.root}@latest")["step"], 100)
        self.assertEqual(self.ok_json("inspect", f"{self.root}/latest")["step"], 100)

    def test_diff_takes_two_of_any_form(self):
        for words in ((self.root, "20", "30"), (f"{self.root}@20", "30"), (f"{self.root}@20", f"{self.root}@30"),
                      (f"{self.root}/20", f"{self.root}/30"), (self.step, f"{self.root}@30"), (self.root, "20", self.root, "30"),
                      (self.root, "before", "30")):
            differing = run("diff", *words, "--json")
            self.assertEqual(differing.returncode, 1, differing)
            tensors = {t["name"]: t for t in json.loads(differing.stdout)["tensors"]}
            self.assertEqual(tensors["w"]["values"], ["20", "30"], words)
        self.ok("diff", self.root, "latest", self.root)
        self.ok("diff", self.root, self.root, "--step", "20")
        self.assertEqual(run("diff", self.root, "20", self.root).returncode, 1)
        self.fails(2, ["diff: found 1 checkpoint, needed two, as in `shardwise diff run 20 30`"], "diff", self.root, "20")
        self.fails(2, ["diff: found 3 checkpoints"], "diff", self.root, "20", "30", "100")

    def test_rm_and_pin_take_them_too(self):
        self.ok("pin", f"{self.root}@30", "thirty")
        self.ok("pin", self.root / "step-00000030", "again")
        self.assertEqual(self.ok_json("ls", self.root)["steps"][1]["pinned"], ["again", "thirty"])
        self.ok("unpin", self.root, "thirty", "again", "before")
        self.assertEqual(self.ok_json("rm", self.root / "step-00000020", f"{self.root}@30")["removed"], [20, 30])
        self.assertEqual([s["step"] for s in self.ok_json("ls", self.root)["steps"]], [100])
        self.fails(2, ["rm: step is required, as in `shardwise rm "], "rm", self.root)
        self.fails(3, ["find step 20", "its steps are 100"], "rm", f"{self.root}@20")
        self.fails(2, ["is a checkpoint; needed is the directory that holds it"], "rm", self.root / "step-00000100", 100)
        other = self.dir / "other"
        shutil.copytree(self.root, other)
        self.fails(2, ["needed those of one directory"], "rm", f"{self.root}@100", f"{other}@100")

    def test_what_really_has_the_name_wins(self):
        for name in ("run@20", "run/20"):
            weights(self.dir / "z.safetensors", z=[1])
            self.ok("import", self.dir / "z.safetensors", self.dir / "there", "--step", 7)
            shutil.move(self.dir / "there" / "step-00000007", self.dir / name)
            self.assertEqual([t["name"] for t in self.ok_json("inspect", self.dir / name)["tensors"]], ["z"])
            self.assertEqual(self.ok_json("inspect", self.root, "--step", "20")["step"], 20)
        weights(self.dir / "n.safetensors", **{"20": [5]})
        self.ok("import", self.dir / "n.safetensors", self.dir / "numbers", "--step", 20)
        self.assertEqual([t["name"] for t in self.ok_json("inspect", self.dir / "numbers", "20")["tensors"]], ["20"])
        self.assertEqual(self.ok_json("cat", self.dir / "numbers", "20")["values"], [5])
        self.assertEqual(self.ok_json("cat", self.dir / "numbers", "20", "20")["values"], [5])

    def test_folders_of_another_format_are_steps_too(self):
        for step in ("100", "200"):
            (self.dir / "hf" / step).mkdir(parents=True)
            weights(self.dir / "hf" / step / "model.safetensors", w=[int(step)])
        for words in (("hf@100",), ("hf/100",), ("hf", "100"), ("hf", "--step", "100")):
            found = self.ok_json("stats", self.dir / words[0], *words[1:])
            self.assertEqual(found["tensors"][0]["max"], 100, words)
        for words in ((self.dir / "hf", "100", "200"), (f"{self.dir}/hf@100", f"{self.dir}/hf@200")):
            self.assertIn("100 | 200", run("diff", *words).stdout)
        self.fails(3, ["holds no committed checkpoint"], "stats", f"{self.dir}/hf@300")

    def test_one_error_for_a_step_that_is_not_there(self):
        for words in ((f"{self.root}@7",), (f"{self.root}/7",), (self.root, "--step", "7"), (f"{self.root}/step-7",)):
            for command in ("inspect", "stats", "verify", "ls", "du", "parity"):
                self.fails(3, ["find step 7 in", "its steps are 20, 30, 100"], command, *words)
        self.fails(3, ['found the step "nosuch", needed a number, latest or a name that pins a step: before'], "ls", f"{self.root}@nosuch")
        self.fails(2, ["@best: whether a small or a large metric is best is not stored"], "ls", f"{self.root}@best")
        self.fails(2, ["is a checkpoint; needed is the directory that holds it"], "ls", f"{self.step}@30")
        self.fails(3, ["nowhere@20 does not exist"], "ls", self.dir / "nowhere@20")

    def test_ls_of_a_checkpoint_lists_that_one(self):
        found = self.ok_json("ls", self.step)
        self.assertEqual([s["step"] for s in found["steps"]], [20])
        self.assertEqual(found["steps"][0]["pinned"], ["before"])
        self.assertRegex(found["steps"][0]["time"], r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertEqual(found["steps"][0]["metrics"], {})
        self.assertRegex(self.ok("ls", self.root), r"^step +time  tensors +bytes +alone +shared +mesh +pinned +state\n +20 +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d  ")
        self.assertIn("before", self.ok("ls", self.root))


class Index(Cli):
    def test_elements_are_taken_as_in_numpy(self):
        w = numpy.arange(120, dtype="<f4").reshape(5, 4, 6)
        header = json.dumps({"w": {"dtype": "F32", "shape": [5, 4, 6], "data_offsets": [0, 480]},
                             "q[0]": {"dtype": "F32", "shape": [2], "data_offsets": [480, 488]}}).encode()
        header += b" " * (-len(header) % 8)
        path = self.dir / "x.safetensors"
        path.write_bytes(struct.pack("<Q", len(header)) + header + w.tobytes() + numpy.array([7, 8], "<f4").tobytes())
        self.ok("import", path, self.dir / "run", "--step", 3, "--mesh", "a=2", "--spec", "w=-,a,-;*=-")
        for index in ("[0:3]", "[0:3, 1]", "[-1]", "[:, -1, 2:]", "[..., 0]", "[1, ..., 2:4]", "[0:100]", "[-100:2]", "[3:1]", "[2,]",
                      "[...]", "[:]", "[4, 3, 5]", "[ 1 : 3 , 2 ]", "[-3:-1, :, -2:]"):
            expected = eval(f"w{index}", {"w": w})
            for source in (path, self.dir / "run", f"{self.dir}/run@3"):
                shown = self.ok_json("cat", source, f"w{index}")
                self.assertEqual(numpy.array(shown["values"], "<f4").tobytes(), expected.tobytes(), index)
            npy = self.dir / "out.npy"
            self.ok("cat", path, f"w{index}", "--npy", npy)
            self.assertEqual(numpy.load(npy).shape, expected.shape, index)
        self.assertEqual(self.ok_json("cat", path, "q[0]")["values"], [7, 8], "a tensor that has this name")
        self.assertEqual(self.ok_json("cat", path, "q[0][1]")["values"], 8)
        for index, part in (("[5]", "an index of a dim of 5"), ("[-6]", "found -6 in a dim of 5"), ("[0, 0, 0, 0]", "found 4 dims"),
                            ("[::2]", "needed a range without a step"), ("[]", "")):
            if index != "[]":
                self.fails(2, [f"cat: w{index}: ", part], "cat", path, f"w{index}")
        self.fails(3, ['no tensor "wq"'], "cat", path, "wq[0:3]")
        self.fails(2, ["needed one of the two"], "cat", path, "w[0]", "--box", "0")


class Verbs(Cli):
    def test_verbs_of_other_tools_are_told_what_to_write(self):
        for verb, command in (("show", "inspect"), ("info", "inspect"), ("log", "ls"), ("list", "ls"), ("tree", "inspect"), ("dump", "cat"),
                              ("head", "cat"), ("copy", "cp"), ("mv", "`mv`"), ("tag", "pin"), ("fsck", "verify"), ("check", "verify"),
                              ("convert", "import"), ("sync", "tiers"), ("prune", "rm"), ("rename", "reshard"), ("hash", "verify"),
                              ("status", "ls"), ("validate", "verify"), ("delete", "rm"), ("compare", "diff"), ("SHOW", "inspect")):
            written = command if command.startswith("`") else f"`shardwise {command} "
            for words in ((verb, "run"), (verb,), ("help", verb)):
                answer = run(*words).stderr
                self.assertIn(f'unknown command "{verb}"; ', answer)
                self.assertIn(written, answer)
                self.assertEqual(answer.count("\n"), 1)
                self.assertNotIn("did you mean", answer)
        for wrong, right in (("inspct", "inspect"), ("verfy", "verify"), ("exprot", "export")):
            self.fails(2, [f'did you mean "{right}"?'], wrong, "x")

    def test_the_advice_names_commands_that_are_there(self):
        commands = set(re.findall(r"(?m)^  ([a-z]+) ", self.ok("help").partition("Subcommands:")[2]))
        source = (pathlib.Path(__file__).resolve().parents[2] / "tools" / "other_words.cc").read_text()
        named = set(re.findall(r"`shardwise ([a-z]+)", re.sub(r'"\s*"', "", source)))
        self.assertGreater(len(named), 10)
        self.assertLessEqual(named, commands)


class Width(Cli):
    def test_no_line_of_help_is_wider_than_100(self):
        commands = re.findall(r"(?m)^  ([a-z]+) ", self.ok("help").partition("Subcommands:")[2])
        for words in ((), ("bench", "save"), ("bench", "restore"), *((c,) for c in commands)):
            for line in self.ok("help", *words).splitlines():
                self.assertLessEqual(len(line), 100, (words, line))

    def test_du_takes_h(self):
        weights(self.dir / "x.safetensors", w=[1])
        self.ok("import", self.dir / "x.safetensors", self.dir / "run", "--step", 1)
        for flag in ("-h", "--human-readable"):
            self.assertEqual(self.ok("du", flag, self.dir / "run"), self.ok("du", self.dir / "run"))
    

    def test_diff_fits_100_columns(self):
        deep = "model.layers.11.self_attention.query_key_value.weight.of.a.long.name"
        a = weights(self.dir / "a.safetensors", **{"w": [1.23456789, -2e-30, 3], deep: [1, 2, 3e38]})
        b = weights(self.dir / "b.safetensors", **{"w": [1.3456789, -2.5e-30, 3], deep: [float("nan"), 2.5, -3e38]})
        result = run("diff", a, b)
        self.assertEqual(result.returncode, 1)
        for line in result.stdout.splitlines():
            self.assertLessEqual(len(line), 100, line)
        self.assertIn(deep, result.stdout)


if __name__ == "__main__":
    unittest.main()
