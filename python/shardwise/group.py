"""How the processes of a job agree on a save: a few short messages with deadlines, whatever brings the processes together.

A group gathers bytes on rank 0 and broadcasts bytes from there; `agree` makes of both the one step that saves are made
of. Groups over a key-value store (torch's, JAX's, a folder's) use no collective, so they can run on any thread beside
training. An error names the ranks that failed or did not come, and is the same text on every rank that can hear.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any, Callable, Protocol, Sequence

from ._errors import Error, GroupError, InvalidArgument

DEADLINE = 600.0
"""Seconds that a step of a save waits for the other processes, unless it is told otherwise."""


class ProcessGroup(Protocol):
    """What saves and restores need of the processes of a job. Every rank calls the same, in the same order."""

    rank: int
    size: int

    def gather(self, value: bytes, deadline: float, what: str) -> list[bytes] | None:
        """All ranks' values on rank 0, by rank; None elsewhere, at once. Raises GroupError naming late ranks."""
        ...

    def broadcast(self, value: bytes | None, deadline: float, what: str) -> bytes:
        """Rank 0's value on every rank. Raises GroupError."""
        ...

    def barrier(self, deadline: float, what: str) -> None:
        """Returns when every rank has called it. Raises GroupError."""
        ...


class Group:
    """A ProcessGroup made of gather and broadcast."""

    rank: int = 0
    size: int = 1

    def gather(self, value: bytes, deadline: float, what: str) -> list[bytes] | None:
        return [value]

    def broadcast(self, value: bytes | None, deadline: float, what: str) -> bytes:
        assert value is not None
        return value

    def barrier(self, deadline: float, what: str) -> None:
        self.agree(lambda: b"", lambda values: b"", deadline, what)

    def hear_out(self, seconds: float) -> None:
        """Rank 0 stays until those that came have heard the verdict: its process may end next, and its store with it."""

    def duplicate(self) -> Group:
        """Of the same processes, with calls that do not meet this one's. Every rank calls it in the same order."""
        return self

    def agree(self, work: Callable[[], bytes], merge: Callable[[list[bytes]], bytes], deadline: float, what: str) -> bytes:
        """Runs work() on every rank and then merge(all their bytes) on rank 0. Returns merge's bytes on every rank, or
        raises the same error on every rank: GroupError where several failed or did not come, else of the class of
        the one error there was."""
        mine, own = _outcome(work)
        verdict = b""
        if self.rank == 0:
            verdict = self._verdict(mine, merge, deadline, what)
        else:
            self.gather(mine, deadline, what)
        # Rank 0 may use up its deadline waiting for others, and still has to say so.
        try:
            verdict = self.broadcast(verdict, 2 * deadline + 5, what)
        except GroupError:
            if own is not None:
                raise own from None
            raise
        self.hear_out(min(deadline, 10.0))
        if verdict[:1] == b"+":
            return verdict[1:]
        told = json.loads(verdict[1:])
        if own is not None and told["ranks"] == [self.rank]:
            own.__notes__ = [*getattr(own, "__notes__", []), told["text"]]
            raise own
        raise _error(told["code"], told["text"])

    def _verdict(self, mine: bytes, merge: Callable[[list[bytes]], bytes], deadline: float, what: str) -> bytes:
        try:
            values = self.gather(mine, deadline, what)
            assert values is not None
            bad = {rank: json.loads(value[1:]) for rank, value in enumerate(values) if value[:1] == b"-"}
            if bad:
                text = "; ".join(f"rank {rank}: {one['text']}" for rank, one in bad.items())
                codes = {one["code"] for one in bad.values()}
                return _failure(codes.pop() if len(codes) == 1 else "group", f"{what}: {text}", list(bad))
            return b"+" + merge([value[1:] for value in values])
        except GroupError as error:
            return _failure("group", str(error), [])
        except BaseException as error:  # noqa: BLE001 - the others must hear of it whatever it is
            said = _describe(error)
            return _failure(said["code"], f"{what}: rank 0: {said['text']}", [])


def _describe(error: BaseException) -> dict[str, str]:
    if isinstance(error, Error):
        return {"code": error.code, "text": str(error)}
    return {"code": "group", "text": f"{type(error).__name__}: {error}"}


def _outcome(work: Callable[[], bytes]) -> tuple[bytes, BaseException | None]:
    try:
        return b"+" + work(), None
    except BaseException as error:  # noqa: BLE001 - raised again by agree()
        return b"-" + json.dumps(_describe(error)).encode(), error


def _failure(code: str, text: str, ranks: Sequence[int]) -> bytes:
    return b"-" + json.dumps({"code": code, "text": text, "ranks": list(ranks)}).encode()


def _error(code: str, text: str) -> Error:
    from ._errors import made

    return GroupError(text) if code == "group" else made(code, text)


class Store(Protocol):
    """A key-value store that all processes see."""

    def set(self, key: str, value: bytes) -> None: ...

    def get(self, key: str, seconds: float) -> bytes | None:
        """The value as soon as it is there; None where it has not come after `seconds`."""
        ...

    def delete(self, key: str) -> None:
        """May do nothing where the store cannot."""
        ...


