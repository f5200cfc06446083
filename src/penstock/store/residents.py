"""Which records lie in each chunk of a generation: where segments put them, and where redirects put single fields of them."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from penstock.interfaces import IntArray
from penstock.store.entries import column, places_of
from penstock.store.format import Location
from penstock.store.generation import load_redirects
from penstock.store.manifest import Manifest

__all__ = ["Residents", "residents_of"]

Table = tuple[IntArray, IntArray, IntArray]
"""Places of chunks in rising order, and two numbers for each."""


@dataclass(frozen=True)
class Residents:
    """Runs of ids that a segment puts into a chunk, some of whose fields may lie elsewhere; and ids by field that lie there instead
    of in their segment's chunk.
    """

    runs: list[range] = field(default_factory=list)
    moved: dict[int, IntArray] = field(default_factory=dict)

    def ids(self, number: int, most: int) -> Iterator[IntArray]:
        """The ids that may have a field here, at most so many at a time."""
        moved = self.moved.get(number, np.empty(0, np.int64))
        for run in self.runs:
            for low in range(run.start, run.stop, most):
                yield np.arange(low, min(run.stop, low + most), dtype=np.int64)
        for low in range(0, moved.size, most):
            yield moved[low : low + most]


def residents_of(location: Location, manifest: Manifest, runs: list[range]) -> list[dict[int, Residents]]:
    """The residents of runs of chunks, by the place of the chunk."""
    numbers = column(manifest.chunks, "number")
    chunks = places_of(numbers, column(manifest.segments, "chunk"))
    segments = _sorted(chunks, column(manifest.segments, "first_id"), column(manifest.segments, "count"))
    moved = {
        number: _sorted(places_of(numbers, table["chunk"]), table["id"].astype(np.int64), table["row"].astype(np.int64))
        for number, table in load_redirects(location, manifest).items()
    }
    return [{place: _residents(place, segments, moved) for place in run} for run in runs]


def _sorted(places: IntArray, one: IntArray, other: IntArray) -> Table:
    order = np.argsort(places, kind="stable")
    return places[order], one[order], other[order]


def _residents(place: int, segments: Table, moved: dict[int, Table]) -> Residents:
    firsts, counts = _of(place, segments)
    runs = [range(first, first + count) for first, count in zip(firsts.tolist(), counts.tolist(), strict=True)]
    others = {number: _outside(_of(place, table)[0], firsts, firsts + counts) for number, table in moved.items()}
    return Residents(runs, {number: ids for number, ids in others.items() if ids.size})


def _outside(ids: IntArray, starts: IntArray, stops: IntArray) -> IntArray:
    """The ids that lie in none of these ranges, which are in rising order."""
    before = np.searchsorted(starts, ids, side="right")
    return ids[ids >= np.concatenate([[0], stops])[before]]


def _of(place: int, table: Table) -> tuple[IntArray, IntArray]:
    low, high = np.searchsorted(table[0], [place, place + 1]).tolist()
    return table[1][low:high], table[2][low:high]
