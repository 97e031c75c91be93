"""Plans the boxes to read for a leaf of a target, and makes its value of them."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, Callable

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from .._arrays.arrays import is_array
from .._checkpoint.resize import Resizing
from .._checkpoint.tensor import Checkpoint, Tensor
from .._errors import InvalidArgument
from .._trees import pytree as _tree
from .._trees.containers import like

Box = tuple[tuple[int, ...], tuple[int, ...]]  # begin, shape
Arrays = dict[Box, np.ndarray]


class Refused(Exception):
    """The reason why a leaf does not fit, without its name."""


@dataclass
class Reading:
    """The plan to read one leaf. An object has no boxes."""

    finish: Callable[[Arrays], Any]
    number: int = 0
    dtype: np.dtype = np.dtype(np.uint8)
    boxes: tuple[Box, ...] = ()
    passing_bytes: int = 0  #: the bytes that pass through the host to accelerators


def reading_of(checkpoint: Checkpoint, name: str, want: Any, key: str, resizing: Resizing) -> Reading:
    """Returns the plan to read a leaf. want: the leaf of a target; None takes the stored value. key: the
    name of a key's PRNG; "" for other leaves. Raises Refused."""
    if name in checkpoint.objects:
        return _object(checkpoint.objects[name], want)
    tensor = checkpoint[name]
    if want is None:
        return _on_host(tensor, lambda array: array)
    if isinstance(want, jax.sharding.Sharding):
        shape = tensor.shape[: tensor.ndim - _extra_dims(key)] if key else tensor.shape
        return _key(tensor, shape, want, key) if key else _on_devices(tensor, want)
    if not is_array(want) and not isinstance(want, jax.ShapeDtypeStruct):
        if tensor.shape == () and type(want) is _number_type(tensor.dtype) and not key:
            return _on_host(tensor, lambda array: array.item())
        raise Refused(f"is {_kind(tensor, key)}, the target a {type(want).__name__}")
    if key or _tree.is_key(want):
        _check_key(tensor, want, key)
        return _key(tensor, tuple(want.shape), _sharding(want), key)
    if want.dtype == tensor.dtype and tuple(want.shape) != tensor.shape and resizing.allows(
            name, tensor.shape, tuple(want.shape)):
        return _resized(tensor, want)
    if tuple(want.shape) != tensor.shape or want.dtype != tensor.dtype:
        raise Refused(f"is {_kind(tensor, key)}, the target {want.dtype} {list(want.shape)}")
    if isinstance(want, np.generic):
        return _on_host(tensor, lambda array: array[()])
    if isinstance(want, (jax.Array, jax.ShapeDtypeStruct)):
        return _on_devices(tensor, _sharding(want))
    return _on_host(tensor, lambda array: array)


def _kind(tensor: Tensor, key: str) -> str:
    if key:
        return f"a PRNG key ({key}) {list(tensor.shape[: tensor.ndim - _extra_dims(key)])}"
    return f"{tensor.dtype} {list(tensor.shape)}"


def _object(value: Any, want: Any) -> Reading:
    if want is None or type(want) is type(value):
        return Reading(lambda _: value)
    if _tree.is_stateful(want):
        return Reading(lambda _: _loaded(want, value))
    try:
        filled = like(want, value)
    except InvalidArgument as error:
        raise Refused(str(error)) from None
    if type(filled) is type(want):  # a dataclass or named tuple made of a dict of fields
        return Reading(lambda _: filled)
    if not hasattr(want, "dtype"):
        raise Refused(f"is an object, a {type(value).__name__}, the target a {type(want).__name__}")
    if tuple(want.shape) != () or _tree.is_key(want) or _number_type(want.dtype) is not type(value):
        raise Refused(f"is an object, a {type(value).__name__}, the target {want.dtype} {list(want.shape)}")
    try:
        array = np.array(value, want.dtype)
    except OverflowError:
        array = np.zeros((), want.dtype)
    if array.item() != value and value == value:
        raise Refused(f"is {value!r}, which no {want.dtype}, as of the target, is exactly")
    if not isinstance(want, (jax.Array, jax.ShapeDtypeStruct)):
        return Reading(lambda _: array[()] if isinstance(want, np.generic) else array)
    sharding = _sharding(want)
    if sharding is None:
        return Reading(lambda _: jax.device_put(array))
    return Reading(lambda _: jax.make_array_from_callback((), sharding, lambda _: array))


def _loaded(stateful: Any, state: Any) -> Any:
    stateful.load_state_dict(state)
    return stateful


def _number_type(dtype: Any) -> type | None:
    """Returns the Python type of numbers of a dtype."""
    kinds = ((np.bool_, bool), (np.integer, int), (np.floating, float), (np.complexfloating, complex))
    return next((number for kind, number in kinds if jax.numpy.issubdtype(dtype, kind)), None)


def _sharding(want: Any) -> Any:
    """Returns the sharding of a leaf; None for the default device, where an uncommitted array is."""
    if isinstance(want, jax.Array) and not getattr(want, "committed", True):
        return None
    return getattr(want, "sharding", None)


def _on_host(tensor: Tensor, finish: Callable[[np.ndarray], Any]) -> Reading:
    whole = ((0,) * tensor.ndim, tensor.shape)
    return Reading(lambda arrays: finish(arrays[whole]), tensor.number, tensor.dtype, (whole,))


