"""Flat token files: nothing but tokens. The .npy of OLMo and dolma, which have no header, the .bin of nanoGPT and llm.c, and the
.ds of datatrove, which nanotron reads.

::

    .npy of OLMo, .bin of nanoGPT = tokens
    .bin of llm.c                 = 256 x i32: magic, version, tokens, zeros | tokens: u16 of magic 20240520, u32 of magic 20240801
    .csv.gz of OLMo               = a line for every document: start,end[,id,source,location], in tokens
    label mask of OLMo            = for every token whether it counts in the loss, a byte of 0 or 1
    x.ds of datatrove             = tokens, u16 or u32
    x.ds.index                    = where every document ends, in tokens, u64
    x.ds.loss                     = for every token whether it counts in the loss, a byte of 0 or 1
    x.ds.metadata                 = name of the tokenizer "|" bytes of a token, number of tokens, the same for people; a line each

Only llm.c says of what type the tokens are. Otherwise ``dtype`` must be given, or the table of documents tells it. Of datatrove's
files only the first must be there. The type follows from the index or the metadata; what both and the caller say must be the same.
At URLs, where it would be a request for every file, the metadata is read only if there is no index.
"""

import struct
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, whole_number
from penstock.errors import (
    CorruptError,
    FormatError,
    MissingError,
    SchemaMismatchError,
    SizeOverflowError,
    SourceChangedError,
    TrailingBytesError,
    TruncatedError,
    UnsupportedVersionError,
)
from penstock.formats import array as array_files
from penstock.formats.files import File, Files, Names, Neighbours, RemoteFile, bytes_of, find_files, one_line
from penstock.formats.megatron import BIN, IDX, open_megatron
from penstock.formats.rows_in_files import FileRows, Version, default_threads, version_of
from penstock.formats.token_line import (
    BlockRuns,
    Documents,
    LineOptions,
    MaskedTokens,
    TokenSource,
    as_elements,
    document_ends,
    token_dtype,
)
from penstock.process import map_at_once
from penstock.records import Recipe, Source
from penstock.remote.window import RemoteOptions, SharedWindow

__all__ = ["TABLE", "DatatroveTokens", "FlatTokens", "open_bin", "open_datatrove", "open_flat", "open_npy_file"]

BLOCK_SIZE = 4096
"""Tokens of a record where files do not say where documents end."""

HEAD_BYTES = 4096
"""Looked at to see that a file is what it is said to be."""

LLM_C = struct.Struct("<3i")
LLM_C_BYTES, LLM_C_TYPES = 1024, {20240520: (1, "<u2"), 20240801: (7, "<u4")}

OTHERS = {
    b"\x93NUMPY": "a .npy file with a header: leave dtype out",
    b"MMIDIDX\0\0": "a Megatron index: leave dtype out",
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "gzip: unpack it",
    b"\x28\xb5\x2f\xfd": "zstd: unpack it",
    b"PAR1": "Parquet: leave dtype out",
    b"ARROW1": "Arrow: leave dtype out",
    b"\x89HDF\r\n\x1a\n": "HDF5: leave dtype out",
    b"GAMSAE01": "a row shard: leave dtype out",
}
"""How other files begin."""

LARGEST_VOCABULARY = 1 << 24
SMALL_WORD = 1 << 4

TABLE = ".csv.gz"
LINE_BYTES = 1 << 20
PIECE_BYTES = 1 << 20
REMEDY = "pass dtype='uint16' or whatever the tokenizer wrote (on the command line: --option dtype=uint16)"


def open_npy_file(what: Names, **options: Any) -> Source:
    """A .npy file with a header; or one of OLMo or dolma, which has none, if an option is given that is one of those."""
    is_flat = not {"dtype", "documents", "separator", "loss"}.isdisjoint(options)
    return open_flat(what, **options) if is_flat else array_files.open_npy(what, **options)


def open_bin(what: Names, **options: Any) -> TokenSource | MaskedTokens:
    """Files that end in .bin: of Megatron if there is an .idx next to each of them, flat ones otherwise."""
    files = find_files(what, (BIN,))
    near = Neighbours(files)
    indexed = files.each(lambda file: near.find(file, file.name[: -len(BIN)] + IDX) is not None)
    if all(indexed):
        return open_megatron(list(files), **options)
    if any(indexed):
        raise SchemaMismatchError(
            f"{files[indexed.index(False)]}: expected an {IDX} next to it, as next to {files[indexed.index(True)]}, found none"
        )
    for file in {str(file.path.parent): file for file in files}.values():
        if near.find(file, "index.json") is not None:
            raise FormatError(
                f"{file}: there is an index.json next to it, which says what is in it: open {file.path.parent} instead"
            )
    return open_flat(files, **options)


