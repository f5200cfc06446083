"""Measuring side by side: contenders take turns, figures keep their spread, and the machine is written down with them."""

import gc
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["Spread", "interleave", "machine", "progress", "run_child", "seconds", "table", "versions", "write_json"]


@dataclass(frozen=True)
class Spread:
    """What repeated measurements gave: noise only ever adds, so min is the code and median - min is the neighbours."""

    values: tuple[float, ...]

    @property
    def min(self) -> float:
        return min(self.values)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def max(self) -> float:
        return max(self.values)

    def to_json(self) -> dict[str, Any]:
        return {"min": self.min, "median": self.median, "max": self.max, "values": list(self.values)}


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """How long one call takes, with the garbage collector at rest.

    The clock is wall time; ``time.thread_time`` gives the processor time of the calling thread, which for work on one thread is the
    same on a quiet machine and keeps its meaning on a busy one.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        start = clock()
        work()
        return clock() - start
    finally:
        if was_on:
            gc.enable()


def interleave(
    contenders: Mapping[str, Callable[[], float]], *, rounds: int, slow_s: float = 1.0, slow_rounds: int = 5, label: str = ""
) -> dict[str, Spread]:
    """Each contender once per round, in an order drawn anew each time; each call returns its own figure.

    All meet the same weather that way, and none always follows the same other. One whose call lasts longer than ``slow_s`` stops
    after ``slow_rounds``.
    """
    figures: dict[str, list[float]] = {name: [] for name in contenders}
    cost: dict[str, float] = {}
    for number in range(rounds):
        for name in random.Random(number).sample(list(contenders), len(contenders)):
            if number >= slow_rounds and cost[name] > slow_s:
                continue
            progress(f"{label} round {number + 1}/{rounds}: {name}")
            start = time.perf_counter()
            figures[name].append(contenders[name]())
            cost[name] = time.perf_counter() - start
    return {name: Spread(tuple(values)) for name, values in figures.items()}


def progress(text: str, *, lasting: bool = False) -> None:
    """One line on stderr: overwritten on a terminal; elsewhere only the lasting ones are written."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text[:120]}", end="\n" if lasting else "", file=sys.stderr, flush=True)
    elif lasting:
        print(text, file=sys.stderr, flush=True)


def run_child(script: Path, *arguments: object, python: str = sys.executable) -> dict[str, Any]:
    """The JSON object a script prints when run in a fresh process."""
    command = [python, str(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{script.name} {' '.join(command[2:])} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def machine() -> dict[str, Any]:
    """Processor, cores, memory and load: without these a figure means nothing."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": pages,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def _cpu_model() -> str:
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    family = f"family {fields.get('cpu family', '?')} model {fields.get('model', '?')}"
    return f"{fields.get('model name', platform.processor() or 'unknown')} ({family})"


def versions(*packages: str) -> dict[str, str]:
    """Installed versions by package; the missing ones say so."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Plain text in columns: the first to the left, the others to the right."""
    widths = [max(len(row[k]) for row in [head, *rows]) for k in range(len(head))]
    lines = [_line(row, widths) for row in [head, ["-" * width for width in widths], *rows]]
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (
        cell.ljust(width) if k == 0 else cell.rjust(width) for k, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, *rest]).rstrip()


def write_json(path: Path, report: Mapping[str, Any]) -> None:
    """The report as indented JSON; the folder is made if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
