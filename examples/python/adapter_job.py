"""Fine-tunes with numpy: a frozen base and a small adapter. Each step has both, and the base is on the disk once:

    python examples/python/adapter_job.py checkpoints --steps 20
    shardwise ls checkpoints

It ends well on SIGTERM, and goes on from its newest valid checkpoint. The adapter learns a hidden matrix that is added to the base.
"""

import argparse
import signal

import numpy as np

import shardwise as sw


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoints")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    random = np.random.default_rng(0)
    base, a = random.standard_normal((2048, 1024), np.float32), random.standard_normal((8, 1024), np.float32)
    hidden = base + random.standard_normal((2048, 8), np.float32) @ a
    state = {"base": base, "adapter": {"a": a, "b": np.zeros((2048, 8), np.float32)}}
    with sw.CheckpointManager(args.checkpoints, keep_last=2, best=("loss", "min", 1), save_every=5,
                              preemption_signals=[signal.SIGTERM], preemption_grace=30) as manager:
        found = manager.restore_latest(lambda checkpoint: sw.load(checkpoint.path))
        first = 1
        if found is not None:
            state, first = found.value, found.step + 1
            print(f"from step {found.step}")
        base, a, b = state["base"], state["adapter"]["a"], state["adapter"]["b"]
        for step in range(first, args.steps + 1):
            x = np.random.default_rng(step).standard_normal((64, 2048), np.float32)
            wrong = x @ base + x @ b @ a - x @ hidden
            loss = float(np.mean(wrong**2))
            b -= 2e-7 * (x.T @ (wrong @ a.T))
            if manager.should_save(step):
                saved = manager.save(step, state, metrics={"loss": loss})
                print(f"step {step:3} loss {loss:.4f}, {saved.unchanged_bytes >> 20} of {saved.logical_bytes >> 20} MiB unchanged",
                      flush=True)
            if manager.reached_preemption():
                break


if __name__ == "__main__":
    main()
