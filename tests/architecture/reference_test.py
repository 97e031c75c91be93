"""docs/reference is what scripts/reference.py makes of the docstrings: reference_test.py SOURCE_DIR."""
import pathlib
import subprocess
import sys
import tempfile

source = pathlib.Path(sys.argv[1])
committed = source / "docs" / "reference"
with tempfile.TemporaryDirectory() as folder:
    subprocess.run([sys.executable, source / "scripts" / "reference.py", folder], check=True)
    made = {path.name: path.read_text() for path in pathlib.Path(folder).iterdir()}
there = {path.name: path.read_text() for path in committed.iterdir()}
differing = sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))
if differing:
    sys.exit(f"docs/reference is not current in {', '.join(differing)}: run scripts/reference.py")
