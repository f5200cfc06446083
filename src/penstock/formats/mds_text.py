"""MosaicML's shards of lines: what ``streaming.JSONWriter``, ``CSVWriter``, ``TSVWriter`` and ``XSVWriter`` write.

::

    index.json = {"shards": [{"format": "json" | "csv" | "tsv" | "xsv", "version": 2, "newline", "separator" (of xsv), "samples": n,
                  "columns": {name: encoding} (of json) | "column_names", "column_encodings",
                  "raw_data": {"basename", "bytes"}, "raw_meta": {...}, "compression", "zip_data", "zip_meta"}, ...]}
    meta       = n u32 | offsets in the data u32 x (n + 1) | JSON
    data       = names of the columns and a newline, unless it is JSON | a line for each sample: JSON, or cells as they are

Encodings are str, int and float. Nothing is quoted in cells. A line is read as Python reads it, which is what the package does.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray
from penstock.batch import Batch, Outputs, Ragged, fixed_output
from penstock.errors import CorruptError, FormatError, SchemaMismatchError, TrailingBytesError, TruncatedError
from penstock.fingerprint import fingerprint_of
from penstock.formats.files import File, Files, RemoteFile, check_block, one_line
from penstock.formats.packed import (
    Decompression,
    PackedBlocks,
    PackedColumn,
    PackedFile,
    PackedLayout,
    PackedOrigin,
)
from penstock.formats.rows_in_files import FileRows, version_of
from penstock.formats.spans import FileSpans, ScannedFile, SpanField, SpanIndex, SpanOptions, SpanSource
from penstock.native import _core
from penstock.process import map_at_once
from penstock.records import Recipe, Source
from penstock.schema import Field

__all__ = ["FORMATS", "LineBlocks", "LineOrigin", "LineShard", "LineShards", "TextForm"]

FORMATS = {"json": "", "csv": ",", "tsv": "\t", "xsv": ""}
"""The formats, and what is between their cells, unless the index says so."""

FIELDS = {"str": Field.text(), "int": Field("int64"), "float": Field("float64")}
OFFSET = np.dtype("<u4")
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
        """As the index says."""
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
        """Fields of lines."""
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
            if file.size != size:
                kind = TruncatedError if file.size < size else TrailingBytesError
                raise kind(f"{file}: expected {size} bytes, as index.json says, found {file.size}")

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


class LineShards(SpanSource):
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

    def native_reader(self, field: str) -> None:
        """Lines are parsed."""

    def lengths(self, field: str, ids: Any) -> IntArray:
        return Source.lengths(self, field, ids)

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
