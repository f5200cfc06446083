"""zarr, versions 2 and 3: arrays of one first dimension as the fields of records, decoded by tensorstore.

An array is the field ``data``; those of a group are called by their paths in it. Row i of every array is record i. Rows are read a
chunk at a time, which of a sharded array is an inner one. The metadata is read here, so that nothing of it is believed before it is
checked, and tensorstore is imported when the first record is read. What differs at URLs is in zarr_objects.py.
"""

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

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
from penstock.formats.arrow_file import Fields, plain_fields
from penstock.formats.files import MAX_BLOCK_BYTES, File, LocalFile, Prefix, one_line, read_json
from penstock.formats.rows_in_files import default_threads
from penstock.process import need
from penstock.records import Blocks, Recipe, Source
from penstock.remote.url import UrlPath
from penstock.remote.window import RemoteOptions
from penstock.schema import Field, Schema
from penstock.system import is_directory, is_file, names_in

__all__ = [
    "CACHE_BYTES",
    "METADATA",
    "Directory",
    "ZarrArray",
    "ZarrSource",
    "inner_value",
    "open_zarr",
    "tensorstore",
    "translated",
]

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
        from penstock.formats.zarr_objects import RemoteZarrSource

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
        """The chunks along the first dimension; of several arrays the largest."""
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


_process: list[int] = []
"""The process that uses tensorstore, whose threads do not come along when it forks."""


def tensorstore() -> Any:
    if not _process:
        _process.append(os.getpid())
    if _process[0] != os.getpid():
        raise RuntimeError(
            "zarr cannot be read in a forked process after its parent has read zarr, because tensorstore ends it: start processes "
            "with the method 'spawn' (multiprocessing_context='spawn' of a torch DataLoader), or read in threads"
        )
    return need("tensorstore", "zarr")


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
        """The directory of that name."""
        return Directory(self._here / name)

    def file(self, name: str) -> File:
        """The file of that name."""
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
    wanted = fields if isinstance(fields, Mapping) else {name: name for name in (there if fields is None else fields)}
    missing = [old for old in wanted.values() if old not in there]
    if missing:
        raise KeyError(f"{path}: there is no array {missing[0]!r}; there are {ascii(list(there))[:500]}")
    if fields is not None and len(wanted) < len(fields):
        raise ValueError(f"fields must have every name once, got {list(fields)}")
    chosen = {new: there[old] for new, old in wanted.items()}
    if not chosen:
        raise SchemaMismatchError(f"{path}: expected at least one array, found none")
    if len({array.shape[:1] for array in chosen.values()}) > 1 or not next(iter(chosen.values())).shape:
        listed = ", ".join(f"{ascii(name)[:100]}: {array}" for name, array in list(chosen.items())[:SHOWN])
        raise SchemaMismatchError(
            f"{path}: expected arrays of the same first dimension, a row for each record, found {listed}: choose some of one first "
            "dimension with fields=[...]"
        )
    return chosen
