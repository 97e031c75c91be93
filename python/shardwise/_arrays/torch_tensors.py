"""Gives the core the memory of torch's tensors to read and write."""

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
    """Returns our name of a tensor's dtype. Raises Unsupported, with the name of the tensor."""
    if tensor.is_quantized:
        raise Unsupported(f"tensor {name!r} is quantized: save its int_repr(), scale and zero point")
    if is_lazy(tensor):
        raise Unsupported(f"tensor {name!r} has no shape yet, as it is of a lazy module: "
                          "needed is one that was called once")
    return name_of_dtype(tensor.dtype, name)


def name_of_dtype(dtype: torch.dtype, name: str) -> str:
    """Returns our name of a dtype. Raises Unsupported, with the name of the tensor that has it."""
    ours = OURS.get(dtype)
    if ours is None:
        advice = ("tensor.to(torch.complex64)" if dtype.is_complex
                  else "tensor.int_repr(), its scale and zero point"
                  if str(dtype).startswith(("torch.qint", "torch.quint"))
                  else "tensor.view(torch.uint8), which keeps its bits")
        raise Unsupported(f"tensor {name!r} has dtype {dtype}: needed is one of {', '.join(map(str, OURS))}: "
                          f"write {advice}")
    return ours


def settled(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor, or the result of a collective once that has ended. Until then a wrapper without
    memory stands for the result."""
    wait = getattr(tensor, "wait", None) if type(tensor).__name__ == "AsyncCollectiveTensor" else None
    return tensor if wait is None else wait()


def address_of(tensor: torch.Tensor) -> int:
    """Returns the address of a tensor's first element; 0 if it has no memory, because it is empty, wraps
    other tensors, or was freed."""
    if isinstance(tensor, FakeTensor):
        return 0
    try:
        return tensor.data_ptr()
    except RuntimeError:  # within vmap() or grad()
        return 0


def region_of(tensor: torch.Tensor, layout: str = "") -> Region | None:
    """Returns the memory of a tensor; None if it has no memory. layout: the cut of the DTensor whose local
    tensor it is."""
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
    """Returns the message for a tensor that has elements but no address."""
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
    """Returns the elements of a tensor in host memory, with conjugate and negative views resolved. The result
    shares the memory of a plain tensor on the CPU."""
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
    """Returns a new tensor on the device of `own` (None: the host), cut like `own` if that is a DTensor and
    as far as the shape allows."""
    if isinstance(own, DTensor):
        placements = [p if type(p) is Shard and p.dim < len(shape) else Replicate() for p in own.placements]
        return distributed_empty(*shape, dtype=dtype, device_mesh=own.device_mesh, placements=placements)
    return torch.empty(shape, dtype=dtype, device="cpu" if own is None or own.is_meta else own.device)


_SAME_SIZE = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64, 16: np.complex128}


def is_shareable(array: np.ndarray[Any, Any]) -> bool:
    """Returns True if a torch tensor can have the layout of the array. It cannot have that of a field of
    packed records, or of a reversed array."""
    return all(stride >= 0 and stride % array.itemsize == 0 for stride in array.strides)


def shared_tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Returns a tensor on the memory of an array, of any dtype that both libraries have, or on a copy if the
    array is read-only or is_shareable() is False."""
    dtype = TORCH[name_of(array.dtype)]
    if not array.flags.writeable or not is_shareable(array):
        array = array.copy()
    if array.dtype.kind in "biufc" and array.dtype.type.__module__ == "numpy":
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(_SAME_SIZE[array.dtype.itemsize])).view(dtype)


def array_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Returns the elements of a tensor on the host, row-major, with numpy's dtype. Shares the memory of a
    tensor that is so already."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    wanted = NUMPY[OURS[plain.dtype]]
    if wanted.type.__module__ == "numpy":
        array: np.ndarray[Any, Any] = plain.numpy()
        return array
    return plain.view(torch.uint8 if wanted.itemsize == 1 else torch.int16).numpy().view(wanted)


class Memory:
    """A tensor on the host with numpy's array interface, also for dtypes that numpy lacks."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor  # keeps its memory alive
        self.shape = tuple(tensor.shape)
        self.strides = tuple(s * tensor.element_size() for s in tensor.stride())
        self.size = tensor.numel()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"data": (self._tensor.data_ptr(), False)}


class TensorReads:
    """Reads boxes of tensors into tensors on any device. Boxes that the core cannot write in place (for other
    strides or dtypes, or accelerators) pass through host memory, a part at a time."""

    def __init__(self, reader: _core.Reader) -> None:
        self._reader = reader
        self.bytes = 0  #: the bytes of all boxes, as stored
        self._boxes: list[tuple[int, Sequence[int], torch.Tensor, torch.dtype]] = []

    def add(self, number: int, begin: Sequence[int], target: torch.Tensor, dtype: torch.dtype) -> None:
        """Adds the box of tensor `number`, stored as `dtype`, that begins at an index and has the shape of
        the target."""
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
    """Returns True if the core can write the elements of a tensor in place."""
    return (tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.layout == torch.strided
            and not tensor.is_conj() and not tensor.is_neg())


def memory_device(operation: str, device: Any) -> torch.device:
    """Returns a device that can hold values. Raises InvalidArgument if the argument is no device, or if the
    device is missing or has no memory."""
    try:
        checked = torch.device(device)
        torch.empty(0, device=checked)
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        raise InvalidArgument(f"{operation}: device is {device!r}: {str(error).splitlines()[0]}: "
                              "needed is one of this machine") from None
    if checked.type == "meta":
        raise InvalidArgument(f"{operation}: device is 'meta', which has no memory: needed is another")
    return checked
