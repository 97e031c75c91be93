"""Parity at the command: its cost, that verify checks it and repairs by it, and that commands leave it alone."""
import json
import shutil
import unittest

from cli_test import FIRST_CHUNK, Cli, run


class Parity(Cli):
    def test_it_is_written_once_and_says_what_it_costs(self):
        root, step = self.root()
        files = len(list(step.glob("shards-*.h5")))
        text = self.ok("parity", step, "--blocks", "3")
        self.assertRegex(text, rf"^{step}: any 3 blocks of 1 MiB of each shard file may be lost, at [0-9.]+ [KM]iB, "
                               rf"[0-9.]+ % of [0-9.]+ [KM]iB in {files} shard files; {files} written, [0-9.]+ GB/s\n$")
        found = self.ok_json("parity", root, "--blocks", "3", "--threads", "1")["checkpoints"]
        self.assertEqual([(c["directory"], c["files"], c["written"], c["encoded_bytes"]) for c in found], [(str(step), files, 0, 0)])
        self.assertEqual(found[0]["parity_bytes"], sum(path.stat().st_size for path in step.glob("*.parity")))
        self.assertIn("any block of 1 MiB", self.ok("parity", step, "--blocks", "1"))
        self.assertIn(f"{files} parity files removed", self.ok("parity", step, "--remove"))
        self.assertEqual(self.ok_json("parity", root, "--remove"), {"checkpoints": [{"directory": str(step), "removed": 0}]})
        self.assertEqual(list(step.glob("*.parity")), [])
        self.fails(2, ["--blocks excludes --remove"], "parity", step, "--remove", "--blocks", "2")
        self.fails(2, ['--blocks: found "128", needed a whole number, from 1 to 127'], "parity", step, "--blocks", "128")

    def test_verify_checks_it_and_repairs_by_it(self):
        root, step = self.root()
        files = len(list(step.glob("shards-*.h5")))
        self.assertNotIn("parity", self.ok("verify", root))
        self.ok("parity", root)
        self.assertEqual(files, 1)
        self.assertIn("  parity: 1 shard file, each survives the loss of any 2 blocks of 1 MiB\n", self.ok("verify", root))
        found = self.ok_json("verify", root)["checkpoints"][0]
        self.assertEqual((found["parity_files"], found["parity_blocks"]), (files, 2))
        good = {path.name: path.read_bytes() for path in step.iterdir()}
        shard = next(step.glob("shards-*.h5"))
        shard.write_bytes(good[shard.name][:FIRST_CHUNK] + b"xyz" + good[shard.name][FIRST_CHUNK + 3:])
        self.fails(3, ["found it damaged, needed is a repair first"], "parity", step, "--blocks", "3")
        text = self.ok("verify", step, "--repair")
        self.assertIn("1 repaired", text)
        self.assertIn(f"repaired from {shard.resolve()}.parity: {shard.name}: ", text)
        shard.unlink()
        self.ok("verify", step, "--repair")
        parity = step / (shard.name + ".parity")
        parity.write_bytes(b"x" + good[parity.name][1:])
        self.assertIn(parity.name + ": ", run("verify", step).stdout)
        self.assertIn(f"repaired from {shard.resolve()}: {parity.name}: ", self.ok("verify", step, "--repair"))
        self.assertEqual({path.name: path.read_bytes() for path in step.iterdir()}, good)

    def test_it_is_in_no_commands_way(self):
        root, step = self.root()
        for command in (("inspect", step), ("stats", step), ("diff", step, root)):
            before = self.ok(*command)
            self.ok("parity", step)
            self.assertEqual(self.ok(*command), before)
            self.ok("parity", step, "--remove")
        self.ok("parity", step)
        bytes_of_step = sum(path.stat().st_size for path in step.iterdir())
        self.assertEqual(self.ok_json("ls", root)["steps"][0]["alone_bytes"], bytes_of_step)
        use = self.ok_json("du", root)["roots"][0]["steps"][0]
        self.assertEqual((use["total_bytes"], use["parity_bytes"]), (bytes_of_step, sum(path.stat().st_size for path in step.glob("*.parity"))))
        shutil.copytree(root, self.dir / "copy")
        self.assertTrue(self.ok_json("verify", self.dir / "copy")["ok"])
        self.ok("reshard", root, self.dir / "other", "--mesh", "a=2", "--spec", "*=-", "--codec", "none")
        self.assertEqual(list((self.dir / "other").rglob("*.parity")), [])
        self.ok("gc", root)
        self.ok("rm", root, json.loads(self.ok("ls", root, "--json"))["steps"][0]["step"], "--force")
        self.assertEqual(list(root.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
