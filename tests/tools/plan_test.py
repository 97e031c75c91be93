"""plan: what a program needs on a mesh, from its file; nothing runs."""
import json
import re
import unittest

from cli_test import Cli, run

# Two layers and a step of gradient descent, as a tracer records it.
PROGRAM = """\
%0 = input() "x" : f32[4096, 256] marked data,- kind=loader
%1 = input() "w1" : f32[256, 1024] marked -,- kind=parameter
%2 = input() "w2" : f32[1024, 256] marked -,- kind=parameter
%3 = dot_general(%0, %1) "bi,ih->bh" : f32[4096, 1024]  # layer0
%4 = tanh(%3) : f32[4096, 1024]  # layer0
%5 = dot_general(%4, %2) "bh,ho->bo" : f32[4096, 256]  # layer1
%6 = dot_general(%4, %5) "bh,bo->ho" : f32[1024, 256] backward  # layer1
%7 = constant() 0.1 : f32[1024, 256]  # optimizer
%8 = mul(%6, %7) : f32[1024, 256]  # optimizer
%9 = sub(%2, %8) : f32[1024, 256] marked -,-  # optimizer
return %9
"""
W1, W2, X = 256 * 1024 * 4, 1024 * 256 * 4, 4096 * 256 * 4


class Plan(Cli):
    def setUp(self):
        super().setUp()
        self.program = self.dir / "step.swp"
        self.program.write_text(PROGRAM)

    def test_memory_is_told_by_kind_with_the_largest_tensors(self):
        found = self.ok_json("plan", self.program, "--mesh", "data=8")
        self.assertEqual((found["operations"], found["devices"], found["mesh"]), (10, 8, "data=8"))
        memory = found["memory"]
        self.assertEqual(memory["by_kind"]["parameter"], W1 + W2)
        self.assertEqual(memory["by_kind"]["loader"], X // 8)
        self.assertEqual(sum(memory["by_kind"].values()), memory["peak_bytes"])
        self.assertEqual((memory["capacity_bytes"], memory["fits"], memory["advice"]), (None, None, None))
        self.assertEqual([one["tensor"] for one in memory["largest"]],
                         ['dot_general %3 in "layer0"', "w1", "w2", 'dot_general %6 in "layer1"', "x", 'dot_general %5 in "layer1"'])
        self.assertEqual(memory["largest"][1],
                         {"tensor": "w1", "kind": "parameter", "type": "f32[256, 1024]", "cut": "-,-", "bytes": W1})
        self.assertEqual([one["kind"] for one in memory["largest"]][2:4], ["parameter", "gradient"])
        # Each device has a part of the gradient of w2, which are combined.
        self.assertEqual(memory["by_kind"]["gradient"], W2)
        self.assertEqual(memory["scope"], "layer1")
        self.assertIn('in "layer1"', memory["step"])

    def test_what_nobody_asked_for_is_told_first(self):
        found = self.ok_json("plan", self.program, "--mesh", "data=8")
        self.assertEqual([(one["collective"], one["is_asked_for"]) for one in found["traffic"]], [("all-reduce", True)])
        one = found["traffic"][0]
        self.assertEqual((one["axes"], one["tensors"], one["bytes"]), (["data"], 1, W2))
        self.assertEqual(one["wire_bytes"], 2 * 7 * W2 // 8)
        # Of a batch in reverse each device needs what another one has.
        self.program.write_text(PROGRAM.replace("tanh(%3)", "reverse(%3) dims=[0]"))
        found = self.ok_json("plan", self.program, "--mesh", "data=8")
        first = found["traffic"][0]
        self.assertFalse(first["is_asked_for"], found["traffic"])
        self.assertEqual(first["scope"], "layer0")
        self.assertTrue(first["needed_by"].startswith("%4 = reverse(%3)"), first)
        text = self.ok("plan", self.program, "--mesh", "data=8")
        self.assertIn("\nnot asked for: collective-permute for %4 = reverse(%3) dims=[0] : f32[4096, 1024]\n", text)
        self.assertRegex(text, r"(?m)^ *2\.00 MiB  no +collective-permute +data +1  layer0 ")
        self.assertTrue(found["traffic"][-1]["is_asked_for"])

    def test_of_two_wishes_the_one_that_was_dropped_is_told(self):
        self.program.write_text('%0 = input() "x" : f32[64, 64] marked data,-\n%1 = neg(%0) : f32[64, 64]\n'
                                '%2 = input() "y" : f32[64, 64] marked -,data\n%3 = exp(%2) : f32[64, 64]\n'
                                '%4 = add(%1, %3) : f32[64, 64]\nreturn %4\n')
        one, = self.ok_json("plan", self.program, "--mesh", "data=8")["traffic"]
        self.assertEqual((one["collective"], one["is_asked_for"]), ("all-to-all", False))
        self.assertIn("found %1 cut as data,- and %3 cut as -,data, kept the first", one["needed_by"])

    def test_marks_of_the_options_count_instead_of_the_file_s(self):
        found = self.ok_json("plan", self.program, "--mesh", "data=8", "--mark", "w*=data,-")
        self.assertEqual(found["memory"]["by_kind"]["parameter"], (W1 + W2) // 8)
        by_collective = {(one["collective"], one["is_asked_for"]) for one in found["traffic"]}
        # What replaces w2 is cut as w2 is, so the gradient is scattered.
        self.assertEqual(by_collective, {("all-gather", True), ("reduce-scatter", True)})
        found = self.ok_json("plan", self.program, "--mesh", "data=8", "--mark", "w2=-,data", "--mark", "w*=data,-")
        largest = {one["tensor"]: one["cut"] for one in found["memory"]["largest"]}
        self.assertEqual((largest["w1"], largest["w2"]), ("data,-", "-,data"))

    def test_tensors_that_a_checkpoint_brings_are_a_kind(self):
        self.program.write_text('%0 = input() "x" : f32[64, 64] kind=checkpoint\n%1 = neg(%0) : f32[64, 64]\nreturn %1\n')
        found = self.ok_json("plan", self.program, "--mesh", "data=8")["memory"]["by_kind"]
        self.assertEqual(found["checkpoint"], 64 * 64 * 4)
        self.assertRegex(self.ok("plan", self.program, "--mesh", "data=8"), r"(?m)^ *16\.00 KiB  checkpoint$")

    def test_whether_it_fits_is_the_exit_status(self):
        peak = self.ok_json("plan", self.program, "--mesh", "data=8")["memory"]["peak_bytes"]
        self.assertIn("fits: needs", self.ok("plan", self.program, "--mesh", "data=8", "--memory", peak))
        found = run("plan", self.program, "--mesh", "data=8", "--memory", str(peak - 1))
        self.assertEqual((found.returncode, found.stderr), (1, ""))
        self.assertIn("does not fit: needs", found.stdout)
        self.assertIn('  it fits with "w1" cut as ', found.stdout)
        found = run("plan", self.program, "--mesh", "data=8", "--memory", str(peak - 1), "--json")
        memory = json.loads(found.stdout)["memory"]
        self.assertEqual((found.returncode, memory["fits"], memory["capacity_bytes"]), (1, False, peak - 1))
        self.assertTrue(memory["advice"].startswith('it fits with "w1" cut as '), memory["advice"])

    def test_a_machine_says_memory_and_time(self):
        found = self.ok_json("plan", self.program, "--mesh", "data=8", "--device", "h100-80gb")
        self.assertEqual((found["memory"]["capacity_bytes"], found["memory"]["fits"]), (80_000_000_000, True))
        self.assertEqual(found["modelled"]["machine"], "H100 SXM")
        self.assertGreater(found["modelled"]["collective_seconds"], 0)
        self.assertEqual(found["model_flops"], 3 * 2 * 4096 * 256 * 1024)
        self.assertEqual(found["device_flops"], found["model_flops"] / 8)
        self.assertIsNone(self.ok_json("plan", self.program, "--mesh", "data=8")["modelled"])
        text = self.ok("plan", self.program, "--mesh", "data=8", "--device", "tpu-v4", "--memory", "80GB")
        self.assertIn("which has 74.51 GiB", text)
        self.assertIn("modelled on TPU v4: ", text)

    def test_the_page_says_the_same(self):
        found = self.ok_json("plan", self.program, "--mesh", "data=8")
        text = self.ok("plan", self.program, "--mesh", "data=8")
        self.assertTrue(text.startswith(f"{self.program}: 10 operations on data=8 (8 devices)\n"), text)
        self.assertIn(f"\nfullest at {found['memory']['step']}\n", text)
        self.assertRegex(text, r"(?m)^ *1\.00 MiB  parameter +f32\[256, 1024\] +-,- +w1$")
        self.assertRegex(text, r"(?m)^ *1\.75 MiB  yes +all-reduce +data +1  ")
        self.assertLess(len(text.splitlines()), 50)

    def test_layers_are_put_together_on_the_page(self):
        lines = ['%0 = input() "x" : f32[4096, 256] marked data,- kind=loader']
        for layer in range(30):
            node = len(lines)
            lines += [f'%{node} = input() "w{layer}" : f32[256, 256] marked data,- kind=parameter  # layer{layer}/mlp',
                      f'%{node + 1} = dot_general(%{node - 1}, %{node}) "bi,io->bo" : f32[4096, 256]  # layer{layer}/mlp']
        self.program.write_text("\n".join([*lines, f"return %{len(lines) - 1}"]))
        found = self.ok_json("plan", self.program, "--mesh", "data=8")
        self.assertEqual(len(found["traffic"]), 30)
        text = self.ok("plan", self.program, "--mesh", "data=8")
        self.assertRegex(text, r"(?m)^ *6\.56 MiB  yes +all-gather +data +30  layer\*/mlp +%\d+ = input")
        # Of very many scopes the largest are shown.
        letters = "abcdefghijklmnopqrstuvwxyzABCD"
        text = re.sub(r"# layer(\d+)/mlp", lambda match: f"# {letters[int(match[1])]}", self.program.read_text())
        self.program.write_text(text)
        self.assertIn("\nand 10 more, of 2.19 MiB together\n", self.ok("plan", self.program, "--mesh", "data=8"))

    def test_a_file_of_other_words_is_refused_with_its_line(self):
        self.program.write_text(PROGRAM.replace("tanh", "tahn"))
        self.fails(3, [f"{self.program}: read a program: line 5: found \"tahn\", needed tanh"],
                   "plan", self.program, "--mesh", "data=8")
        self.program.write_text(PROGRAM.replace("return %9\n", ""))
        self.fails(3, ["line 11: found the end"], "plan", self.program, "--mesh", "data=8")
        self.program.write_bytes(b"\x89HDF\r\n\x1a\n\x00\x00")
        self.fails(3, ["line 1: found no type"], "plan", self.program, "--mesh", "data=8")
        self.fails(3, ["nowhere.swp"], "plan", self.dir / "nowhere.swp", "--mesh", "data=8")

    def test_marks_that_fit_nothing_are_bad_usage(self):
        mesh = ("plan", self.program, "--mesh", "data=8")
        self.fails(2, ["--mark: found no input that \"W1\" matches", "x, w1, w2"], *mesh, "--mark", "W1=data,-")
        self.fails(2, ["--mark: ", "model"], *mesh, "--mark", "w1=model,-")
        self.fails(2, ["--mark: ", "w1"], *mesh, "--mark", "w1=data")
        self.fails(2, ["--mark: ", "pattern=spec"], *mesh, "--mark", "w1")
        # The file's own marks need their axes.
        self.fails(3, ["data"], "plan", self.program, "--mesh", "model=8")


if __name__ == "__main__":
    unittest.main()
