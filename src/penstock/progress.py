"""Progress of long work: a function of the user's, or a bar in the terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn

__all__ = ["Progress", "ProgressMeter", "reporting"]

Progress = Callable[[int, int], None]
"""Called with the records and the bytes done since the last call."""

NARROW = 70
"""Terminals of fewer columns get figures without a bar."""


@dataclass
class ProgressMeter:
    """Progress that shows a bar, and tells before the work begins how much of it was done already."""

    began: Callable[[int, int], None] | None = None
    """Called once with the records done before, and with all records."""
    num_bytes: int = 0
    """Bytes done so far."""

    def __call__(self, records: int, size: int) -> None:
        """Count what was done."""
        self.num_bytes += size


@contextmanager
def reporting(progress: Progress | bool | None, title: str, records: int, *, done: int = 0) -> Iterator[Progress | None]:
    """What to call as work goes on: the user's function, a bar (``True``), or nothing. ``done`` records count as done before.

    The bar is drawn on stderr, and only if that is a terminal (or in a notebook).
    """
    if isinstance(progress, ProgressMeter):
        if progress.began is not None:
            progress.began(done, records)
        with _bar(title, records, done) as advance:

            def both(rows: int, size: int) -> None:
                progress(rows, size)
                advance(rows, size)

            yield both
    elif progress is True:
        with _bar(title, records, done) as advance:
            yield advance
    else:
        yield progress or None


@contextmanager
def _bar(title: str, records: int, done: int) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import Progress as Bars

    out = Console(stderr=True)
    shown = out.is_terminal or out.is_jupyter
    with Bars(*_columns(out), console=out, disable=not shown, redirect_stdout=False, expand=True) as bars:
        task = bars.add_task(_printable(title), total=records, completed=done, rate="")
        moved = 0

        def advance(rows: int, size: int) -> None:
            nonlocal moved
            moved += size
            elapsed = bars.tasks[0].elapsed or 0.0
            bars.update(task, advance=rows, rate=f"{moved / 1e6 / elapsed:,.0f} MB/s" if elapsed > 0 else "")

        yield advance


def _columns(out: "Console") -> "list[ProgressColumn]":
    from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

    title, rate = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[rate]}", markup=False)
    if out.width < NARROW:
        return [title, TaskProgressColumn(), rate, TimeRemainingColumn(compact=True)]
    return [title, BarColumn(bar_width=None), MofNCompleteColumn(), rate, TimeRemainingColumn()]


def _printable(title: str) -> str:
    """A name of a file may hold anything, also what moves the cursor."""
    clipped = title if len(title) <= 24 else f"{title[:23]}…"
    return "".join(letter if letter.isprintable() else "?" for letter in clipped)
