"""Opens records for `shardwise.Loader`: files, arrays and Python objects, and sources made from them.

    from shardwise import sources

    images = sources.zip(sources.idx("train-images.gz", "image"), sources.arrays({"label": labels}))
    small = images.crop("image", (24, 24), "random").normalise("image", 0, 255)
    small[7]["image"]                     # a record: numpy arrays by field
    mixed = sources.mix([web.shuffle(), books.shuffle()], [3, 1])
    packs = sources.jsonl("docs.jsonl", text="text").filter("length(text)>=16").pack("text", window=1024)

Everything is random-access: a record is a function of its number, the epoch and the seed, so a run resumes
anywhere.
"""

from __future__ import annotations

import builtins
import functools
import math
import numbers
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, runtime_checkable

import numpy as np

from . import _core
from ._argument_types import check_calls
from ._dtypes import NUMPY, name_of
from ._errors import InvalidArgument, WrongType, stops_no_loop
from ._foreign_names import names_of_others, no_attribute, options_of_others
from ._interpreter import imported
from ._paths import local, local_or_url
from ._progress import Progress, function_of
from ._records.batches import columns_of, rows_of, together_of
from ._records.foreign_names import OTHER_ARGUMENTS, OTHER_STAGES
from ._records.values import array_of, columns_of_table

_zip = builtins.zip  # zip() and open() below are of sources

Record = dict[str, np.ndarray[Any, Any]]

_P = ParamSpec("_P")
_told = options_of_others(OTHER_ARGUMENTS)


def _remembered(make: Callable[_P, Source]) -> Callable[_P, Source]:
    """Makes the source picklable: another process makes it again by the same call."""

    guarded = stops_no_loop(make)

    @functools.wraps(make)
    def made(*args: _P.args, **kwargs: _P.kwargs) -> Source:
        source = guarded(*args, **kwargs)
        if not source._how:
            source._how = (make.__qualname__, args, kwargs)
        return source

    return _told(made)


