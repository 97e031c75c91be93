"""How the processes of a job agree on a save: a few short messages with deadlines, whatever brings the processes together.

What all ranks do together is a *call*. Rank 0 announces each call: its name, and all that must be the same on every rank.
Another rank takes the announcements in order, and compares. So a rank that is at another call, or that calls with another
path or option, is found at once and ends the call on all ranks; and a call that one rank left out does not shift later
ones, because an announcement whose call has ended is passed over.

Messages are values of a key-value store (torch's, JAX's, MPI's messages, a folder), and no collectives: so they can be
sent on any thread beside training. Every key holds a number that rank 0 draws when it starts, and that each other rank
hears of in answer to a number of its own: what another job has left in the store is never taken.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
import weakref
from types import TracebackType
from typing import Any, Callable, Mapping, Sequence

from ._errors import Error, GroupError, InvalidArgument, made
from ._stores import FileStore as FileStore
from ._stores import JaxStore as JaxStore
from ._stores import MpiStore as MpiStore
from ._stores import Store as Store
from ._stores import TorchStore as TorchStore

DEADLINE = 600.0
"""Seconds that a step of a save waits for the other processes, unless it is told otherwise."""

_Work = Callable[[], bytes]
_Merge = Callable[[list[bytes]], bytes]


class Call:
    """What all ranks of a group do together, in one step or several; made by Group.call(). For one thread. A context
    manager: an error that ends its body on one rank ends the call on all."""

    def agree(self, work: _Work, merge: _Merge) -> bytes:
        """One step: runs work() on every rank and then merge(all their bytes) on rank 0. Returns merge's bytes on every
        rank, or raises the same error on every rank: GroupError if several failed or did not come, else of the class of
        the one error there was."""
        return merge([work()])

    def __enter__(self) -> Call:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        pass


class Group:
    """The processes of a job; this class itself: one process alone.

    Every rank makes the same calls, in the same order, on one thread; duplicate() gives a group for another thread.
    """

    rank: int = 0
    size: int = 1

    def call(self, what: str, deadline: float = DEADLINE, same: Mapping[str, Any] | None = None) -> Call:
        """Begins a call of all ranks. It takes its place in the order of calls here, and does not wait. Its steps may run
        on another thread.

        what: its name in messages, as "save /run/step-5". same: what must be the same on all ranks, of JSON: if it is
        not, the call fails on all ranks, naming rank and values. deadline: seconds that a step waits for other ranks.
        Raises GroupError if the store is gone.
        """
        return Call()

    def agree(self, work: _Work, merge: _Merge, deadline: float, what: str, same: Mapping[str, Any] | None = None) -> bytes:
        """A call of one step."""
        with self.call(what, deadline, same) as call:
            return call.agree(work, merge)

    def barrier(self, deadline: float, what: str) -> None:
        """Returns when every rank has called it. Raises GroupError."""
        self.agree(lambda: b"", lambda values: b"", deadline, what)

    def duplicate(self) -> Group:
        """A group of the same processes, with an order of calls of its own. Every rank makes its duplicates in the same
        order."""
        return self


def _describe(error: BaseException) -> dict[str, Any]:
    if isinstance(error, Error):
        return {"code": error.code, "text": str(error), "errno": getattr(error, "errno", None) or 0}
    return {"code": "group", "text": f"{type(error).__name__}: {error}", "errno": 0}


# What a value begins with: the bytes of work(), its error, or that the rank is at another call.
_WELL, _FAILED, _REFUSED = b"+", b"-", b"!"


def _outcome(work: _Work) -> tuple[bytes, BaseException | None]:
    try:
        return _WELL + work(), None
    except BaseException as error:  # noqa: BLE001 - raised again by agree()
        return _FAILED + json.dumps(_describe(error)).encode(), error


def _failure(said: Mapping[str, Any], text: str, ranks: Sequence[int] = ()) -> bytes:
    """Of what _describe() said, with another text."""
    return _FAILED + json.dumps({**said, "text": text, "ranks": list(ranks)}).encode()


def _difference(rank: int, mine: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    """What a rank was called with that rank 0 was not; nothing if it is all the same. Both hold the call's name."""
    mine = json.loads(json.dumps(mine))  # as rank 0's have come
    comparable = mine["call"] == first["call"] or mine.keys() == first.keys()
    keys = [key for key in {**first, **mine} if key != "call"] if comparable else []
    wrong = [key for key in keys if mine.get(key) != first.get(key)] or ["call"] * (mine["call"] != first["call"])
    found = "; ".join(f"found {key} {mine.get(key)!r} on rank {rank}, needed {first.get(key)!r}, as on rank 0"
                      for key in wrong)
    return f"{found}: every rank makes the same calls in the same order" if found else ""


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _left(end: float, most: float = threading.TIMEOUT_MAX) -> float:
    return min(most, max(0.0, end - time.monotonic()))


