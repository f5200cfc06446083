"""SequenceStream: the tokens of a source as one long line of pages in some order, cut into sequences."""

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from penstock import _core
from penstock.argument import whole_number
from penstock.interfaces import IntArray, Order
from penstock.order import BlockShuffle, Sequential, Sliding
from penstock.records import Batch, DiskRange, Outputs, Sampling, Source, fixed_output
from penstock.schema import Field
from penstock.source.tokens import as_elements
from penstock.stream.picks import SpanPicks, expanded, join
from penstock.stream.stream import (
    Bans,
    RecordStream,
    Stream,
    describe,
    is_in,
    substitute,
)

__all__ = ["SequenceStream", "TokenLine", "make_sequences"]

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


def make_sequences(
    stream: RecordStream, seq_len: int, field: str | None, separator: Any, documents: bool, page: int | None
) -> "SequenceStream":
    """Sequences over token blocks, or over the documents of a field of texts, byte strings or ragged arrays."""
    source = stream.source
    if isinstance(source, TokenLine):
        return SequenceStream(
            source, source, stream.order, seq_len, separator=separator, documents=documents, page=page, bans=stream.bans
        )
    from penstock.stream.document import DocumentLine, DocumentStream

    if page is not None:
        raise ValueError("page is for token blocks; the sequences of texts and ragged fields take whole documents in their order")
    line = DocumentLine(source, field, separator)
    return DocumentStream(source, line, stream.order, seq_len, separator=separator, documents=documents, bans=stream.bans)


