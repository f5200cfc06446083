"""Arrow IPC files: their types as fields (which column becomes what, under which name), and their messages."""

import math
import os
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from penstock.argument import IntArray
from penstock.errors import (
    CorruptError,
    FormatError,
    MissingError,
    PenstockError,
    SchemaMismatchError,
    SizeOverflowError,
    TruncatedError,
    UnsupportedTypeError,
    UnsupportedVersionError,
)
from penstock.formats.files import expand, file_size, one_line
from penstock.process import need
from penstock.schema import Field, Schema
from penstock.system import read_error, reading

__all__ = [
    "SUFFIXES",
    "ArrowField",
    "Fields",
    "choose",
    "expansion",
    "find_nulls",
    "is_compressed",
    "is_stream",
    "is_view",
    "json_type",
    "mapped_bytes",
    "may_be_null",
    "measure_batches",
    "need_agreement",
    "null_counts",
    "plain",
    "plain_fields",
    "read_batch",
    "read_batches",
    "read_row_counts",
    "read_schema",
    "refitted",
    "storage",
    "storage_type",
    "translated",
    "view_lengths",
    "with_nullable",
]

Fields = Sequence[str] | Mapping[str, str]
"""Names of columns, or new names with the names of the columns they stand for."""

SUFFIXES = (".arrow", ".feather")
MAGIC = b"ARROW1"
MESSAGE = b"\xff\xff\xff\xff"
END_OF_STREAM = MESSAGE + b"\0\0\0\0"
Table = tuple[memoryview, int]
"""A FlatBuffers table: the bytes, and where in them it begins."""

DICTIONARY_BATCH, RECORD_BATCH = 2, 3
ReadRange = Callable[[int, int], bytes | memoryview]

CUT = (
    "Expected to read",
    "Expected to be able to read",
    "Corrupted metadata length",
    "too small",
    "Unexpected end of stream",
    "Truncated compressed stream",
)


# Types as fields


@dataclass(frozen=True)
class ArrowField:
    """One field: where it is in a table, its Arrow type, and what it becomes."""

    path: tuple[str, ...]
    type: Any
    field: Field

    @property
    def is_json(self) -> bool:
        """Whether the field holds JSON texts, of values that no field holds as they are."""
        return _plain_field(self.type) is None


def plain_fields(fields: Fields | None) -> Fields | None:
    """What the user gave, as a dict or a list that can be pickled."""
    if isinstance(fields, str):
        raise TypeError(f"fields must be a list of names or a dict of new and old ones, got {fields!r}")
    return fields if fields is None else dict(fields) if isinstance(fields, Mapping) else list(fields)


def renamed(where: object, there: Collection[str], fields: Fields | None, kind: str) -> dict[str, str]:
    """What is wanted of the things that are there, new names with old ones. KeyError for a thing that is not there."""
    wanted = dict(fields) if isinstance(fields, Mapping) else {name: name for name in (there if fields is None else fields)}
    missing = [old for old in wanted.values() if old not in there]
    if missing:
        raise KeyError(f"{where}: there is no {kind} {missing[0]!r}; there are {ascii(list(there))[:500]}")
    if fields is not None and len(wanted) < len(fields):
        raise ValueError(f"fields must have every name once, got {list(fields)}")
    return wanted


def choose(schema: Any, fields: Fields | None, where: str) -> dict[str, ArrowField]:
    """The wanted columns of an Arrow schema by the names of their fields. Members of structs are columns called ``a.b``.

    The name of a struct stands for all its members. Columns that are not wanted may have any type.
    """
    there: dict[str, list[tuple[tuple[str, ...], Any]]] = {}
    for path, kind in _columns(schema, ()):
        there.setdefault(".".join(path), []).append((path, kind))
    chosen: dict[str, ArrowField] = {}
    for name, old in _wanted(list(there), fields, where):
        path, kind = there[old][0]
        if len(there[old]) > 1 or schema.names.count(path[0]) > 1:
            raise SchemaMismatchError(f"{where}: expected one column {old!r}, found several; choose the others: fields=[...]")
        if name in chosen:
            raise ValueError(f"fields must have every name once, got {name!r} twice")
        chosen[name] = ArrowField(path, kind, _field_or_error(old, kind, where))
        try:
            Schema.make({name: chosen[name].field})
        except ValueError as error:
            raise SchemaMismatchError(
                f"{where}: {error}; rename the column: fields={{'new_name': {one_line(repr(old), 100)}, ...}}"
            ) from error
    if not chosen:
        raise SchemaMismatchError(f"{where}: expected at least one column, found none")
    return chosen


