"""plan: the records of a source split into tasks that can be done anywhere, in any order. Pure: the same for the same arguments."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from penstock.records import Source
from penstock.source.spans import whole_blocks

__all__ = ["Task", "plan", "rows_of_chunk"]

SAMPLE_RUNS = 4
SAMPLE_RECORDS = 64
FILL = 15 / 16
"""How full a chunk is meant to be where sizes are only guessed: two chunks, one of them nearly empty, would be worse."""


@dataclass(frozen=True)
class Task:
    """Task ``number`` of ``tasks``: the records [low, high) of the source."""

    number: int
    tasks: int
    low: int
    high: int


def plan(source: Source, task_records: int, *, by_blocks: bool = False) -> list[Task]:
    """Runs of about ``task_records`` records. They end where blocks end if blocks are read as a whole, or if ``by_blocks`` says so.
    A source of no records has one task.
    """
    blocks, low, cuts = source.blocks if by_blocks else whole_blocks(source), 0, [0]
    while low < len(source):
        low = min(len(source), low + task_records)
        if blocks is not None:
            low = blocks[int(blocks.of(np.array([low - 1]))[0])].stop
        cuts.append(low)
    runs = list(pairwise(cuts)) or [(0, 0)]
    return [Task(number, len(runs), *run) for number, run in enumerate(runs)]


def rows_of_chunk(source: Source, fields: Sequence[str], chunk_bytes: int, chunk_records: int) -> int:
    """How many records fill a chunk: exactly where all have one size; else guessed from a few here and there."""
    stride = sum(source.schema[name].stride for name in fields if source.schema[name].is_fixed)
    varying = [name for name in fields if not source.schema[name].is_fixed]
    if not varying or len(source) == 0:
        return max(1, min(chunk_records, chunk_bytes // max(1, stride)))
    ids = _sample(len(source))
    sizes = sum(source.lengths(name, ids) * source.schema[name].dtype.itemsize for name in varying)
    mean = stride + float(np.mean(sizes))
    return max(1, min(chunk_records, int(FILL * chunk_bytes / max(1.0, mean))))


def _sample(length: int) -> list[int]:
    """A few runs of ids, spread over the source."""
    firsts = {length * run // SAMPLE_RUNS for run in range(SAMPLE_RUNS)}
    return sorted({id for first in firsts for id in range(first, min(length, first + SAMPLE_RECORDS))})
