"""The comparison as a picture: a panel per workload, a bar per contender, fast ones on top."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rivals.report import TITLES, of_limit, ranking, took_part
from rivals.roster import CONTENDERS, LIMIT, OURS

__all__ = ["draw"]

INK, PALE, OWN, RULE = "#1f2933", "#9fb3c8", "#0f766e", "#e4e7eb"
PANELS = ("tokens", "images", "small", "text")
LEAST = 1e-3


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Write the picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    names = [name for name in PANELS if took_part(report["workloads"].get(name, {}))]
    if not names:
        return
    columns = min(2, len(names))
    with mpl.rc_context({"font.family": "DejaVu Sans", "font.size": 9, "text.color": INK, "axes.labelcolor": INK}):
        figure, grid = plt.subplots(
            -(-len(names) // columns), columns, figsize=(5.6 * columns, 4.3 * -(-len(names) // columns)), squeeze=False
        )
        for axes, name in zip(grid.flat, names, strict=False):
            _panel(axes, name, report["workloads"][name])
        for axes in list(grid.flat)[len(names) :]:
            axes.set_visible(False)
        figure.suptitle(
            "Samples per second, as a part of LIMIT",
            fontsize=12,
            x=0.02,
            ha="left",
            weight="bold",
        )
        figure.tight_layout(rect=(0, 0, 1, 0.975), h_pad=2.2, w_pad=2.5)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=160)
        plt.close(figure)


def _panel(axes: Any, name: str, results: Mapping[str, Any]) -> None:
    rows = took_part(results)
    order = [one for one in reversed(ranking(results)) if one != LIMIT]
    ratios = [max(LEAST, of_limit(rows[one])) for one in order]
    axes.barh(range(len(order)), ratios, color=[OWN if one.startswith(OURS) else PALE for one in order], height=0.72, left=0)
    for place, (one, ratio) in enumerate(zip(order, ratios, strict=True)):
        text = axes.text(ratio * 1.08, place, _label(of_limit(rows[one])), va="center", color=INK, weight=_weight(one))
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.8})
    axes.set_yticks(range(len(order)), [CONTENDERS[one].label for one in order])
    for tick, one in zip(axes.get_yticklabels(), order, strict=True):
        tick.set_weight(_weight(one))
    axes.set_xscale("log")
    axes.set_xlim(LEAST, 3.2)
    axes.axvline(1, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.set_xticks([0.001, 0.01, 0.1, 1], ["0.001", "0.01", "0.1", "LIMIT"])
    axes.minorticks_off()
    axes.set_title(TITLES[name], loc="left", fontsize=9.5, pad=8)
    axes.tick_params(length=0, colors=INK)
    axes.grid(axis="x", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)


def _weight(name: str) -> str:
    return "bold" if name.startswith(OURS) else "normal"


def _label(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.095 else f"{ratio:.3f}" if ratio >= 0.0095 else f"{ratio:.4f}"
