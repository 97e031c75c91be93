"""Paths that callers give: URLs are refused unless they name a bucket to read or save in, `~` is the user's
folder."""

import os
import pathlib

import numpy as np
import pytest

import shardwise as sw

HERE = {"w": np.ones(3)}


def torch_calls(path):
    pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import shardwise.torch as swt

    return [lambda: swt.StorageWriter(path), lambda: swt.StorageWriter().reset(path)]


def torch_saves(path):
    torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import shardwise.torch as swt

    state = {"w": torch.ones(3)}
    return [lambda: swt.save(path, state), lambda: swt.save_async(path, state).result()]


def torch_reads(path):
    torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import shardwise.torch as swt

    return [lambda: swt.load(path, {"w": torch.ones(3)}), lambda: swt.load_state_dict(path),
            lambda: swt.StorageReader(path).read_metadata(), lambda: _read_metadata(swt.StorageReader(), path)]


def _read_metadata(reader, path):
    reader.reset(path)
    reader.read_metadata()


def jax_saves(path):
    pytest.importorskip("jax", reason="needs jax, which this environment has not")
    import shardwise.jax as swj

    return [lambda: swj.save(path, HERE), lambda: swj.save_async(path, HERE).result(),
            lambda: swj.CheckpointManager(path)]


def jax_reads(path):
    pytest.importorskip("jax", reason="needs jax, which this environment has not")
    import shardwise.jax as swj

    return [lambda: swj.load(path)]


def calls(path):
    return [lambda: sw.import_model(path, "a"), lambda: sw.export_model("a", path),
            lambda: sw.group.from_files(path, 0, 2)]


def imports(path):
    return [lambda: sw.import_model("a", path)]


def saves(path):
    return [lambda: sw.save(path, HERE), lambda: sw.CheckpointManager(path)]


def foreign_imports(path):
    return [lambda: sw.import_dcp("a", path, existing="skip"), lambda: sw.import_orbax("a", path, existing="skip")]


def reads(path):
    return [lambda: sw.open(path), lambda: sw.load(path), lambda: sw.info(path), lambda: sw.verify(path),
            lambda: sw.reshard(path, "a", mesh="x=1"), lambda: sw.explain(path, mesh="x=1"),
            lambda: sw.export_model(path, "a"), lambda: sw.sources.npy(path), lambda: sw.sources.npy([path])]


@pytest.mark.parametrize(("of", "path"), [
    *((of, path) for of in (reads, torch_reads, jax_reads)
      for path in ("s3://bucket/run/x.sw", pathlib.Path("s3://bucket/x"))),
    *((of, "s3://bucket/run/step-00000001") for of in (saves, torch_saves, jax_saves, foreign_imports))])
def test_buckets_are_read_and_saved_in(tmp_path, monkeypatch, of, path):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for call in of(path):
        with pytest.raises(sw.IOFailed, match="find credentials: found none"):
            call()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("of", "path"), [
    *((calls, path) for path in ("s3://bucket/run/x.sw", pathlib.Path("s3://bucket/x"))),
    *((of, path) for of in (calls, imports, foreign_imports, saves, reads, torch_calls, torch_saves, torch_reads, jax_saves, jax_reads)
      for path in ("gs://bucket/x", "file:///tmp/x"))])
def test_urls_are_refused(tmp_path, monkeypatch, of, path):
    monkeypatch.chdir(tmp_path)
    for call in of(path):
        with pytest.raises(sw.Unsupported, match="found the URL"):
            call()
    assert os.listdir(tmp_path) == []


def test_the_storages_of_dcp_support_buckets():
    pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import shardwise.torch as swt

    for storage in (swt.StorageWriter, swt.StorageReader):
        supported = storage.validate_checkpoint_id
        assert supported("s3://bucket/step-00000001") and supported(pathlib.Path("s3://bucket/x")) and not supported("gs://b/x")
        assert storage(pathlib.Path("s3://bucket/runs/step-00000001")).checkpoint_id == "s3:/bucket/runs/step-00000001"


# DCP may give a StorageWriter its path later.
@pytest.mark.parametrize(("of", "path"), [
    (calls, ""), (calls, "a\0b"), (saves, ""), (saves, "a\0b"), (reads, ""), (reads, "a\0b"),
    (jax_saves, b""), (jax_reads, b""), (torch_calls, "a\0b"), (torch_saves, "a\0b"), (torch_reads, "a\0b")])
def test_paths_that_name_nothing_are_refused(tmp_path, monkeypatch, of, path):
    monkeypatch.chdir(tmp_path)
    for call in of(path):
        with pytest.raises(sw.InvalidArgument, match="the path is '.*', needed is one that is not empty and has no NUL"):
            call()
    assert os.listdir(tmp_path) == []


def test_imports_refuse_urls(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="needs torch, which this environment has not")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(sw.Unsupported, match="found the URL"):
        sw.import_dcp("s3://bucket/x", "a")
    pytest.importorskip("orbax.checkpoint", reason="needs Orbax, which this environment has not")
    with pytest.raises(sw.Unsupported, match="found the URL"):
        sw.import_orbax("s3://bucket/x", "a")
    assert os.listdir(tmp_path) == []


def test_the_users_folder_is_meant_by_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    assert sw.save("~/a", HERE).path == str(tmp_path / "home" / "a")
    assert sw.load(pathlib.Path("~/a"))["w"].tolist() == [1, 1, 1] and sw.verify("~/a")
    with sw.CheckpointManager("~/run") as m:
        m.save(1, HERE)
    sw.reshard("~/run/step-00000001", "~/other", mesh="x=1")
    sw.export_model("~/a", "~/a.safetensors")
    sw.import_model("~/a.safetensors", "~/b")
    assert sorted(os.listdir(tmp_path / "home")) == ["a", "a.safetensors", "b", "other", "run"]
    assert os.listdir(tmp_path) == ["home"]


def test_names_with_colons_are_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sw.save("run:3", HERE)
    assert sw.load(tmp_path / "run:3")["w"].tolist() == [1, 1, 1]
