"""What bench/store.py found, as goals met or not and as text."""

from dataclasses import dataclass
from typing import Any

from measure import Spread, table
from store_case import AHEAD, ASLEEP, BARE, LIMIT, READ, READ_OUT, Fixed
from store_write import BARE_ENCODE, PLAIN, WRITE_BATCHES, WRITE_WHOLE

__all__ = ["FULL", "QUICK", "Result", "Settings", "judge_goals", "text"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How much to measure."""

    cases: tuple[Fixed, ...]
    texts: int
    rounds: int
    pass_s: float  # how long one turn of a contender lasts, about
    first_touch_rounds: int
    write_bytes: int
    write_rounds: int
    open_lengths: tuple[int, ...]
    virtual_chunks: int


def _cases(tokens: int, images: int, small: int) -> tuple[Fixed, ...]:
    return (
        Fixed("2 KiB", (("x", "u1", 2048),), tokens, (256, 4096), 0.9, 0.01),
        Fixed("150,528 B", (("x", "u1", 150_528),), images, (64,), 0.9, None),
        Fixed("128 B + label", (("x", "u1", 128), ("label", "i4", 0)), small, (1024, 8192), 0.6, 0.08),
    )


FULL = Settings(
    cases=_cases(500_000, 7000, 4_000_000),
    texts=100_000,
    rounds=21,
    pass_s=0.05,
    first_touch_rounds=5,
    write_bytes=1 << 30,
    write_rounds=7,
    open_lengths=(10**3, 10**6, 10**8),
    virtual_chunks=16_384,
)
QUICK = Settings(
    cases=_cases(50_000, 700, 400_000),
    texts=10_000,
    rounds=11,
    pass_s=0.02,
    first_touch_rounds=3,
    write_bytes=1 << 27,
    write_rounds=3,
    open_lengths=(10**3, 10**6),
    virtual_chunks=0,
)


@dataclass(frozen=True)
class Result:
    """Seconds per record of one contender on one workload."""

    case: str
    batch: int
    name: str
    record_bytes: float
    s: Spread

    def to_json(self) -> dict[str, Any]:
        figures = {"records_per_s": 1 / self.s.median, "bytes_per_s": self.record_bytes / self.s.median}
        return {"case": self.case, "batch": self.batch, "name": self.name, **figures, "s_per_record": self.s.to_json()}


def share(limit: Spread, other: Spread) -> tuple[float, float]:
    """Speed over LIMIT's: of the medians, and of the best turns, which neighbours disturb least."""
    return limit.median / other.median, limit.min / other.min


def judge_goals(report: dict[str, Any], results: list[Result], settings: Settings) -> list[dict[str, Any]]:
    """Each goal, what was measured, and whether it is met."""
    found = {(r.case, r.batch, r.name): r for r in results}
    goals = []
    for case in settings.cases:
        for batch in case.batches:
            limit = found[case.name, batch, LIMIT].s
            plain, filled = (share(limit, found[case.name, batch, name].s) for name in (READ, READ_OUT))
            goal = f"read {case.name}, batch {batch}: >= {case.goal} of LIMIT"
            goals.append(_goal(goal, f"{_pair(plain)}, with out= {_pair(filled)}", plain[0] >= case.goal))
    (bare,) = (r for r in results if r.name == BARE)
    decoded = share(bare.s, found[bare.case, bare.batch, READ].s)
    goals.append(_goal(f"read {bare.case}, batch {bare.batch}: >= 0.9 of the bare library", _pair(decoded), decoded[0] >= 0.9))
    writes = {name: Spread(tuple(row["s_per_byte"]["values"])) for name, row in report["write"].items()}
    for name in (WRITE_WHOLE, WRITE_BATCHES):
        written = share(writes[PLAIN], writes[name])
        goals.append(_goal(f"write 2 KiB, {name}: >= 0.8 of a plain file", _pair(written), written[0] >= 0.8))
    for case in settings.cases:
        if case.disk_goal is not None:
            overhead = report["disk"][case.name]["overhead"]
            goal = f"disk {case.name}: overhead <= {case.disk_goal:.0%}"
            goals.append(_goal(goal, f"{overhead:.2%}", overhead <= case.disk_goal))
    return goals


def _pair(shares: tuple[float, float]) -> str:
    return f"{shares[0]:.2f} (best {shares[1]:.2f})"


def _goal(goal: str, measured: str, met: bool) -> dict[str, Any]:
    return {"goal": goal, "measured": measured, "met": met}


def text(report: dict[str, Any], results: list[Result], settings: Settings) -> list[str]:
    """The whole report."""
    goals = [[goal["goal"], goal["measured"], "met" if goal["met"] else "NOT MET"] for goal in report["goals"]]
    lines = _heading(report)
    for case, batch in dict.fromkeys((r.case, r.batch) for r in results):
        lines += _section(
            f"Reading {case}, batch {batch}", report["notes"].get(f"{case}/{batch}", ""), _reads(results, case, batch)
        )
    lines += _section(
        "First touch: one pass in random order right after opening, page cache warm",
        "2 KiB, batch 256; pages are mapped as they are met, and with verify=True the crc of every page is computed",
        _first_touch(report["first_touch"]),
    )
    lines += _section(
        f"Writing, median of {settings.write_rounds} turns, fresh files, durable at the end", "", _writes(report["write"])
    )
    lines += _section("Bytes on disk", "", _disk(report["disk"]))
    lines += _section(
        "Opening, milliseconds, median (max)",
        "4-byte labels, warm; virtual: many chunks that are one and the same file",
        _opens(report["open"]),
    )
    return [*lines, *_section("Goals", "judged on medians; best: of the fastest turns", table(["goal", "measured", ""], goals))]


def _heading(report: dict[str, Any]) -> list[str]:
    host = report["machine"]
    software = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    busy = f"other programs took {report['others_share']:.0%} of the cores meanwhile (over 10 %: repeat when it is quiet)"
    load = f"load average before: {', '.join(map(str, host['load_average']))}"
    return [f"{host['cpu']}, {host['cores']} cores, {host['memory_bytes'] / 1e9:.0f} GB", software, f"{busy}; {load}"]


def _section(title: str, note: str, body: str) -> list[str]:
    return ["", title, *([note] if note else []), "", body]


def _reads(results: list[Result], case: str, batch: int) -> str:
    those = [r for r in results if (r.case, r.batch) == (case, batch)]
    limit = next(r for r in those if r.name in (LIMIT, BARE))
    rows = []
    for r in those:
        name = f"  {r.name}" if r.name in (AHEAD, ASLEEP) else r.name
        of_limit = (f"{ratio:.2f}" for ratio in share(limit.s, r.s))
        rows.append([name, f"{1 / r.s.median:,.0f}", f"{r.record_bytes / r.s.median / 1e9:.2f}", *of_limit])
    return table(["", "samples/s", "GB/s", "of LIMIT", "best turns"], rows)


def _first_touch(rows: list[dict[str, Any]]) -> str:
    first = rows[0]["s_per_record"]["median"]
    cells = [
        [r["name"], f"{1 / r['s_per_record']['median']:,.0f}", f"{2048 / r['s_per_record']['median'] / 1e9:.2f}",
         f"{first / r['s_per_record']['median']:.2f}"]
        for r in rows
    ]  # fmt: skip
    return table(["", "samples/s", "GB/s", "of LIMIT"], cells)


def _writes(rows: dict[str, dict[str, Any]]) -> str:
    plain, bare = rows[PLAIN]["s_per_byte"]["median"], rows[BARE_ENCODE]["s_per_byte"]["median"]
    cells = []
    for name, row in rows.items():
        s = row["s_per_byte"]
        turns = f"{1e-6 / s['max']:,.0f}..{1e-6 / s['min']:,.0f}"
        base = bare if "zstd" in name.lower() else plain
        cells.append([name, f"{row['bytes'] / 1e6:,.0f}", f"{1e-6 / s['median']:,.0f}", turns, f"{base / s['median']:.2f}"])
    return table(["", "payload MB", "MB/s", "slowest..fastest", "of plain / of bare zstd"], cells)


def _disk(rows: dict[str, dict[str, Any]]) -> str:
    cells = [[name, f"{r['payload']:,}", f"{r['stored']:,}", f"{r['overhead']:+.2%}"] for name, r in rows.items()]
    return table(["", "payload", "on disk", "overhead"], cells)


def _opens(rows: list[dict[str, Any]]) -> str:
    def cell(spread: dict[str, float]) -> str:
        return f"{spread['median'] * 1e3:.2f} ({spread['max'] * 1e3:.2f})"

    cells = [[r["records"], f"{r['chunks']:,}", cell(r["open_s"]), cell(r["first_record_s"])] for r in rows]
    return table(["records", "chunks", "open", "open and read one"], cells)
