"""Manifest: one generation of a data set. JSON on one line, then the crc32c of that line in hexadecimal on a second.

Everything in it is hostile until checked: sizes, names and numbers are compared with what they can be before they are used.

The JSON is read in bounded memory: 64 MiB of brackets would be 1.7 GB of lists. Values are found by their brackets and counted
before they are parsed. The rows of the three tables, of which a large store has millions, are parsed a slice at a time.

Metadata is a small JSON object that a data set carries: names of classes, tokenizer, origin. In a manifest it is a JSON text; its
size, depth and numbers are bounded.
"""

import gc
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt

from penstock.argument import MAX_LENGTH, whole_number
from penstock.errors import CorruptError, UnsupportedVersionError
from penstock.native import _core
from penstock.schema import LARGE_RECORD_BYTES, Field, field_from_json, field_to_json, is_plain_name
from penstock.store.storage import FORMAT_VERSION, IDENTITY, MAX_MANIFEST_BYTES, chunk_file, redirect_file

__all__ = [
    "MAX_METADATA_BYTES",
    "MAX_METADATA_DEPTH",
    "MOST_DEPTH",
    "MOST_VALUES",
    "ChunkEntry",
    "Entries",
    "Manifest",
    "RedirectEntry",
    "SegmentEntry",
    "decode_manifest",
    "decode_metadata",
    "encode_manifest",
    "encode_metadata",
    "fits",
    "read_document",
    "values_of",
]

NAMES = "unicode-names"
LARGE = "large-records"
FEATURES = (NAMES, LARGE)
"""What a reader must know to read some stores: field names beyond ASCII, fixed fields with records above 1 GiB."""

_U32 = 2**32 - 1
_IDENTITIES = re.compile(f"({IDENTITY.pattern})*")

Entry = TypeVar("Entry")

AT_ONCE = 4096
"""Entries are made this many at a time while one iterates over them."""


@dataclass(frozen=True, slots=True)
class ChunkEntry:
    """A chunk file: its number in this data set, name, size, rows, crc of its tail, and the bytes of its records decoded."""

    number: int
    writer: str
    serial: int
    size: int
    rows: int
    crc: int
    decoded: int

    @property
    def file(self) -> str:
        """Its name within the store."""
        return chunk_file(self.writer, self.serial)


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """Records first_id, ... (count of them) are rows first_row, ... of a chunk."""

    first_id: int
    count: int
    chunk: int
    first_row: int


@dataclass(frozen=True, slots=True)
class RedirectEntry:
    """A redirect file: its name, size and the crc of all its bytes."""

    writer: str
    serial: int
    size: int
    crc: int

    @property
    def file(self) -> str:
        """Its name within the store."""
        return redirect_file(self.writer, self.serial)


class Entries(Sequence[Entry], Generic[Entry]):
    """The rows of a manifest, kept by column: a petabyte has half a million chunks, and every rank remembers all of them.

    Looks like a tuple of entries, each of which is made when it is read: 100 bytes or fewer instead of 600. Immutable.
    """

    __slots__ = ("_columns", "_make", "_names")

    def __init__(self, make: Callable[..., Entry], columns: Sequence[npt.NDArray[Any]]) -> None:
        """``columns``: 64-bit numbers, or identities as S32."""
        self._make, self._names, self._columns = make, tuple(getattr(make, "__slots__", ())), columns

    def __len__(self) -> int:
        return len(self._columns[0])

    @overload
    def __getitem__(self, key: int) -> Entry: ...

    @overload
    def __getitem__(self, key: slice) -> tuple[Entry, ...]: ...

    def __getitem__(self, key: int | slice) -> Entry | tuple[Entry, ...]:
        if isinstance(key, slice):
            return tuple(self._run([values[key] for values in self._columns]))
        return self._make(*(_plain(values[key])[0] for values in self._columns))

    def __iter__(self) -> Iterator[Entry]:
        for low in range(0, len(self), AT_ONCE):
            yield from self._run([values[low : low + AT_ONCE] for values in self._columns])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def values(self, name: str) -> npt.NDArray[Any]:
        """One value of every entry; identities as bytes."""
        return self._columns[self._names.index(name)]

    def _run(self, columns: Sequence[npt.NDArray[Any]]) -> Iterator[Entry]:
        return map(self._make, *(_plain(values) for values in columns))


def values_of(entries: Sequence[Any], name: str) -> npt.NDArray[Any]:
    """One number of every entry, as an array."""
    if isinstance(entries, Entries):
        return entries.values(name)
    return np.array([getattr(entry, name) for entry in entries], np.int64)


def _plain(values: Any) -> list[Any]:
    """Values, or one of them, as plain Python has them."""
    return list(np.atleast_1d(values.astype("U32") if values.dtype.kind == "S" else values).tolist())


