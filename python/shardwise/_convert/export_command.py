"""Writes the formats that only packages of Python can write, for `shardwise export`.

    python3 -m shardwise._convert.export_command dcp|orbax SOURCE FOLDER OPTIONS

FOLDER is empty. OPTIONS is a JSON object: target (its name in messages), max_shard, memory, threads, edits.
Lines `progress DONE TOTAL` report progress; the last line is JSON with the bytes of the tensors, or with an
error.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, NoReturn


def main(format: str, source: str, folder: str, options: str) -> NoReturn:
    from .._errors import Error
    from .export import Export, opened
    from .export_formats import write

    option = json.loads(options)
    select, exclude, *rules = option["edits"]
    edits: Any = (select, exclude, *[[tuple(pair) for pair in pairs] for pairs in rules])
    status = 0
    try:
        with opened(source, option["memory"], edits, option["threads"]) as checkpoint:
            work = Export(checkpoint, option["target"], option["max_shard"], option["memory"],
                          lambda done, total: print(f"\nprogress {done} {total}", flush=True))
            write(work, format, folder)
        result: Any = {"logical_bytes": work.total}
    except Error as error:
        status, result = 3, {"code": error.code, "message": str(error)}
    print("\n" + json.dumps(result), flush=True)
    os._exit(status)  # so that no thread prints a later line


if __name__ == "__main__":
    main(*sys.argv[1:])
