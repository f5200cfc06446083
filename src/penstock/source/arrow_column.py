"""Which column an Arrow type needs; columns whose values are in dictionaries, and nested ones, which are read as JSON."""

import json
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.errors import CorruptError
from penstock.interfaces import IntArray
from penstock.records import empty
from penstock.schema import Field
from penstock.source.arrow_memory import Memory
from penstock.source.arrow_plain import BitColumn, Column, Describe, FixedColumn, NumberColumn, OffsetColumn, Present, SpanColumn
from penstock.source.arrow_type import Leaf, is_view, json_type, storage, storage_type, view_lengths
from penstock.source.limit import check_block
from penstock.source.optional import need

__all__ = ["Column", "make_column"]

VALUE_BYTES = 32.0
"""What a small value takes in Python."""

Values = TypeVar("Values", bound=Column)


def make_column(name: str, leaf: Leaf, memory: Memory, describe: Describe) -> Column:
    """A column of no records, to which arrays are added. ``describe`` says where a record is, for messages."""
    return (_make_fixed if leaf.field.is_fixed else _make_span)(name, leaf, memory, describe)


def _make_fixed(name: str, leaf: Leaf, memory: Memory, describe: Describe) -> FixedColumn:
    if _has_dictionary(leaf):
        return FixedDictionary(name, leaf, memory, describe)
    return (BitColumn if leaf.field.element == "bool" else NumberColumn)(name, leaf, memory, describe)


def _make_span(name: str, leaf: Leaf, memory: Memory, describe: Describe) -> SpanColumn:
    if leaf.is_json:
        return JsonColumn(name, leaf, memory, describe)
    return (SpanDictionary if _has_dictionary(leaf) else OffsetColumn)(name, leaf, memory, describe)


def _has_dictionary(leaf: Leaf) -> bool:
    return bool(need("pyarrow", "arrow").types.is_dictionary(storage_type(leaf.type)))


class DictionaryColumn(Column, Generic[Values]):
    """Records that are numbers of values in a dictionary; every array may have another one."""

    def __init__(self, name: str, leaf: Leaf, memory: Memory, describe: Describe) -> None:
        super().__init__(name, leaf, memory, describe)
        kind = storage_type(leaf.type)
        codes = Leaf((), kind.index_type, Field(kind.index_type.to_pandas_dtype()))
        self._codes = NumberColumn(name, codes, memory, describe)
        self._values = self._make_values(name, Leaf(("values",), kind.value_type, leaf.field), memory, self._describe_value)
        self._known: dict[tuple[int, ...], int] = {}
        self._num_values, self._num_records = 0, 0
        self._users: list[tuple[int, int]] = []  # the first value of every dictionary, and the first record that has it

    @abstractmethod
    def _make_values(self, name: str, leaf: Leaf, memory: Memory, describe: Describe) -> Values:
        """A column for the values of the dictionaries."""

    def _place(self, array: Any) -> list[int]:
        self._codes.add(array.indices)
        values = array.dictionary
        key = (values.offset, len(values), *(self._memory.place(one) for one in values.buffers() if one is not None))
        if key not in self._known:
            self._known[key] = self._num_values
            self._users.append((self._num_values, self._num_records))
            self._values.add(values)
            self._num_values += len(values)
        self._num_records += len(array)
        return [self._known[key], len(values)]

    def _describe_value(self, value: int) -> str:
        """Where the first record is that has the dictionary of a value."""
        record = next(record for first, record in reversed(self._users) if first <= value)
        return f"{self._describe(record)}, value {value} of the dictionaries"

    def seal(self) -> None:
        """No more arrays will come."""
        super().seal()
        self._codes.seal()
        self._values.seal()

    @property
    def has_nulls(self) -> bool:
        """A number, or a value of a dictionary, may be null."""
        return super().has_nulls or self._values.has_nulls

    def _lookup(self, ids: IntArray) -> tuple[IntArray, Present]:
        """The numbers of the values of the records that are present, and which these are."""
        codes = np.empty(ids.size, self._codes.field.dtype)
        self._codes.fill(ids, codes)
        if ids.size == 0:
            return codes.astype(np.int64), None
        which = self._arrays.of(ids)
        there = self._present(ids, which)
        first, count = (fact[which] for fact in self._facts)
        numbers = codes.astype(np.int64)  # the largest uint64 become negative, and are refused as such
        bad = (numbers < 0) | (numbers >= count)
        if there is not None:
            bad &= there
        if bad.any():
            one = int(np.argmax(bad))
            raise CorruptError(
                f"{self._describe(int(ids[one]))}: field {self._name!r}: expected a number below {count[one]}, "
                f"the size of its dictionary, found {codes[one]}"
            )
        return (first + numbers if there is None else (first + numbers)[there]), there


class FixedDictionary(DictionaryColumn[FixedColumn], FixedColumn):
    """Values of one size."""

    def _make_values(self, name: str, leaf: Leaf, memory: Memory, describe: Describe) -> FixedColumn:
        return _make_fixed(name, leaf, memory, describe)

    def fill(self, ids: IntArray, out: npt.NDArray[Any]) -> Present:
        """Copy the values of the records that are present."""
        values, there = self._lookup(ids)
        if there is None:
            return self._values.fill(values, out)
        part = empty((values.size, *self.field.shape), self.field.dtype)
        found = self._values.fill(values, part)
        out[there] = part
        return _within(there, found)


