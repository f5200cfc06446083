"""What the benchmarks of loaders print: rates beside the limit, goals, and how quiet the machine was."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from measure import Spread, progress, table, write_json
from penstock.report.doctor import Others

__all__ = ["finish", "judged", "rates"]


def rates(spreads: Mapping[str, Spread], limit: str, unit: str, amount: float = 1.0) -> str:
    """A table of ``amount`` per second, and the part of the limit that it is: by medians, and by the best turns."""
    base = spreads[limit]
    lines = [
        [name, f"{amount / s.median:,.0f}", f"{base.median / s.median:.2f}", f"{base.min / s.min:.2f}"]
        for name, s in spreads.items()
    ]
    return table(["", unit, "of LIMIT", "best turns"], lines)


def judged(what: str, found: float, goal: float, *, at_least: bool) -> list[str]:
    """A line of the table of goals."""
    met = found >= goal if at_least else found <= goal
    return [what, f"{'>=' if at_least else '<='} {goal}", f"{found:.2f}", "met" if met else "NOT MET"]


def finish(
    report: dict[str, Any], goals: Sequence[Sequence[str]], others: Others, began: float, path: Path | None, note: str = ""
) -> None:
    """Print the goals and what else the machine did, and write the report if there is a path for it."""
    print(f"\nGoals\n\n{table(['', 'goal', 'found', ''], goals)}")
    report |= {"goals": goals, "others_share": others.share()}
    print(f"\nother programs took {report['others_share']:.0%} of the cores meanwhile{note}")
    progress(f"took {time.perf_counter() - began:.0f} s", lasting=True)
    if path is not None:
        write_json(path, report)
