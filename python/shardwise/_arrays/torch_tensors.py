"""Tensors of torch as memory that the core reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor import empty as distributed_empty
from torch.nn.parameter import is_lazy

from .. import _core
from .._dtypes import NUMPY, name_of
from .._errors import InvalidArgument, Unsupported
from .arrays import MEMORY
from .boxes import read_boxes
from .overlap import Region, strides_without_ones

_NAMES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16",
    "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8",
    "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8", "bool": "bool",
    "f8_e4m3fn": "float8_e4m3fn", "f8_e5m2": "float8_e5m2", "f8_e4m3fnuz": "float8_e4m3fnuz",
    "f8_e5m2fnuz": "float8_e5m2fnuz", "f8_e8m0fnu": "float8_e8m0fnu", "c64": "complex64",
    "c128": "complex128",
}  # fmt: skip
TORCH: dict[str, torch.dtype] = {ours: getattr(torch, theirs)
                                 for ours, theirs in _NAMES.items() if hasattr(torch, theirs)}
OURS: dict[torch.dtype, str] = {theirs: ours for ours, theirs in TORCH.items()}


def dtype_name(tensor: torch.Tensor, name: str) -> str:
    """Our name of its dtype. Raises Unsupported, naming the tensor."""
    if tensor.is_quantized:
        raise Unsupported(f"tensor {name!r} is quantized: save its int_repr(), scale and zero point")
    if is_lazy(tensor):
        raise Unsupported(f"tensor {name!r} has no shape yet, as it is of a lazy module: "
                          "needed is one that was called once")
    return name_of_dtype(tensor.dtype, name)


def name_of_dtype(dtype: torch.dtype, name: str) -> str:
    """Our name of the dtype that this tensor has. Raises Unsupported, naming the tensor."""
    found = OURS.get(dtype)
    if found is None:
        instead = ("tensor.to(torch.complex64)" if dtype.is_complex
                   else "tensor.int_repr(), its scale and zero point"
                   if str(dtype).startswith(("torch.qint", "torch.quint"))
                   else "tensor.view(torch.uint8), which keeps its bits")
        raise Unsupported(f"tensor {name!r} has dtype {dtype}: needed is one of {', '.join(map(str, OURS))}: "
                          f"write {instead}")
    return found


def settled(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that a collective makes, once that has ended: until then it is in a wrapper that has no
    memory."""
    wait = getattr(tensor, "wait", None) if type(tensor).__name__ == "AsyncCollectiveTensor" else None
    return tensor if wait is None else wait()


def address_of(tensor: torch.Tensor) -> int:
    """Returns the address of its first element; 0 if it has no own memory: it is empty, wraps others, or was
    freed."""
    if isinstance(tensor, FakeTensor):
        return 0
    try:
        return tensor.data_ptr()
    except RuntimeError:  # within vmap() or grad()
        return 0


def region_of(tensor: torch.Tensor, layout: str = "") -> Region | None:
    """Its memory; None if it has none of its own. layout: how a DTensor is cut whose local tensor it is."""
    address = address_of(tensor)
    if not address:
        return None
    size = tensor.element_size()
    strides = None if tensor.is_contiguous() else strides_without_ones(
        tensor.shape, [size * stride for stride in tensor.stride()])
    space = "" if tensor.device.type == "cpu" else str(tensor.device)
    return Region(space, address, tensor.shape, strides, size,
                  f"{tensor.dtype}{tensor.is_conj()}{tensor.is_neg()}{layout}")


def _is_wrapper(tensor: torch.Tensor) -> bool:
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def no_memory(tensor: torch.Tensor, name: str) -> str:
    """Returns the message for a tensor that has elements, and no address."""
    kind = f"{type(tensor).__module__}.{type(tensor).__qualname__}"
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:
        parts = flatten()[0]
        return (f"tensor {name!r} is a {kind}, which keeps its elements in other tensors: needed are these, "
                f"{{{', '.join(f'{part!r}: tensor.{part}' for part in parts)}}}")
    if _is_wrapper(tensor):
        return f"tensor {name!r} is a {kind}, which has no memory of its own: needed is a plain tensor"
    return (f"tensor {name!r} has no memory: it is within vmap() or grad(), or its storage was freed; "
            "needed is one that has")


