"""What bench/shuffle.py found, as goals met or not and as text."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from contender import BATCH, ORDERS, WHOLES
from measure import Spread, table

__all__ = ["FAR", "FULL", "GRAIN", "NUMPY", "QUICK", "TRILLION", "Result", "Settings", "judge_goals", "text"]

GRAIN = "Grain index_shuffle rounds=4"
NUMPY = WHOLES[0]
TRILLION = 10**12
FAR = 900_000_000_000


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How much to measure."""

    lengths: tuple[int, ...]
    baseline: int  # numpy.random.permutation of so many is what ratios are taken to
    rounds: int
    pass_s: float  # how long one turn of a contender lasts, about
    calls: int
    children: int  # fresh processes per first index


FULL = Settings(
    lengths=(1000, 65_536, 65_537, 10**6, 2**20 + 1, 10**8, 10**9, TRILLION),
    baseline=10**8,
    rounds=7,
    pass_s=0.02,
    calls=500,
    children=5,
)
QUICK = Settings(lengths=(1000, 65_537, 10**6, TRILLION), baseline=10**7, rounds=5, pass_s=0.005, calls=100, children=1)


@dataclass(frozen=True)
class Result:
    """Nanoseconds per index of one contender at one length, and what was checked of its indices."""

    name: str
    threads: int
    n: int
    ns: Spread
    checked: str

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "threads": self.threads, "n": self.n, "checked": self.checked, "ns": self.ns.to_json()}


