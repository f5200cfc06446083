"""Arrow: IPC files, tables in memory and Hugging Face data sets, with columns as fields."""

import hashlib
import os
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.argument import byte_size
from penstock.interfaces import IntArray
from penstock.ragged import Ragged
from penstock.records import Batch, Blocks, Outputs, Recipe, Sampling, Source
from penstock.schema import Field
from penstock.source.arrow_column import Column, make_column
from penstock.source.arrow_file import (
    SUFFIXES,
    files_of,
    find_nulls,
    is_compressed,
    is_stream,
    mapped_bytes,
    measure_batches,
    read_batch,
    read_batches,
    read_row_counts,
    read_schema,
    translated,
)
from penstock.source.arrow_group import CACHE_BYTES, Decoding, Group, GroupSource, blocks_of
from penstock.source.arrow_memory import BufferMemory, FileMemory, Memory, NotInFileError
from penstock.source.arrow_type import Fields, Leaf, choose, is_view, need_agreement, plain_fields, with_nullable
from penstock.source.fingerprint import (
    SAMPLE_BYTES,
    WHOLE_BYTES,
    digest_files,
    fingerprint_arrays,
    fingerprint_files,
    fingerprint_of,
    spread,
)
from penstock.source.limit import MAX_BLOCK_BYTES
from penstock.source.optional import need
from penstock.source.rows_in_files import default_threads
from penstock.system import file_versions

__all__ = ["ArrowSource", "ArrowTable", "CompressedArrow", "MappedArrow", "open_arrow", "open_huggingface", "open_table"]

SAMPLED_RECORDS = 16
"""What the fingerprint of a table looks at of a field of varying length, at the beginning, in the middle and at the end."""

SAMPLED_BYTES = 8 << 20
"""What the sample digest of a table looks at of a field of varying length, about."""

READ_IN_TURNS = 32
"""Its records are read in as many turns, each spread over all of the table."""

BLOCK_BYTES = 1 << 20


def open_arrow(
    what: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    fields: Fields | None = None,
    threads: int | None = None,
    max_block_bytes: int | str = MAX_BLOCK_BYTES,
) -> Source:
    """Arrow IPC files (.arrow, .feather), in the file or the stream format, one or many as one source.

    A list keeps its order, a pattern or a directory gives that of the name bytes. ``fields`` are the wanted columns, or a dict of
    new names and columns. Files that are not compressed are mapped; of others, record batches are decoded when they are touched.
    One that claims to be more than ``max_block_bytes`` is refused, unless it is stored in a 64th of its bytes or more.
    """
    need("pyarrow", "arrow")
    decoding = Decoding(default_threads(threads), CACHE_BYTES, byte_size("max_block_bytes", max_block_bytes))
    return _open_files(files_of(what, SUFFIXES), plain_fields(fields), decoding)


def open_table(table: Any, *, fields: Fields | None = None, threads: int | None = None) -> "ArrowTable":
    """A ``pyarrow.Table`` or ``RecordBatch`` as a source. It is not copied; a pickle of the source has the data in it."""
    pa = need("pyarrow", "arrow")
    whole = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    if not isinstance(whole, pa.Table):
        raise TypeError(f"expected a pyarrow.Table or RecordBatch, got {type(table).__name__}")
    return ArrowTable(whole, plain_fields(fields), default_threads(threads))


def open_huggingface(dataset: Any, *, fields: Fields | None = None, threads: int | None = None) -> Source:
    """A Hugging Face ``datasets.Dataset`` as a source, in the order it was shuffled or selected into.

    Features are taken as they are stored: an image is the fields ``image.bytes`` and ``image.path``. Formats and transforms of the
    data set do not apply. A pickle of the source has a pickle of the data set in it, which names its files.
    """
    if not hasattr(dataset, "_indices") or not hasattr(dataset, "data"):
        raise TypeError(f"expected a datasets.Dataset, got {type(dataset).__name__}: choose a split, and do not stream")
    source = _open_data(dataset.data, plain_fields(fields), default_threads(threads))
    if dataset._indices is None:
        return source
    return source.select(dataset._indices.table.column(0).to_numpy().astype(np.int64))


