"""ArrayRecord files: thousands of shards as one source of byte strings, read through the array_record package."""

import ctypes
import mmap
import os
import re
import resource
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from penstock.algebra import collect
from penstock.argument import IntArray, byte_size
from penstock.batch import Batch, Outputs, Ragged
from penstock.errors import CorruptError, FormatError, ReadError, SourceChangedError, TruncatedError
from penstock.formats.files import MAX_BLOCK_BYTES, Files, FileSource, check_block, expand, file_size
from penstock.formats.folder import Decode, Decoder, run_each
from penstock.formats.rows_in_files import default_threads
from penstock.process import ForkAware, need
from penstock.records import Blocks, Recipe, by_number
from penstock.schema import Field
from penstock.system import reading

__all__ = ["open_array_record"]

SUFFIXES = (".array_record", ".arrayrecord", ".ar")
MAGIC = bytes.fromhex(
    "83af70d10d884a3f 0000000000000000 4000000000000000 91bac23c9287e1a9 0000000000000000 e19f13c0e9b1c372 7300000000000000"
    "0000000000000000"
)
"""The first 64 bytes of every file in the Riegeli format, which ArrayRecord is made of."""

MIN_BYTES = BLOCK_BYTES = 1 << 16
SIGNATURE_BYTES, BLOCK_HEADER_BYTES, HEADER_BYTES = 64, 24, 40
MAX_READERS = 1024
STACK_STEP = 1 << 16
OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
BUFFER_BYTES = 1 << 15
"""For random access."""


def open_array_record(
    what: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    field: str = "data",
    decode: Decode | None = None,
    schema: Mapping[str, Field] | None = None,
    threads: int | None = None,
    max_block_bytes: int | str = MAX_BLOCK_BYTES,
) -> "ArrayRecordSource":
    """One ArrayRecord file, or many as one source: a list keeps its order, a pattern or a directory gives that of the name bytes.

    A record is a byte string, the field ``field``. ``decode`` turns it into an array, or into a dict whose fields replace it;
    ``schema`` says what comes out, which is found out from the first record otherwise. A file with records that were compressed
    together and claim to be more than ``max_block_bytes`` is refused when it is first read, unless they are stored in a 64th of
    that or more.
    """
    paths, largest = [str(path) for path in expand(what, SUFFIXES)], byte_size("max_block_bytes", max_block_bytes)
    return ArrayRecordSource(paths, field, decode, schema, (default_threads(threads), largest))


class ArrayRecordSource(FileSource):
    """The records of ArrayRecord files, one file after the other. Only some of the files are open at any time."""

    def __init__(
        self,
        paths: Sequence[str],
        field: str,
        decode: Decode | None,
        schema: Mapping[str, Field] | None,
        limits: tuple[int, int],
    ) -> None:
        """``limits``: of threads, and of the bytes of what is decoded at once."""
        self._paths, self._name, self._decode, self._given, self._limits = list(paths), field, decode, schema, limits
        self._files = Files.on_disk(paths)
        self._threads = threads = limits[0]
        need("array_record.python.array_record_module", "arrayrecord")
        heads = run_each(lambda shard: _head(self._paths[shard]), len(self._paths), threads)
        self._counts, self._groups = [count for count, _ in heads], [group for _, group in heads]
        self._ends = np.cumsum(self._counts, dtype=np.int64)
        self._readers: _Readers | None = _Readers(self._paths, self._counts, limits[1])
        try:
            self._decoder = Decoder(field, decode, schema, self._first)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def schema(self) -> Mapping[str, Field]:
        return dict(self._decoder.schema)

    @property
    def blocks(self) -> Blocks:
        """The groups of records that were compressed together; where there are none, the files."""
        if not self.reads_blocks:
            return Blocks.of_counts(self._counts) if len(self._counts) > 1 else super().blocks
        sizes = [np.diff(np.append(np.arange(0, n, group), n)) for n, group in zip(self._counts, self._groups, strict=True)]
        return Blocks.of_counts(np.concatenate(sizes))

    @property
    def reads_blocks(self) -> bool:
        return max(self._groups) > 1

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        wanted = {name: self._decoder.schema[name] for name in fields}
        if not wanted:
            return {}
        records = self._records(ids)
        if self._decoder.is_plain:
            return {self._name: Ragged.from_items(records, dtype=np.uint8, kind="bytes")}
        return collect(records, wanted, out)

    def _records(self, ids: IntArray) -> list[Any]:
        """The byte strings, or what they are decoded to. Every file is asked once for all that is wanted of it."""
        if self._readers is None:
            raise ValueError("the source is closed")
        readers, groups = self._readers, by_number(np.searchsorted(self._ends, ids, side="right"))

        def work(part: int) -> list[Any]:
            shard, places = groups[part]
            path, local = self._paths[shard], (ids[places] - (self._ends[shard] - self._counts[shard])).tolist()
            items = _read(path, readers.get(shard), local)
            if self._decoder.is_plain:
                return items
            return [self._decoder(f"{path}, record {number}", data) for number, data in zip(local, items, strict=True)]

        found: list[Any] = [None] * ids.size
        for (_, places), part in zip(groups, run_each(work, len(groups), self._threads), strict=True):
            for place, record in zip(places.tolist(), part, strict=True):
                found[place] = record
        return found

    def _first(self) -> tuple[str, bytes] | None:
        if len(self) == 0 or self._readers is None:
            return None
        shard = int(np.flatnonzero(self._counts)[0])
        return f"{self._paths[shard]}, record 0", _read(self._paths[shard], self._readers.get(shard), [0])[0]

    def close(self) -> None:
        if self._readers is not None:
            self._readers.close()
            self._readers = None

    def _identity(self) -> tuple[Any, ...]:
        return "array_record", self._name, self._decoder.identity

    def _recipe(self) -> Recipe:
        return (ArrayRecordSource, (self._paths, self._name, self._decode, self._given, self._limits))


