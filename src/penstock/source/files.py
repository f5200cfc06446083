"""The files of a source, on disk or at URLs: found by name, looked at, and told apart from other versions of themselves."""

import hashlib
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from penstock.errors import EmptyFileError, EmptySourceError, FormatError, NoMatchError
from penstock.records import Sampling
from penstock.remote.objects import ObjectInfo
from penstock.remote.url import UrlPath
from penstock.source.fingerprint import (
    FEW_PAGES,
    digest_files,
    digest_sampled,
    fingerprint_files,
    fingerprint_samples,
    page_ranges,
    sample_ranges,
    shares_of,
)
from penstock.source.paths import expand, file_size, has_pattern, need_file
from penstock.source.url_names import children, matching
from penstock.store.format import as_location
from penstock.system import file_versions, reading

__all__ = ["File", "Files", "LocalFile", "Name", "Names", "RemoteFile", "find_files", "look_at"]

AT_ONCE = 32
"""So many objects are looked at at a time."""

S = TypeVar("S")
T = TypeVar("T")


class LocalFile:
    """A file on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.name

    @property
    def size(self) -> int:
        """Its bytes, at least one."""
        return file_size(self.path)

    def first(self, count: int) -> bytes:
        """The first bytes, fewer if there are not so many."""
        return self.read(0, count)

    def last(self, count: int) -> bytes:
        """The last bytes, fewer if there are not so many."""
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

    def __init__(self, path: UrlPath, info: ObjectInfo | None = None) -> None:
        self.path, self._info = path, info
        self.ends: str | None = None
        """The digest of its three pages, once they were read."""

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.path.name

    @property
    def info(self) -> ObjectInfo:
        """Size and version; asked for if no listing and no read has told them."""
        if self._info is None:
            self._info = self.path.objects.head(self.path.key)
        return self._info

    @property
    def size(self) -> int:
        """Its bytes, at least one."""
        if self.info.size == 0:
            raise EmptyFileError(f"{self.path}: expected data, found an empty object")
        return self.info.size

    def first(self, count: int) -> bytes:
        """The first bytes, fewer if there are not so many."""
        if self._info is None:
            self._info, data = self.path.objects.probe(self.path.key, first=count)
            return data
        return self.read(0, min(count, self._info.size))

    def last(self, count: int) -> bytes:
        """The last bytes, fewer if there are not so many."""
        if self._info is None:
            self._info, data = self.path.objects.probe(self.path.key, last=count)
            return data
        return self.read(max(0, self._info.size - count), self._info.size)

    def read(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop), which must be there."""
        return self.path.objects.read(self.info, start, stop) if stop > start else b""

    def __str__(self) -> str:
        return str(self.path)


File: TypeAlias = LocalFile | RemoteFile
Name: TypeAlias = str | os.PathLike[str] | UrlPath | LocalFile | RemoteFile
Names: TypeAlias = Name | Iterable[Name]


class Files(Sequence[File]):
    """The files of one source, in order: all on disk, or all at URLs. Pickled, they stay the versions that they are."""

    def __init__(self, files: Iterable[File]) -> None:
        self._files = list(files)
        self._known: dict[str, Any] = {}
        kinds = {type(file) for file in self._files}
        if len(kinds) > 1:
            raise ValueError("expected files on disk or objects at URLs, got both; open them by themselves, as a list of sources")
        self.is_remote = kinds == {RemoteFile}

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
        return list(look_at(self._files, function, are_remote=self.is_remote))

    def once(self, name: str, find_out: Callable[[], T]) -> T:
        """What is known under a name, or else found out now. Of objects at URLs it is remembered, also in pickles: the versions do
        not change, so that whoever opens them again need not ask.
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
        sampled = look_at(self._files, _samples, are_remote=True)
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
        """See :meth:`penstock.Source.file_versions`."""
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
        read = look_at(wanted, lambda one: self._files[one[0]].read(*one[1]), are_remote=True)
        for (number, _), data in zip(wanted, read, strict=True):
            digests[number].update(data)
        return [(size, ends or digest.hexdigest()) for size, ends, digest in zip(sizes, known, digests, strict=True)]


def look_at(things: Sequence[S], function: Callable[[S], T], *, are_remote: bool) -> Iterator[T]:
    """What the function gives for everything, in order; in many threads where it waits for answers from afar."""
    if not are_remote or len(things) < 2:
        yield from map(function, things)
        return
    pool = ThreadPoolExecutor(min(AT_ONCE, len(things)), thread_name_prefix="penstock-look")
    try:
        yield from pool.map(function, things)
    finally:
        pool.shutdown(cancel_futures=True)


def _size(file: File) -> int:
    return file.info.size if isinstance(file, RemoteFile) else file.size


def _samples(file: File) -> tuple[str, int, list[bytes]]:
    size = _size(file)
    samples = [file.read(start, stop) for start, stop in sample_ranges(size)]
    if isinstance(file, RemoteFile):
        file.ends = hashlib.sha256(b"".join(samples)).hexdigest()
    return file.name, size, samples


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
    named = matching(path) if has_pattern(path.key) else [(path, None)]
    if named != [(path, None)]:
        for name, info in named:
            if info is None:
                raise FormatError(f"{name}: expected an object, found the beginning of the names of others")
            yield RemoteFile(name, info)
    elif path.suffix.lower() in suffixes:
        yield RemoteFile(path)
    else:
        found = [(name, info) for name, info in children(path) if name.suffix.lower() in suffixes]
        if not found:
            wanted = " or ".join(f"*{suffix}" for suffix in suffixes)
            raise NoMatchError(f"{path}: expected objects named {wanted} under this URL, found none")
        yield from (RemoteFile(name, info) for name, info in found)
