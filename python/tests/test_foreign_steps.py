"""A root that holds only what another library has left in it, or checkpoints by other names, is no fresh start."""

import json
import os
import pathlib
import re
import shutil
import subprocess

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import numpy as np
import pytest

import shardwise as sw

pytest.importorskip("jax", reason="needs jax, which this environment has not")
torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
orbax = pytest.importorskip("orbax.checkpoint", reason="needs orbax-checkpoint, which this environment has not")

import jax.numpy as jnp
import torch.distributed.checkpoint as dcp

import shardwise.jax as swj
import shardwise.jax.ocp as ocp
import shardwise.torch as swt


def of_orbax(root):
    with orbax.CheckpointManager(root) as m:
        for step in (9, 100):
            m.save(step, args=orbax.args.StandardSave({"w": jnp.full(3, step)}))


def of_orbax_with_prefix(root):
    with orbax.CheckpointManager(root, options=orbax.CheckpointManagerOptions(step_prefix="checkpoint")) as m:
        m.save(100, args=orbax.args.Composite(state=orbax.args.StandardSave({"w": jnp.ones(3)})))


def of_dcp(root):
    dcp.save({"w": torch.ones(3)}, checkpoint_id=root / "step_100")


def of_files(*names):
    def make(root):
        for name in names:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            torch.save({"w": torch.ones(3)}, root / name)
    return make


def of_safetensors(root):
    sw.save(root.parent / "one", {"w": np.ones(3)})
    (root / "checkpoint-100").mkdir()
    sw.export_model(root.parent / "one", root / "checkpoint-100/model.safetensors")


def of_other_names(root):
    for name in ("checkpoint_50", "checkpoint_100"):
        sw.save(root / name, {"w": np.ones(3)})


COMMAND = pathlib.Path(str(sw._core.__file__)).parent / "bin/shardwise"

FOREIGN = {
    "orbax": (of_orbax, 'import_orbax'), "orbax, prefix": (of_orbax_with_prefix, "import_orbax"), "dcp": (of_dcp, "import_dcp"),
    "safetensors": (of_safetensors, "import_model"), "other names": (of_other_names, "mv .*checkpoint_100 .*step-00000100"),
    "lightning": (of_files("epoch=3-step=100.ckpt", "epoch=2-step=50.ckpt"), "torch.load.*step=100.ckpt"),
    "trainer": (of_files("checkpoint-100/pytorch_model.bin", "checkpoint-50/pytorch_model.bin"), "checkpoint-100"),
    "deepspeed": (of_files("global_step100/mp_rank_00_model_states.pt"), "global_step100"),
    "megatron": (of_files("iter_0000100/mp_rank_00/model_optim_rng.pt"), "iter_0000100"),
    "flax": (of_files("checkpoint_100"), "checkpoint_100"), "a file": (of_files("last.ckpt"), "last.ckpt"),
    "a number": (of_files("100.pt"), "100.pt")}


@pytest.mark.parametrize("what", FOREIGN)
def test_steps_of_others_are_no_fresh_start(tmp_path, what):
    make, said = FOREIGN[what]
    root = tmp_path / "run"
    root.mkdir()
    make(root)
    ours, of_torch, of_jax, of_ocp = (kind(root) for kind in (
        sw.CheckpointManager, swt.CheckpointManager, swj.CheckpointManager, ocp.CheckpointManager))
    state = {"w": np.ones(3)}
    tiers = swj.TieredManager(tmp_path / "fast", root, copies=0)
    for ask in (
            ours.latest, ours.latest_step, ours.steps, ours.restore, lambda: ours.restore_latest(lambda c: c), ours.open,
            of_torch.latest, of_torch.latest_step, of_torch.steps, lambda: of_torch.restore(state), of_torch.restore_latest,
            of_jax.latest, of_jax.latest_step, of_jax.steps, of_jax.restore, of_jax.restore_latest,
            of_ocp.latest_step, of_ocp.all_steps, lambda: of_ocp.restore(None), of_ocp.best_step, tiers.restore):
        with pytest.raises(sw.Unsupported, match=f"holds no step of Shardwise, but .*{said}") as told:
            ask()
        assert "\n" not in str(told.value)
    tiers.close()
    assert of_ocp.save(200, {"w": jnp.ones(3)})  # allowed, and then ours is the newest, without a word
    of_ocp.wait_until_finished()
    assert of_jax.latest_step() == ours.latest_step() == 200 and ours.steps() == [200]


