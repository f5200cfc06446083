"""Sidecars: arrays that were found by reading all of some files, kept in a file next to them, and read through a map.

::

    file   = head entry* array*                    all numbers are little-endian, names are ASCII filled up with NULs
    head   = magic "PENSIDE\\n" | version u32 | arrays u32 | bytes of the file u64 | kind, 16 bytes | identity, 32 bytes |
             crc32c u32 of head and entries with 0 in its place | 20 zeros
    entry  = name, 16 bytes | element type, 8 bytes | elements u64 | offset u64 | offset of crcs u64 | crc32c of crcs u32 | 12 zeros
    array  = elements | crcs: the crc32c u32 of every 16 KiB of them          each from a multiple of 4,096 on

The identity is a digest of what the arrays describe: kind and options, and of every file its name, size, time of the last write and
pages spread over it. A sidecar of another identity is not read, one that is damaged is made again: it is never believed over the
data.

It is next to the first of the files (``.<name>.<digest>.penstock-index``), or in the cache directory of the user where that cannot
be written. It appears whole or not at all; processes that want the same one wait for the one that makes it.
"""

import os
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray
from penstock.errors import (
    CorruptError,
    FormatError,
    ReadError,
    SizeOverflowError,
    SourceChangedError,
    StoreError,
    TrailingBytesError,
    TruncatedError,
    UnsupportedTypeError,
    UnsupportedVersionError,
)
from penstock.fingerprint import digest_files, fingerprint_of
from penstock.formats.files import RemoteFile
from penstock.formats.publish import NewFile, Staging
from penstock.formats.rows_in_files import Version
from penstock.native import _core
from penstock.records import FEW, Sampling
from penstock.system import SIZE, file_version, is_settled, reading, writing

__all__ = [
    "SUFFIX",
    "Builder",
    "Described",
    "Sidecar",
    "SidecarWriter",
    "Subject",
    "cache_directory",
    "look_up",
    "make_in_memory",
    "obtain",
    "read_sidecar",
]

MAGIC, VERSION = b"PENSIDE\n", 1
HEAD = struct.Struct("<8sIIQ16s32sI20x")
ENTRY = struct.Struct("<16s8sQQQI12x")
CRC_AT = HEAD.size - 24
SUFFIX = ".penstock-index"

ALIGNMENT = 4096
PAGE_BYTES = 16 << 10
MOST_ARRAYS = (ALIGNMENT - HEAD.size) // ENTRY.size
DTYPES = frozenset(("<i8", "<u8", "<i4", "<u4", "<u2", "|u1"))

CHECKED_BYTES = 64 << 20
"""Arrays of up to this many bytes are checked when they are opened; of larger ones each page when it is first needed."""

MOST_ADVICE = 4096
"""Pages that the system is told of before they are read."""

Array = npt.NDArray[Any]


class Described(Protocol):
    """A file that a sidecar describes: of this size, and on disk of this version. A FileRows is one."""

    @property
    def path(self) -> Path | RemoteFile: ...
    @property
    def size(self) -> int: ...
    @property
    def version(self) -> Version | None: ...


@dataclass(frozen=True)
class Subject:
    """What a sidecar is about: files, what is looked for in them (at most 16 letters), and all that decides on it besides."""

    kind: str
    files: Sequence[Described]
    options: tuple[object, ...] = ()
    sampling: Sampling = FEW
    """The pages of the files that are part of the identity."""

    @property
    def paths(self) -> list[Path] | None:
        """The files on disk; None if they are at URLs."""
        found = [file.path for file in self.files if isinstance(file.path, Path)]
        return found if len(found) == len(self.files) else None

    def identity(self) -> bytes | None:
        """The digest of the files as they are now. None if it would not tell whether they change: one was written a moment ago, or
        an object has no etag. SourceChangedError if they are not those that were opened.
        """
        paths = self.paths
        if paths is None:
            objects = [file.path.info for file in self.files if isinstance(file.path, RemoteFile)]
            if len(objects) < len(self.files) or any(info.etag is None for info in objects):
                return None
            told: list[object] = [(str(file.path), file.size) for file in self.files] + [info.etag for info in objects]
        else:
            versions = [file_version(path) for path in paths]
            for file, version in zip(self.files, versions, strict=True):
                if version[SIZE] != file.size or file.version not in (None, (version[0], version[1], version[3])):
                    raise SourceChangedError(f"{file.path}: the file is not the one that was opened; open the data again")
            if not all(map(is_settled, versions)):
                return None
            times = [version[3] for version in versions]
            told = [*_names(paths), *(file.size for file in self.files), *times, digest_files("sidecar", paths, self.sampling)]
        return bytes.fromhex(fingerprint_of(VERSION, self.kind, self.options, told))

    def places(self, cache: Path | None) -> Iterator[Path]:
        """Where its sidecar may be, the best place first."""
        paths = self.paths
        if paths:
            name = fingerprint_of(VERSION, self.kind, self.options, _names(paths))[:16]
            yield paths[0].with_name(f".{paths[0].name[:100]}.{name}{SUFFIX}")
        if cache is not None:
            yield cache / (fingerprint_of(VERSION, self.kind, self.options, [str(file.path) for file in self.files]) + SUFFIX)


