"""Values that torch.distributed.checkpoint silently loses are errors with Shardwise's storage."""

import os
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from processes import free_port, run_ranks  # noqa: E402

import shardwise as sw  # noqa: E402
import shardwise.torch as swt  # noqa: E402


def message(call: Any) -> str:
    """Returns the text of DCP's own exception, which is no Exception; "" if it raises nothing."""
    try:
        call()
    except BaseException as error:  # noqa: BLE001
        return str(error)
    return ""


def save_values_of_each_rank(rank: int, size: int, port: int, folder: str) -> list[str]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    cut = distribute_tensor(torch.arange(6.0), init_device_mesh("cpu", (size,)), [Shard(0)])
    alike = {"cut": cut, "w": torch.ones(3), "lr": 0.1, "t": (1, 2), "bf16": torch.ones(2, dtype=torch.bfloat16)}

    def saved(name: str, state: dict[str, Any], **options: Any) -> str:
        return message(lambda: dcp.save(state, storage_writer=swt.StorageWriter(f"{folder}/{name}", **options)))

    told = [saved("alike", alike),
            saved("rng", {**alike, "rng": torch.full((2,), rank)}),
            saved("object", {**alike, "nested": {"at": {"rank": rank}}}),
            saved("mine", {**alike, **({"mine": 1} if rank else {})}),
            saved("trust", {**alike, "rng": torch.full((2,), rank)}, replicas="trust")]
    dist.barrier()
    dist.destroy_process_group()
    return told


def test_values_that_differ_between_ranks_are_refused(tmp_path):
    told = run_ranks(save_values_of_each_rank, 2, free_port(), str(tmp_path))
    for alike, rng, value, mine, trust in told[:1]:
        assert alike == mine == trust == ""
        assert "1 values differ" in rng and "'rng' of rank 1 is not that of rank 0" in rng and "PerRank" in rng
        assert "'nested.at.rank' of rank 1" in value
    assert sorted(os.listdir(tmp_path)) == ["alike", "mine", "trust"]
    assert all(sw.verify(tmp_path / name) for name in ("alike", "mine", "trust"))


def test_what_an_empty_dict_of_the_target_would_lose_is_told(tmp_path):
    swt.save(tmp_path / "a", {"w": torch.ones(2), "loader": {"position": 5, "inner": {"x": torch.ones(1)}}})

    def load(target: dict[str, Any], planner: Any = None, **options: Any) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return message(lambda: dcp.load(target, storage_reader=swt.StorageReader(tmp_path / "a", **options), planner=planner))

    told = load({"w": torch.zeros(2), "loader": {}})
    assert "'loader' is an empty dict, and 2 names are stored below it" in told and "shardwise.torch.load()" in told
    assert "'loader.inner' is an empty dict, and 1 names" in load({"loader": {"position": 0, "inner": {}}})
    assert load({"w": torch.zeros(2), "load": {}}) == ""  # nothing is stored there
    assert load({"loader": {}}, unused="ignore") == ""
    assert load({"loader": {}}, planner=dcp.DefaultLoadPlanner(allow_partial_load=True)) == ""
    assert swt.load(tmp_path / "a", {"w": torch.zeros(2), "loader": {}})["loader"]["position"] == 5
    swt.save(tmp_path / "b", {"w": torch.ones(2), "loader": {}})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load({"w": torch.zeros(2), "loader": {}}, storage_reader=swt.StorageReader(tmp_path / "b"))  # nothing is lost


def test_keys_that_dcp_would_double_are_told(tmp_path):
    state = {"o": {1: "a", "b": 2}, "state": {0: {"exp": torch.ones(2)}}, "list": [{"x": 1}]}
    dcp.save(state, storage_writer=swt.StorageWriter(tmp_path / "a"))

    def load(target: dict[str, Any]) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return message(lambda: dcp.load(target, storage_reader=swt.StorageReader(tmp_path / "a")))

    assert "'o.1' would come back under the key '1', too" in load({"o": {1: "", "b": 0}})
    tensors: dict[str, Any] = {"state": {0: {"exp": torch.zeros(2)}}, "list": [{"x": 0}]}
    assert load(tensors) == "" and tensors["state"][0]["exp"][0] == 1 and tensors["list"] == [{"x": 1}]
