"""Draws a plan for notebooks: a table, and a picture of the memory over the step."""

from __future__ import annotations

import json
from html import escape
from typing import Any

_COLORS = {"parameter": "#4a86d4", "optimizer": "#8a7bd6", "loader": "#35a79d",
           "array": "#8a95a1", "checkpoint": "#b0844f",
           "activation": "#e09a3e", "gradient": "#d8697f", "collective": "#5fae62", "gaps": "#b4bcc5"}
_WIDTH, _HEIGHT, _TOP, _MOST_POINTS = 560, 150, 14, 140


def data_of(page: str) -> dict[str, Any]:
    """Returns the data in a page of to_html(): to_json()'s object under "plan", the curve, the collectives,
    the inputs."""
    data: dict[str, Any] = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    return data


def bytes_text(count: float) -> str:
    """Returns a number of bytes as the command writes it: "1.50 MiB"."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        count /= 1024
        if count < 1024 or unit == "EiB":
            return f"{count:.2f} {unit}"
    raise AssertionError


def _height(count: int, peak: int) -> str:
    return f"{_TOP + (1 - count / peak) * (_HEIGHT - _TOP):.1f}"


def _picture(data: dict[str, Any]) -> str:
    """Draws the memory by kind over the steps. Many steps are drawn in groups, each at its highest."""
    curve, peak = data["curve"], max(data["plan"]["memory"]["peak_bytes"], 1)
    points, end = curve["points"], max(curve["steps"], 1)
    size = -(-len(points) // _MOST_POINTS)
    highest = [max(points[i:i + size], key=lambda point: sum(point["bytes"]))
               for i in range(0, len(points), size)]
    begins = [0.0] + [point["step"] / end * _WIDTH for point in highest[1:]] + [float(_WIDTH)]
    below = [0] * len(highest)
    paths = []
    for number, kind in enumerate(curve["kinds"]):
        above = [low + point["bytes"][number] for low, point in zip(below, highest)]
        if above != below:
            up = "".join(f"V{_height(y, peak)}H{begins[i + 1]:.1f}" for i, y in enumerate(above))
            down = "".join(f"V{_height(y, peak)}H{x:.1f}" for x, y in reversed([*zip(begins, below)]))
            paths.append(f'<path d="M0 {_HEIGHT}{up}{down}Z" fill="{_COLORS[kind]}"/>')
        below = above
    return (f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" style="max-width:100%" role="img" '
            f'aria-label="Memory over {curve["steps"]} steps, at most {bytes_text(peak)}">{"".join(paths)}'
            f'<line x1="0" x2="{_WIDTH}" y1="{_TOP}" y2="{_TOP}" stroke="currentColor" stroke-dasharray="4 '
            f'3"/><text x="{_WIDTH}" y="10" text-anchor="end" font-size="11" fill="currentColor">needs '
            f'{bytes_text(peak)}</text></svg>')


def small_html(page: str) -> str:
    """Returns some kB of HTML without a script for a page of to_html()."""
    data = data_of(page)
    plan = data["plan"]
    memory = plan["memory"]
    fits = {None: "", True: ", fits", False: ", does not fit"}[memory["fits"]]
    head = f"{plan['operations']:,} operations on {plan['mesh']} ({plan['devices']:,} devices){fits}"
    if plan["attention"]:
        head += f", attention planned as {plan['attention']}"
    rows = [(bytes_text(count), kind, f'<span style="color:{_COLORS[kind]}">&#9632;</span> ')
            for kind, count in memory["by_kind"].items()]
    rows.append((bytes_text(memory["peak_bytes"]), "needed on the fullest device", ""))
    rows.append((bytes_text(sum(line["wire_bytes"] for line in plan["traffic"])), "sent by each device", ""))
    table = "".join(f'<tr><td style="text-align:right">{count}</td><td '
                    f'style="text-align:left">{mark}{escape(name)}</td></tr>' for count, name, mark in rows)
    return (f"<div><p><b>{escape(plan['program'])}</b>: {escape(head)}</p>{_picture(data)}"
            '<table><thead><tr><th style="text-align:right">bytes</th><th '
            'style="text-align:left">kind</th></tr></thead>'
            f"<tbody>{table}</tbody></table><p>fullest at {escape(memory['step'] or 'the start')}</p></div>")
