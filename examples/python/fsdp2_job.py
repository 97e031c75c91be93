"""Trains under FSDP2 and saves as it goes; killed at any moment, it goes on from its newest valid checkpoint, on
as many processes as there are then:

    torchrun --nproc-per-node 4 examples/python/fsdp2_job.py checkpoints --steps 40
    torchrun --nproc-per-node 2 examples/python/fsdp2_job.py checkpoints --steps 60
"""

import argparse
import faulthandler
import os
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import shardwise as sw
import shardwise.torch as swt

BATCH = 64


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 1022), nn.ReLU(), nn.Linear(1022, 1022), nn.ReLU(), nn.Linear(1022, 10))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("data",))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh), torch.optim.AdamW(model.parameters(), lr=1e-3)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns this rank's rows of a batch that is the same on any number of ranks."""
    random = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, 256, generator=random)
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    return x[mine], x[mine, :100].reshape(-1, 10, 10).sum(2).argmax(1)


def die_halfway(done: int, total: int) -> None:
    if 2 * done >= total:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    faulthandler.enable()  # if a thread aborts the process, the log has the stacks of all threads
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoints")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--kill-in-save", type=int, help="rank 0 gets SIGKILL in the middle of this step's save")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model, optimizer = build()
    state = {"model": model, "optim": optimizer, "step": 0}

    with sw.CheckpointManager(args.checkpoints) as manager:
        latest = manager.latest()
    if latest is not None:
        state = swt.load(latest.path, state)
        if rank == 0:
            print(f"on {ranks} processes from step {state['step']}", flush=True)

    pending = None
    for step in range(state["step"] + 1, args.steps + 1):
        x, label = batch(step)
        loss = nn.functional.cross_entropy(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach()
        dist.all_reduce(total)
        if rank == 0 and step % args.save_every == 0:
            print(f"step {step:3} loss {total.item() / ranks:.4f}", flush=True)
        path = f"{args.checkpoints}/step-{step:08}"
        state["step"] = step
        if step == args.kill_in_save:
            pending.result()
            print(f"rank {rank} saves step {step}", flush=True)
            swt.save(path, state, progress=die_halfway)
        elif step % args.save_every == 0:
            if pending is not None:
                pending.result()
            pending = swt.save_async(path, state)
    if pending is not None:
        pending.result()
    weight = model[0].weight.full_tensor()
    if rank == 0:
        print(f"model.0.weight_sum {weight.double().sum().item():.9g}")
    # Gloo's thread releases the last gather a moment later; that must not be after Python's end (torch 2.9).
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
