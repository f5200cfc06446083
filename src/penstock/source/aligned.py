"""Aligned: the fields of several sources of one length, side by side."""

from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from penstock.errors import SchemaMismatchError
from penstock.interfaces import IntArray
from penstock.records import Batch, Blocks, DiskRange, Outputs, Recipe, Sampling, Source
from penstock.row_table import RowTable
from penstock.schema import Field
from penstock.source.fingerprint import fingerprint_of

__all__ = ["Aligned"]


class Aligned(Source):
    """Record i has the fields of record i of every part. A part with one field gives it the part's name; the fields of a part with
    several are called ``part.field``.
    """

    def __init__(self, parts: Mapping[str, Source]) -> None:
        if not parts:
            raise ValueError("expected at least one source, got none")
        lengths = {name: len(part) for name, part in parts.items()}
        if len(set(lengths.values())) > 1:
            raise SchemaMismatchError(f"aligned sources must have the same number of records, got {lengths}")
        self._parts = dict(parts)
        self._length = next(iter(lengths.values()))
        self._places: dict[str, tuple[str, str]] = {}
        self._schema: dict[str, Field] = {}
        for name, part in parts.items():
            inner_schema = part.schema
            for inner, field in inner_schema.items():
                outer = name if len(inner_schema) == 1 else f"{name}.{inner}"
                if outer in self._schema:
                    raise SchemaMismatchError(f"two parts give a field {outer!r}; rename one of {list(parts)}")
                self._schema[outer], self._places[outer] = field, (name, inner)

    def __len__(self) -> int:
        return self._length

    @property
    def schema(self) -> Mapping[str, Field]:
        """The fields of all parts."""
        return dict(self._schema)

    @property
    def fingerprint(self) -> str:
        """Of all parts and their names."""
        return fingerprint_of("aligned", [(name, part.fingerprint) for name, part in self._parts.items()])

    def sample_digest(self, sampling: Sampling) -> str | None:
        """Of all parts and their names."""
        share = sampling.shared(len(self._parts))
        found = {name: part.sample_digest(share) for name, part in self._parts.items()}
        return None if None in found.values() else fingerprint_of("aligned", list(found.items()))

    def file_versions(self) -> Hashable | None:
        """Of all parts."""
        found = tuple(part.file_versions() for part in self._parts.values())
        return None if None in found else found

    @property
    def metadata(self) -> Mapping[str, Any]:
        """That of all parts, but for what two of them say differently."""
        found: dict[str, Any] = {}
        differing: set[str] = set()
        for part in self._parts.values():
            for key, value in part.metadata.items():
                differing |= {key} if found.setdefault(key, value) != value else set()
        return MappingProxyType({key: value for key, value in found.items() if key not in differing})

    @property
    def blocks(self) -> Blocks:
        """Those of the part with the most bytes to a record, counting fixed fields."""
        costly = [part for part in self._parts.values() if part.reads_blocks] or list(self._parts.values())
        return max(costly, key=lambda part: sum(f.stride if f.is_fixed else 1 << 20 for f in part.schema.values())).blocks

    @property
    def reads_blocks(self) -> bool:
        """Whether any part does."""
        return any(part.reads_blocks for part in self._parts.values())

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        found: Batch = {}
        for name, part in self._parts.items():
            wanted = {inner: outer for outer, (of, inner) in self._places.items() if of == name and outer in fields}
            if wanted:
                given = {inner: out[outer] for inner, outer in wanted.items() if outer in out}
                batch = part.read(ids, list(wanted), given)
                found |= {wanted[inner]: column for inner, column in batch.items()}
        return {name: found[name] for name in fields}

    def row_tables(self) -> Mapping[str, tuple[RowTable, str]]:
        """Those of the parts."""
        tables = {name: part.row_tables() for name, part in self._parts.items()}
        return {outer: tables[name][inner] for outer, (name, inner) in self._places.items()}

    def disk_ranges(self, ids: range) -> Sequence[DiskRange]:
        """Those of all parts."""
        return [found for part in self._parts.values() for found in part.disk_ranges(ids)]

    def has_documents(self, field: str) -> bool:
        """As its part."""
        name, inner = self._places[field]
        return self._parts[name].has_documents(inner)

    def lengths(self, field: str, ids: Any) -> IntArray:
        """Those of its part."""
        name, inner = self._places[field]
        return self._parts[name].lengths(inner, ids)

    def close(self) -> None:
        """Close every part."""
        for part in self._parts.values():
            part.close()

    def _recipe(self) -> Recipe:
        return (Aligned, (self._parts,))
