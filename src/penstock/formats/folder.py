"""Folders of files, on disk or as objects under a URL: each file a record, decoded by a function, or as an image.

Objects are those of one listing, in the versions that it told of; order, labels and fingerprint are those of the same folder on
disk. An object without bytes whose name is the beginning of others is one that some tools put there to stand for a
directory, and is left out.
"""

import hashlib
import io
import os
import stat
import time
from abc import abstractmethod
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.algebra import collect
from penstock.argument import IntArray, as_ids, byte_size
from penstock.batch import Batch, Outputs, Ragged, empty, fixed_output, masked
from penstock.errors import (
    BatchTooLargeError,
    CorruptError,
    FormatError,
    MissingError,
    NoMatchError,
    ReadError,
    SizeOverflowError,
    UnsafePathError,
    UnsupportedTypeError,
)
from penstock.fingerprint import digest_files, fingerprint_files, fingerprint_of, spread
from penstock.formats.files import MAX_BATCH_BYTES, MAX_BLOCK_BYTES, Files, Prefix, RemoteFile, check_batch, check_block
from penstock.formats.rows_in_files import FileRows, default_threads, reader_of_files
from penstock.native import _core
from penstock.process import need
from penstock.records import Blocks, Extents, Recipe, Sampling, Source
from penstock.remote.window import RemoteFiles, RemoteOptions
from penstock.schema import MAX_RECORD_BYTES, Field
from penstock.store.column import guess_field
from penstock.store.manifest import fits
from penstock.system import is_directory, is_file, reading, status

__all__ = [
    "MAX_PIXELS",
    "Decode",
    "Decoder",
    "DirectorySource",
    "PrefixSource",
    "decode_image",
    "open_directory",
    "open_prefix",
    "run_each",
]

Decode = Callable[[bytes], Any]
"""A function from the bytes of a record to an array, a number, a text or bytes, or to a dict of them."""

PROBED = 4
SLOW_S = 100e-6
"""From this time per record on, threads pay: small files in the page cache are read faster by one thread than by several."""

T = TypeVar("T")


def run_each(work: Callable[[int], T], count: int, threads: int) -> list[T]:
    """``work(i)`` for every i below ``count``, in order. The first ones run here; if they are slow, the others run in threads."""
    start = time.perf_counter()
    numbers = iter(range(count))
    done = [work(i) for i in islice(numbers, PROBED)]
    if threads > 1 and count > PROBED and time.perf_counter() - start > PROBED * SLOW_S:
        with ThreadPoolExecutor(min(threads, count - PROBED)) as pool:
            return done + list(pool.map(work, numbers))
    return done + [work(i) for i in numbers]


class Decoder:
    """Turns the bytes of a record into its fields. Without a function, the bytes are the one field."""

    def __init__(
        self, field: str, decode: Decode | None, schema: Mapping[str, Field] | None, first: Callable[[], tuple[str, bytes] | None]
    ) -> None:
        """``first`` gives the name and the bytes of record 0, if there is one; the fields are found out from it if need be."""
        if decode is None and schema is not None:
            raise ValueError("schema says what decode gives: give both or neither")
        if decode is not None and not callable(decode):
            raise TypeError(f"decode must be a function of bytes, got {decode!r}")
        self._field, self._decode = field, decode
        self.schema: dict[str, Field] = {field: Field.bytes()} if schema is None else dict(schema)
        if decode is not None and schema is None:
            self.schema = self._guess(first())

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to decode."""
        return self._decode is None

    @property
    def identity(self) -> tuple[object, ...]:
        """What a fingerprint can tell of the function: its name and the fields; what it does cannot be seen."""
        inner = getattr(self._decode, "func", self._decode)
        name = None if inner is None else getattr(inner, "__qualname__", type(inner).__qualname__)
        return (name, [(field, repr(one.with_nullable(False))) for field, one in self.schema.items()])

    def __call__(self, where: str, data: bytes) -> Mapping[str, Any]:
        """The fields of a record. Errors say where it is."""
        if self._decode is None:
            return {self._field: data}
        try:
            value = self._decode(data)
        except ReadError as error:
            raise type(error)(f"{where}: {error}") from error
        except Exception as error:
            error.add_note(f"while decoding {where}")
            raise
        return value if isinstance(value, Mapping) else {self._field: value}

    def _guess(self, first: tuple[str, bytes] | None) -> dict[str, Field]:
        if first is None:
            raise ValueError("there is no record to infer the fields from: pass schema={...}")
        record = self(*first)
        missing = [name for name, value in record.items() if value is None]
        if missing:
            raise ValueError(f"fields {missing} are missing in {first[0]}, so their types cannot be inferred: pass schema={{...}}")
        return {name: guess_field(name, [value]) for name, value in record.items()}


PIXEL_BYTES = 16
"""What a pixel takes while it is decoded: in the colors of the file, in RGB, and resized."""

MAX_PIXELS = MAX_BLOCK_BYTES // PIXEL_BYTES
"""Images of more pixels than this are refused before they are decoded, unless ``max_block_bytes`` allows more."""

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Those that Pillow decodes by itself; it hands others, such as EPS, to outside programs."""


