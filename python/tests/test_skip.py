"""existing="skip" leaves a valid checkpoint as it is, and refuses anything else of that name, at every door."""

import os
import shutil

os.environ["JAX_PLATFORMS"] = "cpu"

import numpy as np
import pytest

import shardwise as sw

W = {"w": np.arange(6, dtype=np.float32)}


def empty(path):
    shutil.rmtree(path)
    path.mkdir()


def a_file(path):
    shutil.rmtree(path)
    path.write_text("text")


def a_dangling_link(path):
    shutil.rmtree(path)
    path.symlink_to("nowhere")


def no_manifest(path):
    (path / "manifest.json").unlink()


def bad_manifest(path):
    (path / "manifest.json").write_text("{")


def no_shard_file(path):
    next(path.glob("shards-*")).unlink()


def short_shard_file(path):
    os.truncate(next(path.glob("shards-*")), 100)


DAMAGES = [empty, a_file, a_dangling_link, no_manifest, bad_manifest, no_shard_file, short_shard_file]


def by_sw(path):
    return sw.save(path, W, existing="skip").skipped


def by_torch(path):
    torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import shardwise.torch as swt

    done = swt.save_async(path, {"w": torch.arange(6.0)}, existing="skip").result()
    assert swt.save(path, {"w": torch.arange(6.0)}, existing="skip").skipped
    return done.skipped


def by_jax(path):
    pytest.importorskip("jax", reason="needs jax, which this environment has not")
    import shardwise.jax as swj

    done = swj.save_async(path, W, existing="skip").result()
    assert swj.save(path, W, existing="skip").skipped
    return done.skipped


def by_import(path):
    file = path.parent / "m.safetensors"
    if not file.exists():
        sw.save(path.parent / "source", W)
        sw.export_model(path.parent / "source", file)
    before = os.path.lexists(path)
    assert sw.import_model(file, path, existing="skip") == str(path)
    return before


def by_dcp(path):
    torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
    folder, before = path.parent / "dcp", os.path.lexists(path)
    if not folder.exists():
        torch.distributed.checkpoint.save({"w": torch.arange(6.0)}, checkpoint_id=folder)
    assert sw.import_dcp(folder, path, existing="skip") == str(path)
    return before


def by_orbax(path):
    ocp = pytest.importorskip("orbax.checkpoint", reason="needs orbax-checkpoint, which this environment has not")
    folder, before = path.parent / "orbax", os.path.lexists(path)
    if not folder.exists():
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(folder, W)
    assert sw.import_orbax(folder, path, existing="skip") == str(path)
    return before


def by_manager(kind, state):
    def door(path):
        with kind()(path.parent) as manager:
            done = manager.save(7, state(), existing="skip").skipped
            assert manager.save_async(7, state(), existing="skip").result().skipped
            return done
    return door


def torch_manager():
    pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import shardwise.torch as swt

    return swt.CheckpointManager


def jax_manager():
    pytest.importorskip("jax", reason="needs jax, which this environment has not")
    import shardwise.jax as swj

    return swj.CheckpointManager


def by_reshard(path):
    source, before = path.parent / "of" / "step-00000007", os.path.lexists(path)
    if not source.exists():
        sw.save(source, W)
    assert sw.reshard(source, path.parent, mesh="1", rules="*=-", existing="skip") == str(path)
    return before


DOORS = {"sw": by_sw, "swt": by_torch, "swj": by_jax, "import_model": by_import, "import_dcp": by_dcp, "import_orbax": by_orbax,
         "sw manager": by_manager(lambda: sw.CheckpointManager, lambda: W),
         "swt manager": by_manager(torch_manager, lambda: W), "swj manager": by_manager(jax_manager, lambda: W),
         "reshard": by_reshard}


@pytest.mark.parametrize("door", list(DOORS))
def test_only_a_valid_checkpoint_is_skipped(tmp_path, door):
    for damage in DAMAGES:
        root = tmp_path / damage.__name__
        root.mkdir()
        path = root / "step-00000007"
        assert not DOORS[door](path) and DOORS[door](path)
        assert np.array_equal(sw.load(path)["w"], W["w"])
        damage(path)
        with pytest.raises(sw.AlreadyExists, match='existing="skip" needs a valid checkpoint there, found none') as told:
            DOORS[door](path)
        assert str(path) in str(told.value) and 'existing="replace" takes its place' in str(told.value)
        assert "\n" not in str(told.value)
    sw.save(path, W, existing="replace")
    assert DOORS[door](path)
