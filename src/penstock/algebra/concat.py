"""Concat: many sources one after the other, as one."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from operator import methodcaller
from types import MappingProxyType
from typing import Any

import numpy as np

from penstock.argument import IntArray, as_ids
from penstock.batch import Batch, Outputs, scatter
from penstock.errors import SchemaMismatchError, SourceChangedError
from penstock.fingerprint import fingerprint_of
from penstock.process import FewOpen, map_at_once
from penstock.records import DENSE, SAMPLINGS, Blocks, Recipe, Sampling, Source, common_metadata, is_same_data
from penstock.row_table import JoinedRows, RowTable
from penstock.schema import Field

__all__ = ["Concat", "Part"]

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
        found = tuple(map(self._versions_of, range(len(self._listed))))
        return None if None in found else found

    def _versions_of(self, number: int) -> Hashable | None:
        with self._parts.use(number) as source:
            return source.file_versions()

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
        with self._parts.use(number) as source:
            return self._share(source, _SHARED[name])

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
        with self._parts.use(first) as source:
            return source.blocks.size

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
                f"{_short(part.name)}: the data is not what it was; write the collection, or open the list, anew"
            )
        return source

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        numbers = np.searchsorted(self._ends, ids, side="right")
        if ids.size and numbers[0] == numbers[-1] and np.all(numbers == numbers[0]):
            return self._read_part(int(numbers[0]), ids, fields, out)
        order = np.argsort(numbers, kind="stable")
        edges = np.flatnonzero(np.diff(numbers[order])) + 1
        runs = [run for run in np.split(order, edges) if run.size]
        parts = [(run, self._read_part(int(numbers[run[0]]), ids[run], fields, {})) for run in runs]
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
        inner = [self._tables_of(number) for number in range(len(self._listed))]
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

    def _tables_of(self, number: int) -> Mapping[str, tuple[RowTable, str]]:
        with self._parts.use(number) as source:
            return source.row_tables()

    def has_documents(self, field: str) -> bool:
        """Whether all parts that have records have."""
        return all(self._has_documents(number, field) for number, part in enumerate(self._listed) if part.length)

    def _has_documents(self, number: int, field: str) -> bool:
        with self._parts.use(number) as source:
            return source.has_documents(field)

    def lengths(self, field: str, ids: Any) -> IntArray:
        wanted = as_ids(ids, len(self))
        numbers = np.searchsorted(self._ends, wanted, side="right")
        found = np.empty(wanted.size, np.int64)
        for number in np.unique(numbers).tolist():
            here = numbers == number
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
