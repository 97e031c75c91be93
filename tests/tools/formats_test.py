"""Files of other formats, as their own libraries write and read them."""
import json
import subprocess
import unittest
import zipfile

import h5py
import numpy

from cli_test import Cli, run


class Formats(Cli):
    def weights(self):
        """A file as Keras lays weights out, with things that are no tensors."""
        path = self.dir / "model.weights.h5"
        with h5py.File(path, "w") as file:
            file.attrs["keras_version"] = "3.0"
            layer = file.create_group("layers/dense")
            layer.create_dataset("vars/0", data=numpy.arange(12, dtype="f4").reshape(3, 4), compression="gzip", chunks=(2, 2))
            layer.create_dataset("vars/1", data=numpy.arange(4, dtype=">f8"))
            file["optimizer/iteration"] = numpy.int64(7)
            file["flags"] = numpy.array([True, False])
            file["z"] = numpy.array([1 + 2j], "c8")
            file["names"] = ["a", "b"]
            file["away"] = h5py.ExternalLink("/etc/passwd", "/x")
        return path

    TENSORS = {"flags": ("bool", [2]), "layers/dense/vars/0": ("f32", [3, 4]), "layers/dense/vars/1": ("f64", [4]),
               "optimizer/iteration": ("i64", []), "z": ("c64", [1])}

    def test_hdf5_is_looked_at_without_an_import(self):
        path = self.weights()
        result = run("inspect", path, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        shown = json.loads(result.stdout)
        self.assertEqual((shown["format"], shown["user"]), ("hdf5", {}))
        self.assertEqual({t["name"]: (t["dtype"], t["shape"]) for t in shown["tensors"]}, self.TENSORS)
        left_out = ['"away": it is a link to another file', '"names": strings']
        self.assertEqual(shown["left_out"], left_out)
        self.assertIn(f"{path}: left out {', '.join(left_out)}", result.stderr)
        self.assertRegex(self.ok("inspect", path), f"{path}: hdf5, user {{}}\n\n(?s:.*)dense")
        self.assertRegex(self.ok("ls", path), r"format +tensors +bytes\nhdf5 +5 +98 B")
        self.assertEqual(self.ok_json("ls", path), {"path": str(path), "format": "hdf5", "tensors": 5, "logical_bytes": 98})
        self.assertEqual(self.ok("cat", path, "layers/dense/vars/1").split(), ["[0,", "1,", "2,", "3]"])
        self.assertEqual(self.ok_json("stats", path, "layers/dense/vars/0")["tensors"][0]["max"], 11)
        self.fails(2, ["--svg", "hdf5"], "inspect", path, "--svg", self.dir / "x.svg")

    def test_hdf5_after_a_block_of_the_users(self):
        path = self.dir / "m.h5"
        with h5py.File(path, "w", userblock_size=512, libver="latest") as file:
            file["a/w"] = numpy.arange(3)
        self.assertEqual(self.ok("cat", path, "a/w").split(), ["[0,", "1,", "2]"])

    def test_hdf5_of_more_elements_than_its_bytes_can_hold_is_refused(self):
        path = self.dir / "huge.h5"
        many = [f"t{i:03}" for i in range(300)]
        for made, said in (({"w": (2**40,)}, "4398046511104 bytes of elements"), ({"w": (2**61,)}, "2^63 bytes or more"),
                           ({"w": (2**31, 2**31, 2**31)}, "2^63 bytes or more"), ({name: (2**26,) for name in many}, "t256")):
            with h5py.File(path, "w") as file:
                for name, shape in made.items():
                    file.create_dataset(name, shape, "f4", chunks=(1 << 10,) * len(shape) if len(shape) == 1 else (1, 1, 64))
            for words in (("inspect", path), ("ls", path), ("diff", path, path), ("import", path, self.dir / "root", "--step", 0)):
                self.assertEqual(self.fails(3, [f"read {path}: dataset ", said], *words), "corrupt")
            self.assertFalse((self.dir / "root" / "step-00000000").exists())
        with h5py.File(path, "w") as file:  # zeros that are nowhere
            file.create_dataset("w", (2**20,), "f4", chunks=(1 << 10,))
        self.ok("import", path, self.dir / "root", "--step", 0)

    def test_hdf5_is_imported(self):
        path, root = self.weights(), self.dir / "root"
        result = run("import", path, root, "--step", 3, "--mesh", "a=2", "--spec", "layers/*/0=-,a;*=-", "--select", "[ol]*",
                     "--select", "*")
        self.assertEqual(result.returncode, 2, result.stderr)  # "[" is a character like others
        result = run("import", path, root, "--step", 3, "--mesh", "a=2", "--spec", "layers/*/0=-,a;*=-")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn('left out "away"', result.stderr)
        self.assertTrue(self.ok_json("verify", root)["ok"])
        self.assertTrue(self.ok_json("diff", path, root)["equal"])
        self.assertEqual({t["name"]: (t["dtype"], t["shape"]) for t in self.ok_json("inspect", root)["tensors"]}, self.TENSORS)

    ARRAYS = {"a/kernel": numpy.arange(60, dtype="f4").reshape(3, 4, 5), "fortran": numpy.asfortranarray(numpy.arange(24).reshape(2, 3, 4)),
              "big": numpy.arange(5, dtype=">c16") * 1j, "scalar": numpy.float16(1.5), "flags": numpy.array([[True], [False]]),
              "none": numpy.zeros((0, 3), "u1"), "\u00fc": numpy.arange(3, dtype="i2"), "long": numpy.arange(300000) % 1000}

    def test_npz_is_imported(self):
        for name, save in (("stored.npz", numpy.savez), ("deflated.npz", numpy.savez_compressed)):
            path, root = self.dir / name, self.dir / f"root-{name}"
            save(path, **self.ARRAYS)
            self.ok("import", path, root, "--step", 1, "--mesh", "a=2", "--spec", "fortran=-,-,a;long=a;*=-")
            self.assertTrue(self.ok_json("verify", root)["ok"])
            self.assertTrue(self.ok_json("diff", path, root)["equal"])
            for key, array in self.ARRAYS.items():
                self.ok("cat", root, key, "--npy", self.dir / "x.npy")
                again = numpy.load(self.dir / "x.npy")
                self.assertEqual((again.dtype, again.shape), (array.dtype.newbyteorder("="), array.shape))
                numpy.testing.assert_array_equal(again, array)
                self.ok("cat", path, key, "--npy", self.dir / "y.npy")
                self.assertEqual((self.dir / "x.npy").read_bytes(), (self.dir / "y.npy").read_bytes())
            self.assertEqual(self.ok_json("ls", path)["format"], "npz")

    def test_exports_are_what_numpy_and_h5py_read(self):
        path, root = self.dir / "in.npz", self.dir / "root"
        numpy.savez(path, **self.ARRAYS)
        self.ok("import", path, root, "--step", 1, "--mesh", "a=2", "--spec", "long=a;*=-")
        self.ok("export", root, self.dir / "out.npz")
        self.ok("export", root, self.dir / "out.h5")
        self.ok("export", root, self.dir / "numpy", "--format", "npz", "--max-shard", 1000)
        self.assertIsNone(zipfile.ZipFile(self.dir / "out.npz").testzip())
        subprocess.run(["h5dump", "-H", self.dir / "out.h5"], check=True, capture_output=True)
        with numpy.load(self.dir / "out.npz") as arrays, h5py.File(self.dir / "out.h5") as file:
            self.assertEqual(sorted(arrays), sorted(self.ARRAYS))
            for key, array in self.ARRAYS.items():
                for again in (arrays[key], file[key][()]):
                    self.assertEqual((again.dtype, again.shape), (array.dtype.newbyteorder("="), array.shape))
                    numpy.testing.assert_array_equal(again, array)
        for other in ("out.npz", "out.h5", "numpy", "numpy/model.npz.index.json"):
            self.assertTrue(self.ok_json("diff", root, self.dir / other)["equal"])
        index = json.loads((self.dir / "numpy" / "model.npz.index.json").read_text())["weight_map"]
        self.assertEqual(sorted(index), sorted(self.ARRAYS))
        for key, name in index.items():
            self.assertIn(key, numpy.load(self.dir / "numpy" / name))

    def test_the_options_of_an_export_are_those_of_every_format(self):
        path, root = self.dir / "in.npz", self.dir / "root"
        numpy.savez(path, **{"model/w": numpy.float32([1, 2, 3]), "model/n": numpy.arange(3), "opt/m": numpy.zeros(3)})
        self.ok("import", path, root, "--step", 1)
        edits = ("--select", "model/*", "--exclude", "*n", "--rename", "model/*=*", "--cast", "*=f16")
        for name in ("a.npz", "a.h5", "a.safetensors"):
            self.ok("export", root, self.dir / name, *edits)
            shown = self.ok_json("inspect", self.dir / name)["tensors"]
            self.assertEqual([(t["name"], t["dtype"]) for t in shown], [("w", "f16")])
            self.fails(3, [name, "it exists"], "export", root, self.dir / name)
            self.ok("export", root, self.dir / name, "--replace")
            self.assertEqual(len(self.ok_json("inspect", self.dir / name)["tensors"]), 3)
        self.fails(2, ['"zip"', "safetensors, npz, hdf5"], "export", root, self.dir / "b", "--format", "zip")
        self.fails(2, ["the format is hdf5", ".npz"], "export", root, self.dir / "b.npz", "--format", "hdf5")

    def test_an_export_for_hugging_face(self):
        path, root, config, out = self.dir / "in.npz", self.dir / "root", self.dir / "config", self.dir / "out"
        weights = numpy.arange(12, dtype="f4").reshape(4, 3)
        numpy.savez(path, **{"model.wte.weight": weights, "model.lm_head.weight": weights, "optimizer.m": weights})
        self.ok("import", path, root, "--step", 1)
        config.mkdir()
        (config / "config.json").write_text('{"tie_word_embeddings": true}')
        (config / "tokenizer.json").write_text("{}")
        (config / "pytorch_model.bin").write_text("weights")
        self.ok("export", root, out, "--strip-prefix", "model.", "--config-from", config)
        self.assertEqual(sorted(file.name for file in out.iterdir()), ["config.json", "model.safetensors", "tokenizer.json"])
        self.assertEqual([t["name"] for t in self.ok_json("inspect", out)["tensors"]], ["wte.weight"])
        self.ok("export", root, out, "--strip-prefix", "model.", "--config-from", config, "--replace", "--cast", "*=bf16")
        self.assertEqual([t["dtype"] for t in self.ok_json("inspect", out)["tensors"]], ["bf16"])
        self.fails(2, ["--strip-prefix", "without * and ?"], "export", root, self.dir / "x", "--strip-prefix", "model.*")
        self.fails(2, ["--strip-prefix", "--select"], "export", root, self.dir / "x", "--strip-prefix", "m", "--select", "m*")
        self.fails(3, ["config.json"], "export", root, self.dir / "x", "--config-from", self.dir)
        self.assertFalse((self.dir / "x").exists())

    def test_objects_are_never_unpickled(self):
        path = self.dir / "m.bin"

        class Evil:
            def __reduce__(self):
                return (open, (str(self_dir / "made"), "w"))
        self_dir = self.dir
        numpy.savez(self.dir / "m.npz", w=numpy.arange(3), o=numpy.array([Evil(), 1], dtype=object), s=numpy.array(["a"]))
        (self.dir / "m.npz").rename(path)
        result = run("import", path, self.dir / "root", "--step", 1)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn('left out "o": its elements are no numbers that shardwise has, "s"', result.stderr)
        self.assertFalse((self.dir / "made").exists())
        self.assertEqual(self.ok_json("ls", self.dir / "root")["steps"][0]["tensors"], 1)
        numpy.savez(self.dir / "o.npz", o=numpy.array([Evil()], dtype=object))
        self.fails(3, ["o.npz", "nothing that is a tensor here", 'here: "o": its elements'], "import", self.dir / "o.npz", self.dir / "root", "--step", 2)

    def test_what_differs_between_formats_is_found(self):
        path, root = self.weights(), self.dir / "root"
        self.ok("import", path, root, "--step", 3)
        with h5py.File(path, "r+") as file:
            file["layers/dense/vars/0"][2, 3] = 12
        result = run("diff", root, path, "--json")
        self.assertEqual(result.returncode, 1)
        differing = [t for t in json.loads(result.stdout)["tensors"] if not t["equal"]]
        self.assertEqual([(t["name"], t["at"], t["values"]) for t in differing], [("layers/dense/vars/0", [2, 3], ["11", "12"])])


if __name__ == "__main__":
    unittest.main()
