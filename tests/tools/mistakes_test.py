"""What people mistype, and the answer to each: its exit status, and the whole message, which says what to type."""
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import unittest

from cli_test import GOLDEN, SHARDWISE, Cli

# "$ words", then the exit status and what follows "shardwise: " on stderr. {here} is the folder, as the library finds it.
MISTAKES = """
$
2 a command is needed: shards, explain, plan, ls, inspect, verify, parity, diff, cat, stats, du, tiers, rm, pin, unpin, gc, cp, reshard, import, export, batches, bench, completion, help
$ --json ls runs/ck
2 unknown option "--json"; options stand after the command
$ reshrad runs/ck out --mesh 2
2 unknown command "reshrad"; did you mean "reshard"?
$ LS runs/ck
2 unknown command "LS"; did you mean "ls"?
$ version
2 unknown command "version"; did you mean "--version"?
$ frobnicate
2 unknown command "frobnicate"; there are shards, explain, plan, ls, inspect, verify, parity, diff, cat, stats, du, tiers, rm, pin, unpin, gc, cp, reshard, import, export, batches, bench, completion, help
$ help reshrad
2 help: unknown command "reshrad"; did you mean "reshard"?
$ completion
2 completion: a shell is needed: bash
$ completion zsh
2 completion: found "zsh", needed bash
$ shards
2 shards: --mesh is required; shardwise help shards shows more
$ shards --mesh data=4 --shape 8
2 shards: found 0 of --spec, --placements and --sharding, needed one
$ shards --mesh data=4 --spec data --placements R --shape 8
2 shards: found 2 of --spec, --placements and --sharding, needed one
$ shards --mesh data=4 --spec modle --shape 8
2 shards: --spec: sharding "modle": dim 0: mesh "data=4": it has no axis "modle"
$ shards --mesh data=4 --spec data --shape 8,8
2 shards: --spec: spec "data": found 1 dims, needed 2, those of shape [8, 8]; --short-spec allows fewer
$ shards --mesh data=4 --spec data --shape eight
2 shards: --shape: shape "eight": "eight" is not an extent; needed are numbers from 0 to 2^63 - 1, as in "8,3"
$ shards --mesh data=4 --spec data --shape 8 --dtype float
2 shards: --dtype: dtype "float": it is not known; needed is one of f64, f32, f16, bf16, i64, i32, i16, i8, u64, u32, u16, u8, bool, f8_e4m3fn, f8_e5m2, f8_e4m3fnuz, f8_e5m2fnuz, f8_e8m0fnu, c64, c128
$ shards --mesh data=4 --spec data --shape 9 --policy strict
2 shards: --spec: cut by the spec "data": dim 0 of shape [9] has extent 9 over axes "data", 4 ways; needed under the policy strict is a multiple of 4, as 8 or 12
$ shards --mesh data=4 --spec data --shape 8 --devices 0,1
2 shards: --mesh: mesh "data=4": there are 2 device ids for 4 positions; needed is one for each
$ shards --mesh data=4 --spec data --shape 8 --torus 2,3
2 shards: --mesh: found the --torus [2, 3]; needed are 4 devices
$ shards --mesh data=4 --placement R --shape 8
2 shards: unknown option "--placement"; did you mean "--placements"?
$ explain --shape 8
2 explain: needed are --from and --to, to compare two shardings, or --mesh and --spec, to judge one
$ explain --from data=4 --to 'data=2;data' --shape 8
2 explain: --from, --to and --shape: --from "data=4" has no ";"; needed is MESH;SPEC, as in "data=4,model=2;data,-"
$ plan step.swp
2 plan: found neither, needed --mesh or --devices
$ plan step.swp --mesh data=two
2 plan: --mesh: mesh "data=two": "two" is not an axis size; needed is a form as in "data=4,model=2", "4,2" or "data=2,model=2@3,1,0,2"
$ plan step.swp --mesh data=2 --device h300
2 plan: --device: found "h300", needed one of tpu-v4, h100-80gb, h200, a100-80gb, tpu-v5e, tpu-v5p
$ plan step.swp --mesh data=2 --memory lots
2 plan: --memory: "lots" is not a size that is allowed; needed are 1 B to 1024.00 PiB: bytes, or a number with a unit as in 512M, 64MiB, 1.5G (powers of 1024) or 2GB (of 1000); shardwise help plan shows more
$ plan step.swp --mesh data=2
3 open step.swp: No such file or directory
$ ls
2 ls: root is required; shardwise help ls shows more
$ ls runs/ck 6 extra
2 ls: "extra" is one argument too many
$ ls runs/ck extra
3 runs/ck: found the step "extra", needed a number, latest or a name that pins a step
$ ls nowhere
3 nowhere does not exist
$ ls file.txt
3 file.txt is not a directory, needed is a checkpoint, or a directory of checkpoints
$ ls gs://bucket/x
2 ls: root: found the URL gs://bucket/x, needed a local path or s3://BUCKET/PREFIX; shardwise help ls shows more
$ ls s3://b/x
3 read the URL "s3://b": found the bucket "b", needed 3 to 63 of a-z, 0-9, - and single dots, letters or digits at both ends
$ du dcp
3 dcp holds no committed checkpoint; it seems to be a distributed checkpoint of PyTorch (DCP): `shardwise import dcp ROOT --step 0` makes a checkpoint of it
$ inspect runs
3 runs holds no committed checkpoint; runs/ck in it does
$ inspect runs/ck --tensor nosie
3 runs/ck has no tensor "nosie" among its 23; `shardwise inspect runs/ck --flat` shows them
$ inspect runs/ck --tensor layers/0/nosie
3 runs/ck has no tensor "layers/0/nosie" among its 23; did you mean "layers/0/noise"?
$ inspect runs/ck --depth two
2 inspect: --depth: found "two", needed a whole number, 1 or more; shardwise help inspect shows more
$ inspect runs/ck --depth 2 --flat
2 inspect: --depth excludes --flat; shardwise help inspect shows more
$ inspect runs/ck --svg out.svg
2 inspect: --svg draws one tensor, found 23; its NAME after the path says which
$ inspect runs/ck/step-7
3 find step 7 in {here}/runs/ck: its steps are 6
$ inspect runs/ck/step-00000006/manifest.json
3 runs/ck/step-00000006/manifest.json is not a directory, needed is a checkpoint, or a directory of checkpoints; it seems to be a file of the checkpoint runs/ck/step-00000006
$ inspect torch.pt
3 torch.pt is not a directory, needed is a checkpoint, or a directory of checkpoints; it seems to be a file of torch.save(): `python3 -c 'import shardwise; import shardwise.torch, torch; shardwise.torch.save("NAME", torch.load("torch.pt", map_location="cpu", weights_only=True))'` makes a checkpoint of it
$ verify empty
3 empty holds no committed checkpoint
$ verify hf
3 hf holds no committed checkpoint; it seems to be a model of Hugging Face in safetensors: `shardwise import hf ROOT --step 0` makes a checkpoint of it
$ verify runs/ck --from backup
2 verify: --from requires --repair; shardwise help verify shows more
$ verify runs/ck --repair --from empty
3 repair {here}/runs/ck/step-00000006: found no checkpoint in empty, needed is a copy of it or a directory of steps
$ export runs/ck@20 model --dtype bf16
2 export: unknown option "--dtype"; did you mean "--cast"?
$ export runs/ck@20 -o model
2 export: unknown option "-o"; files and folders have no option before them: export source target
$ reshard runs/ck out --partition-spec data
2 reshard: unknown option "--partition-spec"; did you mean "--spec"?
$ reshard runs/ck out --mesh 2 --overwrite
2 reshard: unknown option "--overwrite"; did you mean "--replace"?
$ export runs/ck@20 model -j 4
2 export: unknown option "-j"; did you mean "--threads"?
$ import model.safetensors runs --ignore 'head*'
2 import: unknown option "--ignore"; did you mean "--exclude"?
$ parity runs/ck --blocks 200
2 parity: --blocks: found "200", needed a whole number, from 1 to 127; shardwise help parity shows more
$ parity runs/ck --block 2
2 parity: unknown option "--block"; did you mean "--blocks"?
$ parity runs/ck --blocks
2 parity: --blocks: needed is a value after it; shardwise help parity shows more
$ parity runs/ck --blocks 2 --remove
2 parity: --blocks excludes --remove; shardwise help parity shows more
$ parity model.safetensors
3 model.safetensors is not a directory, needed is a checkpoint, or a directory of checkpoints; it seems to be safetensors: `shardwise import model.safetensors ROOT --step 0` makes a checkpoint of it
$ diff runs/ck
2 diff: second is required; shardwise help diff shows more
$ diff runs/ck file.txt
3 file.txt is not a directory, needed is a checkpoint, or a directory of checkpoints
$ diff runs/ck runs/ck --atol -1
2 diff: --atol: found -1, needed 0 or more
$ diff runs/ck runs/ck --atol small
2 diff: --atol: found "small", needed a number; shardwise help diff shows more
$ diff runs/ck runs/ck --threads 5000
2 diff: --threads: found "5000", needed a whole number, from 0 to 1024; shardwise help diff shows more
$ diff runs/ck runs/ck --memory-budget lots
2 diff: --memory-budget: "lots" is not a size that is allowed; needed are 8.00 MiB to 1.00 PiB: bytes, or a number with a unit as in 512M, 64MiB, 1.5G (powers of 1024) or 2GB (of 1000); shardwise help diff shows more
$ cat runs/ck
2 cat: tensor is required; `shardwise inspect runs/ck` shows the names
$ cat runs/ck/step-00000006/manifest.json
3 runs/ck/step-00000006/manifest.json is not a directory, needed is a checkpoint, or a directory of checkpoints; it seems to be a file of the checkpoint runs/ck/step-00000006
$ cat runs/ck ragged[0:3,1]
2 cat: ragged[0:3,1]: index "[0:3,1]": found 2 dims, needed at most the 1 of [300001]; as in Python, "[0:4, :, 3]"
$ cat runs/ck ragged 6
2 cat: the step stands before the tensor: `shardwise cat runs/ck 6 ragged`
$ cat runs/ck@7 ragged
3 find step 7 in {here}/runs/ck: its steps are 6
$ diff runs/ck 6
2 diff: found 1 checkpoint, needed two, as in `shardwise diff run 20 30`
$ show runs/ck
2 unknown command "show"; `shardwise inspect CHECKPOINT` shows its contents
$ fsck runs/ck
2 unknown command "fsck"; `shardwise verify CHECKPOINT` reads and checks every value by its hash
$ cat runs/ck ragge
3 runs/ck has no tensor "ragge" among its 23; did you mean "ragged"?
$ cat runs/ck ragged --box 0:4,0:4
2 cat: --box: box "0:4,0:4": found 2 dims, needed at most the 1 of [300001]; as in Python, "0:4,:,3"
$ cat runs/ck ragged --box 5:3
2 cat: --box: box "5:3": found "5:3", needed an end that is not before the begin; as in Python, "0:4,:,3"
$ cat runs/ck ragged --box a:b
2 cat: --box: box "a:b": found "a", needed a whole number; as in Python, "0:4,:,3"
$ cat runs/ck ragged --npy nodir/x.npy
3 cat: --npy nodir/x.npy cannot be written: No such file or directory
$ cat runs/ck ragged --npy runs
3 cat: --npy runs cannot be written: Is a directory
$ stats runs/ck '*nrom*'
3 runs/ck has no tensor "*nrom*" among its 23; `shardwise inspect runs/ck --flat` shows them
$ stats runs/ck --histogram 0
2 stats: --histogram: found "0", needed a whole number, from 1 to 10000; shardwise help stats shows more
$ du nowhere
3 nowhere does not exist
$ du empty
3 empty holds no committed checkpoint
$ tiers
2 tiers: fast is required; shardwise help tiers shows more
$ tiers nowhere
3 nowhere does not exist
$ tiers fast --step 3
2 tiers: --step requires --to; shardwise help tiers shows more
$ tiers fast --step x --to out
2 tiers: --step: found "x", needed a whole number, 0 or more; shardwise help tiers shows more
$ rm runs/ck
2 rm: step is required, as in `shardwise rm runs/ck 20`
$ rm runs/ck 7
3 find step 7 in {here}/runs/ck: its steps are 6
$ rm runs/ck six
2 rm: step: found "six", needed its number or directory
$ rm runs/ck/step-00000006 6
2 rm: runs/ck/step-00000006 is a checkpoint; needed is the directory that holds it, runs/ck
$ rm empty 1
3 empty holds no committed checkpoint
$ pin runs/ck 6
2 pin: name is required, as in `shardwise pin runs/ck 6 best`
$ pin runs/ck best 6
2 pin: step: found "best", needed its number or directory
$ pin runs/ck 6 'a b'
3 pin a step: the name is "a b", needed are 1 to 100 letters, digits, '.', '-', '_'
$ pin runs/ck/step-00000006 6 best
2 pin: runs/ck/step-00000006 is a checkpoint; needed is the directory that holds it, runs/ck
$ unpin runs/ck best
3 unpin "best" in {here}/runs/ck: there are none
$ gc runs/ck/step-00000006
2 gc: runs/ck/step-00000006 is a checkpoint; needed is the directory that holds it, runs/ck
$ cp runs/ck
2 cp: target is required; shardwise help cp shows more
$ cp empty copied
3 empty holds no committed checkpoint
$ cp runs/ck@7 copied
3 find step 7 in {here}/runs/ck: its steps are 6
$ cp runs/ck s3://bucket/x?region=
3 read the URL "s3://bucket?region=": found region "", needed a-z, 0-9 and -
$ cp runs/ck copied --requests 0
2 cp: --requests: found "0", needed a whole number, from 1 to 256; shardwise help cp shows more
$ gc runs/ck --dead-host
2 gc: --dead-host: needed is a value after it; shardwise help gc shows more
$ reshard runs/ck out
2 reshard: --mesh is required; shardwise help reshard shows more
$ reshard runs/ck out --mesh data=2,model
2 reshard: mesh "data=2,model": "model" is not an axis; needed is a form as in "data=4,model=2", "4,2" or "data=2,model=2@3,1,0,2"
$ reshard runs/ck out --mesh data=two
2 reshard: mesh "data=two": "two" is not an axis size; needed is a form as in "data=4,model=2", "4,2" or "data=2,model=2@3,1,0,2"
$ reshard runs/ck out --mesh ''
2 reshard: mesh "": it has no axis; needed is at least one, as in "data=4,model=2", or "1" for one device
$ reshard runs/ck out --mesh data=2
2 reshard runs/ck/step-00000006 to mesh data=2: 15 of 23 tensors do not fit: tensors "dtypes/bf16", "dtypes/bool" and 13 more: no axis "model" in mesh data=2 (stored spec "data,model", as no rule of --spec matches; '*=-' matches all)
$ reshard runs/ck out --mesh data=2 --spec ragged
2 reshard: spec rules: rule "ragged" has no "=", needed is pattern=spec
$ reshard runs/ck out --mesh data=2 --spec @rules.txt
3 rules file rules.txt does not exist
$ reshard runs/ck out --mesh data=2 --codec gzip
2 reshard: codec "gzip": it is not known; needed is auto, zstd or none
$ reshard runs/ck out --mesh data=2 --select nosuch
2 reshard runs/ck/step-00000006: 1 edit does not fit: select "nosuch" matches none of 23 tensors
$ reshard runs/ck out --mesh data=2 --rename a
2 reshard: --rename: rename "a": needed is PATTERN=NAME, with one "=" ("?" in the pattern matches another one)
$ reshard runs/ck out --mesh data=2 --split ragged=a,b
2 reshard: --split: split "ragged=a,b": needed is PATTERN=NAME,NAME,...@DIM, ...@DIM:EXTENT,EXTENT,... or ...@+DIM, as "*.qkv=*.q,*.k,*.v@0"
$ reshard runs/ck out --mesh data=2 --resize ragged=400000
2 reshard: --resize: resize "ragged=400000": needed is PATTERN=pad:EXTENT,... or PATTERN=slice:EXTENT,..., "-" for an extent that stays, as "*embed*=pad:50304,-"
$ reshard runs/ck out --mesh data=2 --resize ragged=pad:3
2 reshard runs/ck/step-00000006: 1 edit does not fit: resize "ragged=pad:3": tensor "ragged" is [300001], needed to pad it is an extent of at least 300001 along dim 0; "slice" takes the beginning
$ reshard runs/ck out --mesh data=2 --processes-per-file 2
2 reshard: unknown option "--processes-per-file"; "shardwise reshard --writers" of one process makes fewer files
$ reshard runs/ck out --mesh data=2 --replace --skip-existing
2 reshard: --replace excludes --skip-existing; shardwise help reshard shows more
$ reshard runs/ck file.txt --mesh data=2 --spec '*=-'
3 reshard: target file.txt: found a file, needed a directory, or the name of a new one
$ reshard model.safetensors out --mesh data=2
3 model.safetensors is not a directory, needed is a checkpoint, or a directory of checkpoints; it seems to be safetensors: `shardwise import model.safetensors ROOT --step 0` makes a checkpoint of it
$ import model.safetensors out
2 import: --step is required; shardwise help import shows more
$ import runs/ck out --step 0
3 read runs/ck: it seems to be 1 step (step-00000006), a checkpoint of Shardwise; needed is safetensors, HDF5 or npz: "shardwise reshard" writes it again
$ import file.txt out --step 0
3 import file.txt: found a file of no known format, needed is safetensors, HDF5 or npz
$ import empty out --step 0
3 read empty: it holds no safetensors file and no index, needed is one, or a file of safetensors, HDF5 or npz
$ import torch.pt out --step 0
3 import torch.pt: found a file of torch.save(), needed is safetensors, HDF5 or npz; `python3 -c 'import shardwise; import shardwise.torch, torch; shardwise.torch.save("NAME", torch.load("torch.pt", map_location="cpu", weights_only=True))'` makes a checkpoint of it
$ import hf model.safetensors out --step 0
2 import: "out" is one argument too many; give the folder of several files
$ import model.safetensors out --step 0 --cast 'nothing.*=bf16'
2 import model.safetensors: 1 edit does not fit: cast "nothing.*=bf16" matches none of 23 tensors
$ import model.safetensors runs/ck --step 6
3 save step 6: {here}/runs/ck/step-00000006 is already there; --replace writes a new generation of it, --skip-existing writes nothing
$ export runs/ck out.pt
2 export: out.pt: found the ending .pt, needed NAME.safetensors, .npz or .h5, or a folder
$ export runs/ck model.safetensors
3 export to model.safetensors: it exists: --replace replaces it, --skip-existing writes nothing
$ export runs/ck nodir/x.safetensors
3 export: nodir is no folder; needed is one to make nodir/x.safetensors in
$ export runs/ck outdir --format onnx
2 export to outdir: format "onnx" is not known, needed is one of safetensors, npz, hdf5; the command and Python write dcp and orbax, too
$ export runs/ck outdir --format DCP
2 export to outdir: format "DCP" is not known, needed is one of safetensors, npz, hdf5; the command and Python write dcp and orbax, too
$ export runs/ck x.npz --format dcp
2 export to x.npz: the format is dcp, but its name ends in .npz
$ export runs/ck outdir --format orbax --config-from hf
2 export to outdir: a config needs a folder of safetensors
$ export runs/ck nodir/x --format orbax
3 export: nodir is no folder; needed is one to make nodir/x in
$ export runs/ck hf --format dcp --replace
3 export to hf: it exists and holds "config.json", too; only a folder that holds nothing but exported files is replaced
$ export runs/ck x.safetensors --max-shard 5
2 export to x.safetensors: 22 files are needed where each has at most 5 bytes, so the target is a folder, whose name does not end in .safetensors
$ export model.safetensors y.safetensors
3 model.safetensors is not a directory, needed is a checkpoint, or a directory of checkpoints; it seems to be safetensors: `shardwise import model.safetensors ROOT --step 0` makes a checkpoint of it
$ batches idx:none.gz
2 batches: --batch is required; shardwise help batches shows more
$ batches none.gz --batch 2
2 batches: source: open source "none.gz": "none.gz" does not tell its format, needed is FORMAT:PATH
$ batches foo:x --batch 2
2 batches: source: open source "foo:x": there is no format "foo"; there are csv, hdf5, idx, images, jsonl, npy, tar, tfrecord, tokens
$ batches 'idx:x?feild=a' --batch 2
2 batches: source: open source "idx:x?feild=a": has an option "feild"; the options of idx are field
$ batches jsonl:nowhere.jsonl --batch 2
3 open: nowhere.jsonl: No such file or directory
$ batches jsonl:lines.jsonl --batch 2 --last dorp
2 batches: --last: loader: last_batch is "dorp", needed is one of drop, pad, wrap
$ batches jsonl:lines.jsonl --batch 2 --seed one
2 batches: --seed: found "one", needed a number; shardwise help batches shows more
$ batches jsonl:lines.jsonl --batch 2 --filter 'x >'
2 batches: --filter: filter "x >": at character 4: found the end, needed is a number
$ bench
2 bench: a command is needed: save, restore
$ bench sve x
2 bench: unknown command "sve"; did you mean "save"?
$ bench save out --data nice
2 bench save: data "nice": it is not known; needed is gaussian, index or zeros
$ bench restore empty
3 empty holds no committed checkpoint
"""


