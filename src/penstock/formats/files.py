"""The files of a source, on disk or at URLs: names expanded, bytes read, versions compared; and how much may be decoded at once."""

import glob
import hashlib
import json
import os
import re
import stat
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray
from penstock.errors import (
    BatchTooLargeError,
    CorruptError,
    EmptyFileError,
    EmptySourceError,
    FormatError,
    MissingError,
    NoMatchError,
    SchemaMismatchError,
    SourceChangedError,
    TrailingBytesError,
    TruncatedError,
    UnsafePathError,
)
from penstock.fingerprint import (
    FEW_PAGES,
    digest_files,
    digest_sampled,
    fingerprint_files,
    fingerprint_samples,
    page_ranges,
    sample_ranges,
    shares_of,
)
from penstock.process import map_at_once
from penstock.records import Sampling, Source
from penstock.remote.objects import ObjectInfo
from penstock.remote.url import UrlPath
from penstock.store.storage import as_location
from penstock.system import WRITTEN, file_version, file_versions, is_directory, is_file, is_there, names_in, reading, status

__all__ = [
    "MAX_BATCH_BYTES",
    "MAX_BLOCK_BYTES",
    "File",
    "FileSource",
    "Files",
    "LocalFile",
    "Names",
    "Neighbours",
    "Prefix",
    "RemoteFile",
    "Versions",
    "bytes_of",
    "check_batch",
    "check_block",
    "check_texts",
    "children",
    "expand",
    "file_size",
    "find_files",
    "has_pattern",
    "is_file_there",
    "listing",
    "matching_objects",
    "matching_paths",
    "need_file",
    "need_size",
    "need_utf8",
    "next_to",
    "one_line",
    "read_json",
    "suffix_of",
]

MAX_BLOCK_BYTES = 1 << 30
"""What is decoded at once, unless ``max_block_bytes`` is given: a row group, record batch, chunk, image or file."""

MAX_BATCH_BYTES = 16 << 30
PLAUSIBLE_RATIO = 64
"""Real data is seldom compressed better than this, so that large blocks of it need no larger limit. Stores have the same rule."""


def check_block(where: str, declared: int, stored: int, limit: int) -> None:
    """BatchTooLargeError if a block would have more bytes than ``limit``, and more than its stored bytes make plausible."""
    if declared > limit and declared > PLAUSIBLE_RATIO * stored:
        raise BatchTooLargeError(
            f"{where}: {stored} stored bytes claim to be {declared}, more than the limit of {limit}: if the data can be trusted, "
            "open it with a larger max_block_bytes"
        )


def check_batch(where: str, num_bytes: int) -> None:
    """BatchTooLargeError if a batch would have more bytes than any batch may."""
    if num_bytes > MAX_BATCH_BYTES:
        raise BatchTooLargeError(
            f"{where}: expected a batch of at most {MAX_BATCH_BYTES} bytes, found {num_bytes}; read fewer records"
        )


