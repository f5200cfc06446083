"""WebDataset's tar archives: neighbouring files whose names are equal up to the first dot of the base name are a sample.

``a/001.jpg``, ``a/001.cls`` and ``a/001.seg.png`` are the record with the ``__key__`` ``a/001`` and the fields ``jpg``, ``cls`` and
``seg.png``, each the bytes of a file. A file that a sample does not have is a missing value. Directories, links, and files whose
names have no dot, or begin and end with two underscores, are left out. The archive is read where it is: only its headers are looked
at, once, and where the files are is kept in a sidecar. Where Energon has made its index of an archive, that is used instead.

An archive that is compressed as a whole is a block: it is decompressed when one of its samples is read.

Energon (NVIDIA's loader of such archives) keeps an index and a split next to them::

    .nv-meta/.info.json    = {"shard_counts": {name of an archive: samples, ...}}     the i-th name is tar_file_id i
    .nv-meta/index.sqlite  = samples(tar_file_id, sample_key, sample_index, byte_offset, byte_size)
                             sample_parts(tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size)
    .nv-meta/split.yaml    = {"split_parts": {part: [name of an archive, ...]}, "exclude": [...]}     or split.json; a name may be
                             a pattern, {000..123}.tar
    <name>.tar.idx         = offset of every sample u64, end of the last; it does not say where its files are, so it is not used

The index says where every file is, so that an archive need not be walked header after header: all headers are read at once, by
several threads, and each is compared with the index. An index that says anything else than the archive does is not used, and the
archive is scanned.
"""

import itertools
import math
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, byte_size
from penstock.batch import Batch, Outputs, Ragged, empty
from penstock.errors import (
    CorruptError,
    EmptyFileError,
    EmptySourceError,
    FormatError,
    MissingError,
    ReadError,
    SchemaMismatchError,
    TruncatedError,
    UnsafePathError,
    UnsupportedTypeError,
)
from penstock.formats.files import (
    MAX_BATCH_BYTES,
    MAX_BLOCK_BYTES,
    Files,
    LocalFile,
    Names,
    check_batch,
    find_files,
    read_json,
    suffix_of,
)
from penstock.formats.lines import decompressed
from penstock.formats.packed import (
    KEPT_BYTES,
    Decompression,
    PackedBlocks,
    PackedColumn,
    PackedFile,
    PackedLayout,
    PackedOrigin,
)
from penstock.formats.rows_in_files import default_threads
from penstock.formats.sidecar import PAGE_BYTES, sealed, unsealed
from penstock.formats.spans import FileSpans, ScannedFile, SpanField, SpanIndex, SpanOptions, SpanSource
from penstock.native import _core
from penstock.process import need
from penstock.records import Recipe
from penstock.remote.window import RemoteOptions
from penstock.schema import Field
from penstock.store.storage import as_location
from penstock.system import is_file, reading

__all__ = ["TarBlocks", "TarSource", "open_tar", "spans_of_energon", "split_files"]

SUFFIX, KEY = ".tar", "__key__"
CODECS = {".tgz": "gzip", ".tar.gz": "gzip", ".tar.zst": "zstd"}
"""How archives of these suffixes are compressed."""

COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
"""How compressed files begin."""


