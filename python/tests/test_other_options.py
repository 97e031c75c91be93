"""Every function that has an option of ours names it if somebody gives the option of another library or of the command."""

import inspect

import pytest

import shardwise as sw

OTHERS = {"dtype": 'cast="bf16"', "exclude": "names=", "overwrite": 'existing="replace"', "skip_existing": 'existing="skip"',
          "strip_prefix": 'rename={"PREFIX*": "*"}', "compression": "codec=", "num_workers": "threads=", "max_memory": "memory=",
          "max_shard_size": "max_shard=", "torch_dtype": 'cast="bf16"', "force": 'existing="replace"'}
FUNCTIONS = [sw.open, sw.load, sw.save, sw.stats, sw.diff, sw.verify, sw.repair, sw.reshard, sw.import_model, sw.export_model,
             sw.import_dcp, sw.import_orbax]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_options_of_others(function):
    own = inspect.signature(function).parameters
    needed = [name for name, one in own.items() if one.default is one.empty and one.kind is not one.VAR_POSITIONAL]
    for other, ours in OTHERS.items():
        if ours.partition("=")[0] not in own:
            continue
        with pytest.raises(sw.WrongType) as raised:
            function(**dict.fromkeys(needed, "x"), **{other: "y"})
        assert str(raised.value).endswith(f"unknown option {other!r}, needed {ours}")


def test_some_function_has_each():
    assert all(any(ours.partition("=")[0] in inspect.signature(f).parameters for f in FUNCTIONS) for ours in OTHERS.values())


@pytest.mark.parametrize("name, needed", [("restore", "shardwise.jax.load"), ("load_pytree", "shardwise.jax.load"),
                                          ("save_pytree", "shardwise.jax.save"), ("AsyncCheckpointer", "StandardCheckpointer")])
def test_names_of_orbax(name, needed):
    pytest.importorskip("jax", reason="needs jax, which this environment has not")
    import shardwise.jax as swj
    from shardwise.jax import ocp

    with pytest.raises(AttributeError, match=needed):
        getattr(ocp, name)
    with pytest.raises(AttributeError) as raised:
        getattr(swj, name)
    said = str(raised.value).partition("needed is ")[2]
    assert said.startswith({"restore": "load(", "load_pytree": "load(", "save_pytree": "save(", "AsyncCheckpointer": "save_async("}[name])


def test_arguments_of_restore_are_told_by_names_of_orbax(tmp_path):
    pytest.importorskip("jax", reason="needs jax, which this environment has not")
    from shardwise.jax import ocp

    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(1, args=ocp.args.StandardSave({"a": 1}))
        for wrong in (5, ocp.args.StandardSave({"a": 1}), ocp.args.StandardRestore):
            with pytest.raises(sw.InvalidArgument, match="ocp.args: StandardRestore, JsonRestore or Composite") as raised:
                manager.restore(1, args=wrong)
            assert "shardwise.jax" not in str(raised.value)
        with pytest.raises(sw.InvalidArgument, match="ocp.args: StandardSave, JsonSave or Composite"):
            manager.save(2, args=ocp.args.StandardRestore())
