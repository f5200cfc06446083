"""Text files whose records are lines: JSON lines and CSV. Where each line is, found in one pass and kept in a sidecar; lines read
by native threads and parsed a batch at a time; compressed files decoded a block at a time.

A format says what its lines are (:class:`LineFormat`); everything else is here.
"""

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray
from penstock.batch import Batch, Outputs, empty
from penstock.errors import CorruptError, FormatError, SchemaMismatchError, SizeOverflowError, TruncatedError
from penstock.formats import spans as span_files
from penstock.formats.arrow import Decoding, Group, GroupSource, sealed_column
from penstock.formats.arrow_file import ArrowField, translated
from penstock.formats.files import Files, FileSource, check_block
from penstock.formats.parquet import RangeFile
from penstock.formats.rows_in_files import reader_of_memory
from penstock.formats.sidecar import sealed, unsealed
from penstock.formats.spans import FileSpans, ParsedSpans, ScannedFile, SpanField, SpanIndex, SpanOptions, SpanSource
from penstock.native import _core
from penstock.process import Recent, need
from penstock.progress import reporting
from penstock.records import Extents, Recipe, Source
from penstock.remote.window import RemoteFiles, RemoteOptions
from penstock.row_table import expanded
from penstock.schema import MAX_RECORD_BYTES, Field

__all__ = ["LineFormat", "LineParser", "Seen", "TextOptions", "Where", "decompressed", "open_lines"]

VERSION = 1
"""Of what is kept in sidecars."""

PIECE_BYTES, PIECES = 4 << 20, 4
"""Bytes that are searched for lines at a time, and pieces of that size that are read at once, into one buffer: memory that was
never touched takes longer than the search (0.9 GB/s a core with a new buffer of 32 MiB each time, 1.6 with one of 16).
"""

SAMPLED_LINES, SAMPLED_BYTES = 1024, 8 << 20
"""Lines of a file that its fields are inferred from, at most: the first of equal runs of bytes."""

FEW_FILES = 16
LEAST_SAMPLED = 16
"""Lines that are sampled in any case, however long they are."""

SPAN_BYTES = 64 << 10
BAR_BYTES = 1 << 30
"""A bar is shown while a file of at least this many bytes is searched, if it is the only one."""

BLOCK_BYTES = 4 << 20
"""Frames of compressed files are put together to blocks of at least this many decoded bytes."""

COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
ZSTD_MAGIC, SKIPPABLE = 0xFD2FB528, 0x184D2A5
LINE = "line"

Texts = npt.NDArray[np.uint8]
Where = Callable[[int], str]
"""Says where the i-th line of a text is, for messages."""

Seen = Sequence[tuple[str, Mapping[str, Any]]]
"""Paths of files, and what some of their lines show."""


class LineParser(Protocol):
    """Turns lines into columns. Safe to use from several threads."""

    def parse(self, names: Sequence[str], text: Texts, offsets: IntArray, where: Where) -> dict[str, list[Any]]:
        """The Arrow arrays of fields, of lines [offsets[i], offsets[i + 1]) of a text. A line that does not fit is an error."""


class LineFormat(Protocol):
    """What lines are. Pickled with its source."""

    @property
    def name(self) -> str:
        """Of the format, in fingerprints and sidecars; at most 9 letters."""

    @property
    def delimiter(self) -> str:
        """See :class:`penstock._core.LineScanner`."""

    @property
    def has_header(self) -> bool:
        """Whether the first line of a file is no record."""

    @property
    def identity(self) -> tuple[Any, ...]:
        """All that decides on the records besides the bytes of the files."""

    @property
    def line_identity(self) -> tuple[Any, ...]:
        """All of that that decides on where lines are, and what they show."""

    def observe(self, path: str, header: bytes | None, lines: Sequence[bytes], where: Where) -> dict[str, Any]:
        """What some lines of a file show of its fields: JSON values, which are kept in the sidecar."""

    def choose(self, seen: Seen) -> dict[str, ArrowField]:
        """The fields, by what was seen in each file. Paths are the names of the fields."""

    def parser(self, leaves: Mapping[str, ArrowField], seen: Seen) -> LineParser: ...


@dataclass(frozen=True)
class TextOptions:
    """How lines are delivered and read: ``raw`` as they are, in one field; threads, caches and limits."""

    raw: bool
    io: str
    decoding: Decoding
    remote: RemoteOptions | None

    @property
    def spans(self) -> SpanOptions:
        return SpanOptions(self.decoding.threads, self.io, self.remote)