def _made_again(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Source:
    owner: Any = Source if name.startswith("Source.") else imported(__name__)
    source: Source = getattr(owner, name.rsplit(".", 1)[-1])(*args, **kwargs)
    return source


@dataclass(frozen=True)
class Field:
    """A field that every record has. ragged: dim 0 differs by record; shape[0] is the largest, and elements
    past a record's length read as zeros."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    ragged: bool = False


@runtime_checkable
class RandomAccess(Protocol):
    """Methods that make any Python object a source (as Grain's): a record by number is a dict, tuple or
    array."""

    def __len__(self) -> int: ...

    def __getitem__(self, record: Any, /) -> Any: ...


class Source:
    """Records that can be read in any order. The functions of this module make it; its methods give further
    sources and leave this one as it is. It is thread-safe."""

    def __init__(self, records: _core.Records) -> None:
        self._records = records
        self._how: tuple[Any, ...] = ()
        self.fields = {name: Field(name, NUMPY[dtype], tuple(shape), ragged)
                       for name, dtype, shape, ragged in records.fields}

    def __len__(self) -> int:
        size: int = self._records.size
        return size

    def __getitem__(self, record: int) -> Record:
        """Returns one record, of epoch 0. Raises IndexError, and the errors of reading."""
        try:
            number = operator.index(record)
        except TypeError:
            needed = f"source[0][{record!r}]" if isinstance(record, str) else "source.take(begin, end)"
            raise WrongType(f"source: record is {record!r}, needed is a number, or {needed}") from None
        number += len(self) if number < 0 else 0
        if not 0 <= number < len(self):
            raise IndexError(f"record {record}: there are {len(self)}")
        return self.read(number)

    def __iter__(self) -> Iterator[Record]:
        """Yields all records in order. An IndexError of a record is raised: it does not end the loop."""
        return (self.read(number) for number in range(len(self)))

    def read(self, record: int, *, epoch: int = 0, seed: int = 0) -> Record:
        """Returns one record as a run of that seed delivers it in that epoch; ragged fields have their own
        length."""
        arrays = [np.empty(f.shape, f.dtype) for f in self.fields.values()]
        self._records.read(record, epoch, seed, [a.ctypes.data for a in arrays])
        return {f.name: a[:self._records.length(record, epoch, seed, i)] if f.ragged else a
                for i, (f, a) in enumerate(_zip(self.fields.values(), arrays))}

    if not TYPE_CHECKING:  # for a type checker a name that is not there is an error
        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name, OTHER_STAGES)

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, self._how

    def __repr__(self) -> str:
        fields = ", ".join(f"{f.name}: {f.dtype}{list(f.shape)}{' ragged' if f.ragged else ''}"
                           for f in self.fields.values())
        return f"Source({len(self)} records of {fields})"

    @_remembered
    def shuffle(self, salt: int = 0) -> Source:
        """Puts the records in another random order each epoch. A run that is shuffled as a whole needs no
        such stage; one source inside mix() does."""
        return Source(self._records.shuffle(salt))

    @_remembered
    def take(self, begin: int, end: int | None = None) -> Source:
        """Takes records begin .. end-1; with one number n, the first n."""
        return Source(self._records.take(*((0, begin) if end is None else (begin, end))))

    @_remembered
    def repeat(self, times: int) -> Source:
        """Repeats all records that many times, as one epoch."""
        return Source(self._records.repeat(times))

    @_remembered
    def filter(self, keep: str | Callable[[Record], bool], *, name: str = "", cache: Any = None,
               progress: Progress = None) -> Source:
        """Keeps the records that a text ("label==3 && length(text)>=16") or a function of the record selects.
        A function is called once for each record, here. cache: a file that keeps the answers for the next
        run; for a function it needs `name`, which identifies the function."""
        path = "" if cache is None else str(cache)
        tell = function_of(progress, "filter")
        if isinstance(keep, str):
            return Source(self._records.filter_text(keep, path, tell))
        if path and not name:
            raise InvalidArgument("filter: found a cache and no name of the function, needed are both: "
                                  "change it when the function changes")
        function, fields = keep, list(self.fields.values())

        def answer(values: list[tuple[bytes, int]]) -> bool:
            record = {f.name: np.frombuffer(data, f.dtype).reshape(f.shape)
                      for f, (data, _) in _zip(fields, values)}
            return bool(function({f.name: record[f.name][:length] if f.ragged else record[f.name]
                                  for f, (_, length) in _zip(fields, values)}))

        return Source(self._records.filter_function(answer, name or _name_of(function), path, tell))

    @_remembered
    def map(self, function: Callable[..., Mapping[str, Any]], *, name: str | None = None,
            ragged: Mapping[str, int] | None = None) -> Source:
        """Makes records by a function: it gets a record (and, if it takes two arguments, a numpy Generator
        whose numbers depend on seed, epoch and record) and returns a dict of arrays, which have the same
        dtypes and shapes in all records. name: stands for the function in the run's fingerprint, instead of
        its results for some records. ragged: the largest dim 0 of fields whose dim 0 differs by record, as
        {"ids": 4096} for a tokenizer: such a field can be packed."""
        identity = None if name is None else f"{name} of {self._records.fingerprint()}"
        return Source(_function_source(len(self), _Mapped(self, function), "map", identity,
                                       made_of=(name or "", self._records), ragged=ragged))

    @_remembered
    def pack(self, field: str, window: int, *, documents: int = 1024) -> Source:
        """Packs documents (a ragged field) side by side into records of `window` elements, by best fit within
        `documents` documents. Fields: `field`, `field`_segments (1, 2, .. by document, 0 for padding) and
        `field`_positions (within the document), i32. No element is lost; longer documents are cut."""
        return Source(self._records.pack(field, window, documents))

    @_remembered
    def crop(self, field: str, shape: Sequence[int], position: str | Sequence[int] = "centre", *,
             stream: str = "") -> Source:
        """Takes a part of the field: at an index, "centre", or "random", drawn for each record and epoch;
        crops and flips of equal `stream` draw equal numbers."""
        kind, begin = (position, []) if isinstance(position, str) else ("at", list(position))
        return Source(self._records.crop(field, list(shape), kind, begin, stream))

    @_remembered
    def flip(self, field: str, dim: int | None = None, probability: float = 0.5, *, axis: int | None = None,
             stream: str = "") -> Source:
        """Mirrors the field in one dim, each record with this probability. dim, or axis as numpy spells it: a
        dim of the record, counted from its end if it is below 0."""
        if (dim is None) == (axis is None):
            raise InvalidArgument("flip: needed is one of dim= and axis=, the record's dim that is mirrored")
        given = dim if axis is None else axis
        rank = len(self.fields[field].shape) if field in self.fields else 0
        try:
            number = operator.index(given)  # type: ignore[arg-type]
        except TypeError:
            raise InvalidArgument(f"flip: dim: found {given!r}, needed a whole number") from None
        if field in self.fields and not -rank <= number < rank:
            raise InvalidArgument(f"flip: dim: found {number}, "
                                  f"needed one of the {rank} dims of field {field!r}")
        return Source(self._records.flip(field, number % max(rank, 1), probability, stream))

    @_remembered
    def pad(self, field: str, before: Sequence[int], after: Sequence[int], value: float = 0) -> Source:
        """Adds elements of `value` before and after in each dim."""
        return Source(self._records.pad(field, list(before), list(after), value))

    @_remembered
    def cast(self, field: str, dtype: Any) -> Source:
        """Converts the field to another numeric dtype; floats round to nearest, integers wrap around."""
        return Source(self._records.cast(field, dtype if isinstance(dtype, str) and dtype in NUMPY
                                         else name_of(dtype)))

    @_remembered
    def normalise(self, field: str, mean: float | Sequence[float], stddev: float | Sequence[float]) -> Source:
        """Makes the field (x - mean) / stddev in float32, with one pair of numbers, or a pair for each index
        of the last dim."""
        return Source(self._records.normalise(field, _floats(mean), _floats(stddev)))

    normalize = normalise


def _floats(values: float | Sequence[float]) -> list[float]:
    return [float(v) for v in values] if isinstance(values, Iterable) else [float(values)]


@_remembered
def open(text: str, /, *, progress: Progress = None, **options: Any) -> Source:
    """Opens a source by its text, as the command `shardwise batches` takes it: FORMAT:PATH?OPTION=VALUE&...,
    as "tokens:train.bin?dtype=u16&window=1025". The ending of a path (d.csv, s.tar) or a folder of images may
    tell the format. Options may be given as arguments, too. `shardwise batches --help` lists the formats.
    Raises InvalidArgument, NotFound, Corrupt, Unsupported."""
    if options:
        from urllib.parse import quote, urlencode

        values = {k: ",".join(map(str, v)) if isinstance(v, (list, tuple))
                  else ("no", "yes")[v] if isinstance(v, bool) else "tab" if isinstance(v, str) and v == "\t"
                  else str(v) for k, v in options.items()}
        text += ("&" if "?" in text else "?") + urlencode(values, quote_via=quote, safe="/,:")
    return Source(_core.Records.open(text, function_of(progress, "index")))


def _file(format: str, path: Any, progress: Progress, options: Mapping[str, Any]) -> Source:
    from urllib.parse import quote

    paths = path if isinstance(path, (list, tuple)) else [path]
    text = ",".join(quote(local_or_url(p, "open a source"), safe="/") for p in paths)
    return open(f"{format}:{text}", progress=progress, **{k: v for k, v in options.items() if v is not None})


def set_cache(folder: Any = None, max_bytes: int | None = None) -> None:
    """Sets the cache for files at URLs, for sources that this process and those it starts open from now on:
    the folder (by default SHARDWISE_CACHE, or "shardwise" in XDG_CACHE_HOME or ~/.cache), and the bytes that
    it may hold (by default SHARDWISE_CACHE_BYTES, or 8 GiB; 0 keeps nothing). Raises InvalidArgument for a
    folder that other users can write to."""
    path = "" if folder is None else os.path.abspath(local(folder, "set the cache"))
    _core.set_remote_cache(path, max_bytes)
    if path:
        os.environ["SHARDWISE_CACHE"] = path
    if max_bytes is not None:
        os.environ["SHARDWISE_CACHE_BYTES"] = str(max_bytes)


# Below, `path` is a path or a URL ("s3://bucket/key", "https://host/file"), or a list of them, which are
# read one after the other.


@_told
def idx(path: Any, field: str | None = None, *, progress: Progress = None) -> Source:
    """Opens an idx file, as MNIST's, plain or gzipped. field: its name, "x" by default."""
    return _file("idx", path, progress, {"field": field})


@_told
def npy(path: Any, field: str | None = None, *, progress: Progress = None) -> Source:
    """Opens an array of numpy.save(): dim 0 counts the records. field: its name, "x" by default."""
    return _file("npy", path, progress, {"field": field})


@_told
def tokens(path: Any, window: int, *, dtype: str = "u16", stride: int | None = None,
           header_bytes: int | None = None, field: str | None = None, progress: Progress = None) -> Source:
    """Opens windows of a file that has whole numbers and nothing else. Each begins `stride` numbers (by
    default `window`) after the window before it. `dtype` is the numbers' type."""
    return _file("tokens", path, progress, {"window": window, "dtype": dtype, "stride": stride,
                                            "header_bytes": header_bytes, "field": field})


def hdf5(path: Any, /, *, progress: Progress = None, **datasets: str) -> Source:
    """Opens data sets of HDF5 files: field=data set; without any, all in the root."""
    return _file("hdf5", path, progress, datasets)


def csv(path: Any, /, *, progress: Progress = None, **options: Any) -> Source:
    """Opens a table: field=type, as price="f32", street="text"; without any, all columns. Also delimiter,
    header="no"."""
    return _file("csv", path, progress, options)


def jsonl(path: Any, /, *, progress: Progress = None, **types: str) -> Source:
    """Opens a file with a JSON object on each line: field=type, as tokens="i32[]", text="text"; without any,
    the fields of the first line."""
    return _file("jsonl", path, progress, types)


def tfrecord(path: Any, /, *, progress: Progress = None, **types: str) -> Source:
    """Opens records of tf.train.Example: field=type, as image="u8[28,28]"; without any, "record", a record's
    bytes."""
    return _file("tfrecord", path, progress, types)


@_told
def images(folder: Any, height: int, width: int, *, progress: Progress = None, **options: Any) -> Source:
    """Opens PNG and JPEG files, in a folder for each class: fields "image" and "label". Also channels, resize
    ("stretch", "crop"), labels ("automatic", "none"), max_pixels, exif_transpose (True: turned upright, as
    Pillow's function)."""
    return _file("images", folder, progress, {"height": height, "width": width, **options})


def tar(path: Any, height: int | None = None, width: int | None = None, *, progress: Progress = None,
        **options: Any) -> Source:
    """Opens tar files, as WebDataset's, with the options of images(). Also bytes="json,txt": members that are
    fields, as bytes."""
    return _file("tar", path, progress, {"height": height, "width": width, **options})


@_remembered
def arrays(fields: Mapping[str, Any]) -> Source:
    """Makes a source of arrays in memory: dim 0 counts the records. Contiguous arrays are not copied, so do
    not change them."""
    if not fields:
        raise InvalidArgument("arrays: got no field, needed is at least one")
    kept = {name: _native(array_of(a, name), name) for name, a in fields.items()}
    sizes = {name: len(a) if a.ndim else -1 for name, a in kept.items()}
    if len(set(sizes.values())) > 1 or -1 in sizes.values():
        raise InvalidArgument(f"arrays: fields have {sizes} records, needed is the same number")
    described = [(name, name_of(a.dtype, name), list(a.shape[1:]), False) for name, a in kept.items()]
    return Source(_core.Records.of_arrays(described, next(iter(sizes.values())),
                                          [a.ctypes.data for a in kept.values()], list(kept.values())))


@_remembered
def callback(size: int, fields: Mapping[str, tuple[Any, Sequence[int]]], function: Callable[[int], Any], *,
             name: str | None = None, ragged: Sequence[str] = ()) -> Source:
    """Makes records by a function of their number, which returns a dict of arrays. fields: (dtype, shape) by
    name. ragged: fields whose dim 0 differs by record; their shape has the largest one."""
    described = [Field(n, np.dtype(dtype), tuple(shape), n in ragged) for n, (dtype, shape) in fields.items()]
    for odd in [n for n in ragged if n not in fields or not fields[n][1]]:
        raise InvalidArgument(f"callback: ragged: found {odd!r}, needed a field with a dim: "
                              f"{', '.join(fields)}")
    return Source(_function_source(size, lambda record, epoch, seed: function(record), "callback", name,
                                   described))


@_remembered
def of(source: Any, *, ragged: Mapping[str, int] | None = None) -> Source:
    """Returns a source for a source, a text, a dict of arrays, a table of pandas, polars or Arrow whose
    columns are numbers, one column of these, or any object with __len__ and __getitem__. ragged: the largest
    dim 0 of such an object's fields whose dim 0 differs by record, as {"ids": 4096}."""
    if ragged and (isinstance(source, (Source, str, Mapping)) or not isinstance(source, RandomAccess)):
        raise InvalidArgument(f"source: ragged: found {type(source).__name__}, "
                              "needed an object with __len__ and __getitem__: of others it is known")
    if isinstance(source, Source):
        return source
    if isinstance(source, str):
        if source.endswith((".npz", ".npy")):
            raise InvalidArgument(f"open source {source!r}: an array of numpy's, needed is "
                                  "sources.of(numpy.load(path)) as the source")
        return open(source)
    if isinstance(source, Mapping):
        return arrays(source)
    if isinstance(source, np.ndarray) and not ragged:
        return arrays({"data": source})
    table = columns_of_table(source)
    if table is not None and not ragged:
        return arrays(table)
    if isinstance(source, RandomAccess):
        together = together_of(source)
        return Source(_function_source(len(source), lambda record, epoch, seed: source[record]
                                       if together is None else rows_of(together([record]))[0],
                                       type(source).__name__, None, ragged=ragged, together=together))
    if isinstance(source, os.PathLike):
        return of(os.fsdecode(source))
    raise InvalidArgument(f"loader: source {type(source).__name__}, needed is a shardwise source, a text, "
                          "a dict of arrays, or an object with __len__ and __getitem__")


@_remembered
def zip(*all_sources: Any) -> Source:
    """Joins the fields of all sources side by side. Their sizes must be equal."""
    return Source(_core.Records.zip([of(s)._records for s in all_sources]))


@_remembered
def concat(*all_sources: Any) -> Source:
    """Joins the records of all sources, one source after the other. Their fields must be equal."""
    return Source(_core.Records.concat([of(s)._records for s in all_sources]))


@_remembered
def mix(all_sources: Sequence[Any], weights: Sequence[float],
        changes: Sequence[tuple[int, Sequence[float]]] = ()) -> Source:
    """Draws from sources by weights. As whole numbers, these are the exact counts among each as many records
    as their sum; the smaller sources repeat. Fractions such as [0.7, 0.3] count as the least whole numbers in
    that ratio, if these add up to a million at most; else they are rounded to millionths. changes: (first
    sample of the run, weights): other weights from that sample on. Deliver in order:
    Loader(order="sequential")."""
    return Source(_core.Records.mix([of(s)._records for s in all_sources], _whole_weights(weights),
                                    [(first, _whole_weights(w)) for first, w in changes]))


def _whole_weights(weights: Sequence[Any]) -> list[int]:
    import decimal
    import fractions

    found: list[Any] = [weight.item() if getattr(weight, "shape", None) == () else weight
                        for weight in weights]
    for weight in found:
        is_number = isinstance(weight, (numbers.Real, decimal.Decimal)) and not isinstance(weight, bool)
        if not is_number or weight != weight or not 0 <= weight < 1 << 53:
            raise InvalidArgument(f"mix: found the weight {weight!r}, needed are numbers from 0 to 2^53")
    if all(isinstance(weight, numbers.Integral) for weight in found):
        return [int(weight) for weight in found]
    exact = [fractions.Fraction(str(weight)) for weight in found]
    near = [weight.limit_denominator(1_000_000) for weight in exact]
    scale = math.lcm(*(weight.denominator for weight in near))
    whole = [int(weight * scale) for weight in near]
    divisor, total = math.gcd(*whole) or 1, sum(exact)
    if total > 0 and sum(whole) // divisor > 1_000_000:
        return [max(1, round(weight / total * 1_000_000)) if weight > 0 else 0 for weight in exact]
    return [weight // divisor for weight in whole]


def _native(array: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    ours = NUMPY[name_of(array.dtype, name)]
    return np.ascontiguousarray(array, dtype=ours).reshape(array.shape)


def _as_dict(record: Any) -> dict[str, Any]:
    if isinstance(record, Mapping):
        return {str(name): value for name, value in record.items()}
    if isinstance(record, (tuple, list)):
        return {str(i): value for i, value in enumerate(record)}
    return {"data": record}


def _filled_up(array: np.ndarray[Any, Any], field: Field) -> np.ndarray[Any, Any]:
    whole = np.zeros(field.shape, field.dtype)
    whole[:len(array)] = array
    return whole


def _name_of(function: Any) -> str:
    """Returns a name that is the same in every process, as repr() is not."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


class _Mapped:
    def __init__(self, source: Source, function: Callable[..., Mapping[str, Any]]) -> None:
        import inspect

        self.source, self.function = source, function
        try:
            parameters = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty
                          and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
            self.takes_random = len(parameters) >= 2
        except (TypeError, ValueError):
            self.takes_random = False

    def __call__(self, record: int, epoch: int, seed: int) -> Any:
        values = self.source.read(record, epoch=epoch, seed=seed)
        if not self.takes_random:
            return self.function(values)
        bits = np.random.Philox(key=[seed, epoch], counter=[0, 0, 0, record])
        return self.function(values, np.random.Generator(bits))


def _function_source(size: int, function: Callable[[int, int, int], Any], what: str, name: str | None,
                     fields: Sequence[Field] | None = None,
                     made_of: tuple[str, _core.Records | None] = ("", None),
                     ragged: Mapping[str, int] | None = None,
                     together: Callable[[list[int]], Any] | None = None) -> _core.Records:
    if fields is None:
        if size == 0:
            raise InvalidArgument(f"{what}: there is no record to tell the fields by")
        first = {n: array_of(v, n) for n, v in _as_dict(function(0, 0, 0)).items()}
        for odd in [n for n in ragged or {} if n not in first or not first[n].ndim]:
            raise InvalidArgument(f"{what}: ragged: found {odd!r}, needed a field with a dim: "
                                  f"{', '.join(first)}")
        most = ragged or {}
        fields = [Field(n, NUMPY[name_of(a.dtype, n)], (most[n], *a.shape[1:]) if n in most else a.shape,
                        n in most) for n, a in first.items()]
    known = list(fields)
    if not known:
        raise InvalidArgument(f"{what}: records have no field, needed is at least one")

    def row_of(record: int, made: Any) -> tuple[list[Any], list[int]]:
        found = _as_dict(made)
        kept, lengths = [], []
        for f in known:
            if f.name not in found:
                raise InvalidArgument(f"{what}: record {record} has no field {f.name!r}: "
                                      f"it has {', '.join(found)}")
            array = array_of(found[f.name], f.name)
            if f.ragged and (array.ndim != len(f.shape) or array.shape[1:] != f.shape[1:]
                             or len(array) > f.shape[0]):
                raise InvalidArgument(f"{what}: record {record}, field {f.name!r}: found shape "
                                      f"{list(array.shape)}, needed {list(f.shape)} or less in dim 0")
            if not f.ragged and array.shape != f.shape:
                hint = (f", or ragged={{{f.name!r}: the most there are}}" if array.shape[1:] == f.shape[1:]
                        and array.ndim else "")
                raise InvalidArgument(f"{what}: record {record}, field {f.name!r}: found shape "
                                      f"{list(array.shape)}, needed {list(f.shape)} as all have{hint}")
            if array.dtype != f.dtype and not np.can_cast(array.dtype, f.dtype, "same_kind"):
                raise InvalidArgument(f"{what}: record {record}, field {f.name!r}: dtype {array.dtype}, "
                                      f"needed is {f.dtype}")
            lengths.append(array.shape[0] if array.ndim else 1)
            kept.append(_filled_up(array, f) if f.ragged else np.asarray(array, dtype=f.dtype, order="C"))
        return kept, lengths

    def make(record: int, epoch: int, seed: int) -> tuple[list[tuple[int, int]], Any]:
        kept, lengths = row_of(record, function(record, epoch, seed))
        return [(a.ctypes.data, length) for a, length in _zip(kept, lengths)], kept

    def make_all(records: list[int]) -> tuple[list[tuple[int, int, list[int]]], Any]:
        assert together is not None
        made = together(records)
        columns = columns_of(made, known)
        lengths: list[list[int]] = [[] for _ in known]
        if columns is None:
            rows = [row_of(record, row) for record, row in _zip(records, rows_of(made))]
            columns = [np.stack(column) for column in _zip(*(kept for kept, _ in rows))]
            lengths = [list(each) for each in _zip(*(each for _, each in rows))]
        return [(a.ctypes.data, a[0].nbytes,
                 n if f.ragged else []) for f, a, n in _zip(known, columns, lengths)], columns

    fingerprint = None
    if name is not None:
        import hashlib

        text = repr((what, name, size,
                     [(f.name, str(f.dtype), f.shape, *(["ragged"] if f.ragged else [])) for f in known]))
        fingerprint = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    return _core.Records.of_function(
        [(f.name, name_of(f.dtype, f.name), list(f.shape), f.ragged) for f in known], size,
        make, fingerprint, *made_of, together=None if together is None else make_all)

check_calls(__name__)

_refuse = names_of_others(__name__, {
    **dict.fromkeys(("parquet", "arrow", "feather"), "sources.of(table) of pandas, polars or Arrow"),
    "pickle": "sources.of(object)",
    **dict.fromkeys(("huggingface", "hf", "datasets", "torch"), "sources.of(dataset)"),
    "webdataset": "tar(path, height, width)", **dict.fromkeys(("json", "ndjson"), "jsonl(path)"),
    "text": 'jsonl(path, text="text")', "npz": 'arrays(numpy.load(path))',
    **dict.fromkeys(("image_folder", "imagefolder"), "images(folder, height, width)"), "hdf": "hdf5(path)",
    "tfrecords": "tfrecord(path)"})


def __getattr__(name: str) -> Any:
    if not name.startswith("_") and callable(vars(Source).get(name)):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: needed is "
                             f"sources.of(source).{name}(...)")
    _refuse(name)
