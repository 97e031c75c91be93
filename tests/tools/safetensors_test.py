"""shardwise import and export, as their users meet them."""
import unittest

from cli_test import Cli


class Safetensors(Cli):
    def weights(self):
        """A file as the safetensors library writes it."""
        header = (b'{"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},'
                  b'"a":{"dtype":"U8","shape":[3],"data_offsets":[16,19]}}')
        header += b" " * (-len(header) % 8)
        path = self.dir / "weights.safetensors"
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(range(19)))
        return path

    def test_imported_and_exported_it_is_the_same_file(self):
        weights, root, again = self.weights(), self.dir / "root", self.dir / "again.safetensors"
        done = self.ok_json("import", weights, root, "--step", 7, "--mesh", "a=2", "--spec", "b=a,-;*=-")
        self.assertEqual(done["directory"], str(root / "step-00000007"))
        self.assertTrue(self.ok_json("verify", root)["ok"])
        shown = self.ok_json("inspect", root)
        self.assertEqual(shown["user"], {"safetensors_metadata": {"format": "pt"}})
        self.assertEqual([(t["name"], t["mesh"], t["spec"]) for t in shown["tensors"]],
                         [("a", "a=2", "-"), ("b", "a=2", "a,-")])
        files = self.ok_json("export", root, again, "--format", "safetensors")["files"]
        self.assertEqual(files, [str(again)])
        self.assertEqual(again.read_bytes(), weights.read_bytes())

    def test_an_export_of_several_files_is_imported(self):
        root, step = self.root()
        out = self.ok_json("export", step, self.dir / "model", "--format", "safetensors", "--max-shard", 1)
        self.assertGreater(len(out["files"]), 1)
        self.ok("import", self.dir / "model", self.dir / "out", "--step", 1)
        before, after = self.ok_json("inspect", step), self.ok_json("inspect", self.dir / "out")
        self.assertEqual([(t["name"], t["dtype"], t["shape"]) for t in after["tensors"]],
                         [(t["name"], t["dtype"], t["shape"]) for t in before["tensors"]])
        self.assertEqual(after["user"], before["user"])

    def test_bad_input_is_named(self):
        weights, (root, step), out = self.weights(), self.root(), self.dir / "out"
        self.fails(2, ["import: ", "--step is required"], "import", weights, out)
        self.fails(2, ["--step"], "import", weights, out, "--step", "-1")
        self.fails(2, ["export to ", '"zip"', "safetensors"], "export", root, out, "--format", "zip")
        self.fails(2, ["--max-shard", '"0"'], "export", root, out, "--format", "safetensors", "--max-shard", "0")
        self.fails(3, ["a checkpoint of Shardwise"], "import", step, out, "--step", 1)
        self.fails(3, ["a directory of Shardwise's checkpoints"], "import", root, out, "--step", 1)
        self.fails(3, ["nowhere"], "import", self.dir / "nowhere", out, "--step", 1)
        self.fails(2, ["w11", "none"], "import", weights, out, "--step", 1, "--spec", "w11=-")
        (self.dir / "x.pt").write_bytes(b"PK\3\4\0\0\x08\x08")
        self.assertEqual(self.fails(3, ["zip archive", "needed is safetensors"], "import", self.dir / "x.pt", out, "--step", 1),
                         "unsupported")
        self.assertFalse(out.exists())
        code = self.fails(3, [weights.name, "it exists", "--replace"], "export", root, weights, "--format", "safetensors")
        self.assertEqual(code, "already_exists")
        before = weights.stat().st_mtime_ns
        said = self.ok("export", root, weights, "--format", "safetensors", "--skip-existing")
        self.assertIn("is already there: nothing was written", said)
        self.assertEqual(weights.stat().st_mtime_ns, before)
        self.ok("export", root, weights, "--format", "safetensors", "--replace")


if __name__ == "__main__":
    unittest.main()
