"""Takes the values of a tree at one moment to the host, as parts to write while training goes on."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
import dataclasses
from dataclasses import dataclass, field
from typing import Any, Iterable

import jax
import numpy as np

from .._arrays.arrays import Sources, as_array, is_array
from .._checkpoint.save import Plan
from .._dtypes import name_of as dtype_name
from .._errors import Error, InvalidArgument, Unsupported, WrongType
from .._trees import objects as _objects
from .._trees import pytree as _tree
from . import _devices

Begin = tuple[int, ...]


@dataclass
class Leaf:
    """An array of a tree, with the parts that this process has."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begins: list[Begin]  #: begins of distinct boxes; without a spec, of the boxes that this process writes
    parts: list[Any]  #: the elements of the boxes, as arrays or memoryviews
    mesh: str = ""  #: with `spec`, the cut, if the core can describe it
    spec: str = ""
    is_local: bool = False  #: True if this process has the whole array, and no other process has a part

    def digest(self) -> str:
        """Returns a hash of the elements."""
        digest = hashlib.blake2b(digest_size=16)
        for begin, part in sorted(zip(self.begins, self.parts), key=lambda p: p[0]):
            digest.update(repr((begin, part.shape)).encode())
            part = np.asarray(part)
            digest.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
        return digest.hexdigest()


@dataclass
class Snapshot:
    """The content of a tree to save."""

    leaves: list[Leaf] = field(default_factory=list)
    objects: dict[str, Any] = field(default_factory=dict)  #: encoded
    aliases: dict[str, str] = field(default_factory=dict)
    tree: Any = None
    copied_bytes: int = 0  #: the bytes of the parts that are not views on the tree's arrays

    def plan(self, same_everywhere: Iterable[str] = (), mesh_of: Callable[[str], str] = str) -> Plan:
        """Returns the part of this process in a save. same_everywhere: names of local leaves that every
        process has for itself. mesh_of: returns the text of a mesh in the checkpoint."""
        sources = Sources()
        replicated = set(same_everywhere)
        for leaf in self.leaves:
            how: dict[str, Any] = {}
            if leaf.mesh and leaf.name not in replicated:
                how = {"mesh": mesh_of(leaf.mesh), "spec": leaf.spec, "policy": "ceil"}
            elif leaf.name not in replicated and (jax.process_count() > 1 or len(leaf.parts) > 1):
                how = {"listed": True}
            sources.add(leaf.name, leaf.dtype, leaf.shape, zip(leaf.begins, map(np.asarray, leaf.parts)),
                        **how)
        return Plan(sources, self.objects, self.aliases, {"kind": "pytree", "root": self.tree})

    def describe(self) -> bytes:
        """Returns a description for the other processes: the containers, and for each leaf its name, type and
        sharding, and a digest if it is local."""
        rows = [[leaf.name, f"{leaf.dtype} {list(leaf.shape)}", f"{leaf.spec} on {leaf.mesh}" if leaf.mesh
                 else "", leaf.digest() if leaf.is_local else ""] for leaf in self.leaves]
        rows += [[name, "an object", "", json.dumps(value, sort_keys=True)]
                 for name, value in self.objects.items()]
        return zlib.compress(json.dumps([_tree.kinds(self.tree), rows]).encode(), 1)


def common(described: list[bytes]) -> bytes:
    """Returns, on rank 0, the names as JSON of leaves that every process has for itself with equal values.
    Raises one InvalidArgument that names everything that differs."""
    all_kinds, all_rows = zip(*(json.loads(zlib.decompress(d)) for d in described))
    tables = [{row[0]: row[1:] for row in rows} for rows in all_rows]
    same: list[str] = []
    wrong: list[str] = []
    for name in dict.fromkeys(name for table in tables for name in table):
        rows = [table.get(name) for table in tables]
        first = next(row for row in rows if row is not None)
        own = all(row is not None and row[2] for row in rows)
        for rank, row in enumerate(rows):
            if row is None or rows[0] is None:
                without = rows.index(None)
                wrong.append(f"process {without} has no {name!r}, as others have")
            elif row[0] != first[0] or not own and row[1] != first[1]:
                wrong.append(f"{name!r} is {' '.join(first[:2]).strip()} for process 0, "
                             f"{' '.join(row[:2]).strip()} for process {rank}")
            elif own and row[2] != first[2]:
                wrong.append(f"{name!r}, which each process has for itself, "
                             f"differs between process 0 and process {rank}")
            else:
                continue
            break
        if own:
            same.append(name)
    wrong += [f"the container at {place!r} is {first} for process 0, {kinds[place]} for process {rank}"
              for rank, kinds in enumerate(all_kinds) for place, first in all_kinds[0].items()
              if kinds.get(place, first) != first]
    if wrong:
        more = f"; and {len(wrong) - 20} more" if len(wrong) > 20 else ""
        raise InvalidArgument(f"{len(wrong)} values are not the same for all processes: "
                              f"{'; '.join(wrong[:20])}{more}")
    return json.dumps(same).encode()


