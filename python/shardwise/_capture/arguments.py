"""Checks the arguments of capture()."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .._arrays.arrays import refuse_unknown
from .._errors import InvalidArgument

_ANY = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
_OTHERS = {
    **dict.fromkeys(("loss", "loss_fn", "criterion", "backward"),
                    "a step that computes the loss: def step(x, y): ..; return loss"),
    **dict.fromkeys(("optimizer", "opt", "scheduler", "tx"),
                    "a step that applies the optimizer: def step(x, y): ..; return loss"),
    **dict.fromkeys(("args", "example", "examples", "example_inputs", "inputs", "kwargs", "batch", "input"),
                    "the arguments one by one: capture(step, x, y)"),
    **dict.fromkeys(("mesh", "devices", "sharding", "shardings", "specs", "in_shardings", "out_shardings",
                     "in_specs"), "marks and a mesh afterwards: capture(step, x).mark({..}).plan(mesh)"),
    **dict.fromkeys(("static_argnums", "static_argnames"),
                    "functools.partial(step, ..) of the static arguments"),
    **dict.fromkeys(("donate_argnums", "donate", "donate_argnames"),
                    "nothing: the new value of a parameter takes its memory"),
}


def example_of(step: Callable[..., Any], example: tuple[Any, ...], more: Mapping[str, Any],
               known: tuple[str, ...]) -> tuple[Any, ...]:
    """Returns the arguments of a step, in order. more: arguments by the step's own names. A single tuple
    stands for all arguments if the step does not take it as one argument. Raises InvalidArgument for
    arguments that the step does not take, WrongType for unknown options."""
    name = name_of(step)
    if _is_lowered(step):
        raise InvalidArgument(
            "capture: found StableHLO of a step, needed is the function itself: "
            "capture(step, x, y)"
        )
    if not callable(step):
        raise InvalidArgument(f"capture: found {type(step).__name__} as the step, "
                              "needed is a function or a module: capture(step, x, y)")
    try:
        signature = inspect.signature(step)
        # Module.__call__ of torch takes anything, so forward() has the arguments.
        if hasattr(step, "forward") and {p.kind for p in signature.parameters.values()} == _ANY:
            signature = inspect.signature(step.forward)
    except (TypeError, ValueError):  # a built-in has no signature
        refuse_unknown("capture", more, known, _OTHERS)
        return example
    refuse_unknown("capture", (key for key in more if key not in signature.parameters), known, _OTHERS)

    def bound(args: tuple[Any, ...]) -> inspect.BoundArguments | TypeError:
        try:
            return signature.bind(*args, **more)
        except TypeError as error:
            return error

    call = bound(example)
    if isinstance(call, TypeError) and len(example) == 1 and type(example[0]) in (tuple, list):
        unpacked = bound(tuple(example[0]))
        call = call if isinstance(unpacked, TypeError) else unpacked
    if isinstance(call, TypeError):
        raise InvalidArgument(f"capture: found arguments that {name} does not take ({call}), "
                              f"needed are those of its call, one by one: capture({name}, x, y)")
    if call.kwargs:
        raise InvalidArgument(f"capture: found {', '.join(call.kwargs)} by name, needed are arguments in "
                              f"order: capture({name}, x, y), or of a function that calls {name} so")
    return call.args


@contextmanager
def refusing_packed(step: Callable[..., Any], example: tuple[Any, ...]) -> Iterator[None]:
    """Adds advice to a TypeError of a step whose only argument is a tuple: it may hold all arguments."""
    try:
        yield
    except TypeError as error:
        if len(example) != 1 or type(example[0]) not in (tuple, list):
            raise
        name, kind = name_of(step), type(example[0]).__name__
        raise InvalidArgument(f"capture: {name} failed with a {kind} as its argument "
                              f"({str(error).splitlines()[0]}), needed are the arguments one by one, "
                              f"without the {kind}: capture({name}, x)") from error


def _is_lowered(step: Any) -> bool:
    if isinstance(step, bytes):
        return step.startswith(b"ML\xefR")
    return "func.func" in step if isinstance(step, str) else type(step).__name__ in ("Lowered", "Exported")


def name_of(step: Any) -> str:
    name = getattr(step, "__name__", type(step).__name__)
    return "step" if name == "<lambda>" else str(name)
