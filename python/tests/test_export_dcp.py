"""Exports in the format of torch.distributed.checkpoint, as DCP itself reads them."""

import os
import pickle
import sys
import warnings

import numpy as np
import pytest

import shardwise as sw
from shardwise._convert import export as _export

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from every_dtype import DTYPES, random_bits, same  # noqa: E402
from processes import free_port, run_ranks  # noqa: E402
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save  # noqa: E402

import shardwise.torch as swt  # noqa: E402
from shardwise._arrays.torch_tensors import TORCH, array_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

def every_dtype(rng):
    arrays = {}
    for dtype in map(np.dtype, DTYPES):
        arrays[f"{dtype.name}/matrix"] = random_bits(rng, dtype, (7, 5))
        arrays[f"{dtype.name}/scalar"] = random_bits(rng, dtype, ())
        arrays[f"{dtype.name}.empty"] = random_bits(rng, dtype, (3, 0))
    return {**arrays, "layers.0.w": np.arange(4.0), "ä \"\n/": np.arange(3)}


def load(folder, state):
    dcp.load(state, storage_reader=dcp.FileSystemReader(folder))
    return state


@pytest.mark.parametrize("part", [8, 64 << 20])
def test_every_dtype_is_the_same_bit_for_bit(tmp_path, rng, monkeypatch, part):
    monkeypatch.setattr(_export, "_LEAST_PART", part)
    monkeypatch.setattr(_export, "_MOST_PART", part)
    state = {**every_dtype(rng), "step": 5, "lr": 0.1, "flag": True, "text": "é", "none": None, "list": [1, (2.5, "x")], "bytes": b"\0"}
    sw.save(tmp_path / "a", state)
    told = []
    files = sw.export_model(tmp_path / "a", tmp_path / "dcp", format="dcp", progress=lambda *at: told.append(at))
    assert files == [str(tmp_path / "dcp" / name) for name in (".metadata", "__0_0.distcp")]
    total = sum(value.nbytes for value in state.values() if isinstance(value, np.ndarray))
    assert told[-1] == (total, total) and len(told) > (200 if part == 8 else 50)
    same(sw.load(sw.import_dcp(tmp_path / "dcp", tmp_path / "b")), state)
    with sw.open(tmp_path / "a") as checkpoint:
        target = {name: torch.zeros(tensor.shape, dtype=TORCH[tensor.dtype_name]) for name, tensor in checkpoint.items()}
    found = load(tmp_path / "dcp", {**target, "step": 0})
    assert found.pop("step") == 5
    same({name: array_of(tensor) for name, tensor in found.items()}, {name: state[name] for name in found})
    dcp_to_torch_save(tmp_path / "dcp", tmp_path / "all.pt")
    whole = torch.load(tmp_path / "all.pt", weights_only=True)
    assert whole["list"] == state["list"] and whole["bytes"] == b"\0" and whole["none"] is None
    same({name: array_of(tensor) for name, tensor in whole.items() if name in target}, {name: state[name] for name in target})


def test_no_more_than_a_part_is_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(_export, "_LEAST_PART", 1000)
    monkeypatch.setattr(_export, "_MOST_PART", 1000)
    sw.save(tmp_path / "a", {"w": np.arange(6000, dtype=np.float32).reshape(6, 10, 100), "v": np.arange(999, dtype=np.uint8)})
    sizes = []
    kept = torch.save
    monkeypatch.setattr(torch, "save", lambda value, file: (sizes.append(value.untyped_storage().nbytes()), kept(value, file)))
    sw.export_model(tmp_path / "a", tmp_path / "dcp", format="dcp")
    assert sorted(sizes) == [800] * 30 + [999]
    said = dcp.FileSystemReader(tmp_path / "dcp").read_metadata()
    chunks = [(*chunk.offsets, *chunk.sizes) for chunk in said.state_dict_metadata["w"].chunks]
    assert chunks[:3] == [(0, 0, 0, 1, 2, 100), (0, 2, 0, 1, 2, 100), (0, 4, 0, 1, 2, 100)]
    assert torch.equal(load(tmp_path / "dcp", {"w": torch.zeros(6, 10, 100)})["w"], torch.arange(6000.0).reshape(6, 10, 100))


