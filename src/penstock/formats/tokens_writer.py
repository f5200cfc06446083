"""Documents as token files: token blocks (.rox), one after the other without padding, all shards or none; and files of other tools,
Megatron's, datatrove's, OLMo's and nanoGPT's, whose readers have the formats.
"""

import fcntl
import gzip
import os
import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, byte_size, whole_number
from penstock.batch import Ragged
from penstock.errors import ConflictError, LockedError, SchemaMismatchError
from penstock.formats.files import Files, LocalFile
from penstock.formats.flat_tokens import TABLE
from penstock.formats.megatron import BIN, CODES, HEADER, IDX, LENGTH, MAGIC, POINTER
from penstock.formats.publish import NewFile, Staging, refuse_existing
from penstock.formats.tokens import (
    DTYPES,
    END,
    FOOTER,
    INDEX_PIECE,
    SUFFIX,
    TokenFile,
    as_elements,
    block_runs,
    encode_footer,
    numbered_shards,
    read_footers,
)
from penstock.progress import Progress
from penstock.schema import MAX_RECORD_BYTES, Field
from penstock.system import is_directory, is_there, names_in, reading, status, writing

__all__ = [
    "SUFFIXES",
    "Document",
    "DocumentEncoder",
    "check_dtype",
    "files_of",
    "some_documents",
    "write_documents",
    "write_tokens",
]

Document = str | bytes | bytearray | npt.NDArray[Any] | list[int] | tuple[int, ...] | Ragged
"""A text (stored as UTF-8), a byte string, or numbers; a Ragged is several documents, which are written at once."""

_TEXT = (str, bytes, bytearray)

DIGITS = 6
FLUSH_BYTES = 4 << 20


def write_tokens(
    documents: Iterable[Document],
    path: str | os.PathLike[str],
    *,
    dtype: npt.DTypeLike | None = None,
    separator: object = None,
    block_size: int = 4096,
    max_shard_bytes: int | str | None = None,
    append: bool = False,
    progress: Progress | None = None,
) -> list[Path]:
    """Write documents one after the other as blocks of ``block_size`` elements, and return the files; none for no tokens at all.

    ``x.rox`` is one file; with ``max_shard_bytes`` it stands for the shards ``x_000000.rox``, ... The last block is as short as it
    comes: nothing is padded. ``separator``, an element or a sequence of them, goes behind every document. ``dtype`` is that of the
    files that there are, or of the first document (uint8 for texts and byte strings) unless given; a value that does not fit raises
    ValueError. The files appear under their names, one after the other, when all is written and durable; if anything fails there
    are none.

    ``append`` continues the file ``x.rox`` if there is one: it is copied, and replaced by one with the new documents behind the old
    ones, as if all had been written in one call. Otherwise it adds shards behind those that there are, which are not touched. Type
    and block size must be those of the files, and a file that is continued must end with the separator, if one is given.

    A ``*`` or ``?`` in the name makes it a pattern: of the files that are there, or else of a new one, with "base" in its place.
    """
    rest, size = some_documents(documents), whole_number("block_size", block_size, least=1)
    most = None if max_shard_bytes is None else byte_size("max_shard_bytes", max_shard_bytes)
    with _Target(_unique(Path(path).absolute()), is_sharded=most is not None, append=append) as target:
        known = target.fitting_dtype(dtype, size)
        first = list(islice(rest, 1))
        if not first:
            return []
        encoder = DocumentEncoder(first[0], known, separator, converts=dtype is not None)
        target.check_separator(encoder.separator)
        with Staging(target.path) as staging:
            shards = _Shards(staging, target, encoder.dtype, size, most)
            _write_all(chain(first, rest), encoder, shards, progress)
            return target.publish(staging, shards.names)


