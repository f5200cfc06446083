"""Picked: some fields of a source. The others are not read."""

from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from penstock.interfaces import IntArray
from penstock.records import Batch, Blocks, DiskRange, Outputs, Recipe, Sampling, Source
from penstock.row_table import RowTable
from penstock.schema import Field
from penstock.source.fingerprint import fingerprint_of

if TYPE_CHECKING:
    from penstock.remote.window import RemoteFiles

__all__ = ["Picked"]


class Picked(Source):
    """The named fields of a source, in that order."""

    def __init__(self, source: Source, fields: Sequence[str]) -> None:
        schema = source.schema
        unknown = [name for name in fields if name not in schema]
        if unknown:
            raise KeyError(f"unknown fields {unknown}; there are {list(schema)}")
        if not fields or len(set(fields)) < len(fields):
            raise ValueError(f"expected different fields, at least one, got {list(fields)}")
        self._source, self._schema = source, {name: schema[name] for name in fields}

    def __len__(self) -> int:
        return len(self._source)

    @property
    def schema(self) -> Mapping[str, Field]:
        """The fields that were picked."""
        return dict(self._schema)

    @property
    def fingerprint(self) -> str:
        """Of the source and the names."""
        return fingerprint_of("pick", self._source.fingerprint, list(self._schema))

    def file_versions(self) -> Hashable | None:
        """Of the source."""
        return self._source.file_versions()

    def sample_digest(self, sampling: Sampling) -> str | None:
        """Of the source and the names."""
        found = self._source.sample_digest(sampling)
        return None if found is None else fingerprint_of("pick", found, list(self._schema))

    @property
    def metadata(self) -> Mapping[str, Any]:
        """That of the source."""
        return self._source.metadata

    @property
    def blocks(self) -> Blocks:
        """Those of the source."""
        return self._source.blocks

    @property
    def reads_blocks(self) -> bool:
        """As the source."""
        return self._source.reads_blocks

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        return self._source.read(ids, fields, out)

    def row_tables(self) -> Mapping[str, tuple[RowTable, str]]:
        """Those of the source."""
        inner = self._source.row_tables()
        return {name: inner[name] for name in self._schema}

    def lengths(self, field: str, ids: Any) -> IntArray:
        """As the source knows them."""
        return self._source.lengths(field, ids)

    @property
    def remote(self) -> "RemoteFiles | None":
        """The files of the source."""
        return self._source.remote

    def byte_ranges(self, ids: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Those of the whole records: fields lie side by side."""
        return self._source.byte_ranges(ids)

    def hold(self, ids: IntArray) -> AbstractContextManager[object]:
        """As the source does."""
        return self._source.hold(ids)

    def disk_ranges(self, ids: range) -> Sequence[DiskRange]:
        """Those of the whole records."""
        return self._source.disk_ranges(ids)

    def has_documents(self, field: str) -> bool:
        """As the source."""
        return self._source.has_documents(field)

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def _recipe(self) -> Recipe:
        return (Picked, (self._source, list(self._schema)))