def open_tar(
    what: Names,
    *,
    fields: Sequence[str] | None = None,
    text: Sequence[str] = (),
    split: str | None = None,
    threads: int | None = None,
    io: str = "auto",
    max_block_bytes: int | str = MAX_BLOCK_BYTES,
    kept_bytes: int | str = KEPT_BYTES,
    remote: RemoteOptions | None = None,
) -> "TarSource | TarBlocks":
    """One tar archive, or many as one source: a list keeps its order, a pattern or a directory gives that of the name bytes.

    A record has its ``__key__`` and a field of bytes for every extension; those in ``text`` are texts, which must be UTF-8.
    ``fields`` chooses some of them: at a URL, only their bytes are fetched. ``split`` is the name of a part of a directory that
    Energon has prepared: its archives, in Energon's order.

    An archive that is compressed as a whole (.tgz, .tar.gz, .tar.zst) is decompressed when one of its samples is read: one that
    decompresses to more than ``max_block_bytes`` is refused, unless it is stored in a 64th of its bytes or more; ``kept_bytes`` of
    them are kept.
    """
    for name, value in (("fields", fields), ("text", text)):
        if isinstance(value, str):
            raise TypeError(f"{name} must be a list of names, got {value!r}")
    how = SpanOptions(default_threads(threads), io, remote)
    limits = byte_size("max_block_bytes", max_block_bytes), byte_size("kept_bytes", kept_bytes)
    files = find_files(what, (SUFFIX, *CODECS)) if split is None else split_files(what, split)
    chosen = None if fields is None else tuple(fields), tuple(text)
    compressed = [suffix_of(file.name) in CODECS for file in files]
    if all(compressed):
        return TarBlocks(files, *chosen, how, limits)
    if any(compressed):
        raise SchemaMismatchError(
            f"{files[compressed.index(True)]}: expected archives that are all compressed or all plain, found both: open each kind "
            "by itself, and the sources as a list"
        )
    return TarSource(files, *chosen, how)


def _scan(file: ScannedFile) -> FileSpans:
    if file.size == 0:
        raise EmptyFileError(f"{file}: expected a tar archive, found an empty file")
    if (found := spans_of_energon(file)) is not None:
        return found
    try:
        return file.scan(_core.TarScanner(str(file), file.size))
    except (FormatError, TruncatedError):
        head = file.read(0, min(8, file.size)).tobytes()
        for magic, name in COMPRESSED.items():
            if head.startswith(magic):
                raise UnsupportedTypeError(
                    f"{file}: expected a plain tar archive, found one that is compressed as a whole ({name}): call it .tar.gz or "
                    ".tar.zst if it is compressed so, and decompress it otherwise"
                ) from None
        raise


def _fields_of(
    where: object, columns: Sequence[str], fields: tuple[str, ...] | None, text: tuple[str, ...]
) -> Iterable[tuple[str, Field]]:
    """The wanted fields, of all columns."""
    known = [KEY, *(name for name in columns if name != KEY)]
    for name in (*(fields or ()), *text):
        if name not in known:
            raise KeyError(f"{where}: unknown field {name!r}; there are {known}")
    chosen = known if fields is None else fields
    if len(set(chosen)) < len(chosen) or not chosen:
        raise ValueError(f"expected different fields, at least one, got {list(chosen)}")
    return [(name, Field.text() if name in (KEY, *text) else Field.bytes()) for name in chosen]


class TarSource(SpanSource):
    """The samples of tar archives, one archive after the other."""

    def __init__(self, files: Files, fields: tuple[str, ...] | None, text: tuple[str, ...], how: SpanOptions) -> None:
        self._options = fields, text, how
        index = SpanIndex("tar", files, _scan, how)
        try:
            chosen = _fields_of(files[0], index.columns, fields, text)
        except BaseException:
            index.rows.close()
            raise
        super().__init__(index, {name: SpanField(field) for name, field in chosen})

    def _identity(self) -> tuple[Any, ...]:
        return "tar", [(name, field.kind) for name, field in self.schema.items()]

    def _recipe(self) -> Recipe:
        return (TarSource, (self._files, *self._options))


# Archives that are compressed as a whole


@dataclass(frozen=True)
class _Contents:
    """What is kept of a compressed archive: its bytes when it is decompressed, its samples, its columns, and how many samples lack
    each.
    """

    size: int
    samples: int
    columns: Mapping[str, int]

    @classmethod
    def of(cls, size: int, found: FileSpans) -> "_Contents":
        missing = (found.table[:, 1 : 2 * len(found.columns) : 2] < 0).sum(axis=0).tolist()
        return cls(size, len(found.table), dict(zip(found.columns, missing, strict=True)))

    def to_bytes(self) -> npt.NDArray[np.uint8]:
        return sealed([self.size, self.samples, list(self.columns.items())])

    @classmethod
    def from_bytes(cls, where: object, data: npt.NDArray[np.uint8]) -> "_Contents":
        size, samples, columns = unsealed(where, data)
        return cls(size, samples, dict(columns))


