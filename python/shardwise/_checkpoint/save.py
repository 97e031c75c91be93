"""Saving to a path, by one process or by all of a job."""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Mapping, Sequence

import numpy as np

from .. import _core
from .._arrays.arrays import (MEMORY, Codec, Existing, Faults, Sources, check_choice, check_codec, flattened,
                              is_array)
from .._errors import InvalidArgument, WrongType
from .._paths import Path, local, local_or_bucket
from .._progress import Progress, ProgressFunction, function_of
from .._trees import objects as _objects
from .._trees.nested import encoded_kinds, encoded_path, names_of
from ..group import Call, Group, single

log = logging.getLogger("shardwise")

#: Path of the step before, whose unchanged chunks are not written again; empty if there is no such step.
FindEarlier = Callable[[], str]


def no_step() -> str:
    return ""


def since(path: Path | None) -> FindEarlier:
    """Returns the FindEarlier for the unchanged_since= of a save."""
    if path is None:
        return no_step
    absolute = os.path.abspath(local(path, "save"))
    return lambda: absolute


@dataclass
class SaveStats:
    """The result of a save."""

    path: str
    logical_bytes: int  #: of the tensors
    stored_bytes: int  #: of their chunks that were written, compressed
    file_bytes: int  #: of all files
    chunks: int
    seconds: float  #: until it was committed
    skipped: bool = False  #: nothing was written: existing="skip" found it there, or a save was under way
    #: what could not be done after the commit: parity, or the removal of older steps, which is tried again
    cleanup_error: str = ""
    parity_bytes: int = 0  #: of its parity files: CheckpointManager(parity_blocks=...)
    #: of the logical bytes, those of chunks that had not changed and were not written again
    unchanged_bytes: int = 0
    blocked_seconds: float = 0.0  #: how long the caller of save() or save_async() waited
    plan_seconds: float = 0.0  #: of `seconds`, on the slowest process: until all writes were planned;
    write_seconds: float = 0.0  #: until its shard file was on the disk;
    publish_seconds: float = 0.0  #: and all the rest
    #: of copies of the arrays on this process, and of the buffers of the one that has most
    memory_bytes: int = 0
    error: str = ""  #: why nothing was saved, with the rank: on_save_error="warn"; `path` is empty
    failed_saves: int = 0  #: saves in a row that failed before this one, and this one if it did


@dataclass
class Plan:
    """One process's part of a save."""

    sources: Sources
    objects: dict[str, Any] = field(default_factory=dict)  #: by name, encoded
    aliases: dict[str, str] = field(default_factory=dict)  #: second names of tensors
    tree: Any = None  #: JSON
    extra: dict[str, Any] = field(default_factory=dict)  #: more keys of the document, JSON

    def document(self) -> str:
        """Returns all that is stored besides the tensors, as one JSON text; empty if there is nothing."""
        document = {**self.extra}
        for key, value in (("objects", self.objects), ("aliases", self.aliases), ("tree", self.tree)):
            if value:
                document[key] = value
        if not document:
            return ""
        text = json.dumps(document, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"save: found {text[error.start]!r} in a name or an object, needed is "
                                  f"text that UTF-8 can hold") from None
        return text


