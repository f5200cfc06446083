"""Manifest: one generation of a data set. JSON on one line, then the crc32c of that line in hexadecimal on a second.

Everything in it is hostile until checked: sizes, names and numbers are compared with what they can be before they are used.
"""

import gc
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt

from penstock import _core
from penstock.argument import MAX_LENGTH, whole_number
from penstock.errors import CorruptError, UnsupportedVersionError
from penstock.schema import LARGE_RECORD_BYTES, Field, field_from_json, field_to_json, is_plain_name
from penstock.store.format import FORMAT_VERSION, IDENTITY, MAX_MANIFEST_BYTES, chunk_file, redirect_file
from penstock.store.manifest_json import Rows, decode_metadata, read_document

__all__ = ["ChunkEntry", "Entries", "Manifest", "RedirectEntry", "SegmentEntry", "decode_manifest", "encode_manifest", "values_of"]

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
        raise ValueError("it does not say it is one of penstock's")
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
        raise ValueError("a chunk number stands twice")
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
    if not isinstance(rows, Rows):
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