def _scan_block(file: ScannedFile, limit: int) -> FileSpans:
    """What is in a compressed archive, as the only record of the file."""
    if file.size == 0:
        raise EmptyFileError(f"{file}: expected a compressed tar archive, found an empty file")
    raw = _decompress(str(file), file.read(0, file.size), limit)
    found = _scan_memory(str(file), raw)
    whole = np.array([[0, file.size]], np.int64)
    return FileSpans(["archive"], whole, _Contents.of(raw.nbytes, found).to_bytes())


def _decompress(path: str, stored: npt.NDArray[np.uint8], limit: int) -> npt.NDArray[np.uint8]:
    source = need("pyarrow", "arrow").BufferReader(stored)
    pieces = list(decompressed(path, CODECS[suffix_of(path)], source, stored.size, None, limit))
    return np.concatenate([np.empty(0, np.uint8), *pieces])


def _scan_memory(path: str, raw: npt.NDArray[np.uint8]) -> FileSpans:
    if raw.size == 0:
        raise EmptyFileError(f"{path}: expected a tar archive, found one of no bytes when it is decompressed")
    scanner = _core.TarScanner(path, raw.size)
    while not scanner.is_done:
        scanner.feed(raw[scanner.next :])
    return FileSpans.taken(scanner)


class TarBlocks(PackedBlocks):
    """The samples of tar archives that are compressed as a whole, one archive after the other."""

    def __init__(
        self, files: Files, fields: tuple[str, ...] | None, text: tuple[str, ...], how: SpanOptions, limits: tuple[int, int]
    ) -> None:
        index = SpanIndex("tar blocks", files, partial(_scan_block, limit=limits[0]), how)
        index.rows.close()
        self._contents = [_Contents.from_bytes(file, memory) for file, memory in zip(files, index.memories, strict=True)]
        total = sum(one.samples for one in self._contents)
        there: dict[str, int] = {}
        for one in self._contents:
            for name, missing in one.columns.items():
                there[name] = there.get(name, 0) + one.samples - missing
        columns = [
            PackedColumn(name, "tar", -1, False, field.with_nullable(there[name] < total))
            for name, field in _fields_of(files[0], list(there), fields, text)
        ]
        parts = [
            PackedFile(file, one.size, row.version, one.samples, row.size)
            for file, row, one in zip(files, index.parts, self._contents, strict=True)
        ]
        layout = PackedLayout(columns, {column.name: number for number, column in enumerate(columns)})
        identity = "tar", [(name, field.kind) for name, field in layout.schema.items()]
        origin = PackedOrigin((how.threads, how.io, how.remote), identity, (TarBlocks, (files, fields, text, how, limits)))
        super().__init__(files, parts, layout, origin, Decompression("", *limits))

    def _decoded(self, number: int, stored: npt.NDArray[np.uint8]) -> "tuple[_ArchiveReader, int]":
        where = str(self._parts[number].file)
        raw = _decompress(where, stored, self._decompression.max_block_bytes)
        found = _scan_memory(where, raw)
        if _Contents.of(raw.nbytes, found) != self._contents[number]:
            raise CorruptError(f"{where}: expected the samples that were found in it before, found others; open it again")
        return _ArchiveReader(where, raw, found, self._schema), raw.nbytes