class SpanDictionary(DictionaryColumn[SpanColumn], SpanColumn):
    """Values of varying length."""

    def _make_values(self, name: str, leaf: Leaf, memory: Memory, describe: Describe) -> SpanColumn:
        return _make_span(name, leaf, memory, describe)

    def spans(self, ids: IntArray) -> tuple[npt.NDArray[Any], IntArray, Present]:
        """Copy the values of the records that are present."""
        values, there = self._lookup(ids)
        if there is None:
            return self._values.spans(values)
        data, found_lengths, found = self._values.spans(values)
        lengths = np.zeros(ids.size, np.int64)
        lengths[there] = found_lengths
        return data, lengths, _within(there, found)


class JsonColumn(SpanColumn):
    """Lists of texts, structs or lists, as one JSON text a record: made when it is read, without spaces, keys as in the schema.

    The arrays are kept, and trusted: whoever reads them from a file has them checked.
    """

    def __init__(self, name: str, leaf: Leaf, memory: Memory, describe: Describe) -> None:
        super().__init__(name, leaf, memory, describe)
        self._nested: list[Any] = []
        self._weights: list[Any] = []

    def _place(self, array: Any) -> list[int]:
        self._nested.append(array)
        self._weights.append(weights(array))
        return []

    def spans(self, ids: IntArray) -> tuple[npt.NDArray[Any], IntArray, Present]:
        """Make the texts of the records that are present."""
        self._memory.read(np.empty(0, np.int64), 1)  # refuses if it is closed
        if ids.size == 0:
            return np.empty(0, np.uint8), np.empty(0, np.int64), None
        which = self._arrays.of(ids)
        present = self._present(ids, which)
        self._check_weight(ids, which)
        texts = [b""] * ids.size
        for number in np.unique(which).tolist():
            chosen = np.flatnonzero((which == number) if present is None else (which == number) & present)
            for place, text in zip(chosen.tolist(), self._texts(number, ids[chosen]), strict=True):
                texts[place] = text
        lengths: IntArray = np.array([len(text) for text in texts], np.int64)
        return np.frombuffer(b"".join(texts), np.uint8), lengths, present

    def _check_weight(self, ids: IntArray, which: IntArray) -> None:
        """BatchTooLargeError for lists that take little memory in Arrow and would take very much as texts."""
        total, stored = 0.0, 0
        for number in np.unique(which).tolist():
            places, found = ids[which == number] - self._firsts[number], self._weights[number]
            total += float(places.size * found if isinstance(found, float) else found[places].sum())
            stored += self._nested[number].get_total_buffer_size()
        check_block(f"{self._describe(int(ids[0]))}: field {self._name!r}", int(total), stored, self._memory.max_block_bytes)

    def _texts(self, number: int, ids: IntArray) -> Iterator[bytes]:
        array = self._nested[number]
        wanted = json_type(array.type)
        for run in np.split(ids, np.flatnonzero(np.diff(ids) != 1) + 1):  # Arrow cannot take any ids of all types
            if run.size:
                part = array.slice(run[0] - self._firsts[number], run.size)
                yield from map(_as_json, self._values(part if part.type == wanted else part.cast(wanted), run))

    def _values(self, part: Any, ids: IntArray) -> list[Any]:
        try:
            values: list[Any] = part.to_pylist()
        except UnicodeDecodeError as error:
            where = f"{self._describe(int(ids[0]))}{' or one soon after it' * (ids.size > 1)}"
            raise CorruptError(f"{where}: field {self._name!r} has a text that is not UTF-8") from error
        return values


def weights(array: Any) -> Any:
    """About how many bytes every element of a nested array takes as Python values: an array, or one number if all are the same.

    Lists may show the same elements many times, and nulls take no memory in Arrow.
    """
    types = need("pyarrow", "arrow").types
    array = storage(array)
    kind = array.type
    if types.is_struct(kind):
        return VALUE_BYTES + sum(weights(array.field(number)) for number in range(kind.num_fields))
    if types.is_dictionary(kind):
        inner = weights(array.dictionary)
        return (
            inner
            if isinstance(inner, float)
            else inner[array.indices.fill_null(0).to_numpy().astype(np.int64)]
            if len(inner)
            else 0.0
        )
    if types.is_fixed_size_list(kind):
        starts = (np.arange(len(array), dtype=np.int64) + array.offset) * kind.list_size
        return _sums(weights(array.values), starts, np.full(len(array), kind.list_size, np.int64))
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        return _sums(weights(array.values), array.offsets.to_numpy().astype(np.int64), array.sizes.to_numpy().astype(np.int64))
    if types.is_map(kind):
        edges = array.offsets.to_numpy().astype(np.int64)
        return _sums(weights(array.keys) + weights(array.items), edges[:-1], np.diff(edges))
    if types.is_list(kind) or types.is_large_list(kind):
        edges = array.offsets.to_numpy().astype(np.int64)
        return _sums(weights(array.values), edges[:-1], np.diff(edges))
    if is_view(kind):
        return VALUE_BYTES + view_lengths(array).astype(np.float64)
    if types.is_string(kind) or types.is_large_string(kind):
        lengths = need("pyarrow.compute", "arrow").binary_length(array).fill_null(0).to_numpy()
        return VALUE_BYTES + lengths.astype(np.float64)
    return VALUE_BYTES


def _sums(inner: Any, starts: IntArray, lengths: IntArray) -> Any:
    """The weights of lists whose elements have the weights ``inner``."""
    if isinstance(inner, float):
        return VALUE_BYTES + inner * lengths
    ends = np.concatenate([[0.0], np.cumsum(inner)])
    return VALUE_BYTES + ends[starts + lengths] - ends[starts]


def _as_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _within(outer: npt.NDArray[np.bool_], inner: Present) -> Present:
    """What is present of the records that are present."""
    if inner is None:
        return outer
    result = outer.copy()
    result[outer] = inner
    return result
