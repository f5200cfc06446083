"""Progress of long work: a function of the user's, or a bar in the terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Progress", "reporting"]

Progress = Callable[[int, int], None]
"""Called with the records and the bytes done since the last call."""


@contextmanager
def reporting(progress: Progress | bool | None, title: str, records: int, *, done: int = 0) -> Iterator[Progress | None]:
    """What to call as work goes on: the user's function, a bar (``True``), or nothing. ``done`` records count as done before."""
    if progress is None or progress is False:
        yield None
        return
    if progress is not True:
        yield progress
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Bars(*columns) as bars:
        task = bars.add_task(title, total=records, completed=done, rate="")
        written = 0

        def advance(rows: int, size: int) -> None:
            nonlocal written
            written += size
            elapsed = bars.tasks[0].elapsed or 0.0
            bars.update(task, advance=rows, rate=f"{written / 1e6 / elapsed:,.0f} MB/s" if elapsed > 0 else "")

        yield advance
