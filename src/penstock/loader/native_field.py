"""What native threads can read of a stream: plain records, or sequences of plain tokens, of one source or a mixture."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.order import Design
from penstock.stream import MixedStream, RecordStream, SequenceStream, Stream
from penstock.stream.picks import MixedPicks, Picks, RecordPicks, SpanPicks, ids_of, join

__all__ = ["NativeField", "NativeLeaf", "flatten", "native_fields", "native_leaves"]

NativeLeaf = RecordStream | SequenceStream


@dataclass(frozen=True)
class NativeField:
    """A field that the native ring can read: rows of ``stride`` bytes, with a reader and the field's number there for each source.
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


def native_fields(stream: Stream) -> list[NativeField] | None:
    """The fields of a stream as the ring reads them; None if it cannot read all of them."""
    leaves = native_leaves(stream)
    if not leaves or (any(leaf.source.remote is not None for leaf in leaves) and not isinstance(stream, RecordStream)):
        return None
    if isinstance(stream, MixedStream) and set(stream.schema) != set(leaves[0].read_schema):  # each has others to add
        return None
    fields: list[NativeField] = []
    for name, field in leaves[0].read_schema.items():
        try:
            readers = [leaf.native_reader(name) for leaf in leaves]
        except ValueError:  # one is closed, which whoever makes a batch of it says
            return None
        there = [reader for reader in readers if reader is not None]
        alike = all(leaf.read_schema[name].dtype == field.dtype for leaf in leaves)
        if len(there) < len(leaves) or not alike or field.stride == 0:
            return None
        is_tokens = isinstance(leaves[0], SequenceStream)
        stride = field.dtype.itemsize if is_tokens else field.stride
        nullable = any(leaf.read_schema[name].nullable for leaf in leaves)
        fields.append(NativeField(name, there, stride, field.dtype, field.shape, is_tokens, nullable))
    return fields or None


def native_leaves(stream: Stream) -> tuple[NativeLeaf, ...]:
    """The streams whose samples the ring may read: the stream itself, or the parts of a mixture; none if it cannot."""
    if isinstance(stream, RecordStream | SequenceStream):
        return (stream,)
    if not isinstance(stream, MixedStream) or len({type(part) for part in stream.streams}) != 1:
        return ()
    leaves = [part for part in stream.streams if isinstance(part, RecordStream | SequenceStream)]
    are_plain = len(leaves) == len(stream.streams) and not any(isinstance(leaf.order, Design) for leaf in leaves)
    return tuple(leaves) if are_plain else ()


def flatten(picks: Picks) -> tuple[RecordPicks | SpanPicks, npt.NDArray[np.int32] | None]:
    """The samples of a mixture in their order, each by its place in its own source, and the number of the source of each record or
    run; there is none where there is only one source.
    """
    if not isinstance(picks, MixedPicks):
        return picks, None
    parts = [part for part in picks.parts if part is not None]
    if not parts or not isinstance(parts[0], SpanPicks):
        return RecordPicks(ids_of(picks)), picks.which
    together: SpanPicks = join(parts).take(np.argsort(np.argsort(picks.which, kind="stable"), kind="stable"))
    return together, np.repeat(picks.which, np.diff(together.first))
