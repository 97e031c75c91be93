"""What `shardwise import` runs for what Python's packages alone can read: a line of JSON says what is wrong.

    python3 -m shardwise._import_command dcp|orbax SOURCE TARGET

Without TARGET the last line says what tensors there are, by the metadata alone: [["w", "f32", [2, 3]], ..].
"""

from __future__ import annotations

import json
import os
import sys


def main(format: str, source: str, target: str | None = None) -> int:
    import shardwise as sw

    from ._export import PACKAGES

    try:
        if target is None:
            print("\n" + json.dumps(_described(format, source)), flush=True)
            os._exit(0)  # so that it is the last line
        if format == "dcp":
            sw.import_dcp(source, target)
        else:
            sw.import_orbax(source, target)
    except sw.Error as error:
        print("\n" + json.dumps({"code": error.code, "message": str(error)}))
        return 3
    except ImportError as error:
        print("\n" + json.dumps({"code": "unsupported", "message": f"read {source}: found no {error.name} in {sys.executable}, which this "
                                                                  f"format needs: `{sys.executable} -m pip install {PACKAGES[format]}`"}))
        return 3
    return 0


def _described(format: str, source: str) -> list[tuple[str, str, list[int]]]:
    from shardwise import _import_dcp, _import_orbax

    return _import_dcp.described(source) if format == "dcp" else _import_orbax.described(source)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