class _Session:
    """How a process knows the others of its own job: by rank 0's number. Thread-safe."""

    def __init__(self, store: Store, rank: int, size: int, name: str) -> None:
        self.store, self.rank, self.size = store, rank, size
        self._name = f"shardwise/{name}"
        self._number = uuid.uuid4().hex  # rank 0's is that of the job; another's says that an answer is for it
        self._lock = threading.RLock()
        self._is_open = getattr(store, "is_fresh", False)
        self._joined = set(range(size)) if self._is_open else {0}
        self._job = self._name if self._is_open else f"{self._name}/{self._number}" if rank == 0 else ""

    def key(self, *parts: object) -> str:
        return "/".join(map(str, (self._job, *parts)))

    def open(self) -> None:
        """On rank 0, before its first announcement."""
        with self._lock:
            if not self._is_open:
                self.store.set(f"{self._name}/open", self._number.encode())
                self._is_open = True

    def admit(self, end: float) -> list[int]:
        """On rank 0: answers the ranks that want to join as they come, and waits for all. Gives those that have not come."""
        while True:
            for rank in set(range(self.size)) - self._joined:
                hello = self.store.get(self.key("hello", rank), 0)
                if hello is not None:
                    self.store.set(self.key("welcome", rank), hello)
                    self._joined.add(rank)
            missing = sorted(set(range(self.size)) - self._joined)
            if not missing or time.monotonic() >= end:
                return missing
            self.store.get(self.key("hello", missing[0]), _left(end, 0.25))

    def join(self, end: float) -> bool:
        """On another rank: finds rank 0's number, and waits for its answer. What an earlier job has left does not answer:
        its number is tried until rank 0 of this job has taken its place."""
        if self._job:
            return True
        if not self._lock.acquire(timeout=_left(end)):
            return False
        try:
            tried = ""
            while not self._job:
                offered = self.store.get(f"{self._name}/open", 0 if tried else _left(end))
                if offered is None:
                    return False
                job = f"{self._name}/{offered.decode()}"
                if job != tried:
                    if tried:
                        self.store.delete(f"{tried}/hello/{self.rank}")
                    self.store.set(f"{job}/hello/{self.rank}", self._number.encode())
                    tried = job
                answer = self.store.get(f"{job}/welcome/{self.rank}", _left(end, 0.25))
                if answer == self._number.encode():
                    self._job = job
                elif time.monotonic() >= end:
                    return False
                elif answer is not None:
                    time.sleep(0.02)  # it was for a rank of an earlier job, and stays there
            self.store.delete(self.key("hello", self.rank))
            self.store.delete(self.key("welcome", self.rank))
            return True
        finally:
            self._lock.release()


