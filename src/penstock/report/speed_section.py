"""Speed as a section of a page: headline figures, samples per second over time, where the time goes, and how long batches take."""

from typing import Any

from penstock.report.plot import COLOURS, tidy
from penstock.report.section import Figure, Section, Table, Tile
from penstock.report.speed import Speed
from penstock.report.words import count, counted, duration, percent, rate, ratio, size

__all__ = ["METHOD", "speed_section"]

METHOD = (
    "Speed: the loader and a plain copy in memory took turns, five each; figures are medians of the turns. The copy gathers "
    "records of the same size and number from random places into one buffer, by as many threads, without order, files, "
    "checksums or Python. Every turn began with nothing read ahead, and its beginning was thrown away."
)
_BLUE, _AMBER, _GREEN, _INK, _MUTED = (COLOURS[name][0] for name in ("blue", "amber", "green", "ink", "muted"))


def speed_section(speed: Speed) -> Section:
    """The section."""
    figures = [_timeline(speed), *_split(speed), _waits(speed)]
    return Section("Speed", " ".join(speed.advice), _tiles(speed), [*figures, _more(speed)])


def _tiles(speed: Speed) -> list[Tile]:
    tiles = [
        Tile("Samples", rate(speed.samples_per_s.median), f"batches of {count(speed.batch_samples)}"),
        Tile("Bytes", f"{size(speed.bytes_per_s.median)}/s", f"{size(speed.batch_bytes)} a batch"),
        Tile("Of the memcpy limit", ratio(speed.ratio), f"a bare copy: {size(speed.limit_bytes_per_s.median)}/s"),
        Tile("First batch", duration(speed.open_s + speed.first_batch_s), "from nothing"),
    ]
    if speed.resume_s is not None:
        tiles.append(Tile("Resume", duration(speed.resume_s), "from a saved state to its next batch"))
    tiles.append(Tile("Memory", size(speed.memory.own_bytes), f"and {size(speed.memory.mapped_bytes)} of mapped files"))
    if speed.trainer is not None:
        tiles.append(Tile("Trainer waits", percent(speed.trainer.waited), f"if busy {duration(speed.trainer.work_s)} per batch"))
    return tiles


