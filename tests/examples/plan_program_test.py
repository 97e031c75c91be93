"""The step that examples/gpt writes is planned by the command as the example itself plans it, on any mesh and under any marks."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

GPT, SHARDWISE = os.environ["GPT"], os.environ["SHARDWISE"]
SIZES = ["--layers", "2", "--width", "32", "--heads", "4", "--context", "16", "--batch", "16", "--steps", "1"]

# The plans of examples/gpt/plan.cc as marks; "m." and "v." of a weight are its optimizer's state.
BATCH = ["tokens={0},-", "targets={0},-"]
TENSOR = [*(f"*.{name}=-,model" for name in ("wq", "wk", "wv", "w1")), *(f"*.{name}=model" for name in ("bq", "bk", "bv", "b1")),
          *(f"*.{name}=model,-" for name in ("wo", "w2"))]
# Cuts the longest dim of each weight that divides, the first of equal ones.
FSDP = ["*.w1=-,fsdp", "*.w?=fsdp,-", "*embed=fsdp,-", "*pos=-,fsdp", "*head=-,fsdp", "learning rate=-", "steps=-", "*=fsdp"]


class PlanProgram(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.dir = pathlib.Path(scratch.name)
        (self.dir / "text").write_text("In the beginning there was a program. " * 100)

    def train(self, mesh, plan, *options):
        done = subprocess.run([GPT, "--tokens", self.dir / "text", "--mesh", mesh, "--plan", plan, "--json", *SIZES, *options],
                              check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return json.loads(done.stdout)

    def plan(self, program, mesh, marks=()):
        marked = [word for mark in marks for word in ("--mark", mark)]
        done = subprocess.run([SHARDWISE, "plan", program, "--mesh", mesh, "--json", *marked], stdout=subprocess.PIPE)
        self.assertEqual(done.returncode, 0, done.stdout)
        return json.loads(done.stdout)

    def check_same(self, planned, trained):
        self.assertEqual(planned["memory"]["peak_bytes"], max(trained["planned_peak_bytes"]))
        self.assertEqual(sum(planned["memory"]["by_kind"].values()), planned["memory"]["peak_bytes"])
        for figure in ("bytes", "wire_bytes"):
            self.assertEqual(sum(one[figure] for one in planned["traffic"]), sum(one[figure] for one in trained["collectives"]))

    def test_a_step_with_marks_is_planned_as_it_was_trained(self):
        for mesh, plan in (("data=4", "data"), ("fsdp=4", "fsdp"), ("data=2,model=4", "tensor"), ("data=2,model=2", "2d")):
            with self.subTest(plan=plan):
                program = self.dir / f"{plan}.swp"
                trained = self.train(mesh, plan, "--save-program", program)
                self.check_same(self.plan(program, mesh), trained)

    def test_a_step_without_marks_is_planned_under_any_plan(self):
        program = self.dir / "step.swp"
        self.train("data=4", "none", "--save-program", program)
        for mesh, plan, marks in (("data=8", "data", [mark.format("data") for mark in BATCH]),
                                  ("fsdp=4", "fsdp", [mark.format("fsdp") for mark in BATCH] + FSDP),
                                  ("data=2,model=4", "tensor", [mark.format("data") for mark in BATCH] + TENSOR)):
            with self.subTest(plan=plan):
                self.check_same(self.plan(program, mesh, marks), self.train(mesh, plan))


if __name__ == "__main__":
    unittest.main()
