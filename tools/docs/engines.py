"""Writes docs/reference/engines.md: what reads each kind of source in each combination, as loaders of small files say it.

::

    python -m tools.docs.engines
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tests.loader.matrix import KINDS, USES, AtUrl, Cell, cells

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "engines.md"

HEAD = """\
# Engines and plans

<!-- written by python -m tools.docs.engines -->

This page shows how a loader reads each kind of source, alone and combined. The tables are generated: a program loads small files
of every kind, and records `loader.engine`, `loader.forecast()`, `loader.stats().network` and the requests that a server counted.
All streams are block shuffles.
"""

ON_DISK = """
## On a disk

*native*: C++ threads read the records. *threads*: Python threads read them, because another library decompresses or parses them,
values are nested, or a function runs. With a transform, every loader uses Python threads. *+ prefetch*: the operating system
prefetches the next blocks while the trainer works. Sequences are cut from texts, byte strings, ragged arrays and tokens, and images
are decoded from byte strings; for other records they do not apply (—).
"""

AT_URLS = """
## At URLs

The engine is as above unless another one is named. *kept*: everything fits into the window, and every byte is fetched once in a
run. *blocks*: it does not, and the blocks of the shuffle are fetched at their first use and released after their last. The forecast
of requests and bytes is *exact*, a *bound* (no more than that is fetched), or *low*. `stats().network` is exact, unless a cell says
*miscounted*. Kinds that are not in the tables are not read at URLs yet.
"""


def page(uses: tuple[str, ...] = tuple(USES)) -> str:
    """The page, with columns for some combinations."""
    parts = [HEAD, ON_DISK, *_table(uses, KINDS, _on_disk)]
    kinds = [kind for kind in KINDS if cells(uses)[kind, uses[0]].fits is not None]
    parts += [AT_URLS, "\nWhere all data fits into the window:\n", *_table(uses, kinds, lambda cell: _at_url(cell, cell.fits))]
    parts += ["\nWhere it does not:\n", *_table(uses, kinds, lambda cell: _at_url(cell, cell.larger))]
    return "".join(parts)


def _table(uses: tuple[str, ...], kinds: Iterable[str], show: Callable[[Cell], str]) -> Iterator[str]:
    yield "\n" + _line(["", *uses]) + _line(["---"] * (len(uses) + 1))
    for kind in kinds:
        yield _line([kind, *(show(cells(uses)[kind, use]) for use in uses)])


def columns(text: str, uses: tuple[str, ...]) -> str:
    """A page with no other columns in its tables than these."""
    kept = [0, *(1 + number for number, use in enumerate(USES) if use in uses)]
    lines = text.splitlines(keepends=True)
    return "".join(_line([line[2:-3].split(" | ")[n] for n in kept]) if line.startswith("| ") else line for line in lines)


def _line(words: list[str]) -> str:
    return f"| {' | '.join(words)} |\n"


def _on_disk(cell: Cell) -> str:
    if cell.disk is None:
        return "—"
    return cell.disk.engine + (" + prefetch" if cell.disk.is_prefetched else "")


def _at_url(cell: Cell, found: AtUrl | str | None) -> str:
    if cell.disk is None or found is None:
        return "—"
    if isinstance(found, str):
        return found
    engine = "" if found.engine == cell.disk.engine else f"{found.engine}, "
    forecast = {"exact": "exact", "upper bound": "bound", "too low": "low"}[found.forecast]
    return f"{engine}{found.plan}, {forecast}" + ("" if found.counts else ", miscounted")


def main() -> None:
    """Write it."""
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
