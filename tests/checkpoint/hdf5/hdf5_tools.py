"""HDF5's own tools read and rewrite our files with the zstd plugin. hdf5_tools.py WRITER

WRITER is the program built from h5py_writer.cc. HDF5_PLUGIN_PATH must name the folder of
shardwise's zstd filter.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from stored_pieces import index_paths, stored_pieces

PLUGINS = os.environ["HDF5_PLUGIN_PATH"]


def run(*command, plugins=PLUGINS):
    environment = dict(os.environ, HDF5_PLUGIN_PATH=str(plugins))
    return subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True)


def must(*command):
    done = run(*command)
    assert done.returncode == 0, (command, done.stdout[-500:], done.stderr[-500:])
    return done.stdout


def dump(file, dataset, out, plugins=PLUGINS):
    """The dataset's bytes as h5dump writes them; None where it does not."""
    out.unlink(missing_ok=True)
    done = run("h5dump", "-d", dataset, "-b", "FILE", "-o", out, file, plugins=plugins)
    return out.read_bytes() if done.returncode == 0 and out.exists() else None


def check_h5dump(folder, step, tensors):
    """Every tensor through index.h5, which leads to the shard file."""
    expected = json.loads((folder / "expected.json").read_text())
    paths = index_paths(set(expected))
    seen = 0
    for tensor in tensors:
        want = (folder / expected[tensor["name"]]["file"]).read_bytes()
        if not want:
            continue
        got = dump(step / "index.h5", paths[tensor["name"]], folder / "dumped")
        assert got == want, (tensor["name"], len(want), got and len(got))
        seen += 1
    return seen


def check_h5repack(folder, shards):
    """Without the filter, and with it again, which our plugin then applies."""
    plain, again = folder / f"plain-{shards.name}", folder / f"again-{shards.name}"
    must("h5repack", "-f", "NONE", shards, plain)
    assert "32015" not in must("h5dump", "-pH", plain)
    must("h5diff", shards, plain)
    must("h5repack", "-f", "UD=32015,0,1,3", plain, again)
    assert "32015" in must("h5dump", "-pH", again)
    assert again.stat().st_size < plain.stat().st_size
    must("h5diff", shards, again)


def check_that_it_is_the_plugin(folder, shards, pieces):
    """What our filter compressed cannot be read without it."""
    dataset = next(p["dataset"] for p in pieces if p["codec"] == "zstd")
    empty = folder / "no plugins"
    empty.mkdir()
    assert dump(shards, dataset, folder / "dumped", plugins=empty) is None
    assert dump(shards, dataset, folder / "dumped") is not None


with tempfile.TemporaryDirectory() as made:
    subprocess.run([sys.argv[1], made], check=True)
    root = pathlib.Path(made)
    checkpoint = root / "step-00000001"
    stored = json.loads((checkpoint / "manifest.json").read_text())["tensors"]
    shard_files = list(stored_pieces(checkpoint))
    check_that_it_is_the_plugin(root, shard_files[0][0], shard_files[0][2])
    print(check_h5dump(root, checkpoint, stored), "tensors dumped equal")
    for shard_file, _, _ in shard_files:
        check_h5repack(root, shard_file)
