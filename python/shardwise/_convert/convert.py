"""Converts checkpoints from one mesh or format to another, in memory that does not grow with them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from .. import _core
from .._arrays.arrays import Codec, Existing, check_choice
from .._checkpoint.edits import Cast, Join, Rename, Resize, Split, Transpose, edits_of
from .._checkpoint.tensor import Checkpoint
from .._errors import InvalidArgument, warn
from .._formats.readers import reader_of
from .._paths import Path, local, local_or_bucket, content_in_error
from .._progress import Progress, function_of


def reshard(source: Path, root: Path, *, mesh: str, rules: str = "", codec: Codec = "zstd",
            memory: int = 1 << 30, files: int = 1, threads: int = 0, existing: Existing = "fail",
            progress: Progress = None, names: str | Iterable[str] | None = None, rename: Rename | None = None,
            cast: Cast | None = None, transpose: Transpose | None = None, split: Split | None = None,
            join: Join | None = None, resize: Resize | None = None) -> str:
    """Cuts a checkpoint over another mesh, and writes it as the same step of the folder `root`, which may be
    in a bucket ("s3://bucket/runs"). Returns its path. The source must have a step: a CheckpointManager
    saved it, or its directory is called step-N.

    mesh: as "data=2,model=4". rules: specs by patterns of names, as "*/kernel=-,model; *=-"; a tensor without
    a rule keeps its spec. files: the number of shard files. memory: the host bytes in all. names, rename,
    cast, transpose, split, join and resize are those of open(); rules see the new names, and objects stay
    only if all names do. Before it reads any data, it raises one InvalidArgument that names everything that
    does not fit.
    """
    check_choice("existing", existing, ("fail", "replace", "skip"))
    with Checkpoint(source, pin=False) as checkpoint:
        if checkpoint.step is None:
            raise InvalidArgument(f"reshard {source}: found no step number, needed a directory called "
                                  f"step-N, or a checkpoint that a CheckpointManager saved")
    path: str = _core.reshard(local_or_bucket(source, "reshard"), local_or_bucket(root, "reshard"), str(mesh),
                              rules, codec, memory, files, threads, existing,
                              function_of(progress, f"reshard {os.path.basename(os.fspath(source))}"),
                              edits_of(names, rename, cast, transpose, split, join, resize))
    return path


def explain(source: Path, *, mesh: str, rules: str = "") -> str:
    """Returns the plan of a reshard() as text: the cut of each tensor, and the parts that it reads. Writes
    nothing."""
    from .reshard_plan import explain_checkpoint

    return explain_checkpoint(source, mesh, rules)


def import_model(source: Path, target: Path, *, existing: Existing = "fail", codec: Codec = "zstd",
                 memory: int = 256 << 20, progress: Progress = None, names: str | Iterable[str] | None = None,
                 rename: Rename | None = None, cast: Cast | None = None, transpose: Transpose | None = None,
                 split: Split | None = None, join: Join | None = None, resize: Resize | None = None) -> str:
    """Imports a file of safetensors, HDF5 or npz, an index (model.safetensors.index.json) with the files that
    it names, or a folder with one of them, as a checkpoint at `target`, which in a bucket is a step
    ("s3://bucket/runs/step-00000000"). Returns its path. The content decides the format; nothing is
    unpickled. Values that are not tensors are left out with a warning. Metadata of safetensors becomes
    `user`. names, rename, cast, transpose, split, join and resize are those of open(). Raises NotFound,
    Corrupt, Unsupported, InvalidArgument."""
    check_choice("existing", existing, ("fail", "replace", "skip"))
    text = local(source, "import")
    path: str
    path, left_out = _core.import_model(text, local_or_bucket(target, "import"), existing, codec, memory,
                                        function_of(progress, f"import {os.path.basename(text)}"),
                                        edits_of(names, rename, cast, transpose, split, join, resize))
    if left_out:
        warn(f"import {text}: left out {', '.join(left_out)}")
    return path


def export_model(source: Path, target: Path, *, format: str | None = None, max_shard: int | str = 0,
                 metadata: dict[str, str] | None = None, config_from: Path | None = None,
                 existing: Existing = "fail", memory: int = 256 << 20, progress: Progress = None,
                 names: str | Iterable[str] | None = None, rename: Rename | None = None,
                 cast: Cast | None = None, transpose: Transpose | None = None, split: Split | None = None,
                 join: Join | None = None, resize: Resize | None = None) -> list[str]:
    """Exports a checkpoint, or another format that open() reads, as safetensors (bit for bit as its own
    library writes them), npz or HDF5. Writes one file if the target ends in .safetensors, .npz or .h5, else a
    folder of files of max_shard ("5GB", or bytes) with their index. format: the format of a folder,
    "safetensors", "npz" or "hdf5", or "dcp" or "orbax", which need that package. config_from: a folder of
    Hugging Face, whose config and tokenizer files are copied into the target, so that from_pretrained() opens
    it; the dtype in the config becomes the dtype of most bytes. Returns the files of tensors; for DCP and
    Orbax all files. The export leaves out the cuts of tensors, and objects unless the format is DCP or Orbax.
    names, rename, cast, transpose, split, join and resize are those of open(). Raises one Unsupported that
    names all dtypes, and for DCP and Orbax all objects, that the format lacks."""
    import json

    check_choice("existing", existing, ("fail", "replace", "skip"))
    text = local(target, "export")
    if format in ("dcp", "orbax"):
        from .export_formats import export

        if config_from is not None:
            raise InvalidArgument(f"export to {text}: a config needs a folder of safetensors")
        return export(local_or_bucket(source, "export"), text, format, max_shard=_bytes(max_shard),
                      existing=existing, memory=memory,
                      progress=progress, edits=edits_of(names, rename, cast, transpose, split, join, resize))
    source_path = local_or_bucket(source, "export")
    foreign = _foreign(source_path, memory)
    if foreign is not None and (user := json.loads(foreign.user)):
        metadata = {**user.get("safetensors_metadata", {"user": foreign.user}), **(metadata or {})}
    words = (format or "", json.dumps(metadata or {}),
             "" if config_from is None else local(config_from, "export"))
    with content_in_error(source_path):
        files: list[str] = _core.export_model(source_path, text, words, _bytes(max_shard), existing, memory,
                                              function_of(progress, f"export {os.path.basename(text)}"),
                                              edits_of(names, rename, cast, transpose, split, join, resize),
                                              foreign)
    return files


def _foreign(path: str, memory: int) -> _core.Reader | None:
    """Returns a reader of a path in another format; None for a checkpoint of ours."""
    is_model = not os.path.exists(os.path.join(path, "manifest.json")) and _core.model_format(path)
    reader = _core.Reader(path, False, 0, memory, False) if is_model else reader_of(path, memory)
    if reader is not None and reader.left_out:
        warn(f"export {path}: left out {', '.join(reader.left_out)}")
    return reader


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20,
          "GIB": 2**30}


def _bytes(size: int | str) -> int:
    """Returns a size in bytes. Reads a text as transformers' save_pretrained(max_shard_size=) does: "5GB" is
    5 * 10**9."""
    if isinstance(size, int):
        return size
    match = re.fullmatch(r"\s*([0-9.]+)\s*([a-zA-Z]*)\s*", size)
    if not match or match[2].upper() not in _UNITS:
        raise InvalidArgument(f"max_shard is {size!r}: needed are bytes, or a text as '5GB'")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def import_dcp(source: Path, target: Path, *, existing: Existing = "fail", codec: Codec = "zstd",
               progress: Progress = None, names: str | Iterable[str] | None = None) -> str:
    """Imports a checkpoint of torch.distributed.checkpoint as a checkpoint at `target`, which in a bucket is
    a step ("s3://bucket/runs/step-00000000"). Returns its path. The metadata of DCP is a pickle; only names
    on a list of permitted ones are loaded from it. names: patterns, as in open(), which select tensors; with
    patterns, objects are left out."""
    from .._formats.dcp import import_dcp as run

    return run(source, target, existing=existing, codec=codec, progress=progress, names=names)


def import_orbax(source: Path, target: Path, *, steps: str | int | Iterable[int] | None = None,
                 existing: Existing = "fail",
                 progress: Progress = None, names: str | Iterable[str] | None = None) -> str:
    """Imports a checkpoint of Orbax as a checkpoint at `target`, which in a bucket is a step
    ("s3://bucket/runs/step-00000000"). Returns its path. steps: "all" steps in the directory of an Orbax
    CheckpointManager, the "newest", or these numbers; they become steps of the folder `target`, which may be
    the same directory, or in a bucket ("s3://bucket/runs"). names: patterns, as in open(), which select
    arrays; with patterns, objects and the tree are left out."""
    from .._formats.orbax import import_orbax as run

    return run(source, target, steps=steps, existing=existing, progress=progress, names=names)
