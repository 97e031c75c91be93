"""The Debian packages: cpack makes them, dpkg-deb lists their files, and these work.

deb_test.py CPACK BUILD SOURCE
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

CPACK, BUILD, SOURCE = sys.argv[1:]


def run(*command, **environment):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


def fields(package):
    return dict(re.findall(r"(?m)^([\w-]+): (.*)$", run("dpkg-deb", "--field", package)))


with tempfile.TemporaryDirectory() as scratch:
    made, root = pathlib.Path(scratch) / "made", pathlib.Path(scratch) / "root"
    run(CPACK, "-G", "DEB", "--config", f"{BUILD}/CPackConfig.cmake", "-B", made)
    packages = {fields(path)["Package"]: path for path in made.glob("*.deb")}
    has_python = "SHARDWISE_BUILD_PYTHON:BOOL=ON" in (pathlib.Path(BUILD) / "CMakeCache.txt").read_text()
    expected = ["hdf5-filter-shardwise-zstd", "libshardwise-dev", *(["python3-shardwise"] if has_python else []), "shardwise"]
    assert sorted(packages) == expected, packages
    for name, path in packages.items():
        said = fields(path)
        assert path.name == f"{name}_{said['Version']}_{said['Architecture']}.deb"
        assert said["Description"] and said["Maintainer"], said
        run("dpkg-deb", "-x", path, root)
        assert (root / "usr/share/doc" / name / "copyright").read_text() == (pathlib.Path(SOURCE) / "LICENSE").read_text()
    files = {name: set(re.findall(r"(?m)^-.* \./(\S+)$", run("dpkg-deb", "-c", path))) for name, path in packages.items()}
    print({name: len(found) for name, found in files.items()}, "files")

    # Nothing is in two packages, and nothing is outside of /usr.
    together = [file for found in files.values() for file in found]
    assert len(together) == len(set(together)) and all(file.startswith("usr/") for file in together)

    # The command, with its manual pages, runs.
    command = files["shardwise"]
    assert {"usr/bin/shardwise", "usr/share/man/man1/shardwise-bench-save.1",
            "usr/share/bash-completion/completions/shardwise"} <= command, command
    version = fields(packages["shardwise"])["Version"]
    assert run(root / "usr/bin/shardwise", "--version").strip() == version
    assert "libhdf5" in fields(packages["shardwise"])["Depends"]
    assert "hdf5-filter-shardwise-zstd" in fields(packages["shardwise"])["Recommends"]

    # The Python module is where Debian's Python looks, and is imported by it.
    if has_python:
        module = files["python3-shardwise"]
        assert "usr/lib/python3/dist-packages/shardwise/__init__.py" in module, module
        assert not any(file.endswith(".pyc") or "/tests/" in file for file in module)
        assert "python3-numpy" in fields(packages["python3-shardwise"])["Depends"]
        run("/usr/bin/python3", "-B", "-c", "import shardwise", PYTHONPATH=str(root / "usr/lib/python3/dist-packages"))

    # Headers, libraries and the CMake package, as cmake --install has them.
    library = files["libshardwise-dev"]
    assert {"usr/include/shardwise/jobs/manager.h", "usr/lib/cmake/shardwise/shardwiseConfig.cmake"} <= {
        re.sub(r"^usr/lib/[^/]+/cmake/", "usr/lib/cmake/", file) for file in library}
    assert any(file.endswith("/libshardwise_checkpoint.a") for file in library)
    assert not any("/detail/" in file and not file.endswith("_guesses.h") for file in library)
    for needed in ("libfmt-dev", "libhdf5-dev", "libtbb-dev", "libzstd-dev", "zlib1g-dev"):
        assert needed in fields(packages["libshardwise-dev"])["Depends"].split(", ")

    # The filter is where this system's HDF5 looks, and stock tools read through it.
    plugins = [file for file in files["hdf5-filter-shardwise-zstd"] if file.endswith(".so")]
    assert len(plugins) == 1
    folder = root / os.path.dirname(plugins[0])
    os.environ.pop("HDF5_PLUGIN_PATH", None)
    looked = run(sys.executable, "-c", "import h5py; print(h5py.h5pl.get(0).decode())").strip()
    assert f"/{os.path.dirname(plugins[0])}" == looked, (plugins, looked)
    print(
        run(
            "/usr/bin/python3",
            f"{SOURCE}/tests/checkpoint/hdf5/hdf5_tools.py",
            f"{BUILD}/tests/checkpoint/checkpoint_h5py_writer",
            HDF5_PLUGIN_PATH=str(folder),
        )
    )
