"""What `shardwise import` runs for what Python's packages alone can read: a line of JSON says what is wrong.

    python3 -m shardwise._import_command dcp|orbax SOURCE TARGET
"""

from __future__ import annotations

import json
import sys


def main(format: str, source: str, target: str) -> int:
    import shardwise as sw

    try:
        if format == "dcp":
            sw.import_dcp(source, target)
        else:
            sw.import_orbax(source, target)
    except sw.Error as error:
        print("\n" + json.dumps({"code": error.code, "message": str(error)}))
        return 3
    except ImportError as error:
        needed = error.name or "another package"
        print("\n" + json.dumps({"code": "unsupported", "message": f"import {source}: found no {needed} in {sys.executable}, which "
                                                                  f"reads this format: `{sys.executable} -m pip install {needed}`"}))
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
