"""CSV and TSV: rows of RFC 4180, in plain files row by row, in .gz and .zst block by block.

Where rows are is found natively, so that a newline in quotes ends none. Types are inferred from rows spread over all files, or
given; pyarrow splits the rows into cells. A cell that its type does not have exactly is an error: ``007`` is a text, no number.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from penstock.argument import IntArray, byte_size, whole_number
from penstock.errors import CorruptError, FormatError, SchemaMismatchError
from penstock.formats.arrow import CACHE_BYTES, Decoding
from penstock.formats.arrow_file import ArrowField, Fields, choose, plain_fields
from penstock.formats.files import MAX_BLOCK_BYTES, Names, find_files, one_line, suffix_of
from penstock.formats.jsonl import (
    ANY,
    BOOLEAN,
    EXACT,
    LIST,
    NUMBER,
    TEXT,
    WHOLE,
    JsonLeaf,
    as_leaf,
    as_words,
    block_size,
    later,
    runs_of,
    words_of,
)
from penstock.formats.lines import LineParser, Seen, TextOptions, Texts, Where, open_lines
from penstock.formats.rows_in_files import default_threads
from penstock.native import _core
from penstock.process import need
from penstock.records import Source
from penstock.remote.window import RemoteOptions
from penstock.schema import Field

__all__ = ["SUFFIXES", "open_delimited"]

SUFFIXES = tuple(f"{suffix}{end}" for end in ("", ".gz", ".zst") for suffix in (".csv", ".tsv"))

TRUE, FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
WHOLE_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)")
PLAIN_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?(nan|inf|infinity)", re.IGNORECASE)
LEADING_ZERO = re.compile(r"[-+]?0[0-9]")

MARK = b"\xef\xbb\xbf"
"""The byte order mark."""

EXPECTED = {WHOLE: "a whole number", NUMBER: "a number", BOOLEAN: "true or false"}


def open_delimited(
    what: Names,
    *,
    fields: Fields | None = None,
    schema: Mapping[str, str | Field] | None = None,
    names: Sequence[str] | None = None,
    delimiter: str | None = None,
    threads: int | None = None,
    io: str = "auto",
    cache_bytes: int = CACHE_BYTES,
    max_block_bytes: int | str = MAX_BLOCK_BYTES,
    remote: RemoteOptions | None = None,
) -> Source:
    """CSV and TSV files (.csv, .tsv, also .gz and .zst), one or many as one source, all with the same columns: a list keeps its
    order, a pattern or a directory gives that of the name bytes.

    The first row names the columns, unless ``names`` are given: then it is a record. ``fields`` are the wanted columns, or a dict
    of new names and old ones. ``schema`` gives types instead of those inferred: a Field, or ``"i8"``, ``"f8"``, ``"bool"``,
    ``"text"``, with a ``?`` if values may be missing. An empty cell is a missing number, or an empty text. ``delimiter`` is a
    comma, or a tab in .tsv.
    """
    need("pyarrow", "arrow")
    files = find_files(what, SUFFIXES)
    letter = delimiter if delimiter is not None else "\t" if suffix_of(files[0].name).startswith(".tsv") else ","
    if len(letter) != 1 or not letter.isascii() or letter in '"\r\n\0':
        raise ValueError(f"delimiter must be a single ASCII character, got {letter!r}")
    given = tuple((name, as_words(name, kind)) for name, kind in (schema or {}).items())
    for name, words in given:
        if as_leaf((name,), words).kind in (ANY, LIST):
            raise TypeError(f"schema: {name!r}: expected a number, bool or text, got {words!r}")
    decoding = Decoding(
        default_threads(threads), whole_number("cache_bytes", cache_bytes), byte_size("max_block_bytes", max_block_bytes)
    )
    how = DelimitedRows(letter, None if names is None else tuple(names), plain_fields(fields), given)
    return open_lines(files, how, TextOptions(False, io, decoding, remote))


def _cells(line: bytes, delimiter: str, at: str) -> list[str]:
    """The cells of a row. CorruptError if it is not UTF-8."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise CorruptError(f"{at} is not UTF-8") from error
    if '"' not in text:
        return text.split(delimiter)
    cells, place = list[str](), 0
    while place <= len(text):
        cell, place = _quoted(text, place + 1) if text.startswith('"', place) else ("", place)
        stop = text.find(delimiter, place)
        stop = len(text) if stop < 0 else stop
        cells.append(cell + text[place:stop])
        place = stop + 1
    return cells


