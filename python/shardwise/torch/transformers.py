"""Lets Hugging Face's Trainer save steps of a CheckpointManager in place of its own checkpoints.

    from shardwise.torch.transformers import CheckpointCallback

    args = TrainingArguments("out", save_strategy="no")      # first, as it makes the process group
    callback = CheckpointCallback(swt.CheckpointManager("run", save_every=100,
                                                        preemption_signals=[signal.SIGTERM]))
    trainer = Trainer(model, args, train_dataset=data, callbacks=[callback])
    trainer.train(resume_from_checkpoint=callback.resume())
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from typing import Any

from transformers import TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME

from .._argument_types import check_calls
from .._errors import InvalidArgument
from ._manager import CheckpointManager, rng
from ._state import PerRank

# Fields of the trainer's state that differ between processes. The Trainer sets them again.
_OF_PROCESS = ("is_local_process_zero", "is_world_process_zero")


class CheckpointCallback(TrainerCallback):
    """Saves model, optimizer, scheduler, the trainer's state and random states when the manager says so, and
    restores them. A preemption ends the training after a save, without an evaluation of that step. The
    metrics of a step are the values logged at it. A step has no metrics if the metric of the manager's best=
    is not among them: the evaluation at the end of an epoch, for example, comes after the save of the last
    step.

    The Trainer skips batches only for a checkpoint of its own form, so resume() makes one:
    train(resume_from_checkpoint=callback.resume()). One process, DistributedDataParallel and FSDP2 work, and
    any number of processes restores their steps; fp16, FSDP1 and DeepSpeed keep state that a callback does
    not see, and are refused. States of other callbacks are not saved.
    """

    def __init__(self, manager: CheckpointManager) -> None:
        self.manager = manager
        self._step: int | None = None  # the step to restore
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._rng: Any = None  # random states to restore once earlier batches are skipped
        self._due = False

    def resume(self) -> str | None:
        """Returns, for train(), a folder where the Trainer finds its own state of the newest step; None if
        there is no step. The Trainer warns that the folder has no weights: they are restored when the
        training begins."""
        restored = self.manager.restore({"trainer": None}, strict=False)
        self._step = None if restored is None else restored.step
        if restored is None:
            return None
        self._folder = tempfile.TemporaryDirectory(prefix="shardwise-")
        with open(os.path.join(self._folder.name, TRAINER_STATE_NAME), "w") as file:
            json.dump(restored.value["trainer"], file)
        # With an empty index FSDP reads no file of weights.
        with open(os.path.join(self._folder.name, SAFE_WEIGHTS_INDEX_NAME), "w") as file:
            json.dump({"metadata": {}, "weight_map": {}}, file)
        return self._folder.name

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Restores the step of resume(). Raises InvalidArgument for arguments that a callback cannot
        serve."""
        unsupported = [name for name in ("fp16", "deepspeed") if getattr(args, name, None)]
        if getattr(args, "fsdp", None) and (getattr(args, "fsdp_plugin_args",
                                                    None) or {}).get("fsdp_version") != 2:
            unsupported.append('FSDP1 (FSDP2 is fsdp_config={"version": 2})')
        if unsupported:
            raise InvalidArgument(f"train with checkpoints in {self.manager.root}: "
                                  f"found {', '.join(unsupported)}, whose state a callback does not see: "
                                  "needed are arguments without")
        size = self.manager._calls.size
        if size != args.world_size:
            raise InvalidArgument(f"train with checkpoints in {self.manager.root}: "
                                  f"found a manager of {size} processes, needed is one of {args.world_size}, "
                                  "made after TrainingArguments")
        step, self._step = self._step, None
        if step is None:
            latest = self.manager.latest_step()
            if latest is not None and state.global_step == 0:
                raise InvalidArgument(f"train with checkpoints in {self.manager.root}: "
                                      f"found step {latest} there, and a training that begins at 0: "
                                      "needed is train(resume_from_checkpoint=callback.resume())")
            return
        if state.global_step != step:
            raise InvalidArgument(f"train with checkpoints in {self.manager.root}: "
                                  f"found a training that begins at step {state.global_step}, "
                                  f"needed is {step}, which resume() has given")
        target = {**_modules(parts), "trainer": None, "rng": {"rng": PerRank(None)}}
        restored = self.manager.restore(target, step)
        assert restored is not None
        self._rng = restored.value["rng"]

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Saves or restores before the Trainer draws the order of batches."""
        if float(state.epoch).is_integer():
            self._between_steps(state, parts)

    def on_step_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Saves or restores after the logs of the step before."""
        self._between_steps(state, parts)

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> Any:
        """Asks the manager whether to save this step."""
        self._due = self.manager.should_save(state.global_step)
        if self.manager.reached_preemption():
            control.should_training_stop = True
            control.should_evaluate = False  # little time is left
        return control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **parts: Any) -> Any:
        """Saves here if the training stops, as no step follows."""
        if self.manager.reached_preemption():
            control.should_evaluate = False  # an evaluation may be due only at the end of an epoch
        if control.should_training_stop:
            self._between_steps(state, parts)
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Waits for the save under way."""
        self.manager.wait()

    def _between_steps(self, state: Any, parts: dict[str, Any]) -> None:
        own, self._rng = self._rng, None
        if own is not None and own["rng"] is not None:  # a new rank has no saved state
            rng().load_state_dict(own)
        due, self._due = self._due, False
        if not due:
            return
        saved = {**_modules(parts), "rng": rng()}
        if state.is_world_process_zero:  # the seconds in the logs differ from rank to rank
            saved["trainer"] = {name: value for name, value in dataclasses.asdict(state).items()
                                if name not in _OF_PROCESS}
        metrics = _metrics(state)
        best = self.manager.best_metric
        self.manager.save_async(state.global_step, saved,
                                metrics=metrics if best is None or best in metrics else None)


def _modules(parts: dict[str, Any]) -> dict[str, Any]:
    return {"model": parts["model"], "optimizer": parts["optimizer"], "scheduler": parts["lr_scheduler"]}


def _metrics(state: Any) -> dict[str, float]:
    logged = [entry for entry in state.log_history if entry.get("step") == state.global_step]
    return {name: float(value) for entry in logged for name, value in entry.items()
            if name not in ("step", "epoch") and isinstance(value, (int, float))}

check_calls(__name__)
