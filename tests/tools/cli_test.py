"""The shardwise command as its users meet it: exit status, stdout, stderr, JSON."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

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
        for command in ("shards", "explain", "ls", "inspect", "verify", "reshard"):
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


    def test_answers_in_xlas_jaxs_and_dtensors_words(self):
        found = self.ok_json("shards", "--mesh", "a=4,b=2", "--devices", "7,6,5,4,3,2,1,0", "--spec", "-,b",
                             "--shape", "16,16")
        self.assertEqual(found["sharding_type"], "PARTIAL")
        self.assertEqual(found["declared_type"], "PARTIAL")
        self.assertEqual(found["v1"], "{devices=[1,2,4]1,3,5,7,0,2,4,6 last_tile_dim_replicate}")
        self.assertEqual(found["v2"], "{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}")
        self.assertEqual(found["jax"], "P(None, 'b')")
        self.assertEqual(found["placements"], "R,S(1)")
        self.assertEqual(found["tile_assignment"], [[7, 5, 3, 1], [6, 4, 2, 0]])
        self.assertEqual(found["group_assignment"], [[0, 1]])
        self.assertEqual(found["replication_groups"], [[7, 5, 3, 1], [6, 4, 2, 0]])
        self.assertEqual(found["devices"]["0"]["replica_id"], {"xla": 0, "jax": 3})
        self.assertEqual(found["devices"]["0"]["runs"], [[[0, 16]], [[8, 16]]])

    def test_reads_xlas_jaxs_and_dtensors_words(self):
        boxes = []
        for how in (["--spec", "-,b"], ["--spec", "P(None, 'b')"], ["--placements", "R,S(1)"],
                    ["--sharding", "{devices=[1,2,4]0,2,4,6,1,3,5,7 last_tile_dim_replicate}"],
                    ["--sharding", "{mesh['a'=4,'b'=2], [{}, {'b'}]}"]):
            found = self.ok_json("shards", "--mesh", "a=4,b=2", *how, "--shape", "16,16")
            boxes.append({device: held["box"] for device, held in found["devices"].items()})
        self.assertEqual(boxes[1:], boxes[:1] * 4)

    def test_a_strided_placement_holds_runs(self):
        found = self.ok_json("shards", "--mesh", "2,2", "--placements", "StridedShard(0, split=4),R", "--shape", "9")
        self.assertIsNone(found["devices"]["0"]["box"])
        self.assertEqual(found["devices"]["0"]["runs"], [[[0, 2], [3, 5], [6, 8]]])
        self.assertEqual(found["shard_shape"], [6])
        self.assertIsNone(found["sharding_type"])
        self.assertIsNone(found["v1"])

    def test_policies_and_short_specs(self):
        def sizes(policy):
            found = self.ok_json("shards", "--mesh", "2,2", "--spec", "0+1", "--shape", "5", "--policy", policy)
            return [held["box"][0][1] - held["box"][0][0] for held in found["devices"].values()]
        self.assertEqual(sizes("ceil"), [2, 2, 1, 0])
        self.assertEqual(sizes("nested_chunk"), [2, 1, 1, 1])
        self.assertEqual(sizes("balanced"), [2, 1, 1, 1])
        self.assertEqual(sizes("sizes:0+5+0+0"), [0, 5, 0, 0])
        self.fails(3, ["dim 0", "4 ways", "4 or 8"], "shards", "--mesh", "2,2", "--spec", "0+1", "--shape", "5",
                   "--policy", "strict")
        self.fails(3, ["2 extents"], "shards", "--mesh", "4", "--spec", "0,-", "--shape", "4")
        self.fails(3, ["1 extents"], "shards", "--mesh", "4", "--spec", "0", "--shape", "4,4")
        found = self.ok_json("shards", "--mesh", "4", "--spec", "0", "--shape", "4,4", "--short-spec")
        self.assertEqual(found["spec"], "0,-")

    def test_kinds_that_are_words(self):
        found = self.ok_json("shards", "--mesh", "4", "--sharding", "{maximal device=2}", "--shape", "8")
        self.assertEqual((found["sharding_type"], list(found["devices"])), ("MAXIMAL", ["2"]))
        self.assertEqual(found["tile_assignment"], [2])
        found = self.ok_json("shards", "--mesh", "4", "--sharding", "{manual}", "--shape", "8")
        self.assertEqual((found["sharding_type"], found["devices"]), ("MANUAL", {}))

    def test_svg(self):
        picture = self.dir / "shards.svg"
        self.ok("shards", "--mesh", "2,2", "--spec", "0,1", "--shape", "5,7", "--svg", picture)
        self.assertTrue(xml.etree.ElementTree.parse(picture).getroot().tag.endswith("svg"))
        self.fails(3, ["cannot be written"], "shards", "--mesh", "2", "--spec", "0", "--shape", "5", "--svg",
                   self.dir / "nowhere" / "shards.svg")

    def test_one_way_of_cutting_is_asked_for(self):
        self.fails(2, [], "shards", "--mesh", "2", "--shape", "5")
        self.fails(2, [], "shards", "--mesh", "2", "--shape", "5", "--spec", "0", "--placements", "R")


class Explain(Cli):
    def test_a_reshard_moves_what_each_device_lacks(self):
        found = self.ok_json("explain", "--from", "x=4,y=2;y,-,x", "--to", "x=4,y=2;-,x+y,-", "--shape", "16,16,16")
        self.assertEqual(found["class"], "all_to_all")
        self.assertEqual(found["num_copies"], 64)
        self.assertEqual(len(found["copies"]), 64)
        for device in found["devices"].values():
            self.assertEqual(device["bytes_kept"] + device["bytes_received"], 16 * 16 * 16 * 4 // 8)
            self.assertEqual(device["bytes_received"], device["bytes_sent"])
        self.assertEqual(found["bytes_moved"], sum(d["bytes_received"] for d in found["devices"].values()))
        self.assertEqual(found["bytes_moved"] + found["bytes_kept"], 16 * 16 * 16 * 4)

    def test_finer_tiles_need_no_communication(self):
        found = self.ok_json("explain", "--from", "4,2;0,-", "--to", "4,2;0,1", "--shape", "8,8", "--dtype", "i8")
        self.assertEqual((found["class"], found["needs_communication"], found["bytes_moved"]), ("slice", False, 0))
        self.assertIn("slice", self.ok("explain", "--from", "4,2;0,-", "--to", "4,2;0,1", "--shape", "8,8"))

    def test_a_bad_spec_is_status_1_with_what_would_be_right(self):
        arguments = ("explain", "--mesh", "data=4,model=2", "--spec", "data,modle", "--shape", "8,16")
        result = run(*arguments, "--json")
        self.assertEqual(result.returncode, 1)
        advice = json.loads(result.stdout)
        self.assertFalse(advice["valid"])
        self.assertEqual(advice["problems"][0]["kind"], "unknown_axis")
        self.assertEqual(advice["nearest_specs"][0], "data,model")
        self.assertIn("data,model", run(*arguments).stdout)
        self.assertTrue(self.ok_json("explain", "--mesh", "2", "--spec", "0", "--shape", "3")["valid"])

    def test_bad_input(self):
        self.fails(3, ["--from", "MESH;SPEC"], "explain", "--from", "2", "--to", "2;0", "--shape", "4")
        self.fails(3, ["--from and --to"], "explain", "--from", "2;0", "--shape", "4")
        self.fails(3, ["extents"], "explain", "--from", "2;0", "--to", "2;-", "--shape", "4,4")


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

    def test_a_step_without_its_manifest_is_damaged(self):
        root, step = self.root()
        (step / "manifest.json").unlink()
        for path in (root, step):
            found = json.loads(run("verify", path, "--json").stdout)
            self.assertFalse(found["ok"])
            self.assertIn("manifest.json", found["checkpoints"][0]["damage"][0]["message"])
            self.assertEqual(run("verify", path).returncode, 1)

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

        def case(parts, *arguments, status=3):
            self.fails(status, parts, "reshard", *arguments)
            self.assertEqual([p for p in out.glob("step-*")] if out.exists() else [], [])

        case(["nowhere"], self.dir / "nowhere", out, "--mesh", "a=2", "--spec", "*=-")
        case(["b", "a"], root, out, "--mesh", "a=2", "--spec", "*=b")
        case(["rules"], root, out, "--mesh", "a=2", "--spec", "@" + str(self.dir / "rules"))
        case(["w11", "none"], root, out, "--mesh", "a=2", "--spec", "w11=-;*=-")
        case(["="], root, out, "--mesh", "a=2", "--spec", "no rule at all", status=2)
        case(["a=zwei"], root, out, "--mesh", "a=zwei", "--spec", "*=-", status=2)
        case(["gzip", "zstd"], root, out, "--mesh", "a=2", "--spec", "*=-", "--codec", "gzip",
             status=2)
        case(["--writers"], root, out, "--mesh", "a=2", "--spec", "*=-", "--writers", "0", status=2)

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
