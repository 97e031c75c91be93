"""Finds the kinds of a step's inputs: state, which the step returns at the same place of a tree, or data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from ... import _core
from ..._errors import InvalidArgument
from ..._trees import pytree as _tree

KINDS = ("parameter", "optimizer", "loader")


def kinds_of(
    labels: Sequence[str],
    names: Sequence[str],
    arguments: Sequence[Any],
    result: Any,
    own: Sequence[str],
    patterns: Mapping[str, str],
) -> list[str]:
    """Returns the kind of each leaf. own: kinds that are already known, or "". The first pattern that matches
    wins over these. Leaves of optax's classes belong to the optimizer; other leaves that the step returns are
    parameters."""
    for pattern, kind in patterns.items():
        if kind not in KINDS:
            raise InvalidArgument(f"kinds: found {kind!r} for {pattern!r}, needed one of {', '.join(KINDS)}")
    rules = [(_core.SpecRules.parse(f"{pattern}=-"), kind) for pattern, kind in patterns.items()]
    returned = _returned(names, arguments, result)
    of_optax = [is_optax for argument in arguments for is_optax in _of_optax(argument)]
    kinds = []
    for label, known, comes_back, is_optax in zip(labels, own, returned, of_optax, strict=True):
        known = known or ("optimizer" if is_optax else "parameter" if comes_back else "loader")
        kinds.append(next((kind for rule, kind in rules if not rule.unmatched([label])), known))
    return kinds


def _returned(names: Sequence[str], arguments: Sequence[Any], result: Any) -> list[bool]:
    """Returns True for each leaf that is in a tree that the result also has, or is an array whose type the
    result has at the same place. The type of a single number proves nothing, as a rate is not a loss."""
    # Structures are found by the types of their leaves, as the data of a node may have no hash.
    trees: dict[Any, list[Any]] = {}
    for node, _, _ in _places(result, 0):
        trees.setdefault(_types(node), []).append(jax.tree.structure(node))
    parts = result if isinstance(result, dict) else {}
    if isinstance(result, (tuple, list)):
        parts = dict(enumerate(result))
    flags = []
    for place, (name, argument) in enumerate(zip(names, arguments)):
        same_place: list[dict[Any, Any]] = [_leaves(result)]
        same_place += [_leaves(parts[key]) for key in (place, name) if key in parts]
        for path, leaf in _leaves(argument).items():
            own = leaf.shape, leaf.dtype
            flags.append(
                bool(leaf.shape)
                and any(path in part and (part[path].shape, part[path].dtype) == own for part in same_place)
            )
        begin = len(flags) - len(jax.tree.leaves(argument))
        for node, first, end in _places(argument, begin):
            if end - first > 1 and jax.tree.structure(node) in trees.get(_types(node), ()):
                flags[first:end] = [True] * (end - first)
    return flags


def _of_optax(tree: Any) -> list[bool]:
    flags = [False] * len(jax.tree.leaves(tree))
    for node, first, end in _places(tree, 0):
        if type(node).__module__.partition(".")[0] == "optax":
            flags[first:end] = [True] * (end - first)
    return flags


def _leaves(tree: Any) -> dict[Any, Any]:
    """Returns the leaves of a tree by path."""
    return dict(jax.tree_util.tree_flatten_with_path(tree)[0])


def _types(tree: Any) -> tuple[Any, ...]:
    return tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree))


def _places(tree: Any, first: int) -> Iterator[tuple[Any, int, int]]:
    """Yields each inner node from the root down, with the range of its leaves."""
    children = _tree.children_of(tree)
    if children is None:
        return
    yield tree, first, first + len(jax.tree.leaves(tree))
    for _, child in children:
        yield from _places(child, first)
        first += len(jax.tree.leaves(child))
