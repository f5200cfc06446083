"""Token blocks: files of elements of one type cut into blocks, read as blocks or as one long line of tokens."""

import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import check_positions, whole_number
from penstock.errors import MissingError, NoMatchError
from penstock.interfaces import IntArray
from penstock.ragged import Ragged
from penstock.records import Batch, DiskRange, Outputs, Recipe, Sampling, empty, fixed_output
from penstock.remote.url import UrlPath
from penstock.remote.window import RemoteOptions
from penstock.schema import MAX_RECORD_BYTES, Field
from penstock.source.files import File, Files, LocalFile, Names, RemoteFile, find_files
from penstock.source.paths import has_pattern
from penstock.source.rows_in_files import FileRows, RowSource, default_threads, reader_of_files, use_pread
from penstock.source.token_file import SUFFIX, BlockRuns, TokenFile, numbered_objects, numbered_shards, read_footers
from penstock.store.column import make_column
from penstock.store.format import as_location
from penstock.system import is_there

__all__ = ["TokenBlocks", "as_elements", "open_tokens"]

SCAN_BYTES = 8 << 20
"""So many bytes are searched for separators at a time."""


def open_tokens(
    what: Names,
    *,
    field: str = "tokens",
    threads: int | None = None,
    io: str = "auto",
    remote: RemoteOptions | None = None,
) -> "TokenBlocks":
    """One .rox file, or many as one source: a list keeps its order, a pattern or a directory gives that of the name bytes.

    A name that is no file is a prefix: ``x`` and ``x.rox`` stand for the shards ``x_<number>.rox``, in the order of their numbers.
    ``remote`` says how files at URLs are read.
    """
    files, options = what if isinstance(what, Files) else Files(_find(what)), (field, default_threads(threads), io, remote)
    try:
        return TokenBlocks(files, *options)
    except MissingError:
        # That a URL is no object shows when it is read. Then it may still be the prefix of some.
        found = numbered_objects(files[0].path) if files.is_remote and len(files) == 1 else []
        if not found:
            raise
        return TokenBlocks(Files(found), *options)