class _ArchiveReader:
    """Reads fields of the samples of one archive in memory."""

    def __init__(self, where: str, raw: npt.NDArray[np.uint8], found: FileSpans, schema: Mapping[str, Field]) -> None:
        self._where, self._schema, self._readers = where, schema, dict[str, _core.SpanReader]()
        memory = np.empty(0, np.uint8) if found.memory is None else found.memory
        spans, nothing = np.ascontiguousarray(found.table).reshape(-1), (np.empty(0, np.uint32), np.empty(0, np.bool_))
        table = _core.SpanTable([(where, raw.nbytes, found.table.shape[1], (spans, *nothing), (memory, *nothing), "")], PAGE_BYTES)
        for name, field in schema.items():
            place = found.columns.index(name) if name in found.columns else -1
            in_memory = found.in_file is not None and place >= found.in_file
            words, crcs = np.array([2 * place if place >= 0 else -1], np.int32), np.array([-1], np.int32)
            rows = _core.RowReader.of_memory([memory if in_memory else raw], 1)
            self._readers[name] = table.column(rows, words, crcs, in_memory, MAX_BATCH_BYTES, 1, field.kind == "text")

    def read(self, ids: IntArray, fields: Sequence[str], out: Outputs, pool: _core.ThreadPool) -> Batch:
        return {name: self._read_field(name, np.ascontiguousarray(ids), pool) for name in fields}

    def _read_field(self, name: str, ids: IntArray, pool: _core.ThreadPool) -> Ragged:
        reader, sizes = self._readers[name], np.empty(ids.size, np.int64)
        reader.sizes(ids, sizes)
        offsets = np.concatenate([[0], np.cumsum(np.maximum(sizes, 0))]).astype(np.int64)
        check_batch(self._where, int(offsets[-1]))
        values = empty((int(offsets[-1]),), np.dtype(np.uint8))
        reader.read(ids, offsets[:-1], sizes, values, pool)
        present = sizes >= 0
        return Ragged(values, offsets, self._schema[name].kind, None, None if present.all() else present)


META, INFO, INDEX = ".nv-meta", ".info.json", "index.sqlite"
NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
NOT_SAMPLES = re.compile(r"__[^/]*__($|/)")
INFO_BYTES = 256 << 20
LEVELS = 4
"""Directories above an archive in which the index may be."""

BLOCK = 512
GAP_BYTES = 8 * BLOCK
"""Of what may be before the header of a file: a header with more facts of it."""

TAIL_BYTES = 64 << 10
"""Behind the last file, that are looked at together."""

CHECKED = 1 << 14
"""Headers that are read at a time."""

VALUE_BYTES = 4096
"""Of the largest value of the database. Names in headers are shorter, but a column may be computed."""

STEPS = 10_000
"""Of the database's machine, between two looks at whether it takes too long."""

NAME_AT, SIZE_AT, SUM_AT, TYPE_AT, PREFIX_AT = slice(0, 100), slice(124, 136), slice(148, 156), 156, slice(345, 500)
FACTS = re.compile(rb"(?:[0-9]+ (?:mtime|atime|ctime|comment|uid|gid|uname|gname)=[^\n]*\n)*\0*")
"""What pax headers may say of a file whose name and size are in its own header."""

BRACES, RANGE = re.compile(r"\{([^{}]*(?:\.\.|,)[^{}]*)\}"), re.compile(r"([0-9]{1,18})\.\.([0-9]{1,18})")
MAX_ARCHIVES = 10_000_000
"""That a pattern may stand for."""

Bytes = npt.NDArray[np.uint8]


# The index