def on_host(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Its elements in host memory as they are meant: conjugate and negative views are resolved. Shares the
    memory of a plain tensor on the CPU."""
    if tensor.is_nested:
        raise Unsupported(f"tensor {name!r} is nested, of parts that differ in shape: needed are these, "
                          "tensor.unbind()")
    if tensor.layout != torch.strided:
        raise Unsupported(f"tensor {name!r} has layout {tensor.layout}: needed is a dense one")
    if tensor.is_meta:
        raise Unsupported(f"tensor {name!r} is on the meta device, where it has no elements")
    host = settled(tensor).detach().resolve_conj().resolve_neg().cpu()
    if host.numel() and not address_of(host):
        raise Unsupported(no_memory(tensor, name))
    return host


def empty_beside(own: torch.Tensor | None, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """New memory on the device of a tensor; cut as a DTensor is, as far as this shape can be. None: on the
    host."""
    if isinstance(own, DTensor):
        placements = [p if type(p) is Shard and p.dim < len(shape) else Replicate() for p in own.placements]
        return distributed_empty(*shape, dtype=dtype, device_mesh=own.device_mesh, placements=placements)
    return torch.empty(shape, dtype=dtype, device="cpu" if own is None or own.is_meta else own.device)


_SAME_SIZE = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64, 16: np.complex128}


def is_shareable(array: np.ndarray[Any, Any]) -> bool:
    """True if torch can show its layout; it cannot show fields of packed records, or reversed arrays."""
    return all(stride >= 0 and stride % array.itemsize == 0 for stride in array.strides)


def shared_tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """A tensor on the memory of an array, of any dtype that both have; on a copy, if torch cannot show its
    layout."""
    dtype = TORCH[name_of(array.dtype)]
    if not array.flags.writeable or not is_shareable(array):
        array = array.copy()
    if array.dtype.kind in "biufc" and array.dtype.type.__module__ == "numpy":
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(_SAME_SIZE[array.dtype.itemsize])).view(dtype)


def array_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Its elements on the host, row-major, of numpy's dtype; on its memory, if they are there so."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    wanted = NUMPY[OURS[plain.dtype]]
    if wanted.type.__module__ == "numpy":
        found: np.ndarray[Any, Any] = plain.numpy()
        return found
    return plain.view(torch.uint8 if wanted.itemsize == 1 else torch.int16).numpy().view(wanted)


class Memory:
    """A tensor on the host as numpy would show it, which cannot show all dtypes."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor  # keeps it
        self.shape = tuple(tensor.shape)
        self.strides = tuple(s * tensor.element_size() for s in tensor.stride())
        self.size = tensor.numel()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"data": (self._tensor.data_ptr(), False)}


class TensorReads:
    """Boxes of tensors, to be read into tensors wherever these are. What the core cannot write in place
    (other strides or dtypes, accelerators) passes through host memory, a part at a time."""

    def __init__(self, reader: _core.Reader) -> None:
        self._reader = reader
        self.bytes = 0  #: of all boxes, as stored
        self._boxes: list[tuple[int, Sequence[int], torch.Tensor, torch.dtype]] = []

    def add(self, number: int, begin: Sequence[int], target: torch.Tensor, dtype: torch.dtype) -> None:
        """The box of tensor `number`, stored as dtype, that begins at an index and has the target's shape."""
        if target.numel():
            self.bytes += target.numel() * dtype.itemsize
            self._boxes.append((number, begin, target, dtype))

    def run(self) -> None:
        boxes: list[tuple[int, Sequence[int], Any]] = []
        passing: list[tuple[torch.Tensor, torch.Tensor]] = []
        passing_bytes = 0
        for number, begin, target, dtype in self._boxes:
            memory = target
            if target.dtype != dtype or not is_plain_memory(target):
                size = target.numel() * dtype.itemsize
                if passing and passing_bytes + size > MEMORY:
                    self._fill(boxes, passing)
                    passing_bytes = 0
                memory = torch.empty(target.shape, dtype=dtype)
                passing.append((target, memory))
                passing_bytes += size
            boxes.append((number, begin, Memory(memory)))
        self._fill(boxes, passing)
        self._boxes.clear()

    def _fill(self, boxes: list[tuple[int, Sequence[int], Any]],
              passing: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        read_boxes(self._reader, boxes)
        with torch.no_grad():
            for target, memory in passing:
                target.copy_(memory)
        boxes.clear()
        passing.clear()


def is_plain_memory(tensor: torch.Tensor) -> bool:
    """True if the core can write its elements where they are."""
    return (tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.layout == torch.strided
            and not tensor.is_conj() and not tensor.is_neg())


def memory_device(operation: str, device: Any) -> torch.device:
    """Returns a device that holds values. Raises InvalidArgument if it is no device, is not there, or has no
    memory."""
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        raise InvalidArgument(f"{operation}: device is {device!r}: {str(error).splitlines()[0]}: "
                              "needed is one of this machine") from None
    if found.type == "meta":
        raise InvalidArgument(f"{operation}: device is 'meta', which has no memory: needed is another")
    return found
