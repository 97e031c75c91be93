"""Calls of a group: ranks whose calls or times differ get errors, and calls are never mixed. Ranks are threads here."""

import errno
import gc
import importlib
import os
import queue
import signal
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import shardwise as sw
from shardwise import group
from shardwise._checkpoint.save import Plan, call_of, write_together
from shardwise._arrays.arrays import Sources

LONG = 100.0  # a deadline that nothing here waits for


def on_ranks(size: int, function: Callable[[int], Any]) -> list[Any]:
    """Returns each rank's result or exception."""

    def outcome(rank: int) -> Any:
        try:
            return function(rank)
        except BaseException as error:  # noqa: BLE001 - Ctrl-C, too
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(outcome, range(size)))


def groups(folder: Any, size: int) -> list[group.Group]:
    return [group.from_files(folder, rank, size) for rank in range(size)]


def save(g: group.Group, path: str, value: float, **how: Any) -> sw.SaveStats:
    sources = Sources()
    sources.add_array(f"part{g.rank}", np.full(3, value), listed=True)
    options = {"user": None, "codec": "zstd", "existing": "fail", "deadline": LONG, **how}
    with call_of(g, path, **options) as call:
        options.pop("deadline")
        return write_together(call, path, Plan(sources), g, list(range(g.size + 1)), **options)


def test_ranks_that_save_at_different_paths_are_refused(tmp_path):
    ranks = groups(tmp_path / "meet", 2)
    said = on_ranks(2, lambda r: save(ranks[r], f"{tmp_path}/step-{5 + r}", 5 + r))
    assert [type(error) for error in said] == [sw.InvalidArgument] * 2 and str(said[0]) == str(said[1])
    assert f"found path '{tmp_path}/step-6' on rank 1, needed '{tmp_path}/step-5', as on rank 0" in str(said[0])
    assert os.listdir(tmp_path) == ["meet"]
    assert not any(isinstance(error, Exception) for error in on_ranks(2, lambda r: save(ranks[r], f"{tmp_path}/a", r)))


@pytest.mark.parametrize("option", [{"user": {"lr": 1}}, {"codec": "none"}, {"existing": "replace"}, {"user": "x" * 300}])
def test_ranks_that_save_with_different_options_are_refused(tmp_path, option):
    ranks = groups(tmp_path / "meet", 2)
    said = on_ranks(2, lambda r: save(ranks[r], f"{tmp_path}/a", r, **(option if r else {})))
    for error in said:
        assert isinstance(error, sw.InvalidArgument) and f"found {next(iter(option))} " in str(error), error
    assert os.listdir(tmp_path) == ["meet"]


def test_a_rank_that_comes_after_the_others_were_refused_is_told(tmp_path):
    ranks = groups(tmp_path / "meet", 3)
    refused = threading.Event()

    def call(rank: int) -> bytes:
        if rank == 2:
            assert refused.wait(LONG)
        try:
            return ranks[rank].agree(lambda: b"", lambda v: b"well", LONG, "b" if rank == 1 else "a")
        finally:
            refused.set()

    # All have met before: else rank 0 waits for rank 2 alone.
    assert on_ranks(3, lambda r: ranks[r].agree(lambda: b"", lambda v: b"well", LONG, "first")) == [b"well"] * 3
    said = on_ranks(3, call)
    assert {str(error) for error in said} == {
        'a: found "b" on rank 1, needed "a", as on rank 0: every rank makes the same calls in the same order'}
    assert on_ranks(3, lambda r: ranks[r].agree(lambda: b"", lambda v: b"well", LONG, "next")) == [b"well"] * 3


def test_saves_in_another_order_on_a_rank_are_refused(tmp_path):
    torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import shardwise.torch as swt

    ranks = groups(tmp_path / "meet", 2)
    orders = ([0, 1, 2], [2, 0, 1])

    def saves(rank: int) -> list[BaseException | None]:
        pending = [swt.save_async(f"{tmp_path}/ck{k}", {f"m{rank}": torch.full((5,), float(k))}, group=ranks[rank],
                                  deadline=LONG) for k in orders[rank]]
        return [one.exception() for one in pending]

    for errors in on_ranks(2, saves):
        assert all(isinstance(error, sw.InvalidArgument) for error in errors), errors
    assert os.listdir(tmp_path) == ["meet"]