class StoreGroup(Group):
    """A group over a store. The name keeps its keys apart from other groups'. What an earlier job left is not read."""

    def __init__(self, store: Store, rank: int, size: int, name: str = "main") -> None:
        if not 0 <= rank < size:
            raise InvalidArgument(f"make a process group: found rank {rank} of {size}, needed 0 to {size - 1}")
        self._begin(_Session(store, rank, size, name), "0")

    def _begin(self, session: _Session, order: str) -> None:
        self.rank, self.size = session.rank, session.size
        self._session, self._order = session, order
        self._next = 0  # the number of the next call
        self._passed = ""  # a call of rank 0's that has ended without this rank
        self._last: weakref.ref[_StoreCall] | None = None
        self._duplicates = 0
        self._old: list[str] = []
        self._lock = threading.RLock()  # reentrant: a signal's handler may make a call, too

    def duplicate(self) -> StoreGroup:
        with self._lock:
            self._duplicates += 1
            group = StoreGroup.__new__(StoreGroup)
            group._begin(self._session, f"{self._order}.{self._duplicates}")
            return group

    def call(self, what: str, deadline: float = DEADLINE, same: Mapping[str, Any] | None = None) -> Call:
        with self._lock:
            call = _StoreCall(self, what, deadline, {"call": what, **(same or {})}, self._last)
            self._last = weakref.ref(call)
            return call

    def _forget(self, key: str) -> None:
        """Deletes, some keys later, one that rank 0 may still read, but does not wait for."""
        with self._lock:
            self._old.append(key)
            if len(self._old) > 6:
                self._session.store.delete(self._old.pop(0))


