"""What a page shows: sections of headline figures, tables, figures and paragraphs. Plain values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Figure", "Part", "Section", "Table", "Tile"]


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


Part = str | Table | Figure
"""A paragraph, a table or a figure."""


@dataclass(frozen=True)
class Section:
    """A part of a page."""

    title: str
    lead: str = ""
    tiles: Sequence[Tile] = ()
    parts: Sequence[Part] = ()
