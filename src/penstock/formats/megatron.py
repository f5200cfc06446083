"""Megatron's indexed datasets: ``x.idx``, which says where sequences are, and ``x.bin``, their tokens.

::

    idx = "MMIDIDX\\0\\0" | version u64 = 1 | code of the element type u8 | sequences S u64 | entries of documents D u64
          lengths i32 x S | pointers i64 x S | documents i64 x D [ | modes i8 x S, of multimodal data ]
    bin = elements

A sequence has ``lengths[i]`` tokens from byte ``pointers[i]`` of the .bin on; Megatron writes one after the other. Document k has
the sequences ``documents[k]`` up to ``documents[k + 1]``, which in data for GPT is one. Byte 34, where the lengths begin, is not
aligned.
"""

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray
from penstock.errors import (
    EmptySourceError,
    FormatError,
    SchemaMismatchError,
    SizeOverflowError,
    SourceChangedError,
    TrailingBytesError,
    TruncatedError,
    UnsupportedTypeError,
    UnsupportedVersionError,
)
from penstock.formats.files import (
    File,
    Files,
    LocalFile,
    Names,
    Neighbours,
    RemoteFile,
    bytes_of,
    find_files,
    has_pattern,
    need_size,
)
from penstock.formats.rows_in_files import FileRows, Version, default_threads, version_of
from penstock.formats.token_line import Documents, LineOptions, TokenSource, as_dtype, is_small
from penstock.process import map_at_once
from penstock.records import Recipe
from penstock.remote.window import RemoteOptions
from penstock.system import is_there

__all__ = ["BIN", "CODES", "HEADER", "IDX", "LENGTH", "MAGIC", "POINTER", "MegatronTokens", "open_blend", "open_megatron"]

MAGIC = b"MMIDIDX\0\0"
HEADER = struct.Struct("<9sQBQQ")
LENGTH, POINTER = np.dtype("<i4"), np.dtype("<i8")
IDX, BIN = ".idx", ".bin"

CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
"""Element types by their codes."""

FIRST_BYTES, FIRST_BYTES_REMOTE = 4096, 64 << 10
"""Read of an index when it is opened: all of a small one."""

SPOTS, SPOT = 64, 1024
"""Places at which entries of large indices are looked at when they are opened, over all indices but one in each at least; and how
many entries.
"""

REMEDY = "; if it is meant to be so, open it with scattered=True"

PIECE = 1 << 20
"""Entries of an index read at a time."""


def open_megatron(
    what: Names,
    *,
    field: str = "tokens",
    records: str = "sequence",
    dtype: npt.DTypeLike | None = None,
    scattered: bool = False,
    threads: int | None = None,
    io: str = "auto",
    remote: RemoteOptions | None = None,
) -> "MegatronTokens":
    """Indexed datasets as one source: a list keeps its order, a pattern or a directory gives that of the name bytes.

    A name is that of the .idx, of the .bin, or of both without their suffixes. ``records`` says what a record is: a "sequence", as
    training of GPT has it, or a "document" of several sequences. ``dtype`` may be left out; otherwise it must be that of the files.
    Sequences follow one another and fill the .bin, as Megatron writes them. With ``scattered=True`` they may be anywhere in it, and
    all of the indices are read at once.
    """
    files, given = Files(_pairs(what)), None if dtype is None else as_dtype(dtype)
    source = MegatronTokens(files, field, records, bool(scattered), default_threads(threads), io, remote)
    if given is not None and given != source.dtype:
        source.close()
        raise SchemaMismatchError(f"{files[1]}: expected tokens of {given}, found that they are {source.dtype}")
    return source


def _pairs(what: Names) -> Iterator[File]:
    """The .bin and the .idx of every name. A pattern that finds both means one pair."""
    known: dict[str, str] = {}
    files = list(_named(what))
    near = Neighbours(files)
    for file in files:
        name = str(file)
        stem, suffix = name[:-4], name[-4:].lower()
        if suffix not in (IDX, BIN):
            raise FormatError(f"{file}: expected the name of a Megatron index, which ends in {IDX}, or of its {BIN}")
        other = near.named(file, file.name[:-4] + (BIN if suffix == IDX else IDX))
        if known.setdefault(stem, suffix) == suffix:
            yield from (other, file) if suffix == IDX else (file, other)


