"""The command against what other libraries answered: tests/data/sharding/vectors.json.

The kinds of vectors that the command has no words for are in tests/shard/vectors_test.cc.
"""
import json
import os
import pathlib
import subprocess
import unittest

SHARDWISE = os.environ["SHARDWISE"]
VECTORS = pathlib.Path(os.environ["SHARDWISE_TEST_DATA"]) / "sharding" / "vectors.json"
TYPES = ["REPLICATED", "MAXIMAL", "TUPLE", "TILED", "MANUAL", "PARTIAL", "UNKNOWN"]
IN_SHARD_TESTS = {"assemble_global", "equivalence", "hybrid_device_mesh", "hybrid_mesh", "iota_canonical",
                  "iota_value_at", "loader_minibatch", "local_to_global", "torus_assignment", "unique_pieces"}


def run(*arguments):
    """Exit status and the JSON printed."""
    result = subprocess.run([SHARDWISE, *arguments, "--json"], capture_output=True, text=True, timeout=120)
    return result.returncode, json.loads(result.stdout)


def numbers(values):
    return ",".join(map(str, values))


def mesh_text(shape, names=None):
    return ",".join(f"{name}={size}" for name, size in zip(names, shape)) if names else numbers(shape)


def spec_text(spec):
    def entry(axes):
        return "-" if axes is None or axes == [] else "+".join(map(str, axes)) if isinstance(axes, list) else str(axes)
    return ",".join(map(entry, spec))


def shards(shape, spec, tensor, *more, names=None, ids=None):
    devices = ["--devices", numbers(ids)] if ids else []
    return run("shards", "--mesh", mesh_text(shape, names), "--spec", spec_text(spec), "--shape", numbers(tensor),
               *devices, *more)