@dataclass(frozen=True)
class Manifest:
    """One generation. ``digest`` is the sha256 of the file: the fingerprint of the data.

    ``fields`` do not say what is nullable: ``declared_nullable`` are the numbers of the fields that were created so,
    ``found_nullable`` those of which some record missed the value so far, None if the manifest does not say. ``metadata`` is a JSON
    text, empty if there is none.
    """

    dataset: str
    generation: int
    parent: str | None
    write_id: str
    length: int
    fields: dict[str, Field]
    numbers: dict[str, int]
    chunk_bytes: int
    chunk_records: int
    next_chunk: int
    chunks: Sequence[ChunkEntry]
    segments: Sequence[SegmentEntry]
    redirects: tuple[RedirectEntry, ...]
    declared_nullable: frozenset[int] = frozenset()
    found_nullable: frozenset[int] | None = None
    metadata: str = ""
    digest: str = ""


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of the file."""
    document: dict[str, Any] = {
        "format": "penstock",
        "version": FORMAT_VERSION,
        "required": _required(manifest.fields),
        "optional": [],
        "dataset": manifest.dataset,
        "generation": manifest.generation,
        "parent": manifest.parent,
        "write_id": manifest.write_id,
        "length": manifest.length,
        "fields": [field_to_json(name, manifest.numbers[name], field) for name, field in manifest.fields.items()],
        "chunk_bytes": manifest.chunk_bytes,
        "chunk_records": manifest.chunk_records,
        "next_chunk": manifest.next_chunk,
        "chunks": [[c.number, c.writer, c.serial, c.size, c.rows, c.crc, c.decoded] for c in manifest.chunks],
        "segments": [[s.first_id, s.count, s.chunk, s.first_row] for s in manifest.segments],
        "redirects": [[r.writer, r.serial, r.size, r.crc] for r in manifest.redirects],
    }
    if manifest.found_nullable is not None:
        document["nullable"] = {"declared": sorted(manifest.declared_nullable), "found": sorted(manifest.found_nullable)}
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=True)
    if manifest.metadata:  # a text, with its colons escaped: readers count those, and version 1 refuses fractions
        inner = json.dumps(manifest.metadata, ensure_ascii=True).replace(":", "\\u003a")
        text = f'{text[:-1]},"metadata":{inner}}}'
    line = text.encode()
    return line + b"\n%08x\n" % _core.crc32c(np.frombuffer(line, np.uint8))


def _required(fields: dict[str, Field]) -> list[str]:
    """The features without which a reader cannot make sense of the fields."""
    names = [NAMES] if not all(map(is_plain_name, fields)) else []
    large = [LARGE] if any(field.is_fixed and field.stride > LARGE_RECORD_BYTES for field in fields.values()) else []
    return [*names, *large]


_KEYS = {
    "format", "version", "required", "optional", "dataset", "generation", "parent", "write_id", "length", "fields",
    "chunk_bytes", "chunk_records", "next_chunk", "chunks", "segments", "redirects",
}  # fmt: skip


def decode_manifest(data: bytes, where: str) -> Manifest:
    """The manifest in a file's bytes; CorruptError or UnsupportedVersionError, naming ``where``, if they are anything else."""
    try:
        with _without_collections():
            return _decode(data)
    except UnsupportedVersionError as error:
        raise UnsupportedVersionError(f"{where}: {_printable(error)}") from None
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, OverflowError) as error:
        raise CorruptError(f"{where}: not a manifest: {_printable(error)}") from error


@contextmanager
def _without_collections() -> Iterator[None]:
    """Hold the garbage collector back: it would go through the rows of a large manifest again and again, for 40 % of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _printable(error: BaseException) -> str:
    """An error's text, which may repeat what a stranger wrote: short, and without control characters."""
    return ascii(str(error) or type(error).__name__)[1:-1][:300]


def _decode(data: bytes) -> Manifest:
    if len(data) > MAX_MANIFEST_BYTES:
        raise ValueError(f"expected at most {MAX_MANIFEST_BYTES} bytes, found {len(data)}")
    line = memoryview(data)[:-10]  # not copied before it is known to be ours
    if not re.fullmatch(rb"\n[0-9a-f]{8}\n", data[-10:]) or _core.crc32c(np.frombuffer(line, np.uint8)) != int(data[-9:], 16):
        raise ValueError("the crc in the last line does not match")
    if data.count(b":") > 100_000:  # a real one has a dozen per field; a million keys would take seconds to read
        raise ValueError("it has more keys than a manifest can have")
    document = read_document(data, len(line))
    if document.get("format") != "penstock":
        raise ValueError("it is not a manifest of penstock")
    required = document.get("required")
    is_known = isinstance(required, list) and all(feature in FEATURES for feature in required)
    if type(document.get("version")) is not int or document["version"] != FORMAT_VERSION or not is_known:
        raise UnsupportedVersionError(
            f"expected format version {FORMAT_VERSION} and no required features but {', '.join(FEATURES)}, found version "
            f"{str(document.get('version'))[:40]} and {str(required)[:200]}: use a newer penstock"
        )
    if set(document) - {"optional"} < _KEYS - {"optional"}:
        raise ValueError(f"keys are missing: {sorted(_KEYS - set(document))}")
    return _checked(document, hashlib.sha256(data).hexdigest())


