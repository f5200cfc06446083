"""Search: the records in which a text occurs in a field. A request looks at a bounded part of the data and says where to go on.

Texts and byte strings are searched as they are stored, all values of a read at once. Capital and small letters are the same. Tokens
are searched as the text that a tokenizer makes of them, whole numbers by value, and by name where classes have names.
"""

import re
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray
from penstock.batch import Ragged
from penstock.errors import PenstockError
from penstock.records import Source
from penstock.stream.documents import has_tokens, text_of
from penstock.tokenizer import TextTokenizer
from penstock.view.guard import RefusedError
from penstock.view.records import class_names, item_at, sendable, sizes_of

MOST_RECORDS = 65_536  # that a request looks at
MOST_BYTES = 8 << 20  # that a request reads; one record may be larger
MOST_TOKENS = 1 << 18  # that a request makes texts of
LARGEST = 64 << 20  # a value of more bytes is not searched
READ_RECORDS = 4096  # at a time
MOST_LETTERS = 100
BEFORE, AFTER = 80, 240  # bytes around a place that are shown

Pattern = re.Pattern[bytes]


@dataclass
class Looked:
    """What a request found: (id, the text before, the place itself, the text behind it), and the id to go on with."""

    next: int
    hits: list[tuple[int, str, str, str]] = field(default_factory=list)
    left_out: int = 0

    def as_json(self, start: int, total: int) -> dict[str, Any]:
        end = min(self.next, total)
        return {
            "start": start,
            "looked": max(0, end - start),
            "next": end if end < total else None,
            "total": total,
            "left_out": self.left_out,
        }


def searchable(source: Source, tokenizer: TextTokenizer | None) -> list[str]:
    """The fields that can be searched; texts first."""
    kinds = {name: _kind(source, name, tokenizer) for name in source.schema}
    order = ("text", "tokens", "bytes", "number")
    return sorted((name for name, kind in kinds.items() if kind), key=lambda name: order.index(str(kinds[name])))


def _kind(source: Source, name: str, tokenizer: TextTokenizer | None) -> str | None:
    given = source.schema[name]
    if given.kind in ("text", "bytes"):
        return given.kind
    if tokenizer is not None and has_tokens(given):
        return "tokens"
    return "number" if given.is_fixed and not given.shape and given.dtype.kind in "iu" else None


def search(
    source: Source, name: str, text: str, start: int, most: int, tokenizer: TextTokenizer | None = None
) -> tuple[Looked, IntArray]:
    """The next records from ``start`` on with the text in a field, at most ``most``. RefusedError for a field of another kind."""
    kind = _kind(source, name, tokenizer)
    if kind is None:
        raise RefusedError(
            HTTPStatus.BAD_REQUEST, "expected a field of texts, byte strings or whole numbers, or of tokens and a tokenizer"
        )
    if not 0 < len(text) <= MOST_LETTERS:
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"expected a text of 1 to {MOST_LETTERS} letters, got {len(text)}")
    search = _Search(source, name, kind, text, tokenizer)
    found = search.run(start, most)
    return found, np.array([hit[0] for hit in found.hits], np.int64)


