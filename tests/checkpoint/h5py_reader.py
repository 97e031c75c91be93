"""A second reader: h5py sees every tensor of a checkpoint through index.h5. h5py_reader.py WRITER [MODULE]

WRITER is the program built from h5py_writer.cc. The zstd filter comes from MODULE, pip's hdf5plugin;
without one HDF5_PLUGIN_PATH must name the folder of shardwise's.
"""
import ctypes
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import h5py
import numpy

NUMPY = {"f64": "<f8", "f32": "<f4", "f16": "<f2", "i64": "<i8", "i32": "<i4", "i16": "<i2", "i8": "i1",
         "u64": "<u8", "u32": "<u4", "u16": "<u2", "u8": "u1", "bool": "?"}


def wanted(folder, entry):
    raw = (folder / entry["file"]).read_bytes()
    if entry["dtype"] == "bf16":  # h5py shows it as float32, with the same values
        values = (numpy.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
    else:
        values = numpy.frombuffer(raw, NUMPY[entry["dtype"]])
    return values.reshape(entry["shape"])


def elements(piece):
    """All of a piece as it is stored: h5py itself shows bf16 as float32."""
    if piece.dtype != numpy.float32 or piece.id.get_type().get_size() == 4:
        return piece[()]
    out = numpy.empty(piece.shape, "<u2")
    piece.id.read(h5py.h5s.ALL, h5py.h5s.ALL, out, mtype=piece.id.get_type())
    return out


def check_decoded_hashes(shards, number, tensors):
    """The second hash of every chunk, as docs/checkpoint_format.md defines it, without Shardwise."""
    xxh3 = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
    xxh3.restype, xxh3.argtypes = ctypes.c_uint64, (ctypes.c_char_p, ctypes.c_size_t)
    stated, seen = shards["decoded_hashes"], 0
    for p in [p for t in tensors for p in t["pieces"] if p["file"] == number]:
        values, extents = elements(shards[p["dataset"]]), p["chunk"]
        grid = numpy.ndindex(*[-(-e // c) for e, c in zip(values.shape, extents)])
        for record, at in enumerate(grid, p["first_chunk"]):
            part = values[tuple(slice(i * c, (i + 1) * c) for i, c in zip(at, extents))]
            chunk = numpy.zeros(extents, values.dtype)
            chunk[tuple(slice(n) for n in part.shape)] = part
            assert xxh3(chunk.tobytes(), chunk.nbytes) == stated[record], (p["dataset"], at)
            seen += 1
    assert seen == len(stated) == len(shards["chunk_table"]), (seen, stated)


def check(folder):
    expected = json.loads((folder / "expected.json").read_text())
    step = folder / "step-00000001"
    tensors = json.loads((step / "manifest.json").read_text())["tensors"]
    assert [t["name"] for t in tensors] == sorted(expected, key=str.encode)
    with h5py.File(step / "index.h5", "r") as index:
        for tensor in tensors:
            entry = expected[tensor["name"]]
            dataset, want = index[tensor["index"]], wanted(folder, entry)
            got = dataset[()]
            assert got.dtype == want.dtype, (tensor["name"], got.dtype, want.dtype)
            assert got.shape == want.shape, (tensor["name"], got.shape, want.shape)
            assert (got == want).all(), tensor["name"]
            if entry["shape"]:
                texts = {key: text.decode() for key, text in dataset.attrs.items()}
                described = {key: tensor[key] for key in ("dtype", "mesh", "spec", "policy") if key in tensor}
                assert texts == described, (tensor["name"], texts)
                assert dataset.is_virtual == (want.size > 0), tensor["name"]
    files = sorted(step.glob("shards-*.h5"))
    assert len(files) == 3, files
    for number, file in enumerate(files):
        with h5py.File(file, "r") as shards:
            check_decoded_hashes(shards, number, tensors)
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
