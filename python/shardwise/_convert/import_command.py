"""Reads the formats that only packages of Python can read, for `shardwise import`. Prints an error as a line
of JSON.

    python3 -m shardwise._convert.import_command dcp|orbax SOURCE TARGET [SELECTION]

SELECTION is {"select": [PATTERN, ..], "exclude": [PATTERN, ..]}; it takes tensors of these names, and no
objects. Without TARGET the last line lists the tensors, from the metadata alone: [["w", "f32", [2, 3]], ..].
"""

from __future__ import annotations

import json
import os
import sys
from typing import NoReturn


def main(format: str, source: str, target: str | None = None, selection: str = "{}") -> NoReturn:
    from .._errors import Error
    from .._formats import dcp, orbax
    from .._formats.readers import PACKAGES

    status, line = 0, ""
    patterns = json.loads(selection)
    names, exclude = patterns.get("select") or None, patterns.get("exclude", ())
    try:
        if target is None:
            line = json.dumps(_described(format, source))
        elif format == "dcp":
            dcp.imported(source, target, "fail", "zstd", None, names, exclude)
        else:
            orbax.imported(source, target, "fail", None, names, exclude)
    except Error as error:
        status, line = 3, json.dumps({"code": error.code, "message": str(error)})
    except ImportError as error:
        status, line = 3, json.dumps({"code": "unsupported", "message": f"read {source}: "
                                      f"found no {error.name} in {sys.executable}, which this format needs: "
                                      f"`{sys.executable} -m pip install {PACKAGES[format]}`"})
    print("\n" + line, flush=True)
    os._exit(status)  # so that no thread of Orbax prints a later line


def _described(format: str, source: str) -> list[tuple[str, str, list[int]]]:
    from .._formats import dcp, orbax

    return dcp.described(source) if format == "dcp" else orbax.described(source)


if __name__ == "__main__":
    main(*sys.argv[1:])
