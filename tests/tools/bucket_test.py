"""`shardwise` and the Python package on a bucket of a real server: bucket_test.py COMMAND PACKAGE. The environment names the
server, as tests/storage/object/seaweedfs_test.py sets it. Copies are killed at any moment, and gone on with."""
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

command, package = sys.argv[1:3]
sys.path.insert(0, package)

import numpy as np  # noqa: E402 - needs the path above

import shardwise as sw  # noqa: E402

ROUNDS = int(os.environ.get("SHARDWISE_ROUNDS", "10"))
bucket, _, options = os.environ["SHARDWISE_TEST_S3"].partition("?")
root = f"{bucket}/runs?{options}"


def url(step):
    return f"{bucket}/runs/step-{step:08}?{options}"


def run(*words, status=0, environment=None):
    ended = subprocess.run([command, *words], capture_output=True, text=True, env=environment)
    assert ended.returncode == status, (words, ended.returncode, ended.stdout, ended.stderr)
    return ended.stdout if status == 0 else ended.stderr


def steps():
    return [one["step"] for one in json.loads(run("ls", root, "--json"))["steps"]]


def values(step):
    return np.random.default_rng(step).standard_normal((step, 50_000)).astype(np.float32)


def check(folder):
    local = folder / "runs"
    with sw.CheckpointManager(local, save_every=1) as manager:
        for step in (10, 20, 100):
            manager.save(step, {"w": values(step), "b": np.arange(step)}, metrics={"loss": 1 / step})

    # Every door that reads.
    run("cp", f"{local}@10", root)
    assert "2 of 2 tensors are equal" in run("diff", f"{local}@10", f"{root}@10")
    assert sw.copy_step(local / "step-00000020", root).endswith("/runs/step-00000020")
    assert steps() == [10, 20]
    assert "every value is as written" in run("verify", root)
    assert "f32" in run("inspect", f"{root}@latest")
    assert np.array_equal(sw.load(url(20))["w"], values(20))
    assert np.array_equal(sw.open(url(20))["w"][3:5, 7:11], values(20)[3:5, 7:11])
    assert sw.verify(url(20)).ok
    sw.reshard(url(20), folder / "resharded", mesh="x=2", rules="w=x,-;*=-")
    assert np.array_equal(sw.load(folder / "resharded" / "step-00000020")["w"], values(20))
    run("export", f"{root}@10", str(folder / "model.safetensors"))
    assert (folder / "model.safetensors").stat().st_size > values(10).nbytes

    # And every door that writes: reshards from and into buckets, and imports.
    cut = f"{bucket}/cut?{options}"
    plan = json.loads(run("reshard", f"{root}@10", cut, "--mesh", "x=2", "--spec", "w=x,-;*=-", "--dry-run", "--json"))
    assert plan["fits"] and plan["free_bytes"] is None and not plan["skipped"]
    run("reshard", f"{root}@10", cut, "--mesh", "x=2", "--spec", "w=x,-;*=-", "--verify")
    assert "step-00000010 is already there" in run("reshard", f"{root}@10", cut, "--mesh", "x=2", status=3)
    assert json.loads(run("reshard", f"{root}@10", cut, "--mesh", "x=2", "--skip-existing", "--dry-run", "--json"))["skipped"]
    assert "is a checkpoint, needed is a directory outside" in run(
        "reshard", f"{root}@10", f"{bucket}/cut/step-00000010?{options}", "--mesh", "x=2", status=2)
    assert sw.reshard(url(20), cut, mesh="x=4", rules="w=-,x;*=-").endswith("/cut/step-00000020")
    assert np.array_equal(sw.load(f"{bucket}/cut/step-00000020?{options}")["w"], values(20))
    run("import", str(folder / "model.safetensors"), cut, "--step", "30", "--mesh", "x=2", "--spec", "w=x,-;*=-")
    model = sw.import_model(folder / "model.safetensors", f"{bucket}/cut/step-00000040?{options}")
    assert model.endswith("/cut/step-00000040")
    for step in (10, 30, 40):
        assert np.array_equal(sw.load(f"{bucket}/cut/step-{step:08}?{options}")["w"], values(10)), step
    assert "every value is as written" in run("verify", cut)

    # And back, byte for byte; files that are there are not sent again.
    run("cp", f"{root}@10", str(folder / "back"))
    for file in (local / "step-00000010").iterdir():
        assert file.read_bytes() == (folder / "back" / "step-00000010" / file.name).read_bytes(), file
    there = json.loads(run("cp", f"{local}@10", root, "--json"))
    assert there["present_bytes"] == there["bytes"] > 0

    # Removals.
    assert "removed step 20" in run("rm", root, "20")
    assert steps() == [10]
    assert "would stay" in run("rm", root, "10", status=3)
    assert "it was removed" in run("inspect", url(20), status=3)
    assert "nothing to remove" in run("gc", root)

    # Saves straight into the bucket.
    with sw.CheckpointManager(f"{bucket}/straight?{options}", keep_last=2) as manager:
        assert manager.restore() is None
        for step in (1, 2, 3):
            pending = manager.save_async(step, {"w": values(step), "b": np.arange(step)},
                                         metrics={"loss": 1 / step})
            assert pending.result().cleanup_error == ""
        assert manager.steps() == [2, 3]
        manager.pin(2, "good")
        saved = manager.save(4, {"w": values(400)})  # several parts
        assert saved.stored_bytes > 40 << 20 and saved.path.endswith("/straight/step-00000004")
        assert (manager.steps(), manager.pinned()) == ([2, 3, 4], {"good": 2})
        assert np.array_equal(manager.restore().value["w"], values(400))
        try:
            manager.save(4, {"w": values(1)})
            raise AssertionError("a step that is there was saved again")
        except sw.AlreadyExists as error:
            assert "step-00000004 is already there" in str(error)
        manager.save(4, {"w": values(5)}, existing="replace")
        assert np.array_equal(manager.open(4)["w"], values(5))
        manager.remove(3)
        assert manager.steps() == [2, 4]
    assert "every value is as written" in run("verify", f"{bucket}/straight?{options}")
    assert "nothing to remove" in run("gc", f"{bucket}/straight?{options}")
    one = f"{bucket}/one/step-00000007?{options}"
    assert sw.save(one, {"w": values(3)}).path.endswith("/one/step-00000007")
    sw.save(one, {"w": values(4)}, existing="replace")
    assert np.array_equal(sw.load(one)["w"], values(4))

    # One clear error each.
    assert "NoSuchBucket" in run("ls", f"s3://no-such-bucket/x?{options}", status=3)
    wrong = {**os.environ, "AWS_SECRET_ACCESS_KEY": "not the secret"}
    assert "status 403" in run("ls", root, status=3, environment=wrong)
    assert "needed a local path or s3://" in run("ls", "gs://bucket/x", status=2)
    assert "does not exist" in run("ls", f"{bucket}/nothing?{options}", status=3)

    # A copy that is killed at any moment leaves no step; the next one goes on.
    random.seed(1)
    began = time.monotonic()
    run("cp", f"{local}@100", root)
    seconds = time.monotonic() - began
    killed = 0
    for _ in range(ROUNDS):
        run("rm", root, "100")
        copy = subprocess.Popen([command, "cp", f"{local}@100", root], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            copy.wait(random.uniform(0, seconds))
        except subprocess.TimeoutExpired:
            copy.send_signal(signal.SIGKILL)
        copy.communicate()
        killed += copy.returncode != 0
        assert steps() in ([10], [10, 100])
        assert copy.returncode != 0 or steps() == [10, 100]
        run("cp", f"{local}@100", root)
        assert steps() == [10, 100]
    assert "every value is as written" in run("verify", f"{root}@100")
    print(f"{killed} of {ROUNDS} copies were killed")
    assert killed > 0


with tempfile.TemporaryDirectory() as name:
    check(pathlib.Path(name))
