"""Writing row shards: exact bytes, values checked, all files or none."""

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import byte_size, whole_number
from penstock.progress import Progress
from penstock.records import Source
from penstock.source.publish import NewFile, Staging, refuse_existing
from penstock.source.rows import BATCH_BYTES, FLOAT32, HEADER, MAGIC, STORED, SUFFIX
from penstock.system import is_file as is_regular
from penstock.system import names_in, status

__all__ = ["encode_rows", "write_rows"]

Rows = npt.NDArray[Any]

MOST_SHARDS = 10**6
"""As many as six digits can number."""


def write_rows(
    rows: Rows | Source | Iterable[Rows],
    path: str | os.PathLike[str],
    *,
    max_shard_rows: int | None = None,
    max_shard_bytes: int | str | None = None,
    overwrite: bool = False,
    allow_overflow: bool = False,
    progress: Progress | None = None,
) -> list[Path]:
    """Write rows as float32 and return the files: one if ``path`` ends in .shard, otherwise a directory of shard-000000.shard, ...

    ``rows`` is an array with a row per record, a source (its one float field of one dimension; other fields are left out) or an
    iterable of arrays, pieces of the whole. float64 is rounded; a value that would become infinite raises ValueError unless
    ``allow_overflow``. Other types must fit exactly. The files appear under their names when all is written and durable; if
    anything fails there are none. ``overwrite`` replaces a file, or a directory of nothing but shards, in one step.
    """
    target = Path(path).absolute()
    is_file = target.suffix == SUFFIX
    most_rows = None if max_shard_rows is None else whole_number("max_shard_rows", max_shard_rows, least=1)
    most_bytes = None if max_shard_bytes is None else byte_size("max_shard_bytes", max_shard_bytes)
    if is_file and (most_rows or most_bytes):
        raise ValueError(f"{target}: several shards need a directory, so path must not end in {SUFFIX}")
    _check_target(target, is_file, overwrite)
    with Staging(target) as staging:
        shards = _Shards(staging, most_rows, most_bytes, target.name if is_file else None)
        for piece in _checked_pieces(rows, allow_overflow):
            shards.add(piece)
            if progress is not None:
                progress(len(piece), piece.nbytes)
        names = shards.finish()
        if is_file:
            staging.publish([target], overwrite=overwrite)
        else:
            staging.publish_directory(overwrite=overwrite)
    return [target] if is_file else [target / name for name in names]


def encode_rows(rows: npt.ArrayLike, *, allow_overflow: bool = False) -> bytes:
    """The bytes of one shard."""
    payload = np.concatenate(list(_checked_pieces(np.asarray(rows), allow_overflow)))
    return _header(*payload.shape) + payload.tobytes()


def _header(rows: int, width: int) -> bytes:
    return HEADER.pack(MAGIC, rows, width, FLOAT32, 0)


def _check_target(target: Path, is_file: bool, overwrite: bool) -> None:
    """FileExistsError unless there is nothing in the way, or something that may be replaced."""
    if not overwrite:
        refuse_existing(target, "choose another name, or give overwrite=True")
    elif is_file and not is_regular(target):
        refuse_existing(target, f"expected a {SUFFIX} file to replace")
    elif not is_file and not _is_of_shards(target):
        refuse_existing(target, f"expected a directory of nothing but {SUFFIX} files to replace")


def _is_of_shards(target: Path) -> bool:
    """Whether this is a directory, and no link to one, of nothing but shards."""
    found = status(target, follow=False)
    is_directory = found is not None and stat.S_ISDIR(found.st_mode)
    return is_directory and all(name.endswith(SUFFIX) for name in names_in(target))


