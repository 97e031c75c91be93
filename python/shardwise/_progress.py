"""Progress of long work: a function of yours, or a bar of tqdm."""

from __future__ import annotations

from typing import Any, Callable

ProgressFunction = Callable[[int, int], None]
Progress = bool | ProgressFunction | None
"""True: a bar (if tqdm is not installed, nothing). A function: called with bytes done and in total now and then."""


def function_of(progress: Progress, what: str) -> ProgressFunction | None:
    if progress is None or progress is False:
        return None
    if progress is not True:
        return progress
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    bar: list[Any] = []

    def show(done: int, total: int) -> None:
        if not bar:
            bar.append(tqdm(total=total, unit="B", unit_scale=True, unit_divisor=1024, desc=what))
        bar[0].update(done - bar[0].n)
        if done >= total:
            bar[0].close()

    return show
