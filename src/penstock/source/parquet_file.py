"""What one Parquet file says of itself: its footer, the fields and row groups, and where their bytes lie."""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import CorruptError, FormatError, SizeOverflowError, TruncatedError
from penstock.interfaces import IntArray
from penstock.source.arrow_file import translated
from penstock.source.arrow_type import Fields, Leaf, choose, may_be_null, with_nullable
from penstock.source.files import File, LocalFile
from penstock.source.optional import need
from penstock.source.parquet_page import ReadRange, Spread, spread_of
from penstock.source.range_file import RangeFile

__all__ = ["Plan", "make_plan", "read_extents", "read_footer", "read_head"]

MAGIC = b"PAR1"
TAIL_BYTES = 64 << 10
"""What Arrow reads of a file first: most footers are smaller, so of most objects it is the only request."""
WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT96": 12}
MOST_GROUP_RECORDS = 1 << 28
"""Arrow reserves memory for as many records as the footer says. Real row groups are far smaller."""


def read_footer(file: File) -> Any:
    """The footer of a file, checked as far as the number of records goes."""
    local = isinstance(file, LocalFile)
    tail = file.last(len(MAGIC) if local else TAIL_BYTES)
    size = file.size
    whole = tail.endswith(MAGIC) and size >= 2 * len(MAGIC)
    start = file.first(len(MAGIC)) if local or not whole else MAGIC
    if start != MAGIC:
        raise FormatError(f"{file}: expected a Parquet file beginning with {MAGIC!r}, found {start!r}")
    if not whole:
        raise TruncatedError(f"{file}: expected {MAGIC!r} at the end of a Parquet file, found {tail[-4:]!r}: it was cut")

    def read_range(low: int, high: int) -> bytes:
        begin = size - len(tail)
        return tail[low - begin : high - begin] if low >= begin else file.read(low, high)

    with translated(str(file)):
        footer = need("pyarrow.parquet", "arrow").read_metadata(str(file) if local else RangeFile(size, read_range))
        _check_counts(file, footer)
    return footer


def _check_counts(file: File, footer: Any) -> None:
    sizes = _row_counts(footer)
    if min(sizes, default=0) < 0 or sum(sizes) != footer.num_rows:
        raise CorruptError(f"{file}: expected row groups of {footer.num_rows} records together, found {str(sizes)[:100]}")
    if max(sizes, default=0) > MOST_GROUP_RECORDS:
        raise SizeOverflowError(
            f"{file}: expected row groups of at most {MOST_GROUP_RECORDS} records, found {max(sizes)}; write smaller ones"
        )


def _row_counts(footer: Any) -> list[int]:
    return [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]


def read_head(file: File, footer: Any, fields: Fields | None) -> tuple[dict[str, Leaf], list[int]]:
    """The fields of a file, and the records of its row groups."""
    with translated(str(file)):
        schema = footer.schema.to_arrow_schema()
        leaves = choose(schema, fields, str(file))
        open_ones = {name: leaf for name, leaf in leaves.items() if may_be_null(schema, leaf)}
        return with_nullable(leaves, _find_nulls(file, footer, open_ones)), _row_counts(footer)


def _find_nulls(file: File, footer: Any, leaves: Mapping[str, Leaf]) -> set[str]:
    """The fields with missing values, as the statistics of the file say, or of which they say nothing. A list of no elements counts
    as a null there, so that a field with such lists is taken for one with missing values.
    """
    groups = [number for number, rows in enumerate(_row_counts(footer)) if rows]
    paths = [footer.schema.column(number).path for number in range(footer.num_columns)]
    columns = {name: _columns_of(".".join(leaf.path), paths) for name, leaf in leaves.items()}
    if not groups or not columns:
        return set()
    _check_chunks(file, footer, groups, list(columns.values()))
    return {name for name, some in columns.items() if not some or any(_has_nulls(file, footer, g, c) for g in groups for c in some)}


def _has_nulls(file: File, footer: Any, group: int, column: int) -> bool:
    statistics = _chunk(f"{file}: group {group}", footer, group, column).statistics
    return statistics is None or not statistics.has_null_count or statistics.null_count != 0


def _chunk(where: str, footer: Any, group: int, column: int) -> Any:
    """What the footer says of a column of a row group. Statistics of another type would end the process (seen with pyarrow 26)."""
    chunk, expected = footer.row_group(group).column(column), footer.schema.column(column).physical_type
    if chunk.physical_type != expected:
        raise CorruptError(f"{where}: expected values of {expected} as in the schema, found {chunk.physical_type}")
    return chunk