@pytest.mark.parametrize("save", ["save", "save_async"])
@pytest.mark.parametrize("option, text", [({"codec": "zst"}, "codec is 'zst'"), ({"existing": "keep"}, "existing is 'keep'"),
                                          ({"replicas": "never"}, "replicas is 'never'"), ({"codec": {1}}, "codec is {1}")])
def test_an_option_that_a_rank_gives_wrongly_ends_torch_s_save_on_all(tmp_path, save, option, text):
    torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import shardwise.torch as swt

    ranks = groups(tmp_path / "meet", 2)

    def call(rank: int, **options: Any) -> Any:
        made = getattr(swt, save)(f"{tmp_path}/a", {"w": torch.zeros(3)}, group=ranks[rank], deadline=LONG, **options)
        return made.result() if save == "save_async" else made

    other, own = on_ranks(2, lambda r: call(r, **(option if r else {})))
    assert type(own) is sw.InvalidArgument and text in str(own)
    assert type(other) is sw.InvalidArgument and f"found {next(iter(option))} " in str(other) and " on rank 1" in str(other)
    for error in on_ranks(2, lambda r: call(r, **option)):
        assert type(error) is sw.InvalidArgument and text in str(error)
    assert os.listdir(tmp_path) == ["meet"]
    assert not any(isinstance(error, BaseException) for error in on_ranks(2, call))


def savers(framework: str, ranks: list[group.Group], monkeypatch: Any) -> Callable[[int, str], sw.PendingSave]:
    """save_async of rank and path."""
    pytest.importorskip(framework, reason=f"needs {framework}, which this environment has not")
    if framework == "torch":
        import torch

        import shardwise.torch as swt

        return lambda rank, path: swt.save_async(path, {f"m{rank}": torch.ones(3)}, group=ranks[rank], deadline=LONG)
    import shardwise.jax as swj

    own = threading.local()
    monkeypatch.setattr("shardwise.jax._save.from_jax", lambda: own.group)

    def save(rank: int, path: str) -> sw.PendingSave:
        own.group = ranks[rank]
        return swj.save_async(path, {"w": np.ones(3)}, deadline=LONG)

    return save


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_thread_that_cannot_start_ends_the_save_on_all_ranks(tmp_path, monkeypatch, framework):
    ranks = groups(tmp_path / "meet", 2)
    save = savers(framework, ranks, monkeypatch)
    start, refused = threading.Thread.start, set()

    def refuse(thread: threading.Thread) -> None:
        if threading.get_ident() in refused and thread.name.startswith("shardwise save"):
            raise RuntimeError("can't start new thread")
        start(thread)

    def call(rank: int) -> Any:
        if rank == 1:
            refused.add(threading.get_ident())
        return save(rank, f"{tmp_path}/a").result()

    monkeypatch.setattr(threading.Thread, "start", refuse)
    other, own = on_ranks(2, call)
    assert type(own) is RuntimeError and str(own) == "can't start new thread"
    assert type(other) is sw.GroupError and "rank 1: RuntimeError: can't start new thread" in str(other)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_ctrl_c_while_values_are_taken_ends_the_save_on_all_ranks(tmp_path, monkeypatch, framework):
    ranks = groups(tmp_path / "meet", 2)
    save = savers(framework, ranks, monkeypatch)
    where = "shardwise.torch._save._Collected" if framework == "torch" else "shardwise.jax._save.snapshot"
    module, name = where.rsplit(".", 1)
    take, interrupted = getattr(importlib.import_module(module), name), set()

    def interrupt(*values: Any, **how: Any) -> Any:
        if threading.get_ident() in interrupted:
            raise KeyboardInterrupt
        return take(*values, **how)

    def call(rank: int) -> Any:
        if rank == 1:
            interrupted.add(threading.get_ident())
        return save(rank, f"{tmp_path}/a").result()

    monkeypatch.setattr(where, interrupt)
    other, own = on_ranks(2, call)
    assert type(own) is KeyboardInterrupt
    assert type(other) is sw.GroupError and "rank 1: KeyboardInterrupt" in str(other)