def need_utf8(path: str | os.PathLike[str]) -> None:
    """UnsafePathError for the name of a file that is not UTF-8."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        raise UnsafePathError(f"expected the name of a file in UTF-8, found {os.fsencode(path)!r}: rename it") from None


def check_texts(values: npt.NDArray[np.uint8], offsets: IntArray, fault: Callable[[int], str]) -> None:
    """CorruptError, with what ``fault`` says of it, for the first of texts [offsets[i], offsets[i + 1]) that is not UTF-8:
    each by itself, for the whole may be, where one is cut within a character.
    """
    joined = values.tobytes()
    if joined.isascii():
        return
    with suppress(UnicodeDecodeError):
        joined.decode()
        if not np.any(values[offsets[:-1][np.diff(offsets) > 0]] & 0xC0 == 0x80):
            return
    for number, (low, high) in enumerate(pairwise(offsets.tolist())):
        try:
            joined[low:high].decode()
        except UnicodeDecodeError as error:
            raise CorruptError(fault(number)) from error


def one_line(words: object, most: int) -> str:
    """What a library says of a file, as part of a message: printable, and not longer than ``most``."""
    return "".join(one if one.isprintable() else " " for one in " ".join(str(words).split()))[:most]


def has_pattern(path: str) -> bool:
    """Whether a path is a pattern rather than a name."""
    return glob.has_magic(path)


_NUMBERED = re.compile(r"-\d+-of-\d+$")


def suffix_of(name: str) -> str:
    """The suffix of a name, in lower case: of ``train.tfrecord-00000-of-00010`` it is ``.tfrecord``, of a compressed ``a.jsonl.gz``
    the last two.
    """
    path = PurePosixPath(_NUMBERED.sub("", name).lower())
    return PurePosixPath(path.stem).suffix + path.suffix if path.suffix in (".gz", ".zst") else path.suffix


def name_key(path: str | Path) -> list[bytes]:
    """The sorting key of a path: the bytes of its names, level by level. ``s10`` comes before ``s2``."""
    return [os.fsencode(part) for part in Path(path).parts]


def expand(what: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], suffixes: tuple[str, ...]) -> list[Path]:
    """The absolute paths that a file, a pattern, a directory (its files with one of the suffixes) or a list of them stands for.

    A list keeps its order; what a pattern or a directory gives is sorted by the bytes of the names.
    """
    if not isinstance(what, str | os.PathLike):
        found = [path for one in what for path in expand(one, suffixes)]
        if not found:
            raise EmptySourceError("expected at least one file, got an empty list")
        return found
    text = os.fspath(what)
    if has_pattern(text) and not is_there(text):
        found = sorted(map(Path, matching_paths(text)), key=name_key)
        if not found:
            raise NoMatchError(f"no file matches {text!r} (in {os.getcwd()})")
        return [path.absolute() for path in found]
    path = Path(text).absolute()
    need_utf8(path)
    if is_directory(path):
        names = sorted((name for name in names_in(path) if suffix_of(name) in suffixes), key=os.fsencode)
        found = [inside for inside in (path / name for name in names) if is_file(inside)]
        if not found:
            raise NoMatchError(
                f"{path}: expected files named {' or '.join('*' + s for s in suffixes)} in this directory, found none"
            )
        return found
    need_file(path)
    return [path]


def matching_paths(pattern: str) -> list[str]:
    """What ``glob.glob(pattern, recursive=True)`` gives, in any order; but a directory that cannot be listed is an error."""
    first, *parts = pattern.split("/")
    found = ["/"] if first == "" else _step([""], first, is_last=not parts)
    for number, part in enumerate(parts):
        found = _step(found, part, is_last=number == len(parts) - 1)
    return found


def _step(places: Iterable[str], part: str, *, is_last: bool) -> list[str]:
    """What one name of a pattern leads to from some places."""
    if part == "":  # of two slashes, or of one at the end, which asks for directories
        return [place for place in places if not is_last or is_directory(place)]
    if part == "**":
        return [deeper for place in places for deeper in _below(place, with_files=is_last) if deeper or not is_last]
    if not has_pattern(part):
        return [one for place in places if is_there(one := os.path.join(place, part))]
    matches = re.compile(translate(part)).match
    return [
        os.path.join(place, name)
        for place in places
        if is_directory(place or ".")
        for name in names_in(place or ".")
        if matches(name) and (part.startswith(".") or not name.startswith("."))
    ]


def _below(place: str, *, with_files: bool) -> Iterator[str]:
    """A directory and all that is in it and below it, without what is hidden."""
    if not is_directory(place or "."):
        return
    yield place
    for name in names_in(place or "."):
        inner = os.path.join(place, name)
        if name.startswith("."):
            continue
        if is_directory(inner):
            yield from _below(inner, with_files=with_files)
        elif with_files:
            yield inner


def need_file(path: Path) -> os.stat_result:
    """What is known of a regular file; MissingError or FormatError if there is none."""
    found = status(path)
    if found is None:
        raise MissingError(f"{path}: there is no such file")
    if not stat.S_ISREG(found.st_mode):
        what = "a directory" if stat.S_ISDIR(found.st_mode) else "something else"
        raise FormatError(f"{path}: expected a regular file, found {what}")
    return found


def file_size(path: Path) -> int:
    """Bytes of a file that must not be empty."""
    size = need_file(path).st_size
    if size == 0:
        raise EmptyFileError(f"{path}: expected data, found an empty file")
    return size


def need_size(file: object, size: int, expected: int, why: str = "") -> None:
    """TruncatedError or TrailingBytesError unless a file has the bytes that it should."""
    if size != expected:
        kind = TruncatedError if size < expected else TrailingBytesError
        raise kind(f"{file}: expected {expected} bytes{why}, found {size}")


Named = tuple[UrlPath, ObjectInfo | None]
"""A name and, if it is an object rather than the beginning of the names of others, what the listing says of it."""


def listing(path: UrlPath) -> list[ObjectInfo]:
    """The objects under a URL, without the empty ones that some tools put there to stand for directories."""
    found = path.objects.list(path.key)
    if all(info.size for info in found):
        return found
    directories = {info.key[:at] for info in found for at, letter in enumerate(info.key) if letter == "/"}
    return [info for info in found if info.size or info.key not in directories]


def children(path: UrlPath, listed: Sequence[ObjectInfo] | None = None) -> list[tuple[UrlPath, ObjectInfo]]:
    """The objects right under a URL, as the files of a directory, sorted by the bytes of their names; hidden ones too."""
    depth = len(_names(path.key))
    found = [(_names(info.key), info) for info in (listing(path) if listed is None else listed)]
    direct = [(names[depth], info) for names, info in found if len(names) == depth + 1]
    return [(path / name, info) for name, info in sorted(direct, key=lambda one: one[0].encode())]


def matching_objects(pattern: UrlPath) -> list[Named]:
    """What a pattern stands for: ``*``, ``?`` and ``[...]`` within a name, ``**`` for any number of names. Hidden names match only
    what begins with a dot. Sorted by the bytes of the names, level by level. If there is something of exactly that name, it is
    that alone.
    """
    wanted = _names(pattern.key)
    fixed = next((n for n, part in enumerate(wanted) if has_pattern(part)), len(wanted) - 1)
    root = pattern.parent
    for _ in range(len(wanted) - 1 - fixed):
        root = root.parent
    found: dict[tuple[str, ...], ObjectInfo | None] = {}
    for info in listing(root):
        names = tuple(_names(info.key))
        if list(names[: len(wanted)]) == wanted:
            return [(pattern, info if len(names) == len(wanted) else None)]
        for count in range(fixed + 1, len(names) + 1):
            if _fits(wanted[fixed:], names[fixed:count]):
                found[names[:count]] = info if count == len(names) else found.get(names[:count])
    if not found:
        raise NoMatchError(f"no object matches {str(pattern)!r}")
    ordered = sorted(found, key=lambda names: [name.encode() for name in names])
    return [(root / "/".join(names[fixed:]), found[names]) for names in ordered]


def _names(key: str) -> list[str]:
    return key.split("/") if key else []


def _fits(wanted: Sequence[str], names: Sequence[str]) -> bool:
    """Whether names are what parts of a pattern stand for, as glob has it."""
    if not wanted:
        return not names
    if wanted[0] == "**":
        return _fits(wanted[1:], names) or (bool(names) and not names[0].startswith(".") and _fits(wanted, names[1:]))
    if not names or (names[0].startswith(".") and not wanted[0].startswith(".")):
        return False
    return fnmatchcase(names[0], wanted[0]) and _fits(wanted[1:], names[1:])


T = TypeVar("T")


class LocalFile:
    """A file on disk, whose name is UTF-8: native code, Arrow and fingerprints have no other names."""

    def __init__(self, path: Path) -> None:
        need_utf8(path)
        self.path = path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def size(self) -> int:
        """Its bytes, at least one."""
        return file_size(self.path)

    def first(self, count: int) -> bytes:
        """The first bytes, fewer if the file is shorter."""
        return self.read(0, count)

    def last(self, count: int) -> bytes:
        """The last bytes, fewer if the file is shorter."""
        size = self.size
        return self.read(max(0, size - count), size)

    def read(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop); fewer if the file ends before."""
        need_file(self.path)
        with reading(self.path), self.path.open("rb") as file:
            file.seek(start)
            return file.read(stop - start)

    def __str__(self) -> str:
        return str(self.path)


