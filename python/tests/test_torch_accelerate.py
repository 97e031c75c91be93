"""shardwise.torch.accelerate: the weights of an Accelerator's save_state()."""

import os

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
accelerate = pytest.importorskip("accelerate", reason="needs accelerate, which this environment has not")

import shardwise as sw
from processes import free_port, run_ranks
from shardwise.torch.accelerate import register


def prepared():
    """Makes an accelerator with two models, and trains one for a step with its optimizer."""
    accelerator = accelerate.Accelerator(cpu=True)
    register(accelerator)
    torch.manual_seed(2)
    first, second = torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)
    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()])
    return accelerator, *accelerator.prepare(first, second, optimizer)


def step(accelerator, first, second, optimizer):
    accelerator.backward(second(first(torch.arange(8.0).reshape(2, 4))).square().sum())
    optimizer.step()
    optimizer.zero_grad()


def values(*models):
    return [value.detach().clone() for model in models for value in model.state_dict().values()]


def round_trip(folder):
    accelerator, first, second, optimizer = prepared()
    step(accelerator, first, second, optimizer)
    accelerator.save_state(folder)
    accelerator.save_state(folder)  # replaces the checkpoint, as accelerate replaces its own files
    saved = values(first, second)
    step(accelerator, first, second, optimizer)
    expected = values(first, second)
    accelerator.load_state(folder)
    assert all(map(torch.equal, values(first, second), saved))
    step(accelerator, first, second, optimizer)
    assert all(map(torch.equal, values(first, second), expected))


def test_weights_are_in_a_checkpoint_and_nowhere_else(tmp_path):
    round_trip(str(tmp_path))
    assert not list(tmp_path.glob("*.safetensors")) and not list(tmp_path.glob("pytorch_model*"))
    assert sw.verify(tmp_path / "weights.sw")
    with sw.open(tmp_path / "weights.sw") as checkpoint:
        assert {"models.0.weight", "models.1.running_mean"} <= set(checkpoint)


def of_ranks(rank, size, port, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank))
    round_trip(folder)


def test_ranks_save_and_load_together(tmp_path):
    run_ranks(of_ranks, 2, free_port(), str(tmp_path))
    with sw.open(tmp_path / "weights.sw") as checkpoint:
        assert "models.0.weight" in checkpoint  # without DistributedDataParallel's "module."


@pytest.mark.parametrize(("kind", "words"), [("FSDP", "found FSDP1, .*needed is FSDP2"), ("DEEPSPEED", "saves by itself"),
                                             ("MEGATRON_LM", "saves by itself")])
def test_what_accelerate_saves_by_itself_is_refused(kind, words):
    class Sharded:
        distributed_type = accelerate.DistributedType[kind]
        is_fsdp2 = False

    with pytest.raises(sw.InvalidArgument, match=words):
        register(Sharded())
