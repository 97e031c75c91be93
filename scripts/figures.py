#!/usr/bin/env python3
"""Makes the pictures of README.md and docs/training.md: figures.py [FOLDER], by default docs/figures.

two_meshes.svg is the tensor of README's first program on both of its meshes: tiles, devices and colours are
those that `shardwise shards --svg` draws, put side by side at one scale. plan_*.svg are tensors of the plans
of docs/training.md as the command draws them. parallelism.svg is what examples/memory_report draws.
rivals.svg is what bench/rivals/figure.py draws of bench/rivals/measured. SHARDWISE and MEMORY_REPORT name
the command and the example, if they are not those of build/release.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[1]
SVG = "{http://www.w3.org/2000/svg}"
SHAPE = (12, 10)
SIDES = [("saved", "data=4,model=2", "data,model"), ("restored", "model=3", "-,model")]
PLANS = {  # mesh, spec, shape
    "data": ("data=8", "data,-", "512,64"),
    "fsdp": ("data=8", "data,-", "64,256"),
    "tensor": ("model=8", "-,model", "64,256"),
    "2d": ("data=4,model=2", "data,model", "64,256"),
    "context": ("context=8", "-,context", "2,128"),
    "experts": ("expert=8", "expert,-", "16,24"),
    "spatial": ("rows=8", "-,-,rows,-", "2,3,64,64"),
}
ROW, COLUMN, MARGIN, TOP, GAP = 22, 48, 16, 44, 72  # pixels of an element, and around the tensors


def drawn(mesh, spec, shape):
    """The SVG document that the command draws, as text."""
    command = os.environ.get("SHARDWISE", str(ROOT / "build/release/tools/shardwise"))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "shards.svg"
        subprocess.run([command, "shards", "--mesh", mesh, f"--spec={spec}", "--shape", shape, "--svg", path],
                       check=True, stdout=subprocess.DEVNULL)
        return path.read_text(encoding="utf-8")


def tiles(document, left):
    """Lines of SVG for the document's tiles, the tensor's first column at `left`."""
    for group in document.findall(f"{SVG}g[@data-box]"):
        box = group.get("data-box")
        (top, bottom), (begin, end) = ([int(n) for n in extent.split(":")]
                                       for extent in box.strip("[]").split(", "))
        tile = next(rect for rect in group.findall(f"{SVG}rect") if rect.get("class").startswith("tile"))
        x, y = left + COLUMN * begin, TOP + ROW * top
        yield (f'<rect class="{tile.get("class")}" x="{x}" y="{y}" width="{COLUMN * (end - begin)}" '
               f'height="{ROW * (bottom - top)}"/>')
        yield f'<text x="{x + 7}" y="{y + 19}">device {group.find(f"{SVG}text").text}</text>'
        yield f'<text class="quiet" x="{x + 7}" y="{y + 37}">{box}</text>'


def two_meshes():
    shape = ",".join(map(str, SHAPE))
    documents = [xml.etree.ElementTree.fromstring(drawn(mesh, spec, shape)) for _, mesh, spec in SIDES]
    width, height = 2 * (MARGIN + COLUMN * SHAPE[1]) + GAP, TOP + ROW * SHAPE[0] + MARGIN
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} '
           f'{height}" role="img">')
    yield (f"<title>One tensor of {list(SHAPE)}: " + ", ".join(f"{how} on {mesh}" for how, mesh, _ in SIDES)
           + "</title>")
    yield f"<style>{documents[0].find(f'{SVG}style').text}</style>"
    yield f'<rect class="page" width="{width}" height="{height}"/>'
    for side, ((how, mesh, spec), document) in enumerate(zip(SIDES, documents)):
        left = MARGIN + side * (COLUMN * SHAPE[1] + GAP)
        yield f'<text x="{left}" y="28">{how}: {list(SHAPE)} cut as {spec} on {mesh}</text>'
        yield from tiles(document, left)
    yield (f'<text x="{width // 2}" y="{TOP + ROW * SHAPE[0] // 2}" text-anchor="middle" '
           'style="font-size:28px">→</text>')
    yield "</svg>"


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/figures"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "two_meshes.svg").write_text("\n".join(two_meshes()) + "\n", encoding="utf-8")
    for name, (mesh, spec, shape) in PLANS.items():
        (folder / f"plan_{name}.svg").write_text(drawn(mesh, spec, shape), encoding="utf-8")
    report = os.environ.get("MEMORY_REPORT", str(ROOT / "build/release/examples/memory_report/memory_report"))
    subprocess.run([report, "--study", "parallelism", "--mfu-svg", folder / "parallelism.svg"], check=True,
                   stdout=subprocess.DEVNULL)
    rivals = ROOT / "bench/rivals"
    subprocess.run([sys.executable, rivals / "figure.py", rivals / "measured", "--svg",
                    folder / "rivals.svg"], check=True)


if __name__ == "__main__":
    main()
