"""Captures steps of JAX as programs. The first capture imports the modules that write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..._progress import WorkLine
from ..arguments import example_of, name_of, refusing_packed

if TYPE_CHECKING:
    from ...programs import Program


def capture(step: Callable[..., Any], *example: Any, kinds: Mapping[str, str] | None = None,
            progress: bool = True, **by_name: Any) -> Program:
    """Returns the program of step(*example). example: pytrees of arrays or jax.ShapeDtypeStruct. JAX traces
    the function; it computes nothing and takes no memory. The label of an input is its path,
    "params/dense/kernel". Shardings of the example (NamedSharding) and of jit, and
    jax.lax.with_sharding_constraint, become marks.

    kinds: the kinds of inputs by patterns of labels: "parameter", "optimizer" or "loader" (data). Without a
    pattern, an input that the step returns is a parameter: the result has a tree of the same type, or an
    array of its type at the same place. States of optax and flax.nnx belong to the optimizer. A result that
    replaces a parameter or optimizer state takes its memory, as with donate_argnums.

    by_name: arguments by the step's own names.

    progress: on a terminal, a capture of more than two seconds shows its progress on stderr; False never
    shows it.

    Raises Unsupported, which names each primitive that no program has, or a parameter that its rule does not
    know, how often it is there, and the source line of the first. Raises InvalidArgument for an example that
    is no tree of arrays, or that the step does not take."""
    from .writer import captured

    arguments = example_of(step, example, by_name, ("kinds", "progress"))
    with WorkLine(f"capture {name_of(step)}", progress), refusing_packed(step, arguments):
        return captured(step, arguments, kinds or {})