def _timeline(speed: Speed) -> Figure:
    def draw(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        tidy(axes, grid="y")
        x, y = zip(*speed.timeline, strict=True)
        axes.plot(x, y, color=_BLUE, linewidth=2, solid_capstyle="round")
        axes.fill_between(x, y, color=_BLUE, alpha=0.12, linewidth=0)
        middle = speed.samples_per_s.median
        axes.axhline(middle, color=_MUTED, linewidth=1, linestyle=(0, (4, 4)))
        beside = axes.get_yaxis_transform()
        axes.text(1.015, middle, f"median\n{rate(middle)}", transform=beside, va="center", color=_INK, fontsize=9.5)
        axes.set_ylim(0, max(y) * 1.08)
        axes.set_xlim(0, x[0] + x[-1])
        axes.yaxis.set_major_locator(_few(4))
        axes.xaxis.set_major_locator(_few(4 if narrow else 7))
        axes.yaxis.set_major_formatter(lambda value, _: rate(value) if value else "0")
        axes.set_xlabel("seconds of loading")

    low, high = speed.samples_per_s.least, speed.samples_per_s.most
    caption = f"Samples per second while the loader ran. The five turns gave {rate(low)} to {rate(high)}."
    return Figure("throughput", "Samples per second over time", caption, draw, 2.6)


def _few(number: int, *, whole: bool = False) -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(number, integer=True) if whole else MaxNLocator(number)


def _decades(low: float, high: float) -> Any:
    """Ticks of a logarithmic axis: at powers of ten, and between them where there are few."""
    from matplotlib.ticker import LogLocator

    return LogLocator(10, subs=(1, 2, 5) if high < 50 * low else (1,), numticks=8)


def _split(speed: Speed) -> list[Figure]:
    split = speed.split
    if split is None:
        return []
    parts = [("order", split.order_s, _GREEN), ("read", split.read_s, _BLUE), ("transform", split.transform_s, _AMBER)]
    total = sum(part for _, part, _ in parts)

    def draw(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        axes.set_axis_off()
        for row, (name, part, colour) in enumerate(reversed(parts)):
            axes.barh(row, part, left=0, height=0.52, color=colour)
            look = {"textcoords": "offset points", "va": "center", "color": _INK}
            axes.annotate(f"{duration(part)}, {percent(part / total)}", (part, row), (8, 0), **look)
            axes.annotate(name, (0, row), (-8, 0), ha="right", **look)
        longest = max(part for _, part, _ in parts)
        axes.set_xlim(0, longest * (1.75 if narrow else 1.3))
        axes.set_ylim(-0.5, len(parts) - 0.5)

    caption = (
        f"One batch made alone, nothing ahead: {duration(total)} (median of {split.batches}). Order computes which records are "
        "in it, read brings them into the batch. Decompressing and collating are part of reading: every record is put where it "
        f"belongs when it is read. With {counted(speed.threads, 'thread')} several batches are made at once."
    )
    return [Figure("time-split", "Where the time of a batch goes", caption, draw, 1.7)]


def _waits(speed: Speed) -> Figure:
    waits = speed.waits

    def draw(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        tidy(axes)
        widths = [high - low for low, high in zip(waits.edges, waits.edges[1:], strict=False)]
        axes.bar(waits.edges[:-1], waits.counts, widths, align="edge", color=_BLUE, alpha=0.75, linewidth=0)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(_decades(waits.edges[0], waits.edges[-1]))
        axes.xaxis.set_major_formatter(lambda value, _: duration(value))
        axes.xaxis.set_minor_formatter(lambda value, _: "")
        axes.tick_params(which="minor", length=0)
        axes.yaxis.set_major_locator(_few(3, whole=True))
        axes.yaxis.set_major_formatter(lambda value, _: count(value))
        axes.set_ylabel("batches")
        axes.set_xlim(waits.edges[0] * 0.9, waits.edges[-1] * 1.1)
        top = max(waits.counts)
        axes.set_ylim(0, top * 1.3)
        for name, value, side in (("half", waits.p50_s, "right"), ("99 %", waits.p99_s, "left")):
            axes.plot([value, value], [0, top * 1.12], color=_AMBER, linewidth=1.6)
            axes.annotate(
                f"{name} within {duration(value)}" if not narrow else f"{name} {duration(value)}",
                (value, top * 1.14),
                (-4 if side == "right" else 4, 0),
                textcoords="offset points",
                ha=side,
                va="bottom",
                color=_INK,
                fontsize=9.5,
            )

    caption = (
        f"The wait for each of {counted(speed.batches, 'batch', 'batches')} if the trainer does nothing else. Half came within "
        f"{duration(waits.p50_s)}, 99 % within {duration(waits.p99_s)}, the slowest after {duration(waits.most_s)}."
    )
    return Figure("batch-latency", "How long a batch takes", caption, draw, 2.6)


def _more(speed: Speed) -> Table:
    rows = [
        ["data", speed.data],
        ["threads, cores", f"{speed.threads}, {speed.cores:g}"],
        ["measured", f"{counted(speed.samples, 'sample')} in {counted(speed.batches, 'batch', 'batches')}"],
        ["opened in", duration(speed.open_s)],
        ["first batch after that", duration(speed.first_batch_s)],
    ]
    if speed.disk_bytes is not None:
        rows.append(["read from the disk", size(speed.disk_bytes)])
    if speed.network is not None:
        rows.append(["network", f"{size(speed.network.bytes)} in {counted(speed.network.requests, 'request')}"])
    rows.append(["cores taken by other programs", percent(speed.others)])
    return Table(("what", "found"), rows)
