"""LitData's chunks: what ``litdata.optimize`` writes.

::

    index.json  = {"chunks": [{filename, chunk_bytes, chunk_size: items n, dim: tokens}, ...],
                   "config": {compression, encryption, data_format: [serializer of each leaf, ...], data_spec: tree of the leaves,
                              item_loader: "PyTreeLoader" | "TokensLoader", ...}}
    chunk       = n u32 | offsets in the chunk u32 x (n + 1) | item after item
    item        = bytes u32 of every leaf | the leaves;    with TokensLoader: the tokens
    compressed  = a zstd frame of the chunk, or a chunk whose items are zstd frames, or, in batches of items:
                  "LDFZ01\0\0" | version u16 | flags u16 | n u32 | items of a frame u32 | frames u32 | offsets u32 x (n + 1) |
                  frame* | zstd frames;    frame = first item u32, items u32, offset u64, bytes u32, decompressed bytes u32
    rows        = n u32 | offsets | Arrow file | its bytes u32 | "LDARW01\0"    where items are dicts of texts, numbers and lists

An item is what the function of the user yielded. Its leaves are fields, named by their way through dicts and lists (``a.b``,
``0``), or ``data``. Leaves that are lists and dicts are JSON texts. An item of the TokensLoader is a document. Rows have the fields
of their Arrow file. Leaves that are lists and dicts of any shape::

    leaf        = value, or its JSON (of old versions: the first byte is above 0x20)
    value       = 0 size u32, JSON | 1 n u32, (size u32, text) x n | 2 n u32, i64 x n | 3 n u32, f64 x n | 4 n u32, u8 x n |
                  5 n u32, (size u32, key, value) x n | 6 n u32, k u32, (size u32, key) x k, cell x (n k) |
                  7 size u32, text | 8 i64 | 9 f64 | 10 u8 | 11
    cell        = 0x10 | 0x11 size u32, text | 0x12 i64 | 0x13 f64 | 0x14 u8

1 to 4 are lists of texts, whole numbers, floats and truth values, 5 is a dict, 6 a list of dicts with the same keys, 7 to 10 single
values, 11 and 0x10 nothing.
"""

