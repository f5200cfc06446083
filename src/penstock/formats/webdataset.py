"""WebDataset's tar archives: neighbouring files whose names are equal up to the first dot of the base name are a sample.

``a/001.jpg``, ``a/001.cls`` and ``a/001.seg.png`` are the record with the ``__key__`` ``a/001`` and the fields ``jpg``, ``cls`` and
``seg.png``, each the bytes of a file. A file that a sample does not have is a missing value. Directories, links, and files whose
names have no dot, or begin and end with two underscores, are left out. The archive is read where it is: only its headers are looked
at, once, and where the files are is kept in a sidecar. Where Energon has made its index of an archive, that is used instead.

An archive that is compressed as a whole is a block: it is decompressed when one of its samples is read.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, byte_size
from penstock.batch import Batch, Outputs, Ragged, empty
from penstock.errors import CorruptError, EmptyFileError, FormatError, SchemaMismatchError, TruncatedError, UnsupportedTypeError
from penstock.formats.energon import spans_of_energon, split_files
from penstock.formats.files import MAX_BATCH_BYTES, MAX_BLOCK_BYTES, Files, Names, check_batch, find_files, suffix_of
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
from penstock.formats.sidecar import PAGE_BYTES
from penstock.formats.spans import FileSpans, ScannedFile, SpanField, SpanIndex, SpanOptions, SpanSource
from penstock.native import _core
from penstock.process import need
from penstock.records import Recipe
from penstock.remote.window import RemoteOptions
from penstock.schema import Field

__all__ = ["TarBlocks", "TarSource", "open_tar"]

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
        content = json.dumps([self.size, self.samples, list(self.columns.items())]).encode()
        crc = _core.crc32c(np.frombuffer(content, np.uint8))
        return np.frombuffer(crc.to_bytes(4, "little") + content, np.uint8)

    @classmethod
    def from_bytes(cls, where: object, data: npt.NDArray[np.uint8]) -> "_Contents":
        if data.size < 4 or _core.crc32c(np.ascontiguousarray(data[4:])) != int.from_bytes(data[:4].tobytes(), "little"):
            raise CorruptError(
                f"{where}: its index is not what was written: remove the .penstock-index next to it, or in the cache"
            )
        size, samples, columns = json.loads(data[4:].tobytes())
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
            raise CorruptError(f"{where}: expected the samples that were found in it before, found others; open it anew")
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