def _named(what: Any) -> Iterator[File]:
    """The files that names stand for. Of thousands of files on a disk, none is looked at here."""
    for one in what if isinstance(what, list | tuple) else [what]:
        is_plain = isinstance(one, str | os.PathLike) and "://" not in (text := os.fspath(one)) and not has_pattern(text)
        if is_plain and text.endswith((IDX, BIN)):
            yield LocalFile(Path(os.path.abspath(text)))
        else:
            yield from find_files(_full_names(one), (IDX,))


def _full_names(what: Any) -> Any:
    """Prefixes on a disk with their suffix."""
    if isinstance(what, list | tuple):
        return [_full_names(one) for one in what]
    if not isinstance(what, str | os.PathLike) or "://" in str(what) or is_there(what):
        return what
    full = Path(f"{os.fspath(what)}{IDX}")
    return full if is_there(full) else what


@dataclass(frozen=True)
class Indexed:
    """What an index says, checked against its size and that of the .bin."""

    index: File
    index_version: Version | None
    data: File
    data_bytes: int
    data_version: Version | None
    dtype: np.dtype[Any]
    sequences: int
    entries: int
    """Entries of the documents."""
    runs: tuple[IntArray, IntArray] | None = None
    """Where runs of tokens begin in a .bin whose sequences do not follow one another, and how many tokens each has."""
    head: bytes = b""
    """All of a small index on disk, until its table was read."""

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return self.data_bytes // self.dtype.itemsize if self.runs is None else int(self.runs[1].sum())

    @property
    def part(self) -> FileRows:
        """Where the tokens are."""
        made = FileRows.of(self.data, self.data_bytes, 0, self.tokens, self.data_version)
        return made if self.runs is None else replace(made, offset=self.runs[0], rows=self.runs[1])

    def lengths(self, low: int, high: int) -> IntArray:
        """Tokens of sequences."""
        return self._numbers(HEADER.size, LENGTH, low, high)

    def pointers(self, low: int, high: int) -> IntArray:
        """Where sequences begin in the .bin."""
        return self._numbers(HEADER.size + LENGTH.itemsize * self.sequences, POINTER, low, high)

    def documents(self) -> IntArray:
        """The first sequences of documents, and behind the last one."""
        return self._numbers(HEADER.size + (LENGTH.itemsize + POINTER.itemsize) * self.sequences, POINTER, 0, self.entries)

    def ends(self) -> Iterator[tuple[int, IntArray]]:
        """Where sequences end, in tokens of the line: the first one of a piece, and the ends in it. Checks every entry."""
        self.need_unchanged()
        last, item = 0, self.dtype.itemsize
        for low in range(0, self.sequences, PIECE):
            high = min(low + PIECE, self.sequences)
            lengths = self.lengths(low, high)
            _need_lengths(self, low, lengths)
            piece = np.cumsum(lengths) + last
            if self.runs is None:
                _need_following(self, low, (piece - lengths) * item, self.pointers(low, high))
            yield low, piece
            last = int(piece[-1])
        if last != self.tokens:
            raise FormatError(f"{self.index}: expected sequences of {self.tokens} tokens together, found {last}{REMEDY}")

    def check_spots(self, count: int) -> None:
        """FormatError if entries at some places show that sequences do not follow one another."""
        item = self.dtype.itemsize
        for low in np.linspace(0, max(0, self.sequences - SPOT), count).astype(np.int64).tolist():
            high = min(low + SPOT, self.sequences)
            lengths, pointers = self.lengths(low, high), self.pointers(low, high)
            _need_lengths(self, low, lengths)
            _need_following(self, low, pointers[:1] + (np.cumsum(lengths) - lengths) * item, pointers)

    def check_entries(self, head: bytes) -> None:
        """The same of all entries, if they are in the first bytes of the index."""
        edges = np.cumsum([HEADER.size, LENGTH.itemsize * self.sequences, POINTER.itemsize * self.sequences])
        if edges[2] > len(head):
            return
        lengths = np.frombuffer(head[edges[0] : edges[1]], LENGTH).astype(np.int64)
        _need_lengths(self, 0, lengths)
        ends = np.cumsum(lengths) * self.dtype.itemsize
        pointers = np.frombuffer(head[edges[1] : edges[2]], POINTER)
        _need_following(self, 0, ends - lengths * self.dtype.itemsize, pointers)

    def _numbers(self, base: int, dtype: np.dtype[Any], low: int, high: int) -> IntArray:
        raw = _read(self.index, self.head, base + low * dtype.itemsize, base + high * dtype.itemsize)
        return np.frombuffer(raw, dtype).astype(np.int64)

    def need_unchanged(self) -> None:
        """SourceChangedError if the index is not the one that was opened."""
        if version_of(self.index) != self.index_version:
            raise SourceChangedError(f"{self.index}: the file was changed after it was opened; open it again")


