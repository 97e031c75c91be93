"""shardwise shards and shardwise explain, as their users meet them."""
import json
import unittest
import xml.etree.ElementTree

from cli_test import Cli, run


class Shards(Cli):
    def test_shards_of_hybrid_meshes_and_tori(self):
        shards = ("shards", "--mesh", "data=4,model=2", "--spec", "data,-", "--shape", "8,6")
        hybrid = self.ok_json(*shards, "--slices", "2,1", "--torus", "2,2")
        rows = {int(d): device["box"][0][0] for d, device in hybrid["devices"].items()}
        self.assertEqual(rows, {0: 0, 2: 0, 1: 2, 3: 2, 4: 4, 6: 4, 5: 6, 7: 6})  # each slice has rows of its own
        plain = self.ok_json(*shards)
        self.assertNotEqual(hybrid["devices"], plain["devices"])
        for options, message in ((("--slices", "3,1"), "found slices [3, 1]"), (("--slices", "2"), "found slices [2]"),
                                 (("--torus", "3"), "found the --torus [3]; needed are 8 devices"),
                                 (("--torus", "8", "--devices", "7,6,5,4,3,2,1,0"), "found a list of devices")):
            result = run(*shards, *options)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(message, result.stderr)

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
            self.fails(2, parts, "shards", "--mesh", mesh, "--spec", spec, "--shape", shape, *more)

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


    def test_an_empty_mesh_is_refused(self):
        for mesh in ("", " "):
            self.fails(2, ['mesh "', "no axis"], "shards", "--mesh", mesh, "--spec", "", "--shape", "")
            self.fails(2, ["no axis"], "explain", "--from", mesh + ";-", "--to", "2;0", "--shape", "4")
            self.fails(2, ["no axis"], "explain", "--mesh", mesh, "--spec", "-", "--shape", "4")
            self.fails(2, ["bench save: ", "no axis"], "bench", "save", self.dir / "x", "--mesh", mesh, "--spec", "-,-")
        self.ok("shards", "--mesh", "1", "--spec", "", "--shape", "")

    def test_a_mesh_too_large_to_be_listed_is_refused(self):
        many = 10**9
        for arguments in (("shards", "--mesh", many, "--spec", "0", "--shape", 8),
                          ("shards", "--mesh", many, "--placements", "S(0)", "--shape", 8),
                          ("shards", "--mesh", many, "--sharding", f"{{devices=[{many}]<=[{many}]}}", "--shape", 8),
                          ("explain", "--from", f"{many};0", "--to", "2;0", "--shape", 8),
                          ("explain", "--from", "2;0", "--to", f"{many};-", "--shape", 8)):
            self.assertEqual(self.fails(3, [arguments[0], f"{many} devices", "at most 1048576"], *arguments),
                             "unsupported")
        self.assertTrue(self.ok_json("explain", "--mesh", many, "--spec", "0", "--shape", 8)["valid"])

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
        self.fails(2, ["dim 0", "4 ways", "4 or 8"], "shards", "--mesh", "2,2", "--spec", "0+1", "--shape", "5",
                   "--policy", "strict")
        self.fails(2, ["found 2 dims, needed 1"], "shards", "--mesh", "4", "--spec", "0,-", "--shape", "4")
        self.fails(2, ["found 1 dims, needed 2"], "shards", "--mesh", "4", "--spec", "0", "--shape", "4,4")
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

    def test_a_spec_is_judged_under_the_policy(self):
        arguments = ("explain", "--mesh", "data=4", "--spec", "data", "--shape", 10)
        self.assertTrue(self.ok_json(*arguments)["valid"])
        self.assertTrue(self.ok_json(*arguments, "--policy", "balanced")["valid"])
        result = run(*arguments, "--policy", "strict")
        self.assertEqual(result.returncode, 1)
        self.assertIn("needed under the policy strict is a multiple, as 8 or 12", result.stdout)

    def test_bad_input(self):
        self.fails(2, ["--from", "MESH;SPEC"], "explain", "--from", "2", "--to", "2;0", "--shape", "4")
        self.fails(2, ["--from and --to"], "explain", "--from", "2;0", "--shape", "4")
        self.fails(2, ["extents"], "explain", "--from", "2;0", "--to", "2;-", "--shape", "4,4")


if __name__ == "__main__":
    unittest.main()
