"""Reading everything once, to find what cannot be read."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from penstock.errors import PenstockError
from penstock.progress import Progress
from penstock.records import Source
from penstock.source.spans import load, next_span, spans_of

__all__ = ["Unreadable", "read_all"]

READ_BYTES = 16 << 20
"""About so many bytes are read at a time."""


@dataclass(frozen=True)
class Unreadable:
    """The first record of a block that cannot be read, and why."""

    block: int
    record: int
    what: str


def read_all(source: Source, *, progress: Progress | None = None) -> list[Unreadable]:
    """Read every record once; of each block, returns the first one that cannot be read. The rest of such a block is left out."""
    spans = spans_of(source, list(source.schema), range(len(source)), READ_BYTES)
    found: dict[int, Unreadable] = {}
    span = next(spans, None)
    while span is not None:
        size, problem = _try(source, *span)
        if problem is not None:
            found |= {one.block: one for one in _problems(source, *span, problem, found)}
        if progress is not None:
            progress(span[1] - span[0], size)
        span = next_span(spans, size or READ_BYTES)
    return [found[block] for block in sorted(found)]


def _problems(source: Source, low: int, high: int, why: str, known: dict[int, Unreadable]) -> Iterator[Unreadable]:
    """What is wrong in a run of records that could not be read, block by block. What went wrong once and not again counts too."""
    blocks = source.blocks
    first, last = (int(block) for block in blocks.of(np.array([low, high - 1])))
    is_explained = not known.keys().isdisjoint(range(first, last + 1))
    for block in range(first, last + 1):
        ids = blocks[block]
        if block not in known and (problem := _first(source, max(low, ids.start), min(high, ids.stop))) is not None:
            is_explained = True
            yield Unreadable(block, *problem)
    if not is_explained:
        yield Unreadable(first, low, why)


def _first(source: Source, low: int, high: int) -> tuple[int, str] | None:
    """The first record of a run that cannot be read, and why, by halving."""
    _, problem = _try(source, low, high)
    while problem is not None and high - low > 1 and not source.reads_blocks:
        middle = (low + high) // 2
        _, below = _try(source, low, middle)
        low, high, problem = (low, middle, below) if below is not None else (middle, high, problem)
    return None if problem is None else (low, problem)


def _try(source: Source, low: int, high: int) -> tuple[int, str | None]:
    """Read records; their bytes, and what went wrong."""
    try:
        _, size = load(source, low, high, list(source.schema), as_columns=False)
    except (PenstockError, OSError, ValueError) as error:
        return 0, str(error) or type(error).__name__
    return size, None
