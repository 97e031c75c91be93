"""Captures steps of torch as programs. The first capture imports the modules that trace and write."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from ..._progress import WorkLine
from ..arguments import example_of, name_of, refusing_packed

if TYPE_CHECKING:
    from ...programs import Program


def capture(
    step: Callable[..., Any],
    *example: Any,
    uses: Iterable[torch.nn.Module | torch.optim.Optimizer] = (),
    static: Iterable[str] = (),
    assume: Iterable[str] = (),
    progress: bool = True,
    **by_name: Any,
) -> Program:
    """Returns the program of step(*example), which has the forward pass, loss, backward pass and optimizer.

        def step(tokens, labels):
            loss = model(input_ids=tokens, labels=labels).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        program = swt.capture(step, tokens, labels)

    example: trees of tensors. Their values do not matter, so example and model may be on the meta device:
    torch traces the step on tensors without memory, and computes nothing. Modules and optimizers are those in
    the step's variables, or in the attributes of its object; uses= names others. A module in place of a step
    stands for its forward pass.

    Inputs have the module's names of parameters and buffers ("layers.3.attn.wq.weight"); then come the state
    of optimizers ("exp_avg.layers.3.attn.wq.weight") and the arguments of the step ("tokens"). The learning
    rate of each group of an optimizer is an input ("lr"), which each run reads, so call a scheduler between
    runs. Program.run(*args) does the same as step(*args): it returns the step's result, and updates the
    module and the optimizer.

    static: names of arguments whose values the step may ask for (grid.tolist(), x[mask]). These values become
    part of the program, and a run with other values is refused.

    assume: checks that pass in the capture and in runs by assumption: "modeling_detr.py:1042", a file and a
    line as the error names it, or "modeling_detr.py:isfinite(x).all()", a file and a part of the line. The
    condition of an `if` is then false, and that of an `assert` or a checking function is true; `not` inverts
    both. Plan.report() lists the assumptions.

    Random numbers (dropout) are not those that torch would draw: they follow from an input, "random_key",
    which each run draws from torch's generator.

    by_name: arguments by the step's own names.

    progress: on a terminal, a capture of more than two seconds shows its progress on stderr; False never
    shows it.

    Raises Unsupported, which names each operation that no program has, how often it is there, and the module
    of the first; also for operations that depend on values, with the line that asks for them, and for changes
    to anything but the state of modules and optimizers. Raises InvalidArgument for a parameter that is in no
    module, for a module, an optimizer or a scheduler as an argument, and for arguments that the step does not
    take."""
    from .writer import captured  # its imports take a second

    arguments = example_of(step, example, by_name, ("uses", "static", "assume", "progress"))
    with WorkLine(f"capture {name_of(step)}", progress), refusing_packed(step, arguments):
        return captured(step, arguments, tuple(uses), tuple(static), tuple(assume))
