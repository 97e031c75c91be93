"""README shows the example that CTest runs, character by character: readme_test.py SOURCE_DIR."""
import pathlib
import sys

source = pathlib.Path(sys.argv[1])
readme = (source / "README.md").read_text()
for name in ("02_save_here_load_there.cc", "02_save_here_load_there.txt"):
    text = (source / "examples" / name).read_text()
    if text not in readme:
        sys.exit(f"README.md does not show examples/{name} as it is")
