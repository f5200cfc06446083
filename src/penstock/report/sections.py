"""Speed, mixing and the plan of a run as sections of a page: headline figures, tables and plots."""

from typing import Any

import numpy as np

from penstock.report.formatting import count, counted, duration, percent, rate, ratio, size
from penstock.report.mixing import Mixing
from penstock.report.page import COLOURS, RAMP, Figure, Part, Section, Table, Tile, tidy
from penstock.report.speed import Speed
from penstock.run_plan import RunPlan

SPEED_METHOD = (
    "Speed: the loader and a plain copy in memory took turns, five each; figures are medians of the turns. The copy gathers "
    "records of the same size and number from random places into one buffer, by as many threads, without order, files, "
    "checksums or Python. Every turn began with nothing read ahead, and its beginning was thrown away."
)
PLAN_METHOD = (
    "Computed from the order of the run; no record was read. A stream is exhausted at the step whose batch has the last sample of "
    "its first epoch. Tokens are samples times the mean number of tokens of a stream. Of packs: the share of padding, of documents "
    "that are cut (measured in some groups of documents) and of tokens that never come, and documents per sequence.",
)
_BLUE, _AMBER, _GREEN, _INK, _MUTED = (COLOURS[name][0] for name in ("blue", "amber", "green", "ink", "muted"))
FEW = 1.2  # bytes read for a byte used that are as good as one
_HEAT = "#3f86c0"
_MOST_BARS = 40


def speed_section(speed: Speed) -> Section:
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
        margin = axes.get_yaxis_transform()
        axes.text(1.015, middle, f"median\n{rate(middle)}", transform=margin, va="center", color=_INK, fontsize=9.5)
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


MIXING_METHOD = (
    "Shuffle: measured on batches spread over one epoch. S1 to S5 are compared with chance, S6 is the p-value of a "
    "chi-squared test. The class mix of a batch is the exponential of the entropy of its labels: the number of classes of one "
    "size that it is worth. Reads are counted, or sampled in runs of batches for epochs of more than a million records: a batch "
    "asks for each block that it needs once, and a block that is not kept is read as a whole."
)


def mixing_section(mixing: Mixing) -> Section:
    window = mixing.suggestion
    memory = "not known" if window.memory_bytes is None else size(window.memory_bytes)
    blocks = "all blocks" if window.window is None else counted(window.window, "block")
    tiles = [
        Tile("Class mix", percent(mixing.share), "of a perfect shuffle"),
        Tile("Classes a batch is worth", count(mixing.class_mix), f"ideal {count(mixing.ideal_class_mix)}"),
        Tile(f"Window for {percent(window.target)}", blocks, f"blocks of {counted(window.block, 'record')}"),
        Tile("Memory for it", memory, f"{counted(window.records, 'record')} in flight"),
    ]
    rows = [[v.name, f"{v.value:.3g}", f"{v.ideal:.3g}", v.word, f"{v.meaning}: {v.told}"] for v in mixing.verdicts]
    table = Table(("", "yours", "ideal", "verdict", "meaning"), rows, right=("yours", "ideal"))
    lead = f"{count(mixing.records)} records, batches of {count(mixing.batch_size)}, {mixing.labels}. {suggestion_text(mixing)}"
    reads = Table(("reads", "a batch", "an epoch"), locality_rows(mixing), right=("a batch", "an epoch"))
    parts: list[Part] = [table, _heat(mixing), _classes(mixing), reads, locality_text(mixing), f"Order: {mixing.order}"]
    return Section("Shuffle", lead, tiles, parts)


def locality_rows(mixing: Mixing) -> list[list[str]]:
    """What is read, of a batch and of an epoch."""
    found = mixing.locality
    kept = counted(found.cache, "block")
    rows = [
        ["blocks touched", count(found.batch.blocks_touched), count(found.epoch.blocks_touched)],
        ["blocks read, none kept", count(found.batch.block_requests), count(found.epoch.block_requests)],
        [f"blocks read, {kept} kept", count(found.batch.block_reads), count(found.epoch.block_reads)],
        ["seeks between records", count(found.batch.record_seeks), count(found.epoch.record_seeks)],
        ["seeks between blocks read", count(found.batch.block_seeks), count(found.epoch.block_seeks)],
    ]
    ratios = ["bytes read per byte used, none kept", f"bytes read per byte used, {kept} kept"]
    rows += [[name, "", count(value)] for name, value in zip(ratios, (found.requested_per_used, found.read_per_used), strict=True)]
    return [*rows, ["same block as the record before", "", percent(found.same_block)]]


def locality_text(mixing: Mixing) -> str:
    """What the reads mean, and what to do about them, in a few sentences."""
    found = mixing.locality
    kept = counted(found.cache, "block")
    if found.requested_per_used <= FEW:
        told = "Every block is read about once: there is nothing to gain."
    elif found.read_per_used <= FEW:
        without = count(found.requested_per_used)
        told = f"A reader that keeps {kept} reads every block about once, one that keeps none {without} times."
    else:
        told = (
            f"A reader of whole blocks reads {count(found.read_per_used)} bytes for each byte used, though it keeps {kept}: "
            "shuffle in blocks (--block, --window) that are whole blocks of the data, or give ranks lanes (--lanes)."
        )
    whose = "" if found.world == 1 else f" The figures are those of rank {found.rank} of {found.world}."
    how = " This data is read record by record: the disk reads pages, not whole blocks." if mixing.reads_blocks is False else ""
    return f"{told}{whose}{how}"


