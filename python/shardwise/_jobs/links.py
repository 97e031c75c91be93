"""Carries bytes of checkpoints between the processes of a job, over sockets, for `_core.Link`.

Each process listens, and connects to another process when it first has a message for it, so a connection
carries messages one way. Within a deadline both ends prove by HMAC that they know the key of the job, which
rank 0 draws and the group's store carries. Frames are bytes of bounded length; they are neither unpickled nor
encrypted.
"""

from __future__ import annotations

import json
import queue
import secrets
import socket
import struct
import threading
import time
from multiprocessing import connection

from .. import _core
from .._errors import IOFailed
from ..group import Group

# The kind, channel and number of a frame, whose bytes follow. An abort has no number.
_HEADER = struct.Struct("<BQQ")
_MESSAGE, _ABORT = 0, 1

# A manifest has at most 1 GiB, and so has a list of several.
_MOST_BYTES = (4 << 30) + 4096
_HANDSHAKE_SECONDS = 30.0

# The most connections that have not proved the key, in addition to one per process.
_MOST_STRANGERS = 16

Frame = tuple[int, int, int, bytes]


def own_address(master: str | None) -> str:
    """Returns the address of the interface that leads to the job's master, or else the address of this host's
    name."""
    if master:
        try:
            family, _, _, _, address = socket.getaddrinfo(master, 1, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)  # sends nothing
                return str(probe.getsockname()[0])
        except OSError:
            pass
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


class _Line:
    """Sends frames to one process on a separate thread, so that callers do not wait."""

    def __init__(self, rank: int, to: int, address: tuple[str, int], key: bytes) -> None:
        self._rank, self._to, self._address, self._key = rank, to, address, key
        self._frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._left = 0
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name=f"shardwise sends to rank {to}", daemon=True)
        self._thread.start()

    def put(self, frame: Frame) -> None:
        if self.error is not None:
            raise IOFailed(f"the connection to rank {self._to} at {self._address[0]} has failed: "
                           f"{self.error}")
        with self._changed:
            self._left += 1
        self._frames.put(frame)

    def flush(self, end: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._left == 0 or self.error is not None,
                                          max(0.0, end - time.monotonic()))

    def close(self, seconds: float) -> None:
        """Waits until all frames are sent, at most `seconds`."""
        self._frames.put(None)
        self._thread.join(seconds)

    def _work(self) -> None:
        try:
            with connection.Client(self._address, authkey=self._key) as there:
                there.send_bytes(struct.pack("<I", self._rank))
                while (frame := self._frames.get()) is not None:
                    there.send_bytes(_HEADER.pack(*frame[:3]) + frame[3])
                    with self._changed:
                        self._left -= 1
                        self._changed.notify_all()
        except Exception as error:  # raised by the next put()
            with self._changed:
                self.error = error
                self._changed.notify_all()