class TokenBlocks(RowSource):
    """The blocks of .rox files, one file after the other, as one field; all of one size, or ragged if some block is shorter.

    Together the blocks are one line of tokens, which :meth:`read_tokens` reads wherever blocks and shards end.
    """

    def __init__(self, files: Files, field: str, threads: int, io: str, remote: RemoteOptions | None) -> None:
        self._name, self._options = field, (threads, io, remote)
        footers, self._runs = files.once("tokens", lambda: _look(files))
        self._stored = footers[0].dtype
        self._num_tokens = sum(footer.data_bytes for footer in footers) // self._stored.itemsize
        is_even = len(self._runs.sizes) == 1 and self.block_size * self._stored.itemsize <= MAX_RECORD_BYTES
        self._field = Field(self._stored, (self.block_size,)) if is_even else Field.ragged(self._stored)
        parts = [FileRows.of(f.file, f.size, 0, f.data_bytes // self._stored.itemsize, f.version) for f in footers]
        pread = use_pread(io, files.local)
        elements = reader_of_files(parts, self._stored.itemsize, pread=pread, threads=threads, remote=remote)
        super().__init__(files, [footer.blocks for footer in footers], self.block_size * self._stored.itemsize, elements)

    @property
    def schema(self) -> Mapping[str, Field]:
        """The one field."""
        return {self._name: self._field}

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type, in the byte order of the machine."""
        return self._field.dtype

    @property
    def num_tokens(self) -> int:
        """Elements in all blocks."""
        return self._num_tokens

    @property
    def block_size(self) -> int:
        """Elements of the largest block."""
        return int(self._runs.sizes.max(initial=0))

    @property
    def fingerprint(self) -> str:
        """Of names, sizes and samples of the files."""
        return self._files.fingerprint("tokens", self._name)

    def file_versions(self) -> Hashable | None:
        """Of the files."""
        return self._files.file_versions()

    def sample_digest(self, sampling: Sampling) -> str | None:
        """Of sizes and samples of the files."""
        return self._files.sample_digest(sampling, "tokens", self._name)

    def byte_ranges(self, ids: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Where blocks lie in the files."""
        return self.span_ranges(*self._runs.locate(ids))

    def disk_ranges(self, ids: range) -> Sequence[DiskRange]:
        """Where blocks, which lie one after the other, lie in files of this machine."""
        if not ids:
            return []
        starts, counts = self._runs.locate(np.array([ids.start, ids.stop - 1]))
        return self.disk_spans(range(int(starts[0]), int(starts[1] + counts[1])))

    def has_documents(self, field: str) -> bool:
        """Blocks are pieces of one line of tokens."""
        return False

    def token_ranges(self, ids: IntArray) -> tuple[IntArray, IntArray]:
        """Where on the line of all tokens blocks begin, and how many tokens they have."""
        return self._runs.locate(ids)

    def disk_spans(self, tokens: range) -> Sequence[DiskRange]:
        """Where tokens lie in files of this machine."""
        return self._rows.disk_ranges(tokens)

    def span_ranges(self, starts: IntArray, counts: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Where tokens [start, start + count) lie in the files of a remote source: file, start and stop."""
        return self._rows.byte_ranges(starts, starts + counts)

    def steps_per_epoch(self, batch_size: int, seq_len: int) -> int:
        """Full batches of ``batch_size`` sequences of ``seq_len`` tokens."""
        return self._num_tokens // (whole_number("batch_size", batch_size, least=1) * whole_number("seq_len", seq_len, least=1))

    def read_tokens(self, starts: npt.ArrayLike, length: int, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """For each start the ``length`` tokens from there on, as the rows of one array. Runs may cross blocks and shards."""
        run = whole_number("length", length)
        places = check_positions("starts", starts, max(0, self._num_tokens - run + 1))
        array = fixed_output("tokens", Field(self.dtype, (run,)), places.size, {} if out is None else {"tokens": out})
        self._rows.read(places, array, run)
        return self._native(array)

    def read_spans(self, starts: IntArray, offsets: IntArray, out: npt.NDArray[Any]) -> None:
        """Fill ``out`` with tokens [start, start + offsets[i + 1] - offsets[i]) of every start, one after the other."""
        self._rows.read_spans(starts, offsets, out)
        self._native(out)

    def native_tokens(self) -> tuple[Any, int] | None:
        """The native reader of single tokens, as :meth:`native_reader` gives those of blocks."""
        return self._rows.native() if self._stored.isnative else None

    def documents(self, separator: object) -> IntArray:
        """The token positions (start, stop) of every document, a row each, without the separator that ends it.

        ``separator`` is an element, or a sequence of them. Empty documents count; tokens behind the last separator are a document.
        """
        wanted = self._bits(as_elements("separator", separator, self.dtype))
        if wanted.size == 0:
            raise ValueError("separator must have at least one element, got none")
        found = _apart(np.concatenate([np.empty(0, np.int64), *self._matches(wanted)]), wanted.size)
        starts, stops = np.concatenate([[0], found + wanted.size]), np.concatenate([found, [self._num_tokens]])
        ranges = np.stack([starts, stops], axis=1)
        return ranges[:-1] if starts[-1] == self._num_tokens else ranges

    def _matches(self, wanted: npt.NDArray[Any]) -> Iterator[IntArray]:
        """Where the separator is, overlapping or not, piece by piece; pieces overlap so that none is missed between them."""
        step = SCAN_BYTES // self.dtype.itemsize
        for low in range(0, self._num_tokens - wanted.size + 1, step):
            piece = self._bits(self.read_tokens([low], min(step + wanted.size - 1, self._num_tokens - low))[0])
            places = np.flatnonzero(piece[: piece.size - wanted.size + 1] == wanted[0])
            for number in range(1, wanted.size):
                places = places[piece[places + number] == wanted[number]]
            yield places + low

    def _bits(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Elements as whole numbers, which are equal if the bits are: NaN is itself, and zero is not minus zero."""
        return array.view(f"u{self.dtype.itemsize}")

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        if not fields:
            return {}
        if not self._field.is_fixed:
            return {self._name: self._read_ragged(*self._runs.locate(ids))}
        array = fixed_output(self._name, self._field, ids.size, out)
        self._rows.read(ids * self.block_size, array, self.block_size)
        return {self._name: self._native(array)}

    def _read_ragged(self, starts: IntArray, lengths: IntArray) -> Ragged:
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        values = empty((int(offsets[-1]),), self.dtype)
        self._rows.read_spans(starts, offsets, values)
        return Ragged(self._native(values), offsets)

    def _native(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Elements in the byte order of the machine, in place."""
        return array if self._stored.isnative else array.byteswap(inplace=True)

    def _recipe(self) -> Recipe:
        return (TokenBlocks, (self._files, self._name, *self._options))


def as_elements(name: str, value: object, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Elements of a type: a number, a sequence of numbers, or for uint8 a text or byte string. ValueError if one does not fit."""
    if isinstance(value, str | bytes | bytearray):
        if dtype != np.uint8:
            raise TypeError(f"{name}: expected elements of {dtype}, got a {type(value).__name__}")
        return np.frombuffer(value.encode() if isinstance(value, str) else value, np.uint8)
    try:
        array = np.atleast_1d(np.asarray(value))
        if array.dtype == dtype and array.ndim == 1 and not isinstance(value, np.ma.MaskedArray):
            return array
        if array.ndim != 1 or isinstance(value, np.ma.MaskedArray):
            raise TypeError(f"expected plain elements in one dimension, got {type(value).__name__} of shape {array.shape}")
        if array.dtype.hasobject and all(isinstance(item, int) for item in array):
            raise ValueError(f"whole numbers do not fit {dtype}: for example {max(array, key=abs)}")
        if array.dtype.kind in "iu" and dtype.kind in "iu" and _is_within(array, dtype):
            return array.astype(dtype)
        field = Field(dtype)
        return make_column("tokens", field, array).values.view(field.dtype).astype(dtype, copy=False)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from error


def _is_within(numbers: npt.NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Whether whole numbers are in the range of a type; a quick look, because tokenizers give int64."""
    limit = np.iinfo(dtype)
    return numbers.size == 0 or (int(numbers.min()) >= limit.min and int(numbers.max()) <= limit.max)


def _look(files: Files) -> tuple[list[TokenFile], BlockRuns]:
    """The footers, and the blocks of all files."""
    footers = read_footers(files)
    return footers, BlockRuns.of(footers)


def _find(what: Names) -> Iterator[File]:
    """The files that names stand for, those that begin the names of shards among them."""
    if not isinstance(what, str | os.PathLike | UrlPath | LocalFile | RemoteFile):
        for one in what:
            yield from _find(one)
        return
    place = what if isinstance(what, LocalFile | RemoteFile) else as_location(what)
    if isinstance(place, UrlPath) and place.suffix != SUFFIX and not has_pattern(place.key):
        yield from _find_objects(place)
    elif isinstance(place, Path) and not is_there(place) and not has_pattern(str(place)):
        found = numbered_shards(place.absolute())
        if not found:
            raise NoMatchError(_no_shards(place.absolute()))
        yield from (LocalFile(shard) for _, shard in found)
    else:
        yield from find_files(place, (SUFFIX,))


def _find_objects(place: UrlPath) -> Iterator[File]:
    try:
        yield from find_files(place, (SUFFIX,))
    except NoMatchError as error:
        found = numbered_objects(place)
        if not found:
            raise NoMatchError(_no_shards(place)) from error
        yield from found


def _no_shards(place: Path | UrlPath) -> str:
    shards = f"{place.name.removesuffix(SUFFIX)}_<number>{SUFFIX}"
    return f"{place}: there is no such file, and there are no shards {shards}"


def _apart(places: IntArray, width: int) -> IntArray:
    """Of the matches those that do not begin inside the one before, from left to right."""
    if np.all(np.diff(places) >= width):
        return places
    kept, free = [], 0
    for place in places.tolist():
        if place >= free:
            kept.append(place)
            free = place + width
    return np.array(kept, np.int64)
