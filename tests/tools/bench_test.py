"""shardwise bench: its output, files and refusals; its saves are read with h5py."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import unittest

import h5py
import numpy

SHARDWISE = os.environ["SHARDWISE"]
FIRST_CHUNK = 4096  # where the data of a shard file begins
SMALL = ("--tensors", 3, "--shape", "96,130", "--repeat", 2)
NUMPY = {"f64": "<f8", "f32": "<f4", "f16": "<f2", "i64": "<i8", "i32": "<i4", "i16": "<i2", "i8": "i1",
         "u64": "<u8", "u32": "<u4", "u16": "<u2", "u8": "u1", "bool": "?", "bf16": "<f4"}


def run(*arguments):
    return subprocess.run([SHARDWISE, "bench", *map(str, arguments)], capture_output=True, text=True, timeout=120)


def index_values(shape, dtype):
    """What --data index is to hold: floats are rounded to nearest, integers keep the low bits."""
    index = numpy.arange(numpy.prod(shape, dtype="i8")) % 2**20
    if dtype == "bf16":
        bits = index.astype("<f4").view("<u4")
        return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view("<f4").reshape(shape)
    kind = numpy.dtype(NUMPY[dtype])
    with numpy.errstate(over="ignore"):
        return index.astype(kind).reshape(shape)


class Bench(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.dir = pathlib.Path(self.scratch.name)

    def ok(self, *arguments):
        result = run(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        if arguments[0] == "save" and "--help" not in arguments:
            self.assertRegex(result.stderr, r"\Abench save: writes .*\n\Z", "no progress where stderr is no terminal")
        else:
            self.assertEqual(result.stderr, "", "silent where stderr is no terminal")
        return result.stdout

    def ok_json(self, *arguments):
        return json.loads(self.ok(*arguments, "--json"))

    def fails(self, status, code, parts, *arguments):
        result = run(*arguments, "--json")
        self.assertEqual(result.returncode, status, (arguments, result))
        error = json.loads(result.stdout)["error"]
        self.assertEqual(error["code"], code, error)
        for part in parts:
            self.assertIn(part, error["message"], arguments)

    def nothing_left(self):
        self.assertEqual(list(self.dir.iterdir()), [])

    def test_help_has_an_example(self):
        for command in ("save", "restore"):
            text = self.ok(command, "--help")
            self.assertIn("Example:\n  shardwise bench " + command, text)
            self.assertIn("--json", text)
        self.assertIn("save", self.ok("--help"))

    def test_a_restore_takes_a_number_of_threads(self):
        self.ok("save", self.dir, *SMALL, "--keep")
        for threads in (1, 3):
            self.assertEqual(self.ok_json("restore", self.dir, "--threads", threads)["threads"], threads)

    def test_save_says_how_fast_and_leaves_nothing(self):
        found = self.ok_json("save", self.dir / "new" / "deeper", *SMALL, "--codec", "zstd")
        self.nothing_left()
        self.assertEqual(found["command"], "save")
        self.assertEqual((found["codec"], found["data"], found["dtype"]), ("zstd", "gaussian", "f32"))
        self.assertEqual((found["tensors"], found["shape"]), (3, [96, 130]))
        self.assertEqual((found["mesh"], found["spec"]), ("data=4,model=2", "data,model"))
        self.assertEqual(found["logical_bytes"], 3 * 96 * 130 * 4)
        self.assertEqual(found["ratio"], found["logical_bytes"] / found["stored_bytes"])
        self.assertGreater(found["file_bytes"], found["stored_bytes"])
        self.assertEqual(found["chunks"], 3, "small tensors are stored whole")
        for times in (found["seconds"], found["raw_write"]["seconds"]):
            self.assertEqual(len(times), 2)
            self.assertGreater(min(times), 0)
        self.assertAlmostEqual(found["median_seconds"], sum(found["seconds"]) / 2)
        self.assertAlmostEqual(found["gb_per_s"], found["logical_bytes"] / found["median_seconds"] / 1e9)
        self.assertAlmostEqual(found["of_raw"], found["gb_per_s"] / found["raw_write"]["gb_per_s"])
        self.assertIn(found["raw_write"]["direct"], (True, False))
        self.assertFalse(found["async"])
        self.assertGreater(found["blocked_seconds"], 0)
        self.assertGreater(found["machine"]["cores"], 0)
        self.assertGreater(found["machine"]["memory_bytes"], 0)
        self.assertIn("peak_host_bytes", found)
        self.assertNotIn("directory", found)

    def test_save_says_first_where_it_writes_and_how_much(self):
        for keep, end in (((), "removes all of it at the end"), (("--keep",), "leaves the last checkpoint there")):
            root = self.dir / f"root{len(keep)}"
            said = run("save", root, *SMALL, *keep).stderr
            self.assertIn("3 rounds of 146.25 KiB raw and as a save, 877.50 KiB in all", said)
            self.assertIn(f"into {root}", said)
            self.assertIn(end, said)
        process = subprocess.Popen([SHARDWISE, "bench", "save", self.dir / "root0", *map(str, SMALL[:-1]), "1000"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.assertIn("in all, into", process.stderr.readline())  # at once: it runs still
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        self.assertIn("interrupted", process.communicate(timeout=240)[1])

    def test_asynchronous_saves_say_how_long_they_block(self):
        found = self.ok_json("save", self.dir, *SMALL, "--async", "--threads", 1, "--memory-budget", 8 << 20)
        self.assertTrue(found["async"])
        self.assertEqual(found["threads"], 1)
        self.assertGreater(found["blocked_seconds"], 0)
        self.nothing_left()

    def test_retention_is_told_with_the_save(self):
        found = self.ok_json("save", self.dir, *SMALL, "--keep-last", 2)
        self.nothing_left()
        self.assertEqual(found["keep_last"], 2)
        both = found["with_retention"]
        self.assertEqual(len(both["seconds"]), 2)
        self.assertAlmostEqual(both["gb_per_s"], found["logical_bytes"] / both["median_seconds"] / 1e9)
        self.assertIn("and retention", self.ok("save", self.dir, *SMALL, "--keep-last", 1))
        self.assertNotIn("with_retention", self.ok_json("save", self.dir, *SMALL))

    def test_text_is_a_table(self):
        text = self.ok("save", self.dir, *SMALL, "--keep", "--codec", "none")
        for part in ("raw writes", "save", "of raw", "codec none", "median of 2", "caller blocked"):
            self.assertIn(part, text)
        text = self.ok("restore", self.dir, "--repeat", 1)
        for part in ("raw reads", "restore", "of raw", "every element is as saved"):
            self.assertIn(part, text)

    def test_index_is_what_h5py_sees_in_every_dtype(self):
        for number, dtype in enumerate(NUMPY):
            with self.subTest(dtype):
                root = self.dir / dtype
                shape = [9, 41, 5] if number % 2 else [1030, 1031]
                found = self.ok_json("save", root, "--tensors", 2, "--shape", ",".join(map(str, shape)), "--dtype",
                                     dtype, "--data", "index", "--mesh", "a=2,b=3",
                                     "--spec", "a,b,-" if number % 2 else "b,a", "--keep", "--repeat", 1)
                self.assertEqual(found["directory"], str(root / "step-00000001"))
                with h5py.File(root / "step-00000001" / "index.h5") as index:
                    self.assertEqual(sorted(index), ["tensor_00000", "tensor_00001"])
                    for tensor in index.values():
                        numpy.testing.assert_array_equal(tensor[()], index_values(shape, dtype))
                self.assertEqual([p.name for p in root.iterdir()], ["step-00000001"])

    def test_restore_compares_and_says_how_fast(self):
        for data in ("gaussian", "index", "zeros"):
            root = self.dir / data
            saved = self.ok_json("save", root, *SMALL, "--data", data, "--keep")
            for more in ((), ("--cold",), ("--fresh-memory",), ("--mesh", "data=2,model=4", "--spec", "model,data"),
                         ("--spec", "-,-")):
                found = self.ok_json("restore", root, "--repeat", 2, *more)
                self.assertEqual(found["command"], "restore")
                self.assertEqual(found["directory"], saved["directory"])
                self.assertIs(found["verified"], True)
                self.assertEqual(found["cold"], "--cold" in more)
                self.assertEqual(found["fresh_memory"], "--fresh-memory" in more)
                self.assertEqual(found["logical_bytes"], saved["logical_bytes"])
                self.assertEqual(found["stored_bytes"], saved["stored_bytes"])
                self.assertEqual(found["chunks"], saved["chunks"])
                for times in (found["seconds"], found["raw_read"]["seconds"]):
                    self.assertEqual(len(times), 2)
                self.assertGreater(found["open_seconds"], 0)
                self.assertAlmostEqual(found["of_raw"], found["gb_per_s"] / found["raw_read"]["gb_per_s"])
                self.assertGreater(found["machine"]["cores"], 0)
            self.assertEqual(found["spec"], "-,-")
        self.assertIs(self.ok_json("restore", saved["directory"], "--repeat", 1)["verified"], True)

    def test_a_damaged_checkpoint_is_status_1(self):
        step = pathlib.Path(self.ok_json("save", self.dir, *SMALL, "--keep", "--codec", "none")["directory"])
        shard = next(step.glob("shards-*.h5"))
        data = bytearray(shard.read_bytes())
        data[FIRST_CHUNK] ^= 1
        shard.write_bytes(data)
        result = run("restore", self.dir, "--json")
        self.assertEqual(result.returncode, 1)
        found = json.loads(result.stdout)
        self.assertIs(found["verified"], False)
        self.assertIn("tensor_00000", found["difference"])
        self.assertIn(shard.name, run("restore", self.dir).stdout)

    def test_bad_usage_is_status_2_before_anything_is_made(self):
        def case(parts, *arguments):
            self.fails(2, "usage", parts, "save", self.dir / "new", *arguments)
            self.nothing_left()

        case(["f33", "bf16"], "--dtype", "f33")
        case(["modle", "model"], "--spec", "data,modle")
        case(["x"], "--mesh", "data=x")
        case(["2"], "--shape", "8")                     # the spec has two dims
        case(["8,a"], "--shape", "8,a")
        case(["nothing"], "--shape", "0,8")
        case(["gzip", "zstd"], "--codec", "gzip")
        case(["ones", "zeros"], "--data", "ones")
        case(["--tensors"], "--tensors", 0)
        case(["--repeat"], "--repeat", 0)
        case(["--threads"], "--threads", -1)
        case(["--memory-budget"], "--memory-budget", 1000)
        case([], "--shape", "9223372036854775807,2")
        case(["--frob"], "--frob")
        self.fails(2, "usage", ["dir"], "save")
        self.fails(2, "usage", [])

    def test_failures_leave_what_was_there(self):
        (self.dir / "mine").write_text("mine")
        (self.dir / "step-00000007").mkdir()
        self.fails(3, "already_exists", ["step-00000007"], "save", self.dir, *SMALL, "--keep")
        self.fails(3, "io", ["free", "needed"], "save", self.dir, "--tensors", 100000, "--shape", "1048576,1048576")
        self.fails(3, "io", ["free", "needed"], "save", self.dir / "new" / "deeper", "--tensors", 100000, "--shape",
                   "1048576,1048576", "--keep")
        self.fails(3, "invalid_argument", ["mine", "directory"], "save", self.dir / "mine", *SMALL)
        self.ok("save", self.dir, *SMALL)
        self.assertEqual(sorted(p.name for p in self.dir.iterdir()), ["mine", "step-00000007"])
        self.assertEqual((self.dir / "mine").read_text(), "mine")

        self.fails(3, "not_found", ["nowhere"], "restore", self.dir / "nowhere")
        kept = self.dir / "kept"
        self.ok("save", kept, *SMALL, "--keep")
        self.fails(2, "usage", ["tensor_00000", "model"], "restore", kept, "--mesh", "data=8")
        self.fails(2, "usage", ["tensor_00000"], "restore", kept, "--spec", "data")

    def test_interrupted_it_removes_what_it_wrote(self):
        for keep in ((), ("--keep",)):
            root = self.dir / "root"
            steps = "step-*" if keep else "shardwise-bench-*/root/step-*"
            for _ in range(10):  # on a busy machine it may end before it is seen that it runs
                process = subprocess.Popen([SHARDWISE, "bench", "save", root, *map(str, SMALL[:-1]), "100", *keep],
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                while process.poll() is None and len(list(root.glob(steps))) < 3:  # rounds are deleted at the end
                    pass
                process.send_signal(signal.SIGINT)
                stdout, stderr = process.communicate(timeout=240)
                if process.returncode != 0:
                    break
                shutil.rmtree(root, ignore_errors=True)
            self.assertEqual((process.returncode, stdout), (3, ""), stderr)
            self.assertIn("interrupted", stderr)
            self.nothing_left()


if __name__ == "__main__":
    unittest.main()
