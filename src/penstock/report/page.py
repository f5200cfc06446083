"""The page: one HTML file without scripts that asks nobody for anything. Whatever comes out of data is text in it."""

import html
import os
import platform
import secrets
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from penstock.report.machine import describe_machine
from penstock.report.plot import COLOURS, draw_svg
from penstock.report.section import Figure, Part, Section, Table, Tile
from penstock.report.words import printable
from penstock.store.filesystem import translated

__all__ = ["make_page", "write_page"]

HEAD = "<!doctype html>"

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_WORDS = {"good": "good", "ok": "good", "fair": "fair", "hurts": "fair", "poor": "poor", "breaks": "poor"}
"""Words that get a colour when they are all that is in a cell."""

_STYLE = """
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
        raise ValueError(f"{target}: there is a file already that is no report; choose another name")
    text = make_page(sections, title=title, command=command, notes=notes)
    beside = target.with_name(f".{target.name[:100]}-{secrets.token_hex(4)}.tmp")
    with translated(target, "writing"):
        try:
            beside.write_text(text, encoding="utf-8")
            os.replace(beside, target)
        finally:
            beside.unlink(missing_ok=True)
    return target


def _is_page(path: Path) -> bool:
    """Whether a file may be replaced by a page: it is one."""
    with path.open("rb") as file:
        return file.read(len(HEAD)) == HEAD.encode()


def make_page(sections: Sequence[Section], *, title: str, command: str = "", notes: Sequence[str] = ()) -> str:
    """The page as a text."""
    made = f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z} on {describe_machine()}"
    body = "\n".join(_section(section, f"s{number}") for number, section in enumerate(sections))
    told = "".join(f"<p>{_safe(note)}</p>" for note in notes)
    if command:
        told += f"<p>Made by <code>{_safe(command)}</code></p>"
    told += f"<p>penstock {_safe(_version())}, Python {_safe(platform.python_version())}</p>"
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


def _version() -> str:
    from penstock import __version__

    return __version__


def _styled() -> str:
    light, dark = (" ".join(f"--{name}: {pair[k]};" for name, pair in COLOURS.items()) for k in (0, 1))
    return _STYLE.replace("LIGHT", light).replace("DARK", dark)


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
