"""What Energon (NVIDIA's loader of WebDataset archives) keeps next to tar archives: its index, and its split.

::

    .nv-meta/.info.json    = {"shard_counts": {name of an archive: samples, ...}}     the i-th name is tar_file_id i
    .nv-meta/index.sqlite  = samples(tar_file_id, sample_key, sample_index, byte_offset, byte_size)
                             sample_parts(tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size)
    .nv-meta/split.yaml    = {"split_parts": {part: [name of an archive, ...]}, "exclude": [...]}     or split.json; a name may be
                             a pattern, {000..123}.tar
    <name>.tar.idx         = offset of every sample u64, end of the last; it does not say where its files are, so it is not used

The index says where every file is, so that an archive need not be walked header after header: all headers are read at once, by
several threads, and each is compared with the index. An index that says anything else than the archive does is not used, and the
archive is scanned.
"""

import itertools
import math
import os
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray
from penstock.errors import EmptySourceError, FormatError, MissingError, ReadError, UnsafePathError, UnsupportedTypeError
from penstock.formats.files import Files, LocalFile, Names, read_json
from penstock.formats.spans import FileSpans, ScannedFile
from penstock.native import _core
from penstock.process import need
from penstock.store.storage import as_location
from penstock.system import is_file, reading

__all__ = ["spans_of_energon", "split_files"]

META, INFO, INDEX = ".nv-meta", ".info.json", "index.sqlite"
KEY = "__key__"
NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
NOT_SAMPLES = re.compile(r"__[^/]*__($|/)")
INFO_BYTES = 256 << 20
LEVELS = 4
"""Directories above an archive in which the index may be."""

BLOCK = 512
GAP_BYTES = 8 * BLOCK
"""Of what may be before the header of a file: a header with more facts of it."""

TAIL_BYTES = 64 << 10
"""Behind the last file, that are looked at together."""

CHECKED = 1 << 14
"""Headers that are read at a time."""

VALUE_BYTES = 4096
"""Of the largest value of the database. Names in headers are shorter, but a column may be computed."""

STEPS = 10_000
"""Of the database's machine, between two looks at whether it takes too long."""

NAME_AT, SIZE_AT, SUM_AT, TYPE_AT, PREFIX_AT = slice(0, 100), slice(124, 136), slice(148, 156), 156, slice(345, 500)
FACTS = re.compile(rb"(?:[0-9]+ (?:mtime|atime|ctime|comment|uid|gid|uname|gname)=[^\n]*\n)*\0*")
"""What pax headers may say of a file whose name and size are in its own header."""

BRACES, RANGE = re.compile(r"\{([^{}]*(?:\.\.|,)[^{}]*)\}"), re.compile(r"([0-9]{1,18})\.\.([0-9]{1,18})")
MAX_ARCHIVES = 10_000_000
"""That a pattern may stand for."""

Bytes = npt.NDArray[np.uint8]


# The index


