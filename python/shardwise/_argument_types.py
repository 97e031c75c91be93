"""Replaces the errors that Python, numpy and nanobind raise deep inside for arguments of wrong types by one
WrongType, which has operation, argument, found and needed. Adds the operation to a ResourceExhausted.

A call that succeeds pays for one more frame. Annotations are evaluated and compared only after an error.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import numbers
import operator
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ._arrays.arrays import unknown_option
from ._errors import InvalidArgument, ResourceExhausted, WrongType
from ._interpreter import imported

#: A wrong argument causes errors of exactly these classes, never of a class derived from them.
_RAW = (TypeError, AttributeError, KeyError, IndexError, ValueError, OverflowError, RuntimeError,
        UnicodeEncodeError)
#: These do not help a caller, even if each argument fits its annotation.
_UNCLEAR = (TypeError, AttributeError, KeyError, OverflowError, UnicodeEncodeError)
#: torch calls methods of these while it traces.
_TRACED = {"Tensor", "Module", "Function"}
_OPERATORS = {"__getitem__", "__contains__", "__array__"}
#: An error that passed through code of any other module belongs to the user.
_OWN_MODULES = sys.stdlib_module_names | {"shardwise", "numpy", "torch", "jax", "jaxlib", "ml_dtypes"}
_NAMES_OF_TYPES = vars(typing) | vars(collections.abc)
NO_LIMIT = 2**63 - 1  #: the largest number that C++ takes
_SMALLEST, _LARGEST = -2**63, 2**64 - 1


def check_calls(module_name: str) -> None:
    """Checks the calls of the functions and classes that a module defines or a package exports. The module
    calls this at its end."""
    module = imported(module_name)
    for name, item in list(vars(module).items()):
        home = str(getattr(item, "__module__", ""))
        if name.startswith("_") or not (home == module_name or hasattr(module, "__path__")
                                        and home.startswith("shardwise")):
            continue
        if inspect.isclass(item):
            _check_methods(item)
        elif inspect.isfunction(item):
            # A pickle names the module that defines the function, so that module must hold the same object.
            defined, checked_item = item.__name__, checked(item, item.__name__)
            setattr(module, name, checked_item)
            if vars(imported(home)).get(defined) is item:
                setattr(imported(home), defined, checked_item)


def _check_methods(kind: type) -> None:
    is_traced = any(base.__name__ in _TRACED and base.__module__.startswith("torch") for base in kind.__mro__)
    for base in kind.__mro__:
        if not base.__module__.startswith("shardwise") or issubclass(base, BaseException):
            continue
        for name, item in list(vars(base).items()):
            operation = kind.__name__ if name in ("__init__", "__new__") else f"{kind.__name__}.{name}"
            if name in ("__init__", "__new__"):
                function = getattr(item, "__func__", item)
                if inspect.isfunction(function) and not getattr(base, "_is_protocol", False):
                    wrapped = checked(function, operation, owner=base)
                    setattr(base, name, staticmethod(wrapped) if name == "__new__" else wrapped)
            elif is_traced or name.startswith("_") and name not in _OPERATORS:
                continue
            elif inspect.isfunction(item):
                setattr(base, name, checked(item, operation, owner=base))
            elif isinstance(item, (classmethod, staticmethod)) and inspect.isfunction(item.__func__):
                setattr(base, name, type(item)(checked(item.__func__, operation)))
            elif isinstance(item, property) and item.fset is not None:
                setattr(base, name, item.setter(checked(item.fset, operation)))


def checked(function: Callable[..., Any], operation: str,
            others: Mapping[str, str] = types.MappingProxyType({}),
            owner: type | None = None) -> Callable[..., Any]:
    """Returns the function wrapped so that it raises WrongType for wrong arguments. others: options of other
    libraries, each with the text to write in its place. owner: the class that defines a method; errors name
    the class of the object instead."""
    if hasattr(function, "_checks_calls"):
        return function

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        wrong: WrongType | ResourceExhausted | None
        try:
            return function(*args, **kwargs)
        except ResourceExhausted as error:
            text = getattr(error, "_said", str(error))
            if text != "there is too little memory":  # other texts have the operation and the bytes
                raise
            wrong = ResourceExhausted(f"{_full_name(operation, _kind(owner, args))}: {text}")
            wrong._said = text  # type: ignore[attr-defined] # so that the outermost call is the one named
        except _RAW as error:
            kind = _kind(owner, args)
            # A caller knows the public call, not the method that it reaches by super().
            public = function if kind is None else getattr(kind, function.__name__, function)
            is_of_super = inspect.unwrap(public) is not inspect.unwrap(function)
            full_name = _full_name(operation, kind)
            wrong = None if is_of_super else _wrong_type(error, function, full_name, args, kwargs, others)
            if wrong is None:
                raise
        raise wrong

    called._checks_calls = True  # type: ignore[attr-defined]
    return called


def _kind(owner: type | None, args: tuple[Any, ...]) -> type | None:
    """Returns the class of the object whose method is called; None for a function."""
    if owner is None or not args:
        return None
    kind = args[0] if isinstance(args[0], type) else type(args[0])
    return kind if issubclass(kind, owner) else None


def _full_name(operation: str, kind: type | None) -> str:
    _, dot, method = operation.partition(".")
    return operation if kind is None else f"{kind.__name__}{dot}{method}"


def _wrong_type(error: Exception, function: Callable[..., Any], operation: str, args: tuple[Any, ...],
                kwargs: dict[str, Any], others: Mapping[str, str]) -> WrongType | None:
    """Returns the error for the wrong arguments of a call that raised; None if the arguments fit or if code
    of the user raised."""
    if not (type(error) in _RAW or type(error).__module__.startswith("numpy")) or _is_of_user(error):
        return None
    signature = inspect.signature(function)
    try:
        arguments = signature.bind(*args, **kwargs).arguments
    except TypeError as problem:
        known = list(signature.parameters)
        takes_more = any(parameter.kind == parameter.VAR_KEYWORD
                         for parameter in signature.parameters.values())
        unknown = [name for name in kwargs if name not in known and (name in others or not takes_more)]
        if unknown:
            return unknown_option(operation, unknown[0],
                                  [name for name in known if name not in ("self", "cls")], others)
        return WrongType(f"{operation}: {problem}, needed is {operation}{_plain(signature)}")
    for name, value in arguments.items():
        parameter = signature.parameters[name]
        hint = _hint(parameter.annotation, function)
        values = ({f"{name}[{i}]": item for i, item in enumerate(value)}
                  if parameter.kind == parameter.VAR_POSITIONAL
                  else value if parameter.kind == parameter.VAR_KEYWORD else {name: value})
        for place, item in values.items():
            if problem_text := _problem(item, hint):
                return WrongType(f"{operation}: {place} {problem_text}")
    if not (isinstance(error, _UNCLEAR) or "bad_cast" in str(error)):
        return None
    found = ", ".join(f"{name}={_short(value)}"
                      for name, value in arguments.items() if name not in ("self", "cls"))
    # nanobind's text is a list of C++ types.
    reason = ("with numbers in range" if "incompatible function arguments" in str(error)
              else f"{type(error).__name__}: {error}")
    wrong = WrongType(f"{operation}: found {found or 'an object in another state'}, "
                      f"needed is {operation}{_plain(signature)}: {reason}")
    wrong.__cause__ = None if "incompatible function arguments" in str(error) else error
    return wrong


def _is_of_user(error: BaseException) -> bool:
    step = error.__traceback__
    while step is not None:
        module = str(step.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in _OWN_MODULES:
            return True
        step = step.tb_next
    return False


def _hint(annotation: Any, function: Callable[..., Any]) -> Any:
    """Returns an annotation as an object; Any if only a type checker knows its names."""
    if not isinstance(annotation, str):
        return Any if annotation is inspect.Parameter.empty else annotation
    try:
        return eval(annotation, _NAMES_OF_TYPES | function.__globals__)  # this package wrote the text
    except (NameError, TypeError, AttributeError):
        return Any


def _problem(value: Any, hint: Any) -> str:
    """Returns the clause that says why a value does not fit a hint; empty if it fits."""
    bad = _bad_text(value)
    if bad is not None:
        return f"has the text {bad!r}, needed is text that UTF-8 can hold"
    if _fits(value, hint):
        return ""
    kind = type(value).__name__
    kind = f"numpy.{kind}" if type(value).__module__ == "numpy" else kind
    found = "None" if value is None else f"{_short(value)}, {'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"
    return f"is {found}, needed is {_text_of(hint)}"


def _bad_text(value: Any, levels: int = 4) -> str | None:
    """Returns the first text that UTF-8 cannot hold."""
    if isinstance(value, str):
        return None if value.isascii() or not re.search("[\ud800-\udfff]", value) else value
    inner: Iterable[Any] = ()
    if levels and isinstance(value, dict):
        inner = (part for item in value.items() for part in item)
    elif levels and isinstance(value, (list, tuple, set, frozenset)):
        inner = value
    return next((bad for bad in (_bad_text(part, levels - 1) for part in inner) if bad is not None), None)


def _fits(value: Any, hint: Any) -> bool:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is typing.Literal:
        return any(value is part or type(value) is type(part) and value == part for part in parts)
    if hint is None or hint is types.NoneType:
        return value is None
    if hint is bool:
        return isinstance(value, bool)
    if hint is int:
        return hasattr(value, "__index__") and _is_index(value)
    if hint is float:
        return isinstance(value, numbers.Real) or (
            hasattr(value, "__float__") and getattr(value, "shape", None) == ()
            and value.dtype.kind not in "mMUSO")
    if origin is not None and isinstance(origin, type):
        return _is_instance(value, origin) and _parts_fit(value, origin, parts)
    return not isinstance(hint, type) or _is_instance(value, hint)


def _is_index(value: Any) -> bool:
    try:
        return _SMALLEST <= operator.index(value) <= _LARGEST
    except TypeError:
        return False


def _is_instance(value: Any, kind: type) -> bool:
    try:
        return isinstance(value, kind) or kind is collections.abc.Sequence and getattr(value, "ndim", 0) > 0
    except TypeError:  # a protocol
        return True


def _parts_fit(value: Any, origin: type, parts: tuple[Any, ...]) -> bool:
    if origin is tuple and parts and parts[-1] is not Ellipsis:
        return len(value) == len(parts) and all(map(_fits, value, parts))
    if issubclass(origin, collections.abc.Mapping) and len(parts) == 2:
        return all(_fits(k, parts[0]) and _fits(v, parts[1]) for k, v in value.items())
    if parts and (isinstance(value, (list, tuple, set, frozenset)) or getattr(value, "ndim", 0) == 1
                  and len(value) < 1000):
        return all(_fits(item, parts[0]) for item in value)
    # A text is a sequence of texts, but rarely meant as a sequence.
    return not (isinstance(value, (str, bytes)) and issubclass(collections.abc.Sequence, origin))


def _text_of(hint: Any) -> str:
    if hint is typing.NoReturn:
        return "no such option"
    text = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    text = re.sub(r"\b(?:\w+\.)+(?=\w)", "", text).replace("NoneType", "None")
    return text.replace("str | PathLike[str]", "a path")


def _plain(signature: inspect.Signature) -> str:
    """Returns a signature without annotations and self."""
    parameters = [parameter.replace(annotation=parameter.empty)
                  for parameter in signature.parameters.values() if parameter.name not in ("self", "cls")]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = object.__repr__(value)
    return text if len(text) <= 60 and "\n" not in text else f"{text[:57].splitlines()[0]}..."


def step_number(what: str, step: Any) -> int:
    """Returns a step's number, an integer of any library, as an int. what: the operation, for the message.
    Raises InvalidArgument if it is not an integer, is negative or is too large."""
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if not 0 <= number < NO_LIMIT or isinstance(step, bool):
        shown = repr(step) if isinstance(step, (int, float, str, bytes, np.generic,
                                                type(None))) else f"of {type(step).__name__}"
        raise InvalidArgument(f"{what} step {shown}: needed is an integer, 0 or more")
    return number
