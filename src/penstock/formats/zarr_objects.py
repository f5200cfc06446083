"""zarr at URLs: chunks come through a window, and tensorstore decodes them from memory.

The listing tells which chunks there are; one that is not listed has the fill value, as on disk. Where the inner chunks of a shard
are is read when it is opened, so that only those that are needed are fetched. What tensorstore gets is an array of the same shape
whose chunks are the inner ones, in which a chunk that should be there is an error if it is not.
"""

import json
import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray
from penstock.batch import Batch, Outputs, fixed_output
from penstock.errors import BatchTooLargeError, CorruptError, FormatError
from penstock.formats.arrow_file import Fields
from penstock.formats.files import File, Files, Prefix, RemoteFile
from penstock.formats.rows_in_files import BLOCK_BYTES, window_on
from penstock.formats.zarr import CACHE_BYTES, METADATA, Directory, ZarrArray, ZarrSource, inner_value, tensorstore, translated
from penstock.native import _core
from penstock.process import Recent
from penstock.records import NOWHERE, Blocks, Extents, Recipe
from penstock.remote.residency import PAGE
from penstock.remote.url import UrlPath
from penstock.remote.window import RemoteFiles, RemoteOptions
from penstock.row_table import expanded

__all__ = ["RemoteZarrSource"]

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

    def below(self) -> dict[str, RemoteFile]:
        """All objects, by their names below this place."""
        found: dict[str, RemoteFile] = {}
        places: list[tuple[str, Tree]] = [("", self.tree)]
        while places:
            above, tree = places.pop()
            for name, one in tree.items():
                if isinstance(one, dict):
                    places.append((f"{above}{name}/", one))
                else:
                    found[f"{above}{name}"] = one
        return found


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
        """Of a chunk."""
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
        directory = UrlDirectory.of(prefix)
        super().__init__(str(prefix.path), fields, threads, max_block_bytes, directory)
        files: list[RemoteFile] = []
        self._chunks: dict[str, _Chunks] = {}
        for name, array in self._arrays.items():
            layout = _layout(array)
            if (size := prod(layout.chunk) * np.dtype(array.element).itemsize) > max_block_bytes:
                raise BatchTooLargeError(
                    f"{array.path / array.file}: a shard has {size} bytes, more than the limit of {max_block_bytes}: if the data "
                    "can be trusted, open it with a larger max_block_bytes"
                )
            self._chunks[name] = _chunks_of(array, layout, _below(directory, array), files)
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
        return _together(found)

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
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
        touched = ids // chunks.rows
        order = np.argsort(touched, kind="stable")
        places, first = np.unique(touched[order], return_index=True)
        edges = [*first.tolist(), ids.size]
        at_hand = np.array([(name, int(place)) in self._recent for place in places], np.bool_)
        for some in (np.flatnonzero(at_hand), np.flatnonzero(~at_hand)):  # those at hand before others push them out
            for part in self._slices(chunks, places[some]):
                rows = self._decoded(name, places[some][part])
                for number in some[part].tolist():
                    where = order[edges[number] : edges[number + 1]]
                    into[where] = rows[int(places[number])][ids[where] - places[number] * chunks.rows]

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

    @property
    def blocks(self) -> Blocks:
        """The chunks along the first dimension; of shards, several that one request fetches."""
        return super().blocks


def _with_size(rows: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], int]:
    return rows, rows.nbytes


def _together(found: Sequence[Extents]) -> Extents:
    numbers, low, high = (np.concatenate(column) for column in zip(NOWHERE, *found, strict=True))
    return numbers, low, high


def _below(directory: UrlDirectory, array: ZarrArray) -> dict[str, RemoteFile]:
    """The objects of an array."""
    assert isinstance(array.path, UrlPath)
    start, inside = directory.path.key, directory
    for name in array.path.key[len(start) :].strip("/").split("/"):
        inside = inside.inner(name) if name else inside
    return inside.below()


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
