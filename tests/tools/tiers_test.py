"""shardwise tiers: what fast roots have of each step, and a step put together from them."""
import json
import os
import shutil
import unittest

from cli_test import GOLDEN, Cli, run

WRITERS = 65  # so that there is no index.h5, as in a fast tier


class Tiers(Cli):
    def setUp(self):
        super().setUp()
        self.ok("reshard", GOLDEN, self.dir / "whole", "--mesh", f"x={WRITERS}", "--spec", "*=-", "--writers", WRITERS,
                "--codec", "none")
        self.whole = next((self.dir / "whole").glob("step-*"))
        self.assertFalse((self.whole / "index.h5").exists())
        self.step = int(self.whole.name.partition("-")[2])
        self.files = sorted(path.name for path in self.whole.glob("*.h5"))
        self.hosts = [self.dir / "host0", self.dir / "host1"]
        self.give(0, self.files[::2])
        self.give(1, self.files[1::2])

    def give(self, process, files):
        own = self.hosts[process] / f"process-{process:05}" / self.whole.name
        own.mkdir(parents=True)
        for name in ["manifest.json", *files]:
            shutil.copy(self.whole / name, own / name)

    def own(self, process):
        return self.hosts[process] / f"process-{process:05}" / self.whole.name

    def largest(self):
        """A file with a chunk that a flip in its middle damages: its name, and who has it."""
        name = max(self.files, key=lambda name: (self.whole / name).stat().st_size)
        return name, self.files.index(name) % 2

    def spoil(self, path):
        """Changes a byte in the file's first chunk."""
        bytes_ = bytearray(path.read_bytes())
        bytes_[4096] ^= 1
        path.chmod(0o644)
        path.write_bytes(bytes_)

    def test_one_host_alone_lacks_files(self):
        said = run("tiers", self.hosts[0])
        self.assertEqual(said.returncode, 1)
        self.assertIn(f"step {self.step}: nowhere is {self.files[1]}\n", said.stdout)
        found = json.loads(run("tiers", self.hosts[0], "--json").stdout)["steps"][0]
        self.assertEqual((found["step"], found["whole"], found["nowhere"]), (self.step, False, self.files[1::2]))
        self.assertEqual(found["directories"], [str(self.own(0))])

    def test_a_step_that_one_host_has_set_aside_is_taken_only_by_its_number(self):
        (self.own(1).parent / f".aside-{self.whole.name}").touch()
        self.assertRegex(self.ok("tiers", *self.hosts), rf"(?m)^ *{self.step} .* 00000 00001 +set aside$")
        found = self.ok_json("tiers", *self.hosts)["steps"][0]
        self.assertEqual((found["whole"], found["set_aside"]), (True, True))
        said = run("tiers", *self.hosts, "--to", self.dir / "out")
        self.assertNotEqual(said.returncode, 0)
        self.assertIn("a run that went back has set it aside", said.stderr)
        self.ok("tiers", *self.hosts, "--to", self.dir / "out", "--step", self.step)

    def test_all_hosts_have_a_step_that_is_put_together(self):
        self.assertRegex(self.ok("tiers", *self.hosts), rf"(?m)^ *{self.step} +{len(self.files)} .* 00000 00001 +whole$")
        self.assertTrue(self.ok_json("tiers", *self.hosts, "--verify")["steps"][0]["whole"])
        target = self.dir / "out"
        self.assertIn(f"step {self.step} is in {target / self.whole.name}: {len(self.files)} files",
                      self.ok("tiers", *self.hosts, "--to", target))
        self.assertTrue(self.ok_json("verify", target)["ok"])
        self.ok("diff", self.whole, target)
        self.fails(3, [f"gather step {self.step}: {target} has it already"], "tiers", *self.hosts, "--to", target)

    def test_a_bad_chunk_is_taken_from_another_host_or_the_durable_root(self):
        name, process = self.largest()
        self.spoil(self.own(process) / name)
        said = run("tiers", *self.hosts, "--verify")
        self.assertEqual(said.returncode, 1)
        self.assertIn(f"step {self.step}: damaged: read {self.own(process) / name}", said.stdout)
        self.assertIn("1 nowhere", said.stdout)
        self.assertEqual(self.fails(3, ["on no host, nor in the durable root", name], "tiers", *self.hosts, "--to",
                                    self.dir / "none"), "corrupt")
        durable = ("--durable", self.dir / "whole")
        found = json.loads(run("tiers", *self.hosts, *durable, "--verify", "--json").stdout)["steps"][0]
        self.assertEqual((found["whole"], found["nowhere"], len(found["damaged"])), (True, [], 1))
        made = self.ok_json("tiers", *self.hosts, *durable, "--to", self.dir / "one", "--step", self.step)
        self.assertEqual(made["mended"], [f"1 chunk of {name} from {self.whole}"])
        self.ok("diff", self.whole, self.dir / "one")
        # The other host gets a copy.
        shutil.copy(self.whole / name, self.own(1 - process) / name)
        self.assertIn("whole", self.ok("tiers", *self.hosts))
        made = self.ok_json("tiers", *self.hosts, "--to", self.dir / "two")
        self.ok("diff", self.whole, self.dir / "two")

    def test_shows_what_a_step_costs_alone_and_what_it_shares(self):
        name = self.files[1]
        size = (self.own(1) / name).stat().st_size
        os.link(self.own(1) / name, self.dir / "another step's name")
        found = self.ok_json("tiers", *self.hosts)["steps"][0]
        self.assertEqual(found["shared_bytes"], size)
        there = sum(path.stat().st_size for process in (0, 1) for path in self.own(process).iterdir())
        self.assertEqual(found["alone_bytes"], there - size)

    def test_mistakes(self):
        self.fails(3, ["nowhere does not exist"], "tiers", self.dir / "nowhere")
        self.fails(3, ["step 8", "none of the fast roots"], "tiers", *self.hosts, "--to", self.dir / "x", "--step", 8)
        self.fails(2, ["--step"], "tiers", *self.hosts, "--step", 7)
        self.fails(2, ["--to", "--verify"], "tiers", *self.hosts, "--to", self.dir / "x", "--verify")
        empty = self.dir / "empty"
        empty.mkdir()
        self.assertEqual(run("tiers", empty).stdout, "no step of the fast tier\n")


if __name__ == "__main__":
    unittest.main()
