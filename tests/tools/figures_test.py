"""The pictures that README and docs/training.md show are made by scripts/figures.py from `shardwise shards --svg`; bench/rivals/figure.py draws
the measured ratios."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

SOURCE = pathlib.Path(__file__).resolve().parents[2]
COMMITTED = SOURCE / "docs/figures"


class Figures(unittest.TestCase):
    def test_committed_pictures_are_what_the_script_makes(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, SOURCE / "scripts/figures.py", folder], check=True)
            made = sorted(pathlib.Path(folder).iterdir())
            self.assertEqual(sorted(path.name for path in COMMITTED.iterdir()), [path.name for path in made])
            for path in made:
                self.assertEqual((COMMITTED / path.name).read_bytes(), path.read_bytes(), "run scripts/figures.py")

    def test_two_meshes_shows_the_boxes_that_readmes_program_prints(self):
        texts = [text.text for text in xml.etree.ElementTree.parse(COMMITTED / "two_meshes.svg").getroot().iter()
                 if text.tag.endswith("}text")]
        boxes = [(texts[i - 1], text) for i, text in enumerate(texts) if re.fullmatch(r"\[\d+:.*\]", text)]
        printed = re.findall(r"(device \d) has (\[.*\])", (SOURCE / "examples/02_save_here_load_there.txt").read_text())
        self.assertEqual(len(boxes), 8 + 3)
        self.assertEqual(boxes[8:], printed)

    def test_readme_shows_it_with_a_text_for_those_who_do_not_see_it(self):
        shown = re.search(r"!\[[^\]]{40,}\]\(docs/figures/two_meshes\.svg\)", (SOURCE / "README.md").read_text())
        self.assertTrue(shown, "README.md does not show docs/figures/two_meshes.svg with a text of 40 characters")

    def test_ratios_of_readme_are_those_of_the_figure(self):
        drawn = [
            bar.text
            for bar in xml.etree.ElementTree.parse(COMMITTED / "rivals.svg").getroot().iter()
            if bar.tag.endswith("}title")
        ]
        rows = re.findall(r"(?m)^\| (.+) \| (.+) \| ([\d.]+ x) \|$", (SOURCE / "README.md").read_text())
        self.assertEqual(len(rows), 5)
        for what, rival, ratio in rows:
            self.assertIn(f"{what}, {rival}: {ratio}", drawn)

    def test_each_plan_of_training_is_shown_with_a_text_for_those_who_do_not_see_it(self):
        plans = (SOURCE / "docs/training.md").read_text().partition("\n## Plans\n")[2].partition("\n## ")[0]
        shown = re.findall(r"\n### [^\n]+\n(?:(?!\n###).)*?\n!\[[^\]]{40,}\]\(figures/(plan_\w+\.svg)\)", plans, re.DOTALL)
        self.assertEqual(sorted(shown), sorted(path.name for path in COMMITTED.glob("plan_*.svg")))
        self.assertEqual(len(shown), plans.count("\n### "))


class Ratios(unittest.TestCase):
    """Of made-up measurements."""

    MACHINE = {"machine": "2 x Made & Up, 24 GiB", "date": "2026-01-02"}

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.dir = pathlib.Path(scratch.name)

    def figure(self):
        return subprocess.run([sys.executable, SOURCE / "bench/rivals/figure.py", self.dir, "--svg", self.dir / "out.svg"],
                              capture_output=True, text=True)

    def write(self, name, measured):
        (self.dir / name).write_text(json.dumps(measured))

    def test_bars_are_the_rivals_times_over_ours(self):
        def row(kind, step, system, *seconds):
            return {"kind": kind, "step": step, "system": system, "values": seconds}
        self.write("storage.json", self.MACHINE | {"measured": [
            row("raw", "save", "shardwise", 1, 2, 9), row("raw", "save", "dcp, 1 process, threads", 8, 8, 8),
            row("raw", "save", "dcp, 2 processes", 6, 6, 6), row("raw", "save", "orbax, uncompressed", 1, 1, 1),
            row("small", "restore", "h5py, contiguous", 1)]})
        self.write("jobs.json", self.MACHINE | {"torch 4": {"save": {"dcp": 3, "swt": 2}}, "jax": {"save": {"orbax": 5, "swj": 1}}})
        self.write("input.json", self.MACHINE | {"cases": {
            "rows data=8: hdf5 and labels, 1 threads": {"windows": [10]},
            "rows data=8: hdf5 and labels, 2 threads": {"windows": [30, 20, 40]},
            "rows data=8: memcpy gather, 2 threads": {"windows": [60]},
            "rows data=8: grain, batches by hand": {"windows": [10]}}})
        done = self.figure()
        self.assertEqual(done.returncode, 0, done.stderr)
        root = xml.etree.ElementTree.parse(self.dir / "out.svg").getroot()
        bars = {bar.find("{*}title").text: float(bar.get("width")) for bar in root.iter("{http://www.w3.org/2000/svg}rect")
                if bar.find("{*}title") is not None}
        self.assertEqual(list(bars), ["durable save, Orbax: 0.50 x", "durable save, DCP: 3.00 x",
                                      "PyTorch, 4 processes: save, DCP: 1.50 x", "JAX, 8 devices: save, Orbax: 5.00 x",
                                      "minibatches on 8 devices, Grain: 3.00 x"])
        self.assertEqual(bars["durable save, DCP: 3.00 x"], bars["minibatches on 8 devices, Grain: 3.00 x"])
        self.assertLess(bars["PyTorch, 4 processes: save, DCP: 1.50 x"], bars["durable save, Orbax: 0.50 x"])
        self.assertIn("2 x Made & Up, 24 GiB, 2026-01-02", [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")])

    def test_a_measurement_without_machine_is_refused_and_so_is_none(self):
        self.assertIn("no comparison with a rival", self.figure().stderr)
        self.write("jobs.json", {"jax": {"save": {"orbax": 5, "swj": 1}}})
        self.assertIn("does not say on which machine", self.figure().stderr)
        self.assertFalse((self.dir / "out.svg").exists())


if __name__ == "__main__":
    unittest.main()
