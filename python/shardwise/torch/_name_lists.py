"""Formats lists of names for messages."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sized

from .._trees.nested import moved


def grouped(names: Iterable[str], tops: Collection[str]) -> dict[str, list[str]]:
    """Returns names by group. More than three names below a key that the other side lacks are one group,
    "optim.*"."""
    below: dict[str, list[str]] = {}
    for name in names:
        top, dot, _ = name.partition(".")
        below.setdefault(f"{top}.*" if dot and top not in tops else name, []).append(name)
    groups: dict[str, list[str]] = {}
    for key, of_key in below.items():
        groups.update({key: of_key} if len(of_key) > 3 else {name: [name] for name in of_key})
    return groups


def count_of(names: list[str]) -> str:
    return f" ({len(names)} names)" if len(names) > 1 else ""


def number_of(items: Sized, what: str) -> str:
    return f"{len(items)} {what}{'' if len(items) == 1 else 's'}"


def few_of(names: list[str]) -> str:
    return f"{', '.join(map(repr, names[:10]))}{', ...' if len(names) > 10 else ''}"


def nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    return f" (nearest: {near[0]!r})" if near else ""


def what_to_write(tops: Iterable[str], asked: Iterable[str], missing: Iterable[str],
                  there: Iterable[str]) -> str:
    """Returns advice for names that differ only by prefixes of module wrappers or the state, or by levels of
    containers; empty for others."""
    wanted, stored, absent = set(asked), list(there), list(missing)
    for top in tops:
        if any(name.removeprefix(f"{top}.") in stored for name in absent if name.startswith(f"{top}.")):
            return f': rename={{"*": "{top}.*"}} puts {f"{top}."!r} before each'
    for prefix in ("module.", "_orig_mod."):
        if stored and wanted and wanted <= {name.removeprefix(prefix) for name in stored}:
            return f': rename={{"{prefix}*": "*"}} takes {prefix!r} away'
        if stored and wanted and {name.removeprefix(prefix) for name in wanted} <= set(stored):
            return f': rename={{"*": "{prefix}*"}} puts {prefix!r} before each'
    return moved(absent, stored, ".")
