"""A report: sections of tiles, tables, figures and paragraphs, written as one HTML file without scripts and as PNG files.

Figures are drawn by matplotlib in one style, with colours that follow the page's light or dark theme. Text out of data is escaped.
"""

import base64
import html
import io
import os
import platform
import re
import secrets
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from penstock.process import need
from penstock.report.doctor import describe_machine
from penstock.report.formatting import printable
from penstock.system import writing

WIDE, NARROW = 7.4, 3.7  # inches; a page of 720 points is as wide as the first, a telephone as the second
HEAD = "<!doctype html>"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class Tile:
    """A headline figure: what it is, its value with the unit, and a few words."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table; the columns named in ``right`` hold figures."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[str] = ()


@dataclass(frozen=True)
class Figure:
    """A plot. ``draw(figure, narrow)`` draws on a matplotlib figure, which is ``height`` inches high, half as wide if ``narrow``.

    ``name`` is that of its PNG file; ``caption`` says in words what is seen.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[Any, bool], None]
    height: float = 2.8


@dataclass(frozen=True)
class Picture:
    """An image file, PNG, JPEG, WebP or GIF by its content type, and what it is."""

    content_type: str
    data: bytes
    caption: str


Part = str | Table | Figure | Picture  # A paragraph, a table, a figure or a picture


@dataclass(frozen=True)
class Section:
    """A part of a page."""

    title: str
    lead: str = ""
    tiles: Sequence[Tile] = ()
    parts: Sequence[Part] = ()


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


_PLOT_STYLE: dict[Any, Any] = {
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

    with mpl.rc_context(_PLOT_STYLE):
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
    with writing(target, "making the directory"):
        target.mkdir(parents=True, exist_ok=True)
    for figure in (part for section in sections for part in section.parts if isinstance(part, Figure)):
        data, path = draw_png(figure), target / f"{figure.name}.png"
        with writing(path, "writing"):
            path.write_bytes(data)
        written.append(path)
    return written


_WORDS = {"good": "good", "ok": "good", "fair": "fair", "hurts": "fair", "poor": "poor", "breaks": "poor"}
"""Words that get a colour when they are all that is in a cell."""

_PAGE_STYLE = """
:root { color-scheme: light dark; LIGHT --back: #ffffff; --card: #f5f7fa; }
@media (prefers-color-scheme: dark) { :root { DARK --back: #151b23; --card: #1e2732; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 860px; padding: 36px 24px 48px; background: var(--back); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .3rem; letter-spacing: -.01em; }
h2 { font-size: 1.35rem; line-height: 1.25; margin: 2.8rem 0 .5rem; }
h3 { font-size: 1.02rem; margin: 0 0 .2rem; }
p { margin: .4rem 0 .9rem; max-width: 76ch; }
.soft, figcaption, footer { color: var(--muted); }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(170px, 1fr)); gap: 12px; margin: 1.1rem 0 1.4rem; }
.tile { background: var(--card); border-radius: 10px; padding: 14px 16px; margin: 0; }
.tile dt { color: var(--muted); font-size: .88rem; }
.tile dd { margin: 0; }
.value { font-size: 1.5rem; font-weight: 600; line-height: 1.3; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
.note { color: var(--muted); font-size: .88rem; line-height: 1.4; }
figure { margin: 2rem 0; }
figure svg { display: block; width: 100%; height: auto; }
.picture { margin: 1rem 0; } .picture img { display: block; max-width: 100%; height: auto; }
.narrow { display: none; }
figcaption { font-size: .92rem; max-width: 78ch; margin-top: .4rem; }
.scroll { overflow-x: auto; margin: 1.2rem 0; }
table { border-collapse: collapse; width: 100%; font-size: .95rem; }
th { text-align: left; color: var(--muted); font-weight: 500; font-size: .88rem; }
th, td { padding: 7px 16px 7px 0; border-bottom: 1px solid var(--grid); vertical-align: top; overflow-wrap: normal; }
.right { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.good { color: var(--green); } .fair { color: var(--amber); } .poor { color: var(--red); font-weight: 600; }
footer { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--grid); font-size: .9rem; }
code { font: .9em ui-monospace, monospace; background: var(--card); padding: 2px 6px; border-radius: 5px; color: var(--ink); }
@media (max-width: 620px) {
  body { padding: 22px 16px 32px; }
  .wide { display: none; } .narrow { display: block; }
  .tiles { grid-template-columns: 1fr 1fr; gap: 8px; } .tile { padding: 10px 12px; } .value { font-size: 1.2rem; }
  table, thead, tbody, tr, td { display: block; } thead { display: none; }
  tr { padding: 8px 0; border-bottom: 1px solid var(--grid); } td { border: 0; padding: 1px 0; } .right { text-align: left; }
  td::before { content: attr(data-name) " "; color: var(--muted); font-size: .88rem; } td:first-child { font-weight: 600; }
  td:first-child::before { content: ""; }
}
@media print {
  :root { color-scheme: light; LIGHT --back: #ffffff; --card: #f5f7fa; }
  body { max-width: none; padding: 0; font-size: 11pt; } figure, .tiles, tr { break-inside: avoid; } h2 { break-after: avoid; }
  .tile { border: 1px solid var(--grid); }
}
"""


def write_page(path: str | Path, sections: Sequence[Section], *, title: str, command: str = "", notes: Sequence[str] = ()) -> Path:
    """Write the page to a file, all of it or nothing. ``command`` made it, ``notes`` say how things were measured."""
    target = Path(path)
    if target.is_file() and not _is_page(target):
        raise ValueError(f"{target}: a file that is not a report exists already; choose another name")
    text = make_page(sections, title=title, command=command, notes=notes)
    temporary = target.with_name(f".{target.name[:100]}-{secrets.token_hex(4)}.tmp")
    with writing(target, "writing"):
        try:
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    return target


def _is_page(path: Path) -> bool:
    """Whether a file may be replaced by a page: it is one."""
    with path.open("rb") as file:
        return file.read(len(HEAD)) == HEAD.encode()


def make_page(sections: Sequence[Section], *, title: str, command: str = "", notes: Sequence[str] = ()) -> str:
    from penstock import __version__

    made = f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z} on {describe_machine()}"
    body = "\n".join(_section(section, f"s{number}") for number, section in enumerate(sections))
    told = "".join(f"<p>{_safe(note)}</p>" for note in notes)
    if command:
        told += f"<p>Made by <code>{_safe(command)}</code></p>"
    told += f"<p>penstock {_safe(__version__)}, Python {_safe(platform.python_version())}</p>"
    return f"""{HEAD}
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_safe(title)}</title>
<style>{_styled()}</style>
</head>
<body>
<header><h1>{_safe(title)}</h1><p class="soft">{_safe(made)}</p></header>
<main>
{body}
</main>
<footer>{told}</footer>
</body>
</html>
"""


