"""Parquet files: row groups are decoded when they are touched, and kept for a while."""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from penstock.argument import whole_number
from penstock.errors import CorruptError, FormatError, SizeOverflowError, TruncatedError
from penstock.records import Recipe
from penstock.source.arrow_file import files_of, translated
from penstock.source.arrow_group import CACHE_BYTES, Group, GroupSource, Recent
from penstock.source.arrow_type import Fields, Leaf, choose, need_agreement, plain_fields
from penstock.source.fingerprint import fingerprint_files
from penstock.source.optional import need
from penstock.source.paths import file_size
from penstock.source.rows_in_files import default_threads

__all__ = ["ParquetSource", "open_parquet"]

SUFFIXES = (".parquet",)
MAGIC = b"PAR1"
FOOTER_BYTES = 64 << 20
MOST_GROUP_RECORDS = 1 << 28
"""Arrow reserves memory for as many records as the footer says. Real row groups are far smaller."""


def open_parquet(
    what: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    fields: Fields | None = None,
    threads: int | None = None,
    cache_bytes: int = CACHE_BYTES,
) -> "ParquetSource":
    """Parquet files, one or many as one source: a list keeps its order, a pattern or a directory gives that of the name bytes.

    ``fields`` are the wanted columns, or a dict of new names and columns. Decoded row groups are kept up to ``cache_bytes``, the
    latest one in any case.
    """
    need("pyarrow", "arrow")
    return ParquetSource(
        files_of(what, SUFFIXES), plain_fields(fields), default_threads(threads), whole_number("cache_bytes", cache_bytes)
    )


class ParquetSource(GroupSource):
    """The rows of Parquet files, one file after the other. No file is held open."""

    def __init__(self, paths: Sequence[str], fields: Fields | None, threads: int, cache_bytes: int) -> None:
        self._paths, self._fields, self._cache_bytes = list(paths), fields, cache_bytes
        self._footers = Recent(FOOTER_BYTES)
        with ThreadPoolExecutor(threads) as pool:
            heads = list(pool.map(partial(_head, fields=fields), paths))
        for path, (leaves, _) in zip(paths, heads, strict=True):
            need_agreement(heads[0][0], leaves, (paths[0], path), exact=False)
        super().__init__(heads[0][0], [(path, sizes) for path, (_, sizes) in zip(paths, heads, strict=True)], threads, cache_bytes)

    @property
    def fingerprint(self) -> str:
        """Of names, sizes and samples of the files."""
        return fingerprint_files("parquet", self._paths, self._fields)

    def _decode(self, group: Group, leaf: Leaf) -> list[Any]:
        parquet = need("pyarrow.parquet", "arrow")
        metadata = self._footers.get((group.path, None), lambda: _metadata(group.path))
        with parquet.ParquetFile(group.path, metadata=metadata, page_checksum_verification=True) as file:
            table = file.read_row_group(group.number, [".".join(leaf.path)], use_threads=False)
        table.validate()
        return list(table.column(leaf.path[0]).chunks)

    def _recipe(self) -> Recipe:
        return (ParquetSource, (self._paths, self._fields, self._threads, self._cache_bytes))


def _head(path: str, fields: Fields | None) -> tuple[dict[str, Leaf], list[int]]:
    """The fields of a file, and the records of its row groups."""
    size = file_size(Path(path))
    with open(path, "rb") as file:
        start = file.read(4)
        file.seek(max(0, size - 4))
        end = file.read(4)
    if start != MAGIC:
        raise FormatError(f"{path}: expected a Parquet file beginning with {MAGIC!r}, found {start!r}")
    if end != MAGIC or size < 2 * len(MAGIC):
        raise TruncatedError(f"{path}: expected {MAGIC!r} at the end of a Parquet file, found {end!r}: it was cut")
    with translated(path):
        metadata, _ = _metadata(path)
        sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        if min(sizes, default=0) < 0 or sum(sizes) != metadata.num_rows:
            raise CorruptError(f"{path}: expected row groups of {metadata.num_rows} records together, found {str(sizes)[:100]}")
        if max(sizes, default=0) > MOST_GROUP_RECORDS:
            raise SizeOverflowError(
                f"{path}: expected row groups of at most {MOST_GROUP_RECORDS} records, found {max(sizes)}; write smaller ones"
            )
        return choose(metadata.schema.to_arrow_schema(), fields, path), sizes


def _metadata(path: str) -> tuple[Any, int]:
    """The footer of a file, and about what it takes in memory, which is more than in the file."""
    metadata = need("pyarrow.parquet", "arrow").read_metadata(path)
    return metadata, 10 * metadata.serialized_size
