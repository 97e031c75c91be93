"""Reports the progress of long work by a function of the caller, a bar of tqdm, or a line on stderr."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, Callable

ProgressFunction = Callable[[int, int], None]
Progress = bool | ProgressFunction | None
"""True shows a bar if tqdm is installed. A function is called now and then with the bytes done and the bytes
in total; for images once, with their number, as the total is unknown until the end."""


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


_current = threading.local()  #: .line is the innermost WorkLine of this thread


class WorkLine:
    """Shows on stderr how long work without a known end has taken, only on a terminal and only after two
    seconds; clears the line at the end. A separate thread writes it, as a framework that traces calls none of
    our functions."""

    AFTER, EACH = 2.0, 0.5  #: seconds

    def __init__(self, what: str, is_shown: bool = True) -> None:
        self._what, self._stage, self._operations = what, "", 0
        self._start = time.monotonic()
        self._done = threading.Event()
        self._thread = (threading.Thread(target=self._show, daemon=True) if is_shown and sys.stderr
                        and sys.stderr.isatty() else None)

    def __enter__(self) -> WorkLine:
        self._before, _current.line = getattr(_current, "line", None), self
        if self._thread:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        _current.line = self._before
        if self._thread:
            self._done.set()
            self._thread.join()

    def count(self, stage: str) -> None:
        self._operations = self._operations + 1 if stage == self._stage else 1
        self._stage = stage

    def _show(self) -> None:
        wait = self.AFTER
        while not self._done.wait(wait):
            wait = self.EACH
            operations = f"{self._operations:,} operations {self._stage}, " if self._stage else ""
            self._write(f"\r\x1b[K{self._what}: {operations}{time.monotonic() - self._start:.0f} s")
        if wait == self.EACH:
            self._write("\r\x1b[K")

    @staticmethod
    def _write(text: str) -> None:
        try:
            print(text, end="", file=sys.stderr, flush=True)
        except (OSError, ValueError):  # the terminal is gone
            pass


def count_operation(stage: str) -> None:
    """Counts an operation in the line that this thread shows, if any. stage: "traced" or "written"."""
    if (line := getattr(_current, "line", None)) is not None:
        line.count(stage)
