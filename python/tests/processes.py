"""Runs tests with several processes: each rank runs a function of a module, and its result comes back, or its error."""

import multiprocessing
import os
import pathlib
import random
import signal
import socket
import traceback
from typing import Any, Callable


def free_port() -> int:
    """Returns a port below those that the kernel gives to sockets that ask for any, so that none of these takes it first."""
    try:
        above = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        above = 32768
    ports = range(10_000, above) if above > 12_000 else range(61_000, 65_536)
    while True:
        port = random.SystemRandom().choice(ports)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _main(function: Callable[..., Any], rank: int, size: int, arguments: tuple[Any, ...], pipe: Any, seconds: float) -> None:
    try:
        result = ("value", function(rank, size, *arguments))
    except BaseException as error:  # noqa: BLE001 - the test gets it
        result = ("error", "".join(traceback.format_exception(error)))
    pipe.send(result)
    pipe.poll(seconds * size)  # until all ranks have sent: some depend on rank 0's process
    os._exit(0)  # also with threads that have not ended


def run_ranks(function: Callable[..., Any], size: int, *arguments: Any, seconds: float = 240, may_die: bool = False) -> list[Any]:
    """Returns each rank's result; None for a rank that was killed, if may_die."""
    context = multiprocessing.get_context("spawn")
    pipes, ranks = [], []
    for rank in range(size):
        ours, theirs = context.Pipe()
        process = context.Process(target=_main, args=(function, rank, size, arguments, theirs, seconds))
        process.start()
        theirs.close()
        pipes.append(ours)
        ranks.append(process)
    results: list[Any] = []
    try:
        for rank, pipe in enumerate(pipes):
            if not pipe.poll(seconds):
                raise AssertionError(f"rank {rank} said nothing within {seconds:g} s")
            try:
                kind, value = pipe.recv()
            except EOFError:
                assert may_die, f"rank {rank} died"
                results.append(None)
                continue
            assert kind == "value", f"rank {rank}: {value}"
            results.append(value)
    finally:
        for pipe in pipes:
            pipe.close()
        for process in ranks:
            process.join(5)
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
            process.join()
    return results
