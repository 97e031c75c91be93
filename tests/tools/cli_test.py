"""The shardwise command as its users meet it: exit status, stdout, stderr, JSON."""
import json
import os
import pathlib
import pty
import resource
import select
import shutil
import signal
import subprocess
import tempfile
import unittest

SHARDWISE = os.environ["SHARDWISE"]
FIRST_CHUNK = 4096  # where the data of a shard file begins
GOLDEN = pathlib.Path(os.environ["SHARDWISE_TEST_DATA"]) / "checkpoint-v2"


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
        for command in ("shards", "explain", "plan", "ls", "inspect", "verify", "parity", "diff", "cat", "stats", "du", "tiers", "rm", "pin", "unpin", "gc", "cp", "reshard", "import", "export", "batches"):
            text = self.ok(command, "--help")
            self.assertIn("Example:\n  shardwise " + command, text)
            self.assertIn("--json", text)
        self.assertRegex(self.ok("--version"), r"^\d+\.\d+\.\d+")

    def test_help_is_a_command_too(self):
        self.assertEqual(self.ok("help"), self.ok("--help"))
        for command in (("reshard",), ("bench",), ("bench", "save")):
            self.assertEqual(self.ok("help", *command), self.ok(*command, "--help"))
        for command in ("shards", "explain", "plan", "ls", "inspect", "verify", "parity", "diff", "cat", "stats", "du", "tiers", "rm", "pin", "unpin", "gc", "cp", "reshard", "import", "export", "bench", "completion", "help"):
            self.assertRegex(self.ok("help"), f"(?m)^  {command} ")
        self.fails(2, ['"reshrad"', '"reshard"'], "help", "reshrad")

    def test_bad_usage_is_status_2(self):
        self.fails(2, ["a command is needed", "shards", "bench"])
        self.fails(2, ["a command is needed", "save", "restore"], "bench")
        self.fails(2, ["shards: ", "--mesh is required"], "shards", "--spec", "a", "--shape", "4")
        self.fails(2, ["ls: ", "root is required"], "ls")

    def test_words_that_cannot_be_understood_are_status_2_in_every_command(self):
        source = "idx:none.gz"
        for arguments, parts in ((("shards", "--mesh", "a=zwei", "--spec", "a", "--shape", "8"), ["--mesh", "zwei"]),
                                 (("shards", "--mesh", "2", "--shape", "8"), ["found 0 of --spec"]),
                                 (("shards", "--mesh", "data=2", "--spec", "data", "--shape", "8,8"),
                                  ["--spec", "found 1 dims, needed 2"]),
                                 (("explain", "--mesh", "a=zwei", "--spec", "a", "--shape", "8"), ["zwei"]),
                                 (("reshard", GOLDEN, "x", "--mesh", "a=zwei"), ["zwei"]),
                                 (("reshard", GOLDEN, "x", "--mesh", "2", "--writers", "0"), ['found "0"', "from 1 to 99999"]),
                                 (("reshard", GOLDEN, "x", "--mesh", "2", "--spec", "*=nope"), ["nope"]),
                                 (("reshard", GOLDEN, "x", "--mesh", "2", "--spec", "none"), ["none", "pattern=spec"]),
                                 (("reshard", GOLDEN, "x", "--mesh", "2", "--spec", "a=b c"), ["a=b c"]),
                                 (("import", "x", "y", "--step", "-1"), ['--step: found "-1", needed a whole number, 0 or more']),
                                 (("import", "x", "y", "--step", "one"), ['found "one"']),
                                 (("import", "x", "y", "z", "--step", "1"), ["one argument too many", "give the folder"]),
                                 (("export", GOLDEN, "x", "--format", "zip"), ["zip", "safetensors"]),
                                 (("batches", source, "--batch", "0"), ['found "0", needed a whole number, 1 or more']),
                                 (("batches", source, "--batch", "2", "--from", "-1"), ['found "-1"']),
                                 (("batches", source, "--batch", "2", "--order", "foo"), ["--order", "foo"]),
                                 (("batches", source, "--batch", "2", "--last", "dorp"), ["--last", "dorp"]),
                                 (("batches", source, "--batch", "2", "--bad", "ok"), ["--bad", "ok"]),
                                 (("batches", source, "--batch", "2", "--mesh", "a=zwei"), ["--mesh", "zwei"]),
                                 (("batches", source, "--batch", "2", "--state", "{}", "--from", "3"), ["--state", "--from"]),
                                 (("batches", source, "--batch", "2", "--state", "{}", "--seed", "3"), ["--state", "--seed"]),
                                 (("bench", "save", "x", "--repeat", "0"), ['found "0"', "from 1 to 1000"])):
            self.fails(2, parts, *arguments)
            self.assertLess(len(run(*arguments).stderr), 400)

    def test_the_help_says_what_exit_statuses_mean(self):
        self.assertIn("Exit status: 0 done, 1 the answer is no, 2 bad usage, 3 failure", self.ok("--help"))

    def test_the_first_unknown_word_is_named_with_the_nearest(self):
        self.fails(2, ['unknown command "reshrad"; did you mean "reshard"?'], "reshrad", "small", "o2", "--mesh", "2")
        self.fails(2, ['unknown command "frobnicate"; there are shards, explain, plan'], "frobnicate")
        self.fails(2, ['unknown command "frobnicate"'], "frobnicate", "--help")
        self.fails(2, ['bench: unknown command "sve"; did you mean "save"?'], "bench", "sve", "x", "--keep")
        self.fails(2, ['reshard: unknown option "--specs"; did you mean "--spec"?'], "reshard", "a", "b", "--specs",
                   "*=-", "--mesh", "2", "--cdec", "none")
        self.fails(2, ['reshard: unknown option "--msh"; did you mean "--mesh"?'], "reshard", "a", "b", "--msh=2")
        self.fails(2, ['shards: unknown option "--placement"; did you mean "--placements"?'], "shards", "--mesh", "2",
                   "--placement", "R", "--shape", "4")
        self.fails(2, ['bench save: unknown option "--dtyp"; did you mean "--dtype"?'], "bench", "save", "x", "--dtyp",
                   "f32")
        self.fails(2, ['ls: "three" is one argument too many'], "ls", "one", "two", "three")
        result = run("--json", "ls", self.dir)
        self.assertEqual(result.returncode, 2)
        self.assertIn('unknown option "--json"; options stand after the command', result.stderr)