def of_dcp_by_our_name(root):
    dcp.save({"w": torch.ones(3)}, checkpoint_id=root / "step-100")


def of_orbax_by_our_name(root):
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(root / "step-100", {"w": jnp.ones(3)})


def of_safetensors_by_our_name(root):
    of_safetensors(root)
    (root / "checkpoint-100").rename(root / "step-100")


@pytest.mark.parametrize("make, what, said", [
    (of_dcp_by_our_name, "DCP", "import_dcp"), (of_orbax_by_our_name, "Orbax", "import_orbax"),
    (of_safetensors_by_our_name, "safetensors", "import_model"), (of_files("step-100/model.pt"), "torch.save", None)])
def test_folders_of_others_that_are_named_as_ours(tmp_path, make, what, said):
    root = tmp_path / "run"
    root.mkdir()
    make(root)
    ours, of_torch, of_jax = sw.CheckpointManager(root), swt.CheckpointManager(root), swj.CheckpointManager(root)
    for ask in (ours.latest, ours.restore, lambda: ours.restore_latest(lambda c: c), lambda: of_torch.restore({"w": torch.ones(3)}),
                of_jax.restore, ocp.CheckpointManager(root).latest_step):
        with pytest.raises(sw.Unsupported, match=f"holds no step of Shardwise, but step-100 is .*{what}") as told:
            ask()
    with pytest.raises(sw.NotFound, match=what):
        sw.verify(root / "step-100")
    for command in ("ls", "verify"):
        ended = subprocess.run([COMMAND, command, root], capture_output=True, text=True, timeout=60)
        assert ended.returncode == 3 and not ended.stdout, ended
        assert re.search(f"step-100 is .*{what}.*{said or 'shardwise.torch.save'}", ended.stderr)
    if said is not None:
        eval("sw." + str(told.value).partition("in Python ")[2].partition(";")[0])
        assert sw.CheckpointManager(f"{root}.sw").latest_step() == 100
    shutil.copytree(sw.save(tmp_path / "whole", {"w": np.ones(3)}).path, root / "step-100", dirs_exist_ok=True)
    (root / "step-100/manifest.json").unlink()  # one of ours that lacks its manifest is damaged
    for name in os.listdir(root / "step-100"):
        if not name.endswith(".h5"):
            shutil.rmtree(path) if (path := root / "step-100" / name).is_dir() else path.unlink()
    with pytest.raises(sw.Corrupt, match="it has no manifest.json"):
        ours.latest()


def of_dcp_by_our_name(root):
    dcp.save({"w": torch.ones(3)}, checkpoint_id=root / "step-00000100")


@pytest.mark.parametrize("door, what", [
    *[(sw, what) for what in FOREIGN if what not in ("a file", "orbax")],  # the file has no number
    *[(door, what) for door in (sw, swt, swj, ocp, "tiers", "command") for what in ("orbax", "dcp, our name")]])
def test_newer_steps_of_others_are_named_once(tmp_path, caplog, door, what):
    make, said = {**FOREIGN, "dcp, our name": (of_dcp_by_our_name, "import_dcp")}[what]
    root = tmp_path / "run"
    sw.CheckpointManager(root).save(5, {"w": np.full(3, 5)})
    make(root)
    caplog.set_level("WARNING", logger="shardwise")
    if door == "command":
        for words in (["ls", root], ["stats", root]):
            ended = subprocess.run([COMMAND, *map(str, words)], capture_output=True, text=True, timeout=60)
            assert ended.returncode == (words[0] == "ls" and what == "dcp, our name"), ended.stderr  # a step, and damaged
            assert re.search(f"100.*{said}", ended.stderr) and len(ended.stderr.splitlines()) == 1
        ls = subprocess.run([COMMAND, "ls", "--json", str(root)], capture_output=True, timeout=60)
        listed = json.loads(ls.stdout)
        assert [one["step"] for one in listed["steps"] if one["valid"]] == [5]
        [newer] = listed["newer_foreign"]
        assert "100" in newer["directory"] and re.search(said, newer["reason"])
        return
    if door == "tiers":
        with swt.TieredManager(tmp_path / "fast", root, copies=0) as m:
            for _ in range(2):
                assert m.restore({"w": torch.zeros(3, dtype=torch.int64)}).step == 5
    elif door is ocp:
        with ocp.CheckpointManager(root) as m:
            assert m.latest_step() == 5 and m.restore(None)["w"].tolist() == [5] * 3
    else:
        with door.CheckpointManager(root) as m:
            assert m.latest_step() == 5
            found = m.latest()
            [(path, reason)] = found.rejected
            assert found.step == 5 and "100" in path and re.search(said, reason)
            for restored in (m.restore(), m.restore_latest(), m.restore_latest(lambda checkpoint: checkpoint.step)):
                assert restored.step == 5 and restored.rejected == [(path, reason)]
            before = sorted(os.listdir(root))
            if what == "dcp, our name":  # it is not ours to replace
                with pytest.raises(sw.AlreadyExists):
                    m.save(100, {"w": np.ones(3)})
                assert sorted(os.listdir(root)) == before
                m.save(101, {"w": np.ones(3)})
            else:
                m.save(100, {"w": np.ones(3)})
            assert m.latest().rejected == []
    lines = [record.getMessage() for record in caplog.records if "passed over" in record.getMessage()]
    assert len(lines) == 1 and re.search(f"100.*{said}", lines[0]) and "\n" not in lines[0]