def spans_of_energon(file: ScannedFile) -> FileSpans | None:
    """Where the samples of an archive on disk are, as Energon's index says and the headers of the archive confirm; None if there is
    no index of it, or if it says anything else.
    """
    found = None if file.path is None else _find_index(file.path)
    if found is None:
        return None
    try:
        rows = list(_rows(*found, most=file.size // BLOCK))
    except (sqlite3.Error, OverflowError, ValueError):
        return None
    if not rows or not all(map(_is_whole, rows)):
        return None
    starts, sizes = np.array([row[2] for row in rows], np.int64), np.array([row[3] for row in rows], np.int64)
    names = [f"{key}.{part}".encode() for key, part, _, _ in rows]
    if not _is_line(file, starts, sizes) or not _has_headers(file, starts, sizes, names):
        return None
    return _spans([(row[0], row[1]) for row in rows], starts, sizes)


def _find_index(path: Path) -> tuple[Path, int] | None:
    """The database that has an archive, and its number there."""
    for directory in list(path.parents)[:LEVELS]:
        index = directory / META / INDEX
        if is_file(index) and is_file(directory / META / INFO):
            try:
                counts = read_json(LocalFile(directory / META / INFO), INFO_BYTES)[1].get("shard_counts")
            except ReadError:
                return None
            name = path.relative_to(directory).as_posix()
            names = list(counts) if isinstance(counts, dict) else []
            return (index, names.index(name)) if name in names else None
    return None


def _rows(index: Path, number: int, most: int) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Key, name of the part, offset and bytes of every file, in their order. An error if there are more than an archive can have,
    or if what is asked for is not in tables.
    """
    with closing(sqlite3.connect(f"{index.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as base:
        base.execute("PRAGMA trusted_schema = OFF")
        base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES)
        left = 1000 + 100 * (most // STEPS + 1)

        def is_too_long() -> int:
            nonlocal left
            left -= 1
            return int(left < 0)

        base.set_progress_handler(is_too_long, STEPS)
        told = dict(base.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"))
        if not all(re.match(r"CREATE TABLE\b", str(told.get(name))) for name in ("samples", "sample_parts")):
            raise ValueError("expected tables of samples and their parts")
        samples = dict(
            base.execute("SELECT sample_index, sample_key FROM samples WHERE tar_file_id = ? LIMIT ?", (number, most + 1))
        )
        parts = base.execute(
            "SELECT sample_index, part_name, content_byte_offset, content_byte_size FROM sample_parts WHERE tar_file_id = ? "
            "ORDER BY content_byte_offset LIMIT ?",
            (number, most + 1),
        )
        for count, (sample, part, start, size) in enumerate(parts):
            if count == most or sample not in samples:
                raise ValueError("expected a sample of every part, within the archive")
            yield samples[sample], part, start, size


def _is_whole(row: tuple[Any, Any, Any, Any]) -> bool:
    """Whether a row is of a file that belongs to a sample."""
    key, part, start, size = row
    if not isinstance(key, str) or not isinstance(part, str) or type(start) is not int or type(size) is not int:
        return False
    named = NAME.fullmatch(f"{key}.{part}")
    return (
        named is not None
        and named.groups() == (key, part)
        and part != ""
        and part.lower() != KEY
        and "\n" not in part
        and NOT_SAMPLES.match(f"{key}.{part}") is None
        and 0 <= start < 2**62
        and 0 <= size < 2**62
    )


def _spans(names: list[tuple[str, str]], starts: IntArray, sizes: IntArray) -> FileSpans | None:
    """The samples, as a scan gives them; None if a sample has two files of one name."""
    columns: dict[str, int] = {}
    keys, places, samples = list[bytes](), list[int](), list[int]()
    last: str | None = None
    for key, part in names:
        if key != last:
            keys.append(key.encode())
            last = key
        samples.append(len(keys) - 1)
        places.append(columns.setdefault(part.lower(), len(columns)))
    cells = np.array(samples, np.int64) * len(columns) + np.array(places, np.int64)
    if np.unique(cells).size < cells.size:
        return None
    table = np.full((len(keys), len(columns) + 1, 2), -1, np.int64)
    table[:, :, 0] = 0
    table[samples, places, 0], table[samples, places, 1] = starts, sizes
    lengths = np.array([len(key) for key in keys], np.int64)
    table[:, -1, 0], table[:, -1, 1] = np.cumsum(lengths) - lengths, lengths
    memory = np.frombuffer(b"".join(keys), np.uint8)
    return FileSpans([*columns, KEY], table.reshape(len(keys), -1), memory, len(columns))


# What the archive says


def _is_line(file: ScannedFile, starts: IntArray, sizes: IntArray) -> bool:
    """Whether files follow one another in an archive, with little between them, and no file behind them."""
    ends = starts + sizes + -sizes % BLOCK
    gaps = starts - np.concatenate([[0], ends[:-1]])
    if np.any(starts % BLOCK) or np.any((gaps < BLOCK) | (gaps > GAP_BYTES)) or int(starts[-1] + sizes[-1]) > file.size:
        return False
    end = int(ends[-1])
    if end >= file.size:
        return True
    scanner = _core.TarScanner(str(file), file.size - end)
    try:
        while not scanner.is_done:
            start = end + scanner.next
            scanner.feed(file.read(start, min(file.size, start + max(scanner.need, TAIL_BYTES))))
    except ReadError:
        return False
    return scanner.take()[1].size == 0


def _has_headers(file: ScannedFile, starts: IntArray, sizes: IntArray, names: list[bytes]) -> bool:
    """Whether there is a header of every file before its bytes, with its name and size, and between that and the file before it at
    most one that says nothing else of these.
    """
    before = np.concatenate([[0], (starts + sizes + -sizes % BLOCK)[:-1]])
    for low in range(0, starts.size, CHECKED):
        part = slice(low, low + CHECKED)
        heads = file.gather(starts[part] - BLOCK, np.full(starts[part].size, BLOCK, np.int64)).reshape(-1, BLOCK)
        if not _are_headers(heads, sizes[part], names[part]):
            return False
        gaps = starts[part] - BLOCK - before[part]
        wide = np.flatnonzero(gaps)
        notes, edges = file.gather(before[part][wide], gaps[wide]), np.cumsum(gaps[wide]).tolist()
        if not all(map(_is_note, (notes[stop - size : stop] for stop, size in zip(edges, gaps[wide].tolist(), strict=True)))):
            return False
    return True


def _are_headers(heads: Bytes, sizes: IntArray, names: list[bytes]) -> bool:
    types = heads[:, TYPE_AT]
    told, sums = _octal(heads[:, SIZE_AT]), _octal(heads[:, SUM_AT])
    counted = heads.sum(axis=1, dtype=np.int64) - heads[:, SUM_AT].sum(axis=1, dtype=np.int64) + 8 * ord(" ")
    if not np.all(((types == ord("0")) | (types == 0)) & (told == sizes) & (sums == counted)):
        return False
    return all(_name(head.tobytes()) == name for head, name in zip(heads, names, strict=True))


def _name(head: bytes) -> bytes:
    name, prefix = head[NAME_AT].split(b"\0", 1)[0], head[PREFIX_AT].split(b"\0", 1)[0]
    return prefix + b"/" + name if prefix and head[257:263] == b"ustar\0" else name


def _octal(texts: Bytes) -> IntArray:
    """Numbers of octal digits, up to a NUL or a space; -1 for others."""
    digits = texts.astype(np.int64) - ord("0")
    is_digit = (digits >= 0) & (digits < 8)
    inside = np.logical_and.accumulate(is_digit, axis=1)
    rest = np.where(inside, 0, texts)
    found = np.zeros(len(texts), np.int64)
    for place in range(texts.shape[1]):
        found = np.where(inside[:, place], 8 * found + digits[:, place], found)
    return np.where(inside[:, 0] & np.all((rest == 0) | (rest == ord(" ")), axis=1), found, -1)


def _is_note(data: Bytes) -> bool:
    """Whether bytes are one pax header that says neither a name nor a size."""
    head = data[:BLOCK].reshape(1, BLOCK)
    size, total = int(_octal(head[:, SIZE_AT])[0]), int(_octal(head[:, SUM_AT])[0])
    counted = int(head.sum(dtype=np.int64)) - int(head[:, SUM_AT].sum(dtype=np.int64)) + 8 * ord(" ")
    is_right = head[0, TYPE_AT] == ord("x") and total == counted and data.size == BLOCK + size + -size % BLOCK
    return is_right and FACTS.fullmatch(data[BLOCK:].tobytes()) is not None


# The split


def split_files(what: Names, split: str) -> Files:
    """The archives of one part of a directory that Energon has prepared, in the order in which its split names them."""
    where = as_location(what) if isinstance(what, str | os.PathLike) else what
    if not isinstance(where, Path):
        raise ValueError(f"split= is for a directory on disk that Energon has prepared, got {what!r}")
    meta = where / META
    content = _read_split(meta)
    parts, excluded = content.get("split_parts"), content.get("exclude") or []
    if not isinstance(parts, dict) or not isinstance(excluded, list) or not all(map(_are_names, [*parts.values(), excluded])):
        raise FormatError(f"{meta}: expected lists of archives by the names of parts as split_parts, found something else")
    if split not in parts:
        raise KeyError(f"{meta}: there is no part {split!r}; there are {list(parts)}")
    named = [name for one in parts[split] for name in _written_out(meta, one)]
    archives, left_out = set(named), {name for one in excluded for name in _written_out(meta, one)}
    if some := [name for name in left_out if not archives.isdisjoint(str(one) for one in PurePosixPath(name).parents)]:
        raise UnsupportedTypeError(f"{meta}: the split leaves out single samples, such as {some[0]!r}, which is not read")
    names = [name for name in named if name not in left_out]
    for name in [*names, *left_out]:
        if any(one in ("", ".", "..") for one in name.split("/")) or "\0" in name:
            raise UnsafePathError(f"{meta}: expected archives below {where}, found {name[:100]!r}")
    if not names:
        raise EmptySourceError(f"{meta}: expected at least one archive in the part {split!r}, found none")
    return Files([LocalFile(where / name) for name in names])


def _written_out(meta: Path, pattern: str) -> Iterator[str]:
    """The names that a pattern stands for, in their order: ``{000..123}`` is a range of numbers, with as many digits; ``{a,b}`` is
    each of these. Energon writes names that differ in numbers so.
    """
    pieces = BRACES.split(pattern)
    if any(letter in piece for piece in pieces[::2] for letter in "{}"):
        raise UnsupportedTypeError(
            f"{meta}: expected names with ranges {{0..9}}, found the pattern {pattern[:100]!r}: write them out"
        )
    choices = [[piece] if number % 2 == 0 else _choices(meta, piece) for number, piece in enumerate(pieces)]
    if math.prod(map(len, choices)) > MAX_ARCHIVES:
        raise UnsupportedTypeError(f"{meta}: expected at most {MAX_ARCHIVES} archives, found more in {pattern[:100]!r}")
    return map("".join, itertools.product(*choices))


def _choices(meta: Path, inside: str) -> Sequence[str]:
    edges = RANGE.fullmatch(inside)
    if edges is None and ".." in inside:
        raise UnsupportedTypeError(f"{meta}: expected a range of numbers, such as {{0..9}}, found {{{inside[:100]}}}: write it out")
    if edges is None:
        return inside.split(",")
    first, last = edges.groups()
    low, high = int(first), int(last)
    if abs(high - low) >= MAX_ARCHIVES:
        raise UnsupportedTypeError(f"{meta}: expected at most {MAX_ARCHIVES} archives, found {{{inside[:100]}}}")
    is_padded = any(len(one) > 1 and one.startswith("0") for one in (first, last))
    width = max(len(first), len(last)) if is_padded else 0
    return [f"{number:0{width}}" for number in (range(low, high + 1) if low <= high else range(low, high - 1, -1))]


def _are_names(names: object) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _read_split(meta: Path) -> Mapping[str, Any]:
    if is_file(meta / "split.json") and not is_file(meta / "split.yaml"):
        return read_json(LocalFile(meta / "split.json"), INFO_BYTES)[1]
    if not is_file(meta / "split.yaml"):
        raise MissingError(f"{meta}: expected split.yaml or split.json, which Energon makes when it prepares a directory")
    yaml = need("yaml", "energon")
    with reading(meta / "split.yaml"):
        raw = (meta / "split.yaml").read_bytes()
    try:
        content = yaml.safe_load(raw)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise FormatError(f"{meta / 'split.yaml'}: expected YAML, found something else") from error
    if not isinstance(content, dict):
        raise FormatError(f"{meta / 'split.yaml'}: expected split_parts, found something else")
    return content