def encode_objects(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Raises one TypeError (one InvalidArgument, if all is nested too deep) that names all that cannot be
    stored."""
    encoded: dict[str, Any] = {}
    wrong = []
    only_deep = True
    for name, value in objects.items():
        if not _objects.is_text(name):
            raise InvalidArgument(f"object {name!r} has a name with a lone surrogate: "
                                  "needed is one that UTF-8 can hold")
        try:
            encoded[name] = _objects.encode(value)
        except (TypeError, InvalidArgument, RecursionError) as error:
            only_deep = only_deep and not isinstance(error, TypeError)
            wrong.append(f"{name!r}: {error}")
    if wrong:
        text = f"{len(wrong)} of {len(objects)} objects: {'; '.join(wrong[:10])}"
        raise InvalidArgument(text) if only_deep else WrongType(text)
    return encoded


def plan_of(tensors: Mapping[str, Any], metrics: Mapping[str, Any] | None = None) -> Plan:
    """A plan of a mapping of names: arrays, objects that JSON can hold, and dicts, lists and tuples of them.
    metrics: encoded."""
    flat = flattened(tensors)
    names = names_of(flat.leaves, "/")
    arrays = {names[path]: leaf for path, leaf in flat.leaves.items() if is_array(leaf)}
    faults = Faults()
    objects = {names[path]: leaf for path, leaf in flat.leaves.items() if not is_array(leaf)}
    encoded = faults.trying(encode_objects, objects) or {}
    plan = Plan(Sources(), encoded, extra={"metrics": metrics} if metrics else {})
    for name, array in arrays.items():
        faults.trying(plan.sources.add_array, name, array)
    faults.check()
    scalars = {name: "scalar" for name, array in arrays.items() if isinstance(array, np.generic)}
    if scalars:
        plan.extra["numpy"] = scalars
    if flat.kinds:
        plan.extra["paths"] = {name: encoded_path(path) for path, name in names.items()}
        plan.extra["containers"] = encoded_kinds(flat.kinds)
        plan.tree = {"kind": "nested"}
    return plan


def save(path: Path, tensors: Mapping[str, Any], *, user: Any = None, codec: Codec = "zstd",
         existing: Existing = "fail", threads: int = 0, memory: int = MEMORY, progress: Progress = None,
         unchanged_since: Path | None = None) -> SaveStats:
    """Saves arrays and plain objects as the checkpoint `path`, a directory of any name.

    Values may be arrays of any strides and byte order, of numpy or of what has `__array__`; None, bool, int,
    float, str, bytes, set, enums; and dicts, lists and tuples of all of these. Arrays within them have names
    of their own: the keys that lead to them, joined with "/". Nothing is at `path` until every byte is on the
    disk.

    codec: "zstd", "none", or "auto" (zstd if the disk does not wait for it). existing: "fail"; "replace",
    which replaces an existing checkpoint in one step; or "skip", which writes nothing if a valid checkpoint
    is there (SaveStats.skipped). user: any JSON. memory: host bytes beyond the arrays. unchanged_since: a
    checkpoint on the same file system, of an earlier step: chunks of about 1 MiB that have not changed since
    are not written again but linked. What is saved stays whole if that one is removed.

    In a bucket a path is a step's, as "s3://bucket/runs/step-00000100"; a CheckpointManager keeps several.
    SaveStats.path names the generation of it that was written, and the step's path stands for the newest.

    Raises AlreadyExists, TypeError for what cannot be stored, InvalidArgument, Unsupported, IOFailed.
    """
    check_choice("existing", existing, ("fail", "replace", "skip"))
    check_codec(codec)
    path = local_or_bucket(path, "save")
    return write_together(Call(), path, plan_of(tensors), single(), [], user=user, codec=codec,
                          existing=existing, threads=threads, memory=memory, progress=progress,
                          find_earlier=since(unchanged_since))


def write_groups(path: str, count: int, sources_of: Callable[[int], Sources], document: Callable[[], str], *,
                 user_json: str = "{}", existing: Existing = "fail", codec: Codec = "zstd") -> str:
    """Saves groups of boxes by and by, each as a shard file of its own: one is in memory at a time. The
    document is asked for after them. Returns the path."""
    attempt = _core.Attempt(path, existing)
    try:
        records = []
        for number in range(count):
            sources = sources_of(number)  # kept while it is written
            # Each group is a writer of its own, of pieces that are listed: no rule has to say which are
            # whose.
            records.append(_core.write_shards(attempt.directory, number, list(range(count + 1)), sources.list,
                                              codec, MEMORY, 0, None))
            del sources
        stats = attempt.publish(records, user_json, document())
    except BaseException:
        attempt.abandon()
        raise
    written: str = stats["path"]
    return written


def _skipped(path: str) -> SaveStats:
    return SaveStats(path, logical_bytes=0, stored_bytes=0, file_bytes=0, chunks=0, seconds=0, skipped=True)


def call_of(group: Group, path: str, *, user: Any, codec: str, existing: str, deadline: float,
            **more: Any) -> Call:
    """Returns the call with which all processes of a group save; its path and options must be the same for
    all of them."""
    try:
        text = _objects.plain_json({} if user is None else user, "user")
    except (TypeError, ValueError) as error:
        text = str(error)
    if len(text) > 200:
        import hashlib

        text = f"of {len(text)} characters, SHA-256 {hashlib.sha256(text.encode()).hexdigest()}"
    return group.call(f"save {path}", deadline,
                      {"path": path, "codec": codec, "existing": existing, "user": text, **more})


@dataclass
class Caller:
    """Who calls a save: since when it waits, how long if it goes on before the save has ended, and bytes of
    its copies."""

    begun: float = field(default_factory=time.monotonic)
    waited: float | None = None
    copied_bytes: int = 0

    def part(self) -> tuple[float, bool, int]:
        """Returns how long it has waited, True if it still does, and the copied bytes."""
        waited = time.monotonic() - self.begun if self.waited is None else self.waited
        return waited, self.waited is None, self.copied_bytes

    def told(self, stats: SaveStats) -> SaveStats:
        if not stats.skipped:
            stats.blocked_seconds = self.part()[0]
            stats.memory_bytes += self.copied_bytes
        return stats


def shown_by_first(progress: Progress, rank: int, path: str) -> ProgressFunction | None:
    """Returns the function that a save reports its progress to. Only rank 0 shows a bar."""
    return function_of(None if progress is True and rank else progress, f"save {os.path.basename(path)}")


def core_arguments(plan: Plan, group: Group, starts: Sequence[int], user: Any, codec: str,
                   existing: str) -> dict[str, Any]:
    """Returns the arguments that C++ takes for a save by all processes of a group."""
    is_job = group.size > 1

    def document(said: list[bytes]) -> str:
        return (merged_plan(plan, said, starts) if is_job else plan).document()

    user_json = _objects.plain_json({} if user is None else user, "user")
    return {"starts": list(starts) if is_job else [], "sources": plan.sources.list, "codec": codec,
            "existing": existing, "user": user_json, "described": said_of(plan, starts) if is_job else b"",
            "document": document}


def log_saved(stats: SaveStats, group: Group) -> None:
    if group.rank == 0 and not stats.skipped:
        together = f" by {group.size} processes" if group.size > 1 else ""
        log.info(
            "saved %s%s: %.1f MiB in %.2f s", stats.path, together, stats.file_bytes / 2**20, stats.seconds
        )


def write_together(
    call: Call,
    path: str,
    plan: Plan,
    group: Group,
    starts: Sequence[int],
    *,
    user: Any = None,
    codec: Codec = "zstd",
    existing: Existing = "fail",
    threads: int = 0,
    memory: int = MEMORY,
    progress: Progress = None,
    find_earlier: FindEarlier = no_step,
    caller: Caller | None = None,
) -> SaveStats:
    """Saves by all processes of a group: rank r stands for the devices [starts[r], starts[r + 1]).

    What fails on one rank is raised on all, and then nothing is committed. A progress function is
    told of what its rank writes; a bar is shown by rank 0. find_earlier: called on rank 0, for all.
    """
    arguments = core_arguments(plan, group, starts, user, codec, existing)
    stats = SaveStats(**_core.save_together(call, path, **arguments, find_earlier=find_earlier, memory=memory,
                                            threads=threads,
                                            progress=shown_by_first(progress, group.rank, path)))
    if stats.skipped:
        return _skipped(path)
    log_saved(stats, group)
    return stats if caller is None else caller.told(stats)


def said_of(plan: Plan, starts: Sequence[int]) -> bytes:
    """The names and objects of a rank, for merged_plan()."""
    return json.dumps([plan.objects, plan.aliases, plan.extra, list(starts)]).encode()


def merged_plan(own: Plan, said: Iterable[bytes], starts: Sequence[int]) -> Plan:
    """On rank 0: the objects and names of all ranks; of the other keys of the document its own values go
    first. Raises InvalidArgument if two ranks have different objects under one name."""
    plan = Plan(own.sources, tree=own.tree, extra=dict(own.extra))
    first: dict[str, int] = {}
    for rank, text in enumerate(said):
        objects, aliases, extra, devices = json.loads(text)
        if devices != list(starts):
            raise InvalidArgument(f"found the devices {devices} of the ranks on rank {rank}, "
                                  f"needed {list(starts)}, as on rank 0")
        for name, value in objects.items():
            if name in plan.objects and plan.objects[name] != value:
                raise InvalidArgument(f"object {name!r} differs between rank {first[name]} and rank {rank}: "
                                      "a value that each rank has of its own is given as PerRank(value)")
            if name not in plan.objects:
                plan.objects[name] = value
                first[name] = rank
        plan.aliases.update(aliases)
        for key, value in extra.items():
            if isinstance(value, dict):
                plan.extra[key] = {**value, **plan.extra.get(key, {})}
    return plan
