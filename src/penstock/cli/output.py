"""What commands print: tables for people, JSON for scripts, figures that can be read."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
import typer
from rich.console import Console, ConsoleRenderable
from rich.table import Table
from rich.text import Text

from penstock.cli.safe import clip, safe

__all__ = ["MOST_LETTERS", "NAME_WIDTH", "console", "facts", "number", "print_json", "say", "table", "text"]

NAME_WIDTH = 24
"""Names of facts are folded beyond this."""
MOST_NAME = 128
MOST_LETTERS = 2000
"""Longer texts are cut: a name in a file may be as long as it likes."""


def console(*, to_stderr: bool = False) -> Console:
    """Where a command writes. Made anew each time: the terminal, NO_COLOR and COLUMNS are looked at when it is used."""
    return Console(stderr=to_stderr, highlight=False, markup=False, emoji=False, soft_wrap=False)


def say(remark: str) -> None:
    """A remark for a person, on stderr: stdout has the result and nothing else."""
    console(to_stderr=True).print(text(remark), soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    typer.echo(json.dumps(plain(value), indent=2, allow_nan=False))


def plain(value: Any) -> Any:
    """Dataclasses, arrays and paths as plain JSON types; figures that JSON cannot hold are null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, list | tuple | set | range):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, str | int | bool) or value is None:
        return value
    return str(value) if isinstance(value, PurePath) else safe(str(value))


def text(value: object, style: str = "") -> Text:
    """Text that is shown as it is: no markup, no escapes."""
    return Text(safe(str(value)), style=style)


def facts(title: str, rows: Mapping[str, object]) -> Table:
    """Names and values, one pair a line. A value may be something that draws itself."""
    heading = text(title, "bold")
    width = min(heading.cell_len, NAME_WIDTH)  # a heading is folded where its table ends
    made = Table(box=None, show_header=False, title=heading, title_justify="left", pad_edge=False, min_width=width)
    made.add_column(style="cyan", overflow="fold", max_width=NAME_WIDTH)
    made.add_column(overflow="fold")
    for name, value in rows.items():
        shown = value if isinstance(value, ConsoleRenderable) else text(clip(str(value), MOST_LETTERS))
        made.add_row(text(clip(name, MOST_NAME)), shown)
    return made


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()) -> Table:
    """A table; the columns named in ``right`` hold figures."""
    made = Table(box=None, header_style="bold cyan", pad_edge=False)
    for name in columns:
        made.add_column(text(name), justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(text(clip(str(cell), MOST_LETTERS)) for cell in row))
    return made


def number(value: float) -> str:
    """A count for people: 1,234,567; 0.34 of something below ten."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