def need_agreement(
    first: Mapping[str, ArrowField], other: Mapping[str, ArrowField], paths: tuple[str, str], *, exact: bool
) -> None:
    """SchemaMismatchError that shows the difference, unless two files have the same fields; ``exact``: of the same Arrow types."""
    if list(first) != list(other):
        raise SchemaMismatchError(f"{paths[1]}: expected the fields {list(first)} as in {paths[0]}, found {list(other)}")
    for name, leaf in first.items():
        if (
            leaf.field.with_nullable(False) != other[name].field.with_nullable(False)
            or (exact and leaf.type != other[name].type)
            or leaf.is_json != other[name].is_json
        ):
            raise SchemaMismatchError(
                f"{paths[1]}: expected {_shown(leaf.type)} in column {name!r} as in {paths[0]}, found {_shown(other[name].type)}"
            )


def refitted(leaf: ArrowField, column: Any, where: str) -> ArrowField:
    """The leaf for a column as a file has it: its type may differ from that in other files, what it becomes may not."""
    for member in leaf.path[1:]:
        column = storage_type(column).field(member).type
    fitting = ArrowField(leaf.path, column, leaf.field)
    if _field(column) != leaf.field.with_nullable(False) or fitting.is_json != leaf.is_json:
        raise SchemaMismatchError(
            f"{where}: expected {_shown(leaf.type)} in column {'.'.join(leaf.path)!r}, found {_shown(column)}"
        )
    return fitting


def with_nullable(leaves: Mapping[str, ArrowField], nullable: Collection[str]) -> dict[str, ArrowField]:
    """The same leaves, of which those named are nullable."""
    return {name: replace(leaf, field=leaf.field.with_nullable(name in nullable)) for name, leaf in leaves.items()}


def may_be_null(schema: Any, leaf: ArrowField) -> bool:
    """Whether an Arrow schema allows nulls in a column, or in a struct above it. Most do, whatever is in the data."""
    members = [schema.field(leaf.path[0])]
    for name in leaf.path[1:]:
        members.append(storage_type(members[-1].type).field(name))
    return any(member.nullable for member in members)


def null_counts(schema: Any, leaves: Mapping[str, ArrowField]) -> dict[str, list[int]]:
    """The numbers of the nodes of an Arrow record batch that say how many nulls a column has, and the structs above it."""
    found = {}
    for name, leaf in leaves.items():
        parent, first, nodes = schema, 0, list[int]()
        for depth, member in enumerate(leaf.path):
            place = parent.get_field_index(member)
            first += sum(_num_nodes(parent.field(number).type) for number in range(place)) + (depth > 0)
            nodes.append(first)
            parent = storage_type(parent.field(place).type)
        found[name] = nodes
    return found


def _num_nodes(kind: Any) -> int:
    """Nodes of a column of a type: one, and those of the types in it; dictionaries are elsewhere."""
    inner = storage_type(kind)
    if need("pyarrow", "arrow").types.is_dictionary(inner):
        return 1
    return 1 + sum(_num_nodes(inner.field(number).type) for number in range(inner.num_fields))


def _shown(kind: Any) -> str:
    """A type for a message: it may have names of any bytes in it."""
    return one_line(kind, 200)


def storage_type(kind: Any) -> Any:
    """The type below extension types."""
    base = need("pyarrow", "arrow").BaseExtensionType
    while isinstance(kind, base):
        kind = kind.storage_type
    return kind


