"""Saves a checkpoint to a path, by one process or by all processes of a job."""

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
from .._errors import InvalidArgument, WrongType, warn
from .._paths import Path, local, local_or_bucket
from .._progress import Progress, ProgressFunction, function_of
from .._trees import objects as _objects
from .._trees.nested import encoded_kinds, encoded_path, names_of
from ..group import Call, Group, single

log = logging.getLogger("shardwise")

#: Returns the path of the step before, whose unchanged chunks are linked; empty if there is no such step.
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
    logical_bytes: int  #: size of the tensors
    stored_bytes: int  #: size of their compressed chunks that were written
    file_bytes: int  #: size of all files
    chunks: int
    seconds: float  #: time until the commit
    skipped: bool = False  #: True if nothing was written: existing="skip", or another save was under way
    #: why parity, or the removal of older steps, failed after the commit; a later save tries the removal
    #: again
    cleanup_error: str = ""
    parity_bytes: int = 0  #: size of the parity files: CheckpointManager(parity_blocks=...)
    #: the part of logical_bytes in chunks that had not changed and were linked
    unchanged_bytes: int = 0
    blocked_seconds: float = 0.0  #: time that the caller of save() or save_async() waited
    plan_seconds: float = 0.0  #: the part of `seconds` that planned the writes, on the slowest process
    write_seconds: float = 0.0  #: the part that wrote its shard file to the disk
    publish_seconds: float = 0.0  #: the rest of `seconds`
    #: size of the copies of arrays on this process, and of the buffers of the process that has most
    memory_bytes: int = 0
    error: str = ""  #: why nothing was saved, with the rank, if on_save_error="warn"; `path` is empty then
    failed_saves: int = 0  #: number of failed saves in a row, with this one if it failed


@dataclass
class Plan:
    """The part that one process has in a save."""

    sources: Sources
    objects: dict[str, Any] = field(default_factory=dict)  #: encoded, by name
    aliases: dict[str, str] = field(default_factory=dict)  #: second names of tensors
    tree: Any = None  #: JSON
    extra: dict[str, Any] = field(default_factory=dict)  #: other keys of the document, JSON

    def document(self) -> str:
        """Returns everything but the tensors as one JSON text; empty if there is nothing."""
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
    """Returns the objects as JSON values. Raises one WrongType that names all objects that cannot be stored,
    or one InvalidArgument if all of them are nested too deep."""
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
    """Returns the plan for arrays, objects that JSON can hold, and dicts, lists and tuples of them, by name.
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

    Values may be arrays of any strides and byte order, of numpy or of a class that has `__array__`; None,
    bool, int, float, str, bytes, set, enums; and dicts, lists and tuples of all of these. An array within
    them is named by the keys that lead to it, joined with "/". Nothing is at `path` until every byte is on
    the disk.

    codec: "zstd", "none", or "auto" (zstd if the disk does not wait for it). existing: "fail"; "replace",
    which replaces an existing checkpoint in one step; or "skip", which writes nothing if a valid checkpoint
    is there (SaveStats.skipped). user: any JSON. memory: host bytes beyond the arrays. unchanged_since: a
    checkpoint of an earlier step on the same file system; chunks of about 1 MiB that have not changed since
    then are linked, not written again. The new checkpoint stays whole if the earlier one is removed.

    In a bucket the path is that of a step, as "s3://bucket/runs/step-00000100"; a CheckpointManager keeps
    several. SaveStats.path names the generation of the step that was written; the path of the step stands for
    the newest generation.

    Raises AlreadyExists, WrongType for a value that cannot be stored, InvalidArgument, Unsupported, IOFailed.
    """
    check_choice("existing", existing, ("fail", "replace", "skip"))
    check_codec(codec)
    path = local_or_bucket(path, "save")
    return write_together(Call(), path, plan_of(tensors), single(), [], user=user, codec=codec,
                          existing=existing, threads=threads, memory=memory, progress=progress,
                          find_earlier=since(unchanged_since))


def write_groups(path: str, count: int, sources_of: Callable[[int], Sources], document: Callable[[], str], *,
                 user_json: str = "{}", existing: Existing = "fail", codec: Codec = "zstd") -> str:
    """Saves groups of boxes one after another, each as a shard file, so that one group is in memory at a
    time. Calls document() after the last group. Returns the path."""
    attempt = _core.Attempt(path, existing)
    try:
        records = []
        for number in range(count):
            sources = sources_of(number)  # kept while it is written
            # Each group is a separate writer of listed pieces, so no rule has to divide the pieces.
            records.append(_core.write_shards(attempt.directory, number, list(range(count + 1)), sources.list,
                                              codec, MEMORY, 0, None))
            del sources
        stats = attempt.publish(records, user_json, document())
        warn_of_cleanup(stats)
    except BaseException:
        attempt.abandon()
        raise
    written: str = stats["path"]
    return written


def warn_of_cleanup(stats: dict[str, Any]) -> None:
    """Warns if the generation that a step in a bucket replaces is still there."""
    if stats["cleanup_error"]:
        warn(f"save {stats['path']}: {stats['cleanup_error']}")


def _skipped(path: str) -> SaveStats:
    return SaveStats(path, logical_bytes=0, stored_bytes=0, file_bytes=0, chunks=0, seconds=0, skipped=True)


def call_of(group: Group, path: str, *, user: Any, codec: str, existing: str, deadline: float,
            **more: Any) -> Call:
    """Returns the save call of all processes of a group. The path and the options must be equal on all of
    them."""
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
    """The time that the caller of a save waits, and the bytes of its copies. waited: seconds, if the caller
    went on before the save ended."""

    begun: float = field(default_factory=time.monotonic)
    waited: float | None = None
    copied_bytes: int = 0

    def part(self) -> tuple[float, bool, int]:
        """Returns the seconds that the caller has waited, whether it still waits, and the copied bytes."""
        waited = time.monotonic() - self.begun if self.waited is None else self.waited
        return waited, self.waited is None, self.copied_bytes

    def add_to(self, stats: SaveStats) -> SaveStats:
        if not stats.skipped:
            stats.blocked_seconds = self.part()[0]
            stats.memory_bytes += self.copied_bytes
        return stats


def shown_by_first(progress: Progress, rank: int, path: str) -> ProgressFunction | None:
    """Returns the function that gets the progress of a save. Only rank 0 shows a bar."""
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
    """Saves by all processes of a group. Rank r stands for the devices [starts[r], starts[r + 1]).

    A failure on one rank raises on all ranks, and nothing is committed. A progress function gets the bytes
    that its rank writes; rank 0 shows a bar. find_earlier: called on rank 0, for all ranks.
    """
    arguments = core_arguments(plan, group, starts, user, codec, existing)
    stats = SaveStats(**_core.save_together(call, path, **arguments, find_earlier=find_earlier, memory=memory,
                                            threads=threads,
                                            progress=shown_by_first(progress, group.rank, path)))
    if stats.skipped:
        return _skipped(path)
    log_saved(stats, group)
    return stats if caller is None else caller.add_to(stats)


def said_of(plan: Plan, starts: Sequence[int]) -> bytes:
    """Returns the names and objects of a rank, for merged_plan()."""
    return json.dumps([plan.objects, plan.aliases, plan.extra, list(starts)]).encode()


def merged_plan(own: Plan, said: Iterable[bytes], starts: Sequence[int]) -> Plan:
    """Returns, on rank 0, a plan with the objects and names of all ranks. For other keys of the document,
    values of rank 0 win. Raises InvalidArgument if two ranks have different objects under one name."""
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