class StoreGroup(Group):
    """A group over a store. The name keeps its keys apart from other groups'."""

    def __init__(self, store: Store, rank: int, size: int, name: str = "main") -> None:
        if not 0 <= rank < size:
            raise InvalidArgument(f"a process group of {size} has no rank {rank}")
        self.store, self.rank, self.size, self.name = store, rank, size, name
        self._calls = 0
        self._duplicates = 0
        self._old: list[str] = []
        self._came: list[int] = []  # of the last gather
        self._lock = threading.Lock()

    def duplicate(self) -> StoreGroup:
        with self._lock:
            self._duplicates += 1
            return StoreGroup(self.store, self.rank, self.size, f"{self.name}.{self._duplicates}")

    def _key(self, what: object) -> str:
        return f"shardwise/{self.name}/{self._calls}/{what}"

    def gather(self, value: bytes, deadline: float, what: str = "gather") -> list[bytes] | None:
        self._calls += 1
        own = self._key(self.rank)
        self.store.set(own, value)
        self._forget(own)
        if self.rank != 0:
            return None
        end = time.monotonic() + deadline
        values: list[bytes] = []
        self._came = []
        for rank in range(self.size):
            found = self.store.get(self._key(rank), max(0.0, end - time.monotonic()))
            if found is None:
                raise GroupError(self._late(deadline, what))
            values.append(found)
            self._came.append(rank)
        return values

    def hear_out(self, seconds: float) -> None:
        if self.rank != 0:
            self.store.set(self._key(f"heard-{self.rank}"), b"")
            self._forget(self._key(f"heard-{self.rank}"))
            return
        end = time.monotonic() + seconds
        for rank in self._came:
            if rank != 0 and self.store.get(self._key(f"heard-{rank}"), max(0.0, end - time.monotonic())) is None:
                return

    def broadcast(self, value: bytes | None, deadline: float, what: str = "broadcast") -> bytes:
        self._calls += 1
        key = self._key("all")
        if self.rank == 0:
            assert value is not None
            self.store.set(key, value)
            self._forget(key)
            return value
        found = self.store.get(key, deadline)
        if found is None:
            raise GroupError(f"{what}: rank 0 of {self.size} said nothing within {deadline:g} s")
        return found

    def _late(self, deadline: float, what: str) -> str:
        """Names all that are missing, not the first alone."""
        late = [rank for rank in range(self.size) if rank not in self._came and self.store.get(self._key(rank), 0) is None]
        self._came = [rank for rank in range(self.size) if rank not in late]
        if not late:
            return f"{what}: not all of {self.size} ranks came within {deadline:g} s"
        ranks = f"rank{'s' if len(late) > 1 else ''} {', '.join(map(str, late))}"
        return f"{what}: {ranks} of {self.size} did not come within {deadline:g} s"

    def _forget(self, key: str) -> None:
        """Keys that everybody has read by now: those of two steps ago."""
        self._old.append(key)
        if len(self._old) > 6:
            self.store.delete(self._old.pop(0))


class TorchStore:
    """torch.distributed's own store, cloned: a connection of its own, safe on any thread."""

    def __init__(self, store: Any = None) -> None:
        import torch.distributed as dist

        if store is None:
            store = dist.distributed_c10d._get_default_store()
        self._store = store.clone() if hasattr(store, "clone") else store

    def set(self, key: str, value: bytes) -> None:
        self._guarded(lambda: self._store.set(key, value))

    def get(self, key: str, seconds: float) -> bytes | None:
        from datetime import timedelta

        if seconds <= 0:
            if not self._guarded(lambda: self._store.check([key])):
                return None
        else:
            try:
                self._store.wait([key], timedelta(seconds=seconds))
            except Exception as error:
                if "time" in str(error).lower():
                    return None
                raise self._gone(error) from None
        found: bytes = self._guarded(lambda: self._store.get(key))
        return found

    def delete(self, key: str) -> None:
        try:
            self._store.delete_key(key)
        except Exception:  # some stores cannot, and a full one is no reason to fail
            pass

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            raise self._gone(error) from None

    @staticmethod
    def _gone(error: Exception) -> GroupError:
        return GroupError(f"the store is gone (has rank 0's process ended?): {type(error).__name__}: {str(error)[:120]}")


# In less the service may not answer at all on a busy machine.
_LEAST_MILLISECONDS = 200


class JaxStore:
    """The coordination service that jax.distributed.initialize() has started."""

    def __init__(self) -> None:
        from jax._src import distributed

        self._client: Any = distributed.global_state.client

    def set(self, key: str, value: bytes) -> None:
        self._client.key_value_set_bytes(key, value)

    def get(self, key: str, seconds: float) -> bytes | None:
        try:
            found: bytes = self._client.blocking_key_value_get_bytes(key, max(_LEAST_MILLISECONDS, int(seconds * 1000)))
            return found
        except Exception as error:
            if "DEADLINE_EXCEEDED" in str(error) or "NOT_FOUND" in str(error):
                return None
            raise GroupError(f"JAX's coordination service: {type(error).__name__}: {str(error)[:120]}") from None

    def delete(self, key: str) -> None:
        try:
            self._client.key_value_delete(key)
        except Exception:
            pass


