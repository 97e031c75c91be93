"""`python -m shardwise` and `shardwise`: run the command that this package contains."""

import os
import sys


def main() -> None:
    """Becomes the command, whose words and exit status are its own."""
    program = os.path.join(os.path.dirname(__file__), "bin", "shardwise")
    if not os.path.exists(program):
        sys.exit("shardwise: this installation has no command; pip install shardwise brings it")
    os.environ.setdefault("SHARDWISE_PYTHON", sys.executable)  # imports of DCP and Orbax come back here
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
