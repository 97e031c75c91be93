"""Opens sources of files by functions and by text: the records are the same for any names of the files."""

import json
import pickle
import struct
import tarfile
import zlib

import numpy as np
import pytest

import shardwise as sw
from shardwise import sources


def png(pixels):
    """Writes uint8 [height, width, 3] as a file."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def same(source, records):
    """Checks the records of a source, and of its copy as another process gets it."""
    for of in (source, pickle.loads(pickle.dumps(source))):
        assert len(of) == len(records)
        for i, record in enumerate(records):
            found = of[i]
            assert list(found) == list(record)
            assert all(np.array_equal(found[name], record[name]) for name in record), (i, found, record)


@pytest.fixture
def folder(tmp_path):
    odd = tmp_path / "a, b?=&%20 é"  # all that a text has to escape
    odd.mkdir()
    return odd


def test_idx_and_npy(folder):
    x = np.arange(24, dtype=np.uint8).reshape(4, 3, 2)
    (folder / "x.idx").write_bytes(struct.pack(">BBBBIII", 0, 0, 8, 3, 4, 3, 2) + x.tobytes())
    np.save(folder / "x.npy", x)
    for make, name in ((sources.idx, "x.idx"), (sources.npy, "x.npy")):
        same(make(folder / name), [{"x": row} for row in x])
        same(make(str(folder / name), "image"), [{"image": row} for row in x])
        same(make([folder / name, folder / name], field="image"), [{"image": row} for row in [*x, *x]])


def test_tokens(folder):
    values = np.arange(20, dtype=np.uint16)
    values.tofile(folder / "t.bin")
    name = next(iter(sources.tokens(folder / "t.bin", 5).fields))
    same(sources.tokens(folder / "t.bin", 5), [{name: values[i:i + 5]} for i in range(0, 20, 5)])
    same(sources.tokens(folder / "t.bin", window=5, stride=3, header_bytes=4, field="ids"),
         [{"ids": values[i:i + 5]} for i in range(2, 16, 3)])
    same(sources.tokens(folder / "t.bin", 2, dtype="u32"), [{name: r} for r in values.view(np.uint32).reshape(5, 2)])


def test_tables(folder):
    (folder / "t.csv").write_text("a;b\n1;x\n2;yz\n")
    text = {"x": np.frombuffer(b"x", np.uint8), "yz": np.frombuffer(b"yz", np.uint8)}
    same(sources.csv(folder / "t.csv", a="f32", b="text", delimiter=";"),
         [{"a": np.float32(1), "b": text["x"]}, {"a": np.float32(2), "b": text["yz"]}])
    (folder / "n.csv").write_text("path,text\n1,2\n")
    same(sources.csv(folder / "n.csv", path="i64", text="i64"), [{"path": np.int64(1), "text": np.int64(2)}])
    rows = [{"t": [1, 2], "n": 5}, {"t": [3], "n": 6}]
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    same(sources.jsonl(folder / "t.jsonl", t="i32[]", n="i64"), [{k: np.array(v) for k, v in row.items()} for row in rows])


def test_hdf5(folder):
    h5py = pytest.importorskip("h5py", reason="needs h5py, which this environment has not")
    x, y = np.arange(12.0).reshape(4, 3), np.arange(4)
    with h5py.File(folder / "t.h5", "w") as file:
        file["g/x"], file["y"] = x, y
    same(sources.hdf5(folder / "t.h5", label="/y", data="/g/x"), [{"label": y[i], "data": x[i]} for i in range(4)])


def test_images_of_folders_and_tars(folder):
    pixels = np.random.default_rng(1).integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)
    for i, image in enumerate(pixels):
        path = folder / "photos" / f"class{i // 2}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(image))
    records = [{"image": image, "label": i // 2} for i, image in enumerate(pixels)]
    same(sources.images(folder / "photos", 5, 6), records)
    same(sources.images(folder / "photos", height=5, width=6, labels="none"), [{"image": r["image"]} for r in records])
    with tarfile.open(folder / "p.tar", "w") as tar:
        tar.add(folder / "photos", "photos")
    same(sources.tar(folder / "p.tar", 5, 6), records)


def test_what_is_not_there_is_told():
    with pytest.raises(sw.NotFound, match="none.tfrecord"):
        sources.tfrecord("none.tfrecord", image="u8[28,28]")
    with pytest.raises(sw.InvalidArgument, match="stretch"):
        sources.images(".", 5, 6, resize="shrink")
