"""Lists of names in messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sized


def grouped(names: Iterable[str], tops: Collection[str]) -> dict[str, list[str]]:
    """More than three names below a key that the other side has not are one, "optim.*"; what each stands for."""
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


def number_of(found: Sized, what: str) -> str:
    return f"{len(found)} {what}{'' if len(found) == 1 else 's'}"


def few_of(names: list[str]) -> str:
    return f"{', '.join(map(repr, names[:10]))}{', ...' if len(names) > 10 else ''}"
