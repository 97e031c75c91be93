"""shardwise inspect: trees, patterns, pictures."""
import json
import re
import unittest
import xml.etree.ElementTree

from cli_test import Cli, run
from diff_test import weights

NAMES = [f"h.{layer}.{part}" for layer in range(12) for part in ("mlp.w", "mlp.b", "norm")]


# Files from elsewhere may have names that a terminal would obey, that make two lines of one, or that look like paths.
HOSTILE = ["w\x1b]0;title\x07", "two\n  lines", "a\rb", "tab\tb", "nul\0b", "del\x7f", "c1\u009b2J", "bidi\u202eb", "..", "../x", "/abs", "x" * 1000]


class Inspect(Cli):
    def test_hostile_names_stay_in_their_lines_and_off_the_terminal(self):
        file = self.dir / "m.safetensors"
        header = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i, name in enumerate(HOSTILE)})
        file.write_bytes(len(header).to_bytes(8, "little") + header.encode() + b"\0\0\xc0\x7f" * len(HOSTILE))
        other = weights(self.dir / "other.safetensors", w=[1])
        self.ok("import", file, self.dir / "root", "--step", 0, "--exclude", "nul*")
        for path, count in ((file, len(HOSTILE)), (self.dir / "root", len(HOSTILE) - 1)):
            for words in (("inspect", path), ("inspect", path, "--flat"), ("stats", path), ("stats", path, "--nan"), ("diff", path, other),
                          ("completion", "names", "cat", path, "")):
                shown = run(*words)
                self.assertEqual(set(re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", shown.stdout + shown.stderr)), set(), words)
                self.assertEqual(shown.stderr, "", words)
                if words[0] == "completion":
                    continue
                self.assertIn("title", shown.stdout)
                self.assertEqual([line for line in shown.stdout.splitlines() if line.startswith("  lines")], [], words)
            self.assertEqual(run("stats", path, "--nan").stdout.count("\n"), 1 + count)
            for json_words in (("inspect", path), ("stats", path)):
                text = run(*json_words, "--json").stdout
                self.assertEqual(set(re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)), set())
                self.assertEqual({one["name"] for one in json.loads(text)["tensors"]}, set(HOSTILE) - ({"nul\0b"} if count < len(HOSTILE) else set()))
            for name in HOSTILE:
                if "\0" not in name:  # no argument holds it
                    self.assertEqual(self.ok("cat", path, name), "[nan]\n", name)
        for name in ("y\x1b[2J", "y\n2", "y\t", "y\u009b", "y\u202e", "y" * 30_000):
            for words in (("cat", file, name), ("inspect", file, name), ("inspect", name), (name,), ("ls", file, "--" + name), ("reshard", file, name, "--mesh", 1)):
                said = run(*words).stderr
                self.assertEqual((said.count("\n"), set(re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", said))), (1, set()), words)

    def test_an_import_of_a_name_with_nul_says_which(self):
        header = json.dumps({"nul\0b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})
        (self.dir / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(4))
        self.fails(2, ['tensor name "nul\\x00b" has a NUL character'], "import", self.dir / "m.safetensors", self.dir / "root", "--step", 0)

    def model(self):
        weights(self.dir / "m.safetensors", **{name: [1.0] * 4 for name in NAMES},
                **{"wte/table": [1.0] * 100, "head": [1.0, 2], "head.bias": [1.0]})
        self.ok("import", self.dir / "m.safetensors", self.dir / "root", "--step", 0, "--mesh", "data=2",
                "--spec", "head.bias=-;*=data")
        return self.dir / "root"

    @staticmethod
    def rows(text):
        """Name with its indent, and the other cells, of each line of the table."""
        lines = text.split("\n\n")[2].splitlines()
        return [(re.match(r" *\S+", line).group(), line.split()[1:]) for line in lines[1:] if line]

    def test_names_are_a_tree_in_natural_order_with_sums(self):
        text = self.ok("inspect", self.model())
        self.assertIn("\n\nmesh data=2\n\n", text)
        rows = self.rows(text)
        self.assertEqual([cell for cell in rows[0][1] if not cell.endswith("B")][:2], ["39", "247"])
        self.assertEqual([name for name, _ in rows if not name.startswith(" ")],
                         ["all", "h.", "head", "head.bias", "wte/table"])
        self.assertEqual([name for name, _ in rows if re.match(r"  \S", name)], [f"  {i}." for i in range(12)])
        level = [row for row in rows if row[0] == "h."][0]
        self.assertEqual(level[1], ["36", "144", "576", "B", "576", "B"])
        at = rows.index(("  2.", ["3", "12", "48", "B", "48", "B"]))
        self.assertEqual([name for name, _ in rows[at + 1:at + 5]], ["    mlp.", "      b", "      w", "    norm"])
        self.assertEqual(rows[at + 2][1], ["f32", "[4]", "data", "4", "16", "B", "16", "B"])

    def test_depth_cuts_the_tree(self):
        root = self.model()
        self.assertEqual([name for name, _ in self.rows(self.ok("inspect", root, "--depth", 1))],
                         ["all", "h.", "head", "head.bias", "wte/table"])
        self.assertEqual(len(self.rows(self.ok("inspect", root, "--depth", 2))), 5 + 12)
        self.fails(2, ['--depth: found "0"'], "inspect", root, "--depth", 0)
        self.fails(2, ["--flat", "--depth"], "inspect", root, "--depth", 1, "--flat")

    def test_patterns_choose_tensors(self):
        root = self.model()
        found = self.ok_json("inspect", root, "--tensor", "h.1.*", "--tensor", "head")
        self.assertEqual([tensor["name"] for tensor in found["tensors"]], ["h.1.mlp.b", "h.1.mlp.w", "h.1.norm", "head"])
        self.assertEqual(found["totals"], {"tensors": 4, "elements": 14, "logical_bytes": 56, "stored_bytes": 56})
        self.assertEqual(self.ok_json("inspect", root, "h.1.*", "head"), found)
        self.assertEqual(self.ok_json("inspect", root, "head", "--tensor", "h.1.*"), found)
        self.fails(3, ['has no tensor "heat"', 'did you mean "head"'], "inspect", root, "heat")
        self.fails(3, ['has no tensor "h.77.*" among its 39'], "inspect", root, "--tensor", "h.77.*")
        self.fails(3, ['did you mean "head"'], "inspect", root, "--tensor", "heat")

    def test_a_flat_list_has_whole_names_pieces_and_totals(self):
        text = self.ok("inspect", self.model(), "--flat", "--tensor", "h.10.*")
        self.assertRegex(text, r"(?m)^tensor +dtype +shape +mesh +spec +pieces +chunks +bytes +stored +ratio$")
        self.assertRegex(text, r"(?m)^h\.10\.mlp\.b +f32 +\[4\] +data=2 +data +")
        self.assertTrue(text.endswith("\n\n3 tensors, 12 parameters, 48 B, 48 B stored\n"), text)

    def test_a_tensor_is_drawn_as_shards_draws_it(self):
        root = self.model()
        self.ok("inspect", root, "--tensor", "wte/table", "--svg", self.dir / "a.svg")
        self.ok("shards", "--mesh", "data=2", "--spec", "data", "--shape", "100", "--svg", self.dir / "b.svg")
        picture = (self.dir / "a.svg").read_text()
        self.assertEqual(picture, (self.dir / "b.svg").read_text())
        xml.etree.ElementTree.fromstring(picture)
        self.fails(2, ["--svg draws one tensor, found 36; its NAME after the path says which"], "inspect", root, "--tensor", "h.*",
                   "--svg", self.dir / "c.svg")
        self.fails(3, ["--svg", "cannot be written"], "inspect", root, "--tensor", "head", "--svg",
                   self.dir / "nowhere" / "c.svg")
        self.assertFalse((self.dir / "c.svg").exists())


if __name__ == "__main__":
    unittest.main()
