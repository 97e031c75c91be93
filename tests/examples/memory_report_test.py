"""examples/memory_report: planned peaks are measured ones, and its table, JSON and chart say the same."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

REPORT = os.environ["MEMORY_REPORT"]
GIB = 2**30


class MemoryReport(unittest.TestCase):
    def test_what_was_planned_is_what_is_measured(self):
        done = subprocess.run([REPORT, "--check", "--devices", "4"], stdout=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(len(done.stdout.splitlines()), 8)

    def test_table_json_and_chart(self):
        with tempfile.TemporaryDirectory() as scratch:
            charts = [pathlib.Path(scratch) / name for name in ("peaks.svg", "mfu.svg")]
            command = [REPORT, "--devices", "4", "--batch", "8", "--machine", "h100-80gb"]
            written = [*command, "--json", "--svg", charts[0], "--mfu-svg", charts[1]]
            found = json.loads(subprocess.run(written, check=True, stdout=subprocess.PIPE).stdout)
            bars, mfu = ([title.text for title in xml.etree.ElementTree.parse(chart).iter("{http://www.w3.org/2000/svg}title")]
                         for chart in charts)
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        rows, table = found["gpt"], printed[2:18]
        self.check_largest(found["resnet50"], printed[-2:])
        peaks = {(row["model"], row["cut"], row["recomputes"]): row["planned_peak_bytes"] for row in rows}
        self.assertEqual(len(rows), 32)
        self.assertEqual(len(peaks), 32)
        self.assertEqual(len(bars), 32)
        for row, bar in zip(rows, bars, strict=True):
            self.assertIn(f"{row['planned_peak_bytes'] / GIB:.2f} GiB", bar)
        for line, row in zip(table, rows[::2], strict=True):
            self.assertEqual(line.split()[0], row["model"])
            self.assertIn(f"{row['planned_peak_bytes'] / GIB:.2f}", line)
            marked = row["planned_peak_bytes"] > 32 * GIB
            self.assertEqual(f"{row['planned_peak_bytes'] / GIB:.2f}!" in line, marked)
        self.check_mfu(rows, table, mfu)
        largest = [row["parameters"] for row in rows]
        self.assertGreater(max(largest), 3.6e9)
        for (model, cut, recomputes), peak in peaks.items():
            if recomputes:
                self.assertLess(peak, peaks[model, cut, False])
            if cut != "replicated":
                self.assertLess(peaks[model, "FSDP", recomputes], peaks[model, "replicated", recomputes])

    def test_on_one_mesh_and_of_one_plan(self):
        def run(*options):
            return subprocess.run([REPORT, "--batch", "8", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        found = json.loads(run("--mesh", "data=2,model=2", "--plan", "2d", "--json").stdout)
        self.assertEqual({(row["cut"], row["mesh"]) for row in found["gpt"]}, {("2-d", "data=2,model=2")})
        self.assertEqual(len(found["gpt"]), 8)
        self.assertEqual({row["mesh"] for row in found["resnet50"]}, {"data=2,model=2"})
        wrong = run("--mesh", "data=4", "--plan", "tensor")
        self.assertEqual(wrong.returncode, 3)
        self.assertIn('plan "tensor": found mesh "data=4", needed one with an axis data or fsdp', wrong.stderr)
        self.assertIn("excludes", run("--mesh", "data=4", "--devices", "4").stderr)
        checked = run("--check", "--mesh", "fsdp=2,model=2", "--plan", "2d").stdout.splitlines()
        self.assertEqual([line.split()[:2] for line in checked], [["2-d", "fsdp=2,model=2"]] * 2)

    def test_parallelism(self):
        study = [REPORT, "--study", "parallelism"]
        checked = subprocess.run([*study, "--check", "--devices", "8"], stdout=subprocess.PIPE, text=True)
        self.assertEqual(checked.returncode, 0, checked.stdout)
        self.assertEqual([line.split()[0] for line in checked.stdout.splitlines()], ["1-d", "1-d", "2-d", "2-d", "pipeline", "pipeline"])
        rows = json.loads(subprocess.run([*study, "--json"], check=True, stdout=subprocess.PIPE).stdout)["gpt"]
        table = subprocess.run(study, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[2:-1]
        by_row = {(row["model"], row["cut"], row["recomputes"]): row for row in rows}
        self.assertEqual((len(table), len(by_row)), (16, 32))
        for line, kept, again in zip(table, rows[::2], rows[1::2], strict=True):
            words = [f"{kept['planned_peak_bytes'] / GIB:.2f}", f"{again['planned_peak_bytes'] / GIB:.2f}",
                     f"{kept['planned_wire_bytes'] / GIB:.2f}", f"{100 * kept['bubble']:.1f}",
                     f"{100 * kept['modelled_mfu']:.1f}", f"{100 * again['modelled_mfu']:.1f}"]
            self.assertEqual(line.split()[-6:], words)
        for model in ("124M", "355M", "1.3B", "4B"):
            one, counted = by_row[model, "1-d", False], by_row[model, "FSDP, counted", False]
            # The partitioner finds FSDP: within the biases' and the last layer's share.
            self.assertAlmostEqual(one["planned_wire_bytes"], counted["planned_wire_bytes"], delta=0.1 * counted["planned_wire_bytes"])
            self.assertEqual(counted["planned_wire_bytes"], 3 * 4 * counted["parameters"] * 15 / 16)
            self.assertEqual(by_row[model, "pipeline", True]["bubble"], 3 / 11)
        page = pathlib.Path(__file__).resolve().parents[2] / "docs/training.md"
        shown = page.read_text().partition("| 4 billion parameters |")[2].partition("\n\n")[0].splitlines()[2:]
        for line, row in zip(shown, table[-4:], strict=True):
            peak, again, sent, bubble, mfu, again_mfu = map(float, row.split()[-6:])
            self.assertEqual([cell.strip() for cell in line.split("|")[2:-1]],
                             [f"{peak:.1f}", f"{again:.1f}", f"{sent:.1f}", f"{bubble:.0f} %" if bubble else "-",
                              f"{mfu} %", f"{again_mfu} %"])
        wrong = subprocess.run([*study, "--devices", "6"], stderr=subprocess.PIPE, text=True)
        self.assertEqual(wrong.returncode, 3)
        self.assertIn("found 6 devices", wrong.stderr)
        self.assertIn("found --mesh or --plan", subprocess.run([*study, "--mesh", "data=4"], stderr=subprocess.PIPE, text=True).stderr)

    def check_mfu(self, rows, table, bars):
        """Modelled: 6 operations for each parameter and token, over the devices' most in that time."""
        for row, bar in zip(rows, bars, strict=True):
            self.assertEqual(row["modelled_on"], "h100-80gb")
            could = row["modelled_seconds"] * 4 * 989e12  # of an H100, bf16, as its data sheet says
            self.assertAlmostEqual(row["modelled_mfu"], 6 * row["parameters"] * 8 * 1024 / could, delta=0.001 * row["modelled_mfu"])
            self.assertTrue(0 < row["modelled_mfu"] < 1, row)
            self.assertTrue(bar.endswith(f": {100 * row['modelled_mfu']:.2f} %"), bar)
        for line, row in zip(table, rows[::2], strict=True):
            self.assertEqual(line.split()[-2], f"{100 * row['modelled_mfu']:.1f}")
        # Recomputation is no work of the model.
        for kept, again in zip(rows[::2], rows[1::2], strict=True):
            self.assertLess(again["modelled_mfu"], kept["modelled_mfu"])

    def check_largest(self, largest, table):
        self.assertEqual(len(largest), 6)
        for row in largest:
            self.assertLessEqual(row["planned_peak_bytes"], 32 * GIB)
            self.assertGreater(row["planned_peak_bytes"], 30 * GIB)  # one step more does not fit
        by_cut = {cut: [row for row in largest if row["cut"] == cut] for cut in ("batch", "spatial")}
        for line, (cut, found) in zip(table, by_cut.items(), strict=True):
            self.assertEqual(line.split(), [cut, *(str(found[0]["batch"]), str(found[1]["image"]), str(found[2]["image"]))])
        # One image is on one device, unless its rows are cut.
        self.assertGreater(by_cut["spatial"][1]["image"], 2 * by_cut["batch"][1]["image"])


if __name__ == "__main__":
    unittest.main()
