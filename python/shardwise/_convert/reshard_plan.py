"""Describes plans of reshards as text."""

from __future__ import annotations

from .. import _core
from .._arrays.arrays import Path
from .._checkpoint.tensor import Checkpoint, Tensor
from .._errors import Error, InvalidArgument
from .._sharding import Mesh, PartitionSpec, Sharding, TransferPlan

_MOST_DEVICES = 4096  # the most devices for which the kind of a transfer is computed


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _spec_of(tensor: Tensor, rules: _core.SpecRules) -> str:
    spec = rules.find(tensor.name, tensor.ndim)
    return tensor.spec or ",".join("-" * tensor.ndim) if spec is None else str(spec)


def explain_checkpoint(source: Path, mesh: str, rules: str) -> str:
    target = Mesh(mesh)
    parsed = _core.SpecRules.parse(rules)
    lines, wrong = [], []
    total = device_bytes = 0
    with Checkpoint(source, pin=False) as checkpoint:
        for pattern in parsed.unmatched(list(checkpoint)):
            wrong.append(f"rule {pattern!r} matches no tensor")
        for name, tensor in checkpoint.items():
            try:
                after = Sharding(target, PartitionSpec.parse(_spec_of(tensor, parsed)))
                shard = after.shard_shape(tensor.shape)
            except Error as error:
                wrong.append(f"{name!r}: {error}")
                continue
            bytes_each = tensor.dtype.itemsize
            for extent in shard:
                bytes_each *= extent
            total += tensor.nbytes
            device_bytes += bytes_each
            lines.append(f"  {name}: {tensor.dtype} {list(tensor.shape)}, {_size(tensor.nbytes)}: "
                         f"{_was(tensor)} -> {after.spec}; {_size(bytes_each)} a device; "
                         f"{_kind(tensor, after)}")
        if wrong:
            raise InvalidArgument(f"reshard {checkpoint.path} to {target}: {len(wrong)} faults: "
                                  f"{'; '.join(wrong[:20])}")
        head = (f"{checkpoint.path}: {len(checkpoint)} tensors, {_size(total)}, onto {target}: "
                f"{_size(device_bytes)} a device; every stored byte is read and written once, "
                f"{_size(total)} in all, within the memory that reshard(memory=) gives")
    return "\n".join([head, *lines])


def _was(tensor: Tensor) -> str:
    return f"{tensor.spec or '-'} over {tensor.mesh}" if tensor.mesh else "pieces"


def _kind(tensor: Tensor, after: Sharding) -> str:
    if not tensor.mesh:
        return "from listed pieces"
    before = Sharding(Mesh(tensor.mesh), PartitionSpec.parse(tensor.spec), tensor.policy)
    if max(before.mesh.size, after.mesh.size) > _MOST_DEVICES:
        return "too many devices for a plan"
    return TransferPlan(before, after, tensor.shape).classify()