class _StoreCall(Call):
    def __init__(self, group: StoreGroup, what: str, deadline: float, header: dict[str, Any],
                 before: weakref.ref[_StoreCall] | None) -> None:
        self._group, self._session, self._store = group, group._session, group._session.store
        self._rank, self._size = group.rank, group.size
        self._what, self._deadline, self._header = what, deadline, header
        self._before = before
        self._placed = threading.Event()  # its number is known, or that it has none
        self._number: int | None = None
        self._refusal = ""
        self._is_over = False  # rank 0 has ended it before this rank came
        self._steps = 0
        self._ended = False
        self._came: list[int] = []  # in the last step
        self._missing: list[int] = []
        if self._rank == 0:
            self._session.open()
            self._number = group._next
            group._next += 1
            self._announce({})

    def _announce(self, more: Mapping[str, Any]) -> None:
        self._store.set(self._key("call"), json.dumps({"same": self._header, **more}).encode())

    def _key(self, *parts: object) -> str:
        return self._session.key(self._group._order, self._number, *parts)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        if error is not None and not self._ended:
            try:
                self._leave(error)
            except BaseException:  # noqa: BLE001 - the error that is under way is what is raised
                pass
        self._ended = True
        self._placed.set()

    def _leave(self, error: BaseException) -> None:
        """Tells the others, which are at the next step or will be."""
        said = _describe(error)
        if self._rank == 0:
            self._end(said, f"{self._what}: rank 0: {said['text']}", self._steps + 1)
            if self._steps == 0:  # the others may still be at what they do before it, or not know this job yet
                self._session.admit(time.monotonic() + self._deadline)
                self._came = list(range(self._size))
                self._heard(min(self._deadline, 10.0))
        elif self._steps == 0:

            def fail() -> bytes:
                raise error

            self.agree(fail, lambda values: b"")
        else:
            self._store.set(self._key(self._steps + 1, self._rank), _FAILED + json.dumps(said).encode())
            self._store.set(self._key(self._steps + 1, "heard", self._rank), b"")  # it does not stay to hear

    def agree(self, work: _Work, merge: _Merge) -> bytes:
        assert not self._ended, "the call has ended"
        self._steps += 1
        self._came = [0]
        own: BaseException | None = None
        verdict = b""
        try:
            own, verdict = self._lead(work, merge) if self._rank == 0 else self._follow(work)
        finally:
            self._ended = verdict[:1] != _WELL
        if not self._ended:
            return verdict[1:]
        told = json.loads(verdict[1:])
        if own is not None and told["ranks"] == [self._rank]:
            own.__notes__ = [*getattr(own, "__notes__", []), told["text"]]
            raise own
        raise made(told["code"], told["text"], told["errno"])

    def _lead(self, work: _Work, merge: _Merge) -> tuple[BaseException | None, bytes]:
        own: BaseException | None = None
        try:
            # Once in a job, and before the work, for which no other rank is to wait.
            end = time.monotonic() + self._deadline
            if late := self._session.admit(end):
                raise GroupError(self._late(late))
            mine, own = _outcome(work)
            verdict = self._judged([mine, *self._gathered(time.monotonic() + self._deadline)], merge)
        except (GroupError, _Refused) as error:
            verdict = _failure(_describe(error), str(error))
        except BaseException as error:  # noqa: BLE001 - the others must hear of it whatever it is
            said = _describe(error)
            verdict = _failure(said, f"{self._what}: rank 0: {said['text']}")
        if verdict[:1] == _WELL:
            self._store.set(self._key(self._steps, "all"), verdict)
        else:
            told = json.loads(verdict[1:])
            self._end(told, told["text"], self._steps, told["ranks"])
        if self._heard(min(self._deadline, 10.0)) and verdict[:1] == _WELL:
            self._store.delete(self._key(self._steps, "all"))
            self._store.delete(self._key("call"))
        return own, verdict

    def _end(self, said: Mapping[str, Any], text: str, step: int, ranks: Sequence[int] = ()) -> None:
        """On rank 0: the call has failed, also for a rank that has yet to come; but not for one that it failed without,
        which has perhaps left it out."""
        self._announce({"ended": text, "without": self._missing})
        self._store.set(self._key(step, "all"), _failure(said, text, ranks))

    def _judged(self, values: list[bytes], merge: _Merge) -> bytes:
        bad = {rank: json.loads(value[1:]) for rank, value in enumerate(values) if value[:1] == _FAILED}
        if not bad:
            return _WELL + merge([value[1:] for value in values])
        text = "; ".join(f"rank {rank}: {one['text']}" for rank, one in bad.items())
        first, *others = bad.values()
        said = first if all(one["code"] == first["code"] for one in others) else _describe(GroupError(text))
        return _failure(said, f"{self._what}: {text}", list(bad))

    def _gathered(self, end: float) -> list[bytes]:
        """The other ranks' values. Raises _Refused as soon as one is at another call."""
        values: list[bytes] = []
        for rank in range(1, self._size):
            value = self._store.get(self._key(self._steps, rank), _left(end, 1.0))
            while value is None:
                refusal = self._store.get(self._key("refused"), 0) if self._steps == 1 else None
                if refusal is not None:
                    raise _Refused(refusal.decode())
                if time.monotonic() >= end:
                    raise GroupError(self._late([late for late in range(rank, self._size) if not self._has_come(late)]))
                value = self._store.get(self._key(self._steps, rank), _left(end, 1.0))
            self._came.append(rank)
            if value[:1] == _REFUSED:
                raise _Refused(value[1:].decode())
            values.append(value)
        return values

    def _has_come(self, rank: int) -> bool:
        has_come = self._store.get(self._key(self._steps, rank), 0) is not None
        if has_come:
            self._came.append(rank)
        return has_come

    def _late(self, late: Sequence[int]) -> str:
        self._missing = list(late)
        return (f"{self._what}: {_ranks(late) if late else 'not all'} of {self._size} did not come within "
                f"{self._deadline:g} s: was it called on one rank only?")

    def _heard(self, seconds: float) -> bool:
        """Rank 0 stays until those that came have heard the verdict: its process may end next, and its store with it."""
        end = time.monotonic() + seconds
        return all(self._store.get(self._key(self._steps, "heard", rank), _left(end)) is not None
                   for rank in self._came if rank != 0)

    def _follow(self, work: _Work) -> tuple[BaseException | None, bytes]:
        if self._steps == 1:
            self._place(time.monotonic() + self._deadline)
        if self._refusal or self._is_over:
            mine, own = _REFUSED + self._refusal.encode(), None
        else:
            mine, own = _outcome(work)
        self._store.set(self._key(self._steps, self._rank), mine)
        # Rank 0 may use up its deadline waiting for others, and still has to say so.
        wait = 2 * self._deadline + 5
        try:
            verdict = self._store.get(self._key(self._steps, "all"), wait)
            if verdict is None:
                raise GroupError(f"{self._what}: rank 0 of {self._size} said nothing within {wait:g} s")
        except GroupError:
            if own is not None:
                raise own from None
            raise
        self._group._forget(self._key(self._steps, self._rank))
        self._store.set(self._key(self._steps, "heard", self._rank), b"")
        self._group._forget(self._key(self._steps, "heard", self._rank))
        return own, verdict

    def _place(self, end: float) -> None:
        """On another rank than 0: takes the next announcement whose call has not ended. Raises GroupError if there is
        none in time."""
        group = self._group
        try:
            before = None if self._before is None else self._before()
            if before is not None:
                before._placed.wait(_left(end))
            if not self._session.join(end):
                raise GroupError(self._late([0]) + group._passed)
            while self._number is None:
                self._number = group._next
                announced = self._store.get(self._key("call"), _left(end))
                if announced is None:
                    self._number = None
                    raise GroupError(self._late([0]) + group._passed)
                first = json.loads(announced)
                group._next += 1
                difference = _difference(self._rank, self._header, first["same"])
                if "ended" in first and (difference or self._rank in first["without"]):
                    group._passed = f" Rank 0's last call ended without this rank: {first['ended']}"
                    self._number = None
            group._passed = ""
            self._is_over = "ended" in first
            if difference:
                self._refusal = f"{first['same']['call']}: {difference}"
                self._store.set(self._key("refused"), self._refusal.encode())
        finally:
            self._placed.set()