def open_flat(
    what: Names,
    *,
    dtype: npt.DTypeLike | None = None,
    documents: bool = False,
    separator: object = None,
    loss: Names | Literal[False] | None = None,
    block_size: int = BLOCK_SIZE,
    vocab_size: int | None = None,
    check: bool = True,
    field: str = "tokens",
    threads: int | None = None,
    io: str = "auto",
    remote: RemoteOptions | None = None,
) -> "FlatTokens | MaskedTokens":
    """Flat token files as one source: a list keeps its order, a pattern or a directory gives that of the name bytes.

    Records are blocks of ``block_size`` tokens. With ``documents=True`` they are the documents in the .csv.gz next to every file,
    and what is behind the last one; with ``separator``, a token or several, the documents that end with it or with their file, for
    which all tokens are read once. ``loss`` names the label masks, a flat file of bytes for every file, in the same order: they
    are a second field, ``loss_mask``. The first tokens of every file must be below ``vocab_size``, or 2^24 without it. Files that
    look like tokens of 4 bytes though ``dtype`` has 2, or that begin with the magic of llm.c but not with its header, are
    refused; ``check=False`` takes them as they are.
    """
    if documents and separator is not None:
        raise ValueError("documents are those of the .csv.gz, or end with the separator: give documents or separator, got both")
    files = find_files(what, (".npy", BIN))
    masks = None if loss is None or loss is False else _find_masks(loss)
    if masks is not None and remote is not None:
        remote = replace(remote, shared=remote.shared or SharedWindow())
    if documents:
        near = Neighbours(files)
        files = Files(one for file in files for one in (file, near.named(file, file.name[: -len(file.path.suffix)] + TABLE)))
    layout = _Layout.of(dtype, documents, block_size, vocab_size, check, separator)
    tokens = FlatTokens(files, layout, field, default_threads(threads), io, remote)
    return tokens if masks is None else tokens.with_mask(masks)


def _tokens_of(separator: Any) -> tuple[int, ...]:
    """The tokens of a separator, checked against their type when that is known."""
    tokens = as_elements("separator", separator, np.dtype("i8"))
    if tokens.size == 0:
        raise ValueError("separator must have at least one element, got none")
    return tuple(tokens.tolist())


def _find_masks(what: Any) -> Files:
    if isinstance(what, bool):
        raise TypeError("loss: expected the names of the label masks, which flat files do not tell, got True")
    return find_files(what, (".npy", BIN))


@dataclass(frozen=True)
class _Layout:
    """What is known of all files before they are looked at."""

    dtype: np.dtype[Any] | None
    documents: bool
    block_size: int
    vocab_size: int | None
    check: bool
    separator: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls,
        dtype: npt.DTypeLike | None,
        documents: bool,
        block_size: int,
        vocab_size: int | None,
        check: bool,
        separator: object = None,
    ) -> "_Layout":
        return cls(
            None if dtype is None else token_dtype(dtype),
            bool(documents),
            whole_number("block_size", block_size, least=1),
            None if vocab_size is None else whole_number("vocab_size", vocab_size, least=1),
            bool(check),
            None if separator is None else _tokens_of(separator),
        )

    @property
    def has_documents(self) -> bool:
        """Whether records are documents, rather than blocks."""
        return self.documents or self.separator is not None


@dataclass(frozen=True)
class _Flat:
    """What is known of a file."""

    file: File
    size: int
    version: Version | None
    offset: int
    dtype: np.dtype[Any]
    ends: IntArray | None
    """Where documents end, in tokens, if they are wanted."""

    @property
    def tokens(self) -> int:
        return (self.size - self.offset) // self.dtype.itemsize

    @property
    def part(self) -> FileRows:
        return FileRows.of(self.file, self.size, self.offset, self.tokens, self.version)


def _look(files: Files, layout: _Layout) -> list[_Flat]:
    tables: Sequence[File | None] = files[1::2] if layout.documents else [None] * len(files)
    numbers = dict(zip(map(id, files[:: 2 if layout.documents else 1]), tables, strict=True))
    data = Files(files[::2]) if layout.documents else files
    found = data.each(lambda file: _look_at(file, numbers[id(file)], layout))
    _need_one_type(found)
    return found


