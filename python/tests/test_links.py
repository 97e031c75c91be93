"""The sockets of tiers: how much of a process strangers can hold, and for how long."""

import contextlib
import socket
import threading

import pytest

from shardwise import group
from shardwise._jobs.links import _MOST_STRANGERS, Links


@contextlib.contextmanager
def two(folder, **options):
    """The links of two ranks."""
    links = {}

    def make(rank):
        links[rank] = Links(group.from_files(folder, rank, 2), 60, "127.0.0.1", **options)

    other = threading.Thread(target=make, args=(1,))
    other.start()
    make(0)
    other.join()
    try:
        yield links[0], links[1]
    finally:
        for rank in links:
            links[rank].close()


def connect(links):
    stranger = socket.create_connection(links._listener.getsockname(), timeout=60)
    stranger.settimeout(60)
    return stranger


def read_to_end(stranger):
    """Raises TimeoutError if the other side keeps it open."""
    try:
        while stranger.recv(4096):
            pass
    except ConnectionResetError:
        pass


def hearing():
    return [thread for thread in threading.enumerate() if thread.name == "shardwise hears"]


def test_strangers_hold_a_bounded_number_of_connections_and_ranks_get_through(tmp_path):
    with two(tmp_path) as (links, other), contextlib.ExitStack() as stack:
        most = 2 + _MOST_STRANGERS
        strangers = [stack.enter_context(connect(links)) for _ in range(300)]
        for stranger in strangers[:300 - most]:
            read_to_end(stranger)  # the oldest are closed
        assert len(links._unproven._ends) <= most
        other._sender.send(0, 1, 0, b"a message")
        assert other._sender.flush(60)
        links._sender.send(1, 1, 0, b"another")
        assert links._sender.flush(60)
        rank = hearing()
        assert len(links._unproven._ends) <= most
    for thread in rank:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("said", [b"", b"\0\0\0", b"\0\0\0\x14" + b"x" * 10], ids=["nothing", "half a length", "half a message"])
def test_a_stranger_has_to_prove_the_key_within_a_deadline(tmp_path, said):
    before = set(hearing())
    with two(tmp_path, handshake=0.05) as (links, _), connect(links) as stranger, connect(links) as later:
        for one in (stranger, later):
            one.sendall(said)
        for one in (stranger, later):
            read_to_end(one)
        for thread in set(hearing()) - before:
            thread.join(60)
            assert not thread.is_alive()
        assert not links._unproven._ends


def test_strangers_are_let_go_at_the_end(tmp_path):
    with two(tmp_path) as (links, _):
        stranger = connect(links)
        stranger.recv(1)  # it is heard
    with stranger:
        read_to_end(stranger)