def storage(array: Any) -> Any:
    """An array below its extension types."""
    kind = need("pyarrow", "arrow").ExtensionArray
    while isinstance(array, kind):
        array = array.storage
    return array


def plain(array: Any) -> Any:
    """An array without extension types and views, which are converted."""
    pa = need("pyarrow", "arrow")
    array = storage(array)
    target = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}.get(str(array.type))
    if target is None:
        return array
    array.validate(full=True)  # the conversion trusts its input
    return array.cast(target)


def expansion(leaf: ArrowField, array: Any) -> tuple[int, int]:
    """The bytes that views in a column become when they are converted, and those that they have: many may show the same text."""
    for member in leaf.path[1:]:
        array = storage(array).field(member)
    array = storage(array)
    if not is_view(array.type):
        return 0, 0
    return int(view_lengths(array).sum()), int(array.get_total_buffer_size())


def view_lengths(array: Any) -> IntArray:
    """The lengths of the texts or byte strings that an array of views shows."""
    if len(array) == 0:
        return np.empty(0, np.int64)
    lengths = np.frombuffer(array.buffers()[1], np.int32)[::4][array.offset : array.offset + len(array)]
    return lengths.astype(np.int64).clip(0)


def is_view(kind: Any) -> bool:
    """Whether texts or byte strings of a type are elsewhere, perhaps several in the same place."""
    return str(storage_type(kind)) in ("string_view", "binary_view")


