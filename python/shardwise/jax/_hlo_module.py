"""A module of StableHLO as a program: reads it, calls its inputs, and has the rest written (_hlo_writer.py)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jaxlib.version
import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from .. import _core
from .._dtypes import NUMPY
from .._errors import InvalidArgument, NotFound, Unsupported
from .._program_text import PARTS, Complex, ProgramText, Refused
from .._sharding import Mesh
from ..programs import Program
from . import _hlo_bytecode
from . import _hlo_complex as _hlo_complex  # its rules
from . import _hlo_linear_algebra as _hlo_linear_algebra
from . import _hlo_loops as _hlo_loops
from . import _hlo_ops as _hlo_ops
from . import _hlo_regions as _hlo_regions
from ._hlo_marks import GspmdMesh, shardy_meshes, shardy_specs
from ._hlo_writer import DOING, RETURNS, Writer, operations_of, parts_of
from ._jaxpr import given_back, kind_of, pairs_of, plain_array

DEEPEST = 256  #: brackets in each other


# ---- Reading.


def _contents(module: str | bytes | os.PathLike[str]) -> tuple[str | bytes, str, str]:
    """The text or bytecode, what comes before the number of a line, and a name."""
    if isinstance(module, str) and ("\n" in module or "{" in module):
        return module, "line ", ""
    if isinstance(module, (bytes, bytearray, memoryview)):
        found = bytes(module)
        return _decoded(found, "the bytes"), "line ", ""
    if not isinstance(module, (str, os.PathLike)):
        raise InvalidArgument(f"{DOING}: found a {type(module).__name__}, needed the text of a module, its bytecode, or a path")
    path = Path(module)
    try:
        return _decoded(path.read_bytes(), str(path)), f"{path}:", path.stem
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, ValueError):
        raise NotFound(f"{DOING}: found no file {str(module)[:200]!r}, needed one of a module") from None


def _decoded(contents: bytes, name: str) -> str | bytes:
    if contents.startswith(_hlo_bytecode.MAGIC):
        return contents
    try:
        return contents.decode()
    except UnicodeDecodeError:
        raise InvalidArgument(f"{DOING}: {name}: found neither bytecode of MLIR nor text in UTF-8, needed a module of StableHLO") from None


def _check_depth(text: str) -> None:
    """MLIR's parser calls itself for each bracket, as often as memory for that lasts."""
    depth = 0
    for found in re.finditer(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|->|[({\[<]|[)}\]>]', text):
        word = found[0]
        if word in "({[<":
            depth += 1
            if depth > DEEPEST:
                line = text.count("\n", 0, found.start()) + 1
                raise InvalidArgument(f"{DOING}: line {line}: found more than {DEEPEST} brackets in each other, needed at most that many")
        elif word in ")}]>":
            depth = max(depth - 1, 0)


def _check_strings(text: str) -> None:
    """The bindings end the process at a string that is not UTF-8. MLIR writes and reads such bytes as \\FF."""
    for found in re.finditer(r"\\\\|((?:\\[0-9A-Fa-f]{2})+)", text) if "\\" in text else ():
        try:
            bytes.fromhex((found[1] or "").replace("\\", "")).decode()
        except UnicodeDecodeError:
            raise InvalidArgument(f"{DOING}: found the bytes {found[1][:30]} in a name, needed text in UTF-8") from None


def _text_of(bytecode: bytes) -> str:
    done = subprocess.run([sys.executable, "-P", _hlo_bytecode.__file__], input=bytecode, capture_output=True)
    if done.returncode:
        raise InvalidArgument(f"{DOING}: found bytecode that MLIR does not read, needed a module of StableHLO, up to version "
                              f"{stablehlo.get_current_version()}")
    return done.stdout.decode()


def _parsed(contents: str, source: str) -> Any:
    _check_depth(contents)
    _check_strings(contents)
    with _hlo_bytecode.context():
        try:
            return ir.Module.parse(contents)
        except ir.MLIRError as error:
            told: Any = next(iter(error.error_diagnostics), None)
            line = re.match(r'loc\("-":(\d+)', str(told.location)) if told else None
            reason = (f"{source}{line[1]}: " if line else "") + (str(told.message) if told else "found what MLIR does not read")
            raise InvalidArgument(f"{DOING}: {reason[:300]}, needed a module of StableHLO") from None


# ---- Arguments and results.


def _label_of(path: str) -> str:
    """params['w'][0].mu as "params/w/0/mu"."""
    if not re.fullmatch(r"[^\[\].]*(?:\[(?:'[^']*'|\"[^\"]*\"|[^\]'\"]*)\]|\.\w+)*", path):
        return path
    first = re.match(r"[^\[\].]*", path)
    words = re.findall(r"\['([^']*)'\]|\[\"([^\"]*)\"\]|\[([^\]'\"]*)\]|\.(\w+)", path)
    parts = [first[0] if first else "", *("".join(word) for word in words)]
    return "/".join(part for part in parts if part)


def _labels(arguments: Sequence[Any], names: Sequence[str] | None) -> list[str]:
    if names is not None:
        labels = [str(name) for name in names]
        if len(labels) != len(arguments):
            raise InvalidArgument(f"{DOING}: names: found {len(labels)}, needed {len(arguments)}, one for each argument of @main")
    else:
        labels = []
        for number, argument in enumerate(arguments):
            location = argument.location
            told = location.name_str if isinstance(location, ir.NameLoc) else ""
            labels.append(_label_of(told) or f"arg{number}")
        twice = {label for label in labels if labels.count(label) > 1} if len(set(labels)) < len(labels) else set()
        labels = [f"arg{number}" if label in twice else label for number, label in enumerate(labels)]
    for label in labels:
        if labels.count(label) > 1:
            raise InvalidArgument(f"{DOING}: names: found {label!r} twice, needed another for each argument")
    return labels


def _attributes(function: Any, name: str, count: int) -> list[Any]:
    """Of each argument or result: a dict of attributes."""
    attributes = function.attributes
    found = list(attributes[name]) if name in attributes else []
    return [{one: each[one] for one in _keys(each)} for each in found] if len(found) == count else [{} for _ in range(count)]


def _keys(attribute: Any) -> list[str]:
    return [named.name if hasattr(named, "name") else str(named) for named in attribute]


_Type = tuple[str, tuple[int, ...]]


def _state(labels: Sequence[str], inputs: Sequence[_Type], results: Sequence[dict[str, Any]], outputs: Sequence[_Type]) -> set[str]:
    """The arguments that the results give back, as capture() has it: jax.result_info says where a result is."""
    paths = [_label_of(str(one["jax.result_info"].value)).split("/")[1:] if "jax.result_info" in one else None for one in results]
    if any(path is None for path in paths) or not labels:
        return set()
    arguments: dict[str, Any] = {}
    for label, (dtype, shape) in zip(labels, inputs):
        name, _, rest = label.partition("/")
        leaf = jax.ShapeDtypeStruct(shape, NUMPY[dtype])  # type: ignore[no-untyped-call]
        if rest:
            arguments.setdefault(name, {})
            if isinstance(arguments[name], dict):
                arguments[name][rest] = leaf
        else:
            arguments[name] = leaf
    whole: Any = {}
    for path, (dtype, shape) in zip(paths, outputs):
        leaf = jax.ShapeDtypeStruct(shape, NUMPY[dtype])  # type: ignore[no-untyped-call]
        assert path is not None
        if not path:
            whole = leaf
        elif isinstance(whole, dict):
            key: Any = int(path[0]) if path[0].isdigit() else path[0]
            if len(path) > 1 and isinstance(whole.setdefault(key, {}), dict):
                whole[key]["/".join(path[1:])] = leaf
            elif len(path) == 1:
                whole[key] = leaf
    return given_back(list(arguments), list(arguments.values()), whole)


def _mark_of(attributes: dict[str, Any], rank: int, mesh: GspmdMesh, label: str) -> str | None:
    try:
        if "sdy.sharding" in attributes:
            return shardy_specs(attributes["sdy.sharding"], [rank])[0]
        if "mhlo.sharding" in attributes:
            return mesh.spec(str(attributes["mhlo.sharding"].value), rank)
    except Refused as refused:
        raise Unsupported(f"{DOING}: {label}: {refused}") from None
    return None


def _partitions(module: Any) -> int:
    attributes = module.operation.attributes
    return int(attributes["mhlo.num_partitions"].value) if "mhlo.num_partitions" in attributes else 0


def _is_donated(attributes: dict[str, Any]) -> bool:
    return "tf.aliasing_output" in attributes or "jax.buffer_donor" in attributes


def _gspmd_texts(module: Any, outside: Sequence[tuple[dict[str, Any], Any]]) -> list[tuple[str, int]]:
    """All annotations of GSPMD, with the ranks of their tensors. outside: the attributes of arguments and results, with these."""
    found = [(attributes["mhlo.sharding"], value) for attributes, value in outside if "mhlo.sharding" in attributes]
    found += [(op.attributes["mhlo.sharding"], op.results[0]) for op in operations_of(module.operation)
              if op.name == "stablehlo.custom_call" and "mhlo.sharding" in op.attributes and len(op.results)]
    return [(str(attribute.value), len(getattr(value.type, "shape", ()))) for attribute, value in found]


def _inputs_of(labels: Sequence[str], dtypes: Sequence[str], pairs: Sequence[bool]) -> Callable[[tuple[Any, ...]], Sequence[Any]]:
    def plain(value: Any, dtype: str) -> Any:
        """64 bits only if the module has them, whatever JAX has switched on."""
        return value if getattr(value, "dtype", None) == NUMPY[dtype] else plain_array(value)

    def given(values: Sequence[Any]) -> list[Any]:
        return [pairs_of(plain(value, dtype)) if is_pair else plain(value, dtype) for value, dtype, is_pair in zip(values, dtypes, pairs)]

    def inputs_of(args: tuple[Any, ...]) -> Sequence[Any]:
        if len(args) == 1 and isinstance(args[0], Mapping) and set(args[0]) >= set(labels):
            return given([args[0][label] for label in labels])
        values = jax.tree.leaves(args)
        if len(values) != len(labels):
            raise InvalidArgument(f"run: found {len(values)} arrays, needed {len(labels)}: {', '.join(labels[:10])}"
                                  f"{', ..' if len(labels) > 10 else ''}; jit leaves out arguments that a step does not use")
        return given(values)

    return inputs_of


def _result_of(pairs: Sequence[str]) -> Callable[[Sequence[np.ndarray]], Any]:
    """pairs: the dtypes of those that are complex, else \"\"."""
    return lambda arrays: [np.ascontiguousarray(one).view(NUMPY[dtype])[..., 0] if dtype else one for one, dtype in zip(arrays, pairs)]


# ---- The whole.


def imported(module: str | bytes | os.PathLike[str], names: Sequence[str] | None, kinds: Mapping[str, str], mesh: Mesh | None) -> Program:
    """See from_stablehlo()."""
    if not hasattr(ir, "NameLoc"):
        raise Unsupported(f"{DOING}: found jaxlib {jaxlib.version.__version__}, needed one whose bindings know locations, as 0.10 does")
    contents, source, name = _contents(module)
    read = _parsed(contents if isinstance(contents, str) else _text_of(contents), source)
    with read.context:
        try:
            return _program(read, source, name, names, kinds, mesh)
        except RecursionError:
            raise Unsupported(f"{DOING}: found calls or branches in each other, deeper than Python goes, needed fewer") from None


def _program(module: Any, source: str, name: str, names: Sequence[str] | None, kinds: Mapping[str, str], mesh: Mesh | None) -> Program:
    functions = {str(op.attributes["sym_name"].value): op.operation for op in module.body.operations if op.operation.name == "func.func"}
    if "main" not in functions and len(functions) != 1:
        raise InvalidArgument(f"{DOING}: found {len(functions)} functions and none called main, needed the function of a step")
    entry = "main" if "main" in functions else next(iter(functions))
    if not functions[entry].regions[0].blocks:
        raise InvalidArgument(f"{DOING}: found no body of @{entry}, needed the function of a step")
    main = functions[entry]
    (block,) = main.regions[0].blocks
    arguments, given = list(block.arguments), parts_of(list(block.operations)[-1].operation.operands)
    inside, outside = _attributes(main, "arg_attrs", len(arguments)), _attributes(main, "res_attrs", len(given))
    labels = _labels(arguments, names)

    text = ProgramText(DOING)
    texts = _gspmd_texts(module, [*zip(inside, arguments), *zip(outside, given)]) if mesh is None else ()
    spans = GspmdMesh(mesh, texts, _partitions(module))
    writer = Writer(text, functions, spans, source)
    writer.meshes = shardy_meshes(module)
    types = [writer.argument_type(argument, label) for argument, label in zip(arguments, labels)]
    result_names = [f"result {number}" for number in range(len(given))]
    result_types = [writer.argument_type(value, one) for value, one in zip(given, result_names)]
    state = _state(labels, types, outside, result_types)
    state_by_label = [state | ({label.split("/")[0]} if _is_donated(one) else set()) for label, one in zip(labels, inside)]
    # What is complex is a pair of real tensors, unless it is only moved.
    pairs_in = [dtype in PARTS and any(use.owner.operation.name not in RETURNS for use in argument.uses) for (dtype, _), argument in zip(types, arguments)]
    inputs: list[Any] = []
    for label, (dtype, shape), known, is_pair in zip(labels, types, state_by_label, pairs_in):
        made = text.input(label, *((PARTS[dtype], (*shape, 2)) if is_pair else (dtype, shape)), kind_of(label, kinds, known))
        inputs.append(text.pair(made) if is_pair else made)
    marks = [_mark_of(one, len(shape), spans, label) for one, (_, shape), label in zip(inside, types, labels)]
    results = writer.function(entry, inputs, ("", ()))
    for number, (one, label) in enumerate(zip(outside, result_names)):
        mark = _mark_of(one, len(results[number].shape), spans, label)
        results[number] = results[number] if mark is None else writer.marked(results[number], mark)
    pairs_out = [x.dtype if isinstance(x, Complex) else "" for x in results]
    graph, places = text.graph([text.in_one(x) if isinstance(x, Complex) else x for x in results])
    if marks != [None] * len(marks):
        own = [mark if mark is not None else found for mark, (*_, found) in zip(marks, graph.inputs)]
        graph = graph.marked_inputs([None if mark is None else _core.PartitionSpec.parse(mark) for mark in own])
    title = str(module.operation.attributes["sym_name"].value).removeprefix("jit_") if "sym_name" in module.operation.attributes else name
    return Program(graph, title or "program", _inputs_of(labels, [dtype for dtype, _ in types], pairs_in), _result_of(pairs_out), places)
