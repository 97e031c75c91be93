"""Tensors of torch that have no memory of their own: they wrap others, or are fake, or their memory was freed."""

import os
from typing import Any

import pytest
from processes import free_port, run_ranks

import shardwise as sw

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._pytree import tree_map  # noqa: E402

import shardwise.torch as swt  # noqa: E402


class Quantized(torch.Tensor):
    """Shows two tensors as one of another dtype, as torchao's classes do."""

    @staticmethod
    def __new__(cls, q: Any, scale: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, q.shape, dtype=torch.float32)

    def __init__(self, q: Any, scale: Any) -> None:
        self.q, self.scale = q, scale

    def __tensor_flatten__(self) -> Any:
        return ["q", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].q, args[0].scale)
        return func(*tree_map(lambda x: x.q.float() * x.scale if isinstance(x, cls) else x, args), **(kwargs or {}))


def quantized() -> Quantized:
    return Quantized(torch.tensor([1, 2, 3], dtype=torch.int8), torch.tensor(0.5))


def freed() -> Any:
    tensor = torch.ones(3)
    tensor.untyped_storage().resize_(0)  # as FSDP does with gathered tensors
    return tensor


def fake() -> Any:
    with FakeTensorMode():
        return torch.ones(3)


WORDS = {quantized: r"'w' is a .*Quantized, which keeps its elements in other tensors: needed are these, {'q': tensor.q, 'scale'",
         freed: "'w' has no memory.*its storage was freed", fake: "'w' is a .*FakeTensor, which has no memory of its own"}


@pytest.mark.parametrize("make", WORDS)
def test_a_tensor_without_memory_is_neither_saved_nor_loaded(tmp_path, make):
    for save in (swt.save, lambda path, state: swt.save_async(path, state).result(),
                 lambda path, state: swt.save(path, {"s": swt.PerRank(state["w"])})):
        with pytest.raises(sw.Unsupported, match=WORDS[make].replace("'w'", "'.*'")):
            save(tmp_path / "a", {"w": make()})
    assert not list(tmp_path.iterdir())
    with pytest.raises(BaseException, match=WORDS[make]):
        dcp.save({"w": make()}, storage_writer=swt.StorageWriter(tmp_path / "a"))
    swt.save(tmp_path / "a", {"w": torch.full((3,), 7.0), "v": torch.ones(2)})
    v, target = torch.zeros(2), make()
    with pytest.raises(sw.InvalidArgument, match=WORDS[make]):  # else a load would fill nothing
        swt.load(tmp_path / "a", {"w": target, "v": v})
    assert not v.any()


def test_the_parts_of_a_wrapper_are_saved_and_filled(tmp_path):
    w, again = quantized(), Quantized(torch.zeros(3, dtype=torch.int8), torch.tensor(0.0))
    swt.save(tmp_path / "a", {"w": {"q": w.q, "scale": w.scale}})
    swt.load(tmp_path / "a", {"w": {"q": again.q, "scale": again.scale}})
    assert torch.equal(again.q, w.q) and again.scale == 0.5


def test_a_tensor_of_vmap_and_grad_is_refused(tmp_path):
    def save(x: Any) -> Any:
        swt.save(tmp_path / "a", {"w": x * 2})
        return x.sum()

    for transform, x in ((torch.vmap, torch.ones(3, 2)), (torch.func.grad, torch.ones(3))):
        with pytest.raises(sw.Unsupported, match=r"'w' has no memory: it is within vmap\(\) or grad\(\)"):
            transform(save)(x)


def test_a_quantized_tensor_says_what_to_save(tmp_path):
    w = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    with pytest.raises(sw.Unsupported, match=r"'w' is quantized: save its int_repr\(\)"):
        swt.save(tmp_path / "a", {"w": w})


def save_what_is_made(rank: int, size: int, port: int, folder: str) -> list[float]:
    import torch.distributed._functional_collectives as funcol

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    dist.init_process_group("gloo")

    def made(value: float) -> Any:
        found = funcol.all_reduce(torch.full((3,), value), "sum", dist.group.WORLD)
        assert type(found).__name__ == "AsyncCollectiveTensor"
        return found

    swt.save(folder + "/a", {"w": made(rank + 1.0)})
    target = made(0.0)
    swt.load(folder + "/a", {"w": target})
    dist.barrier()
    dist.destroy_process_group()
    return (target + 0).tolist()


def test_what_a_collective_still_makes_is_waited_for(tmp_path):
    assert run_ranks(save_what_is_made, 2, free_port(), str(tmp_path)) == [[3.0] * 3] * 2