def _columns(parent: Any, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Path and type of everything below a schema or struct that is not a struct itself."""
    types = need("pyarrow", "arrow").types
    for number in range(len(parent) if above == () else parent.num_fields):
        member = parent.field(number)
        kind = storage_type(member.type)
        if types.is_struct(kind):
            yield from _columns(kind, (*above, member.name))
        else:
            yield (*above, member.name), member.type


def _wanted(names: Sequence[str], fields: Fields | None, where: str) -> Iterator[tuple[str, str]]:
    """New and old name of every wanted column."""
    if fields is None:
        yield from ((name, name) for name in names)
        return
    for new, old in fields.items() if isinstance(fields, Mapping) else ((name, name) for name in fields):
        found = [name for name in names if name == old or name.startswith(f"{old}.")]
        if not found:
            raise KeyError(f"{where}: there is no column {old!r}; there are {list(names)}")
        yield from ((f"{new}{name.removeprefix(old)}", name) for name in found)


def _field_or_error(name: str, kind: Any, where: str) -> Field:
    try:
        field = _field(kind)
    except ValueError as error:
        raise SizeOverflowError(f"{where}: column {name!r} of {_shown(kind)}: {error}") from error
    if field is None:
        raise UnsupportedTypeError(
            f"{where}: expected numbers, texts, bytes, or lists of numbers or of what JSON has "
            f"in column {name!r}, found {_shown(kind)}; "
            "choose the other columns: fields=[...]"
        )
    return field


def _field(kind: Any) -> Field | None:
    """What a column becomes; None if it cannot be read."""
    field = _plain_field(kind)
    return Field.text() if field is None and _is_nested(kind) and json_type(kind) is not None else field


def _plain_field(kind: Any) -> Field | None:
    types = need("pyarrow", "arrow").types
    inner = storage_type(kind)
    if types.is_string(inner) or types.is_large_string(inner) or str(inner) == "string_view":
        return Field.text()
    if types.is_binary(inner) or types.is_large_binary(inner) or str(inner) == "binary_view":
        return Field.bytes()
    if types.is_list(inner) or types.is_large_list(inner):
        element = _element(storage_type(inner.value_type))
        return None if element is None else Field.ragged(element)
    if types.is_dictionary(inner):
        return _plain_field(inner.value_type)
    return _fixed(kind)


def _is_nested(kind: Any) -> bool:
    """Whether a column has lists or maps; the members of structs are columns of their own."""
    pa, inner = need("pyarrow", "arrow"), storage_type(kind)
    return _is_list(inner) and not isinstance(kind, pa.FixedShapeTensorType)


def _is_list(kind: Any) -> bool:
    types = need("pyarrow", "arrow").types
    is_plain = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(is_plain or types.is_list_view(kind) or types.is_large_list_view(kind) or types.is_map(kind))


def json_type(kind: Any) -> Any:
    """The Arrow type whose Python values JSON has: times and decimals are texts in it. None if there is none, as for bytes."""
    types = need("pyarrow", "arrow").types
    inner = storage_type(kind)
    if types.is_struct(inner) or _is_list(inner):
        return _json_nested(inner)
    if types.is_dictionary(inner):
        return inner if json_type(inner.value_type) == inner.value_type else None
    if types.is_float16(inner):
        return need("pyarrow", "arrow").float32()
    if types.is_decimal(inner) or types.is_date(inner) or types.is_time(inner) or types.is_timestamp(inner):
        return need("pyarrow", "arrow").string()
    is_text = types.is_string(inner) or types.is_large_string(inner) or str(inner) == "string_view"
    return inner if is_text or types.is_null(inner) or _element(inner) is not None else None


def _json_nested(kind: Any) -> Any:
    pa = need("pyarrow", "arrow")
    members = [kind.field(number) for number in range(kind.num_fields)]
    if pa.types.is_map(kind):
        members = [kind.key_field, kind.item_field]
    kinds = [json_type(member.type) for member in members]
    if None in kinds or len({member.name for member in members}) < len(members):
        return None
    if kinds == [member.type for member in members]:
        return kind
    made = [member.with_type(inner) for member, inner in zip(members, kinds, strict=True)]
    if pa.types.is_struct(kind):
        return pa.struct(made)
    if pa.types.is_map(kind):
        return pa.map_(*made)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(made[0], kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return (pa.large_list if pa.types.is_large_list(kind) else pa.list_)(made[0])
    return None


def _fixed(kind: Any) -> Field | None:
    pa = need("pyarrow", "arrow")
    sizes: list[int] = []
    inner = storage_type(kind)
    while pa.types.is_fixed_size_list(inner):
        sizes.append(inner.list_size)
        inner = storage_type(inner.value_type)
    element = _element(inner)
    if pa.types.is_fixed_size_binary(inner):
        element = np.dtype(np.uint8)
        sizes.append(inner.byte_width)
    if element is None:
        return None
    if isinstance(kind, pa.FixedShapeTensorType):
        shape = tuple(kind.shape)
        if math.prod(shape) != math.prod(sizes) or list(kind.permutation or range(len(shape))) != list(range(len(shape))):
            return None
        return Field(element, shape)
    return Field(element, tuple(sizes))


def _element(kind: Any) -> np.dtype[Any] | None:
    types = need("pyarrow", "arrow").types
    if not (types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)):
        return None
    element: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
    return element


# Messages


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
        raise UnsupportedVersionError(f"{path}: expected Feather version 2, found version 1: write it again")
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


def find_nulls(stream: bool, data: Any, leaves: Mapping[str, ArrowField]) -> set[str]:
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


def measure_batches(path: str, number: int | None, span: tuple[int, int] | None = None) -> tuple[int, int]:
    """What a record batch of a file and its dictionaries decode to, or all of a stream (None), and what that has in the file.
    ``span`` is where the Arrow file is in another one: its first byte and the one behind its last.
    """
    with open(path, "rb", buffering=0) as file:
        first, last = span or (0, os.fstat(file.fileno()).st_size)
        size = last - first
        read = partial(_read_file, file.fileno(), first)
        messages = _messages_of_stream(read, size) if number is None else _messages_of_file(read, size, number)
        sizes = [_decoded_bytes(read, size, one) for one in messages]
    return sum(decoded for decoded, _ in sizes), min(size, sum(stored for _, stored in sizes))


def _read_file(descriptor: int, first: int, start: int, stop: int) -> bytes:
    return os.pread(descriptor, stop - start, first + start)


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
