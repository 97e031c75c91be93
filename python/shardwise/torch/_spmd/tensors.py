"""Defines tensors of the emulated device. Operations on them are recorded below autograd (dispatch.py), and
run when the program needs a value (program.py)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._meta_registrations  # operations of the meta device that Python implements
from torch.utils import _pytree as pytree

from ..._errors import InvalidArgument, Unsupported
from . import autocast as _spmd_autocast
from .mesh import Placement
from .recording import Call, Recording, Ref, Root, View, now

_aten = torch.ops.aten

#: torch's device for lazy tensors, on which autograd works, and which has no kernels.
DEVICE = torch.device("lazy", 0)
META = torch.device("meta")


class Hooks:
    """The functions that other modules provide for tensors."""

    dispatched: Callable[[Any, Any, dict[str, Any]], Any]  #: set by dispatch.py
    run: Callable[[Recording], None]  #: set by program.py


class _Kind(torch._C._TensorMeta):
    def __instancecheck__(cls, value: Any) -> bool:
        is_lazy = super().__instancecheck__(value)
        return (is_lazy if cls is not XLAShardedTensor else isinstance(value, LazyTensor)
                and value._root.mark is not None)


class LazyTensor(torch.Tensor, metaclass=_Kind):
    """A tensor of the emulated device, xla_device(). print, bool, .item() and .cpu() run the pending calls
    for its value."""

    _root: Root
    _meta: torch.Tensor
    _path: tuple[View, ...]  #: the calls that make it, a view, from its root
    _at: tuple[int, int]  #: the version of the recording, and the tensor's number there

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, root: Root, meta: torch.Tensor, path: tuple[Any, ...] = (),
                at: tuple[int, int] = (-1, -1)) -> LazyTensor:
        made: LazyTensor = torch.Tensor._make_wrapper_subclass(
            cls, meta.shape, strides=meta.stride(), storage_offset=meta.storage_offset(), dtype=meta.dtype,
            device=DEVICE, _extra_dispatch_keys=_spmd_autocast.KEYS)
        made._root, made._meta, made._path, made._at = root, meta, path, at
        return made

    def __init__(self, *_: Any) -> None:
        pass

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (),  # type: ignore[override]
                           kwargs: Any = None) -> Any:
        with now.lock:
            return Hooks.dispatched(func, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        text = repr(value_of(self))
        words = [f"device='{DEVICE}'", *(["requires_grad=True"] if self.requires_grad else [])]
        return f"{text[:-1]}, {', '.join(words)})"

    def __format__(self, spec: str) -> str:
        """Formats a tensor of one number like that number: f"{loss:.3f}"."""
        return format(value_of(self).item(), spec) if self.dim() == 0 else format(str(self), spec)

    def tolist(self) -> Any:
        return value_of(self).tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Returns a copy of the value as an array."""
        return value_of(self).numpy(force=force)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return value_of(self).numpy() if dtype is None else value_of(self).numpy().astype(dtype)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles the tensor as one on the CPU, which torch.save writes."""
        value = value_of(self).requires_grad_(self.requires_grad and self.is_leaf)
        is_parameter = isinstance(self, torch.nn.Parameter)
        plain: Any = torch.nn.Parameter(value, self.requires_grad) if is_parameter else value
        return plain.__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyTensor:
        made: Any = self.detach().clone().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            made._is_param = True
        made._root.mark = None if self._path else self._root.mark
        memo[id(self)] = made
        result: LazyTensor = made
        return result

    @property
    def global_tensor(self) -> LazyTensor:
        """Returns the tensor itself, as a mark needs no wrapper."""
        return self

    @property
    def sharding_spec(self) -> str:
        """Returns the result of get_xla_sharding_spec()."""
        from .shards import sharding_text

        return sharding_text(self)

    @property
    def sharding_type(self) -> Any:
        """Returns the result of get_xla_sharding_type()."""
        from .shards import sharding_type

        return sharding_type(self)

    @property
    def mesh_shape(self) -> tuple[int, ...] | None:
        """Returns the shape of the mesh of its mark; None without a mark."""
        mark = self._root.mark
        return None if mark is None else mark.mesh.mesh_shape

    @property
    def partition_spec(self) -> tuple[Any, ...] | None:
        """Returns the spec of its mark, with the names of axes if they have names; None without a mark."""
        mark = self._root.mark
        if mark is None:
            return None
        names: Sequence[Any] = mark.mesh.axis_names or tuple(range(len(mark.mesh.mesh_shape)))
        return tuple(tuple(names[axis] for axis in axes) if len(axes) > 1 else names[axes[0]] if axes
                     else None for axes in mark.spec)

    @property
    def local_shards(self) -> list[Any]:
        """Returns the part of each device."""
        from .shards import shards_of

        return shards_of(self)

    def load_local_shards_(self, shards: Sequence[Any]) -> None:
        """Takes its value from parts like those of local_shards, one for each device, in any order. Raises
        InvalidArgument for other devices, shapes or dtypes, and for a tensor without a mark."""
        from .shards import load_shards

        load_shards(self, shards)

    def invalidate_spec_cache(self) -> None:
        """Does nothing, as sharding_spec is never cached."""

    @property
    def data(self) -> Any:
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        if value.shape != self.shape or value.dtype != self.dtype:
            needed = f"{self.dtype}{list(self.shape)}, as it was"
            raise Unsupported(f"data of a tensor on {DEVICE}: found {value.dtype}{list(value.shape)}, "
                              f"needed {needed}")
        with torch.no_grad():
            self.detach().copy_(value)


class XLAShardedTensor(LazyTensor):
    """The type of marked tensors. isinstance() returns True for every marked tensor of the device, but no
    tensor has this class: XLAShardedTensor(t) is t."""

    @staticmethod
    def __new__(cls, tensor: Any, *_: Any, **__: Any) -> Any:
        return tensor


# Recording.


def uploaded(value: torch.Tensor) -> LazyTensor:
    """Returns a tensor on the device, with a copy of a tensor on the host."""
    plain = value.detach().to("cpu", copy=True).contiguous()
    meta = torch.empty_strided(plain.shape, plain.stride(), dtype=plain.dtype, device=META)
    return LazyTensor(Root(meta, plain), meta)


def number_of(tensor: LazyTensor) -> int:
    """Returns the tensor's number in the recording. Records the root of a view before the view."""
    root, version = tensor._root, now.recording.version
    if tensor._path and tensor._at[0] == version:
        return tensor._at[1]
    if tensor.requires_grad and tensor.is_leaf:
        root.is_parameter = True
    if root.version != version:
        if root.value is None:
            raise InvalidArgument(f"a tensor on {DEVICE}, by value: {root.failed or 'found none'}")
        root.number, root.version = now.recording.next_number(), version
        now.recording.inputs.append((root.number, root, root.value))
    number = root.number
    for view in tensor._path:
        made = [now.recording.next_number() for _ in range(view.results)]
        now.recording.add(Call(view.func, view.of(Ref(number)), view.tree, [*made], "", False))
        number = made[view.place]
    tensor._at = (version, number)
    return number


