"""The shardwise command as its users meet it: exit status, stdout, stderr, JSON."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SHARDWISE = os.environ["SHARDWISE"]
GOLDEN = pathlib.Path(os.environ["SHARDWISE_TEST_DATA"]) / "checkpoint-v1"


def run(*arguments):
    return subprocess.run([SHARDWISE, *map(str, arguments)], capture_output=True, text=True, timeout=120)


class Cli(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.dir = pathlib.Path(self.scratch.name)

    def ok(self, *arguments):
        result = run(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def ok_json(self, *arguments):
        return json.loads(self.ok(*arguments, "--json"))

    def fails(self, status, parts, *arguments):
        """Exit status, one line on stderr that holds every part, nothing on stdout; the same as JSON."""
        result = run(*arguments)
        self.assertEqual(result.returncode, status, (arguments, result))
        for part in parts:
            self.assertIn(part, result.stderr, arguments)
        self.assertEqual(result.stdout, "", arguments)
        if status == 3:
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        as_json = run(*arguments, "--json")
        self.assertEqual(as_json.returncode, status)
        error = json.loads(as_json.stdout)["error"]
        self.assertIn("code", error)
        for part in parts:
            self.assertIn(part, error["message"] + result.stderr)
        return error["code"]

    def root(self):
        """A root of one step: a copy of the golden checkpoint."""
        root = self.dir / "root"
        step = sorted(GOLDEN.glob("step-*"))[0]
        shutil.copytree(step, root / step.name)
        return root, root / step.name


class Help(Cli):
    def test_every_command_has_help_with_an_example(self):
        for command in ("shards", "ls", "inspect", "verify", "reshard"):
            text = self.ok(command, "--help")
            self.assertIn("Example:\n  shardwise " + command, text)
            self.assertIn("--json", text)
        self.assertRegex(self.ok("--version"), r"^\d+\.\d+\.\d+")

    def test_bad_usage_is_status_2(self):
        self.assertEqual(run().returncode, 2)
        self.fails(2, ["frobnicate"], "frobnicate")
        self.fails(2, ["--mesh"], "shards", "--spec", "a", "--shape", "4")
        self.fails(2, ["--bogus"], "ls", self.dir, "--bogus")
        self.fails(2, ["root"], "ls")


class Shards(Cli):
    def test_table_names_every_device(self):
        text = self.ok("shards", "--mesh", "data=4,model=2", "--spec", "data,model", "--shape", "10,6")
        self.assertIn("[3:6, 0:3]", text)
        self.assertEqual(sum(line.split()[0].isdigit() for line in text.splitlines() if line.split()), 8)

    def test_json_uneven_and_empty(self):
        found = self.ok_json("shards", "--mesh", "data=4,model=2", "--spec", "data,model", "--shape", "5,3",
                             "--dtype", "bf16")
        self.assertEqual(found["shard_shape"], [2, 2])
        self.assertFalse(found["fully_replicated"])
        device = found["devices"]["5"]
        self.assertEqual(device["box"], [[4, 5], [2, 3]])
        self.assertEqual(device["bytes"], 2)
        self.assertEqual(found["devices"]["7"]["box"], [[5, 5], [2, 3]])

    def test_device_order_and_replicas(self):
        found = self.ok_json("shards", "--mesh", "2,2", "--devices", "3,1,0,2", "--spec", "0,-", "--shape", "4,4")
        self.assertEqual(found["devices"]["3"]["box"], [[0, 2], [0, 4]])
        self.assertEqual(found["devices"]["1"]["replica_id"], {"xla": 0, "jax": 1})

    def test_scalar(self):
        found = self.ok_json("shards", "--mesh", "2", "--spec", "", "--shape", "")
        self.assertTrue(found["fully_replicated"])
        self.assertEqual(found["devices"]["1"]["box"], [])

    def test_bad_input(self):
        def case(parts, mesh, spec, shape, *more):
            self.fails(3, parts, "shards", "--mesh", mesh, "--spec", spec, "--shape", shape, *more)

        case(["model", "data"], "data=4", "model", "8")                # unknown axis: says which there are
        case(["data"], "data=4", "data,data", "8,8")                   # axis twice
        case(["[8, 8]", "data"], "data=4", "data", "8,8")              # spec shorter than the shape
        case(["0"], "data=0", "data", "8")                             # empty axis
        case(["data"], "data=2,data=2", "data", "8")                   # axis name twice
        case(["x"], "data=x", "data", "8")
        case(["f33", "f32"], "data=2", "data", "8", "--dtype", "f33")  # lists the types
        case(["-8"], "data=2", "data", "-8")
        case(["8"], "data=2", "data", "8,a")
        case([], "data=2", "data", "9223372036854775807", "--dtype", "f64")
        case(["3"], "data=2", "data", "8", "--devices", "0,1,3")       # three ids for two places
        case(["1"], "data=2", "data", "8", "--devices", "1,1")


class Checkpoints(Cli):
    def test_ls_lists_steps_and_leftovers(self):
        root, step = self.root()
        (root / ".step-00000999.0123.tmp").mkdir()
        text = self.ok("ls", root)
        self.assertIn("committed", text)
        self.assertIn("not a checkpoint: .step-00000999.0123.tmp", text)
        found = self.ok_json("ls", root)
        self.assertTrue(found["steps"][0]["valid"])
        self.assertEqual(found["unfinished"], [".step-00000999.0123.tmp"])
        self.assertTrue((root / ".step-00000999.0123.tmp").exists(), "ls only looks")

    def test_ls_says_what_is_damaged(self):
        root, step = self.root()
        (step / "manifest.json").write_text("{}")
        found = self.ok_json("ls", root)
        self.assertFalse(found["steps"][0]["valid"])
        self.assertIn("manifest.json", found["steps"][0]["reason"])

    def test_ls_of_an_empty_or_missing_root(self):
        self.assertIn("no committed checkpoint", self.ok("ls", self.dir))
        self.fails(3, ["nowhere"], "ls", self.dir / "nowhere")
        self.assertFalse((self.dir / "nowhere").exists(), "nothing is created")

    def test_inspect(self):
        root, step = self.root()
        found = self.ok_json("inspect", root)
        self.assertEqual(found, self.ok_json("inspect", step) | {"directory": found["directory"]})
        names = [t["name"] for t in found["tensors"]]
        self.assertEqual(names, sorted(names))
        one = self.ok_json("inspect", step, "--tensor", names[0])
        self.assertEqual([t["name"] for t in one["tensors"]], names[:1])
        self.assertIn(names[0], self.ok("inspect", step))
        self.fails(3, ["no_such_tensor"], "inspect", step, "--tensor", "no_such_tensor")

    def test_verify_status_1_names_the_damage(self):
        root, step = self.root()
        self.assertTrue(self.ok_json("verify", root)["ok"])
        shard = next(step.glob("shards-*.h5"))
        manifest = json.loads((step / "manifest.json").read_text())
        begin = manifest["files"][0]["data"][0]
        data = bytearray(shard.read_bytes())
        data[begin] ^= 1
        shard.write_bytes(data)
        result = run("verify", step)
        self.assertEqual(result.returncode, 1)
        self.assertIn(shard.name, result.stdout)
        found = json.loads(run("verify", step, "--json").stdout)
        self.assertFalse(found["ok"])
        damage = found["checkpoints"][0]["damage"][0]
        self.assertEqual(damage["file"], shard.name)
        self.assertIn("tensor", damage)
        self.assertIn("box", damage)

    def test_verify_of_an_attempt_is_not_found(self):
        self.fails(3, ["step-00000007"], "verify", self.dir / "step-00000007")
        (self.dir / "step-00000007").mkdir()
        self.fails(3, ["manifest.json"], "inspect", self.dir / "step-00000007")

    def test_a_damaged_newest_step_is_passed_over_and_named(self):
        root, step = self.root()
        broken = root / "step-99999999"
        shutil.copytree(step, broken)
        (broken / "manifest.json").write_bytes(b"not a manifest")
        result = run("inspect", root, "--json")
        self.assertEqual(result.returncode, 0)
        self.assertIn("step-99999999", result.stderr)
        self.assertEqual(json.loads(result.stdout)["directory"], str(step))
        (step / "manifest.json").unlink()
        self.fails(3, ["step-99999999"], "inspect", root)


class Reshard(Cli):
    def test_keeps_values_and_changes_the_cut(self):
        root, step = self.root()
        before = self.ok_json("inspect", step)
        done = self.ok_json("reshard", root, self.dir / "out", "--mesh", "model=3", "--spec", "*=-")
        after = self.ok_json("inspect", done["directory"])
        self.assertEqual(after["user"], before["user"])
        self.assertEqual([(t["name"], t["dtype"], t["shape"]) for t in after["tensors"]],
                         [(t["name"], t["dtype"], t["shape"]) for t in before["tensors"]])
        self.assertEqual({t["mesh"] for t in after["tensors"]}, {"model=3"})
        self.assertTrue(self.ok_json("verify", self.dir / "out")["ok"])

    def test_rules_from_a_file(self):
        root, step = self.root()
        rules = self.dir / "rules.txt"
        rules.write_text("# all whole\n*=-\n")
        self.ok("reshard", root, self.dir / "out", "--mesh", "a=2", "--spec", f"@{rules}")

    def test_bad_input_leaves_nothing(self):
        root, step = self.root()
        out = self.dir / "out"

        def case(parts, *arguments):
            self.fails(3, parts, "reshard", *arguments)
            self.assertEqual([p for p in out.glob("step-*")] if out.exists() else [], [])

        case(["nowhere"], self.dir / "nowhere", out, "--mesh", "a=2", "--spec", "*=-")
        case(["b", "a"], root, out, "--mesh", "a=2", "--spec", "*=b")
        case(["rules"], root, out, "--mesh", "a=2", "--spec", "@" + str(self.dir / "rules"))
        case(["="], root, out, "--mesh", "a=2", "--spec", "no rule at all")
        case(["a=zwei"], root, out, "--mesh", "a=zwei", "--spec", "*=-")
        case(["gzip", "zstd"], root, out, "--mesh", "a=2", "--spec", "*=-", "--codec", "gzip")

    def test_an_existing_step_is_not_replaced(self):
        root, step = self.root()
        code = self.fails(3, ["step"], "reshard", root, root, "--mesh", "a=2", "--spec", "*=-")
        self.assertEqual(code, "already_exists")
        self.assertTrue(self.ok_json("verify", root)["ok"])

    def test_a_damaged_chunk_stops_it_with_nothing_listed(self):
        root, step = self.root()
        shard = next(step.glob("shards-*.h5"))
        begin = json.loads((step / "manifest.json").read_text())["files"][0]["data"][0]
        data = bytearray(shard.read_bytes())
        data[begin] ^= 1
        shard.write_bytes(data)
        out = self.dir / "out"
        code = self.fails(3, [shard.name], "reshard", step, out, "--mesh", "a=2", "--spec", "*=-")
        self.assertEqual(code, "corrupt")
        self.assertEqual(self.ok_json("ls", out)["steps"], [])


if __name__ == "__main__":
    unittest.main()
