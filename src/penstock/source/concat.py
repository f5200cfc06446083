"""Concat: many sources one after the other, as one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from penstock.errors import SchemaMismatchError, SourceChangedError
from penstock.interfaces import IntArray
from penstock.ragged import Ragged
from penstock.records import Batch, Blocks, Outputs, Recipe, Source, fixed_output, masked
from penstock.schema import Field
from penstock.source.files import look_at
from penstock.source.fingerprint import fingerprint_of
from penstock.source.parts import MOST_OPEN, MOST_OPEN_REMOTE, Parts

__all__ = ["Concat", "Part"]


@dataclass(frozen=True)
class Part:
    """How to open one part, and what is known of it: the name it has in messages, its length and its fingerprint."""

    name: str
    open: Callable[[], Source]
    length: int
    fingerprint: str


class Concat(Source):
    """The records of all parts, in order. Parts are opened when they are read, a few at a time, and must be what they were."""

    def __init__(
        self, parts: Sequence[Part], schema: Mapping[str, Field], *, reads_blocks: bool, most_open: int = MOST_OPEN
    ) -> None:
        self._listed, self._schema, self._reads_blocks, self._most_open = list(parts), dict(schema), reads_blocks, most_open
        self._ends = np.cumsum([part.length for part in parts], dtype=np.int64)
        given = any(isinstance(part.open, _Given) for part in parts)
        self._parts = Parts([partial(self._open_part, part) for part in parts], len(parts) if given else most_open)

    @classmethod
    def of(cls, opened: Iterable[tuple[str, Callable[[], Source]]], *, are_remote: bool = False) -> "Concat":
        """Parts by name and how to open them; each is opened once now, to see that they fit together. Parts at URLs are opened
        side by side; fewer of them stay open, because each has memory of its own.
        """
        parts: list[Part] = []
        schema: Mapping[str, Field] = {}
        reads_blocks = False
        for part, own_schema, own_reads_blocks in look_at(list(opened), _look, are_remote=are_remote):
            if parts and _plain(own_schema) != _plain(schema):
                raise SchemaMismatchError(_difference(parts[0].name, schema, part.name, own_schema))
            schema = schema or own_schema
            reads_blocks |= own_reads_blocks
            parts.append(part)
        if not parts:
            raise ValueError("expected at least one source, got none")
        return cls(parts, schema, reads_blocks=reads_blocks, most_open=MOST_OPEN_REMOTE if are_remote else MOST_OPEN)

    @classmethod
    def of_sources(cls, sources: Sequence[Source]) -> "Concat":
        """Sources that are open already, and stay so."""
        return cls.of((f"part {number}", _Given(source)) for number, source in enumerate(sources))

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._ends.size else 0

    @property
    def schema(self) -> Mapping[str, Field]:
        """The fields, the same in every part."""
        return dict(self._schema)

    @property
    def fingerprint(self) -> str:
        """Of the parts in their order."""
        return fingerprint_of("concat", [(part.length, part.fingerprint) for part in self._listed])

    @property
    def blocks(self) -> Blocks:
        """The parts."""
        return Blocks.of_counts([part.length for part in self._listed])

    @property
    def reads_blocks(self) -> bool:
        """Whether any part does."""
        return self._reads_blocks

    def _open_part(self, part: Part) -> Source:
        source = part.open()
        if len(source) != part.length or _plain(source.schema) != _plain(self._schema):
            source.close()
            raise SourceChangedError(f"{part.name}: expected {part.length} records of {self._schema}, found {source!r}")
        if source.fingerprint != part.fingerprint:
            source.close()
            raise SourceChangedError(f"{part.name}: the data is not what it was")
        return source

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        numbers = np.searchsorted(self._ends, ids, side="right")
        if ids.size and numbers[0] == numbers[-1] and np.all(numbers == numbers[0]):
            return self._read_part(int(numbers[0]), ids, fields, out)
        order = np.argsort(numbers, kind="stable")
        edges = np.flatnonzero(np.diff(numbers[order])) + 1
        places = [run for run in np.split(order, edges) if run.size]
        pieces = [self._read_part(int(numbers[run[0]]), ids[run], fields, {}) for run in places]
        return {name: self._join(name, [piece[name] for piece in pieces], places, ids.size, out) for name in fields}

    def _read_part(self, number: int, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        first = int(self._ends[number]) - self._listed[number].length
        with self._parts.use(number) as source:
            return source.read(ids - first, fields, out)

    def _join(self, name: str, pieces: list[Any], places: list[IntArray], count: int, out: Outputs) -> Any:
        field = self._schema[name]
        if not field.is_fixed:
            empty = Ragged.from_items(
                [], dtype=field.dtype, kind=field.kind if field.kind != "ragged" else "array", ndim=field.ndim
            )
            back = np.empty(count, np.int64)
            back[np.concatenate(places) if places else np.empty(0, np.int64)] = np.arange(count)
            return Ragged.join(pieces or [empty]).take(back)
        array = fixed_output(name, field, count, out)
        present = np.ones(count, np.bool_)
        for run, piece in zip(places, pieces, strict=True):
            if isinstance(piece, np.ma.MaskedArray):
                present[run] = ~np.ma.getmaskarray(piece).any(axis=tuple(range(1, piece.ndim)))
            array[run] = np.asarray(piece)
        return masked(array, None if present.all() else present)

    def close(self) -> None:
        """Close every part that is open."""
        self._parts.close()

    def _recipe(self) -> Recipe:
        return (_rebuild, (self._listed, self._schema, self._reads_blocks, self._most_open))


@dataclass(frozen=True)
class _Given:
    """Opens a source that is open already. It is closed with the whole."""

    source: Source

    def __call__(self) -> Source:
        return self.source


def _look(opened: tuple[str, Callable[[], Source]]) -> tuple[Part, Mapping[str, Field], bool]:
    """A part, its fields, and whether it reads blocks."""
    name, opener = opened
    source = opener()
    try:
        return Part(name, opener, len(source), source.fingerprint), source.schema, source.reads_blocks
    finally:
        if not isinstance(opener, _Given):
            source.close()


def _rebuild(parts: Sequence[Part], schema: Mapping[str, Field], reads_blocks: bool, most_open: int) -> Concat:
    return Concat(parts, schema, reads_blocks=reads_blocks, most_open=most_open)


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
