"""LitData's token chunks: what ``litdata.optimize(..., item_loader=TokensLoader())`` writes.

::

    index.json  = {"chunks": [{filename, chunk_bytes, chunk_size: items n, dim: tokens}, ...],
                   "config": {compression, encryption, data_format: ["no_header_tensor:<type>"], item_loader: "TokensLoader", ...}}
    chunk       = n u32 | offsets in the chunk u32 x (n + 1) | tokens, item after item

An item, what the function of the user yielded, is a document. Chunks of other loaders are not read here.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.argument import IntArray
from penstock.errors import (
    EmptySourceError,
    FormatError,
    SourceChangedError,
    TrailingBytesError,
    TruncatedError,
    UnsafePathError,
    UnsupportedTypeError,
)
from penstock.formats.files import File, Files, LocalFile, Names, RemoteFile
from penstock.formats.rows_in_files import FileRows, Version, default_threads, version_of
from penstock.formats.token_line import Documents, LineOptions, TokenSource
from penstock.process import map_at_once
from penstock.records import Recipe
from penstock.remote.url import UrlPath
from penstock.remote.window import RemoteOptions
from penstock.store.storage import as_location

__all__ = ["INDEX", "LitDataTokens", "is_token_index", "open_litdata"]

INDEX = "index.json"
INDEX_BYTES = 256 << 20
OFFSET = np.dtype("<u4")
PIECE = 1 << 20

TENSORS = {0: "<f4", 1: "<f4", 2: "<f8", 3: "<f8", 8: "<f2", 9: "<f2", 11: "u1", 12: "i1", 13: "<i2", 14: "<i2"}
TENSORS |= {15: "<i4", 16: "<i4", 17: "<i8", 18: "<i8", 20: "<u2"}
ARRAYS = dict(enumerate(("i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8")))
"""Types by their numbers in the table of LitData, of tensors and of arrays."""


def is_token_index(raw: bytes) -> bool:
    """Whether an index.json is that of token chunks."""
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and isinstance(content.get("chunks"), list) and _has_tokens(content.get("config"))


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
    threads: int | None = None,
    io: str = "auto",
    remote: RemoteOptions | None = None,
) -> "LitDataTokens":
    """A directory of token chunks, or the objects under a URL, in the order of its index."""
    where = as_location(what) if isinstance(what, str) else what
    index: File = RemoteFile(where / INDEX) if isinstance(where, UrlPath) else LocalFile(where / INDEX)  # type: ignore[operator]
    return LitDataTokens(_files(index), field, default_threads(threads), io, remote)


def _files(index: File) -> Files:
    """The index, and the chunks that it names."""
    names = [_text(index, chunk, "filename") for chunk in _content(index)["chunks"]]
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
    if not isinstance(content, dict) or not isinstance(content.get("chunks"), list) or not _has_tokens(content.get("config")):
        raise FormatError(f"{index}: expected the index of token chunks of LitData, with chunks and a config of TokensLoader")
    for what in ("compression", "encryption"):
        if content["config"].get(what) is not None:
            raise UnsupportedTypeError(f"{index}: chunks with {what} are not read: write them without")
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
    content = _content(index)
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
