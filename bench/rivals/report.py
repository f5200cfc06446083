"""What was measured, as figures derived from it, as text and as markdown. Everything here is a function of the JSON."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from measure import Spread, table
from rivals.roster import CONTENDERS, LIMIT, OURS

__all__ = ["BEGIN", "END", "goals", "insert", "markdown", "median", "merge", "of_limit", "plain_text", "ranking", "short_markdown"]

BEGIN, END = "<!-- rivals:begin -->", "<!-- rivals:end -->"
RATES = ("tokens", "images", "small", "text", "mixed", "cold")
TITLES = {
    "tokens": "Tokens: 2 KiB a record, batches of 256",
    "images": "Images: 150,528 B a record, batches of 64",
    "small": "Small records: 128 B and a label, batches of 1,024",
    "text": "Texts: 200 B to 20 KB, zstd level 3, batches of 256",
    "mixed": "Two token sources mixed 0.7 to 0.3, batches of 256",
    "cold": "Tokens from a cold cache, block shuffle, batches of 256",
}

Row = Mapping[str, Any]
Results = Mapping[str, Row]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def merge(heats: Sequence[Results]) -> dict[str, Row]:
    """The heats of one workload as one: everyone beside LIMIT and penstock of the same heat, whose own turns are put together."""
    found: dict[str, Row] = {}
    for number, heat in enumerate(heats):
        beside = {
            "heat": number,
            "limit_per_s": rate(heat[LIMIT]),
            "ours_per_s": rate(heat[OURS]) if OURS in took_part(heat) else None,
        }
        found |= {name: row | beside for name, row in heat.items() if name not in (LIMIT, OURS) or name not in found}
    for name in (LIMIT, OURS):
        rows = [heat[name] for heat in heats if name in took_part(heat)]
        if rows:
            turns = Spread(tuple(turn for row in rows for turn in row["samples_per_s"]["values"]))
            found[name] = found[name] | {"samples_per_s": turns.to_json()}
    for name in (LIMIT, OURS):
        if name in took_part(found):
            both = {"limit_per_s": rate(found[LIMIT]), "ours_per_s": rate(found[OURS]) if OURS in took_part(found) else None}
            found[name] = found[name] | both
    return found


def rate(row: Row) -> float:
    """Samples per second."""
    return float(row["samples_per_s"]["median"])


def of_limit(row: Row) -> float:
    """Of what LIMIT did in the same heat."""
    return rate(row) / row["limit_per_s"]


def of_ours(row: Row) -> float | None:
    """How many times as fast penstock's store was in the same heat, if it took part."""
    return None if row["ours_per_s"] is None else float(row["ours_per_s"]) / rate(row)


def spread(row: Row) -> float:
    """Half the distance of the slowest and the fastest turn, over the median."""
    found = row["samples_per_s"]
    return float((found["max"] - found["min"]) / 2 / found["median"])


def took_part(results: Results) -> dict[str, Row]:
    """Those who were measured."""
    return {name: row for name, row in results.items() if "samples_per_s" in row}


def ranking(results: Results) -> list[str]:
    """Names from fast to slow, by the ratio to LIMIT; LIMIT itself first."""
    rows = took_part(results)
    return sorted(rows, key=lambda name: (name != LIMIT, -of_limit(rows[name])))


def best_rival(results: Results, *, figure: Any, highest: bool) -> str | None:
    """Who, of those that are not this project's, has the best figure."""
    rows = {name: figure(row) for name, row in took_part(results).items() if not _is_ours(name)}
    known = {name: found for name, found in rows.items() if found is not None}
    return (max if highest else min)(known, key=lambda name: known[name]) if known else None


def _is_ours(name: str) -> bool:
    return name == LIMIT or name.startswith(OURS)


# Text