class _Sender:
    """All lines of a process. It must not refer to its link, which holds this object's methods."""

    def __init__(self, rank: int, addresses: list[tuple[str, int]], key: bytes) -> None:
        self._rank, self._addresses, self._key = rank, addresses, key
        self._lines: dict[int, _Line] = {}
        self._lock = threading.Lock()

    def _line(self, to: int) -> _Line:
        with self._lock:
            line = self._lines.get(to)
            if line is None:
                line = self._lines[to] = _Line(self._rank, to, self._addresses[to], self._key)
            return line

    def send(self, to: int, channel: int, number: int, message: bytes) -> None:
        self._line(to).put((_MESSAGE, channel, number, message))

    def abort(self, channel: int, reason: str) -> None:
        for to in range(len(self._addresses)):
            if to == self._rank:
                continue
            try:
                self._line(to).put((_ABORT, channel, 0, reason.encode(errors="backslashreplace")))
            except IOFailed:
                pass

    def flush(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        with self._lock:
            lines = list(self._lines.values())
        return all([line.flush(end) for line in lines])

    def close(self) -> None:
        end = time.monotonic() + _HANDSHAKE_SECONDS
        with self._lock:
            lines, self._lines = list(self._lines.values()), {}
        for line in lines:
            line.close(max(0.0, end - time.monotonic()))


class _Unproven:
    """The connections that have not proved the key yet. Each has a deadline. If there are too many, the
    oldest is closed: a process that knows the key proves it in milliseconds."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._ends: dict[connection.Connection, float] = {}  # deadlines, the oldest connection first
        self._lock = threading.Lock()

    def add(self, there: connection.Connection) -> None:
        with self._lock:
            while len(self._ends) >= self._most:
                self._drop_oldest()
            self._ends[there] = time.monotonic() + self._seconds

    def remove(self, there: connection.Connection) -> None:
        """Forgets a connection. Call it before the close, after which another connection may get the
        descriptor."""
        with self._lock:
            self._ends.pop(there, None)

    def drop_late(self) -> float | None:
        """Drops late connections. Returns the seconds until the next one is late; None without any."""
        with self._lock:
            while self._ends:
                left = next(iter(self._ends.values())) - time.monotonic()
                if left > 0:
                    return left
                self._drop_oldest()
        return None

    def drop_all(self) -> None:
        with self._lock:
            while self._ends:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        there = next(iter(self._ends))
        del self._ends[there]
        with socket.socket(fileno=there.fileno()) as same:
            try:
                same.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and closes it
            except OSError:
                pass
            same.detach()


class Links:
    """Connects the processes of a group. Every rank makes one; the core takes `link`. Close it when the core
    no longer needs it."""

    def __init__(self, group: Group, deadline: float, address: str,
                 handshake: float = _HANDSHAKE_SECONDS) -> None:
        """address: the address that other processes reach this one at. handshake: the seconds that a
        connection has to prove the key."""
        family = socket.getaddrinfo(address, None)[0][0]
        # Connections in the kernel's queue cost no thread; in a short queue, strangers would delay ranks.
        self._listener = socket.create_server((address, 0), family=family, backlog=512 + group.size)
        self._unproven = _Unproven(group.size + _MOST_STRANGERS, handshake)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        try:
            own = json.dumps([address, self._listener.getsockname()[1]]).encode()

            def merge(said: list[bytes]) -> bytes:
                return json.dumps([secrets.token_hex(32), [json.loads(address) for address in said]]).encode()

            key, addresses = json.loads(group.agree(lambda: own, merge, deadline, "connect the processes"))
        except BaseException:
            self._listener.close()
            raise
        self._key, self._size = bytes.fromhex(key), group.size
        self._sender = _Sender(group.rank, [(host, port) for host, port in addresses], self._key)
        self.link = _core.Link(group.rank, group.size, self._sender.send, self._sender.abort,
                               self._sender.flush)
        threading.Thread(target=self._accept, name="shardwise accepts", daemon=True).start()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                self._listener.settimeout(self._unproven.drop_late())
                accepted, _ = self._listener.accept()
            except TimeoutError:
                continue  # a connection is late
            except OSError:  # the listener is closed, a connection is gone, or too many files are open
                self._closed.wait(0.1)
                continue
            accepted.setblocking(True)
            there = connection.Connection(accepted.detach())
            self._unproven.add(there)
            threading.Thread(target=self._hear, args=(there,), name="shardwise hears", daemon=True).start()
        self._unproven.drop_all()

    def _hear(self, there: connection.Connection) -> None:
        """Receives the frames of one connection; closes it if it does not prove the key."""
        rank = -1
        why = "its connection was closed"
        try:
            with there:
                try:
                    connection.deliver_challenge(there, self._key)
                    connection.answer_challenge(there, self._key)
                    (rank,) = struct.unpack("<I", there.recv_bytes(4))
                finally:
                    self._unproven.remove(there)
                while rank < self._size:
                    frame = there.recv_bytes(_MOST_BYTES)
                    kind, channel, number = _HEADER.unpack_from(frame)
                    if kind == _MESSAGE:
                        self.link.put(rank, channel, number, frame[_HEADER.size:])
                    else:
                        self.link.aborted(channel, frame[_HEADER.size:].decode(errors="replace"))
        except EOFError:
            pass
        except Exception as error:  # the core raises it in waits for this rank
            why = f"its connection has failed: {type(error).__name__}: {error}"
        finally:
            if 0 <= rank < self._size:
                self.link.gone(rank, why)

    def close(self) -> None:
        """Waits until all messages have gone out, and closes the listener."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
        self._sender.close()
        try:
            self._listener.shutdown(socket.SHUT_RDWR)  # ends accept()
        except OSError:
            pass
        self._listener.close()
