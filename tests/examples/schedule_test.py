"""examples/gpt --plan pipeline: the bubble and the stages that it tells are those of the program, and it draws them."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

GPT = os.environ["GPT"]
SIZES = ["--layers", "4", "--width", "16", "--heads", "2", "--context", "8", "--batch", "12"]


def run_gpt(*options, status=0):
    done = subprocess.run([GPT, *SIZES, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


class Schedule(unittest.TestCase):
    def test_is_that_of_the_program(self):
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            (folder / "text").write_text("In the beginning " * 100)
            options = ["--tokens", folder / "text", "--mesh", "data=2,stage=4", "--plan", "pipeline", "--micro-batches",
                       "6", "--steps", "1"]
            told = json.loads(run_gpt(*options, "--json", "--save-program", folder / "step", "--schedule",
                                      folder / "schedule.svg"))
            trips = re.findall(r"scan\(.*?length=\[(\d+)\]", (folder / "step").read_text())
            self.assertEqual(trips, ["9", "9"])  # one scan forward and one backward
            self.assertEqual(told["bubble"], 3 / 9)
            peaks = told["planned_peak_bytes"]
            self.assertEqual(told["stages"], [{"layers": [s, s], "peak_bytes": max(peaks[s], peaks[4 + s])} for s in range(4)])

            root = ElementTree.parse(folder / "schedule.svg").getroot()
            cells = [e for e in root.iter("{http://www.w3.org/2000/svg}rect") if e.get("width") != "100%"]
            idle = [cell for cell in cells if cell.get("fill") == "#eee"]
            self.assertEqual((len(cells), len(idle)), (2 * 4 * 9, 2 * 4 * 3))
            words = run_gpt(*options)
            self.assertIn("pipeline: 4 stages, 6 micro-batches; each stage waits 3 of 9 trips, 33.3 %", words)
            self.assertIn("stage 3     layers 3 to 3", words)

    def test_is_a_pipelines(self):
        self.assertIn("found the plan data, needed pipeline",
                      run_gpt("--tokens", "x", "--plan", "data", "--mesh", "data=2", "--schedule", "y", status=3))


if __name__ == "__main__":
    unittest.main()