class RemoteFile:
    """An object at a URL, in the version that was seen first: once it was replaced, every read raises ObjectChangedError."""

    __slots__ = ("_info", "ends", "is_listed", "path")

    def __init__(self, path: UrlPath, info: ObjectInfo | None = None) -> None:
        self.path, self._info = path, info
        self.is_listed = info is not None
        """Whether a listing told of it, so that its directory can be listed."""
        self.ends: str | None = None
        """The digest of its three pages, once they were read."""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def info(self) -> ObjectInfo:
        """Size and version; asked for if no listing and no read has told them."""
        if self._info is None:
            self._info = self.path.objects.head(self.path.key)
        return self._info

    @property
    def size(self) -> int:
        if self.info.size == 0:
            raise EmptyFileError(f"{self.path}: expected data, found an empty object")
        return self.info.size

    def first(self, count: int) -> bytes:
        if self._info is None:
            self._info, data = self.path.objects.probe(self.path.key, first=count)
            return data
        return self.read(0, min(count, self._info.size))

    def last(self, count: int) -> bytes:
        if self._info is None:
            self._info, data = self.path.objects.probe(self.path.key, last=count)
            return data
        return self.read(max(0, self._info.size - count), self._info.size)

    def read(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop), which must be there."""
        return self.path.objects.read(self.info, start, stop) if stop > start else b""

    @property
    def address(self) -> str:
        """What it is called in caches."""
        return self.path.address

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class Prefix:
    """A URL, and the objects that were listed under it."""

    path: UrlPath
    objects: Sequence[ObjectInfo]

    def named(self) -> Iterator[tuple[str, ObjectInfo]]:
        """The objects with their names below the URL."""
        start = len(self.path.key) + 1 if self.path.key else 0
        return ((info.key[start:], info) for info in self.objects if len(info.key) > start)

    def files(self, under: str = "") -> dict[str, RemoteFile]:
        """Those whose names below the URL begin so, by these names."""
        return {name: RemoteFile(self.path / name, info) for name, info in self.named() if name.startswith(under)}


File: TypeAlias = LocalFile | RemoteFile
Name: TypeAlias = str | os.PathLike[str] | UrlPath | LocalFile | RemoteFile
Names: TypeAlias = Name | Iterable[Name]


def next_to(file: File, name: str) -> File:
    """The file of another name in the same directory."""
    if isinstance(file, RemoteFile):
        return RemoteFile(file.path.parent / name)
    return LocalFile(Path(os.path.join(os.path.dirname(file.path), name)))  # half of the time that with_name takes


def is_file_there(file: File) -> bool:
    if not isinstance(file, RemoteFile):
        return is_there(file.path)
    try:
        return file.info.size >= 0
    except MissingError:
        return False


def read_json(file: File, most: int) -> tuple[bytes, dict[str, Any]]:
    """The bytes of a file, at most ``most``, and the object of JSON in them. FormatError for anything else."""
    size = file.size
    if size > most:
        raise FormatError(f"{file}: expected at most {most} bytes, found {size}")
    raw = file.read(0, size)
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{file}: expected JSON, found something else") from error
    if not isinstance(content, dict):
        raise FormatError(f"{file}: expected names and values, found {ascii(content)[:100]}")
    return raw, content


def bytes_of(file: File) -> int:
    """The bytes of a file that may be empty."""
    return file.info.size if isinstance(file, RemoteFile) else need_file(file.path).st_size


class Files(Sequence[File]):
    """The files of one source, in order: all on disk, or all at URLs. Pickled, they stay the versions that they are."""

    def __init__(self, files: Iterable[File]) -> None:
        self._files = list(files)
        self._known: dict[str, Any] = {}
        kinds = {type(file) for file in self._files}
        if len(kinds) > 1:
            raise ValueError("expected files on disk or objects at URLs, got both; open them separately, as a list of sources")
        self.is_remote = kinds == {RemoteFile}

    @classmethod
    def on_disk(cls, paths: Iterable[str]) -> "Files":
        return cls(LocalFile(Path(path)) for path in paths)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: Any) -> Any:
        return self._files[index]

    def __iter__(self) -> Iterator[File]:
        return iter(self._files)

    @property
    def local(self) -> Path | None:
        """The first one, if they are on disk."""
        first = self._files[0] if self._files else None
        return first.path if isinstance(first, LocalFile) else None

    def each(self, function: Callable[[File], T]) -> list[T]:
        """What the function gives for every file, in order; for objects at URLs in many threads."""
        return list(map_at_once(function, self._files, are_remote=self.is_remote))

    def once(self, name: str, find_out: Callable[[], T]) -> T:
        """What is known under a name, or else found out now. Of objects at URLs it is remembered, also in pickles: the versions do
        not change, so that opening them again asks nothing.
        """
        if not self.is_remote:
            return find_out()
        if name not in self._known:
            self._known[name] = find_out()
        known: T = self._known[name]
        return known

    def fingerprint(self, kind: str, *more: object) -> str:
        """The digest of names, sizes and three pages of each, the same wherever the files are."""
        if not self.is_remote:
            return fingerprint_files(kind, [str(file) for file in self._files], *more)
        sampled = map_at_once(_samples, self._files, are_remote=True)
        return self.once(f"fingerprint {kind} {more!r}", lambda: fingerprint_samples(kind, sampled, *more))

    def sample_digest(self, sampling: Sampling, kind: str, *more: object) -> str | None:
        """The digest of sizes and of pages spread over all files, the same wherever they are and whatever their names.

        None for objects at URLs if the sampling takes too many requests.
        """
        if not self.is_remote:
            return digest_files(kind, [str(file) for file in self._files], sampling, *more)
        if not sampling.at_urls:
            return None
        name = f"samples {sampling.pages} {kind} {more!r}"
        return self.once(name, lambda: digest_sampled(kind, self._sampled(sampling.pages), *more))

    def file_versions(self) -> Hashable | None:
        if not self.is_remote:
            return file_versions([str(file) for file in self._files])
        return tuple((str(file), file.info.etag, file.info.size) for file in self._files if isinstance(file, RemoteFile))

    def _sampled(self, pages: int) -> list[tuple[int, str]]:
        """Sizes of objects and digests of their pages. Pages that the fingerprint has read are not read again."""
        sizes = self.each(_size)
        shares = shares_of(sizes, pages)
        known = [None if share > FEW_PAGES else getattr(file, "ends", None) for file, share in zip(self, shares, strict=True)]
        wanted = [
            (number, range_)
            for number, ends in enumerate(known)
            if ends is None
            for range_ in page_ranges(sizes[number], shares[number])
        ]
        digests = [hashlib.sha256() for _ in sizes]
        read = map_at_once(lambda one: self._files[one[0]].read(*one[1]), wanted, are_remote=True)
        for (number, _), data in zip(wanted, read, strict=True):
            digests[number].update(data)
        return [(size, ends or digest.hexdigest()) for size, ends, digest in zip(sizes, known, digests, strict=True)]


class Versions:
    """Files on disk as they were when they were opened, for readers that open them again by name. Objects at URLs have versions of
    their own.
    """

    def __init__(self, files: Iterable[File]) -> None:
        self._versions = {str(file): file_version(file.path)[:WRITTEN] for file in files if isinstance(file, LocalFile)}

    def check(self, name: str) -> None:
        """SourceChangedError if the file of that name is another one, or was written to."""
        if name in self._versions and file_version(name)[:WRITTEN] != self._versions[name]:
            raise SourceChangedError(f"{name}: the file was written to or replaced since it was opened; open the data again")


class Neighbours:
    """The files next to others. Of objects that a listing has told of, all directories are listed once, instead of a request for
    every neighbour.
    """

    def __init__(self, files: Sequence[File]) -> None:
        places = {str(one.path.parent): one.path.parent for one in files if isinstance(one, RemoteFile) and one.is_listed}
        listed = map_at_once(children, list(places.values()), are_remote=True)
        self._listed = {place: {name.name: info for name, info in found} for place, found in zip(places, listed, strict=True)}

    def named(self, file: File, name: str) -> File:
        """The file of another name in the same directory, which may not be there."""
        found = next_to(file, name)
        info = self._listed.get(str(file.path.parent), {}).get(name) if isinstance(found, RemoteFile) else None
        return found if info is None or not isinstance(found, RemoteFile) else RemoteFile(found.path, info)

    def find(self, file: File, name: str) -> File | None:
        """The same; None if it is not there."""
        found = self.named(file, name)
        if isinstance(found, RemoteFile) and (known := self._listed.get(str(file.path.parent))) is not None:
            return found if name in known else None
        return found if is_file_there(found) else None

    def find_all(self, files: Files, end: str) -> Files | None:
        """The files whose names are those of these and ``end``; None if there are none. SchemaMismatchError if some are missing."""
        found = files.each(lambda file: self.find(file, file.name + end))
        there = [one for one in found if one is not None]
        if there and len(there) < len(found):
            missing = files[found.index(None)]
            raise SchemaMismatchError(f"{missing}{end}: expected it, since there is {there[0]}, found no such file")
        return Files(there) if there else None


def _size(file: File) -> int:
    return file.info.size if isinstance(file, RemoteFile) else file.size


def _samples(file: File) -> tuple[str, int, list[bytes]]:
    size = _size(file)
    samples = [file.read(start, stop) for start, stop in sample_ranges(size)]
    if isinstance(file, RemoteFile):
        file.ends = hashlib.sha256(b"".join(samples)).hexdigest()
    return file.name, size, samples


class FileSource(Source):
    """A source of files, which say whether its data is the same."""

    _files: Files

    @abstractmethod
    def _identity(self) -> tuple[Any, ...]:
        """The name of the format, and what else decides on the records besides the bytes of the files."""

    @property
    def fingerprint(self) -> str:
        """Of names, sizes and samples of the files."""
        return self._files.fingerprint(*self._identity())

    def sample_digest(self, sampling: Sampling) -> str | None:
        """Of sizes and samples of the files."""
        return self._files.sample_digest(sampling, *self._identity())

    def file_versions(self) -> Hashable | None:
        return self._files.file_versions()


def find_files(what: Names, suffixes: tuple[str, ...]) -> Files:
    """The files that a name, a pattern, a directory (its files with one of the suffixes) or a list of them stands for.

    A list keeps its order; what a pattern or a directory gives is sorted by the bytes of the names. A URL that ends in one of the
    suffixes is taken for an object without a look.
    """
    if isinstance(what, Files):
        return what
    found = list(_find(what, suffixes))
    if not found:
        raise EmptySourceError("expected at least one file, got an empty list")
    return Files(found)


def _find(what: Names, suffixes: tuple[str, ...]) -> Iterator[File]:
    if isinstance(what, LocalFile | RemoteFile):
        yield what
    elif not isinstance(what, str | os.PathLike | UrlPath):
        for one in what:
            yield from _find(one, suffixes)
    elif isinstance(place := as_location(what), UrlPath):
        yield from _find_objects(place, suffixes)
    else:
        yield from map(LocalFile, expand(place, suffixes))


def _find_objects(path: UrlPath, suffixes: tuple[str, ...]) -> Iterator[RemoteFile]:
    named = matching_objects(path) if has_pattern(path.key) else [(path, None)]
    if named != [(path, None)]:
        for name, info in named:
            if info is None:
                raise FormatError(f"{name}: expected an object, found the beginning of the names of others")
            yield RemoteFile(name, info)
    elif suffix_of(path.name) in suffixes:
        yield RemoteFile(path)
    else:
        found = [(name, info) for name, info in children(path) if suffix_of(name.name) in suffixes]
        if not found:
            wanted = " or ".join(f"*{suffix}" for suffix in suffixes)
            raise NoMatchError(f"{path}: expected objects named {wanted} under this URL, found none")
        yield from (RemoteFile(name, info) for name, info in found)