def _styled() -> str:
    light, dark = (" ".join(f"--{name}: {pair[k]};" for name, pair in COLOURS.items()) for k in (0, 1))
    return _PAGE_STYLE.replace("LIGHT", light).replace("DARK", dark)


def _safe(text: str) -> str:
    return html.escape(printable(text))


def _section(section: Section, prefix: str) -> str:
    lines = [f"<section><h2>{_safe(section.title)}</h2>"]
    if section.lead:
        lines.append(f"<p>{_safe(section.lead)}</p>")
    if section.tiles:
        lines.append(f'<dl class="tiles">{"".join(map(_tile, section.tiles))}</dl>')
    lines += [_part(part, f"{prefix}f{number}") for number, part in enumerate(section.parts)]
    return "\n".join([*lines, "</section>"])


def _tile(tile: Tile) -> str:
    note = f'<dd class="note">{_safe(tile.note)}</dd>' if tile.note else ""
    return f'<div class="tile"><dt>{_safe(tile.name)}</dt><dd class="value">{_safe(tile.value)}</dd>{note}</div>'


def _part(part: Part, prefix: str) -> str:
    if isinstance(part, str):
        return f"<p>{_safe(part)}</p>"
    if isinstance(part, Picture):
        data = f"data:{_safe(part.content_type)};base64,{base64.b64encode(part.data).decode()}"
        return f'<figure class="picture"><img alt="" src="{data}"><figcaption>{_safe(part.caption)}</figcaption></figure>'
    return _table(part) if isinstance(part, Table) else _figure(part, prefix)


def _figure(figure: Figure, prefix: str) -> str:
    drawn = "".join(
        f'<div class="{kind}">{draw_svg(figure, narrow=kind == "narrow", prefix=prefix + kind[0])}</div>'
        for kind in ("wide", "narrow")
    )
    return f"<figure><h3>{_safe(figure.title)}</h3>{drawn}<figcaption>{_safe(figure.caption)}</figcaption></figure>"


def _table(table: Table) -> str:
    def cell(tag: str, name: str, text: str) -> str:
        kind = "right" if name in table.right else _WORDS.get(text, "") if tag == "td" else ""
        side = f' class="{kind}"' if kind else ""
        label = f' data-name="{_safe(name)}"' if tag == "td" else ' scope="col"'
        return f"<{tag}{side}{label}>{_safe(text)}</{tag}>"

    head = "".join(cell("th", name, name) for name in table.columns)
    rows = "".join(
        f"<tr>{''.join(cell('td', name, text) for name, text in zip(table.columns, row, strict=True))}</tr>" for row in table.rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