import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.algebra import View
from penstock.argument import IntArray, byte_size
from penstock.batch import Batch, Outputs, Ragged
from penstock.errors import (
    BatchTooLargeError,
    CorruptError,
    EmptySourceError,
    FormatError,
    SourceChangedError,
    TruncatedError,
    UnsafePathError,
    UnsupportedTypeError,
    UnsupportedVersionError,
)
from penstock.fingerprint import fingerprint_of
from penstock.formats.arrow import Decoding, Group, GroupSource
from penstock.formats.arrow_file import (
    ArrowField,
    Fields,
    find_nulls,
    mapped_bytes,
    measure_batches,
    need_agreement,
    plain_fields,
    read_batch,
    read_row_counts,
    read_schema,
    translated,
    with_nullable,
)
from penstock.formats.arrow_file import (
    choose as choose_columns,
)
from penstock.formats.files import (
    MAX_BLOCK_BYTES,
    File,
    Files,
    FileSource,
    LocalFile,
    Names,
    RemoteFile,
    Versions,
    check_block,
    need_size,
    one_line,
    read_json,
)
from penstock.formats.packed import (
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
from penstock.formats.parquet import RangeFile
from penstock.formats.publish import copy_files
from penstock.formats.rows_in_files import FileRows, Version, default_threads, version_of
from penstock.formats.token_line import Documents, LineOptions, TokenSource
from penstock.native import _core
from penstock.process import map_at_once, need
from penstock.records import Recipe, Source
from penstock.remote.url import UrlPath
from penstock.remote.window import RemoteOptions
from penstock.row_table import OwnRows, RowTable
from penstock.schema import Field
from penstock.store.storage import as_location

__all__ = ["LitDataRows", "LitDataTokens", "NestedItems", "nested_value", "open_litdata"]

NUM, WHOLE, FLOAT = struct.Struct("<I"), struct.Struct("<q"), struct.Struct("<d")
_Kind = IntEnum("_Kind", "JSON TEXTS WHOLES FLOATS FLAGS DICT ROWS TEXT INT REAL FLAG NOTHING", start=0)
"""Kinds of nested values."""

CELLS = {0x10: _Kind.NOTHING, 0x11: _Kind.TEXT, 0x12: _Kind.INT, 0x13: _Kind.REAL, 0x14: _Kind.FLAG}
OLD = 0x20
"""Leaves that begin with a larger byte are JSON as a whole."""


def nested_value(where: str, data: bytes, max_block_bytes: int = MAX_BLOCK_BYTES) -> Any:
    """What a leaf has. CorruptError, with where it is, if it has anything else."""
    try:
        if data[:1] > bytes([OLD]):
            return json.loads(data)
        return _Reader(where, data, max_block_bytes).only_value()
    except BatchTooLargeError:
        raise
    except (ValueError, IndexError, RecursionError, struct.error) as error:
        raise CorruptError(
            f"{where}: expected a nested value, found {one_line(repr(data[:20]), 80)}: {one_line(error, 100)}"
        ) from None


class _Reader:
    """Reads values, one behind the other."""

    def __init__(self, where: str, data: bytes, max_block_bytes: int) -> None:
        self._where, self._data, self._at, self._limit = where, data, 0, max_block_bytes

    def only_value(self) -> Any:
        found = self.value()
        if self._at != len(self._data):
            raise ValueError(f"{len(self._data) - self._at} bytes behind it")
        return found

    def _take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise ValueError(f"expected {size} bytes from byte {self._at} on")
        self._at += size
        return self._data[self._at - size : self._at]

    def _byte(self) -> int:
        return self._take(1)[0]

    def _count(self, least: int = 1) -> int:
        """The number of things that follow, of at least ``least`` bytes each."""
        (count,) = NUM.unpack(self._take(NUM.size))
        if count * least > len(self._data) - self._at:
            raise ValueError(f"expected {count} things from byte {self._at} on")
        return int(count)

    def _text(self) -> str:
        return self._take(self._count()).decode()

    def _single(self, kind: int) -> Any:
        if kind == _Kind.TEXT:
            return self._text()
        if kind == _Kind.INT:
            return WHOLE.unpack(self._take(WHOLE.size))[0]
        if kind == _Kind.REAL:
            return FLOAT.unpack(self._take(FLOAT.size))[0]
        if kind == _Kind.FLAG:
            return bool(self._byte())
        if kind == _Kind.NOTHING:
            return None
        raise ValueError(f"unknown kind {kind}")

    def value(self) -> Any:
        kind = self._byte()
        if kind == _Kind.JSON:
            return json.loads(self._take(self._count()))
        if kind == _Kind.TEXTS:
            return [self._text() for _ in range(self._count(NUM.size))]
        if kind in (_Kind.WHOLES, _Kind.FLOATS):
            return np.frombuffer(self._take(8 * self._count(8)), "<i8" if kind == _Kind.WHOLES else "<f8").tolist()
        if kind == _Kind.FLAGS:
            return [bool(one) for one in self._take(self._count())]
        if kind == _Kind.DICT:
            return {self._text(): self.value() for _ in range(self._count(NUM.size + 1))}
        return self._rows() if kind == _Kind.ROWS else self._single(kind)

    def _rows(self) -> list[dict[str, Any]]:
        (count,) = NUM.unpack(self._take(NUM.size))
        keys = [self._text() for _ in range(self._count(NUM.size))]
        if not keys or count * len(keys) > len(self._data) - self._at:
            raise ValueError(f"expected {count} dicts of {len(keys)} keys from byte {self._at} on")
        check_block(self._where, count * sum(map(len, keys)), len(self._data), self._limit)  # keys are written once
        return [{key: self._single(CELLS.get(self._byte(), -1)) for key in keys} for _ in range(count)]


class NestedItems(View):
    """Items some of whose leaves are nested: those are JSON texts, the others as they are."""

    def __init__(self, source: Source, nested: Sequence[str], where: str, max_block_bytes: int) -> None:
        """``source`` gives the bytes of the nested ones; ``where`` is its name in messages."""
        self._source, self._nested, self._name, self._limit = source, tuple(nested), where, max_block_bytes

    @property
    def schema(self) -> Mapping[str, Field]:
        return {
            name: Field.text(nullable=field.nullable) if name in self._nested else field
            for name, field in self._source.schema.items()
        }

    def _digest(self, source: str) -> str:
        return fingerprint_of("litdata nested", self._nested, source)

    @property
    def behind(self) -> Source:
        return self._source

    @property
    def max_batch_bytes(self) -> int | None:
        return self._source.max_batch_bytes

    def row_tables(self) -> Mapping[str, tuple[RowTable, str]]:
        """The nested leaves are read here, the others where they are."""
        own, tables = OwnRows(self), self._source.row_tables()
        return {name: (own, name) if name in self._nested else tables[name] for name in self.schema}

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        found = dict(self._source.read(ids, fields, {name: out[name] for name in out if name in fields}))
        for name in fields:
            if name in self._nested:
                found[name] = self._texts(name, ids, found[name])
        return found

    def _texts(self, name: str, ids: IntArray, column: Ragged) -> Ragged:
        texts = []
        for record, data in zip(ids.tolist(), column, strict=True):
            value = nested_value(f"{self._name}: item {record}: leaf {one_line(name, 100)}", data, self._limit)
            texts.append(_as_json(value))
        return Ragged.from_items(texts, dtype=np.uint8, kind="text")

    def _recipe(self) -> Recipe:
        return NestedItems, (self._source, self._nested, self._name, self._limit)


def _as_json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if text.isascii() or _is_unicode(text) else json.dumps(value, separators=(",", ":"))


def _is_unicode(text: str) -> bool:
    """Whether there is no half of a character in it, which JSON may have, and UTF-8 may not."""
    return not any(0xD800 <= ord(letter) < 0xE000 for letter in text)


INDEX = "index.json"
INDEX_BYTES = 256 << 20
PIECE = 1 << 20
ROWS = b"LDARW01\0"
"""The end of chunks whose items are rows of an Arrow file."""

ZSTD_HEAD = 18
"""Bytes of the longest header of a zstd frame."""

LEVELS = ("chunk", "batch", "sample")
"""What may be compressed: whole chunks, batches of their items, or each item."""

FRAMED_MAGIC, FRAMED = b"LDFZ01\0\0", struct.Struct("<8sHHIII")
FRAME = np.dtype([("first", "<u4"), ("items", "<u4"), ("at", "<u8"), ("bytes", "<u4"), ("raw", "<u4")])
"""A batch: its first item, its items, where its zstd frame is, the bytes of that, and when it is decompressed."""

TENSORS = {0: "<f4", 1: "<f4", 2: "<f8", 3: "<f8", 8: "<f2", 9: "<f2", 11: "u1", 12: "i1", 13: "<i2", 14: "<i2"}
TENSORS |= {15: "<i4", 16: "<i4", 17: "<i8", 18: "<i8", 20: "<u2"}
ARRAYS = dict(enumerate(("i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8")))
"""Types of tokens by their numbers in the table of LitData, of tensors and of arrays."""

LEAF_TENSORS = TENSORS | {4: "<c8", 5: "<c8", 6: "<c16", 7: "<c16", 10: "bf16", 19: "?"}
LEAF_ARRAYS = dict(enumerate((*ARRAYS.values(), "<f2", "<f4", "<f8", "<c8", "<c16", "?")))
"""The same of leaves."""

NUMBERS = {"int": "<i8", "float": "<f8", "bool": "?"}
TEXTS = ("str", "text")
BYTES = ("bytes", "jpeg", "jpeg_array", "pil", "image", "video", "audio", "file", "tiff", "tifffile", "nifti", "mesh", "pdf")
"""Leaves that are stored as they were, or as the files they were."""

NESTED = "json"
"""Leaves that are lists and dicts."""


def _has_tokens(config: object) -> bool:
    """Whether the configuration is one of tokens. Indices of old versions do not name the loader."""
    if not isinstance(config, dict):
        return False
    layout = config.get("data_format")
    is_plain = isinstance(layout, list) and len(layout) == 1 and str(layout[0]).startswith("no_header_")
    return is_plain and config.get("item_loader", "TokensLoader") == "TokensLoader"


def open_litdata(
    what: Names,
    *,
    field: str = "tokens",
    fields: Fields | None = None,
    threads: int | None = None,
    io: str = "auto",
    max_block_bytes: int | str = MAX_BLOCK_BYTES,
    kept_bytes: int | str = KEPT_BYTES,
    remote: RemoteOptions | None = None,
) -> "LitDataTokens | LitDataRows | PackedSource | PackedBlocks | NestedItems":
    """A directory of chunks, or the objects under a URL, in the order of its index.

    ``field`` is the name of tokens. Of other items, ``fields`` are the wanted leaves, or a dict of new names and leaves. A chunk
    that is compressed is decompressed when one of its items is read: one that claims to be more than ``max_block_bytes`` is
    refused, unless it is stored in a 64th of its bytes or more; ``kept_bytes`` of them are kept.
    """
    where = as_location(what) if isinstance(what, str) else what
    index: File = RemoteFile(where / INDEX) if isinstance(where, UrlPath) else LocalFile(where / INDEX)  # type: ignore[operator]
    content = _content(index)
    if _has_tokens(content["config"]):
        if fields is not None:
            raise ValueError(f"{index}: token chunks have one field: fields must not be given, field= is its name")
        return LitDataTokens(_files(index, _tokens_content(index)), field, default_threads(threads), io, remote)
    limits = byte_size("max_block_bytes", max_block_bytes), byte_size("kept_bytes", kept_bytes)
    files = _files(index, content)
    if len(files) > 1 and files[1].last(len(ROWS)) == ROWS:
        objects = [file for file in files if isinstance(file, RemoteFile)]
        if objects:
            files = Files.on_disk(map(str, copy_files("LitData's rows", objects, remote or RemoteOptions())))
        return LitDataRows(files, plain_fields(fields), Decoding(default_threads(threads), *reversed(limits)))
    return _open_items(files, plain_fields(fields), (default_threads(threads), io, remote), limits)


def _files(index: File, content: Mapping[str, Any]) -> Files:
    """The index, and the chunks that it names."""
    names = [_text(index, chunk, "filename") for chunk in content["chunks"]]
    for name in names:
        if not name or name in (".", "..") or any(letter in name for letter in "/\\\0"):
            raise UnsafePathError(f"{index}: expected the name of a chunk next to it, found {name[:100]!r}")
    if not names:
        raise EmptySourceError(f"{index}: expected at least one chunk, found none")
    if isinstance(index, RemoteFile):
        return Files([index, *(RemoteFile(index.path.parent / name) for name in names)])
    return Files([index, *(LocalFile(index.path.with_name(name)) for name in names)])


def _content(index: File) -> dict[str, Any]:
    content = read_json(index, INDEX_BYTES)[1]
    if not isinstance(content.get("chunks"), list) or not isinstance(content.get("config"), dict):
        raise FormatError(f"{index}: expected the index of chunks of LitData, with chunks and a config")
    if content["config"].get("encryption") is not None:
        raise UnsupportedTypeError(f"{index}: chunks with encryption are not read: write them without")
    return content


def _tokens_content(index: File) -> dict[str, Any]:
    content = _content(index)
    if not _has_tokens(content["config"]):
        raise FormatError(f"{index}: expected the index of token chunks of LitData, with a config of TokensLoader")
    if content["config"].get("compression") is not None:
        raise UnsupportedTypeError(f"{index}: token chunks with compression are not read: write them without")
    return content


def _text(index: File, chunk: object, key: str) -> str:
    value = chunk.get(key) if isinstance(chunk, Mapping) else None
    if not isinstance(value, str):
        raise FormatError(f"{index}: expected a text as {key} of a chunk, found {str(value)[:100]!r}")
    return value


def _count(index: File, chunk: Mapping[str, Any], key: str) -> int:
    value = chunk.get(key)
    if value is None and key == "dim":  # of a chunk of empty items
        return 0
    if type(value) is not int or not 0 <= value < 2**62:
        raise FormatError(f"{index}: expected a count as {key} of a chunk, found {str(value)[:100]!r}")
    return value


def _dtype(index: File, config: Mapping[str, Any]) -> np.dtype[Any]:
    kind, _, number = str(config["data_format"][0]).partition(":")
    table = {"no_header_tensor": TENSORS, "no_header_numpy": ARRAYS}.get(kind, {})
    if not number.isdigit() or len(number) > 3 or int(number) not in table:
        raise UnsupportedTypeError(f"{index}: expected the type of tokens in data_format, found {str(config['data_format'])[:100]}")
    return np.dtype(table[int(number)])


@dataclass(frozen=True)
class _Chunk:
    """What the index says of a chunk, checked against its size."""

    file: File
    size: int
    version: Version | None
    items: int
    tokens: int

    @property
    def data(self) -> int:
        """Where the tokens begin."""
        return OFFSET.itemsize * (self.items + 2)


def _look(files: Files) -> tuple[np.dtype[Any], list[_Chunk]]:
    index, *chunks = files
    content = _tokens_content(index)
    if len(content["chunks"]) != len(chunks):
        raise SourceChangedError(f"{index}: the file was changed while it was read; open it again")
    dtype = _dtype(index, content["config"])
    told = [
        (file, _count(index, one, "chunk_size"), _count(index, one, "dim"))
        for file, one in zip(chunks, content["chunks"], strict=True)
    ]
    return dtype, list(map_at_once(lambda one: _look_at(*one, dtype), told, are_remote=files.is_remote))


def _look_at(file: File, items: int, tokens: int, dtype: np.dtype[Any]) -> _Chunk:
    version, head = version_of(file), file.first(2 * OFFSET.itemsize)
    chunk = _Chunk(file, file.size, version, items, tokens)
    whole = chunk.data + tokens * dtype.itemsize
    need_size(file, chunk.size, whole, f" for {items} items of {tokens} tokens of {dtype}")
    found = np.frombuffer(head, OFFSET).tolist()
    if found != [items, chunk.data]:
        raise FormatError(f"{file}: expected {items} items from byte {chunk.data} on, as {INDEX} says, found {found}")
    return chunk


class LitDataTokens(TokenSource):
    """The items of token chunks, one chunk after the other, as one ragged field."""

    def __init__(self, files: Files, field: str, threads: int, io: str, remote: RemoteOptions | None) -> None:
        dtype, chunks = files.once("litdata", lambda: _look(files))
        self._chunks: Sequence[_Chunk] = chunks
        counts, tokens = [chunk.items for chunk in chunks], [chunk.tokens for chunk in chunks]
        parts = [FileRows.of(chunk.file, chunk.size, chunk.data, chunk.tokens, chunk.version) for chunk in chunks]
        documents = Documents(counts, tokens, self._load, are_remote=files.is_remote)
        super().__init__(files, parts, counts, documents, LineOptions(field, dtype, threads, io, remote))

    def _load(self, number: int, ends: IntArray) -> None:
        chunk, item = self._chunks[number], self._stored.itemsize
        if version_of(chunk.file) != chunk.version:
            raise SourceChangedError(f"{chunk.file}: the file was changed after it was opened; open it again")
        last = chunk.data
        for low in range(0, chunk.items, PIECE):
            high = min(low + PIECE, chunk.items)
            raw = chunk.file.read(OFFSET.itemsize * (low + 2), OFFSET.itemsize * (high + 2))
            if len(raw) < OFFSET.itemsize * (high - low):
                raise TruncatedError(f"{chunk.file}: the file was cut while it was read; open it again")
            offsets = np.frombuffer(raw, OFFSET).astype(np.int64)
            before = np.concatenate([[last], offsets[:-1]])
            bad = np.flatnonzero((offsets < before) | (offsets > chunk.size) | ((offsets - chunk.data) % item != 0))
            if bad.size:
                raise FormatError(
                    f"{chunk.file}: expected item {low + bad[0]} to end between bytes {before[bad[0]]} and {chunk.size}, behind a "
                    f"whole {self._stored}, found {offsets[bad[0]]}"
                )
            ends[low:high] = (offsets - chunk.data) // item
            last = int(offsets[-1])
        if last != chunk.size:
            raise FormatError(f"{chunk.file}: expected the last item to end at byte {chunk.size}, found {last}")

    def _name_in_file(self, part: int, number: int) -> str:
        return f"{self._chunks[part].file}[{number}]"

    def _identity(self) -> tuple[Any, ...]:
        return "litdata", self._name

    def _recipe(self) -> Recipe:
        return (LitDataTokens, (self._files, self._name, *self._options))


# Items of leaves


def _open_items(
    files: Files, fields: Fields | None, options: tuple[int, str, RemoteOptions | None], limits: tuple[int, int]
) -> PackedSource | PackedBlocks | NestedItems:
    source, layout = _packed_items(files, fields, options, limits)
    nested = [name for name, number in layout.chosen.items() if layout.columns[number].encoding == NESTED]
    return NestedItems(source, nested, str(files[0]), limits[0]) if nested else source


def _packed_items(
    files: Files, fields: Fields | None, options: tuple[int, str, RemoteOptions | None], limits: tuple[int, int]
) -> tuple[PackedSource | PackedBlocks, PackedLayout]:
    columns, parts, level = files.once("items", lambda: _look_at_items(files))
    decompression = None if level is None else Decompression("zstd", *limits)
    if level in ("sample", "batch"):
        decompression = ItemDecompression(level, *limits)
    first = partial(first_values, parts, columns, 2 * OFFSET.itemsize, decompression)
    columns = with_types(files, columns, fields, first, _with_type)
    layout = choose(files[0], columns, fields)
    origin = PackedOrigin(options, ("litdata items", fields), (_open_packed, (files, fields, options, limits)))
    if decompression is None:
        return PackedSource(files, parts, layout, origin), layout
    return PackedBlocks(files, parts, layout, origin, decompression), layout


def _open_packed(*arguments: Any) -> PackedSource | PackedBlocks:
    """What a pickle calls: the leaves as they are stored."""
    return _packed_items(*arguments)[0]


def _look_at_items(files: Files) -> tuple[list[PackedColumn], list[PackedFile], str | None]:
    """The leaves, the chunks, and what of them is compressed."""
    index, *chunks = files
    content = _content(index)
    if len(content["chunks"]) != len(chunks):
        raise SourceChangedError(f"{index}: the file was changed while it was read; open it again")
    config = content["config"]
    if config.get("item_loader") == "TokensLoader":
        raise FormatError(f"{index}: expected tokens of LitData, of TokensLoader, found {ascii(config.get('data_format'))[:100]}")
    if config.get("item_loader", "PyTreeLoader") != "PyTreeLoader":
        raise UnsupportedTypeError(
            f"{index}: expected items of PyTreeLoader or TokensLoader, found {ascii(config['item_loader'])[:100]}: write them again"
        )
    codec, level = config.get("compression"), config.get("compression_level") or "chunk"
    if codec is not None and (str(codec).partition(":")[0] != "zstd" or level not in LEVELS):
        raise UnsupportedTypeError(
            f"{index}: expected chunks compressed with zstd by {', '.join(LEVELS)}, found {ascii(codec)[:100]} by "
            f"{ascii(level)[:100]}: write them so, or without compression"
        )
    told = [(file, _count(index, one, "chunk_size")) for file, one in zip(chunks, content["chunks"], strict=True)]
    parts = map_at_once(lambda one: _look_at_chunk(*one, None if codec is None else level), told, are_remote=files.is_remote)
    return _leaves(index, config), list(parts), None if codec is None else level


def _look_at_chunk(file: File, items: int, level: str | None) -> PackedFile:
    version, head = version_of(file), file.first(max(ZSTD_HEAD, FRAMED.size))
    size = file.size
    if level is None:
        part = PackedFile(file, size, version, items)
        part.check(head[: 2 * OFFSET.itemsize])
        if isinstance(file, LocalFile):  # at URLs with the rest of the table, when it is needed
            part.check_end(file.read(*part.last_offset))
        return part
    if level == "sample":  # only its items say what they are, decompressed
        return PackedFile(file, 2**32 - 1, version, items, size)
    if level == "batch":
        _, _, _, count, _, _ = _framed_head(file, head)
        last = FRAMED.size + OFFSET.itemsize * items
        table = file.read(last, last + OFFSET.itemsize) if count == items and last + OFFSET.itemsize <= size else b""
        if len(table) < OFFSET.itemsize:
            raise FormatError(f"{file}: expected offsets of {items} items, as {INDEX} says, found {count}")
        return PackedFile(file, TABLE + OFFSET.itemsize * (items + 1) + int.from_bytes(table, "little"), version, items, size)
    content = _core.zstd_content_bytes(np.frombuffer(head[:ZSTD_HEAD], np.uint8))
    if content < 0:
        raise FormatError(f"{file}: expected a zstd frame that says how many bytes it has, found {head[:8]!r}")
    return PackedFile(file, content, version, items, size)


def _framed_head(file: File, head: bytes) -> tuple[bytes, int, int, int, int, int]:
    """The head of a chunk whose items are compressed in batches."""
    found = FRAMED.unpack(head[: FRAMED.size]) if len(head) >= FRAMED.size else (b"", 0, 0, 0, 0, 0)
    if found[0] != FRAMED_MAGIC:
        raise FormatError(f"{file}: expected {FRAMED_MAGIC!r} first, found {head[:8]!r}")
    if found[1:3] != (1, 0):
        raise UnsupportedVersionError(f"{file}: expected version 1 of compressed batches, found {found[1]} with flags {found[2]}")
    magic, version, flags, items, rows, frames = found
    return magic, version, flags, items, rows, frames


@dataclass(frozen=True)
class ItemDecompression(Decompression):
    """Chunks whose items are compressed one by one ("sample") or in batches ("batch"), as the plain chunks that they stand for.
    ``codec`` is which.
    """

    def decompress_file(self, part: PackedFile, stored: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        table = TABLE + OFFSET.itemsize * (part.records + 1)
        sizes, spans = (self._samples if self.codec == "sample" else self._frames)(part, stored)
        ends = np.cumsum([table, *sizes])
        if ends[-1] >= 2**32:
            raise FormatError(f"{part.file}: expected items of less than 4 GiB, found {ends[-1]} bytes")
        check_block(str(part.file), int(ends[-1]), part.stored_bytes, self.max_block_bytes)
        raw = np.empty(int(ends[-1]), np.uint8)
        raw[:table].view(OFFSET)[:] = [part.records, *ends.tolist()]
        for start, stop, low, high in spans:
            if not _core.decompress_zstd(stored[start:stop], raw[table + low : table + high]):
                raise CorruptError(f"{part.file}: expected a zstd frame of {high - low} bytes at {start}, found something else")
        return raw

    def _samples(self, part: PackedFile, stored: npt.NDArray[np.uint8]) -> tuple[list[int], list[tuple[int, int, int, int]]]:
        """Bytes of items, and of every frame where it is, and where what it has is among the items."""
        plain = replace(part, size=part.stored_bytes)
        plain.check(stored[: 2 * OFFSET.itemsize].tobytes())
        offsets = stored[TABLE : TABLE + OFFSET.itemsize * (part.records + 1)].view(OFFSET).astype(np.int64)
        if np.any(offsets[1:] < offsets[:-1]) or offsets[-1] != part.stored_bytes:
            raise FormatError(f"{part.file}: expected rising offsets up to {part.stored_bytes}, found others")
        edges = offsets.tolist()
        sizes = [_core.zstd_content_bytes(stored[low : min(high, low + ZSTD_HEAD)]) for low, high in pairwise(edges)]
        if min(sizes, default=0) < 0 or max(sizes, default=0) >= 2**32:
            raise FormatError(f"{part.file}: expected zstd frames that say how many bytes they have, found others")
        ends = np.cumsum([0, *sizes]).tolist()
        return sizes, [(*here, *there) for here, there in zip(pairwise(edges), pairwise(ends), strict=True)]

    def _frames(self, part: PackedFile, stored: npt.NDArray[np.uint8]) -> tuple[list[int], list[tuple[int, int, int, int]]]:
        _, _, _, items, _, count = _framed_head(part.file, stored[: FRAMED.size].tobytes())
        first = FRAMED.size + OFFSET.itemsize * (part.records + 1)
        if items != part.records or first + count * FRAME.itemsize > stored.size:
            raise FormatError(f"{part.file}: expected {part.records} items and their frames, found {items} in {count} frames")
        offsets = stored[FRAMED.size : first].view(OFFSET).astype(np.int64)
        frames = stored[first : first + count * FRAME.itemsize].view(FRAME)
        starts, stops = frames["at"].astype(np.uint64), frames["at"] + frames["bytes"]
        ends = np.cumsum(frames["items"], dtype=np.int64)
        is_right = (
            offsets[0] == 0
            and not np.any(offsets[1:] < offsets[:-1])
            and np.array_equal(frames["first"], np.concatenate([[0], ends[:-1]]) if count else [])
            and (int(ends[-1]) if count else 0) == part.records
            and not np.any((starts > stored.size) | (stops > stored.size) | (stops < starts))
            and np.array_equal(np.diff(offsets[np.concatenate([[0], ends])]), frames["raw"])
        )
        if not is_right:
            raise FormatError(f"{part.file}: expected frames of all items, one after the other, found others")
        edges = offsets[np.concatenate([[0], ends])].tolist()
        return np.diff(offsets).tolist(), [
            (start, stop, *there) for start, stop, there in zip(starts.tolist(), stops.tolist(), pairwise(edges), strict=True)
        ]


def _leaves(index: File, config: Mapping[str, Any]) -> list[PackedColumn]:
    """The leaves of items as columns; those of arrays whose type is in the items have no field yet."""
    formats = config.get("data_format")
    if not isinstance(formats, list) or not formats or not all(isinstance(one, str) for one in formats):
        raise FormatError(f"{index}: expected the serializers of leaves as data_format, found {ascii(formats)[:100]}")
    names = _leaf_names(index, config.get("data_spec"), len(formats))
    return [_leaf(name, encoding) for name, encoding in zip(names, formats, strict=True)]


def _leaf(name: str, encoding: str) -> PackedColumn:
    kind, _, number = encoding.partition(":")
    types = {"no_header_tensor": LEAF_TENSORS, "no_header_numpy": LEAF_ARRAYS}.get(kind, {})
    form, field = ArrayForm.PLAIN, None
    if encoding in NUMBERS:
        field = Field(NUMBERS[encoding])
    elif kind in TEXTS:
        field = Field.text()
    elif kind in BYTES or encoding == NESTED:
        field = Field.bytes()
    elif number.isdecimal() and len(number) < 4 and int(number) in types:
        field = Field.ragged(types[int(number)])
    elif encoding in ("numpy", "tensor"):
        form = ArrayForm.WORDS
    return PackedColumn(name, encoding, field.stride if field is not None and field.is_fixed else -1, True, field, form)


def _with_type(index: File, column: PackedColumn, head: bytes | None) -> PackedColumn:
    """A leaf of arrays, as the first item has it."""
    if head is None:
        raise EmptySourceError(f"{index}: expected an item, which says what arrays leaf {ascii(column.name)[:100]} has, found none")
    types = LEAF_TENSORS if column.encoding == "tensor" else LEAF_ARRAYS
    for order in "<>":  # newer versions write the heads of tensors in the other byte order
        found = np.frombuffer(head.ljust(8, b"\xff")[:8], f"{order}u4").tolist()
        code, ndim = found
        if code in types and ndim <= 32:
            field = Field.ragged(types[code], ndim) if ndim else Field(types[code])
            return replace(column, field=field, code=code)
    raise UnsupportedTypeError(
        f"{index}: expected arrays of a known type with at most 32 dimensions in leaf {ascii(column.name)[:100]}, found type "
        f"{code} with {ndim} in the first item; choose the other leaves: fields=[...]"
    )


def _leaf_names(index: File, spec: object, count: int) -> list[str]:
    """The ways to the leaves of a tree, as torch writes it: {"type", "context": keys, "children_spec"}."""
    if spec is None and count == 1:
        return ["data"]
    try:
        tree = json.loads(spec) if isinstance(spec, str) else None
        names = list(_ways(tree[1])) if isinstance(tree, list) and len(tree) == 2 else []
    except (ValueError, TypeError, KeyError, RecursionError):
        names = []
    plain = [".".join(way) or "data" for way in names]
    if len(plain) != count or len(set(plain)) != count:
        raise FormatError(
            f"{index}: expected a tree of {count} leaves with names of their own as data_spec, found {ascii(spec)[:200]}"
        )
    return plain


def _ways(node: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if node["type"] is None:
        yield above
        return
    children = node["children_spec"]
    keys = json.loads(node["context"]) if "dict" in node["type"].lower() else None
    names = keys if isinstance(keys, list) and len(keys) == len(children) else range(len(children))
    for name, child in zip(names, children, strict=True):
        yield from _ways(child, (*above, str(name)))


# Rows


class LitDataRows(FileSource, GroupSource):
    """Items that are rows of an Arrow file within each chunk. A group is a record batch."""

    def __init__(self, files: Files, fields: Fields | None, decoding: Decoding) -> None:
        self._files, self._fields = files, fields
        index, *chunks = files
        content = _content(index)
        if len(content["chunks"]) != len(chunks):
            raise SourceChangedError(f"{index}: the file was changed while it was read; open it again")
        self._versions = Versions(chunks)
        self._spans: dict[str, tuple[int, int]] = {}
        first: dict[str, ArrowField] = {}
        nullable: set[str] = set()
        counts: list[tuple[str, list[int]]] = []
        for file, told in zip(chunks, content["chunks"], strict=True):
            path = str(file)
            low, high = self._spans[path] = _rows_in(file, _count(index, told, "chunk_size"))
            with translated(path), mapped_bytes(path) as whole:
                rows = whole[low:high]
                leaves = choose_columns(read_schema(False, rows), fields, path)
                first = first or leaves
                need_agreement(first, leaves, (str(chunks[0]), path), exact=False)
                sizes = read_row_counts(False, rows)
                nullable |= find_nulls(False, rows, leaves)
            if sum(sizes) != told["chunk_size"]:
                raise FormatError(f"{path}: expected {told['chunk_size']} rows, as {INDEX} says, found {sum(sizes)}")
            counts.append((path, sizes))
        super().__init__(with_nullable(first, nullable), counts, decoding)

    def _measure(self, group: Group, leaves: Sequence[ArrowField]) -> tuple[int, int]:
        self._versions.check(group.path)
        return measure_batches(group.path, group.number, self._spans[group.path])

    def _decode(self, group: Group, leaf: ArrowField) -> list[Any]:
        low, high = self._spans[group.path]
        pa, name = need("pyarrow", "arrow"), leaf.path[0]
        with open(group.path, "rb", buffering=0) as file:
            rows = RangeFile(high - low, lambda start, stop: os.pread(file.fileno(), stop - start, low + start))
            found = read_batch(pa.PythonFile(rows, "r"), group.number, [name]).column(name)
        self._versions.check(group.path)
        if leaf.is_json:
            found.validate(full=True)  # Arrow itself reads it, and trusts it
        return [found]

    def _identity(self) -> tuple[Any, ...]:
        return "litdata rows", self._fields

    def _recipe(self) -> Recipe:
        return (LitDataRows, (self._files, self._fields, self._decoding))


def _rows_in(file: File, items: int) -> tuple[int, int]:
    """Where the Arrow file of a chunk is."""
    size, tail = file.size, file.last(OFFSET.itemsize + len(ROWS))
    stop, least = size - len(tail), TABLE + OFFSET.itemsize * (items + 1)
    start = stop - int.from_bytes(tail[: OFFSET.itemsize], "little")
    if not tail.endswith(ROWS) or not least <= start < stop:
        raise FormatError(f"{file}: expected {items} items in an Arrow file up to byte {stop}, as in the first chunk, found none")
    if int.from_bytes(file.read(0, TABLE), "little") != items:
        raise FormatError(f"{file}: expected {items} items, as {INDEX} says, found another count")
    return start, stop
