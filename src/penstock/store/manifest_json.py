"""The JSON of a manifest, and the metadata that it carries, both of which a stranger may have written.

The document is read in bounded memory: 64 MiB of brackets would be 1.7 GB of lists. Values are found by their brackets and counted
before they are parsed. The rows of the three tables, of which a large store has millions, are parsed a slice at a time by their
reader.

Metadata is a small JSON object that a data set carries: names of classes, tokenizer, origin. In a manifest it is a JSON text; its
size, depth and numbers are bounded.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "MAX_METADATA_BYTES",
    "MAX_METADATA_DEPTH",
    "MOST_DEPTH",
    "MOST_VALUES",
    "Rows",
    "decode_metadata",
    "encode_metadata",
    "fits",
    "read_document",
]

TABLES = ("chunks", "segments", "redirects")
MOST_VALUES = 1_000_000
"""In everything but the tables: 4,096 fields have a dozen each, and dimensions."""
MOST_DEPTH = 32
MOST_DIGITS = 20
SLICE_BYTES = 1 << 20
MOST_ROW_BYTES = 1 << 12

MAX_METADATA_BYTES = 1 << 20
MAX_METADATA_DEPTH = 32
MAX_METADATA_DIGITS = 100

_SPACE = rb"[ \t\r\n]*+"
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_BEGIN = re.compile(_SPACE + rb"\{" + _SPACE)
_KEY = re.compile(rb"(" + _STRING + rb")" + _SPACE + rb":" + _SPACE, re.DOTALL)
_TOKEN = re.compile(rb'([^"\[\]{}]*+)(' + _STRING + rb"|[\[\]{}])", re.DOTALL)
_SCALAR = re.compile(_STRING + rb'|[^ \t\r\n,"\[\]{}]++', re.DOTALL)
_NEXT = re.compile(_SPACE + rb"([,}])" + _SPACE)
_EMPTY = re.compile(rb"\[" + _SPACE + rb"\]")
_LAST_ROW = re.compile(rb"\]" + _SPACE + rb"\]")
_BETWEEN_ROWS = re.compile(_SPACE + rb"," + _SPACE)


@dataclass(frozen=True)
class Rows:
    """The rows of a table, not parsed yet."""

    data: bytes
    start: int
    stop: int

    def slices(self) -> Iterator[list[Any]]:
        """The rows, some at a time; ValueError where they are no JSON, or one is longer than any can be."""
        place = self.start
        while place < self.stop:
            edge = self._edge(place)
            yield _rows(str(b"[" + self.data[place:edge] + b"]", "ascii"))
            if edge == self.stop:
                return
            comma = _BETWEEN_ROWS.match(self.data, edge, self.stop)
            if comma is None or comma.end() == self.stop:
                raise ValueError("expected another row behind a row")
            place = comma.end()

    def _edge(self, place: int) -> int:
        """Where a slice that begins here ends: behind a row."""
        least = place + SLICE_BYTES
        if least + MOST_ROW_BYTES >= self.stop:
            return self.stop
        edge = self.data.find(b"]", least, least + MOST_ROW_BYTES)
        if edge < 0:
            raise ValueError(f"expected rows of at most {MOST_ROW_BYTES} bytes")
        return edge + 1


def read_document(data: bytes, stop: int) -> dict[str, Any]:
    """The object in the first ``stop`` bytes; its tables as :class:`Rows`. ValueError if it is anything else, or too large."""
    begin = _BEGIN.match(data, 0, stop)
    if begin is None:
        raise ValueError("expected a JSON object")
    document: dict[str, Any] = {}
    place, left = begin.end(), MOST_VALUES
    while True:
        key = _KEY.match(data, place, stop)
        if key is None:
            raise ValueError(f"expected a key at byte {place}")
        name = _parsed(key[1])
        if name in document:
            raise ValueError("a key stands twice")
        if name in TABLES and data[key.end() : key.end() + 1] == b"[":
            document[name], end = _table(data, key.end(), stop)
        else:
            end, left = _value_end(data, key.end(), stop, left)
            document[name] = _parsed(data[key.end() : end])
        behind = _NEXT.match(data, end, stop)
        if behind is None:
            raise ValueError(f"expected a comma or the end at byte {end}")
        place = behind.end()
        if behind[1] == b"}":
            break
    if place != stop:
        raise ValueError(f"expected the end at byte {place}")
    return document


def _table(data: bytes, start: int, stop: int) -> tuple[Rows, int]:
    empty = _EMPTY.match(data, start, stop)
    if empty is not None:
        return Rows(data, start, start), empty.end()
    last = _LAST_ROW.search(data, start, stop)
    if last is None:
        raise ValueError(f"expected rows at byte {start}")
    return Rows(data, start + 1, last.start() + 1), last.end()


def _value_end(data: bytes, start: int, stop: int, left: int) -> tuple[int, int]:
    """Where a value ends, and how many more there may be."""
    scalar = _SCALAR.match(data, start, stop)
    if scalar is not None:
        return scalar.end(), left - 1
    depth, place = 0, start
    while True:
        token = _TOKEN.match(data, place, stop)
        if token is None:
            raise ValueError(f"expected the end of the value at byte {start}")
        depth += (token[2] in b"[{") - (token[2] in b"]}") if len(token[2]) == 1 else 0
        left -= 1 + token[1].count(b",")
        if depth > MOST_DEPTH or left < 0:
            raise ValueError(f"expected at most {MOST_VALUES} values and {MOST_DEPTH} brackets within each other besides the rows")
        place = token.end()
        if depth <= 0:
            return place, left


def _rows(text: str) -> list[Any]:
    """Rows of whole numbers and texts. Their reader knows how large a number may be; checking here would take half the time."""
    rows: list[Any] = json.loads(text, parse_float=_no_number, parse_constant=_no_number)
    return rows


def _parsed(text: bytes) -> Any:
    """A JSON value without fractions."""
    return json.loads(
        str(text, "utf-8"), object_pairs_hook=_unique, parse_float=_no_number, parse_constant=_no_number, parse_int=_whole
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands twice")
    return made


def _no_number(text: str) -> object:
    raise ValueError(f"only whole numbers stand in a manifest, got {text[:40]}")


def _whole(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"expected a number of at most {MOST_DIGITS} digits, got {text[:40]}...")
    return int(text)


# Metadata


def encode_metadata(value: Mapping[str, Any]) -> str:
    """The JSON text of metadata, empty if there is none; TypeError or ValueError if it is not JSON, too deep or too large."""
    if not isinstance(value, Mapping):
        raise TypeError(f"metadata must be a dict with text keys, got a {type(value).__name__}")
    if not value:
        return ""
    text = json.dumps(_plain(value, "metadata", 0), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    size = len(text.encode())
    if size > MAX_METADATA_BYTES:
        raise ValueError(
            f"metadata must have at most {MAX_METADATA_BYTES} bytes as JSON, got {size}: store a file next to the data"
        )
    return text


def decode_metadata(text: str) -> dict[str, Any]:
    """The metadata of a text by :func:`encode_metadata`; ValueError, TypeError or RecursionError if it is not such a text."""
    if not text:
        return {}
    if len(text) > MAX_METADATA_BYTES or len(text.encode()) > MAX_METADATA_BYTES:
        raise ValueError(f"expected at most {MAX_METADATA_BYTES} bytes of metadata, got more")
    value = json.loads(
        text, object_pairs_hook=_unique_metadata, parse_int=_whole_metadata, parse_float=_real, parse_constant=_refuse
    )
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object as metadata, got a {type(value).__name__}")
    plain: dict[str, Any] = _plain(value, "metadata", 0)
    return plain


def fits(value: Mapping[str, Any]) -> bool:
    """Whether a store can carry this metadata."""
    try:
        encode_metadata(value)
    except (TypeError, ValueError):
        return False
    return True


def _plain(value: Any, where: str, depth: int) -> Any:
    """A copy in dicts, lists, texts, numbers, booleans and None."""
    if depth > MAX_METADATA_DEPTH:
        raise ValueError(f"metadata must be nested at most {MAX_METADATA_DEPTH} deep, got more")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{where} must have texts as keys, got {key!r}")
        return {key: _plain(inner, f"{where}[{key[:40]!r}]", depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, f"{where}[{place}]", depth + 1) for place, inner in enumerate(value)]
    if isinstance(value, str):
        value.encode()  # no surrogates
    elif isinstance(value, int) and not isinstance(value, bool):
        if abs(value) >= 10**MAX_METADATA_DIGITS:
            raise ValueError(f"{where} must have at most {MAX_METADATA_DIGITS} digits, got more")
    elif value is not None and not isinstance(value, bool | float):
        raise TypeError(
            f"{where} must be a JSON value (dict, list, text, number, True, False or None), got a {type(value).__name__}"
        )
    return value


def _unique_metadata(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key of the metadata stands twice")
    return made


def _whole_metadata(text: str) -> int:
    if len(text) > MAX_METADATA_DIGITS + 1:
        raise ValueError(f"a number of the metadata has more than {MAX_METADATA_DIGITS} digits")
    return int(text)


def _real(text: str) -> float:
    value = float(text) if len(text) <= MAX_METADATA_DIGITS else float("inf")
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"a number of the metadata is too large or has more than {MAX_METADATA_DIGITS} characters")
    return value


def _refuse(text: str) -> object:
    raise ValueError(f"expected numbers in the metadata, got {text[:40]}")
