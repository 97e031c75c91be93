"""shardwise batches, as its users meet it."""
import gzip
import itertools
import json
import struct
import unittest

from cli_test import Cli, run


class Batches(Cli):
    def images(self, count=60):
        """Two idx files: images of 6 x 4, and labels."""
        images, labels = self.dir / "images.gz", self.dir / "labels.idx"
        pixels = bytes((i * 7 + i // 24) % 256 for i in range(count * 24))
        images.write_bytes(gzip.compress(struct.pack(">BBBBIII", 0, 0, 8, 3, count, 6, 4) + pixels))
        labels.write_bytes(struct.pack(">BBBBI", 0, 0, 8, 1, count) + bytes(i % 10 for i in range(count)))
        return f"idx:{images}?field=image", f"idx:{labels}?field=label"

    def documents(self, name, count=80):
        path = self.dir / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"text": name[0] * (i % 23 + 1)}) + "\n" for i in range(count)))
        return f"jsonl:{path}"

    def digests(self, *arguments):
        return [b["digest"] for b in self.ok_json("batches", *arguments)["batches"]]

    def test_digests_are_the_same_on_any_mesh_thread_count_and_depth(self):
        sources, common = self.images(), ["--batch", 8, "--epochs", 2, "--last", "wrap"]
        other, common = [*common, "--seed", 4], [*common, "--seed", 3]
        expected = self.digests(*sources, *common)
        self.assertEqual(len(set(expected)), 15)
        for mesh, threads, prefetch in itertools.product(["2", "3", "data=4,model=2"], [1, 4], [1, 3]):
            self.assertEqual(self.digests(*sources, *common, "--mesh", mesh, "--threads", threads, "--prefetch", prefetch),
                             expected)
        cut = ["--mesh", "data=2,model=3", "--spec", "image=data,model,-", "--spec", "label=data"]
        self.assertEqual(self.digests(*sources, *common, *cut), expected)
        self.assertNotEqual(self.digests(*sources, *other), expected)

    def test_a_run_goes_on_from_a_number_or_a_state(self):
        sources, common = self.images(), ["--batch", 7, "--epochs", 3, "--last", "pad"]
        whole = self.ok_json("batches", *sources, *common)
        self.assertEqual([(b["index"], b["epoch"]) for b in whole["batches"]], [(i, i // 9) for i in range(27)])
        self.assertEqual([b["rows"] for b in whole["batches"]], ([7] * 8 + [4]) * 3)
        first = self.ok_json("batches", *sources, *common, "--count", 10)
        rest = self.ok_json("batches", *sources, *common, "--state", json.dumps(first["state"]), "--mesh", 4)
        self.assertEqual(first["batches"] + rest["batches"], whole["batches"])
        self.assertEqual(rest["state"], whole["state"])
        part = self.ok_json("batches", *sources, *common, "--from", 10, "--count", 3)
        self.assertEqual(part["batches"], whole["batches"][10:13])
        self.assertIn("batch_size", run("batches", *sources, "--batch", 6, "--state", json.dumps(first["state"])).stderr)

    def test_filters_mixes_and_packs(self):
        web, books = self.documents("web"), self.documents("books", 20)
        kept = self.ok_json("batches", web, "--batch", 1, "--filter", "length(text)>20")
        self.assertEqual(kept["rows"], sum(i % 23 + 1 > 20 for i in range(80)))
        mixed = self.ok_json("batches", web, books, "--mix", "3:1", "--batch", 4)
        self.assertEqual(len(mixed["batches"]), 27)
        for ratio in ("0.75:0.25", ".75:.25", "1.5:0.5", "3.0:1"):
            self.assertEqual(self.digests(web, books, "--mix", ratio, "--batch", 4), self.digests(web, books, "--mix", "3:1", "--batch", 4))
        for wrong in ("0.5:-1", "1e3:1", "nan:1", "1.2.3:1", ".:1", "0.5:", "1.0000000000:1"):
            self.fails(2, [wrong, "as 3:1 or 0.7:0.3"], "batches", web, books, "--mix", wrong, "--batch", 4)
        common = [web, books, "--mix", "3:1", "--filter", "length(text)>=4", "--pack", 64, "--batch", 2, "--seed", 5]
        self.assertEqual(self.digests(*common), self.digests(*common, "--mesh", 2, "--threads", 3))
        shown = self.ok("batches", *common, "--count", 1, "--digest")
        self.assertIn("text u8 [2, 64]  text_segments i32 [2, 64]  text_positions i32 [2, 64]", shown)
        self.assertIn("rows/s", shown)
        (self.dir / "two.jsonl").write_text('{"a": [1, 2, 3], "b": [7]}\n{"a": [4], "b": [8, 9]}\n')
        two = [f"jsonl:{self.dir / 'two.jsonl'}", "--batch", 1, "--order", "sequential", "--last", "pad", "--pack", 4]
        for field in "ab":
            self.assertIn(f"{field} i64 [1, 4]  {field}_segments", self.ok("batches", *two, "--pack-field", field))
        self.assertNotEqual(self.digests(*two, "--pack-field", "a"), self.digests(*two, "--pack-field", "b"))

    def test_what_is_wrong_is_said_in_a_line(self):
        image, label = self.images()
        self.fails(2, ["parquet", "idx", "tokens"], "batches", "parquet:x", "--batch", 2)
        self.fails(3, ["none.npy"], "batches", "npy:none.npy", "--batch", 2)
        self.fails(3, ["61", "60"], "batches", image, "--batch", 61)
        self.fails(2, ["--spec", "label", "rank"], "batches", image, label, "--batch", 2, "--mesh", 2, "--spec", "0,-,-")
        self.fails(2, ["--filter", "lable", "label"], "batches", label, "--batch", 2, "--filter", "lable==3")
        self.fails(2, ["3:x"], "batches", image, image, "--batch", 2, "--mix", "3:x")
        self.fails(2, ["--mix", "1 weights for 2 sources"], "batches", image, image, "--batch", 2, "--mix", "3")
        self.fails(2, ["--pack"], "batches", image, "--batch", 2, "--pack", 64)
        self.fails(2, ["--pack", "nope"], "batches", self.documents("web"), "--batch", 2, "--pack", 64, "--pack-field", "nope")
        self.fails(2, ["sometimes", "shuffled"], "batches", image, "--batch", 2, "--order", "sometimes")
        self.fails(2, ["--state", "seed"], "batches", image, "--batch", 2, "--state", "{}")
        self.fails(2, ["--batch"], "batches", image)
        self.fails(2, ["no format", "foo"], "batches", "foo:bar", "--batch", 2)
        table = self.dir / "c.csv"
        table.write_text("x\n1\n2\n")
        self.fails(2, ["bogus"], "batches", f"csv:{table}?bogus=1", "--batch", 2)
        self.fails(3, ["gone.json"], "batches", image, "--batch", 2, "--state", f"@{self.dir}/gone.json")

    def test_a_damaged_record_is_told_at_its_batch(self):
        path = self.dir / "table.csv"
        path.write_text("x,y\n" + "".join(f"{i},{'oops' if i == 7 else i}\n" for i in range(12)))
        source = f"csv:{path}?x=i64&y=f32"
        result = run("batches", source, "--batch", 3, "--order", "sequential")
        self.assertEqual(result.returncode, 3)
        self.assertEqual(result.stdout.count("batch "), 2)
        for part in ("batch 2", "record 7", "oops"):
            self.assertIn(part, result.stderr)
        masked = self.ok_json("batches", source, "--batch", 3, "--order", "sequential", "--bad", "mask")
        self.assertEqual((masked["bad_records"], len(masked["batches"])), (1, 4))

    def test_a_drill_is_told_what_to_write(self):
        self.fails(2, ['unknown option "--drill"; to rehearse bad records, damage bytes of a copy'], "batches", "npy:x.npy", "--batch", 5,
                   "--drill", "corrupt:1")

    def test_a_timeline_says_what_happened(self):
        image, label = self.images()
        path = self.dir / "trace.json"
        self.ok_json("batches", image, label, "--batch", 5, "--threads", 2, "--timeline", path)
        events = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
        self.assertEqual([e["args"]["batch"] for e in events if e["cat"] == "wait"], list(range(12)))
        self.assertEqual({e["args"]["batch"] for e in events if e["cat"] == "read"}, set(range(12)))
        none = self.ok_json("batches", image, label, "--batch", 5, "--from", 12, "--timeline", path)
        self.assertEqual(none["batches"], [])
        self.fails(3, ["cannot be written"], "batches", image, "--batch", 5, "--timeline", self.dir / "none" / "t.json")


if __name__ == "__main__":
    unittest.main()
