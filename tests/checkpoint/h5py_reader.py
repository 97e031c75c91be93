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

NUMPY = {"f64": "<f8", "f32": "<f4", "f16": "<f2", "i64": "<i8", "i32": "<i4", "i16": "<i2", "i8": "i1",
         "u64": "<u8", "u32": "<u4", "u16": "<u2", "u8": "u1", "bool": "?"}


def wanted(folder, entry):
    raw = (folder / entry["file"]).read_bytes()
    if entry["dtype"] == "bf16":  # h5py shows it as float32, with the same values
        values = (numpy.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
    else:
        values = numpy.frombuffer(raw, NUMPY[entry["dtype"]])
    return values.reshape(entry["shape"])


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
    for file in files:
        with h5py.File(file, "r") as shards:
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
