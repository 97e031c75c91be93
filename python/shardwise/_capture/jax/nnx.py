"""Handles modules of flax.nnx among the arguments of a step, which changes them in place, as with nnx.jit.
Their variables are inputs of the program, and variables that the step changes are also outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ..._errors import InvalidArgument
from ..._interpreter import imported
from ..._trees import pytree as _tree


def _flax_nnx() -> Any:
    """Returns flax.nnx; None if it is not imported, so that no step can have its modules."""
    return imported("flax.nnx")


def _is_module(value: Any) -> bool:
    """Returns True for a module, and for a variable that is itself an argument."""
    nnx = _flax_nnx()
    if nnx is None or isinstance(value, nnx.State):
        return False
    # Older versions call the class Object.
    return isinstance(value, (nnx.Pytree if hasattr(nnx, "Pytree") else nnx.Object, nnx.Variable))


def _is_state(value: Any) -> bool:
    nnx = _flax_nnx()
    return nnx is not None and isinstance(value, nnx.State)


class Modules:
    """The modules among the arguments of a step. A variable in several modules belongs to the first."""

    def __init__(self, example: Sequence[Any]) -> None:
        self._nnx = _flax_nnx()
        self.places = [place for place, argument in enumerate(example) if any(
            map(_is_module, jax.tree.leaves(argument, is_leaf=lambda x: _is_module(x) or _is_state(x))))]
        self._graph = self._nnx.split(self._of(example))[0] if self.places else None
        self._settings = self._settings_of(self._of(example))
        self._last: tuple[Any, ...] = ()  #: the modules of the last run

    def _of(self, args: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(args[place] for place in self.places if place < len(args))

    def arguments(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Returns the arguments with the states of modules in place of the modules."""
        self._last, arguments = self._of(args), list(args)
        different = self._different(self._last)
        if different:
            raise InvalidArgument(f"run: found {different}; that is part of the program, needed modules as "
                                  "they were at the capture: capture a program of each mode")
        state = self._nnx.split(self._last)[1] if self._last else {}
        for number, place in enumerate(self.places[:len(self._last)]):
            arguments[place] = state[number] if number in state else {}
        return tuple(arguments)

    def _settings_of(self, modules: Sequence[Any]) -> dict[str, Any]:
        """Returns, by path, attributes that are not variables, such as numbers and flags that eval() sets."""
        return {"/".join(map(str, (*path[1:], name))): value
                for path, node in (self._nnx.iter_graph(modules) if modules else ())
                if _is_module(node) and not isinstance(node, self._nnx.Variable)
                for name, value in vars(node).items() if isinstance(value, (bool, int, float, str))
                and not name.startswith(("_pytree__", "_object__"))}

    def _different(self, modules: Sequence[Any]) -> str:
        """Returns a text on the first setting that has changed; "" if none has."""
        now = self._settings_of(modules)
        return next((f"{name} = {now.get(name)!r}, before {self._settings.get(name)!r}" for name
                     in sorted({*now, *self._settings}) if now.get(name) != self._settings.get(name)), "")

    def kinds(self, arguments: Sequence[Any]) -> list[str]:
        """Returns the kind of each leaf; "" for leaves outside modules."""
        kinds = []
        for place, argument in enumerate(arguments):
            for leaf in jax.tree.leaves(argument, is_leaf=_is_module if place in self.places else None):
                is_optimizer = place in self.places and isinstance(leaf, getattr(self._nnx, "OptState", ()))
                kinds += ["optimizer" if is_optimizer else "parameter" if place in self.places else ""] * len(
                    jax.tree.leaves(leaf))
        return kinds

    def pure(self, step: Callable[..., Any]) -> Callable[..., tuple[Any, list[Any]]]:
        """Returns a function of arguments() that returns the step's result, and the leaves of the states
        after the step."""

        def whole(*arguments: Any) -> tuple[Any, list[Any]]:
            if not self.places:
                return step(*arguments), []
            before = {number: arguments[place] for number, place in enumerate(self.places)}
            modules, args = self._nnx.merge(self._graph, self._nnx.State(before)), list(arguments)
            for place, module in zip(self.places, modules):
                args[place] = module
            result = step(*args)
            different = self._different(modules)
            if different:
                raise InvalidArgument(f"capture: found a step that changes a module to {different}, "
                                      "needed a step that leaves it, or a variable")
            after = jax.tree_util.tree_flatten_with_path(self._nnx.split(modules)[1])[0]
            paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(self._nnx.State(before))[0]]
            if [path for path, _ in after] != paths:
                new = next((path for path, _ in after if path not in paths), None)
                what = ("takes a variable from a module" if new is None
                        else f"adds the variable {'/'.join(_tree.parts_of(new[1:]))} to a module")
                raise InvalidArgument(f"capture: found that the step {what}, "
                                      "needed modules whose variables are all there before it, and stay")
            return result, [leaf for _, leaf in after]

        return whole

    def update(self, changed: Sequence[Any]) -> None:
        """Updates the modules of the last arguments. changed: the new value of each leaf of their states, or
        None for a leaf that stays."""
        state = self._nnx.split(self._last)[1]
        leaves, tree = jax.tree.flatten(state)
        values = [leaf if value is None else jax.numpy.asarray(value) if isinstance(value, np.ndarray)
                  else value for leaf, value in zip(leaves, changed)]
        self._nnx.update(self._last, jax.tree.unflatten(tree, values))
