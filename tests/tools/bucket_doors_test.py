"""DCP and Orbax with a bucket of a real server: bucket_doors_test.py COMMAND PACKAGE. The storage writer of DCP in one process
and in a group, imports and exports of both formats, by Python and the command: all values come back, a step that is there is
refused, and a save that fails or is killed leaves none. The environment names the server, as
tests/storage/object/seaweedfs_test.py sets it."""
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import warnings

command, package = sys.argv[1:3]
sys.path.insert(0, package)
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python" / "tests"))
os.environ.update(PYTHONPATH=package, SHARDWISE_PYTHON=sys.executable, JAX_PLATFORMS="cpu")
if missing := [name for name in ("torch", "orbax") if importlib.util.find_spec(name) is None]:
    print(f"SKIPPED bucket_doors_test.py: no {missing[0]} (scripts/test.sh --frameworks installs it)")
    sys.exit(77)

import numpy as np  # noqa: E402 - the rest needs the path above
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from processes import free_port, run_ranks  # noqa: E402
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Shard, distribute_tensor  # noqa: E402

import shardwise as sw  # noqa: E402
import shardwise.torch as swt  # noqa: E402
from shardwise._formats import dcp as dcp_format, orbax as orbax_format  # noqa: E402

bucket, _, options = os.environ["SHARDWISE_TEST_S3"].partition("?")
bucket = bucket.rpartition("/")[0]


def root(name):
    return f"{bucket}/doors/{name}?{options}"


def url(name, step):
    return f"{bucket}/doors/{name}/step-{step:08}?{options}"


def run(*words, status=0):
    ended = subprocess.run([command, *words], capture_output=True, text=True)
    assert ended.returncode == status, (words, ended.returncode, ended.stdout, ended.stderr)
    return ended.stdout if status == 0 else ended.stderr


def steps(name):
    return [one["step"] for one in json.loads(run("ls", root(name), "--json"))["steps"]]


def verified(name, collected="nothing to remove"):
    assert "every value is as written" in run("verify", root(name))
    assert collected in run("gc", root(name))


def raised(call, kind=BaseException):  # DCP's own exception is no Exception
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("nothing was raised")


def state(first):
    w = torch.arange(first, first + 4000 * 128, dtype=torch.float32).reshape(4000, 128)
    return {"model": {"w": w, "b": torch.full((3, 5), first).bfloat16(), "empty": torch.zeros(0, 4)},
            "step": int(first), "note": "é", "lr": [0.1, (1, None)]}


def check_state(name, step, needed):
    flat = {"model.w": needed["model"]["w"], "model.b": needed["model"]["b"], "model.empty": needed["model"]["empty"]}
    found = {"model": {key: torch.full_like(value, -1) for key, value in needed["model"].items()},
             "step": 0, "note": "", "lr": [0.0, ()]}
    dcp.load(found, storage_reader=swt.StorageReader(url(name, step), unused="ignore"))  # DCP asks for no empty tensor
    assert all(torch.equal(found["model"][key], value) for key, value in needed["model"].items())
    assert [found[key] for key in ("step", "note", "lr")] == [needed[key] for key in ("step", "note", "lr")], found
    with swt.open(url(name, step)) as checkpoint:
        assert {*checkpoint} == {*flat} and all(torch.equal(checkpoint[key][...], value) for key, value in flat.items())


class Failing(DefaultSavePlanner):
    """Fails when the attempt has been made, and, of a group, others write."""

    def resolve_data(self, write_item):
        raise RuntimeError("the tensor is gone")


