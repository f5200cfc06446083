"""Sources made of sources: some records, some fields, other types, records through a function; several in parallel, or one after
the other.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from operator import methodcaller
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, as_ids, shown
from penstock.batch import Batch, Outputs, Ragged, check_told, fixed_output, only, scatter
from penstock.errors import CastError, SchemaMismatchError, SourceChangedError
from penstock.fingerprint import digest_arrays, fingerprint_arrays, fingerprint_of
from penstock.interrupt import exposed
from penstock.process import FewOpen, map_at_once
from penstock.records import (
    DENSE,
    SAMPLINGS,
    Blocks,
    Recipe,
    Sampling,
    Source,
    by_number,
    common_metadata,
    is_same_data,
    provide,
)
from penstock.row_table import ChosenRows, JoinedRows, RowTable
from penstock.schema import Field
from penstock.store.column import as_batch, guess_field, make_column, try_cast

__all__ = ["Aligned", "Concat", "Part", "View", "collect", "schema_of_record"]


class View(Source):
    """What views of one source have in common: all that they do not say otherwise is as the source has it."""

    _source: Source

    def __len__(self) -> int:
        return len(self._source)

    @property
    def fingerprint(self) -> str:
        return self._digest(self._source.fingerprint)

    def sample_digest(self, sampling: Sampling) -> str | None:
        found = self._source.sample_digest(sampling)
        return None if found is None else self._digest(found)

    def _digest(self, source: str) -> str:
        """The fingerprint, or the digest of samples, from that of the source."""
        raise NotImplementedError

    def file_versions(self) -> Hashable | None:
        return self._source.file_versions()

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._source.metadata

    @property
    def blocks(self) -> Blocks:
        return self._source.blocks

    @property
    def reads_blocks(self) -> bool:
        return self._source.reads_blocks

    def has_documents(self, field: str) -> bool:
        return self._source.has_documents(field)

    def close(self) -> None:
        self._source.close()


class Selection(View):
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
        return self._source.schema

    @property
    def fingerprint(self) -> str:
        chosen = repr(self._ids) if isinstance(self._ids, range) else fingerprint_arrays("ids", [self._ids])
        return fingerprint_of("select", self._source.fingerprint, chosen)

    def sample_digest(self, sampling: Sampling) -> str | None:
        found = self._source.sample_digest(sampling)
        chosen = _spelled(self._ids) if isinstance(self._ids, range) else digest_arrays("ids", [self._ids], sampling)
        return None if found is None else fingerprint_of("select", found, chosen)

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

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        return self._source.read(self._chosen(ids), fields, out)

    def _chosen(self, ids: IntArray) -> IntArray:
        return ids * self._ids.step + self._ids.start if isinstance(self._ids, range) else self._ids[ids]

    def row_tables(self) -> Mapping[str, tuple[RowTable, str]]:
        """Those of the source, with the rows that are chosen. Fields in the same rows there are in the same rows here."""
        inner = self._source.row_tables()
        chosen = {id(table): ChosenRows(table, self._ids) for table, _ in inner.values()}
        return {name: (chosen[id(table)], own) for name, (table, own) in inner.items()}

    def lengths(self, field: str, ids: Any) -> IntArray:
        return self._source.lengths(field, self._chosen(as_ids(ids, len(self))))

    def _recipe(self) -> Recipe:
        return (Selection, (self._source, self._ids))


def _spelled(ids: range) -> tuple[int, ...]:
    """The same for ranges of the same ids: how many, and the first two."""
    return len(ids), *ids[:2]


def _is_inside(ids: range, count: int) -> bool:
    """Whether all of them are numbers of records, none counted from the end."""
    return len(ids) == 0 or (min(ids[0], ids[-1]) >= 0 and max(ids[0], ids[-1]) < count)


class Picked(View):
    """The named fields of a source, in that order."""

    def __init__(self, source: Source, fields: Sequence[str]) -> None:
        schema = source.schema
        wrong = next((name for name in fields if not isinstance(name, str)), None)
        if wrong is not None:
            raise TypeError(f"pick takes the names of fields, as in pick('x', 'y'), got {shown(wrong)}")
        unknown = [name for name in fields if name not in schema]
        if unknown:
            raise KeyError(f"unknown fields {unknown}; there are {list(schema)}")
        if not fields or len(set(fields)) < len(fields):
            raise ValueError(f"expected different fields, at least one, got {list(fields)}")
        self._source, self._schema = source, {name: schema[name] for name in fields}

    @property
    def schema(self) -> Mapping[str, Field]:
        return dict(self._schema)

    def _digest(self, source: str) -> str:
        return fingerprint_of("pick", source, list(self._schema))

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        return self._source.read(ids, fields, out)

    def row_tables(self) -> Mapping[str, tuple[RowTable, str]]:
        inner = self._source.row_tables()
        return {name: inner[name] for name in self._schema}

    def lengths(self, field: str, ids: Any) -> IntArray:
        return self._source.lengths(field, ids)

    def _recipe(self) -> Recipe:
        return (Picked, (self._source, list(self._schema)))


class Cast(View):
    """The same records with some fields as other types. Values are checked when they are read: one that does not fit is a
    CastError. Fields keep their shapes, and what is missing stays so.
    """

    def __init__(self, source: Source, types: Mapping[str, npt.DTypeLike], allow: str | None = None) -> None:
        if not isinstance(types, Mapping) or not types:
            raise TypeError(f"cast takes a dict of element types by field, such as {{'x': 'f4'}}, got {shown(types)}")
        if allow not in (None, "round"):
            raise ValueError(f"allow must be None or 'round', got {shown(allow)}")
        schema = source.schema
        unknown = [name for name in types if name not in schema]
        if unknown:
            raise KeyError(f"unknown fields {unknown}; there are {list(schema)}")
        self._source, self._allow = source, allow
        self._types = {name: _cast_field(name, schema[name], dtype) for name, dtype in types.items()}

    @property
    def schema(self) -> Mapping[str, Field]:
        return dict(self._source.schema) | self._types

    def _digest(self, source: str) -> str:
        elements = sorted((name, field.element) for name, field in self._types.items())
        return fingerprint_of("cast", source, elements, self._allow)

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        batch = self._source.read(ids, fields, {name: array for name, array in out.items() if name not in self._types})
        for name in fields:
            if name in self._types:
                column = batch[name]
                is_ragged = isinstance(column, Ragged)
                batch[name] = self._cast_ragged(name, column, ids) if is_ragged else self._cast_fixed(name, column, ids, out)
        return batch

    def _cast_fixed(self, name: str, column: Any, ids: IntArray, out: Outputs) -> Any:
        field, mask = self._types[name], np.ma.getmask(column)
        values = np.ma.getdata(column)
        if np.any(mask):  # what is in their place has no meaning
            values = np.where(mask, np.zeros((), values.dtype), values)
        cast, wrong = self._cast(name, values)
        if wrong is not None:
            raise self._misfit(name, int(ids[wrong[0]]), values[wrong])
        if name in out:
            array = fixed_output(name, field, ids.size, out)
            array[...] = cast
            cast = array
        return np.ma.MaskedArray(cast, mask=mask) if isinstance(column, np.ma.MaskedArray) else cast

    def _cast_ragged(self, name: str, column: Ragged, ids: IntArray) -> Ragged:
        offsets = column.offsets - column.offsets[0]
        values = column.values[column.offsets[0] : column.offsets[-1]]
        cast, wrong = self._cast(name, values)
        if wrong is not None:
            row = int(np.searchsorted(offsets, wrong[0], side="right")) - 1
            raise self._misfit(name, int(ids[row]), values[wrong])
        return replace(column, values=cast, offsets=offsets)

    def _cast(self, name: str, values: Any) -> tuple[Any, tuple[int, ...] | None]:
        """Values as the other type, and the place of the first that does not fit."""
        if values.dtype == self._types[name].dtype:
            return values, None
        cast, fits = try_cast(values, self._types[name].dtype, rounding=self._allow == "round")
        if fits.all():
            return cast, None
        return cast, tuple(map(int, np.unravel_index(int(np.argmin(fits)), fits.shape)))

    def _misfit(self, name: str, record: int, value: Any) -> CastError:
        element = self._types[name].element
        could_round = self._allow is None and try_cast(np.asarray(value).reshape(1), self._types[name].dtype, rounding=True)[1][0]
        remedy = "cast with allow='round', or to another type" if could_round else "cast to a wider type"
        return CastError(f"field {name!r}: record {record} has {shown(value.item())}, which does not fit {element}: {remedy}")

    def lengths(self, field: str, ids: Any) -> IntArray:
        return self._source.lengths(field, ids)

    @property
    def behind(self) -> Source:
        return self._source

    def _recipe(self) -> Recipe:
        return (Cast, (self._source, {name: field.element for name, field in self._types.items()}, self._allow))


def _cast_field(name: str, field: Field, dtype: npt.DTypeLike) -> Field:
    if field.kind not in ("fixed", "ragged"):
        raise TypeError(f"fields of numbers can be cast, field {name!r} is {field!r}")
    how: dict[str, Any] = {"codec": field.codec, "nullable": field.nullable}
    return Field(dtype, field.shape, **how) if field.is_fixed else Field.ragged(dtype, field.ndim, **how)


Record = dict[str, Any]
T = TypeVar("T")


class Mapped(View):
    """Records as ``fn(record)`` gives them: a dict of arrays, numbers, texts, bytes or None. The function runs when records are
    read, in the thread that reads, and must give the same for the same record; to be pickled, it must be picklable.
    """

    def __init__(
        self, source: Source, fn: Callable[[Record], Mapping[str, Any]], schema: Mapping[str, Field] | None = None
    ) -> None:
        self._source, self._fn, self._given = source, fn, None if schema is None else dict(schema)
        self._schema = self._given if self._given is not None else _schema_of(source, fn)

    @property
    def schema(self) -> Mapping[str, Field]:
        return dict(self._schema)

    def file_versions(self) -> None:
        """Unknown: what the function gives does not follow from the files alone."""

    def _digest(self, source: str) -> str:
        """Of the source, the fields and the name of the function; what the function does cannot be seen."""
        name = getattr(self._fn, "__qualname__", type(self._fn).__qualname__)
        return fingerprint_of("map", source, name, [(n, repr(f.with_nullable(False))) for n, f in self._schema.items()])

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        batch = self._source.read(ids)
        for name, column in batch.items() if ids.size > 1 else ():
            check_told(name, column)
        records = _each(self._fn, batch, ids.size)
        return collect(records, {name: self._schema[name] for name in fields}, out)

    def has_documents(self, field: str) -> bool:
        """As the source: a function that makes documents of other records gives them another name."""
        return field not in self._source.schema or self._source.has_documents(field)

    @property
    def behind(self) -> Source:
        """The source, all fields of which the function gets."""
        return self._source

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
        raise ValueError("there is no record to infer the fields from: pass map(fn, schema={...})")
    record = fn(source[0])
    if not isinstance(record, Mapping):
        raise TypeError(f"fn must return a dict of fields, got {type(record).__name__}")
    return schema_of_record(record, source.schema)


def schema_of_record(record: Mapping[str, Any], known: Mapping[str, Field] = MappingProxyType({})) -> dict[str, Field]:
    """The fields of records like this one; ``known``: those of the records it was made of."""
    return {name: _field_of(name, value, known.get(name)) for name, value in record.items()}


def _field_of(name: str, value: Any, before: Field | None) -> Field:
    """The field of a value like this one; an array is taken for one of many of its shape. ``before``: the field of that name in the
    source. If it is nullable, so is the one that ``fn`` gives.
    """
    if value is None and before is not None and before.nullable:
        return before
    if value is None:
        raise ValueError(f"field {name!r} is missing in record 0, so its type cannot be inferred: pass map(fn, schema={{...}})")
    field = Field(value.dtype, value.shape) if isinstance(value, np.ndarray) else guess_field(name, [value])
    return field.with_nullable(before is not None and before.nullable)


def _item(column: Any, place: int) -> Any:
    return only(column[place : place + 1]) if hasattr(column, "dtype") else column[place]


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
        return dict(self._schema)

    @property
    def fingerprint(self) -> str:
        return fingerprint_of("aligned", [(name, part.fingerprint) for name, part in self._parts.items()])

    def sample_digest(self, sampling: Sampling) -> str | None:
        share = sampling.shared(len(self._parts))
        found = {name: part.sample_digest(share) for name, part in self._parts.items()}
        return None if None in found.values() else fingerprint_of("aligned", list(found.items()))

    def file_versions(self) -> Hashable | None:
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
        tables = {name: part.row_tables() for name, part in self._parts.items()}
        return {outer: tables[name][inner] for outer, (name, inner) in self._places.items()}

    def has_documents(self, field: str) -> bool:
        name, inner = self._places[field]
        return self._parts[name].has_documents(inner)

    def lengths(self, field: str, ids: Any) -> IntArray:
        name, inner = self._places[field]
        return self._parts[name].lengths(inner, ids)

    def close(self) -> None:
        for part in self._parts.values():
            part.close()

    def _recipe(self) -> Recipe:
        return (Aligned, (self._parts,))


# One after the other


MOST_OPEN = 64
"""Parts that are open at a time, unless they were given open, in addition to those at URLs: these have no file descriptors, and one
window together.
"""

_SHARED = {sampling.name: sampling for sampling in SAMPLINGS}
"""What the parts share, wherever the whole is itself a part: a collection keeps the digests of its parts."""


@dataclass(frozen=True)
class Part:
    """How to open one part, and what is known of it: the name it has in messages, its length, its fingerprint, and sample digests
    by the name of the sampling (None if the part itself is to be asked for them).
    """

    name: str
    open: Callable[[], Source]
    length: int
    fingerprint: str
    samples: Mapping[str, str] | None = None


class Concat(Source):
    """The records of all parts, in order. Parts are opened when they are read, a few at a time, and must be what they were."""

    def __init__(
        self,
        parts: Sequence[Part],
        schema: Mapping[str, Field],
        *,
        reads_blocks: bool,
        num_remote: int = 0,
        metadata: Mapping[str, Any] | None = None,
        opened: Mapping[int, Source] = MappingProxyType({}),
    ) -> None:
        """``num_remote`` parts are at URLs; ``opened`` are parts that are open already. Without ``metadata`` the parts are asked
        for it when it is wanted, and which of their fields are nullable.
        """
        self._listed, self._given, self._reads_blocks, self._num_remote = list(parts), dict(schema), reads_blocks, num_remote
        self._given_metadata = metadata
        self._sampled: dict[str, list[str | None]] = {}
        self._ends = np.cumsum([part.length for part in parts], dtype=np.int64)
        given = any(isinstance(part.open, _Given) for part in parts)
        self._most_open = len(parts) if given else MOST_OPEN + num_remote
        self._parts = FewOpen(self._open_part, self._most_open)
        self._parts.add(opened)

    @classmethod
    def of(cls, opened: Iterable[tuple[str, Callable[[], Source]]], *, num_remote: int = 0) -> "Concat":
        """Parts by name and how to open them, ``num_remote`` of them at URLs. Each is opened now, to see that they fit together, in
        parallel if any is at a URL. As many stay open as may be.
        """
        parts: list[Part] = []
        known: _Known | None = None
        reads_blocks = False
        with ExitStack() as if_refused:
            kept: dict[int, Source] = {}
            looked = map_at_once(_look, list(opened), are_remote=num_remote > 0, unused=_close_looked)
            if_refused.callback(looked.close)
            for part, own, source in looked:
                is_given = isinstance(part.open, _Given)
                reads_blocks |= source.reads_blocks
                if is_given or len(kept) < MOST_OPEN + num_remote:
                    kept[len(parts)] = source
                    if not is_given:
                        if_refused.callback(source.close)
                else:
                    source.close()
                if known is not None and _plain(own.schema) != _plain(known.schema):
                    raise SchemaMismatchError(_difference(parts[0].name, known.schema, part.name, own.schema))
                known = own if known is None else known.joined(own)
                parts.append(part)
            if known is None:
                raise ValueError("expected at least one source, got none")
            how: dict[str, Any] = {"reads_blocks": reads_blocks, "num_remote": num_remote, "metadata": known.metadata}
            whole = cls(parts, known.schema, **how, opened=kept)
            if_refused.pop_all()
        return whole

    @classmethod
    def of_sources(cls, sources: Sequence[Source]) -> "Concat":
        """Sources that are open already, and stay so."""
        return cls.of((f"part {number}", _Given(source)) for number, source in enumerate(sources))

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._ends.size else 0

    @property
    def schema(self) -> Mapping[str, Field]:
        """The fields, the same in every part; nullable if they are in any."""
        return dict(self._known.schema)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What all parts say alike."""
        return MappingProxyType(dict(self._known.metadata))

    @cached_property
    def _known(self) -> "_Known":
        """Of an old collection, which says neither what is nullable nor the metadata, every part is opened once."""
        if self._given_metadata is not None or not self._listed:
            return _Known(self._given, self._given_metadata or {})
        listed = [(part.name, part.open) for part in self._listed]
        looked = map_at_once(_look_only, listed, are_remote=self._num_remote > 0)
        found = reduce(_Known.joined, looked)
        return _Known(
            {n: f.with_nullable(n in found.schema and found.schema[n].nullable) for n, f in self._given.items()}, found.metadata
        )

    @property
    def fingerprint(self) -> str:
        return fingerprint_of("concat", [(part.length, part.fingerprint) for part in self._listed])

    def sample_digest(self, sampling: Sampling) -> str | None:
        """Of the parts in their order; None if it is not known of one of them. Parts that do not say it are opened, once."""
        found = [(part.length, digest) for part, digest in zip(self._listed, self._samples(sampling.name), strict=True)]
        return None if any(digest is None for _, digest in found) else fingerprint_of("concat", found)

    def file_versions(self) -> Hashable | None:
        """Of all parts, which are opened for it."""
        found = tuple(self._ask_part(number, methodcaller("file_versions")) for number in range(len(self._listed)))
        return None if None in found else found

    def _ask_part(self, number: int, ask: Callable[[Source], T]) -> T:
        """What a part says."""
        with self._parts.use(number) as source:
            return ask(source)

    def sampled(self) -> list[Part]:
        """The parts with all sample digests that are known of them."""
        columns = {name: self._samples(name) for name in _SHARED}
        found = [
            {name: digest for name, digests in columns.items() if (digest := digests[number]) is not None}
            for number in range(len(self._listed))
        ]
        return [replace(part, samples=samples) for part, samples in zip(self._listed, found, strict=True)]

    def _samples(self, name: str) -> list[str | None]:
        if name not in self._sampled:
            self._sampled[name] = [self._ask(number, name) for number in range(len(self._listed))]
        return self._sampled[name]

    def _ask(self, number: int, name: str) -> str | None:
        part = self._listed[number]
        if part.samples is not None:
            return part.samples.get(name)
        return self._ask_part(number, lambda source: self._share(source, _SHARED[name]))

    def _share(self, source: Source, sampling: Sampling) -> str | None:
        """What a part gives, as one of many."""
        return source.sample_digest(sampling.shared(len(self._listed)))

    @property
    def blocks(self) -> Blocks:
        """The parts, cut into blocks of the size that the first part with records has."""
        lengths = [part.length for part in self._listed if part.length]
        if not lengths:
            return Blocks(0, 1)
        size = self._block_size
        counts = [np.append(np.full(length // size, size), length % size) for length in lengths]
        return Blocks.of_counts(np.concatenate(counts))

    @cached_property
    def _block_size(self) -> int:
        first = next(number for number, part in enumerate(self._listed) if part.length)
        return int(self._ask_part(first, lambda source: source.blocks.size))

    @property
    def reads_blocks(self) -> bool:
        return self._reads_blocks

    def _open_part(self, number: int) -> Source:
        part = self._listed[number]
        source = part.open()
        if len(source) != part.length or _plain(source.schema) != _plain(self._given):
            source.close()
            raise SourceChangedError(
                f"{_short(part.name)}: expected {part.length} records of {_short(self._given)}, found {_short(source)}"
            )
        if not is_same_data(part.samples or {}, part.fingerprint, partial(self._share, source), lambda: source.fingerprint):
            source.close()
            raise SourceChangedError(
                f"{_short(part.name)}: the data is not what it was; write the collection, or open the list, again"
            )
        return source

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        numbers = np.searchsorted(self._ends, ids, side="right")
        if ids.size and numbers[0] == numbers[-1] and np.all(numbers == numbers[0]):
            return self._read_part(int(numbers[0]), ids, fields, out)
        parts = [(run, self._read_part(number, ids[run], fields, {})) for number, run in by_number(numbers)]
        return {
            name: scatter(name, self._given[name], [(run, batch[name]) for run, batch in parts], ids.size, out) for name in fields
        }

    def _read_part(self, number: int, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        first = int(self._ends[number]) - self._listed[number].length
        with self._parts.use(number) as source:
            return source.read(ids - first, fields, out)

    def row_tables(self) -> Mapping[str, tuple[RowTable, str]]:
        """Those of the parts, one after the other, unless there are more than may be open at once."""
        if not 0 < len(self._listed) <= self._most_open:
            return super().row_tables()
        if self._num_remote > 0:
            self._open_all()
        inner = [self._ask_part(number, methodcaller("row_tables")) for number in range(len(self._listed))]
        lengths, joined = [part.length for part in self._listed], dict[tuple[int, ...], RowTable]()
        found: dict[str, tuple[RowTable, str]] = {}
        for name in self._given:
            tables, names = zip(*(part[name] for part in inner), strict=True)
            if len(set(names)) > 1:
                return super().row_tables()
            key = tuple(map(id, tables))
            found[name] = joined.setdefault(key, JoinedRows(tables, lengths)), names[0]
        return found

    def _open_all(self) -> None:
        """Open all parts that are not, in parallel: one after the other, thousands would take minutes."""
        missing = self._parts.missing(range(len(self._listed)))
        opened = map_at_once(self._open_part, missing, are_remote=True, unused=methodcaller("close"))
        with closing(opened):
            for number, source in zip(missing, opened, strict=True):
                self._parts.add({number: source})

    def has_documents(self, field: str) -> bool:
        """Whether all parts that have records have."""
        asked = methodcaller("has_documents", field)
        return all(self._ask_part(number, asked) for number, part in enumerate(self._listed) if part.length)

    def lengths(self, field: str, ids: Any) -> IntArray:
        wanted = as_ids(ids, len(self))
        found = np.empty(wanted.size, np.int64)
        for number, here in by_number(np.searchsorted(self._ends, wanted, side="right")):
            with self._parts.use(number) as source:
                found[here] = source.lengths(field, wanted[here] - (self._ends[number] - self._listed[number].length))
        return found

    def close(self) -> None:
        self._parts.close()

    def _recipe(self) -> Recipe:
        known = self._known
        is_known = all(part.samples is not None for part in self._listed) or None in self._samples(DENSE.name)
        parts = self._listed if is_known else self.sampled()
        return (_rebuild, (parts, known.schema, self._reads_blocks, MOST_OPEN + self._num_remote, dict(known.metadata)))


@dataclass(frozen=True)
class _Given:
    """Opens a source that is open already. It is closed with the whole."""

    source: Source

    def __call__(self) -> Source:
        return self.source


@dataclass(frozen=True)
class _Known:
    """What is known of a part, or of several: their fields, nullable if they are in any, and what they say alike of the data."""

    schema: Mapping[str, Field]
    metadata: Mapping[str, Any]

    def joined(self, other: "_Known") -> "_Known":
        """The same of both."""
        schema = {
            n: f.with_nullable(f.nullable or (n in other.schema and other.schema[n].nullable)) for n, f in self.schema.items()
        }
        return _Known(schema, common_metadata([self.metadata, other.metadata]))


def _look(opened: tuple[str, Callable[[], Source]]) -> tuple[Part, _Known, Source]:
    """A part, what is known of it, and the part itself, open."""
    name, opener = opened
    source = opener()
    try:
        known = _Known(source.schema, dict(source.metadata))
        return Part(name, opener, len(source), source.fingerprint), known, source
    except BaseException:
        if not isinstance(opener, _Given):
            source.close()
        raise


def _close_looked(looked: tuple[Part, _Known, Source]) -> None:
    part, _, source = looked
    if not isinstance(part.open, _Given):
        source.close()


def _look_only(opened: tuple[str, Callable[[], Source]]) -> _Known:
    """What is known of a part."""
    looked = _look(opened)
    _close_looked(looked)
    return looked[1]


def _rebuild(
    parts: Sequence[Part], schema: Mapping[str, Field], reads_blocks: bool, most_open: int, metadata: Mapping[str, Any]
) -> Concat:
    # Earlier pickles have the number of parts that may be open: more than on a disk if they are at URLs.
    num_remote = max(0, most_open - MOST_OPEN)
    return Concat(parts, schema, reads_blocks=reads_blocks, num_remote=num_remote, metadata=metadata)


def _short(value: object) -> str:
    """What names and schemas of strangers say, for a message."""
    return ascii(str(value))[1:-1][:200]


def _plain(schema: Mapping[str, Field]) -> list[tuple[object, ...]]:
    """What two schemas must have in common; how their files are compressed does not matter."""
    return [(name, field.kind, field.element, field.shape, field.ndim) for name, field in schema.items()]


def _difference(first: str, one: Mapping[str, Field], second: str, other: Mapping[str, Field]) -> str:
    told = [
        f"  {name}: {one.get(name, 'not there')} in {first}, {other.get(name, 'not there')} in {second}"
        for name in [*one, *(name for name in other if name not in one)]
        if name not in one or name not in other or _plain({name: one[name]}) != _plain({name: other[name]})
    ]
    lines = told or [f"  the order of the fields: {list(one)} in {first}, {list(other)} in {second}"]
    return "\n".join(["all parts must have the same fields:", *lines])


provide(select=Selection, pick=Picked, cast=Cast, map=Mapped)
