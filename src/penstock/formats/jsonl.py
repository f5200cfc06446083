"""JSON lines: a JSON object a line. Plain files are read line by line, .gz and .zst block by block.

Fields are inferred from lines spread over all files, or given. Every line that is read is compared with them natively, to the last
byte: a value of another kind, a key that was never seen, a missing value are errors, never a cast. pyarrow converts the values.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from penstock.argument import IntArray, byte_size, whole_number
from penstock.errors import CorruptError, EmptySourceError, SchemaMismatchError, SizeOverflowError
from penstock.formats.arrow import CACHE_BYTES, Decoding
from penstock.formats.arrow_column import gather_spans
from penstock.formats.arrow_file import ArrowField, Fields, choose, plain_fields, translated
from penstock.formats.files import MAX_BLOCK_BYTES, Names, find_files, one_line
from penstock.formats.lines import LineParser, Seen, TextOptions, Texts, Where, open_lines
from penstock.formats.rows_in_files import default_threads, reader_of_memory
from penstock.native import _core
from penstock.process import need
from penstock.records import Source
from penstock.remote.window import RemoteOptions
from penstock.schema import Field

__all__ = ["SUFFIXES", "JsonLeaf", "as_leaf", "as_words", "block_size", "later", "open_jsonl", "runs_of", "words_of"]

SUFFIXES = (".jsonl", ".ndjson", *(f"{suffix}{end}" for end in (".gz", ".zst") for suffix in (".jsonl", ".ndjson", ".json")))

ANY, WHOLE, NUMBER, BOOLEAN, TEXT, LIST, NOTHING = range(7)
"""Kinds of values, as the native core numbers them."""

SYNTAX, DEPTH, TWICE, KIND, MISSING, UNKNOWN, NOT_OBJECT = range(1, 8)
"""Faults of lines, likewise."""

MOST_MEMBERS = 256
"""An object with more keys than this is a dictionary, whose keys are data: it stays JSON."""

MOST_FIELDS = 4096
EXACT = 2**53
"""Whole numbers up to here are exact as floating-point numbers."""

PARSED_LINES, PARSED_BYTES = 1 << 15, 256 << 20
"""Lines and bytes that pyarrow parses at once."""

MOST_PARSED = 2**31 - 2
"""Bytes of a line that it parses at all."""

WORDS = {
    ANY: "any value",
    WHOLE: "a whole number",
    NUMBER: "a number",
    BOOLEAN: "true or false",
    TEXT: "a text",
    LIST: "a list",
    NOTHING: "null, as in all lines that were looked at",
}
NUMBERS = ("bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")


def open_jsonl(
    what: Names,
    *,
    fields: Fields | None = None,
    schema: Mapping[str, str | Field] | None = None,
    raw: bool = False,
    threads: int | None = None,
    io: str = "auto",
    cache_bytes: int = CACHE_BYTES,
    max_block_bytes: int | str = MAX_BLOCK_BYTES,
    remote: RemoteOptions | None = None,
) -> Source:
    """JSON lines (.jsonl, .ndjson, also .gz and .zst, and .json.gz), one file or many as one source: a list keeps its order, a
    pattern or a directory gives that of the name bytes.

    Members of objects are fields called ``a.b``. ``fields`` are the wanted ones, or a dict of new names and old ones; other keys
    are ignored then. ``schema`` gives types instead of those inferred: a Field, or ``"i8"``, ``"f8"``, ``"bool"``, ``"text"``,
    ``"i8[]"`` for lists, ``"json"`` for the JSON text of any value, each with a ``?`` if values may be missing. ``raw=True`` gives
    the lines themselves, as the text field ``line``. Decoded blocks of compressed files are kept up to ``cache_bytes``.
    """
    if not raw:
        need("pyarrow", "arrow")
    elif fields is not None or schema is not None:
        raise ValueError("raw=True gives the lines as they are: leave out fields and schema")
    largest = byte_size("max_block_bytes", max_block_bytes)
    decoding = Decoding(default_threads(threads), whole_number("cache_bytes", cache_bytes), largest)
    given = tuple((name, as_words(name, kind)) for name, kind in (schema or {}).items())
    how = JsonLines(plain_fields(fields), given)
    return open_lines(find_files(what, SUFFIXES), how, TextOptions(bool(raw), io, decoding, remote))


# Types


@dataclass(frozen=True)
class JsonLeaf:
    """A field: the keys that lead to it, its kind, the type that pyarrow parses and the one it becomes."""

    keys: tuple[str, ...]
    kind: int
    type: Any
    nullable: bool
    size: int | None = None
    """Of lists that all have one."""

    @property
    def is_text(self) -> bool:
        """Whether the field is the JSON text of a value."""
        return self.kind == ANY

    @property
    def element(self) -> "JsonLeaf":
        """The leaf of an element of lists."""
        inner = self.type.value_type
        types = need("pyarrow", "arrow").types
        kind = BOOLEAN if types.is_boolean(inner) else NUMBER if types.is_floating(inner) else WHOLE
        return JsonLeaf(self.keys, kind, inner, False)

    @property
    def final(self) -> Any:
        """The type that the field becomes; pyarrow parses no lists of one size."""
        return self.type if self.size is None else need("pyarrow", "arrow").list_(self.type.value_type, self.size)


def as_words(name: str, kind: Any) -> str:
    """A type as a text: ``i8``, ``i8[]``, ``f4[3]``, ``text``, ``json``, with ``?`` if it is nullable."""
    if isinstance(kind, Field):
        end = "?" * kind.nullable
        if kind.kind == "text":
            return f"text{end}"
        if kind.element in NUMBERS and kind.kind == "ragged" and kind.ndim == 1:
            return f"{kind.element}[]{end}"
        if kind.element in NUMBERS and kind.is_fixed and len(kind.shape) <= 1 and 0 not in kind.shape:
            return kind.element + "".join(f"[{size}]" for size in kind.shape) + end
        raise TypeError(f"schema: {name!r}: expected texts, numbers or lists of numbers, got {kind!r}")
    as_leaf((name,), kind if isinstance(kind, str) else repr(kind))
    return str(kind)


def as_leaf(keys: tuple[str, ...], words: str) -> JsonLeaf:
    """The leaf of a type as a text; TypeError if it is none."""
    pa, text, nullable = need("pyarrow", "arrow"), words.removesuffix("?"), words.endswith("?")
    if text in ("json", "text"):
        return JsonLeaf(keys, ANY if text == "json" else TEXT, pa.large_string(), nullable)
    element, bracket, inside = text.partition("[")
    size = inside.removesuffix("]")
    if element in NUMBERS and (not bracket or inside.endswith("]")) and (not size or (size.isdecimal() and int(size) > 0)):
        inner = pa.bool_() if element == "bool" else pa.from_numpy_dtype(np.dtype(element))
        if bracket:
            return JsonLeaf(keys, LIST, pa.list_(inner), nullable, int(size) if size else None)
        return JsonLeaf(keys, BOOLEAN if element == "bool" else NUMBER if element[0] == "f" else WHOLE, inner, nullable)
    raise TypeError(f"schema: {'.'.join(keys)!r}: expected a Field or one of {' '.join(NUMBERS)} text json, got {words!r}")


# What lines show. A node has how often a value was null, bool, int, float, text, list and object; the smallest and the largest
# whole number; the node of all elements of lists, and of every key of objects. Nodes of files are added up.


COUNTED = {type(None): "null", bool: "bool", int: "int", float: "float", str: "text", list: "list", dict: "object"}


def _new() -> dict[str, Any]:
    return {**dict.fromkeys((*COUNTED.values(), "low", "high"), 0), "items": None, "members": {}}


def _note(node: dict[str, Any], value: Any) -> None:
    kind = COUNTED[type(value)]
    node[kind] += 1
    if kind == "int":
        node["low"], node["high"] = min(node["low"], value), max(node["high"], value)
    elif kind == "list":
        node["items"] = node["items"] or _new()
        for item in value:
            _note(node["items"], item)
    elif kind == "object":
        for key, member in value.items():
            if key in node["members"] or len(node["members"]) <= MOST_FIELDS:
                _note(node["members"].setdefault(key, _new()), member)


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    made = {kind: one[kind] + other[kind] for kind in COUNTED.values()}
    made["low"], made["high"] = min(one["low"], other["low"]), max(one["high"], other["high"])
    items = [node["items"] for node in (one, other) if node["items"] is not None]
    made["items"] = reduce(_merged, items) if items else None
    members = dict(one["members"])
    for key, node in other["members"].items():
        members[key] = _merged(members[key], node) if key in members else node
    made["members"] = members
    return made


def _whole(text: str) -> int:
    """A whole number; of one of thousands of digits, only that it is too large counts."""
    return int(text) if len(text) < 40 else 2**128 * (-1 if text[0] == "-" else 1)


_SCALARS = {frozenset(["bool"]): "bool", frozenset(["text"]): "text"}


def _inferred(node: Mapping[str, Any], keys: tuple[str, ...], lines: int) -> Iterator[JsonLeaf]:
    """The leaves at and below a node. Values of several kinds, dictionaries and lists of anything but numbers stay JSON."""
    kinds = frozenset(kind for kind in ("bool", "int", "float", "text", "list", "object") if node[kind])
    if keys == () or (kinds == {"object"} and 0 < len(node["members"]) <= MOST_MEMBERS):
        for key, member in node["members"].items():
            yield from _inferred(member, (*keys, key), lines)
        return
    nullable = "?" * (sum(node[kind] for kind in kinds) < lines)
    if not kinds:
        yield replace(as_leaf(keys, "json?"), kind=NOTHING)
        return
    found = _SCALARS.get(kinds) or _number(node, kinds)
    if kinds == {"list"}:
        inner = node["items"]
        inside = frozenset(kind for kind in COUNTED.values() if inner[kind])
        element = "bool" if inside == {"bool"} else _number(inner, inside)
        found = None if element is None else f"{element}[]"
    yield as_leaf(keys, f"{found or 'json'}{nullable}")


def _number(node: Mapping[str, Any], kinds: frozenset[str]) -> str | None:
    """The type of numbers, if there is one that has all of them exactly."""
    if kinds == {"int"}:
        return (
            "i8"
            if node["low"] >= -(2**63) and node["high"] < 2**63
            else "u8"
            if node["low"] >= 0 and node["high"] < 2**64
            else None
        )
    is_exact = node["low"] >= -EXACT and node["high"] <= EXACT
    return "f8" if kinds and kinds <= {"int", "float"} and is_exact else None


@dataclass(frozen=True)
class JsonLines:
    """See :class:`penstock.formats.lines.LineFormat`."""

    fields: Fields | None
    schema: tuple[tuple[str, str], ...]

    name = "jsonl"
    delimiter = "\0"
    has_header = False
    line_identity = ()

    @property
    def identity(self) -> tuple[Any, ...]:
        return self.fields, self.schema

    def observe(self, path: str, header: bytes | None, lines: Sequence[bytes], where: Where) -> dict[str, Any]:
        text = np.frombuffer(b"".join(lines), np.uint8)
        offsets = np.concatenate([[0], np.cumsum([len(line) for line in lines], dtype=np.int64)]).astype(np.int64)
        _find(_core.JsonFinder([], False), [], text, offsets, where)
        node = _new()
        for line in lines:
            _note(node, json.loads(line, parse_int=_whole))
        return node

    def _leaves(self, seen: Seen) -> list[JsonLeaf]:
        node = reduce(_merged, (node for _, node in seen), _new())
        if len(node["members"]) > MOST_FIELDS:
            raise SchemaMismatchError(
                f"{seen[0][0]}: expected at most {MOST_FIELDS} keys, found more: choose some with schema={{...}}"
            )
        inferred = list(_inferred(node, (), node["object"]))
        named = {".".join(leaf.keys): leaf.keys for leaf in inferred}
        given = [as_leaf(named.get(name, tuple(name.split("."))), words) for name, words in self.schema]
        inferred = [leaf for leaf in inferred if not any(_overlap(leaf.keys, other.keys) for other in given)]
        order = {keys: place for place, keys in enumerate(named.values())}
        return sorted([*inferred, *given], key=lambda leaf: order.get(leaf.keys, len(order)))

    def choose(self, seen: Seen) -> dict[str, ArrowField]:
        found = [leaf for leaf in self._leaves(seen) if leaf.kind != NOTHING]
        if not found:
            raise EmptySourceError(
                f"{seen[0][0]}: expected lines with values, to infer the fields from, found none: pass schema={{...}}"
            )
        chosen = choose(_nested(found, lambda leaf: leaf.final), self.fields, seen[0][0])
        nullable = {leaf.keys: leaf.nullable for leaf in found}
        return {
            name: ArrowField((name,), leaf.type, leaf.field.with_nullable(nullable[leaf.path])) for name, leaf in chosen.items()
        }

    def parser(self, leaves: Mapping[str, ArrowField], seen: Seen) -> LineParser:
        found = self._leaves(seen)
        chosen = choose(_nested([leaf for leaf in found if leaf.kind != NOTHING], lambda leaf: leaf.final), self.fields, seen[0][0])
        of = {leaf.keys: leaf for leaf in found}
        known = [leaf for leaf in found if leaf.kind == NOTHING] if self.fields is None else None
        return JsonParser({name: of[one.path] for name, one in chosen.items()}, known)


def _overlap(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether one of two paths is the beginning of the other."""
    return all(a == b for a, b in zip(one, other, strict=False))


