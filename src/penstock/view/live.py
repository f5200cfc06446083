"""What a file of loader figures says: speed, and how long the trainer waited, between each two of its lines."""

import errno
import json
import math
import os
import stat
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

__all__ = ["MOST_POINTS", "read_figures"]

MOST_BYTES = 4 << 20
"""Of longer files, the end is read."""
MOST_POINTS = 400
NEEDED = ("time_s", "batches", "samples", "bytes", "wait_s", "busy_s")

Line = dict[str, Any]


def read_figures(path: Path) -> dict[str, Any]:
    """The course of a run and its last line; ``state`` says whether there is something to see."""
    try:
        data = _end(path)
    except FileNotFoundError:
        return {"state": "absent", "points": []}
    except OSError as error:
        return {"state": f"unreadable: {error.strerror}", "points": []}
    lines = [line for line in map(_line, data.split(b"\n")[:-1]) if line is not None]  # the last one is still being written
    points = [point for earlier, later in pairwise(_thinned(lines)) if (point := _between(earlier, later)) is not None]
    return {"state": "running" if lines else "empty", "points": points, "last": _last(lines)}


def _end(path: Path) -> bytes:
    """The end of a file. What is no file could make us wait for ever: a pipe, or a device."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_BYTES))
        return file.read(MOST_BYTES)


def _line(data: bytes) -> Line | None:
    """A line that has every figure; None for anything else, which a file may hold too."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not all(_is_figure(found.get(name)) for name in NEEDED):
        return None
    return found


def _is_figure(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18 and math.isfinite(value)


def _thinned(lines: Sequence[Line]) -> list[Line]:
    """At most so many lines, the last one among them; each point then stands for the time between two."""
    step = -(-len(lines) // MOST_POINTS) or 1
    return list(lines[(len(lines) - 1) % step :: step])


def _between(earlier: Line, later: Line) -> dict[str, float] | None:
    """Figures per second of running time; None where a new run began."""
    changes = {name: later[name] - earlier[name] for name in NEEDED}
    spent = changes["wait_s"] + changes["busy_s"]
    if spent <= 0 or any(change < 0 for change in changes.values()):
        return None
    return {
        "time_s": later["time_s"],
        "samples_per_s": changes["samples"] / spent,
        "bytes_per_s": changes["bytes"] / spent,
        "waiting": min(1.0, changes["wait_s"] / spent),
    }


def _last(lines: Sequence[Line]) -> dict[str, Any] | None:
    if not lines:
        return None
    last = lines[-1]
    given = last.get("network")
    network: Line = given if isinstance(given, dict) else {}
    figures = {name: last[name] for name in (*NEEDED, "make_s", "skipped") if _is_figure(last.get(name))}
    fetched = {name: network[name] for name in ("bytes", "requests", "cached_bytes") if _is_figure(network.get(name))}
    return {**figures, "network": fetched, "advice": str(last.get("advice", ""))[:500]}
