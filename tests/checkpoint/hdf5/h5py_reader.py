"""A second reader: h5py sees every tensor of a checkpoint through index.h5. h5py_reader.py WRITER [MODULE]

WRITER is the program built from h5py_writer.cc. The zstd filter comes from MODULE, pip's hdf5plugin;
without one HDF5_PLUGIN_PATH must name the folder of shardwise's.
"""
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import h5py
import numpy

from stored_pieces import index_paths, stored_pieces, xxh3

NUMPY = {"f64": "<f8", "f32": "<f4", "f16": "<f2", "i64": "<i8", "i32": "<i4", "i16": "<i2", "i8": "i1",
         "u64": "<u8", "u32": "<u4", "u16": "<u2", "u8": "u1", "bool": "?", "f8_e4m3fn": "u1",
         "f8_e4m3fnuz": "u1", "f8_e5m2fnuz": "u1", "f8_e8m0fnu": "u1", "c64": "<c8", "c128": "<c16"}


def wanted(folder, entry):
    raw = (folder / entry["file"]).read_bytes()
    if entry["dtype"] == "bf16":  # h5py shows it as float32, with the same values
        values = (numpy.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
    elif entry["dtype"] == "f8_e5m2":  # as float16, whose upper byte it is
        values = (numpy.frombuffer(raw, "u1").astype("<u2") << 8).view("<f2")
    else:
        values = numpy.frombuffer(raw, NUMPY[entry["dtype"]])
    return values.reshape(entry["shape"])


def elements(piece):
    """All of a piece as it is stored: h5py itself shows bf16 as float32, f8_e5m2 as float16."""
    size = piece.id.get_type().get_size()
    if piece.dtype.kind != "f" or piece.dtype.itemsize == size:
        return piece[()]
    out = numpy.empty(piece.shape, f"<u{size}")
    piece.id.read(h5py.h5s.ALL, h5py.h5s.ALL, out, mtype=piece.id.get_type())
    return out


def check_decoded_hashes(shards, pieces):
    """The second hash of every chunk, as docs/checkpoint_format.md defines it, without Shardwise."""
    stated, seen = shards["decoded_hashes"], 0
    for p in pieces:
        values, extents = elements(shards[p["dataset"]]), p["chunk"]
        assert values.shape == tuple(end - begin for begin, end in p["box"]), p
        grid = numpy.ndindex(*[-(-e // c) for e, c in zip(values.shape, extents)])
        for record, at in enumerate(grid, p["first_chunk"]):
            part = values[tuple(slice(i * c, (i + 1) * c) for i, c in zip(at, extents))]
            chunk = numpy.zeros(extents, values.dtype)
            chunk[tuple(slice(n) for n in part.shape)] = part
            assert xxh3(chunk.tobytes()) == stated[record], (p["dataset"], at)
            seen += 1
    assert seen == len(stated) == len(shards["chunk_table"]), (seen, stated)


def check(folder):
    expected = json.loads((folder / "expected.json").read_text())
    step = folder / "step-00000001"
    manifest = json.loads((step / "manifest.json").read_text())
    tensors = manifest["tensors"]
    paths = index_paths(set(expected))
    assert [t["name"] for t in tensors] == sorted(expected, key=str.encode)
    with h5py.File(step / "index.h5", "r") as index:
        for tensor in tensors:
            entry = expected[tensor["name"]]
            dataset, want = index[paths[tensor["name"]]], wanted(folder, entry)
            got = dataset[()]
            assert got.dtype == want.dtype, (tensor["name"], got.dtype, want.dtype)
            assert got.shape == want.shape, (tensor["name"], got.shape, want.shape)
            if entry["dtype"].startswith("f8"):
                raw = (folder / entry["file"]).read_bytes()
                assert elements(dataset).tobytes() == raw, tensor["name"]
                same = (got == want) | ((got != got) & (want != want))
                assert same.all(), tensor["name"]
            else:
                assert got.tobytes() == want.tobytes(), tensor["name"]
            if entry["shape"]:
                texts = {key: text.decode() for key, text in dataset.attrs.items()}
                described = {key: tensor[key] for key in ("dtype", "spec", "policy") if key in tensor}
                described["mesh"] = manifest["meshes"][tensor["mesh"]]
                assert texts == described, (tensor["name"], texts)
                assert dataset.is_virtual == (want.size > 0), tensor["name"]
    files = list(stored_pieces(step))
    assert [path for path, _, _ in files] == sorted(step.glob("shards-*.h5")) and len(files) == 3, files
    for file, _, pieces in files:
        with h5py.File(file, "r") as shards:
            check_decoded_hashes(shards, pieces)
            filters = {f for p in shards["tensors"].values() for d in p.values() for f in d._filters}
            assert {"shuffle", "32015"} <= filters, filters
    assert any("policy" in tensor for tensor in tensors)
    return len(tensors)


for module in sys.argv[2:]:
    assert "HDF5_PLUGIN_PATH" not in os.environ, "then it would not be seen whose filter it was"
    importlib.import_module(module)
with tempfile.TemporaryDirectory() as made:
    subprocess.run([sys.argv[1], made], check=True)
    print(check(pathlib.Path(made)), "tensors seen equal")