def check_writer():
    dcp.save(state(1), storage_writer=swt.StorageWriter(url("dcp", 1)))
    dcp.save(state(2), storage_writer=swt.StorageWriter(threads=2), checkpoint_id=url("dcp", 2))
    dcp.async_save(state(3), storage_writer=swt.StorageWriter(url("dcp", 3))).result()
    for step in (1, 2, 3):
        check_state("dcp", step, state(step))
    told = raised(lambda: dcp.save(state(7), storage_writer=swt.StorageWriter(url("dcp", 1))))
    assert "step-00000001 is already there" in told, told
    check_state("dcp", 1, state(1))
    dcp.save(state(7), storage_writer=swt.StorageWriter(url("dcp", 1), existing="replace"))
    check_state("dcp", 1, state(7))

    told = raised(lambda: dcp.save(state(4), storage_writer=swt.StorageWriter(url("dcp", 4)), planner=Failing()))
    assert "the tensor is gone" in told and steps("dcp") == [1, 2, 3]
    dcp.save(state(4), storage_writer=swt.StorageWriter(url("dcp", 4)))  # where the one before has failed
    check_state("dcp", 4, state(4))
    for name, needed in (("model", "step-N as its last part"), ("step-5", "step-00000005 as its last part")):
        target = f"{bucket}/doors/dcp/{name}?{options}"
        for call in (lambda: dcp.save(state(5), storage_writer=swt.StorageWriter(target)), lambda: sw.save(target, {})):
            told = raised(call)
            assert f"/doors/dcp/{name}: found the name {name}, needed {needed}" in told, told
    verified("dcp")
    assert steps("dcp") == [1, 2, 3, 4]


def in_group(rank, size, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (size,))

    def cut(first):
        whole = state(first)
        return {**whole, "model": {**whole["model"], "w": distribute_tensor(whole["model"]["w"], mesh, [Shard(0)])}}

    dcp.save(cut(1), storage_writer=swt.StorageWriter(url("group", 1)))
    found = cut(0)
    dcp.load(found, storage_reader=swt.StorageReader(url("group", 1), unused="ignore"))
    assert torch.equal(found["model"]["w"].full_tensor(), state(1)["model"]["w"]) and found["note"] == "é"
    told = [raised(lambda: dcp.save(cut(2), storage_writer=swt.StorageWriter(url("group", 1)))),
            raised(lambda: dcp.save(cut(2), storage_writer=swt.StorageWriter(url("group", 2)),
                                    planner=Failing() if rank else None))]
    dcp.save(cut(3), storage_writer=swt.StorageWriter(url("group", 3)))
    dist.barrier()
    dist.destroy_process_group()
    return told


def check_group():
    for there, failed in run_ranks(in_group, 2, free_port()):
        assert "step-00000001 is already there" in there and "the tensor is gone" in failed, (there, failed)
    assert steps("group") == [1, 3]
    for step in (1, 3):
        check_state("group", step, state(step))  # by one process
    verified("group")


def stop_later(act):
    """A progress function that acts when all but the last group has been written."""
    return lambda done, total: act() if done == total else None


def interrupt():
    raise KeyboardInterrupt


def check_dcp_imports(folder):
    saved, small = state(5), dcp_format._GROUP_BYTES
    dcp.save(saved, storage_writer=dcp.FileSystemWriter(folder / "of-dcp"))
    dcp_format._GROUP_BYTES = 1 << 20  # several shard files
    path = sw.import_dcp(folder / "of-dcp", url("imported", 1))
    assert path.endswith("/imported/step-00000001")
    check_state("imported", 1, saved)
    assert sw.import_dcp(folder / "of-dcp", url("imported", 1), existing="skip") == path
    told = raised(lambda: sw.import_dcp(folder / "of-dcp", url("imported", 1)), sw.AlreadyExists)
    assert "step-00000001 is already there" in told

    raised(lambda: sw.import_dcp(folder / "of-dcp", url("imported", 2), progress=stop_later(interrupt)), KeyboardInterrupt)
    assert steps("imported") == [1]
    killed = subprocess.run([sys.executable, __file__, command, package, str(folder / "of-dcp")])
    assert killed.returncode == -signal.SIGKILL and steps("imported") == [1]
    sw.import_dcp(folder / "of-dcp", url("imported", 2), names="model.b")
    assert list(sw.load(url("imported", 2))) == ["model.b"]
    sw.import_dcp(folder / "of-dcp", url("imported", 2), existing="replace")
    check_state("imported", 2, saved)
    dcp_format._GROUP_BYTES = small

    run("import", str(folder / "of-dcp"), root("imported"), "--step", "3", "--mesh", "x=2", "--spec", "model.w=x,-;*=-,-")
    assert np.array_equal(sw.load(url("imported", 3))["model.w"], saved["model"]["w"].numpy())
    assert "is already there" in run("import", str(folder / "of-dcp"), root("imported"), "--step", "3", status=3)
    verified("imported", "kept step-00000002.g2: its claim is not over")

    # And back.
    for number, export in enumerate((lambda to: sw.export_model(url("imported", 1), to, format="dcp"),
                                     lambda to: run("export", f"{root('imported')}@1", str(to), "--format", "dcp"))):
        export(folder / f"dcp-{number}")
        again = {"model": {key: torch.full_like(value, -1) for key, value in saved["model"].items()}, "step": 0, "note": ""}
        dcp.load(again, storage_reader=dcp.FileSystemReader(folder / f"dcp-{number}"))
        assert all(torch.equal(again["model"][key], value) for key, value in saved["model"].items())
        assert (again["step"], again["note"]) == (5, "é")


