"""shardwise cat and stats, as their users meet them, compared with numpy."""
import ast
import io
import json
import resource
import signal
import subprocess
import unittest

import numpy

from cli_test import SHARDWISE, Cli, run

NAMES = {"<f8": "F64", "<f4": "F32", "<f2": "F16", "<i8": "I64", "<i4": "I32", "<i2": "I16", "|i1": "I8", "<u8": "U64",
         "<u4": "U32", "<u2": "U16", "|u1": "U8", "|b1": "BOOL", "<c8": "C64"}


def weights(path, raw=(), **arrays):
    """A safetensors file; `raw`: (name, dtype, bytes) of vectors that numpy has no dtype for."""
    entries = [(name, NAMES[a.dtype.str], list(a.shape), a.tobytes()) for name, a in arrays.items()]
    entries += [(name, dtype, [len(data) // (2 if dtype == "BF16" else 1)], data) for name, dtype, data in raw]
    header, data = {}, b""
    for name, dtype, shape, content in entries:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def numbers(text):
    """What cat has printed, read again."""
    return ast.literal_eval(text.replace("nan", "None").replace("-inf", "-1e999").replace("inf", "1e999"))


class Elements(Cli):
    def setUp(self):
        super().setUp()
        random = numpy.random.default_rng(5)
        self.arrays = {kind[1:]: (random.standard_normal((7, 9, 4)) * 1000).astype(kind) for kind in NAMES if kind != "<c8"}
        self.arrays["c8"] = (random.standard_normal((3, 5)) + 1j * random.standard_normal((3, 5))).astype("<c8")
        self.arrays["scalar"] = numpy.array(-0.1, "<f4")
        self.arrays["none"] = numpy.zeros((3, 0), "<f4")
        self.arrays["large"] = random.standard_normal((40, 8, 300)).astype("<f4")
        self.arrays["ends"] = numpy.array([2**64 - 1, 2**63, 0], "<u8")
        self.arrays["bad"] = numpy.array([numpy.nan, numpy.inf, -numpy.inf, 0, -0.0, 3, 1e-45, 3.4e38], "<f4")
        self.bf16 = random.integers(0, 2**16, 50, "<u2").tobytes()
        self.path = weights(self.dir / "x.safetensors", [("bf16", "BF16", self.bf16), ("e4m3", "F8_E4M3", bytes(range(100)))],
                            **self.arrays)

    def test_npy_files_are_what_numpy_writes(self):
        for name, array in self.arrays.items():
            file = self.dir / "out.npy"
            self.assertIn(f"-> {file}", self.ok("cat", self.path, name, "--npy", file))
            expected = io.BytesIO()
            numpy.save(expected, array)
            self.assertEqual(file.read_bytes(), expected.getvalue(), name)
            piped = subprocess.run([SHARDWISE, "cat", self.path, name, "--npy", "-"], capture_output=True, timeout=60)
            self.assertEqual(piped.stdout, expected.getvalue(), name)
        for name, kind, data in (("bf16", "V2", self.bf16), ("e4m3", "V1", bytes(range(100)))):
            self.ok("cat", self.path, name, "--npy", file)
            found = numpy.load(file)
            self.assertEqual((found.dtype, found.tobytes()), (numpy.dtype(kind), data))

    def test_no_part_of_an_npy_file_is_left(self):
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

        file = self.dir / "out.npy"
        done = subprocess.run([SHARDWISE, "cat", self.path, "large", "--npy", file], capture_output=True, text=True, timeout=60, preexec_fn=limit)
        self.assertEqual((done.returncode, file.exists()), (3, False), done)
        self.assertIn(f"cat: --npy {file} cannot be written: File too large", done.stderr)

    def test_boxes_are_those_of_python(self):
        self.ok("import", self.path, self.dir / "root", "--step", 1, "--mesh", "a=2,b=3", "--spec", "large=a,-,b;*=-")
        large, file = self.arrays["large"], self.dir / "out.npy"
        for box in ("0:4,:,3", "5", "-1,2:5", ":,:,-4:", "3,4,5", "7:7", ",".join([":"] * 3), " 1 : 3 , 2"):
            expected = eval(f"large[{box}]", {"large": large})
            for path in (self.path, self.dir / "root"):
                self.ok("cat", path, "large", f"--box={box}", "--npy", file)
                found = numpy.load(file)
                self.assertEqual((found.shape, found.tobytes()), (expected.shape, expected.tobytes()), box)
            shown = self.ok_json("cat", self.path, "large", f"--box={box}")
            self.assertEqual(numpy.array(shown["values"], "<f4").tobytes(), expected.tobytes(), box)
        self.assertEqual(shown["shape"], [40, 8, 300])
        self.assertEqual(self.ok_json("cat", self.path, "large", "--box", " [1 : 3, 2] "), shown)  # as boxes are shown
        for box, parts in (("1,2,3,4", ["4 dims", "3"]), ("x", ['"x"', "whole number"]), ("40", ['"40"', "index"]),
                           ("0:41", ["41", "a dim of 40"]), ("3:1", ['"3:1"']), ("-41", ["-41"]), ("1,,2", ['""'])):
            self.fails(2, ["--box", *parts], "cat", self.path, "large", f"--box={box}")

    def test_text_reads_back_to_the_same_bits(self):
        for name, array in self.arrays.items():
            if array.dtype.kind == "c" or name in ("bad", "none"):
                continue
            text = self.ok("cat", self.path, name, "--all")
            self.assertEqual(numpy.array(numbers(text), array.dtype).tobytes(), array.tobytes(), name)
        self.assertEqual(self.ok("cat", self.path, "none"), "[]\n")
        self.assertEqual(self.ok("cat", self.path, "scalar"), "-0.1\n")
        self.assertEqual(self.ok("cat", self.path, "ends"), "[18446744073709551615,  9223372036854775808,                    0]\n")
        self.assertEqual(self.ok("cat", self.path, "b1", "--box", "0,0:2,0:2").replace(" ", ""), "[[True,True],\n[True,True]]\n")
        bad = self.ok_json("cat", self.path, "bad")["values"]
        self.assertEqual(bad[:5], ["nan", "inf", "-inf", 0, 0])
        self.assertEqual(numpy.array(bad[5:], "<f4").tobytes(), self.arrays["bad"][5:].tobytes())
        values = numpy.array([complex(v.replace("i", "j")) for row in self.ok_json("cat", self.path, "c8")["values"] for v in row])
        self.assertEqual(values.astype("<c8").tobytes(), self.arrays["c8"].tobytes())
        bf16 = [float(v) for v in self.ok_json("cat", self.path, "bf16")["values"]]
        expected = (numpy.frombuffer(self.bf16, "<u2").astype("<u4") << 16).view("<f4")
        numpy.testing.assert_array_equal(numpy.array(bf16, "<f4"), expected)

    def test_of_large_boxes_the_ends_are_shown(self):
        large = self.arrays["large"]
        text = self.ok("cat", self.path, "large", "--box", ":,:5,:")
        self.assertEqual(text.count("..."), 1 + 6 * 5)
        found = numpy.array(numbers(text.replace("...,", "")), "<f4")
        ends = numpy.r_[0:3, -3:0]
        self.assertEqual(found.tobytes(), large[ends][:, :5][:, :, ends].tobytes())
        self.assertTrue(text.startswith("[[["))
        self.assertNotIn("...", self.ok("cat", self.path, "large", "--box", "0,0", "--all"))
        self.assertNotIn("...", self.ok("cat", self.path, "large", "--box", "0,0:3"))

    def test_what_is_wrong_is_said(self):
        self.assertEqual(self.fails(3, ['no tensor "larg"', 'did you mean "large"?'], "cat", self.path, "larg"), "no_such_name")
        both = run("cat", self.path, "large", "--npy", "-", "--json")
        self.assertEqual((both.returncode, "--npy - and --json" in both.stderr), (2, True), both)
        self.fails(3, ["cannot be written"], "cat", self.path, "large", "--npy", self.dir / "no" / "x.npy")
        self.fails(3, ["nowhere does not exist"], "cat", self.dir / "nowhere", "x")
        self.fails(3, ["nowhere does not exist"], "stats", self.dir / "nowhere")
        self.assertEqual(self.fails(3, ['"larg*x"'], "stats", self.path, "larg*x"), "no_such_name")
        self.fails(2, ['found "0"'], "stats", self.path, "--histogram", "0")

    def test_stats_are_those_of_numpy(self):
        found = {t["name"]: t for t in self.ok_json("stats", self.path, "--histogram", 7)["tensors"]}
        self.assertEqual(set(found), {*self.arrays, "bf16", "e4m3"})
        for name, array in self.arrays.items():
            stats, values = found[name], numpy.abs(array) if array.dtype.kind == "c" else array
            finite = values[numpy.isfinite(values)]
            self.assertEqual(stats["elements"], array.size)
            self.assertEqual(stats["nan"], numpy.isnan(values).sum())
            self.assertEqual(stats["infinities"], numpy.isinf(values).sum())
            self.assertEqual(stats["zeros"], (values == 0).sum())
            if finite.size == 0:
                self.assertEqual([stats[k] for k in ("min", "max", "mean", "std")], [None] * 4)
                self.assertEqual(sum(stats["histogram"]["counts"]), 0)
                continue
            if array.dtype.kind != "c":
                self.assertEqual((stats["min"], stats["max"]), (finite.min().item(), finite.max().item()), name)
            wide = numpy.abs(array.astype("c16")) if array.dtype.kind == "c" else finite.astype(numpy.longdouble)
            numpy.testing.assert_allclose([stats["min"], stats["max"], stats["mean"], stats["std"]],
                                          numpy.array([wide.min(), wide.max(), wide.mean(), wide.std()], "f8"), rtol=1e-12)
            self.assertEqual(sum(stats["histogram"]["counts"]), finite.size)
        for name in ("i4", "f8", "large", "b1", "scalar"):
            array = self.arrays[name]
            counts, edges = numpy.histogram(array.astype("f8"), 7)
            self.assertEqual(found[name]["histogram"]["counts"], counts.tolist(), name)
            numpy.testing.assert_allclose([found[name]["histogram"]["low"], found[name]["histogram"]["high"]], edges[[0, -1]])

    def test_stats_are_a_table_of_what_patterns_match(self):
        lines = self.ok("stats", self.path, "bad", "i?", "--threads", 1).splitlines()
        self.assertEqual(lines[0].split(), "tensor dtype shape min max mean std NaN inf zeros".split())
        self.assertEqual({line.split()[0] for line in lines[1:]}, {"bad", "i8", "i4", "i2", "i1"})
        self.assertIn("bad f32 [8] 0 3.4e+38 6.8e+37", " ".join(" ".join(lines).split()))
        bars = self.ok("stats", self.path, "u1", "--histogram", 3)
        self.assertIn("#" * 60, bars)
        counts = [int(line.split()[2]) for line in bars.splitlines()[-3:]]
        self.assertEqual(sum(counts), self.arrays["u1"].size)
        self.assertIn("no number that is finite", self.ok("stats", self.path, "none", "--histogram", 3))

    def test_lines_of_elements_are_broken_as_in_numpy(self):
        path = weights(self.dir / "wide.safetensors", v=numpy.arange(900, dtype="<i4"), m=numpy.arange(800, dtype="<i4").reshape(2, 2, 200))
        for name in ("v", "m"):
            for more in ((), ("--all",)):
                text = self.ok("cat", path, name, *more)
                expected = numpy.array2string(self.load(path, name), max_line_width=101, separator=", ", threshold=1000).replace("\n\n", "\n")
                self.assertLessEqual(max(map(len, text.splitlines())), 100)
                self.assertEqual(text, expected + "\n")
        for name in ("large", "c8", "f8"):
            for line in self.ok("cat", self.path, name, "--all").splitlines():
                self.assertLessEqual(len(line), 100)

    def load(self, path, name):
        self.ok("cat", path, name, "--npy", self.dir / "it.npy")
        return numpy.load(self.dir / "it.npy")

    def test_stats_find_nan_and_where_it_is(self):
        places = {}
        for name, array in self.arrays.items():
            if array.dtype.kind == "f" and array.size:
                array = array.copy()
                if name in ("f4", "f2", "large", "scalar"):
                    places[name] = [] if name == "scalar" else [2, 7, 3]
                    array[tuple(places[name])] = numpy.nan if name != "f2" else -numpy.inf
                    if name == "large":
                        array[39, 7, 299] = numpy.inf
                self.arrays[name] = array
        places["bad"] = [0]
        path = weights(self.dir / "nan.safetensors", [("bf16", "BF16", numpy.array([0, 0x7FC0, 0x7F80], "<u2").tobytes())], **self.arrays)
        places["bf16"] = [1]
        for threads in (1, 3):
            done = run("stats", path, "--nan", "--json", "--threads", threads)
            self.assertEqual(done.returncode, 1)
            self.assertEqual({t["name"]: t["first_not_finite"] for t in json.loads(done.stdout)["tensors"]}, places)
        shown = run("stats", path, "--nan")
        self.assertEqual(shown.returncode, 1)
        self.assertEqual(shown.stdout.split("\n")[0].split(), "tensor dtype shape NaN inf first at".split())
        self.assertIn("large f32 [40, 8, 300] 1 1 [2, 7, 3]", " ".join(shown.stdout.split()))
        self.assertEqual(self.ok("stats", path, "i4", "f8", "--nan"), "no tensor has NaN or infinities\n")
        self.assertIsNone(self.ok_json("stats", path, "f8")["tensors"][0]["first_not_finite"])

    def test_stats_are_the_same_for_any_number_of_threads_and_for_a_checkpoint(self):
        one = self.ok_json("stats", self.path, "large", "bad", "--threads", 1)
        self.assertEqual(self.ok_json("stats", self.path, "large", "bad", "--threads", 4), one)
        self.ok("import", self.path, self.dir / "root", "--step", 1, "--mesh", "a=3", "--spec", "large=-,-,a;*=-")
        of_checkpoint = self.ok_json("stats", self.dir / "root", "large", "bad")["tensors"]
        self.assertEqual(sorted(of_checkpoint, key=str), sorted(one["tensors"], key=str))


if __name__ == "__main__":
    unittest.main()