class SequenceStream(Stream):
    """Sequences of ``seq_len`` tokens.

    Over token blocks, the data is cut into pages of ``page`` tokens (``seq_len`` unless given). The line of an epoch is made of
    the full pages in the order of the stream, then of what is left at the end of the data. A block shuffle permutes blocks of as
    many tokens as before, and the pages within a window of them. Over texts and ragged fields, the line is made of whole documents
    in the order of the stream (:class:`~penstock.stream.DocumentStream`). Sequences are cut from the line without gaps; the tokens
    of an epoch that do not fill a sequence are left out of it.

    With ``documents=True`` every sequence comes with ``segment``, the number of each token's document within the sequence, and
    ``position``, the place of the token in its document as far as the sequence shows it. Token blocks need a ``separator`` (a
    token, or several) for that, which ends a document; one also ends where tokens meet that are no neighbours in the data.

    >>> import penstock as pen
    >>> stream = pen.open({"text": ["abc", "de", "fghi"]}).in_order().sequences(4, separator=0)
    >>> len(stream), next(iter(pen.Loader(stream, batch_size=2)))["tokens"].tolist()
    (3, [[97, 98, 99, 0], [100, 101, 0, 102]])
    """

    _asked: int | None = None

    def __init__(
        self,
        source: Source,
        line: TokenLine,
        order: Order,
        seq_len: int,
        *,
        separator: Any = None,
        documents: bool = False,
        page: int | None = None,
        bans: Bans | tuple[()] = (),
        version: int = 2,
    ) -> None:
        self._source, self._line, self._given = source, line, order
        self._seq_len = whole_number("seq_len", seq_len, least=1)
        self._documents, self._bans, self._version = bool(documents), Bans(bans), version
        self._separator: npt.NDArray[Any] | None = None if separator is None else as_elements("separator", separator, line.dtype)
        self._lay(page)

    def _lay(self, page: int | None) -> None:
        """Cut the data into pages, and put them in order."""
        if self._documents and (self._separator is None or self._separator.size == 0):
            raise ValueError("documents=True needs the separator that ends every document, of at least one token")
        line, order, self._asked = self._line, self._given, page
        if page is None:
            is_old = self._version == 1 or (isinstance(order, Sequential) and not self._bans)  # where it makes no difference
            page = line.block_size if is_old else self._seq_len
        else:
            whole_number("page", page, least=1)
        self._page = max(1, min(page, line.num_tokens))
        self._pages = line.num_tokens // self._page
        if int(getattr(order, "n", len(order))) != len(self._source):
            raise TypeError(f"the order {order!r} is not one of all {len(self._source)} records")
        self._order = _page_order(order, self._pages, line.block_size, page)
        if self._bans and np.count_nonzero(self._banned_pages(None) < self._pages) >= max(1, self._pages):
            raise ValueError(
                "every page of tokens has a banned record in it, so there is nothing to take instead: use a smaller page"
            )

    @property
    def source(self) -> Source:
        """Where the tokens come from."""
        return self._source

    @property
    def page(self) -> int:
        """Tokens of a page."""
        return self._page

    def disk_ranges(self, pages: range) -> Sequence[DiskRange]:
        """Where pages of the data are on a disk of this machine; nothing where that is not known."""
        find = getattr(self._line, "disk_spans", None)
        return [] if find is None else find(range(pages.start * self._page, min(pages.stop * self._page, self.axis)))

    @property
    def order(self) -> Order:
        """The order of the full pages."""
        return self._order

    @property
    def has_sequences(self) -> bool:
        """Samples are sequences of tokens."""
        return True

    @property
    def order_version(self) -> int:
        """Version 1 cut the line into pages of the source's block size, whatever the length of sequences."""
        return self._version

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
        """The seed of the order."""
        return int(getattr(self._given, "seed", 0))

    @property
    def schema(self) -> Mapping[str, Field]:
        """Tokens, and what else was asked for."""
        schema = {TOKENS: Field(self._line.dtype, (self._seq_len,))}
        if self._documents:
            schema |= {"segment": Field("i4", (self._seq_len,)), "position": Field("i4", (self._seq_len,))}
        return schema

    @property
    def read_schema(self) -> Mapping[str, Field]:
        """The field that is read; :meth:`complete` adds the others."""
        return {TOKENS: self.schema[TOKENS]}

    def native_reader(self, field: str) -> tuple[Any, int] | None:
        """Of the tokens, one by one, where they are in plain files."""
        find = getattr(self._line, "native_tokens", None)
        return None if find is None else find()

    @property
    def data_fingerprint(self) -> str:
        """That of the source."""
        return self._source.fingerprint

    def sample_digest(self, sampling: Sampling) -> str | None:
        """That of the source."""
        return self._source.sample_digest(sampling)

    def data_digest(self) -> str:
        """That of the source."""
        return self._source.digest()

    @property
    def bans(self) -> Bans:
        """The records that do not come, and from which step on."""
        return self._bans

    def plan(self) -> dict[str, Any]:
        """The order of the pages, their size, the separator and the bans."""
        return {"order": describe(self._order), "page": str(self._page), **self._marks(), **self._bans.describe()}

    def _marks(self) -> dict[str, Any]:
        separator = "" if self._separator is None else str(self._separator.tolist())
        return {"separator": separator, "documents": str(self._documents)}

    def continued(self, epoch: int) -> tuple[Stream, dict[str, Any]]:
        """A run of version 1 goes on over its larger pages."""
        old = self if isinstance(self._given, Sequential) else self._remade(page=None, version=1)
        return old, old.plan()

    def sized(self, seq_len: int) -> "SequenceStream":
        """The same line cut into sequences of another length."""
        return self._remade(seq_len=seq_len)

    def without(self, ids: Any, *, from_step: int = 0) -> "SequenceStream":
        """The same stream in which the tokens of some records of the source (token blocks, documents) no longer come from
        ``from_step`` on. At the place of a page that holds some of them comes another page, at the place of a document come other
        documents of as many tokens, the same on every rank and in every run.
        """
        bans = self._bans.with_ids(ids, from_step, len(self._source))
        return self._remade(bans=bans, page=self._asked)

    def _remade(self, **changed: Any) -> "SequenceStream":
        seq_len = changed.pop("seq_len", self._seq_len)
        options = {"separator": self._separator, "documents": self._documents, "bans": self._bans, "version": self._version}
        return type(self)(self._source, self._line, self._given, seq_len, **(options | self._layout() | changed))

    def _layout(self) -> dict[str, Any]:
        return {"page": self._page}

    # Where tokens are

    def locate_at(self, epoch: int, positions: IntArray, step: int = 0) -> SpanPicks:
        """The sequences that begin at any tokens of the line of an epoch. One that passes the end goes on in the next epoch."""
        inside = positions + self._seq_len <= self.axis
        if inside.all():
            return self._locate(epoch, positions, self._seq_len, step)
        parts = [self._locate(epoch, positions[inside], self._seq_len, step)]
        parts += [self._locate_across(epoch, start, step) for start in positions[~inside].tolist()]
        order = np.concatenate([np.flatnonzero(inside), np.flatnonzero(~inside)])
        found: SpanPicks = join(parts).take(np.argsort(order))
        return found

    def _locate_across(self, epoch: int, start: int, step: int) -> SpanPicks:
        """One sequence that passes the end of its epoch."""
        pieces, left = [], self._seq_len
        while left > 0:
            count = min(left, self.axis - start)
            pieces.append(self._locate(epoch, np.array([start]), count, step))
            epoch, start, left = epoch + 1, 0, left - count
        whole = join(pieces)
        return SpanPicks(self._seq_len, whole.starts, whole.counts, np.array([0, whole.starts.size]))

    def _locate(self, epoch: int, starts: IntArray, size: int, step: int) -> SpanPicks:
        """Runs of ``size`` tokens within an epoch's line, each cut where pages end."""
        page = self._page
        number = starts // page
        if bool((starts - number * page + size <= page).all()):  # nothing is to be cut, as where sequences divide pages
            counts = np.full(starts.size, size, np.int64)
            return SpanPicks(self._seq_len, self._moved(epoch, number, starts, step), counts, np.arange(starts.size + 1))
        most = (size + page - 2) // page + 1
        begin = (number * page)[:, None] + np.arange(most, dtype=np.int64) * page  # of every page that is touched
        low = np.maximum(begin, starts[:, None])
        high = np.minimum(begin + page, starts[:, None] + size)
        touched = high > low
        first = np.concatenate([[0], np.cumsum(touched.sum(axis=1))]).astype(np.int64)
        moved = self._moved(epoch, begin[touched] // page, low[touched], step)
        return SpanPicks(self._seq_len, moved, (high - low)[touched], first)

    def _moved(self, epoch: int, pages: IntArray, places: IntArray, step: int) -> IntArray:
        """Where places on those pages of the line are in the data: full pages are in the order of the stream."""
        if not self._bans and (pages.size == 0 or int(pages.max()) < self._pages):
            return (self._order.at(epoch, pages) - pages) * self._page + places
        full = pages < self._pages
        target = pages.copy()
        target[full] = self._order.at(epoch, pages[full])
        banned = self._banned_pages(step) if self._bans else pages[:0]
        if banned.size:
            usable = banned[banned < self._pages]  # the short page at the end stands in for no other
            for place in np.flatnonzero(is_in(target, banned)):
                target[place] = substitute(self.seed, epoch, int(pages[place]), self._pages, usable)
        return (target - pages) * self._page + places

    def _banned_pages(self, step: int | None) -> IntArray:
        """The pages that hold tokens of records banned at a step (at any step, for None), in rising order."""
        return self._page_bans.at(step)

    @cached_property
    def _page_bans(self) -> Bans:
        find = getattr(self._line, "token_ranges", None)
        if find is None:
            raise TypeError(f"{self._source!r} cannot tell which tokens belong to a record, so that none can be banned")
        found = []
        for from_step, ids in self._bans:
            starts, counts = find(ids)
            first = starts // self._page
            last = (starts + counts - 1) // self._page
            found.append((from_step, np.unique(expanded(first, np.where(counts > 0, last - first + 1, 0))[1])))
        return Bans(found)

    # Reading

    def fetch(self, picks: SpanPicks, out: Outputs | None = None) -> Batch:
        """Read sequences."""
        tokens = fixed_output(TOKENS, self.schema[TOKENS], len(picks), out or {})
        offsets = np.concatenate([[0], np.cumsum(picks.counts)]).astype(np.int64)
        self._line.read_spans(picks.starts, offsets, tokens)
        return self.complete({TOKENS: tokens}, picks, out)

    @property
    def completes(self) -> bool:
        """Whether :meth:`complete` has something to add."""
        return self._documents

    def is_within_pages(self, starts: range) -> bool:
        """Whether each of the sequences that begin there is on one page, so that its tokens are neighbours in the data."""
        length = self._seq_len
        if self._page % length or starts.start % length or starts.step % length:
            return False
        return not starts or starts[-1] + length <= self._pages * self._page

    def complete(self, batch: Batch, picks: SpanPicks | None, out: Outputs | None = None) -> Batch:
        """Sequences that were read, with what is made from their tokens: the document of each, to which its separator belongs.
        ``picks`` may be left out for sequences that are within pages.
        """
        if self._documents:
            tokens = batch[TOKENS]
            schema, count = self.schema, len(tokens)
            segment, position = (fixed_output(name, schema[name], count, out or {}) for name in ("segment", "position"))
            _core.mark_documents(
                np.ascontiguousarray(tokens).reshape(-1).view(np.uint8),
                tokens.itemsize,
                self._seq_len,
                np.ascontiguousarray(self._splitter()).view(np.uint8),
                np.empty(0, np.int64) if picks is None else self._breaks(picks),
                segment.reshape(-1),
                position.reshape(-1),
            )
            batch |= {"segment": segment, "position": position}
        return batch

    def _splitter(self) -> npt.NDArray[Any]:
        """What ends a document in the tokens themselves."""
        assert self._separator is not None
        return self._separator

    def _breaks(self, picks: SpanPicks) -> IntArray:
        """Where runs meet that are no neighbours in the data, in tokens of the whole batch."""
        ends = np.cumsum(picks.counts)
        apart = picks.starts[1:] != picks.starts[:-1] + picks.counts[:-1]
        return np.ascontiguousarray(ends[:-1][apart])

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_page_bans"}


def _page_order(order: Order, pages: int, block_size: int, page: int) -> Order:
    """The order of a stream of token blocks, as one of pages."""
    if isinstance(order, Sliding) or not is_dataclass(order) or not hasattr(order, "n") or isinstance(order, type):
        raise TypeError(f"the pages of tokens cannot be put in the order {order!r}")
    if isinstance(order, BlockShuffle):
        return replace(order, n=pages, block=max(1, order.block * block_size // max(1, page)))
    try:
        made: Order = replace(order, n=pages)
    except TypeError:
        raise TypeError(f"the pages of tokens cannot be put in the order {order!r}") from None
    return made
