"""Classes of errors follow from codes, never from words, and errno is what the operating system said."""

import errno
import os
import pathlib
import pickle
import re

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
