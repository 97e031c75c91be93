"""Writes the jaxpr of a function as a program, each primitive by its rule (ops/rules.py and the modules that
add to it)."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.extend.core
import numpy as np
from jax.sharding import NamedSharding

from ... import _core
from ..._dtypes import known_name
from ..._errors import InvalidArgument
from ..._programs.text import PARTS, Complex, Place, ProgramText, Refused, Value, parts_of
from ..._progress import count_operation
from ..._trees import pytree as _tree
from ...programs import Program
from .kinds import kinds_of
from .nnx import Modules
from .ops import complex as _complex
from .ops import indexing as indexing  # these modules add rules
from .ops import linear_algebra as linear_algebra
from .ops import loops as loops
from .ops import random as random
from .ops import shard_map as shard_map
from .ops import windows as windows
from .ops.attention import without_cudnn
from .ops.rules import INLINED, REASONS, RULES, UNREAD, Call, Params, spec_of


def captured(step: Callable[..., Any], example: tuple[Any, ...], kinds: Mapping[str, str]) -> Program:
    """Returns the program of capture()."""
    modules = Modules(example)
    arguments, names = modules.arguments(example), _argument_names(step, len(example))
    leaves, tree = _named_leaves(names, arguments)
    plain = tree.unflatten([_struct(leaf) for leaf in leaves.values()])
    with without_cudnn():
        closed, (result, after) = jax.make_jaxpr(modules.pure(step), return_shape=True)(*plain)
    kinds_of_leaves = kinds_of(list(leaves), names, plain, result, modules.kinds(arguments), kinds)

    text, used = ProgramText(), {atom for equation in closed.jaxpr.eqns
                                 for atom in equation.invars if isinstance(atom, jax.extend.core.Var)}
    pairs_in: list[bool] = []
    inputs: list[Any] = []
    for label, kind, variable in zip(leaves, kinds_of_leaves, closed.jaxpr.invars):
        dtype, shape = _input_type(variable.aval, label)
        pairs_in.append(dtype in PARTS and variable in used)  # a value that is only moved stays complex
        value = text.input(label, *((PARTS[dtype], (*shape, 2)) if pairs_in[-1] else (dtype, shape)), kind)
        inputs.append(text.pair(value) if pairs_in[-1] else value)
    outputs = _Writer(text).jaxpr(closed.jaxpr, closed.consts, inputs, "")
    count = len(outputs) - len(after)
    of_modules = [x for x, own_kind in zip(inputs, modules.kinds(arguments)) if own_kind]
    changed = [place for place, (old, new) in enumerate(zip(of_modules, outputs[count:])) if old is not new]
    outputs = outputs[:count] + [outputs[count + place] for place in changed]
    graph, places = text.graph([text.in_one(x) if isinstance(x, Complex) else x for x in outputs])
    shardings = [_mark(leaf, label) for label, leaf in leaves.items()]
    marks = [own if own is not None else of_graph.mark for own, of_graph in zip(shardings, graph.inputs)]
    if marks != [None] * len(marks):
        graph = graph.marked_inputs([None if mark is None else _core.PartitionSpec.parse(mark)
                                     for mark in marks])
    result_of = _result_of(result) if not changed else _result_of_modules(result, after, changed, modules)
    return Program(graph, getattr(step, "__name__", "program"), _inputs_of(tree, pairs_in, modules),
                   result_of, places)


def _inputs_of(tree: Any, pairs: Sequence[bool],
               modules: Modules) -> Callable[[tuple[Any, ...]], Sequence[Any]]:
    def inputs_of(args: tuple[Any, ...]) -> Sequence[Any]:
        values, own_tree = jax.tree.flatten(modules.arguments(args))
        if own_tree != tree:
            raise InvalidArgument(f"run: found arguments of the tree {own_tree}, needed {tree}, "
                                  "as at the capture")
        return [_pairs_of(value) if is_pair else _plain_array(value) for value, is_pair in zip(values, pairs)]

    return inputs_of


def _pairs_of(value: Any) -> Any:
    """Returns a complex array as a real one with a last dim of 2."""
    array = np.asarray(_plain_array(value))
    return np.stack([array.real, array.imag], -1) if array.dtype.kind == "c" else array


def _plain_array(value: Any) -> Any:
    """Returns the data of a typed key, or an array in a dtype that JAX allows (64 bits only if enabled)."""
    if _tree.is_key(value):
        return jax.random.key_data(value)
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    return value.astype(jax.dtypes.canonicalize_dtype(value.dtype), copy=False)


def _result_of_modules(result: Any, after: list[Any], changed: list[int],
                       modules: Modules) -> Callable[[Sequence[np.ndarray]], Any]:
    """Returns a result function that also sets the new values of the variables that the step changes."""
    both = _result_of((result, [after[place] for place in changed]))

    def result_of(arrays: Sequence[np.ndarray]) -> Any:
        own_result, values = both(arrays)
        modules.update([values[changed.index(place)] if place in changed else None
                        for place in range(len(after))])
        return own_result

    return result_of


def _result_of(result: Any) -> Callable[[Sequence[np.ndarray]], Any]:
    leaves, tree = jax.tree.flatten(result)

    def result_of(arrays: Sequence[np.ndarray]) -> Any:
        return jax.tree.unflatten(tree, [as_given(array, leaf) for array, leaf in zip(arrays, leaves)])

    def as_given(array: np.ndarray, leaf: Any) -> Any:
        if _tree.is_key(leaf):
            return jax.random.wrap_key_data(jax.numpy.asarray(array), impl=leaf.dtype._impl)
        is_pair = np.dtype(leaf.dtype).kind == "c" and array.dtype.kind == "f"
        return np.ascontiguousarray(array).view(leaf.dtype)[..., 0] if is_pair else array

    return result_of


# Arguments.


def _argument_names(step: Callable[..., Any], count: int) -> list[str]:
    try:
        parameters = list(inspect.signature(step).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:count]
    return names + [str(number) for number in range(len(names), count)]


def _named_leaves(names: Sequence[str], example: tuple[Any, ...]) -> tuple[dict[str, Any], Any]:
    """Returns the leaves of the arguments by label, with their shapes and dtypes, and the tree of all."""
    leaves: dict[str, Any] = {}
    pairs, tree = jax.tree_util.tree_flatten_with_path(example)
    for (argument, *path), value in pairs:
        label = "/".join((names[argument.idx], *_tree.parts_of(tuple(path))))
        if label in leaves:
            raise InvalidArgument(f"capture: found two arguments called {label!r}, needed one: "
                                  "a key of a dict holds a \"/\"")
        leaves[label] = _abstract(value, label)
    return leaves, tree


def _abstract(value: Any, label: str) -> Any:
    if isinstance(value, (jax.Array, jax.ShapeDtypeStruct, np.ndarray, np.generic)):
        return value
    if isinstance(value, (bool, int, float)):
        return jax.eval_shape(lambda: jax.numpy.asarray(value))
    raise InvalidArgument(f"capture: {label}: found a {type(value).__name__}, "
                          "needed an array or a jax.ShapeDtypeStruct")


def _struct(leaf: Any) -> Any:
    """Returns the type of a leaf with its NamedSharding. JAX traces by that if the axes of the mesh are
    explicit."""
    sharding = getattr(leaf, "sharding", None)
    is_weak = bool(getattr(leaf, "weak_type", False))
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=is_weak,  # type: ignore[no-untyped-call]
                                sharding=sharding if isinstance(sharding, NamedSharding) else None)


def _input_type(aval: Any, label: str) -> tuple[str, tuple[int, ...]]:
    try:
        return _type(aval)
    except Refused as refused:
        raise InvalidArgument(f"capture: {label}: {refused}") from None


def _mark(leaf: Any, label: str) -> str | None:
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        return None
    try:
        return spec_of(sharding, len(leaf.shape))
    except Refused as refused:
        raise InvalidArgument(f"capture: {label}: {refused}") from None


# The jaxpr.


class _Place:
    """An equation in messages. `str` gives its source line, or that of the call around it."""

    def __init__(self, equation: Any, outer: Place | None) -> None:
        self.equation, self.outer = equation, outer

    @property
    def operation(self) -> str:
        return str(self.equation.primitive.name)

    def __str__(self) -> str:
        from jax._src import source_info_util  # there is no public name

        own = str(source_info_util.summarize(self.equation.source_info))
        # A line of ours is that of a rule that traces a function, or of the call of the step.
        is_ours = own.startswith(os.path.dirname(__file__))
        return own if own and not is_ours else str(self.outer) if self.outer else "an unknown line"


@lru_cache(maxsize=4096)
def _scope_of_stack(stack: str) -> tuple[str, bool]:
    """Returns the scope of a name stack of JAX, "layer0/mlp" for "transpose(jvp(layer0))/mlp", and whether it
    is that of a gradient."""
    parts = stack.split("/")
    begins = [number for number, part in enumerate(parts) if "jvp(" in part]
    if begins:  # a recomputation has its whole name after that of the gradient
        parts = parts[: begins[0]] + parts[begins[-1]:]
    # einsum opens a scope that is named by its equation.
    names = [re.sub(r"\w+\(|\)", "", part) for part in parts if "->" not in part]
    return "/".join(name for name in names if name not in ("", "rematted_computation",
                                                           "checkpoint")), "transpose(" in stack


class _Writer:
    """Writes jaxprs."""

    def __init__(self, text: ProgramText) -> None:
        self.text = text
        self._places: dict[tuple[int, int], _Place] = {}
        #: arrays in jaxprs, by body and id; each is written once
        self._arrays: dict[tuple[int, int], tuple[Any, Any]] = {}
        #: inside a kernel, its scope, and whether it is that of a gradient
        self._kernel: tuple[str, bool] | None = None

    def jaxpr(self, jaxpr: Any, consts: Sequence[Any], operands: Sequence[Value], stack: str) -> list[Value]:
        values: dict[Any, Value] = dict(zip(jaxpr.invars, operands))
        for variable, const in zip(jaxpr.constvars, consts):
            values[variable] = const if isinstance(const, Value) else self._array(const)

        def value_of(atom: Any) -> Any:
            if isinstance(atom, jax.extend.core.Literal):
                aval: Any = atom.aval
                return self._array(atom.val, aval.dtype)
            return values[atom]

        for equation in jaxpr.eqns:
            operands = [value_of(atom) for atom in equation.invars]
            values.update(zip(equation.outvars, self.equation(equation, operands, stack)))
        return [value_of(atom) for atom in jaxpr.outvars]

    def _array(self, array: Any, dtype: Any = None) -> Any:
        if not isinstance(array, (jax.Array, np.ndarray)):  # a number
            return self._of_array(np.asarray(array, dtype))
        key = self.text.body, id(array)
        if key not in self._arrays:
            self._arrays[key] = array, self._of_array(np.asarray(array, dtype))
        return self._arrays[key][1]

    def _of_array(self, array: np.ndarray) -> Any:
        if array.dtype.kind != "c":
            return self.text.array(array)
        return Complex(self.text.array(array.real), self.text.array(array.imag))

    def equation(self, equation: Any, operands: list[Value], stack: str) -> Sequence[Value]:
        outer = self.text.source
        place = self._places.setdefault((id(equation), id(outer)), _Place(equation, outer))
        own = str(equation.source_info.name_stack)
        stack = f"{stack}/{own}" if stack and own else stack or own
        name = equation.primitive.name
        count_operation("written")
        with self.text.inside(*(self._kernel or _scope_of_stack(stack)), place):
            try:
                return self._results(equation, operands, stack)
            except Refused as refused:
                reason = f"{name}: {refused}" if str(refused) else name
                return [self._refused(reason, operands, *_data_type(v.aval)) for v in equation.outvars]

    def _refused(self, reason: str, operands: Sequence[Value], dtype: str | None,
                 shape: tuple[int, ...]) -> Any:
        value = self.text.refused(reason, parts_of(operands), PARTS.get(dtype or "", dtype), shape)
        return Complex(value, value) if dtype in PARTS else value

    def _results(self, equation: Any, operands: list[Value], stack: str) -> Sequence[Value]:
        name, params = equation.primitive.name, Params(equation.params)
        if name in INLINED:
            inlined = self._inlined(params, operands, stack)
            params.need_read(UNREAD.get(name, ""))
            return inlined
        if name not in RULES and name not in _complex.OF_BOTH:
            raise Refused(REASONS.get(name, ""))
        call = Call(self.text, params, [atom.aval for atom in equation.invars],
                    [_type(v.aval) for v in equation.outvars],
                    lambda closed, values: self.jaxpr(closed.jaxpr, closed.consts, values, stack),
                    self._in_kernel)
        is_complex = any(isinstance(x, Complex) for x in operands) or any(dtype in PARTS
                                                                          for dtype, _ in call.results)
        written = (_complex.rule_of(name) if is_complex else RULES[name])(call, *operands)
        params.need_read(UNREAD.get(name, ""))
        results: list[Any] = [written] if isinstance(written, (Value, Complex)) else list(written)
        types = [(result.dtype, result.shape) for result in results]
        assert types == call.results, f"{name}: the rule gave {types}, the jaxpr has {call.results}"
        return results

    def _in_kernel(self, closed: Any, operands: Sequence[Value]) -> list[Value]:
        self._kernel = self.text.kernel(), self.text.backward
        try:
            return self.jaxpr(closed.jaxpr, closed.consts, operands, "")
        finally:
            self._kernel = None

    def _inlined(self, params: Mapping[str, Any], operands: list[Value], stack: str) -> Sequence[Value]:
        inner = next(params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in params)
        constrained = [self._constrained(x, s)
                       for x, s in zip(operands, params.get("in_shardings", [None] * len(operands)))]
        if hasattr(inner, "jaxpr"):
            results = self.jaxpr(inner.jaxpr, inner.consts, constrained, stack)
        else:
            results = self.jaxpr(inner, (), constrained, stack)
        return [self._constrained(x, s)
                for x, s in zip(results, params.get("out_shardings", [None] * len(results)))]

    def _constrained(self, x: Any, sharding: Any) -> Any:
        if not isinstance(sharding, NamedSharding):
            return x
        parts: list[Any] = [self.text.marked(part, spec_of(sharding, len(x.shape))) for part in parts_of([x])]
        return parts[0] if len(parts) == 1 else Complex(*parts)


def _data_type(aval: Any) -> tuple[str | None, tuple[int, ...]]:
    """Returns the dtype and shape of a value in the program; typed keys have those of their data."""
    if _tree.is_key(aval):
        return "u32", (*aval.shape, *aval.dtype._impl.key_shape)
    return known_name(aval.dtype), tuple(aval.shape)


def _type(aval: Any) -> tuple[str, tuple[int, ...]]:
    """Returns the dtype and shape of a value. Raises Refused for a dtype that programs lack."""
    dtype, shape = _data_type(aval)
    if dtype is None:
        raise Refused(f"found the dtype {aval.dtype}, needed one that programs have")
    return dtype, shape