def suggestion_text(mixing: Mixing) -> str:
    found = mixing.suggestion
    goal, blocks = f"{percent(found.target)} of the ideal class mix", f"blocks of {counted(found.block, 'record')}"
    if found.window is None:
        return f"With {blocks} only a global shuffle reaches {goal}."
    takes = "" if found.memory_bytes is None else f", which takes {size(found.memory_bytes)}"
    told = f"With {blocks} a window of {count(found.window)} is the smallest that reaches {goal}"
    return f"{told}: {counted(found.records, 'record')} in flight{takes}."


def _heat(mixing: Mixing) -> Figure:
    top = max(2.0, float(np.quantile(mixing.heat, 0.98)))

    def draw(figure: Any, narrow: bool) -> None:
        for axes, heat, name in zip(
            figure.subplots(1, 2, sharey=True), (mixing.heat, mixing.ideal_heat), ("yours", "perfect shuffle"), strict=True
        ):
            axes.imshow(_shaded(np.array(heat).T, top), origin="lower", aspect="auto", interpolation="nearest", extent=(0, 1, 0, 1))
            axes.set_title(name, loc="left", color=_INK, fontsize=10.5)
            tidy(axes)
            axes.set_yticks([0, 1], ["first", "last"])
            _from_start_to_end(axes, 1)
        figure.axes[0].set_ylabel("record")

    caption = (
        "Which records come when: time runs to the right, record numbers upwards; the stronger the colour, the more of "
        "these records come at this time. A perfect shuffle is even everywhere; streaks are runs of neighbouring records "
        "that come together."
    )
    return Figure("heat-map", "Where records come in an epoch", caption, draw, 3.4)


def _from_start_to_end(axes: Any, end: int) -> None:
    axes.set_xticks([0, end], ["start", "end"])
    axes.set_xlabel("of the epoch")
    for label, side in zip(axes.get_xticklabels(), ("left", "right"), strict=True):
        label.set_horizontalalignment(side)


def _shaded(values: Any, top: float) -> Any:
    """One colour whose transparency is the value, so that it is legible on light and dark pages."""
    shades = np.empty((*values.shape, 4))
    shades[..., :3] = [int(_HEAT[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    shades[..., 3] = np.clip(values / top, 0, 1)
    return shades


def _classes(mixing: Mixing) -> Figure:
    def draw(figure: Any, narrow: bool) -> None:
        pair = figure.subplots(2, 1, sharex=True)
        for axes, classes, name in zip(pair, (mixing.classes, mixing.ideal_classes), ("yours", "perfect shuffle"), strict=True):
            shares = np.array(classes)
            places = np.arange(len(shares) + 1)
            columns = np.concatenate([shares, shares[-1:]]).T
            axes.stackplot(places, columns, colors=RAMP[: len(columns)], linewidth=0, step="post")
            axes.set_xlim(0, len(shares))
            axes.set_ylim(0, 1)
            tidy(axes)
            axes.set_yticks([0, 1], ["0", "100 %"])
            axes.set_title(name, loc="left", color=_INK, fontsize=10.5)
            for spine in axes.spines.values():
                spine.set_visible(False)
        _from_start_to_end(pair[1], len(mixing.classes))

    number = len(mixing.classes)
    caption = (
        f"What {number} batches, spread over the epoch, are made of: each column is a batch, each shade a group of classes of "
        "about the same size. Even bands are a good mix; columns of few shades are batches that show only part of the classes."
    )
    return Figure("class-mix", "Classes in each batch", caption, draw, 4.0)


def plan_tables(plan: RunPlan) -> list[tuple[list[str], list[list[str]]]]:
    """Columns and a row for each stream: what comes of it, and its tokens if it has some. Columns without a value are left out."""
    first = {
        "stream": [one.name for one in plan.streams],
        "samples": [f"{one.samples:,}" for one in plan.streams],
        "share": [percent(one.share) for one in plan.streams],
        "epochs": [f"{one.epochs:.3f}" for one in plan.streams],
        "exhausted": [_step(one.exhausted_at) for one in plan.streams],
        "capped": [_step(one.capped_at) for one in plan.streams],
        "repeated": ["" if one.repeated is None else f"{one.repeated:,}" for one in plan.streams],
    }
    second = {
        "tokens": ["" if one.tokens is None else count(one.tokens) for one in plan.streams],
        "of tokens": [_share(one.token_share) for one in plan.streams],
        "padding": [_share(one.padding) for one in plan.streams],
        "cut": [_share(one.cut) for one in plan.streams],
        "lost": [_share(one.truncated) for one in plan.streams],
        "documents": ["" if one.documents is None else f"{one.documents:.1f}" for one in plan.streams],
    }
    tables = [first, {"stream": first["stream"]} | second]
    shown = [{name: cells for name, cells in one.items() if any(cells)} for one in tables]
    return [([*one], [list(row) for row in zip(*one.values(), strict=True)]) for one in shown if len(one) > 1]


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
        _bars(plan, "shares", "Share of the samples", "Of all samples of the run, in percent.", lambda one: 100 * one.share),
        *(Table(columns, rows, right=columns[1:]) for columns, rows in plan_tables(plan)),
    ]
    return Section("The plan", lead=lead, tiles=tiles, parts=parts)


def _bars(plan: RunPlan, name: str, title: str, caption: str, value: Any) -> Figure:
    shown = sorted(plan.streams, key=value, reverse=True)[:_MOST_BARS]
    more = "" if len(shown) == len(plan.streams) else f" The {len(shown)} largest of {len(plan.streams)}."

    def draw(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        names = [one.name if len(one.name) < 24 else f"{one.name[:21]}..." for one in shown]
        axes.barh(
            range(len(shown)),
            [value(one) for one in shown],
            color=_BLUE,
        )
        axes.set_yticks(range(len(shown)), names)
        axes.invert_yaxis()
        tidy(axes, grid="x")

    return Figure(name, title, caption + more, draw, height=0.8 + 0.25 * len(shown))