def _nested(leaves: Sequence[JsonLeaf], type_of: Callable[[JsonLeaf], Any], depth: int = 0) -> Any:
    """The Arrow schema of leaves, or the struct below their first keys."""
    pa = need("pyarrow", "arrow")
    below: dict[str, list[JsonLeaf]] = {}
    for leaf in leaves:
        below.setdefault(leaf.keys[depth], []).append(leaf)
    members = [
        pa.field(key, type_of(some[0]) if len(some[0].keys) == depth + 1 else _nested(some, type_of, depth + 1))
        for key, some in below.items()
    ]
    return pa.schema(members) if depth == 0 else pa.struct(members)


# Parsing


class JsonParser:
    """Lines into columns: spans and checks natively, values by pyarrow. ``known`` are keys without values; None: other keys are
    ignored.
    """

    def __init__(self, leaves: Mapping[str, JsonLeaf], known: Sequence[JsonLeaf] | None) -> None:
        self._leaves, self._known = dict(leaves), known
        self._finders: dict[tuple[str, ...], Any] = {}

    def _finder(self, names: Sequence[str]) -> Any:
        if tuple(names) not in self._finders:
            strict = self._known is not None and set(names) == set(self._leaves)
            paths = [self._leaves[name] for name in names] + (list(self._known or ()) if strict else [])
            self._finders[tuple(names)] = _core.JsonFinder([(list(leaf.keys), leaf.kind, leaf.nullable) for leaf in paths], strict)
        return self._finders[tuple(names)]

    def parse(self, names: Sequence[str], text: Texts, offsets: IntArray, where: Where) -> dict[str, list[Any]]:
        finder, count = self._finder(names), offsets.size - 1
        found = _find(finder, [(name, self._leaves[name]) for name in names], text, offsets, where)
        spans = {name: (found[0][:, place], found[1][:, place]) for place, name in enumerate(names)}
        made: dict[str, list[Any]] = {name: [] for name in names}
        for name in names:
            if self._leaves[name].is_text and count:
                made[name].append(_texts(text, *spans[name]))
        typed = [name for name in names if not self._leaves[name].is_text]
        for low, high in runs_of(offsets) if typed else ():
            for name, array in self._parse(typed, text, offsets, (low, high), where).items():
                starts, sizes = (one[low:high] for one in spans[name])
                _need_exact(name, self._leaves[name], array, (text, starts, sizes), later(where, low))
                made[name].append(array)
        return made

    def _parse(self, names: Sequence[str], text: Texts, offsets: IntArray, run: tuple[int, int], where: Where) -> dict[str, Any]:
        pa, reader = need("pyarrow", "arrow"), need("pyarrow.json", "arrow")
        leaves = {name: self._leaves[name] for name in names}
        part = text[offsets[run[0]] : offsets[run[1]]]
        options = reader.ParseOptions(
            explicit_schema=_nested(list(leaves.values()), lambda leaf: leaf.type), unexpected_field_behavior="ignore"
        )
        how = reader.ReadOptions(use_threads=False, block_size=block_size(part.size, where(run[0])))
        try:
            table = reader.read_json(pa.BufferReader(part), how, options)
        except pa.ArrowInvalid as error:
            self._diagnose(names, text, offsets, run, where)
            raise CorruptError(f"{where(run[0])} or a later one: {one_line(error, 300)}") from error
        if len(table) != run[1] - run[0]:
            raise CorruptError(f"{where(run[0])} and later: expected {run[1] - run[0]} objects, found {len(table)}")
        with translated(where(run[0])):
            return {name: _shaped(name, leaf, _column(table, leaf.keys), later(where, run[0])) for name, leaf in leaves.items()}

    def _diagnose(self, names: Sequence[str], text: Texts, offsets: IntArray, run: tuple[int, int], where: Where) -> None:
        """SchemaMismatchError for the first value that pyarrow did not take."""
        part = offsets[run[0] : run[1] + 1]
        wanted = [(name, self._leaves[name]) for name in names]
        starts, sizes = _find(self._finder(names), wanted, text, part, later(where, run[0]))
        for line in range(run[1] - run[0]):
            for place, (name, leaf) in enumerate(wanted):
                start, size = int(starts[line, place]), int(sizes[line, place])
                if size >= 0 and not _fits(leaf, value := _value(leaf, text[start : start + size].tobytes())):
                    raise _misfit(name, leaf, value, where(run[0] + line))


