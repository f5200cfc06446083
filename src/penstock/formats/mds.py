"""MosaicML's MDS shards: what ``streaming.MDSWriter`` writes.

::

    index.json = {"version": 2, "shards": [{"format": "mds", "version": 2, "column_names": [...], "column_encodings": [...],
                  "column_sizes": [bytes, or null if they vary], "compression": null | "zstd:3" | ..., "samples": n,
                  "raw_data": {"basename", "bytes", ...}, "zip_data": null | {"basename", "bytes", ...}, ...}, ...]}
    shard      = n u32 | offsets in the shard u32 x (n + 1) | JSON | samples
    sample     = bytes u32 of every column whose size varies | the columns

A column is a field. Numbers are numbers; texts, JSON and numbers written as texts are texts; images, and lists of them, are the
bytes that are stored. Arrays whose shape varies are ragged, of the type and number of dimensions that the first sample has.
Shards of lines are what ``streaming.JSONWriter``, ``CSVWriter``, ``TSVWriter`` and ``XSVWriter`` write::

    index.json = {"shards": [{"format": "json" | "csv" | "tsv" | "xsv", "version": 2, "newline", "separator" (of xsv), "samples": n,
                  "columns": {name: encoding} (of json) | "column_names", "column_encodings",
                  "raw_data": {"basename", "bytes"}, "raw_meta": {...}, "compression", "zip_data", "zip_meta"}, ...]}
    meta       = n u32 | offsets in the data u32 x (n + 1) | JSON
    data       = names of the columns and a newline, unless it is JSON | a line for each sample: JSON, or cells as they are

Their encodings are str, int and float. Nothing is quoted in cells. A line is read as Python reads it, as the package does.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, byte_size
from penstock.batch import Batch, Outputs, Ragged, fixed_output
from penstock.errors import (
    CorruptError,
    EmptySourceError,
    FormatError,
    SchemaMismatchError,
    SourceChangedError,
    UnsafePathError,
    UnsupportedTypeError,
    UnsupportedVersionError,
)
from penstock.fingerprint import fingerprint_of
from penstock.formats.arrow_file import Fields, plain_fields
from penstock.formats.files import (
    MAX_BLOCK_BYTES,
    File,
    Files,
    LocalFile,
    RemoteFile,
    check_block,
    is_file_there,
    need_size,
    one_line,
    read_json,
)
from penstock.formats.packed import (
    CODECS,
    KEPT_BYTES,
    OFFSET,
    TABLE,
    ArrayForm,
    Decompression,
    PackedBlocks,
    PackedColumn,
    PackedFile,
    PackedLayout,
    PackedOrigin,
    PackedSource,
    choose,
    first_values,
    with_types,
)
from penstock.formats.rows_in_files import FileRows, default_threads, version_of
from penstock.formats.spans import FileSpans, ParsedSpans, ScannedFile, SpanField, SpanIndex, SpanOptions
from penstock.native import _core
from penstock.process import map_at_once
from penstock.records import Recipe
from penstock.remote.url import UrlPath
from penstock.remote.window import RemoteOptions
from penstock.schema import Field
from penstock.store.storage import as_location

__all__ = ["open_mds"]

FORMATS = {"json": "", "csv": ",", "tsv": "\t", "xsv": ""}
"""The formats, and what is between their cells, unless the index says so."""

FIELDS = {"str": Field.text(), "int": Field("int64"), "float": Field("float64")}
LINE = "line"

Where = Callable[[int], str]


@dataclass(frozen=True)
class TextForm:
    """What all shards share: their columns, what ends a line and, unless they are JSON, what is between cells."""

    columns: tuple[tuple[str, str], ...]
    newline: str
    separator: str | None

    @classmethod
    def of(cls, index: File, shard: Mapping[str, Any]) -> "TextForm":
        kind, newline = shard["format"], shard.get("newline")
        if kind == "json":
            columns = shard.get("columns")
            pairs = list(columns.items()) if isinstance(columns, dict) else []
        else:
            names, encodings = shard.get("column_names"), shard.get("column_encodings")
            are_lists = isinstance(names, list) and isinstance(encodings, list) and len(names) == len(encodings)
            pairs = list(zip(names, encodings, strict=True)) if are_lists else []  # type: ignore[arg-type]
        separator = shard.get("separator") if kind == "xsv" else FORMATS[kind] or None
        if (
            not pairs
            or not all(isinstance(one, str) for pair in pairs for one in pair)
            or len({name for name, _ in pairs}) < len(pairs)
            or not isinstance(newline, str)
            or not newline
            or not (kind == "json" or (isinstance(separator, str) and separator))
        ):
            raise FormatError(
                f"{index}: expected columns, newline and separator of {kind} shards, found {ascii(dict(shard))[:300]}"
            )
        return cls(tuple(pairs), newline, separator)

    def packed(self) -> list[PackedColumn]:
        return [PackedColumn(name, encoding, -1, False, FIELDS.get(encoding)) for name, encoding in self.columns]

    @property
    def header(self) -> bytes:
        """The first line of a shard."""
        return b"" if self.separator is None else (self.separator.join(name for name, _ in self.columns) + self.newline).encode()

    def parse(self, layout: PackedLayout, names: Sequence[str], lines: Ragged, where: Where, out: Outputs) -> Batch:
        old = {name: layout.columns[layout.chosen[name]].name for name in names}
        rows = [self._row(bytes(lines[number]), where(number)) for number in range(len(lines))]
        found: Batch = {}
        for name in names:
            field, values = layout.schema[name], [row[old[name]] for row in rows]
            for number, value in enumerate(values):
                if not _fits(field, value):
                    raise SchemaMismatchError(
                        f"{where(number)}: column {old[name]!r}: expected a value of {field!r}, found {one_line(repr(value), 80)}"
                    )
            if field.is_fixed:
                array = fixed_output(name, field, len(values), out)
                array[:] = values
                found[name] = array
            else:
                found[name] = Ragged.from_items(values, dtype=np.uint8, kind="text")
        return found

    def _row(self, line: bytes, at: str) -> Mapping[str, Any]:
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise CorruptError(f"{at}: expected a line in UTF-8") from error
        if not text.endswith(self.newline):
            raise CorruptError(f"{at}: expected a line that ends with {self.newline!r}, found {one_line(repr(text[-40:]), 80)}")
        text = text.removesuffix(self.newline)
        try:
            row = json.loads(text) if self.separator is None else self._cells(text)
        except (ValueError, RecursionError) as error:
            raise CorruptError(f"{at}: {one_line(error, 200)}") from error
        if not isinstance(row, dict) or row.keys() != {name for name, _ in self.columns}:
            raise CorruptError(f"{at}: expected the columns {[name for name, _ in self.columns]}, found {one_line(repr(row), 200)}")
        return row

    def _cells(self, text: str) -> dict[str, Any]:
        cells = text.split(self.separator)
        if len(cells) != len(self.columns):
            raise ValueError(f"expected {len(self.columns)} cells, as there are columns, found {len(cells)}")
        kinds = {"int": int, "float": float}
        return {name: kinds.get(encoding, str)(cell) for (name, encoding), cell in zip(self.columns, cells, strict=True)}


def _fits(field: Field, value: Any) -> bool:
    """Whether a value is one of a field, exactly."""
    if field.kind == "text":
        return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if field.dtype.kind == "f":
        return isinstance(value, float) or (abs(value) < 2**1023 and int(float(value)) == value)
    return isinstance(value, int) and -(2**63) <= value < 2**63


@dataclass(frozen=True)
class LineShard:
    """One shard: its data, its table of offsets, the bytes of the data when it is not compressed, and its samples."""

    data: File
    meta: File
    size: int
    samples: int
    meta_bytes: int
    stored_bytes: int
    stored_meta_bytes: int

    def check(self) -> None:
        """An error unless both files have the bytes that the index says."""
        for file, size in ((self.data, self.stored_bytes), (self.meta, self.stored_meta_bytes)):
            need_size(file, file.size, size, f", as {INDEX} says")

    def offsets(self, form: TextForm, decompression: Decompression | None) -> IntArray:
        """Where lines begin in the data, and where the last one ends."""
        raw = np.frombuffer(self.meta.read(0, self.stored_meta_bytes), np.uint8)
        if decompression is not None:
            check_block(str(self.meta), self.meta_bytes, self.stored_meta_bytes, decompression.max_block_bytes)
            raw = decompression.decompress(str(self.meta), raw, self.meta_bytes)
        least = OFFSET.itemsize * (self.samples + 2)
        count = int.from_bytes(raw[:4].tobytes(), "little")
        if raw.size < least or count != self.samples:
            raise FormatError(f"{self.meta}: expected offsets of {self.samples} samples, as index.json says, found {count}")
        offsets = np.frombuffer(raw[4:least].tobytes(), OFFSET).astype(np.int64)
        first = len(form.header)
        if offsets[0] != first or np.any(offsets[1:] < offsets[:-1]) or offsets[-1] != self.size:
            raise FormatError(f"{self.meta}: expected rising offsets from {first} to {self.size}, found others")
        return offsets


def _offsets_of(shards: Sequence[LineShard], form: TextForm, decompression: Decompression | None) -> list[IntArray]:
    """The tables of all shards; of those at URLs many at once."""
    are_remote = isinstance(shards[0].meta, RemoteFile)
    return list(map_at_once(lambda shard: shard.offsets(form, decompression), shards, are_remote=are_remote))


@dataclass(frozen=True)
class LineOrigin:
    """How shards of lines were opened: what their lines are, the fields, and how they are read again."""

    form: TextForm
    layout: PackedLayout
    how: SpanOptions
    recipe: Recipe

    def identity(self, offsets: Sequence[IntArray]) -> tuple[Any, ...]:
        tables = fingerprint_of(*(one.tobytes() for one in offsets))
        form = self.form
        return "mds lines", form.columns, form.newline, form.separator or "", list(self.layout.chosen.items()), tables


class LineShards(ParsedSpans):
    """The samples of plain shards of lines, one shard after the other."""

    def __init__(self, shards: Sequence[LineShard], origin: LineOrigin) -> None:
        files = Files([shard.data for shard in shards])
        tables = _offsets_of(shards, origin.form, None)
        self._origin, self._told = origin, origin.identity(tables)
        scan = partial(_spans, tables=_tables_of(files, tables), form=origin.form)
        index = SpanIndex("mds lines", files, scan, origin.how, self._told)
        super().__init__(index, {LINE: SpanField(Field.bytes())})

    @property
    def schema(self) -> Mapping[str, Field]:
        return self._origin.layout.schema

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        if not fields:
            return {}
        lines = super()._read(ids, [LINE], {})[LINE]
        return self._origin.form.parse(self._origin.layout, fields, lines, lambda line: self._where(int(ids[line])), out)

    def _identity(self) -> tuple[Any, ...]:
        return self._told

    def _recipe(self) -> Recipe:
        return self._origin.recipe


def _tables_of(files: Files, tables: Sequence[IntArray]) -> dict[str, IntArray]:
    """Tables by the names of files, links followed. FormatError if one file has several."""
    found: dict[str, IntArray] = {}
    for file, table in zip(files, tables, strict=True):
        if not np.array_equal(found.setdefault(str(FileRows.whole(file).path), table), table):
            raise FormatError(f"{file}: expected a file for each shard, found two tables of offsets for this one")
    return found


def _spans(file: ScannedFile, tables: Mapping[str, IntArray], form: TextForm) -> FileSpans:
    offsets, header = tables[str(file)], form.header
    if file.read(0, len(header)).tobytes() != header:
        raise FormatError(f"{file}: expected the names of the columns first, {header[:100]!r}, found other bytes")
    return FileSpans.of({LINE: (offsets[:-1], np.diff(offsets))})


class LineBlocks(PackedBlocks):
    """The samples of compressed shards of lines, one shard after the other."""

    def __init__(self, index: File, shards: Sequence[LineShard], origin: LineOrigin, decompression: Decompression) -> None:
        self._lines, self._tables = origin, _offsets_of(shards, origin.form, decompression)
        parts = [PackedFile(one.data, one.size, version_of(one.data), one.samples, one.stored_bytes) for one in shards]
        options = origin.how.threads, origin.how.io, origin.how.remote
        packed = PackedOrigin(options, origin.identity(self._tables), origin.recipe)
        super().__init__(Files([index, *(one.data for one in shards)]), parts, origin.layout, packed, decompression)

    def _decoded(self, number: int, stored: npt.NDArray[np.uint8]) -> "tuple[_LineReader, int]":
        part, header = self._parts[number], self._lines.form.header
        check_block(str(part.file), part.size, part.stored_bytes, self._decompression.max_block_bytes)
        raw = self._decompression.decompress(str(part.file), stored, part.size)
        if raw[: len(header)].tobytes() != header:
            raise FormatError(f"{part.file}: expected the names of the columns first, {header[:100]!r}, found other bytes")
        return _LineReader(str(part.file), raw, self._tables[number], self._lines), raw.nbytes


@dataclass(frozen=True, eq=False)
class _LineReader:
    """Reads fields of the lines of one shard in memory."""

    path: str
    raw: npt.NDArray[np.uint8]
    offsets: IntArray
    origin: LineOrigin

    def read(self, ids: IntArray, fields: Sequence[str], out: Outputs, pool: _core.ThreadPool) -> Batch:
        lines = [self.raw[self.offsets[one] : self.offsets[one + 1]].tobytes() for one in ids.tolist()]
        found = Ragged.from_items(lines, dtype=np.uint8, kind="bytes")
        where = lambda line: f"{self.path}: record {int(ids[line])}"  # noqa: E731
        return self.origin.form.parse(self.origin.layout, fields, found, where, out)


INDEX = "index.json"
INDEX_BYTES = 256 << 20

NUMBERS = {"int": "int64"}
NUMBERS |= {name: name for name in ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")}
NUMBERS |= {name: name for name in ("float16", "float32", "float64")}
TEXTS = ("str", "str_int", "str_float", "str_decimal", "json")
BYTES = ("bytes", "jpeg", "png", "pil", "jpeg_array", "jpegarray", "list[pil]", "list[jpeg]", "list[png]")
TYPES = {8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32"}
TYPES |= {64: "uint64", 65: "int64", 66: "float64"}
"""Element types of arrays by their numbers."""


def open_mds(
    what: Any,
    *,
    fields: Fields | None = None,
    threads: int | None = None,
    io: str = "auto",
    max_block_bytes: int | str = MAX_BLOCK_BYTES,
    kept_bytes: int | str = KEPT_BYTES,
    remote: RemoteOptions | None = None,
) -> PackedSource | PackedBlocks | LineShards:
    """A directory of MDS shards, or of MosaicML's JSON, CSV or TSV shards, or the objects under a URL, in the order of its index.

    ``fields`` are the wanted columns, or a dict of new names and columns. A shard that is compressed is decompressed when one of
    its samples is read: one that claims to be more than ``max_block_bytes`` is refused, unless it is stored in a 64th of its bytes
    or more; ``kept_bytes`` of them are kept. ``remote`` says how shards at URLs are read.
    """
    where = as_location(what) if isinstance(what, str) else what
    index: File = RemoteFile(where / INDEX) if isinstance(where, UrlPath) else LocalFile(Path(where) / INDEX)
    limits = byte_size("max_block_bytes", max_block_bytes), byte_size("kept_bytes", kept_bytes)
    how = default_threads(threads), io, remote
    if _shards_of(index)[0].get("format") in FORMATS:
        return _open_lines(_line_files(index), plain_fields(fields), how, limits)
    return _open(_files(index), plain_fields(fields), how, limits)


@dataclass(frozen=True)
class _Shard:
    """What the index says of a shard: names and bytes of its file, and of the compressed one, if there is one."""

    samples: int
    compression: str | None
    raw: tuple[str, int]
    zipped: tuple[str, int] | None


@dataclass(frozen=True)
class _Index:
    """An index, checked."""

    columns: Sequence[tuple[str, str, int | None]]
    shards: Sequence[_Shard]


def _files(index: File) -> Files:
    """The index, and the shards that it names: compressed ones, unless all of them were decompressed before."""
    return Files([index, *_named(index, _read_index(index).shards)[0]])


def _named(index: File, shards: Sequence[_Shard]) -> tuple[list[File], bool]:
    """The files of shards, and whether these are the ones that are not compressed."""
    raw = [_next_to(index, shard.raw[0]) for shard in shards]
    if all(shard.zipped is None for shard in shards) or (isinstance(index, LocalFile) and all(map(is_file_there, raw))):
        return raw, True
    return [_next_to(index, (shard.zipped or shard.raw)[0]) for shard in shards], False


def _next_to(index: File, name: str) -> File:
    return RemoteFile(index.path.parent / name) if isinstance(index, RemoteFile) else LocalFile(index.path.parent / name)


# The index


def _shards_of(index: File) -> list[dict[str, Any]]:
    """What the index says of shards, not checked."""
    listed = read_json(index, INDEX_BYTES)[1].get("shards")
    if not isinstance(listed, list) or not all(isinstance(shard, dict) for shard in listed):
        raise FormatError(f"{index}: expected the index of MDS shards, with a list of them")
    if not listed:
        raise EmptySourceError(f"{index}: expected at least one shard, found none")
    return listed


def _read_index(index: File) -> _Index:
    listed = _shards_of(index)
    columns = _columns(index, listed[0])
    for number, shard in enumerate(listed):
        if _columns(index, shard) != columns:
            raise SchemaMismatchError(
                f"{index}: expected the columns of the first shard in all of them, found others in number {number}"
            )
    return _Index(columns, [_shard(index, shard) for shard in listed])


def _columns(index: File, shard: dict[str, Any]) -> list[tuple[str, str, int | None]]:
    if shard.get("format") != "mds":
        raise UnsupportedTypeError(
            f"{index}: expected shards of the format 'mds', as the first one is, or of {', '.join(FORMATS)}, found "
            f"{ascii(shard.get('format'))[:100]}: write them as MDS"
        )
    if shard.get("version") != 2:
        raise UnsupportedVersionError(f"{index}: expected shards of version 2, found {ascii(shard.get('version'))[:100]}")
    names, encodings, sizes = (shard.get(f"column_{what}") for what in ("names", "encodings", "sizes"))
    if (
        not isinstance(names, list)
        or not isinstance(encodings, list)
        or not isinstance(sizes, list)
        or not len(names) == len(encodings) == len(sizes)
        or not all(isinstance(one, str) for one in [*names, *encodings])
        or not all(one is None or (type(one) is int and 0 <= one < 2**32) for one in sizes)
        or len(set(names)) < len(names)
    ):
        raise FormatError(
            f"{index}: expected names, encodings and sizes of columns, found {ascii([names, encodings, sizes])[:300]}"
        )
    return [(name, encoding, size or None) for name, encoding, size in zip(names, encodings, sizes, strict=True)]


def _shard(index: File, shard: dict[str, Any]) -> _Shard:
    compression, samples, zipped = shard.get("compression"), shard.get("samples"), shard.get("zip_data")
    if type(samples) is not int or not 0 <= samples < 2**32 or not isinstance(compression, str | None):
        raise FormatError(f"{index}: expected samples and compression of a shard, found {ascii([samples, compression])[:200]}")
    if (compression is None) != (zipped is None):
        raise FormatError(f"{index}: expected zip_data of shards with compression, and of no others")
    return _Shard(samples, compression, _file(index, shard.get("raw_data")), None if zipped is None else _file(index, zipped))


def _file(index: File, described: Any) -> tuple[str, int]:
    name, size = (described.get("basename"), described.get("bytes")) if isinstance(described, dict) else (None, None)
    if not isinstance(name, str) or type(size) is not int or not 0 <= size < 2**62:
        raise FormatError(f"{index}: expected basename and bytes of a shard, found {ascii(described)[:200]}")
    if any(part in ("", ".", "..") for part in name.split("/")) or "\\" in name or "\0" in name:
        raise UnsafePathError(f"{index}: expected the name of a shard below it, found {ascii(name)[:100]}")
    return name, size


# Columns as fields


def _column(index: File, name: str, encoding: str, size: int | None) -> PackedColumn:
    """A column; arrays whose shape varies have no field yet."""
    kind, _, options = encoding.partition(":")
    field: Field | None = None
    expected: int | None = None
    if encoding in NUMBERS:
        field = Field(NUMBERS[encoding])
    elif encoding in TEXTS:
        field = Field.text()
    elif encoding in BYTES:
        field = Field.bytes()
    elif kind == "ndarray" and options.count(":") == 1:
        field = _fixed_array(index, name, encoding)
    elif not (kind == "ndarray" and (not options or options in TYPES.values())):
        return PackedColumn(name, encoding, -1 if size is None else size, size is None, None)
    expected = field.stride if field is not None and field.is_fixed else None
    if size != expected:
        raise FormatError(
            f"{index}: expected {expected} as the size of column {ascii(name)[:100]} of {encoding[:100]}, found {size}"
        )
    form = ArrayForm.PLAIN if kind != "ndarray" or field is not None else ArrayForm.MDS if options else ArrayForm.MDS_TYPED
    return PackedColumn(name, encoding, -1 if size is None else size, size is None, field, form)


def _fixed_array(index: File, name: str, encoding: str) -> Field:
    _, element, shape = encoding.split(":")
    sizes = [int(one) if one.isdecimal() and one.isascii() and len(one) < 19 else 0 for one in shape.split(",")]
    if element not in TYPES.values() or len(sizes) > 32 or min(sizes) < 1 or math.prod(sizes) >= 2**32:
        raise FormatError(
            f"{index}: expected type and shape of arrays in column {ascii(name)[:100]}, found {ascii(encoding)[:100]}"
        )
    return Field(element, tuple(sizes))


def _with_type(index: File, column: PackedColumn, head: bytes | None) -> PackedColumn:
    """A column of arrays whose shape varies, as the first sample has it."""
    if head is None:
        raise EmptySourceError(
            f"{index}: expected a sample, which says what arrays column {ascii(column.name)[:100]} has, found none"
        )
    start = list(head)
    code = start.pop(0) if start and column.form == ArrayForm.MDS_TYPED else 0
    element = TYPES.get(code) if column.form == ArrayForm.MDS_TYPED else column.encoding.partition(":")[2]
    ndim = start[0] >> 2 if start else 0
    if element is None or not 1 <= ndim <= 32:
        raise UnsupportedTypeError(
            f"{index}: expected arrays of a known type with 1 to 32 dimensions in column {ascii(column.name)[:100]}, found type "
            f"{code} with {ndim} in the first sample; choose the other columns: fields=[...]"
        )
    return replace(column, field=Field.ragged(element, ndim), code=code)


# Opening


def _open(
    files: Files, fields: Fields | None, options: tuple[int, str, RemoteOptions | None], limits: tuple[int, int]
) -> PackedSource | PackedBlocks:
    index = files[0]
    found, parts, codec = files.once("mds", lambda: _look(files))
    columns = [_column(index, *column) for column in found.columns]
    decompression = None if codec is None else Decompression(codec, *limits)
    columns = with_types(files, columns, fields, partial(first_values, parts, columns, 2, decompression), _with_type)
    layout = choose(index, columns, fields)
    origin = PackedOrigin(options, ("mds", fields), (_open, (files, fields, options, limits)))
    if decompression is None:
        return PackedSource(files, parts, layout, origin)
    return PackedBlocks(files, parts, layout, origin, decompression)


def _look(files: Files) -> tuple[_Index, list[PackedFile], str | None]:
    """The index, the shards, and how they are compressed."""
    index, *shards = files
    found = _read_index(index)
    if len(found.shards) != len(shards):
        raise SourceChangedError(f"{index}: the file was changed while it was read; open it again")
    codec = _codec(index, found.shards, _are_zipped(found.shards, shards))
    told = list(zip(shards, found.shards, strict=True))
    return found, list(map_at_once(lambda one: _look_at(*one, codec is not None), told, are_remote=files.is_remote)), codec


def _are_zipped(shards: Sequence[_Shard], files: Sequence[File]) -> list[bool]:
    return [
        shard.zipped is not None and file.name == shard.zipped[0].rpartition("/")[2]
        for shard, file in zip(shards, files, strict=True)
    ]


def _codec(index: File, shards: Sequence[_Shard], are_zipped: Sequence[bool]) -> str | None:
    """How all shards are compressed; None if they are not."""
    codecs = {str(shard.compression).partition(":")[0] for shard, is_zipped in zip(shards, are_zipped, strict=True) if is_zipped}
    if len(codecs) > 1 or (codecs and not all(are_zipped)):
        raise UnsupportedTypeError(
            f"{index}: expected shards with one compression, found several: open them by directories of each"
        )
    codec = codecs.pop() if codecs else None
    if codec is not None and codec not in CODECS:
        raise UnsupportedTypeError(
            f"{index}: shards are compressed with {ascii(codec)[:100]}, which is not read; write them with one of "
            f"{', '.join(CODECS)}"
        )
    return codec


def _look_at(file: File, shard: _Shard, is_zipped: bool) -> PackedFile:
    version, head = version_of(file), file.first(TABLE + OFFSET.itemsize)
    size = file.size
    expected = shard.raw[1] if shard.zipped is None or not is_zipped else shard.zipped[1]
    need_size(file, size, expected, f", as {INDEX} says")
    part = PackedFile(file, shard.raw[1], version, shard.samples, size)
    if not is_zipped:
        part.check(head)
    if not is_zipped and isinstance(file, LocalFile):  # at URLs with the rest of the table, when it is needed
        part.check_end(file.read(*part.last_offset))
    return part


# Shards of lines


def _line_files(index: File) -> Files:
    """The index, the shards that it names, and their tables: compressed ones, unless all of them were decompressed before."""
    listed = _shards_of(index)
    data, is_raw = _named(index, [_shard(index, one) for one in listed])
    tables = [_file(index, one.get("raw_meta" if is_raw else "zip_meta")) for one in listed]
    return Files([index, *data, *(_next_to(index, name) for name, _ in tables)])


def _open_lines(
    files: Files, fields: Fields | None, options: tuple[int, str, RemoteOptions | None], limits: tuple[int, int]
) -> LineShards | LineBlocks:
    index = files[0]
    form, shards, codec = files.once("lines", lambda: _look_at_lines(files))
    layout = choose(index, form.packed(), fields)
    origin = LineOrigin(form, layout, SpanOptions(*options), (_open_lines, (files, fields, options, limits)))
    return LineShards(shards, origin) if codec is None else LineBlocks(index, shards, origin, Decompression(codec, *limits))


def _look_at_lines(files: Files) -> tuple[TextForm, list[LineShard], str | None]:
    """What lines are, the shards, and how they are compressed."""
    index, listed = files[0], _shards_of(files[0])
    data, tables = files[1 : len(listed) + 1], files[len(listed) + 1 :]
    if len(data) != len(listed) or len(tables) != len(listed):
        raise SourceChangedError(f"{index}: the file was changed while it was read; open it again")
    form = TextForm.of(index, listed[0])
    for number, shard in enumerate(listed):
        if shard.get("version") != 2:
            raise UnsupportedVersionError(f"{index}: expected shards of version 2, found {ascii(shard.get('version'))[:100]}")
        if shard.get("format") != listed[0]["format"] or TextForm.of(index, shard) != form:
            raise SchemaMismatchError(
                f"{index}: expected the format and the columns of the first shard in all of them, found others in number {number}"
            )
    shards = [_shard(index, shard) for shard in listed]
    codec = _codec(index, shards, _are_zipped(shards, data))
    made = [_line_shard(index, *one, is_zipped=codec is not None) for one in zip(listed, shards, data, tables, strict=True)]
    for _ in map_at_once(LineShard.check, made, are_remote=files.is_remote):
        pass
    return form, made, codec


def _line_shard(index: File, shard: Mapping[str, Any], one: _Shard, data: File, table: File, *, is_zipped: bool) -> LineShard:
    raw_table = _file(index, shard.get("raw_meta"))[1]
    stored = one.zipped[1] if is_zipped and one.zipped is not None else one.raw[1]
    stored_table = _file(index, shard.get("zip_meta"))[1] if is_zipped else raw_table
    return LineShard(data, table, one.raw[1], one.samples, raw_table, stored, stored_table)
