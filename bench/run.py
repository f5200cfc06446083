"""penstock beside its rivals: every contender in an environment of its own, all by the same consumer, in turns.

::

    python bench/rivals/environments.py            # once: the rivals' environments (make rivals)
    python bench/run.py                            # everything: about 35 minutes on 2 quiet cores
    python bench/run.py --quick                    # a smoke test: under 3 minutes
    python bench/run.py --workload tokens text     # only these
    python bench/run.py --only penstock lmdb       # only these contenders, and LIMIT
    python bench/run.py --docs                     # no measuring: the last figures into the page and its picture

Writes out/rivals.json and out/rivals.png. On a busy machine: ``chrt -r 1 python bench/run.py``.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from measure import machine, progress, versions, write_json
from penstock.report.doctor import Others
from rivals.contest import Effort, Place, heats, order_of, run_cold, run_epochs, run_heat
from rivals.plot import draw
from rivals.report import insert, markdown, merge, plain_text, short_markdown
from rivals.roster import BENCH, CONTENDERS, LIMIT
from rivals.text import make_texts
from rivals.workload import WORKLOADS, Workload, make

OUT = BENCH.parent / "out"
README = BENCH.parent / "README.md"
PAGE = BENCH.parent / "docs" / "explanation" / "performance.md"
MEMORY = Path("/dev/shm")
ROOM, SPARE = 12_500_000_000, 4_000_000_000
"""The most bytes of files at a time, and memory that must remain beside them."""
CHOICES = (*WORKLOADS, "mixed", "cold", "epochs", "order")


@dataclass(frozen=True)
class Settings:
    """How much is measured."""

    effort: Effort
    workloads: tuple[str, ...]
    records: dict[str, int]
    order_records: int


FULL = Settings(Effort(), CHOICES, {"mixed": 300_000, "cold": 250_000, "epochs": 8_192}, 10**8)
QUICK = Settings(
    Effort(rounds=2, pass_s=0.1, lead_s=0.05, verify_s=0.2, opens=1, slow_s=0.5, cold_s=0.3, epochs=6, settled=2),
    ("tokens", "text", "order"),
    {"tokens": 50_000, "images": 1_000, "small": 100_000, "text": 10_000, "mixed": 20_000, "cold": 20_000, "epochs": 2_048},
    10**6,
)


def workload_of(name: str, settings: Settings) -> Workload:
    """The records of a workload; mixtures and cold reads are of tokens."""
    workload = WORKLOADS.get(name, WORKLOADS["tokens"])
    return workload.cut(settings.records.get(name, workload.num_records))


def measure_workload(name: str, names: Sequence[str], settings: Settings, home: Path) -> dict[str, Any]:
    """One workload, heat by heat, with the files removed at the end."""
    workload, done = workload_of(name, settings), []
    with _place(home, name) as place:
        (make_texts if workload.is_text else make)(workload, place.source)
        for number, group in enumerate(heats(names, workload, ROOM)):
            progress(f"{name}, heat {number + 1}: {', '.join(group)}", lasting=True)
            if name == "cold":
                done.append(run_cold(group, workload, place, settings.effort))
            else:
                done.append(run_heat(group, workload, place, settings.effort, mixed=name == "mixed"))
    return merge(done)


@contextmanager
def _place(home: Path, name: str) -> Iterator[Place]:
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"rivals-{name}-", dir=home) as folder:
        logs = OUT / "rivals-logs"
        logs.mkdir(parents=True, exist_ok=True)
        yield Place(Path(folder), logs)


def home_of(name: str, chosen: Path | None) -> Path:
    """Where files go: in memory if there is room, as everything is read from a warm cache; on disk if it must be cold."""
    if chosen is not None:
        return chosen
    free = shutil.disk_usage(MEMORY).free if MEMORY.is_dir() else 0
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") + _cached()
    in_memory = name != "cold" and min(free, available - SPARE) >= ROOM
    return MEMORY if in_memory else OUT / "rivals-data"


def _cached() -> int:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return 1024 * (int(lines["Cached"].split()[0]) - int(lines["Shmem"].split()[0]))


def measure(chosen: Sequence[str], only: Sequence[str], settings: Settings, home: Path | None) -> Iterator[dict[str, Any]]:
    """The JSON that is kept, after every workload."""
    began, others = time.perf_counter(), Others()
    ready = [name for name, contender in CONTENDERS.items() if contender.missing is None]
    names = [name for name in ready if not only or name in only or name == LIMIT]
    report: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "versions": {name: CONTENDERS[name].package for name in ready if CONTENDERS[name].package}
        | {name: f"{name}=={found}" for name, found in versions("penstock").items()},
        "missing": {name: contender.missing for name, contender in CONTENDERS.items() if contender.missing is not None},
        "effort": asdict(settings.effort),
        "quick": settings is QUICK,
        "workloads": {},
        "epochs": {},
        "order": {},
        "order_records": settings.order_records,
    }
    for name in chosen:
        able = [one for one in names if ("tokens" if name == "epochs" else name) in CONTENDERS[one].can]
        if name == "epochs":
            report["epochs"] = measure_epochs(able, settings, home_of(name, home))
        elif name == "order":
            report["order"] = measure_order(able, settings.order_records)
        else:
            report["workloads"][name] = measure_workload(name, able, settings, home_of(name, home))
        yield report | {"minutes": (time.perf_counter() - began) / 60, "others_share": others.share()}


def measure_epochs(names: Sequence[str], settings: Settings, home: Path) -> dict[str, Any]:
    """Memory of everyone over many epochs of few records."""
    workload = workload_of("epochs", settings)
    with _place(home, "epochs") as place:
        make(workload, place.source)
        return run_epochs([name for name in names if name != LIMIT], workload, place, settings.effort)


def measure_order(names: Sequence[str], num_records: int) -> dict[str, Any]:
    """What everyone makes before the first batch of many records."""
    with _place(OUT, "order") as place:
        return {name: order_of(name, num_records, place) for name in names}


def write_docs(report: dict[str, Any]) -> None:
    """The tables between the markers of the page and of the README, and the picture."""
    PAGE.write_text(insert(PAGE.read_text(), markdown(report)))
    README.write_text(insert(README.read_text(), short_markdown(report)))
    draw(report, PAGE.with_suffix(".png"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="penstock beside its rivals.")
    parser.add_argument("--quick", action="store_true", help="small data and few turns: a smoke test")
    parser.add_argument("--workload", nargs="+", choices=CHOICES, metavar="NAME", help=f"of {', '.join(CHOICES)}")
    parser.add_argument(
        "--only", nargs="+", choices=list(CONTENDERS), default=[], metavar="NAME", help=f"of {', '.join(CONTENDERS)}"
    )
    parser.add_argument("--json", type=Path, default=OUT / "rivals.json", metavar="FILE", help="where the figures go")
    parser.add_argument("--dir", type=Path, metavar="FOLDER", help="where the records go; unless given, in memory if there is room")
    parser.add_argument("--docs", action="store_true", help="write the figures of the last run into the documentation")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes and files are cleaned up
    if options.docs:
        if not options.json.exists():
            parser.error(f"{options.json}: there are no figures yet; measure first, without --docs")
        write_docs(json.loads(options.json.read_text()))
        return 0
    settings = QUICK if options.quick else FULL
    report: dict[str, Any] = {}
    for report in measure(options.workload or settings.workloads, options.only, settings, options.dir):
        write_json(options.json, report)
    draw(report, options.json.with_suffix(".png"))
    print(plain_text(report))
    progress(f"took {report['minutes']:.1f} minutes", lasting=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
