"""Opens, loads and describes a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .._foreign_names import options_of_others
from .._paths import Path
from .edits import Cast, Join, Rename, Resize, Split, Transpose
from .fill import Filling
from .resize import check_extents
from .tensor import Checkpoint


def open(path: Path, *, pin: bool = True, threads: int = 0, names: str | Iterable[str] | None = None,
         rename: Rename | None = None, cast: Cast | None = None, transpose: Transpose | None = None,
         split: Split | None = None, join: Join | None = None, resize: Resize | None = None) -> Checkpoint:
    """Opens the checkpoint at a path, and returns its lazy tensors. Checkpoint describes the options. Raises
    NotFound, Corrupt, Unsupported, NameNotFound, InvalidArgument."""
    return Checkpoint(path, pin=pin, threads=threads, names=names, rename=rename, cast=cast,
                      transpose=transpose, split=split, join=join, resize=resize)


@options_of_others({
    **dict.fromkeys(("map_location", "device"), "shardwise.torch.load_state_dict(path, device=)"),
    "state": "target=", "shardings": "shardwise.jax.load(path, target)",
    "weights_only": "nothing in its place: no code of a file ever runs"})
def load(path: Path, names: str | Iterable[str] | None = None, *, rename: Rename | None = None,
         cast: Cast | None = None, transpose: Transpose | None = None, split: Split | None = None,
         join: Join | None = None, target: Mapping[str, Any] | None = None, strict: bool = True,
         skip_mismatched: bool = False, resize: Resize | None = None, threads: int = 0) -> dict[str, Any]:
    """Returns arrays and objects of a checkpoint by name, and reads them in one pass. names: patterns, as
    "layers/*". rename: new names by patterns, {"model.*": "*"}. cast: a dtype for all floats, "bf16", or
    dtypes by patterns. transpose: {"*.kernel": (1, 0)}. split: {"*.qkv": "*.q,*.k,*.v@0"}. join:
    {"*.q,*.k,*.v": "*.qkv@0"}. resize: {"*embed*": "pad:50304,-"}. Checkpoint describes these options.

    target: a tree that save() would take. The load fills its arrays in place, replaces each None by the
    stored array, and returns that tree with the saved objects in place of its own. An array may stand under
    several names of the target if their stored values are equal; other targets that share memory are refused.
    strict=False: stored names that the target lacks are left out, and values that the checkpoint lacks stay
    as they are, with a warning; a load that finds no name at all raises. skip_mismatched=True: an array of
    the target stays as it is if the stored shape is another. With a target, resize gives no extents:
    {"*/embedding": "pad"}. "pad" fills the beginning of a larger array and leaves the rest as it is; "slice"
    takes the beginning of the stored array. Raises one InvalidArgument that names everything that does not
    fit, before it changes anything."""
    if target is None:
        check_extents(f"load {path}", skip_mismatched, resize)
    with Checkpoint(path, threads=threads, names=names, rename=rename, cast=cast, transpose=transpose,
                    split=split, join=join, resize=resize if target is None else None) as checkpoint:
        if target is not None:
            return Filling(checkpoint, target, strict=strict, skip_mismatched=skip_mismatched,
                           resize=resize).run()
        return checkpoint.load()


@dataclass
class TensorInfo:
    """The description of one tensor in the manifest of a checkpoint."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    mesh: str
    spec: str
    nbytes: int


@dataclass
class CheckpointInfo:
    """The content of a checkpoint's manifest."""

    path: str
    step: int | None
    user: Any
    tensors: list[TensorInfo] = field(default_factory=list)
    objects: dict[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


def info(path: Path) -> CheckpointInfo:
    """Returns the names, dtypes, shapes and objects of a checkpoint, without reading tensors."""
    with Checkpoint(path, pin=False) as c:
        return CheckpointInfo(c.path, c.step, c.user, [
            TensorInfo(n, str(t.dtype), t.shape, t.mesh, t.spec, t.nbytes) for n, t in c.items()], c.objects)
