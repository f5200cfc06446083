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

Sidecars of objects at URLs are in the cache directory. :func:`publish` puts them next to the objects too. Every host looks for them
there before it searches objects, and copies them to its cache directory.
"""

import json
import os
import posixpath
import re
import stat
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
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
    TruncatedError,
    UnsupportedTypeError,
    UnsupportedVersionError,
)
from penstock.fingerprint import digest_files, fingerprint_of
from penstock.formats.files import RemoteFile, need_size
from penstock.formats.publish import NewFile, Staging, put_file
from penstock.formats.rows_in_files import Version
from penstock.native import _core
from penstock.records import FEW, Sampling
from penstock.remote.objects import READ_ONLY
from penstock.remote.url import UrlPath
from penstock.system import SIZE, file_version, is_directory, is_file, is_settled, names_in, reading, writing

__all__ = [
    "SUFFIX",
    "Builder",
    "Described",
    "Sidecar",
    "SidecarWriter",
    "Subject",
    "cache_directory",
    "obtain",
    "obtain_each",
    "publish",
    "read_sidecar",
    "recording",
    "sealed",
    "sidecars_of",
    "unsealed",
]

MAGIC, VERSION = b"PENSIDE\n", 1
ABOUT = "about"
"""The array of a sidecar in the cache directory that has the names of its files, a line each."""

HEAD = struct.Struct("<8sIIQ16s32sI20x")
ENTRY = struct.Struct("<16s8sQQQI12x")
CRC_AT = HEAD.size - 24
SUFFIX = ".penstock-index"
SIDECAR_NAME = re.compile(rf"\.(.*)\.[0-9a-f]{{16}}{re.escape(SUFFIX)}", re.DOTALL)
"""The name of a sidecar next to a file, and in it that of the file."""


ALIGNMENT = 4096
PAGE_BYTES = 16 << 10
MOST_ARRAYS = (ALIGNMENT - HEAD.size) // ENTRY.size
DTYPES = frozenset(("<i8", "<u8", "<i4", "<u4", "<u2", "|u1"))

CHECKED_BYTES = 64 << 20
"""Arrays of up to this many bytes are checked when they are opened; of larger ones each page when it is first needed."""

FETCHED_BYTES = 8 << 20
"""Of a sidecar at a URL, at a time."""

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
            told: list[object] = [*self._urls(), *(file.size for file in self.files), *(info.etag for info in objects)]
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

    def _urls(self) -> list[str]:
        """Names of objects that stay when all of them are copied to another place; of those in several buckets their addresses."""
        places = [file.path.path for file in self.files if isinstance(file.path, RemoteFile)]
        if len({id(one.objects) for one in places}) > 1:
            return [_address(file.path) for file in self.files]
        above = places[0].parent.key
        return [one.name if len(places) == 1 else posixpath.relpath(f"/{one.key}", f"/{above}") for one in places]

    @property
    def published(self) -> UrlPath | None:
        """Where its sidecar may be at a URL: next to the first of the objects. None for files on disk, objects of several buckets,
        and places where nothing can be put.
        """
        first = self.files[0].path if self.files else None
        if not isinstance(first, RemoteFile) or first.path.objects.scheme in READ_ONLY or self._urls()[0] != first.name:
            return None
        name = fingerprint_of(VERSION, self.kind, self.options, self._urls())[:16]
        return first.path.parent / f".{first.path.name[:100]}.{name}{SUFFIX}"

    def places(self, cache: Path | None) -> Iterator[Path]:
        """Where its sidecar may be, the best place first."""
        paths = self.paths
        if paths:
            name = fingerprint_of(VERSION, self.kind, self.options, _names(paths))[:16]
            yield paths[0].with_name(f".{paths[0].name[:100]}.{name}{SUFFIX}")
        if cache is not None:
            yield cache / (fingerprint_of(VERSION, self.kind, self.options, [_address(file.path) for file in self.files]) + SUFFIX)


def _address(file: Path | RemoteFile) -> str:
    """What a file is called in a directory that has sidecars of many."""
    return file.address if isinstance(file, RemoteFile) else str(file)


def _names(paths: Sequence[Path]) -> list[str]:
    """Names that stay when a directory is moved with all that is in it."""
    if len(paths) == 1:
        return [paths[0].name]
    return [os.path.relpath(path, paths[0].parent) for path in paths]


def cache_directory() -> Path | None:
    """Where sidecars are that cannot be next to their files; None for a user without a home."""
    try:
        return Path.home() / ".cache" / "penstock" / "index"
    except RuntimeError:
        return None


def sidecars_of(files: Callable[[str], bool], paths: Iterable[Path]) -> list[Path]:
    """The sidecars of files, whatever they are about: those next to the paths, and those in the cache directory one of whose files,
    given by its path or URL, is meant.
    """
    by_directory: dict[Path, set[str]] = {}
    for path in (Path(os.path.realpath(path)) for path in paths):
        by_directory.setdefault(path.parent, set()).add(path.name[:100])
    found = [one for directory, names in by_directory.items() for one in _next_to(directory, names)]
    place = cache_directory()
    if place is not None and is_directory(place):
        found += [place / name for name in sorted(names_in(place)) if name.endswith(SUFFIX) and _is_about(place / name, files)]
    return list(dict.fromkeys(found))


def _next_to(directory: Path, names: Collection[str]) -> Iterator[Path]:
    """The sidecars of files of a directory, next to them."""
    for name in sorted(names_in(directory)) if is_directory(directory) else []:
        named = SIDECAR_NAME.fullmatch(name)
        if named is not None and named[1] in names and is_file(directory / name):
            yield directory / name


def _is_about(path: Path, files: Callable[[str], bool]) -> bool:
    try:
        found = read_sidecar(path)
        if ABOUT not in found:
            return False
        found.need(ABOUT, np.zeros(1, np.int64), np.array([found[ABOUT].size], np.int64))
    except ReadError:
        return False
    return any(map(files, found[ABOUT].tobytes().decode("utf-8", "surrogateescape").split("\n")))


class SidecarWriter(Protocol):
    """Takes the arrays of a sidecar, one after the other."""

    def add(self, name: str, dtype: npt.DTypeLike, pieces: Iterable[Array]) -> Array:
        """An array, given in pieces. Gives all of it, as a map."""


Builder = Callable[[SidecarWriter], None]


def obtain(subject: Subject, build: Builder, *, cache: Path | None = None) -> "Sidecar":
    """The arrays that ``build`` adds, from a sidecar if there is a good one; otherwise they are made and kept. Where they cannot be
    kept, they are in memory.
    """
    identity = subject.identity()
    if identity is None:
        return _in_memory(build)
    places = list(subject.places(cache_directory() if cache is None else cache))
    for path in places:
        if (found := _read_good(path, subject.kind, identity)) is not None:
            return _recorded(subject, found)
    for path in places:
        with suppress(StoreError):  # it cannot be written there
            return _recorded(subject, _make(path, subject, identity, build))
    return _in_memory(build)


_recorders: "list[list[tuple[Subject, Sidecar]]]" = []


@contextmanager
def recording() -> "Iterator[list[tuple[Subject, Sidecar]]]":
    """The sidecars that sources of this process take while it is entered, and what they are about."""
    found: list[tuple[Subject, Sidecar]] = []
    _recorders.append(found)
    try:
        yield found
    finally:
        _recorders[:] = [one for one in _recorders if one is not found]


def _recorded(subject: Subject, sidecar: "Sidecar") -> "Sidecar":
    for one in _recorders:
        one.append((subject, sidecar))
    return sidecar


def publish(subject: Subject, sidecar: "Sidecar") -> UrlPath | None:
    """Put a sidecar of objects next to them, in one step, unless it is there; where that is. None if it is of files on disk, or in
    memory. SourceChangedError if the objects were replaced; WriteRefusedError or StorePermissionError where nothing can be written.
    """
    place = subject.published
    if place is None or sidecar.path is None:
        return None
    objects = [file.path for file in subject.files if isinstance(file.path, RemoteFile)]
    for one in objects:
        if RemoteFile(one.path).info.etag != one.info.etag:
            raise SourceChangedError(f"{one}: the object was replaced while its index was made; open it again")
    if not _is_published(place, subject.kind, sidecar.identity):
        with reading(sidecar.path):
            put_file(sidecar.path, place)
    return place


def _is_published(place: UrlPath, kind: str, identity: bytes) -> "RemoteFile | None":
    """The sidecar at a URL, if it is one of that identity. That an object may not be read is no other case than that it is not
    there: some servers say so of all that is not there.
    """
    file = RemoteFile(place)
    try:
        head = file.first(ALIGNMENT)
        _, found_kind, found = _read_head(place, head, file.size)
    except ReadError:
        return None
    return file if (found_kind, found) == (kind, identity) else None


def _fetch(subject: Subject, identity: bytes, new: NewFile) -> bool:
    """Copy what is published next to objects into a new file; False, and nothing or only a part of it is written, if there is no
    good one.
    """
    place = subject.published
    file = None if place is None else _is_published(place, subject.kind, identity)
    if file is None:
        return False
    try:
        for start in range(0, file.size, FETCHED_BYTES):
            new.write(file.read(start, min(file.size, start + FETCHED_BYTES)))
        found = read_sidecar(new.path)
        found.check(file.size)
    except ReadError:
        return False
    return (found.kind, found.identity) == (subject.kind, identity)


def _in_memory(build: Builder) -> "Sidecar":
    """The arrays that ``build`` adds, not kept."""
    made = _InMemory()
    build(made)
    return Sidecar(made.columns, None)


Each = Callable[[Callable[[int], None], Sequence[int]], None]
"""Calls a function with every one of some numbers, in threads if it likes."""


def obtain_each(
    subjects: Sequence[Subject | None],
    build: Callable[[int, SidecarWriter], None],
    each: Each,
    *,
    checked_bytes: int | None = None,
) -> "list[Sidecar]":
    """The sidecars of many subjects, as :func:`obtain` gives them: ``build(number, writer)`` makes those that are missing, ``each``
    calls it for all of them. They are found and made with one lock for those in one directory; those that were made when one fails,
    or is interrupted, stay. None stands for a subject whose arrays are not kept.
    """
    shelf, home = _Shelf(subjects, build, checked_bytes), cache_directory()
    for choice in range(2):  # next to the data, otherwise in the cache directory
        for directory, places in shelf.find(choice, home).items():
            shelf.make(directory, places, each)
    left = [number for number in range(len(subjects)) if number not in shelf.found]

    def make(number: int) -> None:
        shelf.found[number] = _in_memory(lambda writer: build(number, writer))

    each(make, left)
    for number, subject in enumerate(subjects):
        if subject is not None and shelf.found[number].path is not None:
            _recorded(subject, shelf.found[number])
    return [shelf.found[number] for number in range(len(subjects))]


class _Shelf:
    """The sidecars of many subjects, of which some are found and others made."""

    def __init__(
        self, subjects: Sequence[Subject | None], build: Callable[[int, SidecarWriter], None], checked_bytes: int | None
    ) -> None:
        self._subjects, self._build, self._checked_bytes = subjects, build, checked_bytes
        self._identities = {number: one.identity() for number, one in enumerate(subjects) if one is not None}
        self.found: dict[int, Sidecar] = {}

    def find(self, choice: int, cache: Path | None) -> dict[Path, dict[int, Path]]:
        """Map those that are in their best place, or in the second best, and give the others, by their directory there."""
        places: dict[Path, dict[int, Path]] = {}
        for number, subject in enumerate(self._subjects):
            if subject is None or self._identities[number] is None or number in self.found:
                continue
            for path in islice(subject.places(cache), choice, choice + 1):
                self._read(number, path)
                if number not in self.found:
                    places.setdefault(path.parent, {})[number] = path
        return places

    def _read(self, number: int, path: Path) -> None:
        subject, identity = self._subjects[number], self._identities[number]
        assert subject is not None
        assert identity is not None
        found = _read_good(path, subject.kind, identity, self._checked_bytes)
        if found is not None:
            self.found[number] = found

    def make(self, directory: Path, places: Mapping[int, Path], each: Each) -> None:
        """Make them, unless another process does so, or they cannot be written there."""
        told = [(one.kind, one.options, [str(file.path) for file in one.files]) for one in self._subjects if one is not None]
        staging = Staging(directory / fingerprint_of(VERSION, told))
        try:
            with writing(directory, "making it"):
                directory.mkdir(parents=True, exist_ok=True)
            with staging.alone():
                for number, path in places.items():  # another process has made them meanwhile
                    self._read(number, path)
                first: dict[Path, int] = {}  # a file may be there several times
                for number, path in places.items():
                    if number not in self.found:
                        first.setdefault(path, number)
                if first:
                    with staging:
                        each(
                            lambda number: self._make(number, places[number], staging.path(places[number].name)),
                            list(first.values()),
                        )
                for number, path in places.items():
                    self._share(number, first.get(path, number))
        except StoreError:  # the others are made elsewhere
            return

    def _share(self, number: int, other: int) -> None:
        """Take what was made for another number, if it is about the same."""
        if number not in self.found and other in self.found and self._identities[number] == self._identities[other]:
            self.found[number] = self.found[other]

    def _make(self, number: int, path: Path, temporary: Path) -> None:
        subject, identity = self._subjects[number], self._identities[number]
        assert subject is not None
        assert identity is not None
        file = NewFile(temporary)
        try:
            _fill(file, path, subject, identity, lambda writer: self._build(number, writer))
        finally:
            file.close()
        with writing(path, "publishing"):
            os.replace(temporary, path)
        self.found[number] = read_sidecar(path)


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
    with staging.alone():
        found = _read_good(path, subject.kind, identity)  # another process has made it meanwhile
        if found is not None:
            return found
        with staging:
            file = staging.new_file(path.name)
            _fill(file, path, subject, identity, build)
            file.finish()
            staging.publish([path], overwrite=True)
    return read_sidecar(path)


def _fill(file: NewFile, path: Path, subject: Subject, identity: bytes, build: Builder) -> None:
    """Write a sidecar that is going to be at ``path``: the one that is published, or what ``build`` adds. SourceChangedError if the
    data changed meanwhile. What a power cut leaves of it, if it is not made durable, is found damaged, and made again.
    """
    if not _fetch(subject, identity, file):
        writer = _FileWriter(file)
        build(writer)
        _tell_files(writer, path, subject)
        writer.finish(subject.kind, identity)
    if subject.identity() != identity:
        raise SourceChangedError(f"{subject.files[0].path}: the data changed while it was read; open it again")


def _tell_files(writer: SidecarWriter, path: Path, subject: Subject) -> None:
    """Add the names of the files to a sidecar that is not next to them: nothing else tells what it is about."""
    if subject.paths is None or path.parent != subject.paths[0].parent:
        about = "\n".join(str(file.path) for file in subject.files).encode("utf-8", "surrogateescape")
        writer.add(ABOUT, np.uint8, [np.frombuffer(about, np.uint8)])


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
        file.clear()
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
        """Write the head."""
        entries = b"".join(self._entries)
        facts = MAGIC, VERSION, len(self._entries), self._file.size, kind.encode("ascii"), identity
        crc = _core.crc32c(np.frombuffer(HEAD.pack(*facts, 0) + entries, np.uint8))
        self._file.write_at(0, HEAD.pack(*facts, crc) + entries)


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
                "it is rebuilt"
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


def _read_head(path: Path | UrlPath, first: bytes, size: int) -> tuple[list[tuple[Any, ...]], str, bytes]:
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
    need_size(path, size, told)
    entries = [ENTRY.unpack_from(first, HEAD.size + number * ENTRY.size) for number in range(count)]
    return [(_text(path, name), *facts) for name, *facts in entries], _text(path, kind), identity


def _text(path: Path | UrlPath, raw: bytes) -> str:
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


def sealed(value: Any) -> npt.NDArray[np.uint8]:
    """JSON to be kept in a sidecar, with its checksum."""
    content = json.dumps(value).encode()
    crc = _core.crc32c(np.frombuffer(content, np.uint8))
    return np.frombuffer(crc.to_bytes(4, "little") + content, np.uint8)


def unsealed(where: object, data: npt.NDArray[np.uint8]) -> Any:
    """The value of :func:`sealed`. CorruptError if the bytes are not what was written."""
    if data.size < 4 or _core.crc32c(np.ascontiguousarray(data[4:])) != int.from_bytes(data[:4].tobytes(), "little"):
        raise CorruptError(f"{where}: its index is not what was written: remove the .penstock-index next to it, or in the cache")
    return json.loads(data[4:].tobytes())