class _Readers(ForkAware):
    """The readers used last. One that is dropped closes its file when the last thread is done with it."""

    def __init__(self, paths: Sequence[str], counts: Sequence[int], max_block_bytes: int) -> None:
        self._paths, self._counts, self._max_block_bytes = paths, counts, max_block_bytes
        self._checked: set[int] = set()
        self._limit = max(1, min(MAX_READERS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
        super().__init__()

    def _begin(self) -> None:
        self._open: OrderedDict[int, Any] = OrderedDict()

    def get(self, shard: int) -> Any:
        """The reader of a file, opened if need be."""
        with self._here():
            if shard in self._open:
                self._open.move_to_end(shard)
                return self._open[shard]
        if shard not in self._checked:
            _check_chunks(self._paths[shard], self._max_block_bytes)
            self._checked.add(shard)
        reader = _open(self._paths[shard])
        found, path = reader.num_records(), self._paths[shard]
        if found != self._counts[shard]:
            _close(path, reader)
            raise SourceChangedError(f"{path}: expected {self._counts[shard]} records as at opening, found {found}; open it again")
        with self._lock:
            self._open[shard] = reader
            while len(self._open) > self._limit:
                self._open.popitem(last=False)
        return reader

    def close(self) -> None:
        self._open.clear()


class _Gate:
    """Lets no fork happen while the package reads: its threads hold locks that would never be released in a child."""

    def __init__(self) -> None:
        self._changed, self._readers, self._forking = threading.Condition(threading.Lock()), 0, False
        self._stacks = _Stacks()
        os.register_at_fork(before=self._before, after_in_parent=self._after, after_in_child=self._after_in_child)

    def __enter__(self) -> None:
        with self._changed:
            while self._forking:
                self._changed.wait()
            self._readers += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._readers -= 1
            self._changed.notify_all()

    def _before(self) -> None:
        self._changed.acquire()
        self._forking = True
        while self._readers:
            self._changed.wait()

    def _after(self) -> None:
        self._forking = False
        self._changed.notify_all()
        self._changed.release()

    def _after_in_child(self) -> None:
        self._stacks.enlarge()
        self._after()


class _Stacks:
    """Keeps the stacks of threads that a fork has ended from being used again.

    Once the package has decompressed something, a thread of it waits on a lock. In a child this thread is gone, but the lock still
    points into its stack, which the C library gives to the next thread that needs as much or less; then a read crashes. So threads
    of a child get larger stacks.
    """

    def __init__(self) -> None:
        self._library, self._attributes, self._size = ctypes.CDLL(None), ctypes.create_string_buffer(64), ctypes.c_size_t()
        self._is_known = hasattr(self._library, "pthread_setattr_default_np")  # glibc

    def enlarge(self) -> None:
        """In a child: all stacks from now on are larger than those that were there at the fork."""
        if self._is_known and self._library.pthread_getattr_default_np(self._attributes) == 0:
            self._library.pthread_attr_getstacksize(self._attributes, ctypes.byref(self._size))
            self._library.pthread_attr_setstacksize(self._attributes, ctypes.c_size_t(self._size.value + STACK_STEP))
            self._library.pthread_setattr_default_np(self._attributes)


@cache
def _gate() -> _Gate:
    return _Gate()


def _open(path: str) -> Any:
    """A reader of a file. The package itself finds fault with a bad one only when it is read, so it is looked at before."""
    size = file_size(Path(path))
    with reading(path), open(path, "rb") as file:
        start = file.read(len(MAGIC))
    if not start.startswith(MAGIC[: len(start)]):
        raise FormatError(f"{path}: expected an ArrayRecord file beginning with {MAGIC[:8].hex()}, found {start[:8].hex()}")
    if size < MIN_BYTES:
        raise TruncatedError(f"{path}: expected an ArrayRecord file of at least {MIN_BYTES} bytes, found {size}")
    module = need("array_record.python.array_record_module", "arrayrecord")
    with _gate():
        reader = module.ArrayRecordReader(path, OPTIONS, file_reader_buffer_size=BUFFER_BYTES)
    if not reader.ok():
        raise CorruptError(f"{path}: expected an ArrayRecord file, found a broken one: {_fault(reader)}")
    return reader


def _check_chunks(path: str, max_block_bytes: int) -> None:
    """BatchTooLargeError if records that were compressed together claim to be too large. Only headers are read.

    A Riegeli file is chunks in blocks of 64 KiB, each of which begins with 24 other bytes. The header of a chunk is five numbers of
    64 bits: a hash, the size of its data, a hash, its kind (8 bits) and the number of its records, and what they decode to.
    """
    place, size = SIGNATURE_BYTES, file_size(Path(path))
    with reading(Path(path)), open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        while place < size:
            header = data[place : place + 2 * HEADER_BYTES]
            before = BLOCK_BYTES - place % BLOCK_BYTES if place % BLOCK_BYTES else 0
            if before < HEADER_BYTES:
                header = header[:before] + header[before + BLOCK_HEADER_BYTES :]
            if len(header) < HEADER_BYTES:
                return  # the end is missing, as the package will find out
            _, stored, _, kind, decoded = struct.unpack_from("<5Q", header)
            check_block(f"{path}: the records at {place}", decoded, stored, max_block_bytes)
            check_block(f"{path}: the records at {place}", kind >> 8, stored, max_block_bytes)
            place = max(_end(place, HEADER_BYTES + stored), place + (kind >> 8))


def _end(place: int, count: int) -> int:
    """The place after a number of bytes, without the beginnings of blocks among them."""
    if place % BLOCK_BYTES == 0:
        place += BLOCK_HEADER_BYTES
    inside = place % BLOCK_BYTES - BLOCK_HEADER_BYTES + count
    full = max(0, inside - 1) // (BLOCK_BYTES - BLOCK_HEADER_BYTES)
    return place + count + full * BLOCK_HEADER_BYTES


def _close(path: str, reader: Any) -> None:
    try:
        reader.close()
    except RuntimeError as error:
        raise ReadError(f"{path}: closing the file failed: {error}") from error


def _fault(reader: Any) -> str:
    """What is wrong with a file; its reader is closed. Only a failing call tells."""
    try:
        reader.close()
    except RuntimeError as error:
        return str(error) or "its end is missing"
    return "no reason given"


def _head(path: str) -> tuple[int, int]:
    """How many records a file has, and how many of them were compressed together."""
    reader = _open(path)
    group = re.search(r"group_size:(\d+)", reader.writer_options_string())
    count = reader.num_records()
    _close(path, reader)
    return count, max(1, int(group[1])) if group else 1


def _read(path: str, reader: Any, numbers: list[int]) -> list[bytes]:
    try:
        with _gate():
            found: list[bytes] = reader.read(numbers)
    except RuntimeError as error:
        raise CorruptError(f"{path}: {error}") from error
    return found
