"""zarr, versions 2 and 3: arrays of one first dimension as the fields of records, decoded by tensorstore.

An array is the field ``data``; those of a group are called by their paths in it. Row i of every array is record i. Rows are read a
chunk at a time, which of a sharded array is an inner one. The metadata is read here, so that nothing of it is believed before it is
checked, and tensorstore is imported when the first record is read.

At URLs, chunks come through a window, and tensorstore decodes them from memory. The listing tells which chunks there are; one that
is not listed has the fill value, as on disk. Where the inner chunks of a shard are is read when it is opened, so that only those
that are needed are fetched. What tensorstore gets is an array of the same shape whose chunks are the inner ones, in which a chunk
that should be there is an error if it is not.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, byte_size
from penstock.batch import Batch, Outputs, fixed_output
from penstock.errors import (
    BatchTooLargeError,
    CorruptError,
    FormatError,
    ReadError,
    SchemaMismatchError,
    SizeOverflowError,
    UnsupportedTypeError,
)
from penstock.fingerprint import fingerprint_of
from penstock.formats.arrow_file import Fields, plain_fields, renamed
from penstock.formats.files import MAX_BLOCK_BYTES, File, Files, LocalFile, Prefix, RemoteFile, one_line, read_json
from penstock.formats.rows_in_files import BLOCK_BYTES, default_threads, window_on
from penstock.native import _core
from penstock.process import Recent, need_unforked
from penstock.records import Blocks, Extents, Recipe, Source, by_number, joined_extents
from penstock.remote.residency import PAGE
from penstock.remote.url import UrlPath
from penstock.remote.window import RemoteFiles, RemoteOptions
from penstock.row_table import expanded
from penstock.schema import Field, Schema
from penstock.system import is_directory, is_file, names_in

__all__ = ["RemoteZarrSource", "ZarrSource", "open_zarr"]

MAX_METADATA = 16 << 20
MOST_DEEP = 8
MOST_RECORDS = 1 << 62
CACHE_BYTES = 256 << 20
"""Of decoded chunks, for all arrays of a source."""

SHOWN = 8
METADATA = ("zarr.json", ".zarray", ".zgroup")
WHOLE = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NAMES = (*WHOLE, "float16", "float32", "float64", "complex64", "complex128")


def open_zarr(
    what: str | os.PathLike[str] | Prefix,
    *,
    fields: Fields | None = None,
    threads: int | None = None,
    max_block_bytes: int | str = MAX_BLOCK_BYTES,
    remote: RemoteOptions | None = None,
) -> "ZarrSource":
    """A directory with a zarr array or group. ``fields`` are the wanted arrays, or a dict of new names and arrays; all of them
    unless given. They must have the same first dimension. One with chunks of more than ``max_block_bytes`` is refused.
    """
    limit = byte_size("max_block_bytes", max_block_bytes)
    if isinstance(what, Prefix):
        return RemoteZarrSource(what, plain_fields(fields), default_threads(threads), limit, remote or RemoteOptions())
    return ZarrSource(os.path.abspath(what), plain_fields(fields), default_threads(threads), limit)


@dataclass(frozen=True)
class ZarrArray:
    """What the metadata of an array, in a file of that name, says: shape, shape of chunks, type; and all of it."""

    path: Path | UrlPath
    file: str
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    element: str | None
    metadata: bytes

    def __str__(self) -> str:
        return f"{self.element} {list(self.shape)}"


class ZarrSource(Source):
    """The rows of zarr arrays."""

    def __init__(
        self, path: str, fields: Fields | None, threads: int, max_block_bytes: int, directory: "Directory | None" = None
    ) -> None:
        self._path, self._fields, self._threads, self._max_block_bytes = path, fields, threads, max_block_bytes
        there = dict(_arrays(Directory(Path(path)) if directory is None else directory, ()))
        self._arrays = _choose(path, there, fields)
        self._schema = {name: self._field(name, array) for name, array in self._arrays.items()}
        first = next(iter(self._arrays.values()))
        self._length = first.shape[0]
        self._rows = max(array.chunk[0] for array in self._arrays.values())
        self._open: tuple[int, dict[str, Any]] | None = None
        self._closed = False

    def _field(self, name: str, array: ZarrArray) -> Field:
        where = array.path / array.file
        size = prod(array.chunk) * np.dtype(array.element).itemsize if array.element else 0
        if array.element is None:
            raise UnsupportedTypeError(
                f"{where}: expected numbers, found another type in array {name!r}: choose the others: fields=[...]"
            )
        if size > self._max_block_bytes:
            raise BatchTooLargeError(
                f"{where}: a chunk has {size} bytes, more than the limit of {self._max_block_bytes}: if the data can be trusted, "
                "open it with a larger max_block_bytes"
            )
        try:
            field = Field(array.element, array.shape[1:])
            Schema.make({name: field})
        except ValueError as error:
            raise SizeOverflowError(f"{where}: {error}") from error
        return field

    def __len__(self) -> int:
        return self._length

    @property
    def schema(self) -> Mapping[str, Field]:
        return dict(self._schema)

    @property
    def blocks(self) -> Blocks:
        """The chunks along the first dimension; of several arrays the largest; of shards at URLs, what one request fetches."""
        return Blocks(self._length, max(1, min(self._rows, max(1, self._length))))

    @property
    def reads_blocks(self) -> bool:
        return True

    @property
    def fingerprint(self) -> str:
        """Of the metadata, and of the first, the middle and the last record."""
        ids = np.unique(np.array([0, self._length // 2, self._length - 1], np.int64)) if self._length else np.empty(0, np.int64)
        rows = self._sampled(ids)
        parts = [
            (name, hashlib.sha256(array.metadata).hexdigest(), hashlib.sha256(rows[name].tobytes()).hexdigest())
            for name, array in self._arrays.items()
        ]
        return fingerprint_of("zarr", parts)

    def _sampled(self, ids: IntArray) -> Batch:
        return self._read(ids, list(self._schema), {})

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        if self._closed:
            raise ValueError("the source is closed")
        batch: Batch = {name: fixed_output(name, self._schema[name], ids.size, out) for name in fields}
        if ids.size == 0 or not fields:
            return batch
        stores = self._stores()
        coming = {}
        for name in fields:
            if batch[name].size:
                with translated(self._arrays[name].path):
                    coming[name] = stores[name][ids].read()
        for name, future in coming.items():
            with translated(self._arrays[name].path):
                batch[name][...] = future.result()
        return batch

    def _stores(self) -> dict[str, Any]:
        """The arrays, opened by this process."""
        if self._open is None or self._open[0] != os.getpid():
            ts = tensorstore()
            limits = {"cache_pool": {"total_bytes_limit": CACHE_BYTES}, "data_copy_concurrency": {"limit": self._threads}}
            context, opened = ts.Context(limits), {}
            for name, array in self._arrays.items():
                driver = "zarr3" if array.file == "zarr.json" else "zarr"
                spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{array.path}/"}, "recheck_cached_data": "open"}
                with translated(array.path):
                    store = ts.open(spec, open=True, read=True, context=context).result()
                if tuple(store.shape) != array.shape or store.dtype.numpy_dtype != self._schema[name].dtype:
                    raise CorruptError(f"{array.path}: expected {array}, as its metadata said, found {store.dtype} {store.shape}")
                opened[name] = store
            self._open = os.getpid(), opened
        return self._open[1]

    def close(self) -> None:
        self._open, self._closed = None, True

    def _recipe(self) -> Recipe:
        return (ZarrSource, (self._path, self._fields, self._threads, self._max_block_bytes))


def tensorstore() -> Any:
    return need_unforked("tensorstore", "zarr", "zarr", "because tensorstore ends it")


@contextmanager
def translated(path: Path | UrlPath) -> Iterator[None]:
    """Errors of tensorstore as those of penstock, with the path."""
    try:
        yield
    except ReadError:
        raise
    except (ValueError, OSError, RuntimeError, NotImplementedError) as error:
        raise CorruptError(f"{path}/: tensorstore: {one_line(error, 300)}") from error


# Metadata


class Directory:
    """A directory on disk, in which there may be arrays."""

    def __init__(self, path: Path) -> None:
        self.path: Path | UrlPath = path

    def names(self) -> Collection[str]:
        """Of everything right in it."""
        return names_in(self._here)

    def is_node(self, name: str) -> bool:
        """Whether there is a directory of that name with metadata in it."""
        return is_directory(self._here / name) and any(is_file(self._here / name / one) for one in METADATA)

    def inner(self, name: str) -> "Directory":
        return Directory(self._here / name)

    def file(self, name: str) -> File:
        return LocalFile(self._here / name)

    @property
    def _here(self) -> Path:
        assert isinstance(self.path, Path)
        return self.path


def _arrays(directory: Directory, above: tuple[str, ...]) -> Iterator[tuple[str, ZarrArray]]:
    """The arrays in a directory and below it, by their paths."""
    inside, path = set(directory.names()), directory.path
    is_group = ".zgroup" in inside
    if "zarr.json" in inside:
        raw, content = read_json(directory.file("zarr.json"), MAX_METADATA)
        if content.get("node_type") == "array":
            yield "/".join(above) or "data", _of_v3(path, content, raw)
            return
        is_group = content.get("node_type") == "group"
        if not is_group:
            raise FormatError(f"{path / 'zarr.json'}: expected an array or a group, found {ascii(content.get('node_type'))[:100]}")
    elif ".zarray" in inside:
        raw, content = read_json(directory.file(".zarray"), MAX_METADATA)
        yield "/".join(above) or "data", _of_v2(path, content, raw)
        return
    if is_group and len(above) < MOST_DEEP:
        for name in sorted(inside):
            if directory.is_node(name):
                yield from _arrays(directory.inner(name), (*above, name))


def _of_v3(path: Path | UrlPath, content: Mapping[str, Any], raw: bytes) -> ZarrArray:
    chunk = inner_value(content, "chunk_grid", "configuration", "chunk_shape")
    codecs = content.get("codecs")
    first = codecs[0] if isinstance(codecs, list) and codecs else None
    if isinstance(first, dict) and first.get("name") == "sharding_indexed":
        chunk = inner_value(first, "configuration", "chunk_shape")
    name = content.get("data_type")
    return _made(path, "zarr.json", (content.get("shape"), chunk), name if name in NAMES else None, raw)


def _of_v2(path: Path | UrlPath, content: Mapping[str, Any], raw: bytes) -> ZarrArray:
    name = content.get("dtype")
    plain = isinstance(name, str) and len(name) < 8 and name[:1] in "<>|" and name[1:2] in "biufc" and name[2:].isdecimal()
    try:
        element = np.dtype(name).newbyteorder("=").name if plain else None
    except TypeError:
        element = None
    return _made(path, ".zarray", (content.get("shape"), content.get("chunks")), element if element in NAMES else None, raw)


def inner_value(content: Any, *keys: str) -> Any:
    """What metadata has under a path of keys; None if it is not there."""
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content


def _made(path: Path | UrlPath, name: str, shapes: tuple[Any, Any], element: str | None, raw: bytes) -> ZarrArray:
    where = path / name
    for sizes, least in zip(shapes, (0, 1), strict=True):
        if not isinstance(sizes, list) or not all(type(one) is int and least <= one < MOST_RECORDS for one in sizes):
            raise FormatError(f"{where}: expected the shape of the array and of its chunks, found {ascii(shapes)[:200]}")
    if len(shapes[0]) != len(shapes[1]) or len(shapes[0]) > 32:
        raise FormatError(f"{where}: expected a shape and chunks of at most 32 dimensions, found {ascii(shapes)[:200]}")
    return ZarrArray(path, name, tuple(shapes[0]), tuple(shapes[1]), element, raw)


def _choose(path: str, there: Mapping[str, ZarrArray], fields: Fields | None) -> dict[str, ZarrArray]:
    """The wanted arrays by the names of their fields. SchemaMismatchError unless they have the same first dimension."""
    chosen = {new: there[old] for new, old in renamed(path, there, fields, "array").items()}
    if not chosen:
        raise SchemaMismatchError(f"{path}: expected at least one array, found none")
    if len({array.shape[:1] for array in chosen.values()}) > 1 or not next(iter(chosen.values())).shape:
        listed = ", ".join(f"{ascii(name)[:100]}: {array}" for name, array in list(chosen.items())[:SHOWN])
        raise SchemaMismatchError(
            f"{path}: expected arrays of the same first dimension, a row for each record, found {listed}: choose some of one first "
            "dimension with fields=[...]"
        )
    return chosen


MOST_CHUNKS = 1 << 26
"""Of an array: where each of them is takes 24 bytes."""

MOST_JOINED = 4096
"""Chunks of a shard that are fetched together."""

MISSING = 2**64 - 1
TRIES = 2
"""How often bytes are fetched that cannot be decoded: a cache may have wrong ones."""

Tree = dict[str, Any]
"""What is under a URL: an object, or a tree, by name."""


class UrlDirectory(Directory):
    """The objects under a URL as a directory."""

    def __init__(self, path: UrlPath, tree: Tree) -> None:
        self.path: Any = path
        self.tree = tree

    @classmethod
    def of(cls, prefix: Prefix) -> "UrlDirectory":
        """Of a listing."""
        root: Tree = {}
        for name, file in prefix.files().items():
            *above, last = name.split("/")
            place = root
            for one in above:
                inner = place.setdefault(one, {})
                if not isinstance(inner, dict):  # an object of the same name, which no tool for zarr writes
                    raise FormatError(f"{file}: expected a directory or a file of zarr at {inner}, found both")
                place = inner
            if isinstance(place.setdefault(last, file), dict):
                raise FormatError(f"{file}: expected a directory or a file of zarr, found both")
        return cls(prefix.path, root)

    def names(self) -> Collection[str]:
        return self.tree.keys()

    def is_node(self, name: str) -> bool:
        inner = self.tree.get(name)
        return isinstance(inner, dict) and any(isinstance(inner.get(one), RemoteFile) for one in METADATA)

    def inner(self, name: str) -> "UrlDirectory":
        return UrlDirectory(self.path / name, self.tree[name])

    def file(self, name: str) -> File:
        file = self.tree[name]
        if not isinstance(file, RemoteFile):
            raise FormatError(f"{self.path / name}: expected an object, found the beginning of the names of others")
        return file


@dataclass(frozen=True)
class _Layout:
    """How an array is stored: the shape of its chunks, as objects and as they are decoded; how objects are named; metadata of the
    array with the latter chunks; and of a sharded array where its index is and whether it has a checksum.
    """

    objects: tuple[int, ...]
    chunk: tuple[int, ...]
    pattern: re.Pattern[str]
    metadata: bytes
    index: tuple[bool, bool] | None = None

    def key(self, cell: Sequence[int]) -> str:
        """The name of a chunk in that metadata."""
        return ".".join(map(str, cell))


def _layout(array: ZarrArray) -> _Layout:
    content = json.loads(array.metadata)
    if array.file == ".zarray":
        separator = content.get("dimension_separator", ".")
        shown = content | {"dimension_separator": "."}
        return _Layout(array.chunk, array.chunk, _pattern(array, "v2", separator), json.dumps(shown).encode())
    outer, encoding = inner_value(content, "chunk_grid", "configuration", "chunk_shape"), content.get("chunk_key_encoding")
    if not isinstance(outer, list) or len(outer) != len(array.shape) or not all(type(n) is int and 0 < n < 1 << 62 for n in outer):
        raise FormatError(f"{array.path / array.file}: expected the shape of chunks, found {ascii(outer)[:200]}")
    name = encoding if isinstance(encoding, str) else inner_value(encoding, "name")
    separator = inner_value(encoding, "configuration", "separator") or ("." if name == "v2" else "/")
    pattern = _pattern(array, name, separator)
    shown = content | {"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}}}
    codecs = content.get("codecs")
    sharding = inner_value(codecs[0], "configuration") if isinstance(codecs, list) and len(codecs) == 1 else None
    index = _index(sharding) if tuple(outer) != array.chunk and isinstance(sharding, dict) else None
    if index is None or any(one % other for one, other in zip(outer, array.chunk, strict=True)):
        return _Layout(tuple(outer), tuple(outer), pattern, json.dumps(shown).encode())
    grid = {"name": "regular", "configuration": {"chunk_shape": list(array.chunk)}}
    shown |= {"chunk_grid": grid, "codecs": sharding.get("codecs") if isinstance(sharding, dict) else None}
    return _Layout(tuple(outer), array.chunk, pattern, json.dumps(shown).encode(), index)


def _index(sharding: Mapping[str, Any]) -> tuple[bool, bool] | None:
    """Whether the index of a shard is at its end, and has a checksum; None if it is another one, and the shard is read whole."""
    codecs, where = sharding.get("index_codecs"), sharding.get("index_location", "end")
    little, crc = {"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}
    if where not in ("start", "end") or codecs not in ([little], [little, crc], [little, crc | {"configuration": {}}]):
        return None
    return where == "end", len(codecs) == 2


def _pattern(array: ZarrArray, name: object, separator: object) -> re.Pattern[str]:
    if name not in ("default", "v2") or separator not in (".", "/"):
        raise FormatError(
            f"{array.path / array.file}: expected chunks with '.' or '/' in their names, found {ascii((name, separator))[:100]}"
        )
    number = "(0|[1-9][0-9]{0,18})"
    words = re.escape(str(separator)).join([number] * len(array.shape))
    return re.compile(f"c{re.escape(str(separator))}{words}" if name == "default" else words)


@dataclass(frozen=True, eq=False)
class _Chunks:
    """Where the chunks of an array are: of each the number of a file (-1: none), and bytes from and to in it."""

    array: ZarrArray
    layout: _Layout
    numbers: IntArray
    low: IntArray
    high: IntArray

    @property
    def rows(self) -> int:
        return self.layout.chunk[0]

    @property
    def row_bytes(self) -> int:
        return prod(self.array.shape[1:]) * np.dtype(self.array.element).itemsize

    def extents(self, places: IntArray) -> Extents:
        """The bytes of the chunks of rows of chunks."""
        numbers, low, high = (one[places].reshape(-1) for one in (self.numbers, self.low, self.high))
        some = high > low
        return numbers[some], low[some], high[some]

    def block_rows(self) -> int:
        """Rows that are best fetched together: of a shard as many chunks as one request fetches, where that is a part of it."""
        count = self.layout.objects[0] // self.rows
        most = min(count, MOST_JOINED, BLOCK_BYTES // max(1, self.rows * self.row_bytes))
        return self.rows * next((n for n in range(most, 0, -1) if count % n == 0), 1)


class RemoteZarrSource(ZarrSource):
    """The rows of zarr arrays at a URL."""

    def __init__(self, prefix: Prefix, fields: Fields | None, threads: int, max_block_bytes: int, remote: RemoteOptions) -> None:
        self._prefix, self._how = prefix, remote
        super().__init__(str(prefix.path), fields, threads, max_block_bytes, UrlDirectory.of(prefix))
        files: list[RemoteFile] = []
        self._chunks: dict[str, _Chunks] = {}
        for name, array in self._arrays.items():
            layout = _layout(array)
            if (size := prod(layout.chunk) * np.dtype(array.element).itemsize) > max_block_bytes:
                raise BatchTooLargeError(
                    f"{array.path / array.file}: a shard has {size} bytes, more than the limit of {max_block_bytes}: if the data "
                    "can be trusted, open it with a larger max_block_bytes"
                )
            self._chunks[name] = _chunks_of(array, layout, _below(prefix, array), files)
        self._files = Files(files)
        self._rows = max(chunks.block_rows() for chunks in self._chunks.values())
        self._recent = Recent(CACHE_BYTES)
        self._accepted: set[str] = set()
        self._window = window_on(files, remote)

    @property
    def remote(self) -> RemoteFiles | None:
        return self._window

    def extents(self, starts: IntArray, stops: IntArray) -> Extents:
        """Where the chunks of records are."""
        some = stops > starts
        found = []
        for chunks in self._chunks.values():
            first, last = starts[some] // chunks.rows, (stops[some] - 1) // chunks.rows
            found.append(chunks.extents(np.unique(expanded(first, last + 1))))
        return joined_extents(found)

    @cached_property
    def fingerprint(self) -> str:
        return super().fingerprint

    def _sampled(self, ids: IntArray) -> Batch:
        """Few rows, which are not part of what a loader fetches."""
        found: Batch = {}
        for name, chunks in self._chunks.items():
            places = np.unique(ids // chunks.rows)
            rows = self._decode_once(name, places, chunks.extents(places), is_alone=True) if places.size else {}
            taken = [rows[i // chunks.rows][i % chunks.rows] for i in ids.tolist()]
            found[name] = np.array(taken, self._schema[name].dtype).reshape(ids.size, *self._schema[name].shape)
        return found

    def file_versions(self) -> Hashable | None:
        return self._files.file_versions()

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        if self._closed:
            raise ValueError("the source is closed")
        batch: Batch = {name: fixed_output(name, self._schema[name], ids.size, out) for name in fields}
        for name in fields:
            if batch[name].size:
                self._gather(name, ids, batch[name])
        return batch

    def _gather(self, name: str, ids: IntArray, into: npt.NDArray[Any]) -> None:
        """Rows of an array, in the order of ids."""
        chunks = self._chunks[name]
        wheres = dict(by_number(ids // chunks.rows))
        at_hand = {place: (name, place) in self._recent for place in wheres}
        for is_there in (True, False):  # those at hand before others push them out
            places = np.array([place for place in wheres if at_hand[place] == is_there], np.int64)
            for part in self._slices(chunks, places):
                for place, rows in self._decoded(name, places[part]).items():
                    where = wheres[place]
                    into[where] = rows[ids[where] - place * chunks.rows]

    def _slices(self, chunks: _Chunks, places: IntArray) -> list[slice]:
        """As many rows of chunks as half of the window holds, and as may be decoded at once."""
        stored = np.maximum(chunks.high[places] - chunks.low[places], 0) + 2 * PAGE
        costs = stored.sum(axis=tuple(range(1, stored.ndim)))
        found, most = list[slice](), max(1, CACHE_BYTES // max(1, chunks.rows * chunks.row_bytes))
        window = [slice(0, len(places))] if self._window is None else self._window.slices(np.zeros_like(costs), costs)
        for part in window:
            found += [slice(low, min(low + most, part.stop)) for low in range(part.start, part.stop, most)]
        return found

    def _decoded(self, name: str, places: IntArray) -> dict[int, npt.NDArray[Any]]:
        """Rows of chunks by their numbers."""
        found: dict[int, npt.NDArray[Any]] = {}
        absent = [place for place in places.tolist() if (name, place) not in self._recent]
        if absent:
            found = self._decode(name, np.array(absent, np.int64))
            for place, rows in found.items():
                self._recent.get((name, place), partial(_with_size, rows))
        for place in places.tolist():
            if place not in found:
                found[place] = self._recent.get((name, place), partial(self._decode_one, name, place))
        return found

    def _decode_one(self, name: str, place: int) -> tuple[npt.NDArray[Any], int]:
        return _with_size(self._decode(name, np.array([place], np.int64))[place])

    def _decode(self, name: str, places: IntArray) -> dict[int, npt.NDArray[Any]]:
        extents = self._chunks[name].extents(places)
        for _ in range(TRIES - 1):
            try:
                return self._decode_once(name, places, extents)
            except CorruptError:
                for number in np.unique(extents[0]).tolist():
                    if self._window is not None:
                        self._window.refetch(number)
        return self._decode_once(name, places, extents)

    def _decode_once(self, name: str, places: IntArray, extents: Extents, *, is_alone: bool = False) -> dict[int, npt.NDArray[Any]]:
        """What tensorstore makes of chunks. If it is alone, their bytes do not come through the window."""
        chunks = self._chunks[name]
        array, ts = chunks.array, tensorstore()
        limits = {"cache_pool": {"total_bytes_limit": 0}, "data_copy_concurrency": {"limit": self._threads}}
        driver, memory = "zarr3" if array.file == "zarr.json" else "zarr", {"driver": "memory"}
        with translated(array.path):
            context = ts.Context(limits)
            if name not in self._accepted:  # what tensorstore refuses of the metadata itself
                ts.KvStore.open(memory, context=context).result().write(array.file, array.metadata).result()
                ts.open({"driver": driver, "kvstore": memory}, open=True, read=True, context=context).result()
                self._accepted.add(name)
                context = ts.Context(limits)
            store = ts.KvStore.open(memory, context=context).result()
            store.write(array.file, chunks.layout.metadata).result()
        if self._window is None or not extents[0].size:
            pass
        elif is_alone:
            self._put(chunks, places, store, lambda number, low, high: self._files[number].read(low, high))
        else:
            landings = self._window.landings
            with self._window.hold(*extents):
                self._put(chunks, places, store, lambda number, low, high: landings[number].read(low, high))
        # Where all chunks are there, one that tensorstore does not find is an error, and never a fill value.
        is_full = bool(np.all(chunks.numbers[places] >= 0))
        spec = {"driver": driver, "kvstore": memory, "fill_missing_data_reads": not is_full}
        rows, length = chunks.rows, self._length
        with translated(array.path):
            opened = ts.open(spec, open=True, read=True, context=context).result()
            if tuple(opened.shape) != array.shape or opened.dtype.numpy_dtype != self._schema[name].dtype:
                raise CorruptError(f"{array.path}: expected {array}, as its metadata said, found {opened.dtype} {opened.shape}")
            coming = {place: opened[place * rows : min(length, (place + 1) * rows)].read() for place in places.tolist()}
            return {place: np.asarray(one.result()) for place, one in coming.items()}

    def _put(self, chunks: _Chunks, places: IntArray, memory: Any, read: Callable[[int, int, int], bytes]) -> None:
        """Give the bytes of chunks to tensorstore."""
        for place in places.tolist():
            for inner in np.argwhere(chunks.numbers[place] >= 0).tolist():
                cell = (place, *inner)
                number, low, high = (int(one[cell]) for one in (chunks.numbers, chunks.low, chunks.high))
                data = read(number, low, high)
                with translated(chunks.array.path):
                    memory.write(chunks.layout.key(cell), data).result()

    def close(self) -> None:
        super().close()
        self._recent.clear()
        if self._window is not None:
            self._window.close()

    def _recipe(self) -> Recipe:
        return (RemoteZarrSource, (self._prefix, self._fields, self._threads, self._max_block_bytes, self._how))


def _with_size(rows: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], int]:
    return rows, rows.nbytes


def _below(prefix: Prefix, array: ZarrArray) -> dict[str, RemoteFile]:
    """The objects of an array, by their names below it."""
    assert isinstance(array.path, UrlPath)
    inner = array.path.key[len(prefix.path.key) :].strip("/")
    above = f"{inner}/" if inner else ""
    return {name.removeprefix(above): file for name, file in prefix.files(above).items()}


def _chunks_of(array: ZarrArray, layout: _Layout, there: Mapping[str, RemoteFile], files: list[RemoteFile]) -> _Chunks:
    """Where chunks are. Their files are added to the list."""
    grid = tuple(-(-one // size) for one, size in zip(array.shape, layout.chunk, strict=True))
    if prod(grid) > MOST_CHUNKS:
        raise FormatError(f"{array.path / array.file}: expected at most {MOST_CHUNKS} chunks, found {prod(grid)}")
    numbers, low, high = np.full(grid, -1, np.int64), np.zeros(grid, np.int64), np.zeros(grid, np.int64)
    cells: dict[tuple[int, ...], RemoteFile] = {}
    strange = None
    for name, file in there.items():
        if (match := layout.pattern.fullmatch(name)) is not None:
            cell = tuple(map(int, match.groups()))
            if all(one * size < length for one, size, length in zip(cell, layout.objects, array.shape, strict=True)):
                cells[cell] = file
        elif not name.rpartition("/")[2].startswith(".") and name not in METADATA:
            strange = file
    if strange is not None and not cells:
        raise FormatError(f"{array.path / array.file}: expected chunks named like {layout.pattern.pattern}, found {strange}")
    indices = _shard_indices(layout, Files(cells.values())) if layout.index is not None else None
    for order, (cell, file) in enumerate(cells.items()):
        if indices is None:
            numbers[cell], high[cell] = len(files), file.info.size
        else:
            each = tuple(whole // size for whole, size in zip(layout.objects, layout.chunk, strict=True))
            window = tuple(slice(one * n, min((one + 1) * n, size)) for one, n, size in zip(cell, each, grid, strict=True))
            inside = tuple(slice(0, one.stop - one.start) for one in window)
            starts, stops = (indices[order][:, n].reshape(each)[inside] for n in range(2))
            numbers[window] = np.where(starts >= 0, len(files), -1)
            low[window], high[window] = np.maximum(starts, 0), np.maximum(stops, 0)
        files.append(file)
    return _Chunks(array, layout, numbers, low, high)


def _shard_indices(layout: _Layout, files: Files) -> list[IntArray]:
    """Where the inner chunks of shards begin and end, [-1, -1] for those that are not there."""
    assert layout.index is not None
    at_end, has_crc = layout.index
    count = prod(whole // size for whole, size in zip(layout.objects, layout.chunk, strict=True))
    if count > MOST_CHUNKS:
        raise FormatError(f"{files[0]}: expected at most {MOST_CHUNKS} chunks in a shard, found {count}")
    return files.each(partial(_shard_index, count=count, at_end=at_end, has_crc=has_crc))


def _shard_index(file: File, *, count: int, at_end: bool, has_crc: bool) -> IntArray:
    size, length = file.size, 16 * count + 4 * has_crc
    if size < length:
        raise CorruptError(f"{file}: expected a shard with an index of {length} bytes, found {size} bytes")
    raw = file.read(size - length, size) if at_end else file.read(0, length)
    if has_crc and _core.crc32c(np.frombuffer(raw, np.uint8, 16 * count)) != int.from_bytes(raw[-4:], "little"):
        raise CorruptError(f"{file}: the index of the shard is not what was written")
    pairs = np.frombuffer(raw, "<u8", 2 * count).reshape(count, 2)
    is_there = ~np.all(pairs == MISSING, axis=1)
    if np.any(is_there & ((pairs > size).any(axis=1) | (pairs[:, 0] + pairs[:, 1] > size))):
        raise CorruptError(f"{file}: expected chunks within {size} bytes, found others")
    stops = np.where(is_there, pairs[:, 0] + pairs[:, 1], 0).astype(np.int64)
    found = np.stack([pairs[:, 0].astype(np.int64), stops], axis=1)
    found[~is_there] = -1
    return found
