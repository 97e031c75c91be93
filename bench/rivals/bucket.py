"""Saves and restores the same tensors in one bucket with Shardwise, curl, DCP over s3fs and TensorStore, by turns, and prints
the medians and how many times as fast as each Shardwise is. The environment names the server, as seaweedfs_test.py sets it:

    python3 tests/storage/object/seaweedfs_test.py . .venv/bin/python bench/rivals/bucket.py [--tensors 64] [--rounds 3]

Each measurement is a process of its own, which makes the tensors before its clock starts. Restored values are compared with
the saved ones. curl moves one object for each tensor, 16 at a time: the limit that the server sets.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse

import numpy as np

SHAPE = (2048, 4096)  # f32: 32 MiB
AT_ONCE = 16


def server():
    """Its endpoint, bucket and region."""
    url = urllib.parse.urlsplit(os.environ["SHARDWISE_TEST_S3"])
    options = dict(urllib.parse.parse_qsl(url.query))
    return options["endpoint"], url.netloc, options["region"]


def tensors(count):
    return {f"t{i:03}": np.random.default_rng(i).standard_normal(SHAPE, dtype=np.float32) for i in range(count)}


def peak_bytes():
    """The most memory that this process has had since reset_peak()."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def reset_peak():
    pathlib.Path("/proc/self/clear_refs").write_text("5")


class Shardwise:
    def __init__(self, name):
        import shardwise as sw

        self.sw, (bucket, _, options) = sw, os.environ["SHARDWISE_TEST_S3"].partition("?")
        self.url = f"{bucket}/{name}/step-00000001?{options}"

    def save(self, arrays):
        self.sw.save(self.url, arrays, codec="none")

    def restore(self, names):
        return self.sw.load(self.url)


class Curl:
    """Objects from files in memory, and ranges of 16 MiB back into such."""

    def __init__(self, name):
        endpoint, bucket, region = server()
        self.base = f"{endpoint}/{bucket}/{name}"
        key, secret = (os.environ[f"AWS_{one}"] for one in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"))
        self.options = f'aws-sigv4 = "aws:amz:{region}:s3"\nuser = "{key}:{secret}"\nsilent\nshow-error\nfail\n'
        self.folder = pathlib.Path(tempfile.mkdtemp(dir="/dev/shm"))

    def run(self, transfers):
        config = "next\n".join(self.options + one for one in transfers)
        command = ["curl", "--parallel", "--parallel-immediate", "--parallel-max", str(AT_ONCE), "--config", "-"]
        subprocess.run(command, input=config.encode(), check=True)

    def prepare(self, arrays):
        for name, array in arrays.items():
            array.tofile(self.folder / name)

    def save(self, arrays):
        # The server wants a hash of the bytes sent, or this word in its place.
        header = 'header = "x-amz-content-sha256: UNSIGNED-PAYLOAD"\n'
        self.run([f'{header}upload-file = "{self.folder / name}"\nurl = "{self.base}/{name}"\n' for name in arrays])

    def restore(self, names):
        size, part = int(np.prod(SHAPE)) * 4, 16 << 20
        pieces = [(name, begin) for name in names for begin in range(0, size, part)]
        self.run([f'range = "{begin}-{begin + part - 1}"\noutput = "{self.folder / f"{name}.{begin}"}"\n'
                  f'url = "{self.base}/{name}"\n' for name, begin in pieces])
        return pieces

    def arrays(self, pieces):
        files = {}
        for name, begin in pieces:
            files.setdefault(name, []).append((self.folder / f"{name}.{begin}").read_bytes())
        return {name: np.frombuffer(b"".join(parts), np.float32).reshape(SHAPE) for name, parts in files.items()}

    def close(self):
        for file in self.folder.iterdir():
            file.unlink()
        self.folder.rmdir()


class Dcp:
    """The fsspec writer and reader that torch has, over s3fs."""

    def __init__(self, name):
        import torch
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter

        endpoint, bucket, region = server()
        self.torch, self.dcp = torch, dcp
        options = {"endpoint_url": endpoint, "client_kwargs": {"region_name": region}}
        self.writer = FsspecWriter(f"s3://{bucket}/{name}", thread_count=AT_ONCE, single_file_per_rank=False, **options)
        self.reader = FsspecReader(f"s3://{bucket}/{name}", **options)

    def save(self, arrays):
        state = {name: self.torch.from_numpy(array) for name, array in arrays.items()}
        self.dcp.save(state, storage_writer=self.writer, no_dist=True)

    def restore(self, names):
        state = {name: self.torch.empty(SHAPE) for name in names}
        self.dcp.load(state, storage_reader=self.reader, no_dist=True)
        return {name: tensor.numpy() for name, tensor in state.items()}


class TensorStore:
    """zarr3, raw, in OCDBT, one commit for all tensors, as Orbax writes."""

    def __init__(self, name):
        import tensorstore as ts

        endpoint, bucket, region = server()
        self.ts = ts
        base = {"driver": "s3", "bucket": bucket, "path": f"{name}/", "endpoint": endpoint, "aws_region": region}
        self.store = {"driver": "ocdbt", "base": base}
        self.context = ts.Context({"s3_request_concurrency": {"limit": AT_ONCE}})

    def spec(self, name):
        return {"driver": "zarr3", "kvstore": {**self.store, "path": f"{name}/"}}

    def save(self, arrays):
        commit, writes = self.ts.Transaction(), []
        for name, array in arrays.items():
            metadata = {"shape": array.shape, "data_type": "float32",
                        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
                        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1024, SHAPE[1]]}}}
            store = self.ts.open(self.spec(name) | {"metadata": metadata}, create=True, context=self.context,
                                 transaction=commit).result()
            writes.append(store.write(array, can_reference_source_data_indefinitely=True))
        commit.commit_async().result()
        for write in writes:
            write.result()

    def restore(self, names):
        opening = {name: self.ts.open(self.spec(name), open=True, read=True, context=self.context) for name in names}
        reading = {name: store.result().read() for name, store in opening.items()}
        return {name: read.result() for name, read in reading.items()}