def test_older_steps_of_others_and_newer_ones_of_ours_are_not_told_of(tmp_path, caplog):
    of_orbax(tmp_path)
    for name in ("best", "step-00000250"):
        sw.save(tmp_path / name, {"w": np.ones(3)}, user=None)
    shutil.rmtree(tmp_path / "step-00000250")
    with sw.CheckpointManager(tmp_path) as m:
        m.save(101, {"w": np.ones(3)})
        m.save(200, {"w": np.ones(3)})
    with sw.CheckpointManager(tmp_path) as m:
        m.save(150, {"w": np.ones(3)})
        assert m.restore().rejected == [] and m.latest_step() == 150
    assert not [record for record in caplog.records if "passed over" in record.getMessage()]


@pytest.mark.parametrize("names", [(), ("notes.txt",), ("logs/events.out.tfevents.123",), ("100/readme.txt",), (".hidden_1/model.pt",),
                                   ("7.orbax-checkpoint-tmp/default/_METADATA",), ("config.json",), ("tokenizer.bin",)])
def test_what_is_no_checkpoint_is_a_fresh_start(tmp_path, names):
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    m = sw.CheckpointManager(tmp_path)
    assert m.latest() is None and m.latest_step() is None and m.steps() == [] and m.restore() is None
    sw.save(tmp_path / "final", {"w": np.ones(2)})  # a checkpoint of another name may be in the folder
    assert m.latest() is None and swj.CheckpointManager(tmp_path).restore() is None


@pytest.mark.parametrize("make", [of_orbax, of_orbax_with_prefix])
def test_what_the_error_says_makes_steps_of_them(tmp_path, make):
    make(tmp_path)
    with pytest.raises(sw.Unsupported) as told:
        ocp.CheckpointManager(tmp_path).latest_step()
    call = str(told.value).partition("in Python ")[2].partition(";")[0]
    eval(f"sw.{call}")
    assert ocp.CheckpointManager(tmp_path).latest_step() == 100
    with pytest.raises(sw.AlreadyExists):
        eval(f"sw.{call}")
    assert sw.import_orbax(tmp_path, tmp_path, steps="all", existing="skip") == str(tmp_path)


def test_a_whole_root_of_orbax(tmp_path):
    of_orbax(tmp_path / "of")
    for steps, there in (("newest", [100]), ("all", [9, 100]), (9, [9]), ([9, np.int64(100)], [9, 100])):
        assert sw.import_orbax(tmp_path / "of", tmp_path / "out", steps=steps) == str(tmp_path / "out")
        with ocp.CheckpointManager(tmp_path / "out") as m:
            assert m.all_steps() == there and all(m.restore(step)["w"].tolist() == [step] * 3 for step in there)
        shutil.rmtree(tmp_path / "out")
    for bad, why in (({}, r'a folder of 2 steps: needed is one of them, the newest is .*/100, or steps="newest"'),
                     ({"steps": "last"}, "steps is 'last', needed is 'all' or 'newest'"), ({"steps": 10.0}, "import step 10.0"),
                     ({"steps": 7}, "there is no step 7, of 9, 100")):
        with pytest.raises(sw.Error, match=why):
            sw.import_orbax(tmp_path / "of", tmp_path / "out", **bad)
    with pytest.raises(sw.NotFound, match="holds no step of Orbax"):
        sw.import_orbax(tmp_path / "of/100", tmp_path / "out", steps="all")
