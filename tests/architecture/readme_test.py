"""README and docs quote the examples, which CTest runs, and their output, and links lead somewhere:
readme_test.py SOURCE_DIR."""
import pathlib
import re
import sys

source = pathlib.Path(sys.argv[1])
readme = (source / "README.md").read_text()
for name in ("02_save_here_load_there.cc", "02_save_here_load_there.txt"):
    text = (source / "examples" / name).read_text()
    if text not in readme:
        sys.exit(f"README.md does not show examples/{name} as it is")

# docs/programs.md quotes the example's output. Blocks of another kind name their language.
printed = (source / "examples" / "06_program_stages.txt").read_text()
blocks = (source / "docs" / "programs.md").read_text().split("```")[1::2]
for block in blocks[1:]:  # the first is a picture
    if not block.startswith("\n"):
        continue
    for line in block.strip("\n").split("\n"):
        if line not in printed:
            sys.exit(f"docs/programs.md quotes what examples/06_program_stages does not print: {line}")

# Links lead to files, and to headings in them.
def anchors(page):
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# Samples that a docstring or a page shows may have brackets that look like links.
def links(page):
    prose = re.sub(r"(?ms)^```.*?^```|`[^`\n]*`", "", page.read_text())
    return re.findall(r"\]\(([^)\s]+)\)", prose)


for page in [source / "README.md", source / "CONTRIBUTING.md", *sorted((source / "docs").rglob("*.md"))]:
    for target in links(page):
        file, _, anchor = target.partition("#")
        linked = page.parent / file if file else page
        if not target.startswith("https:") and not (linked.exists() and (not anchor or anchor in anchors(linked))):
            sys.exit(f"{page.relative_to(source)} links to {target}, which is not there")

lines = len(readme.splitlines())
if lines >= 200:
    sys.exit(f"README.md has {lines} lines; needed are fewer than 200")
