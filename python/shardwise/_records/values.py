"""Turns values of records into numpy arrays. A value whose meaning an array would lose is refused."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._dtypes import is_masked
from .._errors import InvalidArgument, Unsupported
from .._interpreter import imported

_SCALARS = {int, float, bool, complex}


def array_of(value: Any, name: str) -> np.ndarray[Any, Any]:
    """Returns the numbers of a field's value, which is an array, a number, a tensor, a list of these, or
    anything that numpy takes. Raises InvalidArgument for values with a mask, missing values or a unit, and
    Unsupported for values that are not numbers of one shape."""
    if type(value) in (list, tuple):
        return _array_of_list(value, name)
    torch = imported("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _array_of_tensor(value, name)
    _check_meaning(value, name)
    return _checked(np.asarray(value), value, name)


def columns_of_table(source: Any) -> dict[str, Any] | None:
    """Returns the columns of a table of pandas, polars or Arrow, or of a single column of these, by name;
    None for other objects. Raises one Unsupported that names all columns without numbers."""
    kind = type(source).__name__
    # This asks the class, because a table of pandas has its columns as attributes. Arrow calls a dtype type.
    if hasattr(source, "to_numpy") and any(hasattr(type(source), name) for name in ("dtype", "type")):
        name = getattr(source, "name", None)
        columns = [("data" if name is None or name == "" else str(name), source)]
    elif hasattr(source, "to_numpy") and hasattr(source, "columns"):
        names = list(source.columns)
        _check_names(kind, names)
        columns = [(str(name), source[name]) for name in names]
    elif hasattr(source, "column_names") and hasattr(source, "to_pydict"):
        names = list(source.column_names)
        _check_names(kind, names)
        columns = [(name, source.column(name)) for name in names]
    else:
        return None
    arrays, others = {}, []
    for name, column in columns:
        try:
            arrays[name] = array_of(column, name)
        except Unsupported:
            others.append(f"{name!r} ({getattr(column, 'dtype', getattr(column, 'type', '?'))})")
    if others:
        raise Unsupported(f"source {kind}: columns {', '.join(others)} are no numbers, needed are numbers: "
                          "leave them out, as table[[\"x\", \"y\"]] of the others, or write their codes")
    return arrays


def _check_names(kind: str, names: list[Any]) -> None:
    twice = sorted({str(name) for name in names if list(map(str, names)).count(str(name)) > 1})
    if twice:
        raise InvalidArgument(f"source {kind}: found several columns {', '.join(twice)}, "
                              "needed are distinct names")
    if not names:
        raise InvalidArgument(f"source {kind}: found no column, needed is at least one")


def _array_of_list(values: Any, name: str) -> np.ndarray[Any, Any]:
    if len(values) and type(values[0]) in _SCALARS:
        try:
            array = np.asarray(values)
        except (TypeError, ValueError):
            array = np.asarray(None)
        # A masked element is NaN here, so only NaN needs the slower check of each element.
        if array.ndim == 1 and (array.dtype.kind in "iub"
                                or (array.dtype.kind in "fc" and not np.isnan(array).any())):
            return array
    if not set(map(type, values)) <= _SCALARS:
        values = [array_of(value, name) for value in values]
        shapes = {value.shape for value in values}
        if len(shapes) > 1:
            raise Unsupported(f"field {name!r} is a list of parts of {len(shapes)} shapes, "
                              "needed are numbers of one shape")
    return _checked(np.asarray(values), values, name)


def _array_of_tensor(tensor: Any, name: str) -> np.ndarray[Any, Any]:
    if type(tensor).__name__ == "MaskedTensor":
        raise _lost("a masked array, whose mask", name,
                    "its data and its mask, each as a field, or .to_tensor(value)")
    try:
        plain: np.ndarray[Any, Any] = tensor.detach().numpy()
        return plain
    except (TypeError, RuntimeError):  # on an accelerator, a conjugate view, or a dtype that numpy lacks
        from .._arrays import torch_tensors as _tensors

        _tensors.dtype_name(tensor, name)
        return _tensors.array_of(_tensors.on_host(tensor, name))


def _check_meaning(value: Any, name: str) -> None:
    if is_masked(value):
        raise _lost("a masked array, whose mask", name,
                    "its data and its mask, each as a field, or .filled(value)")
    if type(value) is np.ndarray or isinstance(value, np.generic):
        return
    if isinstance(value, np.ndarray) and (hasattr(value, "unit") or hasattr(value, "units")):
        raise _lost("an array with a unit, which", name, "its numbers alone, as .value")
    if _missing(value):
        raise _lost("an array with missing values, which", name,
                    "values in their place, as .fillna(value), or the rows without them")


def _missing(value: Any) -> bool:
    """Returns True if an array of pandas, Arrow or polars marks elements as missing. A NaN of numpy is a
    value."""
    count = getattr(value, "null_count", None)  # Arrow; polars has a function
    if count is not None:
        return bool(count() if callable(count) else count)
    dtypes: Any = getattr(value, "dtypes", None) if getattr(value, "ndim", 1) == 2 else getattr(
        value, "dtype", None)
    if not hasattr(value, "isna") or isinstance(dtypes, np.dtype):
        return False
    missing = value.isna()
    if getattr(value, "ndim", 1) == 2:
        missing = missing.loc[:, [not isinstance(dtype, np.dtype) for dtype in dtypes]]
    return bool(np.asarray(missing).any())


def _lost(what: str, name: str, needed: str) -> InvalidArgument:
    return InvalidArgument(f"field {name!r} is {what} would be lost: needed are {needed}")


def _checked(array: np.ndarray[Any, Any], value: Any, name: str) -> np.ndarray[Any, Any]:
    if array.dtype.kind in "OUSMmV" and array.dtype.type.__module__ == "numpy":
        dtype = "" if array.dtype == object else f" of {array.dtype}"
        raise Unsupported(f"field {name!r} is {type(value).__name__}{dtype}, needed are numbers of one "
                          "shape; leave it out, or encode it (np.frombuffer(text.encode(), np.uint8))")
    return array