def test_what_an_earlier_job_left_in_the_folder_is_not_taken(tmp_path):
    meet = tmp_path / "meet"
    for job in range(3):
        ranks = groups(meet, 3)
        came = threading.Event()

        def call(rank: int) -> bytes:
            if rank == 0 and job:
                # The others find the last job's number first, and wait for its answer.
                while len([name for name in os.listdir(meet) if "%hello%" in name]) < 2:
                    came.wait(0.001)
            return ranks[rank].agree(lambda: b"%d" % rank, lambda v: b"job %d" % job, LONG, "start")

        assert on_ranks(3, call) == [b"job %d" % job] * 3


def test_a_call_that_one_rank_left_out_does_not_shift_later_ones(tmp_path):
    ranks = groups(tmp_path / "meet", 2)

    def call(rank: int, what: str, deadline: float = LONG) -> bytes:
        return ranks[rank].agree(lambda: what.encode(), lambda v: b"+".join(v), deadline, f"save {what}")

    assert on_ranks(2, lambda r: call(r, "first")) == [b"first+first"] * 2
    for alone, missing in ((0, 1), (1, 0)):
        for what in ("a", "b", "b"):
            with pytest.raises(sw.GroupError, match=f"save {what}: rank {missing} of 2 did not come within 0.05 s: was "
                                                    f"it called on one rank only"):
                call(alone, what, 0.05)
        for what in ("b", "c"):
            assert on_ranks(2, lambda r: call(r, what)) == [f"{what}+{what}".encode()] * 2


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("steps", [0, 1])
def test_an_error_between_two_steps_ends_the_call_everywhere(tmp_path, size, failing, steps):
    ranks = groups(tmp_path / "meet", size)

    def call(rank: int) -> bytes:
        with ranks[rank].call("save a", LONG) as both:
            for _ in range(steps):
                both.agree(lambda: b"", lambda v: b"")
            if rank == failing:
                raise ZeroDivisionError("by zero")
            return both.agree(lambda: b"", lambda v: b"")

    for rank, error in enumerate(on_ranks(size, call)):
        assert isinstance(error, ZeroDivisionError if rank == failing else sw.GroupError)
        assert rank == failing or f"rank {failing}: ZeroDivisionError: by zero" in str(error)
    assert on_ranks(size, lambda r: ranks[r].agree(lambda: b"", lambda v: b"well", LONG, "b")) == [b"well"] * size


UNSAYABLE = "file \udcff"  # a name that is not UTF-8, as os.fsdecode() shows it


def fail(*_: Any) -> bytes:
    raise ValueError(UNSAYABLE)


def fail_between(call: group.Call) -> bytes:
    with call:
        return fail()


@pytest.mark.parametrize("place", [
    lambda call: call.agree(fail, lambda v: b""),
    lambda call: call.agree(lambda: b"", fail),
    fail_between,
], ids=["work", "merge", "body"])
def test_a_text_that_utf_8_cannot_hold_is_told(tmp_path, place):
    ranks = groups(tmp_path / "meet", 2)
    own, other = on_ranks(2, lambda r: (place if r == 0 else lambda call: call.agree(lambda: b"", lambda v: b""))(
        ranks[r].call("a", LONG)))
    assert type(own) is ValueError and str(own) == UNSAYABLE
    assert type(other) is sw.GroupError and str(other) == r"a: rank 0: ValueError: file \udcff"


def test_an_error_without_a_text_is_told(tmp_path):
    class Mute(Exception):
        def __str__(self) -> str:
            raise LookupError

    def work() -> bytes:
        raise Mute

    ranks = groups(tmp_path / "meet", 2)
    own, other = on_ranks(2, lambda r: ranks[r].agree(work if r == 0 else lambda: b"", lambda v: b"", LONG, "a"))
    assert type(own) is Mute and str(other) == "a: rank 0: Mute: (its text cannot be made)"


