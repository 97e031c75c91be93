"""Programs of steps of torch. What traces and writes them is imported when the first is captured."""

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
    """The program of step(*example): forward, loss, backward and optimizer, as the step calls them.

        def step(tokens, labels):
            loss = model(input_ids=tokens, labels=labels).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        program = swt.capture(step, tokens, labels)

    `example`: trees of tensors; their values do not matter, so that they may be on the meta device, as the
    model may. torch traces the step on tensors without memory: nothing is computed. Modules and optimizers
    are those that the step's variables hold, or its object's attributes; `uses` names those that are held
    otherwise. A module instead of a step is its forward pass.

    Inputs are called as the module calls its parameters and buffers ("layers.3.attn.wq.weight"), then
    optimizer state ("exp_avg.layers.3.attn.wq.weight"), then the step's arguments ("tokens"). The learning
    rate of each group of an optimizer is an input ("lr"), which each run reads: a scheduler is called between
    runs. Program.run(*args) does the same as step(*args): it returns the step's result, and updates the
    module and the optimizer.

    static: names of arguments whose values the step may ask for (grid.tolist(), x[mask]): those are part of
    the program then, and a run with others is refused.

    assume: checks that are taken to pass, in the capture and in runs: "modeling_detr.py:1042", a file and a
    line as the error names it, or "modeling_detr.py:isfinite(x).all()", a file and a part of the line. The
    condition of an `if` is false then, that of an `assert` or a function that checks is true, and after `not`
    the other way. Plan.report() lists them.

    Random numbers (dropout) are the program's own, and not those that torch would draw: they follow from an
    input, "random_key", which each run draws from torch's generator.

    Raises Unsupported, naming each operation that no program has, how often it is there, and the module of
    the first; and for operations that depend on values, with the line that asks for them, and for changes to
    anything but the state of modules and optimizers. Raises InvalidArgument for a parameter that is in no
    module, for a module, an optimizer or a scheduler as an argument, and for arguments that the step does not
    take. `by_name`: arguments by the step's own names.

    progress: on a terminal, a capture that takes longer than two seconds shows on stderr how far it is;
    False: never."""
    from .writer import captured  # its imports take a second

    arguments = example_of(step, example, by_name, ("uses", "static", "assume", "progress"))
    with WorkLine(f"capture {name_of(step)}", progress), refusing_packed(step, arguments):
        return captured(step, arguments, tuple(uses), tuple(static), tuple(assume))
