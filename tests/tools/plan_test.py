"""plan: a program's needs on a mesh, from its file; nothing runs."""
import json
import re
import resource
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
        # To reverse a batch, each device needs another one's rows.
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
        # The new w2 is cut as w2 is, so the gradient is scattered.
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

    def test_scores_of_a_kernel_are_counted_if_that_is_asked_for(self):
        self.program.write_text("""\
%0 = input() "q" : f32[2, 64, 16] marked data,-,- kind=loader
%1 = dot_general(%0, %0) "bik,bjk->bij" : f32[2, 64, 64]  # layer0/fused attention
%2 = dot_general(%1, %0) "bij,bjk->bik" : f32[2, 64, 16]  # layer0/fused attention
%3 = tanh(%2) : f32[2, 64, 16]  # layer0
return %3
""")
        plan, peaks = ["plan", self.program, "--mesh", "data=1"], {}
        for how in ("fused", "written"):
            found = self.ok_json(*plan, "--attention", how)
            self.assertEqual(found["attention"], how)
            peaks[how] = found["memory"]["peak_bytes"]
            [row] = self.ok_json("plan", self.program, "--devices", 1, "--attention", how)["meshes"]
            self.assertEqual(row["peak_bytes"], peaks[how])
        self.assertEqual(peaks["written"] - peaks["fused"], 2 * 64 * 64 * 4)
        self.assertEqual(self.ok_json(*plan)["memory"]["peak_bytes"], peaks["fused"])
        self.assertIn("\nattention is planned as a fused kernel, without its scores: ", self.ok(*plan))
        self.assertIn("\nattention is planned as written, with its scores: ", self.ok(*plan, "--attention", "written"))
        self.fails(2, ["--attention", "flash"], *plan, "--attention", "flash")

    def test_devices_compares_all_meshes_of_that_number(self):
        self.program.write_text(PROGRAM.replace('"w1" : f32[256, 1024] marked -,-', '"w1" : f32[256, 1024] marked -,model'))
        found = self.ok_json("plan", self.program, "--devices", 8, "--device", "h100-80gb")
        self.assertEqual((found["axes"], found["devices"], found["modelled_on"]), (["data", "model"], 8, "H100 SXM"))
        rows = {row["mesh"]: row for row in found["meshes"]}
        self.assertEqual(sorted(rows), ["data=1,model=8", "data=2,model=4", "data=4,model=2", "data=8,model=1"])
        for mesh, row in rows.items():  # each agrees with its plan
            plan = self.ok_json("plan", self.program, "--mesh", mesh, "--device", "h100-80gb")
            self.assertEqual(row["peak_bytes"], plan["memory"]["peak_bytes"])
            self.assertEqual(row["wire_bytes"], sum(one["wire_bytes"] for one in plan["traffic"]))
            self.assertAlmostEqual(row["compute_seconds"] + row["memory_seconds"], plan["modelled"]["compute_seconds"])
            self.assertAlmostEqual(row["wire_seconds"], plan["modelled"]["collective_seconds"])
            self.assertIn(row["bound_by"], ("compute", "memory", "wire"))
        times = [row["modelled_seconds"] for row in found["meshes"]]
        self.assertEqual(times, sorted(times))
        self.assertEqual(found["best"], found["meshes"][0]["mesh"])
        text = self.ok("plan", self.program, "--devices", 8, "--device", "h100-80gb")
        self.assertRegex(text, rf"(?m)^best  {found['best']} +yes +[0-9.]+ MiB +[0-9.]+ MiB +[0-9.]+ ms  (compute|memory|wire)$")
        self.assertIn("times are modelled on H100 SXM (NVIDIA", text)
        self.assertEqual(len(text.splitlines()), 1 + 1 + 4 + 1)

    def test_4096_devices_take_little_memory(self):
        """A plan that lists the bytes between all pairs of them would take a gigabyte."""
        lines = ['%0 = input() "x" : f32[4096, 64] marked data,- kind=loader']
        for at in range(1, 151, 3):
            lines += [f'%{at} = input() "w{at}" : f32[64, 64] marked data,model kind=parameter',
                      f'%{at + 1} = dot_general(%{at - 1}, %{at}) "bi,ij->bj" : f32[4096, 64]',
                      f"%{at + 2} = tanh(%{at + 1}) : f32[4096, 64]"]
        self.program.write_text("\n".join([*lines, "return %150\n"]))
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        found = self.ok_json("plan", self.program, "--mesh", "data=64,model=64")
        self.assertEqual(found["memory"]["by_kind"]["parameter"], 50 * 4)
        self.assertEqual(sum(one["tensors"] for one in found["traffic"]), 99)
        self.assertLess(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, max(before, 400_000), "KiB")

    def test_of_meshes_those_that_fit_come_first(self):
        marks = ("--mark", "w*=model,-")
        rows = self.ok_json("plan", self.program, "--devices", 16, *marks)["meshes"]
        self.assertEqual({row["modelled_seconds"] for row in rows} | {row["fits"] for row in rows}, {None})
        peaks = [row["peak_bytes"] for row in rows]
        self.assertEqual((peaks, len(rows)), (sorted(peaks), 5))
        found = self.ok_json("plan", self.program, "--devices", 16, *marks, "--memory", peaks[1])
        self.assertEqual([row["fits"] for row in found["meshes"]], [peak <= peaks[1] for peak in peaks])
        none = run("plan", self.program, "--devices", "16", *marks, "--memory", str(peaks[0] - 1))
        self.assertEqual((none.returncode, none.stderr), (1, ""))
        self.assertNotIn("best", none.stdout)
        none = run("plan", self.program, "--devices", "16", *marks, "--memory", str(peaks[0] - 1), "--json")
        self.assertIsNone(json.loads(none.stdout)["best"])

    def test_a_mesh_or_a_number_of_devices_is_needed(self):
        self.fails(2, ["plan: found neither, needed --mesh or --devices"], "plan", self.program)
        self.fails(2, ["plan: found both --mesh and --devices, needed"], "plan", self.program, "--mesh", "data=8", "--devices", 8)
        self.fails(2, ["--devices: "], "plan", self.program, "--devices", 4097)
        self.program.write_text(PROGRAM.replace(" marked data,-", "").replace(" marked -,-", ""))
        self.fails(2, ["--devices: compare meshes: found no marks, needed some"], "plan", self.program, "--devices", 8)

    def test_what_a_checkpoint_and_the_input_need(self):
        program = PROGRAM.replace('%2 = input() "w2" : f32[1024, 256] marked -,- kind=parameter',
                                  '%2 = input() "w2" : f32[1024, 256] marked data,- kind=optimizer').replace("marked -,-  #", "marked data,-  #")
        self.program.write_text(program)
        options = ("plan", self.program, "--mesh", "data=8", "--device", "h100-80gb")
        found = self.ok_json(*options, "--save-rate", "1MB/s")
        self.assertEqual(found["checkpoint"], {"parameter_bytes": W1, "optimizer_bytes": W2, "bytes": W1 + W2,
                                               "modelled_save_seconds": (W1 + W2) / 1e6, "host_bytes_per_device": W1 + W2 // 8})
        modelled = found["modelled"]["compute_seconds"] + found["modelled"]["collective_seconds"]
        self.assertEqual(found["input"]["bytes"], X)
        self.assertAlmostEqual(found["input"]["modelled_bytes_per_second"], X / modelled, delta=1)
        text = self.ok(*options, "--save-rate", "1MB/s")
        self.assertIn("checkpoint: 2.00 MiB (1.00 MiB of parameters, 1.00 MiB of optimizer state), saved in 2.1 s at 1.00 MB/s (modelled); "
                      "an asynchronous save holds 1.12 MiB on the host for each device\n", text)
        self.assertRegex(text, r"(?m)^input: 4\.00 MiB a step, [0-9.]+ MB/s at the modelled time$")
        found = self.ok_json("plan", self.program, "--mesh", "data=8")
        self.assertIsNone(found["checkpoint"]["modelled_save_seconds"])
        self.assertIsNone(found["input"]["modelled_bytes_per_second"])
        self.assertNotIn("modelled", self.ok("plan", self.program, "--mesh", "data=8"))
        self.fails(2, ["--save-rate", "is not a size"], *options, "--save-rate", "fast")
        self.fails(2, ["found --save-rate with --devices"], "plan", self.program, "--devices", 8, "--save-rate", "1GB/s")

    def test_what_does_not_fit_is_told_the_cheapest_change_of_each_kind(self):
        self.program.write_text(PROGRAM.replace('"w1" : f32[256, 1024] marked -,-', '"w1" : f32[256, 1024] marked -,model'))
        mesh = ("plan", self.program, "--mesh", "data=4,model=2")
        peak = self.ok_json(*mesh)["memory"]["peak_bytes"]
        self.assertNotIn("changes", self.ok_json(*mesh, "--memory", peak))
        done = run(*mesh, "--device", "h100-80gb", "--memory", str(peak - 1), "--json")
        self.assertEqual((done.returncode, done.stderr), (1, ""))
        changes = {one["kind"]: one for one in json.loads(done.stdout)["changes"]}
        self.assertEqual(sorted(changes), ["batch", "marks", "mesh", "recompute"])
        for one in changes.values():
            self.assertEqual(one["fits"], one["cost"]["peak_bytes"] < peak, one)
        # Each costs as much as its plan.
        marks = [word for mark in changes["marks"]["marks"] for word in ("--mark", mark)]
        self.assertEqual(self.ok_json(*mesh, *marks)["memory"]["peak_bytes"], changes["marks"]["cost"]["peak_bytes"])
        other = self.ok_json("plan", self.program, "--mesh", changes["mesh"]["mesh"], "--device", "h100-80gb")
        self.assertEqual(other["memory"]["peak_bytes"], changes["mesh"]["cost"]["peak_bytes"])
        batch = changes["batch"]["batch"]
        self.assertEqual((batch, changes["batch"]["change"]), (4092, "batch 4092 in place of 4096"))
        self.program.write_text(self.program.read_text().replace("[4096,", f"[{batch},"))
        self.assertEqual(self.ok_json(*mesh)["memory"]["peak_bytes"], changes["batch"]["cost"]["peak_bytes"])
        self.program.write_text(PROGRAM)
        text = run("plan", self.program, "--mesh", "data=8", "--device", "h100-80gb", "--memory", "6MB").stdout
        self.assertIn("\nthe cheapest change of each kind\n", text)
        self.assertRegex(text, r"(?m)^ *yes +[0-9.]+ MiB +[0-9.]+ (MiB|KiB|B) +[0-9.]+ ms +[0-9.]+ ms +batch [0-9]+ in place of 4096$")
        self.program.write_text(PROGRAM.replace('%2 = input() "w2" : f32[1024, 256] marked -,- kind=parameter',
                                                '%2 = input() "w2" : f32[1024, 256] marked -,- kind=loader'))
        text = run("plan", self.program, "--mesh", "data=8", "--memory", "6MB").stdout
        self.assertIn("\nno smaller batch: data has 4096 and 1024 rows\n", text)

    def test_why_names_the_line_of_the_mark(self):
        mesh = ("plan", self.program, "--mesh", "data=8")
        text = self.ok(*mesh, "--why", "%4")
        self.assertTrue(text.startswith('%4 is cut as data,-\n  dim 0 by data: because line 1 marks "x" as data,-, by way of %3\n'
                                        '  dim 1 is whole: no mark reaches it\nin full:\n%4 = tanh(%3)'), text)
        text = self.ok(*mesh, "--why", "w1", "--mark", "w1=data,-")
        self.assertIn('  dim 0 by data: because --mark marks "w1" as data,-\n', text)
        dims = self.ok_json(*mesh, "--why", "w2")["why"]["dims"]
        self.assertEqual(dims[0], {"dim": 0, "axes": "-", "because": {"tensor": "w2", "mark": "-,-", "line": "line 3"}, "way": []})
        self.fails(2, ['--why: find a tensor: found no input "w3", needed one of w1, w2'], *mesh, "--why", "w3")
        self.fails(2, ["--why: find a tensor: found no operation %10, needed one from %0 to %9"], *mesh, "--why", "%10")

    def test_why_not_tells_what_stands_against_it_and_what_it_costs(self):
        mesh = ("plan", self.program, "--mesh", "data=8", "--device", "h100-80gb")
        found = self.ok_json(*mesh, "--why-not", "w1=data,-")["why_not"]
        self.assertEqual((found["now"], found["wanted"], found["is_so_already"], found["uneven"]), ("-,-", "data,-", False, []))
        self.assertEqual(found["against"][0], 'dim 0 is whole: because line 2 marks "w1" as -,-')
        self.assertTrue(found["against"][1].startswith('two wishes then at %3 = dot_general(%0, %1)'), found["against"])
        plan = self.ok_json(*mesh, "--mark", "w1=data,-")
        self.assertEqual(found["cost_wanted"]["peak_bytes"], plan["memory"]["peak_bytes"])
        self.assertEqual(found["cost_wanted"]["wire_bytes"], sum(one["wire_bytes"] for one in plan["traffic"]))
        self.assertEqual(found["cost_now"]["peak_bytes"], self.ok_json(*mesh)["memory"]["peak_bytes"])
        text = self.ok(*mesh, "--why-not", "w1=data,-")
        self.assertTrue(text.startswith("w1 is cut as -,-, not as data,-\n"), text)
        self.assertRegex(text, r"(?m)^marked so:   needs [0-9.]+ MiB \([-+][0-9.]+ KiB\), sends [0-9.]+ MiB "
                               r"\(\+[0-9.]+ KiB\), [0-9.]+ ms \([-+][0-9.]+ ms, modelled\)$")
        # Rows that do not divide, and marks elsewhere that would bring it.
        text = self.ok("plan", self.program, "--mesh", "data=3", "--why-not", "w1=data,-")
        self.assertIn("  dim 0 of 256 does not divide by 3: it is cut in tiles of 86, the last of 84\n", text)
        self.program.write_text(PROGRAM.replace(" marked -,-", ""))
        edits = self.ok_json("plan", self.program, "--mesh", "data=4,model=2", "--why-not", "w2=model,-")["why_not"]["edits"]
        self.assertIn(["w1=-,model"], [one["marks"] for one in edits])
        for one in edits:
            marks = [word for mark in one["marks"] for word in ("--mark", mark)]
            plan = self.ok_json("plan", self.program, "--mesh", "data=4,model=2", *marks)
            self.assertEqual(one["cost"]["peak_bytes"], plan["memory"]["peak_bytes"])
            why = self.ok_json("plan", self.program, "--mesh", "data=4,model=2", *marks, "--why", "w2")["why"]
            self.assertEqual([dim["axes"] for dim in why["dims"]], ["model", "-"])
        self.assertEqual(self.ok("plan", self.program, "--mesh", "data=8", "--why-not", "x=data,-"), "x is cut as data,- already\n")
        self.fails(2, ["--why-not: found \"w1\", needed NAME=SPEC"], *mesh, "--why-not", "w1")
        self.fails(2, ["--why-not: ", "rows"], *mesh, "--why-not", "w1=rows,-")
        self.fails(2, ["found --why and --why-not, needed one of them"], *mesh, "--why-not", "w1=data,-", "--why", "w1")

    def test_search_chooses_marks_that_are_the_best_of_all(self):
        self.program.write_text(PROGRAM.replace(" marked -,-", "").replace(" marked data,-", ""))
        mesh = ("plan", self.program, "--mesh", "data=4,model=2", "--device", "h100-80gb")
        found = self.ok_json(*mesh, "--search")
        search = found["search"]
        self.assertTrue(search["exact"])
        marks = [word for mark in search["marks"] for word in ("--mark", mark)]
        again = self.ok_json(*mesh, *marks)  # the marks are what --mark takes
        self.assertEqual(again["memory"], found["memory"])
        self.assertEqual(search["cost"]["peak_bytes"], found["memory"]["peak_bytes"])
        for plan in search["hand_made"]:
            self.assertLessEqual(search["cost"]["modelled_seconds"], plan["modelled_seconds"], plan["plan"])
        self.assertGreaterEqual({plan["plan"] for plan in search["hand_made"]}, {"data", "fsdp", "tensor over model"})
        text = self.ok(*mesh, "--search")
        for mark in search["marks"]:
            self.assertIn(f"  --mark '{mark}'\n", text)
        self.assertRegex(text, r"(?m)^these marks +yes ")
        # Into less memory than the fastest needs.
        less = search["cost"]["peak_bytes"] - 1
        other = self.ok_json(*mesh, "--search", "--memory", less)
        self.assertLessEqual(other["memory"]["peak_bytes"], less)
        self.assertGreaterEqual(other["search"]["cost"]["modelled_seconds"], search["cost"]["modelled_seconds"])
        self.assertEqual(run(*mesh, "--search", "--memory", "1KiB").returncode, 1)
        self.fails(2, ["found --search without --device"], "plan", self.program, "--mesh", "data=8", "--search")

    def test_search_over_devices_answers_which_mesh(self):
        devices = ("plan", self.program, "--devices", 8, "--device", "h100-80gb", "--search")
        found = self.ok_json(*devices)
        self.assertEqual((found["axes"], len(found["meshes"])), (["data", "model"], 4))
        for row in found["meshes"]:
            alone = self.ok_json("plan", self.program, "--mesh", row["mesh"], "--device", "h100-80gb", "--search")["search"]
            self.assertEqual((row["marks"], row["peak_bytes"]), (alone["marks"], alone["cost"]["peak_bytes"]))
        best = found["meshes"][0]
        self.assertEqual((found["best"], best["modelled_seconds"]), (best["mesh"], min(row["modelled_seconds"] for row in found["meshes"])))
        marks = [word for mark in best["marks"] for word in ("--mark", mark)]
        self.assertEqual(self.ok_json("plan", self.program, "--mesh", best["mesh"], *marks)["memory"]["peak_bytes"], best["peak_bytes"])
        text = self.ok(*devices)
        self.assertIn(f"\n{best['mesh']} has these marks:\n" + "".join(f"  --mark '{mark}'\n" for mark in best["marks"]), text)
        self.assertEqual(run(*map(str, devices), "--memory", "1KiB").returncode, 1)
        self.fails(2, ["found --search without --device"], "plan", self.program, "--devices", 8, "--search")
        self.fails(2, ["found --html with --devices, needed it with --mesh"], *devices, "--html", self.dir / "x.html")
        self.program.write_text(PROGRAM.replace(" marked -,-", "").replace(" marked data,-", ""))
        self.assertEqual(self.ok_json(*devices)["axes"], ["data", "model"])  # needs no marks

    def test_one_marked_axis_says_how_to_get_more_meshes(self):
        hint = "one axis is marked, so there is one mesh: mark another axis, too, as in --mark 'NAME=-,model', or\nlet --search choose"
        self.assertIn(hint, self.ok("plan", self.program, "--devices", 16))
        self.assertNotIn("one axis is marked", self.ok("plan", self.program, "--devices", 1))
        self.assertNotIn("one axis is marked", self.ok("plan", self.program, "--devices", 16, "--mark", "w1=-,model"))

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
        # Only the largest of very many scopes are shown.
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
