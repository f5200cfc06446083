"""Token blocks (.rox): the format and the source.

::

    file   = data index footer
    data   = elements, block after block
    index  = for every block the byte behind its last one, i64
    footer = blocks i64 | bytes of data i64 | name of the element type, 8 bytes, NUL-padded | "ROXXEL02"      32 bytes

All numbers are little-endian; the elements are as their type says. ``docs/reference/foreign-formats.md`` has an example.
"""

import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, check_positions, whole_number
from penstock.batch import Batch, Outputs, Ragged, empty, fixed_output
from penstock.errors import (
    EmptySourceError,
    FormatError,
    MissingError,
    NoMatchError,
    SchemaMismatchError,
    SizeOverflowError,
    TrailingBytesError,
    TruncatedError,
    UnsupportedTypeError,
)
from penstock.formats.files import File, Files, LocalFile, Names, RemoteFile, children, find_files, has_pattern
from penstock.formats.rows_in_files import (
    BLOCK_BYTES,
    FileRows,
    Rows,
    RowSource,
    Version,
    default_threads,
    reader_of_files,
    use_pread,
    version_of,
)
from penstock.process import map_at_once
from penstock.records import NOWHERE, Blocks, Extents, Recipe
from penstock.remote.url import UrlPath
from penstock.remote.window import RemoteFiles, RemoteOptions
from penstock.schema import MAX_RECORD_BYTES, Field
from penstock.store.column import make_column
from penstock.store.storage import as_location
from penstock.system import is_directory, is_there, names_in

__all__ = [
    "DTYPES",
    "END",
    "FOOTER",
    "SUFFIX",
    "BlockRuns",
    "TokenBlocks",
    "TokenFile",
    "as_elements",
    "encode_footer",
    "numbered_objects",
    "numbered_shards",
    "open_tokens",
    "read_footers",
]

MAGIC = b"ROXXEL02"
FOOTER = struct.Struct("<qq8s8s")
END = np.dtype("<i8")
SUFFIX = ".rox"

_PLAIN = ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float16", "float32", "float64")
_ORDERED = (order + kind + size for order in "<>" for kind in "iuf" for size in "248")
DTYPES = frozenset((*_PLAIN, *_ORDERED, "bfloat16"))
"""The names of element types that a file may have; anything else is refused."""

INDEX_PIECE = 1 << 20
"""Ends of blocks read at a time."""


def numbered_shards(prefix: Path) -> list[tuple[int, Path]]:
    """The files ``<prefix>_<number>.rox`` and their numbers, in that order; a prefix may end in .rox."""
    pattern = _numbered(prefix.name)
    names = names_in(prefix.parent) if is_directory(prefix.parent) else []
    found = ((int(match[1]), prefix.with_name(name)) for name in names if (match := pattern.fullmatch(name)))
    return sorted(found, key=lambda one: (one[0], os.fsencode(one[1])))


def numbered_objects(prefix: UrlPath) -> list[RemoteFile]:
    """The same at a URL, without the numbers."""
    pattern = _numbered(prefix.name)
    found = ((match, path, info) for path, info in children(prefix.parent) if (match := pattern.fullmatch(path.name)))
    return [RemoteFile(path, info) for _, path, info in sorted(found, key=lambda one: (int(one[0][1]), one[1].name.encode()))]


def _numbered(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name.removesuffix(SUFFIX)) + r"_([0-9]+)\.rox")


def encode_footer(blocks: int, data_bytes: int, dtype: np.dtype[Any]) -> bytes:
    """The footer of a file."""
    return FOOTER.pack(blocks, data_bytes, str(dtype).encode(), MAGIC)


@dataclass(frozen=True)
class TokenFile:
    """What the footer of a file says, checked against its size."""

    file: File
    size: int
    blocks: int
    data_bytes: int
    dtype: np.dtype[Any]
    version: Version | None


