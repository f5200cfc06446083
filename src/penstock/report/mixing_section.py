"""Mixing as a section of a page: the measures in words, where records come in the epoch, and the classes of batches."""

from typing import Any

import numpy as np

from penstock.report.mixing import Mixing
from penstock.report.plot import COLOURS, RAMP, tidy
from penstock.report.section import Figure, Part, Section, Table, Tile
from penstock.report.words import count, counted, percent, size

__all__ = ["METHOD", "locality_rows", "locality_text", "mixing_section", "suggestion_text"]

METHOD = (
    "Shuffle: measured on batches spread over one epoch. S1 to S5 are compared with chance, S6 is the p-value of a "
    "chi-squared test. The class mix of a batch is the exponential of the entropy of its labels: the number of classes of one "
    "size that it is worth. Reads are counted, or sampled in runs of batches for epochs of more than a million records: a batch "
    "asks for each block that it needs once, and a block that is not kept is read as a whole."
)
FEW = 1.2
"""Bytes read for a byte used that are as good as one."""
_INK = COLOURS["ink"][0]
_HEAT = "#3f86c0"


def mixing_section(mixing: Mixing) -> Section:
    """The section."""
    window = mixing.suggestion
    tiles = [
        Tile("Class mix", percent(mixing.share), "of a perfect shuffle"),
        Tile("Classes a batch is worth", count(mixing.class_mix), f"ideal {count(mixing.ideal_class_mix)}"),
        Tile(f"Window for {percent(window.target)}", _window(mixing), f"blocks of {counted(window.block, 'record')}"),
        Tile("Memory for it", _memory(mixing), f"{counted(window.records, 'record')} in flight"),
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


def _window(mixing: Mixing) -> str:
    return "all blocks" if mixing.suggestion.window is None else counted(mixing.suggestion.window, "block")


def _memory(mixing: Mixing) -> str:
    found = mixing.suggestion.memory_bytes
    return "not known" if found is None else size(found)


def suggestion_text(mixing: Mixing) -> str:
    """The suggestion in a sentence."""
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