def decode_image(data: bytes, size: tuple[int, int] | None = None, max_block_bytes: int = MAX_BLOCK_BYTES) -> npt.NDArray[np.uint8]:
    """The pixels of an image: height x width x 3, red, green and blue; resized to ``size`` (height, width) if given.

    Transparency is dropped, and a rotation that the file asks for is not done. CorruptError if the bytes are no image;
    BatchTooLargeError if they claim to need more than ``max_block_bytes``, and more than 64 times their own size.
    """
    pillow = need("PIL.Image", "image")
    try:
        with pillow.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.mode.startswith(("I", "F")):
                raise UnsupportedTypeError(
                    f"expected an image of 8 bits per color, found mode {image.mode}; give a decode function"
                )
            check_block(
                f"an image of {image.width} x {image.height}", PIXEL_BYTES * image.width * image.height, len(data), max_block_bytes
            )
            pixels = image.convert("RGB")
            if size is not None:
                pixels = pixels.resize(size[::-1], pillow.Resampling.BILINEAR)
            return np.asarray(pixels)
    except (BatchTooLargeError, CorruptError, UnsupportedTypeError, MemoryError):
        raise
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise BatchTooLargeError(f"{error} If the data can be trusted, set PIL.Image.MAX_IMAGE_PIXELS") from error
    except Exception as error:  # broken files make Pillow raise almost anything
        raise CorruptError(f"expected an image ({', '.join(FORMATS)}), found {len(data)} other bytes: {error}") from error


BLOCK_BYTES = 512
"""The unit of ``st_blocks``."""

SAMPLED_FILES = 32
"""Files, evenly spread, whose bytes are part of the fingerprint."""


def open_directory(path: str | os.PathLike[str], **options: Any) -> "DirectorySource":
    """All files under a folder, in the order of the name bytes at every level; hidden ones are left out.

    A record has its bytes as ``data``, its ``path`` below the folder and, if there are sub-folders, the number of the first one as
    ``label``. Links that lead out of the folder are refused. Options are those of :func:`folder_options`.
    """
    return DirectorySource(_root(path), folder_options(**options))


def open_prefix(what: Prefix, *, remote: RemoteOptions, **options: Any) -> "PrefixSource":
    """All objects under a URL, as the files of the same folder on disk."""
    return PrefixSource(what, folder_options(**options), remote)


@dataclass(frozen=True)
class FolderOptions:
    """How a folder is read; see :func:`folder_options`."""

    label: str | None
    data: str
    decode: Decode | None
    schema: Mapping[str, Field] | None
    suffixes: tuple[str, ...] | None
    threads: int
    max_block_bytes: int = MAX_BLOCK_BYTES

    @property
    def endings(self) -> tuple[bytes, ...] | None:
        """Those of names that are read, in small letters; None if all are."""
        return None if self.suffixes is None else tuple(os.fsencode(suffix.lower()) for suffix in self.suffixes)

    def no_files(self, root: str) -> NoMatchError:
        """The error of a folder in which there is no record."""
        among = "" if self.suffixes is None else f" named {' or '.join('*' + suffix for suffix in self.suffixes)}"
        return NoMatchError(f"{root}: expected files{among} under this folder, found none")