def _read_footer(path: File) -> TokenFile:
    version, footer = version_of(path), path.last(FOOTER.size)
    size = path.size
    if size < FOOTER.size:
        raise TruncatedError(f"{path}: expected a footer of {FOOTER.size} bytes, found a file of {size}")
    if len(footer) < FOOTER.size:
        raise TruncatedError(f"{path}: expected {size} bytes, the file was cut while it was read")
    blocks, data_bytes, name, magic = FOOTER.unpack(footer)
    if magic != MAGIC:
        raise FormatError(f"{path}: expected {MAGIC!r} at the end of {size} bytes, found {magic!r}; not token blocks, or cut off")
    if blocks < 0 or data_bytes < 0:
        raise FormatError(f"{path}: expected counts of blocks and bytes in the footer, found {blocks} and {data_bytes}")
    whole = data_bytes + blocks * END.itemsize + FOOTER.size
    if whole >= 2**63:
        raise SizeOverflowError(f"{path}: {blocks} blocks and {data_bytes} bytes of data are beyond what a file can have")
    if size != whole:
        kind = TruncatedError if size < whole else TrailingBytesError
        raise kind(f"{path}: expected {whole} bytes for {blocks} blocks and {data_bytes} bytes of data, found {size}")
    return TokenFile(path, size, blocks, data_bytes, _dtype(path, name), version)


def _dtype(path: File, raw: bytes) -> np.dtype[Any]:
    name = raw.rstrip(b"\0").decode("ascii", "replace")
    if name not in DTYPES:
        raise UnsupportedTypeError(f"{path}: expected an element type such as uint16 or float32, found {raw!r}")
    return Field("bf16").dtype if name == "bfloat16" else np.dtype(name)


def read_footers(files: Files) -> list[TokenFile]:
    """The footers of files that must fit together."""
    if not files:
        raise EmptySourceError(f"expected at least one {SUFFIX} file, got an empty list")
    footers = files.each(_read_footer)
    for footer in footers:
        if footer.dtype != footers[0].dtype:
            raise SchemaMismatchError(f"{footer.file}: expected {footers[0].dtype} elements as in {files[0]}, found {footer.dtype}")
    return footers


@dataclass(frozen=True, eq=False)
class BlockRuns:
    """The blocks of all files as runs of one size: run i begins with block ``ids[i]``, at token ``starts[i]``.

    Files have one or two runs each, so this is small where a table of all blocks would not be.
    """

    ids: IntArray
    starts: IntArray
    sizes: IntArray

    @classmethod
    def of(cls, files: Sequence[TokenFile]) -> "BlockRuns":
        """Of the indices of files, checked."""
        none = np.empty(0, np.int64)
        are_remote = any(isinstance(file.file, RemoteFile) for file in files)
        parts = [part for runs in map_at_once(_all_runs, files, are_remote=are_remote) for part in runs]
        counts = np.concatenate([none, *(counts for counts, _ in parts)])
        sizes = np.concatenate([none, *(sizes for _, sizes in parts)])
        heads = _heads(sizes)
        counts = np.add.reduceat(counts, heads) if heads.size else none
        sizes = sizes[heads]
        return cls(np.cumsum(counts) - counts, np.cumsum(counts * sizes) - counts * sizes, sizes)

    def locate(self, ids: IntArray) -> tuple[IntArray, IntArray]:
        """The first token and the size of blocks."""
        run = np.searchsorted(self.ids, ids, side="right") - 1
        sizes = self.sizes[run]
        return self.starts[run] + (ids - self.ids[run]) * sizes, sizes


def _heads(values: IntArray) -> IntArray:
    """Where runs of equal values begin."""
    return np.concatenate([np.arange(min(1, values.size)), np.flatnonzero(values[1:] != values[:-1]) + 1])


def _all_runs(file: TokenFile) -> list[tuple[IntArray, IntArray]]:
    return list(_block_runs(file))


