"""datatrove's tokenized files, which nanotron reads: ``x.ds`` and what is next to it.

::

    x.ds          = tokens, u16 or u32
    x.ds.index    = where every document ends, in tokens, u64
    x.ds.loss     = for every token whether it counts in the loss, a byte of 0 or 1
    x.ds.metadata = name of the tokenizer "|" bytes of a token, number of tokens, the same for people; a line each

Only the first must be there. The type of the tokens follows from the index or the metadata; what both and the caller say must be
the same. At URLs, where it would be a request for every file, the metadata is read only if there is no index.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, whole_number
from penstock.errors import FormatError, MissingError, SchemaMismatchError, SourceChangedError, TrailingBytesError, TruncatedError
from penstock.formats.files import File, Files, Names, Neighbours, RemoteFile, bytes_of, find_files
from penstock.formats.flat_tokens import BLOCK_SIZE, HEAD_BYTES, REMEDY, check_tokens
from penstock.formats.rows_in_files import FileRows, Version, default_threads, version_of
from penstock.formats.token_line import BlockRuns, Documents, LineOptions, MaskedTokens, TokenSource, token_dtype
from penstock.process import map_at_once
from penstock.records import Recipe
from penstock.remote.window import RemoteOptions, SharedWindow

__all__ = ["DatatroveTokens", "open_datatrove"]

SUFFIX, INDEX, LOSS, METADATA = ".ds", ".index", ".loss", ".metadata"
END = np.dtype("<u8")
PIECE = 1 << 20
"""Ends of documents read at a time."""

METADATA_BYTES = 1 << 16


def open_datatrove(
    what: Names,
    *,
    dtype: npt.DTypeLike | None = None,
    loss: bool | None = None,
    block_size: int = BLOCK_SIZE,
    vocab_size: int | None = None,
    check: bool = True,
    field: str = "tokens",
    threads: int | None = None,
    io: str = "auto",
    remote: RemoteOptions | None = None,
) -> "DatatroveTokens | MaskedTokens":
    """Tokenized files as one source: a list keeps its order, a pattern or a directory gives that of the name bytes.

    Records are documents, or blocks of ``block_size`` tokens if there is no index. If there are loss masks, they are a second
    field, ``loss_mask``; ``loss=False`` leaves them out. With ``vocab_size``, the first tokens of every file must be below it. If
    ``dtype`` is given, they must look like tokens of that type, unless ``check=False``.
    """
    given = None if dtype is None else token_dtype(dtype)
    vocabulary = None if vocab_size is None else whole_number("vocab_size", vocab_size, least=1)
    size, count = whole_number("block_size", block_size, least=1), default_threads(threads)
    files = find_files(what, (SUFFIX,))
    near = Neighbours(files)
    index, masks = near.find_all(files, INDEX), None if loss is False else near.find_all(files, LOSS)
    if loss and masks is None:
        raise MissingError(f"{files[0]}{LOSS}: there is no such file, so there is no loss mask; leave loss out")
    if masks is not None and remote is not None:
        remote = replace(remote, shared=remote.shared or SharedWindow())
    layout = _Layout(given, index is not None, size, vocabulary, check=bool(check))
    tokens = DatatroveTokens(_with_indices(files, index), layout, field, count, io, remote, near)
    return tokens if masks is None else tokens.with_mask(masks)


def _with_indices(data: Files, index: Files | None) -> Files:
    return data if index is None else Files(one for pair in zip(data, index, strict=True) for one in pair)


@dataclass(frozen=True)
class _Layout:
    """What is known of all files before they are looked at."""

    dtype: np.dtype[Any] | None
    documents: bool
    block_size: int
    vocab_size: int | None = None
    check: bool = True


@dataclass(frozen=True)
class _Tokenized:
    """What is known of one file."""

    file: File
    size: int
    version: Version | None
    dtype: np.dtype[Any]
    index: File | None
    index_version: Version | None
    documents: int
    is_typed: bool = True
    """Whether the type is known; of a file without tokens it may not be."""

    @property
    def tokens(self) -> int:
        return self.size // self.dtype.itemsize

    @property
    def part(self) -> FileRows:
        return FileRows.of(self.file, self.size, 0, self.tokens, self.version)


def _look(files: Files, layout: _Layout, near: Neighbours | None) -> list[_Tokenized]:
    step = 2 if layout.documents else 1
    pairs = [(file, files[step * number + 1] if layout.documents else None) for number, file in enumerate(files[::step])]
    near = Neighbours(files[::step]) if near is None else near
    found = list(map_at_once(lambda pair: _look_at(*pair, layout, near), pairs, are_remote=files.is_remote))
    sure = next((one for one in found if one.is_typed), None)
    if sure is None and not layout.documents:
        raise _no_type(found[0].file)
    if sure is not None:
        found = [one if one.is_typed else replace(one, dtype=sure.dtype) for one in found]
    for one in found:
        if one.dtype != found[0].dtype:
            raise SchemaMismatchError(f"{one.file}: expected {found[0].dtype} tokens as in {found[0].file}, found {one.dtype}")
    return found


def _look_at(file: File, index: File | None, layout: _Layout, near: Neighbours) -> _Tokenized:
    version, size = version_of(file), bytes_of(file)
    index_version, documents, last = None, 0, 0
    if index is not None:
        index_version, index_bytes = version_of(index), bytes_of(index)
        documents, rest = divmod(index_bytes, END.itemsize)
        if rest:
            raise FormatError(f"{index}: expected the ends of documents, 8 bytes each, found {index_bytes} bytes")
        last = int(_ends(index, documents - 1, documents)[0]) if documents else 0
    metadata = None if last and isinstance(file, RemoteFile) else near.find(file, file.name + METADATA)
    known = _dtype(file, size, (index, last), metadata, layout.dtype)
    dtype = known or np.dtype("<u2")
    if size % dtype.itemsize:
        raise TruncatedError(f"{file}: expected tokens of {dtype}, found {size} bytes, which are no whole number of them")
    if index is not None and last * dtype.itemsize != size:
        raise FormatError(
            f"{index}: expected the last document to end at token {size // dtype.itemsize} of {file.name}, found {last}"
        )
    if size and ((index is None and layout.dtype is not None) or layout.vocab_size is not None):
        check_tokens(file, np.frombuffer(file.first(HEAD_BYTES), np.uint8), dtype, layout.vocab_size, check=layout.check)
    return _Tokenized(file, size, version, dtype, index, index_version, documents, known is not None)


def _ends(index: File, low: int, high: int) -> npt.NDArray[np.uint64]:
    raw = index.read(low * END.itemsize, high * END.itemsize)
    if len(raw) < (high - low) * END.itemsize:
        raise TruncatedError(f"{index}: the file was cut while it was read; open it anew")
    return np.frombuffer(raw, END)


def _dtype(
    file: File, size: int, told: tuple[File | None, int], metadata: File | None, given: np.dtype[Any] | None
) -> np.dtype[Any] | None:
    """The type of tokens by their number, as the index has it, by the metadata, or as given; None for no tokens of which nothing is
    said. Errors if these contradict one another, or the size.
    """
    index, tokens = told
    first, stated, count = (None, None, None) if metadata is None else _stated(metadata)
    if given is not None and stated is not None and given.itemsize != stated.itemsize:
        raise SchemaMismatchError(f"{metadata}: expected tokens of {given}, found that they are {stated}: leave dtype out")
    dtype = given or _dtype_by_index(file, size, index, tokens) or stated
    if dtype is None and size:
        if first is None:
            raise _no_type(file)
        raise FormatError(f"{metadata}: expected 2 or 4 bytes of a token behind the last '|' of line 1, found {first[-40:]!r}")
    if dtype is not None and stated is not None and dtype.itemsize != stated.itemsize:
        raise SchemaMismatchError(f"{metadata}: expected tokens of {dtype}, as {index} has it, found that they are {stated}")
    item = 1 if dtype is None else dtype.itemsize
    if metadata is not None and count is not None and size % item == 0 and size != count * item:
        kind = TruncatedError if size < count * item else TrailingBytesError
        raise kind(
            f"{file}: expected {count} tokens, as {metadata.name} says, found {size // item}; restore the file, or delete "
            f"{metadata.name} if it is of another one"
        )
    return dtype


def _dtype_by_index(file: File, size: int, index: File | None, tokens: int) -> np.dtype[Any] | None:
    if index is None or tokens == 0:
        return None
    for name in ("<u2", "<u4"):
        if tokens * np.dtype(name).itemsize == size:
            return np.dtype(name)
    raise FormatError(f"{index}: the last document ends at token {tokens}, but {file.name} has {size} bytes, neither 2 nor 4 each")


def _stated(metadata: File) -> tuple[bytes, np.dtype[Any] | None, int | None]:
    """Line 1 of the metadata, the type and the number of tokens, each of them None where it is not there."""
    first, _, rest = (metadata.first(METADATA_BYTES) if bytes_of(metadata) else b"").partition(b"\n")
    _, bar, size = first.rpartition(b"|")
    name = {b"2": "<u2", b"4": "<u4"}.get(size.strip() if bar else b"")
    count = rest.partition(b"\n")[0].strip()
    return first, None if name is None else np.dtype(name), int(count) if count.isdigit() and len(count) < 20 else None


def _no_type(file: File) -> FormatError:
    return FormatError(f"{file}: there is no {file.name}{INDEX} or {METADATA} that says of what type its tokens are: {REMEDY}")


class DatatroveTokens(TokenSource):
    """Tokenized files of datatrove, one file after the other."""

    def __init__(
        self,
        files: Files,
        layout: _Layout,
        field: str,
        threads: int,
        io: str,
        remote: RemoteOptions | None,
        near: Neighbours | None = None,
    ) -> None:
        """``near`` knows what is next to the files, where that was found out already."""
        found: Sequence[_Tokenized] = files.once(f"datatrove {layout}", lambda: _look(files, layout, near))
        self._found, self._layout = found, layout
        tokens = [one.tokens for one in found]
        if layout.documents:
            counts = [one.documents for one in found]
            pieces: BlockRuns | Documents = Documents(counts, tokens, self._load, are_remote=files.is_remote)
        else:
            pieces, each = BlockRuns.even(np.array(tokens, np.int64), layout.block_size)
            counts = each.tolist()
        how = LineOptions(field, found[0].dtype, threads, io, remote)
        super().__init__(files, [one.part for one in found], counts, pieces, how)

    def _load(self, number: int, ends: IntArray) -> None:
        one = self._found[number]
        if one.index is None:
            return
        if version_of(one.index) != one.index_version:
            raise SourceChangedError(f"{one.index}: the file was changed after it was opened; open it anew")
        last = 0
        for low in range(0, one.documents, PIECE):
            piece = _ends(one.index, low, min(low + PIECE, one.documents))
            before = np.concatenate([np.array([last], np.uint64), piece[:-1]])
            bad = np.flatnonzero((piece < before) | (piece > one.tokens))
            if bad.size:
                raise FormatError(
                    f"{one.index}: expected document {low + bad[0]} to end between tokens {before[bad[0]]} and {one.tokens}, "
                    f"found {piece[bad[0]]}"
                )
            ends[low : low + piece.size] = piece
            last = int(piece[-1])

    def _name_in_file(self, part: int, number: int) -> str:
        return f"{self._found[part].file}[{number}]"

    def _identity(self) -> tuple[Any, ...]:
        return "datatrove", self._name, self._stored.str, 0 if self._layout.documents else self._layout.block_size

    def _recipe(self) -> Recipe:
        return (DatatroveTokens, (self._files, self._layout, self._name, *self._options))