def _look(files: Files, scattered: bool) -> list[Indexed]:
    pairs = list(zip(files[::2], files[1::2], strict=True))
    if not pairs:
        raise EmptySourceError(f"expected at least one {IDX} file, got an empty list")
    found = list(map_at_once(lambda pair: _look_at(*pair, scattered), pairs, are_remote=files.is_remote))
    for one in found:
        if one.dtype != found[0].dtype:
            raise SchemaMismatchError(f"{one.index}: expected {found[0].dtype} tokens as in {found[0].index}, found {one.dtype}")
    if not scattered and not files.is_remote and not is_small(sum(one.sequences for one in found)):
        for one in found:
            one.check_spots(max(1, SPOTS // len(found)))
    return found


def _look_at(data: File, index: File, scattered: bool) -> Indexed:
    index_version = version_of(index)
    head = index.first(FIRST_BYTES_REMOTE if isinstance(index, RemoteFile) else FIRST_BYTES)
    size = index.size
    dtype, sequences, entries = _check_header(index, head, size)
    data_version = version_of(data)
    one = Indexed(index, index_version, data, bytes_of(data), data_version, dtype, sequences, entries)
    if size <= len(head) and not isinstance(index, RemoteFile):
        one = replace(one, head=head)
    if sequences == 0:
        if one.data_bytes:
            raise TrailingBytesError(f"{data}: expected no bytes, since {index} has no sequences, found {one.data_bytes}")
        return one
    pointers = HEADER.size + LENGTH.itemsize * sequences
    end = pointers + POINTER.itemsize * sequences
    length, first = struct.unpack("<iq", _read(index, head, pointers - LENGTH.itemsize, pointers + POINTER.itemsize))
    [last] = struct.unpack("<q", _read(index, head, end - POINTER.itemsize, end))
    if scattered:
        return _scattered(one)
    stop = last + length * dtype.itemsize
    if length < 0 or first != 0 or last % dtype.itemsize:
        raise FormatError(
            f"{index}: expected sequences from byte 0 to {one.data_bytes} of the {BIN}, found {first} to {stop}{REMEDY}"
        )
    if stop != one.data_bytes:
        kind = TruncatedError if stop > one.data_bytes else TrailingBytesError
        raise kind(f"{data}: expected {stop} bytes, as {index.name} says, found {one.data_bytes}{REMEDY}")
    if isinstance(index, RemoteFile):
        one.check_entries(head)
    return one


def _read(index: File, head: bytes, start: int, stop: int) -> bytes:
    """Bytes of an index, of which the first are there already."""
    raw = head[start:stop] if stop <= len(head) else index.read(start, stop)
    if len(raw) < stop - start:
        raise TruncatedError(f"{index}: the file was cut while it was read; open it again")
    return raw


def _check_header(index: File, head: bytes, size: int) -> tuple[np.dtype[Any], int, int]:
    """Element type, sequences and entries of documents."""
    if len(head) < HEADER.size:
        raise TruncatedError(f"{index}: expected the {HEADER.size} bytes of a header, found a file of {size}")
    magic, version, code, sequences, entries = HEADER.unpack_from(head)
    if magic != MAGIC:
        raise FormatError(f"{index}: expected a Megatron index beginning with {MAGIC!r}, found {magic!r}")
    if version != 1:
        raise UnsupportedVersionError(f"{index}: expected version 1 of a Megatron index, found {version}")
    if code not in CODES:
        raise UnsupportedTypeError(f"{index}: expected the code of an element type in [1, 8], found {code}")
    whole = HEADER.size + (LENGTH.itemsize + POINTER.itemsize) * sequences + POINTER.itemsize * entries
    if whole >= 2**63:
        raise SizeOverflowError(
            f"{index}: {sequences} sequences and {entries} entries of documents are beyond what a file can have"
        )
    if sequences and size == whole + sequences:
        raise UnsupportedTypeError(f"{index}: the sequences have modes, and multimodal data is not read: write the text by itself")
    need_size(index, size, whole, f" for {sequences} sequences and {entries} entries of documents")
    return np.dtype(CODES[code]), sequences, entries


def _scattered(one: Indexed) -> Indexed:
    """An index whose sequences do not fill the .bin one after the other: runs of those that do."""
    begins: list[int] = []
    counts: list[int] = []
    last = -1
    for low in range(0, one.sequences, PIECE):
        high = min(low + PIECE, one.sequences)
        lengths, pointers = one.lengths(low, high), one.pointers(low, high)
        _need_lengths(one, low, lengths)
        ends = pointers + lengths * one.dtype.itemsize
        bad = np.flatnonzero((pointers < 0) | (pointers > one.data_bytes) | (ends > one.data_bytes))
        if bad.size:
            raise TruncatedError(
                f"{one.data}: expected sequence {low + bad[0]} at bytes {pointers[bad[0]]} to {ends[bad[0]]}, as {one.index} says, "
                f"found a file of {one.data_bytes} bytes"
            )
        is_head = pointers != np.concatenate([[last], ends[:-1]])
        sums = np.bincount(np.cumsum(is_head), lengths, minlength=1).astype(np.int64)  # the first is of the run before
        if counts:
            counts[-1] += int(sums[0])
        begins += pointers[is_head].tolist()
        counts += sums[1:].tolist()
        last = int(ends[-1])
    return replace(one, runs=(np.array(begins, np.int64), np.array(counts, np.int64)))


def _need_lengths(one: Indexed, low: int, lengths: IntArray) -> None:
    bad = np.flatnonzero(lengths < 0)
    if bad.size:
        raise FormatError(f"{one.index}: expected a length of sequence {low + bad[0]} of 0 or more, found {lengths[bad[0]]}")


def _need_following(one: Indexed, low: int, begins: IntArray, pointers: IntArray) -> None:
    bad = np.flatnonzero(pointers != begins)
    if bad.size:
        raise FormatError(
            f"{one.index}: expected sequence {low + bad[0]} at byte {begins[bad[0]]} of the {BIN}, behind the one before, found "
            f"{pointers[bad[0]]}{REMEDY}"
        )


def _need_documents(found: Sequence[Indexed]) -> None:
    """FormatError for sequences that are in no document, since there is none."""
    for one in found:
        if one.sequences and one.entries < 2:
            raise FormatError(
                f"{one.index}: expected documents that begin with sequences from 0 up to {one.sequences}, found {one.entries} "
                "entries, which are no document; open it with records='sequence'"
            )


class MegatronTokens(TokenSource):
    """The sequences or documents of Megatron's indexed datasets, one file after the other, as one ragged field.

    The line of tokens, which sequences are cut from, is the .bin only if the sequences are there one after the other. An index is
    checked against the sizes of the files when it is opened, and entry by entry if it is small. Of one that is large some entries
    are looked at then, and all of them before the first token is read.
    """

    def __init__(
        self, files: Files, field: str, records: str, scattered: bool, threads: int, io: str, remote: RemoteOptions | None
    ) -> None:
        if records not in ("sequence", "document"):
            raise ValueError(f"records must be 'sequence' or 'document', got {records!r}")
        self._records, self._scattered, self._is_line_checked = records, scattered, False
        found: Sequence[Indexed] = files.once(f"megatron {scattered}", lambda: _look(files, scattered))
        self._found = found
        if records == "document":
            _need_documents(found)
        counts = [one.sequences if records == "sequence" else max(0, one.entries - 1) for one in found]
        load = self._load_sequences if records == "sequence" else self._load_documents
        self._documents = Documents(counts, [one.tokens for one in found], load, are_remote=files.is_remote)
        how = LineOptions(field, found[0].dtype, threads, io, remote)
        super().__init__(files, [one.part for one in found], counts, self._documents, how)
        self._found = [replace(one, head=b"") if one.head else one for one in found]

    def _need_line(self) -> None:
        if not self._is_line_checked and not self._documents.is_loaded:  # to read the tables is to check them
            self._files.once(f"megatron line {self._scattered}", self._check_line)
            self._is_line_checked = True

    def _check_line(self) -> bool:
        """The line is the .bin, so the sequences must be there one after the other; a scattered one is made of the sequences."""

        def check(one: Indexed) -> None:
            for _ in one.ends():
                pass

        whole = [one for one in self._found if one.runs is None]
        for _ in map_at_once(check, whole, are_remote=self._files.is_remote):
            pass
        return True

    def _load_sequences(self, number: int, ends: IntArray) -> None:
        for low, piece in self._found[number].ends():
            ends[low : low + piece.size] = piece

    def _load_documents(self, number: int, ends: IntArray) -> None:
        one = self._found[number]
        edges = np.zeros(one.sequences + 1, np.int64)
        self._load_sequences(number, edges[1:])
        if one.sequences == 0 and ends.size == 0:
            return
        firsts = one.documents()
        if firsts.size == 0 or firsts[0] != 0 or firsts[-1] != one.sequences or np.any(np.diff(firsts) < 0):
            raise FormatError(
                f"{one.index}: expected documents that begin with sequences from 0 up to {one.sequences}, found "
                f"{firsts[:1].tolist()} to {firsts[-1:].tolist()}; open it with records='sequence'"
            )
        ends[:] = edges[firsts[1:]]

    def _name_in_file(self, part: int, number: int) -> str:
        return f"{self._found[part].data}[{number}]"

    def _identity(self) -> tuple[Any, ...]:
        return "megatron", self._name, self._records, self._scattered

    def _recipe(self) -> Recipe:
        return (MegatronTokens, (self._files, self._name, self._records, self._scattered, *self._options))


BLEND_BYTES = 64 << 20


def open_blend(path: str | os.PathLike[str], **options: Any) -> tuple[dict[str, MegatronTokens], dict[str, float] | None]:
    """The data sets of a blend, and their weights, for :func:`penstock.mix`; None if it has no weights.

    A blend is what Megatron takes as ``--data-args-path``: a text of ``weight prefix weight prefix ...``, or of prefixes alone.
    Prefixes are relative to the working directory, as Megatron has it. Options go to every data set.

    >>> import tempfile, pathlib, penstock as pen
    >>> from penstock.source import open_blend, write_documents
    >>> path = pathlib.Path(tempfile.mkdtemp())
    >>> for name in ("web", "code"):
    ...     written = write_documents([[1, 2, 3, 4], [5, 6, 7, 8]], path / f"{name}.idx", dtype="uint16")
    >>> size = (path / "blend.txt").write_text(f"0.3 {path}/web 0.7 {path}/code")
    >>> data, weights = open_blend(path / "blend.txt")
    >>> weights
    {'web': 0.3, 'code': 0.7}
    >>> stream = pen.mix({name: one.shuffle(seed=1).sequences(2) for name, one in data.items()}, weights=weights, seed=1)
    """
    words = _words(Path(path))
    weights = [_weight(Path(path), word) for word in words]
    if any(weight is not None for weight in weights):
        if len(words) % 2 or any((weight is None) == (place % 2 == 0) for place, weight in enumerate(weights)):
            raise FormatError(f"{path}: expected weights and prefixes in turn, or prefixes alone, found {' '.join(words)[:100]!r}")
        prefixes, given = words[1::2], [weight for weight in weights[::2] if weight is not None]
    else:
        prefixes, given = words, None
    names = _names(Path(path), prefixes)
    opened: dict[str, MegatronTokens] = {}
    try:
        for name, prefix in zip(names, prefixes, strict=True):
            opened[name] = open_megatron(f"{prefix}{IDX}", **options)
    except BaseException:
        for source in opened.values():
            source.close()
        raise
    return opened, None if given is None else dict(zip(names, given, strict=True))


def _words(path: Path) -> list[str]:
    file = LocalFile(path.absolute())
    size = file.size
    if size > BLEND_BYTES:
        raise FormatError(f"{path}: expected a blend of at most {BLEND_BYTES} bytes, found {size}")
    try:
        words = file.read(0, size).decode().split()
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: expected a text of weights and prefixes, found something else") from error
    if not words:
        raise FormatError(f"{path}: expected at least one prefix, found none")
    return words


def _weight(path: Path, word: str) -> float | None:
    """The number that a word is; None for a prefix."""
    try:
        weight = float(word)
    except ValueError:
        return None
    if not 0 <= weight < float("inf"):
        raise FormatError(f"{path}: expected weights of 0 or more, found {word[:40]!r}")
    return weight


def _names(path: Path, prefixes: Sequence[str]) -> list[str]:
    """Names of data sets: the last of their paths, or all of it where that is not enough."""
    if len(set(prefixes)) < len(prefixes):
        twice = next(one for one in prefixes if prefixes.count(one) > 1)
        raise FormatError(f"{path}: the prefix {twice} is there twice: write it once, with the sum of the weights")
    short = [Path(prefix).name for prefix in prefixes]
    return short if len(set(short)) == len(short) else list(prefixes)