def spans_of_energon(file: ScannedFile) -> FileSpans | None:
    """Where the samples of an archive on disk are, as Energon's index says and the headers of the archive confirm; None if there is
    no index of it, or if it says anything else.
    """
    found = None if file.path is None else _find_index(file.path)
    if found is None:
        return None
    try:
        rows = list(_rows(*found, most=file.size // BLOCK))
    except (sqlite3.Error, OverflowError, ValueError):
        return None
    if not rows or not all(map(_is_whole, rows)):
        return None
    starts, sizes = np.array([row[2] for row in rows], np.int64), np.array([row[3] for row in rows], np.int64)
    names = [f"{key}.{part}".encode() for key, part, _, _ in rows]
    if not _is_line(file, starts, sizes) or not _has_headers(file, starts, sizes, names):
        return None
    return _spans([(row[0], row[1]) for row in rows], starts, sizes)


def _find_index(path: Path) -> tuple[Path, int] | None:
    """The database that has an archive, and its number there."""
    for directory in list(path.parents)[:LEVELS]:
        index = directory / META / INDEX
        if is_file(index) and is_file(directory / META / INFO):
            try:
                counts = read_json(LocalFile(directory / META / INFO), INFO_BYTES)[1].get("shard_counts")
            except ReadError:
                return None
            name = path.relative_to(directory).as_posix()
            names = list(counts) if isinstance(counts, dict) else []
            return (index, names.index(name)) if name in names else None
    return None


def _rows(index: Path, number: int, most: int) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Key, name of the part, offset and bytes of every file, in their order. An error if there are more than an archive can have,
    or if what is asked for is not in tables.
    """
    with closing(sqlite3.connect(f"{index.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as base:
        base.execute("PRAGMA trusted_schema = OFF")
        base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES)
        left = 1000 + 100 * (most // STEPS + 1)

        def is_too_long() -> int:
            nonlocal left
            left -= 1
            return int(left < 0)

        base.set_progress_handler(is_too_long, STEPS)
        told = dict(base.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"))
        if not all(re.match(r"CREATE TABLE\b", str(told.get(name))) for name in ("samples", "sample_parts")):
            raise ValueError("expected tables of samples and their parts")
        samples = dict(
            base.execute("SELECT sample_index, sample_key FROM samples WHERE tar_file_id = ? LIMIT ?", (number, most + 1))
        )
        parts = base.execute(
            "SELECT sample_index, part_name, content_byte_offset, content_byte_size FROM sample_parts WHERE tar_file_id = ? "
            "ORDER BY content_byte_offset LIMIT ?",
            (number, most + 1),
        )
        for count, (sample, part, start, size) in enumerate(parts):
            if count == most or sample not in samples:
                raise ValueError("expected a sample of every part, within the archive")
            yield samples[sample], part, start, size


def _is_whole(row: tuple[Any, Any, Any, Any]) -> bool:
    """Whether a row is of a file that belongs to a sample."""
    key, part, start, size = row
    if not isinstance(key, str) or not isinstance(part, str) or type(start) is not int or type(size) is not int:
        return False
    named = NAME.fullmatch(f"{key}.{part}")
    return (
        named is not None
        and named.groups() == (key, part)
        and part != ""
        and part.lower() != KEY
        and "\n" not in part
        and NOT_SAMPLES.match(f"{key}.{part}") is None
        and 0 <= start < 2**62
        and 0 <= size < 2**62
    )


def _spans(names: list[tuple[str, str]], starts: IntArray, sizes: IntArray) -> FileSpans | None:
    """The samples, as a scan gives them; None if a sample has two files of one name."""
    columns: dict[str, int] = {}
    keys, places, samples = list[bytes](), list[int](), list[int]()
    last: str | None = None
    for key, part in names:
        if key != last:
            keys.append(key.encode())
            last = key
        samples.append(len(keys) - 1)
        places.append(columns.setdefault(part.lower(), len(columns)))
    cells = np.array(samples, np.int64) * len(columns) + np.array(places, np.int64)
    if np.unique(cells).size < cells.size:
        return None
    table = np.full((len(keys), len(columns) + 1, 2), -1, np.int64)
    table[:, :, 0] = 0
    table[samples, places, 0], table[samples, places, 1] = starts, sizes
    lengths = np.array([len(key) for key in keys], np.int64)
    table[:, -1, 0], table[:, -1, 1] = np.cumsum(lengths) - lengths, lengths
    memory = np.frombuffer(b"".join(keys), np.uint8)
    return FileSpans([*columns, KEY], table.reshape(len(keys), -1), memory, len(columns))


# What the archive says


def _is_line(file: ScannedFile, starts: IntArray, sizes: IntArray) -> bool:
    """Whether files follow one another in an archive, with little between them, and no file behind them."""
    ends = starts + sizes + -sizes % BLOCK
    gaps = starts - np.concatenate([[0], ends[:-1]])
    if np.any(starts % BLOCK) or np.any((gaps < BLOCK) | (gaps > GAP_BYTES)) or int(starts[-1] + sizes[-1]) > file.size:
        return False
    end = int(ends[-1])
    if end >= file.size:
        return True
    scanner = _core.TarScanner(str(file), file.size - end)
    try:
        while not scanner.is_done:
            start = end + scanner.next
            scanner.feed(file.read(start, min(file.size, start + max(scanner.need, TAIL_BYTES))))
    except ReadError:
        return False
    return scanner.take()[1].size == 0


def _has_headers(file: ScannedFile, starts: IntArray, sizes: IntArray, names: list[bytes]) -> bool:
    """Whether there is a header of every file before its bytes, with its name and size, and between that and the file before it at
    most one that says nothing else of these.
    """
    before = np.concatenate([[0], (starts + sizes + -sizes % BLOCK)[:-1]])
    for low in range(0, starts.size, CHECKED):
        part = slice(low, low + CHECKED)
        heads = file.gather(starts[part] - BLOCK, np.full(starts[part].size, BLOCK, np.int64)).reshape(-1, BLOCK)
        if not _are_headers(heads, sizes[part], names[part]):
            return False
        gaps = starts[part] - BLOCK - before[part]
        wide = np.flatnonzero(gaps)
        notes, edges = file.gather(before[part][wide], gaps[wide]), np.cumsum(gaps[wide]).tolist()
        if not all(map(_is_note, (notes[stop - size : stop] for stop, size in zip(edges, gaps[wide].tolist(), strict=True)))):
            return False
    return True


def _are_headers(heads: Bytes, sizes: IntArray, names: list[bytes]) -> bool:
    types = heads[:, TYPE_AT]
    told, sums = _octal(heads[:, SIZE_AT]), _octal(heads[:, SUM_AT])
    counted = heads.sum(axis=1, dtype=np.int64) - heads[:, SUM_AT].sum(axis=1, dtype=np.int64) + 8 * ord(" ")
    if not np.all(((types == ord("0")) | (types == 0)) & (told == sizes) & (sums == counted)):
        return False
    return all(_name(head.tobytes()) == name for head, name in zip(heads, names, strict=True))


def _name(head: bytes) -> bytes:
    name, prefix = head[NAME_AT].split(b"\0", 1)[0], head[PREFIX_AT].split(b"\0", 1)[0]
    return prefix + b"/" + name if prefix and head[257:263] == b"ustar\0" else name


def _octal(texts: Bytes) -> IntArray:
    """Numbers of octal digits, up to a NUL or a space; -1 for others."""
    digits = texts.astype(np.int64) - ord("0")
    is_digit = (digits >= 0) & (digits < 8)
    inside = np.logical_and.accumulate(is_digit, axis=1)
    rest = np.where(inside, 0, texts)
    found = np.zeros(len(texts), np.int64)
    for place in range(texts.shape[1]):
        found = np.where(inside[:, place], 8 * found + digits[:, place], found)
    return np.where(inside[:, 0] & np.all((rest == 0) | (rest == ord(" ")), axis=1), found, -1)


def _is_note(data: Bytes) -> bool:
    """Whether bytes are one pax header that says neither a name nor a size."""
    head = data[:BLOCK].reshape(1, BLOCK)
    size, total = int(_octal(head[:, SIZE_AT])[0]), int(_octal(head[:, SUM_AT])[0])
    counted = int(head.sum(dtype=np.int64)) - int(head[:, SUM_AT].sum(dtype=np.int64)) + 8 * ord(" ")
    is_right = head[0, TYPE_AT] == ord("x") and total == counted and data.size == BLOCK + size + -size % BLOCK
    return is_right and FACTS.fullmatch(data[BLOCK:].tobytes()) is not None


# The split


def split_files(what: Names, split: str) -> Files:
    """The archives of one part of a directory that Energon has prepared, in the order in which its split names them."""
    where = as_location(what) if isinstance(what, str | os.PathLike) else what
    if not isinstance(where, Path):
        raise ValueError(f"split= is for a directory on disk that Energon has prepared, got {what!r}")
    meta = where / META
    content = _read_split(meta)
    parts, excluded = content.get("split_parts"), content.get("exclude") or []
    if not isinstance(parts, dict) or not isinstance(excluded, list) or not all(map(_are_names, [*parts.values(), excluded])):
        raise FormatError(f"{meta}: expected lists of archives by the names of parts as split_parts, found something else")
    if split not in parts:
        raise KeyError(f"{meta}: there is no part {split!r}; there are {list(parts)}")
    named = [name for one in parts[split] for name in _written_out(meta, one)]
    archives, left_out = set(named), {name for one in excluded for name in _written_out(meta, one)}
    if some := [name for name in left_out if not archives.isdisjoint(str(one) for one in PurePosixPath(name).parents)]:
        raise UnsupportedTypeError(f"{meta}: the split leaves out single samples, such as {some[0]!r}, which is not read")
    names = [name for name in named if name not in left_out]
    for name in [*names, *left_out]:
        if any(one in ("", ".", "..") for one in name.split("/")) or "\0" in name:
            raise UnsafePathError(f"{meta}: expected archives below {where}, found {name[:100]!r}")
    if not names:
        raise EmptySourceError(f"{meta}: expected at least one archive in the part {split!r}, found none")
    return Files([LocalFile(where / name) for name in names])


def _written_out(meta: Path, pattern: str) -> Iterator[str]:
    """The names that a pattern stands for, in their order: ``{000..123}`` is a range of numbers, with as many digits; ``{a,b}`` is
    each of these. Energon writes names that differ in numbers so.
    """
    pieces = BRACES.split(pattern)
    if any(letter in piece for piece in pieces[::2] for letter in "{}"):
        raise UnsupportedTypeError(
            f"{meta}: expected names with ranges {{0..9}}, found the pattern {pattern[:100]!r}: write them out"
        )
    choices = [[piece] if number % 2 == 0 else _choices(meta, piece) for number, piece in enumerate(pieces)]
    if math.prod(map(len, choices)) > MAX_ARCHIVES:
        raise UnsupportedTypeError(f"{meta}: expected at most {MAX_ARCHIVES} archives, found more in {pattern[:100]!r}")
    return map("".join, itertools.product(*choices))


def _choices(meta: Path, inside: str) -> Sequence[str]:
    edges = RANGE.fullmatch(inside)
    if edges is None and ".." in inside:
        raise UnsupportedTypeError(f"{meta}: expected a range of numbers, such as {{0..9}}, found {{{inside[:100]}}}: write it out")
    if edges is None:
        return inside.split(",")
    first, last = edges.groups()
    low, high = int(first), int(last)
    if abs(high - low) >= MAX_ARCHIVES:
        raise UnsupportedTypeError(f"{meta}: expected at most {MAX_ARCHIVES} archives, found {{{inside[:100]}}}")
    is_padded = any(len(one) > 1 and one.startswith("0") for one in (first, last))
    width = max(len(first), len(last)) if is_padded else 0
    return [f"{number:0{width}}" for number in (range(low, high + 1) if low <= high else range(low, high - 1, -1))]


def _are_names(names: object) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _read_split(meta: Path) -> Mapping[str, Any]:
    if is_file(meta / "split.json") and not is_file(meta / "split.yaml"):
        return read_json(LocalFile(meta / "split.json"), INFO_BYTES)[1]
    if not is_file(meta / "split.yaml"):
        raise MissingError(f"{meta}: expected split.yaml or split.json, which Energon makes when it prepares a directory")
    yaml = need("yaml", "energon")
    with reading(meta / "split.yaml"):
        raw = (meta / "split.yaml").read_bytes()
    try:
        content = yaml.safe_load(raw)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise FormatError(f"{meta / 'split.yaml'}: expected YAML, found something else") from error
    if not isinstance(content, dict):
        raise FormatError(f"{meta / 'split.yaml'}: expected split_parts, found something else")
    return content
