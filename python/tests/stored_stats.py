"""Reads and checks the statistics that a manager stores with a step."""

import json
import math
import pathlib
from typing import Any

import shardwise as sw


def stats_of_step(root: pathlib.Path, step: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / f"stats-step-{step:08d}.json").read_text())
    return found


def check_stats(root: pathlib.Path, step: int, stats: sw.SaveStats) -> None:
    """Checks that they are all that the save returned, in the process that writes them."""
    found = stats_of_step(root, step)
    assert found.pop("directory") == pathlib.Path(stats.path).name
    assert found.pop("total_seconds") == stats.seconds
    speeds = found.pop("write_gb_per_second"), found.pop("total_gb_per_second")
    assert speeds == ((stats.logical_bytes - stats.unchanged_bytes) / stats.write_seconds / 1e9,
                      stats.logical_bytes / stats.seconds / 1e9)
    assert found == {name: getattr(stats, name) for name in found} and len(found) == 13
    assert math.isclose(stats.plan_seconds + stats.write_seconds + stats.publish_seconds, stats.seconds, abs_tol=1e-6)
    assert stats.blocked_seconds > 0 and stats.memory_bytes > 0


def names(root: pathlib.Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())
