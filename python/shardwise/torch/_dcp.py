"""Stores checkpoints for torch.distributed.checkpoint.

DCP plans, coordinates and calls; the writer puts the attempt's directory into the plans that DCP scatters,
each rank writes one shard file into it, and the coordinator publishes. The writer puts no pickle on the disk
unless it is asked to, and needs no collective of its own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (LoadItemType, LoadPlan, LoadPlanner, ReadItem, SavePlan,
                                                  SavePlanner, WriteItemType)
from torch.distributed.checkpoint.storage import StorageReader as _StorageReader
from torch.distributed.checkpoint.storage import StorageWriter as _StorageWriter
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from .. import _core
from .._arrays.arrays import MEMORY, Codec, Existing, Sources, check_choice
from .._arrays.overlap import Regions
from .._arrays.torch_tensors import TORCH, Memory, TensorReads, dtype_name, on_host, region_of, settled
from .._checkpoint.save import encode_objects, warn_of_cleanup
from .._checkpoint.tensor import Checkpoint, Tensor
from .._checkpoint.ties import differ_text, differ_there
from .._errors import AlreadyExists, InvalidArgument, NameNotFound, WrongType, warn
from .._paths import Path, is_in_bucket, local_or_bucket
from .._trees import objects as _objects
from .._trees.nested import decoded_path, encoded_path

log = logging.getLogger("shardwise")

_RECORD = "shardwise record"  # describes each rank's shard file; ranks without items have one, too
_REPLICAS = "shardwise replicas"  # hashes of values that each rank has and DCP keeps for one rank only


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


class StorageWriter(_StorageWriter):
    """For dcp.save and dcp.async_save (thread and process): a checkpoint at `path`, a directory of any name,
    or in a bucket a step ("s3://bucket/runs/step-00000100").

    codec: "zstd", "none", "auto". existing: "fail", or "replace". objects: values other than tensors are
    stored as JSON, exactly; values that JSON cannot hold are an error that names all of them, or with
    "pickle" are pickled into the manifest, and only StorageReader(allow_pickle=True) loads them. user: JSON
    of the caller's own. replicas: plain tensors and objects, which DCP stores for one rank only, are compared
    ("check"), or not ("trust"). A pickle of the writer has these options.
    """

    def __init__(self, path: Path | None = None, *, codec: Codec = "zstd", existing: Existing = "fail",
                 objects: str = "json", threads: int = 0, user: Any = None, replicas: str = "check") -> None:
        super().__init__()
        check_choice("existing", existing, ("fail", "replace"))
        check_choice("objects", objects, ("json", "pickle"))
        check_choice("replicas", replicas, ("check", "trust"))
        self._options = {"path": None if path is None else local_or_bucket(path, "save"),
                         "codec": codec, "existing": existing,
                         "objects": objects, "threads": threads, "user": user, "replicas": replicas}
        self._path: str | None = self._options["path"]
        self._attempt: _core.Attempt | None = None  # the coordinator has it until finish()

    def __getstate__(self) -> dict[str, Any]:
        return {**self._options, "path": self._path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # at the interpreter's end
            pass

    def close(self) -> None:
        """Removes the attempt of a save that failed: DCP reports no failure to a writer."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.abandon()

    def reset(self, checkpoint_id: Path | None = None) -> None:
        self.close()
        if checkpoint_id:
            self._path = local_or_bucket(checkpoint_id, "save")

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise InvalidArgument("use_collectives=False writes files that cannot be restored on another "
                                  "mesh; shardwise.torch.save() coordinates without collectives")
        self.close()
        if self._path is None:
            raise InvalidArgument("StorageWriter: neither it nor dcp.save(checkpoint_id=) was given a path")
        # The attempt itself looks into a bucket.
        if is_coordinator and self._options["existing"] == "fail" and os.path.lexists(self._path):
            raise AlreadyExists(f"save {self._path}: it is already there")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        assert self._path is not None
        self._attempt = _core.Attempt(self._path, self._options["existing"])
        directory = self._attempt.directory
        return [dataclasses.replace(plan,
                                    storage_data={"directory": directory, "writer": i, "writers": len(plans)})
                for i, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        where = plan.storage_data
        results = self._objects(plan, planner)
        sources, kept = Sources(), {}
        parts: dict[str, list[tuple[Sequence[int], Any]]] = {}
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO:
                continue
            name, data = item.index.fqn, item.tensor_data
            assert data is not None
            resolved: Any = planner.resolve_data(item)
            tensor = on_host(resolved, name)
            kept[name] = (dtype_name(tensor, name), data.size)
            parts_of_tensor = parts.setdefault(name, [])
            if tensor.numel() > 0 or not tuple(data.size):
                parts_of_tensor.append((tuple(data.chunk.offsets), Memory(tensor)))
            results.append(WriteResult(item.index, tensor.numel() * tensor.element_size(), None))
        for name, (dtype, size) in kept.items():
            sources.add(name, dtype, list(size), parts[name], listed=True)
        record = _core.write_shards(where["directory"], where["writer"], list(range(where["writers"] + 1)),
                                    sources.list, self._options["codec"], MEMORY, self._options["threads"])
        results.append(WriteResult(MetadataIndex(_RECORD), len(record), record))
        if where["writers"] > 1 and self._options["replicas"] == "check":
            results.append(WriteResult(MetadataIndex(_REPLICAS), 0,
                                       _replicas(getattr(planner, "state_dict", {}))))
        return _done(results)

    def _objects(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        items = [item for item in plan.items if item.type == WriteItemType.BYTE_IO]
        values = {item.index.fqn: self._value(item, planner) for item in items}
        if self._options["objects"] == "pickle":
            encoded = {name: _or_pickle(value) for name, value in values.items()}
        else:
            encoded = encode_objects(values)
            if names := [repr(name) for name, value in encoded.items() if _holds_dataclass(value)]:
                raise WrongType(f"{len(names)} of {len(encoded)} objects: {', '.join(names[:10])}: "
                                "a dataclass would come back as a dict, as DCP shows a reader no objects of "
                                "the target: needed is dataclasses.asdict(), or shardwise.torch.save()")
        return [WriteResult(item.index, 0, encoded[item.index.fqn]) for item in items]

    @staticmethod
    def _value(item: Any, planner: SavePlanner) -> Any:
        # The default planner's resolve_data() pickles the object; lookup_object() returns it.
        lookup = getattr(planner, "lookup_object", None)
        if lookup is not None:
            return lookup(item.index)
        data: Any = planner.resolve_data(item)
        return torch.load(data, weights_only=True)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        try:
            self._publish(metadata, results)
        finally:
            self.close()

    def _publish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        records, objects, replicas = [], {}, []
        for rank, of_rank in enumerate(results):
            for result in of_rank:
                if result.index.fqn == _RECORD:
                    records.append(result.storage_data)
                elif result.index.fqn == _REPLICAS:
                    replicas.append((rank, result.storage_data))
                elif not isinstance(metadata.state_dict_metadata.get(result.index.fqn),
                                    TensorStorageMetadata):
                    objects[result.index.fqn] = result.storage_data
        _check_replicas(replicas)
        document: dict[str, Any] = {"objects": objects}
        if metadata.planner_data:
            document["paths"] = {name: encoded_path(path) for name, path in metadata.planner_data.items()}
        assert self._attempt is not None
        user = _objects.plain_json({} if self._options["user"] is None else self._options["user"], "user")
        stats = self._attempt.publish(records, user,
                                      json.dumps(document, allow_nan=False, ensure_ascii=False))
        warn_of_cleanup(stats)
        log.info("saved %s by %d processes: %.1f MiB in %.2f s", stats["path"], len(records),
                 stats["file_bytes"] / 2**20, stats["seconds"])

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(checkpoint_id=self._path or "")

    @property
    def checkpoint_id(self) -> str | None:
        return self._path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Path) -> bool:
        return is_in_bucket(checkpoint_id) or "://" not in os.fspath(checkpoint_id)


def _replicas(state: Mapping[str, Any]) -> dict[str, str]:
    """Returns hashes of the plain tensors and objects of a rank, by name. Values that have to be pickled have
    none, as the pickles of equal ones may differ."""
    hashes = {}
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            if type(value) not in (torch.Tensor, torch.nn.Parameter):  # a DTensor, or another with parts
                continue
            memory = on_host(value, name).contiguous()
            size = memory.numel() * memory.element_size()
            hashes[name] = f"{memory.dtype} {list(memory.shape)} {_core.hash128(memory.data_ptr(), size)}"
        elif not hasattr(value, "local_shards"):  # no ShardedTensor
            try:
                text = json.dumps(_objects.encode(value), sort_keys=True)
            except TypeError:
                continue
            hashes[name] = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return hashes


def _check_replicas(of_ranks: Sequence[tuple[int, dict[str, str]]]) -> None:
    first: dict[str, tuple[int, str]] = {}
    wrong: dict[str, str] = {}
    for rank, hashes in of_ranks:
        for name, value in hashes.items():
            known, expected = first.setdefault(name, (rank, value))
            if value != expected:
                wrong.setdefault(name, f"{name!r} of rank {rank} is not that of rank {known}")
    if wrong:
        raise InvalidArgument(f"{len(wrong)} values differ between ranks, and DCP would keep one rank's: "
                              f"{'; '.join(list(wrong.values())[:10])}: save a rank's own value "
                              "by shardwise.torch.save() as PerRank(value); "
                              "StorageWriter(replicas=\"trust\") does not look")


def _holds_dataclass(encoded: Any) -> bool:
    if isinstance(encoded, dict):
        kept = encoded.get("$kept") if len(encoded) == 1 else None
        is_dataclass = isinstance(kept, list) and isinstance(kept[0], dict) and "dataclass" in kept[0]
        return is_dataclass or any(map(_holds_dataclass, encoded.values()))
    return isinstance(encoded, list) and any(map(_holds_dataclass, encoded))


def _or_pickle(value: Any) -> Any:
    try:
        encoded = _objects.encode(value)
    except TypeError:
        encoded = None
    if encoded is not None and not _holds_dataclass(encoded) or value is None:
        return encoded
    import pickle

    return {"$pickle": pickle.dumps(value).hex()}


def _empty_dicts(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the paths of empty dicts in the dicts and lists of a state, which DCP takes apart."""
    if isinstance(node, Mapping):
        if not node and path:
            yield path
        for key, value in node.items():
            yield from _empty_dicts(value, (*path, str(key)))
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from _empty_dicts(value, (*path, str(number)))


def _key_made_text(node: Any, path: Sequence[Any]) -> Any:
    """Returns the first key on DCP's path that the state's dict lacks, because DCP has made it a text; None
    if the dict has all."""
    for key in path:
        if isinstance(node, Mapping) and key not in node:
            return key
        node = node[key]
    return None


class StorageReader(_StorageReader):
    """For dcp.load: reads any checkpoint of Shardwise, whichever call saved it.

    A dtype that differs from the stored one is an error, which lists all of them, unless cast=True. unused:
    "warn", "error" or "ignore" for stored names that the target lacks. Two parts that DCP silently does not
    restore are errors: values stored below an empty dict of the target, and objects in dicts whose keys are
    not str, which come back twice. unused="ignore", or a planner that allows a partial load, lets them
    through.
    """

    def __init__(self, path: Path | None = None, *, cast: bool = False, unused: str = "warn",
                 allow_pickle: bool = False, threads: int = 0) -> None:
        super().__init__()
        check_choice("unused", unused, ("warn", "error", "ignore"))
        self._path = None if path is None else local_or_bucket(path, "load")
        self._cast, self._unused, self._allow_pickle, self._threads = cast, unused, allow_pickle, threads
        self._checkpoint: Checkpoint | None = None

    def reset(self, checkpoint_id: Path | None = None) -> None:
        if checkpoint_id:
            self._path = local_or_bucket(checkpoint_id, "load")
        self._checkpoint = None

    def _open(self) -> Checkpoint:
        if self._checkpoint is None:
            if self._path is None:
                raise InvalidArgument("StorageReader: "
                                      "neither it nor dcp.load(checkpoint_id=) was given a path")
            self._checkpoint = Checkpoint(self._path, threads=self._threads)
        return self._checkpoint

    def read_metadata(self) -> Metadata:
        checkpoint = self._open()
        encoded = checkpoint.document.get("paths", {})
        stored: dict[str, Any] = {}
        paths: dict[str, Any] = {}
        for name, tensor in checkpoint.items():
            size = torch.Size(tensor.shape)
            # One chunk, the whole tensor: the reader cuts any box out of it, so that there is one item for
            # each local shard, however many pieces were written.
            chunk = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
            stored[name] = TensorStorageMetadata(TensorProperties(dtype=TORCH[tensor.dtype_name]), size,
                                                 [chunk])
        for name in checkpoint.document.get("objects", {}):
            stored[name] = BytesStorageMetadata()
        for name in stored:
            paths[name] = decoded_path(encoded[name]) if name in encoded else (name,)
        return Metadata(stored, planner_data=paths, storage_data={},
                        storage_meta=StorageMeta(checkpoint_id=self._path or ""))

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any,
                              **kwargs: Any) -> None:
        self._open()

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        checkpoint = self._open()
        used = {item.storage_index.fqn for plan in plans for item in plan.items}
        unused = sorted({*checkpoint, *checkpoint.document.get("objects", {})} - used)
        if unused and self._unused != "ignore":
            text = (f"checkpoint {checkpoint.path}: {len(unused)} of its names are not in the state to be "
                    f"loaded: {', '.join(unused[:10])}{', ...' if len(unused) > 10 else ''}")
            if self._unused == "error":
                raise InvalidArgument(text)
            warn(text)
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        checkpoint = self._open()
        self._refuse_what_is_lost(checkpoint, planner)
        reads = TensorReads(checkpoint._reader)
        filled: list[tuple[ReadItem, torch.Tensor]] = []
        wrong, shared = [], []
        regions = Regions()
        # the stored tensor, and the begin, of each part: a DTensor may have several
        of_parts: dict[str, tuple[Tensor, tuple[int, ...]]] = {}
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                continue
            name, begin = item.storage_index.fqn, tuple(item.storage_offsets)
            tensor = checkpoint[name]
            target = planner.resolve_tensor(item).detach()
            dtype = TORCH[tensor.dtype_name]
            if target.dtype != dtype and not self._cast:
                wrong.append(f"{name!r} is {dtype} there, {target.dtype} in the target")
                continue
            filled.append((item, target))
            part = f"{name} at {list(begin)}" if any(begin) else name
            of_parts[part] = tensor, begin
            tied = regions.add(part, region_of(settled(target)))
            if tied is None:
                reads.add(tensor.number, begin, target, dtype)
            elif of_parts[tied][1] != begin or differ_there(of_parts[tied][0], tensor, begin, target.shape):
                shared.append(differ_text(tied, part))
        if wrong:
            raise InvalidArgument(f"checkpoint {checkpoint.path}: "
                                  f"{len(wrong)} dtypes differ (cast=True converts): {'; '.join(wrong[:20])}")
        if shared := [*shared, *regions.faults()]:
            raise InvalidArgument(f"checkpoint {checkpoint.path} does not fit the target: "
                                  f"{'; '.join(shared[:20])}")
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                self._load_object(checkpoint, item, planner)
        reads.run()
        for item, target in filled:
            planner.commit_tensor(item, target)
        return _done(None)

    def _refuse_what_is_lost(self, checkpoint: Checkpoint, planner: LoadPlanner) -> None:
        if (self._unused == "ignore" or getattr(planner, "allow_partial_load", False)
                or not getattr(planner, "flatten_state_dict", False)):
            return
        target = getattr(planner, "original_state_dict", {})
        encoded = checkpoint.document.get("paths", {})
        stored = [tuple(str(key) for key in decoded_path(path)) for path in encoded.values()]
        wrong = []
        for path in _empty_dicts(target):
            below = sum(len(name) > len(path) and name[:len(path)] == path for name in stored)
            if below:
                wrong.append(f"{'.'.join(path)!r} is an empty dict, and {below} names are stored below it")
        objects = checkpoint.document.get("objects", {})
        for name, path in getattr(planner, "mappings", {}).items():
            if name in objects and (key := _key_made_text(target, path)) is not None:
                wrong.append(f"{name!r} would come back under the key {key!r}, too, "
                             "as the target's is no str")
        if wrong:
            raise InvalidArgument(f"checkpoint {checkpoint.path}: "
                                  f"DCP does not restore {len(wrong)} parts of the target as they were: "
                                  f"{'; '.join(wrong[:10])}: shardwise.torch.load() does")

    def _load_object(self, checkpoint: Checkpoint, item: ReadItem, planner: LoadPlanner) -> None:
        name = item.storage_index.fqn
        encoded = checkpoint.document.get("objects", {})
        if name not in encoded:
            raise NameNotFound(f"checkpoint {checkpoint.path}: there is no object {name!r}")
        # In memory alone: the planner insists on torch.load, and these bytes are our own.
        buffer = io.BytesIO()
        torch.save(self._value_of(name, encoded[name]), buffer)
        buffer.seek(0)
        planner.load_bytes(item, buffer)

    def _value_of(self, name: str, encoded: Any) -> Any:
        if isinstance(encoded, dict) and list(encoded) == ["$pickle"]:
            if not self._allow_pickle:
                raise InvalidArgument(f"object {name!r} was saved as a pickle, which can run any code: "
                                      f"StorageReader(allow_pickle=True) loads it")
            import pickle

            return pickle.loads(bytes.fromhex(encoded["$pickle"]))
        return self._open().objects[name]

    @property
    def checkpoint_id(self) -> str | None:
        return self._path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Path) -> bool:
        return is_in_bucket(checkpoint_id) or os.path.exists(
            os.path.join(os.fspath(checkpoint_id), "manifest.json"))
