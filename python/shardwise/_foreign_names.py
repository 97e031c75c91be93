"""First guesses: names in other libraries, and the code to write in their place."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, ParamSpec, TypeVar

from ._argument_types import checked
from ._trees.containers import public_name

_P = ParamSpec("_P")
_Result = TypeVar("_Result")

_ELSEWHERE: dict[str, Mapping[str, str]] = {}  # by module


def names_of_others(module: str, elsewhere: Mapping[str, str]) -> Callable[[str], NoReturn]:
    """Returns a function for a package's __getattr__, which raises AttributeError with the code to write.
    `import` and `from` say the same."""
    _ELSEWHERE[module] = elsewhere

    def refuse(name: str) -> NoReturn:
        raise AttributeError(_told(module, name))

    return refuse


def _told(module: str, name: str) -> str:
    needed = _ELSEWHERE[module].get(name)
    return f"module {module!r} has no attribute {name!r}" + (f": needed is {needed}" if needed else "")


class _Imports:
    """Python drops the text of an AttributeError in `from package import name`, and then asks
    sys.meta_path."""

    @staticmethod
    def find_spec(full_name: str, path: Any = None,
                  target: Any = None) -> importlib.machinery.ModuleSpec | None:
        module, _, name = full_name.rpartition(".")
        if name in _ELSEWHERE.get(module, ()):
            raise ModuleNotFoundError(_told(module, name))  # its `name` is not set: Python would pass over it
        return None


sys.meta_path.append(_Imports)


def options_of_others(elsewhere: Mapping[str, str],
                      operation: str = "") -> Callable[[Callable[_P, _Result]], Callable[_P, _Result]]:
    """Returns a decorator: the error for an option of another library has the option to write. operation: ""
    stands for the function's name."""
    return lambda function: checked(function, operation or function.__name__, elsewhere)


def no_attribute(owner: object, name: str, others: Mapping[str, str]) -> AttributeError:
    """Returns the error for a name that `owner` lacks."""
    said = f": needed is {others[name]}" if name in others else ""
    return AttributeError(f"{public_name(type(owner))} has no {name!r}{said}")