class Sizes(Cli):
    def test_a_memory_budget_has_a_unit(self):
        root, step = self.root()
        for number, size in enumerate(("8388608", "8M", "8MiB", "8m", "8.5MB", "0.5G", "1.5GiB", "1T", "8192K", "9000kb")):
            self.ok("reshard", root, self.dir / str(number), "--mesh", "a=2", "--spec", "*=-", "--memory-budget", size)
        for size in ("512Q", "1M", "8388607", "8MB", "2000T", "1e9", "-8M", "M", "8 M", "0x800000", "nan", "inf"):
            self.fails(2, [f'--memory-budget: "{size}"', "8.00 MiB", "1.00 PiB", "512M"], "reshard", root, self.dir / "x",
                       "--mesh", "a=2", "--spec", "*=-", f"--memory-budget={size}")
        self.fails(2, ["reshard: --memory-budget"], "reshard", root, self.dir / "x", "--mesh", "a=2", "--memory-budget=")
        self.assertFalse((self.dir / "x").exists())
        self.assertRegex(self.ok("reshard", "--help"), r"--memory-budget SIZE=256\.00 MiB")


class Memory(Cli):
    def test_too_little_memory_is_a_failure_that_names_the_command(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20))
        all_to_all = ("--from", "1000000;0", "--to", "1000000;-", "--shape", "1000000")
        result = subprocess.run([SHARDWISE, "explain", *all_to_all, "--json"], preexec_fn=limit, capture_output=True,
                                text=True, timeout=120)
        self.assertEqual((result.returncode, result.stderr), (3, "shardwise: explain: there is not enough memory\n"))
        self.assertEqual(json.loads(result.stdout)["error"]["code"], "resource_exhausted")


