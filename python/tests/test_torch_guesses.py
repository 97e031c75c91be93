"""First guesses of people who know torch.save, DCP, safetensors, accelerate and Lightning: they work, or one line says what to write."""

import importlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

import numpy as np

import shardwise as sw
import shardwise.torch as swt


@pytest.fixture
def path(tmp_path):
    swt.save(tmp_path / "c", {"model": {"w": torch.arange(6.0).reshape(2, 3)}, "n": np.ones(2), "step": 7})
    return tmp_path / "c"


def test_a_load_without_a_state_gives_what_was_saved(path):
    found = swt.load(path)
    assert torch.equal(found["model"]["w"], torch.arange(6.0).reshape(2, 3)) and isinstance(found["n"], np.ndarray)
    assert dict(found)["step"] == 7 and (found.tensors, found.objects, found.bytes) == (2, 1, 40) and found.missing == []
    assert swt.load(path, names="model.*", cast="bf16")["model"]["w"].dtype == torch.bfloat16
    assert swt.load(path, names="model.*", resize={"model.w": "pad:4,-"})["model"]["w"].shape == (4, 3)
    with pytest.raises(sw.InvalidArgument, match="needed is a target that has the new shapes"):
        swt.load(path, resize={"*": "pad"})
    for options in ({"unused": "x"}, {"skip_mismatched": True}):
        with pytest.raises(sw.InvalidArgument):
            swt.load(path, **options)


NAMES = [
    ("save_file", "save(path, state)"), ("save_model", 'save(path, {"model": model})'), ("save_checkpoint", "save(path, state)"),
    ("save_state_dict", "save(path, state)"), ("async_save", "save_async(path, state)"), ("load_file", "load(path)"),
    ("load_model", 'load(path, {"model": model})'), ("load_checkpoint", "load(path, state)"), ("restore", "load(path, state)"),
    ("restore_latest", "load(path, state), or CheckpointManager(root).restore(state)"), ("safe_open", "open(path)"), ("DataLoader", "Loader(source"),
    ("StatefulDataLoader", "Loader(source"), ("DistributedSampler", "Loader(source"), ("FileSystemWriter", "StorageWriter(path)"),
    ("FileSystemReader", "StorageReader(path)"), ("HuggingFaceStorageReader", "shardwise.import_model(source, path)"),
    ("save_pretrained", "shardwise.export_model(path, target)"), ("state_dict_loader", "load(path, {"), ("state_dict_saver", "save(path, {"),
    ("get_state_dict", "save(path, {"), ("set_optimizer_state_dict", "load(path, {"), ("Checkpointer", "CheckpointManager(root)"),
    ("TrainerCallback", "shardwise.torch.transformers.CheckpointCallback(manager)"), ("CheckpointIO", "shardwise.torch.lightning.CheckpointIO()")]
OF_SW = [
    ("transformers", "shardwise.torch.transformers"), ("lightning", "shardwise.torch.lightning"), ("accelerate", "shardwise.torch.accelerate"),
    ("save_file", "save(path, tensors)"), ("load_file", "load(path)"), ("safe_open", "open(path)"), ("DataLoader", "Loader(source"),
    ("async_save", "CheckpointManager(root).save_async(step, tensors)"), ("from_pretrained", "import_model(source, path)")]


@pytest.mark.parametrize(("module", "name", "words"), [*((swt, *one) for one in NAMES), *((sw, *one) for one in OF_SW)])
def test_names_of_others_say_what_to_write_from_every_door(module, name, words):
    with pytest.raises(AttributeError) as told:
        getattr(module, name)
    assert f"has no attribute {name!r}: needed is {words}" in str(told.value) and "\n" not in str(told.value)
    assert not hasattr(module, name)
    for source in (f"from {module.__name__} import {name}", f"import {module.__name__}.{name}", f"from {module.__name__}.{name} import x"):
        with pytest.raises(ImportError) as of_import:
            exec(source, {})
        assert str(of_import.value) == str(told.value)


def test_names_that_nobody_has_are_as_pythons():
    for module in (sw, swt):
        with pytest.raises(AttributeError, match=f"^module '{module.__name__}' has no attribute 'quux'$"):
            module.quux
        with pytest.raises(ImportError, match="cannot import name 'quux'"):
            exec(f"from {module.__name__} import quux", {})
        assert importlib.util.find_spec(f"{module.__name__}.quux") is None


def test_submodules_need_no_import_of_their_own():
    source = "import shardwise as sw; sw.torch.load, sw.torch.spmd.Mesh, sw.orbax, sw.programs"
    assert subprocess.run([sys.executable, "-c", source], timeout=120).returncode == 0


LOADS = [
    ("map_location", "load_state_dict(path, device=)"), ("device", "load_state_dict(path, device=)"), ("device_map", "load_state_dict(path, device=)"),
    ("dtype", 'cast="bf16"'), ("torch_dtype", 'cast="bf16"'), ("weights_only", "no code of a checkpoint ever runs"), ("mmap", "shardwise.torch.open(path)"),
    ("checkpoint_id", "load(path, state)"), ("f", "load(path, state)"), ("process_group", "group="), ("no_dist", "group="), ("planner", "load(path, state)"),
    ("storage_reader", "StorageReader(path)"), ("ignore_mismatched_sizes", "skip_mismatched=True"), ("num_workers", "threads="), ("strct", "did you mean strict=")]
SAVES = [
    ("checkpoint_id", "save(path, state)"), ("f", "save(path, state)"), ("obj", 'save(path, {"model": model})'), ("process_group", "group="),
    ("no_dist", "group="), ("storage_writer", "StorageWriter(path)"), ("planner", "StorageWriter(path)"), ("overwrite", 'existing="replace"'),
    ("force", 'existing="replace"'), ("metadata", "user="), ("pickle_protocol", "nothing is pickled"), ("safe_serialization", "nothing is pickled"),
    ("async_checkpointer_type", "save_async()"), ("max_shard_size", "shardwise.export_model(path, target, max_shard=)"), ("thread_count", "threads=")]


@pytest.mark.parametrize(("call", "option", "words"), [*(("load", *one) for one in LOADS), *(("save", *one) for one in SAVES),
                                                       *(("save_async", *one) for one in SAVES), ("load_state_dict", "map_location", "device=")])
def test_options_of_others_say_what_to_write(path, call, option, words):
    function = getattr(swt, call)
    # DCP is called so, too: the state first, and the path by its name.
    for arguments in ((path, {"w": torch.ones(3)}), ({"w": torch.ones(3)},), (path,)):
        with pytest.raises(TypeError, match=f"^{call}: found the unknown option '{option}', ") as told:
            function(*arguments, **{option: None})
        assert words in str(told.value) and "\n" not in str(told.value)


def test_arguments_in_the_order_of_torch_say_ours(path):
    state = {"w": torch.ones(3)}
    for function, words in ((swt.save, "save"), (swt.save_async, "save"), (swt.load, "load"), (swt.load_state_dict, "load")):
        for first in (state, torch.nn.Linear(2, 2), torch.ones(2)):
            with pytest.raises(TypeError, match=rf"needed is a text or a pathlib.Path: the path comes first, as in {words}\(path, state\)$"):
                function(first, str(path))
    with swt.CheckpointManager(path.parent / "run") as manager:
        for call in (manager.save, manager.save_async):
            with pytest.raises(sw.InvalidArgument, match="^save step of dict: needed is an integer, 0 or more$"):
                call(state, 4)