class Broken(group.FileStore):
    """Raises an error once: the next time that it is asked for a key that ends so."""

    error: BaseException | None = None
    end = ""

    def get(self, key: str, seconds: float) -> bytes | None:
        if self.error is not None and key.endswith(self.end):
            error, self.error = self.error, None
            raise error
        return super().get(key, seconds)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError(UNSAYABLE)], ids=["Ctrl-C", "text"])
@pytest.mark.parametrize("failing, end", [(0, "/1/value/1"), (0, "/1/heard/1"), (1, "/call"), (1, "/1/all")])
def test_what_a_store_raises_on_one_rank_ends_the_call_on_all(tmp_path, error, failing, end):
    stores = [Broken(tmp_path / "meet") for _ in range(2)]
    ranks = [group.StoreGroup(stores[rank], rank, 2) for rank in range(2)]
    assert on_ranks(2, lambda r: ranks[r].agree(lambda: b"", lambda v: b"well", LONG, "first")) == [b"well"] * 2
    stores[failing].error, stores[failing].end = error, end

    def call(rank: int) -> bytes:
        with ranks[rank].call("a", LONG) as both:
            both.agree(lambda: b"", lambda v: b"")
            return both.agree(lambda: b"", lambda v: b"")

    said = on_ranks(2, call)
    assert said[failing] is error
    text = "KeyboardInterrupt: " if isinstance(error, KeyboardInterrupt) else r"ValueError: file \udcff"
    assert type(said[1 - failing]) is sw.GroupError and str(said[1 - failing]) == f"a: rank {failing}: {text}"
    assert on_ranks(2, lambda r: ranks[r].agree(lambda: b"", lambda v: b"well", LONG, "b")) == [b"well"] * 2


def test_ctrl_c_in_work_or_merge_comes_out_as_itself(tmp_path):
    ranks = groups(tmp_path / "meet", 2)

    def interrupt(*_: Any) -> bytes:
        raise KeyboardInterrupt

    for error in on_ranks(2, lambda r: ranks[r].agree(interrupt, lambda v: b"", LONG, "a")):
        assert type(error) is KeyboardInterrupt
    own, other = on_ranks(2, lambda r: ranks[r].agree(lambda: b"", interrupt, LONG, "a"))
    assert type(own) is KeyboardInterrupt and str(other) == "a: rank 0: KeyboardInterrupt: "


def test_what_merge_raises_comes_out_on_rank_0_as_it_was(tmp_path):
    ranks = groups(tmp_path / "meet", 2)
    error = ZeroDivisionError("by zero")

    def merge(values: list[bytes]) -> bytes:
        raise error

    own, other = on_ranks(2, lambda r: ranks[r].agree(lambda: b"", merge, LONG, "a"))
    assert own is error and str(other) == "a: rank 0: ZeroDivisionError: by zero"


def test_values_of_a_wrong_type_are_named(tmp_path):
    ranks = groups(tmp_path / "meet", 2)
    for work, merge, what in ((lambda: None, lambda v: b"", "work: found a value of type NoneType, needed bytes"),
                              (lambda: b"", lambda v: "text", "merge: found a value of type str, needed bytes")):
        for error in on_ranks(2, lambda r: ranks[r].agree(work if r == 0 else lambda: b"", merge, LONG, "a")):
            assert type(error) is sw.InvalidArgument and str(error) == f"a: rank 0: {what}"

    class Store(group.FileStore):
        def get(self, key: str, seconds: float) -> Any:
            return bytearray(b"x")

    with pytest.raises(sw.InvalidArgument, match="^read shardwise/main/open from the store: found a value of type bytearray, "
                                                 "needed bytes$"):
        group.StoreGroup(Store(tmp_path / "other"), 1, 2).agree(lambda: b"", lambda v: b"", LONG, "a")


@pytest.mark.parametrize("number", ["many", -5, 1 << 40, None])
def test_an_errno_that_is_none_is_told_as_none(tmp_path, number):
    def work() -> bytes:
        error: Any = sw._errors.made("io", "no device")
        error.errno = number
        raise error

    ranks = groups(tmp_path / "meet", 2)
    own, other = on_ranks(2, lambda r: ranks[r].agree(work if r == 0 else lambda: b"", lambda v: b"", LONG, "a"))
    assert own.errno == number and type(other) is sw.IOFailed and not other.errno and str(other) == "a: rank 0: no device"