def read_extents(file: File, footer: Any, leaves: Iterable[Leaf]) -> IntArray:
    """Where the bytes of every field begin and end in the file, for every row group with records: an array of [group, field, 2]."""
    paths = [footer.schema.column(number).path for number in range(footer.num_columns)]
    columns = [_columns_of(".".join(leaf.path), paths) for leaf in leaves]
    groups = [number for number, rows in enumerate(_row_counts(footer)) if rows]
    with translated(str(file)):
        _check_chunks(file, footer, groups, columns)
        rows = [footer.row_group(number) for number in groups]
        found = [[_span([_chunk_span(row.column(c)) for c in some]) for some in columns] for row in rows]
    extents: IntArray = np.array(found, np.int64).reshape(len(groups), len(columns), 2)
    if ((extents < 0) | (extents > file.size) | (extents[..., :1] > extents[..., 1:])).any():
        raise CorruptError(f"{file}: expected columns within the {file.size} bytes of the file, found others")
    return extents


@dataclass(frozen=True)
class Plan:
    """How a field of a row group is decoded: what its columns say they are."""

    num_bytes: int  # decoded, while texts in dictionaries stay there
    stored_bytes: int
    texts: Mapping[str, Spread]  # the columns of texts and byte strings, by their paths

    def as_dictionary(self, limit: int) -> list[str]:
        """The columns that stay dictionaries and numbers: spread out, they might be larger than the limit."""
        return [
            path for path, spread in self.texts.items() if spread.by_number and spread.num_values * spread.dictionary_bytes > limit
        ]

    def rows_at_once(self, limit: int) -> int:
        """How many records may be decoded without a look at how large they are. All of them, unless texts begin like others."""
        spreads = [spread for spread in self.texts.values() if spread.by_prefix]
        largest = max((spread.largest_page for spread in spreads), default=0)
        fits = all(spread.num_values * largest <= limit for spread in spreads)
        return MOST_GROUP_RECORDS if fits else max(1, limit // (16 * largest))


def make_plan(file: File, footer: Any, group: tuple[int, int], leaf: Leaf, read_range: ReadRange) -> Plan:
    """The plan for a field of a row group, given by its number and its records. Nothing is decoded."""
    number, rows = group
    columns = _columns_of(".".join(leaf.path), [footer.schema.column(one).path for one in range(footer.num_columns)])
    _check_chunks(file, footer, [number], [columns])
    num_bytes, stored, texts = 0, 0, dict[str, Spread]()
    for one in columns:
        column = footer.schema.column(one)
        where = f"{file}: group {number}, column {column.path!r}"
        chunk = _chunk(where, footer, number, one)
        if chunk.num_values < rows or (chunk.num_values > rows and column.max_repetition_level == 0):
            raise CorruptError(f"{where}: expected {rows} records, found {chunk.num_values} values")
        start, stop = _chunk_span(chunk)
        spread = spread_of(where, read_range, (start, min(stop, file.size)), chunk.num_values)
        num_bytes, stored = num_bytes + _decoded_bytes(column, spread), stored + stop - start
        if column.physical_type == "BYTE_ARRAY":
            texts[column.path] = spread
    return Plan(num_bytes, min(stored, file.size), texts)


def _decoded_bytes(column: Any, spread: Spread) -> int:
    """Values, and with them the levels that say which are null and where lists begin; and the pages they are decoded from."""
    width: int = WIDTHS.get(column.physical_type, 8) if column.length <= 0 else column.length
    width += 2 * (column.max_definition_level > 0) + 6 * (column.max_repetition_level > 0)
    texts = spread.page_bytes if column.physical_type == "BYTE_ARRAY" else 0
    return spread.num_values * width + texts + spread.largest_page + spread.dictionary_bytes


class _AskedError(Exception):
    """Arrow wants to read."""


def _check_chunks(file: File, footer: Any, groups: list[int], columns: list[list[int]]) -> None:
    """An error if one of those columns is described wrongly.

    To look at such a description from Python ends the process (seen with pyarrow 26). Arrow checks them all, safely, before it
    reads the first byte, and the first byte is as far as it gets here.
    """

    def read_range(low: int, high: int) -> bytes:
        raise _AskedError

    if not groups:
        return
    opened, wanted = need("pyarrow.parquet", "arrow").ParquetFile, sorted({c for some in columns for c in some})
    # The reader has no name here: it keeps the exception, that keeps this frame, and the frame must not keep the reader.
    with contextlib.suppress(_AskedError):
        opened(RangeFile(file.size, read_range), metadata=footer, pre_buffer=True).reader.read_row_groups(
            groups, column_indices=wanted, use_threads=False
        )


def _columns_of(name: str, paths: list[str]) -> list[int]:
    """The numbers of the columns that Arrow reads for a name: a list or struct has columns of its own below it."""
    return [number for number, path in enumerate(paths) if path == name or path.startswith(f"{name}.")]


def _chunk_span(chunk: Any) -> tuple[int, int]:
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
        start = chunk.dictionary_page_offset
    return start, start + chunk.total_compressed_size


def _span(spans: list[tuple[int, int]]) -> tuple[int, int]:
    return min(start for start, _ in spans), max(stop for _, stop in spans)