def recorded(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Records a call that runs later, and returns its results. Raises InvalidArgument for a tensor that is
    not on the device."""
    if func is _aten.native_batch_norm.default and args[3] is not None:
        # This operation is the same, but its schema says that it changes the running statistics.
        func = _aten._native_batch_norm_legit.default
    leaves, tree = pytree.tree_flatten((args, kwargs))
    leaves = [_on_device(func, leaf) for leaf in leaves]
    tensors, out_tree = _shapes_of(func, leaves, tree)
    refs = [Ref(number_of(leaf)) if isinstance(leaf, LazyTensor) else leaf for leaf in leaves]
    call = Call(func, refs, tree, [], *now.place())
    now.recording.add(call)
    own = _Aliases(func, pytree.tree_unflatten(leaves, tree))
    made = [_result(call, own, place, len(tensors), meta) for place, meta in enumerate(tensors)]
    region = next((leaf._root.region
                   for leaf in leaves if isinstance(leaf, LazyTensor) and leaf._root.region), None)
    if region is not None:
        for result in made:
            if isinstance(result, LazyTensor):
                result._root.region = region
    return pytree.tree_unflatten(made, out_tree)


_shapes: dict[tuple[Any, ...], tuple[list[Any], pytree.TreeSpec]] = {}
_MOST_SHAPES = 10_000


def _kind_of(leaf: Any) -> tuple[Any, ...]:
    if isinstance(leaf, LazyTensor):
        return leaf.dtype, leaf.shape, leaf._meta.stride(), leaf._meta.storage_offset()
    return type(leaf), leaf


def _shapes_of(func: Any, leaves: list[Any], tree: pytree.TreeSpec) -> tuple[list[Any], pytree.TreeSpec]:
    """Returns the results as tensors without memory. Asks torch once for each kind of call."""
    key = (func, repr(tree), torch.get_default_dtype(), *map(_kind_of, leaves))
    shapes = _shapes.get(key)
    if shapes is None:
        args, kwargs = pytree.tree_unflatten([meta_of(leaf) for leaf in leaves], tree)
        of_nothing = {} if any(isinstance(leaf, LazyTensor) for leaf in leaves) else {"device": META}
        if len(_shapes) == _MOST_SHAPES:
            _shapes.clear()
        shapes = _shapes[key] = pytree.tree_flatten(func(*args, **kwargs, **of_nothing))
    return shapes


class _Aliases:
    """Finds, by the schema of a call, the arguments that its results equal or are views of."""

    def __init__(self, func: Any, given: Any) -> None:
        self._schema, self.func = func._schema, func
        self._named = {argument.name: value for argument, value in zip(self._schema.arguments,
                                                                       given[0])} | given[1]
        for argument in self._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in pytree.tree_leaves(self._named.get(argument.name)):
                    if isinstance(tensor, LazyTensor):
                        _note_changed(tensor)

    def of(self, place: int) -> tuple[Any, bool]:
        """Returns the argument that a result equals (True) or is a view of (False); None if the result is a
        new tensor."""
        returns = self._schema.returns
        is_list = str(returns[0].type) == "List[Tensor]"
        info = returns[0 if is_list else place].alias_info
        for argument in self._schema.arguments:
            known = argument.alias_info
            if known is not None and ("*" in known.after_set if is_list else info is not None
                                      and known.before_set & info.before_set):
                value = self._named.get(argument.name)
                return (value[place] if isinstance(value, (list, tuple)) else value), known.is_write
        return None, False


def _result(call: Call, aliases: _Aliases, place: int, results: int, meta: Any) -> Any:
    if not isinstance(meta, torch.Tensor):
        call.results.append(None)
        return meta
    source, is_same = aliases.of(place)
    if is_same:
        call.results.append(None)
        return source
    number = now.recording.next_number()
    call.results.append(number)
    at = (now.recording.version, number)
    if source is not None:
        leaves = [Ref(-1) if isinstance(leaf, Ref) else leaf for leaf in call.leaves]
        view = View(call.func, leaves, call.tree, place, results)
        return LazyTensor(source._root, meta, (*source._path, view), at)
    root = Root(meta)
    root.number, root.version = number, now.recording.version
    now.recording.changed[number] = weakref.ref(root)
    return LazyTensor(root, meta, (), at)


def _note_changed(tensor: LazyTensor) -> None:
    """Notes that the root of a tensor gets another value in the recording."""
    root = tensor._root
    now.recording.changed[root.number] = weakref.ref(root)


def meta_of(leaf: Any) -> Any:
    """Returns the tensor without memory of a tensor of the device; returns other leaves unchanged."""
    return leaf._meta if isinstance(leaf, LazyTensor) else leaf


def _on_device(func: Any, leaf: Any) -> Any:
    """Returns an argument on the device. torch allows a single number, or an index, on the CPU."""
    if not isinstance(leaf, torch.Tensor) or isinstance(leaf, LazyTensor):
        return leaf
    if leaf.dim() and not func._schema.name.startswith("aten::index") and not func._schema.name.startswith(
            "aten::copy_"):
        raise InvalidArgument(f"{func}: found a tensor on {leaf.device}, needed one on {DEVICE}, "
                              "as the others: tensor.to(xla_device())")
    return uploaded(leaf)


# Values.


def value_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the value on the host. Runs the pending calls if it is not there."""
    if not isinstance(tensor, LazyTensor):
        return tensor.detach()
    with now.lock:
        root = tensor._root
        if (root.value is None or root.number in now.recording.changed
            and root.version == now.recording.version):
            run()
        if root.value is None:
            raise InvalidArgument(f"a tensor on {DEVICE}, by value: {root.failed or 'found none'}")
        value = root.value
        for view in tensor._path:
            args, kwargs = pytree.tree_unflatten(view.of(value), view.tree)
            value = pytree.tree_leaves(view.func(*args, **kwargs))[view.place]
        return value.clone()


def run() -> None:
    """Runs the pending calls, and gives live results their values."""
    with now.lock:
        before = now.taken()
        if before.calls:
            Hooks.run(before)


# Marks.


class _WithoutGradient(torch.autograd.Function):
    """Wraps call() to refuse its gradient."""

    @staticmethod
    def forward(ctx: Any, func: Any, tensor: Any, *more: Any) -> Any:
        return call(func, tensor, *more)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise Unsupported("backward: found a gradient through a manual region, which has none, needed a loss "
                          "that is computed outside of enable_manual_sharding(), or detach() before it")


def call(func: Any, tensor: LazyTensor, placement: Placement, *more: Any) -> LazyTensor:
    """Records func(tensor, placement, ..). The program gets the placement over its own mesh."""
    if tensor.requires_grad and torch.is_grad_enabled():
        return _WithoutGradient.apply(func, tensor, placement, *more)  # type: ignore[no-any-return]
    with now.lock:
        meta = func(tensor._meta, "", *more)
        leaves, tree = pytree.tree_flatten(((Ref(number_of(tensor)), placement, *more), {}))
        made = Root(meta)
        borders = {torch.ops.shardwise.enter_manual.default: placement.mesh,
                   torch.ops.shardwise.leave_manual.default: None}
        made.region = borders.get(func, tensor._root.region)
        made.number, made.version = now.recording.next_number(), now.recording.version
        now.recording.add(Call(func, leaves, tree, [made.number], *now.place()))
        now.recording.changed[made.number] = weakref.ref(made)
        return LazyTensor(made, meta)


def mark(tensor: LazyTensor, placement: Placement) -> None:
    """Marks a tensor in place. A mark of a pending value reaches only later operations; a mark of a value on
    the host reaches all."""
    with now.lock:
        root = tensor._root
        if tensor._path or (root.version == now.recording.version and root.number in now.recording.changed):
            marked = call(torch.ops.shardwise.mark_sharding.default, tensor, placement)
            recorded(_aten.copy_.default, (tensor.detach(), marked), {})
        if not tensor._path:
            root.mark = placement
