"""Checks of a step: conditions of which all that follows is that an error is raised."""

from __future__ import annotations

import ast
import dis
import functools
import linecache
import os
import sys
from types import FrameType

import torch

_OWN = os.path.dirname(torch.__file__), os.path.dirname(__file__)


def passing_value() -> bool | None:
    """Of the boolean that the step asks for now, what lets the check pass: `if x.max() > 3: raise ..`, `assert x.min() >= 0`.
    None if the line of the step is no check."""
    frame = _frame_of_step()
    if frame is None:
        return None
    code, at = frame.f_code, frame.f_lasti // 2
    is_call = "CALL" in dis.opname[code.co_code[frame.f_lasti]]  # of item(); else it asks for what the instruction before it has computed
    place = list(code.co_positions())[at if is_call else max(0, at - 1)]
    for check, wanted in _checks_of(code.co_filename):
        for part, wanted_of_part in _parts(check.test, wanted):
            if _is_of(place, part):
                return wanted_of_part
    return None


def _frame_of_step() -> FrameType | None:
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return frame


@functools.lru_cache(maxsize=64)
def _checks_of(filename: str) -> list[tuple[ast.If | ast.Assert, bool]]:
    """Each, and what its condition is if nothing is raised."""
    try:
        nodes = list(ast.walk(ast.parse("".join(linecache.getlines(filename)))))
    except SyntaxError:
        return []
    asserts: list[tuple[ast.If | ast.Assert, bool]] = [(node, True) for node in nodes if isinstance(node, ast.Assert)]
    return asserts + [(node, False) for node in nodes
                      if isinstance(node, ast.If) and not node.orelse and len(node.body) == 1 and isinstance(node.body[0], ast.Raise)]


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
