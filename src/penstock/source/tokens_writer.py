"""Writing token blocks: documents one after the other, in elements, without padding; all shards or none."""

import os
from collections.abc import Iterable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import byte_size, whole_number
from penstock.errors import ConflictError, SchemaMismatchError
from penstock.progress import Progress
from penstock.schema import MAX_RECORD_BYTES, Field
from penstock.source.files import Files, LocalFile
from penstock.source.publish import NewFile, Staging, refuse_existing
from penstock.source.token_file import (
    DTYPES,
    END,
    FOOTER,
    INDEX_PIECE,
    SUFFIX,
    BlockRuns,
    encode_footer,
    numbered_shards,
    read_footers,
)
from penstock.source.tokens import as_elements

__all__ = ["Document", "write_tokens"]

Document = str | bytes | bytearray | npt.NDArray[Any] | list[int] | tuple[int, ...]
"""A text (stored as UTF-8), a byte string, or numbers."""

_TEXT = (str, bytes, bytearray)

DIGITS = 6
FLUSH_BYTES = 4 << 20


def write_tokens(
    documents: Iterable[Document],
    path: str | os.PathLike[str],
    *,
    dtype: npt.DTypeLike | None = None,
    separator: object = None,
    block_size: int = 4096,
    max_shard_bytes: int | str | None = None,
    append: bool = False,
    progress: Progress | None = None,
) -> list[Path]:
    """Write documents one after the other as blocks of ``block_size`` elements, and return the files; none for no tokens at all.

    ``x.rox`` is one file; with ``max_shard_bytes`` or ``append`` it stands for the shards ``x_000000.rox``, ... The last block is
    as short as it comes: nothing is padded. ``separator``, an element or a sequence of them, goes behind every document. ``dtype``
    is that of the shards that there are, or of the first document (uint8 for texts and byte strings) unless given; a value that
    does not fit raises ValueError. ``append`` adds shards behind those that there are, which are not touched. The files appear
    under their names, one after the other, when all is written and durable; if anything fails there are none.
    """
    if isinstance(documents, str | bytes | bytearray):
        raise TypeError(f"expected documents, got one {type(documents).__name__}: write [document]")
    size = whole_number("block_size", block_size, least=1)
    most = None if max_shard_bytes is None else byte_size("max_shard_bytes", max_shard_bytes)
    target = _Target(Path(path).absolute(), is_sharded=append or most is not None, append=append)
    known = target.fitting_dtype(dtype, size)
    rest = iter(documents)
    first = list(islice(rest, 1))
    if not first:
        return []
    encoder = _Encoder(first[0], known, separator, converts=dtype is not None)
    with Staging(target.path) as staging:
        shards = _Shards(staging, target, encoder.dtype, size, most)
        _write_all(chain(first, rest), encoder, shards, progress)
        return target.publish(staging, shards.names)


def _write_all(documents: Iterable[Document], encoder: "_Encoder", shards: "_Shards", progress: Progress | None) -> None:
    pending, waiting = bytearray(), 0
    for number, document in enumerate(documents):
        pending += encoder.encode(number, document)
        pending += encoder.separator
        waiting += 1
        if len(pending) >= FLUSH_BYTES:
            taken = shards.add(pending)
            del pending[:taken]
            if progress is not None:
                progress(waiting, taken)
            waiting = 0
    shards.finish(pending)
    if progress is not None and (waiting or pending):
        progress(waiting, len(pending))


class _Target:
    """The name to be written, and the shards that there are of it."""

    def __init__(self, path: Path, *, is_sharded: bool, append: bool) -> None:
        if path.suffix != SUFFIX:
            raise ValueError(f"path must end in {SUFFIX}, got {path}")
        self.path, self._is_sharded, self._append = path, is_sharded, append
        self._old = numbered_shards(path)
        first = f"{path.stem}_{0:0{DIGITS}d}{SUFFIX}"
        refuse_existing(path, f"rename it to {first} to append" if append else "choose another name")
        if self._old and not append:
            refuse_existing(self._old[0][1], "choose another name, or give append=True")

    def name(self, number: int) -> str:
        """The name of the new file of that number. Names have as many digits as those that there are, so that they sort."""
        if not self._is_sharded:
            return self.path.name
        first, digits = 0, DIGITS
        if self._old:
            last, path = self._old[-1]
            first, digits = last + 1, len(path.stem) - len(self.path.stem) - 1
        if len(str(first + number)) > digits:
            raise ValueError(f"{self.path}: there is no shard number {first + number} with {digits} digits; let shards be larger")
        return f"{self.path.stem}_{first + number:0{digits}d}{SUFFIX}"

    def fitting_dtype(self, wanted: npt.DTypeLike | None, block_size: int) -> np.dtype[Any] | None:
        """The element type that was given, or that of the shards that there are, which must be the same; None for neither."""
        dtype = None if wanted is None else _checked(wanted)
        if not self._old:
            return dtype
        files = read_footers(Files(LocalFile(path) for _, path in self._old))
        if dtype is not None and dtype != files[0].dtype:
            raise SchemaMismatchError(f"{files[0].file}: expected shards of {dtype} to append to, found {files[0].dtype}")
        for file in reversed(files):  # only the last block of a shard may be short, so one with several tells their size
            sizes = BlockRuns.of([file]).sizes
            if sizes.max(initial=0) > block_size or (file.blocks > 1 and sizes[0] != block_size):
                raise SchemaMismatchError(
                    f"{file.file}: expected blocks of {block_size} elements to append to, found blocks of {sizes.max()}"
                )
            if file.blocks > 1:
                break
        return files[0].dtype

    def publish(self, staging: Staging, names: list[str]) -> list[Path]:
        """Let the files appear."""
        paths = [self.path.with_name(name) for name in names]
        try:
            staging.publish(paths)
        except FileExistsError as error:
            if not self._append:
                raise
            raise ConflictError(f"{self.path}: another writer added shards meanwhile; nothing was added here, try again") from error
        return paths