def _names(paths: Sequence[Path]) -> list[str]:
    """Names that stay when a directory is moved with all that is in it."""
    return [os.path.relpath(path, paths[0].parent) for path in paths]


def cache_directory() -> Path | None:
    """Where sidecars are that cannot be next to their files; None for a user without a home."""
    try:
        return Path.home() / ".cache" / "penstock" / "index"
    except RuntimeError:
        return None


class SidecarWriter(Protocol):
    """Takes the arrays of a sidecar, one after the other."""

    def add(self, name: str, dtype: npt.DTypeLike, pieces: Iterable[Array]) -> Array:
        """An array, given in pieces. Gives all of it, as a map."""


Builder = Callable[[SidecarWriter], None]


def look_up(subject: Subject, *, cache: Path | None = None, checked_bytes: int | None = None) -> "Sidecar | None":
    """The sidecar of a subject, if there is a good one. Its arrays of at most ``checked_bytes`` (64 MiB) are checked."""
    identity = subject.identity()
    return None if identity is None else _find(subject, identity, _places(subject, cache), checked_bytes)


def obtain(subject: Subject, build: Builder, *, cache: Path | None = None, checked_bytes: int | None = None) -> "Sidecar":
    """The arrays that ``build`` adds, from a sidecar if there is a good one; otherwise they are made and kept. Where they cannot be
    kept, they are in memory.
    """
    identity = subject.identity()
    places = [] if identity is None else _places(subject, cache)
    if identity is not None and (found := _find(subject, identity, places, checked_bytes)) is not None:
        return found
    for path in places:
        assert identity is not None
        try:
            return _make(path, subject, identity, build)
        except StoreError:  # it cannot be written there
            continue
    return make_in_memory(build)


def make_in_memory(build: Builder) -> "Sidecar":
    """The arrays that ``build`` adds, not kept."""
    made = _InMemory()
    build(made)
    return Sidecar(made.columns, None)


def _places(subject: Subject, cache: Path | None) -> list[Path]:
    return list(subject.places(cache_directory() if cache is None else cache))


def _find(subject: Subject, identity: bytes, places: Sequence[Path], checked_bytes: int | None) -> "Sidecar | None":
    found = (_read_good(path, subject.kind, identity, checked_bytes) for path in places)
    return next((one for one in found if one is not None), None)


def _read_good(path: Path, kind: str, identity: bytes, checked_bytes: int | None = None) -> "Sidecar | None":
    try:
        found = read_sidecar(path)
        if (found.kind, found.identity) != (kind, identity):
            return None
        found.check(*(() if checked_bytes is None else (checked_bytes,)))
    except ReadError:
        return None
    return found


def _make(path: Path, subject: Subject, identity: bytes, build: Builder) -> "Sidecar":
    with writing(path, "making its directory"):
        path.parent.mkdir(parents=True, exist_ok=True)
    staging = Staging(path)
    staging.wait_for_others()
    found = _read_good(path, subject.kind, identity)  # another process has made it meanwhile
    if found is not None:
        return found
    with staging:
        writer = _FileWriter(staging.new_file(path.name))
        build(writer)
        writer.finish(subject.kind, identity)
        if subject.identity() != identity:
            raise SourceChangedError(f"{subject.files[0].path}: the data changed while it was read; open it again")
        staging.publish([path], overwrite=True)
    return read_sidecar(path)


class _InMemory:
    def __init__(self) -> None:
        self.columns: dict[str, _Column] = {}

    def add(self, name: str, dtype: npt.DTypeLike, pieces: Iterable[Array]) -> Array:
        array = np.concatenate([np.empty(0, dtype), *pieces]).astype(dtype, copy=False)
        self.columns[name] = _Column.in_memory(array)
        return array


