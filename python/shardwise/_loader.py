"""Makes minibatches on the host: the rows and boxes that this process needs."""

from __future__ import annotations

import atexit
import inspect
import json
import operator
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np

from . import _core
from . import sources as _sources
from ._arrays.arrays import refuse_unknown
from ._errors import InvalidArgument, NameNotFound, WrongType, stops_no_loop
from ._foreign_names import no_attribute, options_of_others
from ._records.foreign_names import OTHER_METHODS, OTHER_OPTIONS
from ._sharding import Mesh, PartitionSpec, Sharding
from ._trees.containers import public_name

Spec = str | PartitionSpec | Sharding | None
Array = np.ndarray[Any, Any]

Order = Literal["shuffled", "sequential"]
LastBatch = Literal["drop", "pad", "wrap"]
BadRecords = Literal["fail", "substitute", "mask"]

def _order(order: Order | None, shuffle: object) -> Order:
    """Returns the order that `order`, or torch's word `shuffle`, asks for."""
    if shuffle is None:
        return "shuffled" if order is None else order
    if not isinstance(shuffle, (bool, np.bool_)):
        raise InvalidArgument(f"loader: shuffle: found {shuffle!r}, needed True or False")
    shuffled: Order = "shuffled" if shuffle else "sequential"
    if order not in (None, shuffled):
        raise InvalidArgument(f"loader: found shuffle={bool(shuffle)} and order={order!r}, "
                              "needed is one of them")
    return shuffled


def _whole(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidArgument(f"loader: {name}: found {value!r}, needed a whole number") from None


_running: weakref.WeakSet[Loader] = weakref.WeakSet()


class Shard:
    """One device's part of a field of a batch: `array`, and its `box` in the global batch."""

    __slots__ = ("array", "device", "_begin")

    def __init__(self, device: int, begin: Sequence[int], array: Array) -> None:
        self.device = device
        self.array = array
        self._begin = begin

    @property
    def box(self) -> tuple[slice, ...]:
        """The part of the global batch that the array is."""
        return tuple(slice(b, b + n) for b, n in zip(self._begin, self.array.shape))

    def __repr__(self) -> str:
        return f"Shard(device={self.device}, box={self.box})"


class Batch:
    """One batch: batch["image"] is the array of this process's device, and shards("image") are the arrays of
    all its devices.

    Arrays are writable, are aligned to 64 bytes, and stay yours until you drop them: no later batch is
    written there.
    """

    def __init__(self, index: int, epoch: int, valid_rows: int, shards: dict[str, list[Shard]],
                 mask: list[Shard], weights: list[Shard]) -> None:
        self.index = index  #: of the batch, within the run
        self.epoch = epoch  #: of its first row
        self.valid_rows = valid_rows  #: of the global batch: the others are padding
        self._shards = shards
        self._mask = mask
        self._weights = weights

    def __getitem__(self, field: str) -> Array:
        """Returns the array of the process's device. Raises InvalidArgument if several devices have different
        boxes."""
        return _single(self.shards(field), field)

    def shards(self, field: str) -> list[Shard]:
        """Returns the shard of each device of this process. Raises NameNotFound."""
        if field not in self._shards:
            raise NameNotFound(f"the batch has no field {field!r}: it has {', '.join(self._shards)}")
        return self._shards[field]

    @property
    def mask(self) -> Array:
        """bool [rows]: False in padding and masked rows. It is cut as dim 0 of the first field is."""
        return _single(self._mask, "mask")

    @property
    def weights(self) -> Array:
        """f32 [rows]: 1 / valid_rows in real rows, else 0: the weighted sum of losses is their mean."""
        return _single(self._weights, "weights")

    def keys(self) -> Any:
        """Returns the names of the fields."""
        return self._shards.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)

    def __contains__(self, field: object) -> bool:
        return field in self._shards

    def items(self) -> list[tuple[str, Array]]:
        """Returns (field, array of the process's device) for each field. Raises as batch[field] does."""
        return [(name, self[name]) for name in self._shards]

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._shards)

    def __repr__(self) -> str:
        return f"Batch({self.index}, epoch {self.epoch}: {', '.join(self._shards)})"


def _single(shards: Sequence[Shard], what: str) -> Array:
    if len(shards) > 1 and any(s.box != shards[0].box for s in shards[1:]):
        raise InvalidArgument(f"{what}: this process has {len(shards)} devices of different boxes: "
                              "use batch.shards()")
    return shards[0].array