class _Refused(InvalidArgument):
    """A rank is at another call."""


def single() -> Group:
    """One process."""
    return Group()


_groups: dict[str, tuple[Callable[[], Any], StoreGroup]] = {}


def _kept(name: str, made_of: Callable[[], Any], make: Callable[[], StoreGroup]) -> StoreGroup:
    """The last group of a framework, unless what it is made of is another now."""
    before, group = _groups.get(name, (lambda: None, None))
    if group is None or before() is not made_of():
        group = make()
        _groups[name] = made_of, group
    return group


def from_torch() -> Group:
    """The processes of torch.distributed's default group, over its store. The same group each time, until torch.distributed
    is initialised again."""
    import torch.distributed as dist

    if not dist.is_initialized():
        raise InvalidArgument("torch.distributed is not initialised: call init_process_group() first")
    if dist.get_world_size() == 1:
        return single()
    store = dist.distributed_c10d._get_default_store()
    # A store that is kept here would keep its port.
    return _kept("torch", weakref.ref(store), lambda: StoreGroup(TorchStore(store), dist.get_rank(), dist.get_world_size(), "torch"))


def from_jax() -> Group:
    """The processes of jax.distributed, over its coordination service. The same group each time, until jax.distributed is
    initialised again."""
    import jax
    from jax._src import distributed

    if jax.process_count() == 1:
        return single()
    client = distributed.global_state.client
    return _kept("jax", lambda: client, lambda: StoreGroup(JaxStore(client), jax.process_index(), jax.process_count(), "jax"))


def from_mpi(comm: Any) -> Group:
    """The processes of an mpi4py communicator, by point-to-point messages."""
    return StoreGroup(MpiStore(comm), comm.rank, comm.size) if comm.size > 1 else single()


def from_files(folder: str | os.PathLike[str], rank: int, size: int, name: str = "files") -> Group:
    """Plain processes that see one folder, which may hold what earlier jobs have left."""
    return StoreGroup(FileStore(folder), rank, size, name) if size > 1 else single()


def auto() -> Group:
    """torch's processes, or else JAX's, if one of them is initialised; else this one alone."""
    import sys

    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return from_torch()
    jax = sys.modules.get("jax")
    if jax is not None:
        from jax._src import distributed

        if distributed.global_state.client is not None:
            return from_jax()
    return single()
