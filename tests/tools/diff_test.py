"""shardwise diff, as its users meet it."""
import json
import re
import struct
import unittest

from cli_test import Cli, run


def weights(path, **tensors):
    """A safetensors file of f32 vectors."""
    header, data = [], b""
    for name, values in sorted(tensors.items()):
        begin = len(data)
        data += struct.pack(f"<{len(values)}f", *values)
        header.append(f'"{name}":{{"dtype":"F32","shape":[{len(values)}],"data_offsets":[{begin},{len(data)}]}}')
    text = ("{" + ",".join(header) + "}").encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


class Diff(Cli):
    def test_a_checkpoint_is_equal_to_itself_to_its_reshard_and_to_its_export(self):
        root, step = self.root()
        self.assertRegex(self.ok("diff", step, root), "^18 of 18 tensors are equal; 0 B compared, [1-9].* not read")
        other = self.dir / "other"
        self.ok("reshard", step, other, "--mesh", "a=3", "--spec", "*=-")
        self.assertTrue(self.ok_json("diff", step, other)["equal"])
        self.assertRegex(self.ok("diff", other, other), "^18 of 18 tensors are equal; 0 B compared, [1-9].* not read")
        self.ok("export", step, self.dir / "model", "--format", "safetensors", "--max-shard", 1)
        report = self.ok_json("diff", root, self.dir / "model")
        self.assertTrue(report["equal"])
        self.assertGreater(report["compared_bytes"], 0)
        self.assertEqual(report["skipped_bytes"], 0)

    def test_the_answer_is_the_same_with_little_memory_and_any_threads(self):
        values = list(range(3 << 20))
        a = weights(self.dir / "a.safetensors", w=values, v=[1, 2])
        values[-1] += 1
        b = weights(self.dir / "b.safetensors", w=values, v=[1, 2])
        expected = run("diff", a, b)
        self.assertEqual(expected.returncode, 1)
        self.assertIn(f"1 of {len(values)}", expected.stdout)
        for threads in (1, 3):
            less = run("diff", a, b, "--memory-budget", "8M", "--threads", threads)
            self.assertEqual((less.returncode, less.stdout), (1, expected.stdout))
        self.fails(2, ["diff: --memory-budget", "8.00 MiB to 1.00 PiB"], "diff", a, b, "--memory-budget", "7M")
        self.fails(2, ["--threads", "1025"], "diff", a, b, "--threads", 1025)

    def test_what_differs_is_listed_and_status_1(self):
        a = weights(self.dir / "a.safetensors", same=[1], w=[1, 2, 3], only=[1], shape=[1, 2], bad=[float("nan"), 1])
        b = weights(self.dir / "b.safetensors", same=[1], w=[1, 2.5, 3], other=[1], shape=[1], bad=[1, float("inf")])
        result = run("diff", a, b)
        self.assertEqual((result.returncode, result.stderr), (1, ""))
        rows = {lines.split()[0]: " ".join(lines.split()) for lines in re.split(r"\n(?! )", result.stdout) if lines}
        self.assertNotIn("same", rows)
        self.assertEqual(rows["w"], "w f32 [3]: 1 of 3 differ first at [1]: 2 | 2.5; at most 0.5 apart, relative 0.2, ulp 2097152; NaN 0 | 0")
        self.assertEqual(rows["only"], "only f32 [1]: only in the first")
        self.assertEqual(rows["other"], "other f32 [1]: only in the second")
        self.assertEqual(rows["shape"], "shape f32 [2] | f32 [1]: other shape")
        self.assertEqual(rows["bad"], "bad f32 [2]: 2 of 2 differ first at [0]: nan | 1; at most inf apart, relative inf, ulp 1073741824; NaN 1 | 0")
        self.assertIn("1 of 6 tensors are equal", result.stdout)
        as_json = run("diff", a, b, "--json")
        self.assertEqual(as_json.returncode, 1)
        report = {tensor["name"]: tensor for tensor in json.loads(as_json.stdout)["tensors"]}
        self.assertEqual(report["w"]["at"], [1])
        self.assertEqual(report["w"]["values"], ["2", "2.5"])
        self.assertEqual(report["bad"]["max_abs"], "inf")
        self.assertEqual(report["bad"]["nan"], [1, 0])
        self.assertIsNone(report["only"]["second"])

    def test_tolerances(self):
        a = weights(self.dir / "a.safetensors", w=[1, 100])
        b = weights(self.dir / "b.safetensors", w=[1.001, 100.1])
        self.assertEqual(run("diff", a, b).returncode, 1)
        self.assertEqual(run("diff", a, b, "--atol", "0.01").returncode, 1)
        self.ok("diff", a, b, "--atol", "0.2")
        self.ok("diff", a, b, "--rtol", "0.002")
        self.fails(2, ["--rtol"], "diff", a, b, "--rtol", "-1")
        self.fails(2, ["--rtol: found nan, needed 0 or more"], "diff", a, b, "--rtol", "nan")

    def test_bad_input_is_named(self):
        a = weights(self.dir / "a.safetensors", w=[1])
        self.fails(2, ["diff: ", "second is required"], "diff", a)
        self.fails(3, ["nowhere does not exist"], "diff", a, self.dir / "nowhere")
        self.fails(2, ["gs://b/c", "needed a local path or s3://"], "diff", a, "gs://b/c")
        (self.dir / "x.pt").write_bytes(b"PK\3\4\0\0\x08\x08")
        self.fails(3, ["a file of torch.save()"], "diff", a, self.dir / "x.pt")


if __name__ == "__main__":
    unittest.main()
