"""shardwise import and export, as their users meet them."""
import unittest

from cli_test import Cli


def weights_of_zeros(path):
    """1 MiB of them."""
    header = b'{"w":{"dtype":"F32","shape":[512,512],"data_offsets":[0,1048576]}}'
    header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(1 << 20))
    return path


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

    def test_an_import_takes_an_order_of_devices_a_codec_and_a_memory_budget(self):
        weights = self.weights()
        for codec in ("none", "zstd"):
            root = self.dir / codec
            self.ok("import", weights, root, "--step", 1, "--mesh", "a=2", "--devices", "5,3", "--spec", "b=a,-;*=-", "--codec",
                    codec, "--memory-budget", "8M", "--threads", 1)
            self.assertEqual([t["mesh"] for t in self.ok_json("inspect", root)["tensors"]], ["a=2@5,3"] * 2)
            self.assertTrue(self.ok_json("diff", weights, root)["equal"])
        large = weights_of_zeros(self.dir / "large.safetensors")
        stored = {}
        for codec in ("none", "zstd"):
            self.ok("import", large, self.dir / codec, "--step", 2, "--codec", codec)
            [tensor] = self.ok_json("inspect", self.dir / codec / "step-00000002")["tensors"]
            stored[codec] = tensor["stored_bytes"]
        self.assertEqual(stored["none"], 1 << 20)
        self.assertLess(stored["zstd"], 1 << 16)
        for size in ("7M", "-1"):
            self.fails(2, ["import: --memory-budget"], "import", weights, self.dir / "x", "--step", 1, f"--memory-budget={size}")

    def test_an_import_writes_several_files_and_replaces_a_step_only_if_told(self):
        weights, root = self.weights(), self.dir / "root"
        words = ("import", weights, root, "--step", 1, "--mesh", "a=2", "--spec", "b=a,-;*=-")
        files = lambda: {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
        self.ok(*words, "--writers", 2)
        before = files()
        self.assertEqual([path.name for path in before if path.name.startswith("shards-")],
                         ["shards-00000-of-00002.h5", "shards-00001-of-00002.h5"])
        self.assertIn("is already there: nothing was written", self.ok(*words, "--skip-existing"))
        self.assertTrue(self.ok_json(*words, "--skip-existing")["skipped"])
        self.assertEqual(files(), before)
        weights.write_bytes(weights.read_bytes()[:-19] + bytes(range(1, 20)))
        self.fails(3, ["is already there; --replace writes a new generation of it, --skip-existing writes nothing"], *words)
        self.ok(*words, "--replace")
        [step] = self.ok_json("ls", root)["steps"]
        self.assertEqual((step["step"], step["generation"]), (1, 2))
        self.assertTrue(self.ok_json("diff", weights, root)["equal"])

    def test_an_export_has_the_same_bytes_with_any_threads(self):
        root, _ = self.root()
        made = []
        for threads in (0, 1, 3):
            self.ok("export", root, self.dir / f"{threads}.safetensors", "--threads", threads)
            made.append((self.dir / f"{threads}.safetensors").read_bytes())
        self.assertEqual(made, [made[0]] * 3)
        self.fails(2, ['export: --threads: found "-1", needed a whole number, from 0 to 1024; shardwise help export shows more'], "export",
                   root, self.dir / "x.safetensors", "--threads", -1)

    def test_an_export_takes_a_memory_budget(self):
        large, out = weights_of_zeros(self.dir / "large.safetensors"), self.dir / "again.safetensors"
        self.ok("import", large, self.dir / "root", "--step", 1)
        self.ok("export", self.dir / "root", out, "--memory-budget", "8M")
        self.assertTrue(self.ok_json("diff", large, out)["equal"])
        self.fails(2, ["export: --memory-budget"], "export", self.dir / "root", self.dir / "x.safetensors", "--memory-budget", "7M")

    def test_bad_input_is_named(self):
        weights, (root, step), out = self.weights(), self.root(), self.dir / "out"
        self.fails(2, ["import: ", "--step is required"], "import", weights, out)
        self.fails(2, ["--step"], "import", weights, out, "--step", "-1")
        self.fails(2, ["export to ", '"zip"', "safetensors"], "export", root, out, "--format", "zip")
        self.fails(2, ["--max-shard", '"0"'], "export", root, out, "--format", "safetensors", "--max-shard", "0")
        self.fails(3, ["a checkpoint of Shardwise"], "import", step, out, "--step", 1)
        self.fails(3, ["step-00000001", "a checkpoint of Shardwise"], "import", root, out, "--step", 1)
        self.fails(3, ["nowhere"], "import", self.dir / "nowhere", out, "--step", 1)
        self.fails(2, ["w11", "none"], "import", weights, out, "--step", 1, "--spec", "w11=-")
        (self.dir / "x.pt").write_bytes(b"PK\3\4\0\0\x08\x08")
        self.assertEqual(self.fails(3, ["torch.save()", "needed is safetensors"], "import", self.dir / "x.pt", out, "--step", 1),
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