def folder_options(
    *,
    label: str | None = "label",
    data: str = "data",
    decode: Decode | str | None = None,
    size: tuple[int, int] | None = None,
    schema: Mapping[str, Field] | None = None,
    suffixes: Sequence[str] | None = None,
    threads: int | None = None,
    max_block_bytes: int | str = MAX_BLOCK_BYTES,
) -> FolderOptions:
    """How a folder is read.

    ``decode`` turns the bytes into an array, or into a dict whose fields replace ``data``; ``schema`` says what comes out, which is
    found out from the first file otherwise. ``decode="image"`` gives pixels, resized to ``size`` (height, width) if given.
    ``suffixes`` chooses files. Files and images of more than ``max_block_bytes`` are refused, unless they take a 64th of them or
    more on the disk.
    """
    chosen = None if suffixes is None else tuple([suffixes] if isinstance(suffixes, str) else suffixes)
    largest = byte_size("max_block_bytes", max_block_bytes)
    function, fields = _decoding(decode, data, size, schema, largest)
    return FolderOptions(label, data, function, fields, chosen, default_threads(threads), largest)


class FolderSource(Source):
    """The files of a listing, wherever they are. A subclass reads them."""

    def __init__(self, root: str, listing: "Listing", options: FolderOptions) -> None:
        self._root, self._options = root, options
        self._listing = listing
        self._ends, self._sizes = np.frombuffer(listing.ends, np.int64), np.frombuffer(listing.sizes, np.int64)
        self._runs, self._labels = Blocks.of_counts(listing.counts), np.array(listing.labels, np.int32)
        self._label = options.label if listing.label_names else None
        self._list = listing.native(root, self._labels)
        self._decoder = Decoder(options.data, options.decode, options.schema, self._first)
        names = list(self.schema)
        if len(names) < len(self._decoder.schema) + 1 + (self._label is not None):
            raise ValueError(f"fields must have different names, got {[*self._decoder.schema, 'path', self._label]}")

    @abstractmethod
    def _where(self, record: int) -> str:
        """A file in a message."""

    @abstractmethod
    def _fill(self, ids: IntArray, offsets: IntArray, values: npt.NDArray[np.uint8]) -> None:
        """Put the bytes of files at their offsets."""

    @abstractmethod
    def _content_reader(self) -> tuple[Any, int] | None:
        """The native reader of the bytes of files."""

    @abstractmethod
    def _fingerprint_of(self, ids: IntArray) -> str:
        """Of names, sizes and three pages of files."""

    @abstractmethod
    def _digest_of(self, ids: IntArray, sampling: Sampling) -> str | None:
        """Of sizes and pages of files; None if those are too many requests."""

    def __len__(self) -> int:
        return self._sizes.size

    @property
    def schema(self) -> Mapping[str, Field]:
        labels = {} if self._label is None else {self._label: Field("i4", nullable=bool(np.any(self._labels < 0)))}
        return {**self._decoder.schema, "path": Field.text(), **labels}

    @property
    def label_names(self) -> list[str]:
        """The first-level sub-folders; label i stands for name i."""
        return [_text(name) for name in self._listing.label_names]

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """The names of the labels, by the name of the field; nothing if they are more than a store can carry."""
        found = {} if self._label is None else {self._label: self.label_names}
        return MappingProxyType(found if fits(found) else {})

    @cached_property
    def fingerprint(self) -> str:
        """Of all names and sizes, and of samples of some files."""
        places = np.linspace(0, len(self) - 1, min(SAMPLED_FILES, len(self))).astype(np.int64)
        return self._told(self._fingerprint_of(places))

    def sample_digest(self, sampling: Sampling) -> str | None:
        """Of all names and sizes, and of pages spread over the bytes of all files. Names are data here: records have them."""
        starts = np.cumsum(self._sizes) - self._sizes
        places = np.array(spread(int(self._sizes.sum()), sampling.pages), np.int64)
        samples = self._digest_of(np.unique(np.searchsorted(starts, places, side="right") - 1), sampling)
        return None if samples is None else self._told(samples)

    def _told(self, samples: str) -> str:
        """The digest of the listing, the options and samples."""
        listing = self._listing
        tables = [hashlib.sha256(part).hexdigest() for part in (listing.names, listing.ends, listing.sizes)]
        shape = (listing.folders, listing.counts.tolist(), listing.label_names, list(self.schema), self._decoder.identity)
        return fingerprint_of("directory", tables, shape, samples)

    @property
    def blocks(self) -> Blocks:
        """Files of one folder that follow each other."""
        return self._runs

    def native_reader(self, field: str) -> tuple[Any, int] | None:
        if field == "path":
            return self._list.paths, -1
        if field == self._label:
            return self._list.labels, -1
        return self._content_reader() if self._has_bytes(field) else None

    @property
    def max_batch_bytes(self) -> int | None:
        return MAX_BATCH_BYTES if self._decoder.is_plain else None

    def lengths(self, field: str, ids: Any) -> IntArray:
        if self._has_bytes(field):
            found: IntArray = self._sizes[as_ids(ids, len(self))]
            return found
        return super().lengths(field, ids)

    def _has_bytes(self, field: str) -> bool:
        """Whether a field is that of the bytes of files."""
        return field in self._decoder.schema and self._decoder.is_plain

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        wanted = {name: one for name, one in self._decoder.schema.items() if name in fields}
        batch = self._contents(ids, wanted, out) if wanted else {}
        if "path" in fields:
            batch["path"] = Ragged.from_items([_text(path) for path in self._names(ids)], dtype=np.uint8, kind="text")
        if self._label is not None and self._label in fields:
            labels = fixed_output(self._label, Field("i4"), ids.size, out)
            labels[...] = self._labels[self._runs.of(ids)]
            batch[self._label] = masked(labels, None if np.all(labels >= 0) else labels >= 0)
        return {name: batch[name] for name in fields}

    def _contents(self, ids: IntArray, wanted: Mapping[str, Field], out: Outputs) -> Batch:
        check_batch(self._root, int(self._sizes[ids].sum()))
        offsets = np.concatenate([[0], np.cumsum(self._sizes[ids])]).astype(np.int64)
        values = empty((int(offsets[-1]),), np.dtype(np.uint8))
        self._fill(np.ascontiguousarray(ids), offsets, values)
        if self._decoder.is_plain:
            return {next(iter(wanted)): Ragged(values, offsets, "bytes")}
        numbers, ends = ids.tolist(), offsets.tolist()

        def decode(i: int) -> Mapping[str, Any]:
            return self._decoder(self._where(numbers[i]), values[ends[i] : ends[i + 1]].tobytes())

        decoded = run_each(decode, ids.size, self._options.threads)
        return collect(decoded, wanted, {name: array for name, array in out.items() if name in wanted})

    def _first(self) -> tuple[str, bytes]:
        size = int(self._sizes[0])
        content = np.empty(size, np.uint8)
        self._fill(np.zeros(1, np.int64), np.array([0, size], np.int64), content)
        return self._where(0), content.tobytes()

    def _names(self, ids: IntArray) -> list[bytes]:
        """The paths below the root."""
        names, folders = self._listing.names, self._listing.folders
        starts = np.where(ids > 0, self._ends[ids - 1], 0)
        places = zip(self._runs.of(ids).tolist(), starts.tolist(), self._ends[ids].tolist(), strict=True)
        return [os.path.join(folders[run], bytes(names[low:high])) for run, low, high in places]


