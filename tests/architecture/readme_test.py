"""README and docs show what the examples, which CTest runs, are and print: readme_test.py SOURCE_DIR."""
import pathlib
import sys

source = pathlib.Path(sys.argv[1])
readme = (source / "README.md").read_text()
for name in ("02_save_here_load_there.cc", "02_save_here_load_there.txt"):
    text = (source / "examples" / name).read_text()
    if text not in readme:
        sys.exit(f"README.md does not show examples/{name} as it is")

# docs/programs.md: what it quotes of a program is what the example prints.
printed = (source / "examples" / "06_program_stages.txt").read_text()
blocks = (source / "docs" / "programs.md").read_text().split("```")[1::2]
for block in blocks[1:]:  # the first is a picture
    for line in block.strip("\n").split("\n"):
        if line not in printed:
            sys.exit(f"docs/programs.md quotes what examples/06_program_stages does not print: {line}")