def _checked(dtype: npt.DTypeLike) -> np.dtype[Any]:
    made: np.dtype[Any] = Field("bf16").dtype if isinstance(dtype, str) and dtype == "bfloat16" else np.dtype(dtype)
    if str(made) in DTYPES:
        return made
    why = f"; the format has room for 8 bytes of its name, and it has {len(str(made))}" if len(str(made)) > 8 else ""
    raise TypeError(f"expected whole numbers or floats of up to 64 bits, got {made}{why}")


class _Encoder:
    """Documents as bytes. They must all be texts or byte strings, or all be numbers, of one type unless they are converted."""

    def __init__(self, first: Document, dtype: np.dtype[Any] | None, separator: object, *, converts: bool) -> None:
        self._is_text, self._converts = isinstance(first, _TEXT), converts
        if dtype is None and isinstance(first, list | tuple):
            raise TypeError("document 0: lists of numbers need dtype=, such as 'uint16'")
        self.dtype = _checked(first.dtype if isinstance(first, np.ndarray) else np.uint8) if dtype is None else dtype
        if self._is_text and self.dtype != np.uint8:
            raise TypeError(f"document 0: expected numbers for {self.dtype}, got {type(first).__name__}; texts are uint8")
        self.separator = b"" if separator is None else as_elements("separator", separator, self.dtype).tobytes()

    def encode(self, number: int, document: Document) -> bytes | bytearray | memoryview:
        """The bytes of a document."""
        if isinstance(document, _TEXT) != self._is_text:
            before = "a text or byte string" if self._is_text else "an array or a list of numbers"
            raise TypeError(f"document {number}: expected {before} as before, got {type(document).__name__}")
        if isinstance(document, bytes | bytearray):
            return document
        if isinstance(document, str):
            return _utf8(number, document)
        if not isinstance(document, np.ndarray | list | tuple):
            raise TypeError(f"document {number}: expected a text, a byte string or numbers, got {type(document).__name__}")
        if isinstance(document, np.ndarray) and not self._converts and document.dtype != self.dtype:
            raise TypeError(f"document {number}: expected {self.dtype} as before, got {document.dtype}; give dtype= to convert")
        return np.ascontiguousarray(as_elements(f"document {number}", document, self.dtype)).view(np.uint8).data


def _utf8(number: int, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"document {number}: expected a text of Unicode characters: {error}") from error


class _Shards:
    """The shards under way: blocks as they come, the index and the footer at the end of each."""

    def __init__(self, staging: Staging, target: _Target, dtype: np.dtype[Any], block_size: int, most_bytes: int | None) -> None:
        self._staging, self._target, self._dtype, self._most = staging, target, dtype, most_bytes
        self._block = block_size * dtype.itemsize
        if self._block > MAX_RECORD_BYTES:
            raise ValueError(f"block_size must be at most {MAX_RECORD_BYTES // dtype.itemsize} for {dtype}, got {block_size}")
        # A shard takes another block while data, index and footer stay within the limit, and one in any case.
        self._capacity = 2**63 if most_bytes is None else max(1, (most_bytes - FOOTER.size) // (self._block + END.itemsize))
        self._file: NewFile | None = None
        self.names: list[str] = []

    def add(self, data: bytearray) -> int:
        """Write whole blocks; returns the bytes of them."""
        whole, done = len(data) // self._block * self._block, 0
        while done < whole:
            file = self._current(self._block)
            part = memoryview(data)[done : min(whole, done + self._capacity * self._block - file.size)]
            file.write(part)
            done += len(part)
        return whole

    def finish(self, data: bytearray) -> None:
        """Write all that is left, and end the last shard."""
        tail = memoryview(data)[self.add(data) :]
        if len(tail) > 0:
            self._current(len(tail)).write(tail)
        if self._file is not None:
            self._end(self._file)

    def _current(self, size: int) -> NewFile:
        """The shard that takes the next block, of so many bytes."""
        if self._file is not None and self._most is not None:
            blocks = self._file.size // self._block + 1
            if self._file.size + size + blocks * END.itemsize + FOOTER.size > self._most:
                self._end(self._file)
        if self._file is None:
            self.names.append(self._target.name(len(self.names)))
            self._file = self._staging.new_file(self.names[-1])
        return self._file

    def _end(self, file: NewFile) -> None:
        data_bytes = file.size
        blocks = -(-data_bytes // self._block)
        for low in range(0, blocks, INDEX_PIECE):
            ends = np.arange(low + 1, min(low + INDEX_PIECE, blocks) + 1, dtype=END) * self._block
            file.write(np.minimum(ends, data_bytes))
        file.write(encode_footer(blocks, data_bytes, self._dtype))
        file.finish()
        self._file = None
