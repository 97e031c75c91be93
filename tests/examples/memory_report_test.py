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
            chart = pathlib.Path(scratch) / "peaks.svg"
            command = [REPORT, "--devices", "4", "--batch", "8"]
            rows = json.loads(subprocess.run([*command, "--json", "--svg", chart], check=True, stdout=subprocess.PIPE).stdout)
            bars = [title.text for title in xml.etree.ElementTree.parse(chart).iter("{http://www.w3.org/2000/svg}title")]
        table = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[2:-1]
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
        largest = [row["parameters"] for row in rows]
        self.assertGreater(max(largest), 3.6e9)
        for (model, cut, recomputes), peak in peaks.items():
            if recomputes:
                self.assertLess(peak, peaks[model, cut, False])
            if cut != "replicated":
                self.assertLess(peaks[model, "FSDP", recomputes], peaks[model, "replicated", recomputes])


if __name__ == "__main__":
    unittest.main()
