"""docs/python.md, docs/planning.md, docs/spmd.md, docs/python_reference.md and README: every sample runs, every public name is told of, and
links lead somewhere."""

import ast
import importlib
import importlib.util
import inspect
import os
import pathlib
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from processes import free_port

os.environ["JAX_PLATFORMS"] = "cpu"  # before JAX is imported, as all tests of it have it
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

ROOT = pathlib.Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "python.md"
PLANNING = ROOT / "docs" / "planning.md"
SPMD = ROOT / "docs" / "spmd.md"
REFERENCE = ROOT / "docs" / "python_reference.md"
README = ROOT / "README.md"
PACKAGE = ROOT / "python" / "shardwise"
# Not ours, and not always there.
OPTIONAL = ("torch", "jax", "orbax", "h5py", "safetensors", "mpi4py", "transformers", "accelerate", "lightning")


@dataclass
class Block:
    line: int  #: of its first line of code
    code: str

    @property
    def is_script(self) -> bool:
        return "__name__ ==" in self.code

    def missing(self) -> str:
        """The package that it needs and that is not here."""
        named = re.findall(r"^\s*(?:import|from)\s+([\w.]+)", self.code, re.MULTILINE)
        needed = [n.split(".")[1 if n.startswith("shardwise.") else 0] for n in named]
        return next((n for n in needed if n in OPTIONAL and importlib.util.find_spec(n) is None), "")


def sections(page: pathlib.Path) -> dict[str, list[Block]]:
    """The ```python blocks of each part that begins with ##, by its title."""
    found: dict[str, list[Block]] = {}
    title, begin, inside = "", 0, None
    lines = page.read_text().split("\n")
    for number, line in enumerate(lines, 1):
        if inside is None and line.startswith("## "):
            title = line[3:]
        elif inside is None and line.startswith("```"):
            inside, begin = line[3:].strip(), number + 1
        elif line.startswith("```"):
            if inside == "python":
                found.setdefault(title, []).append(Block(begin, "\n".join(lines[begin - 1 : number - 1]) + "\n"))
            inside = None
    assert inside is None, f"{page}: a block is not closed"
    return found


PARTS = [(REFERENCE, title, blocks) for title, blocks in sections(REFERENCE).items()]
# The others are one program each: a part goes on from those before it.
PARTS += [(page, "all", [block for blocks in sections(page).values() for block in blocks])
          for page in (README, TUTORIAL, PLANNING, SPMD)]


@pytest.mark.parametrize("page, title, blocks", PARTS, ids=[f"{p.name}: {t}" for p, t, _ in PARTS])
@pytest.mark.filterwarnings("ignore")
def test_samples_run(tmp_path, monkeypatch, page, title, blocks):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "docs"}
    for block in blocks:
        missing = block.missing()
        if missing:  # what follows goes on from it
            pytest.skip(f"line {block.line} on: needs {missing}, which this environment has not")
        if block.is_script:
            run_script(page, block)
        else:
            # With the page's own line numbers, for a traceback.
            exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), names)


def test_the_page_of_a_plan_is_what_is_printed(capsys):
    """But for the numbers of operations, which another JAX would change."""
    pytest.importorskip("jax", reason="needs jax, which this environment has not")
    text = PLANNING.read_text()
    names: dict[str, Any] = {}
    for block in [block for title in ("Capture", "Mark", "Plan") for block in sections(PLANNING)[title]]:
        exec(block.code, names)
    printed = [re.sub(r"%\d+|\d+ operations", "", line) for line in capsys.readouterr().out.splitlines()]
    shown = re.search(r"```\n(step: .*?)```", text, re.DOTALL)
    assert shown
    for line in shown[1].splitlines():
        begin, is_cut, _ = line.partition("..")
        wanted = re.sub(r"%\d+|\d+ operations", "", begin if is_cut else line)
        assert any(one.startswith(wanted) if is_cut else one == wanted for one in printed), line


def run_script(page: pathlib.Path, block: Block) -> None:
    """As its first line says: "# torchrun --nproc-per-node 2 train.py", "# job.py: python job.py 0 & python job.py 1"."""
    comment = block.code.split("\n")[0]
    commands = re.sub(r"^# (?:\S+: )?", "", comment).split(" & ")
    name = next(word for word in commands[0].split() if word.endswith(".py"))
    folder = pathlib.Path(name.removesuffix(".py"))
    folder.mkdir()
    (folder / name).write_text(block.code.replace("12355", str(free_port())))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1",
                   "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    processes = []
    for number, command in enumerate(commands):
        program, *words = command.split()
        how = ["-m", "torch.distributed.run", "--standalone"] if program == "torchrun" else []
        with open(folder / f"{number}.txt", "w") as output:
            processes.append(subprocess.Popen([sys.executable, *how, *words], cwd=folder, env=environment, stdout=output,
                                              stderr=subprocess.STDOUT))
    try:
        statuses = [process.wait(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    said = "".join((folder / f"{number}.txt").read_text() for number in range(len(commands)))
    assert not any(statuses), f"{page}:{block.line}: {comment}\n{said}"


def public_names(module: str) -> list[str]:
    """What a module offers: what it defines, and what it takes from another as a name of its own."""
    path = PACKAGE.joinpath(*module.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    names = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            names += [alias.asname for alias in node.names if alias.asname == alias.name]
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names.append(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names.append(node.targets[0].id)
    return [name for name in names if name and not name.startswith("_")]


MODULES = ["shardwise", "shardwise.group", "shardwise.sources", "shardwise.torch", "shardwise.torch.spmd", "shardwise.torch.transformers", "shardwise.torch.accelerate",
           "shardwise.torch.lightning", "shardwise.jax", "shardwise.jax.args", "shardwise.jax.ocp", "shardwise.orbax",
           "shardwise.programs"]


def imported(module: str) -> Any:
    for needed in module.split(".")[1:]:
        if needed in OPTIONAL:
            pytest.importorskip(needed, reason=f"needs {needed}, which this environment has not")
    return importlib.import_module(module)


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_told_of(module):
    words = set(re.findall(r"\w+", REFERENCE.read_text()))
    names = public_names(module)
    assert names and [name for name in names if name not in words] == []


@pytest.mark.parametrize("module", MODULES)
def test_every_class_and_function_has_a_docstring(module):
    loaded = imported(module)
    without = []
    for name in public_names(module):
        value = getattr(loaded, name)
        said = value.__doc__ or ""
        # A dataclass without one gets its signature; a class without one must not show its base's.
        is_own = not inspect.isclass(value) or "__doc__" in vars(value)
        if inspect.isclass(value) or inspect.isfunction(value):
            if not said.strip() or said.startswith(f"{name}(") or not is_own:
                without.append(name)
    assert without == []


def anchors(page: pathlib.Path) -> set[str]:
    return {re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in page.read_text().split("\n")
            if line.startswith("#")}


@pytest.mark.parametrize("page", [TUTORIAL, PLANNING, SPMD, REFERENCE], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        file, _, anchor = target.partition("#")
        linked = page.parent / file if file else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


def test_the_tutorial_is_read_in_ten_minutes():
    assert len(TUTORIAL.read_text().splitlines()) <= 200
