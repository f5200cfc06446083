"""TokenSource: files of tokens, one after the other, as one line of tokens and as records that are runs of it.

What the formats of token files share. A format says in which bytes of which files the tokens are (:class:`FileRows`, whose rows are
tokens), and how the line is cut into records: blocks (:class:`BlockRuns`) or documents (:class:`Documents`). Files with a loss mask
for each of them are :class:`MaskedTokens`.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.algebra import Aligned
from penstock.argument import IntArray, as_ids, check_positions, shown, whole_number
from penstock.batch import Batch, Outputs, Ragged, empty, fixed_output
from penstock.errors import CorruptError, SchemaMismatchError
from penstock.formats.files import MAX_BATCH_BYTES, Files, check_batch
from penstock.formats.rows_in_files import BLOCK_BYTES, FileRows, Rows, RowSource, reader_of_files
from penstock.formats.sidecar import SidecarWriter, Subject, obtain
from penstock.native import _core
from penstock.process import map_at_once
from penstock.records import NOWHERE, Blocks, Extents, Recipe
from penstock.remote.window import RemoteFiles, RemoteOptions
from penstock.schema import MAX_RECORD_BYTES, Field
from penstock.store.column import make_column
from penstock.system import file_access

__all__ = [
    "LOSS_MASK",
    "BlockRuns",
    "DocumentBounds",
    "Documents",
    "LineOptions",
    "LossMask",
    "MaskedTokens",
    "TokenLeaf",
    "TokenSource",
    "as_dtype",
    "as_elements",
    "document_ends",
    "heads_of_runs",
    "is_small",
    "token_dtype",
]

LOSS_MASK = "loss_mask"
"""The field that says of every token whether it counts in the loss."""

SCAN_BYTES, SCAN_TOKENS = 8 << 20, 1 << 21
"""Bytes searched for separators at a time, and the most tokens."""

KEPT_BYTES = 32 << 20
"""Where documents end is kept in a sidecar of files of at least this many bytes; smaller ones are searched as fast."""

INDEX_BLOCKS = 1 << 20
"""In as many blocks, all of one size, documents are put where a global order has more of them."""


@dataclass(frozen=True, eq=False)
class BlockRuns:
    """The blocks of all files as runs of one size: run i begins with block ``ids[i]``, at token ``starts[i]``.

    Files have one or two runs each, so this is small where a table of all blocks would not be.
    """

    ids: IntArray
    starts: IntArray
    sizes: IntArray

    @classmethod
    def of(cls, counts: IntArray, sizes: IntArray) -> "BlockRuns":
        """Of numbers of blocks and their sizes, one run after the other."""
        counts, sizes = counts[counts > 0], sizes[counts > 0]
        heads = heads_of_runs(sizes)
        counts = np.add.reduceat(counts, heads) if heads.size else counts
        sizes = sizes[heads]
        return cls(np.cumsum(counts) - counts, np.cumsum(counts * sizes) - counts * sizes, sizes)

    @classmethod
    def even(cls, tokens: IntArray, size: int) -> tuple["BlockRuns", IntArray]:
        """Files of N tokens each in blocks of ``size``, the last of each file perhaps shorter; and how many each file has."""
        full, rest = tokens // size, tokens % size
        counts = np.stack([full, rest > 0], axis=1).reshape(-1)
        sizes = np.stack([np.full_like(tokens, size), rest], axis=1).reshape(-1)
        return cls.of(counts, sizes), full + (rest > 0)

    @property
    def typical(self) -> int:
        """Tokens of the largest block."""
        return int(self.sizes.max(initial=0))

    @property
    def one_size(self) -> int | None:
        """The size of all blocks, if they have the same."""
        return int(self.sizes[0]) if len(self.sizes) == 1 else None

    def locate(self, ids: IntArray) -> tuple[IntArray, IntArray]:
        """The first token and the size of blocks."""
        run = np.searchsorted(self.ids, ids, side="right") - 1
        sizes = self.sizes[run]
        return self.starts[run] + (ids - self.ids[run]) * sizes, sizes

    def bounds(self, length: int) -> IntArray:
        """Where each of ``length`` blocks begins, and where the last one ends."""
        sizes = np.repeat(self.sizes, np.diff(self.ids, append=length))
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def heads_of_runs(values: IntArray) -> IntArray:
    """Where runs of equal values begin."""
    return np.concatenate([np.arange(min(1, values.size)), np.flatnonzero(values[1:] != values[:-1]) + 1])


EARLY = 1 << 22
"""Documents of files on disk whose tables are read when they are opened: a tenth of a second. Larger ones are read when they are
needed.
"""


def is_small(documents: int) -> bool:
    """Whether the tables of files with this number of documents are read when they are opened."""
    return documents <= EARLY


class Documents:
    """The documents of files, which say themselves where each one ends. Their tables are read, and checked, when the files are
    opened if they are small and on disk, otherwise when the first document is needed; from then on they are kept, 8 bytes a
    document.
    """

    one_size = None

    def __init__(self, counts: Sequence[int], tokens: Sequence[int], load: Callable[[int, IntArray], None], *, are_remote: bool):
        """``load(number, ends)`` fills in where the documents of a file end, in tokens of the file."""
        self._counts, self._tokens, self._load, self._are_remote = list(counts), list(tokens), load, are_remote

    @property
    def typical(self) -> int:
        """The mean of tokens of a document, rounded up."""
        return -(-sum(self._tokens) // max(1, sum(self._counts)))

    @cached_property
    def table(self) -> IntArray:
        """Where every document begins on the line of all tokens, and where the last one ends."""
        bounds = np.zeros(sum(self._counts) + 1, np.int64)
        firsts, bases = np.cumsum([0, *self._counts]).tolist(), np.cumsum([0, *self._tokens]).tolist()

        def fill(number: int) -> None:
            ends = bounds[firsts[number] + 1 : firsts[number + 1] + 1]
            self._load(number, ends)
            ends += bases[number]

        for _ in map_at_once(fill, range(len(self._counts)), are_remote=self._are_remote):
            pass
        return bounds

    @property
    def is_loaded(self) -> bool:
        """Whether the tables were read."""
        return "table" in self.__dict__

    def load_early(self) -> None:
        """Read the tables now, if that takes no time: bad ones are refused before anything is told of their documents."""
        if not self._are_remote and is_small(sum(self._counts)):
            _ = self.table

    def bounds(self, length: int) -> IntArray:
        return self.table

    def locate(self, ids: IntArray) -> tuple[IntArray, IntArray]:
        """The first token and the number of tokens of documents."""
        starts = self.table[ids]
        return starts, self.table[ids + 1] - starts


@dataclass(frozen=True, eq=False)
class DocumentBounds:
    """Document i has the tokens [bounds[i], bounds[i + 1]) of a line; ``block_bounds``, where they are known, are the bounds of
    every ``block`` documents together. The bounds may be a map of the file ``path``: ``need(starts, stops)`` raises CorruptError if
    some of them are not what was written.
    """

    bounds: IntArray
    block: int = 1
    block_bounds: IntArray | None = None
    need: Callable[[IntArray, IntArray], None] | None = None
    path: Path | None = None

    def checked(self) -> IntArray:
        """All bounds. CorruptError if a file has others than were written, or documents that overlap."""
        if self.need is not None:
            self.need(np.zeros(1, np.int64), np.array([self.bounds.size], np.int64))
            if np.any(self.bounds[1:] < self.bounds[:-1]):
                raise CorruptError(f"{self.path}: expected documents in their order: remove the file, and it is rebuilt")
        return self.bounds


@dataclass(frozen=True)
class LineOptions:
    """How a line is delivered and read: the name of the field, the type of the elements in the files, threads and means."""

    field: str
    dtype: np.dtype[Any]
    threads: int
    io: str
    remote: RemoteOptions | None


class TokenSource(RowSource):
    """Files of tokens. Records are runs of the line that all tokens make, which :meth:`read_tokens` reads wherever they end.

    All records of one size are a fixed field, otherwise they are ragged.
    """

    def __init__(
        self, files: Files, parts: Sequence[FileRows], counts: Sequence[int], pieces: BlockRuns | Documents, how: LineOptions
    ) -> None:
        """``parts`` are the tokens of the files, ``counts`` how many of the ``pieces``, the records, each of them has."""
        self._name, self._options, self._stored = how.field, (how.threads, how.io, how.remote), how.dtype
        self._pieces, self._each = pieces, [int(np.sum(part.rows)) for part in parts]
        self._num_tokens, self._parts = sum(self._each), list(parts)
        if isinstance(pieces, Documents):
            pieces.load_early()
        size, item = pieces.one_size, how.dtype.itemsize
        is_even = size is not None and size * item <= MAX_RECORD_BYTES
        self._field = Field(how.dtype, (size or 0,)) if is_even else Field.ragged(how.dtype)
        access = file_access(how.io, files.local)
        elements = reader_of_files(parts, item, access=access, threads=how.threads, remote=how.remote)
        super().__init__(files, counts, self.block_size * item, elements)

    @property
    def schema(self) -> Mapping[str, Field]:
        return {self._name: self._field}

    @property
    def token_field(self) -> str:
        return self._name

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type, in the byte order of the machine."""
        return self._field.dtype

    @property
    def num_tokens(self) -> int:
        """Elements in all records."""
        return self._num_tokens

    @property
    def block_size(self) -> int:
        """Elements of the largest block; if the records are documents, the mean of a document."""
        return self._pieces.typical

    def extents(self, starts: IntArray, stops: IntArray) -> Extents:
        """Where records, which follow one another, are in the files."""
        if starts.size == 0:
            return NOWHERE
        (first, _), (last, counts) = self._pieces.locate(starts), self._pieces.locate(np.maximum(stops - 1, starts))
        return self._rows.extents(first, np.where(stops > starts, last + counts, first))

    def _need_line(self) -> None:
        """FormatError if the line is not that of the records, where only their tables can tell. Called before tokens are read."""

    @cached_property
    def token_leaf(self) -> "TokenLeaf":
        """The tokens one by one."""
        self._need_line()
        return TokenLeaf(self._rows, self._num_tokens, self._stored)

    # Documents

    def has_documents(self, field: str) -> bool:
        """Whether records are documents; blocks are pieces of one line of tokens."""
        return isinstance(self._pieces, Documents)

    @property
    def document_bounds(self) -> IntArray | None:
        """Document i has the tokens [bounds[i], bounds[i + 1]) of the line; None if the files do not say where documents end."""
        return self._pieces.table if isinstance(self._pieces, Documents) else None

    def document_name(self, document: int) -> str:
        """Where a document comes from: the file, and its number there."""
        number = whole_number("document", document, most=self._length - 1)
        part = int(np.searchsorted(np.cumsum(self._counts), number, side="right"))
        return self._name_in_file(part, number - sum(self._counts[:part]))

    def _name_in_file(self, part: int, number: int) -> str:
        return f"{self._files[part]}[{number}]"

    def with_mask(self, files: Files) -> "MaskedTokens":
        """These tokens with their loss masks: a file for each of theirs, of a byte for each token. SchemaMismatchError if there are
        more or fewer; the tokens are closed then.
        """
        threads, io, remote = self._options
        how = LineOptions(LOSS_MASK, np.dtype("u1"), threads, io, remote)
        try:
            return MaskedTokens(self, LossMask(files, self, self._each, (self._counts, self._pieces, how), self._identity()))
        except BaseException:
            self.close()
            raise

    def token_ranges(self, ids: IntArray) -> tuple[IntArray, IntArray]:
        """Where on the line of all tokens records begin, and how many tokens they have."""
        return self._pieces.locate(ids)

    def lengths(self, field: str, ids: Any) -> IntArray:
        return self._pieces.locate(as_ids(ids, self._length))[1]

    def steps_per_epoch(self, batch_size: int, seq_len: int) -> int:
        """Full batches of ``batch_size`` sequences of ``seq_len`` tokens."""
        return self._num_tokens // (whole_number("batch_size", batch_size, least=1) * whole_number("seq_len", seq_len, least=1))

    def read_tokens(self, starts: npt.ArrayLike, length: int, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """For each start the ``length`` tokens from there on, as the rows of one array. Runs may cross records and files."""
        self._need_line()
        run = whole_number("length", length)
        places = check_positions("starts", starts, max(0, self._num_tokens - run + 1))
        array = fixed_output("tokens", Field(self.dtype, (run,)), places.size, {} if out is None else {"tokens": out})
        self._rows.read(places, array, run)
        return self._native(array)

    def read_spans(self, starts: IntArray, offsets: IntArray, out: npt.NDArray[Any]) -> None:
        """Fill ``out`` with tokens [start, start + offsets[i + 1] - offsets[i]) of every start, one after the other."""
        self._need_line()
        self._rows.read_spans(starts, offsets, out)
        self._native(out)

    @property
    def max_batch_bytes(self) -> int | None:
        return None if self._field.is_fixed else MAX_BATCH_BYTES

    def native_reader(self, field: str) -> tuple[Any, int] | None:
        if not self._stored.isnative:
            return None
        if not self._field.is_fixed:
            return self._rows.native_runs(self._pieces.bounds(self._length), MAX_BATCH_BYTES)
        return self._rows.native(self.block_size) if self._field.stride else None

    def documents(self, separator: object) -> IntArray:
        """The token positions (start, stop) of every document, a row each, without the separator that ends it.

        ``separator`` is an element, or a sequence of them. Empty documents count; tokens behind the last separator are a document.
        """
        bounds, width = self.separated(separator).checked(), as_elements("separator", separator, self.dtype).size
        ranges = np.stack([bounds[:-1], bounds[1:] - width], axis=1)
        if len(ranges) and not self._ends_with(separator, int(bounds[-2])):
            ranges[-1, 1] = bounds[-1]
        return ranges

    def _ends_with(self, separator: object, begin: int) -> bool:
        """Whether the last document, which begins at that token, ends with the separator."""
        wanted = _bits(as_elements("separator", separator, self.dtype))
        last = self._num_tokens - wanted.size
        return last >= begin and np.array_equal(_bits(self.read_tokens([last], wanted.size)[0]), wanted)

    def separated(self, separator: object) -> DocumentBounds:
        """Where documents are that end with the separator: an element, or a sequence of them. It belongs to the document; what is
        behind the last one is a document, too. Large files are searched once: the result is kept in a sidecar.
        """
        wanted = as_elements("separator", separator, self.dtype)
        if wanted.size == 0:
            raise ValueError("separator must have at least one element, got none")

        def bounds_in_pieces() -> Iterator[IntArray]:
            yield np.zeros(1, np.int64)
            yield from document_ends(lambda low, count: self.read_tokens([low], count)[0], self._num_tokens, wanted)

        if self._num_tokens * self._stored.itemsize < KEPT_BYTES:
            return DocumentBounds(np.concatenate(list(bounds_in_pieces())))
        layout = hashlib.sha256(b"".join(np.array([p.offset, p.rows], np.int64).tobytes() for p in self._parts)).hexdigest()
        files = list({str(part.path): part for part in self._parts}.values())
        subject = Subject("documents", files, (self._stored.str, layout, wanted.tobytes().hex()))
        found = obtain(subject, lambda writer: _write_bounds(writer, bounds_in_pieces()))
        bounds = found["bounds"]
        found.need("bounds", np.array([0, max(0, bounds.size - 1)]), np.array([1, bounds.size]))
        if bounds.dtype != np.int64 or bounds.size == 0 or bounds[0] != 0 or bounds[-1] != self._num_tokens:
            raise CorruptError(
                f"{found.path}: expected documents from token 0 to {self._num_tokens}, found {bounds[:1]} to {bounds[-1:]}: remove "
                "the file, and it is rebuilt"
            )
        blocks = np.array(found["blocks"]) if len(found["blocks"]) else None
        block = _index_block(len(bounds) - 1)
        return DocumentBounds(bounds, block, blocks, lambda starts, stops: found.need("bounds", starts, stops), found.path)

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        if not fields:
            return {}
        if not self._field.is_fixed:
            return {self._name: self._read_ragged(*self._pieces.locate(ids))}
        array = fixed_output(self._name, self._field, ids.size, out)
        self._rows.read(ids * self.block_size, array, self.block_size)
        return {self._name: self._native(array)}

    def _read_ragged(self, starts: IntArray, lengths: IntArray) -> Ragged:
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        check_batch(str(self._files[0]), int(offsets[-1]) * self._stored.itemsize)
        values = empty((int(offsets[-1]),), self.dtype)
        self._rows.read_spans(starts, offsets, values)
        return Ragged(self._native(values), offsets)

    def _native(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Elements in the byte order of the machine, in place."""
        return array if self._stored.isnative else array.byteswap(inplace=True)


_Records = tuple[Sequence[int], BlockRuns | Documents, LineOptions]
"""How many records the files have, which they are, and how they are read."""


class LossMask(TokenSource):
    """For every token of token files whether it counts in the loss: a byte, 0 if it does not. Records are those of the tokens."""

    def __init__(self, files: Files, of: TokenSource, tokens: Sequence[int], records: _Records, identity: tuple[Any, ...]) -> None:
        """What :meth:`TokenSource.with_mask` says of the tokens, ``of``: how many each of the files has, their records and which
        files they are.
        """
        parts: list[FileRows] = files.once("loss mask", lambda: files.each(FileRows.whole))
        if len(parts) != len(tokens):
            raise SchemaMismatchError(
                f"{files[0]}: expected a loss mask for each of {len(tokens)} files of tokens, found {len(parts)}"
            )
        for file, part, count in zip(files, parts, tokens, strict=True):
            if part.size != count:
                raise SchemaMismatchError(
                    f"{file}: expected a loss mask of {count} bytes, one for each token of its file, found {part.size}; write it "
                    "anew, or leave the masks out with loss=False"
                )
        self._of, self._identity_of = of, identity
        super().__init__(files, parts, *records)

    def _identity(self) -> tuple[Any, ...]:
        return "loss mask", *self._identity_of

    def _recipe(self) -> Recipe:
        return (_loss_mask, (self._of, self._files))


def _loss_mask(tokens: TokenSource, files: Files) -> LossMask:
    return tokens.with_mask(files).loss_mask


class MaskedTokens(Aligned):
    """Token files with loss masks: a second field of the records, and one line of tokens, in the order of the same files without
    masks.
    """

    def __init__(self, tokens: TokenSource, mask: LossMask) -> None:
        [name] = tokens.schema
        if name == LOSS_MASK:
            raise ValueError(f"field: {LOSS_MASK!r} is the name of the masks: give the tokens another one, or leave them out")
        super().__init__({name: tokens, LOSS_MASK: mask})
        self._tokens, self._mask = tokens, mask

    @property
    def loss_mask(self) -> LossMask:
        """The masks as a line of their own, a byte for every token."""
        return self._mask

    @property
    def token_field(self) -> str:
        return self._tokens.token_field

    @property
    def dtype(self) -> np.dtype[Any]:
        """See :class:`TokenSource`, as all that follows."""
        return self._tokens.dtype

    @property
    def num_tokens(self) -> int:
        return self._tokens.num_tokens

    @property
    def block_size(self) -> int:
        return self._tokens.block_size

    @property
    def token_leaf(self) -> "TokenLeaf":
        return self._tokens.token_leaf

    @property
    def document_bounds(self) -> IntArray | None:
        return self._tokens.document_bounds

    def document_name(self, document: int) -> str:
        return self._tokens.document_name(document)

    def documents(self, separator: object) -> IntArray:
        return self._tokens.documents(separator)

    def separated(self, separator: object) -> DocumentBounds:
        return self._tokens.separated(separator)

    def token_ranges(self, ids: IntArray) -> tuple[IntArray, IntArray]:
        return self._tokens.token_ranges(ids)

    def steps_per_epoch(self, batch_size: int, seq_len: int) -> int:
        return self._tokens.steps_per_epoch(batch_size, seq_len)

    def read_tokens(self, starts: npt.ArrayLike, length: int, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        return self._tokens.read_tokens(starts, length, out)

    def read_spans(self, starts: IntArray, offsets: IntArray, out: npt.NDArray[Any]) -> None:
        self._tokens.read_spans(starts, offsets, out)

    def _recipe(self) -> Recipe:
        return (MaskedTokens, (self._tokens, self._mask))


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
        return self.rows.remote

    @property
    def paths(self) -> Sequence[str]:
        return self.rows.paths

    @property
    def is_direct(self) -> bool:
        return self.rows.is_direct

    def extents(self, starts: IntArray, stops: IntArray) -> Extents:
        return self.rows.extents(starts, stops)

    def edges(self, starts: IntArray, stops: IntArray) -> Extents:
        """Nothing but the tokens."""
        return NOWHERE

    def hold(self, starts: IntArray, stops: IntArray) -> AbstractContextManager[object]:
        return nullcontext() if self.remote is None else self.remote.hold(*self.extents(starts, stops))

    def native_reader(self, field: str) -> tuple[Any, int] | None:
        """A reader of single tokens; None if their byte order is not the machine's."""
        return self.rows.native() if self.stored.isnative else None


def as_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """A type that a caller names."""
    try:
        return np.dtype(dtype)
    except TypeError as error:
        raise TypeError(f"dtype: expected a type such as 'uint16', got {shown(dtype)}") from error


def token_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """A type that tokens may have."""
    made = as_dtype(dtype)
    if made.kind not in "iu":
        raise ValueError(f"dtype must be a type of whole numbers such as 'uint16', got {made}")
    return made.newbyteorder("<") if made.byteorder == "=" else made


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


def document_ends(read: Callable[[int, int], npt.NDArray[Any]], num_tokens: int, separator: npt.NDArray[Any]) -> Iterator[IntArray]:
    """Where documents end, in pieces: behind each separator of one token or several, and at the last token. ``read(low, count)``
    gives tokens; separators do not overlap.
    """
    wanted = np.ascontiguousarray(_bits(separator))
    item, width = wanted.itemsize, wanted.size
    step = max(1, min(SCAN_TOKENS, SCAN_BYTES // item))
    out = np.empty(step + width, np.int64)
    start = last = 0  # where the next separator may begin, and where the last one ended
    for low in range(0, num_tokens - width + 1, step):
        piece = np.ascontiguousarray(_bits(read(low, min(step + width - 1, num_tokens - low))))
        found, next_start = _core.find_document_ends(piece.view(np.uint8), item, wanted.view(np.uint8), max(0, start - low), out)
        start = low + next_start
        if found:
            last = low + int(out[found - 1])
            yield out[:found] + low
    if last < num_tokens:
        yield np.array([num_tokens], np.int64)


def _bits(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Elements as whole numbers, which are equal if the bits are: NaN is itself, and zero is not minus zero."""
    return array.view(f"u{array.itemsize}")


def _write_bounds(writer: SidecarWriter, pieces: Iterable[IntArray]) -> None:
    """Bounds of documents and, where there are more of them than blocks of a global order, those of the blocks."""
    bounds = writer.add("bounds", np.int64, pieces)
    count = len(bounds) - 1
    blocks = np.append(bounds[: count : _index_block(count)], bounds[-1:]) if count > INDEX_BLOCKS else bounds[:0]
    writer.add("blocks", np.int64, [blocks])


def _index_block(documents: int) -> int:
    return max(1, -(-documents // INDEX_BLOCKS))
