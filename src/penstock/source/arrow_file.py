"""Arrow IPC files, as files or streams: schema and record batches, with errors that name the file."""

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from penstock.errors import (
    CorruptError,
    FormatError,
    MissingError,
    PenstockError,
    SizeOverflowError,
    TruncatedError,
    UnsupportedVersionError,
)
from penstock.source.arrow_type import Leaf, null_counts, storage_type
from penstock.source.limit import one_line
from penstock.source.optional import need
from penstock.source.paths import expand, file_size
from penstock.system import read_error, reading

__all__ = [
    "SUFFIXES",
    "find_nulls",
    "is_compressed",
    "is_stream",
    "mapped_bytes",
    "measure_batches",
    "read_batch",
    "read_batches",
    "read_row_counts",
    "read_schema",
    "translated",
]

SUFFIXES = (".arrow", ".feather")
MAGIC = b"ARROW1"
MESSAGE = b"\xff\xff\xff\xff"
END_OF_STREAM = MESSAGE + b"\0\0\0\0"
Table = tuple[memoryview, int]
"""A FlatBuffers table: the bytes, and where in them it begins."""

DICTIONARY_BATCH, RECORD_BATCH = 2, 3
ReadRange = Callable[[int, int], bytes | memoryview]

CUT = ("Expected to read", "Expected to be able to read", "Corrupted metadata length", "too small", "Unexpected end of stream")


@dataclass(frozen=True)
class _Message:
    """A record batch, as a dictionary or by itself, and where in the file its buffers begin."""

    is_dictionary: bool
    batch: Table
    body: int


def files_of(what: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], suffixes: tuple[str, ...]) -> list[str]:
    """The absolute paths of at least one file."""
    paths = [str(path) for path in expand(what, suffixes)]
    if not paths:
        raise ValueError("expected at least one file, got an empty list")
    return paths


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Errors of Arrow as those of penstock, with the path."""
    pa = need("pyarrow", "arrow")
    try:
        yield
    except PenstockError:
        raise
    except FileNotFoundError as error:
        raise MissingError(f"{path}: there is no such file") from error
    except MemoryError as error:
        raise SizeOverflowError(f"{path}: its sizes need more memory than there is: {one_line(error, 300)}") from error
    except pa.ArrowNotImplementedError as error:
        raise UnsupportedVersionError(f"{path}: pyarrow {pa.__version__} cannot read this: {one_line(error, 300)}") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError, struct.error, IndexError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise read_error(error, path) from error  # of the system, not of the content
        kind = TruncatedError if any(text in str(error) for text in CUT) else CorruptError
        raise kind(f"{path}: {one_line(error, 300)}") from error


def is_stream(path: str) -> bool:
    """Whether a file is in the stream format rather than the file format; an error if it is in neither, or not whole."""
    size = file_size(Path(path))
    with reading(path), open(path, "rb") as file:
        head = file.read(6)
        file.seek(max(0, size - 8))
        tail = file.read(8)
    if head == MAGIC:
        if not tail.endswith(MAGIC) or size < 2 * len(MAGIC):
            raise TruncatedError(f"{path}: expected {MAGIC!r} at the end of an Arrow file, found {tail[-6:]!r}: it was cut")
        return False
    if head.startswith(b"FEA1"):
        raise UnsupportedVersionError(f"{path}: expected Feather version 2, found version 1: write it anew")
    if not head.startswith(MESSAGE):
        raise FormatError(f"{path}: expected an Arrow file beginning with {MAGIC!r} or {MESSAGE!r}, found {head!r}")
    if tail != END_OF_STREAM:
        raise TruncatedError(f"{path}: expected {END_OF_STREAM!r} at the end of an Arrow stream, found {tail!r}: it was cut")
    return True


@contextmanager
def mapped_bytes(path: str) -> Iterator[Any]:
    """The whole file as an Arrow buffer. The file is closed at the end; the map goes when nothing uses it any more."""
    file = need("pyarrow", "arrow").memory_map(path)
    try:
        yield file.read_buffer()
    finally:
        file.close()


def read_schema(stream: bool, data: Any) -> Any:
    """The schema of an Arrow file, given as a buffer or an open Arrow file."""
    return _reader(stream, data).schema


def read_batches(stream: bool, data: Any, columns: Sequence[str] = ()) -> Iterator[Any]:
    """The record batches of an Arrow file, structurally checked.

    Arrow copies batches of which only some columns are wanted, so nothing may be said of that where buffers shall stay in place.
    """
    reader = _reader(stream, data, columns)
    for batch in reader if stream else (reader.get_batch(number) for number in range(reader.num_record_batches)):
        batch.validate()
        yield batch


def read_batch(data: Any, number: int, columns: Sequence[str]) -> Any:
    """One record batch of a file in the file format."""
    batch = _reader(False, data, columns).get_batch(number)
    batch.validate()
    return batch


def is_compressed(stream: bool, data: Any) -> bool:
    """Whether the first record batch is."""
    return next((bool(_member(one.batch, 3)) for one in _messages_in(stream, data) if not one.is_dictionary), False)


def read_row_counts(stream: bool, data: Any) -> list[int]:
    """The records of every record batch, as their messages say. Nothing is decompressed."""
    places = [(one.batch, _member(one.batch, 0)) for one in _messages_in(stream, data) if not one.is_dictionary]
    counts = [_number("<q", table, place) if place else 0 for table, place in places]
    if min(counts, default=0) < 0:
        raise _invalid(f"expected record batches of 0 records or more, found {str(counts)[:100]}")
    return counts


def find_nulls(stream: bool, data: Any, leaves: Mapping[str, Leaf]) -> set[str]:
    """The columns with missing values, as the messages of the record batches say. Nothing is decompressed.

    Values of dictionaries may be null too, in any of the columns that have one.
    """
    pa = need("pyarrow", "arrow")
    nodes, found = null_counts(read_schema(stream, data), leaves), set[str]()
    for message in _messages_in(stream, data):
        nulls = _null_counts(message.batch)
        if message.is_dictionary:
            dictionaries = leaves.items() if any(nulls) else ()
            found |= {name for name, leaf in dictionaries if pa.types.is_dictionary(storage_type(leaf.type))}
        else:
            found |= {name for name, numbers in nodes.items() if any(number >= len(nulls) or nulls[number] for number in numbers)}
    return found


def measure_batches(path: str, number: int | None) -> tuple[int, int]:
    """What a record batch of a file and its dictionaries decode to, or all of a stream (None), and what that has in the file."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        read = partial(_read_file, file.fileno())
        messages = _messages_of_stream(read, size) if number is None else _messages_of_file(read, size, number)
        sizes = [_decoded_bytes(read, size, one) for one in messages]
    return sum(decoded for decoded, _ in sizes), min(size, sum(stored for _, stored in sizes))


