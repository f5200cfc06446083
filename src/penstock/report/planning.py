"""The plan of a run as a table and as a section of a page."""

from typing import Any

from penstock.loader import RunPlan
from penstock.report.formatting import count, percent, size
from penstock.report.page import COLOURS, Figure, Part, Section, Table, Tile, tidy

__all__ = ["PLAN_COLUMNS", "PLAN_METHOD", "plan_rows", "plan_section"]

PLAN_COLUMNS = (
    "stream",
    "samples",
    "share",
    "epochs",
    "exhausted at",
    "capped at",
    "repeated",
    "tokens",
    "of tokens",
    "padding",
    "cut",
)
PLAN_METHOD = (
    "Computed from the order of the run; no record was read. A stream is exhausted at the step whose batch has the last sample of "
    "its first epoch. Tokens are samples times the mean number of tokens of a stream.",
)
MOST_BARS = 40


def plan_rows(plan: RunPlan) -> list[list[str]]:
    """One row for each stream."""
    return [
        [
            one.name,
            f"{one.samples:,}",
            percent(one.share),
            f"{one.epochs:.3f}",
            _step(one.exhausted_at),
            _step(one.capped_at),
            "" if one.repeated is None else f"{one.repeated:,}",
            "" if one.tokens is None else count(one.tokens),
            _share(one.token_share),
            _share(one.padding),
            _share(one.truncated),
        ]
        for one in plan.streams
    ]


def _step(step: int | None) -> str:
    return "" if step is None else f"step {step:,}"


def _share(share: float | None) -> str:
    return "" if share is None else percent(share)


def plan_section(plan: RunPlan) -> Section:
    """Figures, a table, and epochs and shares of the streams as pictures."""
    tiles = [Tile("steps", f"{plan.steps:,}"), Tile("samples", f"{plan.samples:,}"), Tile("epochs of the whole", str(plan.epochs))]
    if plan.tokens is not None:
        tiles.append(Tile("tokens", count(plan.tokens)))
    if plan.requests:
        tiles += [
            Tile("from object stores", size(plan.bytes), f"{plan.requests:,} requests"),
            Tile("of that in memory", size(plan.peak_bytes)),
        ]
    tiles.append(Tile("bytes of a batch", size(plan.batch_bytes)))
    lead = f"{len(plan.streams)} streams in {plan.steps:,} steps."
    parts: list[Part] = [
        _bars(
            plan, "epochs", "Epochs of each stream", "How often every sample of a stream comes, on average.", lambda one: one.epochs
        ),
        _bars(plan, "shares", "Share of the samples", "Of all samples of the run.", lambda one: one.share),
        Table(PLAN_COLUMNS, plan_rows(plan), right=PLAN_COLUMNS[1:]),
    ]
    return Section("The plan", lead=lead, tiles=tiles, parts=parts)


def _bars(plan: RunPlan, name: str, title: str, caption: str, value: Any) -> Figure:
    shown = sorted(plan.streams, key=value, reverse=True)[:MOST_BARS]
    more = "" if len(shown) == len(plan.streams) else f" The {len(shown)} largest of {len(plan.streams)}."

    def draw(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        names = [one.name if len(one.name) < 24 else f"{one.name[:21]}..." for one in shown]
        axes.barh(
            range(len(shown)),
            [value(one) for one in shown],
            color=COLOURS["blue"][0],
        )
        axes.set_yticks(range(len(shown)), names)
        axes.invert_yaxis()
        tidy(axes, grid="x")

    return Figure(name, title, caption + more, draw, height=0.8 + 0.25 * len(shown))