def _quoted(text: str, place: int) -> tuple[str, int]:
    """What is in quotes, from behind the first one on, and where the rest of the cell begins."""
    parts = list[str]()
    while True:
        quote = text.find('"', place)
        quote = len(text) if quote < 0 else quote
        parts.append(text[place:quote])
        if not text.startswith('""', quote):
            return '"'.join(parts), quote + 1
        place = quote + 2


def _new() -> dict[str, int]:
    return {"empty": 0, "bool": 0, "int": 0, "float": 0, "text": 0, "low": 0, "high": 0}


def _note(node: dict[str, int], cell: str) -> None:
    if cell == "":
        node["empty"] += 1
    elif cell in TRUE or cell in FALSE:
        node["bool"] += 1
    elif WHOLE_NUMBER.fullmatch(cell) and cell != "-0":
        number = int(cell) if len(cell) < 40 else 2**128
        node["int"] += 1
        node["low"], node["high"] = min(node["low"], number), max(node["high"], number)
    elif PLAIN_NUMBER.fullmatch(cell) and not LEADING_ZERO.match(cell):
        node["float"] += 1
    else:
        node["text"] += 1


def _merged(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    made = {kind: one[kind] + other[kind] for kind in ("empty", "bool", "int", "float", "text")}
    return made | {"low": min(one["low"], other["low"]), "high": max(one["high"], other["high"])}


def _inferred(node: Mapping[str, int]) -> str:
    """The type of a column as a text."""
    kinds = {kind for kind in ("bool", "int", "float", "text") if node[kind]}
    end = "?" * (node["empty"] > 0)
    if kinds == {"bool"}:
        return f"bool{end}"
    if kinds == {"int"} and node["low"] >= -(2**63) and node["high"] < 2**63:
        return f"i8{end}"
    if kinds == {"int"} and node["low"] >= 0 and node["high"] < 2**64:
        return f"u8{end}"
    if kinds and kinds <= {"int", "float"} and "float" in kinds and node["low"] >= -EXACT and node["high"] <= EXACT:
        return f"f8{end}"
    return "text"


@dataclass(frozen=True)
class DelimitedRows:
    """See :class:`penstock.formats.lines.LineFormat`."""

    delimiter: str
    names: tuple[str, ...] | None
    fields: Fields | None
    schema: tuple[tuple[str, str], ...]

    name = "csv"

    @property
    def has_header(self) -> bool:
        return self.names is None

    @property
    def line_identity(self) -> tuple[Any, ...]:
        return self.delimiter, self.names

    @property
    def identity(self) -> tuple[Any, ...]:
        return self.delimiter, self.names, self.fields, self.schema

    def observe(self, path: str, header: bytes | None, lines: Sequence[bytes], where: Where) -> dict[str, Any]:
        names = list(self.names) if self.names is not None else _cells(header or b"", self.delimiter, f"{path}: the first row")
        columns = [_new() for _ in names]
        for number, line in enumerate(lines):
            cells = _cells(line, self.delimiter, where(number))
            if len(cells) != len(names):
                raise FormatError(f"{where(number)}: expected {len(names)} cells, as there are columns, found {len(cells)}")
            for node, cell in zip(columns, cells, strict=True):
                _note(node, cell)
        return {"names": names if header or self.names is not None else [], "columns": columns}

    def _leaves(self, seen: Seen) -> list[JsonLeaf]:
        files = [(path, found) for path, found in seen if found["names"]]
        if not files:
            raise FormatError(f"{seen[0][0]}: expected a row with the names of the columns, found none: pass names=[...]")
        (first, found), others = files[0], files[1:]
        for path, other in others:
            if other["names"] != found["names"]:
                wanted, there = (one_line(names, 300) for names in (found["names"], other["names"]))
                raise SchemaMismatchError(f"{path}: expected the columns {wanted} as in {first}, found {there}")
        nodes = reduce(lambda a, b: [_merged(x, y) for x, y in zip(a, b, strict=True)], (file["columns"] for _, file in files))
        given = dict(self.schema)
        unknown = sorted(set(given) - set(found["names"]))
        if unknown:
            raise KeyError(f"{first}: there is no column {unknown[0]!r}; there are {found['names']}")
        return [as_leaf((name,), given.get(name, _inferred(node))) for name, node in zip(found["names"], nodes, strict=True)]

    def _chosen(self, seen: Seen) -> dict[str, tuple[ArrowField, int]]:
        """The wanted columns by name, each with its number."""
        pa, leaves = need("pyarrow", "arrow"), self._leaves(seen)
        numbers = {leaf.keys: number for number, leaf in enumerate(leaves)}
        found = choose(pa.schema([pa.field(leaf.keys[0], leaf.final) for leaf in leaves]), self.fields, seen[0][0])
        return {name: (one, numbers[one.path]) for name, one in found.items()}

    def choose(self, seen: Seen) -> dict[str, ArrowField]:
        leaves = self._leaves(seen)
        return {
            name: ArrowField((name,), one.type, one.field.with_nullable(leaves[number].nullable))
            for name, (one, number) in self._chosen(seen).items()
        }

    def parser(self, leaves: Mapping[str, ArrowField], seen: Seen) -> LineParser:
        every = self._leaves(seen)
        return RowParser(self.delimiter, len(every), {name: (every[n], n) for name, (_, n) in self._chosen(seen).items()})


class RowParser:
    """Rows into columns: pyarrow splits them into cells, whose texts become numbers."""

    def __init__(self, delimiter: str, count: int, columns: Mapping[str, tuple[JsonLeaf, int]]) -> None:
        self._delimiter, self._columns = delimiter, dict(columns)
        self._keys = [str(number) for number in range(count)]

    def parse(self, names: Sequence[str], text: Texts, offsets: IntArray, where: Where) -> dict[str, list[Any]]:
        made: dict[str, list[Any]] = {name: [] for name in names}
        for low, high in runs_of(offsets):
            part = text[offsets[low] : offsets[high]]
            for name, array in self._parse(names, part, offsets[low : high + 1] - offsets[low], later(where, low)).items():
                made[name].append(array)
        return made

    def _parse(self, names: Sequence[str], text: Texts, offsets: IntArray, where: Where) -> dict[str, Any]:
        pa, reader = need("pyarrow", "arrow"), need("pyarrow.csv", "arrow")
        rows = np.empty(len(MARK) + text.size + offsets.size - 1, np.uint8)
        rows[: len(MARK)] = np.frombuffer(MARK, np.uint8)  # pyarrow leaves out one: not that of a row
        _core.join_lines(text, np.ascontiguousarray(offsets), rows[len(MARK) :])
        wanted = [self._keys[self._columns[name][1]] for name in names]
        size = block_size(rows.size, where(0))
        try:
            table = reader.read_csv(
                pa.BufferReader(rows),
                reader.ReadOptions(use_threads=False, block_size=size, column_names=self._keys),
                reader.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
                reader.ConvertOptions(
                    include_columns=wanted,
                    column_types=dict.fromkeys(wanted, pa.large_string()),
                    strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid as error:
            self._diagnose(text, offsets, where)
            raise CorruptError(f"{where(0)} or a later one: {one_line(error, 300)}") from error
        if len(table) != offsets.size - 1:
            self._diagnose(text, offsets, where)
            raise CorruptError(f"{where(0)} and later: expected {offsets.size - 1} rows, found {len(table)}")
        return {
            name: _converted(name, self._columns[name][0], table.column(key).combine_chunks(), where)
            for name, key in zip(names, wanted, strict=True)
        }

    def _diagnose(self, text: Texts, offsets: IntArray, where: Where) -> None:
        """An error for the first row that is not what the columns say."""
        for line, (low, high) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
            raw = text[low:high].tobytes()
            try:
                count = len(_cells(raw, self._delimiter, ""))
            except CorruptError:
                count = -1
            if count != len(self._keys):
                cells = _cells(raw, self._delimiter, where(line))
                raise SchemaMismatchError(
                    f"{where(line)}: expected {len(self._keys)} cells, as there are columns, found {len(cells)}"
                )


def _converted(name: str, leaf: JsonLeaf, texts: Any, where: Where) -> Any:
    """The values of cells; SchemaMismatchError for the first that the type does not have exactly."""
    if leaf.kind == TEXT:
        return texts
    pa, compute = need("pyarrow", "arrow"), need("pyarrow.compute", "arrow")
    empty = compute.equal(texts, "")
    if not leaf.nullable and compute.any(empty).as_py():
        line = int(np.argmax(np.asarray(empty)))
        raise SchemaMismatchError(
            f"{where(line)}: field {name!r}: expected {EXPECTED[leaf.kind]}, found an empty cell; if values may be missing: "
            f"schema={{{name!r}: {words_of(leaf) + '?'!r}}}"
        )
    cells = compute.if_else(empty, pa.scalar(None, texts.type), texts)
    try:
        if leaf.kind == BOOLEAN:
            is_true = compute.is_in(cells, pa.array(TRUE, texts.type))
            fits = compute.or_(is_true, compute.is_in(cells, pa.array(FALSE, texts.type)))
            values = compute.if_else(empty, pa.scalar(None, pa.bool_()), is_true)
        else:
            values = compute.cast(cells, leaf.type)
            fits = compute.equal(compute.cast(values, texts.type), cells) if leaf.kind == WHOLE else _are_exact(cells, values)
        good = np.asarray(compute.fill_null(compute.or_(fits, empty), True)) if leaf.kind != NUMBER else fits | np.asarray(empty)
    except pa.ArrowInvalid:
        good = np.array([_is_one(leaf, cell) for cell in cells.to_pylist()])
        values = cells
    if not good.all():
        line = int(np.argmin(good))
        raise SchemaMismatchError(
            f"{where(line)}: field {name!r}: expected {EXPECTED[leaf.kind]} of {words_of(leaf)}, found "
            f"{one_line(repr(cells[line].as_py()), 80)}; give its type: schema={{{name!r}: 'text'}}"
        )
    if values is cells:
        raise CorruptError(f"{where(0)} or a later one: field {name!r}: expected {EXPECTED[leaf.kind]}, found another text")
    return values


def _are_exact(cells: Any, values: Any) -> Any:
    """Of every cell whether a floating-point number is what it says: not a larger whole number, nor one beyond the range."""
    numbers = np.abs(np.asarray(values.fill_null(0)))
    good = np.ones(len(cells), np.bool_)
    limit = EXACT if numbers.dtype.itemsize == 8 else 2**24
    for line in np.flatnonzero((numbers >= limit) | np.isinf(numbers)).tolist():
        text = cells[line].as_py()
        if WHOLE_NUMBER.fullmatch(text):
            good[line] = math.isfinite(numbers[line]) and (limit < EXACT or int(float(text)) == int(text))
        else:
            good[line] = math.isfinite(numbers[line]) or "inf" in text.lower()
    return good


def _is_one(leaf: JsonLeaf, cell: str | None) -> bool:
    if cell is None:
        return True
    if leaf.kind == NUMBER:
        return PLAIN_NUMBER.fullmatch(cell) is not None
    limits = np.iinfo(leaf.type.to_pandas_dtype())
    return WHOLE_NUMBER.fullmatch(cell) is not None and len(cell) < 40 and limits.min <= int(cell) <= limits.max
