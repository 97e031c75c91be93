"""Answers names and options of other libraries by the code to write in their place."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, ParamSpec, TypeVar

from ._argument_types import checked
from ._trees.containers import public_name

_P = ParamSpec("_P")
_Result = TypeVar("_Result")

_FOREIGN: dict[str, Mapping[str, str]] = {}  # the code to write for each name, by module


def names_of_others(module: str, foreign: Mapping[str, str]) -> Callable[[str], NoReturn]:
    """Returns a function for a package's __getattr__, which raises AttributeError with the code to write.
    `import` and `from` raise an error of the same text."""
    _FOREIGN[module] = foreign

    def refuse(name: str) -> NoReturn:
        raise AttributeError(_message(module, name))

    return refuse


def _message(module: str, name: str) -> str:
    needed = _FOREIGN[module].get(name)
    return f"module {module!r} has no attribute {name!r}" + (f": needed is {needed}" if needed else "")


class _Imports:
    """A finder for sys.meta_path. `from package import name` drops the text of an AttributeError and then
    asks the finders."""

    @staticmethod
    def find_spec(full_name: str, path: Any = None,
                  target: Any = None) -> importlib.machinery.ModuleSpec | None:
        module, _, name = full_name.rpartition(".")
        if name in _FOREIGN.get(module, ()):
            # Python would drop an error whose attribute `name` is set.
            raise ModuleNotFoundError(_message(module, name))
        return None


sys.meta_path.append(_Imports)


def options_of_others(foreign: Mapping[str, str],
                      operation: str = "") -> Callable[[Callable[_P, _Result]], Callable[_P, _Result]]:
    """Returns a decorator that answers an option of another library by an error with the option to write.
    operation: its name in messages; "" stands for the function's name."""
    return lambda function: checked(function, operation or function.__name__, foreign)


def no_attribute(owner: object, name: str, others: Mapping[str, str]) -> AttributeError:
    """Returns the error for a name that `owner` lacks."""
    advice = f": needed is {others[name]}" if name in others else ""
    return AttributeError(f"{public_name(type(owner))} has no {name!r}{advice}")
