"""Plots as SVG for a page and as PNG: one style, colours that follow the page's light or dark theme."""

import io
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.report.section import Figure, Section
from penstock.report.words import printable
from penstock.source.optional import need
from penstock.store.filesystem import translated

__all__ = ["COLOURS", "RAMP", "draw_png", "draw_svg", "need_plots", "tidy", "write_plots"]

COLOURS = {
    "ink": ("#1f2a37", "#e6eaef"),
    "muted": ("#5f6b7a", "#a3afbd"),
    "grid": ("#dde3ea", "#364352"),
    "blue": ("#2c6aa0", "#74b3e6"),
    "amber": ("#b8651b", "#efa658"),
    "green": ("#3b8468", "#74c9a5"),
    "red": ("#b23a3a", "#f08a84"),
}
"""The colours of plots by name: on a light page, and on a dark one."""

RAMP = ("#173d5f", "#2b679b", "#4b86b9", "#74a5cd", "#a0c3df", "#c8dcec")
"""Shades of one colour for things that have an order, dark to light. They keep their values on both pages."""

WIDE, NARROW = 7.4, 3.7
"""Inches; a page of 720 points is as wide as the first, a telephone as the second."""

_STYLE: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "text.parse_math": False,  # a name out of data is no formula
    "text.color": COLOURS["ink"][0],
    "axes.edgecolor": COLOURS["grid"][0],
    "axes.labelcolor": COLOURS["muted"][0],
    "axes.labelsize": 10,
    "axes.linewidth": 1.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": COLOURS["grid"][0],
    "ytick.color": COLOURS["grid"][0],
    "xtick.labelcolor": COLOURS["muted"][0],
    "ytick.labelcolor": COLOURS["muted"][0],
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "grid.color": COLOURS["grid"][0],
    "svg.fonttype": "none",
    "svg.hashsalt": "penstock",
}


def tidy(axes: Any, *, grid: str = "") -> None:
    """No box around a plot; fine lines along ``grid`` ("x" or "y"), behind everything."""
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=5)
    if grid:
        axes.grid(axis=grid, linewidth=1)
        axes.spines["left" if grid == "y" else "bottom"].set_visible(False)


def need_plots() -> None:
    """ImportError, with how to install it, where matplotlib is missing."""
    need("matplotlib", "plot")


def _draw(figure: Figure, narrow: bool, form: str, **options: Any) -> bytes:
    need_plots()
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas
    from matplotlib.text import Text

    with mpl.rc_context(_STYLE):
        canvas = Canvas(figsize=(NARROW if narrow else WIDE, figure.height), layout="constrained")
        figure.draw(canvas, narrow)
        for text in canvas.findobj(Text):
            text.set_text("\n".join(map(printable, text.get_text().split("\n"))))
        out = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # a name in letters that the font does not have
            canvas.savefig(out, format=form, **options)
    return out.getvalue()


def draw_png(figure: Figure) -> bytes:
    """The figure on white, twice as fine as a screen."""
    return _draw(figure, False, "png", dpi=200, facecolor="white")


def draw_svg(figure: Figure, *, narrow: bool, prefix: str) -> str:
    """The figure as an element of a page. Its ids begin with ``prefix``, its colours are the page's."""
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    text = _draw(figure, narrow, "svg", transparent=True, metadata=nothing).decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\s(xmlns|xmlns:xlink|version)="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r"'DejaVu Sans'(, sans-serif)?", "system-ui, sans-serif", text)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
    for name, (light, _) in COLOURS.items():
        text = text.replace(light, f"var(--{name})")
    return re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true">', text, count=1)


def write_plots(directory: str | Path, sections: Sequence[Section]) -> list[Path]:
    """Every figure of the sections as a PNG file of its name; their paths."""
    target, written = Path(directory), []
    with translated(target, "making the directory"):
        target.mkdir(parents=True, exist_ok=True)
    for figure in (part for section in sections for part in section.parts if isinstance(part, Figure)):
        data, path = draw_png(figure), target / f"{figure.name}.png"
        with translated(path, "writing"):
            path.write_bytes(data)
        written.append(path)
    return written