def open_lines(files: Files, how: LineFormat, options: TextOptions) -> Source:
    compressed = [_codec(file.name) is not None for file in files]
    if all(compressed):
        if options.raw:
            raise ValueError(f"raw=True is for files that are not compressed, got {files[0]}")
        return CompressedLines(files, how, options)
    if any(compressed):
        raise SchemaMismatchError(
            f"{files[compressed.index(True)]}: expected files that are all compressed or all plain, found both: open each kind by "
            "itself, and the sources as a list"
        )
    return (RawLines if options.raw else LineSource)(files, how, options)


def _codec(name: str) -> str | None:
    """How a file of that name is compressed."""
    return COMPRESSED.get(os.path.splitext(name)[1].lower())


# One pass over a file


@dataclass(frozen=True)
class _Notes:
    """What is kept of a file besides where its records are: what some of them show, and how many lines there are, those of nothing
    too. Of a compressed file also from and to of every block in the text that it decodes to, and its records.
    """

    seen: Mapping[str, Any]
    lines: int
    blocks: Sequence[tuple[int, int, int]] = ()

    def to_bytes(self) -> Texts:
        return sealed({"seen": self.seen, "lines": self.lines, "blocks": self.blocks})

    @classmethod
    def of(cls, path: str, data: Texts) -> "_Notes":
        found = unsealed(path, data)
        return cls(found["seen"], int(found["lines"]), [tuple(block) for block in found["blocks"]])


