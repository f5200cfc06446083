"""What the pages of Parquet columns say they decode to, read before anything is decoded.

A column of a row group is pages one after the other. A page is a header, a struct in Thrift's compact protocol, and its bytes::

    PageHeader             1 kind  2 uncompressed_page_size  3 compressed_page_size  5, 7 or 8: one of the following
    5 DataPageHeader       1 num_values  2 encoding
    7 DictionaryPageHeader 1 num_values  2 encoding
    8 DataPageHeaderV2     1 num_values  4 encoding

Numbers of values and sizes of pages bound what Arrow makes of most encodings. In two of them, a few bits can stand for a text of
any length that comes elsewhere in the column.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from penstock.errors import CorruptError

__all__ = ["ReadRange", "Spread", "spread_of"]

ReadRange = Callable[[int, int], bytes]

MOST_PAGES = 1 << 20
HEADER_BYTES = (1 << 8, 1 << 13, 1 << 24)
"""What is read of a page for its header, until it is whole. Arrow takes no longer ones than the last."""

MOST_DEPTH = 8
DATA, DICTIONARY, DATA_V2 = 5, 7, 8
ENCODING = {DATA: 2, DICTIONARY: 2, DATA_V2: 4}
BY_NUMBER, BY_PREFIX = (2, 8), (7,)
"""Encodings whose values are numbers of values in a dictionary, and those whose values begin like the one before."""

Span = tuple[int, int]


@dataclass(frozen=True)
class Page:
    """What the header of a page says."""

    kind: int
    size: int  # decompressed
    num_values: int
    encoding: int


@dataclass
class Spread:
    """What a column of a row group decodes to."""

    num_values: int = 0
    page_bytes: int = 0  # of all data pages, decompressed
    largest_page: int = 0
    dictionary_bytes: int = 0
    by_number: bool = False  # whether some values are in a dictionary,
    by_prefix: bool = False  # or begin like the one before


def spread_of(where: str, read_range: ReadRange, span: Span, num_values: int) -> Spread:
    """What the pages of a column decode to. ``num_values``: of all of them, as the footer has it."""
    found = Spread()
    for page in _pages(where, read_range, span):
        if min(page.size, page.num_values) < 0:
            raise CorruptError(f"{where}: expected pages of 0 bytes and values or more, found {page.size} and {page.num_values}")
        found.largest_page = max(found.largest_page, page.size)
        if page.kind == DICTIONARY:
            found.dictionary_bytes += page.size
            continue
        found.num_values += page.num_values
        found.page_bytes += page.size
        found.by_number |= page.encoding in BY_NUMBER
        found.by_prefix |= page.encoding in BY_PREFIX
        if found.num_values >= num_values:
            break
    if found.num_values != num_values:
        raise CorruptError(f"{where}: expected pages of {num_values} values, found {found.num_values}")
    return found


def _pages(where: str, read_range: ReadRange, span: Span) -> Iterator[Page]:
    """The pages, without those of kinds that have no values."""
    start, stop = span
    for _ in range(MOST_PAGES):
        if start >= stop:
            return
        fields, size = _header(where, read_range, start, stop)
        kind = next((one for one in ENCODING if isinstance(fields.get(one), dict)), None)
        stored = fields.get(3)
        if not isinstance(stored, int) or not 0 <= stored <= stop - start - size or not isinstance(fields.get(2), int):
            raise CorruptError(f"{where}: expected a page within [{start}, {stop}), found one of {stored} bytes")
        if kind is not None:
            inner = fields[kind]
            yield Page(kind, fields[2], _whole(inner.get(1)), _whole(inner.get(ENCODING[kind])))
        start += size + stored
    raise CorruptError(f"{where}: expected at most {MOST_PAGES} pages in a column of a row group")


def _header(where: str, read_range: ReadRange, start: int, stop: int) -> tuple[dict[int, Any], int]:
    for most in HEADER_BYTES:
        data = read_range(start, min(stop, start + most))
        try:
            return _struct(data, 0, 0)
        except IndexError:
            if len(data) < most:
                break
    raise CorruptError(f"{where}: expected the header of a page at {start}, found other bytes")


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else -1


def _struct(data: bytes, place: int, depth: int) -> tuple[dict[int, Any], int]:
    """The fields of a struct that are numbers or structs, and where it ends. IndexError if it does not."""
    fields: dict[int, Any] = {}
    number = 0
    while head := data[place]:
        place += 1
        if head >> 4:
            number += head >> 4
        else:
            number, place = _zigzag(data, place)
        fields[number], place = _value(data, place, head & 15, depth)
    return fields, place + 1


def _value(data: bytes, place: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2):  # a truth value, which is in the kind
        return kind == 1, place
    if kind in (4, 5, 6):
        return _zigzag(data, place)
    if kind in (3, 7):
        return None, place + (1 if kind == 3 else 8)
    if kind == 8:
        size, place = _varint(data, place)
        return None, place + size
    if kind == 12 and depth < MOST_DEPTH:
        return _struct(data, place, depth + 1)
    raise IndexError(kind)  # headers of pages have no others


def _varint(data: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while (byte := data[place]) & 128:
        number |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if shift > 63:
            raise IndexError(place)
    return number | byte << shift, place + 1


def _zigzag(data: bytes, place: int) -> tuple[int, int]:
    number, place = _varint(data, place)
    return number >> 1 ^ -(number & 1), place