@dataclass(frozen=True)
class _Search:
    source: Source
    name: str
    kind: str
    text: str
    tokenizer: TextTokenizer | None

    def run(self, start: int, most: int) -> Looked:
        found = Looked(start)
        end = min(len(self.source), start + MOST_RECORDS)
        left = MOST_TOKENS if self.kind == "tokens" else MOST_BYTES
        while found.next < end and len(found.hits) < most and left > 0:
            ids = np.arange(found.next, min(end, found.next + READ_RECORDS), dtype=np.int64)
            left -= self._look(ids, left, most, found)
        return found

    def _look(self, ids: IntArray, left: int, most: int, found: Looked) -> int:
        """Search some of these records; what was read of the limit. A record that cannot be read is left out."""
        try:
            sizes = sizes_of(self.source, self.name, ids)
            unit = self.source.schema[self.name].dtype.itemsize if self.kind == "tokens" else 1
            count = max(1, int(np.searchsorted(np.cumsum(sizes), left * unit, side="right")))
            ids, spent = ids[:count], max(1, int(sizes[:count].sum()) // unit)
            if sizes[0] > LARGEST:
                return self._leave_out(found)
            column = self.source.read(ids, [self.name])[self.name]
        except PenstockError:
            if len(ids) == 1:
                return self._leave_out(found)
            half = ids[: max(1, len(ids) // 2)]
            return self._look(half, left, most, found)
        wanted = most - len(found.hits)
        hits = self._in_numbers(column, wanted) if self.kind == "number" else self._in_texts(column, wanted)
        found.hits += [(int(ids[place]), before, at, behind) for place, before, at, behind in hits]
        found.next = found.hits[-1][0] + 1 if len(found.hits) >= most else int(ids[-1]) + 1
        return spent

    def _leave_out(self, found: Looked) -> int:
        found.left_out += 1
        found.next += 1
        return 1

    def _in_numbers(self, column: Any, most: int) -> list[tuple[int, str, str, str]]:
        """Records with this number, or with a class whose name has the text in it."""
        names = class_names(self.source, self.name)
        low = self.text.lower()
        wanted = {number: name for number, name in enumerate(names) if low in name.lower()}
        if re.fullmatch(r"-?[0-9]{1,20}", self.text, re.ASCII):
            number = int(self.text)
            wanted.setdefault(number, names[number] if 0 <= number < len(names) else "")
        values = np.ma.getdata(column)
        limits = np.iinfo(values.dtype)
        fitting = np.array([number for number in wanted if limits.min <= number <= limits.max], values.dtype)
        places = np.flatnonzero(np.isin(values, fitting) & ~np.ma.getmaskarray(column))[:most]
        return [(int(place), "", sendable(wanted[int(values[place])] or str(values[place])), "") for place in places]

    def _in_texts(self, column: Any, most: int) -> list[tuple[int, str, str, str]]:
        if self.kind == "tokens":
            column = self._as_texts(column)
        values = np.ascontiguousarray(column.values[column.offsets[0] : column.offsets[-1]]).view(np.uint8)
        ends = column.offsets - column.offsets[0]
        data = values.data
        return [
            (place, *_around(data, int(ends[place]), int(ends[place + 1]), *at)) for place, *at in self._places(data, ends, most)
        ]

    def _as_texts(self, column: Any) -> Ragged:
        assert self.tokenizer is not None
        items = [item_at(column, place) for place in range(len(column))]
        texts = [b"" if item is None else text_of(self.tokenizer, item).encode("utf-8", "replace") for item in items]
        offsets = np.array([0, *accumulate(map(len, texts))], np.int64)
        return Ragged(np.frombuffer(b"".join(texts), np.uint8), offsets, "text")

    def _places(self, data: memoryview, ends: npt.NDArray[np.int64], most: int) -> list[tuple[int, int, int]]:
        """(record, from, to) of the first place in every record that has one."""
        found: list[tuple[int, int, int]] = []
        pattern, at = pattern_of(self.text), 0
        while len(found) < most and (match := pattern.search(data, at)) is not None:
            record = int(np.searchsorted(ends, match.start(), side="right")) - 1
            if match.end() <= ends[record + 1]:
                found.append((record, match.start(), match.end()))
                at = int(ends[record + 1])
            else:  # from one record into the next
                at = match.start() + 1
        return found


def pattern_of(text: str) -> Pattern:
    """A pattern of the UTF-8 bytes of a text, whichever case its letters have."""
    forms = [sorted({letter, letter.lower(), letter.upper()}) for letter in text]
    letters = [b"|".join(re.escape(form.encode("utf-8", "replace")) for form in same) for same in forms]
    return re.compile(b"".join(b"(?:%s)" % letter for letter in letters))


def _around(data: memoryview, low: int, high: int, start: int, stop: int) -> tuple[str, str, str]:
    """The text before a place, the place itself and the text behind it, within [low, high)."""
    begin, end = max(low, start - BEFORE), min(high, stop + AFTER)
    parts = [
        _text(data[begin:start], begin > low, False),
        _text(data[start:stop], False, False),
        _text(data[stop:end], False, end < high),
    ]
    return ("… " if begin > low else "") + parts[0], parts[1], parts[2] + (" …" if end < high else "")


def _text(data: memoryview, is_cut_before: bool, is_cut_behind: bool) -> str:
    """Bytes as a text, without the pieces of letters where it was cut."""
    given = bytes(data)
    low = 0
    while is_cut_before and low < min(3, len(given)) and given[low] & 0xC0 == 0x80:
        low += 1
    text = given[low:].decode("utf-8", "replace")
    return sendable(text.rstrip("\ufffd") if is_cut_behind else text)
