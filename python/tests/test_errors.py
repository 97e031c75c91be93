"""Classes of errors follow from codes, never from words, and errno is the operating system's."""

import errno
import os
import pathlib
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest

import shardwise as sw
from shardwise import _errors, sources

ROOT = pathlib.Path(__file__).parents[2]


def test_each_code_has_its_class():
    header = (ROOT / "shard" / "error.h").read_text()
    codes = re.findall(r"^  (\w+), +///<", header, re.M)
    assert len(codes) == 9 and set(_errors._CLASSES) == {*codes, "group"}
    for code in _errors._CLASSES:
        assert _errors.made(code, "what").code == code


def test_errno_is_what_the_system_said(tmp_path):
    (tmp_path / "file").write_text("")
    w = {"w": np.ones(2)}
    too_long = tmp_path / ("n" * 300)
    for call, number in ((lambda: sw.save(tmp_path / "file" / "x" / "y", w), errno.ENOTDIR),
                         (lambda: sw.save(too_long, w), errno.ENAMETOOLONG),
                         (lambda: sources.idx(too_long), errno.ENAMETOOLONG)):  # fmt: skip
        with pytest.raises(sw.IOFailed, match=os.strerror(number)) as told:
            call()
        assert told.value.errno == pickle.loads(pickle.dumps(told.value)).errno == number
    for kind, number in ((sw.NotFound, errno.ENOENT), (sw.AlreadyExists, errno.EEXIST), (sw.IOFailed, None)):
        assert _errors.made(kind.code, f"{os.strerror(errno.ENOSPC)} in a name").errno == number
    assert not hasattr(_errors.made("corrupt", "x", errno.EIO), "errno")


def test_names_that_are_not_there_are_told_from_paths_by_their_code(tmp_path):
    sw.save(tmp_path / "there is no tensor", {"w": np.ones(2)})
    with pytest.raises(sw.NotFound) as told:
        sw.open(tmp_path / "there is no tensor" / "it has no axis" / "find step")
    assert type(told.value) is sw.NotFound
    records = sources.of({"x": np.ones((4, 3))})
    for call in (lambda: sw.Sharding("a=2", "b"), lambda: records.filter("lable == 1"), lambda: records.crop("lable", [1]),
                 lambda: sw.CheckpointManager(tmp_path).step(3), lambda: sw.open(tmp_path / "there is no tensor")["v"]):
        with pytest.raises(sw.NameNotFound) as told:
            call()
        assert told.value.code == "no_such_name" and isinstance(told.value, KeyError)


LITTLE_MEMORY = """
import os, resource, sys, numpy as np, shardwise as sw
arrays = {f"w{i}": np.random.default_rng(i).standard_normal(1 << 18) for i in range(20)}
sw.save(sys.argv[2] + "-before", {"w": arrays["w0"]})  # its loading must print no error, either
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (int(sys.argv[1]) << 20),) * 2)
for act in (lambda: sw.save(sys.argv[2], arrays), lambda: sw.load(sys.argv[2] + "-before")):
    try:
        act()
        print("done")
    except (MemoryError, sw.IOFailed) as error:
        print(type(error).__name__, error)
"""


LITTLE_MEMORY_OF_READERS = """
import resource, sys, numpy as np, shardwise as sw
path, room = sys.argv[1], int(sys.argv[2])
def read(batches=sw.Loader("hdf5:" + path + "?data=w", batch_size=1 << 20)):
    return sum(len(batch["data"]) for batch in batches)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (room << 20),) * 2)
copy = path + ".sw"
for act in (lambda: sw.load(path), lambda: sw.import_model(path, copy), lambda: sw.diff(path, path), read):
    try:
        act()
        print("done")
    except (sw.Error, MemoryError) as error:
        print(type(error).__name__, error)
"""


@pytest.mark.parametrize("room", [4, 20, 36, 52, 68, 84])
def test_memory_that_runs_out_while_a_file_is_read_is_an_error_and_no_crash(tmp_path, room):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:  # one chunk of 16 MiB
        file.create_dataset("w", data=np.zeros(1 << 21), chunks=(1 << 21,), compression="gzip")
    done = subprocess.run([sys.executable, "-c", LITTLE_MEMORY_OF_READERS, str(path), str(room)],
                          capture_output=True, text=True)
    if "cannot allocate memory for thread-local data" in done.stderr:
        pytest.skip("the C library ends a process that has no memory for a thread's variables")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 4, done
    told = ("ResourceExhausted", "_ArrayMemoryError", "IOFailed start a thread")
    for line in done.stdout.splitlines():
        assert line == "done" or line.startswith(told), done


@pytest.mark.parametrize("room", range(4, 172, 12))
def test_memory_that_runs_out_is_an_error_and_no_crash(tmp_path, room):
    done = subprocess.run([sys.executable, "-c", LITTLE_MEMORY, str(room), str(tmp_path / "a")], capture_output=True,
                          text=True)
    if "cannot allocate memory for thread-local data" in done.stderr:
        pytest.skip("the C library ends a process that has no memory for a thread's variables")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 2, done
    for operation, line in zip(("save", "load"), done.stdout.splitlines(), strict=True):
        told = (f"ResourceExhausted {operation}: there is too little memory", "_ArrayMemoryError", "IOFailed start a thread")
        assert line == "done" or line.startswith(told), done