def table():
    lines = MISTAKES.strip("\n").split("\n")
    for words, answer in zip(lines[::2], lines[1::2], strict=True):
        assert words.startswith("$"), words
        status, _, message = answer.partition(" ")
        yield shlex.split(words[1:]), int(status), message


class Mistakes(Cli):
    def setUp(self):
        super().setUp()
        here = os.getcwd()
        self.addCleanup(os.chdir, here)
        os.chdir(self.dir)
        step = GOLDEN / "step-00000006"
        for root in ("runs/ck", "broken"):
            shutil.copytree(step, pathlib.Path(root) / step.name)
        pathlib.Path("broken", step.name, "manifest.json").unlink()
        for folder in ("empty", "hf", "dcp"):
            pathlib.Path(folder).mkdir()
        self.ok("export", "runs/ck", "model.safetensors")
        shutil.copy("model.safetensors", "hf")
        for name, content in (("file.txt", b"hello"), ("hf/config.json", b"{}"), ("dcp/.metadata", b"\x80"), ("dcp/__0_0.distcp", b""),
                              ("torch.pt", b"PK\x03\x04" + bytes(64)), ("lines.jsonl", b'{"x": 1}\n{"x": 2}\n')):
            pathlib.Path(name).write_bytes(content)

    def test_each_answer_says_what_to_type(self):
        before = sorted(path for path in self.dir.rglob("*"))
        for words, status, message in table():
            with self.subTest(shlex.join(words)):
                message = message.replace("{here}", str(self.dir.resolve()))
                result = subprocess.run([SHARDWISE, *words], capture_output=True, text=True, timeout=120)
                self.assertEqual((result.returncode, result.stderr), (status, f"shardwise: {message}\n"))
                if "--json" not in words and words[-1:] not in (["--blocks"], ["--dead-host"]):
                    as_json = subprocess.run([SHARDWISE, *words, "--json"], capture_output=True, text=True, timeout=120)
                    self.assertEqual(as_json.returncode, status)
                    self.assertIn("error", json.loads(as_json.stdout))
        self.assertEqual(sorted(path for path in self.dir.rglob("*")), before, "a mistake makes and removes nothing")

    def test_ls_of_a_folder_of_roots_names_one(self):
        self.assertEqual(self.ok("ls", "runs"), "runs: no committed checkpoint; runs/ck has some\n")
        self.assertEqual(self.ok("ls", "empty"), "empty: no committed checkpoint\n")

    def test_there_are_many_of_every_command(self):
        asked = [words[0] for words, _, _ in table() if words]
        self.assertGreater(len(asked), 100)
        for command in re.findall(r"(?m)^  ([a-z]+)", self.ok("help").partition("Subcommands:")[2]):
            self.assertIn(command, asked)


if __name__ == "__main__":
    unittest.main()
