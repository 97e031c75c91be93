"""Data sets in a bucket of a real server: remote_data_test.py COMMAND PACKAGE. Each source gives the rows of the local one,
in several processes and after damage too. The environment names the server, as tests/storage/object/seaweedfs_test.py sets
it."""
import importlib.util
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse

command, package = sys.argv[1:3]
sys.path.insert(0, package)
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python" / "tests"))
if importlib.util.find_spec("boto3") is None:
    print("SKIPPED remote_data_test.py: no boto3 (scripts/test.sh --frameworks installs it)")
    sys.exit(77)

import boto3  # noqa: E402 - is there only with --frameworks
import botocore.config  # noqa: E402
import h5py  # noqa: E402 - the rest needs the path above
import numpy as np  # noqa: E402
from test_sources import png  # noqa: E402

import shardwise as sw  # noqa: E402
from shardwise import sources  # noqa: E402

where, _, options = os.environ["SHARDWISE_TEST_S3"].partition("?")
bucket = where.removeprefix("s3://").split("/")[0]
random = np.random.default_rng(1)
s3 = boto3.client("s3", endpoint_url=dict(urllib.parse.parse_qsl(options))["endpoint"], region_name="us-east-1",
                  config=botocore.config.Config(s3={"addressing_style": "path"}))


def url(name):
    return f"s3://{bucket}/data/{name}?{options}"


def image():
    return png(random.integers(0, 255, (8, 8, 3), dtype=np.uint8))


def make_files(folder):
    np.save(folder / "a.npy", random.standard_normal((3000, 500)).astype(np.float32))
    random.integers(0, 60000, 2_000_000).astype(np.uint16).tofile(folder / "t.bin")
    (folder / "t.csv").write_text("a,b\n" + "".join(f"{i},row{i}\n" for i in range(20_000)))
    (folder / "t.jsonl").write_text("".join(json.dumps({"t": list(range(i % 7)), "n": i}) + "\n" for i in range(5000)))
    with h5py.File(folder / "h.h5", "w") as file:
        file["x"] = random.standard_normal((1000, 64))
        file.create_dataset("y", data=np.arange(1000), chunks=(100,), compression="gzip")
    for number in range(2):
        with tarfile.open(folder / f"s-{number}.tar", "w") as tar:
            for i in range(20):
                for name, content in ((f"{i:03}.png", image()), (f"{i:03}.cls", str(i % 3).encode())):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    for name in "ab":
        (folder / "images" / name).mkdir(parents=True)
        for i in range(5):
            (folder / "images" / name / f"{i}.png").write_bytes(image())
    for path in folder.rglob("*"):
        if path.is_file():
            s3.upload_file(str(path), bucket, f"data/{path.relative_to(folder)}")


def check_same(local, remote):
    assert len(local) == len(remote) > 0
    for i in [*range(0, len(local), max(1, len(local) // 200)), len(local) - 1]:
        ours, theirs = local[i], remote[i]
        assert list(ours) == list(theirs)
        for field in ours:
            assert ours[field].dtype == theirs[field].dtype and np.array_equal(ours[field], theirs[field]), (field, i)


def check_sources(folder):
    for open_one, local, remote in (
            (sources.npy, "a.npy", "a.npy"), (lambda p: sources.tokens(p, window=1025, stride=1024), "t.bin", "t.bin"),
            (sources.csv, "t.csv", "t.csv"), (sources.jsonl, "t.jsonl", "t.jsonl"), (sources.hdf5, "h.h5", "h.h5"),
            (sources.tar, ["s-0.tar", "s-1.tar"], "s-{0..1}.tar"), (sources.tar, ["s-0.tar", "s-1.tar"], "s-*.tar"),
            (lambda p: sources.images(p, 8, 8), "images", "images")):
        paths = [folder / name for name in local] if isinstance(local, list) else folder / local
        check_same(open_one(paths), open_one(url(remote)))


def batches(source, state=None, count=None):
    loader = sw.Loader(source, batch_size=64, seed=3)
    if state is not None:
        loader.load_state_dict(state)
    taken = []
    for batch in loader:
        taken.append(batch["x"].copy())
        if len(taken) == count:
            return taken, loader.state_dict()
    return taken, None


def check_batches(folder):
    whole, _ = batches(sources.npy(folder / "a.npy"))
    first, state = batches(sources.npy(url("a.npy")), count=10)
    rest, _ = batches(sources.npy(url("a.npy")), state)
    assert all(np.array_equal(a, b) for a, b in zip(whole, first + rest, strict=True))

    # A state is of these bytes: another object is another data set.
    old = np.load(folder / "a.npy")
    opened = sources.npy(url("a.npy"))
    np.save(folder / "b.npy", -old)
    s3.upload_file(str(folder / "b.npy"), bucket, "data/a.npy")
    try:
        batches(sources.npy(url("a.npy")), state)
        raise AssertionError("a state of another object was taken")
    except sw.InvalidArgument as error:
        assert "fingerprint" in str(error) or "source" in str(error), error
    for i in range(0, 3000, 50):
        assert np.array_equal(opened[i]["x"], old[i])  # the blocks that are here are of the old object


PROCESS = """
import sys, numpy as np
from shardwise import sources
source = sources.tokens(sys.argv[1], window=1000)
tokens = np.fromfile(sys.argv[2], np.uint16)
for i in range(len(source)):
    assert np.array_equal(source[i]["tokens"], tokens[1000 * i : 1000 * i + 1000]), i
"""


def check_processes(folder):
    environment = {**os.environ, "PYTHONPATH": package, "SHARDWISE_CACHE": str(folder / "shared"),
                   "SHARDWISE_CACHE_BYTES": str(3 << 20)}  # less than the file

    def run_three():
        running = [subprocess.Popen([sys.executable, "-c", PROCESS, url("t.bin"), folder / "t.bin"], env=environment,
                                    stderr=subprocess.PIPE, text=True) for _ in range(3)]
        for process in running:
            assert process.communicate()[1] == "" and process.returncode == 0
        blocks = [path for path in (folder / "shared").rglob("*") if path.is_file() and len(path.name) == 32]
        assert blocks and sum(path.stat().st_size for path in blocks) <= 3 << 20
        return blocks

    for path in run_three():
        damaged = bytearray(path.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        path.write_bytes(damaged)
    run_three()


def check_command(folder):
    words = ["--batch", "8", "--count", "2", "--digest"]
    told = [subprocess.run([command, "batches", source, *words], capture_output=True, text=True, check=True).stdout
            for source in (f"npy:{folder / 'b.npy'}", "npy:" + urllib.parse.quote(url("a.npy"), safe="/"))]
    local, remote = ([line for line in text.splitlines() if line.startswith("batch ")] for text in told)
    assert len(local) == 2 and local == remote, told


def check_errors():
    for name, found in (("none.npy", "no such object"), ("none-*.npy", "no object there")):
        try:
            sources.npy(url(name))
            raise AssertionError(f"{name} was opened")
        except sw.NotFound as error:
            assert found in str(error) and name.split(".")[0] in str(error), error
    try:
        sources.csv("http://example.com/t.csv")
        raise AssertionError("plain http to another machine was taken")
    except sw.InvalidArgument as error:
        assert "needed https://" in str(error), error


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    sources.set_cache(folder / "cache", 64 << 20)
    (folder / "data").mkdir()
    make_files(folder / "data")
    check_sources(folder / "data")
    check_processes(folder / "data")
    check_batches(folder / "data")
    check_command(folder / "data")
    check_errors()
