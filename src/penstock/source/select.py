"""Selection: some records of a source, in an order of their own, as a source."""

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from penstock.index import as_ids
from penstock.interfaces import IntArray
from penstock.records import Batch, Blocks, DiskRange, Outputs, Recipe, Sampling, Source
from penstock.row_table import ChosenRows, RowTable
from penstock.schema import Field
from penstock.source.fingerprint import digest_arrays, fingerprint_arrays, fingerprint_of

__all__ = ["Selection"]


class Selection(Source):
    """Record i is record ``ids[i]`` of the source. A slice is kept as one, so it needs no memory."""

    def __init__(self, source: Source, ids: Any) -> None:
        self._source = source
        self._ids: range | IntArray
        if isinstance(ids, slice):
            self._ids = range(*ids.indices(len(source)))
        elif isinstance(ids, range) and _is_inside(ids, len(source)):
            self._ids = ids
        else:
            self._ids = as_ids(ids, len(source)).copy()

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def schema(self) -> Mapping[str, Field]:
        """The fields of the source."""
        return self._source.schema

    @property
    def fingerprint(self) -> str:
        """Of the source and the selection."""
        chosen = repr(self._ids) if isinstance(self._ids, range) else fingerprint_arrays("ids", [self._ids])
        return fingerprint_of("select", self._source.fingerprint, chosen)

    def file_versions(self) -> Hashable | None:
        """Of the source."""
        return self._source.file_versions()

    def sample_digest(self, sampling: Sampling) -> str | None:
        """Of the source and the selection."""
        found = self._source.sample_digest(sampling)
        chosen = repr(self._ids) if isinstance(self._ids, range) else digest_arrays("ids", [self._ids], sampling)
        return None if found is None else fingerprint_of("select", found, chosen)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """That of the source."""
        return self._source.metadata

    @property
    def blocks(self) -> Blocks:
        """The blocks of the source as far as they are selected, where the selection is in order; otherwise single records."""
        inner = self._source.blocks
        if isinstance(self._ids, range) and self._ids.step > 0:
            if self._ids.step == 1 and inner.ends is None and self._ids.start % inner.size == 0:
                return Blocks(len(self), inner.size)
            edges = range(len(inner)) if len(self) else range(0)
            ends = np.array([inner[number].stop for number in edges], np.int64)
            inside = np.clip(-(-(ends - self._ids.start) // self._ids.step), 0, len(self))
            return Blocks.of_counts(np.diff(inside, prepend=0))
        if not isinstance(self._ids, range) and len(self) and np.all(np.diff(self._ids) >= 0):
            return Blocks.of_counts(np.unique(inner.of(self._ids), return_counts=True)[1])
        return Blocks(len(self), 1)

    @property
    def reads_blocks(self) -> bool:
        """As the source."""
        return self._source.reads_blocks

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        return self._source.read(self._chosen(ids), fields, out)

    def _chosen(self, ids: IntArray) -> IntArray:
        return ids * self._ids.step + self._ids.start if isinstance(self._ids, range) else self._ids[ids]

    def row_tables(self) -> Mapping[str, tuple[RowTable, str]]:
        """Those of the source, with the rows that are chosen. Fields in the same rows there are in the same rows here."""
        inner = self._source.row_tables()
        chosen = {id(table): ChosenRows(table, self._ids) for table, _ in inner.values()}
        return {name: (chosen[id(table)], own) for name, (table, own) in inner.items()}

    def disk_ranges(self, ids: range) -> Sequence[DiskRange]:
        """Those of the source, where neighbours are neighbours there; all between the first and the last if most are chosen."""
        if not len(ids):
            return ()
        first, last = (int(self._chosen(np.array([id], np.int64))[0]) for id in (ids.start, ids.stop - 1))
        low, high = min(first, last), max(first, last) + 1
        if high - low > 2 * len(ids) or not self._is_monotonic:
            return ()
        return self._source.disk_ranges(range(low, high))

    @cached_property
    def _is_monotonic(self) -> bool:
        return isinstance(self._ids, range) or bool(np.all(np.diff(self._ids) >= 0))

    def has_documents(self, field: str) -> bool:
        """As the source."""
        return self._source.has_documents(field)

    def lengths(self, field: str, ids: Any) -> IntArray:
        """Those of the source."""
        return self._source.lengths(field, self._chosen(as_ids(ids, len(self))))

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def _recipe(self) -> Recipe:
        return (Selection, (self._source, self._ids))


def _is_inside(ids: range, count: int) -> bool:
    """Whether all of them are numbers of records, none counted from the end."""
    return len(ids) == 0 or (min(ids[0], ids[-1]) >= 0 and max(ids[0], ids[-1]) < count)