def _unique(path: Path) -> Path:
    """The path itself, or the one that a pattern stands for."""
    if set(str(path.parent)) & set("*?") and not is_directory(path.parent):
        raise ValueError(f"{path}: expected a directory, and a pattern in the last name at most")
    if not set(path.name) & set("*?") or is_there(path):
        return path
    names = names_in(path.parent) if is_directory(path.parent) else []
    found = [name for name in names if fnmatchcase(name, path.name) and name.endswith(SUFFIX) and not name.startswith(".")]
    stems = sorted({re.sub(r"(_[0-9]+)?\.rox$", "", name) for name in found})
    if len(stems) > 1:
        raise ValueError(
            f"{path}: expected a pattern of the shards of one name to write to, found those of {', '.join(stems[:10])}"
        )
    return path.with_name(f"{stems[0]}{SUFFIX}" if stems else re.sub(r"[*?]", "base", path.name))


def _write_all(documents: Iterable[Document], encoder: "DocumentEncoder", shards: "_Shards", progress: Progress | None) -> None:
    pending, waiting = bytearray(), 0
    for raw, sizes in encoder.encode_each(documents):
        pending += raw
        waiting += len(sizes)
        if len(pending) >= FLUSH_BYTES:
            taken = shards.add(pending)
            del pending[:taken]
            if progress is not None:
                progress(waiting, taken)
            waiting = 0
    shards.finish(pending)
    if progress is not None and (waiting or pending):
        progress(waiting, len(pending))


class _Target:
    """The name to be written, and the shards that there are of it; or the one file, locked against other writers."""

    def __init__(self, path: Path, *, is_sharded: bool, append: bool) -> None:
        if path.suffix != SUFFIX:
            raise ValueError(f"path must end in {SUFFIX}, got {path}")
        self.path, self._append = path, append
        self._old = numbered_shards(path)
        self._lock = -1
        self._footer: TokenFile | None = None
        self._is_continued = append and not is_sharded and not self._old and is_there(path)
        self._is_sharded = (append or is_sharded) and not self._is_continued
        if self._is_continued:
            with reading(path):
                self.path = Path(os.path.realpath(path, strict=True))
            return
        refuse_existing(path, self._remedy(append))
        if self._old and not append:
            refuse_existing(self._old[0][1], "choose another name, or give append=True")

    def _remedy(self, append: bool) -> str:
        if not append:
            return "choose another name, or continue it with write_tokens(..., append=True)"
        if self._old:
            return f"and there are shards too, such as {self._old[0][1].name}: rename or remove one of them"
        return f"leave out max_shard_bytes to continue it, or rename it to {self.path.stem}_{0:0{DIGITS}d}{SUFFIX} to append shards"

    def __enter__(self) -> "_Target":
        if self._is_continued:
            with writing(self.path, "continuing the file"):
                self._lock = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._take_lock()
                self._check_unchanged()
            except BaseException:
                self.__exit__(None, None, None)
                raise
        return self

    def _take_lock(self) -> None:
        with writing(self.path, "locking"):
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LockedError(f"{self.path}: another writer is continuing this file; wait for it") from error

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._is_continued:
            with suppress(OSError):  # nothing was written through it
                os.close(self._lock)

    def _check_unchanged(self) -> None:
        """ConflictError unless the name still is that of the file that is locked."""
        found = status(self.path, follow=False)
        with reading(self.path, "looking at it"):
            locked = os.fstat(self._lock)
        if found is None or not os.path.samestat(locked, found):
            raise ConflictError(f"{self.path}: another writer replaced this file meanwhile; nothing was added here, try again")

    def name(self, number: int) -> str:
        """The name of the new file of that number. Names have as many digits as those that there are, so that they sort."""
        if not self._is_sharded:
            return self.path.name
        first, digits = 0, DIGITS
        if self._old:
            last, path = self._old[-1]
            first, digits = last + 1, len(path.stem) - len(self.path.stem) - 1
        if len(str(first + number)) > digits:
            raise ValueError(f"{self.path}: there is no shard number {first + number} with {digits} digits; let shards be larger")
        return f"{self.path.stem}_{first + number:0{digits}d}{SUFFIX}"

    def fitting_dtype(self, wanted: npt.DTypeLike | None, block_size: int) -> np.dtype[Any] | None:
        """The element type that was given, or that of the files that there are, which must be the same; None for neither."""
        dtype = None if wanted is None else _checked(wanted)
        paths = [self.path] if self._is_continued else [path for _, path in self._old]
        if not paths:
            return dtype
        files = read_footers(Files(LocalFile(path) for path in paths))
        if dtype is not None and dtype != files[0].dtype:
            raise SchemaMismatchError(f"{files[0].file}: expected elements of {dtype} to append to, found {files[0].dtype}")
        for file in reversed(files):  # only the last block of a file may be short, so one with several tells their size
            runs = block_runs([file])
            largest = runs.sizes.max(initial=0)
            if largest > block_size or (file.blocks > 1 and runs.sizes[0] != block_size):
                raise SchemaMismatchError(
                    f"{file.file}: expected blocks of {block_size} elements to append to, found blocks of {largest}"
                )
            if self._is_continued and (len(runs.ids) > 2 or (len(runs.ids) == 2 and runs.ids[1] != file.blocks - 1)):
                raise SchemaMismatchError(
                    f"{file.file}: expected blocks of {block_size} elements up to the last, found shorter ones"
                )
            if file.blocks > 1:
                break
        self._footer = files[0] if self._is_continued else None
        return files[0].dtype

    def check_separator(self, separator: bytes) -> None:
        """The file that is continued must end with the separator, as the writer of its last document has left it."""
        if self._footer is None or not separator or self._footer.data_bytes == 0:
            return
        end = self._footer.data_bytes
        tail = self._read(len(separator), max(0, end - len(separator)))[: min(end, len(separator))]
        if tail != separator:
            raise SchemaMismatchError(f"{self.path}: expected the separator {separator!r} at the end of the tokens, found {tail!r}")

    def copy_old(self, file: NewFile) -> None:
        """Put the tokens of the file that is continued into the new one."""
        end = 0 if self._footer is None else self._footer.data_bytes
        while file.size < end:
            data = self._read(min(FLUSH_BYTES, end - file.size), file.size)
            if not data:
                raise ConflictError(f"{self.path}: the file was cut while it was copied; nothing was added here")
            file.write(data)

    def _read(self, count: int, offset: int) -> bytes:
        with reading(self.path):
            return os.pread(self._lock, count, offset)

    def publish(self, staging: Staging, names: list[str]) -> list[Path]:
        paths = [self.path.with_name(name) for name in names]
        if self._is_continued:
            self._check_unchanged()
            staging.publish(paths, overwrite=True)
            return paths
        try:
            staging.publish(paths)
        except FileExistsError as error:
            if not self._append:
                raise
            raise ConflictError(f"{self.path}: another writer added shards meanwhile; nothing was added here, try again") from error
        return paths


