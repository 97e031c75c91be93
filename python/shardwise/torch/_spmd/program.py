"""Writes recordings of the emulated device as programs by the rules of capture. A recording that recurs is
planned once."""

from __future__ import annotations

import atexit
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._functorch._aot_autograd.functional_utils import to_fun
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.fx import traceback as fx_traceback
from torch.utils import _pytree as pytree

from ... import _core
from ..._arrays.torch_tensors import array_of, shared_tensor
from ..._capture.torch.ops.rules import Builder, Type, rule
from ..._capture.torch.trace import graph_of, in_words, plain, without_memory
from ..._capture.torch.writer import Writer, live_of
from ..._errors import InvalidArgument, Unsupported
from ..._programs.text import Value
from ..._sharding import PartitionSpec
from ...programs import Plan, Program
from .mesh import Mesh, Placement, ProgramMesh, global_runtime_device_count
from .recording import Call, Recording, Ref, Root
from .tensors import Hooks

MOST_PROGRAMS = 128  #: the most programs that are kept, the last used ones
MACHINE = "tpu-v4"  #: the machine whose modelled times a search for marks compares


@dataclass
class Auto:
    """The mesh over which marks are searched for a step without marks; None: no search."""

    mesh: Mesh | None = None


auto = Auto()

_library: Any = torch.library.Library("shardwise", "DEF")  # type: ignore[no-untyped-call]
_library.define("mark_sharding(Tensor x, str spec) -> Tensor")
_library.define("enter_manual(Tensor x, str spec, int[] shape) -> Tensor")
_library.define("leave_manual(Tensor x, str spec, int[] shape) -> Tensor")
_library.impl("mark_sharding", lambda x, spec: x.clone(), "CompositeExplicitAutograd")
_library.impl("enter_manual", lambda x, spec, shape: x.new_empty(shape), "CompositeExplicitAutograd")
_library.impl("leave_manual", lambda x, spec, shape: x.new_empty(shape), "CompositeExplicitAutograd")


@rule("mark_sharding")
def _marked(build: Builder, out: Type, x: Value, spec: str) -> Value:
    return build.marked(x, spec)


@rule("enter_manual")
def _enter_manual(build: Builder, out: Type, x: Value, spec: str, _: Sequence[int]) -> Value:
    return build.node("enter_manual", (x,), out.dtype, out.shape, f' "{spec}" dims=[1]')


@rule("leave_manual")
def _leave_manual(build: Builder, out: Type, x: Value, spec: str, _: Sequence[int]) -> Value:
    return build.node("leave_manual", (x,), out.dtype, out.shape, f' "{spec}" dims=[1]')


@dataclass
class Input:
    """An input of the program. mark: its cut, by its mark or by the run that made it; None is whole."""

    number: int
    root: Root
    value: torch.Tensor
    mark: Placement | None
    kind: str


@dataclass
class _Known:
    """A program with the floats of its recording, which are constants of it, except those that have
    changed."""

    floats: list[float]
    changing: frozenset[int]
    step: _Planned


class Step:
    """A recording with its inputs, calls and wanted results. Recordings of one key have the same program,
    except for numbers."""

    def __init__(self, recording: Recording) -> None:
        self.calls = recording.calls
        alive = [(number, ref()) for number, ref in sorted(recording.changed.items())]
        self.wanted = [(number, root) for number, root in alive if root is not None]
        changed = {number for number, _ in self.wanted}
        self.inputs = [Input(number, root, value, root.mark or root.placement, "parameter"
                             if root.is_parameter else "optimizer" if number in changed else "loader")
                       for number, root, value in recording.inputs]
        self.floats = [leaf for call in self.calls for leaf in call.leaves if type(leaf) is float]
        self.auto = (None if self._marks() or not any(own.kind == "parameter" for own in self.inputs)
                     else auto.mesh)
        if self.auto is not None:
            for own in self.inputs:
                own.mark = None

    def key(self) -> tuple[Any, ...]:
        """Returns a hashable key."""
        calls = tuple((call.func, _tree_number(call.tree),
                       tuple(float if type(leaf) is float else leaf for leaf in call.leaves),
                       tuple(type(leaf) for leaf in call.leaves), tuple(call.results), call.backward)
                      for call in self.calls)
        inputs = tuple((own.number, own.root.meta.dtype, own.root.meta.shape, own.root.meta.stride(),
                        own.mark, own.kind) for own in self.inputs)
        return (calls, inputs, tuple((number, root.mark) for number, root in self.wanted),
                global_runtime_device_count(), self.auto)

    def _marks(self) -> list[Placement]:
        """Returns the marks of the user."""
        marks = [own.root.mark for own in self.inputs] + [root.mark for _, root in self.wanted]
        marks += [leaf for call in self.calls for leaf in call.leaves if isinstance(leaf, Placement)]
        return [mark for mark in marks if mark]

    def mesh(self) -> ProgramMesh:
        """Returns the mesh of all marks. A value whose cut does not fit that mesh comes whole. Raises
        InvalidArgument if marks do not fit together."""
        meshes = [self.auto] if self.auto else [mark.mesh for mark in self._marks()]
        for own in self.inputs:
            try:
                ProgramMesh([*meshes, own.mark.mesh] if own.mark else meshes or [_SINGLE])
            except InvalidArgument:
                if own.root.mark:
                    raise
                own.mark = None
            else:
                meshes += [own.mark.mesh] if own.mark else []
        return ProgramMesh(meshes or [_SINGLE])


