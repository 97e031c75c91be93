"""Checkpoints of DCP's that somebody made to do harm: nothing runs, nothing stays changed, and the error is ours."""

import collections
import copy
import io
import os
import pathlib
import pickle
import struct
import weakref
import zipfile

import pytest

import shardwise as sw
from shardwise._formats import dcp as _import_dcp

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
import torch.distributed.checkpoint as dcp  # noqa: E402
import shardwise.torch as shardwise_torch  # noqa: E402
from torch.distributed.checkpoint import filesystem, metadata  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture
def good(tmp_path):
    dcp.save({"w": torch.arange(12.0).reshape(3, 4), "step": 5}, storage_writer=dcp.FileSystemWriter(tmp_path / "dcp"))
    return tmp_path / "dcp"


def load(folder):
    return sw.load(sw.import_dcp(folder, folder / "as-ours", existing="replace"))


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


def named(module: str, name: str) -> bytes:
    return text(module) + text(name) + b"\x93"


def built(module: str, name: str, attribute: str) -> bytes:
    """Returns a pickle that sets an attribute on the named object, as a pickle sets those of an instance."""
    return b"\x80\x04" + named(module, name) + b"N}" + text(attribute) + b"Ns\x86b."


BUILT = [
    ("pathlib", "PurePosixPath", pathlib.PurePosixPath, "is_absolute"),
    ("torch.distributed.checkpoint.metadata", "MetadataIndex", metadata.MetadataIndex, "__eq__"),
    ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING", metadata._MEM_FORMAT_ENCODING, "new"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo", filesystem._StorageInfo, "__hash__"),
    ("torch.serialization", "_get_layout", torch.serialization._get_layout, "__code__"),
    ("torch.serialization", "_get_layout", torch.serialization._get_layout, "new"),
    ("torch", "Size", torch.Size, "numel"),
    ("torch", "device", torch.device, "type"),
    ("torch", "float32", torch.float32, "new"),
    ("torch", "strided", torch.strided, "new"),
    ("collections", "OrderedDict", collections.OrderedDict, "pop"),
    ("builtins", "set", set, "add"),
    ("builtins", "frozenset", frozenset, "copy"),
    ("builtins", "getattr", getattr, "__name__"),
]


@pytest.mark.parametrize("module,name,kind,attribute", BUILT)
def test_a_pickle_sets_nothing_on_what_others_use(good, module, name, kind, attribute):
    was = getattr(kind, attribute, None)
    right = (good / ".metadata").read_bytes()
    (good / ".metadata").write_bytes(built(module, name, attribute))
    with pytest.raises(sw.Error):
        load(good)
    assert getattr(kind, attribute, None) is was or getattr(kind, attribute, None) == was
    (good / ".metadata").write_bytes(right)
    assert load(good)["step"] == 5


def calls(marker: str) -> dict[str, bytes]:
    command = f"touch {marker}"
    return {
        "os.system": b"cos\nsystem\n(S'%s'\ntR." % command.encode(),
        "eval": b"cbuiltins\neval\n(S'1'\ntR.",
        "a dotted name": b"\x80\x04" + named("torch", "os.system") + text(command) + b"\x85R.",
        "a method": b"\x80\x04" + named("builtins", "getattr") + named("pathlib", "Path") + text("home") + b"\x86R.",
        "a persistent id": b"\x80\x04" + text("x") + b"Q.",
        "an extension": b"\x80\x02\x82\x01.",
        "nested": b"\x80\x04" + b"]" * 200000 + b"a" * 199999 + b".",
        "2 GiB long": b"\x80\x02\x8b" + struct.pack("<I", 0x7FFFFFFF) + b".",
        "a memory of 2^31 objects": b"\x80\x04Nr\xff\xff\xff\x7f.",
        "a key that takes for ever": b"\x80\x04})" + b"2\x86" * 64 + b"Ns.",
        "keys that take for ever": b"\x80\x04}()" + b"2\x86" * 64 + b"Nu.",
        "a dict that takes for ever": b"\x80\x04()" + b"2\x86" * 64 + b"Nd.",
        "a set that takes for ever": b"\x80\x04\x8f()" + b"2\x86" * 64 + b"\x90.",
        "a frozen set that takes for ever": b"\x80\x04()" + b"2\x86" * 64 + b"\x91.",
        "a made set that takes for ever": b"\x80\x04" + named("builtins", "set") + b"])" + b"2\x86" * 64 + b"a\x85R.",
        "an ordered dict that takes for ever": b"\x80\x04" + named("collections", "OrderedDict") + b"])" + b"2\x86" * 64 + b"N\x86a\x85R.",
        "a path that takes for ever": b"\x80\x04" + named("pathlib", "Path") + b")" + b"2\x86" * 64 + b"\x85R.",
        "a huge text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"x.",
        "empty": b"",
        "none": pickle.dumps(None),
        "a dict": pickle.dumps({}),
        "paths for names": pickle.dumps(metadata.Metadata({pathlib.PosixPath("/x"): metadata.BytesStorageMetadata()}, None, {})),
    }