def _block_runs(file: TokenFile) -> Iterator[tuple[IntArray, IntArray]]:
    """How many blocks of which size follow one another, a part of the index at a time."""
    last = 0
    for low in range(0, file.blocks, INDEX_PIECE):
        count = min(INDEX_PIECE, file.blocks - low)
        start = file.data_bytes + low * END.itemsize
        ends = np.frombuffer(file.file.read(start, start + count * END.itemsize), np.uint8)
        ends = ends[: ends.size // END.itemsize * END.itemsize].view(END)
        if ends.size < count:
            raise TruncatedError(f"{file.file}: expected {file.size} bytes, the file was cut while it was read")
        before = np.concatenate([[last], ends[:-1]])
        bad = np.flatnonzero((ends < before) | (ends > file.data_bytes) | (ends % file.dtype.itemsize != 0))
        if bad.size:
            raise FormatError(
                f"{file.file}: block {low + bad[0]} must end between {before[bad[0]]} and {file.data_bytes}, "
                f"behind a whole {file.dtype}, found {ends[bad[0]]}"
            )
        sizes = (ends - before) // file.dtype.itemsize
        heads = _heads(sizes)
        yield np.diff(heads, append=count), sizes[heads]
        last = int(ends[-1])
    if last != file.data_bytes:
        raise FormatError(f"{file.file}: expected the last block to end at {file.data_bytes}, found {last}")


SCAN_BYTES = 8 << 20
"""Bytes searched for separators at a time."""


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

    def extents(self, starts: IntArray, stops: IntArray) -> Extents:
        """Where blocks, which follow one another, are in the files."""
        if starts.size == 0:
            return NOWHERE
        (first, _), (last, counts) = self._runs.locate(starts), self._runs.locate(np.maximum(stops - 1, starts))
        return self._rows.extents(first, np.where(stops > starts, last + counts, first))

    @cached_property
    def token_leaf(self) -> "TokenLeaf":
        """The tokens one by one."""
        return TokenLeaf(self._rows, self._num_tokens, self._stored)

    def has_documents(self, field: str) -> bool:
        """Blocks are pieces of one line of tokens."""
        return False

    def token_ranges(self, ids: IntArray) -> tuple[IntArray, IntArray]:
        """Where on the line of all tokens blocks begin, and how many tokens they have."""
        return self._runs.locate(ids)

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

    def native_reader(self, field: str) -> tuple[Any, int] | None:
        return self._rows.native(self.block_size) if self._field.is_fixed and self._field.stride and self._stored.isnative else None

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

    def _identity(self) -> tuple[Any, ...]:
        return "tokens", self._name

    def _recipe(self) -> Recipe:
        return (TokenBlocks, (self._files, self._name, *self._options))


@dataclass(frozen=True, eq=False)
class TokenLeaf:
    """The tokens of token files as rows, for sequences: a leaf whose row is a token."""

    rows: Rows
    length: int
    stored: np.dtype[Any]

    def __len__(self) -> int:
        return self.length

    @property
    def behind(self) -> None:
        """The bytes are its own."""

    @property
    def blocks(self) -> Blocks:
        """Runs of about 8 MiB."""
        return Blocks(self.length, max(1, BLOCK_BYTES // self.stored.itemsize))

    @property
    def remote(self) -> RemoteFiles | None:
        """The window on the files, if they are at a URL."""
        return self.rows.remote

    @property
    def paths(self) -> Sequence[str]:
        """The files on a disk of this machine."""
        return self.rows.paths

    def extents(self, starts: IntArray, stops: IntArray) -> Extents:
        """Where tokens are in the files."""
        return self.rows.extents(starts, stops)

    def edges(self, starts: IntArray, stops: IntArray) -> Extents:
        """Nothing but the tokens."""
        return NOWHERE

    def hold(self, starts: IntArray, stops: IntArray) -> AbstractContextManager[object]:
        """Keeps tokens in memory while it is entered."""
        return nullcontext() if self.remote is None else self.remote.hold(*self.extents(starts, stops))

    def native_reader(self, field: str) -> tuple[Any, int] | None:
        """A reader of single tokens; None if their byte order is not the machine's."""
        return self.rows.native() if self.stored.isnative else None


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
