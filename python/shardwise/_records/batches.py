"""Reads several records by one call of `__getitems__`, as torch's DataLoader does."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._errors import InvalidArgument
from .._interpreter import imported
from .values import array_of

if TYPE_CHECKING:
    from ..sources import Field


_dtype, _shape = operator.attrgetter("dtype"), operator.attrgetter("shape")


class Columns(dict[str, Any]):
    """The values of several records by field. Dim 0 counts the records."""


def together_of(source: Any) -> Callable[[list[int]], Any] | None:
    """Returns a function that makes the records of a list of numbers, as rows or as Columns; None if the
    object has no `__getitems__`. Columns save a `datasets.Dataset` the work of making rows."""
    dataset: Any = source
    kinds: Any = getattr(imported("datasets"), "Dataset", ())
    if isinstance(source, kinds) and dataset.format["type"] in ("arrow", "polars"):  # records would be tables
        source = dataset = dataset.with_format(None, columns=dataset.format["columns"])
    getitems = getattr(source, "__getitems__", None)
    if not callable(getitems):
        return None
    kind = type(source).__name__

    def rows(records: list[int]) -> list[Any]:
        items: Any = getitems(list(records))
        if not hasattr(items, "__len__") or isinstance(items, (str, bytes, Mapping)):
            raise InvalidArgument(f"{kind}: __getitems__: found {type(items).__name__}, "
                                  "needed a list of records")
        if len(items) != len(records):
            raise InvalidArgument(f"{kind}: __getitems__: found {len(items)} records, needed {len(records)}, "
                                  "one for each number")
        return items if isinstance(items, list) else list(items)

    if not isinstance(source, kinds) or dataset.format["type"] not in ("torch", "numpy"):
        return rows

    def columns(records: list[int]) -> Any:
        values = Columns(dataset[list(records)])
        return values if all(len(column) == len(records) for column in values.values()) else rows(records)

    return columns


def rows_of(records: Any) -> list[Any]:
    """Returns rows or Columns as a list of records."""
    if isinstance(records, Columns):
        return [dict(zip(records, row)) for row in zip(*records.values())]
    rows: list[Any] = records
    return rows


def columns_of(made: Any, fields: Sequence[Field]) -> list[np.ndarray[Any, Any]] | None:
    """Returns an array for each field with the values of all records, if they have one dtype and the field's
    shape; None if the caller has to check record by record, for example to name a wrong one."""
    columns = []
    for number, field in enumerate(fields):
        column = None if field.ragged else _column(made, field.name, number)
        if column is None or column.shape[1:] != field.shape or not np.can_cast(column.dtype, field.dtype,
                                                                                "same_kind"):
            return None
        columns.append(np.ascontiguousarray(column, dtype=field.dtype))
    return columns


def _column(made: Any, name: str, number: int) -> np.ndarray[Any, Any] | None:
    if isinstance(made, Columns):
        return _array(made[name], name) if name in made else None
    kinds = set(map(type, made))
    try:
        values = (list(map(operator.itemgetter(name), made)) if kinds == {dict} else
                  list(map(operator.itemgetter(number), made)) if kinds <= {tuple, list} else made)
    except (KeyError, IndexError):
        return None
    kind = type(values[0])
    if set(map(type, values)) != {kind}:
        return None
    if kind in (int, float, bool):
        return _array(values, name)
    torch = imported("torch")
    if kind is np.ndarray or issubclass(kind, np.generic):
        if (len(set(map(_dtype, values))) > 1 or len(set(map(_shape, values))) > 1
            or values[0].dtype.kind not in "biufc"):
            return None
        shape = values[0].shape  # concatenate() takes half the time of stack()
        return np.concatenate(values).reshape(len(values), *shape) if shape else np.array(values)
    # stack() itself refuses unequal shapes. A check of each tensor's shape took longer than the stack.
    if torch is not None and kind is torch.Tensor and len(set(map(_dtype, values))) == 1:
        return _array(values, name, torch.stack)
    return None


def _array(column: Any, name: str, stack: Callable[[Any], Any] | None = None) -> np.ndarray[Any, Any] | None:
    """Returns a column as an array; None if it is no array, so that array_of() of a record's value raises the
    reason."""
    try:
        array = array_of(column if stack is None else stack(column), name)
    except Exception:  # torch may raise anything for a tensor that cannot be read
        return None
    return array if array.ndim else None