class FileStore:
    """A folder that all processes see: files, renamed into place."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = os.fspath(folder)
        os.makedirs(self._folder, exist_ok=True)

    def _path(self, key: str) -> str:
        return os.path.join(self._folder, key.replace("/", "%"))

    def set(self, key: str, value: bytes) -> None:
        unfinished = f"{self._path(key)}.{os.getpid()}.{threading.get_ident()}.new"
        with open(unfinished, "wb") as file:
            file.write(value)
        os.rename(unfinished, self._path(key))

    def get(self, key: str, seconds: float) -> bytes | None:
        end = time.monotonic() + seconds
        pause = 0.0005
        while True:
            try:
                with open(self._path(key), "rb") as file:
                    return file.read()
            except FileNotFoundError:
                if time.monotonic() >= end:
                    return None
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def delete(self, key: str) -> None:
        try:
            os.unlink(self._path(key))
        except FileNotFoundError:
            pass


class MpiGroup(Group):
    """mpi4py's, by point-to-point messages on a communicator of its own, so that missing ranks have names."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm.Dup()
        self.rank, self.size = self._comm.rank, self._comm.size
        self._calls = 0
        self._sent: list[Any] = []

    def duplicate(self) -> MpiGroup:
        return MpiGroup(self._comm)

    def _tag(self) -> int:
        return self._calls % 30000

    def gather(self, value: bytes, deadline: float, what: str = "gather") -> list[bytes] | None:
        self._calls += 1
        if self.rank != 0:
            self._sent = [self._comm.isend(value, 0, tag=self._tag())]
            return None
        found: dict[int, bytes] = {0: value}
        end = time.monotonic() + deadline
        while len(found) < self.size:
            for rank in range(1, self.size):
                if rank not in found and self._comm.iprobe(source=rank, tag=self._tag()):
                    found[rank] = self._comm.recv(source=rank, tag=self._tag())
            late = [rank for rank in range(self.size) if rank not in found]
            if late and time.monotonic() > end:
                ranks = f"rank{'s' if len(late) > 1 else ''} {', '.join(map(str, late))}"
                raise GroupError(f"{what}: {ranks} of {self.size} did not come within {deadline:g} s")
            time.sleep(0.0005)
        return [found[rank] for rank in range(self.size)]

    def broadcast(self, value: bytes | None, deadline: float, what: str = "broadcast") -> bytes:
        self._calls += 1
        if self.rank == 0:
            assert value is not None
            self._sent = [self._comm.isend(value, rank, tag=self._tag()) for rank in range(1, self.size)]
            return value
        end = time.monotonic() + deadline
        while not self._comm.iprobe(source=0, tag=self._tag()):
            if time.monotonic() > end:
                raise GroupError(f"{what}: rank 0 of {self.size} said nothing within {deadline:g} s")
            time.sleep(0.0005)
        received: bytes = self._comm.recv(source=0, tag=self._tag())
        return received


def single() -> Group:
    """One process."""
    return Group()


_torch_groups: dict[int, StoreGroup] = {}


def from_torch() -> Group:
    """The processes of torch.distributed's default group, over its store. Calls after the first give duplicates."""
    import torch.distributed as dist

    if not dist.is_initialized():
        raise InvalidArgument("torch.distributed is not initialised: call init_process_group() first")
    if dist.get_world_size() == 1:
        return single()
    store = dist.distributed_c10d._get_default_store()
    main = _torch_groups.get(id(store))
    if main is None:
        main = StoreGroup(TorchStore(store), dist.get_rank(), dist.get_world_size(), "torch")
        _torch_groups.clear()
        _torch_groups[id(store)] = main
    return main.duplicate()


_jax_group: list[StoreGroup] = []


def from_jax() -> Group:
    """The processes of jax.distributed, over its coordination service. Calls after the first give duplicates."""
    import jax

    if jax.process_count() == 1:
        return single()
    if not _jax_group:
        _jax_group.append(StoreGroup(JaxStore(), jax.process_index(), jax.process_count(), "jax"))
    return _jax_group[0].duplicate()


def from_mpi(comm: Any) -> Group:
    """The processes of an mpi4py communicator."""
    return MpiGroup(comm) if comm.size > 1 else single()


def from_files(folder: str | os.PathLike[str], rank: int, size: int, name: str = "files") -> Group:
    """Plain processes that see one folder. It must be empty at the start, or the name new."""
    return StoreGroup(FileStore(folder), rank, size, name) if size > 1 else single()


def auto() -> Group:
    """torch's processes, or else JAX's, where one of them is initialised; else this one alone."""
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
