"""Defines key-value stores that all processes of a job see: torch's, JAX's, a folder's, and a store made of
MPI's messages."""

from __future__ import annotations

import math
import os
import threading
import time
from typing import Any, Callable, Protocol

from ._argument_types import check_calls
from ._errors import GroupError, InvalidArgument
from ._paths import local


class Store(Protocol):
    """A key-value store that all processes see. Thread-safe. Calls of a group raise its errors unchanged.

    An attribute `is_fresh` that is true says that the store holds nothing older than its group.
    """

    def set(self, key: str, value: bytes) -> None:
        """Sets the value of a key, and replaces an older one."""
        ...

    def get(self, key: str, seconds: float) -> bytes | None:
        """Returns a value as soon as it is there; None after `seconds`, which may be 0."""
        ...

    def delete(self, key: str) -> None:
        """Removes a value. May do nothing if the store cannot."""
        ...


_PAUSE = 0.05  # the longest pause in seconds between two looks, unless there are too many ranks for it


def _polled(look: Callable[[], bytes | None], seconds: float, longest_pause: float = _PAUSE,
            least_pause: float = 0.0) -> bytes | None:
    """Returns the first value that look() finds; None after `seconds`. Looks twenty times, more often if a
    pause would be too long, less often if it would be too short. The last look comes one pause before the
    end, as callers make long waits of short ones."""
    if math.isnan(seconds):
        raise InvalidArgument(f"wait for another process: found {seconds} seconds, needed is a number")
    looks = max(20, math.ceil(seconds / longest_pause))
    if least_pause > 0:
        looks = min(looks, max(1, int(seconds / least_pause)))
    end = time.monotonic() + seconds
    for _ in range(looks):
        if (value := look()) is not None:
            return value
        if (left := end - time.monotonic()) <= 0:
            break
        time.sleep(min(seconds / looks, left))
    return None


def store_of_torch() -> Any:
    import torch.distributed as dist

    if not dist.is_initialized():
        raise InvalidArgument("torch.distributed is not initialised: call init_process_group() first")
    return dist.distributed_c10d._get_default_store()


class TorchStore:
    """torch.distributed's own store. It is cloned, so it has its own connection and is safe on any thread."""

    def __init__(self, store: Any = None) -> None:
        import torch.distributed as dist

        if store is None:
            store = store_of_torch()
        self._store = store.clone() if hasattr(store, "clone") else store
        # In a long wait all ranks together ask the process of rank 0 at most 20,000 times a second, or each
        # rank once a second.
        self._least_pause = dist.get_world_size() / 20_000 if dist.is_initialized() else 0.0

    def set(self, key: str, value: bytes) -> None:
        self._guarded(lambda: self._store.set(key, value))

    def get(self, key: str, seconds: float) -> bytes | None:
        # The store's own wait() blocks Ctrl-C, and logs a warning if it ends without the key.
        return _polled(lambda: self._guarded(lambda: self._store.get(key) if self._store.check([key])
                                             else None), seconds, least_pause=self._least_pause)

    def delete(self, key: str) -> None:
        try:
            self._store.delete_key(key)
        except Exception:  # some stores cannot, and a leftover key does no harm
            pass

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            raise self._gone(error) from None

    @staticmethod
    def _gone(error: Exception) -> GroupError:
        return GroupError(f"the store is gone (has rank 0's process ended?): {type(error).__name__}: "
                          f"{str(error)[:120]}")


# With a shorter wait the service may not answer at all on a busy machine.
_LEAST_MILLISECONDS = 200


class JaxStore:
    """The coordination service that jax.distributed.initialize() has started."""

    def __init__(self, client: Any = None) -> None:
        if client is None:
            from jax._src import distributed

            client = distributed.global_state.client
        self._client: Any = client

    def set(self, key: str, value: bytes) -> None:
        try:
            self._client.key_value_set_bytes(key, value, True)
        except Exception as error:
            raise self._gone(error) from None

    def get(self, key: str, seconds: float) -> bytes | None:
        try:
            value: bytes
            if seconds <= 0 and hasattr(self._client, "key_value_try_get_bytes"):
                value = self._client.key_value_try_get_bytes(key)
            else:
                value = self._client.blocking_key_value_get_bytes(
                    key, max(_LEAST_MILLISECONDS, int(seconds * 1000)))
            return value
        except Exception as error:
            if "DEADLINE_EXCEEDED" in str(error) or "NOT_FOUND" in str(error):
                return None
            raise self._gone(error) from None

    def delete(self, key: str) -> None:
        try:
            self._client.key_value_delete(key)
        except Exception:
            pass

    @staticmethod
    def _gone(error: Exception) -> GroupError:
        return GroupError(f"JAX's coordination service: {type(error).__name__}: {str(error)[:120]}")


class FileStore:
    """A folder that all processes see. Each value is a file, renamed into place."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = os.path.abspath(local(folder, "make a process group"))
        os.makedirs(self._folder, exist_ok=True)

    def _path(self, key: str) -> str:
        return os.path.join(self._folder, key.replace("/", "%"))

    def set(self, key: str, value: bytes) -> None:
        unfinished = f"{self._path(key)}.{os.getpid()}.{threading.get_ident()}.new"
        with open(unfinished, "wb") as file:
            file.write(value)
        os.rename(unfinished, self._path(key))

    def get(self, key: str, seconds: float) -> bytes | None:
        def read() -> bytes | None:
            try:
                with open(self._path(key), "rb") as file:
                    return file.read()
            except FileNotFoundError:
                return None

        return _polled(read, seconds)

    def delete(self, key: str) -> None:
        try:
            os.unlink(self._path(key))
        except FileNotFoundError:
            pass


class MpiStore:
    """A store made of point-to-point messages of mpi4py, on its own communicator. Rank 0 sends its values to
    all other ranks, another rank to rank 0 only; each rank can get a value once."""

    is_fresh = True

    def __init__(self, comm: Any) -> None:
        self._comm = comm.Dup()
        self._received: dict[str, bytes] = {}
        self._sent: list[Any] = []
        self._lock = threading.RLock()

    def set(self, key: str, value: bytes) -> None:
        with self._lock:
            self._sent = [request for request in self._sent if not request.Test()]
            for rank in range(1, self._comm.size) if self._comm.rank == 0 else (0,):
                self._sent.append(self._comm.isend((key, value), rank))

    def get(self, key: str, seconds: float) -> bytes | None:
        def receive() -> bytes | None:
            with self._lock:
                while self._comm.iprobe():
                    received, value = self._comm.recv()
                    self._received[received] = value
                return self._received.pop(key, None)

        return _polled(receive, seconds, 0.0005)

    def delete(self, key: str) -> None:
        with self._lock:
            self._received.pop(key, None)


check_calls(__name__)
