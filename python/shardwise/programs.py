"""Plans training steps on a mesh, explains the plans, and runs them on emulated devices. No accelerator is
needed.

    import shardwise.jax as swj

    program = swj.capture(train_step, params, opt_state, batch)   # traced by JAX; nothing is computed
    program.mark({"params/*/kernel": "-,model", "batch/*": "data,-"})
    plan = program.plan("data=4,model=2", capacity=16 << 30)
    print(plan.report())                                          # memory, traffic, and changes to fit
    params, opt_state, loss = plan.run(params, opt_state, batch)  # on 8 emulated devices

    program.save("step.swp")                                      # `shardwise plan step.swp --mesh data=8`
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import numpy as np

from . import _core
from ._core import Change as Change
from ._core import Changes as Changes
from ._core import Cost as Cost
from ._core import Edit as Edit
from ._core import Input as Input
from ._core import MeshPlan as MeshPlan
from ._core import Searched as Searched
from ._core import Storage as Storage
from ._core import Traffic as Traffic
from ._core import WhyNot as WhyNot
from ._argument_types import check_calls
from ._dtypes import NUMPY, exported
from ._errors import InvalidArgument, IOFailed, Unsupported
from ._paths import Path, local
from ._programs.html import small_html
from ._progress import WorkLine
from ._sharding import Entry, Mesh, PartitionSpec

_MeshLike = str | Mesh | Mapping[str, int]
_MOST_DEVICES = 1 << 20  #: the limit of `shardwise plan`: plans of more devices fill most machines' memory

_InputsOf = Callable[[tuple[Any, ...]], Sequence[Any]]
_ResultOf = Callable[[Sequence[np.ndarray]], Any]


class Program:
    """One step, written as if for one device, and the marks that say how tensors are cut over a mesh.
    shardwise.jax.capture, shardwise.torch.capture and load() make it."""

    def __init__(
        self,
        graph: _core.Graph,
        name: str = "program",
        inputs_of: _InputsOf | None = None,
        result_of: _ResultOf | None = None,
        sources: Sequence[object] = (),
        assumed: Sequence[str] = (),
    ) -> None:
        """Front ends call it: inputs_of makes the inputs from the arguments of run(), result_of makes its
        result from the outputs; the str of a source is the line that a node comes from. assumed: lines of
        checks that are taken to pass."""
        self.assumed = tuple(assumed)
        self._graph, self._name, self._sources = graph, name, sources
        self._inputs_of = inputs_of or self._by_label
        self._result_of = result_of or list

    @property
    def inputs(self) -> list[Input]:
        return self._graph.inputs

    @property
    def text(self) -> str:
        """All operations, one on each line: docs/programs.md, "The text"."""
        return self._graph.text

    def __len__(self) -> int:
        """Returns the number of its operations."""
        return self._graph.size

    def __repr__(self) -> str:
        return f"<Program {self._name}: {len(self)} operations, {len(self._graph.inputs)} inputs>"

    def source(self, node: str | int) -> str:
        """Returns the line of the captured function that an operation comes from: source("%98"). "" if it is
        unknown, as in a program from a file."""
        number = self._number(node)
        return str(self._sources[number] or "") if number < len(self._sources) else ""

    def _number(self, node: str | int) -> int:
        number = (int(node.removeprefix("%")) if isinstance(node, str) and node.removeprefix("%").isdigit()
                  else node)
        if not isinstance(number, int) or not 0 <= number < len(self):
            raise InvalidArgument(f"explain: found {node!r}, needed an operation from %0 to %{len(self) - 1}")
        return number

    def mark(self, marks: Mapping[str, str | PartitionSpec | Sequence[Entry]]) -> Program:
        """Marks inputs by patterns of their labels, as {"params/*/kernel": "-,model", "batch/*": "data,-"},
        and with a weight the output that replaces it; the first pattern that matches counts, and "-" is whole
        in any rank. Inputs that no pattern matches keep their marks. Returns this program. Raises
        InvalidArgument if a spec does not fit a tensor, NameNotFound for a pattern that matches nothing."""
        rules = []
        for pattern, spec in marks.items():
            known = isinstance(spec, (str, PartitionSpec))
            rules.append(f"{pattern}={spec if known else PartitionSpec(*spec)}")
        self._graph = self._graph.marked(_core.SpecRules.parse(";".join(rules)))
        return self

    def plan(self, mesh: _MeshLike, capacity: int | None = None, attention: str = "fused") -> Plan:
        """Plans the work and memory of each device of the mesh. Nothing runs. capacity: bytes of a device,
        for Plan.fits; run() takes no more. attention: "fused", as torch runs scaled_dot_product_attention on
        a GPU, without memory for its scores, or "written", with the scores of one layer at a time. Raises
        NameNotFound for a mark over an axis that the mesh lacks."""
        return self._planned(mesh, capacity, to_run=False, attention=attention)

    def _graph_with(self, attention: str) -> _core.Graph:
        if attention not in ("fused", "written"):
            raise InvalidArgument(f"plan: attention: found {attention!r}, needed \"fused\" or \"written\"")
        return self._graph if attention == "fused" else self._graph.with_written_attention()

    def _planned(self, mesh: _MeshLike, capacity: int | None, to_run: bool, attention: str = "fused") -> Plan:
        if capacity is not None and capacity < 1:
            raise InvalidArgument(f"plan: capacity: found {capacity}, needed at least 1 byte, or None")
        whole = mesh if isinstance(mesh, Mesh) else Mesh(mesh)
        if whole.size > _MOST_DEVICES:
            raise Unsupported(f"plan: found a mesh of {whole.size} devices, needed at most {_MOST_DEVICES}")
        graph = self._graph_with(attention)
        return Plan(_core.Executable(graph, whole._mesh, to_run), self, graph, whole, capacity, to_run)

    def to_html(self, mesh: _MeshLike, path: Path | None = None, *, capacity: int | None = None,
                machine: str | None = None, attention: str = "fused") -> str | None:
        """Returns plan(mesh, capacity, attention).to_html(path, machine=machine)."""
        plan = self.plan(mesh, capacity, attention)
        return plan.to_html(machine=machine) if path is None else plan.to_html(path, machine=machine)

    def meshes(self, devices: int, machine: str | None = None, capacity: int | None = None, *,
               search: bool = False, progress: bool = True, attention: str = "fused") -> list[MeshPlan]:
        """Plans the program on all meshes of this number of devices, up to 4096, with the axes that its marks
        name: plans that fit come first, then the shortest modelled time, then the lowest peak. machine:
        "h100-80gb", "h200", "a100-80gb", "tpu-v4", "tpu-v5e" or "tpu-v5p", for times and, without a capacity,
        for the memory. If its nodes are smaller, the last axis of each mesh, whose devices are neighbours, is
        the best one. Raises InvalidArgument for a program without marks.

        search: takes the marks that search() chooses on each mesh, which needs the machine and no marks: if
        they name fewer than two axes, data and model are added. progress: on a terminal, work of more than
        two seconds is shown on stderr; False: never. attention: as plan() has it."""
        graph = self._graph_with(attention)
        if search and machine is None:
            raise InvalidArgument("compare meshes: found a search without a machine, "
                                  "needed the machine of its times")
        with WorkLine("search" if search else "compare meshes", progress):
            return graph.meshes(devices, machine, capacity or 0, search)

    def search(self, mesh: _MeshLike | None = None, machine: str | None = None, capacity: int | None = None,
               *, devices: int | None = None, progress: bool = True, attention: str = "fused") -> Searched:
        """Chooses marks of parameters, their optimizer state and data: the fastest, by times modelled on the
        machine, that fits its memory or the capacity. Plans all choices of a small program, else a bounded
        number: up to a minute for a large one. This program keeps its marks. The choice is never worse than
        they are, or than Searched.hand_made.

        devices: instead of a mesh, takes the best of meshes(devices, search=True). progress, attention: as
        meshes() has them. Raises InvalidArgument without a machine, and Unsupported if no mesh can be
        planned."""
        if (mesh is None) == (devices is None) or machine is None:
            choice = ("no machine" if machine is None else "neither a mesh nor devices=" if mesh is None
                      else "a mesh and devices=")
            raise InvalidArgument(f'search: found {choice}, needed a mesh or devices=, '
                                  'and the machine of the times: search("data=4,model=2", "h100-80gb")')
        if mesh is None:
            best = self.meshes(devices or 0, machine, capacity, search=True, progress=progress,
                               attention=attention)[0]
            if best.searched is None:
                raise Unsupported(f"search: {best.mesh}: {best.refused}")
            return best.searched
        whole = mesh if isinstance(mesh, Mesh) else Mesh(mesh)
        with WorkLine("search", progress):
            return self._graph_with(attention).search(whole._mesh, machine, capacity or 0)

    def run(self, *args: Any, devices: int | None = None, mesh: _MeshLike | None = None) -> Any:
        """Returns plan(mesh).run(*args). devices: that many along the axis that the marks name, instead of a
        mesh."""
        if (devices is None) == (mesh is None):
            raise InvalidArgument("run: found " + ("neither" if mesh is None else "both")
                                  + ", needed devices= or mesh=")
        return self._planned(mesh if mesh is not None else self._line_of(devices
                                                                         or 0), None, to_run=True).run(*args)

    def _line_of(self, devices: int) -> Mesh:
        axes = self._graph.axes or ["devices"]
        if len(axes) > 1 and devices != 1:
            raise InvalidArgument(f"run: found devices={devices} and marks over the axes {', '.join(axes)}, "
                                  f"needed mesh=, as in mesh=\"{axes[0]}=4,{axes[1]}=2\"")
        return Mesh({axis: devices for axis in axes})

    def _by_label(self, args: tuple[Any, ...]) -> list[Any]:
        labels = [input.label for input in self._graph.inputs]
        if len(args) != 1 or not isinstance(args[0], Mapping):
            raise InvalidArgument(f"run: found {len(args)} arguments, "
                                  "needed one mapping of labels to arrays: the program is from a file")
        lacking = [label for label in labels if label not in args[0]]
        if lacking:
            raise InvalidArgument(f"run: found no {', '.join(lacking[:10])}, needed an array for each input")
        return [args[0][label] for label in labels]

    def save(self, path: Path) -> None:
        """Writes the text, and PATH.safetensors if there are literals: the files that `shardwise plan` and
        load() read. Raises IOFailed."""
        self._graph.save(local(path, "save a program"))


class Plan:
    """A program on a mesh, planned to the byte: a run needs peak_bytes and sends as many bytes as planned."""

    def __init__(self, executable: _core.Executable, program: Program, graph: _core.Graph, mesh: Mesh,
                 capacity: int | None, to_run: bool) -> None:
        self._executable, self._program, self._graph, self._runs = executable, program, graph, to_run
        self.mesh, self.capacity = mesh, capacity
        self.peak_bytes = executable.peak_bytes  #: the bytes of the device that needs most

    @property
    def bytes_by_kind(self) -> dict[str, int]:
        """The bytes of the peak by kind: "parameter", "optimizer", "loader", "activation", "gradient", .."""
        return dict(self._executable.bytes_by_kind)

    @property
    def traffic(self) -> list[Traffic]:
        """The collectives of a step. Those that no mark asks for come first; then the order is by bytes."""
        return self._executable.traffic

    @property
    def wire_bytes(self) -> dict[tuple[str, str], int]:
        """The bytes that one device sends, by collective and axes: {("all-reduce", "data"): 4096}."""
        total: dict[tuple[str, str], int] = {}
        for traffic in self.traffic:
            key = traffic.collective, "+".join(traffic.axes)
            total[key] = total.get(key, 0) + traffic.wire_bytes
        return total

    @property
    def fits(self) -> bool | None:
        """True if every device has room; None without a capacity."""
        return None if self.capacity is None else self.peak_bytes <= self.capacity

    def suggest(self, capacity: int) -> str:
        """Returns marks with which no device needs more bytes than that, or the fewest that it found."""
        return self._executable.suggest(capacity)

    def spec(self, label: str) -> PartitionSpec:
        """Returns the cut of an input. Raises NameNotFound."""
        labels = [input.label for input in self._program.inputs]
        if label not in labels:
            self._executable.explain(label)  # raises, with the nearest labels
        return PartitionSpec.parse(str(self._executable.input_spec(labels.index(label))))

    def explain(self, what: str) -> str:
        """Explains the cut of an input, by its label, or of an operation, as "%98": the marks that it comes
        from, the tensors that were moved for it, and the alternatives. Raises NameNotFound,
        InvalidArgument."""
        if not what.startswith("%"):
            return self._executable.explain(what)
        source = self._program.source(what)
        text = self._executable.explain_node(self._program._number(what))
        return f"{text}  from {source}\n" if source else text

    def changes(self, machine: str | None = None, *, progress: bool = True) -> Changes:
        """Returns changes that would make the step fit the capacity: marks of inputs over one more axis each,
        another mesh of as many devices, a smaller batch, blocks that are computed again; from each kind it
        takes the cheapest one, or the one that comes nearest. machine: for modelled times and, without a
        capacity, for the memory. Plans each change that it tries. progress: as Program.meshes() has it.
        Raises InvalidArgument without capacity and machine."""
        if self.capacity is None and machine is None:
            raise InvalidArgument("changes: found neither a capacity nor a machine, needed one: "
                                  "what has to fit")
        with WorkLine("compare changes", progress):
            return self._executable.changes(self._graph, machine, self.capacity or 0)

    def why(self, what: str) -> str:
        """Names, for an input by its label or an operation as "%98", the mark that cuts each dim, with the
        line that the marked tensor comes from. Raises NameNotFound."""
        return self._executable.why(what, self._lines())

    def why_not(self, what: str, spec: str | PartitionSpec, machine: str | None = None, *,
                progress: bool = True) -> WhyNot:
        """Returns the reasons why a tensor is not cut so, the cost of that cut, and the marks of other inputs
        that would bring it. machine: for modelled times. progress: as Program.meshes() has it. Raises
        NameNotFound, InvalidArgument."""
        wanted = spec if isinstance(spec, PartitionSpec) else PartitionSpec.parse(spec)
        with WorkLine("compare marks", progress):
            return self._executable.why_not(self._graph, what, wanted._spec, self._lines(), machine,
                                            self.capacity or 0)

    def _lines(self) -> list[str]:
        return [str(source or "") for source in self._program._sources]

    @property
    def storage(self) -> Storage:
        """Bytes of a checkpoint and of the input."""
        return self._executable.storage

    def report(self, machine: str | None = None, save_rate: float | None = None, *,
               search: Searched | None = None, changes: Changes | None = None) -> str:
        """Returns a page for people, as `shardwise plan` prints it. machine: "h100-80gb" or another of
        meshes(), for modelled times. save_rate: bytes a second that checkpoints are written with. search,
        changes: the results of search() and changes() for this plan, which the page then has; a search needs
        the machine. Checks that the capture has taken to pass are listed at its end."""
        page = self._executable.page(self._how(machine, save_rate, search, changes))
        assumed = "".join(f"\n  {line}" for line in self._program.assumed)
        return f"{page.rstrip()}\n\nassumed to pass:{assumed}\n" if assumed else page

    def to_json(self, machine: str | None = None, save_rate: float | None = None, *,
                search: Searched | None = None, changes: Changes | None = None) -> dict[str, Any]:
        """Returns the numbers of report(), as `shardwise plan STEP --json` prints them."""
        numbers: dict[str, Any] = json.loads(
            self._executable.json(self._how(machine, save_rate, search, changes)))
        return numbers

    def _how(self, machine: str | None, save_rate: float | None, search: Searched | None,
             changes: Changes | None) -> _core.PageOptions:
        if search is not None and machine is None:
            raise InvalidArgument("tell a plan: found a search without a machine, "
                                  "needed the machine of its times")
        return _core.PageOptions(self._program._name, self.capacity or 0, machine, save_rate or 0.0, search,
                                 changes)

    @overload
    def to_html(self, path: None = None, *, machine: str | None = None, save_rate: float | None = None,
                search: Searched | None = None, changes: Changes | None = None) -> str: ...
    @overload
    def to_html(self, path: Path, *, machine: str | None = None, save_rate: float | None = None,
                search: Searched | None = None, changes: Changes | None = None) -> None: ...
    def to_html(self, path: Path | None = None, *, machine: str | None = None, save_rate: float | None = None,
                search: Searched | None = None, changes: Changes | None = None) -> str | None:
        """Makes one page for a browser, which needs no network: memory over the step, collectives on a
        timeline, the inputs with the reasons of their cuts and their tiles on each device, tables; and the
        results of search() and changes(). Its numbers are those of to_json(). It is written to path; without
        one, it is returned. Raises IOFailed."""
        page = self._executable.html(self._how(machine, save_rate, search, changes), self._lines())
        if path is None:
            return page
        try:
            pathlib.Path(local(path, "write a page")).write_text(page, encoding="utf-8")
        except OSError as error:
            raise IOFailed(f"write a page: {error}") from error
        return None

    def _repr_html_(self) -> str:
        return small_html(self.to_html())

    def run(self, *args: Any, threads: int = 0) -> Any:
        """Returns the result of the step, which emulated devices compute: arguments and result are trees of
        arrays as the captured function has them. A program from a file takes a mapping of labels to arrays
        and gives a list. Raises InvalidArgument for arrays of another shape or dtype, ResourceExhausted if
        the capacity is too small."""
        program = self._program
        arrays = [_fitting(value, input) for value, input in zip(program._inputs_of(args), program.inputs)]
        results = [np.empty(shape, NUMPY[dtype]) for dtype, shape in program._graph.outputs]
        # The places of bytes are planned when they are needed: on a large mesh that takes long.
        if not self._runs:
            self._executable, self._runs = _core.Executable(self._graph, self.mesh._mesh, True), True
        self._executable.run([*map(exported, arrays)], [*map(exported, results)], self.capacity or 0, threads)
        return program._result_of(results)


def _fitting(value: Any, input: Input) -> np.ndarray:
    """Returns an input's array, row-major. A Python number gets the dtype that is needed."""
    dtype = NUMPY[input.dtype]
    array = np.asarray(value, dtype if isinstance(value, (bool, int, float)) else None, order="C")
    if array.dtype != dtype or array.shape != input.shape:
        raise InvalidArgument(f"run: {input.label}: found {array.dtype}{list(array.shape)}, "
                              f"needed {dtype}{list(input.shape)}")
    return array


def load(path: Path) -> Program:
    """Reads a program from a file that save(), or save_program() in C++, wrote. Raises NotFound,
    InvalidArgument, IOFailed."""
    name = local(path, "load a program")
    return Program(_core.Graph.load(name), name=name)

check_calls(__name__)
