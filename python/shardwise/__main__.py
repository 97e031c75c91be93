"""Runs the command that this package contains, for `python -m shardwise` and `shardwise`."""

import os
import sys


def main() -> None:
    """Replaces this process by the command."""
    program = os.path.join(os.path.dirname(__file__), "bin", "shardwise")
    if not os.path.exists(program):
        sys.exit("shardwise: this installation has no command; pip install shardwise brings it")
    os.environ.setdefault("SHARDWISE_PYTHON", sys.executable)  # imports of DCP and Orbax come back here
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