class _FileWriter:
    """Arrays in a new file: elements, then the checksums of their pages. The head comes last."""

    def __init__(self, file: NewFile) -> None:
        self._file, self._entries = file, list[bytes]()
        file.write(bytes(ALIGNMENT))

    def add(self, name: str, dtype: npt.DTypeLike, pieces: Iterable[Array]) -> Array:
        kind = np.dtype(dtype).newbyteorder("<") if np.dtype(dtype).itemsize > 1 else np.dtype(dtype)
        if kind.str not in DTYPES or len(self._entries) == MOST_ARRAYS or len(name.encode("ascii")) > 16:
            raise ValueError(f"expected at most {MOST_ARRAYS} arrays of {', '.join(sorted(DTYPES))}, got {name!r} of {kind.str}")
        offset, crcs, left = self._file.size, list[npt.NDArray[np.uint32]](), np.empty(0, np.uint8)
        for piece in pieces:
            data = np.concatenate([left, np.ascontiguousarray(piece, kind).view(np.uint8)])
            whole = data.size - data.size % PAGE_BYTES
            crcs.append(_crcs(data[:whole]))
            self._file.write(data[:whole])
            left = data[whole:]
        self._file.write(left)
        count = (self._file.size - offset) // kind.itemsize
        table = np.concatenate([*crcs, _crcs(left)])
        self._pad()
        head = name.encode(), kind.str.encode(), count, offset, self._file.size
        self._entries.append(ENTRY.pack(*head, _core.crc32c(table.view(np.uint8))))
        self._file.write(table.astype("<u4", copy=False))
        self._pad()
        return np.memmap(self._file.path, kind, "r", offset, (count,)) if count else np.empty(0, kind)

    def _pad(self) -> None:
        self._file.write(bytes(-self._file.size % ALIGNMENT))

    def finish(self, kind: str, identity: bytes) -> None:
        entries = b"".join(self._entries)
        facts = MAGIC, VERSION, len(self._entries), self._file.size, kind.encode("ascii"), identity
        crc = _core.crc32c(np.frombuffer(HEAD.pack(*facts, 0) + entries, np.uint8))
        self._file.write_at(0, HEAD.pack(*facts, crc) + entries)
        self._file.finish()