def _checked(d: dict[str, Any], digest: str) -> Manifest:
    named = [field_from_json(value) for value in _list(d["fields"], 4096)]
    fields = {name: field for name, _, field in named}
    numbers = {name: number for name, number, _ in named}
    if len(fields) != len(named) or len(set(numbers.values())) != len(named) or not named:
        raise ValueError("field names and numbers must be different, and there must be one")
    if not set(d["required"]).issuperset(_required(fields)):
        raise ValueError(f"expected the required features {_required(fields)} for these fields, found {d['required']}")
    next_chunk = whole_number("next_chunk", d["next_chunk"], most=_U32)
    chunks = Entries(ChunkEntry, _table(d["chunks"], (next_chunk - 1, None, _U32, MAX_LENGTH, _U32, _U32, MAX_LENGTH)))
    if np.unique(chunks.values("number")).size != len(chunks):
        raise ValueError("a chunk number occurs twice")
    declared, found = _nullable(d.get("nullable"), frozenset(numbers.values()))
    return Manifest(
        dataset=_identity(d["dataset"]),
        generation=whole_number("generation", d["generation"], least=1),
        parent=None if d["parent"] is None else _text(d["parent"], r"[0-9a-f]{64}"),
        write_id=_identity(d["write_id"]),
        length=whole_number("length", d["length"], most=MAX_LENGTH),
        fields=fields,
        numbers=numbers,
        chunk_bytes=whole_number("chunk_bytes", d["chunk_bytes"], least=1),
        chunk_records=whole_number("chunk_records", d["chunk_records"], least=1, most=_U32),
        next_chunk=next_chunk,
        chunks=chunks,
        segments=Entries(SegmentEntry, _table(d["segments"], (MAX_LENGTH, MAX_LENGTH, _U32, _U32), _in_order())),
        redirects=tuple(Entries(RedirectEntry, _table(d["redirects"], (None, _U32, MAX_LENGTH, _U32), _few(1024)))),
        declared_nullable=declared,
        found_nullable=found,
        metadata=_metadata(d.get("metadata", "")),
        digest=digest,
    )


def _nullable(value: object, known: frozenset[int]) -> tuple[frozenset[int], frozenset[int] | None]:
    """The numbers of the fields that were declared nullable, and of those in which a value was missing."""
    if value is None:
        return frozenset(), None
    if not isinstance(value, dict) or set(value) != {"declared", "found"}:
        raise ValueError("expected the declared and the found nullable fields")
    sets = []
    for numbers in (_list(value["declared"], 4096), _list(value["found"], 4096)):
        if any(type(number) is not int for number in numbers) or len(set(numbers)) != len(numbers) or not known.issuperset(numbers):
            raise ValueError("expected different numbers of fields as nullable")
        sets.append(frozenset(numbers))
    return sets[0], sets[1]


