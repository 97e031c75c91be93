"""Delivers batches as tensors of torch."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from .. import _loader
from .. import sources as _sources
from .._arrays.arrays import refuse_unknown
from .._arrays.torch_tensors import shared_tensor
from .._errors import InvalidArgument, stops_no_loop
from .._foreign_names import no_attribute, options_of_others
from .._records.foreign_names import OTHER_METHODS, OTHER_OPTIONS
from .._sharding import Mesh, PartitionSpec, Sharding


class Batch(dict[str, Any]):
    """A dict of tensors by field, with `index`, `epoch`, `valid_rows`, `mask` (bool [rows]) and `weights`
    (f32 [rows]). The loader does not reuse the memory of the tensors."""

    index: int
    epoch: int
    valid_rows: int
    # the mask and the weights on the host, and the device
    _of_rows: tuple[Sequence[_loader.Shard], Sequence[_loader.Shard], Any]

    # Few jobs use these tensors, so they are made at their first use; they took a third of the delivery of
    # small batches.

    @functools.cached_property
    def mask(self) -> torch.Tensor:
        return _tensor(_loader._single(self._of_rows[0], "mask"), self._of_rows[2])

    @functools.cached_property
    def weights(self) -> torch.Tensor:
        return _tensor(_loader._single(self._of_rows[1], "weights"), self._of_rows[2])

    def __getstate__(self) -> dict[str, Any]:
        if "_of_rows" not in self.__dict__:
            return self.__dict__
        kept = {name: value for name, value in self.__dict__.items() if name != "_of_rows"}
        return {**kept, "mask": self.mask, "weights": self.weights}


def _tensor(array: np.ndarray[Any, Any], device: Any) -> torch.Tensor:
    tensor = shared_tensor(array)
    return tensor if device is None else tensor.to(device, non_blocking=True)


class Options(TypedDict, total=False):
    """The arguments that are passed on to shardwise.Loader."""

    devices: Sequence[int] | None
    epochs: int
    seed: int
    order: _loader.Order | None
    shuffle: bool | None
    last_batch: _loader.LastBatch
    bad_records: _loader.BadRecords
    prefetch: int
    prefetch_bytes: int
    threads: int
    transform: Callable[..., Any] | None
    policy: str
    buckets: Mapping[str, Sequence[int]] | None


def _of_group(mesh: Any, fields: Any) -> tuple[Any, int | None]:
    """Returns the mesh and the rank in torch's default group: without a rank, all ranks would get the same
    rows."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return mesh, None
    ranks, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    if mesh is None:
        shardings = fields.values() if isinstance(fields, Mapping) else ()
        mesh = next((f.mesh for f in shardings if isinstance(f, Sharding)), Mesh({"batch": ranks}))
    size = len((mesh if isinstance(mesh, Mesh) else Mesh(mesh)).devices)
    if size == 1:
        return mesh, None
    if size != ranks:
        raise InvalidArgument(f"loader: found a mesh of {size} devices in a group of {ranks} ranks, "
                              "needed rank= or devices=, which name the devices of this process")
    known: int = (mesh if isinstance(mesh, Mesh) else Mesh(mesh)).devices[rank]
    return mesh, known


