"""Trains with numpy alone and saves as it goes; killed at any moment, it goes on from its newest valid checkpoint:

    python examples/python/numpy_job.py checkpoints --steps 40

It fits a matrix to the results of a hidden one.
"""

import argparse
import os
import signal

import numpy as np

import shardwise as sw


def die_halfway(done: int, total: int) -> None:
    if 2 * done >= total:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoints")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--kill-in-save", type=int, help="SIGKILL in the middle of this step's save")
    args = parser.parse_args()
    hidden = np.random.default_rng(0).standard_normal((512, 512), np.float32)
    with sw.CheckpointManager(args.checkpoints, keep_last=3) as manager:
        first, weight = 1, np.zeros_like(hidden)
        if manager.latest() is not None:
            with manager.open() as checkpoint:
                first, weight = checkpoint.objects["step"] + 1, checkpoint["weight"][...]
            print(f"from step {first - 1}")
        for step in range(first, args.steps + 1):
            x = np.random.default_rng(step).standard_normal((64, 512), np.float32)
            wrong = x @ (weight - hidden)
            weight -= 0.001 * (x.T @ wrong)
            state = {"weight": weight, "step": step}
            if step == args.kill_in_save:
                manager.wait()
                print(f"saves step {step}", flush=True)
                manager.save(step, state, progress=die_halfway)
            elif step % args.save_every == 0:
                print(f"step {step:3} loss {np.mean(wrong**2):.4f}", flush=True)
                manager.save_async(step, state)
    print(f"weight_sum {weight.sum(dtype=np.float64):.9g}")


if __name__ == "__main__":
    main()
