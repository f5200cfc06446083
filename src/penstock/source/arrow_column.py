"""Columns of Arrow arrays: records read by id straight from the buffers, with every offset in them checked."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import CorruptError, SizeOverflowError, UnsupportedTypeError
from penstock.interfaces import IntArray
from penstock.ragged import Ragged
from penstock.records import Outputs, empty, fixed_output, masked
from penstock.schema import MAX_RECORD_BYTES, Field
from penstock.source.arrow_memory import Bytes, Memory, ranges
from penstock.source.arrow_type import Leaf, storage_type
from penstock.source.optional import need

__all__ = ["Column", "make_column"]

Present = npt.NDArray[np.bool_] | None
Describe = Callable[[int], str]


def make_column(name: str, leaf: Leaf, memory: Memory, describe: Describe) -> "Column":
    """A column of no records, to which arrays are added. ``describe`` says where a record is, for messages."""
    return _make(name, leaf.path, leaf.type, leaf.field, memory, describe)


def _make(name: str, path: tuple[str, ...], kind: Any, field: Field, memory: Memory, describe: Describe) -> "Column":
    types = need("pyarrow", "arrow").types
    plain = storage_type(kind)
    if types.is_dictionary(plain):
        codes = Field(plain.index_type.to_pandas_dtype())
        values = _make(name, (), plain.value_type, field, memory, describe)
        return DictionaryColumn(name, path, field, memory, describe, FixedColumn(name, path, codes, memory, describe), values)
    if not field.is_fixed:
        return SpanColumn(name, path, field, memory, describe)
    return (BitColumn if field.element == "bool" else FixedColumn)(name, path, field, memory, describe)


class Column(ABC):
    """One field of arrays one after the other. Add arrays, ``seal``, read. Sealed columns are safe to use from several threads."""

    def __init__(self, name: str, path: tuple[str, ...], field: Field, memory: Memory, describe: Describe) -> None:
        self.field = field
        self._name, self._path, self._memory, self._describe = name, path, memory, describe
        self._lengths: list[int] = []
        self._added: list[tuple[list[int], list[int]]] = []

    # Building

    def add(self, array: Any) -> None:
        """The next array of the column, with the structs above it."""
        if len(array) == 0:
            return
        levels = [_bits_of(array, self._memory)]
        for member in self._path[1:]:
            array = _storage(array).field(member)
            levels.append(_bits_of(array, self._memory))
        self._added.append((levels, self._place(_plain(array))))
        self._lengths.append(len(array))

    @abstractmethod
    def _place(self, array: Any) -> list[int]:
        """The addresses of what is read of an array."""

    def seal(self) -> None:
        """No more arrays will come."""
        lengths = np.array(self._lengths, np.int64)
        self._ends = np.cumsum(lengths)
        self._firsts = self._ends - lengths
        levels = np.array([one for one, _ in self._added], np.int64).reshape(lengths.size, -1)
        self._levels = [level for level in levels.T.copy() if np.any(level >= 0)]
        self._facts = np.array([one for _, one in self._added], np.int64).reshape(lengths.size, -1).T.copy()
        self._added.clear()

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._ends.size else 0

    # Reading

    def read(self, ids: IntArray, out: Outputs) -> Any:
        """The records as a batch has them."""
        if self.field.is_fixed:
            array = fixed_output(self._name, self.field, ids.size, out)
            present = _none_if_all(self.fill(ids, array))
            if present is not None:
                array[~present] = 0
            return masked(array, present)
        values, lengths, present = self.spans(ids)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        if self.field.kind == "text":
            self._check_text(values, offsets, ids)
        kind = "array" if self.field.kind == "ragged" else self.field.kind
        return Ragged(values, offsets, kind, None, _none_if_all(present))

    def fill(self, ids: IntArray, out: npt.NDArray[Any]) -> Present:
        """Fill an array with records of a fixed field; gives which are present, None for all."""
        raise NotImplementedError

    def spans(self, ids: IntArray) -> tuple[npt.NDArray[Any], IntArray, Present]:
        """Values and lengths of records of varying length, and which are present; those that are not have no values."""
        raise NotImplementedError

    def _chunks(self, ids: IntArray) -> IntArray:
        return np.searchsorted(self._ends, ids, side="right") if self._ends.size > 1 else np.zeros(ids.size, np.int64)

    def _present(self, ids: IntArray, chunks: IntArray) -> Present:
        present: Present = None
        for level in self._levels:
            at = level[chunks]
            chosen = np.flatnonzero(at >= 0)
            found = np.ones(ids.size, np.bool_)
            found[chosen] = self._memory.bits(at[chosen] + (ids - self._firsts[chunks])[chosen])
            present = found if present is None else present & found
        return present

    def _check_elements(self, ids: IntArray, at: IntArray, starts: IntArray, lengths: IntArray) -> None:
        """Refuse records with elements that are null. ``at``: the bit of element 0, or less than 0 where no element is null."""
        chosen = np.flatnonzero((at >= 0) & (lengths > 0))
        if chosen.size == 0:
            return
        there = self._memory.bits(ranges((at + starts)[chosen], lengths[chosen]))
        if not there.all():
            record = ids[np.repeat(chosen, lengths[chosen])[np.argmin(there)]]
            raise UnsupportedTypeError(
                f"{self._describe(int(record))}: field {self._name!r} has a list with a null in it; "
                "a record may be missing, its elements may not: replace the nulls"
            )

    def _check_text(self, values: Bytes, offsets: IntArray, ids: IntArray) -> None:
        """Every text must be UTF-8 by itself: the whole is, and none begins in the middle of a character."""
        if values.size == 0 or int(values.max()) < 0x80:
            return
        starts = offsets[:-1][np.diff(offsets) > 0]
        try:
            values.tobytes().decode()
            if not np.any(values[starts] & 0xC0 == 0x80):
                return
        except UnicodeDecodeError:
            pass
        for record, low, high in zip(ids, offsets[:-1], offsets[1:], strict=True):
            try:
                values[low:high].tobytes().decode()
            except UnicodeDecodeError as error:
                raise CorruptError(f"{self._describe(int(record))}: field {self._name!r} is not UTF-8") from error


class FixedColumn(Column):
    """Records of one size: numbers, and fixed lists of numbers."""

    def _place(self, array: Any) -> list[int]:
        array, first, inner = _innermost(array, self._memory)
        address = self._memory.place(_need(array.buffers()[1]))
        return [address + (array.offset + first) * self._width(array), *inner]

    def _width(self, array: Any) -> int:
        """Bytes of an element."""
        return int(array.type.bit_width) // 8

    def seal(self) -> None:
        """No more arrays will come."""
        super().seal()
        if self._ends.size:
            self._facts[0] -= self._firsts * self._stride

    @property
    def _stride(self) -> int:
        return self.field.stride

    def fill(self, ids: IntArray, out: npt.NDArray[Any]) -> Present:
        """Copy the records."""
        if ids.size == 0:
            return None
        chunks = self._chunks(ids)
        self._copy(self._facts[0][chunks] + ids * self._stride, out)
        present = self._present(ids, chunks)
        count = 1
        for size, at in zip(self.field.shape, self._facts[1:], strict=False):
            count *= size
            lengths = np.full(ids.size, count) if present is None else np.where(present, count, 0)
            self._check_elements(ids, at[chunks], (ids - self._firsts[chunks]) * count, lengths)
        return present

    def _copy(self, places: IntArray, out: npt.NDArray[Any]) -> None:
        self._memory.fill(places, out, self._stride)


class BitColumn(FixedColumn):
    """Booleans, which Arrow packs: places are numbers of bits here."""

    def _place(self, array: Any) -> list[int]:
        array, first, inner = _innermost(array, self._memory)
        return [8 * self._memory.place(_need(array.buffers()[1])) + array.offset + first, *inner]

    def _copy(self, places: IntArray, out: npt.NDArray[Any]) -> None:
        out.reshape(-1)[:] = self._memory.bits((places[:, None] + np.arange(self._stride)).reshape(-1))


class SpanColumn(Column):
    """Records of varying length: texts, byte strings and lists of numbers."""

    _width = 4

    def _place(self, array: Any) -> list[int]:
        types = need("pyarrow", "arrow").types
        buffers = array.buffers()
        is_list = self.field.kind == "ragged"
        large = types.is_large_list(array.type) or types.is_large_string(array.type) or types.is_large_binary(array.type)
        self._width = 8 if large else 4
        offsets = self._memory.place(_need(buffers[1])) + array.offset * self._width
        if not is_list:
            return [offsets, -1, 0, 0] if buffers[2] is None else [offsets, -1, self._memory.place(buffers[2]), buffers[2].size]
        values = _plain(array.values)
        buffer = values.buffers()[1]
        address = 0 if buffer is None else self._memory.place(buffer)
        first = 8 * address + values.offset if self._packed else address + values.offset * self.field.dtype.itemsize
        return [offsets, _bits_of(values, self._memory), first, len(values)]

    @property
    def _packed(self) -> bool:
        return self.field.element == "bool"

    def spans(self, ids: IntArray) -> tuple[npt.NDArray[Any], IntArray, Present]:
        """Copy the values."""
        dtype = self.field.dtype
        if ids.size == 0:
            return np.empty(0, dtype), np.empty(0, np.int64), None
        chunks = self._chunks(ids)
        present = self._present(ids, chunks)
        offsets, inner, first, limit = (fact[chunks] for fact in self._facts)
        edges = self._memory.read(offsets + (ids - self._firsts[chunks]) * self._width, 2 * self._width)
        starts, ends = edges.view(f"<i{self._width}").astype(np.int64).T
        if present is not None:
            starts, ends = np.where(present, starts, 0), np.where(present, ends, 0)
        lengths = ends - starts
        self._check_edges(ids, starts, ends, limit)
        self._check_elements(ids, inner, starts, lengths)
        if self._packed:
            return self._memory.bits(ranges(first + starts, lengths)), lengths, present
        values = self._memory.spans(first + starts * dtype.itemsize, lengths * dtype.itemsize)
        return values.view(dtype), lengths, present

    def _check_edges(self, ids: IntArray, starts: IntArray, ends: IntArray, limit: IntArray) -> None:
        """Every record must lie within the values of its array, and all together must not be larger than the values."""
        bad = np.flatnonzero((starts < 0) | (ends < starts) | (ends > limit))
        if bad.size:
            one = bad[0]
            raise CorruptError(
                f"{self._describe(int(ids[one]))}: field {self._name!r}: expected offsets that rise within [0, {limit[one]}], "
                f"found {starts[one]} and {ends[one]}"
            )
        most = MAX_RECORD_BYTES // self.field.dtype.itemsize
        long = np.flatnonzero(ends - starts > most)
        if long.size:
            raise SizeOverflowError(
                f"{self._describe(int(ids[long[0]]))}: field {self._name!r}: a record has at most {MAX_RECORD_BYTES} bytes"
            )
        lengths = ends - starts
        if lengths.sum() > most and lengths[np.unique(ids, return_index=True)[1]].sum() > self._facts[3].sum():
            raise CorruptError(f"{self._describe(int(ids[0]))}: field {self._name!r}: records overlap")


class DictionaryColumn(Column):
    """Records that are numbers of values in a dictionary; every array may have another one."""

    def __init__(
        self,
        name: str,
        path: tuple[str, ...],
        field: Field,
        memory: Memory,
        describe: Describe,
        codes: FixedColumn,
        values: Column,
    ) -> None:
        super().__init__(name, path, field, memory, describe)
        self._codes, self._values = codes, values
        self._dictionaries: dict[tuple[int, ...], int] = {}
        self._num_values = 0

    def _place(self, array: Any) -> list[int]:
        self._codes.add_plain(array.indices)
        return []


def _innermost(array: Any, memory: Memory) -> tuple[Any, int, list[int]]:
    """The array of elements below fixed lists, the number of its first element, and the null bits of every level below."""
    types = need("pyarrow", "arrow").types
    first, inner = 0, []
    while types.is_fixed_size_list(array.type):
        first = (array.offset + first) * array.type.list_size
        array = _plain(array.values)
        bits = _bits_of(array, memory)
        inner.append(bits if bits < 0 else bits + first)
    return array, first, inner
