"""Leaves of LitData that are lists and dicts of any shape, as JSON texts.

::

    leaf   = value, or its JSON (of old versions: the first byte is above 0x20)
    value  = 0 size u32, JSON | 1 n u32, (size u32, text) x n | 2 n u32, i64 x n | 3 n u32, f64 x n | 4 n u32, u8 x n |
             5 n u32, (size u32, key, value) x n | 6 n u32, k u32, (size u32, key) x k, cell x (n k) |
             7 size u32, text | 8 i64 | 9 f64 | 10 u8 | 11
    cell   = 0x10 | 0x11 size u32, text | 0x12 i64 | 0x13 f64 | 0x14 u8

1 to 4 are lists of texts, whole numbers, floats and truth values, 5 is a dict, 6 a list of dicts with the same keys, 7 to 10 single
values, 11 and 0x10 nothing. The other leaves of an item are read as always, natively.
"""

import json
import struct
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.argument import IntArray
from penstock.batch import Batch, Outputs, Ragged
from penstock.errors import BatchTooLargeError, CorruptError
from penstock.fingerprint import fingerprint_of
from penstock.formats.files import MAX_BLOCK_BYTES, check_block, one_line
from penstock.records import Blocks, Recipe, Sampling, Source
from penstock.row_table import OwnRows, RowTable
from penstock.schema import Field

__all__ = ["NestedItems", "nested_value"]

COUNT, WHOLE, FLOAT = struct.Struct("<I"), struct.Struct("<q"), struct.Struct("<d")
JSON, TEXTS, WHOLES, FLOATS, FLAGS, DICT, ROWS, TEXT, INT, REAL, FLAG, NOTHING = range(12)
CELLS = {0x10: NOTHING, 0x11: TEXT, 0x12: INT, 0x13: REAL, 0x14: FLAG}
OLD = 0x20
"""Leaves that begin with a larger byte are JSON as a whole."""


def nested_value(where: str, data: bytes, max_block_bytes: int = MAX_BLOCK_BYTES) -> Any:
    """What a leaf has. CorruptError, with where it is, if it has anything else."""
    try:
        if data[:1] > bytes([OLD]):
            return json.loads(data)
        reader = _Reader(where, data, max_block_bytes)
        value = reader.value()
        reader.need_end()
    except BatchTooLargeError:
        raise
    except (ValueError, IndexError, RecursionError, struct.error) as error:
        raise CorruptError(
            f"{where}: expected a nested value, found {one_line(repr(data[:20]), 80)}: {one_line(error, 100)}"
        ) from None
    return value


class _Reader:
    """Reads values, one behind the other."""

    def __init__(self, where: str, data: bytes, max_block_bytes: int) -> None:
        self._where, self._data, self._at, self._limit = where, data, 0, max_block_bytes

    def need_end(self) -> None:
        if self._at != len(self._data):
            raise ValueError(f"{len(self._data) - self._at} bytes behind it")

    def _take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise ValueError(f"expected {size} bytes from byte {self._at} on")
        self._at += size
        return self._data[self._at - size : self._at]

    def _byte(self) -> int:
        return self._take(1)[0]

    def _count(self, least: int = 1) -> int:
        """How many things of at least so many bytes follow."""
        (count,) = COUNT.unpack(self._take(COUNT.size))
        if count * least > len(self._data) - self._at:
            raise ValueError(f"expected {count} things from byte {self._at} on")
        return int(count)

    def _text(self) -> str:
        return self._take(self._count()).decode()

    def _single(self, kind: int) -> Any:
        if kind == TEXT:
            return self._text()
        if kind == INT:
            return WHOLE.unpack(self._take(WHOLE.size))[0]
        if kind == REAL:
            return FLOAT.unpack(self._take(FLOAT.size))[0]
        if kind == FLAG:
            return bool(self._byte())
        if kind == NOTHING:
            return None
        raise ValueError(f"unknown kind {kind}")

    def value(self) -> Any:
        kind = self._byte()
        if kind == JSON:
            return json.loads(self._take(self._count()))
        if kind == TEXTS:
            return [self._text() for _ in range(self._count(COUNT.size))]
        if kind in (WHOLES, FLOATS):
            return np.frombuffer(self._take(8 * self._count(8)), "<i8" if kind == WHOLES else "<f8").tolist()
        if kind == FLAGS:
            return [bool(one) for one in self._take(self._count())]
        if kind == DICT:
            return {self._text(): self.value() for _ in range(self._count(COUNT.size + 1))}
        return self._rows() if kind == ROWS else self._single(kind)

    def _rows(self) -> list[dict[str, Any]]:
        (count,) = COUNT.unpack(self._take(COUNT.size))
        keys = [self._text() for _ in range(self._count(COUNT.size))]
        if not keys or count * len(keys) > len(self._data) - self._at:
            raise ValueError(f"expected {count} dicts of {len(keys)} keys from byte {self._at} on")
        check_block(self._where, count * sum(map(len, keys)), len(self._data), self._limit)  # keys are written once
        return [{key: self._single(CELLS.get(self._byte(), -1)) for key in keys} for _ in range(count)]


