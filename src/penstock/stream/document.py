"""DocumentStream: the texts or ragged arrays of a source, as documents in the order of the stream, cut into sequences."""

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock import _core
from penstock.interfaces import IntArray
from penstock.order import BlockShuffle, Random, Sequential, Shuffle
from penstock.order.seed import Purpose, derive_root
from penstock.records import Source
from penstock.schema import Field
from penstock.source.tokens import as_elements
from penstock.stream.picks import SpanPicks, expanded
from penstock.stream.sequence import SequenceStream
from penstock.stream.stream import Stream, describe, is_in

__all__ = ["DocumentLine", "DocumentStream"]

MARK = 1024
"""The place of every MARKth document of an epoch is kept; those between are added up when they are needed."""

AT_ONCE = 1 << 16
"""Documents whose lengths are asked for in one go."""

MOST_DRAWN = 16
"""Banned documents for which it is kept what comes instead."""

PAGE_BYTES = 64 << 10
"""The pages that version 1 put in order, whatever documents they cut."""


class DocumentLine:
    """The records of one field in the order of the data, each followed by the separator if there is one.

    Keeps 8 bytes for every document: where it ends.
    """

    def __init__(self, source: Source, field: str | None, separator: Any) -> None:
        self._source, self.field = source, _choose(source, field)
        if not source.has_documents(self.field):
            raise ValueError(
                f"the records of field {self.field!r} are blocks of a token file, not documents: cut the token files themselves "
                "into sequences, opened as a pattern or a list of names, or mix streams of them"
            )
        self._dtype = source.schema[self.field].dtype
        self._separator = as_elements("separator", [] if separator is None else separator, self._dtype)

    @cached_property
    def bounds(self) -> IntArray:
        """Document i has the tokens [bounds[i], bounds[i + 1]), its separator included."""
        bounds = np.zeros(len(self._source) + 1, np.int64)
        for low in range(0, len(self._source), AT_ONCE):
            high = min(low + AT_ONCE, len(self._source))
            bounds[low + 1 : high + 1] = self._source.lengths(self.field, np.arange(low, high)) + self._separator.size
        return np.cumsum(bounds, out=bounds)

    @property
    def num_tokens(self) -> int:
        """Tokens of all documents."""
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

    def read_spans(self, starts: IntArray, offsets: IntArray, out: npt.NDArray[Any]) -> None:
        """Fill ``out`` with tokens [start, start + offsets[i + 1] - offsets[i]) of every start, one after the other."""
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
        rows = zip(*(a.tolist() for a in (into, begin, np.minimum(end, content), first)), strict=True)
        for at, start, stop, source in rows:
            if stop > start:
                flat[at : at + stop - start] = column.values[source : source + stop - start]
        if self._separator.size:
            self._write_separators(flat, into, begin, end, content)

    def _write_separators(self, flat: npt.NDArray[Any], into: IntArray, begin: IntArray, end: IntArray, content: IntArray) -> None:
        for number, token in enumerate(self._separator):
            place = content + number
            there = (place >= begin) & (place < end)
            flat[(into + place - begin)[there]] = token

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "bounds"}


class DocumentStream(SequenceStream):
    """Sequences over documents: whole records of a field of texts, byte strings or ragged arrays, in the order of the stream.

    To find a sequence, the lengths of the documents are added up once per epoch in its order, and every 1024th sum is kept.
    """

    _line: DocumentLine

    def _lay(self, page: int | None) -> None:
        order, source = self._given, self._source
        if isinstance(order, Random):
            raise ValueError(
                "documents drawn with replacement have another number of tokens in every epoch: use in_order() or shuffle()"
            )
        if not isinstance(order, Sequential | Shuffle | BlockShuffle) or len(order) != len(source):
            raise TypeError(f"documents cannot be cut into sequences in the order {order!r}: use in_order() or shuffle()")
        self._page, self._pages, self._order = 1, self._line.num_tokens, order
        self._recent: dict[int, IntArray] = {}
        self._drawn: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        if self._bans:
            banned = self._bans.at(None)
            if int(self._line.token_ranges(banned)[1].sum()) >= self.axis:
                raise ValueError("every document that has tokens is banned, so there is nothing to take instead")

    def _layout(self) -> dict[str, Any]:
        return {}

    def plan(self) -> dict[str, Any]:
        """The order of the documents, the field, the separator and the bans."""
        return {"order": describe(self._order), "field": self._line.field, **self._marks(), **self._bans.describe()}

    def continued(self, epoch: int) -> tuple[Stream, dict[str, Any]]:
        """A run of version 1 goes on over pages of 64 KiB of the data; in order, that is the same line."""
        old = SequenceStream(
            self._source,
            self._line,
            self._given,
            self._seq_len,
            separator=self._separator,
            documents=self._documents and self._separator is not None,
            bans=self._bans,
            version=1,
        )
        plan = old.plan() | {"documents": str(self._documents)}
        return (self, plan) if isinstance(self._given, Sequential) else (old, plan)

    def _epoch_marks(self, epoch: int) -> IntArray:
        """Where every MARKth document of an epoch begins on its line, and where the last one ends."""
        marks = self._recent.get(epoch)
        if marks is None:
            count, bounds, sums = len(self._order), self._line.bounds, [np.zeros(1, np.int64)]
            for low in range(0, count, 1024 * MARK):
                ids = self._order.indices(epoch, low, min(count, low + 1024 * MARK))
                sums.append(np.add.reduceat(bounds[ids + 1] - bounds[ids], np.arange(0, ids.size, MARK)))
            marks = np.cumsum(np.concatenate(sums))
            self._recent = {**dict(list(self._recent.items())[-1:]), epoch: marks}  # of two epochs, where one goes on in the next
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
