"""Arrow IPC files, as files or streams: schema and record batches, with errors that name the file."""

import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
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
from penstock.source.optional import need
from penstock.source.paths import expand, file_size
from penstock.system import read_error, reading

__all__ = [
    "SUFFIXES",
    "find_nulls",
    "is_compressed",
    "is_stream",
    "mapped_bytes",
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

CUT = ("Expected to read", "Expected to be able to read", "Corrupted metadata length", "too small", "Unexpected end of stream")


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
        raise SizeOverflowError(f"{path}: its sizes need more memory than there is: {_line(error)}") from error
    except pa.ArrowNotImplementedError as error:
        raise UnsupportedVersionError(f"{path}: pyarrow {pa.__version__} cannot read this: {_line(error)}") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError, struct.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise read_error(error, path) from error  # of the system, not of the content
        kind = TruncatedError if any(text in str(error) for text in CUT) else CorruptError
        raise kind(f"{path}: {_line(error)}") from error


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
    return next((bool(_member(table, 3)) for table in _batch_tables(stream, data)), False)


def read_row_counts(stream: bool, data: Any) -> list[int]:
    """The records of every record batch, as their messages say. Nothing is decompressed."""
    pa = need("pyarrow", "arrow")
    wanted = None if stream else _reader(False, data).num_record_batches
    places = [(table, _member(table, 0)) for table in islice(_batch_tables(stream, data), wanted)]
    counts = [_number("<q", table, place) if place else 0 for table, place in places]
    if (wanted is not None and len(counts) != wanted) or min(counts, default=0) < 0:
        raise pa.ArrowInvalid(f"expected {wanted} record batches of 0 records or more, found {str(counts)[:100]}")
    return counts


def find_nulls(stream: bool, data: Any, leaves: Mapping[str, Leaf]) -> set[str]:
    """The columns with missing values, as the messages of the record batches say. Nothing is decompressed.

    Values of dictionaries may be null too, in any of the columns that have one.
    """
    pa, schema = need("pyarrow", "arrow"), read_schema(stream, data)
    wanted = None if stream else _reader(False, data).num_record_batches
    nodes, found = null_counts(schema, leaves), set[str]()
    for table in islice(_batch_tables(stream, data), wanted):
        nulls = _null_counts(table)
        found |= {name for name, numbers in nodes.items() if any(number >= len(nulls) or nulls[number] for number in numbers)}
    if any(any(_null_counts(table)) for table in _dictionary_tables(stream, data)):
        found |= {name for name, leaf in leaves.items() if pa.types.is_dictionary(storage_type(leaf.type))}
    return found


def _null_counts(table: Table) -> list[int]:
    """Of every node of a record batch."""
    place = _member(table, 1)
    if not place:
        return []
    start = place + _number("<I", table, place)
    count = _number("<I", table, start)
    return [_number("<q", table, start + 4 + 16 * number + 8) for number in range(count)]


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


# The message of a record batch is a FlatBuffers table, whose field 2 is the table of the batch; of that, field 0 is the number of
# records, field 1 has the length and the number of nulls of every node (a column, and whatever is in it), and field 3 is there if
# it is compressed. Arrow has checked that tables are sound when it has read a message.


def _batch_tables(stream: bool, data: Any) -> Iterator[Table]:
    return _tables(stream, data, "record batch")


def _dictionary_tables(stream: bool, data: Any) -> Iterator[Table]:
    """The values of dictionaries: field 1 of their table is the table of a record batch."""
    return (_inner(table, 1) for table in _tables(stream, data, "dictionary"))


def _tables(stream: bool, data: Any, kind: str) -> Iterator[Table]:
    pa = need("pyarrow", "arrow")
    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(data if stream else data.slice(len(MAGIC) + 2))):
        if message.type == kind:
            table = memoryview(message.metadata), 0
            yield _inner((table[0], _number("<I", table, 0)), 2)


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


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
