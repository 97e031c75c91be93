"""Runs the graphs of torch.compile(step, backend="shardwise") as programs on emulated devices."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo import trace_rules
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func

from ... import _core
from ..._arrays.torch_tensors import array_of, shared_tensor
from ..._errors import InvalidArgument, Unsupported
from ...programs import Program
from .decompositions import decompositions
from .writer import Writer, live_of

OPTIONS = ("mesh", "marks")

trace_rules.add("shardwise")  # Dynamo must not trace our records of operations


def backend(graph: torch.fx.GraphModule, example: Sequence[Any], *,
            options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Compiles a graph for torch.compile. options: "mesh" for Program.plan(), and "marks" by patterns of
    labels for Program.mark(); patterns that match no input of a graph are skipped. Raises Unsupported,
    InvalidArgument."""
    known = dict(options or {})
    if set(known) - set(OPTIONS):
        raise InvalidArgument(f"torch.compile: found the options {sorted(known)}, "
                              f"needed some of {', '.join(OPTIONS)}")
    names = [_label(node.name) for node in graph.graph.nodes if node.op == "placeholder"]

    def compiled(traced: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return _compiled(traced, names, known)

    function: Callable[..., Any] = aot_autograd(fw_compiler=compiled, decompositions=decompositions())(
        graph, example)
    return function


def _label(name: str) -> str:
    """Returns the label of a name of Dynamo: "model.fc1.weight" for g_model_modules_fc1_parameters_weight_,
    "x" for l_x_."""
    return re.sub(r"_(?:modules|parameters|buffers)_", ".", re.sub(r"^[a-zA-Z]_|_$", "", name))


def _name_of(placeholder: str, names: Sequence[str]) -> str:
    """Returns the name of an input of a derived graph, whose inputs torch counts from primals_1 or arg0_1."""
    match = re.fullmatch(r"primals_(\d+)|arg(\d+)_1", placeholder)
    place = -1 if not match else int(match[1]) - 1 if match[1] else int(match[2])
    return names[place] if 0 <= place < len(names) else placeholder


def _compiled(traced: torch.fx.GraphModule, names: Sequence[str],
              options: Mapping[str, Any]) -> Callable[..., Any]:
    nodes = list(traced.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    returned = next(node for node in nodes if node.op == "output").args[0]
    wanted = [node for node in returned if isinstance(node, torch.fx.Node)]
    writer = Writer()
    for node in placeholders:
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            raise Unsupported(f"torch.compile: found a size that changes from call to call ({node.name}), "
                              "needed dynamic=False")
        writer.give(node, _name_of(node.name, names), value, "loader")
    writer.write(traced, live_of(nodes, wanted))
    outputs = writer.outputs_of(wanted)
    program_graph = writer.build.graph(outputs)[0]
    if any([*writer.pairs_in, *writer.pairs_out]):
        raise Unsupported("torch.compile: found complex tensors, needed real ones: view_as_real()")
    program = Program(program_graph, "graph", lambda args: args[0])
    labels = [program_input.label for program_input in program.inputs]
    program.mark({pattern: spec for pattern, spec in options.get("marks", {}).items()
                  if not _core.SpecRules.parse(f"{pattern}=-").unmatched(labels)})
    plan = program.plan(options.get("mesh", "devices=1"))

    def run(*arguments: torch.Tensor) -> list[Any]:
        results = iter(plan.run([array_of(argument) for argument in arguments]))
        return [shared_tensor(next(results)) if isinstance(node, torch.fx.Node) else node
                for node in returned]

    boxed: Callable[..., Any] = make_boxed_func(run)
    return boxed