class DirectorySource(FolderSource):
    """The files under a folder on disk, read natively, in the versions that were listed. Nothing is held open.
    :func:`open_directory` makes it.
    """

    def __init__(self, root: str, options: FolderOptions) -> None:
        self._pool = _core.ThreadPool(options.threads)
        super().__init__(root, _scan(root, options), options)

    def _where(self, record: int) -> str:
        return _text(self._paths(np.array([record], np.int64))[0])

    def _fill(self, ids: IntArray, offsets: IntArray, values: npt.NDArray[np.uint8]) -> None:
        self._list.read(ids, offsets, values, self._pool)

    def _content_reader(self) -> tuple[Any, int] | None:
        return self._list.contents, -1

    def _fingerprint_of(self, ids: IntArray) -> str:
        return fingerprint_files("sample", map(os.fsdecode, self._paths(ids)))

    def _digest_of(self, ids: IntArray, sampling: Sampling) -> str:
        return digest_files("sample", [os.fsdecode(path) for path in self._paths(ids)], sampling)

    def _paths(self, ids: IntArray) -> list[bytes]:
        """What to open."""
        root, links = os.fsencode(self._root), self._listing.links
        return [links.get(i) or os.path.join(root, name) for i, name in zip(ids.tolist(), self._names(ids), strict=True)]

    def _recipe(self) -> Recipe:
        return (DirectorySource, (self._root, self._options))


def _decoding(
    decode: Decode | str | None, data: str, size: tuple[int, int] | None, schema: Mapping[str, Field] | None, max_block_bytes: int
) -> tuple[Decode | None, Mapping[str, Field] | None]:
    """The function and what it gives, where that is known."""
    if not isinstance(decode, str):
        if size is not None:
            raise ValueError("size is for decode='image' only")
        return decode, schema
    if decode != "image" or schema is not None:
        raise ValueError(f"decode must be a function or 'image', which needs no schema; got {decode!r}")
    need("PIL.Image", "image")
    if size is None:
        return partial(decode_image, max_block_bytes=max_block_bytes), {data: Field.ragged("u1", 3)}
    height, width = size
    return partial(decode_image, size=(height, width), max_block_bytes=max_block_bytes), {data: Field("u1", (height, width, 3))}