RIVALS = {"shardwise": Shardwise, "curl": Curl, "dcp": Dcp, "tensorstore": TensorStore}


def measure(rival, kind, name, count):
    """Prints seconds, and how much the peak of memory grew, as JSON."""
    made = RIVALS[rival](name)
    arrays = tensors(count)
    if kind == "save" and hasattr(made, "prepare"):
        made.prepare(arrays)
    reset_peak()
    before, began = peak_bytes(), time.perf_counter()
    restored = made.save(arrays) if kind == "save" else made.restore(list(arrays))
    seconds, grown = time.perf_counter() - began, peak_bytes() - before
    if kind == "restore":
        restored = made.arrays(restored) if hasattr(made, "arrays") else restored
        for key, array in arrays.items():
            assert np.array_equal(restored[key], array), f"{rival} restored other values of {key}"
    if hasattr(made, "close"):
        made.close()
    print(json.dumps({"seconds": seconds, "grown": grown}))


def run(rival, kind, name, count):
    command = [sys.executable, __file__, "--one", rival, kind, name, "--tensors", str(count)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=int, default=64, help="of 32 MiB each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rivals", default=",".join(RIVALS))
    parser.add_argument("--one", nargs=3, metavar=("RIVAL", "KIND", "NAME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return measure(*options.one, options.tensors)
    found = {}
    for number in range(options.rounds):
        for rival in options.rivals.split(","):
            for kind in ("save", "restore"):
                one = run(rival, kind, f"bench/{rival}-{number}", options.tensors)
                found.setdefault((rival, kind), []).append(one)
                print(f"  {rival} {kind} {one['seconds']:.2f} s", file=sys.stderr, flush=True)
    mebibytes = options.tensors * 32
    print(f"{mebibytes} MiB, {options.rounds} rounds, medians; memory: the most that a process grew by")
    print(f"{'':12} {'save':>8} {'MiB/s':>7} {'memory':>9} {'ours is':>8}   {'restore':>8} {'MiB/s':>7} {'ours is':>8}")
    median = {key: statistics.median(one["seconds"] for one in ones) for key, ones in found.items()}
    for rival in options.rivals.split(","):
        save, restore = median[rival, "save"], median[rival, "restore"]
        grown = max(one["grown"] for one in found[rival, "save"]) >> 20
        print(f"{rival:12} {save:6.2f} s {mebibytes / save:7.0f} {grown:5} MiB {save / median['shardwise', 'save']:6.2f} x   "
              f"{restore:6.2f} s {mebibytes / restore:7.0f} {restore / median['shardwise', 'restore']:6.2f} x")


if __name__ == "__main__":
    main()
