"""README and docs/: every sample of Python runs, every public name has a docstring, the tutorial is short."""

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
# These packages are others', and may be missing.
OPTIONAL = ("torch", "jax", "orbax", "h5py", "safetensors", "mpi4py", "transformers", "accelerate",
            "lightning", "hdf5plugin")


@dataclass
class Block:
    line: int  #: of its first line of code
    code: str

    @property
    def is_script(self) -> bool:
        return "__name__ ==" in self.code

    def missing(self) -> str:
        """The package that it needs and that is not installed."""
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


#: Each page is one program: a block goes on from those before it. A block of ```py is an excerpt that does
#: not run.
PAGES = {page: blocks for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
         if (blocks := [block for part in sections(page).values() for block in part])}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
@pytest.mark.filterwarnings("ignore")
def test_samples_run(tmp_path, monkeypatch, page):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "docs"}
    for block in PAGES[page]:
        missing = block.missing()
        if missing:  # later blocks go on from it
            pytest.skip(f"line {block.line} on: needs {missing}, which this environment has not")
        if block.is_script:
            run_script(page, block)
        else:
            # With the page's own line numbers, for a traceback.
            exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), names)


def test_the_page_of_a_plan_is_what_is_printed(capsys):
    """Compares without the numbers of operations, which another JAX would change."""
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
    """Runs a block as its first line says: "# torchrun --nproc-per-node 2 train.py",
    "# job.py: python job.py 0 & python job.py 1"."""
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


spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
assert spec and spec.loader
reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference)


def imported(module: str) -> Any:
    for needed in module.split(".")[1:]:
        if needed in OPTIONAL:
            pytest.importorskip(needed, reason=f"needs {needed}, which this environment has not")
    return importlib.import_module(module)


@pytest.mark.parametrize("module", reference.MODULES)
def test_every_class_and_function_has_a_docstring(module):
    loaded = imported(module)
    without = []
    for name in reference.Module.get(module).public:
        value = getattr(loaded, name)
        said = value.__doc__ or ""
        # A dataclass without one gets its signature; a class without one must not show its base's.
        is_own = not inspect.isclass(value) or "__doc__" in vars(value)
        if inspect.isclass(value) or inspect.isfunction(value):
            if not said.strip() or said.startswith(f"{name}(") or not is_own:
                without.append(name)
    assert without == []


def test_the_tutorial_is_read_in_ten_minutes():
    assert len(TUTORIAL.read_text().splitlines()) <= 200