class _Shards:
    """The shards under way: the header of each is written last, when the number of its rows is known."""

    def __init__(self, staging: Staging, most_rows: int | None, most_bytes: int | None, name: str | None) -> None:
        self._staging, self._most_rows, self._most_bytes, self._name = staging, most_rows, most_bytes, name
        self._names: list[str] = []
        self._file: NewFile | None = None
        self._rows = self._width = 0

    def add(self, piece: Rows) -> None:
        """Write rows, in as many shards as they need."""
        self._width = piece.shape[1]
        limit = self._limit()
        while len(piece) > 0:
            file = self._file or self._begin()
            part = piece[: limit - self._rows]
            file.write(part)
            self._rows += len(part)
            piece = piece[len(part) :]
            if self._rows == limit:
                self._end(file)

    def finish(self) -> list[str]:
        """End the last shard; returns the names of all. No rows at all are one shard of none."""
        if self._file is not None or not self._names:
            self._end(self._file or self._begin())
        return self._names

    def _limit(self) -> int:
        limit = self._most_rows or 2**63
        if self._most_bytes is None:
            return limit
        fitting = (self._most_bytes - HEADER.size) // (self._width * STORED.itemsize)
        if fitting < 1:
            raise ValueError(f"max_shard_bytes must have room for a row of {self._width} values, got {self._most_bytes}")
        return min(limit, fitting)

    def _begin(self) -> NewFile:
        if len(self._names) == MOST_SHARDS:
            raise ValueError(f"expected at most {MOST_SHARDS} shards; let a shard have more rows")
        self._names.append(self._name or f"shard-{len(self._names):06d}{SUFFIX}")
        self._file = self._staging.new_file(self._names[-1])
        self._file.write(bytes(HEADER.size))
        return self._file

    def _end(self, file: NewFile) -> None:
        file.write_at(0, _header(self._rows, self._width))
        file.finish()
        self._file, self._rows = None, 0


def _checked_pieces(rows: Rows | Source | Iterable[Rows], allow_overflow: bool) -> Iterator[Rows]:
    """The rows as they are stored, in pieces of a few megabytes."""
    first = width = 0
    for piece in _pieces(rows):
        if not isinstance(piece, np.ndarray) or isinstance(piece, np.ma.MaskedArray) or piece.ndim != 2 or piece.shape[1] == 0:
            shape = f"{piece.dtype} {piece.shape}" if isinstance(piece, np.ndarray) else ""
            raise ValueError(f"from row {first} on: expected a plain array of (rows, values), got {type(piece).__name__} {shape}")
        width = width or piece.shape[1]
        if piece.shape[1] != width:
            raise ValueError(f"from row {first} on: expected rows of {width} values as before, got {piece.shape[1]}")
        step = max(1, BATCH_BYTES // (width * STORED.itemsize))
        for low in range(0, max(1, len(piece)), step):
            yield _as_stored(piece[low : low + step], first + low, allow_overflow)
        first += len(piece)
    if width == 0:
        raise ValueError("expected at least one array, which gives the width of the rows, got none")


def _pieces(rows: Rows | Source | Iterable[Rows]) -> Iterable[Rows]:
    if isinstance(rows, np.ndarray):
        return [rows]
    return _pieces_of_source(rows) if isinstance(rows, Source) else rows


def _pieces_of_source(source: Source) -> Iterator[Rows]:
    fitting = [n for n, f in source.schema.items() if f.is_fixed and f.ndim == 1 and "float" in f.dtype.name]
    if len(fitting) != 1:
        raise ValueError(f"expected a source with one float field of one dimension, got {len(fitting)} in {dict(source.schema)}")
    width = source.schema[fitting[0]].shape[0]
    step = max(1, BATCH_BYTES // max(1, source.schema[fitting[0]].stride))
    for low in range(0, len(source), step):
        yield source.read(np.arange(low, min(low + step, len(source))), fitting)[fitting[0]]
    if len(source) == 0:
        yield np.empty((0, width), STORED)


def _as_stored(rows: Rows, first: int, allow_overflow: bool) -> Rows:
    """Rows as float32; ValueError with the id of the first row in which a value changes more than by rounding."""
    if np.can_cast(rows.dtype, STORED):
        return np.ascontiguousarray(rows, STORED)
    if rows.dtype.kind not in "fiu":
        raise TypeError(f"from row {first} on: expected float rows, got {rows.dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        stored = np.ascontiguousarray(rows, STORED)
        if rows.dtype.kind == "f":
            changed = np.isinf(stored)
            if changed.any():
                changed &= np.isfinite(rows)
        else:  # the largest whole numbers are rounded up, out of the range of their type
            changed = (stored >= float(np.iinfo(rows.dtype).max)) | (stored.astype(rows.dtype) != rows)
    if changed.any() and not (allow_overflow and rows.dtype.kind == "f"):
        row, column = np.argwhere(changed)[0]
        raise ValueError(f"row {first + row}: {rows[row, column]} of {rows.dtype} does not fit float32; {_remedy(rows.dtype)}")
    return stored


def _remedy(dtype: np.dtype[Any]) -> str:
    return "give allow_overflow=True to make it infinite" if dtype.kind == "f" else "convert the rows to floats to round it"
