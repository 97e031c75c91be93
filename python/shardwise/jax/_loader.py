"""Delivers batches as global arrays of JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from .. import _loader
from .. import sources as _sources
from .._errors import InvalidArgument, stops_no_loop, warn
from .._foreign_names import options_of_others
from .._records.foreign_names import OTHER_OPTIONS
from .._sharding import Mesh, Sharding


class Batch(dict[str, Any]):
    """A dict of global jax.Arrays by field, and `index`, `epoch`, `valid_rows`, `mask` (bool [batch]) and
    `weights` (f32 [batch])."""

    index: int
    epoch: int
    valid_rows: int
    mask: Any
    weights: Any


def _warn_of_narrowing(dtypes: Mapping[str, Any]) -> None:
    narrowed = [f"{name!r} ({dtype} to {jax.dtypes.canonicalize_dtype(dtype)})"
                for name, dtype in dtypes.items() if jax.dtypes.canonicalize_dtype(dtype) != dtype]
    if narrowed:
        warn(f"loader: JAX makes {', '.join(narrowed)} narrower, as jax_enable_x64 is off: enable it, "
             "or say so by the source's cast()")


class Loader(_loader.Loader):
    """`shardwise.Loader` for JAX. Each batch is a dict of global arrays; this process reads only the parts
    that its devices hold.

        loader = swj.Loader(source, {"image": NamedSharding(mesh, P("data", None, "model")),
                                     "label": NamedSharding(mesh, P("data"))}, batch_size=256, epochs=5)
        for batch in loader:
            params = step(params, batch["image"], batch["label"])

    sharding: a NamedSharding by field, or one for all fields whose spec has one entry, which cuts the batch
    dim. Sizes must divide evenly, as JAX requires. All other arguments are those of shardwise.Loader. Warns
    of fields of 64 bits that JAX makes narrower.
    """

    @options_of_others({**OTHER_OPTIONS, **dict.fromkeys(("shardings", "fields"), "sharding=")}, "Loader")
    @stops_no_loop
    def __init__(self, source: Any, sharding: Any, *, batch_size: int, **options: Any) -> None:
        for option in ("mesh", "rank", "devices", "fields"):
            if option in options:
                raise InvalidArgument(f"loader: {option} follows from the shardings")
        checked = _sources.of(source)
        if options.get("transform") is not None:
            checked = checked.map(options.pop("transform"))
        if not isinstance(sharding, Mapping):
            if len(sharding.spec) > 1:
                raise InvalidArgument(f"loader: {sharding.spec} for all fields, needed is one entry, "
                                      "of the batch dim; else a sharding by field")
            sharding = dict.fromkeys(checked.fields, sharding)
        if not sharding:
            raise InvalidArgument("loader: got no field, needed is at least one")
        self._jax: dict[str, Any] = dict(sharding)
        fields = checked.fields
        _warn_of_narrowing({name: fields[name].dtype for name in self._jax if name in fields})
        mesh = next(iter(self._jax.values())).mesh
        ranks = {name: 1 if name.endswith(".length") and name not in fields else
                 1 + len(fields[name].shape) if name in fields else 1 for name in self._jax}
        ours = {name: Sharding.from_jax(s, ranks[name]) for name, s in self._jax.items()}
        self._devices = {d.id: d for d in mesh.devices.flat}
        local = [d.id for d in mesh.devices.flat if d.process_index == jax.process_index()]
        super().__init__(checked, ours, batch_size=batch_size, mesh=Mesh.from_jax(mesh), devices=local,
                         **options)
        first = next(iter(self._jax.values()))
        spec: Any = jax.sharding.PartitionSpec
        self._of_rows = jax.sharding.NamedSharding(mesh, spec(first.spec[0] if len(first.spec) else None))

    def _batch(self, found: Any) -> Any:
        host = super()._batch(found)
        batch = Batch({name: self._array(host.shards(name), s, found[3][i][0])
                       for i, (name, s) in enumerate(self._jax.items())})
        batch.index, batch.epoch, batch.valid_rows = host.index, host.epoch, host.valid_rows
        batch.mask = self._array(host._mask, self._of_rows, [self.batch_size])
        batch.weights = self._array(host._weights, self._of_rows, [self.batch_size])
        return batch

    def _array(self, shards: list[_loader.Shard], sharding: Any, shape: Any) -> Any:
        # Only this batch uses the memory, so JAX need not copy it.
        parts = [jax.device_put(s.array, self._devices[s.device]) for s in shards]
        return jax.make_array_from_single_device_arrays(tuple(shape), sharding, parts)