def _read_file(descriptor: int, start: int, stop: int) -> bytes:
    return os.pread(descriptor, stop - start, start)


def _messages_in(stream: bool, data: Any) -> Iterator[_Message]:
    """The messages of a file in memory."""
    whole = memoryview(data).cast("B")
    return (_messages_of_stream if stream else _messages_of_file)(lambda start, stop: whole[start:stop], len(whole))


def _null_counts(table: Table) -> list[int]:
    """Of every node of a record batch."""
    start, count = _vector(table, 1)
    return [_number("<q", table, start + 16 * number + 8) for number in range(count)]


def _reader(stream: bool, data: Any, columns: Sequence[str] = ()) -> Any:
    """A reader of columns, or of all if none are named."""
    ipc = need("pyarrow", "arrow").ipc
    opener = ipc.open_stream if stream else ipc.open_file
    options = ipc.IpcReadOptions(use_threads=False)
    reader = opener(data, options=options)
    if not columns:
        return reader
    options.included_fields = sorted({reader.schema.get_field_index(name) for name in columns})
    if stream:
        data.seek(0)
    return opener(data, options=options)


# A message is FFFFFFFF (left out by old writers), the size of its metadata, the metadata, and its body. In a stream messages follow
# each other; the footer of a file says where they are. Metadata and footer are FlatBuffers tables:
#
#     Footer           2 dictionaries  3 record batches: where each message begins, the size of its metadata, that of its body
#     Message          1 kind  2 the table of the record batch, or of the dictionary  3 size of the body
#     DictionaryBatch  1 the table of a record batch
#     RecordBatch      0 records  1 length and nulls of every node (a column, and whatever is in it)
#                      2 offset in the body and length of every buffer  3 there if they are compressed: the first 8 bytes of each
#                      buffer are its size then, or -1 if it is not compressed


