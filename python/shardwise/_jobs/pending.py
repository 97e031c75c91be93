"""Runs saves on threads, and queues those of a manager."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .. import _core
from .._checkpoint.save import SaveStats
from .._errors import Cancelled, Unsupported
from .._progress import Progress
from ..group import Call, Group

log = logging.getLogger("shardwise")

WhenBusy = Literal["wait", "skip", "replace"]
WHEN_BUSY = ("wait", "skip", "replace")
OnSaveError = Literal["raise", "warn"]
ON_SAVE_ERROR = ("raise", "warn")


_numbers = itertools.count()


def skipped() -> SaveStats:
    """Returns the SaveStats of a save that was skipped because another was under way."""
    return SaveStats("", 0, 0, 0, 0, 0.0, skipped=True)


class OwnProcess:
    """The process that made an object. A forked child lacks the threads of its parent, so it must not wait
    for them or for locks that they hold."""

    def __init__(self, what: str) -> None:
        self._what, self._pid = what, os.getpid()

    def is_own(self) -> bool:
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raises Unsupported in a forked child."""
        if not self.is_own():
            raise Unsupported(f'{self._what}: it was made in process {self._pid}, and this process is a fork '
                              'of that one: make it here, or start processes by "spawn"')


class OwnLock:
    """A reentrant lock of the process that made it. Raises Unsupported in a forked child."""

    def __init__(self, what: str) -> None:
        self._process, self._lock = OwnProcess(what), threading.RLock()

    def __enter__(self) -> None:
        self._process.check()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class PendingSave:
    """A save under way, with the methods of concurrent.futures.Future. In a forked child they raise
    Unsupported."""

    def __init__(self, step: int | None, run: Callable[[Progress], SaveStats | None], what: str = "") -> None:
        self.step = step
        self._what = what or f"save of step {step}"
        self._run = run
        self._saving = _core.Saving(next(_numbers))
        self._cancel = False
        self._result: SaveStats | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[PendingSave], None]] = []
        self._has_callbacks = False
        self.process = OwnProcess(self._what)
        self._lock = OwnLock(self._what)
        self._begin = threading.Event()
        self._is_dropped = False
        self._thread = threading.Thread(target=self._work, name=f"shardwise {self._what}")
        try:
            self._thread.start()
        except BaseException:
            self._is_dropped = True  # the thread then runs nothing
            raise
        finally:
            self._begin.set()

    def _work(self) -> None:
        # start() returns as soon as this thread waits; else it would wait 5 ms for the interpreter.
        self._begin.wait()
        if self._is_dropped:
            return
        run = self._run
        del self._run  # frees the captured state when run() ends
        try:
            self._result = run(self._progress)
        except BaseException as error:  # raised by result(), or by the manager's next call
            self._error = error
            log.error("%s failed: %s", self._what, error)
        del run
        with self._lock:
            self._saving.end(self._error is not None)
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._call(callback)

    def _progress(self, done: int, total: int) -> None:
        if self._cancel:
            raise Cancelled(f"{self._what}: it was cancelled")

    def _call(self, callback: Callable[[PendingSave], None]) -> None:
        try:
            callback(self)
        except Exception:
            log.exception("a callback of %s failed", self._what)

    if not TYPE_CHECKING:  # a type checker shall report a missing name
        def __getattr__(self, name: str) -> Any:
            waits = name in ("wait", "join", "get", "block_until_ready", "wait_until_finished")
            advice = ": needed is result()" if waits else ""
            raise AttributeError(f"shardwise.PendingSave has no {name!r}{advice}")

    def __repr__(self) -> str:
        end = "failed" if self._error is not None else "done"
        return f"<shardwise.PendingSave: {self._what}, {end if self._saving.done() else 'under way'}>"

    def done(self) -> bool:
        """Returns True if the save has ended, well or not."""
        self.process.check()
        return self._saving.done()

    def cancel(self) -> bool:
        """Asks the save to end; it commits nothing unless it already has. Returns True if it was still under
        way."""
        self._cancel = True
        return not self.done()

    def result(self, timeout: float | None = None) -> SaveStats | None:
        """Waits until the save is committed, and returns its stats. Raises the error of the save, or
        TimeoutError."""
        self._wait(timeout)
        self._saving.see_error()
        if self._error is not None:
            raise self._error
        return self._result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits until the save has ended, and returns its error, or None if it succeeded. Raises
        TimeoutError."""
        self._wait(timeout)
        self._saving.see_error()
        return self._error

    def add_done_callback(self, callback: Callable[[PendingSave], None]) -> None:
        """Calls `callback` with this object at the end of the save, on the thread that saves; at once if the
        save has ended."""
        with self._lock:
            if not self._saving.done():
                self._has_callbacks = True
                self._callbacks.append(callback)
                return
        self._call(callback)

    def _wait(self, timeout: float | None, callbacks: bool = True) -> None:
        self.process.check()
        if self._saving.done() and threading.current_thread() is self._thread:
            return  # a callback has called this
        if not self._saving.wait(timeout):
            raise TimeoutError(f"{self._what} is not done after {timeout:g} s")
        if callbacks or not self._has_callbacks:
            self._thread.join()

    def end(self) -> None:
        """Waits, but not for callbacks: they may call the manager, whose lock the caller holds."""
        self._wait(None, callbacks=False)


@dataclass
class OneStep:
    """A call of one step, which begins when the step does."""

    group: Group
    what: str
    deadline: float

    @property
    def rank(self) -> int:
        return self.group.rank

    @property
    def size(self) -> int:
        return self.group.size

    def agree(self, work: Callable[[], bytes], merge: Callable[[list[bytes]], bytes]) -> bytes:
        return self.group.agree(work, merge, self.deadline, self.what)


class SaveQueue:
    """The saves of a manager whose end nobody has waited for, in the order of C++'s SaveTurns. One thread at
    a time may use it; a signal's handler may call it."""

    def __init__(self, when_busy: WhenBusy, is_shared: bool = False) -> None:
        """is_shared: several processes use the manager, so all ranks raise an error, seen or not, and do the
        same."""
        self._turns = _core.SaveTurns(when_busy, is_shared)
        self._saves: list[PendingSave] = []

    def is_saving(self) -> bool:
        return any(not pending._saving.done() for pending in self._saves)

    def next_turn(self, call: Call | OneStep) -> str:
        """Returns "now", "later" or "skipped", as rank 0 of the call decides. A save that waits and has not
        begun ends for the next one. Raises the error of a save that has ended, if nobody has seen it."""
        self._check()
        turn, failed = self._turns.next(call)
        self._drop(failed)
        return turn

    def finish(self) -> None:
        """Waits for all saves, also for one that a signal's handler begins during the wait. Raises the first
        error that nobody has seen."""
        self._check()
        self._drop(self._turns.finish())

    def turn(self, turn: str) -> _core.Turn | None:
        """Returns a Turn for a save whose turn is "later"; None if it is "now"."""
        return self._turns.later() if turn == "later" else None

    def add(self, pending: PendingSave, turn: _core.Turn | None) -> None:
        self._saves.append(pending)
        self._turns.add(pending._saving)

    def has(self, pending: PendingSave) -> bool:
        """Returns True if a save has been added and is not known to have ended."""
        return pending in self._saves

    def settle(self) -> None:
        """Waits for all saves, and drops their errors."""
        for pending in self._saves:
            if pending.process.is_own():
                pending.exception()

    def _check(self) -> None:
        for pending in self._saves:
            pending.process.check()

    def _drop(self, failed: int | None) -> None:
        """Forgets the saves that have been waited for. Raises the error of the save with the number
        `failed`."""
        ended = [pending for pending in self._saves if not self._turns.has(pending._saving)]
        self._saves = [pending for pending in self._saves if pending not in ended]
        for pending in ended:
            pending.end()
        for pending in ended:
            if pending._saving.number == failed and pending._error is not None:
                raise pending._error
