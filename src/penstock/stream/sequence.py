"""Streams of sequences: the tokens of a source as one long line, cut into sequences.

The line of a SequenceStream consists of pages of token blocks, that of a DocumentStream of the texts or ragged arrays of a source;
both in the order of the stream.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, as_ids, shown, whole_number
from penstock.batch import Batch, Outputs, fixed_output
from penstock.errors import SchemaMismatchError
from penstock.formats.token_line import LOSS_MASK, DocumentBounds, as_elements
from penstock.native import _core
from penstock.order import BlockShuffle, InvertibleOrder, Order, Random, Sequential, Shuffle, Sliding, Weighted
from penstock.order.permutation import Purpose, derive_root
from penstock.records import Leaf, Source
from penstock.remote.window import RemoteFiles
from penstock.row_table import OwnRows, RowTable, runs_of
from penstock.schema import Field
from penstock.stream.ban_file import with_bans
from penstock.stream.cost import in_parts
from penstock.stream.documents import DocumentTable, are_records, find_bounds
from penstock.stream.picks import SpanPicks, expanded, join
from penstock.stream.stream import (
    Bans,
    PartStream,
    RecordStream,
    Stream,
    describe,
    is_in,
    order_recipe,
    substitute,
)

__all__ = [
    "LOSS_MASK",
    "TOKENS",
    "DocumentLine",
    "DocumentStream",
    "MaskLine",
    "SequenceStream",
    "TokenLine",
    "as_fields",
    "make_sequences",
    "mask_of",
    "need_token_field",
]

TOKENS = "tokens"

MARKS = ("segment", "position")
FIELDS = (*MARKS, LOSS_MASK)
"""The fields that a sequence may have in addition to its tokens."""

SEARCHED = ("_page_bans", "_bounds", "_found", "documents")
"""What a stream finds out from the data; a pickled copy does so again."""

MARK = 1024
"""The place of every MARKth document of an epoch is kept; those between are added up when they are needed."""

MOST_DRAWN = 16
"""Banned documents whose replacements are kept."""

PAGE_BYTES = 64 << 10
"""The pages that version 1 put in order, whatever documents they cut."""


@runtime_checkable
class TokenLine(Protocol):
    """Tokens one after the other, read by place."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""

    @property
    def block_size(self) -> int:
        """Tokens that are best read together."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Their type."""

    def read_spans(self, starts: IntArray, offsets: IntArray, out: npt.NDArray[Any]) -> None:
        """Fill ``out`` with tokens [start, start + offsets[i + 1] - offsets[i]) of every start, one after the other."""


def make_sequences(
    stream: RecordStream, seq_len: int, field: str | None, separator: Any, fields: tuple[str, ...], page: int | None
) -> "SequenceStream":
    """Sequences over token blocks, or over the documents of a field of texts, byte strings or ragged arrays."""
    source = stream.source
    if isinstance(source, TokenLine):
        need_token_field(source, field)
        return SequenceStream(
            source, source, stream.order, seq_len, separator=separator, fields=fields, page=page, bans=stream.bans
        )
    if page is not None:
        raise ValueError("page is for token blocks; the sequences of texts and ragged fields take whole documents in their order")
    line = DocumentLine(source, field, separator)
    return DocumentStream(source, line, stream.order, seq_len, separator=separator, fields=fields, bans=stream.bans)


def as_fields(given: Any, known: Sequence[str]) -> tuple[str, ...]:
    """The fields of samples that a caller wants: the tokens, and any of the known ones; a single name will do."""
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise TypeError(f"fields must be a name or a sequence of names, got {shown(given)}")
    if not set(names) <= {TOKENS, *known} or TOKENS not in names or len(set(names)) < len(names):
        raise ValueError(f"fields must be {TOKENS!r} and any of {', '.join(known)}, each once, got {shown(names)}")
    return names


def need_token_field(source: Any, field: str | None) -> None:
    """ValueError if a field of a token file is named that does not have its tokens."""
    named = getattr(source, "token_field", None)
    if field is not None and field != named:
        raise ValueError(f"field: the tokens of {source!r} are one line, {named!r}: leave field out, got {shown(field)}")


def mask_of(source: Source, line: "TokenLine", *, is_needed: bool) -> "TokenLine | None":
    """The loss masks of a line of tokens. None if there are none, unless they are needed: then ValueError."""
    if isinstance(line, DocumentLine):
        if line.mask_field in source.schema and line.mask_field != line.field:
            return MaskLine(source, line)
        remedy = f"give each record a field {line.mask_field!r} of as many bytes as it has tokens"
    else:
        mask: TokenLine | None = getattr(source, LOSS_MASK, None)
        if mask is not None:
            return mask
        remedy = "datatrove has them in .ds.loss, and those of flat files are named by loss= when they are opened"
    if is_needed:
        raise ValueError(f"fields: {source!r} has no loss mask: {remedy}, or leave {LOSS_MASK!r} out of fields")
    return None


