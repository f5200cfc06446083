"""SequenceStream: the tokens of a source as one long line of pages in some order, cut into sequences."""

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from penstock import _core
from penstock.argument import whole_number
from penstock.interfaces import IntArray, Order
from penstock.records import Batch, DiskRange, Outputs, Source, empty, fixed_output
from penstock.schema import Field
from penstock.source.tokens import as_elements
from penstock.stream.picks import SpanPicks, join
from penstock.stream.stream import Stream, _describe

__all__ = ["SequenceStream", "TokenLine"]

TOKENS = "tokens"


@runtime_checkable
class TokenLine(Protocol):
    """Tokens one after the other, read by place."""

    @property
    def num_tokens(self) -> int:
        """How many there are."""

    @property
    def block_size(self) -> int:
        """Tokens that are best read together."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Their type."""

    def read_spans(self, starts: IntArray, offsets: IntArray, out: npt.NDArray[Any]) -> None:
        """Fill ``out`` with tokens [start, start + offsets[i + 1] - offsets[i]) of every start, one after the other."""


class SequenceStream(Stream):
    """Sequences of ``seq_len`` tokens. The line of an epoch is made of pages of the source's block size: full pages in the order
    of the stream, what is left at the end of the data last. Sequences run across pages; the tokens of an epoch that do not fill a
    sequence are left out of it.

    With a ``separator`` (a token, or several) and ``documents=True`` every sequence comes with ``segment``, the number of each
    token's document within the sequence, and ``position``, the place of the token in its document as far as the sequence shows it.

    >>> import penstock as pen
    >>> stream = pen.open({"text": ["abc", "de", "fghi"]}).in_order().sequences(4, separator=0)
    >>> len(stream), next(iter(pen.Loader(stream, batch_size=2)))["tokens"].tolist()
    (3, [[97, 98, 99, 0], [100, 101, 0, 102]])
    """

    def __init__(
        self, source: Source, line: TokenLine, order: Order, seq_len: int, *, separator: Any = None, documents: bool = False
    ) -> None:
        self._source, self._line, self._given = source, line, order
        self._seq_len = whole_number("seq_len", seq_len, least=1)
        self._page = max(1, min(line.block_size, line.num_tokens))
        self._pages = line.num_tokens // self._page
        if not is_dataclass(order) or not hasattr(order, "n") or isinstance(order, type):
            raise TypeError(f"the pages of tokens cannot be put in the order {order!r}")
        self._order: Order = replace(order, n=self._pages)
        if documents and separator is None:
            raise ValueError("documents=True needs the separator that stands between documents")
        self._documents: bool = documents
        self._separator: npt.NDArray[Any] | None = None if separator is None else as_elements("separator", separator, line.dtype)

    @classmethod
    def of_source(
        cls, source: Source, order: Order, seq_len: int, *, field: str | None = None, separator: Any = None, documents: bool = False
    ) -> "SequenceStream":
        """Sequences over token blocks, or over the texts or ragged arrays of a field."""
        if isinstance(source, TokenLine):
            return cls(source, source, order, seq_len, separator=separator, documents=documents)
        from penstock.stream.ragged_line import RaggedLine

        line = RaggedLine(source, field, separator)
        return cls(source, line, order, seq_len, separator=separator, documents=documents)

    @property
    def source(self) -> Source:
        """Where the tokens come from."""
        return self._source

    @property
    def page(self) -> int:
        """Tokens of a page."""
        return self._page

    def disk_ranges(self, pages: range) -> Sequence[DiskRange]:
        """Where pages of the data lie on a disk of this machine; nothing where that is not known."""
        find = getattr(self._line, "disk_spans", None)
        return [] if find is None else find(range(pages.start * self._page, min(pages.stop * self._page, self.axis)))

    @property
    def order(self) -> Order:
        """The order of the full pages."""
        return self._order

    @property
    def axis(self) -> int:
        """Tokens of an epoch."""
        return self._line.num_tokens

    @property
    def stride(self) -> int:
        """Tokens of a sequence."""
        return self._seq_len

    @property
    def seed(self) -> int:
        """The seed of the order of pages."""
        return int(getattr(self._order, "seed", 0))

    @property
    def schema(self) -> Mapping[str, Field]:
        """Tokens, and what was asked for beside them."""
        schema = {TOKENS: Field(self._line.dtype, (self._seq_len,))}
        if self._documents:
            schema |= {"segment": Field("i4", (self._seq_len,)), "position": Field("i4", (self._seq_len,))}
        return schema

    @property
    def read_schema(self) -> Mapping[str, Field]:
        """The field that is read; :meth:`complete` adds the others."""
        return {TOKENS: self.schema[TOKENS]}

    def native_reader(self, field: str) -> tuple[Any, int] | None:
        """Of the tokens, one by one, where they lie in plain files."""
        find = getattr(self._line, "native_tokens", None)
        return None if find is None else find()

    @property
    def data_fingerprint(self) -> str:
        """That of the source."""
        return self._source.fingerprint

    def plan(self) -> dict[str, Any]:
        """The order of the pages, their size, and the separator."""
        separator = "" if self._separator is None else str(self._separator.tolist())
        return {"order": _describe(self._order), "page": str(self._page), "separator": separator, "documents": str(self._documents)}

    def sized(self, seq_len: int) -> "SequenceStream":
        """The same line cut into sequences of another length."""
        return SequenceStream(self._source, self._line, self._given, seq_len, separator=self._separator, documents=self._documents)

    def locate_at(self, epoch: int, positions: IntArray, step: int = 0) -> SpanPicks:
        """The sequences that begin at any tokens of the line of an epoch. One that passes the end goes on in the next epoch."""
        inside = positions + self._seq_len <= self.axis
        if inside.all():
            return self._locate(epoch, positions, self._seq_len)
        parts = [self._locate(epoch, positions[inside], self._seq_len)]
        parts += [self._locate_across(epoch, start) for start in positions[~inside].tolist()]
        order = np.concatenate([np.flatnonzero(inside), np.flatnonzero(~inside)])
        found: SpanPicks = join(parts).take(np.argsort(order))
        return found

    def _locate_across(self, epoch: int, start: int) -> SpanPicks:
        """One sequence that passes the end of its epoch."""
        pieces, left = [], self._seq_len
        while left > 0:
            count = min(left, self.axis - start)
            pieces.append(self._locate(epoch, np.array([start]), count))
            epoch, start, left = epoch + 1, 0, left - count
        whole = join(pieces)
        return SpanPicks(self._seq_len, whole.starts, whole.counts, np.array([0, whole.starts.size]))

    def _locate(self, epoch: int, starts: IntArray, size: int) -> SpanPicks:
        """Runs of ``size`` tokens within an epoch's line, each cut where pages end."""
        page = self._page
        number = starts // page
        if bool((starts - number * page + size <= page).all()):  # nothing is to be cut, as where sequences divide pages
            counts = np.full(starts.size, size, np.int64)
            return SpanPicks(self._seq_len, self._moved(epoch, number, starts), counts, np.arange(starts.size + 1))
        most = (size + page - 2) // page + 1
        begin = (number * page)[:, None] + np.arange(most, dtype=np.int64) * page  # of every page that is touched
        low = np.maximum(begin, starts[:, None])
        high = np.minimum(begin + page, starts[:, None] + size)
        touched = high > low
        first = np.concatenate([[0], np.cumsum(touched.sum(axis=1))]).astype(np.int64)
        moved = self._moved(epoch, begin[touched] // page, low[touched])
        return SpanPicks(self._seq_len, moved, (high - low)[touched], first)

    def _moved(self, epoch: int, pages: IntArray, places: IntArray) -> IntArray:
        """Where places on those pages of the line lie in the data: full pages are in the order of the stream."""
        if pages.size == 0 or int(pages.max()) < self._pages:
            return (self._order.at(epoch, pages) - pages) * self._page + places
        full = pages < self._pages
        moved = places.copy()
        moved[full] += (self._order.at(epoch, pages[full]) - pages[full]) * self._page
        return moved

    def fetch(self, picks: SpanPicks, out: Outputs | None = None) -> Batch:
        """Read sequences."""
        tokens = fixed_output(TOKENS, self.schema[TOKENS], len(picks), out or {})
        offsets = np.concatenate([[0], np.cumsum(picks.counts)]).astype(np.int64)
        self._line.read_spans(picks.starts, offsets, tokens)
        return self.complete({TOKENS: tokens})

    def complete(self, batch: Batch) -> Batch:
        """Sequences that were read, with what is made from their tokens: the document of each, to which its separator belongs."""
        if self._documents:
            tokens, separator = batch[TOKENS], self._separator
            assert separator is not None
            segment, position = (empty(tokens.shape, np.dtype(np.int32)) for _ in range(2))
            plain = np.ascontiguousarray(tokens).reshape(-1).view(np.uint8)
            _core.mark_documents(
                plain,
                tokens.itemsize,
                self._seq_len,
                np.ascontiguousarray(separator).view(np.uint8),
                segment.reshape(-1),
                position.reshape(-1),
            )
            batch |= {"segment": segment, "position": position}
        return batch

    def close(self) -> None:
        """Close the source."""
        self._source.close()
