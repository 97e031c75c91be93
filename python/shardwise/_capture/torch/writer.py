"""Captures a training step as a program: torch traces it (trace.py), rules (ops/) write each operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..._arrays.torch_tensors import OURS, array_of, shared_tensor
from ..._errors import InvalidArgument
from ..._programs.text import PARTS, Complex, Refused, Value, parts_of
from ..._progress import count_operation
from ...programs import Program
from .ops import composed as composed
from .ops import elementwise as elementwise
from .ops import fourier as fourier
from .ops import images as images
from .ops import layout as layout
from .ops import linear_algebra as linear_algebra
from .ops import random as _aten_random
from .ops import sums as sums
from .ops.graph import each, result_of
from .ops.rules import Builder, Type, literal
from .trace import Traced, is_computed_with, origin_of, trace


def captured(
    step: Callable[..., Any],
    example: tuple[Any, ...],
    uses: tuple[Any, ...],
    static: Sequence[str],
    assume: Iterable[str],
) -> Program:
    """See capture()."""
    traced = trace(step, example, uses, static, assume)
    writer = Writer()
    outputs = writer.run(traced)
    graph, _ = writer.build.graph(outputs)
    values = _Values(traced, writer)
    return Program(
        graph,
        getattr(step, "__name__", type(step).__name__),
        values.inputs_of,
        values.result_of,
        assumed=traced.assumed,
    )


class Writer:
    """Writes a graph that torch has traced."""

    def __init__(self) -> None:
        self.build = Builder()
        self.kept: list[int] = []  #: the inputs that the program has
        self.replaced: list[int] = []  #: the inputs that its last outputs replace
        #: by input: whether it is complex and computed with, so that it is a pair of real numbers
        self.pairs_in: list[bool] = []
        self.pairs_out: list[bool] = []  #: by output: the same
        self.values: dict[torch.fx.Node, Any] = {}

    def run(self, traced: Traced) -> list[Value]:
        """Writes the step. Returns the outputs: its results, then the state that it changes."""
        nodes = list(traced.graph.graph.nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        returned = next(node for node in nodes if node.op == "output").args[0]
        results, state = returned[:traced.results], returned[traced.results:]
        changed = [origin_of(new) is not placeholder
                   for new, placeholder in zip(state, placeholders, strict=False)]
        wanted = [*results, *(new for new, is_new in zip(state, changed, strict=True) if is_new)]
        live = live_of(nodes, wanted)
        self.kept = [i for i, node in enumerate(placeholders) if not traced.inputs[i].is_fresh
                     or node in live]
        self.replaced = [i for i, is_new in enumerate(changed) if is_new]
        for i in self.kept:
            slot = traced.inputs[i]
            self.give(placeholders[i], slot.label, slot.tensor, slot.kind)
        if any(_aten_random.draws(node.target) for node in live):
            self.build.random_key = self.build.input(_aten_random.KEY, "u64", (), "")
        self.write(traced.graph, live)
        return self.outputs_of(wanted)

    def give(self, placeholder: torch.fx.Node, label: str, tensor: torch.Tensor, kind: str,
             mark: Sequence[str] | None = None) -> None:
        """Makes the placeholder an input of the program. `mark` has the axes that cut each dim. Raises
        InvalidArgument for a dtype that no program has."""
        try:
            type = Type.of(tensor)
        except Refused as refused:
            raise InvalidArgument(f"capture: {label}: {refused}") from None
        self.pairs_in.append(type.dtype in PARTS and is_computed_with(placeholder))
        if self.pairs_in[-1]:
            type = Type(PARTS[type.dtype], (*type.shape, 2))
            mark = None if mark is None else [*mark, "-"]
        input: Value = self.build.input(label, type.dtype, type.shape, kind)
        input = input if mark is None else self.build.marked(input, ",".join(mark))
        self.values[placeholder] = self.build.pair(input) if self.pairs_in[-1] else input

    def write(self, graph: torch.fx.GraphModule, live: set[torch.fx.Node]) -> None:
        """Writes the operations that are live. The inputs have been given before."""
        for node in graph.graph.nodes:
            if node in live and node.op == "get_attr":
                value = getattr(graph, str(node.target))
                self.values[node] = self._literal(value, node) if isinstance(value, torch.Tensor) else value
            elif node in live and node.op == "call_function":
                self._add(node)

    def outputs_of(self, wanted: Sequence[torch.fx.Node]) -> list[Value]:
        """Returns the outputs; complex numbers are pairs of real ones."""
        outputs = [self.values[node] for node in wanted]
        self.pairs_out = [isinstance(output, Complex) for output in outputs]
        return [self.build.in_one(output) if isinstance(output, Complex) else output for output in outputs]

    def _literal(self, tensor: torch.Tensor, node: torch.fx.Node) -> Value | Complex:
        with self.build.inside("", False, _Place("a tensor that the step holds", "")):
            try:
                if tensor.is_complex() and is_computed_with(node):
                    return Complex(literal(self.build, tensor.real), literal(self.build, tensor.imag))
                return literal(self.build, tensor)
            except Refused as refused:
                return self.build.refused(f"a tensor that the step holds: {refused}", (), None,
                                          tuple(tensor.shape))

    def _add(self, node: torch.fx.Node) -> None:
        count_operation("written")
        custom = node.meta.get("custom", {})
        scope, backward = custom.get("scope", ""), custom.get("backward", False)
        operation = (str(node.target) if isinstance(node.target, torch._ops.OpOverload)
                     else f"{getattr(node.target, '__name__', node.target)} of a number")
        with self.build.inside(scope, backward, _Place(operation, scope)):
            try:
                self.values[node] = result_of(self.build, node, self.values)
            except Refused as refused:
                reason = f"{operation}: {refused}" if str(refused) else operation
                values = (self.values[n] for n in node.all_input_nodes)
                operands = [part for part in parts_of(values) if isinstance(part, Value)]
                self.values[node] = each(node.meta["val"], lambda val: self._refused(reason, operands, val))

    def _refused(self, reason: str, operands: Sequence[Value], val: Any) -> Value | Complex:
        dtype, shape = (OURS.get(val.dtype) if isinstance(val, torch.Tensor) else "f64",
                        tuple(getattr(val, "shape", ())))
        part = self.build.refused(reason, operands, PARTS.get(dtype or "", dtype), shape)
        return Complex(part, part) if dtype in PARTS else part


class _Place:
    """An operation, for messages. Its `str` is the module that it belongs to."""

    def __init__(self, operation: str, scope: str) -> None:
        self.operation, self._scope = operation, scope

    def __str__(self) -> str:
        return self._scope.replace("/", ".") or "the step"


def live_of(nodes: Sequence[torch.fx.Node], wanted: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    """Returns the wanted nodes, and all nodes that they are computed from."""
    live = set(wanted)
    for node in reversed(nodes):
        if node in live:
            live.update(node.all_input_nodes)
    return live


# ---- Values.


class _Values:
    """Makes the inputs and takes the outputs of a run: the step's arguments and result, and the state of its
    modules and optimizers. If the step draws random numbers, torch's generator draws their key."""

    def __init__(self, traced: Traced, writer: Writer) -> None:
        self._draws = writer.build.random_key is not None
        self._pairs_in, self._pairs_out = writer.pairs_in, writer.pairs_out
        self._state = [traced.inputs[i] for i in writer.kept if i < traced.state]
        self._replaced = [traced.inputs[i] for i in writer.replaced]
        self._results, self._result_of = traced.results, traced.result_of
        self._tree, self._numbers = traced.arguments, traced.numbers
        self._needs = traced.needs
        labels = [slot.label for slot in traced.inputs[traced.state:]]
        self._asked = [(labels.index(label), label, *value) for label, value in traced.asked.items()]

    def inputs_of(self, args: tuple[Any, ...]) -> Sequence[Any]:
        leaves, tree = pytree.tree_flatten(args)
        if tree != self._tree:
            raise InvalidArgument(f"run: found arguments of the tree {tree}, needed {self._tree}, "
                                  "as at the capture")
        for leaf, known in zip(leaves, self._numbers, strict=True):
            is_tensor = isinstance(leaf, torch.Tensor)
            if is_tensor != (known is torch.Tensor) or (not is_tensor and leaf != known):
                needed = "a tensor" if known is torch.Tensor else f"{known!r}, which is part of the program"
                raise InvalidArgument(f"run: found the argument {leaf!r}, needed {needed}")
        for need in self._needs:
            need()
        arguments = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        for place, label, value, line in self._asked:
            if not torch.equal(arguments[place], value):
                raise InvalidArgument(f"run: found other values of {label} than at the capture, needed the "
                                      f"same: {line} asks for them, so that they are part of the program")
        key = [array_of(torch.empty((),
                                    dtype=torch.int64).random_().view(torch.uint64))] if self._draws else []
        tensors = [*(slot.value() for slot in self._state), *arguments]
        real = [torch.view_as_real(tensor.resolve_conj()) if is_pair else tensor
                for tensor, is_pair in zip(tensors, self._pairs_in, strict=True)]
        return [*map(array_of, real), *key]

    def result_of(self, arrays: Sequence[Any]) -> Any:
        tensors = [torch.view_as_complex(shared_tensor(array).clone(memory_format=torch.contiguous_format))
                   if is_pair else shared_tensor(array)
                   for array, is_pair in zip(arrays, self._pairs_out, strict=True)]
        for slot, tensor in zip(self._replaced, tensors[self._results:], strict=True):
            slot.give(tensor)
        return self._result_of(tensors[:self._results])