def _metadata(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected metadata as a text, got a {type(value).__name__}")
    decode_metadata(value)
    return value


Check = Callable[[Sequence[npt.NDArray[Any]]], None]


def _table(rows: object, limits: Sequence[int | None], check: Check = lambda _: None) -> list[npt.NDArray[Any]]:
    """The columns of rows of numbers in [0, limit] (or identities, where the limit is None); ``check`` sees each slice of them."""
    if not isinstance(rows, _Rows):
        raise ValueError(f"expected a table, got a {type(rows).__name__}")
    parts: list[list[npt.NDArray[Any]]] = [[np.empty(0, "S32" if limit is None else np.int64)] for limit in limits]
    for some in rows.slices():
        columns = _columns(some, limits)
        check(columns)
        for part, values in zip(parts, columns, strict=True):
            part.append(values)
    return [np.concatenate(parts.pop(0)) for _ in limits]  # a column at a time: there is little left when the last one is made


def _in_order() -> Check:
    """A check of segments: each begins where the one before it ends, the first at 0."""
    end = 0

    def check(columns: Sequence[npt.NDArray[Any]]) -> None:
        nonlocal end
        firsts, counts = columns[0], columns[1]
        ends = np.uint64(end) + np.cumsum(counts.astype(np.uint64))  # a sum beyond 2^64 is a first id that is never met
        if not np.array_equal(np.concatenate([[np.uint64(end)], ends[:-1]]), firsts.astype(np.uint64)) or counts.min() < 1:
            raise ValueError("the segments do not cover the records one after the other")
        end = int(ends[-1])

    return check


def _few(most: int) -> Check:
    """A check of a table that has few rows."""
    left = most

    def check(columns: Sequence[npt.NDArray[Any]]) -> None:
        nonlocal left
        left -= len(columns[0])
        if left < 0:
            raise ValueError(f"expected at most {most} rows")

    return check


def _columns(table: list[Any], limits: Sequence[int | None]) -> list[npt.NDArray[Any]]:
    """Rows by column. A large store has a million: checked a column at a time, which takes a fifth of checking them one by one."""
    if set(map(type, table)) != {list} or set(map(len, table)) != {len(limits)}:
        raise ValueError(f"expected rows of {len(limits)} values")
    columns = []
    for column, limit in zip(zip(*table, strict=True), limits, strict=True):
        if limit is None:
            _check_identities(column)
        elif set(map(type, column)) != {int} or min(column) < 0 or max(column) > limit:
            raise ValueError(f"expected whole numbers in [0, {limit}]")
        columns.append(np.array(column, "S32" if limit is None else np.int64))
    return columns


def _check_identities(column: Sequence[object]) -> None:
    texts = [value for value in column if isinstance(value, str)]
    alike = len(texts) == len(column) and set(map(len, texts)) == {32}
    if not alike or not _IDENTITIES.fullmatch("".join(texts)):
        for value in column:
            _identity(value)


def _list(value: object, most: int = 2**31) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"expected a list of at most {most}, got a {type(value).__name__}")
    return value


def _text(value: object, pattern: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise ValueError(f"expected {pattern}, got {value[:100]!r}" if isinstance(value, str) else f"expected a text of {pattern}")
    return value


def _identity(value: object) -> str:
    return _text(value, IDENTITY.pattern)


# JSON in bounded memory

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
class _Rows:
    """The rows of a table, not parsed yet."""

    data: bytes
    start: int
    stop: int

    def slices(self) -> Iterator[list[Any]]:
        """The rows, some at a time; ValueError where they are no JSON, or one is longer than any can be."""
        place = self.start
        while place < self.stop:
            edge = self._edge(place)
            text = str(b"[" + self.data[place:edge] + b"]", "ascii")
            # Their reader knows how large a number may be; checking here would take half the time.
            yield json.loads(text, parse_float=_no_number, parse_constant=_no_number)
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
    """The object in the first ``stop`` bytes; its tables as ``_Rows``. ValueError if it is anything else, or too large."""
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
            raise ValueError("a key occurs twice")
        if name in TABLES and data[key.end() : key.end() + 1] == b"[":
            document[name], end = _find_rows(data, key.end(), stop)
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


def _find_rows(data: bytes, start: int, stop: int) -> tuple[_Rows, int]:
    empty = _EMPTY.match(data, start, stop)
    if empty is not None:
        return _Rows(data, start, start), empty.end()
    last = _LAST_ROW.search(data, start, stop)
    if last is None:
        raise ValueError(f"expected rows at byte {start}")
    return _Rows(data, start + 1, last.start() + 1), last.end()


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


def _parsed(text: bytes) -> Any:
    return json.loads(
        str(text, "utf-8"), object_pairs_hook=_unique, parse_float=_no_number, parse_constant=_no_number, parse_int=_whole
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key occurs twice")
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
    text = json.dumps(_copied(value, "metadata", 0), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
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
    value = json.loads(text, object_pairs_hook=_unique, parse_int=_whole_metadata, parse_float=_real, parse_constant=_refuse)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object as metadata, got a {type(value).__name__}")
    plain: dict[str, Any] = _copied(value, "metadata", 0)
    return plain


def fits(value: Mapping[str, Any]) -> bool:
    """Whether a store can carry this metadata."""
    try:
        encode_metadata(value)
    except (TypeError, ValueError):
        return False
    return True


def _copied(value: Any, where: str, depth: int) -> Any:
    """A copy in dicts, lists, texts, numbers, booleans and None."""
    if depth > MAX_METADATA_DEPTH:
        raise ValueError(f"metadata must be nested at most {MAX_METADATA_DEPTH} deep, got more")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{where} must have texts as keys, got {key!r}")
        return {key: _copied(inner, f"{where}[{key[:40]!r}]", depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(inner, f"{where}[{place}]", depth + 1) for place, inner in enumerate(value)]
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
