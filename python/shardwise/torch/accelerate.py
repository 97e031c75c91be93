"""Saves the models of an accelerate.Accelerator in a Shardwise checkpoint.

    import shardwise.torch.accelerate

    shardwise.torch.accelerate.register(accelerator)
    # ckpt/weights.sw in place of model.safetensors; with FSDP2 it also has the optimizers
    accelerator.save_state("ckpt")
    accelerator.load_state("ckpt")
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from .._argument_types import check_calls
from .._arrays.arrays import Codec
from .._errors import InvalidArgument
from ._load import load
from ._save import save

_FOLDER = "weights.sw"


def register(accelerator: Any, *, codec: Codec = "zstd") -> None:
    """Lets save_state(folder) and load_state(folder) of the accelerator keep the weights of its models in
    folder/weights.sw; all processes call them. Optimizers, schedulers and random states stay in accelerate's
    own files, which are pickles. With FSDP2, folder/weights.sw also has the optimizers, each process writes
    its own part, and any number of processes may load it. Raises InvalidArgument for FSDP1, DeepSpeed and
    Megatron-LM, where accelerate saves weights itself."""
    kind = str(accelerator.distributed_type).rpartition(".")[2]
    if kind == "FSDP" and not accelerator.is_fsdp2:
        raise InvalidArgument("register for FSDP: found FSDP1, whose parameters are flattened, "
                              "needed is FSDP2, as FullyShardedDataParallelPlugin(fsdp_version=2)")
    if kind in ("DEEPSPEED", "MEGATRON_LM"):
        raise InvalidArgument(f"register for {accelerator.distributed_type}: found weights that accelerate "
                              "saves by itself, needed is an accelerator of whole models or of FSDP2")
    hidden: dict[str, Any] = {}  # models and optimizers of FSDP2, while accelerate saves or loads the rest

    def on_save(models: list[Any], weights: list[Any], folder: Any) -> None:
        save(os.path.join(folder, _FOLDER), hidden or {"models": list(models)}, codec=codec,
             existing="replace")
        weights.clear()  # so that accelerate does not write them

    def on_load(models: list[Any], folder: Any) -> None:
        load(os.path.join(folder, _FOLDER), hidden or {"models": list(models)})
        models.clear()

    def without_shards(function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function wrapped to hide models and optimizers from accelerate, which would write or
        read those of FSDP before it calls hooks."""

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            models, optimizers = accelerator._models, accelerator._optimizers
            hidden.update(models=list(models), optimizers=list(optimizers))
            accelerator._models, accelerator._optimizers = [], []
            try:
                return function(*args, **kwargs)
            finally:
                accelerator._models, accelerator._optimizers = models, optimizers
                hidden.clear()

        return called

    accelerator.register_save_state_pre_hook(on_save)
    accelerator.register_load_state_pre_hook(on_load)
    if kind == "FSDP":
        accelerator.save_state = without_shards(accelerator.save_state)
        accelerator.load_state = without_shards(accelerator.load_state)

check_calls(__name__)
