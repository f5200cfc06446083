"""LitData's chunks: what ``litdata.optimize`` writes.

::

    index.json  = {"chunks": [{filename, chunk_bytes, chunk_size: items n, dim: tokens}, ...],
                   "config": {compression, encryption, data_format: [serializer of each leaf, ...], data_spec: tree of the leaves,
                              item_loader: "PyTreeLoader" | "TokensLoader", ...}}
    chunk       = n u32 | offsets in the chunk u32 x (n + 1) | item after item
    item        = bytes u32 of every leaf | the leaves;    with TokensLoader: the tokens

An item is what the function of the user yielded. Its leaves are fields, named by their way through dicts and lists (``a.b``,
``0``), or ``data``. An item of the TokensLoader is a document.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.argument import IntArray, byte_size
from penstock.errors import (
    EmptySourceError,
    FormatError,
    SourceChangedError,
    TrailingBytesError,
    TruncatedError,
    UnsafePathError,
    UnsupportedTypeError,
)
from penstock.formats.arrow_file import Fields, plain_fields
from penstock.formats.files import MAX_BLOCK_BYTES, File, Files, LocalFile, Names, RemoteFile
from penstock.formats.packed import (
    KEPT_BYTES,
    OFFSET,
    ArrayForm,
    Decompression,
    PackedBlocks,
    PackedColumn,
    PackedFile,
    PackedOrigin,
    PackedSource,
    choose,
    first_values,
)
from penstock.formats.rows_in_files import FileRows, Version, default_threads, version_of
from penstock.formats.token_line import Documents, LineOptions, TokenSource
from penstock.native import _core
from penstock.process import map_at_once
from penstock.records import Recipe
from penstock.remote.url import UrlPath
from penstock.remote.window import RemoteOptions
from penstock.schema import Field
from penstock.store.storage import as_location

__all__ = ["INDEX", "LitDataTokens", "open_litdata"]

INDEX = "index.json"
INDEX_BYTES = 256 << 20
PIECE = 1 << 20
ROWS = b"LDARW01\0"
"""The end of chunks whose items are rows of an Arrow file."""

ZSTD_HEAD = 18
"""Bytes of the longest header of a zstd frame."""

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
) -> "LitDataTokens | PackedSource | PackedBlocks":
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
    return _open_items(_files(index, content), plain_fields(fields), (default_threads(threads), io, remote), limits)


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
    size = index.size
    if size > INDEX_BYTES:
        raise FormatError(f"{index}: expected an index of at most {INDEX_BYTES} bytes, found {size}")
    try:
        content = json.loads(index.read(0, size))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{index}: expected JSON, found something else") from error
    if not isinstance(content, dict) or not isinstance(content.get("chunks"), list) or not isinstance(content.get("config"), dict):
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
        raise SourceChangedError(f"{index}: the file was changed while it was read; open it anew")
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
    if chunk.size != whole:
        kind = TruncatedError if chunk.size < whole else TrailingBytesError
        raise kind(f"{file}: expected {whole} bytes for {items} items of {tokens} tokens of {dtype}, found {chunk.size}")
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
            raise SourceChangedError(f"{chunk.file}: the file was changed after it was opened; open it anew")
        last = chunk.data
        for low in range(0, chunk.items, PIECE):
            high = min(low + PIECE, chunk.items)
            raw = chunk.file.read(OFFSET.itemsize * (low + 2), OFFSET.itemsize * (high + 2))
            if len(raw) < OFFSET.itemsize * (high - low):
                raise TruncatedError(f"{chunk.file}: the file was cut while it was read; open it anew")
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
) -> PackedSource | PackedBlocks:
    columns, parts, codec = files.once("items", lambda: _look_at_items(files))
    decompression = None if codec is None else Decompression(codec, *limits)
    wanted = (
        [column.name for column in columns] if fields is None else list(fields.values() if isinstance(fields, dict) else fields)
    )
    if any(column.form != ArrayForm.PLAIN and column.name in wanted for column in columns):
        heads = files.once("arrays", lambda: first_values(parts, columns, 2 * OFFSET.itemsize, decompression))
        columns = [_with_type(files[0], column, heads, wanted) for column in columns]
    layout = choose(files[0], columns, fields)
    origin = PackedOrigin(options, ("litdata items", fields), (_open_items, (files, fields, options, limits)))
    if decompression is None:
        return PackedSource(files, parts, layout, origin)
    return PackedBlocks(files, parts, layout, origin, decompression)


def _look_at_items(files: Files) -> tuple[list[PackedColumn], list[PackedFile], str | None]:
    """The leaves, the chunks, and how they are compressed."""
    index, *chunks = files
    content = _content(index)
    if len(content["chunks"]) != len(chunks):
        raise SourceChangedError(f"{index}: the file was changed while it was read; open it anew")
    config = content["config"]
    if config.get("item_loader") == "TokensLoader":
        raise FormatError(f"{index}: expected tokens of LitData, of TokensLoader, found {ascii(config.get('data_format'))[:100]}")
    if config.get("item_loader", "PyTreeLoader") != "PyTreeLoader":
        raise UnsupportedTypeError(
            f"{index}: expected items of PyTreeLoader or TokensLoader, found {ascii(config['item_loader'])[:100]}: write them anew"
        )
    codec, level = config.get("compression"), config.get("compression_level")
    if codec is not None and (str(codec).partition(":")[0] != "zstd" or level not in (None, "chunk")):
        raise UnsupportedTypeError(
            f"{index}: expected chunks compressed as a whole with zstd, found {ascii(codec)[:100]} by {ascii(level)[:100]}: write "
            "them with compression_level='chunk', or without compression"
        )
    told = [(file, _count(index, one, "chunk_size")) for file, one in zip(chunks, content["chunks"], strict=True)]
    _refuse_rows(index, chunks[0])
    parts = map_at_once(lambda one: _look_at_chunk(*one, codec is not None), told, are_remote=files.is_remote)
    return _leaves(index, config), list(parts), None if codec is None else "zstd"


def _refuse_rows(index: File, chunk: File) -> None:
    """UnsupportedTypeError for items that newer versions put into an Arrow file at the end of a chunk: texts, numbers and lists."""
    if chunk.last(len(ROWS)) == ROWS:
        raise UnsupportedTypeError(
            f"{index}: the items are rows of an Arrow file within {chunk.name}, which is not read: read them with "
            "litdata.StreamingDataset and write them with penstock.create"
        )


def _look_at_chunk(file: File, items: int, is_zipped: bool) -> PackedFile:
    version, head = version_of(file), file.first(ZSTD_HEAD if is_zipped else 2 * OFFSET.itemsize)
    size = file.size
    if not is_zipped:
        part = PackedFile(file, size, version, items)
        part.check(head)
        if isinstance(file, LocalFile):  # at URLs with the rest of the table, when it is needed
            part.check_end(file.read(*part.last_offset))
        return part
    content = _core.zstd_content_bytes(np.frombuffer(head, np.uint8))
    if content < 0:
        raise FormatError(f"{file}: expected a zstd frame that says how many bytes it has, found {head[:8]!r}")
    return PackedFile(file, content, version, items, size)


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
    elif kind in BYTES:
        field = Field.bytes()
    elif number.isdecimal() and len(number) < 4 and int(number) in types:
        field = Field.ragged(types[int(number)])
    elif encoding in ("numpy", "tensor"):
        form = ArrayForm.WORDS
    return PackedColumn(name, encoding, field.stride if field is not None and field.is_fixed else -1, True, field, form)


def _with_type(index: File, column: PackedColumn, heads: Mapping[str, bytes], wanted: Sequence[str]) -> PackedColumn:
    """A leaf of arrays, as the first item has it."""
    if column.form == ArrayForm.PLAIN or column.name not in wanted:
        return column
    if column.name not in heads:
        raise EmptySourceError(f"{index}: expected an item, which says what arrays leaf {ascii(column.name)[:100]} has, found none")
    types = LEAF_TENSORS if column.encoding == "tensor" else LEAF_ARRAYS
    for order in "<>":  # newer versions write the heads of tensors in the other byte order
        found = np.frombuffer(heads[column.name].ljust(8, b"\xff")[:8], f"{order}u4").tolist()
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