class Loader:
    """Gives batches of a source, which threads of the library read ahead. They are the same on any number of
    processes.

        loader = sw.Loader(source, {"image": "data,-,-", "label": "data"}, mesh="data=4,model=2", rank=rank,
                           batch_size=256, epochs=5, seed=1)
        for batch in loader:
            batch["image"]                                  # the box of device `rank`, numpy
        loader.state_dict()                                 # state after the batches that were taken

    source: anything that `sources.of` takes. fields: a spec by field, of the batch dim and the record's dims;
    a list of fields, or None for all, cut over the mesh's first axis by dim 0. mesh: None for one device that
    has all. rank: the device of this process; devices: its devices, if it has several; by default it has all
    of the mesh.

    order: "shuffled" (the default) or "sequential"; shuffle=True and False say the same. last_batch: "drop",
    "pad" (zeros, False in the mask) or "wrap" (the next epoch's first records). bad_records, for a
    record that cannot be read: "fail", "substitute" (another record takes its place) or "mask".
    prefetch: the number of batches that are kept ready, within prefetch_bytes if that is given. transform: a
    function as `Source.map` takes it. buckets: padded lengths of the batches of a ragged field, by field.
    batch_size counts the rows of the global batch.

    A loop over it gives `epochs` epochs, or the rest of them if some batches were taken. The next loop goes
    on with as many further epochs: `for epoch in range(3): for batch in loader:` trains three, each in
    another order. next() alone raises StopIteration at an end until iter() is called.

    Several threads may take batches of one loop: each batch goes to one of them. The step that would deliver
    a record raises its error; errors of Python code come unchanged.
    """

    @options_of_others(OTHER_OPTIONS, "Loader")
    @stops_no_loop
    def __init__(self, source: Any, fields: Mapping[str, Spec] | Sequence[str] | None = None, *,
                 batch_size: int, mesh: Mesh | str | None = None, rank: int | None = None,
                 devices: Sequence[int] | None = None, epochs: int = 1, seed: int = 0,
                 order: Order | None = None, last_batch: LastBatch = "drop", bad_records: BadRecords = "fail",
                 prefetch: int = 2, prefetch_bytes: int = 0, threads: int = 1, transform: Callable[..., Any]
                 | None = None, policy: str = "ceil", buckets: Mapping[str, Sequence[int]] | None = None,
                 shuffle: bool | None = None, **unknown: NoReturn) -> None:
        refuse_unknown("loader", unknown, OPTIONS, OTHER_OPTIONS)
        order = _order(order, shuffle)
        self.source = _sources.of(source)
        if transform is not None:
            self.source = self.source.map(transform)
        self.batch_size, self.epochs = _whole("batch_size", batch_size), _whole("epochs", epochs)
        self.seed = _whole("seed", seed)
        if mesh is None:
            specs = fields.values() if isinstance(fields, Mapping) else ()
            mesh = next((spec.mesh for spec in specs if isinstance(spec, Sharding)), Mesh({"batch": 1}))
        self.mesh = mesh if isinstance(mesh, Mesh) else Mesh(mesh)
        self._devices_of_mesh = self.mesh.devices
        self._positions = self._local(rank, devices)
        self._placements = self._placed(fields, policy, buckets or {})
        self._last_batch = last_batch
        self._arguments = (order, last_batch, bad_records, _whole("prefetch", prefetch),
                           _whole("prefetch_bytes", prefetch_bytes), _whole("threads", threads))
        _core.LoaderOptions.of(self.batch_size, self.epochs, *self._arguments, 1, 0)  # raises if wrong
        self._run_epochs = self.epochs  # the epochs of all loops so far
        self._part = (1, 0)
        self._process = os.getpid()
        self._state = ""  # the state that the run begins at; "" is the start
        self._core: _core.Loader | None = None
        self._lock = threading.RLock()  # guards _core and _state

    def _local(self, rank: int | None, devices: Sequence[int] | None) -> list[int] | None:
        if rank is not None and devices is not None:
            raise InvalidArgument("loader: got rank and devices, needed is one of them")
        if rank is None and devices is None:
            return None
        wanted = list(devices) if devices is not None else [] if rank is None else [rank]
        known = self.mesh.devices
        if not wanted:
            raise InvalidArgument("loader: devices is empty, needed is one or more")
        for device in wanted:
            if device not in known:
                raise NameNotFound(f"loader: device {device} is not in mesh {self.mesh}")
        return [known.index(device) for device in wanted]

    def _placed(self, fields: Mapping[str, Spec] | Sequence[str] | None, policy: str,
                buckets: Mapping[str, Sequence[int]]) -> list[Any]:
        if fields is None:
            fields = list(self.source.fields)
        if not isinstance(fields, Mapping):
            fields = dict.fromkeys(fields)
        for name in buckets:
            if name not in fields:
                raise NameNotFound(f"loader: field {name!r} of buckets is not placed: "
                                   f"{', '.join(fields)} are")
        placements = []
        for name, given in fields.items():
            rank = 1 + self._rank_of(name)
            if isinstance(given, Sharding):
                sharding = given
                if given.mesh != self.mesh:
                    raise InvalidArgument(f"loader: field {name!r} is on mesh {given.mesh}, "
                                          f"needed is {self.mesh} as the others")
            else:
                spec = (PartitionSpec(self.mesh.axis_names[0], *[None] * (rank - 1)) if given is None
                        else given)
                sharding = Sharding(self.mesh, spec, policy)
            placements.append((name, sharding._sharding, list(buckets.get(name, ())), False))
        return placements

    def _rank_of(self, name: str) -> int:
        if name.endswith(".length") and name not in self.source.fields:
            return 0
        if name not in self.source.fields:
            raise NameNotFound(f"loader: the source has no field {name!r}: "
                               f"it has {', '.join(self.source.fields)}")
        return len(self.source.fields[name].shape)

    def _started(self) -> _core.Loader:
        with self._lock:
            if self._core is None:
                self._core = self._begun(self._state, self.seed, self._run_epochs)
            return self._core

    def _begun(self, state: str, seed: int, epochs: int) -> _core.Loader:
        options = _core.LoaderOptions.of(self.batch_size, epochs, *self._arguments, *self._part)
        core = _core.Loader(self.source._records, self._placements, self._positions, options, state, seed)
        _running.add(self)
        return core

    def __repr__(self) -> str:
        return (f"<{public_name(type(self))} of {self.source!r}: "
                f"batches of {self.batch_size} rows on {self.mesh!r}, {self.epochs} epochs>")

    def __iter__(self) -> Iterator[Any]:
        """Continues this loop's epochs; at their end, begins as many further ones."""
        with self._lock:
            if self._has_ended():
                self._go_on()
        return self

    def _has_ended(self) -> bool:
        core = self._started()
        return bool(self._next_of_part(core) >= core.batches)

    def _next_of_part(self, core: _core.Loader) -> int:
        """Returns the number of the next batch of this part: parts take turns."""
        at = int(json.loads(core.state())["next_batch"])
        parts, part = self._part
        return at + (part - at) % parts

    def _go_on(self, part: tuple[int, int] | None = None) -> None:
        """Makes the run longer by the epochs of one loop. Raises InvalidArgument if its last batch was
        padded."""
        core = self._started()
        state = core.state()
        # A new part begins at the end of the others; batch_size 0 compares the state with no run.
        if part is not None:
            state = json.dumps({**json.loads(state), "next_batch": core.batches, "batch_size": 0})
        before, self._part = self._part, part or self._part
        try:
            begun = self._begun(state, self.seed, self._run_epochs + self.epochs)
        except BaseException:
            self._part = before
            raise
        self.close()
        self._core, self._run_epochs = begun, self._run_epochs + self.epochs

    def __next__(self) -> Any:
        while True:
            core = self._started()
            try:
                batch = core.next()
                break
            except InvalidArgument:
                if self._core is None or self._core is core:
                    raise  # else another thread's loop went on with further epochs
        if batch is None:
            raise StopIteration
        return self._batch(batch)

    def epoch(self) -> Iterator[Any]:
        """Yields the batches that are left of the next batch's epoch. At the end of the run it goes on, as a
        loop does, with the first of `epochs` further ones."""
        iter(self)
        while True:
            try:
                batch = next(self)
            except StopIteration:
                return
            yield batch
            if self._ends_epoch(batch.index):
                return

    def _ends_epoch(self, index: int) -> bool:
        """True if the next batch is of another epoch."""
        return index + self._part[0] >= self._epoch_end(index)

    def _epoch_end(self, index: int) -> int:
        """Returns the first batch after the epoch of a batch. A batch belongs to the epoch of its first
        row."""
        if self._last_batch == "wrap":
            epoch = index * self.batch_size // len(self.source)
            return -(-(epoch + 1) * len(self.source) // self.batch_size)
        return (index // self.batches_per_epoch + 1) * self.batches_per_epoch

    def _batch(self, batch: Any) -> Any:
        index, epoch, valid_rows, fields, mask, weights = batch
        shards = {placement[0]: self._shards(parts, self._dtype(placement[0]))
                  for placement, (_, parts) in zip(self._placements, fields)}
        return Batch(index, epoch, valid_rows, shards, self._shards(mask[1], np.dtype(np.bool_)),
                     self._shards(weights[1], np.dtype(np.float32)))

    def _dtype(self, name: str) -> np.dtype[Any]:
        known = self.source.fields.get(name)
        return np.dtype(np.int32) if known is None else known.dtype

    def _shards(self, parts: Any, dtype: np.dtype[Any]) -> list[Shard]:
        return [Shard(self._devices_of_mesh[position], begin, data.view(dtype).reshape(shape))
                for position, begin, shape, data in parts]

    @property
    def batches_per_epoch(self) -> int:
        """The number of batches that begin in one epoch."""
        count: int = self._started().batches_per_epoch
        return count

    def __len__(self) -> int:
        """Returns the number of batches of one loop, which has `epochs` epochs."""
        count: int = self._started().batches
        return count - self._batches_of(self._run_epochs - self.epochs)

    def _batches_of(self, epochs: int) -> int:
        """Returns the number of batches of a run of `epochs` epochs."""
        if self._last_batch == "wrap":
            return -(-epochs * len(self.source) // self.batch_size)
        return epochs * (-(-len(self.source) // self.batch_size) if self._last_batch == "pad"
                         else len(self.source) // self.batch_size)

    def _epochs_to(self, batch: object) -> int:
        """Returns the fewest epochs, in whole loops, that a run needs to come to this batch."""
        loop = self._batches_of(self.epochs)
        if not isinstance(batch, int) or not 0 <= batch < 1 << 62 or loop == 0:
            return self.epochs  # the core refuses such a state
        loops = max(1, -(-batch // loop))
        while self._batches_of(loops * self.epochs) < batch:
            loops += 1
        while loops > 1 and self._batches_of((loops - 1) * self.epochs) >= batch:
            loops -= 1
        return loops * self.epochs

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the run after the batches that were taken: a few numbers and words, the same
        on any mesh. Save it with the model."""
        with self._lock:
            text = self._state if self._core is None and self._state else self._started().state()
        state: dict[str, Any] = json.loads(text)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state: batches follow as if the run had not been broken off, on this mesh and number
        of processes. Raises InvalidArgument, which names the difference, if the source, batch size, order or
        seed is another run's."""
        text = json.dumps(dict(state))
        epochs = self._epochs_to(state.get("next_batch"))
        begun = self._begun(text, self.seed, epochs)  # if it is refused, this loader stays where it is
        with self._lock:
            self.close()
            self._core, self._state, self._run_epochs = begun, text, epochs
            self.seed = int(state.get("seed", self.seed))

    get_state = state_dict
    set_state = load_state_dict

    def step_of(self, record: int, epoch: int = 0) -> tuple[int, int] | None:
        """Returns the (batch, row) that delivers a record in an epoch; None if that epoch drops it."""
        step: tuple[int, int] | None = self._started().step_of(record, epoch)
        return step

    def stats(self) -> dict[str, Any]:
        """Returns counts and seconds since the start, also by stage, and "bottleneck": one line that names
        the part to mend first."""
        stats: dict[str, Any] = self._started().stats()
        return stats

    def bad_records(self) -> tuple[int, list[tuple[int, int, int, int, int, str]]]:
        """Returns the number of records that could not be read, and (batch, row, epoch, record, substitute or
        -1, message) of the first 1,000."""
        records: tuple[int, list[tuple[int, int, int, int, int, str]]] = self._started().bad_records()
        return records

    def close(self) -> None:
        """Stops the threads. Arrays that you have stay valid. Later calls of the loader go on from here."""
        with self._lock:
            if self._core is not None:
                self._state = self._core.state()
                self._core.close()
                self._core = None

    if not TYPE_CHECKING:  # for a type checker a name that is not there is an error
        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name, OTHER_METHODS)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        raise WrongType("a loader has threads: make it in the process that uses it, or send its state_dict()")


#: The options of a loader by name.
OPTIONS = [name for name in inspect.signature(Loader).parameters if name not in ("source", "unknown")]


@atexit.register
def _close_all() -> None:
    # Threads that call Python must have ended before Python does. A daemon thread may have a loader's lock
    # for good.
    for loader in list(_running):
        core = loader._core
        if core is not None:
            core.close()