@dataclass
class Listing:
    """The files of a folder. A million names in one buffer need some 30 MB, as a list of bytes or paths three to ten times that."""

    names: bytearray = field(default_factory=bytearray)
    ends: "array[int]" = field(default_factory=lambda: array("q"))  # of each name
    sizes: "array[int]" = field(default_factory=lambda: array("q"))
    folders: list[bytes] = field(default_factory=list)  # of each run of files
    counts: "array[int]" = field(default_factory=lambda: array("q"))
    labels: "array[int]" = field(default_factory=lambda: array("q"))  # -1 for files next to the sub-folders
    label_names: list[bytes] = field(default_factory=list)
    links: dict[int, bytes] = field(default_factory=dict)
    versions: "array[int]" = field(default_factory=lambda: array("Q"))  # three numbers each, of those on a disk

    def native(self, root: str, labels: npt.NDArray[np.int32]) -> _core.FileList:
        """The same for native readers, which read the files in these versions."""
        return _core.FileList(
            os.path.join(root, ""),
            [os.path.join(folder, b"") for folder in self.folders],
            np.cumsum(np.frombuffer(self.counts, np.int64)),
            np.frombuffer(self.names, np.uint8),
            np.frombuffer(self.ends, np.int64),
            np.frombuffer(self.sizes, np.int64),
            np.frombuffer(self.versions, np.uint64),
            self.links,
            labels,
            MAX_BATCH_BYTES,
        )

    def add(self, folder: bytes, name: bytes, size: int, version: Iterable[int] = ()) -> None:
        if not self.folders or self.folders[-1] != folder:
            self.folders.append(folder)
            self.counts.append(0)
            self.labels.append(len(self.label_names) - 1 if folder else -1)
        self.counts[-1] += 1
        self.names += name
        self.ends.append(len(self.names))
        self.sizes.append(size)
        self.versions.extend(version)


def _root(path: str | os.PathLike[str]) -> str:
    if status(path) is None:
        raise MissingError(f"{path}: there is no such folder")
    if not is_directory(path):
        raise FormatError(f"{path}: expected a folder, found a file")
    return os.path.realpath(path)


def _scan(folder: str, options: FolderOptions) -> Listing:
    listing, root = Listing(), os.fsencode(folder)
    levels = [_entries(root, b"", options.endings)]
    while levels:
        for place, name, kind in levels[-1]:
            if kind == stat.S_IFDIR:
                if not place:
                    listing.label_names.append(name)
                levels.append(_entries(root, os.path.join(place, name), options.endings))
                break
            _add(listing, (root, place, name), kind, options.max_block_bytes)
        else:
            levels.pop()
    if not listing.sizes:
        raise options.no_files(folder)
    return listing


def _entries(root: bytes, folder: bytes, endings: tuple[bytes, ...] | None) -> Iterator[tuple[bytes, bytes, int]]:
    """Folder, name and kind (folder, link or file) of what is in a folder, in the order of the name bytes."""
    others: dict[bytes, int] = {}
    names = []
    place = os.path.join(root, folder)
    with reading(place, "listing the folder"), os.scandir(place) as entries:
        for entry in entries:
            is_folder, is_link = entry.is_dir(follow_symlinks=False), entry.is_symlink()
            chosen = is_folder or endings is None or entry.name.lower().endswith(endings)
            if entry.name.startswith(b".") or not chosen or not (is_folder or is_link or entry.is_file(follow_symlinks=False)):
                continue
            names.append(entry.name)
            if is_folder or is_link:
                others[entry.name] = stat.S_IFDIR if is_folder else stat.S_IFLNK
    names.sort()
    return ((folder, name, others.get(name, stat.S_IFREG)) for name in names)


