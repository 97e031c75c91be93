"""Writes a plan as a page, as JSON, and for a notebook."""

import json
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree

import pytest
import test_plans

import shardwise as sw
from shardwise import programs
from shardwise._programs.html import bytes_text, data_of

ROOT = pathlib.Path(__file__).parents[2]
MESH, MACHINE = "data=4,model=2", "h100-80gb"


@pytest.fixture
def program(tmp_path):
    (tmp_path / "step.swp").write_text(test_plans.TEXT)
    return sw.programs.load(tmp_path / "step.swp")


def test_json_is_what_the_command_prints(program, tmp_path):
    for capacity, machine in ((None, None), (1 << 20, None), (1 << 30, MACHINE)):
        options = (["--memory", str(capacity)] if capacity else []) + (["--device", machine] if machine else [])
        done = subprocess.run([sys.executable, "-m", "shardwise", "plan", tmp_path / "step.swp", "--mesh", MESH, "--json", *options],
                              capture_output=True, text=True, check=False)
        printed = json.loads(done.stdout)
        printed.pop("changes", None), printed.pop("batch_refused", None)
        plan = program.plan(MESH, capacity)
        assert plan.to_json(machine) == printed
        assert printed["memory"]["peak_bytes"] == plan.peak_bytes and printed["memory"]["by_kind"] == plan.bytes_by_kind
    assert plan.to_json(save_rate=1e6)["checkpoint"]["modelled_save_seconds"] == pytest.approx(2.097, rel=1e-3)


def test_what_was_found_beside_a_plan_is_told_as_the_command_tells_it(program, tmp_path):
    search, kinds = program.search(MESH, MACHINE, 1 << 10), set()
    assert not search.fits and set(search.hand_made_fit.values()) == {False}
    plans = [(search, sw.programs.load(tmp_path / "step.swp").mark(search.marks)), (None, program)]
    for found, chosen in plans:
        plan = chosen.plan(MESH, 1 << 10)
        how = {"machine": MACHINE, "search": found, "changes": plan.changes(MACHINE)}
        command = [sys.executable, "-m", "shardwise", "plan", tmp_path / "step.swp", "--mesh", MESH,
                   "--device", MACHINE, "--memory", "1024", *(["--search"] if found else [])]
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
        assert plan.to_json(**how) == json.loads(done.stdout) == data_of(plan.to_html(**how))["plan"]
        assert plan.report(**how) == subprocess.run(command, capture_output=True, text=True, check=False).stdout
        kinds |= {one.kind for one in how["changes"].found}
    assert kinds >= {"marks", "mesh"}
    with pytest.raises(sw.InvalidArgument, match="found a search without a machine"):
        plan.to_html(search=search)


@pytest.mark.parametrize("devices", [(1 << 20) + 1, 10**9, 2**62])
def test_a_mesh_of_too_many_devices_is_refused_at_once(program, devices):
    with pytest.raises(sw.Unsupported, match=f"plan: found a mesh of {devices} devices, needed at most 1048576"):
        program.plan({"data": devices})


def test_the_page_holds_these_numbers(program, tmp_path):
    plan = program.plan(MESH)
    page = plan.to_html(machine=MACHINE)
    assert data_of(page)["plan"] == plan.to_json(MACHINE)
    assert plan.to_html(tmp_path / "plan.html", machine=MACHINE) is None
    assert (tmp_path / "plan.html").read_text() == page
    assert program.to_html(MESH, machine=MACHINE) == page
    assert program.to_html(MESH, tmp_path / "again.html", capacity=1 << 30) is None
    assert data_of((tmp_path / "again.html").read_text())["plan"]["memory"]["fits"] is True
    with pytest.raises(sw.IOFailed, match="write a page: .*nowhere"):
        plan.to_html(tmp_path / "nowhere" / "plan.html")
    with pytest.raises(sw.InvalidArgument, match="needed one of tpu-v4, h100-80gb"):
        plan.to_html(machine="abacus")


def test_steps_and_marks_have_the_lines_that_they_come_from(program):
    captured = programs.Program(program._graph, sources=[f"train.py:{100 + number}" for number in range(len(program))])
    data = data_of(captured.plan(MESH).to_html())
    by_name = {one["name"]: one["line"] for one in data["curve"]["points"]}
    assert by_name['dot_general %5 in "layer1"'] == "train.py:105"
    w1 = next(one for one in data["inputs"]["rows"] if one["tensor"] == "w1")
    assert w1["line"] == "train.py:101" and 'because train.py:101 marks "w1" as -,model' in w1["why"]


def test_a_notebook_shows_a_table_and_a_picture(program):
    program._name = "<b>step & more</b>"
    plan = program.plan(MESH, capacity=1 << 30)
    shown = plan._repr_html_()
    assert len(shown) < 20_000 and "<script" not in shown
    tree = xml.etree.ElementTree.fromstring(shown.replace("&#9632;", ""))
    assert tree.find("p/b").text == program._name and "data=4,model=2 (8 devices), fits" in tree.find("p").find("b").tail
    cells = {"".join(row[1].itertext()).strip(): row[0].text for row in tree.iter("tr")}
    wanted = {kind: bytes_text(count) for kind, count in plan.bytes_by_kind.items()}
    assert wanted.items() <= cells.items() and cells["needed on the fullest device"] == bytes_text(plan.peak_bytes)
    assert cells["sent by each device"] == bytes_text(sum(plan.wire_bytes.values()))
    # The picture ends below the line of the peak's bytes, by the gaps.
    tops = [float(top) for one in tree.iter("path") for top in re.findall(r"V([0-9.]+)", one.get("d"))]
    height = 150 - 14
    assert min(tops) == pytest.approx(14 + plan.bytes_by_kind.get("gaps", 0) / plan.peak_bytes * height, abs=0.06)
    assert max(tops) == pytest.approx(150)


def test_of_many_steps_the_peak_is_drawn(tmp_path):
    lines = ['%0 = input() "x" : f32[64, 64] kind=loader']
    for number in range(1, 3000):
        op = "cumsum(%0) dims=[0]" if number % 7 else f"cumsum(%{number - 1}) dims=[0]"
        lines.append(f"%{number} = {op} : f32[64, 64]")
    (tmp_path / "long.swp").write_text("\n".join([*lines, "return " + " ".join(f"%{number}" for number in range(2900, 3000))]))
    plan = sw.programs.load(tmp_path / "long.swp").plan("data=2")
    points = data_of(plan.to_html())["curve"]["points"]
    assert max(sum(one["bytes"]) for one in points) + plan.bytes_by_kind.get("gaps", 0) == plan.peak_bytes
    assert len(plan._repr_html_()) < 20_000


def test_the_notebook_runs(tmp_path, monkeypatch):
    pytest.importorskip("jax", reason="needs jax, which this environment has not")
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((ROOT / "examples/python/plan.ipynb").read_text())
    names, shown = {}, []
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == [] and cell["execution_count"] is None
        *before, last = re.split(r"\n(?=\S)", "".join(cell["source"]))
        exec("\n".join(before), names)
        try:
            shown.append(eval(last, names))
        except SyntaxError:
            exec(last, names)
    plan = names["plan"]
    assert plan in shown and plan.fits and "<svg" in plan._repr_html_()
    assert data_of((tmp_path / "plan.html").read_text())["plan"] == plan.to_json(MACHINE)
    assert any(hasattr(one, "_repr_svg_") for one in shown) and len(names["rows"]) == 4