class SequenceStream(PartStream):
    """Sequences of ``seq_len`` tokens.

    Over token blocks, the data is cut into pages of ``page`` tokens (``seq_len`` unless given). The line of an epoch is made of
    the full pages in the order of the stream, then of what is left at the end of the data. A block shuffle permutes blocks of as
    many tokens as before, and the pages within a window of them. Over texts and ragged fields, the line is made of whole documents
    in the order of the stream (:class:`~penstock.stream.DocumentStream`). Sequences are cut from the line without gaps; the tokens
    of an epoch that do not fill a sequence are left out of it.

    With ``documents=True`` every sequence comes with ``segment``, the number of each token's document within the sequence, and
    ``position``, the place of the token in its document as far as the sequence shows it. Token files that do not say where
    documents end need a ``separator`` (a token, or several) for that, which ends a document; one also ends where tokens meet that
    are no neighbours in the data.

    With ``fields=("tokens", "loss_mask")`` every sequence comes with the loss mask of its tokens: a byte for each, 0 for one that
    does not count in the loss, as the data has it; 1 for a separator that was put behind a document.

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
        fields: tuple[str, ...] = (TOKENS,),
        page: int | None = None,
        bans: Bans | tuple[()] = (),
        document_bans: "DocumentBans | None" = None,
        version: int = 2,
    ) -> None:
        self._source, self._line, self._given = source, line, order
        self._seq_len = whole_number("seq_len", seq_len, least=1)
        self._fields, self._documents = fields, not set(MARKS).isdisjoint(fields)
        self._bans, self._version = Bans(bans), version
        self._mask = mask_of(source, line, is_needed=True) if LOSS_MASK in fields else None
        self._document_bans = DocumentBans() if document_bans is None else document_bans
        self._separator: npt.NDArray[Any] | None = None if separator is None else as_elements("separator", separator, line.dtype)
        self._lay(page)

    def _lay(self, page: int | None) -> None:
        """Cut the data into pages, and put them in order."""
        if self._documents and (self._separator is None or self._separator.size == 0) and self._bounds is None:
            raise ValueError("documents=True needs the separator that ends every document, of at least one token")
        line, order, self._asked = self._line, self._given, page
        if page is None:
            is_old = self._version == 1 or (isinstance(order, Sequential) and not self.has_bans)  # no difference
            page = line.block_size if is_old else self._seq_len
        else:
            whole_number("page", page, least=1)
        self._page = max(1, min(page, line.num_tokens))
        self._pages = line.num_tokens // self._page
        if int(getattr(order, "n", len(order))) != len(self._source):
            raise TypeError(f"the order {order!r} is not one of all {len(self._source)} records")
        self._order = _page_order(order, self._pages, line.block_size, page)
        if self.has_bans and np.count_nonzero(self._page_bans.at(None) < self._pages) >= max(1, self._pages):
            raise ValueError("every page of tokens has a banned record in it, so there is no replacement: use a smaller page")

    @property
    def has_bans(self) -> bool:
        return bool(self._bans or self._document_bans.ids)

    @cached_property
    def _bounds(self) -> IntArray | None:
        """Where documents begin, and the last one ends: if token files tell and no separator is given, or if it is several tokens,
        which a sequence may cut.
        """
        if self._documents and self._can_search and self._separator is not None and self._separator.size > 1:
            return self._found.checked()
        is_wanted = self._documents and (self._separator is None or self._separator.size == 0)
        bounds: IntArray | None = getattr(self._line, "document_bounds", None) if is_wanted else None
        return bounds

    @property
    def source(self) -> Source:  # type: ignore[override]
        return self._source

    @property
    def page(self) -> int:
        """Tokens of a page."""
        return self._page

    @property
    def rows_per_unit(self) -> int:
        return self._page

    def row_tables(self) -> Sequence[RowTable]:
        """Tokens are rows, where it is known in which files they are."""
        return [table for table, _ in self.field_tables().values()]

    def field_tables(self) -> Mapping[str, tuple[RowTable, str]]:
        """Tokens are rows of their own, and so are their masks."""
        leaves = {name: self._leaf(line) for name, line in self._lines.items()}
        return {} if None in leaves.values() else {name: (OwnRows(leaf), name) for name, leaf in leaves.items()}

    def _leaf(self, line: TokenLine) -> Any:
        """The tokens of a line as rows of files; None if it is not known in which they are."""
        return getattr(line, "token_leaf", None)

    @property
    def _lines(self) -> dict[str, TokenLine]:
        """The lines that are read, by the names of the fields."""
        lines = {TOKENS: self._line, LOSS_MASK: self._mask}
        return {name: line for name in self._fields if (line := lines.get(name)) is not None}

    def units_of(self, picks: SpanPicks) -> IntArray:
        return picks.starts // self._page

    def rows_of(self, picks: SpanPicks) -> tuple[IntArray, IntArray]:
        return picks.starts, picks.starts + picks.counts

    @property
    def order(self) -> Order:  # type: ignore[override]
        """The order of the full pages."""
        return self._order

    @property
    def has_sequences(self) -> bool:
        return True

    @property
    def order_version(self) -> int:
        """Version 1 cut the line into pages of the source's block size, whatever the length of sequences."""
        return self._version

    def mean_tokens(self, field: str | None = None) -> Fraction:
        return Fraction(self.stride) if field in (None, TOKENS) else super().mean_tokens(field)

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
        return int(getattr(self._given, "seed", 0))

    @property
    def schema(self) -> Mapping[str, Field]:
        types = {TOKENS: self._line.dtype, LOSS_MASK: np.dtype("u1")} | dict.fromkeys(MARKS, np.dtype("i4"))
        return {name: Field(types[name], (self._seq_len,)) for name in self._fields}

    @property
    def read_schema(self) -> Mapping[str, Field]:
        """The fields that are read; :meth:`complete` adds the others."""
        return {name: field for name, field in self.schema.items() if name not in MARKS}

    def plan(self) -> dict[str, Any]:
        bans = self._bans.describe() | {f"document {name}": ban for name, ban in self._document_bans.ids.describe().items()}
        return {"order": describe(self._order), "page": str(self._page), **self._marks(), **bans}

    def recipe(self) -> Any:
        calls = order_recipe(self._given)
        if calls is None or self._version == 1:
            return None
        asked: dict[str, Any] = {
            "seq_len": self._seq_len,
            "fields": list(self._fields),
            "field": self._line.field if isinstance(self._line, DocumentLine) else None,
            "page": self._asked,
        }
        if self._separator is not None:
            asked["separator"] = self._separator.tolist()
        return [*calls, *self._bans.recipe(), ("sequences", asked), *self._document_bans.ids.recipe()]

    def _marks(self) -> dict[str, Any]:
        separator = "" if self._separator is None else str(self._separator.tolist())
        marks = {"separator": separator, "documents": str(self._documents)}
        is_usual = self._fields == ((TOKENS, *MARKS) if self._documents else (TOKENS,))
        return marks if is_usual else marks | {"fields": ", ".join(self._fields)}

    def continued(self, epoch: int) -> tuple[Stream, dict[str, Any]]:
        """A run of version 1 continues over its larger pages."""
        old = self if isinstance(self._given, Sequential) else self._remade(page=None, version=1)
        return old, old.plan()

    def sized(self, seq_len: int) -> "SequenceStream":
        return self._remade(seq_len=seq_len)

    def without(self, ids: Any, *, from_step: int = 0) -> "SequenceStream":
        """The same stream in which the tokens of some documents no longer come from ``from_step`` on; of token blocks, if it has no
        documents. Documents have the numbers that ``explain`` tells. At the place of a page that holds some of them comes another
        page, at the place of a document come other documents of as many tokens, the same on every rank and in every run. Instead of
        ids, the name of a ban file.
        """
        if isinstance(ids, str | os.PathLike):
            return with_bans(self, ids, from_step)
        bans, banned = self._bans, self._document_bans
        if self.has_documents and not self.documents.are_records:
            banned = banned.with_ids(ids, from_step, self.documents)
        else:
            bans = self._bans.with_ids(ids, from_step, len(self._source))
        return self._remade(bans=bans, document_bans=banned, page=self._asked)

    def unbanned(self, from_step: int) -> "SequenceStream":
        documents = DocumentBans(
            self._document_bans.ids.before(from_step), tuple(one for one in self._document_bans.ranges if one[0] < from_step)
        )
        return self._remade(bans=self._bans.before(from_step), document_bans=documents, page=self._asked)

    def _remade(self, **changed: Any) -> "SequenceStream":
        seq_len = changed.pop("seq_len", self._seq_len)
        options: dict[str, Any] = {"separator": self._separator, "fields": self._fields, "version": self._version}
        options |= {"bans": self._bans, "document_bans": self._document_bans, "page": self._page}
        made = type(self)(self._source, self._line, self._given, seq_len, **(options | changed))
        made.__dict__ |= {name: value for name, value in self.__dict__.items() if name in ("_found", "documents")}  # searched once
        return made

    # Where tokens are

    def locate_at(self, epoch: int, positions: IntArray, step: int = 0) -> SpanPicks:
        """The sequences that begin at any tokens of the line of an epoch. One that passes the end continues in the next epoch."""
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
        if not self.has_bans and (pages.size == 0 or int(pages.max()) < self._pages):
            return (self._order.at(epoch, pages) - pages) * self._page + places
        full = pages < self._pages
        target = pages.copy()
        target[full] = self._order.at(epoch, pages[full])
        banned = self._page_bans.at(step) if self.has_bans else pages[:0]
        if banned.size:
            usable = banned[banned < self._pages]  # the short page at the end replaces no other
            for place in np.flatnonzero(is_in(target, banned)):
                target[place] = substitute(self.seed, epoch, int(pages[place]), self._pages, usable)
        return (target - pages) * self._page + places

    @cached_property
    def _page_bans(self) -> Bans:
        """The pages that hold tokens of banned records."""
        find = getattr(self._line, "token_ranges", None)
        if find is None and self._bans:
            raise TypeError(f"{self._source!r} does not know which tokens belong to a record, so that none can be banned")
        ranges = [(from_step, *find(ids)) for from_step, ids in self._bans] if find is not None else []
        found = []
        for from_step, starts, counts in (*ranges, *self._document_bans.ranges):
            first = starts // self._page
            last = (starts + counts - 1) // self._page
            found.append((from_step, np.unique(expanded(first, np.where(counts > 0, last - first + 1, 0))[1])))
        return Bans(found)

    # Questions

    @property
    def has_documents(self) -> bool:
        """Whether it is known which documents there are: those of a field, those of token files that say where each one ends, and
        those that a separator ends.
        """
        return self._knows_documents or self._can_search

    @property
    def _knows_documents(self) -> bool:
        """Whether documents are known without a search."""
        is_told = not self._can_search and getattr(self._line, "document_bounds", None) is not None
        return isinstance(self._line, DocumentLine) or is_told

    @property
    def _can_search(self) -> bool:
        return self._separator is not None and self._separator.size > 0 and hasattr(self._line, "separated")

    @cached_property
    def documents(self) -> DocumentTable:
        """The documents, by the numbers that ``explain``, ``where`` and ``without`` use. To find separators, all tokens are read.
        ValueError if the files do not say where documents end, and there is no separator.
        """
        line, source = self._line, self._source
        if isinstance(line, DocumentLine):
            return DocumentTable(source, line, DocumentBounds(line.bounds), are_records=True, added=line.num_added)
        is_record = not self._can_search and are_records(source, self._found.bounds)
        return DocumentTable(source, line, self._found, are_records=is_record)

    @cached_property
    def _found(self) -> DocumentBounds:
        """Where the documents of token files are."""
        return find_bounds(self._line, self._separator if self._can_search else None)

    def explain(self, picks: SpanPicks, *, documents: bool = False) -> dict[str, Any]:
        if documents or self._knows_documents:
            return picks.describe() | {"documents": self.documents.spans(picks)}
        return picks.describe()

    def where(self, record: Any, *, epochs: range = range(1)) -> list[tuple[int, int]]:
        """(epoch, position) of every sequence with tokens of a document (of a token block, if there are no documents) in those
        epochs, bans apart. Sequences are those that are cut from the start of each epoch. Tokens that replace banned ones are not
        found.
        """
        length, count = self._seq_len, self.num_samples
        found = (
            (epoch, number * length)
            for epoch, low, high in self.ranges_of(record, epochs)
            for number in range(low // length, (high - 1) // length + 1)
            if number < count
        )
        return list(dict.fromkeys(found))

    def ranges_of(self, record: Any, epochs: range, before: int | None = None) -> Iterator[tuple[int, int, int]]:
        start, count = self._tokens_of(record)
        for epoch in epochs if count else ():
            for low, high in self._places_of(epoch, start, start + count):
                yield epoch, low, high

    def _tokens_of(self, record: Any) -> tuple[int, int]:
        """Where in the data the tokens of a document, or of a record if there are no documents, begin; and how many there are."""
        if self.has_documents:
            starts, counts = self.documents.ranges(as_ids(record, len(self.documents))[:1])
        elif hasattr(self._line, "token_ranges"):
            starts, counts = self._line.token_ranges(as_ids(record, len(self._source))[:1])
        else:
            raise TypeError(f"{self._source!r} does not know which tokens belong to a record")
        return int(starts[0]), int(counts[0])

    def _places_of(self, epoch: int, start: int, stop: int) -> list[tuple[int, int]]:
        """Where on the line of an epoch the tokens [start, stop) of the data are, page by page, in rising order."""
        if not isinstance(self._order, InvertibleOrder):
            raise TypeError(f"{self._order!r} has no inverse, so it cannot determine where a document is used")
        pages = np.arange(start // self._page, (stop - 1) // self._page + 1)
        begin, places = pages * self._page, pages.copy()
        places[pages < self._pages] = self._order.positions(epoch, pages[pages < self._pages])
        moved = places * self._page - begin
        low, high = np.maximum(begin, start) + moved, np.minimum(begin + self._page, stop) + moved
        return sorted(zip(low.tolist(), high.tolist(), strict=True))

    def holds(self, picks: SpanPicks, record: Any) -> bool:
        start, count = self._tokens_of(record)
        return bool(np.any((picks.starts < start + count) & (picks.starts + picks.counts > start)))

    # Reading

    def read_tokens(self, start: int, stop: int) -> npt.NDArray[Any]:
        """The tokens [start, stop) of the data, as ``explain`` names them."""
        last = self._line.num_tokens
        low = whole_number("start", start, most=last)
        tokens = np.empty(whole_number("stop", stop, least=low, most=last) - low, self._line.dtype)
        self._line.read_spans(np.array([low]), np.array([0, tokens.size]), tokens)
        return tokens

    def fetch(self, picks: SpanPicks, out: Outputs | None = None) -> Batch:
        offsets = np.concatenate([[0], np.cumsum(picks.counts)]).astype(np.int64)
        batch: Batch = {}
        for name, line in self._lines.items():
            batch[name] = fixed_output(name, self.schema[name], len(picks), out or {})
            line.read_spans(picks.starts, offsets, batch[name])
        return self.complete(batch, picks, out)

    @property
    def completes(self) -> bool:
        """Whether :meth:`complete` has something to add."""
        return self._documents

    def is_within_pages(self, starts: range) -> bool:
        """Whether each of the sequences that begin there is on one page, so that its tokens are neighbours in the data."""
        length = self._seq_len
        if self._bounds is not None or self._page % length or starts.start % length or starts.step % length:
            return False
        return not starts or starts[-1] + length <= self._pages * self._page

    def complete(self, batch: Batch, picks: SpanPicks | None, out: Outputs | None = None) -> Batch:
        """Sequences that were read, with what is made from their tokens: the document of each, to which its separator belongs.
        ``picks`` may be left out for sequences that are within pages.
        """
        if self._documents:
            tokens = batch[TOKENS]
            both = Field("i4", (self._seq_len,))
            segment, position = (fixed_output(name, both, len(tokens), out or {}) for name in MARKS)
            _core.mark_documents(
                np.ascontiguousarray(tokens).reshape(-1).view(np.uint8),
                tokens.itemsize,
                self._seq_len,
                np.ascontiguousarray(self._splitter()).view(np.uint8),
                np.empty(0, np.int64) if picks is None else self._breaks(picks),
                segment.reshape(-1),
                position.reshape(-1),
            )
            made = batch | {"segment": segment, "position": position}
            batch = {name: made[name] for name in self._fields}
        return batch

    def _splitter(self) -> npt.NDArray[Any]:
        """What ends a document in the tokens themselves."""
        return np.empty(0, self._line.dtype) if self._separator is None or self._bounds is not None else self._separator

    def _breaks(self, picks: SpanPicks) -> IntArray:
        """Where runs meet that are no neighbours in the data, and where documents end in them, in tokens of the whole batch."""
        ends = np.cumsum(picks.counts)
        apart = picks.starts[1:] != picks.starts[:-1] + picks.counts[:-1]
        breaks = np.ascontiguousarray(ends[:-1][apart])
        if self._bounds is None:
            return breaks
        low = np.searchsorted(self._bounds, picks.starts, side="left")
        high = np.searchsorted(self._bounds, picks.starts + picks.counts, side="left")
        run, bound = expanded(low, high - low)
        inside = (ends - picks.counts - picks.starts)[run] + self._bounds[bound]
        return np.unique(np.concatenate([breaks, inside[inside > 0]]))

    def close(self) -> None:
        self._source.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in SEARCHED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Version 1 knew no other fields than those of documents."""
        fields = (TOKENS, *MARKS) if state.get("_documents") else (TOKENS,)
        self.__dict__.update({"_fields": fields, "_mask": None, "_document_bans": DocumentBans()} | state)


NO_BANS = Bans()


@dataclass(frozen=True, eq=False)
class DocumentBans:
    """Bans of documents that are no records of the source, by number, with (from step, starts, counts): where their tokens are."""

    ids: Bans = NO_BANS
    ranges: tuple[tuple[int, IntArray, IntArray], ...] = ()

    def with_ids(self, ids: Any, from_step: int, documents: DocumentTable) -> "DocumentBans":
        bans = self.ids.with_ids(ids, from_step, len(documents))
        step, banned = bans[-1]
        return DocumentBans(bans, (*self.ranges, (step, *documents.ranges(banned))))


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


# Documents


class DocumentLine:
    """The records of one field in the order of the data, each followed by the separator if there is one.

    Keeps 8 bytes for every document: where it ends; 12 more where native threads read documents of selections and lists.
    """

    _rows: tuple[npt.NDArray[np.int32] | None, IntArray] | None = None

    def __init__(self, source: Source, field: str | None, separator: Any) -> None:
        self._source, self.field = source, _choose(source, field)
        if not source.has_documents(self.field):
            raise ValueError(
                f"the records of field {self.field!r} are blocks of a token file, not documents: cut the token files themselves "
                "into sequences, opened as a pattern or a list of names, or mix streams of them"
            )
        self._dtype = source.schema[self.field].dtype
        self._separator = as_elements("separator", [] if separator is None else separator, self._dtype)

    @property
    def separator(self) -> npt.NDArray[Any]:
        """The tokens behind every document."""
        return self._separator

    @property
    def mask_field(self) -> str:
        """The field that would have the loss masks: ``loss_mask``, of the same part where there are several."""
        part, dot, _ = self.field.rpartition(".")
        return f"{part}{dot}{LOSS_MASK}"

    @cached_property
    def bounds(self) -> IntArray:
        """Document i has the tokens [bounds[i], bounds[i + 1]), its separator included."""
        return self._bounds()

    def _bounds(self) -> IntArray:
        bounds, end = np.zeros(len(self._source) + 1, np.int64), 1
        for lengths in in_parts(len(self._source), lambda ids: self._source.lengths(self.field, ids)):
            bounds[end : end + lengths.size] = lengths + self._separator.size
            end += lengths.size
        return np.cumsum(bounds, out=bounds)

    @property
    def num_added(self) -> int:
        """Tokens that are added to every document: the separator."""
        return self._separator.size

    @property
    def num_tokens(self) -> int:
        return int(self.bounds[-1])

    @property
    def block_size(self) -> int:
        """Tokens of 64 KiB: the pages that version 1 put in order."""
        return max(1, PAGE_BYTES // self._dtype.itemsize)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the tokens; bytes for texts."""
        return self._dtype

    def token_ranges(self, ids: IntArray) -> tuple[IntArray, IntArray]:
        """Where documents begin, and how many tokens they have."""
        return self.bounds[ids], self.bounds[ids + 1] - self.bounds[ids]

    def native_reader(self, field: str) -> tuple[Any, int] | None:
        """The native reader of the line, as that of a leaf whose rows are tokens: where all documents are read natively."""
        table, name = self._source.row_tables()[self.field]
        readers: list[Any] = [(leaf.native_reader(name) or (None, -1))[0] for leaf in table.leaves]
        if not readers or not all(isinstance(reader, _core.VaryingReader) for reader in readers):
            return None
        which, rows = self._rows_in(table)
        separator = np.ascontiguousarray(self._separator).view(np.uint8)
        return _core.DocumentLine(readers, self.bounds, which, rows, self._dtype.itemsize, separator), -1

    @property
    def is_direct(self) -> bool:
        """Whether documents are read past the page cache."""
        return any(leaf.is_direct for leaf in self._source.row_tables()[self.field][0].leaves)

    @property
    def remote(self) -> RemoteFiles | None:
        """Of the documents at URLs, those in the smallest window; None if all are on this machine."""
        found = [leaf.remote for leaf in self._source.row_tables()[self.field][0].leaves if leaf.remote is not None]
        return min(found, key=lambda one: one.window_bytes, default=None)

    def held_rows(self, starts: IntArray, stops: IntArray) -> Iterator[tuple[Leaf, IntArray, IntArray]]:
        """What must be in memory for native threads to read tokens [start, stop): rows of the leaves that are at URLs."""
        low = np.searchsorted(self.bounds, starts, side="right") - 1
        high = np.maximum(low, np.searchsorted(self.bounds, stops, side="left"))
        documents = np.unique(expanded(low, high - low)[1])
        for leaf, begin, end in self._source.row_tables()[self.field][0].runs(*runs_of(documents)):
            if leaf.remote is not None and begin.size:
                yield leaf, begin, end

    def _rows_in(self, table: RowTable) -> tuple[npt.NDArray[np.int32] | None, IntArray | None]:
        """The leaf and the row of every document, kept unless they are the rows of one leaf in their order."""
        if table.line == (0, 1):
            return None, None
        if self._rows is None:
            self._rows = table.find(np.arange(len(self._source), dtype=np.int64))
        return self._rows

    def read_spans(self, starts: IntArray, offsets: IntArray, out: npt.NDArray[Any]) -> None:
        bounds, stops = self.bounds, starts + np.diff(offsets)
        low = np.searchsorted(bounds, starts, side="right") - 1
        count = np.where(stops > starts, np.searchsorted(bounds, stops, side="left") - low, 0)
        span, document = expanded(low, count)
        if document.size == 0:
            return
        documents, place = np.unique(document, return_inverse=True)
        column = self._source.read(documents, [self.field])[self.field]
        content = bounds[document + 1] - self._separator.size
        begin = np.maximum(bounds[document], starts[span])
        into = offsets[:-1][span] + begin - starts[span]
        end = np.minimum(bounds[document + 1], stops[span])
        first = column.offsets[:-1][place] + begin - bounds[document]
        flat = out.reshape(-1)
        values = column.values.view(flat.dtype)
        rows = zip(*(a.tolist() for a in (into, begin, np.minimum(end, content), first)), strict=True)
        for at, start, stop, source in rows:
            if stop > start:
                flat[at : at + stop - start] = values[source : source + stop - start]
        if self._separator.size:
            self._write_separators(flat, into, begin, end, content)

    def _write_separators(self, flat: npt.NDArray[Any], into: IntArray, begin: IntArray, end: IntArray, content: IntArray) -> None:
        for number, token in enumerate(self._separator):
            place = content + number
            there = (place >= begin) & (place < end)
            flat[(into + place - begin)[there]] = token

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("bounds", "_rows")}


class MaskLine(DocumentLine):
    """The loss masks of documents: a byte for every token, and 1 for every token of the separator.

    SchemaMismatchError if a document has more or fewer of them than tokens.
    """

    def __init__(self, source: Source, tokens: DocumentLine) -> None:
        field = source.schema[tokens.mask_field]
        if not _fits(field) or field.kind != "ragged" or field.dtype.itemsize != 1:
            raise ValueError(
                f"field {tokens.mask_field!r} is {field!r}; a loss mask is a ragged field of one byte for every token, such as "
                "uint8: give a field that is no loss mask another name, or leave it out with pick(...)"
            )
        super().__init__(source, tokens.mask_field, None)
        self._dtype, self._separator, self._tokens = np.dtype("u1"), np.ones(tokens.separator.size, np.uint8), tokens

    def held_rows(self, starts: IntArray, stops: IntArray) -> Iterator[tuple[Leaf, IntArray, IntArray]]:
        """Nothing more than the tokens need, if both are in the same rows."""
        tables = self._source.row_tables()
        is_held = tables[self.field][0] is tables[self._tokens.field][0]
        return iter(()) if is_held else super().held_rows(starts, stops)

    def _bounds(self) -> IntArray:
        found, expected = super()._bounds(), self._tokens.bounds
        if not np.array_equal(found, expected):
            tokens, bytes_there = (np.diff(bounds) - self._separator.size for bounds in (expected, found))
            bad = int(np.flatnonzero(tokens != bytes_there)[0])
            raise SchemaMismatchError(
                f"{self._source!r}: expected a loss mask of as many bytes as there are tokens, found {bytes_there[bad]} in field "
                f"{self.field!r} of record {bad}, which has {tokens[bad]} tokens in field {self._tokens.field!r}"
            )
        return expected


class DocumentStream(SequenceStream):
    """Sequences over documents: whole records of a field of texts, byte strings or ragged arrays, in the order of the stream.

    To find a sequence, the lengths of the documents are added up once per epoch in its order, and every 1024th sum is kept.
    """

    _line: DocumentLine

    def _lay(self, page: int | None) -> None:
        order, source = self._given, self._source
        if isinstance(order, Random | Weighted):
            raise ValueError(
                "documents drawn with replacement have another number of tokens in every epoch: use in_order() or shuffle()"
            )
        if not isinstance(order, Sequential | Shuffle | BlockShuffle) or len(order) != len(source):
            raise TypeError(f"documents cannot be cut into sequences in the order {order!r}: use in_order() or shuffle()")
        self._page, self._pages, self._order = 1, self._line.num_tokens, order
        if isinstance(self._mask, MaskLine):
            _ = self._mask.bounds  # every document has as many masks as tokens
        self._recent: dict[int, IntArray] = {}
        self._drawn: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        if self._bans:
            banned = self._bans.at(None)
            if int(self._line.token_ranges(banned)[1].sum()) >= self.axis:
                raise ValueError("every document that has tokens is banned, so there is no replacement")

    @property
    def rows_per_unit(self) -> int:
        return 1

    @property
    def counts_units(self) -> bool:
        """Positions are tokens, the order is one of documents."""
        return False

    def row_tables(self) -> Sequence[RowTable]:
        return self._source.tables()

    def _leaf(self, line: TokenLine) -> Any:
        """The line itself, which native threads may read."""
        return line

    def units_of(self, picks: SpanPicks) -> IntArray:
        """The documents: every run is one, or a part of one."""
        return np.searchsorted(self._line.bounds, picks.starts, side="right").astype(np.int64) - 1

    def rows_of(self, picks: SpanPicks) -> tuple[IntArray, IntArray]:
        units = self.units_of(picks)
        return units, units + 1

    def plan(self) -> dict[str, Any]:
        return {"order": describe(self._order), "field": self._line.field, **self._marks(), **self._bans.describe()}

    def continued(self, epoch: int) -> tuple[Stream, dict[str, Any]]:
        """A run of version 1 continues over pages of 64 KiB of the data; in order, that is the same line."""
        old = SequenceStream(
            self._source,
            self._line,
            self._given,
            self._seq_len,
            separator=self._separator,
            fields=self._fields if self._separator is not None else tuple(name for name in self._fields if name not in MARKS),
            bans=self._bans,
            version=1,
        )
        plan = old.plan() | {"documents": str(self._documents)}
        return (self, plan) if isinstance(self._given, Sequential) else (old, plan)

    def _places_of(self, epoch: int, start: int, stop: int) -> list[tuple[int, int]]:
        """One place: documents are whole on the line."""
        document = int(np.searchsorted(self._line.bounds, start, side="right")) - 1
        position = int(self._order.positions(epoch, [document])[0])  # type: ignore[attr-defined]
        head = position // MARK * MARK
        before = self._order.indices(epoch, head, position)
        low = int(self._epoch_marks(epoch)[position // MARK] + self._line.token_ranges(before)[1].sum())
        return [(low, low + stop - start)]

    def _epoch_marks(self, epoch: int) -> IntArray:
        """Where every MARKth document of an epoch begins on its line, and where the last one ends."""
        marks = self._recent.get(epoch)
        if marks is None:
            count, bounds, sums = len(self._order), self._line.bounds, [np.zeros(1, np.int64)]
            for low in range(0, count, 1024 * MARK):
                ids = self._order.indices(epoch, low, min(count, low + 1024 * MARK))
                sums.append(np.add.reduceat(bounds[ids + 1] - bounds[ids], np.arange(0, ids.size, MARK)))
            marks = np.cumsum(np.concatenate(sums))
            self._recent = {
                **dict(list(self._recent.items())[-1:]),
                epoch: marks,
            }  # two epochs: a sequence may span both
        return marks

    def _locate(self, epoch: int, starts: IntArray, size: int, step: int) -> SpanPicks:
        """Runs of ``size`` tokens within an epoch's line, each cut where documents end."""
        is_in_order = isinstance(self._order, Sequential)
        if starts.size == 0 or (is_in_order and not self._documents and not self._bans):  # the line of the data itself
            return SpanPicks(self._seq_len, starts.copy(), np.full(starts.size, size), np.arange(starts.size + 1))
        positions, ids, begin = self._documents_of(epoch, starts, starts + size)
        lengths = self._line.bounds[ids + 1] - self._line.bounds[ids]
        low = np.searchsorted(begin + lengths, starts, side="right")
        high = np.searchsorted(begin, starts + size, side="left")
        sample, piece = expanded(low, high - low)
        first = np.maximum(begin[piece], starts[sample])
        counts = np.minimum((begin + lengths)[piece], starts[sample] + size) - first
        sample, piece, first, counts = (a[counts > 0] for a in (sample, piece, first, counts))
        places = self._line.bounds[ids[piece]] + first - begin[piece]
        if self._bans and (banned := self._bans.at(step)).size:
            inside = first - begin[piece]
            return self._replaced(epoch, banned, starts.size, sample, positions[piece], ids[piece], inside, places, counts)
        edges = np.searchsorted(sample, np.arange(starts.size + 1))
        return SpanPicks(self._seq_len, places, counts, edges)

    def _documents_of(self, epoch: int, starts: IntArray, stops: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """The documents that hold the tokens [start, stop) of an epoch's line, and some around them, in rising order: their
        positions in the epoch, their ids, and where each begins on the line.
        """
        marks = self._epoch_marks(epoch)
        low = np.searchsorted(marks, starts, side="right") - 1
        high = np.searchsorted(marks, stops, side="left")
        group = np.unique(expanded(low, high - low)[1])
        sizes = np.minimum(MARK, len(self._order) - group * MARK)
        _, positions = expanded(group * MARK, sizes)
        ids = self._order.at(epoch, positions)
        lengths = self._line.bounds[ids + 1] - self._line.bounds[ids]
        before = np.cumsum(lengths) - lengths
        heads = np.cumsum(sizes) - sizes
        return positions, ids, before + np.repeat(marks[group] - before[heads], sizes)

    def _replaced(
        self,
        epoch: int,
        banned: IntArray,
        count: int,
        sample: IntArray,
        positions: IntArray,
        ids: IntArray,
        inside: IntArray,
        places: IntArray,
        counts: IntArray,
    ) -> SpanPicks:
        """The same pieces, with tokens of other documents in the place of banned ones."""
        runs: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        is_banned = is_in(ids, banned)
        for number in range(len(ids)):
            here, length = int(places[number]), int(counts[number])
            pieces = [(here, length)]
            if is_banned[number]:
                whole = int(self._line.bounds[ids[number] + 1] - self._line.bounds[ids[number]])
                key = epoch, int(positions[number]), len(banned)
                if (instead := self._drawn.get(key)) is None:  # a long document is cut into many sequences
                    instead = self._instead(epoch, int(positions[number]), whole, banned)
                    self._drawn = {**dict(list(self._drawn.items())[-MOST_DRAWN:]), key: instead}
                pieces = _part(instead, int(inside[number]), length)
            runs[int(sample[number])] += pieces
        flat = np.array([run for each in runs for run in each], np.int64).reshape(-1, 2)
        edges = np.cumsum([0, *(len(each) for each in runs)]).astype(np.int64)
        return SpanPicks(self._seq_len, np.ascontiguousarray(flat[:, 0]), np.ascontiguousarray(flat[:, 1]), edges)

    def _instead(self, epoch: int, position: int, count: int, banned: IntArray) -> list[tuple[int, int]]:
        """Documents that come instead of a banned one of ``count`` tokens, as runs of the data: random ones that are not banned, in
        the order drawn; what is too much is cut from the front of the first.
        """
        root = _core.absorb(derive_root(self.seed, epoch, Purpose.SUBSTITUTE), position)
        drawn: list[tuple[int, int]] = []
        total, attempt = 0, 0
        while total < count:
            document = (_core.absorb(root, attempt) * len(self._source)) >> 64
            attempt += 1
            if not is_in(np.array([document]), banned)[0]:
                begin, end = int(self._line.bounds[document]), int(self._line.bounds[document + 1])
                drawn.append((begin, end - begin))
                total += end - begin
        return _part(drawn, total - count, count)

    def is_within_pages(self, starts: range) -> bool:
        """There are no pages: documents end anywhere."""
        return False

    def _splitter(self) -> npt.NDArray[Any]:
        return np.empty(0, self._line.dtype)

    def _breaks(self, picks: SpanPicks) -> IntArray:
        """Every run is a document, or a part of one."""
        return np.cumsum(picks.counts)[:-1]

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_recent": {}, "_drawn": {}}


def _part(runs: list[tuple[int, int]], start: int, count: int) -> list[tuple[int, int]]:
    """Tokens [start, start + count) of runs put one after the other."""
    found = []
    for begin, length in runs:
        low, high = max(0, start), min(length, start + count)
        if high > low:
            found.append((begin + low, high - low))
        start -= length
    return found


def _choose(source: Source, field: str | None) -> str:
    schema = source.schema
    fitting = [name for name, one in schema.items() if _fits(one)]
    if field is None:
        tokens = [name for name in fitting if name.rpartition(".")[2] != LOSS_MASK]
        if len(fitting) == 2 and len(tokens) == 1:
            return tokens[0]
        if len(fitting) != 1:
            raise ValueError(
                f"sequences need one field of texts, bytes or ragged arrays: choose field= among {fitting} of {list(schema)}"
            )
        return fitting[0]
    if field not in schema:
        raise KeyError(f"unknown field {field!r}; there are {list(schema)}")
    if field not in fitting:
        raise ValueError(f"field {field!r} is {schema[field]!r}; sequences need texts, bytes or ragged arrays of one dimension")
    return field


def _fits(field: Field) -> bool:
    return not field.is_fixed and field.ndim == 1
