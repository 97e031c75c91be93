"""Batches as tensors of torch."""

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
    """A dict of tensors by field, which are yours until you drop them, and `index`, `epoch`, `valid_rows`,
    `mask` (bool [rows]) and `weights` (f32 [rows])."""

    index: int
    epoch: int
    valid_rows: int
    # mask and weights on the host, and the device
    _of_rows: tuple[Sequence[_loader.Shard], Sequence[_loader.Shard], Any]

    # Tensors are made on first use: few jobs look at them, and for small batches they took a third of the
    # delivery.

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
    """Further arguments, passed on to shardwise.Loader."""

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
    """Mesh and rank in torch's default group: without one, every rank would get the same rows."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return mesh, None
    ranks, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    if mesh is None:
        given = fields.values() if isinstance(fields, Mapping) else ()
        mesh = next((f.mesh for f in given if isinstance(f, Sharding)), Mesh({"batch": ranks}))
    size = len((mesh if isinstance(mesh, Mesh) else Mesh(mesh)).devices)
    if size == 1:
        return mesh, None
    if size != ranks:
        raise InvalidArgument(f"loader: found a mesh of {size} devices in a group of {ranks} ranks, "
                              "needed rank= or devices=, which say what this process has")
    known: int = (mesh if isinstance(mesh, Mesh) else Mesh(mesh)).devices[rank]
    return mesh, known


class Loader(IterableDataset[Batch]):
    """`shardwise.Loader` for torch: batches are dicts of tensors, an IterableDataset, with state_dict and
    load_state_dict as torch.distributed.checkpoint and StatefulDataLoader call them.

        loader = swt.Loader(source, {"image": [Shard(0)], "label": [Shard(0)]}, mesh=device_mesh,
                            batch_size=256)
        for batch in loader:
            step(batch["image"])

    mesh: a DeviceMesh that this process is a rank of, or a mesh as for shardwise.Loader. If torch.distributed
    is initialised, each rank gets its rows of the batch of batch_size rows: without a mesh, they are cut over
    the default group; on a mesh of as many devices as ranks, the rank is the device. Give mesh="batch=1" for
    all rows on every rank. fields: specs, or DTensor placements. device: where the tensors go. The rest as
    shardwise.Loader.

    It reads ahead by threads of its own, so a DataLoader around it needs no workers. Inside workers of
    DataLoader(loader, batch_size=None, num_workers=n) each delivers its part of the batches, in the same
    order.
    """

    @options_of_others(OTHER_OPTIONS, "Loader")
    @stops_no_loop
    def __init__(self, source: Any, fields: Mapping[str, Any] | Sequence[str] | None = None, *,
                 batch_size: int, mesh: Any = None, rank: int | None = None, device: Any = None,
                 **options: Unpack[Options]) -> None:
        super().__init__()
        refuse_unknown("loader",
                       {name: given for name, given in options.items() if name not in _loader.OPTIONS},
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
                placed = {name: self._placed(name, given, mesh, batch_size) for name, given in fields.items()}
            mesh = Mesh.from_torch(mesh)
        elif rank is None and "devices" not in options:
            mesh, rank = _of_group(mesh, fields)
        self._arguments = {"fields": placed, "batch_size": batch_size, "mesh": mesh, "rank": rank, **options}
        self._state: dict[str, Any] | None = None
        self._loader: _loader.Loader | None = None
        self._begin = 0  # in a DataLoader's worker: the run's batch where it began, or its last epoch ended
        self._made()  # raises here if arguments are wrong

    def __repr__(self) -> str:
        return (f"<shardwise.torch.Loader of {self._source!r}: "
                f"batches of {self._arguments['batch_size']} rows>")

    def _placed(self, name: str, given: Any, mesh: Any, batch_size: int) -> Any:
        if given is None or isinstance(given, (str, PartitionSpec, Sharding)):
            return given
        field = self._source.fields.get(name)
        if field is None:
            raise InvalidArgument(f"loader: the source has no field {name!r}: "
                                  f"it has {', '.join(self._source.fields)}")
        return Sharding.from_torch(mesh, given, (batch_size, *field.shape))

    def _made(self) -> _loader.Loader:
        if self._loader is not None and self._loader._process != os.getpid():
            # Made before a fork: its threads are the parent's.
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
                # The first batch comes from worker 0, wherever the run stands.
                self._begin = 0 if state is None else int(state["next_batch"])
                self._loader._part = (workers, (self._begin + info.id) % workers if part is None else part[1])
            if state is not None:
                self._loader.load_state_dict(state)
        return self._loader

    def _batch(self, found: _loader.Batch) -> Batch:
        device = self._device
        batch = Batch({name: _tensor(array, device) for name, array in found.items()})
        batch.index, batch.epoch, batch.valid_rows = found.index, found.epoch, found.valid_rows
        batch._of_rows = found._mask, found._weights, device
        return batch

    def __iter__(self) -> Iterator[Batch]:
        """The rest of this loop's epochs, from where it stands; at their end, of as many further ones."""
        made = self._made()
        with made._lock:
            if made._has_ended():
                self._go_on(made)
        return self

    def _go_on(self, made: _loader.Loader) -> None:
        info = get_worker_info()
        if info is None:
            made._go_on()
        else:  # a DataLoader asks worker 0 first
            self._begin = made._started().batches
            made._go_on((info.num_workers, (self._begin + info.id) % info.num_workers))

    def __next__(self) -> Batch:
        return self._batch(next(self._made()))

    def epoch(self) -> Iterator[Batch]:
        """Yields the batches from the next one to the end of its epoch; at the end of the run, as for a loop,
        those of the first of `epochs` further epochs. In a DataLoader's worker: its part of them. A
        DataLoader asks worker 0 first in every epoch, so with persistent workers the batches of later epochs
        come in another order, unless the workers divide their number."""
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
            if self._made()._ends_epoch(batch.index):
                return

    def _epoch_of_worker(self) -> Iterator[Batch]:
        made = self._made()
        with made._lock:
            if self._begin >= made._started().batches:
                self._go_on(made)
        workers, part = made._part
        # The epoch is the run's: the next batch of this worker may be of a later one.
        end = min(made._epoch_end(self._begin), made._started().batches)
        at = int(made.state_dict()["next_batch"])
        for _ in range(at + (part - at) % workers, end, workers):
            yield self._batch(next(made))
        self._begin = end

    def __len__(self) -> int:
        """Batches of one loop: of `epochs` epochs."""
        return len(self._made())

    @property
    def batches_per_epoch(self) -> int:
        return self._made().batches_per_epoch

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands after the batches that this process took, the same on any mesh. In a
        DataLoader's worker: where the worker stands."""
        made = self._made()
        return made.state_dict() if made._part[0] == 1 else {**made.state_dict(), "worker": list(made._part)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from there. Raises InvalidArgument if it is another run's, saying in what."""
        before = self._state, self._loader
        self._state, self._loader = dict(state), None
        try:
            self._made().state_dict()
        except BaseException:
            self._state, self._loader = before
            raise
        if before[1] is not None:
            before[1].close()

    def stats(self) -> dict[str, Any]:
        """As shardwise.Loader.stats."""
        return self._made().stats()

    def close(self) -> None:
        """Stops the threads."""
        if self._loader is not None:
            self._state = self.state_dict()
            self._loader.close()
            self._loader = None

    if not TYPE_CHECKING:  # for a type checker a name that is not there is an error
        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name, OTHER_METHODS)

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        state = None if self._loader is None else self.state_dict()
        return {**self.__dict__, "_loader": None, "_state": state or self._state}