def _on_devices(tensor: Tensor, sharding: Any) -> Reading:
    if jax.dtypes.canonicalize_dtype(tensor.dtype) != tensor.dtype:
        raise Refused(f"is {tensor.dtype}, which JAX cannot hold without jax_enable_x64: load it as numpy")
    if sharding is None:
        reading = _on_host(tensor, jax.device_put)
        reading.passing_bytes = _passing(reading, jax.local_devices()[:1])
        return reading
    try:
        sharding.shard_shape(tensor.shape)  # raises if the sharding does not divide the shape
        indices = sharding.addressable_devices_indices_map(tensor.shape)
    except Exception as error:
        raise Refused(f"is {list(tensor.shape)}, which {sharding} cannot cut: {str(error)[:200]}") from None
    boxes = {device: _box(index, tensor.shape) for device, index in indices.items()}

    def finish(arrays: Arrays) -> jax.Array:
        places = [SingleDeviceSharding(device, memory_kind=sharding.memory_kind) for device in boxes]
        shards = jax.device_put([arrays[box] for box in boxes.values()], places)
        return jax.make_array_from_single_device_arrays(tensor.shape, sharding, shards, dtype=tensor.dtype)

    reading = Reading(finish, tensor.number, tensor.dtype, tuple(dict.fromkeys(boxes.values())))
    reading.passing_bytes = _passing(reading, list(boxes))
    return reading


def _resized(tensor: Tensor, want: Any) -> Reading:
    """Plans a read of the beginning of the stored array, or of all of it into the beginning of the
    target's."""
    stored = tensor.shape
    tensor = copy.copy(tensor)
    tensor.shape = tuple(want.shape)
    reading = _on_host(tensor, lambda array: array) if isinstance(want, np.ndarray) else _on_devices(
        tensor, _sharding(want))
    if all(here <= there for here, there in zip(tensor.shape, stored)):
        return reading
    if not isinstance(want, (np.ndarray, jax.Array)):
        raise Refused(f"is {list(stored)}, the target {list(tensor.shape)}, "
                      f"and a {type(want).__name__} has no elements that could pad it: needed is an array")
    common = {box: _common(box, stored) for box in reading.boxes}
    own = ({reading.boxes[0]: want} if isinstance(want, np.ndarray)
           else {_box(shard.index, tensor.shape): shard.data for shard in want.addressable_shards})
    finish = reading.finish

    def padded(box: Box, arrays: Arrays) -> np.ndarray:
        array = np.array(own[box])
        if common[box] in arrays:
            array[tuple(map(slice, common[box][1]))] = arrays[common[box]]
        return array

    reading.finish = lambda arrays: finish({box: padded(box, arrays) for box in common})
    reading.boxes = tuple(dict.fromkeys(box for box in common.values() if 0 not in box[1]))
    return reading


def _common(box: Box, stored: tuple[int, ...]) -> Box:
    """Returns the part of a box that is stored."""
    begin = tuple(min(first, extent) for first, extent in zip(box[0], stored))
    return begin, tuple(max(0, min(extent, end - first)) for first, extent, end in zip(begin, box[1], stored))


def _passing(reading: Reading, devices: list[Any]) -> int:
    if all(device.platform == "cpu" for device in devices):
        return 0
    return sum(math.prod(shape) for _, shape in reading.boxes) * reading.dtype.itemsize


def _box(index: tuple[slice, ...], shape: tuple[int, ...]) -> Box:
    ranges = [range(*s.indices(extent)) for s, extent in zip(index, shape)]
    return tuple(r.start for r in ranges), tuple(len(r) for r in ranges)


def _extra_dims(key: str) -> int:
    """Returns the number of dims of the data of one key."""
    return len(jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=key))).shape)


def _check_key(tensor: Tensor, want: Any, key: str) -> None:
    asked = f"{want.dtype} {list(want.shape)}"
    if not key or not _tree.is_key(want):
        raise Refused(f"is {_kind(tensor, key)}, the target {asked}")
    dtype = jax.eval_shape(lambda: jax.random.key(0, impl=key)).dtype
    if dtype != want.dtype or tensor.shape[: tensor.ndim - _extra_dims(key)] != tuple(want.shape):
        raise Refused(f"is {_kind(tensor, key)}, the target {asked}")


def _key(tensor: Tensor, shape: tuple[int, ...], sharding: Any, key: str) -> Reading:
    """Plans a read of keys. Keys have no memory to fill, so their data is put on devices with the same
    cut."""
    data_sharding = sharding
    if isinstance(sharding, NamedSharding):
        entries = [*sharding.spec, *[None] * (tensor.ndim - len(sharding.spec))]
        data_sharding = NamedSharding(sharding.mesh, PartitionSpec(*entries),  # type: ignore[no-untyped-call]
                                      memory_kind=sharding.memory_kind)
    elif sharding is not None and not isinstance(sharding, SingleDeviceSharding):
        raise Refused(f"is a PRNG key, which can be put on a NamedSharding or one device, not on {sharding}")
    reading = _on_devices(tensor, data_sharding)
    put = reading.finish

    def finish(arrays: Arrays) -> Any:
        keys = jax.random.wrap_key_data(put(arrays), impl=key)
        return keys if sharding is None else jax.device_put(keys, sharding)

    reading.finish = finish
    return reading
