"""Files of other formats, as their own libraries write and read them."""
import json
import unittest

import h5py
import numpy

from cli_test import Cli, run


class Formats(Cli):
    def weights(self):
        """A file as Keras lays weights out, and beside them what is no tensor."""
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
        self.assertEqual((shown["format"], shown["user"]), ("HDF5", {}))
        self.assertEqual({t["name"]: (t["dtype"], t["shape"]) for t in shown["tensors"]}, self.TENSORS)
        left_out = ['"away": it is a link to another file', '"names": strings']
        self.assertEqual(shown["left_out"], left_out)
        self.assertIn(f"{path}: left out {', '.join(left_out)}", result.stderr)
        self.assertRegex(self.ok("inspect", path), f"{path}: HDF5, user {{}}\n\n(?s:.*)dense")
        self.assertRegex(self.ok("ls", path), r"format +tensors +bytes\nHDF5 +5 +98 B")
        self.assertEqual(self.ok_json("ls", path), {"path": str(path), "format": "HDF5", "tensors": 5, "logical_bytes": 98})
        self.assertEqual(self.ok("cat", path, "layers/dense/vars/1").split(), ["[0,", "1,", "2,", "3]"])
        self.assertEqual(self.ok_json("stats", path, "layers/dense/vars/0")["tensors"][0]["max"], 11)
        self.fails(2, ["--svg", "HDF5"], "inspect", path, "--svg", self.dir / "x.svg")

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
        self.assertIn('left out "o.npy": its elements are no numbers that shardwise has, "s.npy"', result.stderr)
        self.assertFalse((self.dir / "made").exists())
        self.assertEqual(self.ok_json("ls", self.dir / "root")["steps"][0]["tensors"], 1)
        numpy.savez(self.dir / "o.npz", o=numpy.array([Evil()], dtype=object))
        self.fails(3, ["o.npz", "nothing that is a tensor here", "o.npy"], "import", self.dir / "o.npz", self.dir / "root", "--step", 2)

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
