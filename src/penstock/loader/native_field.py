"""What native threads can read of a stream: plain records, or sequences of plain tokens, of any leaves below it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.interfaces import IntArray
from penstock.order import Design
from penstock.row_table import OwnRows, RowTable
from penstock.schema import Field
from penstock.stream import MixedStream, RecordStream, SequenceStream, Stream
from penstock.stream.picks import MixedPicks, Picks, RecordPicks, SpanPicks, ids_of, join, sources_of

__all__ = ["NativeField", "NativeGroup", "NativeLeaf", "flatten", "native_groups", "native_leaves"]

NativeLeaf = RecordStream | SequenceStream
Which = npt.NDArray[np.int32]


@dataclass(frozen=True)
class NativeField:
    """A field that the native ring can read: rows of ``stride`` bytes, with a reader and the field's number there for each leaf.
    A row is a sample of this ``dtype`` and ``shape``, or a token of one.
    """

    name: str
    readers: list[tuple[Any, int]]
    stride: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_tokens: bool
    nullable: bool

    def shape_for(self, seq_len: int | None) -> tuple[int, ...]:
        """The shape of a sample; a phase may say how long sequences are."""
        return (seq_len,) if self.is_tokens and seq_len is not None else self.shape

    def sample_bytes(self, seq_len: int | None = None) -> int:
        """Bytes of a sample."""
        return self.dtype.itemsize * math.prod(self.shape_for(seq_len))


class NativeGroup:
    """Fields that are in the same rows, so that one ring reads them; ``tables`` say in which, for every stream that is mixed."""

    def __init__(self, fields: list[NativeField], tables: Sequence[RowTable]) -> None:
        self.fields, self._tables = fields, tables
        self._are_own = all(isinstance(table, OwnRows) for table in tables)
        self._bases = np.cumsum([0, *(len(table.leaves) for table in tables)], dtype=np.int32)

    def find(self, ids: IntArray, streams: Which | None) -> tuple[Which | None, IntArray]:
        """The leaf and the row of records, each of the stream of that number."""
        if self._are_own:
            return streams, ids
        if streams is None:
            return self._tables[0].find(ids)
        which, rows = np.empty(ids.size, np.int32), np.empty(ids.size, np.int64)
        for number, table in enumerate(self._tables):
            here = np.flatnonzero(streams == number)
            if here.size:
                own, rows[here] = table.find(ids[here])
                which[here] = self._bases[number] + (0 if own is None else own)
        return which, rows


def native_groups(stream: Stream) -> list[NativeGroup] | None:
    """The fields of a stream as rings read them; None if they cannot read all of them."""
    leaves = native_leaves(stream)
    if not leaves or (isinstance(stream, MixedStream) and set(stream.schema) != set(leaves[0].read_schema)):
        return None  # in a mixture, each has others to add
    try:
        tables = [_tables_of(leaf) for leaf in leaves]
        if _has_unheld_bytes(stream, tables):
            return None
        groups: dict[tuple[object, ...], list[NativeField]] = {}
        for name in leaves[0].read_schema:
            field = _native_field(name, leaves, tables)
            if field is None:
                return None
            groups.setdefault(tuple(_rows_key(own[name][0]) for own in tables), []).append(field)
    except Exception:  # a source is closed, or a part of it is gone: said by the batch that needs it
        return None
    return [NativeGroup(fields, [own[fields[0].name][0] for own in tables]) for fields in groups.values()] or None


def _tables_of(leaf: NativeLeaf) -> Mapping[str, tuple[RowTable, str]]:
    """Tokens are rows of their own."""
    if isinstance(leaf, SequenceStream):
        return {name: (OwnRows(leaf.source), name) for name in leaf.read_schema}
    return leaf.source.row_tables()


def _rows_key(table: RowTable) -> object:
    """Equal for tables that find the same rows."""
    return table.line if table.line is not None and len(table.leaves) == 1 else id(table)


def _has_unheld_bytes(stream: Stream, tables: Sequence[Mapping[str, tuple[RowTable, str]]]) -> bool:
    """Whether bytes come from URLs, and the engine cannot keep them in memory while the ring reads them."""
    are_remote = any(leaf.remote is not None for own in tables for table, _ in own.values() for leaf in table.leaves)
    return are_remote and not (isinstance(stream, RecordStream) and stream.source.remote is not None)


def _native_field(
    name: str, streams: Sequence[NativeLeaf], tables: Sequence[Mapping[str, tuple[RowTable, str]]]
) -> NativeField | None:
    """A field as a ring reads it; None if that cannot."""
    fields: list[Field] = [stream.read_schema[name] for stream in streams]
    first = fields[0]
    if first.stride == 0 or any(field.dtype != first.dtype or not field.is_fixed for field in fields):
        return None
    readers: list[tuple[Any, int]] = []
    for stream, own in zip(streams, tables, strict=True):
        table, inner = own[name]
        for leaf in table.leaves:
            reader = stream.native_reader(name) if isinstance(stream, SequenceStream) else leaf.native_reader(inner)
            if reader is None:
                return None
            readers.append(reader)
    is_tokens = isinstance(streams[0], SequenceStream)
    stride = first.dtype.itemsize if is_tokens else first.stride
    return NativeField(name, readers, stride, first.dtype, first.shape, is_tokens, any(field.nullable for field in fields))


def native_leaves(stream: Stream) -> tuple[NativeLeaf, ...]:
    """The streams whose samples a ring may read: the stream itself, or those of a mixture, also in mixtures; none if it cannot."""
    if isinstance(stream, RecordStream | SequenceStream):
        return (stream,)
    if not isinstance(stream, MixedStream):
        return ()
    leaves = [leaf for part in stream.streams for leaf in native_leaves(part)]
    parts = [native_leaves(part) for part in stream.streams]
    are_plain = all(parts) and not any(isinstance(leaf.order, Design) for leaf in leaves)
    return tuple(leaves) if are_plain and len({type(leaf) for leaf in leaves}) == 1 else ()


def flatten(picks: Picks) -> tuple[RecordPicks | SpanPicks, Which | None]:
    """The samples of a mixture in their order, each by its place in its own source, and the number of the stream of each sample;
    there is none where there is only one stream.
    """
    if not isinstance(picks, MixedPicks):
        return picks, None
    streams = sources_of(picks)
    spans = _spans_of(picks)
    return (RecordPicks(ids_of(picks)) if spans is None else spans), streams


def _spans_of(picks: Picks) -> SpanPicks | None:
    """The runs of tokens of samples in their order; None if samples are records."""
    if not isinstance(picks, MixedPicks):
        return picks if isinstance(picks, SpanPicks) else None
    parts = [_spans_of(part) for part in picks.parts if part is not None]
    there = [part for part in parts if part is not None]
    if not there:
        return None
    together: SpanPicks = join(there).take(np.argsort(np.argsort(picks.which, kind="stable"), kind="stable"))
    return together