def snapshot(tree: Any, *, copy: bool) -> Snapshot:
    """Returns the present content of a tree: JAX's arrays as views on their memory, which JAX then does not
    donate, or as copies on the host. copy: also copies numpy's arrays, as they can change. Raises
    InvalidArgument, and one WrongType (one Unsupported, if only dtypes are wrong) that names all leaves that
    cannot be stored."""
    leaves, node = _tree.flatten(tree)
    cuts = _Cuts()
    result = Snapshot(tree=node)
    arrays: list[tuple[Leaf, jax.Array, _Cut]] = []
    name_of: dict[int, str] = {}
    wrong: list[str] = []
    only_dtypes = True
    for name, leaf in leaves.items():
        try:
            if not is_array(leaf):
                value = (leaf.state_dict() if _tree.is_stateful(leaf)
                         else leaf.value if isinstance(leaf, _tree.Json) else leaf)
                result.objects[name] = _objects.encode(value)
            elif id(leaf) in name_of and jax.process_count() == 1:
                result.aliases[name] = name_of[id(leaf)]
            elif isinstance(leaf, jax.Array):
                arrays.append(_of_jax(name, leaf, cuts))
                result.leaves.append(arrays[-1][0])
                name_of[id(leaf)] = name
            else:
                result.leaves.append(_of_numpy(name, leaf, copy))
                result.copied_bytes += result.leaves[-1].parts[0].nbytes if copy else 0
                name_of[id(leaf)] = name
        except (TypeError, Error) as error:
            only_dtypes = only_dtypes and isinstance(error, Unsupported)
            node = ("; a dataclass that holds JAX's arrays is taken apart if "
                    "jax.tree_util.register_dataclass() has been told of it"
                    if dataclasses.is_dataclass(leaf) else "")
            wrong.append((str(error) if repr(name) in str(error) else f"{name!r}: {error}") + node)
    if wrong:
        text = f"{len(wrong)} of {len(leaves)} leaves cannot be stored: {'; '.join(wrong[:20])}"
        raise Unsupported(text) if only_dtypes else WrongType(text)
    for of_array, array, cut in arrays:
        of_array.parts = cut.parts(array)
        result.copied_bytes += 0 if cut.on_host else sum(part.nbytes for part in of_array.parts)
    return result


def _of_numpy(name: str, value: Any, copy: bool) -> Leaf:
    array = as_array(name, value)
    if copy:
        array = array.copy(order="K")
    return Leaf(name, dtype_name(array.dtype, name), array.shape, [(0,) * array.ndim], [array], is_local=True)


@dataclass
class _Cut:
    """The properties that arrays of one sharding, shape and dtype share."""

    dtype: str
    mesh: str
    spec: str
    is_local: bool
    on_host: bool
    begins: list[Begin]  #: begins of the boxes that this process writes
    numbers: list[int]  #: numbers of the addressable shards that hold the boxes

    def parts(self, array: jax.Array) -> list[Any]:
        if 0 in array.shape:
            return [np.empty(array.shape, array.dtype)]
        # addressable_data() asks the sharding for each shard, which took a quarter of save_async()'s time.
        all_shards: Any = getattr(array, "_arrays", None)
        shards = [array.addressable_data(number) if all_shards is None else all_shards[number]
                  for number in self.numbers]
        try:
            # A memoryview takes two thirds of the time of numpy's array.
            return [memoryview(shard) for shard in shards]
        except BufferError:  # for bfloat16 and the like, and on accelerators
            # numpy.asarray() asks each shard for facts that _Cut has, which took half of save_async()'s time.
            view = getattr(type(shards[0]), "_single_device_array_to_np_array_did_copy", None)
            if view is None or not self.on_host:
                return [np.asarray(shard) for shard in shards]
            return [view(shard)[0] for shard in shards]


class _Cuts:
    """A cache of the cuts of one tree's arrays: many share a cut, and describing a cut is slow."""

    def __init__(self) -> None:
        self._cuts: dict[Any, _Cut] = {}

    def of(self, array: jax.Array, name: str) -> _Cut:
        """Returns the cut of an array. Raises Unsupported and WrongType for values that cannot be stored."""
        key = array.sharding, array.shape, array.dtype
        cut = self._cuts.get(key)
        if cut is None:
            cut = self._cuts[key] = self._describe(array, name)
        return cut

    @staticmethod
    def _describe(array: jax.Array, name: str) -> _Cut:
        """Returns a cut with each box once. If the core cannot describe the sharding, the process of replica
        0 writes a box."""
        if getattr(getattr(array.sharding, "spec", None), "unreduced", None):
            raise WrongType("it holds unreduced sums: reduce it first")
        mesh, spec = _devices.described(array.sharding, array.shape) or ("", "")
        boxes: dict[Begin, int] = {}
        if 0 in array.shape:
            boxes[(0,) * array.ndim] = 0
        else:
            for number, shard in enumerate(array.addressable_shards):
                if mesh or shard.replica_id == 0:
                    boxes.setdefault(tuple(s.start or 0 for s in shard.index), number)
        devices: set[Any] = array.sharding.device_set
        return _Cut(dtype_name(array.dtype, name), mesh, spec, array.is_fully_addressable or 0 in array.shape,
                    next(iter(devices)).platform == "cpu", list(boxes), list(boxes.values()))


def _of_jax(name: str, array: jax.Array, cuts: _Cuts) -> tuple[Leaf, jax.Array, _Cut]:
    """Begins the copies of an array's parts to the host, and returns its leaf without the parts."""
    if isinstance(array, jax.core.Tracer):
        raise WrongType(f"{name!r} is being traced: save outside of jit")
    if array.is_deleted():
        raise WrongType(f"{name!r} is an array that has been deleted or donated")
    if _tree.is_key(array):
        array = jax.random.key_data(array)
    cut = cuts.of(array, name)
    if not cut.on_host:
        for number in cut.numbers:
            array.addressable_data(number).copy_to_host_async()
    return Leaf(name, cut.dtype, array.shape, cut.begins, [], cut.mesh, cut.spec, cut.is_local), array, cut
