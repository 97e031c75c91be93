"""Which tensors reshard, import and export write, and how they change them, as their users meet it."""
import json
import struct
import unittest

from cli_test import Cli
from diff_test import weights

def shaped(path, tensors):
    """A safetensors file of f32 matrices."""
    header, data = {}, b""
    for name, rows in tensors.items():
        values = [value for row in rows for value in row]
        header[name] = {"dtype": "F32", "shape": [len(rows), len(rows[0])], "data_offsets": [len(data), len(data) + 4 * len(values)]}
        data += struct.pack(f"<{len(values)}f", *values)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


TRAINED = {"model.h.0.w": [1, 2], "model.h.1.w": [3, 4, 5], "model.ln": [1.0039062], "opt.w": [7]}


class Edits(Cli):
    def trained(self):
        """A checkpoint of four vectors."""
        source = weights(self.dir / "trained.safetensors", **TRAINED)
        self.ok("import", source, self.dir / "trained", "--step", 3)
        return self.dir / "trained"

    def values(self, path):
        """Names with dtype and elements."""
        found = self.ok_json("stats", path)
        return {t["name"]: (t["dtype"], self.ok_json("cat", path, t["name"], "--all")["values"]) for t in found["tensors"]}

    def test_reshard_selects_renames_and_casts(self):
        root, out = self.trained(), self.dir / "out"
        self.ok("reshard", root, out, "--mesh", "a=2", "--select", "model.*", "--exclude", "*.h.1.*", "--rename", "model.*=*",
                "--cast", "model.h*=f64", "--cast", "*=bf16", "--spec", "h.*=a;*=-")
        self.assertEqual(self.values(out), {"h.0.w": ("f64", [1, 2]), "ln": ("bf16", [1])})
        shown = {t["name"]: t for t in self.ok_json("inspect", out)["tensors"]}
        self.assertEqual(shown["h.0.w"]["spec"], "a", "rules see the new names")
        self.assertTrue(self.ok_json("verify", out)["ok"])

    def test_a_dtype_alone_casts_all_floats(self):
        root = self.trained()
        for command, target in (("reshard", self.dir / "r"), ("export", self.dir / "e.safetensors")):
            more = ("--mesh", 1) if command == "reshard" else ()
            self.ok(command, root, target, *more, "--cast", "bf16")
            self.assertEqual({dtype for dtype, _ in self.values(target).values()}, {"bf16"})
            self.fails(2, ['cast "bf17": needed is PATTERN=DTYPE'], command, root, self.dir / "no", *more, "--cast", "bf17")
        self.ok("reshard", root, self.dir / "x", "--mesh", 1, "--cast", "opt.w=f64", "--cast", "f16")
        self.assertEqual({name: dtype for name, (dtype, _) in self.values(self.dir / "x").items()},
                         {"model.h.0.w": "f16", "model.h.1.w": "f16", "model.ln": "f16", "opt.w": "f64"})

    def test_import_and_export_edit_as_reshard_does(self):
        root, out = self.trained(), self.dir / "out"
        edits = ("--select", "model.*", "--select", "opt.w", "--rename", "model.h.*=layers.*", "--rename", "opt.*=*",
                 "--cast", "opt.*=f16", "--exclude", "*.1.*")
        expected = {"layers.0.w": ("f32", [1, 2]), "model.ln": ("f32", [1.0039062]), "w": ("f16", [7])}
        self.ok("reshard", root, out, "--mesh", 1, *edits)
        self.assertEqual(self.values(out), expected)
        self.ok("export", root, self.dir / "e.safetensors", *edits)
        self.assertEqual(self.values(self.dir / "e.safetensors"), expected)
        self.ok("import", self.dir / "trained.safetensors", self.dir / "i", "--step", 3, *edits)
        self.assertEqual(self.values(self.dir / "i"), expected)
        self.ok("import", self.dir / "trained.safetensors", self.dir / "p", "--step", 3, "--strip-prefix", "model.")
        self.assertEqual(list(self.values(self.dir / "p")), ["h.0.w", "h.1.w", "ln"])

    def test_all_that_does_not_fit_is_one_error_and_nothing_is_written(self):
        root, out = self.trained(), self.dir / "out"
        edits = ("--select", "modle.ln", "--exclude", "none*", "--rename", "opt.w=model.ln", "--cast", "opt.w=i32")
        parts = ['3 edits do not fit: select "modle.ln" matches none of 4 tensors, nearest: "model.ln"; exclude "none*" matches '
                 'none of 4 tensors; ']
        self.fails(2, parts, "reshard", root, out, "--mesh", 1, *edits, "--select", "opt.w")
        self.fails(2, parts, "export", root, self.dir / "e.safetensors", *edits, "--select", "opt.w")
        self.fails(2, parts, "import", self.dir / "trained.safetensors", out, "--step", 1, *edits, "--select", "opt.w")
        self.fails(2, ['"model.ln" would be the name of 2 tensors, needed is one: "model.ln", "opt.w"',
                       'cast "opt.w=i32": tensor "opt.w" is f32, not all of whose values are exact as i32'],
                   "reshard", root, out, "--mesh", 1, *edits[4:])
        self.assertFalse(out.exists() or (self.dir / "e.safetensors").exists())

    def test_shapes_change_in_all_three(self):
        """Of GPT-2's names to three kernels and back."""
        command = {"reshard": lambda out, *edits: ("reshard", self.dir / "wide", out, "--mesh", 1, *edits),
                   "export": lambda out, *edits: ("export", self.dir / "wide", out / "model.safetensors", *edits),
                   "import": lambda out, *edits: ("import", self.dir / "wide.safetensors", out, "--step", 3, *edits)}
        rows = [[10 * i + j for j in range(6)] for i in range(2)]
        shaped(self.dir / "wide.safetensors", {"h.0.qkv": rows, "h.1.qkv": rows, "h.0.a": [[1, 2]], "h.0.b": [[3, 4]]})
        self.ok("import", self.dir / "wide.safetensors", self.dir / "wide", "--step", 3)
        edits = ("--transpose", "*.qkv=1,0", "--split", "h.*.qkv=*.q,*.k,*.v@0:1,2,3", "--join", "*.b,*.a=*.ba@-1",
                 "--cast", "*=f64")
        columns = [list(column) for column in zip(*rows)]
        expected = {"h.0.ba": [[3, 4, 1, 2]]}
        for layer in "01":
            expected |= {f"{layer}.q": columns[:1], f"{layer}.k": columns[1:3], f"{layer}.v": columns[3:]}
        for name, words in command.items():
            out = self.dir / name
            out.mkdir()
            self.ok(*words(out, *edits))
            found = self.values(out / "model.safetensors" if name == "export" else out)
            self.assertEqual(found, {tensor: ("f64", values) for tensor, values in expected.items()}, name)
            wrong = (["--split", "h.*.qkv=*.q,*.k@1:1,2"], ["--join", "*.a,*.c=*.ac@0"], ["--transpose", "h.0.a=0"])
            self.fails(2, ['transpose "h.0.a=0": tensor "h.0.a" is [1, 2], needed are 1 dims; ',
                        'tensor "h.1.qkv" is [2, 6], whose dim 1 has 6, not the sum of 1 + 2; ',
                        'join "*.a,*.c=*.ac@0" matches none of 4 tensors with "*.c"'],
                       *words(self.dir / "no", *sum(wrong, [])))
        self.assertFalse((self.dir / "no").exists())
        self.ok("reshard", self.dir / "wide", self.dir / "verified", "--mesh", 1, "--verify", *edits)

    def test_tensors_grow_and_shrink_in_all_three(self):
        rows = [[10 * i + j + 1 for j in range(3)] for i in range(5)]
        shaped(self.dir / "a.safetensors", {"wte": rows, "head": rows, "wpe": [[1, 2]]})
        self.ok("import", self.dir / "a.safetensors", self.dir / "a", "--step", 3, "--mesh", "a=2", "--spec", "w*=a,-;*=-")
        edits = ("--resize", "wte=pad:7,-", "--resize", "head=slice:-,2", "--transpose", "head=1,0", "--cast", "wte=f64",
                 "--resize", "*=slice:1,-")
        expected = {"wte": ("f64", [*rows, [0] * 3, [0] * 3]), "wpe": ("f32", [[1, 2]]),
                    "head": ("f32", [list(column)[:2] for column in zip(*rows)])}
        def check(path):
            self.assertEqual(self.values(path), expected, path)

        self.ok("reshard", self.dir / "a", self.dir / "r", "--mesh", "b=3", "--spec", "w*=b,-;*=-,b", "--verify", *edits)
        check(self.dir / "r")
        self.assertTrue(self.ok_json("verify", self.dir / "r")["ok"])
        self.ok("export", self.dir / "a", self.dir / "e.safetensors", *edits)
        check(self.dir / "e.safetensors")
        self.ok("import", self.dir / "a.safetensors", self.dir / "i", "--step", 3, *edits)
        check(self.dir / "i")
        self.ok("parity", self.dir / "r", "--blocks", 2)
        self.assertIn("every value is as written", self.ok("verify", self.dir / "r"))

        before = self.ok_json("reshard", self.dir / "a", self.dir / "no", "--mesh", 1, "--spec", "*=-", "--dry-run")
        grown = self.ok_json("reshard", self.dir / "a", self.dir / "no", "--mesh", 1, "--spec", "*=-", "--dry-run", "--resize",
                             "wte=pad:1000,-")
        self.assertEqual(grown["logical_bytes"] - before["logical_bytes"], 4 * 3 * 995)
        self.assertEqual(grown["needed_bytes"], before["needed_bytes"])
        self.assertFalse((self.dir / "no").exists())

    def test_what_does_not_grow_or_shrink_as_asked_is_one_error(self):
        shaped(self.dir / "a.safetensors", {"wte": [[1, 2]] * 5, "wpe": [[1, 2]]})
        self.ok("import", self.dir / "a.safetensors", self.dir / "a", "--step", 3)
        for command in (("reshard", self.dir / "a", self.dir / "no", "--mesh", 1), ("export", self.dir / "a", self.dir / "no.npz"),
                        ("import", self.dir / "a.safetensors", self.dir / "no", "--step", 3)):
            self.fails(2, ['2 edits do not fit: resize "w*=pad:4,-": tensor "wte" is [5, 2], needed to pad it is an extent of at least '
                           '5 along dim 0; "slice" takes the beginning; resize "wqe=pad:1" matches none of 2 tensors, nearest: "w'],
                       *command, "--resize", "w*=pad:4,-", "--resize", "wqe=pad:1")
            self.fails(2, [f'{command[0]}: --resize: resize "wte=4,2": needed is PATTERN=pad:EXTENT,... or PATTERN=slice:EXTENT,..., '
                           '"-" for an extent that stays, as "*embed*=pad:50304,-"'], *command, "--resize", "wte=4,2")
        self.assertFalse((self.dir / "no").exists() or (self.dir / "no.npz").exists())

    def test_layers_become_one_tensor_and_back(self):
        shaped(self.dir / "a.safetensors", {f"h.{n}.w": [[n, n + 1]] for n in range(11)})
        said = self.ok("import", self.dir / "a.safetensors", self.dir / "one", "--step", 1, "--join", "h.#.*=h.*@0")
        self.assertIn(" in 1 chunk (", said)
        self.assertIn("every value is as written (1 chunk, ", self.ok("verify", self.dir / "one"))
        self.assertEqual(self.values(self.dir / "one"), {"h.w": ("f32", [[[n, n + 1]] for n in range(11)])})
        self.ok("export", self.dir / "one", self.dir / "b.safetensors", "--split", "h.*=h.#.*@0")
        self.assertTrue(self.ok_json("diff", self.dir / "a.safetensors", self.dir / "b.safetensors")["equal"])

    def test_words_that_cannot_be_read_are_bad_usage(self):
        root, out = self.trained(), self.dir / "out"
        for command in (("reshard", root, out, "--mesh", 1), ("export", root, out),
                        ("import", self.dir / "trained.safetensors", out, "--step", 1)):
            self.fails(2, [f'{command[0]}: --rename: rename "a": needed is PATTERN=NAME'], *command, "--rename", "a")
            self.fails(2, [f'{command[0]}: --cast: ', "f33"], *command, "--cast", "*=f33")
            for option in ("transpose", "resize", "split", "join"):
                self.fails(2, [f'{command[0]}: --{option}: {option} "a=b": needed is PATTERN'], *command, f"--{option}", "a=b")
            self.fails(2, [f"{command[0]}: --select"], *command, "--select")
        self.assertFalse(out.exists())

    def test_an_edit_takes_one_word_and_the_target_may_follow(self):
        root, out = self.trained(), self.dir / "out"
        self.ok("reshard", "--select", "opt.*", "--mesh", "1", "--exclude", "model.*", root, out)
        self.assertEqual(list(self.values(out)), ["opt.w"])


if __name__ == "__main__":
    unittest.main()
