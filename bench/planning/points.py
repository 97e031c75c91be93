#!/usr/bin/env python3
"""Compares the model of docs/how_sure.md with published measurements: points.py [--only N1,T1] [--update]

points.json holds published facts of jobs: sizes, mesh, batch, recomputation, memory, time. This program
captures each job (llama.py), plans it on its mesh and prints the tables of docs/how_sure.md; --update writes
them there. PYTHONPATH=build/release/python/package build/venv/bin/python bench/planning/points.py
"""
import argparse
import functools
import itertools
import json
import math
import os
import pathlib
import re
import statistics
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "how_sure.md"
FACTS: dict[str, Any] = json.loads((HERE / "points.json").read_text())
POINTS: list[dict[str, Any]] = FACTS["points"]
BAND = 0.10  #: of a peak


def margin() -> float:
    """GiB that PyTorch's allocator reserves beyond allocated memory: the median of the jobs whose source
    reports both."""
    return statistics.median(one["reserved_mib"] - one["allocated_mib"] for one in POINTS if "allocated_mib" in one) / 1024


def cost(point: dict[str, Any], looped: bool) -> Any:
    keys = ("model", "machine", "data", "tensor", "batch", "sequence", "micro_batches", "recompute", "state", "loss_parts")
    return _cost(looped, **{key: point[key] for key in keys if key in point})


@functools.cache
def _cost(looped: bool, model: str, data: int, tensor: int, batch: int, machine: str = "h100-80gb", **job: Any) -> Any:
    import llama

    program = llama.captured(llama.Sizes(**FACTS["models"][model]), llama.Job(batch=batch * data, **job), looped=looped)
    wanted = {f"data={data}", f"model={tensor}"}
    found = next(one for one in program.meshes(data * tensor, machine=machine) if set(one.mesh.split(",")) == wanted)
    assert found.cost is not None, found.refused
    return found.cost


def measured_gib(point: dict[str, Any]) -> tuple[float, str] | None:
    """What the source says of a device's memory."""
    if "allocated_mib" in point:
        return point["allocated_mib"] / 1024, "allocated"
    return (point["reserved_gib"], "reserved") if "reserved_gib" in point else None


def planned_gib(point: dict[str, Any]) -> float:
    """The peak, with the allocator's margin if the source reports reserved memory."""
    told = measured_gib(point)
    return cost(point, looped=False).peak_bytes / 2**30 + (margin() if told and told[1] == "reserved" else 0)


def mesh(point: dict[str, Any]) -> str:
    return f"data={point['data']}" + (f",model={point['tensor']}" if point["tensor"] > 1 else "")


def row(point: dict[str, Any]) -> str:
    told, planned = measured_gib(point), planned_gib(point)
    if told is not None:
        off = planned / told[0] - 1
        verdict = f"{off:+.1%}" + ("" if abs(off) <= BAND else ", missed")
        memory = f"{told[0]:.1f} {told[1]}"
    elif "device_gib" in point:
        memory = f"fits {point['device_gib']}"
        verdict = "fits" if planned <= point["device_gib"] else "missed"
    else:
        memory, verdict = "not told", ""
    times = point.get("micro_batches", 1)
    return (f"| {point['name']} | {point['model']} | {mesh(point)} | {point['batch']} x {point['sequence']}"
            f"{f', {times} times' if times > 1 else ''} | {point['recompute']} | {memory} | {planned:.1f} | {verdict} |")


def speed(point: dict[str, Any]) -> str:
    if "step_s" in point:
        text = f"{point['step_s']} s a step"
        return text + (f" (fastest {point['fastest_s']})" if point["fastest_s"] < 0.9 * point["step_s"] else "")
    return f"{point['tokens_s']} tokens/s a device" if "tokens_s" in point else f"{point['mfu']} % MFU"


def seconds_a_token(point: dict[str, Any], what: str) -> float:
    """Of a device, as the source has measured it or as modelled: what two meshes are compared by."""
    tokens = point["batch"] * point["sequence"] * point.get("micro_batches", 1) / point["tensor"]
    if what == "modelled":
        return float(cost(point, looped=point.get("micro_batches", 1) > 1).seconds / tokens)
    return point[what] / tokens if "step_s" in point else 1 / point["tokens_s"]


def pairs(points: list[dict[str, Any]], key: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Jobs of one source that train the same model in the same way (eager or compiled), on other meshes or with other batches,
    if the source reports both."""
    def way(one: dict[str, Any]) -> tuple[str, str, bool]:
        return one["model"], one["source"], "compile" in one["at"]

    def told(one: dict[str, Any]) -> bool:
        return measured_gib(one) is not None if key == "peak" else "step_s" in one or "tokens_s" in one

    return [(a, b) for a, b in itertools.combinations(filter(told, points), 2) if way(a) == way(b)]


def order(points: list[dict[str, Any]]) -> list[str]:
    lines = []
    for text, key in (("step time", "step_s"), ("step time, each job's fastest", "fastest_s"), ("peak memory", "peak")):
        for devices in ("as many devices", "any number of devices"):
            right, wrong = 0, []
            for a, b in pairs(points, key):
                if devices == "as many devices" and a["data"] * a["tensor"] != b["data"] * b["tensor"]:
                    continue
                if key == "peak":
                    told, planned = [measured_gib(one)[0] for one in (a, b)], [planned_gib(one) for one in (a, b)]  # type: ignore[index]
                else:
                    told, planned = ([seconds_a_token(one, what) for one in (a, b)] for what in (key, "modelled"))
                is_right = (told[0] < told[1]) == (planned[0] < planned[1])
                right += is_right
                wrong += [] if is_right else [f"{a['name']}-{b['name']}"]
            lines.append(f"| {text} | {devices} | {right} of {right + len(wrong)} | {', '.join(wrong)} |")
    return lines


def tables(points: list[dict[str, Any]]) -> dict[str, list[str]]:
    """By the name of the table in the page."""
    return {
        "peaks": ["| job | model | mesh | batch of a data rank | computed again | source, GiB | planned, GiB | off by |",
                  "|---|---|---|---|---|---|---|---|", *map(row, points)],
        "speeds": ["| job | source | measured |", "|---|---|---|",
                   *(f"| {one['name']} | {one['source']}: {one['at']} | {speed(one)} |" for one in points)],
        "order": ["| two jobs of one model, by | on | in the right order | wrong |", "|---|---|---|---|", *order(points)],
    }


def written(text: str, found: dict[str, list[str]]) -> str:
    for name, lines in found.items():
        text, count = re.subn(rf"(<!-- {name} -->\n).*?(<!-- end -->)", lambda at: at[1] + "\n".join(lines) + "\n" + at[2], text,
                              flags=re.DOTALL)
        assert count == 1, name
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names of jobs")
    parser.add_argument("--update", action="store_true", help="write the tables to docs/how_sure.md")
    options = parser.parse_args()
    points = [one for one in POINTS if options.only is None or one["name"] in options.only.split(",")]
    found = tables(points)
    for lines in found.values():
        print("\n".join(lines) + "\n")
    inside = [abs(planned_gib(one) / told[0] - 1) for one in points if (told := measured_gib(one))]
    print(f"peaks within {BAND:.0%}: {sum(off <= BAND for off in inside)} of {len(inside)}; "
          f"margin of the allocator {margin():.2f} GiB; largest {max(inside, default=math.nan):.1%}")
    if options.update:
        PAGE.write_text(written(PAGE.read_text(), found))


if __name__ == "__main__":
    main()