class Streams(Cli):
    """Results that cannot be written are failures; output goes to no other file."""

    def checks(self, result):
        self.assertEqual(result.returncode, 3, result)
        self.assertIn("cannot be written to stdout", result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)

    def commands(self):
        root, step = self.root()
        shards = ("shards", "--mesh", "data=4", "--spec", "data", "--shape", "8")
        many = ("shards", "--mesh", "4096", "--spec", "0", "--shape", "4096")  # more than stdout's buffer holds
        reshard = ("reshard", root, self.dir / "out", "--mesh", "a=2", "--spec", "*=-", "--replace")
        for command in (shards, many, reshard, ("ls", root), ("inspect", root), ("verify", root), ("--help",),
                        ("--version",), ("help", "ls")):
            yield command
            if command[0] not in ("--help", "--version", "help"):
                yield (*command, "--json")

    def test_a_full_stdout_is_a_failure(self):
        for command in self.commands():
            with self.subTest(command), open("/dev/full", "w") as full:
                self.checks(subprocess.run([SHARDWISE, *map(str, command)], stdout=full, stderr=subprocess.PIPE,
                                           text=True, timeout=120))

    def test_a_closed_stdout_is_a_failure(self):
        for command in self.commands():
            with self.subTest(command):
                self.checks(subprocess.run(["sh", "-c", 'exec "$0" "$@" >&-', SHARDWISE, *map(str, command)],
                                           stderr=subprocess.PIPE, text=True, timeout=120))
        self.assertTrue(self.ok_json("verify", self.dir / "out")["ok"], "no file got the output")

    def test_a_failure_keeps_its_status_where_nothing_can_be_told(self):
        for redirection, more in ((">&-", []), (">/dev/full", []), ("2>&-", []), ("2>/dev/full", []), (">&- 2>&-", [])):
            for json_option in ([], ["--json"]):
                result = subprocess.run(["sh", "-c", f'exec "$0" "$@" {redirection}', SHARDWISE, "ls", self.dir / "none",
                                         *json_option], capture_output=True, text=True, timeout=120)
                self.assertEqual(result.returncode, 3, (redirection, result))

    def test_damage_that_cannot_be_told_is_a_failure(self):
        root, step = self.root()
        (step / "manifest.json").write_text("{}")
        self.assertEqual(run("verify", root).returncode, 1)
        with open("/dev/full", "w") as full:
            self.checks(subprocess.run([SHARDWISE, "verify", root], stdout=full, stderr=subprocess.PIPE, text=True))


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
        found = json.loads(run("ls", root, "--json").stdout)
        self.assertFalse(found["steps"][0]["valid"])
        self.assertIn("manifest.json", found["steps"][0]["reason"])

    def test_ls_of_damaged_and_unreadable_steps_is_as_verify(self):
        root, step = self.root()
        (step / "manifest.json").write_text("{}")
        self.assertEqual(run("ls", root).returncode, 1)

    def test_urls_are_bad_usage(self):
        for command in (("import", "s3://b/x", "y", "--step", 0), ("export", GOLDEN, "s3://b/x")):
            self.fails(2, ["found the URL", "mounted here"], *command)
        for command in (("ls", "gs://b/x"), ("inspect", "gs://b/x"), ("verify", "gs://b/x"),
                        ("reshard", "gs://b/x", "y", "--mesh", 2), ("cp", GOLDEN, "gs://b/x"),
                        ("reshard", GOLDEN, "gs://b/x", "--mesh", 2), ("import", "x", "gs://b/x", "--step", 0)):
            self.fails(2, ["found the URL", "needed a local path or s3://"], *command)
        for command in (("ls", "s3://b/x"), ("inspect", "s3://b/x"), ("reshard", "s3://b/x", "y", "--mesh", 2)):
            self.fails(3, ['found the bucket "b", needed 3 to 63'], *command)

    def test_names_of_files_reach_no_terminal_raw(self):
        root, step = self.root()
        (root / ".step-1.\x1b]0;title\x07.tmp").mkdir()
        shown = self.ok("ls", root)
        self.assertIn("\\x1b]0;title\\x07", shown)
        self.assertNotIn("\x1b", shown)
        self.assertNotIn("\x1b", run("inspect", self.dir / "\x1b[2J").stderr)

    def test_an_export_needs_no_format_and_makes_no_folder_of_a_file_name(self):
        root, step = self.root()
        self.fails(2, ["found the ending .npy", "NAME.safetensors"], "export", step, self.dir / "x.npy")
        self.ok("export", step, self.dir / "x.safetensors")
        self.assertTrue((self.dir / "x.safetensors").is_file() and not (self.dir / "x.npy").exists())

    def test_checkpoints_of_other_names_than_steps_are_seen(self):
        root, step = self.root()
        for name in ("final", "best"):
            shutil.copytree(step, root / name)
        steps = root / "steps"
        steps.mkdir()
        step.rename(steps / step.name)
        shown = self.ok("ls", root).splitlines()
        self.assertEqual([line.split()[0] for line in shown], ["step", "best", "final"])
        found = self.ok_json("ls", root)
        self.assertEqual((found["steps"], [pathlib.Path(one["directory"]).name for one in found["others"]]), ([], ["best", "final"]))
        self.assertEqual([one["name"] for one in self.ok_json("du", root)["roots"][0]["steps"]], ["best", "final"])
        self.assertIn(f"{root}/final: ", self.ok("verify", root))
        self.ok("parity", root, "--blocks", 1)
        self.assertEqual({path.parent.name for path in root.glob("*/*.parity")}, {"best", "final"})
        self.ok("parity", root, "--remove")
        shard = next((root / "final").glob("shards-*.h5"))
        shard.write_bytes(shard.read_bytes()[:-1])
        self.assertEqual(run("verify", root).returncode, 1)
        (steps / step.name).rename(root / step.name)
        self.assertEqual(len(self.ok_json("du", root)["roots"][0]["steps"]), 3)
        shutil.rmtree(root / step.name), steps.rmdir()
        self.fails(3, [f"{root} holds no committed checkpoint with the name of a step; {root}/best is a checkpoint"], "inspect", root)

    def test_ls_of_an_empty_or_missing_root(self):
        self.assertIn("no committed checkpoint", self.ok("ls", self.dir))
        for command in (("ls",), ("inspect",), ("verify",)):
            self.fails(3, ["nowhere does not exist"], *command, self.dir / "nowhere")
            self.fails(3, ["README.md is not a directory", "needed is"], *command, GOLDEN.parent / "README.md")
        self.assertFalse((self.dir / "nowhere").exists(), "nothing is created")

    def test_inspect(self):
        root, step = self.root()
        found = self.ok_json("inspect", root)
        self.assertEqual(found, self.ok_json("inspect", step) | {"directory": found["directory"]})
        names = [t["name"] for t in found["tensors"]]
        self.assertEqual(names, sorted(names))
        one = self.ok_json("inspect", step, "--tensor", names[0])
        self.assertEqual([t["name"] for t in one["tensors"]], names[:1])
        self.assertIn(names[0], self.ok("inspect", step, "--flat"))
        self.fails(3, ["no_such_tensor"], "inspect", step, "--tensor", "no_such_tensor")

    def test_inspect_leaves_open_what_it_would_have_to_open_many_files_for(self):
        root, _ = self.root()
        name = "layers/0/noise"
        one = self.ok_json("inspect", root, "--tensor", name)["tensors"][0]
        self.assertGreater(one["pieces"], 0)
        self.assertGreaterEqual(one["shape"][0], 70)
        out = self.dir / "many"
        self.ok("reshard", root, out, "--mesh", "a=70", "--spec", f"{name}=a; *=-", "--writers", "70")
        many = self.ok_json("inspect", out, "--tensor", name)["tensors"][0]
        self.assertEqual([many[key] for key in ("pieces", "chunks", "stored_bytes", "logical_bytes")],
                         [None, None, None, one["logical_bytes"]])
        self.assertRegex(self.ok("inspect", out, "--flat"), name + r" .* a +- +- ")

    def test_inspect_says_where_there_is_no_index(self):
        for step, index in ((6, True), (7, False)):
            path = GOLDEN / f"step-0000000{step}"
            self.assertIs(self.ok_json("inspect", path)["index"], index)
            self.assertEqual("no index.h5" in self.ok("inspect", path), not index)

    def test_verify_status_1_names_the_damage(self):
        root, step = self.root()
        self.assertTrue(self.ok_json("verify", root)["ok"])
        shard = next(step.glob("shards-*.h5"))
        data = bytearray(shard.read_bytes())
        data[FIRST_CHUNK] ^= 1
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

    def test_verify_repairs_from_a_copy_and_says_what_is_left(self):
        root, step = self.root()
        shutil.copytree(root, self.dir / "backup")
        shard = next(step.glob("shards-*.h5"))
        good = shard.read_bytes()

        def damage():
            data = bytearray(good)
            data[FIRST_CHUNK] ^= 1
            shard.write_bytes(data)

        damage()
        self.fails(2, ["--from requires --repair"], "verify", step, "--from", self.dir / "backup")
        result = run("verify", step, "--repair")
        self.assertEqual(result.returncode, 1, result)
        self.assertIn("not repaired: there is no other step in its root, and no copy was given", result.stdout)
        self.fails(3, ["found no checkpoint in"], "verify", step, "--repair", "--from", self.dir)
        self.assertNotEqual(shard.read_bytes(), good)
        result = self.ok("verify", root, "--repair", "--from", self.dir / "backup")
        self.assertIn("1 repaired, every value is as written", result)
        self.assertIn(f"repaired from {(self.dir / 'backup' / step.name).resolve()}: {shard.name}: ", result)
        self.assertEqual(shard.read_bytes(), good)
        damage()
        found = self.ok_json("verify", step, "--repair", "--from", self.dir / "backup" / step.name)
        self.assertEqual(found["checkpoints"][0]["repaired"][0]["file"], shard.name)
        self.assertIn("box", found["checkpoints"][0]["repaired"][0])
        self.assertEqual(shard.read_bytes(), good)
        self.assertNotIn("repaired", self.ok_json("verify", step)["checkpoints"][0])

    def test_verify_makes_files_again_and_names_what_is_lost(self):
        root, step = self.root()
        shutil.copytree(root, self.dir / "backup")
        shard = next(step.glob("shards-*.h5"))
        good = {path.name: path.read_bytes() for path in step.iterdir()}
        shard.unlink()
        result = run("verify", step, "--repair")
        self.assertEqual(result.returncode, 1, result)
        self.assertIn(f"{shard}: it is missing; not repaired: none of the other checkpoints, 0, has this file", result.stdout)
        self.assertIn('  lost: tensor "dtypes/bf16" [0:', result.stdout)
        lost = json.loads(run("verify", step, "--repair", "--json").stdout)["checkpoints"][0]["lost"]
        tensors = self.ok_json("inspect", self.dir / "backup")["tensors"]
        self.assertEqual({entry["tensor"] for entry in lost}, {t["name"] for t in tensors if 0 not in t["shape"]})
        (step / "manifest.json").write_text("{")
        shard.write_bytes(good[shard.name][:9] + b"x" + good[shard.name][10:])
        found = self.ok_json("verify", root, "--repair", "--from", self.dir / "backup")["checkpoints"][0]
        self.assertEqual([entry["file"] for entry in found["repaired"]], ["manifest.json", shard.name])
        self.assertEqual(found["lost"], [])
        self.assertEqual({path.name: path.read_bytes() for path in step.iterdir()}, good)

    def test_verify_status_3_where_it_cannot_read(self):
        # A script that deletes damaged steps must not delete one that this process could not open.
        root, step = self.root()
        limited = ["sh", "-c", 'ulimit -n 5; exec "$0" "$@"', SHARDWISE, "verify"]
        for path in (root, step):
            result = subprocess.run([*limited, path], capture_output=True, text=True)
            self.assertEqual(result.returncode, 3, result)
            self.assertIn("1 could not be read, so that nothing is proved", result.stdout)
            self.assertIn("index.h5: Too many open files", result.stdout)
            self.assertNotIn("damaged", result.stdout)
        result = subprocess.run([*limited, root, "--json"], capture_output=True, text=True)
        found = json.loads(result.stdout)
        self.assertEqual((result.returncode, found["ok"]), (3, False))
        self.assertEqual(found["checkpoints"][0]["damage"], [])
        self.assertIn("Too many open files", found["checkpoints"][0]["unread"][0]["message"])

    def test_directories_are_named_as_the_root_was(self):
        root, step = self.root()
        here = os.path.relpath(step, root.parent)
        for command in (("verify",), ("ls", "--json"), ("inspect", "--json")):
            result = subprocess.run([SHARDWISE, *command, root.name], cwd=root.parent, capture_output=True, text=True)
            self.assertEqual(result.returncode, 0, result)
            self.assertIn(here, result.stdout)
            self.assertNotIn(str(root), result.stdout)

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

    def test_ctrl_c_that_is_ignored_ends_nothing(self):
        root, step = self.root()
        job = subprocess.Popen([SHARDWISE, "reshard", root, self.dir / "out", "--mesh", "a=2", "--spec", "*=-"],
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while job.poll() is None:
            job.send_signal(signal.SIGINT)
        self.assertEqual(job.returncode, 0)

    def test_a_target_that_is_a_file_is_named_as_such(self):
        (self.dir / "file").write_text("")
        self.fails(3, ["target", "found a file, needed a directory"], "reshard", GOLDEN, self.dir / "file", "--mesh", 2)

    def test_bad_input_leaves_nothing(self):
        root, step = self.root()
        out = self.dir / "out"

        def case(parts, *arguments, status=3):
            self.fails(status, parts, "reshard", *arguments)
            self.assertEqual([p for p in out.glob("step-*")] if out.exists() else [], [])

        case(["nowhere"], self.dir / "nowhere", out, "--mesh", "a=2", "--spec", "*=-")
        case(["b", "a"], root, out, "--mesh", "a=2", "--spec", "*=b", status=2)
        case(["rules"], root, out, "--mesh", "a=2", "--spec", "@" + str(self.dir / "rules"))
        case(["w11", "none"], root, out, "--mesh", "a=2", "--spec", "w11=-;*=-", status=2)
        case(["="], root, out, "--mesh", "a=2", "--spec", "no rule at all", status=2)
        case(["a=zwei"], root, out, "--mesh", "a=zwei", "--spec", "*=-", status=2)
        case(["no axis"], root, out, "--mesh", "", "--spec", "*=-", status=2)
        case(["gzip", "zstd"], root, out, "--mesh", "a=2", "--spec", "*=-", "--codec", "gzip",
             status=2)
        case(["--writers"], root, out, "--mesh", "a=2", "--spec", "*=-", "--writers", "0", status=2)

    def test_an_existing_step_is_not_replaced(self):
        root, step = self.root()
        code = self.fails(3, [step.name, "--replace"], "reshard", root, root, "--mesh", "a=2", "--spec", "*=-")
        self.assertEqual(code, "already_exists")
        self.ok("reshard", root, self.dir / "out", "--mesh", "a=2", "--spec", "*=-")
        self.ok("reshard", root, self.dir / "out", "--mesh", "a=2", "--spec", "*=-", "--replace")
        self.assertTrue(self.ok_json("verify", root)["ok"])

    def test_an_existing_step_is_left_as_it_is(self):
        root, step = self.root()
        arguments = ("reshard", root, self.dir / "out", "--mesh", "a=2", "--spec", "*=-")
        self.assertFalse(self.ok_json(*arguments, "--skip-existing")["skipped"])
        self.assertIn("is already there: nothing was written", self.ok(*arguments, "--skip-existing"))
        self.assertEqual(os.listdir(self.dir / "out"), [step.name])
        self.assertTrue(self.ok_json(*arguments, "--skip-existing")["skipped"])
        self.fails(3, ["--replace", "--skip-existing"], *arguments)
        self.fails(2, ["--skip-existing"], *arguments, "--skip-existing", "--replace")

    def test_only_a_valid_step_is_left_as_it_is(self):
        root, step = self.root()
        there = self.dir / "out" / step.name
        there.mkdir(parents=True)
        arguments = ("reshard", root, self.dir / "out", "--mesh", "a=2", "--spec", "*=-")
        for dry in ((), ("--dry-run",)):
            said = ["--skip-existing needs a valid checkpoint there", "it has no manifest.json", "--replace takes its place"]
            self.assertEqual(self.fails(3, said, *arguments, *dry, "--skip-existing"), "already_exists")
        self.ok(*arguments, "--replace")
        self.assertIn("is already there: nothing was written", self.ok(*arguments, "--skip-existing"))

    def test_the_result_stands_on_a_line_of_its_own(self):
        """On a terminal progress is shown, after a second, and cleared before the result is printed."""
        source, out = self.dir / "large", self.dir / "out"
        self.ok("bench", "save", source, "--keep", "--tensors", 4, "--shape", "1024,1024", "--repeat", 1)
        for attempt in range(10):
            master, terminal = pty.openpty()
            process = subprocess.Popen([SHARDWISE, "reshard", source, out / str(attempt), "--mesh", "a=2", "--spec",
                                        "*=-,-", "--threads", "1"], stdout=terminal, stderr=terminal)
            os.close(terminal)
            while process.poll() is None and not list(out.glob(f"{attempt}/.step-*")):
                pass
            # Stopped in the middle of its work until a second has passed.
            process.send_signal(signal.SIGSTOP)
            select.select([master], [], [], 1.1)
            process.send_signal(signal.SIGCONT)
            shown = b""
            try:
                while read := os.read(master, 4096):
                    shown += read
            except OSError:
                pass  # a terminal whose other end is closed
            os.close(master)
            self.assertEqual(process.wait(timeout=240), 0, shown)
            if b" % of " in shown:
                break
        text = shown.decode()
        self.assertRegex(text, r"reshard: \d+ % of 16\.00 MiB, [\d.]+ [KM]iB/s, \d+ s left")
        result = text.rstrip().split("\n")[-1].split("\x1b[K")[-1]
        self.assertTrue(result.startswith(f"{source}/step-00000001 -> "), text)

    def test_a_damaged_chunk_stops_it_with_nothing_listed(self):
        root, step = self.root()
        shard = next(step.glob("shards-*.h5"))
        data = bytearray(shard.read_bytes())
        data[FIRST_CHUNK] ^= 1
        shard.write_bytes(data)
        out = self.dir / "out"
        code = self.fails(3, [shard.name], "reshard", step, out, "--mesh", "a=2", "--spec", "*=-")
        self.assertEqual(code, "corrupt")
        self.assertEqual(self.ok_json("ls", out)["steps"], [])


if __name__ == "__main__":
    unittest.main()
