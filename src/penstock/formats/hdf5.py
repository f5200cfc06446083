"""HDF5 files: data sets of one length as fields.

The HDF5 library is never called in this process: another one (``hdf5_child.py``) says where rows are, and reads those that it alone
can read; what it says is checked against the files. Native threads read rows that are in the file as they are, and threads decode
those in chunks of gzip.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock import errors
from penstock.argument import IntArray, byte_size
from penstock.batch import Batch, Outputs, Ragged, fixed_output
from penstock.errors import (
    CorruptError,
    PenstockError,
    ReadError,
    SchemaMismatchError,
    SizeOverflowError,
    SourceChangedError,
    TruncatedError,
    UnsupportedTypeError,
)
from penstock.formats import hdf5_child
from penstock.formats.arrow_column import ranges
from penstock.formats.files import MAX_BLOCK_BYTES, Files, FileSource, check_block, check_texts, expand, file_size, one_line
from penstock.formats.rows_in_files import FileRows, Rows, default_threads, extents_of_all, reader_of_files, version_of
from penstock.process import Recent, need
from penstock.records import Blocks, Extents, Recipe, by_number
from penstock.schema import Field
from penstock.system import file_access

__all__ = ["Hdf5Source", "open_hdf5", "shared_process"]

DEADLINE_S = 20
"""For one request. Those for rows are small, so only a library that loops needs longer."""

SPARE_BYTES = 128 << 20
"""What the library may allocate besides what was asked for."""

REQUEST_ROWS, REQUEST_BYTES = 1 << 14, 1 << 24

Fields = Sequence[str] | Mapping[str, str]
"""Names of fields, or new names and the data sets they stand for."""


@dataclass(frozen=True)
class DataSetLayout:
    """A data set of one file."""

    path: str
    field: Field
    dtype: np.dtype[Any]
    length: int
    rows: int  # of a chunk; 0 if there are none
    chunk_bytes: int
    filtered: bool
    layout: str  # "plain", "gzip" or "shuffled gzip" if rows can be read by their places, else "other"
    places: IntArray  # where in the file every chunk begins, or the whole
    sizes: IntArray  # their bytes in the file

    @property
    def counts(self) -> IntArray:
        """Rows at each place."""
        edges = np.append(np.arange(0, self.length, self.rows or self.length or 1), self.length)
        return np.diff(edges)


class Hdf5Process:
    """A process that calls the HDF5 library, started when it is needed. Safe to use from several threads, and after fork."""

    def __init__(self) -> None:
        self._inherited: list[Any] = []
        self._begin()

    def _begin(self) -> None:
        self._owner, self._lock = os.getpid(), threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def ask(self, path: str, request: Mapping[str, Any], blob: bytes = b"") -> tuple[dict[str, Any], bytearray]:
        """The answer to a request about a file, and the bytes that come with it."""
        if self._owner != os.getpid():
            self._inherited.append(self._child)  # it is the parent's
            self._begin()
        text = json.dumps({**request, "path": path, "deadline_s": DEADLINE_S, "plugins": "hdf5plugin" in sys.modules}).encode()
        message = hdf5_child.HEADER.pack(len(text), len(blob)) + text + blob
        with self._lock:
            answer, data = self._exchange(path, message)
        if "error" in answer:
            kind = getattr(errors, str(answer["error"]), CorruptError)
            words = one_line(answer.get("words"), 1000)
            raise (kind if isinstance(kind, type) and issubclass(kind, ReadError) else CorruptError)(f"{path}: {words}")
        return answer, data

    def _exchange(self, path: str, message: bytes) -> tuple[dict[str, Any], bytearray]:
        try:
            for _ in range(2):
                child = self._running()
                with contextlib.suppress(BrokenPipeError):  # it had ended, because nothing was asked for a while
                    return _talk(child, message)
                self.close()
        except EOFError:
            raise CorruptError(f"{path}: {self._ended()}") from None
        except BaseException:
            self.close()  # whatever it still says is no answer to the next request
            raise
        raise ReadError(f"{path}: the process that reads HDF5 files does not start")

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._child is None or self._child.poll() is not None:
            self.close()
            need("h5py", "hdf5")
            paths = os.pathsep.join(path for path in sys.path if path)
            self._child = subprocess.Popen(
                [sys.executable, "-P", hdf5_child.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                process_group=0,  # Ctrl-C is for this process
                env={**os.environ, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1"},
            )
            self._finalizer = weakref.finalize(self, _end, self._child, self._owner)
        return self._child

    def _ended(self) -> str:
        """Why the process is gone."""
        code = 0 if self._child is None else self._child.wait()
        self.close()
        if code == -signal.SIGALRM:
            return f"the HDF5 library did not come to an end within {DEADLINE_S} s: the file is damaged"
        return f"the HDF5 library ended its process ({code}): the file is damaged"

    def close(self) -> None:
        """End the process. Another one is started when it is needed."""
        if self._child is not None and self._owner == os.getpid():
            self._finalizer()
            self._child = None

    @property
    def descriptors(self) -> list[int]:
        """The pipes to the process, which last as long as it."""
        child = self._child
        return [] if child is None else [pipe.fileno() for pipe in (child.stdin, child.stdout) if pipe is not None]

    # Requests

    def read(self, path: str, part: DataSetLayout, ids: IntArray, request: Mapping[str, Any]) -> Any:
        """Rows of a data set: an array, or values and lengths where these differ."""
        step = max(1, min(REQUEST_ROWS, REQUEST_BYTES // max(1, part.field.stride if part.field.is_fixed else 1)))
        runs = [ids[low : low + step] for low in range(0, ids.size, step)]
        found = [self._read(path, part, run, request) for run in runs]
        if part.field.is_fixed:
            return np.concatenate(found)
        return np.concatenate([values for values, _ in found]), np.concatenate([lengths for _, lengths in found])

    def _read(self, path: str, part: DataSetLayout, ids: IntArray, request: Mapping[str, Any]) -> Any:
        field, limit = part.field, int(request["max_block_bytes"])
        size = ids.size * field.stride
        rows = 4 * size if field.is_fixed else limit  # how long the others are is not known before they are read
        memory = {"memory_bytes": SPARE_BYTES + 4 * part.chunk_bytes + rows, "chunk_bytes": part.chunk_bytes}
        _, data = self.ask(path, {"do": "read", "data_set": part.path, **memory, **request}, ids.tobytes())
        if field.is_fixed:
            if len(data) != size:
                raise CorruptError(f"{path}: data set {part.path!r}: expected {size} bytes, found {len(data)}")
            return np.frombuffer(data, field.dtype).reshape(ids.size, *field.shape)
        lengths = np.frombuffer(data, np.int64, ids.size)
        values = np.frombuffer(data, np.uint8, offset=lengths.nbytes)
        if lengths.size and (lengths.min() < 0 or int(lengths.sum()) != values.size or np.any(lengths % field.dtype.itemsize)):
            raise CorruptError(f"{path}: data set {part.path!r}: expected rows of {values.size} bytes together, found others")
        return values.view(field.dtype), lengths // field.dtype.itemsize


def _talk(child: "subprocess.Popen[bytes]", message: bytes) -> tuple[dict[str, Any], bytearray]:
    assert child.stdin is not None
    assert child.stdout is not None
    view = memoryview(message)
    while view:
        view = view[child.stdin.write(view) or 0 :]
    size, more = hdf5_child.HEADER.unpack(_receive(child.stdout, hdf5_child.HEADER.size))
    return json.loads(_receive(child.stdout, size)), _receive(child.stdout, more)


def _receive(pipe: Any, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = pipe.readinto(view)
        if not count:
            raise EOFError
        view = view[count:]
    return data


def _end(child: "subprocess.Popen[bytes]", owner: int) -> None:
    if owner != os.getpid():
        return  # a forked child of this process does not end what is not its own
    child.kill()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
    child.wait()


_SHARED = Hdf5Process()


def shared_process() -> Hdf5Process:
    """The one process that all sources share."""
    return _SHARED


# What it says of files


def inspect(path: str, size: int, fields: Fields | None, max_block_bytes: int) -> dict[str, DataSetLayout]:
    """The chosen data sets of a file, checked."""
    request = {"do": "inspect", "fields": fields, "memory_bytes": SPARE_BYTES + min(4 * size, max_block_bytes)}
    answer, blob = shared_process().ask(path, request)
    table = _parts(path, answer, blob)
    for name, part in table.items():
        _check(f"{path}: data set {part.path!r}", size, part, answer["parts"][name], max_block_bytes)
    lengths = {name: part.length for name, part in table.items()}
    if len(set(lengths.values())) > 1:
        raise SchemaMismatchError(f"{path}: expected data sets of one length, found {lengths}; choose some with fields=[...]")
    return table


def need_same(paths: Sequence[str], tables: Sequence[Mapping[str, DataSetLayout]]) -> None:
    """SchemaMismatchError unless all files have the same fields."""
    first = {name: part.field for name, part in tables[0].items()}
    for path, table in zip(paths, tables, strict=True):
        found = {name: part.field for name, part in table.items()}
        if found != first:
            names = [name for name in {**first, **found} if first.get(name) != found.get(name)]
            expected, other = {name: first.get(name) for name in names}, {name: found.get(name) for name in names}
            raise SchemaMismatchError(f"{path}: expected {expected} as in {paths[0]}, found {other}")


def _parts(path: str, answer: Mapping[str, Any], blob: bytearray) -> dict[str, DataSetLayout]:
    try:
        table, place, chunks = {}, 0, np.frombuffer(blob, np.int64).reshape(-1, 2)
        for name, one in answer["parts"].items():
            places, sizes = chunks[place : place + one["num_chunks"]].T
            place += one["num_chunks"]
            dtype = np.dtype(str(one["dtype"]))
            field = _field(f"{path}: data set {one['data_set']!r}", one, dtype)
            length, rows, chunk_bytes = int(one["length"]), int(one["rows"]), int(one["chunk_bytes"])
            how = bool(one["filtered"]), str(one["layout"])
            table[name] = DataSetLayout(
                str(one["data_set"]), field, dtype, length, rows, chunk_bytes, *how, places.copy(), sizes.copy()
            )
    except PenstockError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError) as error:
        raise CorruptError(f"{path}: the HDF5 library says {str(answer)[:200]}") from error
    return table


def _field(where: str, one: Mapping[str, Any], dtype: np.dtype[Any]) -> Field:
    try:
        if one["kind"] == "text":
            return Field.text()
        if one["kind"] == "bytes":
            return Field.bytes()
        return Field.ragged(dtype) if one["kind"] == "ragged" else Field(dtype, tuple(one["shape"]))
    except TypeError as error:
        raise UnsupportedTypeError(f"{where}: {error}; choose others with fields=[...]") from error
    except ValueError as error:
        raise SizeOverflowError(f"{where}: {error}") from error


def _check(where: str, size: int, part: DataSetLayout, one: Mapping[str, Any], max_block_bytes: int) -> None:
    """Everything is within the file, and no chunk or row too large to be decoded at once."""
    if part.filtered:
        check_block(f"{where}: a chunk", part.chunk_bytes, 0, max_block_bytes)
    if part.field.is_fixed and part.layout != "plain":
        check_block(f"{where}: a row", part.field.stride, int(one["stored_bytes"]) // max(1, part.length), max_block_bytes)
    if min(part.length, part.rows, part.chunk_bytes) < 0 or part.length >= 2**62:
        raise CorruptError(f"{where}: expected 0 rows or more, found {part.length}, in chunks of {part.rows}")
    if part.layout == "other":
        return
    expected = -(-part.length // part.rows) if part.rows else min(1, part.length)
    if part.places.size != expected or (part.rows and part.chunk_bytes != part.rows * part.field.stride):
        raise CorruptError(f"{where}: expected {expected} chunks of {part.rows} rows, found {part.places.size}")
    stored = part.counts * part.field.stride if part.layout == "plain" else part.sizes
    if np.any((part.places < 0) | (stored < 0) | (stored > size) | (part.places > size - stored)):
        raise TruncatedError(f"{where}: expected {int(stored.sum())} bytes in the file, found that it ends before")


LEAST_CHUNKS = 4
"""For fewer chunks threads do not pay."""


class GzipRows:
    """The rows of data sets whose chunks hold whole rows and passed through gzip, perhaps after the shuffle filter. The chunks that
    were decoded last are kept. Safe to use from several threads, and after fork.
    """

    def __init__(self, threads: int, cache_bytes: int) -> None:
        self._threads, self._recent = threads, Recent(cache_bytes)

    def read(self, file: tuple[str, int], part: DataSetLayout, ids: IntArray, out: npt.NDArray[Any]) -> None:
        """Fill ``out`` with rows of a data set of one file, given by its path and size."""
        order = np.argsort(ids, kind="stable")
        ids, path = ids[order], file[0]
        edges = np.flatnonzero(np.diff(ids // part.rows, prepend=-1, append=-1)).tolist()
        with open(path, "rb", buffering=0) as opened:
            found = os.fstat(opened.fileno()).st_size
            if found != file[1]:
                raise SourceChangedError(f"{path}: expected {file[1]} bytes as at opening, found {found}; open it again")

            def put(run: tuple[int, int]) -> None:
                low, high = run
                chunk = int(ids[low]) // part.rows
                rows = self._recent.get(((path, chunk), part.path), lambda: _load(opened.fileno(), path, part, chunk))
                out[order[low:high]] = rows[ids[low:high] - chunk * part.rows]

            self._each(put, list(pairwise(edges)))

    def _each(self, put: Callable[[tuple[int, int]], None], runs: list[tuple[int, int]]) -> None:
        if self._threads < 2 or len(runs) < LEAST_CHUNKS:
            for run in runs:
                put(run)
            return
        with ThreadPoolExecutor(min(self._threads, len(runs)), thread_name_prefix="penstock-hdf5") as pool:
            for _ in pool.map(put, runs):
                pass

    def close(self) -> None:
        self._recent.clear()


def _load(descriptor: int, path: str, part: DataSetLayout, chunk: int) -> tuple[npt.NDArray[Any], int]:
    where = f"{path}: data set {part.path!r}, chunk {chunk}"
    stored = os.pread(descriptor, int(part.sizes[chunk]), int(part.places[chunk]))
    try:
        data = zlib.decompressobj().decompress(stored, part.chunk_bytes + 1)
    except zlib.error as error:
        raise CorruptError(f"{where} cannot be decoded: {error}") from error
    if len(data) != part.chunk_bytes:
        raise CorruptError(f"{where}: expected {part.chunk_bytes} bytes, found {len(data)}")
    raw = np.frombuffer(data, np.uint8)
    if part.layout == "shuffled gzip":
        raw = np.ascontiguousarray(raw.reshape(part.dtype.itemsize, -1).T)
    rows: npt.NDArray[Any] = raw.reshape(-1).view(part.dtype).reshape(part.rows, *part.field.shape)
    return rows, rows.nbytes


SUFFIXES = (".h5", ".hdf5", ".he5")
CACHE_BYTES = 1 << 24
"""What is kept at most of decoded chunks."""

MAX_BLOCKS = 1 << 22
BLOCK_BYTES = 1 << 20
SMALL_BYTES = 1 << 16


def open_hdf5(
    what: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    fields: Fields | None = None,
    threads: int | None = None,
    io: str = "auto",
    max_block_bytes: int | str = MAX_BLOCK_BYTES,
) -> "Hdf5Source":
    """One HDF5 file, or many as one source: a list keeps its order, a pattern or a directory gives that of the name bytes.

    Every data set with a row per record is a field, named by its path with dots for slashes. ``fields`` chooses some of them, by
    name, or as a dict from new names to paths. Nothing that leads to other files is followed. Compressed data sets with chunks of
    more than ``max_block_bytes`` are refused.
    """
    if isinstance(fields, str):
        raise TypeError(f"fields must be a list of names or a dict from names to data sets, got {fields!r}")
    chosen = dict(fields) if isinstance(fields, Mapping) else None if fields is None else list(fields)
    largest = byte_size("max_block_bytes", max_block_bytes)
    return Hdf5Source([str(path) for path in expand(what, SUFFIXES)], chosen, default_threads(threads), io, largest)


class Hdf5Source(FileSource):
    """The rows of the data sets of HDF5 files, one file after the other."""

    def __init__(self, paths: Sequence[str], fields: Fields | None, threads: int, io: str, max_block_bytes: int) -> None:
        self._paths, self._fields, self._threads, self._io = list(paths), fields, threads, io
        self._files = Files.on_disk(paths)
        self._max_block_bytes, self._closed = max_block_bytes, False
        access = file_access(io, Path(paths[0]))
        real = [Path(os.path.realpath(path)) for path in paths]  # links are followed, once and for all
        versions = [version_of(path) for path in real]
        self._sizes = [file_size(Path(path)) for path in paths]
        tables = [inspect(path, size, fields, max_block_bytes) for path, size in zip(paths, self._sizes, strict=True)]
        need_same(self._paths, tables)
        self._parts = {name: [table[name] for table in tables] for name in tables[0]}
        self._schema = {name: part.field for name, part in tables[0].items()}
        self._counts = [next(iter(table.values())).length for table in tables]
        self._ends = np.cumsum(self._counts, dtype=np.int64)
        files = [FileRows(path, size, 0, 0, known) for path, size, known in zip(real, self._sizes, versions, strict=True)]
        self._plain = {
            name: _plain_rows(files, parts, access=access, threads=threads)
            for name, parts in self._parts.items()
            if all(part.layout == "plain" and part.dtype == parts[0].dtype for part in parts)
        }
        self._gzip = GzipRows(threads, CACHE_BYTES)

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def schema(self) -> Mapping[str, Field]:
        return dict(self._schema)

    @property
    def blocks(self) -> Blocks:
        """The chunks of the widest field; the files, or runs of about 1 MiB of one file, where there are no chunks."""
        every = list(self._parts.values())
        costly = [parts for parts in every if parts[0].filtered] or [parts for parts in every if parts[0].rows] or every
        first = max(costly, key=lambda parts: parts[0].field.stride if parts[0].field.is_fixed else BLOCK_BYTES)[0]
        if len(self._counts) == 1:
            return Blocks(len(self), first.rows or max(1, BLOCK_BYTES // max(1, first.field.stride)))
        if not first.rows:
            return Blocks.of_counts(self._counts)
        rows = first.rows * max(1, len(self) // (first.rows * MAX_BLOCKS))  # a table of blocks must fit into memory
        return Blocks.of_counts(np.concatenate([np.diff(np.append(np.arange(0, count, rows), count)) for count in self._counts]))

    @property
    def reads_blocks(self) -> bool:
        return any(part.filtered for parts in self._parts.values() for part in parts)

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        return {name: self._read_field(name, ids, out) for name in fields}

    def _read_field(self, name: str, ids: IntArray, out: Outputs) -> Any:
        if self._closed:
            raise ValueError("the source is closed")
        field = self._schema[name]
        if not field.is_fixed:
            return self._ragged(name, ids)
        array = fixed_output(name, field, ids.size, out)
        if name in self._plain:
            self._read_plain(name, ids, array)
        elif array.size:
            for number, places, local in self._by_file(ids):
                self._fill(number, self._parts[name][number], local, places, array)
        return array

    def _read_plain(self, name: str, ids: IntArray, out: npt.NDArray[Any]) -> None:
        if ids.size > 1 and out.nbytes < SMALL_BYTES and np.all(np.diff(ids) == 1):
            self._plain[name].read(ids[:1], out, ids.size)  # one copy, where threads do not pay
        else:
            self._plain[name].read(ids, out)
        if not self._parts[name][0].dtype.isnative:
            out.byteswap(inplace=True)

    @property
    def paths(self) -> Sequence[str]:
        return [path for rows in self._plain.values() for path in rows.paths]

    @property
    def is_direct(self) -> bool:
        return any(rows.is_direct for rows in self._plain.values())

    def extents(self, starts: IntArray, stops: IntArray) -> Extents:
        """Of data sets that are in the files as they are."""
        return extents_of_all(list(self._plain.values()), starts, stops)

    def native_reader(self, field: str) -> tuple[Any, int] | None:
        """Of data sets that are in the files as they are."""
        return self._plain[field].native() if field in self._plain and self._parts[field][0].dtype.isnative else None

    def _by_file(self, ids: IntArray) -> list[tuple[int, IntArray, IntArray]]:
        """Every file that has some of the records: its number, their places among the ids, and their rows in the file."""
        found = by_number(np.searchsorted(self._ends, ids, side="right"))
        return [(number, places, ids[places] - (self._ends[number] - self._counts[number])) for number, places in found]

    def _fill(self, number: int, part: DataSetLayout, ids: IntArray, places: IntArray, out: npt.NDArray[Any]) -> None:
        if part.layout in ("gzip", "shuffled gzip"):
            rows = np.empty((ids.size, *out.shape[1:]), out.dtype)
            self._gzip.read((self._paths[number], self._sizes[number]), part, ids, rows)
        else:
            rows = self._ask(number, part, ids)
        out[places] = rows

    def _ask(self, number: int, part: DataSetLayout, ids: IntArray) -> Any:
        """Rows that the HDF5 library itself has to read."""
        request = {"size": self._sizes[number], "max_block_bytes": self._max_block_bytes}
        return shared_process().read(self._paths[number], part, ids, request)

    def _ragged(self, name: str, ids: IntArray) -> Ragged:
        field, parts = self._schema[name], self._by_file(ids)
        lengths, starts, values, end = np.zeros(ids.size, np.int64), np.zeros(ids.size, np.int64), [np.empty(0, field.dtype)], 0
        for number, places, local in parts:
            found, sizes = self._ask(number, self._parts[name][number], local)
            lengths[places], starts[places] = sizes, end + np.cumsum(sizes) - sizes
            values, end = [*values, found], end + found.size
            if field.kind == "text":
                _check_texts(f"{self._paths[number]}: field {name!r}", found, sizes)
        joined = np.concatenate(values)
        if len(parts) > 1:
            joined = joined[ranges(starts, lengths)]
        return Ragged(joined, np.concatenate([[0], np.cumsum(lengths)]), "array" if field.kind == "ragged" else field.kind)

    def close(self) -> None:
        for rows in self._plain.values():
            rows.close()
        self._gzip.close()
        self._closed = True

    def _identity(self) -> tuple[Any, ...]:
        return "hdf5", [(name, parts[0].path) for name, parts in self._parts.items()]

    def _recipe(self) -> Recipe:
        return (Hdf5Source, (self._paths, self._fields, self._threads, self._io, self._max_block_bytes))


def _plain_rows(files: Sequence[FileRows], parts: Sequence[DataSetLayout], *, access: str, threads: int) -> Rows:
    """The reader of rows that are in files as they are, in chunks or as a whole. Chunks that follow each other are one piece."""
    stride = parts[0].field.stride
    pieces = [FileRows(file.path, file.size, *_joined(part, stride), file.version) for file, part in zip(files, parts, strict=True)]
    return reader_of_files(pieces, stride, access=access, threads=threads)


def _joined(part: DataSetLayout, stride: int) -> tuple[IntArray, IntArray]:
    """Where pieces begin, and their rows."""
    starts, counts = np.asarray(part.places), part.counts
    heads = np.flatnonzero(np.append(True, starts[1:] != starts[:-1] + counts[:-1] * stride))[: starts.size]
    return starts[heads], np.add.reduceat(counts, heads) if heads.size else counts[:0]


def _check_texts(where: str, values: npt.NDArray[Any], lengths: IntArray) -> None:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    fault = lambda one: f"{where}: expected UTF-8, found {values[offsets[one] : offsets[one + 1]].tobytes()[:80]!r}"  # noqa: E731
    check_texts(values, offsets, fault)