def check_orbax_imports(folder):
    import orbax.checkpoint as ocp

    saved = {"params": {"w": np.arange(200_000, dtype=np.float32).reshape(400, 500), "b": np.ones(3, np.int8)}, "i": 3, "s": "x"}
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(folder / "of-orbax", saved)
        for number in (10, 20):
            checkpointer.save(folder / "orbax-steps" / str(number) / "default", {"w": np.full(4, number)})

    def check(step):
        found = sw.load(url("orbax", step))
        assert np.array_equal(found["params/w"], saved["params"]["w"]) and found["params/b"].tolist() == [1, 1, 1]
        assert (found["i"], found["s"]) == (3, "x")

    groups, orbax_format._GROUP_BYTES = orbax_format._GROUP_BYTES, 1 << 10
    path = sw.import_orbax(folder / "of-orbax", url("orbax", 1))
    assert path.endswith("/orbax/step-00000001")
    check(1)
    assert sw.import_orbax(folder / "of-orbax", url("orbax", 1), existing="skip") == path
    told = raised(lambda: sw.import_orbax(folder / "of-orbax", url("orbax", 1)), sw.AlreadyExists)
    assert "step-00000001 is already there" in told

    raised(lambda: sw.import_orbax(folder / "of-orbax", url("orbax", 2), progress=stop_later(interrupt)), KeyboardInterrupt)
    assert steps("orbax") == [1]
    orbax_format._GROUP_BYTES = groups
    sw.import_orbax(folder / "orbax-steps", root("orbax"), steps="all")
    assert steps("orbax") == [1, 10, 20]
    assert [sw.load(url("orbax", number))["w"].tolist() for number in (10, 20)] == [[10] * 4, [20] * 4]
    told = raised(lambda: sw.import_orbax(folder / "of-orbax", root("model")), sw.Unsupported)
    assert "found the name model, needed step-N as its last part" in told
    run("import", str(folder / "of-orbax"), root("orbax"), "--step", "30")
    assert np.array_equal(sw.load(url("orbax", 30))["params/w"], saved["params"]["w"])
    verified("orbax")

    # And back.
    for number, export in enumerate((lambda to: sw.export_model(url("orbax", 1), to, format="orbax"),
                                     lambda to: run("export", f"{root('orbax')}@1", str(to), "--format", "orbax"))):
        export(folder / f"orbax-{number}")
        with ocp.PyTreeCheckpointer() as checkpointer:
            again = checkpointer.restore(folder / f"orbax-{number}")
        assert np.array_equal(again["params"]["w"], saved["params"]["w"]) and (again["i"], again["s"]) == (3, "x")


def import_and_die(source):
    dcp_format._GROUP_BYTES = 1 << 20
    sw.import_dcp(source, url("imported", 2), progress=stop_later(lambda: os.kill(os.getpid(), signal.SIGKILL)))


if __name__ == "__main__" and sys.argv[3:]:
    import_and_die(sys.argv[3])
elif __name__ == "__main__":
    warnings.filterwarnings("ignore", message="torch.distributed is (un|dis)")
    with tempfile.TemporaryDirectory() as name:
        check_writer()
        check_group()
        check_dcp_imports(pathlib.Path(name))
        check_orbax_imports(pathlib.Path(name))
