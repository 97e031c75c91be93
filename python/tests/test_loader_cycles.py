"""Sources and loaders that refer to themselves, by Python functions or exceptions, are freed like all else."""

import gc
import subprocess
import sys
import time
import weakref

import numpy as np
import pytest

import shardwise as sw


class Job:
    """Holds the object that calls its methods."""

    def __init__(self, fails_at=-1):
        self.fails_at = fails_at
        records = sw.sources.arrays({"x": np.arange(40)})
        self.source = sw.sources.zip(records.map(self.doubled).take(0, 30), records.take(10, 40).map(self.named).shuffle())
        self.loader = sw.Loader(self.source, batch_size=5, order="sequential", threads=2, transform=self.same)

    def doubled(self, record):
        return {"twice": record["x"] * 2}

    def named(self, record):
        return {"y": record["x"] + 1}

    def same(self, record):
        if record["twice"] == 2 * self.fails_at:
            raise LookupError(f"record {self.fails_at} is not mine")
        return record


def collected(make):
    """Returns whether the result of make() is freed after its last reference. A thread that reads ahead has one during a call."""
    found = weakref.ref(make())
    deadline = time.monotonic() + 60
    while found() is not None and time.monotonic() < deadline:
        gc.collect()
    return found() is None


def test_what_holds_its_source_is_freed():
    assert collected(Job)


def test_what_holds_a_running_loader_is_freed():
    def run():
        job = Job()
        assert [next(job.loader)["twice"][0] for _ in range(3)] == [0, 10, 20]
        return job

    assert collected(run)


def test_an_exception_that_was_raised_keeps_nothing():
    def run():
        job = Job(fails_at=12)
        for _ in range(2):
            with pytest.raises(LookupError, match="record 12 is not mine"):
                for _ in job.loader:
                    pass
        return job

    assert collected(run)


def test_a_source_outlives_the_objects_it_was_made_of():
    source = sw.sources.arrays({"x": np.arange(6)}).map(lambda record: {"y": record["x"] * 3}).shuffle().take(0, 4)
    gc.collect()
    assert sorted(int(source[i]["y"]) % 3 for i in range(4)) == [0] * 4
    loader = sw.Loader(sw.sources.concat(source, source), batch_size=4, order="sequential")
    del source
    gc.collect()
    assert len([batch["y"] for batch in loader]) == 2


AT_THE_END = """
import numpy as np, shardwise as sw
source = sw.sources.arrays({"x": np.arange(400)}).map(lambda record: {"y": record["x"]})
loader = sw.Loader(source, batch_size=5, transform=lambda record: record)
print(len(next(loader)["y"]))
"""


def test_a_program_ends_without_a_word_of_what_it_still_has():
    done = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "5\n", "")


READING_AS_IT_ENDS = """
import atexit, sys, numpy as np, shardwise as sw
from shardwise import _core
calls = 0
def failing(record):
    global calls
    calls += 1
    if calls > 1:  # the first one tells the fields
        raise LookupError
    return {"y": record["x"]}
source = sw.sources.arrays({"x": np.arange(400)}).map(failing, name="failing")
loader = sw.Loader(source, batch_size=4, prefetch=1, bad_records="mask")
print(next(loader).valid_rows)
def end():
    while calls < 9 or len(sys._current_frames()) > 1:  # the batch that is read ahead
        pass
    _core.end()  # as Python ends
    next(loader)
    while calls < 13:
        pass
atexit.register(end)
"""


def test_what_a_reader_drops_while_the_program_ends_is_freed():
    done = subprocess.run([sys.executable, "-c", READING_AS_IT_ENDS], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout, done.stderr) == (0, "4\n", "")


def test_no_test_has_a_source_before_and_after_it_runs():
    """pytest keeps a test's parameters. torch keeps some of pytest beyond Python's end, and nanobind then warns."""
    gc.collect()
    assert not [found for found in gc.get_objects() if type(found) is sw._core.Records]


def test_an_interrupt_in_a_record_is_no_bad_record():
    def made(record):
        raise KeyboardInterrupt

    for bad_records in ("fail", "mask"):
        with pytest.raises(KeyboardInterrupt):
            source = sw.sources.callback(10, {"x": ("f4", ())}, made)
            list(sw.Loader(source, batch_size=2, bad_records=bad_records))