def later(where: Where, first: int) -> Where:
    """Where lines are, counted from a later one on."""
    return lambda line: where(first + line)


def _find(
    finder: Any, wanted: Sequence[tuple[str, JsonLeaf]], text: Texts, offsets: IntArray, where: Where
) -> tuple[IntArray, IntArray]:
    """Where values are: a row for each line, a column for each leaf. An error for the first line that is not right."""
    lines, paths = offsets.size - 1, finder.num_paths
    starts, sizes = np.empty(lines * paths, np.int64), np.empty(lines * paths, np.int64)
    fault, line, place, path = finder.find(text, np.ascontiguousarray(offsets), starts, sizes)
    if not fault:
        return starts.reshape(lines, paths), sizes.reshape(lines, paths)
    at, column = where(line), place - int(offsets[line]) + 1
    there = one_line(repr(text[place : min(int(offsets[line + 1]), place + 60)].tobytes().decode("utf-8", "replace")), 80)
    name, leaf = wanted[path] if 0 <= path < len(wanted) else ("", None)
    if fault == KIND and leaf is None:  # a key that had no value in any line
        fault = UNKNOWN
    if fault == SYNTAX:
        raise CorruptError(f"{at}: expected one JSON object in UTF-8, found something else at byte {column}: {there}")
    if fault == DEPTH:
        raise CorruptError(f"{at}: expected at most 256 levels of objects and lists, found more at byte {column}")
    if fault == TWICE:
        raise CorruptError(
            f"{at}: expected every key once in an object, found {repr(name) if name else 'one'} again at byte {column}: {there}"
        )
    if fault == UNKNOWN:
        raise SchemaMismatchError(
            f"{at}: expected the keys and values that other lines have, found another at byte {column}: {there}; choose the wanted "
            "fields with fields=[...], or give the type of this one, too, such as schema={'key': 'json?'}"
        )
    assert leaf is not None
    if fault == MISSING:
        words = f"{words_of(leaf)}?"
        raise SchemaMismatchError(
            f"{at}: field {name!r}: expected {WORDS[leaf.kind]}, found none; if values may be missing: "
            f"schema={{{name!r}: {words!r}}}"
        )
    expected = "an object" if fault == NOT_OBJECT else WORDS[leaf.kind]
    raise SchemaMismatchError(
        f"{at}: field {name!r}: expected {expected} as in other lines, found {there}; for values of any kind: "
        f"schema={{{'.'.join(leaf.keys[:1]) if fault == NOT_OBJECT else name!r}: 'json?'}}"
    )


