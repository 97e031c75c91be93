"""Models of an accelerate.Accelerator in a Shardwise checkpoint.

    import shardwise.torch.accelerate

    shardwise.torch.accelerate.register(accelerator)
    accelerator.save_state("ckpt")      # ckpt/weights.sw instead of model.safetensors
    accelerator.load_state("ckpt")
"""

from __future__ import annotations

import os
from typing import Any

from .._errors import InvalidArgument
from .._sources import Codec
from ._load import load
from ._save import save

_FOLDER = "weights.sw"


def register(accelerator: Any, *, codec: Codec = "zstd") -> None:
    """save_state(folder) and load_state(folder) of the accelerator keep the weights of its models in folder/weights.sw;
    all processes call them. Optimizers, schedulers and random states stay in accelerate's own files, which are pickles.
    With FSDP, DeepSpeed and Megatron-LM, accelerate saves weights by itself: InvalidArgument."""
    if str(accelerator.distributed_type).rpartition(".")[2] in ("FSDP", "DEEPSPEED", "MEGATRON_LM"):
        raise InvalidArgument(f"register for {accelerator.distributed_type}: found weights that accelerate saves by itself, "
                              f"needed is an accelerator of whole models")

    def on_save(models: list[Any], weights: list[Any], folder: Any) -> None:
        save(os.path.join(folder, _FOLDER), {"models": list(models)}, codec=codec, existing="replace")
        weights.clear()  # so that accelerate writes none

    def on_load(models: list[Any], folder: Any) -> None:
        load(os.path.join(folder, _FOLDER), {"models": list(models)})
        models.clear()

    accelerator.register_save_state_pre_hook(on_save)
    accelerator.register_load_state_pre_hook(on_load)