def test_files_have_no_more_than_they_may(tmp_path, rng):
    arrays = {str(i): random_bits(rng, "f4", (i, 3)) for i in range(1, 12)}
    sw.save(tmp_path / "a", arrays)
    files = sw.export_model(tmp_path / "a", tmp_path / "dcp", format="dcp", max_shard=100)
    in_file = {}
    said = dcp.FileSystemReader(tmp_path / "dcp").read_metadata()
    for index, place in said.storage_data.items():
        chunk = next(c for c in said.state_dict_metadata[index.fqn].chunks if c.offsets == index.offset)
        in_file[place.relative_path] = in_file.get(place.relative_path, 0) + 4 * chunk.sizes.numel()
    assert sorted(files)[1:] == sorted(str(tmp_path / "dcp" / name) for name in in_file)
    assert max(in_file.values()) <= 100 and len(in_file) > 1000 // 100
    same(sw.load(sw.import_dcp(tmp_path / "dcp", tmp_path / "b")), arrays)


def test_what_dcp_has_written_comes_back_as_it_was(tmp_path):
    state = {"model": {"w": torch.arange(6.0).reshape(2, 3), "layers": [torch.ones(2), {"b": torch.zeros(1)}]},
             "optim": {"state": {0: {"exp": torch.ones(3)}}, "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99)}]}, "step": 5}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path / "first"))
    sw.export_model(sw.import_dcp(tmp_path / "first", tmp_path / "a"), tmp_path / "second", format="dcp")
    first, second = (dcp.FileSystemReader(tmp_path / name).read_metadata() for name in ("first", "second"))
    assert first.planner_data == second.planner_data
    assert first.state_dict_metadata.keys() == second.state_dict_metadata.keys()
    for name in ("first", "second"):
        dcp_to_torch_save(tmp_path / name, tmp_path / f"{name}.pt")
    torch.testing.assert_close(*(torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("first", "second")), rtol=0, atol=0)


def test_nested_states_have_dcps_names(tmp_path):
    nested = {"model": {"w": np.ones((2, 3)), "layers": [np.zeros(2), {"b": np.ones(1)}]}, "by number": {0: np.ones(1), 1: np.zeros(1)}, "lr": 0.5}
    sw.save(tmp_path / "a", nested)
    sw.export_model(tmp_path / "a", tmp_path / "dcp", format="dcp")
    paths = dcp.FileSystemReader(tmp_path / "dcp").read_metadata().planner_data
    assert paths == {"model.w": ("model", "w"), "model.layers.0": ("model", "layers", 0), "model.layers.1.b": ("model", "layers", 1, "b"),
                     "by number.0": ("by number", "0"), "by number.1": ("by number", "1"), "lr": ("lr",)}
    target = {"model": {"w": torch.zeros(2, 3, dtype=torch.float64)}, "by number": {0: torch.zeros(1, dtype=torch.float64)}, "lr": 0.0}
    found = load(tmp_path / "dcp", target)
    assert found["model"]["w"].sum() == 6 and found["by number"][0] == 1 and found["lr"] == 0.5
    # An element of a list that is left out leaves no hole.
    sw.export_model(tmp_path / "a", tmp_path / "some", format="dcp", names=["model/layers/1*", "model/w"], rename={"model/w": "net/w"},
                    cast={"model/w": "bf16"})
    said = dcp.FileSystemReader(tmp_path / "some").read_metadata()
    assert said.planner_data == {"model.layers.1.b": ("model", "layers", "1", "b"), "net.w": ("net", "w")}
    assert said.state_dict_metadata["net.w"].properties.dtype == torch.bfloat16


def test_a_state_of_torchs(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    swt.save(tmp_path / "a", {"model": model, "optimizer": optimizer, "step": 1})
    sw.export_model(tmp_path / "a", tmp_path / "dcp", format="dcp")
    other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    load(tmp_path / "dcp", {"model": (state := other.state_dict())})
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    same(sw.load(sw.import_dcp(tmp_path / "dcp", tmp_path / "b")), sw.load(tmp_path / "a"))


def test_names_that_would_be_one_are_both_told(tmp_path):
    for state, first, second in (({"a": {"b": np.ones(1)}, "a.b": np.zeros(1)}, "a/b", "a.b"),
                                 ({0: {"x": np.ones(1)}, "0": {"x": np.zeros(1)}}, "0/x", "0/x~2")):
        sw.save(tmp_path / "a", {"top": state}, existing="replace")
        for format in ("dcp", "orbax"):
            with pytest.raises(sw.InvalidArgument) as error:
                sw.export_model(tmp_path / "a", tmp_path / "out", format=format)
            assert f"top/{first}'" in str(error.value) and f"top/{second}'" in str(error.value), error.value
    assert os.listdir(tmp_path) == ["a"]


def test_options_that_do_not_fit(tmp_path):
    sw.save(tmp_path / "a", {"w": np.ones(2)})
    for said, target, options in (("memory budget is 5 bytes", "out", {"memory": 5}), ("max_shard is -1", "out", {"max_shard": -1}),
                                  ("a config needs a folder of safetensors", "out", {"config_from": tmp_path}),
                                  ("its name ends in .npz", "out.npz", {}), ("matches none of 1 tensors", "out", {"names": "x"})):
        with pytest.raises(sw.InvalidArgument, match=said):
            sw.export_model(tmp_path / "a", tmp_path / target, format="dcp", **options)
    assert os.listdir(tmp_path) == ["a"]


def test_objects_that_need_code_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "load", lambda *_, **__: (_ for _ in ()).throw(pickle.UnpicklingError("no")))
    sw.save(tmp_path / "a", {"w": np.ones(2), "x": 5})
    with pytest.raises(sw.Unsupported, match=r"'x' is or holds what torch.load\(weights_only=True\) does not read: builtins.int.*--exclude"):
        sw.export_model(tmp_path / "a", tmp_path / "out", format="dcp")
    sw.export_model(tmp_path / "a", tmp_path / "out", format="dcp", names="w")


def test_what_is_there_stays(tmp_path):
    sw.save(tmp_path / "a", {"w": np.ones(2)})
    sw.save(tmp_path / "b", {"v": np.ones(2)})
    sw.export_model(tmp_path / "a", tmp_path / "out", format="dcp")
    with pytest.raises(sw.AlreadyExists, match='existing="replace" replaces it'):
        sw.export_model(tmp_path / "b", tmp_path / "out", format="dcp")
    assert sw.export_model(tmp_path / "b", tmp_path / "out", format="dcp", existing="skip") == []
    assert list(dcp.FileSystemReader(tmp_path / "out").read_metadata().state_dict_metadata) == ["w"]

    def interrupted(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sw.export_model(tmp_path / "b", tmp_path / "out", format="dcp", existing="replace", progress=interrupted)
    assert list(dcp.FileSystemReader(tmp_path / "out").read_metadata().state_dict_metadata) == ["w"]
    sw.export_model(tmp_path / "b", tmp_path / "out", format="dcp", existing="replace")
    assert list(dcp.FileSystemReader(tmp_path / "out").read_metadata().state_dict_metadata) == ["v"]
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "out"]


def test_without_torch_it_says_what_to_install(tmp_path, monkeypatch):
    sw.save(tmp_path / "a", {"w": np.ones(2)})
    monkeypatch.delitem(sys.modules, "shardwise._convert.export_dcp", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(sw.Unsupported, match="export to .*out: found no torch in .*which the format dcp needs: `.* -m pip install torch`"):
        sw.export_model(tmp_path / "a", tmp_path / "out", format="dcp")
    assert os.listdir(tmp_path) == ["a"]


def load_cut(rank: int, size: int, port: int, folder: str) -> list[float]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, zeros

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    state = {"w": zeros(8, 3, device_mesh=init_device_mesh("cpu", (size,)), placements=[Shard(0)])}
    dcp.load(state, storage_reader=dcp.FileSystemReader(folder))
    found: list[float] = state["w"].to_local().flatten().tolist()
    dist.barrier()
    dist.destroy_process_group()
    return found


def test_two_processes_load_their_shards(tmp_path):
    sw.save(tmp_path / "a", {"w": np.arange(24, dtype=np.float32).reshape(8, 3)})
    # Pieces of one row each.
    sw.export_model(tmp_path / "a", tmp_path / "dcp", format="dcp", max_shard=12)
    first, second = run_ranks(load_cut, 2, free_port(), str(tmp_path / "dcp"))
    assert first == list(range(12)) and second == list(range(12, 24))