class ArrowSource(Source):
    """Columns whose records are read by native threads, straight from the buffers, wherever these lie."""

    def __init__(self, columns: Mapping[str, Column], memory: Memory, blocks: Blocks) -> None:
        for column in columns.values():
            column.seal()
            column.field = column.field.with_nullable(column.has_nulls)
        memory.seal()
        self._columns, self._memory, self._blocks = dict(columns), memory, blocks

    def __len__(self) -> int:
        return self._blocks.length

    @property
    def schema(self) -> Mapping[str, Field]:
        """The fields by name."""
        return {name: column.field for name, column in self._columns.items()}

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Of the data."""

    @property
    def blocks(self) -> Blocks:
        """The record batches of files; runs of about 1 MiB in memory."""
        return self._blocks

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        return {name: self._columns[name].read(ids, out) for name in fields}

    def close(self) -> None:
        """Let go of the data: nothing can be read any more."""
        self._memory.close()


class ArrowTable(ArrowSource):
    """A table in memory, or mapped by whoever made it. ``data`` is an object with the table that is pickled instead of it."""

    def __init__(self, table: Any, fields: Fields | None, threads: int, data: Any = None) -> None:
        self._table, self._fields, self._threads, self._data = table, fields, threads, data
        self._fingerprint: str | None = None
        with translated("the table"):
            table.validate()
            memory = BufferMemory(threads)
            columns: dict[str, Column] = {}
            for name, leaf in choose(table.schema, fields, "the table").items():
                columns[name] = make_column(name, leaf, memory, lambda record: f"the table: record {record}")
                for array in table.column(leaf.path[0]).chunks:
                    columns[name].add(array)
        row_bytes = table.nbytes // max(1, len(table))
        super().__init__(columns, memory, Blocks(len(table), max(1, BLOCK_BYTES // max(1, row_bytes))))

    @property
    def fingerprint(self) -> str:
        """Of types and samples of the records."""
        if self._fingerprint is None:
            parts = [(name, repr(field.with_nullable(False)), self._sample(name, field)) for name, field in self.schema.items()]
            self._fingerprint = fingerprint_of("arrow table", len(self), parts)
        return self._fingerprint

    def sample_digest(self, sampling: Sampling) -> str:
        """Of types and samples of the records."""
        share = sampling.shared(len(self.schema)).pages
        parts = [(name, repr(field.with_nullable(False)), self._digest(name, field, share)) for name, field in self.schema.items()]
        return fingerprint_of("arrow table", len(self), parts)

    def _digest(self, name: str, field: Field, pages: int) -> str:
        """Of runs of records of a page each, or of single records of varying length, until enough bytes of them were seen."""
        run = max(1, SAMPLE_BYTES // max(1, field.stride)) if field.is_fixed else 1
        starts = np.array(spread(-(-len(self) // run), pages), np.int64) * run
        digest, seen = hashlib.sha256(), 0
        for turn in range(READ_IN_TURNS):
            ids = (starts[turn::READ_IN_TURNS, None] + np.arange(run)).reshape(-1)
            content = _bytes_of(self._read(ids[ids < len(self)], [name], {})[name])
            digest.update(content)
            seen += len(content)
            if seen > SAMPLED_BYTES:
                break
        return digest.hexdigest()

    def _sample(self, name: str, field: Field) -> str:
        count = min(len(self), max(1, WHOLE_BYTES // max(1, field.stride)) if field.is_fixed else SAMPLED_RECORDS)
        starts = np.array([0, (len(self) - count) // 2, len(self) - count])
        column = self._read(np.unique(starts[:, None] + np.arange(count)), [name], {})[name]
        if isinstance(column, Ragged):
            parts = [column.values, column.offsets, *([] if column.present is None else [column.present])]
        else:
            parts = [np.ma.getdata(column), np.ma.getmaskarray(column)]
        return fingerprint_arrays("column", parts)

    def _recipe(self) -> Recipe:
        if self._data is not None:
            return (_open_data, (self._data, self._fields, self._threads))
        pa = need("pyarrow", "arrow")
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._table.schema) as writer:
            writer.write_table(self._table)
        return (_open_bytes, (sink.getvalue().to_pybytes(), self._fields, self._threads))


class MappedArrow(ArrowSource):
    """Files that are not compressed. Nothing is held open but by the native reader."""

    def __init__(self, paths: Sequence[str], fields: Fields | None, decoding: Decoding) -> None:
        self._paths, self._fields, self._decoding = list(paths), fields, decoding
        self._file_ends: list[int] = []
        memory = FileMemory(decoding.threads)
        columns: dict[str, Column] = {}
        first: dict[str, Leaf] = {}
        counts: list[int] = []
        num_records = 0
        nested: dict[str, str] = {}
        for path in paths:
            stream = is_stream(path)
            with translated(path), mapped_bytes(path) as whole:
                leaves = choose(read_schema(stream, whole), fields, path)
                first = first or leaves
                need_agreement(first, leaves, (paths[0], path), exact=True)
                nested = {name: ".".join(leaf.path) for name, leaf in leaves.items() if leaf.is_json}
                leaves = {name: leaf for name, leaf in leaves.items() if name not in nested}
                if not leaves or any(is_view(leaf.type) for leaf in leaves.values()):
                    raise NotInFileError
                columns = columns or {name: make_column(name, leaf, memory, self._describe) for name, leaf in leaves.items()}
                if is_compressed(stream, whole):
                    raise NotInFileError
                memory.add_file(path, whole)
                for batch in read_batches(stream, whole):
                    counts.append(batch.num_rows)
                    num_records += batch.num_rows
                    for name, leaf in leaves.items():
                        columns[name].add(batch.column(leaf.path[0]))
            self._file_ends.append(num_records)
        super().__init__(columns, memory, blocks_of(counts, paths[0]))
        self._names = list(first)
        self._nested = CompressedArrow(paths, nested, decoding) if nested else None  # which are not in the file as they are read

    @property
    def schema(self) -> Mapping[str, Field]:
        """The fields by name."""
        found = {**super().schema, **({} if self._nested is None else self._nested.schema)}
        return {name: found[name] for name in self._names}

    @property
    def reads_blocks(self) -> bool:
        """Record batches are decoded as a whole where fields are nested."""
        return self._nested is not None

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        if self._nested is None:
            return super()._read(ids, fields, out)
        found = self._nested._read(ids, [name for name in fields if name in self._nested.schema], {})
        found |= super()._read(ids, [name for name in fields if name not in found], out)
        return {name: found[name] for name in fields}

    def close(self) -> None:
        """Let go of the files."""
        super().close()
        if self._nested is not None:
            self._nested.close()

    def _describe(self, record: int) -> str:
        return f"{self._paths[bisect_right(self._file_ends, record)]}: record {record}"

    @property
    def fingerprint(self) -> str:
        """Of names, sizes and samples of the files."""
        return fingerprint_files("arrow", self._paths, self._fields)

    def file_versions(self) -> Hashable | None:
        """Of the files."""
        return file_versions(self._paths)

    def sample_digest(self, sampling: Sampling) -> str:
        """Of sizes and samples of the files."""
        return digest_files("arrow", self._paths, sampling, self._fields)

    def _recipe(self) -> Recipe:
        return (_open_files, (self._paths, self._fields, self._decoding))


class CompressedArrow(GroupSource):
    """Files that have to be decoded. A group is a record batch of a file, or a whole stream."""

    def __init__(self, paths: Sequence[str], fields: Fields | None, decoding: Decoding) -> None:
        self._paths, self._fields = list(paths), fields
        self._streams: dict[str, bool] = {}
        first: dict[str, Leaf] = {}
        nullable: set[str] = set()
        counts: list[tuple[str, list[int]]] = []
        for path in paths:
            stream = self._streams[path] = is_stream(path)
            with translated(path), mapped_bytes(path) as whole:
                leaves = choose(read_schema(stream, whole), fields, path)
                first = first or leaves
                need_agreement(first, leaves, (paths[0], path), exact=False)
                sizes = read_row_counts(stream, whole)
                nullable |= find_nulls(stream, whole, leaves)
                counts.append((path, [sum(sizes)] if stream else sizes))
        super().__init__(with_nullable(first, nullable), counts, decoding)

    @property
    def fingerprint(self) -> str:
        """Of names, sizes and samples of the files."""
        return fingerprint_files("arrow", self._paths, self._fields)

    def file_versions(self) -> Hashable | None:
        """Of the files."""
        return file_versions(self._paths)

    def sample_digest(self, sampling: Sampling) -> str:
        """Of sizes and samples of the files."""
        return digest_files("arrow", self._paths, sampling, self._fields)

    def _measure(self, group: Group, leaves: Sequence[Leaf]) -> tuple[int, int]:
        return measure_batches(group.path, None if self._streams[group.path] else group.number)

    def _decode(self, group: Group, leaf: Leaf) -> list[Any]:
        name = leaf.path[0]
        with need("pyarrow", "arrow").OSFile(group.path) as file:
            if self._streams[group.path]:
                found = [batch.column(name) for batch in read_batches(True, file, [name])]
            else:
                found = [read_batch(file, group.number, [name]).column(name)]
        for array in found if leaf.is_json else []:
            array.validate(full=True)  # Arrow itself reads it, and trusts it
        return found

    def _recipe(self) -> Recipe:
        return (_open_files, (self._paths, self._fields, self._decoding))


def _bytes_of(column: Any) -> bytes:
    """A column as bytes: values, lengths and what is missing."""
    if isinstance(column, Ragged):
        present = np.ones(len(column), np.bool_) if column.present is None else column.present
        shapes = b"" if column.shapes is None else column.shapes.tobytes()
        return b"".join([column.values.tobytes(), column.lengths.tobytes(), shapes, present.tobytes()])
    missing = np.ma.getmaskarray(column)
    plain = np.ma.getdata(column)
    return b"".join([np.where(missing, np.zeros((), plain.dtype), plain).tobytes(), missing.tobytes()])


def _open_files(paths: Sequence[str], fields: Fields | None, decoding: Decoding) -> Source:
    try:
        return MappedArrow(paths, fields, decoding)
    except NotInFileError:
        return CompressedArrow(paths, fields, decoding)


def _open_bytes(data: bytes, fields: Fields | None, threads: int) -> ArrowTable:
    return ArrowTable(need("pyarrow", "arrow").ipc.open_stream(data).read_all(), fields, threads)


def _open_data(data: Any, fields: Fields | None, threads: int) -> ArrowTable:
    return ArrowTable(data.table, fields, threads, data)
