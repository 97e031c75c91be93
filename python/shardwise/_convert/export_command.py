"""Run by `shardwise export` for formats that only packages of Python can write.

    python3 -m shardwise._convert.export_command dcp|orbax SOURCE FOLDER OPTIONS

FOLDER is empty; OPTIONS is an object of JSON: target (named in messages), max_shard, memory, threads, edits.
Lines `progress DONE TOTAL` report progress; the last line is JSON with the number of bytes of the tensors, or
an error.
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

    given = json.loads(options)
    select, exclude, *rules = given["edits"]
    edits: Any = (select, exclude, *[[tuple(pair) for pair in pairs] for pairs in rules])
    status = 0
    try:
        with opened(source, given["memory"], edits, given["threads"]) as checkpoint:
            work = Export(checkpoint, given["target"], given["max_shard"], given["memory"],
                          lambda done, total: print(f"\nprogress {done} {total}", flush=True))
            write(work, format, folder)
        said: Any = {"logical_bytes": work.total}
    except Error as error:
        status, said = 3, {"code": error.code, "message": str(error)}
    print("\n" + json.dumps(said), flush=True)
    os._exit(status)  # so that it is the last line


if __name__ == "__main__":
    main(*sys.argv[1:])
