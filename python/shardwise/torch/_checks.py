"""Checks of a step: conditions of which all that follows is that an error is raised, or that what is infinite is clamped."""

from __future__ import annotations

import ast
import builtins
import dis
import functools
import linecache
import os
import sys
from collections.abc import Iterator
from types import FrameType

import torch

_OWN = tuple(os.path.join(os.path.dirname(file), "") for file in (torch.__file__, __file__))
_DISTRIBUTIONS = os.path.join(_OWN[0], "distributions", "")  #: of torch, which check what they are given
_FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef


def passing_value() -> bool | None:
    """Of the boolean that the step asks for now, what lets the check pass: `if x.max() > 3: raise ..`, `assert x.min() >= 0`.
    None if the line of the step is no check."""
    frame = _frame_of_step()
    if frame is None or _is_asked_by_torch():
        return None if frame is None else True
    code, at = frame.f_code, frame.f_lasti // 2
    is_call = "CALL" in dis.opname[code.co_code[frame.f_lasti]]  # of item(); else it asks for what the instruction before it has computed
    place = list(code.co_positions())[at if is_call else max(0, at - 1)]
    for check, wanted in _checks_of(code.co_filename):
        for part, wanted_of_part in _parts(check.test, wanted):
            if _is_of(place, part):
                return None if _is_caught(frame, check) else wanted_of_part
    return None


def _is_caught(frame: FrameType | None, check: ast.If | ast.Assert) -> bool:
    """By the step, or what calls it: then more follows from the check than an error."""
    raised = check.body[0] if isinstance(check, ast.If) else check
    if isinstance(raised, ast.Raise):
        name = _name_of(raised.exc.func if isinstance(raised.exc, ast.Call) else raised.exc)
    elif isinstance(raised, ast.Assert):
        name = "AssertionError"
    else:
        return False
    while frame is not None and not frame.f_code.co_filename.startswith(_OWN[1]):
        if not frame.f_code.co_filename.startswith(_OWN[0]):
            for begin, first, last, handlers in _caught_in(frame.f_code.co_filename):
                if begin == frame.f_code.co_firstlineno and first <= frame.f_lineno <= last and any(_may_be(name, one) for one in handlers):
                    return True
        frame = frame.f_back
    return False


@functools.lru_cache(maxsize=64)
def _caught_in(filename: str) -> list[tuple[int, int, int, list[str]]]:
    """Where a function begins, lines of it, and the names of the errors that are caught there and not raised again."""
    found = []
    for function in _nodes_of(filename):
        if not isinstance(function, _FUNCTIONS):
            continue
        begin = min(one.lineno for one in (function, *function.decorator_list))
        for node in _within(function):
            handlers = [one for one in node.handlers if not isinstance(one.body[-1], ast.Raise)]
            kinds = [kind for one in handlers for kind in (one.type.elts if isinstance(one.type, ast.Tuple) else [one.type])]
            found.append((begin, node.body[0].lineno, node.body[-1].end_lineno or 0, ["BaseException" if kind is None else _name_of(kind) for kind in kinds]))
    return found


def _within(function: ast.AST) -> Iterator[ast.Try]:
    """Without those of functions that are defined in it."""
    for node in ast.iter_child_nodes(function):
        if isinstance(node, ast.Try):
            yield node
        if not isinstance(node, _FUNCTIONS):
            yield from _within(node)


def _name_of(node: ast.expr | None) -> str:
    return "" if node is None else ast.unparse(node).rpartition(".")[2]


def _may_be(raised: str, caught: str) -> bool:
    """Of errors that are not Python's own only those of the same name, or of all."""
    one, other = getattr(builtins, raised, Exception), getattr(builtins, caught, None)
    return raised == caught or (isinstance(one, type) and isinstance(other, type) and issubclass(one, other))


def _frame_of_step() -> FrameType | None:
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(_OWN) and not frame.f_code.co_filename.startswith(_DISTRIBUTIONS):
        frame = frame.f_back
    return frame


def line_of_step() -> str:
    """That is traced now: "train.py:12"."""
    frame = _frame_of_step()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "the step"


def _is_asked_by_torch() -> bool:
    """By one of its own checks of a tensor: torch._check_tensor_all, or what a distribution is given."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name not in ("_check_tensor_all_with", "_all_true_or_runtime_assert"):
        frame = frame.f_back if frame.f_code.co_filename.startswith(_OWN) else None
    return frame is not None


@functools.lru_cache(maxsize=64)
def _checks_of(filename: str) -> list[tuple[ast.If | ast.Assert, bool]]:
    """Each, and what its condition is if nothing is raised, and everything clamped."""
    nodes = _nodes_of(filename)
    found: list[tuple[ast.If | ast.Assert, bool]] = [(node, True) for node in nodes if isinstance(node, ast.Assert)]
    for node in nodes:
        if isinstance(node, ast.If) and not node.orelse:
            is_clamp = _clamps_what_is_infinite(node)
            found += [(node, is_clamp)] if is_clamp or (len(node.body) == 1 and isinstance(node.body[0], ast.Raise)) else []
    return found


def _nodes_of(filename: str) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse("".join(linecache.getlines(filename)))))
    except SyntaxError:
        return []


def _clamps_what_is_infinite(node: ast.If) -> bool:
    """`if not torch.isfinite(x).all(): bound = torch.finfo(x.dtype).max - 1000; x = torch.clamp(x, min=-bound, max=bound)`, which may be
    done to what is finite, too."""
    if not all(isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name) for one in node.body):
        return False
    *bounds, (name, value) = [line.split(" = ", 1) for line in map(ast.unparse, node.body)]
    asked = [f"torch.isfinite({name}).all()", f"torch.isinf({name}).any()", f"torch.isnan({name}).any()"]
    return (len(bounds) == 1 and bounds[0][1].startswith("torch.finfo(") and value == f"torch.clamp({name}, min=-{bounds[0][0]}, max={bounds[0][0]})"
            and all(ast.unparse(part) in asked or not isinstance(part, ast.Call) for part, _ in _parts(node.test, True)))


def _parts(node: ast.expr, wanted: bool) -> list[tuple[ast.expr, bool]]:
    """Of a condition, and what each is wanted to be. Of `a or b` one would do, of `a and b` both: then each is as wanted, too."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _parts(node.operand, not wanted)
    if isinstance(node, ast.BoolOp):
        return [found for part in node.values for found in _parts(part, wanted)]
    return [(node, wanted)]


def _is_of(place: tuple[int | None, ...], node: ast.expr) -> bool:
    """Of a call that goes over lines Python says where its last name is."""
    line, end_line, column, end_column = place
    if (end_line, end_column) != (node.end_lineno, node.end_col_offset) or line is None or column is None:
        return False
    return (line, column) == (node.lineno, node.col_offset) or (isinstance(node, ast.Call) and (line, column) > (node.lineno, node.col_offset))