class _Sample:
    """Some lines of a text that comes in pieces: the first that begins in each run of ``step`` bytes. The runs grow with the text,
    so that the lines are spread over all of it, whatever its size.
    """

    def __init__(self, most: int) -> None:
        self._most, self._step, self._bytes = most, 1, 0
        self._lines: list[tuple[int, bytes]] = []

    def add(self, spans: IntArray, read: Callable[[int, int], bytes]) -> None:
        """Lines that follow those before; ``read`` gives bytes of the text."""
        if len(spans) == 0:
            return
        starts, sizes = np.ascontiguousarray(spans[:, 0]), spans[:, 1]
        if int(starts[-1]) // self._step > 4 * self._most:
            self._thin(int(starts[-1]))
        while True:
            run = self._lines[-1][0] // self._step + 1 if self._lines else 0
            runs = np.arange(max(run, int(starts[0]) // self._step), int(starts[-1]) // self._step + 1) * self._step
            chosen = np.unique(np.searchsorted(starts, runs))
            count, size = len(self._lines) + chosen.size, self._bytes + int(sizes[chosen].sum())
            if count <= self._most and (size <= SAMPLED_BYTES or count <= LEAST_SAMPLED):
                break
            self._thin(int(starts[-1]))
        for start, size in spans[chosen].tolist():
            self._lines.append((start, read(start, start + size)))
            self._bytes += size

    def _thin(self, last: int) -> None:
        """Longer runs: at once so long that those up to a byte are not many more than lines are wanted."""
        self._step *= 2
        while last // self._step > 4 * self._most:
            self._step *= 2
        kept = {start // self._step: (start, line) for start, line in reversed(self._lines)}
        self._lines = [kept[run] for run in sorted(kept)]
        self._bytes = sum(len(line) for _, line in self._lines)

    @property
    def starts(self) -> list[int]:
        return [start for start, _ in self._lines]

    @property
    def lines(self) -> list[bytes]:
        return [line for _, line in self._lines]


class _Pass:
    """One pass over the text of a file, which comes in pieces."""

    def __init__(self, path: str, how: LineFormat, most: int) -> None:
        self._path, self._how, self._sample = path, how, _Sample(most)
        self._scanner, self._header, self._num_lines = _core.LineScanner(how.delimiter), b"", 0
        self._out = np.empty(2 * _core.LineScanner.most_lines(PIECE_BYTES), np.int64)

    def lines(self, pieces: Iterable[Texts], read: Callable[[int, int], bytes]) -> Iterator[IntArray]:
        """Offset and size of every record, in arrays that are overwritten by the next. ``read`` gives bytes of the text again."""
        at = 0
        for piece in pieces:
            count = self._scanner.scan(piece, self._out)

            def inside(low: int, high: int, piece: Texts = piece, at: int = at) -> bytes:
                return piece[low - at : high - at].tobytes() if low >= at else read(low, high)

            yield self._records(count, inside)
            at += piece.size
        if self._scanner.in_quotes:
            raise TruncatedError(f"{self._path}: a field in quotes does not end by the end of the file")
        last = self._scanner.finish(self._out)
        self._num_lines = self._scanner.newlines + last
        yield self._records(last, read)

    def _records(self, count: int, read: Callable[[int, int], bytes]) -> IntArray:
        spans = self._out[: 2 * count].reshape(-1, 2)
        if count and int(spans[:, 1].max()) > MAX_RECORD_BYTES:
            start = spans[np.argmax(spans[:, 1]), 0]
            raise SizeOverflowError(
                f"{self._path}: expected lines of at most {MAX_RECORD_BYTES} bytes, found a longer one at {start}"
            )
        if count and self._how.has_header and not self._header:
            start, size = spans[0].tolist()
            self._header, spans = read(start, start + size), spans[1:]
        self._sample.add(spans, read)
        return spans

    def notes(self, where: Callable[[int], str], blocks: Sequence[tuple[int, int, int]] = ()) -> _Notes:
        """What was seen; ``where`` names the line that begins at a byte."""
        starts = self._sample.starts
        header = self._header if self._how.has_header else None
        seen = self._how.observe(self._path, header, self._sample.lines, lambda line: where(starts[line]))
        return _Notes(seen, self._num_lines, blocks)


def _scan_plain(file: ScannedFile, how: LineFormat, num_files: int) -> FileSpans:
    """Where the lines of a plain file are."""
    found, one = list[IntArray](), _Pass(str(file), how, _sampled(file, num_files))
    bar = reporting(True, "index", file.size) if num_files == 1 and file.size >= BAR_BYTES else nullcontext()
    with bar as advance:
        for spans in one.lines(
            _pieces(file, advance or (lambda records, size: None)), lambda *range_: _read(file, *range_).tobytes()
        ):
            found.append(spans.copy())
    notes = one.notes(lambda start: f"{file}: line {_count_newlines(file, start, how) + 1}")
    return FileSpans([LINE], np.concatenate(found), notes.to_bytes())


def _read(file: ScannedFile, low: int, high: int, out: Texts | None = None) -> Texts:
    """Bytes of a file, in spans of which a small window holds one at a time."""
    starts = np.arange(low, high, SPAN_BYTES, dtype=np.int64)
    return file.gather(starts, np.minimum(SPAN_BYTES, high - starts), out)


def _pieces(file: ScannedFile, advance: Callable[[int, int], object], stop: int | None = None) -> Iterator[Texts]:
    """The bytes of a file, in arrays that are overwritten by later ones."""
    end = file.size if stop is None else stop
    buffer = np.empty(min(end, PIECES * PIECE_BYTES), np.uint8)
    for low in range(0, end, PIECES * PIECE_BYTES):
        data = _read(file, low, min(end, low + PIECES * PIECE_BYTES), buffer)
        for start in range(0, data.size, PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            yield piece
            advance(piece.size, piece.size)


def _count_newlines(file: ScannedFile, stop: int, how: LineFormat) -> int:
    """Lines that end before a byte; those of rows may end with a return alone."""
    count, last = 0, 0
    for piece in _pieces(file, lambda records, size: None, stop):
        newlines = piece == 10
        count += int(np.count_nonzero(newlines))
        if how.delimiter != "\0":
            returns = np.concatenate([[last], piece[:-1]]) == 13
            count += int(np.count_nonzero(returns & ~newlines))
            last = int(piece[-1])
    return count + (last == 13)


def _sampled(file: ScannedFile, num_files: int) -> int:
    """Lines of a file that are looked at. What is kept in its sidecar does not depend on the files that it is opened with; of many
    that have none, fewer are.
    """
    if file.size >= span_files.KEPT_BYTES or num_files <= FEW_FILES:
        return SAMPLED_LINES
    return max(64, FEW_FILES * SAMPLED_LINES // num_files)


# Plain files


class PlainLines(SpanSource):
    """The lines of plain files, one file after the other, read one by one."""

    def __init__(self, files: Files, how: LineFormat, options: TextOptions) -> None:
        self._how, self._options = how, options
        scan = partial(_scan_plain, how=how, num_files=len(files))
        index = SpanIndex(f"{how.name} lines", files, scan, options.spans, (VERSION, *how.line_identity))
        super().__init__(index, {LINE: SpanField(Field.text() if options.raw else Field.bytes())})

    def _identity(self) -> tuple[Any, ...]:
        return self._how.name, self._options.raw, *self._how.identity

    def _recipe(self) -> Recipe:
        return (type(self), (self._files, self._how, self._options))


class RawLines(PlainLines):
    """The lines as they are, without white space at their ends: the text field ``line``."""


class LineSource(ParsedSpans, PlainLines):
    """The lines, parsed."""

    def __init__(self, files: Files, how: LineFormat, options: TextOptions) -> None:
        super().__init__(files, how, options)
        try:
            notes = [_Notes.of(str(file), memory) for file, memory in zip(files, self._index.memories, strict=True)]
            self._ends = np.cumsum(self._counts, dtype=np.int64)
            seen = [(str(file), note.seen) for file, note in zip(files, notes, strict=True)]
            self._num_lines = [note.lines for note in notes]
            self._leaves = how.choose(seen)
            self._parser = how.parser(self._leaves, seen)
        except BaseException:
            self.close()
            raise

    @property
    def schema(self) -> Mapping[str, Field]:
        return {name: leaf.field for name, leaf in self._leaves.items()}

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        if not fields:
            return {}
        lines = super()._read(ids, [LINE], {})[LINE]
        where = lambda line: self._where(int(ids[line]))  # noqa: E731
        columns = self._parser.parse(fields, lines.values, lines.offsets, where)
        every, limit = np.arange(ids.size), self._options.decoding.max_block_bytes
        return {name: sealed_column(name, self._leaves[name], columns[name], where, limit).read(every, out) for name in fields}

    def _where(self, record: int) -> str:
        """The file and line of a record, for messages."""
        number = int(np.searchsorted(self._ends, record, side="right"))
        within = record - int(self._ends[number]) + self._counts[number]
        head = int(self._how.has_header)
        if self._num_lines[number] == self._counts[number] + head:  # each is a record
            return f"{self._files[number]}: line {within + head + 1}"
        starts = self._table.extents(np.array([record]), np.array([record + 1]), self._words)[1]
        base = sum(part.size for part in self._index.parts[:number])
        newlines = _count_newlines(ScannedFile(self._index.parts[number], base, self._rows), int(starts[0]), self._how)
        return f"{self._files[number]}: line {newlines + 1}"


# Compressed files: a block is a run of frames, with as much of the next ones as its last line needs


@dataclass
class _Frame:
    """A part of a file that is decoded by itself: where it is in the file and, decoded, in its text; and the lines that begin
    there.
    """

    start: int
    stop: int
    text_start: int = 0
    text_stop: int = 0
    lines: int = 0
    first: int = -1
    last: int = 0


def _scan_compressed(file: ScannedFile, how: LineFormat, num_files: int, limit: int) -> FileSpans:
    """Where the blocks of a compressed file are, none of which may be larger than the limit and than is plausible."""
    codec = _codec(str(file)) or ""
    frames = _zstd_frames(file) if codec == "zstd" else [_Frame(0, file.size)] if file.size else []
    edges: list[int] = []

    def text_of(start: int, stop: int, length: int | None) -> Iterator[Texts]:
        return decompressed(str(file), codec, _part(file, start, stop), stop - start, length, limit)

    def read(low: int, high: int) -> bytes:
        first = frames[int(np.searchsorted(edges, low, side="right")) - 1]
        pieces = text_of(first.start, file.size, high - first.text_start)
        return b"".join(piece.tobytes() for piece in pieces)[low - first.text_start :]

    def pieces() -> Iterator[Texts]:
        at = 0
        for frame in frames:
            frame.text_start = frame.text_stop = at
            edges.append(at)
            for piece in text_of(frame.start, frame.stop, None):
                at += piece.size
                frame.text_stop = at
                check_block(str(file), at, frame.stop, limit)
                yield piece

    one = _Pass(str(file), how, _sampled(file, num_files))
    for spans in one.lines(pieces(), read):
        which = np.searchsorted(edges, spans[:, 0], side="right") - 1
        for number in np.unique(which).tolist():
            here, frame = spans[which == number], frames[number]
            frame.lines += len(here)
            frame.first = int(here[0, 0]) if frame.first < 0 else frame.first
            frame.last = int(here[-1].sum())
    blocks = list(_blocks_of(frames))
    notes = one.notes(lambda start: f"{file}: the line at byte {start} of its text", [block[2:] for block in blocks])
    table = np.array([(start, stop - start) for start, stop, *_ in blocks], np.int64).reshape(-1, 2)
    return FileSpans([LINE], table, notes.to_bytes())


def _blocks_of(frames: Sequence[_Frame]) -> Iterator[tuple[int, int, int, int, int]]:
    """Of every block: from and to in the file, from and to in the text that this decodes to, and lines."""
    first = 0
    while first < len(frames):
        last = first
        while last + 1 < len(frames) and frames[last].text_stop - frames[first].text_start < BLOCK_BYTES:
            last += 1
        some = [frame for frame in frames[first : last + 1] if frame.lines]
        if some:
            base, end = frames[first].text_start, some[-1].last
            stop = (
                next(frame.stop for frame in frames[last:] if frame.text_stop >= end)
                if frames[last].text_stop < end
                else frames[last].stop
            )
            yield frames[first].start, stop, some[0].first - base, end - base, sum(frame.lines for frame in some)
        first = last + 1


def _part(file: ScannedFile, start: int, stop: int) -> Any:
    """Bytes [start, stop) of a file, as a file; a few megabytes are read at a time."""
    return io.BufferedReader(
        RangeFile(stop - start, lambda low, high: _read(file, start + low, start + high).tobytes()), PIECE_BYTES
    )


def _zstd_frames(file: ScannedFile) -> list[_Frame]:
    """The frames of a zstd file, found by the sizes of their blocks; nothing is decoded. Skippable frames are left out."""
    found, at, stream = list[_Frame](), 0, _part(file, 0, file.size)

    def number(place: int, count: int) -> int:
        stream.seek(place)
        data: bytes = stream.read(count)
        if len(data) < count:
            raise TruncatedError(f"{file}: expected {place + count} bytes for the zstd frame at {at}, found {file.size}")
        return int.from_bytes(data, "little")

    while at < file.size:
        magic = number(at, 4)
        if magic >> 4 == SKIPPABLE:
            at += 8 + number(at + 4, 4)
        elif magic != ZSTD_MAGIC:
            raise FormatError(f"{file}: expected a zstd frame at {at}, found {magic:#010x}")
        else:
            flags, last = number(at + 4, 1), 0
            single = flags >> 5 & 1
            place = at + 5 + (1 - single) + (0, 1, 2, 4)[flags & 3] + (single, 2, 4, 8)[flags >> 6]
            while not last:
                word = number(place, 3)
                last, kind = word & 1, word >> 1 & 3
                if kind == 3:
                    raise CorruptError(f"{file}: expected a block of a zstd frame at {place}, found one of no kind")
                place += 3 + (1 if kind == 1 else word >> 3)
            place += 4 * (flags >> 2 & 1)
            found.append(_Frame(at, place))
            at = place
    if at > file.size:
        raise TruncatedError(f"{file}: expected {at} bytes, found {file.size}")
    return found


def decompressed(path: str, codec: str, source: Any, stored: int, most: int | None, limit: int) -> Iterator[Texts]:
    """The text of compressed bytes, in pieces, or ``most`` bytes of it. BatchTooLargeError if it becomes larger than the limit, and
    than is plausible.
    """
    total = 0
    with translated(path), need("pyarrow", "arrow").CompressedInputStream(source, codec) as stream:
        while most is None or total < most:
            data = stream.read_buffer(PIECE_BYTES if most is None else min(PIECE_BYTES, most - total))
            if data.size == 0:
                break
            total += data.size
            check_block(path, total, stored, limit)
            yield np.frombuffer(data, np.uint8)


class _StoredBlocks(SpanSource):
    """The blocks of compressed files as they are stored."""

    def __init__(self, files: Files, how: LineFormat, options: TextOptions) -> None:
        self._how, self._options = how, options
        scan = partial(_scan_compressed, how=how, num_files=len(files), limit=options.decoding.max_block_bytes)
        index = SpanIndex(f"{how.name} blocks", files, scan, options.spans, (VERSION, *how.line_identity))
        super().__init__(index, {LINE: SpanField(Field.bytes())})
        self.notes = [_Notes.of(str(file), memory) for file, memory in zip(files, index.memories, strict=True)]
        for file, count, note in zip(files, index.counts, self.notes, strict=True):
            if count != len(note.blocks) or any(not 0 <= low <= high or lines < 1 for low, high, lines in note.blocks):
                raise CorruptError(f"{file}: its index has blocks that cannot be: remove the .penstock-index next to it")

    def _identity(self) -> tuple[Any, ...]:
        return "blocks", self._how.name, *self._how.identity

    def _recipe(self) -> Recipe:
        return (_StoredBlocks, (self._files, self._how, self._options))


class CompressedLines(FileSource, GroupSource):
    """The lines of compressed files, decoded a block at a time."""

    def __init__(self, files: Files, how: LineFormat, options: TextOptions) -> None:
        self._files, self._how, self._options = files, how, options
        self._stored = _StoredBlocks(files, how, options)
        try:
            notes = self._stored.notes
            seen = [(str(file), note.seen) for file, note in zip(files, notes, strict=True)]
            leaves = how.choose(seen)
            self._parser, self._parsed = how.parser(leaves, seen), Recent(options.decoding.cache_bytes)
            self._facts = [block for note in notes for block in note.blocks]
            self._first = dict(zip(map(str, files), np.cumsum([0, *(len(note.blocks) for note in notes)]).tolist(), strict=False))
            counts = [(str(file), [lines for *_, lines in note.blocks]) for file, note in zip(files, notes, strict=True)]
            super().__init__(leaves, counts, options.decoding)
        except BaseException:
            self._stored.close()
            raise

    @property
    def remote(self) -> RemoteFiles | None:
        return self._stored.remote

    @property
    def paths(self) -> Sequence[str]:
        return self._stored.paths

    @property
    def is_direct(self) -> bool:
        return self._stored.is_direct

    def extents(self, starts: IntArray, stops: IntArray) -> Extents:
        """Where the blocks of records are."""
        some = stops > starts
        blocks = np.unique(expanded(self._blocks.of(starts[some]), self._blocks.of(stops[some] - 1) + 1))
        return self._stored.extents(blocks, blocks + 1)

    def close(self) -> None:
        super().close()
        self._parsed.clear()
        self._stored.close()

    def _measure(self, group: Group, leaves: Sequence[ArrowField]) -> tuple[int, int]:
        number = self._first[group.path] + group.number
        return self._facts[number][1], int(self._stored.lengths(LINE, [number])[0])

    def _decode(self, group: Group, leaf: ArrowField) -> list[Any]:
        parsed: dict[str, list[Any]] = self._parsed.get(((group.path, group.number), None), lambda: self._parse(group))
        return parsed[leaf.path[0]]

    def _parse(self, group: Group) -> tuple[dict[str, list[Any]], int]:
        """All fields of a block."""
        number = self._first[group.path] + group.number
        (low, high, count), stored = self._facts[number], self._stored.read([number], [LINE])[LINE].values
        source = need("pyarrow", "arrow").BufferReader(stored)
        limit = self._decoding.max_block_bytes
        pieces = list(decompressed(group.path, _codec(group.path) or "", source, stored.size, high, limit))
        text = np.concatenate([np.empty(0, np.uint8), *pieces])[low:]
        spans = self._spans(text, count) if text.size == high - low else None
        if spans is None:
            raise CorruptError(f"{group.path}: expected {count} lines in block {group.number}, found other text: remove its index")
        lines, offsets = _together(text, spans)
        columns = self._parser.parse(list(self._leaves), lines, offsets, lambda line: f"{group.path}: record {group.first + line}")
        return columns, sum(array.get_total_buffer_size() for arrays in columns.values() for array in arrays)

    def _spans(self, text: Texts, count: int) -> IntArray | None:
        """Where the lines of a block are in its text; None if they are not as many as there were."""
        scanner, out = _core.LineScanner(self._how.delimiter, False), np.empty(2 * count + 2, np.int64)
        try:
            found = scanner.scan(text, out)
            found += scanner.finish(out[2 * found :])
        except ValueError:  # more than there is a place for
            return None
        return out[: 2 * count].reshape(-1, 2) if found == count else None

    def _identity(self) -> tuple[Any, ...]:
        return self._how.name, False, *self._how.identity

    def _recipe(self) -> Recipe:
        return (CompressedLines, (self._files, self._how, self._options))


def _together(text: Texts, spans: IntArray) -> tuple[Texts, IntArray]:
    """Lines one after the other, without what is between them."""
    offsets = np.concatenate([[0], np.cumsum(spans[:, 1])])
    out = empty((int(offsets[-1]),), np.dtype(np.uint8))
    if out.size:
        reader_of_memory([text], threads=1).read_spans(np.ascontiguousarray(spans[:, 0]), offsets, out)
    return out, offsets
