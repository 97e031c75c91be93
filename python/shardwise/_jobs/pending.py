"""Saves under way on threads, and the queue that a manager has of them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from .._checkpoint.save import SaveStats
from .._errors import Cancelled, Unsupported
from .._progress import Progress
from ..group import Call

log = logging.getLogger("shardwise")

WhenBusy = Literal["wait", "skip", "replace"]
WHEN_BUSY = ("wait", "skip", "replace")
OnSaveError = Literal["raise", "warn"]
ON_SAVE_ERROR = ("raise", "warn")


def skipped() -> SaveStats:
    """Returns the SaveStats of a save that was skipped as another was under way."""
    return SaveStats("", 0, 0, 0, 0, 0.0, skipped=True)


class OwnProcess:
    """The process that made an object. A child made by fork has no threads of its parent, so nothing there may wait for
    one, or for a lock that one of them holds."""

    def __init__(self, what: str) -> None:
        self._what, self._pid = what, os.getpid()

    def is_own(self) -> bool:
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raises Unsupported in a forked child."""
        if not self.is_own():
            raise Unsupported(f'{self._what}: it was made in process {self._pid}, and this process is a fork of that one: '
                              f'make it here, or start processes by "spawn"')


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
    """A save under way. Its methods are those of concurrent.futures.Future. In a forked child they raise Unsupported."""

    def __init__(self, step: int | None, run: Callable[[Progress], SaveStats | None], what: str = "") -> None:
        self.step = step
        self._what = what or f"save of step {step}"
        self._run = run
        self._done = threading.Event()
        self._cancel = False
        self._result: SaveStats | None = None
        self._error: BaseException | None = None
        self._seen = False
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
            self._is_dropped = True  # then nothing is run
            raise
        finally:
            self._begin.set()

    def _work(self) -> None:
        # start() returns as soon as this waits. Else it would wait for the interpreter, which this thread has for 5 ms.
        self._begin.wait()
        if self._is_dropped:
            return
        run = self._run
        del self._run  # frees the captured state when run() ends
        try:
            self._result = run(self._progress)
        except BaseException as error:  # noqa: BLE001 - told by result(), or by the manager's next call
            self._error = error
            log.error("%s failed: %s", self._what, error)
        del run
        with self._lock:
            self._done.set()
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

    if not TYPE_CHECKING:  # for a type checker a name that is not there is an error
        def __getattr__(self, name: str) -> Any:
            said = ": needed is result()" if name in ("wait", "join", "get", "block_until_ready", "wait_until_finished") else ""
            raise AttributeError(f"shardwise.PendingSave has no {name!r}{said}")

    def __repr__(self) -> str:
        end = "failed" if self._error is not None else "done"
        return f"<shardwise.PendingSave: {self._what}, {end if self._done.is_set() else 'under way'}>"

    def done(self) -> bool:
        """True if it has ended, well or not."""
        self.process.check()
        return self._done.is_set()

    def cancel(self) -> bool:
        """Ends it; nothing is committed unless it is already. Says whether it was still under way."""
        self._cancel = True
        return not self.done()

    def result(self, timeout: float | None = None) -> SaveStats | None:
        """Waits until it is committed. Raises the save's error, and TimeoutError."""
        self._wait(timeout)
        self._seen = True
        if self._error is not None:
            raise self._error
        return self._result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits until it has ended."""
        self._wait(timeout)
        self._seen = True
        return self._error

    def add_done_callback(self, callback: Callable[[PendingSave], None]) -> None:
        """Calls it with this object at the end, on the thread that saves; at once if it has ended."""
        with self._lock:
            if not self._done.is_set():
                self._has_callbacks = True
                self._callbacks.append(callback)
                return
        self._call(callback)

    def wake_at_end(self, turn: Turn) -> None:
        """Before callbacks: one of them may wait for the save that waits for this one."""
        with self._lock:
            if not self._done.is_set():
                self._callbacks.insert(0, lambda _: turn.wake())
                return
        turn.wake()

    def _wait(self, timeout: float | None, callbacks: bool = True) -> None:
        self.process.check()
        if self._done.is_set() and threading.current_thread() is self._thread:
            return  # from a callback
        # In steps, so that Ctrl-C is seen.
        end = None if timeout is None else threading.TIMEOUT_MAX if timeout < 0 else timeout
        waited = 0.0
        while not self._done.wait(0.1 if end is None else max(0.0, min(0.1, end - waited))):
            waited += 0.1
            if end is not None and waited >= end:
                raise TimeoutError(f"{self._what} is not done after {timeout:g} s")
        if callbacks or not self._has_callbacks:
            self._thread.join()

    def end(self) -> BaseException | None:
        """Waits, and gives its error. Callbacks may still run: they may call the manager, whose lock the caller has."""
        self._wait(None, callbacks=False)
        return self._error

    def has_unseen_error(self) -> bool:
        """True if it ended with an error that nobody has been told of."""
        return self._error is not None and not self._seen


class Turn:
    """The turn of a save that begins when the one before has ended, unless a newer one takes its place."""

    def __init__(self, before: PendingSave | None) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._has_begun = self._is_replaced = False
        if before is None:
            self.wake()
        else:
            before.wake_at_end(self)

    def wake(self) -> None:
        self._wake.set()

    def replace(self) -> bool:
        """Keeps it from beginning; False if it has begun."""
        with self._lock:
            self._is_replaced = not self._has_begun
        self.wake()
        return self._is_replaced

    def begins(self, call: Call) -> bool:
        """Waits for the turn, and returns True if it has come: as rank 0 decides for all ranks of the call,
        since ranks come to the end of the save before at different times."""
        self._wake.wait()

        def decide(_: list[bytes]) -> bytes:
            with self._lock:
                self._has_begun = not self._is_replaced
                return b"begins" if self._has_begun else b""

        return bool(call.agree(lambda: b"", decide))


#: The decision on a save that comes now: how many of those before, from the first on, have ended; True if one
#: of these has failed; and its turn, which is "now", "later" or "skipped".
Word = tuple[int, bool, str]


class SaveQueue:
    """The saves of a manager whose end nobody has waited for: one under way and, with when_busy="replace", one that waits
    for it. Not for several threads at a time; a signal's handler may call it."""

    def __init__(self, when_busy: WhenBusy, is_shared: bool = False) -> None:
        """is_shared: of the processes of a job, where an error is raised on all ranks, seen or not, so that all stay in
        step."""
        self._when_busy, self._is_shared = when_busy, is_shared
        self._current: PendingSave | None = None
        self._waiting: PendingSave | None = None
        self._turn: Turn | None = None  # of `_waiting`

    def is_saving(self) -> bool:
        return any(pending is not None and not pending._done.is_set() for pending in (self._current, self._waiting))

    def next_turn(self, agree: Callable[[Callable[[], Word]], Word] = lambda word: word()) -> str:
        """"now", "later" or "skipped". agree: gives all ranks the word of rank 0. A save that waits and has not begun is
        ended for the next one. Raises the error of one that has ended, if nobody has seen it."""
        if self._when_busy == "wait":
            self.finish()
            return "now"
        ended, has_failed, turn = agree(self._word)
        error: BaseException | None = None
        while self._current is not None and (ended > 0 or turn == "now"):
            found = self._end_current()
            error = found if error is None else error
            ended -= 1
        if has_failed:
            raise Cancelled("save: the save before has failed on rank 0") if error is None else error
        if turn == "later" and self._waiting is not None and self._turn is not None:
            self._turn.replace()
            self._waiting.end()
            self._waiting = self._turn = None
        return turn

    def _word(self) -> Word:
        """Decides, on rank 0. If no save has ended, the one that waits does not begin any more."""
        ended, has_failed = 0, False
        for pending in (self._current, self._waiting):
            if pending is None:
                break
            if not pending.done():
                if self._when_busy == "skip":
                    return ended, has_failed, "skipped"
                if ended == 0 and self._turn is not None and not self._turn.replace():
                    return self._word()  # the first has ended since
                return ended, has_failed, "later"
            ended += 1
            has_failed = has_failed or self._counts(pending)
        return ended, has_failed, "now"

    def _counts(self, pending: PendingSave) -> bool:
        return pending.end() is not None if self._is_shared else pending.has_unseen_error()

    def _end_current(self) -> BaseException | None:
        """Waits for the current save; the one that waits takes its place. Returns its error if that is to be
        raised."""
        current = self._current
        assert current is not None
        error = current.end()  # else Ctrl-C has ended the wait, not the save
        counts = self._counts(current)
        if self._current is current:  # else a signal's handler has done so
            self._current, self._waiting, self._turn = self._waiting, None, None
        return error if counts else None

    def turn(self, turn: str) -> Turn | None:
        """Returns a Turn for a save whose turn is "later"; None if it is "now"."""
        return Turn(self._current) if turn == "later" else None

    def add(self, pending: PendingSave, turn: Turn | None) -> None:
        if self._current is None:
            self._current = pending
        else:
            self._waiting, self._turn = pending, turn

    def has(self, pending: PendingSave) -> bool:
        """True if it has been added, and is not known to have ended."""
        return pending in (self._current, self._waiting)

    def finish(self) -> None:
        """Waits for all, also for one that a signal's handler begins during the wait; raises the first error
        that nobody has seen."""
        error: BaseException | None = None
        while self._current is not None:
            found = self._end_current()
            error = found if error is None else error
        if error is not None:
            raise error

    def settle(self) -> None:
        """Waits for all. Their errors are not raised any more."""
        for pending in (self._current, self._waiting):
            if pending is not None and pending.process.is_own():
                pending.exception()