_SINGLE = Mesh([0], (1,))  #: the mesh of a program without marks
_trees: dict[str, int] = {}


def _tree_number(tree: pytree.TreeSpec) -> int:
    return _trees.setdefault(repr(tree), len(_trees))


class _Planned:
    """The program of a step, planned."""

    def __init__(self, step: Step, changing: frozenset[int]) -> None:
        self.mesh = step.mesh()
        self._changing = sorted(changing)
        writer = Writer()
        graph = self._traced(step)
        nodes = list(graph.graph.nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        returned = next(node for node in nodes if node.op == "output").args[0]
        manual = _manual(nodes)
        self._wanted = [place for place, node in enumerate(returned) if node not in manual]
        live = live_of(nodes, [returned[place] for place in self._wanted])
        self._live = [place for place, node in enumerate(placeholders) if node in live]
        for place in self._live:
            self._give(writer, placeholders[place], step, place)
        writer.write(graph, live)
        outputs = self._marked(writer, writer.outputs_of([returned[place] for place in self._wanted]), step)
        self._pairs_in, self._pairs_out = writer.pairs_in, writer.pairs_out
        program = Program(writer.build.graph(outputs)[0], "step", lambda args: args[0])
        if step.auto:
            program.mark(program.search(self.mesh.core, MACHINE).marks)
        self.plan = Plan(_core.Executable(program._graph, self.mesh.core._mesh, True), program,
                         program._graph, self.mesh.core, None, True)
        self._results = [self._placement(place) for place in range(len(outputs))]

    def _traced(self, step: Step) -> torch.fx.GraphModule:
        def replayed(tensors: list[torch.Tensor]) -> list[Any]:
            with FunctionalTensorMode(), fx_traceback.preserve_node_meta(), torch.no_grad():
                own = [to_fun(tensor) for tensor in tensors]
                numbers = dict(zip(self._changing, (tensor.item() for tensor in own[len(step.inputs):])))
                values = {known.number: tensor for known, tensor in zip(step.inputs, own)}
                floats = iter(range(len(step.floats)))
                for call in step.calls:
                    self._replay(call, values, lambda leaf: numbers.get(next(floats), leaf))
                fx_traceback.current_meta.pop("custom", None)
                return [plain(values[number]) for number, _ in step.wanted]

        with without_memory(), in_words():
            like = [torch.empty_strided(own.root.meta.shape, own.root.meta.stride(),
                                        dtype=own.root.meta.dtype) for own in step.inputs]
            return graph_of(replayed,
                            [*like, *(torch.empty((), dtype=torch.float64) for _ in self._changing)])

    def _replay(self, call: Call, values: dict[int, Any], number: Callable[[float], Any]) -> None:
        leaves = [values[leaf.number] if isinstance(leaf, Ref) else number(leaf) if type(leaf) is float
                  else ",".join(self.mesh.entries_of(leaf)) if isinstance(leaf, Placement) else leaf
                  for leaf in call.leaves]
        fx_traceback.current_meta["custom"] = {"scope": call.scope, "backward": call.backward}
        args, kwargs = pytree.tree_unflatten(leaves, call.tree)
        for result, value in zip(call.results, pytree.tree_leaves(call.func(*args, **kwargs))):
            if result is not None:
                values[result] = value

    def _give(self, writer: Writer, placeholder: torch.fx.Node, step: Step, place: int) -> None:
        """Gives the writer an input of the program. An input without a mark is whole on each device, as in
        PyTorch/XLA."""
        if place >= len(step.inputs):
            writer.give(placeholder, f"number{place - len(step.inputs)}",
                        torch.empty((), dtype=torch.float64), "loader")
            return
        own = step.inputs[place]
        spec = (self.mesh.entries_of(own.mark) if own.mark else None if step.auto
                else ["-"] * own.root.meta.dim())
        writer.give(placeholder, f"{own.kind}{place}", own.root.meta, own.kind, spec)

    def _marked(self, writer: Writer, outputs: Sequence[Value], step: Step) -> list[Value]:
        """Returns the outputs; an output that replaces a marked tensor gets its mark."""
        marked = []
        for value, place, is_pair in zip(outputs, self._wanted, writer.pairs_out, strict=True):
            mark = step.wanted[place][1].mark
            text = ",".join([*self.mesh.entries_of(mark), *["-"] * is_pair]) if mark else ""
            marked.append(writer.build.marked(value, text) if mark else value)
        return marked

    def _placement(self, place: int) -> Placement | None:
        spec = PartitionSpec.parse(str(self.plan._executable.output_spec(place)))
        placement = self.mesh.placement(spec, len(spec) - self._pairs_out[place])
        return placement if max(placement.tiles, default=1) > 1 else None

    def run(self, step: Step) -> None:
        """Gives the tensors of the step their values. Raises InvalidArgument."""
        if len(self._wanted) < len(step.wanted):
            self._refuse_manual([root
                                 for place, (_, root) in enumerate(step.wanted) if place not in self._wanted])
        numbers = [torch.tensor(step.floats[place], dtype=torch.float64) for place in self._changing]
        values = [*(own.value for own in step.inputs), *numbers]
        arrays = [array_of(torch.view_as_real(values[place].resolve_conj()) if is_pair else values[place])
                  for place, is_pair in zip(self._live, self._pairs_in, strict=True)]
        for place, array, is_pair, placement in zip(self._wanted, self.plan.run(arrays), self._pairs_out,
                                                    self._results, strict=True):
            root, value = step.wanted[place][1], shared_tensor(array)
            root.value, root.placement = (_as(root.meta, torch.view_as_complex(value) if is_pair else value),
                                          placement)

    def _refuse_manual(self, roots: Sequence[Root]) -> None:
        reason = ("found one of a manual region, which differs on each device, "
                  "needed disable_manual_sharding() of it")
        for root in roots:
            root.failed = reason
            if root.value is not None:
                raise InvalidArgument(f"mark_step: a tensor of {list(root.meta.shape)}, changed in place: "
                                      f"{reason}")


def _manual(nodes: Sequence[torch.fx.Node]) -> set[torch.fx.Node]:
    """Returns the nodes of a manual region, whose values differ between devices."""
    manual: set[torch.fx.Node] = set()
    for node in nodes:
        if node.target is torch.ops.shardwise.enter_manual.default:
            manual.add(node)
        elif node.target is not torch.ops.shardwise.leave_manual.default and manual.intersection(
                node.all_input_nodes):
            manual.add(node)
    return manual


def _as(meta: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Returns the value in the memory layout that torch expects."""
    if meta.is_contiguous():
        return value
    return torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype).copy_(value)


_known: OrderedDict[tuple[Any, ...], _Known] = OrderedDict()
last: list[Plan] = []  #: the plan of the program that ran last
atexit.register(_known.clear)  # before Python clears their modules
atexit.register(last.clear)


def _planned_of(step: Step) -> _Planned:
    key = step.key()
    known = _known.get(key)
    if known is None:
        known = _known[key] = _Known(step.floats, frozenset(), _Planned(step, frozenset()))
    _known.move_to_end(key)
    while len(_known) > MOST_PROGRAMS:
        _known.popitem(last=False)
    others = {place for place, (now, then) in enumerate(zip(step.floats, known.floats))
              if now.hex() != then.hex()} - known.changing
    if others:
        changing = known.changing | others
        try:
            known.step, known.changing = _Planned(step, changing), changing
        except (NotImplementedError, RuntimeError, TypeError,
                ValueError):  # the step branches on the number, so each number has a program
            known.step = _Planned(step, known.changing)
        known.floats = step.floats
    return known.step


def run(recording: Recording) -> None:
    """Gives live results their values. Raises Unsupported or InvalidArgument; a later use of a tensor without
    a value raises the same."""
    step = Step(recording)
    if not step.wanted:
        return
    try:
        planned = _planned_of(step)
        planned.run(step)
    except Exception as error:
        message = re.sub("^(capture|run): ", "mark_step: ", str(error))
        for _, root in step.wanted:
            if root.value is None:
                root.failed = f"its step failed: {message}"
        if isinstance(error, (Unsupported, InvalidArgument)):
            raise type(error)(message) from None
        raise
    last[:] = [planned.plan]


Hooks.run = run
