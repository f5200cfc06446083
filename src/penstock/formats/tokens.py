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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.argument import IntArray
from penstock.errors import (
    EmptySourceError,
    FormatError,
    MissingError,
    NoMatchError,
    SchemaMismatchError,
    SizeOverflowError,
    TruncatedError,
    UnsupportedTypeError,
)
from penstock.formats.files import File, Files, LocalFile, Names, RemoteFile, children, find_files, has_pattern, need_size
from penstock.formats.rows_in_files import FileRows, Version, default_threads, version_of
from penstock.formats.token_line import BlockRuns, LineOptions, TokenSource, as_elements, heads_of_runs
from penstock.process import map_at_once
from penstock.records import Recipe
from penstock.remote.url import UrlPath
from penstock.remote.window import RemoteOptions
from penstock.schema import Field
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
    "block_runs",
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
    need_size(path, size, whole, f" for {blocks} blocks and {data_bytes} bytes of data")
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


def block_runs(files: Sequence[TokenFile]) -> BlockRuns:
    """The blocks of all files, from their indices, which are checked."""
    are_remote = any(isinstance(file.file, RemoteFile) for file in files)
    parts = [part for runs in map_at_once(_all_runs, files, are_remote=are_remote) for part in runs]
    none = np.empty(0, np.int64)
    counts, sizes = (np.concatenate([none, *column]) for column in (zip(*parts, strict=True) if parts else ((), ())))
    return BlockRuns.of(counts, sizes)


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
        heads = heads_of_runs(sizes)
        yield np.diff(heads, append=count), sizes[heads]
        last = int(ends[-1])
    if last != file.data_bytes:
        raise FormatError(f"{file.file}: expected the last block to end at {file.data_bytes}, found {last}")


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


class TokenBlocks(TokenSource):
    """The blocks of .rox files, one file after the other, as one field; all of one size, or ragged if some block is shorter."""

    def __init__(self, files: Files, field: str, threads: int, io: str, remote: RemoteOptions | None) -> None:
        footers, runs = files.once("tokens", lambda: _look(files))
        dtype = footers[0].dtype
        parts = [FileRows.of(f.file, f.size, 0, f.data_bytes // dtype.itemsize, f.version) for f in footers]
        super().__init__(files, parts, [f.blocks for f in footers], runs, LineOptions(field, dtype, threads, io, remote))

    def _identity(self) -> tuple[Any, ...]:
        return "tokens", self._name

    def _recipe(self) -> Recipe:
        return (TokenBlocks, (self._files, self._name, *self._options))


def _look(files: Files) -> tuple[list[TokenFile], BlockRuns]:
    """The footers, and the blocks of all files."""
    footers = read_footers(files)
    return footers, block_runs(footers)


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