def _checked(dtype: npt.DTypeLike) -> np.dtype[Any]:
    made: np.dtype[Any] = Field("bf16").dtype if isinstance(dtype, str) and dtype == "bfloat16" else np.dtype(dtype)
    if str(made) in DTYPES:
        return made
    why = f"; the format has room for 8 bytes of its name, and it has {len(str(made))}" if len(str(made)) > 8 else ""
    raise TypeError(f"expected whole numbers or floats of up to 64 bits, got {made}{why}")


def some_documents(documents: Iterable[Document]) -> Iterator[Document]:
    """All but those that are none: a Ragged of no items. TypeError if it is one document."""
    if isinstance(documents, _TEXT):
        raise TypeError(f"expected documents, got one {type(documents).__name__}: write [document]")
    return (one for one in documents if not isinstance(one, Ragged) or len(one) > 0)


class DocumentEncoder:
    """Documents as bytes. They must all be texts or byte strings, or all be numbers, of one type unless they are converted."""

    def __init__(self, first: Document, dtype: np.dtype[Any] | None, separator: object, *, converts: bool) -> None:
        self._is_text, self._converts = _is_text(first), converts
        if dtype is None and isinstance(first, list | tuple):
            raise TypeError("document 0: lists of numbers need dtype=, such as 'uint16'")
        self.dtype = _checked(_dtype_of(first)) if dtype is None else dtype
        if self._is_text and self.dtype != np.uint8:
            raise TypeError(f"document 0: expected numbers for {self.dtype}, got {type(first).__name__}; texts are uint8")
        self.separator = b"" if separator is None else as_elements("separator", separator, self.dtype).tobytes()

    def encode_each(self, documents: Iterable[Document]) -> Iterator[tuple[bytes | bytearray | memoryview, IntArray | tuple[int]]]:
        """The bytes of documents with their separators, and how many each has; those of a Ragged at once."""
        number = 0
        for document in documents:
            if isinstance(document, Ragged):
                yield self._encode_all(number, document)
                number += len(document)
            else:
                raw = self._encode(number, document)
                yield b"".join((raw, self.separator)) if self.separator else raw, (len(raw) + len(self.separator),)
                number += 1

    def _encode_all(self, number: int, documents: Ragged) -> tuple[memoryview, IntArray]:
        self._check_kind(number, documents)
        if documents.present is not None and not documents.present.all():
            missing = number + int(np.argmin(documents.present))
            raise SchemaMismatchError(f"document {missing}: expected a text or numbers, found that it is missing")
        if documents.shapes is not None:
            raise TypeError(f"document {number}: expected one dimension, got {documents.shapes.shape[1]}")
        values = documents.values[documents.offsets[0] : documents.offsets[-1]]
        if not self._converts and values.dtype != self.dtype:
            raise TypeError(f"document {number}: expected {self.dtype} as before, got {values.dtype}; pass dtype= to convert")
        elements, lengths = as_elements(f"documents from {number} on", values, self.dtype), documents.lengths
        if self.separator:
            behind = np.frombuffer(self.separator, self.dtype)
            ends = np.repeat(documents.offsets[1:] - documents.offsets[0], len(behind))
            elements, lengths = np.insert(elements, ends, np.tile(behind, len(documents))), lengths + len(behind)
        return np.ascontiguousarray(elements).view(np.uint8).data, lengths * self.dtype.itemsize

    def _check_kind(self, number: int, document: Document) -> None:
        if _is_text(document) != self._is_text:
            before = "a text or byte string" if self._is_text else "an array or a list of numbers"
            raise TypeError(f"document {number}: expected {before} as before, got {type(document).__name__}")

    def _encode(self, number: int, document: Document) -> bytes | bytearray | memoryview:
        self._check_kind(number, document)
        if isinstance(document, bytes | bytearray):
            return document
        if isinstance(document, str):
            return _utf8(number, document)
        if not isinstance(document, np.ndarray | list | tuple):
            raise TypeError(f"document {number}: expected a text, a byte string or numbers, got {type(document).__name__}")
        if isinstance(document, np.ndarray) and not self._converts and document.dtype != self.dtype:
            raise TypeError(f"document {number}: expected {self.dtype} as before, got {document.dtype}; pass dtype= to convert")
        return np.ascontiguousarray(as_elements(f"document {number}", document, self.dtype)).view(np.uint8).data


