"""examples/gpt continues texts from its own checkpoint: its output, the order of the texts, and its plan."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

GPT = os.environ["GPT"]
SIZES = ["--layers", "2", "--width", "32", "--heads", "4", "--context", "48", "--batch", "8"]
TEXT = "In the beginning there was a program. "


class Generate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.dir = pathlib.Path(scratch.name)
        (cls.dir / "text").write_text(TEXT * 100)
        cls.run_gpt("--tokens", cls.dir / "text", "--mesh", "data=2", "--plan", "fsdp", "--steps", "150",
                    "--learning-rate", "0.01", "--checkpoints", cls.dir / "steps")

    @classmethod
    def run_gpt(cls, *options, status=0):
        done = subprocess.run([GPT, *SIZES, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert done.returncode == status, done.stderr
        return done.stdout if status == 0 else done.stderr

    def generate(self, *options, status=0):
        return self.run_gpt("--checkpoints", self.dir / "steps", *options, status=status)

    def test_texts_come_one_after_another(self):
        made = self.generate("--mesh", "model=2", "--plan", "tensor", "--new-tokens", "8",
                             "--generate", "In the beg", "--generate", "ther")
        self.assertEqual(made, "In the beginning t\n---\nthere was a \n")

    def test_a_text_ends_before_the_stop_character(self):
        tensor = ["--mesh", "data=2,model=2", "--plan", "tensor", "--new-tokens", "30", "--generate", "there w"]
        self.assertEqual(self.generate(*tensor, "--stop", "."), "there was a program\n")
        self.assertEqual(self.generate(*tensor, "--stop", "46"), "there was a program\n")
        self.assertIn("found stop \"ab\", needed one character", self.generate(*tensor, "--stop", "ab", status=3))
        self.assertIn("found stop \"256\"", self.generate(*tensor, "--stop", "256", status=3))

    def test_json_has_tokens_peaks_and_seconds(self):
        one, two = (json.loads(self.generate("--mesh", mesh, "--plan", plan, "--new-tokens", "8", "--json", "--seed", "3",
                                             "--temperature", "0.7", "--generate", "In the", "--generate", "program"))
                    for mesh, plan in (("1", "none"), ("model=4", "tensor")))
        self.assertEqual([len(text) for text in one["tokens"]], [8, 8])
        self.assertEqual(one["tokens"], two["tokens"])
        for found in (one, two):
            self.assertEqual(found["planned_peak_bytes"], found["measured_peak_bytes"])
            self.assertGreater(found["step_seconds"], 0)
        self.assertEqual(one["collectives"], [])
        self.assertEqual([total["kind"] for total in two["collectives"]], ["all-reduce"])

    def test_the_plan_says_what_fits(self):
        options = ["--plan-only", "--new-tokens", "16", "--json", "--mesh", "model=2", "--plan", "tensor"]
        plan = json.loads(self.run_gpt(*options))
        # 2 layers, keys and values, 8 texts, 47 places, a width of 32, over 2 devices.
        self.assertEqual(plan["cache_bytes"], 2 * 2 * 8 * 47 * 32 * 4 // 2)
        # Two sums of [8, 32] a layer: a device of two sends as much as it has.
        self.assertEqual(plan["wire_bytes"], 2 * 2 * 8 * 32 * 4)
        peak = max(plan["prefill_peak_bytes"], plan["decode_peak_bytes"])
        exact = json.loads(self.run_gpt(*options, "--memory", str(peak)))
        self.assertEqual((exact["largest_batch"], exact["largest_context"]), (8, 48))
        less = json.loads(self.run_gpt(*options, "--memory", str(peak - 1)))
        self.assertEqual(less["largest_batch"], 7)
        self.assertLess(less["largest_context"], 48)
        none = json.loads(self.run_gpt(*options, "--memory", "1000"))
        self.assertEqual((none["largest_batch"], none["largest_context"]), (0, 0))
        page = self.run_gpt(*options[:3], *options[4:], "--memory", "1MiB")
        self.assertIn(f"key-value cache of a device {plan['cache_bytes']:15} bytes", page)

    def test_the_page_shows_what_is_printed(self):
        page = (pathlib.Path(__file__).parents[2] / "docs/serving.md").read_text()
        commands = [block for block in re.findall(r"```sh\n\$ gpt (.*?)```", page, re.DOTALL) if "--plan-only" in block]
        self.assertEqual(len(commands), 1)
        command, shown = re.fullmatch(r"((?:[^\n]*\\\n)*[^\n]*)\n(.*)", commands[0], re.DOTALL).groups()
        done = subprocess.run([GPT, *command.replace("\\", "").split()], stdout=subprocess.PIPE, text=True, check=True)
        self.assertEqual(done.stdout, shown)

    def test_refuses_what_cannot_be(self):
        refusals = {("--generate", ""): "found text 0 empty, needed a byte",
                    ("--generate", "a" * 40, "--new-tokens", "9"): "found a text of 40 bytes and 9 more, needed at most the context of 48",
                    ("--generate", "a", "--temperature", "-1"): "found temperature -1, needed 0 or more",
                    ("--generate", "a", "--norm", "rms"): 'found norm "layer", needed "rms"',
                    ("--generate", "a", "--mesh", "stage=2", "--plan", "pipeline"): "found a plan with stages"}
        for options, message in refusals.items():
            mesh = () if "--mesh" in options else ("--mesh", "1", "--plan", "none")
            with self.subTest(options=options):
                tokens = () if "--new-tokens" in options else ("--new-tokens", "4")
                self.assertIn(message, self.generate(*tokens, *mesh, *options, status=3))
        self.assertIn("found no checkpoint in", self.run_gpt("--generate", "a", "--checkpoints", self.dir / "none", status=3))
        self.assertIn("--new-tokens", self.generate("--generate", "a", "--new-tokens", "x", status=104))


if __name__ == "__main__":
    unittest.main()
