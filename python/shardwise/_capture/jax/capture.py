"""Programs of steps of JAX. What writes them is imported when the first is captured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..._progress import WorkLine
from ..arguments import example_of, name_of, refusing_packed

if TYPE_CHECKING:
    from ...programs import Program


def capture(step: Callable[..., Any], *example: Any, kinds: Mapping[str, str] | None = None,
            progress: bool = True, **by_name: Any) -> Program:
    """The program of step(*example). `example`: pytrees of arrays or jax.ShapeDtypeStruct; JAX traces the
    function, nothing is computed and no memory is taken. Inputs are called by their path,
    "params/dense/kernel". Shardings of the example (NamedSharding), of jit, and
    jax.lax.with_sharding_constraint become marks.

    kinds: the kinds of inputs by patterns of labels: "parameter", "optimizer" or "loader" (data). Without a
    pattern, an input that the step returns is a parameter: a tree of the same type is in the result, or an
    array of its type is at its place. States of optax and flax.nnx are the optimizer's. A result that
    replaces a parameter or optimizer state takes its memory, as donate_argnums has it.

    Raises Unsupported, naming each primitive that no program has, or a parameter of one that its rule does
    not know, how often it is there, and the source line of the first; InvalidArgument for an example that is
    no tree of arrays, or that the step does not take. `by_name`: arguments by the step's own names.

    progress: on a terminal, a capture that takes longer than two seconds shows on stderr how far it is;
    False: never."""
    from .writer import captured

    arguments = example_of(step, example, by_name, ("kinds", "progress"))
    with WorkLine(f"capture {name_of(step)}", progress), refusing_packed(step, arguments):
        return captured(step, arguments, kinds or {})
