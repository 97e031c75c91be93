"""The work of torch.distributed.checkpoint's coordinator for one save, on one core, to compare with
bench/scale_bench.

    .venv/bin/python bench/rivals/dcp_planner.py [PROCESSES] [TENSORS]

Each process has one shard of each tensor, as under FSDP (64 processes and 1,000 tensors unless said otherwise). The
planner gathers one plan per process. This measures rank 0 without a network: it unpickles the plans, removes
duplicates, makes the global plan and its metadata, validates it, and pickles the plans again.
"""
import pickle
import sys
import time

import torch
from torch.distributed.checkpoint import default_planner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

COLUMNS = 4096


def local_plan(rank, processes, tensors):
    size, properties = torch.Size([processes, COLUMNS]), TensorProperties(dtype=torch.float32)
    offsets, sizes = torch.Size([rank, 0]), torch.Size([1, COLUMNS])
    return SavePlan([
        WriteItem(index=MetadataIndex(f"layers/{t}/w", offsets), type=WriteItemType.SHARD,
                  tensor_data=TensorWriteData(chunk=ChunkStorageMetadata(offsets=offsets, sizes=sizes),
                                              properties=properties, size=size))
        for t in range(tensors)])


def main():
    processes = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    tensors = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    torch.set_num_threads(1)
    start = time.perf_counter()
    local_plan(0, processes, tensors)
    own = time.perf_counter() - start
    messages = [pickle.dumps(local_plan(rank, processes, tensors)) for rank in range(processes)]

    times = {}
    start = time.perf_counter()

    def lap(what):
        nonlocal start
        now = time.perf_counter()
        times[what] = now - start
        start = now

    plans = [pickle.loads(message) for message in messages]
    lap("take the plans apart")
    plans = default_planner.dedup_save_plans(plans)
    lap("remove duplicates")
    plans, metadata = default_planner.create_default_global_save_plan(plans)
    lap("global plan and metadata")
    if default_planner._validate_global_plan(plans, metadata) not in ([], True):  # older ones: whether it is
        raise SystemExit("the plan is not valid")
    lap("validate")
    answers = [pickle.dumps(plan) for plan in plans]
    file_bytes = len(pickle.dumps(metadata))
    lap("pickle plans and metadata")

    print(f"DCP's planner, torch {torch.__version__}: {processes} processes x {tensors} tensors")
    print(f"  a process's own plan     {own:9.4f} s")
    for what, seconds in times.items():
        print(f"  {what:<24} {seconds:9.3f} s")
    print(f"  rank 0 together          {sum(times.values()):9.3f} s")
    print(f"  gathered {sum(map(len, messages)):,} bytes, scattered {sum(map(len, answers)):,}; metadata {file_bytes:,}")


main()