def _crcs(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """The crc32c of every page."""
    crcs = np.empty(-(-data.size // PAGE_BYTES), np.uint32)
    ends = np.minimum(np.arange(1, crcs.size + 1, dtype=np.uint64) * PAGE_BYTES, data.size).astype(np.uint64)
    _core.crc32c_spans(np.ascontiguousarray(data), ends, crcs)
    return crcs


@dataclass(eq=False)
class _Column:
    """An array and, of a file, the checksums of its pages and those that were found right."""

    array: Array
    crcs: npt.NDArray[np.uint32]
    checked: npt.NDArray[np.bool_]
    is_checked: bool
    content: npt.NDArray[np.uint8] | None = None
    offset: int = 0

    @classmethod
    def in_memory(cls, array: Array) -> "_Column":
        return cls(array, np.empty(0, np.uint32), np.empty(0, np.bool_), is_checked=True)

    def bad_page(self, pages: IntArray) -> int:
        """The first page that is damaged, or -1. Those that are not will not be looked at again."""
        unchecked = pages[~self.checked[pages]]
        if self.content is not None and 1 < unchecked.size <= MOST_ADVICE:  # a cold disk reads them side by side
            for page in unchecked.tolist():
                start = self.offset + page * PAGE_BYTES
                _core.advise(self.content, start, min(start + PAGE_BYTES, self.offset + self.array.nbytes))
        bad = _core.find_bad_page(self.array.view(np.uint8), PAGE_BYTES, self.crcs, unchecked)
        if bad < 0:
            self.checked[unchecked] = True  # by two threads at once: the same
            self.is_checked = pages.size == self.checked.size or self.is_checked
        return bad


class Sidecar:
    """Arrays by name: maps of a file, or in memory. Safe to use from several threads and after a fork."""

    def __init__(self, columns: dict[str, _Column], path: Path | None, kind: str = "", identity: bytes = b"") -> None:
        self._columns, self.path, self.kind, self.identity = columns, path, kind, identity

    def __getitem__(self, name: str) -> Array:
        return self._columns[name].array

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def pages(self, name: str) -> tuple[Array, npt.NDArray[np.uint32], npt.NDArray[np.bool_]]:
        """An array, the crc32c of its pages, none if it is in memory, and flags of those that were found right: for native code
        that checks them itself.
        """
        column = self._columns[name]
        return column.array, column.crcs, column.checked

    def need(self, name: str, starts: IntArray, stops: IntArray) -> None:
        """CorruptError if elements [start, stop) are not what was written."""
        column = self._columns[name]
        if column.is_checked or starts.size == 0:
            return
        size = column.array.itemsize
        low, high = starts * size // PAGE_BYTES, np.maximum(stops * size - 1, starts * size) // PAGE_BYTES
        most = int((high - low).max()) + 1
        pages = np.unique(np.minimum(low[:, None] + np.arange(most), high[:, None]))
        self._need(name, pages[pages < column.crcs.size])

    def check(self, most_bytes: int = CHECKED_BYTES) -> None:
        """CorruptError if an array of at most that many bytes is not what was written."""
        for name, column in self._columns.items():
            if not column.is_checked and column.array.nbytes <= most_bytes:
                self._need(name, np.arange(column.crcs.size))

    def _need(self, name: str, pages: IntArray) -> None:
        bad = self._columns[name].bad_page(pages)
        if bad >= 0:
            raise CorruptError(
                f"{self.path}: bytes {bad * PAGE_BYTES} and following of {name!r} are not what was written: remove the file, and "
                "it is made again"
            )


def read_sidecar(path: Path) -> Sidecar:
    """The arrays of a file, as maps; their elements are not checked yet. FormatError, TruncatedError or another CorruptError if it
    is not a sidecar.
    """
    with reading(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            info = os.fstat(descriptor)
            if not stat.S_ISREG(info.st_mode) or info.st_size < ALIGNMENT:
                raise TruncatedError(f"{path}: expected a file of at least {ALIGNMENT} bytes")
            content = _core.map_file(descriptor, info.st_size)  # without a descriptor, of which a process has few
            first = os.pread(descriptor, ALIGNMENT, 0)
            entries, kind, identity = _read_head(path, first, info.st_size)
            columns = {name: _read_column(path, descriptor, content, *facts) for name, *facts in entries}
        finally:
            os.close(descriptor)
    return Sidecar(columns, path, kind, identity)


def _read_head(path: Path, first: bytes, size: int) -> tuple[list[tuple[Any, ...]], str, bytes]:
    if len(first) < ALIGNMENT:
        raise TruncatedError(f"{path}: expected at least {ALIGNMENT} bytes, the file was cut while it was read")
    magic, version, count, told, kind, identity, crc = HEAD.unpack_from(first)
    if magic != MAGIC:
        raise FormatError(f"{path}: expected {MAGIC!r} first, found {magic!r}")
    if version != VERSION:
        raise UnsupportedVersionError(f"{path}: expected version {VERSION} of a sidecar, found {version}")
    if count > MOST_ARRAYS:
        raise FormatError(f"{path}: expected at most {MOST_ARRAYS} arrays, found {count}")
    covered = bytearray(first[: HEAD.size + count * ENTRY.size])
    covered[CRC_AT : CRC_AT + 4] = bytes(4)
    if _core.crc32c(np.frombuffer(covered, np.uint8)) != crc:
        raise CorruptError(f"{path}: the head of the sidecar is not what was written")
    if told != size:
        raise (TruncatedError if size < told else TrailingBytesError)(f"{path}: expected {told} bytes, found {size}")
    entries = [ENTRY.unpack_from(first, HEAD.size + number * ENTRY.size) for number in range(count)]
    return [(_text(path, name), *facts) for name, *facts in entries], _text(path, kind), identity


def _text(path: Path, raw: bytes) -> str:
    text = raw.rstrip(b"\0")
    if not text.isascii() or not text.decode("ascii").isprintable():
        raise FormatError(f"{path}: expected a name, found {raw!r}")
    return text.decode("ascii")


def _read_column(
    path: Path, descriptor: int, content: npt.NDArray[np.uint8], raw: bytes, count: int, offset: int, crcs_at: int, crc: int
) -> _Column:
    name = _text(path, raw)
    if name not in DTYPES:
        raise UnsupportedTypeError(f"{path}: expected elements of {', '.join(sorted(DTYPES))}, found {raw!r}")
    dtype, size = np.dtype(name), content.size
    stop = offset + count * dtype.itemsize
    pages = -(-(stop - offset) // PAGE_BYTES)
    if stop > size or crcs_at + 4 * pages > size or offset % ALIGNMENT or crcs_at % ALIGNMENT:
        raise SizeOverflowError(f"{path}: expected an array within {size} bytes, found one up to {max(stop, crcs_at + 4 * pages)}")
    table = os.pread(descriptor, 4 * pages, crcs_at)
    if len(table) < 4 * pages:
        raise TruncatedError(f"{path}: expected {size} bytes, the file was cut while it was read")
    crcs = np.frombuffer(table, "<u4").astype(np.uint32)
    if _core.crc32c(crcs.view(np.uint8)) != crc:
        raise CorruptError(f"{path}: the checksums of an array are not what was written")
    array = content[offset:stop].view(dtype) if count else np.empty(0, dtype)
    return _Column(array, crcs, np.zeros(pages, np.bool_), pages == 0, content, offset)
