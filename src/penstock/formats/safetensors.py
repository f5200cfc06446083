"""safetensors: tensors of one first dimension as the fields of records.

::

    file   = N u64 | header, N bytes of JSON | data
    header = {"name": {"dtype": "F32", "shape": [...], "data_offsets": [from, to]}, ..., "__metadata__": {text: text}}

Offsets count from the beginning of the data, which the tensors fill without holes. Row i of every tensor is record i.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from math import prod
from typing import Any

from penstock.argument import IntArray
from penstock.batch import Batch, Outputs, fixed_output
from penstock.errors import (
    FormatError,
    SchemaMismatchError,
    SizeOverflowError,
    TruncatedError,
    UnsupportedTypeError,
)
from penstock.formats.arrow_file import Fields, plain_fields, renamed
from penstock.formats.files import File, Files, Names, find_files, need_size
from penstock.formats.rows_in_files import (
    FileRows,
    Rows,
    RowSource,
    Version,
    default_threads,
    reader_of_files,
    version_of,
    window_on,
)
from penstock.records import Extents, Recipe, joined_extents
from penstock.remote.window import RemoteOptions
from penstock.schema import MAX_NDIM, Field, Schema
from penstock.system import file_access

__all__ = ["Safetensors", "open_safetensors"]

SUFFIX = ".safetensors"
LENGTH_BYTES = 8
MAX_HEADER = 100_000_000
FIRST_BYTES = 16 << 10
"""As long as the headers of most files are."""

ELEMENTS = {"BOOL": "bool", "U8": "u1", "I8": "i1", "U16": "u2", "I16": "i2", "U32": "u4", "I32": "i4", "U64": "u8", "I64": "i8"}
ELEMENTS |= {"F16": "f2", "F32": "f4", "F64": "f8", "C64": "c8", "BF16": "bf16", "F8_E4M3": "f8e4m3fn", "F8_E5M2": "f8e5m2"}
"""Element types of fields by their names in headers."""

ITEM_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8, "I64": 8}
ITEM_BYTES |= {"F16": 2, "F32": 4, "F64": 8, "C64": 8, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1}

MOST_RECORDS = 1 << 62
SHOWN = 8
"""Tensors that a message lists."""


def open_safetensors(
    what: Names,
    *,
    fields: Fields | None = None,
    threads: int | None = None,
    io: str = "auto",
    remote: RemoteOptions | None = None,
) -> "Safetensors":
    """One .safetensors file, or many as one source: a list keeps its order, a pattern or a directory gives that of the name bytes.

    ``fields`` are the wanted tensors, or a dict of new names and tensors; all of them unless given. They must have the same first
    dimension. ``remote`` says how files at URLs are read.
    """
    return Safetensors(find_files(what, (SUFFIX,)), plain_fields(fields), default_threads(threads), io, remote)


@dataclass(frozen=True)
class _Tensor:
    """One tensor: its type as the header names it, its shape, and where in the file it begins."""

    kind: str
    shape: tuple[int, ...]
    offset: int

    def __str__(self) -> str:
        return f"{self.kind} {list(self.shape)}"


@dataclass(frozen=True)
class _Head:
    """What the header of a file says, checked against its size."""

    tensors: Mapping[str, _Tensor]
    size: int
    version: Version | None


class Safetensors(RowSource):
    """The rows of tensors of one first dimension, one file after the other; a tensor is a field."""

    def __init__(self, files: Files, fields: Fields | None, threads: int, io: str, remote: RemoteOptions | None) -> None:
        self._fields, self._options = fields, (threads, io, remote)
        heads: list[_Head] = files.once("safetensors", lambda: files.each(_look))
        chosen = [_choose(file, head, fields) for file, head in zip(files, heads, strict=True)]
        schemas = [_schema(file, tensors) for file, tensors in zip(files, chosen, strict=True)]
        self._schema = schemas[0]
        for file, schema in zip(files, schemas, strict=True):
            if schema != self._schema:
                raise SchemaMismatchError(
                    f"{file}: expected {_shown(self._schema)} as in {files[0]}, found {_shown(schema)}: choose tensors that all "
                    "files have with fields=[...]"
                )
        counts = [next(iter(tensors.values())).shape[0] for tensors in chosen]
        if sum(counts) >= MOST_RECORDS:
            raise SizeOverflowError(f"{files[0]}: expected fewer than {MOST_RECORDS} records, found {sum(counts)}")
        window, access = window_on(files, remote), file_access(io, files.local)
        self._window = window
        self._readers: dict[str, Rows] = {}
        for name, field in self._schema.items():
            parts = [
                FileRows.of(file, head.size, tensors[name].offset, count, head.version)
                for file, head, tensors, count in zip(files, heads, chosen, counts, strict=True)
            ]
            self._readers[name] = reader_of_files(parts, field.stride, access=access, threads=threads, remote=window)
        some = next((self._readers[name] for name, field in self._schema.items() if field.stride), Rows(None, threads))
        super().__init__(files, counts, sum(field.stride for field in self._schema.values()), some)

    @property
    def schema(self) -> Mapping[str, Field]:
        return dict(self._schema)

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        batch: Batch = {}
        for name in fields:
            batch[name] = fixed_output(name, self._schema[name], ids.size, out)
            self._readers[name].read(ids, batch[name])
        return batch

    def native_reader(self, field: str) -> tuple[Any, int] | None:
        return self._readers[field].native()

    def extents(self, starts: IntArray, stops: IntArray) -> Extents:
        """Where records are: each of the fields in the same files."""
        return joined_extents(rows.extents(starts, stops) for rows in self._readers.values())

    def close(self) -> None:
        for rows in self._readers.values():
            rows.close()
        if self._window is not None:
            self._window.close()

    def _identity(self) -> tuple[Any, ...]:
        return "safetensors", self._fields

    def _recipe(self) -> Recipe:
        return (Safetensors, (self._files, self._fields, *self._options))


def _choose(file: File, head: _Head, fields: Fields | None) -> dict[str, _Tensor]:
    """The wanted tensors by the names of their fields. SchemaMismatchError unless they have the same first dimension."""
    wanted = renamed(file, head.tensors, fields, "tensor")
    chosen = {new: head.tensors[old] for new, old in wanted.items()}
    if not chosen:
        raise SchemaMismatchError(f"{file}: expected at least one tensor, found none")
    if len({tensor.shape[:1] for tensor in chosen.values()}) > 1 or not next(iter(chosen.values())).shape:
        raise SchemaMismatchError(
            f"{file}: expected tensors of the same first dimension, a row for each record, found {_shown(chosen)}: choose some of "
            "one first dimension with fields=[...]"
        )
    return chosen


def _schema(file: File, tensors: Mapping[str, _Tensor]) -> dict[str, Field]:
    made: dict[str, Field] = {}
    for name, tensor in tensors.items():
        if tensor.kind not in ELEMENTS:
            raise UnsupportedTypeError(
                f"{file}: expected one of the types {' '.join(ELEMENTS)}, found {ascii(tensor.kind)[:100]} in tensor "
                f"{ascii(name)[:100]}: choose the others with fields=[...]"
            )
        try:
            made[name] = Field(ELEMENTS[tensor.kind], tensor.shape[1:])
            Schema.make({name: made[name]})
        except ValueError as error:
            raise SchemaMismatchError(
                f"{file}: tensor {ascii(name)[:100]}: {error}; choose others, or another name: fields={{'new_name': 'name', ...}}"
            ) from error
    return made


def _shown(things: Mapping[str, object]) -> str:
    """Names with what they stand for, for a message."""
    more = f" and {len(things) - SHOWN} more" if len(things) > SHOWN else ""
    return ", ".join(f"{name[:100]!a}: {ascii(str(thing)[:100])[1:-1]}" for name, thing in islice(things.items(), SHOWN)) + more


# The header


def _look(file: File) -> _Head:
    version, start = version_of(file), file.first(FIRST_BYTES)
    size = file.size
    if len(start) < LENGTH_BYTES:
        raise TruncatedError(f"{file}: expected the {LENGTH_BYTES} bytes before a header, found a file of {len(start)}")
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if length > MAX_HEADER:
        raise FormatError(f"{file}: expected a header of at most {MAX_HEADER} bytes, found {length}")
    data = LENGTH_BYTES + length
    if data > size:
        raise TruncatedError(f"{file}: expected a header of {length} bytes, found a file of {size}")
    raw = (start if data <= len(start) else file.read(0, data))[LENGTH_BYTES:data]
    if len(raw) < length:
        raise TruncatedError(f"{file}: the file was cut while it was read; open it again")
    tensors = _tensors(file, raw, data)
    _check_bounds(file, tensors, data, size)
    return _Head({name: tensor for name, (tensor, _) in tensors.items()}, size, version)


def _tensors(file: File, raw: bytes, data: int) -> dict[str, tuple[_Tensor, int]]:
    """The tensors that a header names, and where in the file each one ends."""
    try:
        content = json.loads(raw.decode(), object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{file}: expected a header of JSON, with every name once, found something else") from error
    if not isinstance(content, dict):
        raise FormatError(f"{file}: expected the tensors by name as a header, found {ascii(content)[:100]}")
    return {name: _tensor(file, name, value, data) for name, value in content.items() if name != "__metadata__"}


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a name occurs twice")
    return made


def _tensor(file: File, name: str, value: Any, data: int) -> tuple[_Tensor, int]:
    known = value if isinstance(value, dict) and set(value) == {"dtype", "shape", "data_offsets"} else {}
    kind, shape, bounds = known.get("dtype"), _counts(known.get("shape")), _counts(known.get("data_offsets"))
    if not isinstance(kind, str) or shape is None or bounds is None or len(bounds) != 2:
        raise FormatError(
            f"{file}: expected dtype, shape and data_offsets of tensor {ascii(name)[:100]}, found {ascii(value)[:200]}"
        )
    start, stop = bounds
    wanted = prod(shape) * ITEM_BYTES[kind] if kind in ITEM_BYTES else stop - start
    if stop - start != wanted or stop < start:
        raise FormatError(
            f"{file}: expected {str(wanted)[:40]} bytes for tensor {ascii(name)[:100]} of {ascii(kind)[1:-1][:100]} "
            f"{str(shape)[:100]}, found them in bytes {start} to {stop} of the data"
        )
    return _Tensor(kind, tuple(shape), data + start), data + stop


def _counts(value: Any) -> list[int] | None:
    """A short list of sizes; None if it is something else."""
    if (
        not isinstance(value, list)
        or len(value) > MAX_NDIM
        or not all(type(one) is int and 0 <= one < MOST_RECORDS for one in value)
    ):
        return None
    return value


def _check_bounds(file: File, tensors: Mapping[str, tuple[_Tensor, int]], data: int, size: int) -> None:
    """The tensors must fill the file behind the header, without holes."""
    ordered = sorted((tensor.offset, stop, name) for name, (tensor, stop) in tensors.items())
    for (_, end, before), (start, _, name) in pairwise([(0, data, ""), *ordered]):
        if start != end:
            behind = f"behind tensor {ascii(before)[:100]}" if before else "behind the header"
            raise FormatError(f"{file}: expected tensor {ascii(name)[:100]} at byte {end}, {behind}, found it at byte {start}")
    end = max((stop for _, stop, _ in ordered), default=data)
    need_size(file, size, end, f" for {len(tensors)} tensors")