def words_of(leaf: JsonLeaf) -> str:
    """The type of a leaf as a text, without a mark for missing values."""
    if leaf.kind in (ANY, TEXT):
        return "json" if leaf.kind == ANY else "text"
    inner = leaf.type.value_type if leaf.kind == LIST else leaf.type
    dtype = np.dtype(inner.to_pandas_dtype())
    element = "bool" if dtype == np.bool_ else dtype.str[1:]
    return element + (f"[{leaf.size or ''}]" if leaf.kind == LIST else "")


def runs_of(offsets: IntArray) -> Iterator[tuple[int, int]]:
    """Lines that are parsed together."""
    low = 0
    while low < offsets.size - 1:
        fitting = int(np.searchsorted(offsets, offsets[low] + PARSED_BYTES, side="right")) - 1
        high = min(max(fitting, low + 1), low + PARSED_LINES)
        yield low, high
        low = high


def block_size(size: int, at: str) -> int:
    """What pyarrow is told, so that a text of that many bytes is one block; SizeOverflowError if it takes none so large."""
    if size > MOST_PARSED:
        raise SizeOverflowError(f"{at}: expected a line of at most {MOST_PARSED} bytes, which pyarrow parses, found more: split it")
    return max(1 << 10, size + 1)


def _texts(text: Texts, starts: IntArray, sizes: IntArray) -> Any:
    """Values as JSON texts."""
    pa, present = need("pyarrow", "arrow"), sizes >= 0
    lengths = np.where(present, sizes, 0)
    rows = reader_of_memory([text], threads=1)
    values = gather_spans(rows, np.where(present, starts, 0), lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    bits = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(pa.large_string(), lengths.size, [bits, pa.py_buffer(offsets), pa.py_buffer(values)])


def _column(table: Any, keys: tuple[str, ...]) -> Any:
    """The array of a leaf; null where an object above it is."""
    column = table.column(keys[0])
    if len(keys) > 1:
        column = need("pyarrow.compute", "arrow").struct_field(column, list(keys[1:]))
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _shaped(name: str, leaf: JsonLeaf, array: Any, where: Where) -> Any:
    """Lists of one size as such; SchemaMismatchError if one has another size, or a null in it."""
    if leaf.size is None:
        return array
    pa, present = need("pyarrow", "arrow"), np.asarray(array.is_valid())
    lengths = np.asarray(array.value_lengths().fill_null(leaf.size))
    if not np.all(lengths == leaf.size):
        line = int(np.argmax(lengths != leaf.size))
        raise SchemaMismatchError(f"{where(line)}: field {name!r}: expected lists of {leaf.size}, found one of {lengths[line]}")
    values = array.flatten()
    if values.null_count:
        line = int(np.flatnonzero(present)[int(np.argmax(np.asarray(values.is_null()))) // leaf.size])
        raise SchemaMismatchError(f"{where(line)}: field {name!r}: expected numbers, found a list with null in it")
    filled = np.zeros((len(array), leaf.size), values.type.to_pandas_dtype())
    filled[present] = np.asarray(values).reshape(-1, leaf.size)
    bits = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(leaf.final, len(array), [bits], children=[pa.array(filled.reshape(-1))])


# Values that a type does not have exactly


def _fits(leaf: JsonLeaf, value: Any) -> bool:
    """Whether a value is one of the type."""
    if leaf.kind == LIST:
        return isinstance(value, list) and all(item is None or _fits(leaf.element, item) for item in value)
    if leaf.kind == WHOLE:
        limits = np.iinfo(leaf.type.to_pandas_dtype())
        return isinstance(value, int) and not isinstance(value, bool) and limits.min <= value <= limits.max
    if leaf.kind == NUMBER:
        return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and _is_exact(leaf, value))
    return isinstance(value, bool if leaf.kind == BOOLEAN else str)


def _is_exact(leaf: JsonLeaf, value: int) -> bool:
    """Whether a whole number is one of a floating-point type; what is rounded to the half of it was asked for."""
    if leaf.type.bit_width < 64:
        return abs(value) < 2**127
    return abs(value) < 2**128 and int(float(value)) == value


def _misfit(name: str, leaf: JsonLeaf, value: Any, at: str) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"{at}: field {name!r}: expected values of {words_of(leaf)}, found {one_line(repr(value), 80)}, which does not fit; for "
        f"values of any kind: schema={{{name!r}: 'json?'}}"
    )


def _need_exact(name: str, leaf: JsonLeaf, array: Any, spans: tuple[Texts, IntArray, IntArray], where: Where) -> None:
    """SchemaMismatchError for a number that a floating-point type does not have: a large whole one, or one beyond its range."""
    types = need("pyarrow", "arrow").types
    inner = array.values if leaf.kind == LIST else array
    if not types.is_floating(inner.type) or len(inner) == 0:
        return
    numbers = np.abs(np.asarray(inner.fill_null(0)))
    if not np.any(numbers >= EXACT):
        return
    text, starts, sizes = spans
    for line in np.flatnonzero(sizes >= 0).tolist():
        value = _value(leaf, text[starts[line] : starts[line] + sizes[line]].tobytes())
        if not _fits(leaf, value):
            raise _misfit(name, leaf, value, where(line))


def _value(leaf: JsonLeaf, raw: bytes) -> Any:
    """A JSON value; numbers that the type of a leaf cannot have are texts."""
    inner = leaf.element if leaf.kind == LIST else leaf
    dtype = np.dtype(inner.type.to_pandas_dtype() if inner.kind == NUMBER else np.float64)

    def number(text: str) -> float | str:
        with np.errstate(over="ignore"):
            return float(text) if math.isfinite(dtype.type(float(text))) else text

    return json.loads(raw, parse_int=_whole, parse_float=number)