def _messages_of_stream(read: ReadRange, size: int) -> Iterator[_Message]:
    place = 0
    while place < size and (found := _metadata(read, place, size)) is not None:
        table, body = found
        yield from _batches(table, body)
        at = _member(table, 3)
        length = _number("<q", table, at) if at else 0
        if not 0 <= length <= size - body:
            raise _invalid(f"Expected to read {length} bytes for a message at {place}")
        place = body + length


def _messages_of_file(read: ReadRange, size: int, wanted: int | None = None) -> Iterator[_Message]:
    """The dictionaries and the record batches, or only one of these."""
    length = struct.unpack("<i", read(size - 10, size - 6))[0]
    if not 0 < length <= size - 10:
        raise _invalid(f"expected a footer within the file, found one of {length} bytes")
    footer = _root(read(size - 10 - length, size - 10))
    for which in (2, 3):
        place = _member(footer, which)
        start = place + _number("<I", footer, place) if place else 0
        every = range(_number("<I", footer, start) if place else 0)
        for number in every if which == 2 or wanted is None else every[wanted : wanted + 1]:
            offset, metadata = (_number(form, footer, start + 4 + 24 * number + at) for form, at in (("<q", 0), ("<i", 8)))
            found = _metadata(read, offset, size) if 0 <= offset < size else None
            if found is None or not 0 <= offset + metadata <= size:
                raise _invalid(f"expected a message at {offset}, found none")
            yield from _batches(found[0], offset + metadata)


def _metadata(read: ReadRange, place: int, size: int) -> tuple[Table, int] | None:
    """The table of a message, and where its body begins; None at the end of a stream."""
    head = read(place, min(size, place + 8))
    first = 8 if head[:4] == MESSAGE else 4
    (length,) = struct.unpack_from("<i", head, first - 4)
    if length == 0:
        return None
    if not 0 < length <= size - place - first:
        raise _invalid(f"Expected to read {length} metadata bytes at {place}")
    return _root(read(place + first, place + first + length)), place + first + length


def _batches(message: Table, body: int) -> Iterator[_Message]:
    kind = _member(message, 1)
    code = message[0][message[1] + kind] if kind else 0
    if code == DICTIONARY_BATCH:
        yield _Message(True, _inner(_inner(message, 2), 1), body)
    elif code == RECORD_BATCH:
        yield _Message(False, _inner(message, 2), body)


def _decoded_bytes(read: ReadRange, size: int, message: _Message) -> tuple[int, int]:
    """What the buffers of a record batch are when they are decompressed, and what they have in the file."""
    start, count = _vector(message.batch, 2)
    numbers = struct.unpack_from(f"<{2 * count}q", message.batch[0], message.batch[1] + start)
    places = list(zip(numbers[::2], numbers[1::2], strict=True))
    stored = sum(length for _, length in places)
    if any(offset < 0 or length < 0 or message.body + offset + length > size for offset, length in places):
        raise _invalid("expected buffers within the file, found others")
    if not _member(message.batch, 3):
        return stored, stored
    sizes = [struct.unpack("<q", read(at, at + 8))[0] for at in (message.body + offset for offset, length in places if length > 8)]
    if min(sizes, default=0) < -1:
        raise _invalid(f"expected compressed buffers of 0 bytes or more, found one of {min(sizes)}")
    return stored + sum(max(0, one) for one in sizes), stored


def _invalid(text: str) -> Exception:
    error: Exception = need("pyarrow", "arrow").ArrowInvalid(text)
    return error


def _root(data: bytes | memoryview) -> Table:
    table = memoryview(data), 0
    return table[0], _number("<I", table, 0)


def _vector(table: Table, which: int) -> tuple[int, int]:
    """Where the elements of a vector begin, counted from the beginning of the table, and how many there are."""
    place = _member(table, which)
    if not place:
        return 0, 0
    start = place + _number("<I", table, place)
    return start + 4, _number("<I", table, start)


def _inner(table: Table, which: int) -> Table:
    """The table that a field of a table is."""
    place = _member(table, which)
    return table[0], table[1] + place + _number("<I", table, place)


def _member(table: Table, which: int) -> int:
    """Where a field of a table is, counted from its beginning; 0 if it is not there."""
    fields = -_number("<i", table, 0)
    known = which < _number("<H", table, fields) // 2 - 2
    return _number("<H", table, fields + 4 + 2 * which) if known else 0


def _number(form: str, table: Table, place: int) -> int:
    return int(struct.unpack_from(form, table[0], table[1] + place)[0])