def _is_text(document: Document) -> bool:
    return document.kind != "array" if isinstance(document, Ragged) else isinstance(document, _TEXT)


def _dtype_of(document: Document) -> npt.DTypeLike:
    if isinstance(document, Ragged):
        return document.values.dtype
    return document.dtype if isinstance(document, np.ndarray) else np.uint8


def _utf8(number: int, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"document {number}: expected a text of Unicode characters: {error}") from error


class _Shards:
    """The shards under way: blocks as they come, the index and the footer at the end of each."""

    def __init__(self, staging: Staging, target: _Target, dtype: np.dtype[Any], block_size: int, most_bytes: int | None) -> None:
        self._staging, self._target, self._dtype, self._most = staging, target, dtype, most_bytes
        self._block = block_size * dtype.itemsize
        if self._block > MAX_RECORD_BYTES:
            raise ValueError(f"block_size must be at most {MAX_RECORD_BYTES // dtype.itemsize} for {dtype}, got {block_size}")
        # A shard takes another block while data, index and footer stay within the limit, and one in any case.
        self._capacity = 2**63 if most_bytes is None else max(1, (most_bytes - FOOTER.size) // (self._block + END.itemsize))
        self._file: NewFile | None = None
        self.names: list[str] = []

    def add(self, data: bytearray) -> int:
        """Write whole blocks; returns the bytes of them."""
        whole, done = len(data) // self._block * self._block, 0
        while done < whole:
            file = self._current(self._block)
            part = memoryview(data)[done : min(whole, done + self._capacity * self._block - file.size)]
            file.write(part)
            done += len(part)
        return whole

    def finish(self, data: bytearray) -> None:
        """Write all that is left, and end the last shard."""
        tail = memoryview(data)[self.add(data) :]
        if len(tail) > 0:
            self._current(len(tail)).write(tail)
        if self._file is not None:
            self._end(self._file)

    def _current(self, size: int) -> NewFile:
        """The shard that takes the next block of ``size`` bytes."""
        if self._file is not None and self._most is not None:
            blocks = self._file.size // self._block + 1
            if self._file.size + size + blocks * END.itemsize + FOOTER.size > self._most:
                self._end(self._file)
        if self._file is None:
            self.names.append(self._target.name(len(self.names)))
            self._file = self._staging.new_file(self.names[-1])
            self._target.copy_old(self._file)
        return self._file

    def _end(self, file: NewFile) -> None:
        data_bytes = file.size
        blocks = -(-data_bytes // self._block)
        for low in range(0, blocks, INDEX_PIECE):
            ends = np.arange(low + 1, min(low + INDEX_PIECE, blocks) + 1, dtype=END) * self._block
            file.write(np.minimum(ends, data_bytes))
        file.write(encode_footer(blocks, data_bytes, self._dtype))
        file.finish()
        self._file = None


PIECE = 1 << 16
"""Documents of a table that are written at a time."""


@dataclass(frozen=True)
class _Format:
    """The file of tokens and that of the table (none, if there is none) for a path, the types of tokens, and what the table is."""

    data: Callable[[Path], Path]
    table: Callable[[Path], Path | None]
    dtypes: frozenset[str]
    write: Callable[[NewFile, "_Ends"], None] | None


@dataclass(frozen=True)
class _Ends:
    """Where documents end, in tokens."""

    ends: "array[int]"
    dtype: np.dtype[Any]

    def __len__(self) -> int:
        return len(self.ends)

    def pieces(self) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Starts and ends, some at a time."""
        last = 0
        for low in range(0, len(self.ends), PIECE):
            ends = np.array(self.ends[low : low + PIECE], np.int64)
            yield np.concatenate([[last], ends[:-1]]), ends
            last = int(ends[-1])


def _write_index(file: NewFile, ends: _Ends) -> None:
    """Megatron's: every document is a sequence."""
    code = next(code for code, name in CODES.items() if np.dtype(name) == ends.dtype)
    file.write(HEADER.pack(MAGIC, 1, code, len(ends), len(ends) + 1))
    for starts, stops in ends.pieces():
        file.write((stops - starts).astype(LENGTH))
    for starts, _ in ends.pieces():
        file.write((starts * ends.dtype.itemsize).astype(POINTER))
    for low in range(0, len(ends) + 1, PIECE):
        file.write(np.arange(low, min(low + PIECE, len(ends) + 1), dtype=POINTER))


def _write_ends(file: NewFile, ends: _Ends) -> None:
    for _, stops in ends.pieces():
        file.write(stops.astype("<u8"))


def _write_table(file: NewFile, ends: _Ends) -> None:
    """OLMo's. A gzip file may have many members."""
    for starts, stops in ends.pieces():
        lines = "".join(f"{start},{stop}\n" for start, stop in zip(starts.tolist(), stops.tolist(), strict=True))
        file.write(gzip.compress(lines.encode(), 6, mtime=0))


_UNSIGNED = frozenset(("uint8", "uint16", "uint32", "uint64"))
_FORMATS = {
    IDX: _Format(
        lambda path: path.with_suffix(BIN),
        lambda path: path,
        frozenset(str(np.dtype(name)) for name in CODES.values()),
        _write_index,
    ),
    ".ds": _Format(
        lambda path: path, lambda path: path.with_name(f"{path.name}.index"), frozenset(("uint16", "uint32")), _write_ends
    ),
    ".npy": _Format(lambda path: path, lambda path: path.with_suffix(TABLE), _UNSIGNED, _write_table),
    BIN: _Format(lambda path: path, lambda path: None, _UNSIGNED | {"int16", "int32", "int64"}, None),
}
SUFFIXES = tuple(_FORMATS)


def write_documents(
    documents: Iterable[Document],
    path: str | os.PathLike[str],
    *,
    dtype: npt.DTypeLike | None = None,
    separator: object = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Write documents in the format of another tool, by the suffix of ``path``, and return the files; none for no documents at all.

    ``x.idx`` is an index of Megatron, with the tokens in ``x.bin``; ``x.ds`` is datatrove's, with ``x.ds.index``; ``x.npy`` is
    OLMo's, without a header, and with ``x.csv.gz``; ``x.bin`` is nanoGPT's, which does not tell documents apart. ``separator`` goes
    behind every document, and belongs to it. ``dtype`` is that of the first document unless given; a value that does not fit
    raises ValueError. The files appear under their names when all is written and durable.
    """
    rest, target = some_documents(documents), Path(path).absolute()
    if target.suffix not in _FORMATS:
        raise ValueError(f"path must end in {', '.join(SUFFIXES)}, got {target}")
    layout = _FORMATS[target.suffix]
    data, table = layout.data(target), layout.table(target)
    for one in files_of(target):
        refuse_existing(one, "choose another name")
    first = list(islice(rest, 1))
    if not first:
        return []
    encoder = DocumentEncoder(first[0], None if dtype is None else np.dtype(dtype), separator, converts=dtype is not None)
    check_dtype(target, encoder.dtype)
    with Staging(target) as staging:
        ends = _write_tokens(staging.new_file(data.name), chain(first, rest), encoder, progress)
        if layout.write is not None and table is not None:
            file = staging.new_file(table.name)
            layout.write(file, ends)
            file.finish()
        made = files_of(target)
        staging.publish(made)
    return made


def files_of(target: Path) -> list[Path]:
    """The files that documents become, the target last."""
    layout = _FORMATS[target.suffix]
    return sorted(
        (one for one in (layout.data(target), layout.table(target)) if one is not None), key=lambda one: (one == target, one)
    )


def check_dtype(target: Path, dtype: np.dtype[Any]) -> None:
    """ValueError if a file of that name has no place for tokens of a type."""
    dtypes = _FORMATS[target.suffix].dtypes
    if str(dtype) not in dtypes:
        raise ValueError(f"{target}: tokens of {dtype} cannot be stored there: pass dtype=, one of {', '.join(sorted(dtypes))}")


def _write_tokens(file: NewFile, documents: Iterable[Document], encoder: DocumentEncoder, progress: Progress | None) -> _Ends:
    ends, pending, waiting, total = array("q"), bytearray(), 0, 0
    for raw, sizes in encoder.encode_each(documents):
        pending += raw
        longest = max(sizes) // encoder.dtype.itemsize if isinstance(sizes, tuple) else int(sizes.max()) // encoder.dtype.itemsize
        if longest >= 2**31:
            number = len(ends) + int(np.argmax(sizes))
            raise ValueError(f"document {number}: expected fewer than 2^31 tokens, got {longest}")
        if isinstance(sizes, tuple):
            ends.append(total + longest)
        else:
            ends.frombytes((total + np.cumsum(sizes // encoder.dtype.itemsize)).tobytes())
        total = ends[-1]
        waiting += len(sizes)
        if len(pending) >= FLUSH_BYTES:
            waiting = _flush(file, pending, waiting, progress)
    _flush(file, pending, waiting, progress)
    file.finish()
    return _Ends(ends, encoder.dtype)


def _flush(file: NewFile, pending: bytearray, waiting: int, progress: Progress | None) -> int:
    file.write(pending)
    if progress is not None and waiting:
        progress(waiting, len(pending))
    pending.clear()
    return 0
