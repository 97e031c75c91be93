"""bench/planning: points.py makes the tables of docs/how_sure.md, which compare plans with published measurements."""

import importlib
import pathlib
import re
import sys

import pytest

pytest.importorskip("jax", reason="needs jax, which this environment has not")

FOLDER = pathlib.Path(__file__).parents[2] / "bench" / "planning"


@pytest.fixture(scope="module")
def points():
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("points")
    sys.path.remove(str(FOLDER))


def shown(points, name):
    """The lines of a table of the page."""
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- end -->", points.PAGE.read_text(), re.DOTALL)
    assert found
    return found[1].split("\n")


def test_each_point_says_where_it_is_from(points):
    assert len(points.POINTS) >= 12
    for one in points.POINTS:
        assert one["source"] in points.FACTS["sources"] and one["at"], one["name"]
    assert f"{points.margin():.2f} GiB" in points.PAGE.read_text()


def test_facts_are_those_of_the_page(points):
    assert points.tables([])["speeds"][:2] == shown(points, "speeds")[:2]
    assert [row.split(" | ")[0].strip("| ") for row in shown(points, "peaks")[2:]] == [one["name"] for one in points.POINTS]
    for one in points.POINTS:
        assert any(points.speed(one) in row and one["at"] in row for row in shown(points, "speeds")), one["name"]


def test_a_point_is_planned_as_the_page_says(points):
    """The fastest one; the others are nightly."""
    point = next(one for one in points.POINTS if one["name"] == "N3")
    assert points.row(point) in shown(points, "peaks")


@pytest.mark.nightly
def test_all_points_are_planned_as_the_page_says(points):
    for name, lines in points.tables(points.POINTS).items():
        assert lines == shown(points, name)
