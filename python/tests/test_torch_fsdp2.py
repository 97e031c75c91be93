"""shardwise.torch.accelerate and .transformers with FSDP2, on two processes and on another number."""

import os
import signal

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
accelerate = pytest.importorskip("accelerate", reason="needs accelerate, which this environment has not")

import shardwise as sw
import shardwise.torch as swt
from fsdp2 import start, values_of
from processes import free_port, run_ranks
from shardwise.torch.accelerate import register


def same(a, b):
    return a.keys() == b.keys() and all((a[name] == b[name]).all() for name in a)


def prepared(version=2):
    accelerator = accelerate.Accelerator(cpu=True, fsdp_plugin=accelerate.FullyShardedDataParallelPlugin(fsdp_version=version))
    register(accelerator)
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 1))  # uneven, and an empty part
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return accelerator, *accelerator.prepare(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5))


def step(accelerator, model, optimizer, scheduler):
    accelerator.backward(model(torch.randn(4, 5)).square().sum())
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()


def of_save(rank, size, port, folder):
    start(rank, size, port)
    accelerator, *parts = prepared()
    accelerate.utils.set_seed(5 + rank)
    for _ in range(2):
        step(accelerator, *parts)
        accelerator.save_state(folder)  # the second replaces the first
    saved = values_of(*parts[:2]), parts[2].get_last_lr()
    assert accelerator._models == [parts[0]] and len(accelerator._optimizers) == 1
    step(accelerator, *parts)
    return saved, (values_of(*parts[:2]), parts[2].get_last_lr())


def of_load(rank, size, port, folder):
    start(rank, size, port)
    accelerator, *parts = prepared()
    accelerator.load_state(folder)
    loaded = values_of(*parts[:2]), parts[2].get_last_lr()
    step(accelerator, *parts)
    return loaded, (values_of(*parts[:2]), parts[2].get_last_lr())


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 1), (1, 2)])
def test_accelerate_goes_on_from_what_another_process_saved(tmp_path, before, after):
    folder = str(tmp_path / "state")
    (saved, saved_rate), (expected, rate) = run_ranks(of_save, before, free_port(), folder)[0]
    assert "0.weight.exp_avg" in saved and saved_rate != rate
    for (loaded, loaded_rate), (found, found_rate) in run_ranks(of_load, after, free_port(), folder):
        assert same(loaded, saved) and loaded_rate == saved_rate
        assert before != after or same(found, expected) and found_rate == rate
    assert not list((tmp_path / "state").glob("*model*")) and not list((tmp_path / "state").glob("optim*"))
    assert sw.verify(tmp_path / "state" / "weights.sw")
    with sw.open(tmp_path / "state" / "weights.sw") as checkpoint:
        assert {"models.0.0.weight", "optimizers.0.state.0.weight.exp_avg"} <= set(checkpoint)


def of_fsdp1(rank, size, port):
    start(rank, size, port)
    with pytest.raises(sw.InvalidArgument, match=r"found FSDP1, .*needed is FSDP2, as FullyShardedDataParallelPlugin\(fsdp_version=2\)$"):
        prepared(1)


def test_fsdp1_is_refused():
    run_ranks(of_fsdp1, 2, free_port())


def trained(folder, stop=None):
    """Returns losses by step, whole values at the begin and end of the training, and the steps in the folder."""
    transformers = pytest.importorskip("transformers", reason="needs transformers, which this environment has not")
    from shardwise.torch.transformers import CheckpointCallback

    class Watch(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **parts):
            began.setdefault("values", values_of(parts["model"], parts["optimizer"]))
            if state.global_step + 1 == stop:
                os.kill(os.getpid(), signal.SIGUSR2)

    began = {}
    args = transformers.TrainingArguments(
        str(folder / "out"), max_steps=6, per_device_train_batch_size=4, logging_steps=1, save_strategy="no", report_to=[],
        use_cpu=True, disable_tqdm=True, fsdp=True, fsdp_config={"version": 2})
    torch.manual_seed(3)
    config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config)  # with dropout, thus random states matter; and with tied weights
    tokens = torch.randint(50, (24, 8), generator=torch.Generator().manual_seed(5))
    with swt.CheckpointManager(folder / "run", save_every=0, preemption_signals=[signal.SIGUSR2]) as manager:
        callback = CheckpointCallback(manager)
        trainer = transformers.Trainer(model, args, train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
                                       callbacks=[callback, Watch()])
        trainer.train(resume_from_checkpoint=callback.resume())
        losses = [(entry["step"], entry["loss"], entry["learning_rate"]) for entry in trainer.state.log_history if "loss" in entry]
        return losses, began["values"], values_of(trainer.model, trainer.optimizer), manager.steps()


def of_stop(rank, size, port, folder, stop):
    start(rank, size, port)
    return trained(folder, stop if rank == size - 1 else None)


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 1), (1, 2)])
def test_a_trainer_goes_on_from_what_another_process_saved(tmp_path, before, after):
    stopped, _, saved, steps = run_ranks(of_stop, before, free_port(), tmp_path / "a", 4)[0]
    assert steps == [4] and len(stopped) == 4 and "transformer.wte.weight.exp_avg" in saved
    straight = run_ranks(of_stop, before, free_port(), tmp_path / "b", None)[0] if before == after else None
    for losses, began, ended, _ in run_ranks(of_stop, after, free_port(), tmp_path / "a", None):
        assert same(began, saved) and losses[:4] == stopped and [step for step, _, _ in losses] == [1, 2, 3, 4, 5, 6]
        assert straight is None or losses == straight[0] and same(ended, straight[2])


def test_fsdp1_of_a_trainer_is_refused(tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs transformers, which this environment has not")
    from shardwise.torch.transformers import CheckpointCallback

    args = transformers.TrainingArguments(str(tmp_path / "out"), use_cpu=True, fsdp=True, fsdp_config={"version": 1})
    with swt.CheckpointManager(tmp_path / "run") as manager:  # the Trainer itself makes FSDP1 on accelerators alone
        with pytest.raises(sw.InvalidArgument, match='found FSDP1 .FSDP2 is fsdp_config={"version": 2}'):
            CheckpointCallback(manager).on_train_begin(args, transformers.TrainerState(), transformers.TrainerControl())