def _add(listing: Listing, place: tuple[bytes, bytes, bytes], kind: int, max_block_bytes: int) -> None:
    """One more file: of a root, a folder in it, and a name."""
    root, folder, name = place
    path = os.path.join(*place)
    if kind == stat.S_IFLNK:
        path = listing.links[len(listing.sizes)] = _target(root, path)
    with reading(path, "looking at it"):
        info = os.stat(path, follow_symlinks=False)
    check_record(_text(path), info.st_size)
    check_block(_text(path), info.st_size, info.st_blocks * BLOCK_BYTES, max_block_bytes)  # a sparse file takes no room
    listing.add(folder, name, info.st_size, (word % 2**64 for word in (info.st_dev, info.st_ino, info.st_mtime_ns)))


def check_record(where: str, size: int) -> None:
    """SizeOverflowError if a file has more bytes than a record may."""
    if size > MAX_RECORD_BYTES:
        raise SizeOverflowError(f"{where}: expected at most {MAX_RECORD_BYTES} bytes, found {size}; choose files by suffixes")


def _target(root: bytes, path: bytes) -> bytes:
    """The file a link leads to, which must be under the root. Links to folders could lead in circles, so they are refused too."""
    target = os.path.realpath(path)
    if os.path.commonpath([root, target]) != root:
        raise UnsafePathError(f"{_text(path)}: the link leads out of the folder, to {_text(target)}; copy the file instead")
    if is_directory(target):
        raise UnsafePathError(f"{_text(path)}: expected a file, found a link to a folder; open that folder by itself")
    if not is_file(target):
        raise MissingError(f"{_text(path)}: the link leads to {_text(target)}, which is not a file")
    return target


def _text(path: bytes) -> str:
    """A name as text; bytes that are not UTF-8 are written as escapes."""
    return path.decode("utf-8", "backslashreplace")


def _files_of(prefix: Prefix, options: FolderOptions) -> tuple[Listing, list[RemoteFile]]:
    """What a scan of the same folder on disk would find."""
    found, files, top = Listing(), list[RemoteFile](), b""
    endings = options.endings
    listed = [(name.encode().split(b"/"), info) for name, info in prefix.named()]
    for names, info in sorted(listed, key=lambda one: one[0]):
        if names[0].startswith(b"."):
            continue
        if len(names) > 1 and names[0] != top:
            top = names[0]
            found.label_names.append(top)
        if any(name.startswith(b".") for name in names) or not (endings is None or names[-1].lower().endswith(endings)):
            continue
        file = RemoteFile(prefix.path / b"/".join(names).decode(), info)
        check_record(str(file), info.size)
        found.add(b"/".join(names[:-1]), names[-1], info.size)
        files.append(file)
    if not files:
        raise options.no_files(str(prefix.path))
    return found, files


class PrefixSource(FolderSource):
    """The objects under a URL, read through a window. Every record is a request of its own, in any order."""

    def __init__(self, prefix: Prefix, options: FolderOptions, remote: RemoteOptions) -> None:
        self._prefix, self._how = prefix, remote
        found, files = _files_of(prefix, options)
        self._files = Files(files)
        self._rows = reader_of_files(
            [FileRows.whole(file) for file in files], 1, access="map", threads=options.threads, remote=remote
        )
        self._bounds = np.concatenate([[0], np.cumsum(np.frombuffer(found.sizes, np.int64))]).astype(np.int64)
        try:
            super().__init__(str(prefix.path), found, options)
        except BaseException:
            self._rows.close()
            raise

    @property
    def remote(self) -> RemoteFiles | None:
        return self._rows.remote

    def extents(self, starts: IntArray, stops: IntArray) -> Extents:
        """All bytes of the objects."""
        return self._rows.extents(self._bounds[starts], self._bounds[stops])

    def _content_reader(self) -> tuple[Any, int] | None:
        return self._rows.native_runs(self._bounds, MAX_BATCH_BYTES)

    def file_versions(self) -> Hashable | None:
        return self._files.file_versions()

    def close(self) -> None:
        self._rows.close()

    def _where(self, record: int) -> str:
        return str(self._files[record])

    def _fill(self, ids: IntArray, offsets: IntArray, values: npt.NDArray[np.uint8]) -> None:
        self._rows.read_spans(self._bounds[ids], offsets, values)

    def _fingerprint_of(self, ids: IntArray) -> str:
        return Files(self._files[i] for i in ids.tolist()).fingerprint("sample")

    def _digest_of(self, ids: IntArray, sampling: Sampling) -> str | None:
        return Files(self._files[i] for i in ids.tolist()).sample_digest(sampling, "sample")

    def _recipe(self) -> Recipe:
        return (PrefixSource, (self._prefix, self._options, self._how))
