"""What is in HDF5 files, and rows of them, as a process says that calls the HDF5 library: this one never does.

Nothing that it says is trusted more than the files.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock import errors
from penstock.errors import (
    CorruptError,
    PenstockError,
    ReadError,
    SchemaMismatchError,
    SizeOverflowError,
    TruncatedError,
    UnsupportedTypeError,
)
from penstock.interfaces import IntArray
from penstock.schema import Field
from penstock.source import hdf5_child
from penstock.source.limit import check_block, one_line
from penstock.source.optional import need

__all__ = ["Fields", "Hdf5Process", "Part", "inspect", "need_same", "shared_process"]

DEADLINE_S = 20
"""For one request. Those for rows are small, so only a library that loops needs longer."""

SPARE_BYTES = 128 << 20
"""What the library may allocate besides what was asked for."""

REQUEST_ROWS, REQUEST_BYTES = 1 << 14, 1 << 24

Fields = Sequence[str] | Mapping[str, str]
"""Names of fields, or new names and the data sets they stand for."""


@dataclass(frozen=True)
class Part:
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

    def read(self, path: str, part: Part, ids: IntArray, request: Mapping[str, Any]) -> Any:
        """Rows of a data set: an array, or values and lengths where these differ."""
        step = max(1, min(REQUEST_ROWS, REQUEST_BYTES // max(1, part.field.stride if part.field.is_fixed else 1)))
        runs = [ids[low : low + step] for low in range(0, ids.size, step)]
        found = [self._read(path, part, run, request) for run in runs]
        if part.field.is_fixed:
            return np.concatenate(found)
        return np.concatenate([values for values, _ in found]), np.concatenate([lengths for _, lengths in found])

    def _read(self, path: str, part: Part, ids: IntArray, request: Mapping[str, Any]) -> Any:
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


def inspect(path: str, size: int, fields: Fields | None, max_block_bytes: int) -> dict[str, Part]:
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


def need_same(paths: Sequence[str], tables: Sequence[Mapping[str, Part]]) -> None:
    """SchemaMismatchError unless all files have the same fields."""
    first = {name: part.field for name, part in tables[0].items()}
    for path, table in zip(paths, tables, strict=True):
        found = {name: part.field for name, part in table.items()}
        if found != first:
            names = [name for name in {**first, **found} if first.get(name) != found.get(name)]
            expected, other = {name: first.get(name) for name in names}, {name: found.get(name) for name in names}
            raise SchemaMismatchError(f"{path}: expected {expected} as in {paths[0]}, found {other}")


def _parts(path: str, answer: Mapping[str, Any], blob: bytearray) -> dict[str, Part]:
    try:
        table, place, chunks = {}, 0, np.frombuffer(blob, np.int64).reshape(-1, 2)
        for name, one in answer["parts"].items():
            places, sizes = chunks[place : place + one["num_chunks"]].T
            place += one["num_chunks"]
            dtype = np.dtype(str(one["dtype"]))
            field = _field(f"{path}: data set {one['data_set']!r}", one, dtype)
            length, rows, chunk_bytes = int(one["length"]), int(one["rows"]), int(one["chunk_bytes"])
            how = bool(one["filtered"]), str(one["layout"])
            table[name] = Part(str(one["data_set"]), field, dtype, length, rows, chunk_bytes, *how, places.copy(), sizes.copy())
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


def _check(where: str, size: int, part: Part, one: Mapping[str, Any], max_block_bytes: int) -> None:
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