class Loader(IterableDataset[Batch]):
    """`shardwise.Loader` for torch: an IterableDataset of dicts of tensors, whose state_dict() and
    load_state_dict() torch.distributed.checkpoint and StatefulDataLoader call.

        loader = swt.Loader(source, {"image": [Shard(0)], "label": [Shard(0)]}, mesh=device_mesh,
                            batch_size=256)
        for batch in loader:
            step(batch["image"])

    mesh: a DeviceMesh that has this process as a rank, or a mesh of shardwise.Loader. If torch.distributed is
    initialised, each rank gets its share of the batch_size rows of a batch: without a mesh, the default group
    divides them; on a mesh of as many devices as ranks, the rank is the device. mesh="batch=1" gives all rows
    to every rank. fields: specs, or DTensor placements. device: the device of the tensors. All other
    arguments are those of shardwise.Loader.

    The loader reads ahead with its own threads, so a DataLoader around it needs no workers. Each worker of
    DataLoader(loader, batch_size=None, num_workers=n) delivers its part of the batches, in the same order.
    """

    @options_of_others(OTHER_OPTIONS, "Loader")
    @stops_no_loop
    def __init__(self, source: Any, fields: Mapping[str, Any] | Sequence[str] | None = None, *,
                 batch_size: int, mesh: Any = None, rank: int | None = None, device: Any = None,
                 **options: Unpack[Options]) -> None:
        super().__init__()
        refuse_unknown("loader",
                       {name: value for name, value in options.items() if name not in _loader.OPTIONS},
                       [*_loader.OPTIONS, "device"], OTHER_OPTIONS)
        self._source = _sources.of(source)
        transform = options.pop("transform", None)
        if transform is not None:
            self._source = self._source.map(transform)
        self._device = device
        placed: Any = fields
        if mesh is not None and hasattr(mesh, "mesh_dim_names"):
            if rank is None and "devices" not in options:
                rank = torch.distributed.get_rank()
            if isinstance(fields, Mapping):
                placed = {name: self._placed(name, spec, mesh, batch_size) for name, spec in fields.items()}
            mesh = Mesh.from_torch(mesh)
        elif rank is None and "devices" not in options:
            mesh, rank = _of_group(mesh, fields)
        self._arguments = {"fields": placed, "batch_size": batch_size, "mesh": mesh, "rank": rank, **options}
        self._state: dict[str, Any] | None = None
        self._loader: _loader.Loader | None = None
        # In a worker of a DataLoader: the batch where it began, or where its last epoch ended.
        self._begin = 0
        self._open()  # raises here if arguments are wrong

    def __repr__(self) -> str:
        return (f"<shardwise.torch.Loader of {self._source!r}: "
                f"batches of {self._arguments['batch_size']} rows>")

    def _placed(self, name: str, spec: Any, mesh: Any, batch_size: int) -> Any:
        if spec is None or isinstance(spec, (str, PartitionSpec, Sharding)):
            return spec
        field = self._source.fields.get(name)
        if field is None:
            raise InvalidArgument(f"loader: the source has no field {name!r}: "
                                  f"it has {', '.join(self._source.fields)}")
        return Sharding.from_torch(mesh, spec, (batch_size, *field.shape))

    def _open(self) -> _loader.Loader:
        if self._loader is not None and self._loader._process != os.getpid():
            # A fork copied the loader, but its threads are in the parent.
            self._state = self._loader.state_dict()
            self._loader = None
        if self._loader is None:
            state = None if self._state is None else dict(self._state)
            part = None if state is None else state.pop("worker", None)
            self._loader = _loader.Loader(self._source, **self._arguments)
            info = get_worker_info()
            workers = 1 if info is None else info.num_workers
            if part is not None and part[0] != workers:
                raise InvalidArgument(f"loader: the state is of one of {part[0]} workers, "
                                      f"found are {workers}, needed are as many, "
                                      "or the state of a loader outside of them")
            if info is not None:
                # A DataLoader takes the first batch from worker 0, at any position of the run.
                self._begin = 0 if state is None else int(state["next_batch"])
                self._loader._part = (workers, (self._begin + info.id) % workers if part is None else part[1])
            if state is not None:
                self._loader.load_state_dict(state)
        return self._loader

    def _batch(self, host: _loader.Batch) -> Batch:
        device = self._device
        batch = Batch({name: _tensor(array, device) for name, array in host.items()})
        batch.index, batch.epoch, batch.valid_rows = host.index, host.epoch, host.valid_rows
        batch._of_rows = host._mask, host._weights, device
        return batch

    def __iter__(self) -> Iterator[Batch]:
        """Iterates over the rest of the present epochs; at their end, over `epochs` further epochs."""
        loader = self._open()
        with loader._lock:
            if loader._has_ended():
                self._go_on(loader)
        return self

    def _go_on(self, loader: _loader.Loader) -> None:
        info = get_worker_info()
        if info is None:
            loader._go_on()
        else:  # a DataLoader asks worker 0 first
            self._begin = loader._started().batches
            loader._go_on((info.num_workers, (self._begin + info.id) % info.num_workers))

    def __next__(self) -> Batch:
        return self._batch(next(self._open()))

    def epoch(self) -> Iterator[Batch]:
        """Yields the batches from the next one to the end of its epoch. At the end of the run it yields those
        of the first of `epochs` further epochs, as a loop would. A worker of a DataLoader yields its part of
        them. A DataLoader asks worker 0 first in every epoch, so with persistent workers the batches of later
        epochs come in another order, unless the number of workers divides that of batches."""
        if get_worker_info() is not None:
            yield from self._epoch_of_worker()
            return
        iter(self)
        while True:
            try:
                batch = next(self)
            except StopIteration:
                return
            yield batch
            if self._open()._ends_epoch(batch.index):
                return

    def _epoch_of_worker(self) -> Iterator[Batch]:
        loader = self._open()
        with loader._lock:
            if self._begin >= loader._started().batches:
                self._go_on(loader)
        workers, part = loader._part
        # This is the epoch of the run: the next batch of this worker may belong to a later one.
        end = min(loader._epoch_end(self._begin), loader._started().batches)
        at = int(loader.state_dict()["next_batch"])
        for _ in range(at + (part - at) % workers, end, workers):
            yield self._batch(next(loader))
        self._begin = end

    def __len__(self) -> int:
        """Returns the number of batches of one loop, which has `epochs` epochs."""
        return len(self._open())

    @property
    def batches_per_epoch(self) -> int:
        return self._open().batches_per_epoch

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of the run after the batches that this process took, which is the same on any
        mesh. In a worker of a DataLoader it is the position of the worker."""
        loader = self._open()
        state = loader.state_dict()
        return state if loader._part[0] == 1 else {**state, "worker": list(loader._part)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a position. Raises InvalidArgument, with the difference, if it belongs to another
        run."""
        before = self._state, self._loader
        self._state, self._loader = dict(state), None
        try:
            self._open().state_dict()
        except BaseException:
            self._state, self._loader = before
            raise
        if before[1] is not None:
            before[1].close()

    def stats(self) -> dict[str, Any]:
        """Returns the statistics of shardwise.Loader.stats()."""
        return self._open().stats()

    def close(self) -> None:
        """Stops the threads."""
        if self._loader is not None:
            self._state = self.state_dict()
            self._loader.close()
            self._loader = None

    if not TYPE_CHECKING:  # a type checker shall report a missing name
        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name, OTHER_METHODS)

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        state = None if self._loader is None else self.state_dict()
        return {**self.__dict__, "_loader": None, "_state": state or self._state}
