"""Checkpoints from one mesh, or format, to another. All stream: memory does not grow with the checkpoint."""

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
from .._paths import Path, local, local_or_bucket, told_instead
from .._progress import Progress, function_of


def reshard(source: Path, root: Path, *, mesh: str, rules: str = "", codec: Codec = "zstd",
            memory: int = 1 << 30, files: int = 1, threads: int = 0, existing: Existing = "fail",
            progress: Progress = None, names: str | Iterable[str] | None = None, rename: Rename | None = None,
            cast: Cast | None = None, transpose: Transpose | None = None, split: Split | None = None,
            join: Join | None = None, resize: Resize | None = None) -> str:
    """Writes a checkpoint, cut over another mesh, as the same step of the folder `root`. Returns its path.
    The source must have a step: a CheckpointManager saved it, or its directory is called step-N.

    mesh: "data=2,model=4". rules: specs by patterns of names, "*/kernel=-,model; *=-"; a tensor without one
    keeps its own. files: shard files. memory: host bytes in all. names, rename, cast, transpose, split, join
    and resize are those of open(); rules see the new names, and objects stay only if all names do. Raises
    InvalidArgument naming everything that does not fit before any data is read.
    """
    check_choice("existing", existing, ("fail", "replace", "skip"))
    with Checkpoint(source, pin=False) as checkpoint:
        if checkpoint.step is None:
            raise InvalidArgument(f"reshard {source}: found no step number, needed a directory called "
                                  f"step-N, or a checkpoint that a CheckpointManager saved")
    path: str = _core.reshard(local_or_bucket(source, "reshard"), local(root, "reshard"), str(mesh), rules,
                              codec, memory, files, threads, existing,
                              function_of(progress, f"reshard {os.path.basename(os.fspath(source))}"),
                              edits_of(names, rename, cast, transpose, split, join, resize))
    return path


def explain(source: Path, *, mesh: str, rules: str = "") -> str:
    """Returns a plan of reshard(), tensor by tensor: the parts that each reads, and its cut. Nothing is
    written."""
    from .reshard_plan import explain_checkpoint

    return explain_checkpoint(source, mesh, rules)


def import_model(source: Path, target: Path, *, existing: Existing = "fail", codec: Codec = "zstd",
                 memory: int = 256 << 20, progress: Progress = None, names: str | Iterable[str] | None = None,
                 rename: Rename | None = None, cast: Cast | None = None, transpose: Transpose | None = None,
                 split: Split | None = None, join: Join | None = None, resize: Resize | None = None) -> str:
    """Writes a file of safetensors, HDF5 or npz, an index (model.safetensors.index.json) with the files it
    names, or a folder with one of them, as a checkpoint at `target`. The content decides the format; nothing
    is unpickled. Anything that is no tensor is left out with a warning. Metadata of safetensors becomes
    `user`. names, rename, cast, transpose, split, join and resize are those of open(). Returns the path.
    Raises NotFound, Corrupt, Unsupported, InvalidArgument."""
    check_choice("existing", existing, ("fail", "replace", "skip"))
    text = local(source, "import")
    path: str
    path, left_out = _core.import_model(text, local(target, "import"), existing, codec, memory,
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
    """Writes a checkpoint, or another format that open() reads, as safetensors, bit for bit as its own
    library writes them, as npz or as HDF5: one file if the target ends in .safetensors, .npz or .h5, else a
    folder of files of max_shard ("5GB", or bytes) with their index. format: that of a folder, "safetensors",
    "npz" or "hdf5", or "dcp" or "orbax", which need that package. config_from: a folder of Hugging Face; its
    config and tokenizer files are copied into the target, so that from_pretrained() opens it, and its dtype
    becomes the one that most bytes have. Returns the files of tensors; for DCP and Orbax all files. The cuts
    of tensors are left out, and so are objects unless the format is DCP or Orbax. names, rename, cast,
    transpose, split, join and resize are those of open(). Raises Unsupported naming all dtypes, and for DCP
    and Orbax all objects, that the format lacks."""
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
    given = local_or_bucket(source, "export")
    foreign = _foreign(given, memory)
    if foreign is not None and (user := json.loads(foreign.user)):
        metadata = {**user.get("safetensors_metadata", {"user": foreign.user}), **(metadata or {})}
    words = (format or "", json.dumps(metadata or {}),
             "" if config_from is None else local(config_from, "export"))
    with told_instead(given):
        files: list[str] = _core.export_model(given, text, words, _bytes(max_shard), existing, memory,
                                              function_of(progress, f"export {os.path.basename(text)}"),
                                              edits_of(names, rename, cast, transpose, split, join, resize),
                                              foreign)
    return files


def _foreign(path: str, memory: int) -> _core.Reader | None:
    """Opens a path whose format is not ours."""
    is_model = not os.path.exists(os.path.join(path, "manifest.json")) and _core.model_format(path)
    reader = _core.Reader(path, False, 0, memory, False) if is_model else reader_of(path, memory)
    if reader is not None and reader.left_out:
        warn(f"export {path}: left out {', '.join(reader.left_out)}")
    return reader


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20,
          "GIB": 2**30}


def _bytes(size: int | str) -> int:
    """Returns a size in bytes, read as by transformers' save_pretrained(max_shard_size=): "5GB" is 5 *
    10**9."""
    if isinstance(size, int):
        return size
    found = re.fullmatch(r"\s*([0-9.]+)\s*([a-zA-Z]*)\s*", size)
    if not found or found[2].upper() not in _UNITS:
        raise InvalidArgument(f"max_shard is {size!r}: needed are bytes, or a text as '5GB'")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def import_dcp(source: Path, target: Path, *, existing: Existing = "fail", codec: Codec = "zstd",
               progress: Progress = None, names: str | Iterable[str] | None = None) -> str:
    """Writes a checkpoint of torch.distributed.checkpoint as one of ours at `target`. Its metadata, a pickle,
    is read with a list of permitted names: nothing else is loaded. names: patterns, as in open(): then the
    tensors that one matches are taken, and no objects. Returns the path."""
    from .._formats.dcp import import_dcp as run

    return run(source, target, existing=existing, codec=codec, progress=progress, names=names)


def import_orbax(source: Path, target: Path, *, steps: str | int | Iterable[int] | None = None,
                 existing: Existing = "fail",
                 progress: Progress = None, names: str | Iterable[str] | None = None) -> str:
    """Writes a checkpoint of Orbax as one of ours at `target`. Returns the path. steps: "all" steps of the
    directory of Orbax's CheckpointManager, the "newest", or those of these numbers become steps of the folder
    `target`, which may be the same one. names: patterns, as in open(): then the arrays that one matches are
    taken, and neither objects nor the tree."""
    from .._formats.orbax import import_orbax as run

    return run(source, target, steps=steps, existing=existing, progress=progress, names=names)
