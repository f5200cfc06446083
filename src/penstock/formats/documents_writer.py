"""Documents as token files of other tools: Megatron's, datatrove's, OLMo's and nanoGPT's. Their readers have the formats."""

import gzip
import os
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.formats.flat_tokens import TABLE
from penstock.formats.megatron import BIN, CODES, HEADER, IDX, LENGTH, MAGIC, POINTER
from penstock.formats.publish import NewFile, Staging, refuse_existing
from penstock.formats.tokens_writer import Document, DocumentEncoder, some_documents
from penstock.progress import Progress

__all__ = ["SUFFIXES", "check_dtype", "files_of", "write_documents"]

FLUSH_BYTES = 4 << 20
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
    if isinstance(documents, str | bytes | bytearray):
        raise TypeError(f"expected documents, got one {type(documents).__name__}: write [document]")
    target = Path(path).absolute()
    if target.suffix not in _FORMATS:
        raise ValueError(f"path must end in {', '.join(SUFFIXES)}, got {target}")
    layout = _FORMATS[target.suffix]
    data, table = layout.data(target), layout.table(target)
    for one in files_of(target):
        refuse_existing(one, "choose another name")
    rest = some_documents(documents)
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
        raise ValueError(f"{target}: tokens of {dtype} have no place there: give dtype=, one of {', '.join(sorted(dtypes))}")


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