@pytest.mark.parametrize("what", list(calls("")))
def test_a_hostile_metadata_is_an_error_of_ours(good, what):
    (good / ".metadata").write_bytes(calls(str(good / "ran"))[what])
    with pytest.raises((sw.Corrupt, sw.Unsupported), match=r"import .*\.metadata"):
        load(good)
    assert not (good / "ran").exists()


def moved(**changes):
    def change(m):
        for index, info in m.storage_data.items():
            if index.fqn == "w":
                m.storage_data[index] = filesystem._StorageInfo(**{
                    "relative_path": info.relative_path, "offset": info.offset, "length": info.length, **changes})
    return change


def sized(size=None, chunks=None):
    def change(m):
        entry = m.state_dict_metadata["w"]
        entry.size = torch.Size(size) if size is not None else entry.size
        entry.chunks = chunks if chunks is not None else entry.chunks
    return change


def told_twice():
    """A message with the whole value would have 2^64 characters."""
    value = ("x",)
    for _ in range(64):
        value = (value, value)
    return value


LIES = {
    "huge": sized((2**40,), [metadata.ChunkStorageMetadata(torch.Size([0]), torch.Size([2**40]))]),
    "a path told twice": lambda m: setattr(m, "planner_data", {"w": told_twice()}),
    "a dtype told twice": lambda m: setattr(m.state_dict_metadata["w"].properties, "dtype", told_twice()),
    "transformed twice": lambda m: [object.__setattr__(info, "transform_descriptors", told_twice()) for info in m.storage_data.values()],
    "offsets told twice": sized(None, [metadata.ChunkStorageMetadata(told_twice(), torch.Size([3, 4]))]),
    "a name told twice": moved(relative_path=told_twice()),
    "above": moved(relative_path="../../../etc/passwd"), "absolute": moved(relative_path="/etc/passwd"),
    "dots": moved(relative_path=".."), "no name": moved(relative_path=""), "None": moved(relative_path=None),
    "a descriptor": moved(relative_path=0), "negative": moved(offset=-5), "a huge length": moved(length=1 << 60),
    "no length": moved(length=-1), "another's": moved(offset=3), "not there": moved(relative_path="none"),
    "a FIFO": moved(relative_path="fifo"), "the folder": moved(relative_path="folder"), "a device": moved(relative_path="null"),
    "larger": sized((6, 4)), "smaller": sized((2, 4)), "no chunks": sized(None, []),
    "twice": sized(None, [metadata.ChunkStorageMetadata(torch.Size([0, 0]), torch.Size([3, 4]))] * 2),
    "elsewhere": sized((6, 4), [metadata.ChunkStorageMetadata(torch.Size([3, 0]), torch.Size([3, 4]))]),
    "very large": sized((2**62, 2**62)), "no dtype": lambda m: setattr(m.state_dict_metadata["w"].properties, "dtype", 3),
}


@pytest.mark.parametrize("what", list(LIES))
def test_metadata_that_are_untrue_are_an_error_of_ours(good, what):
    os.mkfifo(good / "fifo")
    os.mkdir(good / "folder")
    os.symlink("/dev/zero", good / "null")
    said = pickle.loads((good / ".metadata").read_bytes())
    changed = copy.deepcopy(said)
    LIES[what](changed)
    (good / ".metadata").write_bytes(pickle.dumps(changed))
    with pytest.raises(sw.Error):
        load(good)