def test_a_call_that_ends_without_a_step_does_not_shift_later_ones(tmp_path):
    ranks = groups(tmp_path / "meet", 2)

    def call(rank: int) -> bytes:
        with ranks[rank].call("a", LONG):
            pass
        return ranks[rank].agree(lambda: b"", lambda v: b"well", LONG, "b")

    assert on_ranks(2, call) == [b"well"] * 2


def test_calls_that_end_well_leave_nothing_in_the_store(tmp_path):
    for _ in range(2):
        ranks = groups(tmp_path / "meet", 3)
        for _ in range(3):
            assert on_ranks(3, lambda r: ranks[r].agree(lambda: b"", lambda v: b"well", LONG, "a")) == [b"well"] * 3
        assert os.listdir(tmp_path / "meet") == ["shardwise%files%open"]


@pytest.mark.parametrize("kind", ["folder", "met before", "messages"])
def test_an_error_of_rank_0_before_the_first_step_reaches_each_rank_at_once(tmp_path, kind):
    boxes: list[queue.Queue[Any]] = [queue.Queue() for _ in range(3)]
    ranks = groups(tmp_path / "meet", 3) if kind != "messages" else [group.from_mpi(FakeComm(rank, boxes)) for rank in range(3)]
    if kind == "met before":
        assert on_ranks(3, lambda r: ranks[r].agree(lambda: b"", lambda v: b"well", LONG, "first")) == [b"well"] * 3
    told = threading.Event()
    worked = []

    def call(rank: int) -> bytes:
        if rank == 2:  # it comes when another rank has the error
            assert told.wait(LONG)
        with ranks[rank].call("save a", LONG) as one:
            if rank == 0:
                raise sw._errors.made("io", "disk full", errno.ENOSPC)
            try:
                return one.agree(lambda: worked.append(rank) or b"", lambda v: b"")
            finally:
                told.set()

    for rank, error in enumerate(on_ranks(3, call)):
        assert isinstance(error, sw.IOFailed) and error.errno == errno.ENOSPC, (rank, error)
        assert str(error) == ("save a: rank 0: disk full" if rank else "disk full")
    assert 2 not in worked
    assert on_ranks(3, lambda r: ranks[r].agree(lambda: b"", lambda v: b"well", LONG, "b")) == [b"well"] * 3


def test_ranks_that_want_to_join_are_answered_as_they_come(tmp_path):
    ranks = groups(tmp_path / "meet", 3)
    come = threading.Event()

    def call(rank: int) -> bytes:
        if rank == 1:  # rank 2 has joined, and given its value
            while not [name for name in os.listdir(tmp_path / "meet") if name.endswith("%1%value%2")]:
                come.wait(0.001)
        return ranks[rank].agree(lambda: b"", lambda v: b"well", LONG, "a")

    assert on_ranks(3, call) == [b"well"] * 3


def test_a_group_of_torch_is_that_of_the_store_there_is_now(monkeypatch):
    dist = pytest.importorskip("torch.distributed", reason="needs torch, which this environment has not")

    class Store:
        def clone(self) -> "Store":
            return Store()

    there = [Store()]
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: there[0])
    first = group.from_torch()
    assert group.from_torch() is first
    number, kept = id(there.pop()), []
    while not there or id(there[0]) != number:  # the memory of the first is used again
        kept.append(there)
        there = [Store()]
    assert group.from_torch() is not first and group.from_torch() is group.from_torch()


def test_calls_in_the_background_keep_their_order(tmp_path):
    ranks = groups(tmp_path / "meet", 2)

    def call(rank: int) -> list[bytes]:
        calls = [ranks[rank].call(f"save {k}", LONG) for k in range(4)]
        # Run the other way round: each finds its own announcement all the same.
        with ThreadPoolExecutor(4) as pool:
            done = [pool.submit(one.agree, lambda: b"", lambda v, k=k: b"%d" % k) for k, one in reversed(list(enumerate(calls)))]
            return [one.result() for one in done]

    assert on_ranks(2, call) == [[b"3", b"2", b"1", b"0"]] * 2