def _need_one_type(found: "Sequence[_Flat | _Tokenized]") -> None:
    for one in found:
        if one.dtype != found[0].dtype:
            raise SchemaMismatchError(f"{one.file}: expected {found[0].dtype} tokens as in {found[0].file}, found {one.dtype}")


def _look_at(file: File, table: File | None, layout: _Layout) -> _Flat:
    version, head = version_of(file), file.first(HEAD_BYTES)
    size = file.size
    other = next((what for magic, what in OTHERS.items() if head.startswith(magic)), None)
    if other is not None:
        raise FormatError(f"{file}: expected tokens without a header, found {other}")
    stated = _llm_c_dtype(file, head, size)
    if stated is None and layout.check:
        _need_no_magic(file, head)
    offset = 0 if stated is None else LLM_C_BYTES
    if stated is not None and layout.dtype not in (None, stated):
        raise SchemaMismatchError(f"{file}: the header says that tokens are {stated}, not {layout.dtype}: leave dtype out")
    dtype, ends = stated or layout.dtype, None
    is_sure = stated is not None
    if table is not None:
        most = (size - offset) // (1 if dtype is None else dtype.itemsize)
        ends = _read_ends(table, most)
        told = int(ends[-1]) if ends.size else 0
        dtype = dtype or _dtype_by_table(file, head[offset:], size - offset, told)
        is_sure |= told * dtype.itemsize == size - offset
        if told < (size - offset) // dtype.itemsize:
            ends = np.append(ends, (size - offset) // dtype.itemsize)
    if dtype is None:
        raise FormatError(f"{file}: the file does not state the type of its tokens: {REMEDY}")
    if (size - offset) % dtype.itemsize:
        raise TruncatedError(f"{file}: expected tokens of {dtype}, found {size - offset} bytes, which are no whole number of them")
    if not is_sure or layout.vocab_size is not None:
        check_tokens(file, np.frombuffer(head[offset:], np.uint8), dtype, layout.vocab_size, check=layout.check)
    if layout.separator is not None:
        ends = _scanned_ends(file, offset, size, as_elements("separator", layout.separator, dtype))
    return _Flat(file, size, version, offset, dtype, ends)


def _scanned_ends(file: File, offset: int, size: int, separator: npt.NDArray[Any]) -> IntArray:
    """Where documents end that end with a separator, in tokens; the last one may end with the file."""
    item = separator.itemsize
    tokens = (size - offset) // item

    def read(low: int, count: int) -> npt.NDArray[Any]:
        raw = file.read(offset + low * item, offset + (low + count) * item)
        if len(raw) < count * item:
            raise TruncatedError(f"{file}: expected {size} bytes, the file was cut while it was read")
        return np.frombuffer(raw, separator.dtype)

    return np.concatenate([np.empty(0, np.int64), *document_ends(read, tokens, separator)])


def _llm_c_dtype(file: File, head: bytes, size: int) -> np.dtype[Any] | None:
    """The type of the tokens of llm.c; None for a file without its header."""
    if file.path.suffix.lower() != BIN or len(head) < LLM_C.size:
        return None
    magic, version, tokens = LLM_C.unpack_from(head)
    if magic not in LLM_C_TYPES or any(head[LLM_C.size : LLM_C_BYTES]):
        return None
    expected, name = LLM_C_TYPES[magic]
    if version != expected:
        raise UnsupportedVersionError(f"{file}: expected version {expected} of the header of llm.c, found {version}")
    dtype = np.dtype(name)
    whole = LLM_C_BYTES + tokens * dtype.itemsize
    if tokens < 0 or size != whole:
        kind = TruncatedError if size < whole else TrailingBytesError
        raise kind(f"{file}: expected {whole} bytes for {tokens} tokens behind the header, found {size}")
    return dtype


def _need_no_magic(file: File, head: bytes) -> None:
    """FormatError if a file begins as those of llm.c do, but is none: as tokens, the header would be the first of them."""
    magic = int.from_bytes(head[:4], "little")
    if magic in LLM_C_TYPES:
        is_header = len(head) >= LLM_C_BYTES and not any(head[LLM_C.size : LLM_C_BYTES])
        remedy = f"rename the file to {BIN}" if is_header else "restore its header, in which zeros follow"
        raise FormatError(
            f"{file}: expected tokens without a header, found the magic {magic} of llm.c: {remedy}, or pass check=False if "
            "these are tokens"
        )


def _dtype_by_table(file: File, head: bytes, size: int, tokens: int) -> np.dtype[Any]:
    """The type that the number of tokens in the table of documents leaves. One that fits 4 bytes may also be that of the first half
    of tokens of 2 bytes, since tokens may follow the last document; the tokens tell which.
    """
    if tokens and tokens * 2 == size:
        return np.dtype("<u2")
    if tokens == 0 or tokens * 4 != size:
        raise FormatError(
            f"{file}: its table of documents has {tokens} tokens, which fill {size} bytes neither by 2 nor by 4: {REMEDY}"
        )
    if not _are_halves(np.frombuffer(head[: len(head) // 4 * 4], "<u2")):
        raise FormatError(
            f"{file}: its table of documents fits all tokens of 4 bytes and half of those of 2, and the tokens do not tell which "
            f"they are: {REMEDY}"
        )
    return np.dtype("<u4")


def _are_halves(words: npt.NDArray[Any]) -> bool:
    """Whether words of 2 bytes look like the halves of tokens of 4: every second one is small."""
    pairs = words[: words.size // 2 * 2].reshape(-1, 2)
    high = pairs[:, 0] if words.dtype.str[0] == ">" else pairs[:, 1]
    return len(pairs) >= 64 and int(high.max()) < SMALL_WORD <= int(pairs.max())


def check_tokens(
    file: File, head: npt.NDArray[np.uint8], dtype: np.dtype[Any], vocab_size: int | None, *, check: bool = True
) -> None:
    """FormatError if the first tokens of a file show that they are of another type; with ``check=False`` pairs may look like one
    number of 4 bytes.
    """
    found = head[: head.size // dtype.itemsize * dtype.itemsize].view(dtype)
    if found.size == 0:
        return
    limit, low, high = vocab_size or LARGEST_VOCABULARY, int(found.min()), int(found.max())
    if low < 0 or high >= limit:
        known = f"a vocabulary of {vocab_size}" if vocab_size else "any vocabulary"
        raise FormatError(
            f"{file}: expected tokens of {dtype}, found {low if low < 0 else high} among the first, which is not in {known}: give "
            "the dtype that was written, or vocab_size= if these are tokens"
        )
    if check and dtype.itemsize == 2 and _are_halves(found):
        raise FormatError(
            f"{file}: expected tokens of {dtype}, found that every second one is below {SMALL_WORD}, as in tokens of 4 bytes: "
            "give the dtype that was written, or check=False if these are tokens"
        )


# The table of documents


def _read_ends(table: File, most: int) -> IntArray:
    """Where documents end, checked: each begins where the one before ended, and the last ends by ``most`` tokens."""
    ends, last = array("q"), 0
    for number, line in enumerate(_lines(table)):
        start, _, rest = line.partition(b",")
        stop = rest.partition(b",")[0]
        if not (start.strip().isdigit() and stop.strip().isdigit() and len(start) < 20 and len(stop) < 20):
            raise FormatError(f"{table}: expected start,end in line {number}, found {one_line(repr(line[:60]), 80)}")
        if int(start) != last or not last <= int(stop) <= most:
            raise FormatError(
                f"{table}: expected document {number} to begin at {last} and to end by {most}, found {int(start)} to {int(stop)}"
            )
        if number > most:
            raise SizeOverflowError(f"{table}: expected at most one document for each of {most} tokens, found more")
        last = int(stop)
        ends.append(last)
    return np.frombuffer(ends, np.int64) if ends else np.empty(0, np.int64)


def _lines(table: File) -> Iterator[bytes]:
    """The lines of a .csv.gz, none of which is longer than a megabyte."""
    left = b""
    for piece in _unpacked(table):
        *lines, left = (left + piece).split(b"\n")
        yield from lines
        if len(left) > LINE_BYTES:
            raise FormatError(f"{table}: expected lines of at most {LINE_BYTES} bytes, found a longer one")
    if left:
        yield left


def _unpacked(table: File) -> Iterator[bytes]:
    """The content of a gzip file, at most a megabyte at a time."""
    size, at, unzip = table.size, 0, zlib.decompressobj(wbits=31)
    waiting = b""
    try:
        while waiting or at < size:
            if not waiting:
                waiting = table.read(at, min(size, at + PIECE_BYTES))
                at += len(waiting)
                if not waiting:
                    raise TruncatedError(f"{table}: expected {size} bytes, the file was cut while it was read")
            if unzip.eof:  # another member follows
                unzip = zlib.decompressobj(wbits=31)
            yield unzip.decompress(waiting, PIECE_BYTES)
            waiting = unzip.unused_data if unzip.eof else unzip.unconsumed_tail
        while tail := b"" if unzip.eof else unzip.decompress(b"", PIECE_BYTES):
            yield tail
    except zlib.error as error:
        raise CorruptError(f"{table}: expected gzip data, found something else ({error})") from error
    if not unzip.eof:
        raise TruncatedError(f"{table}: the gzip data ends too early")


class FlatTokens(TokenSource):
    """Flat token files, one after the other, in blocks or documents."""

    def __init__(self, files: Files, layout: _Layout, field: str, threads: int, io: str, remote: RemoteOptions | None) -> None:
        found: list[_Flat] = files.once(f"flat {layout}", lambda: _look(files, layout))
        self._found, self._layout = found, layout
        tokens = [one.tokens for one in found]
        if layout.has_documents:
            ends = [np.empty(0, np.int64) if one.ends is None else one.ends for one in found]
            counts = list(map(len, ends))
            pieces: BlockRuns | Documents = Documents(counts, tokens, self._load, are_remote=False)
        else:
            pieces, each = BlockRuns.even(np.array(tokens, np.int64), layout.block_size)
            counts = each.tolist()
        how = LineOptions(field, found[0].dtype, threads, io, remote)
        super().__init__(files, [one.part for one in found], counts, pieces, how)

    def _load(self, number: int, ends: IntArray) -> None:
        known = self._found[number].ends
        if known is not None:
            ends[:] = known

    def _name_in_file(self, part: int, number: int) -> str:
        """The id in the table of documents, if it has one."""
        if not self._layout.documents:
            return f"{self._found[part].file}[{number}]"
        line = next((line for at, line in enumerate(_lines(self._files[2 * part + 1])) if at == number), b"")
        names = [text for text in line.decode("utf-8", "replace").strip().split(",")[2:] if text]
        return f"{self._found[part].file}[{number}]{' ' if names else ''}{one_line(','.join(names), 500)}"

    def _identity(self) -> tuple[Any, ...]:
        layout = self._layout
        how = (layout.documents, 0 if layout.has_documents else layout.block_size)
        return "flat tokens", self._name, self._stored.str, *how, *(() if layout.separator is None else (layout.separator,))

    def _recipe(self) -> Recipe:
        return (FlatTokens, (self._files, self._layout, self._name, *self._options))


# datatrove

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
    files = find_files(what, (SUFFIX,))
    near = Neighbours(files)
    index, masks = near.find_all(files, INDEX), None if loss is False else near.find_all(files, LOSS)
    if loss and masks is None:
        raise MissingError(f"{files[0]}{LOSS}: there is no such file, so there is no loss mask; leave loss out")
    if masks is not None and remote is not None:
        remote = replace(remote, shared=remote.shared or SharedWindow())
    layout = _Layout.of(dtype, index is not None, block_size, vocab_size, check)
    tokens = DatatroveTokens(_with_indices(files, index), layout, field, default_threads(threads), io, remote, near)
    return tokens if masks is None else tokens.with_mask(masks)


def _with_indices(data: Files, index: Files | None) -> Files:
    return data if index is None else Files(one for pair in zip(data, index, strict=True) for one in pair)


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


def _look_datatrove(files: Files, layout: _Layout, near: Neighbours | None) -> list[_Tokenized]:
    step = 2 if layout.documents else 1
    pairs = [(file, files[step * number + 1] if layout.documents else None) for number, file in enumerate(files[::step])]
    near = Neighbours(files[::step]) if near is None else near
    found = list(map_at_once(lambda pair: _look_at_datatrove(*pair, layout, near), pairs, are_remote=files.is_remote))
    sure = next((one for one in found if one.is_typed), None)
    if sure is None and not layout.documents:
        raise _no_type(found[0].file)
    if sure is not None:
        found = [one if one.is_typed else replace(one, dtype=sure.dtype) for one in found]
    _need_one_type(found)
    return found


def _look_at_datatrove(file: File, index: File | None, layout: _Layout, near: Neighbours) -> _Tokenized:
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
        raise TruncatedError(f"{index}: the file was cut while it was read; open it again")
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
    return FormatError(f"{file}: there is no {file.name}{INDEX} or {METADATA} that states the type of its tokens: {REMEDY}")


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
        found: Sequence[_Tokenized] = files.once(f"datatrove {layout}", lambda: _look_datatrove(files, layout, near))
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
            raise SourceChangedError(f"{one.index}: the file was changed after it was opened; open it again")
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
