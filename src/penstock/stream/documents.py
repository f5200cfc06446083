"""DocumentTable: the documents of a line of tokens. Which of them a sample shows, what they are called, and what they say."""

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, whole_number
from penstock.batch import only
from penstock.formats.token_line import DocumentBounds, TokenSource
from penstock.records import Source
from penstock.schema import Field
from penstock.stream.picks import SpanPicks, expanded
from penstock.tokenizer import TextTokenizer, TokenizerLike, load_tokenizer

__all__ = ["TOKENS_OF_LETTER", "DocumentTable", "are_records", "find_bounds", "has_tokens", "text_of"]

TOKENS_OF_LETTER = 4
"""A letter may be as many tokens: this times N of them are enough for the first N letters of a text."""


class DocumentTable:
    """The documents of a stream, by number; what ``stream.documents`` gives. Safe to use from several threads.

    Documents are the records of the source where ``are_records`` says so. Otherwise they are what separators end in its tokens.

    >>> import penstock as pen
    >>> stream = pen.open({"text": ["abc", "de", "fghi"]}).shuffle(seed=7).pack(5)
    >>> len(stream.documents), stream.documents.text(2, 1)
    (3, 'ghi')
    """

    def __init__(self, source: Source, line: Any, bounds: DocumentBounds, *, are_records: bool, added: int = 0) -> None:
        """The documents of ``line`` have these bounds; the last ``added`` tokens of each are not the document's."""
        self._source, self._line, self._bounds, self._added = source, line, bounds.checked(), added
        self.are_records = are_records

    def __len__(self) -> int:
        return self._bounds.size - 1

    def length(self, document: int) -> int:
        """Tokens of a document."""
        number = self._number(document)
        return int(self._bounds[number + 1] - self._bounds[number]) - self._added

    def read(self, document: int, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """The tokens [start, stop) of a document, as far as it has them; the bytes of a text."""
        length = self.length(document)
        low = min(whole_number("start", start), length)
        high = length if stop is None else max(low, min(whole_number("stop", stop), length))
        tokens = np.empty(high - low, self._line.dtype)
        if tokens.size:
            first = int(self._bounds[self._number(document)]) + low
            self._line.read_spans(np.array([first]), np.array([0, tokens.size]), tokens)
        return tokens

    @property
    def has_tokens(self) -> bool:
        """Whether a tokenizer is needed to make a text of a document: not for a field of texts or byte strings."""
        field = getattr(self._line, "field", None)
        return field is None or self._source.schema[field].kind == "ragged"

    def text(self, document: int, start: int = 0, stop: int | None = None, *, tokenizer: TokenizerLike = None) -> str:
        """The tokens [start, stop) of a document as a text; ``tokenizer`` is not needed where documents are texts. A letter that is
        cut there is a replacement character.
        """
        if not self.has_tokens:
            return self.read(document, start, stop).tobytes().decode("utf-8", "replace")
        if tokenizer is None:
            raise ValueError(f"the documents of {self._source!r} are tokens: give the tokenizer that made them")
        return text_of(load_tokenizer(tokenizer), self.read(document, start, stop))

    def name(self, document: int, field: str | None = None) -> str:
        """What a document is called: by a field of its record, such as a URL; else its file and its number there, or its number."""
        number = self._number(document)
        if field is not None:
            if not self.are_records or field not in self._source.schema:
                there = f"there are {list(self._source.schema)}" if self.are_records else "documents are no records here"
                raise KeyError(f"documents have no field {field!r} to be named by; {there}")
            value = only(self._source.read([number], [field])[field])
            if value is None:
                return "missing"
            return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        name = getattr(self._source, "document_name", None) if self.are_records else None
        return str(number) if name is None else str(name(number))

    def ranges(self, documents: IntArray) -> tuple[IntArray, IntArray]:
        """Where on the line documents begin, and how many tokens they have there, with those that are added."""
        starts = self._bounds[documents]
        return starts, self._bounds[documents + 1] - starts

    def spans(self, picks: SpanPicks) -> list[IntArray]:
        """(document, from, to) of what each sample shows of documents; from = to for one of added tokens only."""
        if len(self) == 0:
            return [np.empty((0, 3), np.int64) for _ in range(len(picks))]
        bounds, stops = self._bounds, picks.starts + picks.counts
        low = np.maximum(np.searchsorted(bounds, picks.starts, side="right") - 1, 0)
        high = np.minimum(np.searchsorted(bounds, stops, side="left"), len(self))
        run, document = expanded(low, np.maximum(high - low, 0))
        begin = np.maximum(picks.starts[run], bounds[document])
        end = np.minimum(stops[run], bounds[document + 1])
        sample = np.repeat(np.arange(len(picks)), np.diff(picks.first))[run]
        sample, document, begin, end = (a[begin < end] for a in (sample, document, begin, end))
        is_head = np.ones(sample.size, np.bool_)
        is_head[1:] = (document[1:] != document[:-1]) | (sample[1:] != sample[:-1]) | (begin[1:] != end[:-1])
        heads = np.flatnonzero(is_head)
        last = np.append(heads[1:], sample.size) - 1
        first, content = bounds[document[heads]], bounds[document[heads] + 1] - self._added
        shown = [np.minimum(edge, content) - first for edge in (begin[heads], end[last])]
        spans = np.column_stack([document[heads], *shown])
        edges = np.searchsorted(sample[heads], np.arange(len(picks) + 1))
        return [spans[one:after] for one, after in pairwise(edges.tolist())]

    def _number(self, document: int) -> int:
        return whole_number("document", document, most=len(self) - 1)


def has_tokens(field: Field) -> bool:
    """Whether the values of a field are whole numbers in a row, as tokens are."""
    dimensions = len(field.shape) if field.is_fixed else field.ndim
    return field.kind in ("fixed", "ragged") and field.dtype.kind in "iu" and dimensions == 1


def text_of(tokenizer: TextTokenizer, tokens: npt.NDArray[Any]) -> str:
    """Tokens as a text. Those that are not in the vocabulary are shown by number, such as ``<65535>``."""
    if tokens.dtype.kind not in "iu":
        raise TypeError(f"expected tokens that are whole numbers, got {tokens.dtype}")
    is_known = (tokens >= 0) & (tokens < tokenizer.vocab_size)
    if is_known.all():
        return tokenizer.decode(tokens)
    edges = [0, *(np.flatnonzero(is_known[1:] != is_known[:-1]) + 1).tolist(), tokens.size]
    runs = [tokens[low:high] for low, high in pairwise(edges)]
    return "".join(
        tokenizer.decode(run) if is_known[low] else "".join(f"<{token}>" for token in run.tolist())
        for low, run in zip(edges, runs, strict=False)
    )


def find_bounds(line: Any, separator: Any) -> DocumentBounds:
    """Where the documents of a line are, the separator that ends each included."""
    if separator is None:
        bounds = getattr(line, "document_bounds", None)
        if bounds is None:
            raise ValueError(
                "this token file does not mark where documents end: pass separator=, the token that ends each document"
            )
        bounds = np.ascontiguousarray(bounds, np.int64)
        if bounds.size == 0 or bounds[0] < 0 or bounds[-1] > line.num_tokens:
            raise ValueError(
                f"expected bounds of documents within the {line.num_tokens} tokens of {line!r}, found {bounds[:1]} to {bounds[-1:]}"
            )
        return DocumentBounds(bounds)
    if not hasattr(line, "separated"):
        raise TypeError(f"{line!r} cannot be searched for separators: its documents are known, so leave separator out")
    found: DocumentBounds = line.separated(separator)
    return found


def are_records(source: Any, bounds: IntArray) -> bool:
    """Whether the documents with these bounds are the records of the source, one for one."""
    if len(bounds) - 1 != len(source):
        return False
    if isinstance(source, TokenSource) and source.document_bounds is bounds:
        return True
    starts, counts = source.token_ranges(np.arange(len(source)))
    return np.array_equal(starts, bounds[:-1]) and np.array_equal(starts + counts, bounds[1:])