def deflated() -> bytes:
    saved, again = io.BytesIO(), io.BytesIO()
    torch.save(torch.zeros(3, 4), saved)
    with zipfile.ZipFile(saved) as archive, zipfile.ZipFile(again, "w", zipfile.ZIP_DEFLATED) as bomb:
        for name in archive.namelist():
            bomb.writestr(name, archive.read(name))
        bomb.writestr("archive/data/1", bytes(1 << 20))
    return again.getvalue()


@pytest.mark.parametrize("what", ["a class", "a call", "a script", "no file of torch's", "a number", "no memory", "expanded", "deflated"])
def test_a_hostile_piece_is_an_error_of_ours(good, what):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {good}/ran",)

    blob = io.BytesIO()
    if what == "a script":
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), blob)
    else:
        torch.save({"a class": {"a": Evil()}, "no memory": torch.empty(3, 4, device="meta"),
                    "expanded": torch.zeros(1).expand(3, 4)}.get(what, 5), blob)
    raw = {"a call": b"\x80\x02cos\nsystem\n(S'touch %s/ran'\ntR." % str(good).encode(),
           "no file of torch's": b"x" * 100, "deflated": deflated()}.get(what, blob.getvalue())
    (good / "evil").write_bytes(raw)
    said = pickle.loads((good / ".metadata").read_bytes())
    moved(relative_path="evil", offset=0, length=len(raw))(said)
    (good / ".metadata").write_bytes(pickle.dumps(said))
    with pytest.raises((sw.Corrupt, sw.Unsupported), match="import .*found") as error:
        load(good)
    if what == "a script":
        assert type(error.value) is sw.Unsupported and str(error.value).replace("'step'", "'w'") == (
            f"import {good / 'evil'}: found objects in 'w' that only a pickle can make, needed tensors and plain values: nothing is run")
    assert not (good / "ran").exists() and "weights_only" not in str(error.value)


def test_a_fifo_for_metadata_is_refused(good):
    (good / ".metadata").unlink()
    os.mkfifo(good / ".metadata")
    with pytest.raises(sw.Corrupt, match="FIFO"):
        load(good)


def test_what_dcp_writes_is_read(good):
    loaded = load(good)
    assert loaded["w"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]] and loaded["step"] == 5


def test_pieces_are_in_memory_group_by_group(tmp_path, monkeypatch):
    """Memory has as many of 40 tensors of 1,000 bytes as fit a group."""
    tensors = {f"t{i:02}": torch.full((250,), float(i)) for i in range(40)}
    dcp.save(tensors, storage_writer=dcp.FileSystemWriter(tmp_path / "dcp"))
    monkeypatch.setattr(_import_dcp, "_GROUP_BYTES", 5000)
    alive, most, load = weakref.WeakSet(), 0, _import_dcp._load

    def counted(*where):
        nonlocal most
        tensor = load(*where)
        alive.add(tensor)
        most = max(most, len(alive))
        return tensor

    monkeypatch.setattr(_import_dcp, "_load", counted)
    told = []
    sw.import_dcp(tmp_path / "dcp", tmp_path / "out", progress=lambda *at: told.append(at))
    assert most == 5 and told == [(5000 * (i + 1), 40_000) for i in range(8)]
    assert len(list((tmp_path / "out").glob("shards-*"))) == 8 and sw.verify(tmp_path / "out")
    loaded = sw.load(tmp_path / "out")
    assert all((loaded[name] == tensor.numpy()).all() for name, tensor in tensors.items()) and len(loaded) == 40


def test_pieces_of_one_tensor_may_be_in_several_groups(tmp_path, monkeypatch):
    whole = torch.arange(1200.0).reshape(30, 40)
    said = metadata.Metadata({"w": metadata.TensorStorageMetadata(
        metadata.TensorProperties(torch.float32), torch.Size([30, 40]),
        [metadata.ChunkStorageMetadata(torch.Size([i, 0]), torch.Size([10, 40])) for i in (0, 10, 20)])}, None, {})
    (tmp_path / "dcp").mkdir()
    for i in (0, 10, 20):
        torch.save(whole[i:i + 10].clone(), tmp_path / "dcp" / f"{i}.distcp")
        size = (tmp_path / "dcp" / f"{i}.distcp").stat().st_size
        said.storage_data[metadata.MetadataIndex("w", torch.Size([i, 0]))] = filesystem._StorageInfo(f"{i}.distcp", 0, size)
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps(said))
    monkeypatch.setattr(_import_dcp, "_GROUP_BYTES", 2000)
    assert (sw.load(sw.import_dcp(tmp_path / "dcp", tmp_path / "out"))["w"] == whole.numpy()).all()
    assert len(list((tmp_path / "out").glob("shards-*"))) == 3