def test_ctrl_c_on_rank_0_comes_out_and_ends_the_call_on_the_others(tmp_path):
    ranks = groups(tmp_path / "meet", 2)
    said = []

    def interrupt() -> bytes:
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        assert interrupted.wait(LONG)  # else the value may come first
        return b""

    def other() -> None:
        try:
            ranks[1].agree(interrupt, lambda v: b"", LONG, "a")
        except sw.GroupError as error:
            said.append(str(error))

    interrupted = threading.Event()
    thread = threading.Thread(target=other)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        ranks[0].agree(lambda: b"", lambda v: b"", LONG, "a")
    interrupted.set()
    thread.join()
    assert said == ["a: rank 0: KeyboardInterrupt: "]


def test_waiting_in_torch_s_store_logs_nothing_and_lets_ctrl_c_through(capfd):
    dist = pytest.importorskip("torch.distributed", reason="needs torch, which this environment has not")

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    store = dist.TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
    alone = group.StoreGroup(group.TorchStore(store), 1, 2)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            alone.agree(lambda: b"", lambda v: b"", LONG, "a")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert capfd.readouterr().err == ""


def test_a_handler_of_a_signal_may_make_a_call(tmp_path):
    ranks = groups(tmp_path / "meet", 2)
    said: list[bytes] = []

    def inner(rank: int) -> bytes:
        return ranks[rank].agree(lambda: b"%d" % rank, b"+".join, LONG, "inner")

    def work() -> bytes:  # while rank 0 waits for it
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        return inner(1)

    before = signal.signal(signal.SIGUSR1, lambda number, frame: said.append(inner(0)))
    try:
        thread = threading.Thread(target=lambda: said.append(ranks[1].agree(work, b"+".join, LONG, "outer")))
        thread.start()
        assert ranks[0].agree(lambda: b"", b"+".join, LONG, "outer") == b"+0+1"
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert said == [b"0+1", b"+0+1"]


def test_a_store_that_holds_its_group_is_freed(tmp_path):
    class Store(group.FileStore):
        group: group.Group

    store = Store(tmp_path)
    store.group = group.StoreGroup(store, 0, 2)
    with store.group.duplicate().call("a"), pytest.raises(sw.GroupError):
        store.group.agree(lambda: b"", lambda v: b"", 0.01, "b")
    freed = weakref.ref(store)
    del store
    gc.collect()
    assert freed() is None


class FakeComm:
    """The part of mpi4py's communicators that MpiStore needs."""

    class Sent:
        def Test(self) -> bool:
            return True

    def __init__(self, rank: int, boxes: list["queue.Queue[Any]"]) -> None:
        self.rank, self.size, self.boxes = rank, len(boxes), boxes

    def Dup(self) -> "FakeComm":
        return self

    def isend(self, message: Any, rank: int) -> Sent:
        self.boxes[rank].put(message)
        return self.Sent()

    def iprobe(self) -> bool:
        return not self.boxes[self.rank].empty()

    def recv(self) -> Any:
        return self.boxes[self.rank].get()


def test_a_group_of_messages(tmp_path):
    boxes: list[queue.Queue[Any]] = [queue.Queue() for _ in range(3)]
    ranks = [group.from_mpi(FakeComm(rank, boxes)) for rank in range(3)]
    for stats in on_ranks(3, lambda r: save(ranks[r], f"{tmp_path}/a", r)):
        assert stats.path == f"{tmp_path}/a"
    assert {name: array[0] for name, array in sw.load(f"{tmp_path}/a").items()} == {"part0": 0, "part1": 1, "part2": 2}
    with pytest.raises(sw.GroupError, match="ranks 1 and 2 of 3 did not come"):
        save(ranks[0], f"{tmp_path}/b", 0, deadline=0.05)
    said = on_ranks(3, lambda r: save(ranks[r], f"{tmp_path}/{r == 2}", r))
    assert all(isinstance(error, sw.InvalidArgument) and "on rank 2" in str(error) for error in said), said
    assert sorted(os.listdir(tmp_path)) == ["a"]
