"""The pictures that README shows are what scripts/figures.py makes of `shardwise shards --svg`."""
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
            self.assertEqual([path.name for path in made], ["two_meshes.svg"])
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


if __name__ == "__main__":
    unittest.main()
