"""Results that C++ binds are values: they compare, pickle and copy by their fields."""

import copy
import pickle

import numpy as np
import pytest

import shardwise as sw
from shardwise import _core

MACHINE = "h100-80gb"
BOUND = {kind for kind in vars(_core).values() if hasattr(kind, "__match_args__")}


def parts_of(value):
    """Yields a value, and all values in it."""
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, (list, tuple)):
        return [part for one in value for part in parts_of(one)]
    names = getattr(value, "__match_args__", ()) if type(value) in BOUND else ()
    return [value, *(part for name in names for part in parts_of(getattr(value, name)))]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "step.swp"
    path.write_text(
        '%0 = input() "x" : f32[64, 32] marked data,- kind=loader\n'
        '%1 = input() "w" : f32[32, 16] marked -,model kind=parameter\n'
        '%2 = dot_general(%0, %1) "bi,ih->bh" : f32[64, 16]\n'
        '%3 = dot_general(%0, %2) "bi,bh->ih" : f32[32, 16]\nreturn %3\n')
    return sw.programs.load(path)


@pytest.fixture(scope="module")
def results(program, tmp_path_factory):
    plan = program.plan("data=4,model=2", capacity=1 << 10)
    return [program.inputs, plan.traffic, plan.storage, plan.changes(MACHINE),
            *(plan.why_not("w", wanted, machine=MACHINE) for wanted in ("data,-", "-,model")),
            program.meshes(8, MACHINE), program.meshes(8, MACHINE, search=True), *reports(tmp_path_factory.mktemp("run"))]


def reports(folder):
    """Compares two checkpoints, damages one, repairs it by parity, and damages it more than parity can repair."""
    w = np.linspace(0, 1, 1 << 20, dtype=np.float32).reshape(1 << 10, -1)
    for name, scale in (("a", 1), ("b", 2)):
        sw.save(folder / name, {"w": scale * w, "i": np.arange(5 * scale)}, codec="none")
    found = [sw.diff(folder / "a", folder / "b"), sw.stats(folder / "b", histogram=3), sw.write_parity(folder / "a", blocks=1)]
    file = next((folder / "a").glob("shards-*.h5"))
    for damaged in ([1 << 20], range(0, 4 << 20, 1 << 19)):
        data = bytearray(file.read_bytes())
        for place in damaged:
            data[place] ^= 1
        file.write_bytes(data)
        found += [sw.verify(folder / "a"), sw.repair(folder / "a")]
    return found


def test_each_result_is_equal_to_its_copies(results):
    parts = [part for part in parts_of(results) if type(part) in BOUND]
    parts += [part for one in parts if type(one) is sw.programs.Searched for part in one.__getstate__()[-1]]
    assert {type(part) for part in parts} == BOUND
    for part in parts:
        for again in (pickle.loads(pickle.dumps(part)), copy.deepcopy(part), copy.copy(part)):
            assert again is not part and again == part and repr(again) == repr(part)
            assert pickle.dumps(again) == pickle.dumps(part)


def test_a_copy_of_a_search_is_on_the_page_of_a_plan(program):
    found = program.search("data=4,model=2", MACHINE)
    plan = program.mark(found.marks).plan("data=4,model=2")
    assert plan.report(MACHINE, search=copy.deepcopy(found)) == plan.report(MACHINE, search=found)


def test_a_state_of_another_class_is_refused(results):
    for value in (part for part in parts_of(results) if type(part) in BOUND):
        state = value.__getstate__()
        for wrong in ((), state[1:], (object(), *state[1:])):
            with pytest.raises(sw.InvalidArgument, match="found the state of another class"):
                type(value).__new__(type(value)).__setstate__(wrong)
