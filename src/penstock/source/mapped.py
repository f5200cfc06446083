"""Mapped: a source whose records pass through a function when they are read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.errors import SchemaMismatchError
from penstock.interfaces import IntArray
from penstock.interrupt import exposed
from penstock.records import Batch, Blocks, DiskRange, Outputs, Recipe, Sampling, Source, fixed_output, only
from penstock.schema import Field
from penstock.source.fingerprint import fingerprint_of
from penstock.store.column import as_batch, guess_field, make_column

__all__ = ["Mapped", "collect"]

Record = dict[str, Any]


class Mapped(Source):
    """Records as ``fn(record)`` gives them: a dict of arrays, numbers, texts, bytes or None. The function runs when records are
    read, in the thread that reads, and must give the same for the same record; to be pickled, it must be picklable.
    """

    def __init__(
        self, source: Source, fn: Callable[[Record], Mapping[str, Any]], schema: Mapping[str, Field] | None = None
    ) -> None:
        self._source, self._fn, self._given = source, fn, None if schema is None else dict(schema)
        self._schema = self._given if self._given is not None else _schema_of(source, fn)

    def __len__(self) -> int:
        return len(self._source)

    @property
    def schema(self) -> Mapping[str, Field]:
        """What the function gives."""
        return dict(self._schema)

    @property
    def fingerprint(self) -> str:
        """Of the source, the fields and the name of the function; what the function does cannot be seen."""
        return self._digest(self._source.fingerprint)

    def sample_digest(self, sampling: Sampling) -> str | None:
        """The same, of samples of the source."""
        found = self._source.sample_digest(sampling)
        return None if found is None else self._digest(found)

    def _digest(self, source: str) -> str:
        name = getattr(self._fn, "__qualname__", type(self._fn).__qualname__)
        return fingerprint_of("map", source, name, [(n, repr(f.with_nullable(False))) for n, f in self._schema.items()])

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
        batch = self._source.read(ids)
        records = _each(self._fn, batch, ids.size)
        return collect(records, {name: self._schema[name] for name in fields}, out)

    def disk_ranges(self, ids: range) -> Sequence[DiskRange]:
        """Those of the source."""
        return self._source.disk_ranges(ids)

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def _recipe(self) -> Recipe:
        return (Mapped, (self._source, self._fn, self._given))


@exposed
def _each(fn: Callable[[Any], Any], batch: Batch, count: int) -> list[Any]:
    """What the user's function makes of every record."""
    return [fn({name: _item(column, i) for name, column in batch.items()}) for i in range(count)]


def collect(records: Sequence[Mapping[str, Any]], schema: Mapping[str, Field], out: Outputs) -> Batch:
    """A batch of records that came one by one."""
    batch: Batch = {}
    for name, field in schema.items():
        try:
            column = as_batch(field, make_column(name, field, [record[name] for record in records]))
        except KeyError as error:
            raise SchemaMismatchError(f"a record has no field {name!r}; expected {list(schema)}") from error
        if name in out:
            array = fixed_output(name, field, len(records), out)
            array[...] = column.data if hasattr(column, "mask") else column
            column = array if not hasattr(column, "mask") else type(column)(array, mask=column.mask)
        batch[name] = column
    return batch


def _schema_of(source: Source, fn: Callable[[Record], Mapping[str, Any]]) -> dict[str, Field]:
    if len(source) == 0:
        raise ValueError("there is no record to find out the fields from: give map(fn, schema={...})")
    record = fn(source[0])
    if not isinstance(record, Mapping):
        raise TypeError(f"fn must give a dict of fields, got {type(record).__name__}")
    known = source.schema
    return {name: _field_of(name, value, known.get(name)) for name, value in record.items()}


def _field_of(name: str, value: Any, before: Field | None) -> Field:
    """The field of a value like this one; an array is taken for one of many of its shape. ``before``: the field of that name in the
    source. If it is nullable, so is the one that ``fn`` gives.
    """
    if value is None and before is not None and before.nullable:
        return before
    if value is None:
        raise ValueError(f"field {name!r} is missing in record 0, so its type cannot be found out: give map(fn, schema={{...}})")
    field = Field(value.dtype, value.shape) if isinstance(value, np.ndarray) else guess_field(name, [value])
    return field.with_nullable(before is not None and before.nullable)


def _item(column: Any, place: int) -> Any:
    return only(column[place : place + 1]) if hasattr(column, "dtype") else column[place]
