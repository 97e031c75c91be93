"""shardwise.torch.transformers: runs of Hugging Face's Trainer that are interrupted and go on."""

import os
import signal

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
pytest.importorskip("accelerate", reason="needs accelerate, which this environment has not")
transformers = pytest.importorskip("transformers", reason="needs transformers, which this environment has not")

import shardwise as sw
import shardwise.torch as swt
from processes import free_port, run_ranks
from shardwise.torch.transformers import CheckpointCallback

ROWS, BATCH, STEPS = 24, 4, 10  # an epoch has 6 steps in one process, 3 in two


class Preemption(transformers.TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **parts):
        if state.global_step + 1 == self.step:
            os.kill(os.getpid(), signal.SIGUSR2)


def arguments_of(folder, **arguments):
    return transformers.TrainingArguments(
        str(folder / "out"), max_steps=STEPS, per_device_train_batch_size=BATCH, logging_steps=1, save_strategy="no", report_to=[],
        use_cpu=True, disable_tqdm=True, **arguments)


def trainer_of(args, *callbacks):
    torch.manual_seed(3)
    config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config)  # with dropout, thus random states matter
    tokens = torch.randint(50, (ROWS, 8), generator=torch.Generator().manual_seed(5))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    return transformers.Trainer(model, args, train_dataset=data, eval_dataset=data[:4], callbacks=list(callbacks))


def run(folder, stop=None, policies=None, **arguments):
    """Returns the losses of the whole training by step, and the names in the folder at its end."""
    policies = policies or {"save_every": 0}
    args = arguments_of(folder, **arguments)
    with swt.CheckpointManager(folder / "run", preemption_signals=[signal.SIGUSR2], **policies) as manager:
        callback = CheckpointCallback(manager)
        trainer = trainer_of(args, callback, *([Preemption(stop)] if stop else []))
        trainer.train(resume_from_checkpoint=callback.resume())
        losses = [(entry["step"], entry["loss"], entry["learning_rate"]) for entry in trainer.state.log_history if "loss" in entry]
        return losses, manager.steps(), [p.detach().numpy().copy() for p in trainer.model.parameters()]


@pytest.mark.parametrize("arguments", [{}, {"eval_strategy": "steps", "eval_steps": 5}, {"gradient_accumulation_steps": 2}],
                         ids=["plain", "evaluations", "accumulation"])
@pytest.mark.parametrize("stop", [4, 6], ids=["within an epoch", "at its end"])
def test_a_run_goes_on_as_if_it_had_not_been_stopped(tmp_path, stop, arguments):
    expected, steps, weights = run(tmp_path / "straight", **arguments)
    assert [step for step, _, _ in expected] == list(range(1, STEPS + 1)) and steps == []
    before, steps, _ = run(tmp_path / "stopped", stop, **arguments)
    assert before == expected[:stop] and steps == [stop]
    losses, _, again = run(tmp_path / "stopped", **arguments)
    assert losses == expected
    assert all((a == b).all() for a, b in zip(again, weights))


def test_steps_are_saved_by_the_managers_policies(tmp_path):
    policies = {"save_every": 3, "keep_last": 1, "best": ("loss", "min", 1)}
    losses, steps, _ = run(tmp_path, policies=policies)
    # Each is the state before the next step, with the losses that were logged at it.
    best = min((3, 6, 9), key=lambda step: losses[step - 1][1])
    assert steps == sorted({best, 9})
    with sw.open(tmp_path / "run" / "step-00000009") as checkpoint:
        assert checkpoint.metrics["loss"] == losses[8][1]
        assert checkpoint.objects["trainer.global_step"] == 9


def test_a_run_goes_on_from_any_step(tmp_path):
    options = {"policies": {"save_every": 3}, "eval_strategy": "steps", "eval_steps": 3}  # an evaluation draws random numbers
    expected, steps, _ = run(tmp_path, **options)
    assert steps == [3, 6, 9]
    for removed in ([9], [6, 9]):
        with swt.CheckpointManager(tmp_path / "run") as manager:
            for step in removed:
                manager.remove(step)
        assert run(tmp_path, **options)[:2] == (expected, steps)


def test_what_a_callback_cannot_do_is_refused(tmp_path):
    with swt.CheckpointManager(tmp_path / "run", save_every=4) as manager:
        assert CheckpointCallback(manager).resume() is None
        trainer_of(arguments_of(tmp_path), CheckpointCallback(manager)).train()
        with pytest.raises(sw.InvalidArgument, match="found step 8 there, and a training that begins at 0"):
            trainer_of(arguments_of(tmp_path), CheckpointCallback(manager)).train()
        callback = CheckpointCallback(manager)
        callback.resume()
        with pytest.raises(sw.InvalidArgument, match="begins at step 0, needed is 8"):
            trainer_of(arguments_of(tmp_path), callback).train()
        trainer = trainer_of(arguments_of(tmp_path), CheckpointCallback(manager))
        trainer.args.fp16 = True
        with pytest.raises(sw.InvalidArgument, match="found fp16, whose state a callback does not see"):
            trainer.train()


def of_ranks(rank, size, port, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank))
    with swt.CheckpointManager(folder / "run") as early:  # before there is a process group
        args = arguments_of(folder)
        with pytest.raises(sw.InvalidArgument, match="found a manager of 1 processes, needed is one of 2, made after"):
            trainer_of(args, CheckpointCallback(early)).train()
    straight = run(folder / "straight")
    stopped = run(folder / "stopped", 5 if rank == 1 else None)
    return straight, stopped, run(folder / "stopped")


def test_ranks_stop_and_go_on_together(tmp_path):
    for (expected, _, weights), (before, steps, _), (losses, _, again) in run_ranks(of_ranks, 2, free_port(), tmp_path):
        assert steps == [5] and before == expected[:5] and losses == expected
        assert all((a == b).all() for a, b in zip(again, weights))


def test_a_step_without_an_evaluation_has_no_metrics_if_the_best_is_by_one(tmp_path):
    policies = {"save_every": 3, "best": ("eval_loss", "min", 1)}
    _, steps, _ = run(tmp_path, policies=policies, eval_strategy="steps", eval_steps=6)
    assert steps == [6, 9]  # 3 has no evaluation; 9 is the newest
    with sw.open(tmp_path / "run" / "step-00000006") as saved, sw.open(tmp_path / "run" / "step-00000009") as last:
        assert "eval_loss" in saved.metrics and last.metrics == {}


def test_a_preemption_at_an_epochs_end_evaluates_nothing(tmp_path):
    args = arguments_of(tmp_path, eval_strategy="epoch")
    with swt.CheckpointManager(tmp_path / "run", save_every=0, preemption_signals=[signal.SIGUSR2]) as manager:
        callback = CheckpointCallback(manager)
        trainer = trainer_of(args, callback, Preemption(6))
        trainer.train(resume_from_checkpoint=callback.resume())
        assert manager.steps() == [6] and not any("eval_loss" in entry for entry in trainer.state.log_history)