def judge_goals(results: list[Result], cold: list[dict[str, Any]], memory: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each goal, what was measured, and whether it is met (None: this run cannot tell)."""
    one = {(r.name, r.n): r.ns.median for r in results if r.threads == 1 and r.n > BATCH}
    shuffle = {key: ns for key, ns in one.items() if key[0] == "Shuffle"}
    blocks = {key: ns for key, ns in one.items() if key[0].startswith("BlockShuffle")}
    (_, n), worst = max(shuffle.items(), key=lambda pair: pair[1])
    (block_name, block_n), block_worst = max(blocks.items(), key=lambda pair: pair[1])
    ratio = _paired_ratio(results)
    far = next(row["first_s"] for row in cold if row["name"] == "Shuffle" and row["position"] == FAR)
    growth = max(row["growth_bytes"] for row in memory if row["name"] in ORDERS)
    uneven = worst / min(shuffle.values())
    block_found = f"{block_worst:.2f} ns, {block_name} at n={block_n:,}"
    far_found = f"{far['median'] * 1e3:.3f} ms (max {far['max'] * 1e3:.3f})"
    return [
        _goal("Shuffle <= 3 ns per index, 1 core, every n > 65,536", f"{worst:.2f} ns at n={n:,}", worst <= 3),
        _goal("Shuffle: slowest n within 2x of fastest, n > 65,536", f"{uneven:.2f}x", uneven <= 2),
        _goal("BlockShuffle <= 6 ns per index, 1 core, n > 65,536", block_found, block_worst <= 6),
        _goal("Shuffle >= 8x faster than numpy.random.permutation, n=1e8", *_ratio_found(ratio)),
        _goal("first index at 9e11 of epoch 7, n=1e12, cold: < 1 ms", far_found, far["median"] < 1e-3),
        _goal("growth of memory < 1 MB, all orders", f"{growth / 1e6:.2f} MB", growth < 1e6),
    ]


def _goal(goal: str, measured: str, met: bool | None) -> dict[str, Any]:
    return {"goal": goal, "measured": measured, "met": met}


def _paired_ratio(results: list[Result]) -> Spread | None:
    """numpy over Shuffle at 10**8, round by round, so that both met the same weather."""
    ns = {r.name: r.ns.values for r in results if r.n == 10**8 and r.threads == 1}
    if "Shuffle" not in ns or NUMPY not in ns:
        return None
    return Spread(tuple(theirs / ours for theirs, ours in zip(ns[NUMPY], ns["Shuffle"], strict=False)))


def _ratio_found(ratio: Spread | None) -> tuple[str, bool | None]:
    if ratio is None:
        return "not measured with --quick", None
    return f"{ratio.median:.1f}x (rounds {ratio.min:.1f} to {ratio.max:.1f})", ratio.median >= 8


def text(report: dict[str, Any], results: list[Result], settings: Settings) -> list[str]:
    """The whole report but for Grain's battery."""
    base = next(r.ns.median for r in results if r.name == NUMPY and r.n == settings.baseline)
    marks = {True: "met", False: "NOT MET", None: "unknown"}
    goals = [[goal["goal"], goal["measured"], marks[goal["met"]]] for goal in report["goals"]]
    return [
        *_heading(report),
        *_section(
            f"Nanoseconds per index, min/median of {settings.rounds} turns (of 5 where one lasts over 1 s)",
            "processor time of 1 thread, wall time of 2; orders: fresh epochs in batches of at most "
            f"{BATCH:,}; numpy, torch: making the whole order, over its length",
            matrix(results, lambda r: f"{_figure(r.ns.min)}/{_figure(r.ns.median)}"),
        ),
        *_section(
            f"Times faster than numpy.random.permutation({short(settings.baseline)}) in this run, {base:.1f} ns",
            "median (slowest..fastest turn)",
            matrix(results, lambda r: f"{_figure(base / r.ns.median)} ({_figure(base / r.ns.max)}..{_figure(base / r.ns.min)})"),
        ),
        *_section("Checked, outside the timed region", "", _checked(results)),
        *_section(
            "Microseconds per call of indices()",
            "n=1e8, processor time, median: the cost of small batches",
            _calls(report["calls"]),
        ),
        *_section(
            "Microseconds to the first index in a fresh process, then to one elsewhere",
            f"n=1e12, imports excluded, median (max) of {settings.children}",
            _cold(report["cold"]),
        ),
        *_section(
            "Growth of the resident set, peak over before",
            "making the order and reading 2^23 indices of it, or making the whole, in a fresh process",
            _memory(report["memory"]),
        ),
        *_section("Goals", "", table(["goal", "measured", ""], goals)),
    ]


def _heading(report: dict[str, Any]) -> list[str]:
    host = report["machine"]
    software = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    noise = f"other programs took {report['others_share']:.0%} of the cores meanwhile (over 10 %: repeat when it is quiet)"
    return [f"{host['cpu']}, {host['cores']} cores", software, noise]


def _section(title: str, note: str, body: str) -> list[str]:
    return ["", title, *([note] if note else []), "", body]


def short(n: int) -> str:
    """A length as people write it."""
    named = {2**20 + 1: "2^20+1", 10**6: "1e6", 10**7: "1e7", 10**8: "1e8", 10**9: "1e9", TRILLION: "1e12"}
    return named.get(n, f"{n:,}")


def _figure(value: float) -> str:
    return f"{value:.2f}" if value < 9.95 else f"{value:.1f}" if value < 99.5 else f"{value:,.0f}"


def matrix(results: list[Result], cell: Callable[[Result], str]) -> str:
    """Contenders by lengths."""
    lengths = sorted({r.n for r in results})
    found = {(r.name, r.threads, r.n): cell(r) for r in results}
    who = sorted({(r.name, r.threads) for r in results}, key=lambda pair: ([*ORDERS, *WHOLES, GRAIN].index(pair[0]), pair[1]))
    rows = [[name, str(threads), *(found.get((name, threads, n), "-") for n in lengths)] for name, threads in who]
    if (GRAIN, 1) not in who:
        rows.append([GRAIN, "1", "not measured", *[""] * (len(lengths) - 1)])
    return table(["", "threads", *map(short, lengths)], rows)


def _checked(results: list[Result]) -> str:
    lengths: dict[tuple[str, str], list[str]] = {}
    for r in sorted(results, key=lambda r: r.n):
        if r.threads == 1:
            lengths.setdefault((r.name, r.checked), []).append(short(r.n))
    rows = [[name, checked, " ".join(where)] for (name, checked), where in lengths.items()]
    return table(["", "found", "at n ="], sorted(rows, key=lambda row: [*ORDERS, *WHOLES, GRAIN].index(row[0])))


def _calls(calls: list[dict[str, Any]]) -> str:
    sizes = sorted({row["batch"] for row in calls})
    found = {(row["name"], row["batch"]): f"{row['ns_per_call']['median'] / 1e3:.2f}" for row in calls}
    return table(["positions per call", *map(str, sizes)], [[name, *(found[name, size] for size in sizes)] for name in ORDERS])


def _cold(cold: list[dict[str, Any]]) -> str:
    def cell(times: dict[str, float]) -> str:
        return f"{times['median'] * 1e6:.0f} ({times['max'] * 1e6:.0f})"

    keys = ("first_s", "seek_s", "other_epoch_s")
    rows = [[row["name"], str(row["epoch"]), f"{row['position']:,}", *(cell(row[key]) for key in keys)] for row in cold]
    return table(["", "epoch", "position", "first", "seek to n/2", "seek to next epoch"], rows)


def _memory(memory: list[dict[str, Any]]) -> str:
    return table(["", "n", "MB"], [[row["name"], short(row["n"]), f"{row['growth_bytes'] / 1e6:.2f}"] for row in memory])