def _milliseconds(row: Row, key: str) -> str:
    values = row.get(key)
    return "" if not values else _time(median(values))


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _bytes(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _shuffled(name: str, row: Row) -> str:
    found = row.get("verified")
    if found is None or name == LIMIT:
        return ""
    return f"{found['displacement'] * 3:.2f} / {found['classes']:.2f}"


COLUMNS = (
    "",
    "samples/s",
    "spread",
    "of LIMIT",
    "penstock is",
    "first batch",
    "resume",
    "memory",
    "CPU s/GB",
    "on disk",
    "shuffle",
)


def rows_of(results: Results) -> list[list[str]]:
    """A line per contender, fast ones first."""
    rows = took_part(results)
    full = max((row["records"] for row in rows.values()), default=0)
    return [[_starred(name, rows[name], full), *_line(name, rows[name])] for name in ranking(results)]


def _starred(name: str, row: Row, full: int) -> str:
    """Its label; with a star if it got only a part of the records."""
    return CONTENDERS[name].label + ("*" if row["records"] < full else "")


def failures(results: Results) -> str:
    """Those who could not, and why."""
    reasons = [f"{CONTENDERS[name].label}: {row['failed']}" for name, row in results.items() if "failed" in row]
    return f"\n\nFailed: {'; '.join(reasons)}." if reasons else ""


def _line(name: str, row: Row) -> list[str]:
    is_limit, times = name == LIMIT, of_ours(row)
    return [
        f"{rate(row):,.0f}",
        f"± {spread(row):.0%}",
        f"{of_limit(row):.2f}" if of_limit(row) >= 0.095 else f"{of_limit(row):.3f}",
        "" if is_limit or name == OURS or times is None else f"{times:.1f} x",
        "" if is_limit else _milliseconds(row, "first_s"),
        _milliseconds(row, "resume_s"),
        "" if is_limit else _bytes(row["memory_peak"]),
        f"{row['cpu_s_per_gb']:.2f}",
        "" if is_limit else _bytes(row["disk_bytes"]),
        _shuffled(name, row),
    ]


def order_rows(found: Results) -> list[list[str]]:
    """Who makes what before the first batch of many records."""
    rows = {name: row for name, row in found.items() if "order_s" in row}
    ranked = sorted(rows, key=lambda name: rows[name]["order_s"])
    return [[CONTENDERS[name].label, _time(rows[name]["order_s"]), _bytes(rows[name]["order_bytes"])] for name in ranked]


EPOCH_COLUMNS = ("", "memory", "growth")


def epoch_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """What everyone holds after the first epochs, and how much more after all of them; those that grow least first."""
    rows = {name: row for name, row in report.get("epochs", {}).items() if "memory_after" in row}
    ranked = sorted(rows, key=lambda name: max(0.5e6, _growth(rows[name])))
    return [
        [CONTENDERS[name].label, _bytes(rows[name]["memory_settled"]), f"{_growth(rows[name]) / 1e6:+.1f} MB"] for name in ranked
    ]


def _growth(row: Row) -> float:
    return float(row["memory_after"] - row["memory_settled"])


def _epochs_title(report: Mapping[str, Any]) -> str:
    effort = report["effort"]
    return f"Memory over {effort['epochs']} epochs: after {effort['settled']}, and what was added by the end"


def plain_text(report: Mapping[str, Any]) -> str:
    """Everything, for a terminal."""
    parts = []
    for name, results in report["workloads"].items():
        parts.append(f"{TITLES[name]}\n\n{table(COLUMNS, rows_of(results))}{failures(results)}")
    if report.get("epochs"):
        parts.append(f"{_epochs_title(report)}\n\n{table(EPOCH_COLUMNS, epoch_rows(report))}")
    if report.get("order"):
        parts.append(f"{_order_title(report)}\n\n{table(['', 'time', 'memory'], order_rows(report['order']))}")
    parts.append(f"Goals\n\n{table(['', 'goal', 'found', ''], goals(report))}")
    return "\n\n".join(parts)


def _order_title(report: Mapping[str, Any]) -> str:
    return f"Order of an epoch of {report['order_records']:,} records"


# Goals


def goals(report: Mapping[str, Any]) -> list[list[str]]:
    """What penstock is meant to reach in this comparison, and what it reached."""
    lines: list[list[str]] = []
    for name, least in (("tokens", 0.8), ("images", 0.9), ("small", 0.6)):
        if OURS in took_part(report["workloads"].get(name, {})):
            lines.append(_judged(f"{name}: of LIMIT", of_limit(report["workloads"][name][OURS]), least, at_least=True))
    for name, results in report["workloads"].items():
        if OURS in took_part(results):
            lines += _against_rivals(name, results)
    if "memory_after" in report.get("epochs", {}).get(OURS, {}):
        lines.append(_judged("epochs: growth of memory, MB", _growth(report["epochs"][OURS]) / 1e6, 1, at_least=False))
    return lines


def _against_rivals(name: str, results: Results) -> Iterable[list[str]]:
    figures = (
        ("samples/s", of_limit, True),
        ("first batch, ms", lambda row: _in_ms(row, "first_s"), False),
        ("resume, ms", lambda row: _in_ms(row, "resume_s"), False),
        ("memory, MB", lambda row: row["memory_peak"] / 1e6 if "memory_peak" in row else None, False),
    )
    for what, figure, highest in figures:
        rival = best_rival(results, figure=figure, highest=highest)
        ours = figure(results[OURS])
        if rival is None or ours is None:
            continue
        theirs = figure(results[rival])
        label = f"{name}: {what}, against {CONTENDERS[rival].label}"
        if highest:
            yield _judged(f"{label}, ratio", ours / theirs, 3 if name in ("tokens", "text") else 1, at_least=True)
        else:
            yield _judged(label, ours, theirs, at_least=False)


def _in_ms(row: Row, key: str) -> float | None:
    return median(row[key]) * 1e3 if row.get(key) else None


def _judged(what: str, found: float, goal: float, *, at_least: bool) -> list[str]:
    met = found >= goal if at_least else found <= goal
    return [what, f"{'>=' if at_least else '<='} {goal:.3g}", f"{found:.3g}", "met" if met else "NOT MET"]


# Markdown


def markdown(report: Mapping[str, Any]) -> str:
    """The tables of the page."""
    parts = [_summary(report), _conditions(report)]
    for name, results in report["workloads"].items():
        parts.append(f"### {TITLES[name]}\n\n{_table(COLUMNS, rows_of(results))}{failures(results)}")
    if report.get("epochs"):
        parts.append(f"### {_epochs_title(report)}\n\n{_table(EPOCH_COLUMNS, epoch_rows(report))}{failures(report['epochs'])}")
    if report.get("order"):
        parts.append(f"### {_order_title(report)}\n\n{_table(('', 'time', 'memory'), order_rows(report['order']))}")
    parts.append(f"### Goals\n\n{_table(('', 'goal', 'found', ''), goals(report))}")
    parts.append(_left_out(report))
    return "\n\n".join(part for part in parts if part)


def short_markdown(report: Mapping[str, Any]) -> str:
    """The table of the README."""
    method = "[method, all figures and their spread](docs/explanation/performance.md)"
    lead = (
        "Samples per second as a part of LIMIT, two threads of C that copy the same records into one buffer (for texts: the bare "
        f"zstd library); all in one run on {report['machine']['cores']} cores, made by `make rivals bench-rivals`; {method}."
    )
    rough = " From a short run beside other work: rough figures." if report["quick"] else ""
    return f"{lead}{rough}\n\n{_summary(report)}"


def _summary(report: Mapping[str, Any]) -> str:
    """Ratios to LIMIT, one line a contender, one column a workload."""
    chosen = [name for name in RATES if name in report["workloads"]]
    parts = {name: took_part(report["workloads"][name]) for name in chosen}
    names = [name for name in CONTENDERS if name != LIMIT and any(name in part for part in parts.values())]
    names.sort(key=lambda name: -max(of_limit(part[name]) for part in parts.values() if name in part))
    lines = [["LIMIT, samples/s", "", "", *(f"{rate(part[LIMIT]):,.0f}" if LIMIT in part else "" for part in parts.values())]]
    for name in names:
        ratios = [_line(name, part[name])[2] if name in part else "" for part in parts.values()]
        lines.append([CONTENDERS[name].label, CONTENDERS[name].shuffle, CONTENDERS[name].resume or "none", *ratios])
    return _table(("of LIMIT", "shuffle", "resumes by", *chosen), lines)


def _conditions(report: Mapping[str, Any]) -> str:
    machine, effort = report["machine"], report["effort"]
    rough = "A smoke test with few records and short turns: figures are rough.\n\n" if report["quick"] else ""
    return (
        f"{rough}Measured {report['date']} on {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB, {machine['system']}, "
        f"in {report['minutes']:.0f} minutes; medians of {effort['rounds']} turns of {effort['pass_s']} s. "
        f"Other programs took {report['others_share']:.0%} of the cores meanwhile.\n\n"
        f"Versions: {', '.join(sorted(set(report['versions'].values()))).replace('==', ' ')}."
    )


def _left_out(report: Mapping[str, Any]) -> str:
    missing = [f"{CONTENDERS[name].label}: {reason}" for name, reason in report["missing"].items()]
    return f"Left out: {'; '.join(missing)}." if missing else ""


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["--:"] * (len(head) - 1)]
    made = "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *lines])
    return made.replace("__getitems__", "`__getitems__`")


def insert(page: str, made: str) -> str:
    """The page with everything between the two markers replaced."""
    before, found, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"expected a page with {BEGIN} and {END}, found no such pair")
    return f"{before}{BEGIN}\n{made}\n{END}{after}"