class Vectors(unittest.TestCase):
    def setUp(self):
        self.compared = 0
        self.vectors = json.loads(VECTORS.read_text())["vectors"]

    def of_kind(self, kind):
        """Input and expectation of each vector."""
        found = [vector for vector in self.vectors if vector["kind"] == kind]
        self.assertTrue(found, kind)
        for vector in found:
            with self.subTest(vector["id"]):
                yield vector["input"], vector["expect"]

    def same(self, found, expected, what):
        self.compared += 1
        self.assertEqual(found, expected, what)

    def enough(self, fields):
        """So that vectors that are no longer there, or not looked at, are noticed."""
        self.assertGreaterEqual(self.compared, fields)

    def test_every_kind_is_looked_at(self):
        here = {name[len("test_kind_"):] for name in dir(self) if name.startswith("test_kind_")}
        self.assertEqual({vector["kind"] for vector in self.vectors}, here | IN_SHARD_TESTS)
        self.assertFalse(here & IN_SHARD_TESTS)

    def test_kind_xla_shards(self):
        names = {"sharding_type": "sharding_type", "v1": "v1_string", "v2": "v2_string",
                 "shard_shape": "padded_shard_shape", "tile_assignment": "tile_assignment",
                 "group_assignment": "group_assignment", "replication_groups": "replication_groups"}
        for given, expect in self.of_kind("xla_shards"):
            status, found = shards(given["mesh_shape"], given["spec"], given["tensor_shape"],
                                   names=given["axis_names"], ids=given["device_ids"])
            self.same(status, 0, found)
            for ours, theirs in names.items():
                if theirs in expect:
                    self.same(found[ours], expect[theirs], ours)
            if "mesh_level_sharding_type" in expect:
                self.same(found["declared_type"], TYPES[expect["mesh_level_sharding_type"]], "declared_type")
            self.same(set(found["devices"]), set(expect["shards"]), "devices")
            for device, shard in expect["shards"].items():
                held = found["devices"][device]
                sizes = [end - begin for begin, end in held["box"]]
                whole = [[0, extent] for extent in given["tensor_shape"]]
                self.same(held["box"], whole if shard["slices"] == "..." else shard["slices"], device)
                self.same(held["replica_id"]["xla"], shard["replica_id"], device)
                if "unpadded_shape" in shard:
                    self.same(sizes, shard["unpadded_shape"], device)
                    padding = [padded - size for padded, size in zip(held["padded_shape"], sizes)]
                    self.same(padding, shard["pad_right"], device)
        self.enough(450)

    def test_kind_jax_indices(self):
        for given, expect in self.of_kind("jax_indices"):
            for row in expect["rows"]:
                status, found = shards(given["mesh_shape"], row["spec"], given["tensor_shape"], "--short-spec",
                                       "--policy", "strict", names=given["axis_names"], ids=given["device_ids"])
                self.same(status, 0, found)
                self.same(found["shard_shape"], row["shard_shape"], row["spec"])
                self.same(found["fully_replicated"], row["fully_replicated"], row["spec"])
                for shard in row["shards"]:
                    held = found["devices"][str(shard["device"])]
                    whole = [dim for dim, extent in enumerate(given["tensor_shape"]) if held["box"][dim] == [0, extent]]
                    self.same(held["box"], shard["slices"], shard)
                    self.same(held["replica_id"]["jax"], shard["replica_id"], shard)
                    self.same(whole, shard["raw_full_dims"], shard)
        self.enough(162)

    def test_kind_jax_shard_shape(self):
        for given, expect in self.of_kind("jax_shard_shape"):
            for row in expect["rows"]:
                _, found = shards(given["mesh_shape"], row["spec"], given["tensor_shape"], "--short-spec",
                                  names=given["axis_names"])
                self.same(found["shard_shape"], row["shard_shape"], row)
        self.enough(7)

    def test_kind_named_to_tiled(self):
        for _, expect in self.of_kind("named_to_tiled"):
            for row in expect["rows"]:
                ids, tensor = row["mesh_device_ids"], [8] * len(row["spec"])
                _, found = shards(row["mesh_shape"], row["spec"], tensor, ids=ids)
                listed = found["v1"].split("]")[1].split("}")[0].split(" ")[0]
                self.same(listed, numbers(row["devices"]), row["test"])
                self.same(found["v1"].split("]")[0], row["text"].split("]")[0], row["test"])
                if ids == sorted(ids):  # v2 counts positions
                    self.same(found["v2"], row["text"], row["test"])
                # Their text over devices 0 .. n - 1 places as the mesh and spec do.
                _, read = run("shards", "--mesh", str(len(ids)), "--sharding", row["text"], "--shape", numbers(tensor))
                self.same({device: held["box"] for device, held in read["devices"].items()},
                          {device: held["box"] for device, held in found["devices"].items()}, row["test"])
        self.enough(29)

    def test_kind_spec_validation(self):
        for given, expect in self.of_kind("spec_validation"):
            for spec, answer in zip(given["specs"], expect["recommended"], strict=True):
                status, found = shards(given["mesh_shape"], spec, [8] * len(spec))
                self.same(status, 0 if answer.startswith("ok") else 2, (spec, found))
        self.enough(10)

    def test_kind_mesh_validation(self):
        ours = {4: 2, 5: 0, 6: 0}  # any distinct ids make up a mesh, however many devices there are
        for given, expect in self.of_kind("mesh_validation"):
            for i, (case, answer) in enumerate(zip(given["cases"], expect["results"], strict=True)):
                names, shape = case["axis_names"], case["mesh_shape"]
                if names and len(names) > len(shape):
                    shape = shape + [""]
                status, found = shards(shape, ["-"], [8], names=names, ids=case["device_ids"])
                self.same(status, ours.get(i, 0 if answer.startswith("ok") else 2), (case, found))
        self.enough(8)

    def test_kind_placements_to_spec(self):
        for given, expect in self.of_kind("placements_to_spec"):
            for case, spec in zip(given["cases"], expect["specs"], strict=True):
                placements = ["P(sum)" if placement == "Partial" else placement for placement in case["placements"]]
                _, found = run("shards", "--mesh", mesh_text(case["mesh_shape"]), "--placements",
                               ",".join(placements), "--shape", numbers([8] * case["tensor_rank"]))
                self.same(found.get("spec"), None if isinstance(spec, str) else spec_text(spec), case)
        self.enough(6)

    def test_kind_dtensor(self):
        for given, expect in self.of_kind("dtensor"):
            many = "cases" in given
            for i, tensor in enumerate(given["cases"] if many else [given["tensor_shape"]]):
                _, found = run("shards", "--mesh", mesh_text(given["mesh_shape"]), "--placements",
                               ",".join(given["placements"]), "--shape", numbers(tensor))
                runs = [found["devices"][str(device)]["runs"][0] for device in range(len(found["devices"]))]
                sizes = [sum(end - begin for begin, end in of_device) for of_device in runs]
                offsets = [of_device[0][0] if of_device else tensor[0] for of_device in runs]
                self.same(sizes, expect["sizes"][i] if many else expect["sizes"], tensor)
                self.same(offsets, expect["offsets"][i] if many else expect["offsets"], tensor)
        self.enough(6)

    def test_kind_reshard_plan(self):
        for given, expect in self.of_kind("reshard_plan"):
            ends = [f"{mesh_text(end['mesh_shape'])};{spec_text(end['spec'])}" for end in (given["src"], given["dst"])]
            _, found = run("explain", "--from", ends[0], "--to", ends[1], "--shape", numbers(given["tensor_shape"]),
                           "--dtype", "i8")
            self.same(found["num_copies"], expect["num_copies"], ends)
            self.same(sorted((copy["from"], [copy["to"]], copy["box"]) for copy in found["copies"]),
                      sorted((copy["src_writer"], copy["dst_holders"], copy["slices"]) for copy in expect["copies"]),
                      ends)
            self.same(sum(held["bytes_kept"] + held["bytes_received"] for held in found["devices"].values()),
                      expect["elements"], ends)
        self.enough(3)


if __name__ == "__main__":
    unittest.main()