class NestedItems(Source):
    """Items some of whose leaves are nested: those are JSON texts, the others as they are."""

    def __init__(self, source: Source, nested: Sequence[str], where: str, max_block_bytes: int) -> None:
        """``source`` gives the bytes of the nested ones; ``where`` is its name in messages."""
        self._source, self._nested, self._name, self._limit = source, tuple(nested), where, max_block_bytes

    def __len__(self) -> int:
        return len(self._source)

    @property
    def schema(self) -> Mapping[str, Field]:
        return {
            name: Field.text(nullable=field.nullable) if name in self._nested else field
            for name, field in self._source.schema.items()
        }

    @property
    def fingerprint(self) -> str:
        return fingerprint_of("litdata nested", self._nested, self._source.fingerprint)

    def sample_digest(self, sampling: Sampling) -> str | None:
        found = self._source.sample_digest(sampling)
        return None if found is None else fingerprint_of("litdata nested", self._nested, found)

    def file_versions(self) -> Hashable | None:
        return self._source.file_versions()

    @property
    def blocks(self) -> Blocks:
        return self._source.blocks

    @property
    def reads_blocks(self) -> bool:
        return self._source.reads_blocks

    @property
    def behind(self) -> Source:
        """The bytes are there."""
        return self._source

    @property
    def max_batch_bytes(self) -> int | None:
        return self._source.max_batch_bytes

    def row_tables(self) -> Mapping[str, tuple[RowTable, str]]:
        """The nested leaves are read here, the others where they are."""
        own, tables = OwnRows(self), self._source.row_tables()
        return {name: (own, name) if name in self._nested else tables[name] for name in self.schema}

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        found = dict(self._source.read(ids, fields, {name: out[name] for name in out if name in fields}))
        for name in fields:
            if name in self._nested:
                found[name] = self._texts(name, ids, found[name])
        return found

    def _texts(self, name: str, ids: IntArray, column: Ragged) -> Ragged:
        texts = []
        for record, data in zip(ids.tolist(), column, strict=True):
            value = nested_value(f"{self._name}: item {record}: leaf {one_line(name, 100)}", data, self._limit)
            texts.append(_as_json(value))
        return Ragged.from_items(texts, dtype=np.uint8, kind="text")

    def close(self) -> None:
        self._source.close()

    def _recipe(self) -> Recipe:
        opener, arguments = self._source._recipe()
        return _reopen, (opener, arguments, self._nested, self._name, self._limit)


def _as_json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if text.isascii() or _is_unicode(text) else json.dumps(value, separators=(",", ":"))


def _is_unicode(text: str) -> bool:
    """Whether there is no half of a character in it, which JSON may have, and UTF-8 may not."""
    return not any(0xD800 <= ord(letter) < 0xE000 for letter in text)


def _reopen(opener: Any, arguments: tuple[Any, ...], nested: Sequence[str], where: str, max_block_bytes: int) -> NestedItems:
    return NestedItems(opener(*arguments), nested, where, max_block_bytes)
