"""One record, read within a limit: what a stranger's data says of its size is not believed to be harmless."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import ReadError
from penstock.index import as_ids
from penstock.records import Source, only
from penstock.report.words import size
from penstock.store.reader import Store

__all__ = ["MOST_BYTES", "Record", "TooLarge", "chosen", "read_record"]

MOST_BYTES = 64_000_000
"""A record is decoded up to so many bytes."""


@dataclass(frozen=True)
class TooLarge:
    """Stands for a value that was not read."""

    num_bytes: int

    def __str__(self) -> str:
        return f"{size(self.num_bytes)}, not read: a record is shown up to {size(MOST_BYTES)}"


@dataclass(frozen=True)
class Record:
    """A record by field name. Missing values are None."""

    id: int
    values: Mapping[str, Any]


def chosen(source: Source, fields: str | None) -> list[str]:
    """The names in ``a,b``; all fields if None. A name may have commas in it: of several readings the longest name counts."""
    schema = source.schema
    if fields is None:
        return list(schema)
    pieces, names = fields.split(","), list[str]()
    while pieces:
        ends = range(len(pieces), 0, -1)
        end = next((end for end in ends if ",".join(pieces[:end]).strip() in schema), 1)
        names.append(",".join(pieces[:end]).strip())
        del pieces[:end]
    names = [name for name in names if name]
    unknown = [name for name in names if name not in schema]
    if unknown or not names:
        raise ValueError(f"unknown fields {unknown or fields!r}; there are {list(schema)}")
    return names


def read_record(source: Source, number: int, fields: Sequence[str]) -> Record:
    """Those fields of a record, without those that would make it larger than the limit."""
    wanted = int(as_ids(number, len(source))[0])
    try:
        values, room = {}, MOST_BYTES
        for name in fields:
            needed = _bytes_of(source, name, wanted)
            values[name] = TooLarge(needed) if needed > room else None
            room -= needed if needed <= room else 0
        batch = source.read([wanted], [name for name in fields if values[name] is None])
    except ReadError as error:
        raise type(error)(f"record {wanted}: {error}") from error
    return Record(wanted, values | {name: only(column) for name, column in batch.items()})


def _bytes_of(source: Source, name: str, number: int) -> int:
    """Bytes of a value as far as they are known without reading it, which of records of varying size only stores do."""
    field = source.schema[name]
    if field.is_fixed:
        return field.stride
    return int(source.lengths(name, [number])[0]) * field.dtype.itemsize if isinstance(source, Store) else 0