def test_a_piece_larger_than_memory_is_refused_before_it_is_read(tmp_path, good, monkeypatch):
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": 10}.get)
    with pytest.raises(sw.ResourceExhausted, match="which are read at once, found 10 bytes of memory"):
        sw.import_dcp(good, tmp_path / "out")


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64, torch.int32,
          torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64]


@pytest.fixture
def plain(tmp_path):
    """Writes, as safetensors, tensors of all dtypes, without elements, without dims, and an object."""
    state = {str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in DTYPES}
    state |= {"none": torch.empty(0, 4), "one": torch.tensor(3.5), "model": {"w": torch.randn(5, 7)}, "n": {"step": 5}}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path / "plain", serialization_format=filesystem.SerializationFormat.SAFETENSORS))
    return tmp_path / "plain", state


def test_pieces_of_safetensors_are_read_bit_for_bit(plain, tmp_path):
    folder, state = plain
    found = shardwise_torch.load(sw.import_dcp(folder, tmp_path / "ours"), {
        name: torch.zeros_like(value) for name, value in state.items() if isinstance(value, torch.Tensor)}, unused="ignore")
    for name, value in found.items():
        assert value.dtype == state[name].dtype and torch.equal(value.view(torch.uint8) if value.ndim else value,
                                                                state[name].view(torch.uint8) if value.ndim else state[name]), name
    kept = sw.load(tmp_path / "ours")
    assert kept["n.step"] == 5 and (kept["model.w"] == state["model"]["w"].numpy()).all()


def sharded(rank, size, folder):
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh

    dist.init_process_group("gloo", rank=rank, world_size=size, init_method=f"file://{folder}/rendezvous")
    mesh = init_device_mesh("cpu", (size,))
    state = {f"w{n}": DTensor.from_local(torch.arange(rows * 3.0).reshape(rows, 3) + 100 * rank, mesh, [Shard(0)])
             for n, rows in enumerate((2, 4))}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(f"{folder}/sharded", serialization_format=filesystem.SerializationFormat.SAFETENSORS))
    dist.destroy_process_group()


def test_pieces_of_several_ranks_are_put_together(tmp_path):
    torch.multiprocessing.spawn(sharded, (2, str(tmp_path)), nprocs=2)
    found = sw.load(sw.import_dcp(tmp_path / "sharded", tmp_path / "ours"))
    for n, rows in enumerate((2, 4)):
        whole = torch.cat([torch.arange(rows * 3.0).reshape(rows, 3) + 100 * rank for rank in range(2)])
        assert (found[f"w{n}"] == whole.numpy()).all()


@pytest.mark.parametrize("old, new", [
    (b'"F32","shape":[5,7]', b'"F64","shape":[5,7]'), (b'"F32","shape":[5,7]', b'"F32","shape":[7,5]'), (b'"shape":[5,7]', b'"shape":[5,8]'),
    (b'"model.w":{', b'"model.v":{'), (b'"F32","shape":[5,7]', b'"Q32","shape":[5,7]'),
    (b'\\"model.w\\": {\\"saved_offsets\\": [0, 0]', b'\\"model.w\\": {\\"saved_offsets\\": [1, 0]'),
])
def test_safetensors_that_are_not_as_dcp_says_are_one_error(plain, tmp_path, old, new):
    folder, _ = plain
    file = folder / "__0_0.distcp"
    data = file.read_bytes()
    assert data.count(old) == 1 and len(old) == len(new)
    file.write_bytes(data.replace(old, new))
    with pytest.raises((sw.Corrupt, sw.InvalidArgument), match="model.w"):
        sw.import_dcp(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_any_flip_in_safetensors_of_dcp_is_no_crash(plain, tmp_path):
    folder, _ = plain
    file = folder / "__0_0.distcp"
    data = file.read_bytes()
    begin = data.index(b'{"__metadata__"') - 8
    for at in range(begin, begin + 300, 7):
        file.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1:])
        try:
            sw.import_dcp(folder, tmp_path / "ours", existing="replace")
        except sw.Error:
            pass
