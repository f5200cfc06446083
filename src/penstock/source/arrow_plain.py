"""Columns of Arrow arrays: records read by id straight from the buffers, with every offset in them checked."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock import _core
from penstock.errors import BatchTooLargeError, CorruptError, SizeOverflowError, UnsupportedTypeError
from penstock.interfaces import IntArray
from penstock.ragged import Ragged
from penstock.records import Blocks, Outputs, fixed_output, masked
from penstock.schema import MAX_RECORD_BYTES
from penstock.source.arrow_memory import Bytes, Memory, ranges
from penstock.source.arrow_type import Leaf, plain, storage
from penstock.source.optional import need

__all__ = ["BitColumn", "Column", "Describe", "FixedColumn", "NumberColumn", "OffsetColumn", "Present", "SpanColumn"]

MAX_BATCH_BYTES = 16 << 30

Present = npt.NDArray[np.bool_] | None
Describe = Callable[[int], str]


class Column(ABC):
    """One field of arrays one after the other. Add arrays, ``seal``, read. Sealed columns are safe to use from several threads."""

    def __init__(self, name: str, leaf: Leaf, memory: Memory, describe: Describe) -> None:
        self.field = leaf.field
        self._name, self._path, self._memory, self._describe = name, leaf.path, memory, describe
        self._lengths: list[int] = []
        self._added: list[tuple[list[int], list[int]]] = []

    # Building

    def add(self, array: Any) -> None:
        """The next array of the column, with the structs above it."""
        if len(array) == 0:
            return
        levels = []
        for depth, member in enumerate(self._path):
            if depth > 0:
                array = storage(array).field(member)
            levels.append(self._memory.null_bits(array))
        self._added.append((levels, self._place(plain(array))))
        self._lengths.append(len(array))

    @abstractmethod
    def _place(self, array: Any) -> list[int]:
        """The addresses of what is read of an array."""

    def seal(self) -> None:
        """No more arrays will come."""
        self._arrays = Blocks.of_counts(self._lengths)
        self._firsts = np.concatenate([[0], np.cumsum(self._lengths[:-1])]).astype(np.int64)
        levels = np.array([level for level, _ in self._added], np.int64)
        self._levels = [level for level in levels.T.copy() if np.any(level >= 0)]
        self._facts = np.array([facts for _, facts in self._added], np.int64).T.copy()
        self._lengths, self._added = [], []

    @property
    def has_nulls(self) -> bool:
        """Whether any record may be missing, once it is sealed."""
        return bool(self._levels)

    def __len__(self) -> int:
        return self._arrays.length

    # Reading

    @abstractmethod
    def read(self, ids: IntArray, out: Outputs) -> Any:
        """The records as a batch has them."""

    def _present(self, ids: IntArray, which: IntArray) -> Present:
        present: Present = None
        for level in self._levels:
            at = level[which]
            chosen = np.flatnonzero(at >= 0)
            found = np.ones(ids.size, np.bool_)
            found[chosen] = self._memory.bits(at[chosen] + (ids - self._firsts[which])[chosen])
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


class FixedColumn(Column):
    """Records of one size."""

    def read(self, ids: IntArray, out: Outputs) -> Any:
        """The records as a batch has them: an array, with a mask where records are missing."""
        array = fixed_output(self._name, self.field, ids.size, out)
        present = _none_if_all(self.fill(ids, array))
        if present is not None:
            array[~present] = 0
        return masked(array, present)

    @abstractmethod
    def fill(self, ids: IntArray, out: npt.NDArray[Any]) -> Present:
        """Fill an array with records; gives which are present, None for all."""


class SpanColumn(Column):
    """Records of varying length."""

    def read(self, ids: IntArray, out: Outputs) -> Any:
        """The records as a batch has them, one after the other."""
        values, lengths, present = self.spans(ids)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        if self.field.kind == "text":
            self._check_text(values, offsets, ids)
        kind = "array" if self.field.kind == "ragged" else self.field.kind
        return Ragged(values, offsets, kind, None, _none_if_all(present))

    @abstractmethod
    def spans(self, ids: IntArray) -> tuple[npt.NDArray[Any], IntArray, Present]:
        """Values and lengths of records, and which are present; those that are not have no values."""

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


class NumberColumn(FixedColumn):
    """Numbers, and fixed lists of numbers, as they lie in the arrays."""

    _counts: Sequence[int] = ()  # elements of a record at every level of lists
    _nulls: Sequence[tuple[int, IntArray]] = ()  # the same, where some are null, with the place of the first null bit

    def _place(self, array: Any) -> list[int]:
        first, count, counts, nulls = 0, 1, [], []
        while need("pyarrow", "arrow").types.is_fixed_size_list(array.type):
            first = (array.offset + first) * array.type.list_size
            count *= array.type.list_size
            array = plain(array.values)
            bits = self._memory.null_bits(array)
            counts.append(count)
            nulls.append(bits if bits < 0 else bits + first)
        self._counts = counts
        if self.field.stride == 0:
            return [0, *nulls]
        return [self._address(self._memory.place(array.buffers()[1]), array.offset + first, array.type), *nulls]

    def _address(self, address: int, number: int, kind: Any) -> int:
        """The place of an element of a buffer."""
        return address + number * (int(kind.bit_width) // 8)

    def seal(self) -> None:
        """No more arrays will come."""
        super().seal()
        self._ends = np.append(self._firsts[1:], len(self))
        if len(self):
            self._facts[0] -= self._firsts * self.field.stride
            levels = zip(self._counts, self._facts[1:], strict=True)
            self._nulls = [(count, nulls) for count, nulls in levels if np.any(nulls >= 0)]

    def fill(self, ids: IntArray, out: npt.NDArray[Any]) -> Present:
        """Copy the records."""
        if ids.size == 0:
            return None
        places = np.empty(ids.size, np.int64)
        _core.row_addresses(ids, self._ends, self._facts[0], self.field.stride, places)
        self._copy(places, out)
        if not self._levels and not self._nulls:
            return None
        which = self._arrays.of(ids)
        present = self._present(ids, which)
        for count, nulls in self._nulls:
            lengths = np.full(ids.size, count) if present is None else np.where(present, count, 0)
            self._check_elements(ids, nulls[which], (ids - self._firsts[which]) * count, lengths)
        return present

    def _copy(self, places: IntArray, out: npt.NDArray[Any]) -> None:
        self._memory.fill(places, out, self.field.stride)


class BitColumn(NumberColumn):
    """Booleans, which Arrow packs: places are numbers of bits here."""

    def _address(self, address: int, number: int, kind: Any) -> int:
        return 8 * address + number

    def _copy(self, places: IntArray, out: npt.NDArray[Any]) -> None:
        out.reshape(-1)[:] = self._memory.bits((places[:, None] + np.arange(self.field.stride)).reshape(-1))


class OffsetColumn(SpanColumn):
    """Texts, byte strings and lists of numbers, between the offsets of the arrays."""

    _width = 4

    def _place(self, array: Any) -> list[int]:
        buffers = array.buffers()
        self._width = 8 if str(array.type).startswith("large_") else 4
        offsets = self._memory.place(buffers[1]) + array.offset * self._width
        if self.field.kind != "ragged":
            return [offsets, -1, 0, 0] if buffers[2] is None else [offsets, -1, self._memory.place(buffers[2]), buffers[2].size]
        values = plain(array.values)
        buffer = values.buffers()[1]
        address = 0 if buffer is None else self._memory.place(buffer)
        first = 8 * address + values.offset if self._packed else address + values.offset * self.field.dtype.itemsize
        return [offsets, self._memory.null_bits(values), first, len(values)]

    @property
    def _packed(self) -> bool:
        return self.field.element == "bool"

    def spans(self, ids: IntArray) -> tuple[npt.NDArray[Any], IntArray, Present]:
        """Copy the values."""
        dtype = self.field.dtype
        if ids.size == 0:
            return np.empty(0, dtype), np.empty(0, np.int64), None
        which = self._arrays.of(ids)
        present = self._present(ids, which)
        offsets, inner, first, limit = (fact[which] for fact in self._facts)
        edges = self._memory.read(offsets + (ids - self._firsts[which]) * self._width, 2 * self._width)
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
        """Every record must lie within the values of its array, and the batch must not be larger than anybody wants."""
        bad = np.flatnonzero((starts < 0) | (ends < starts) | (ends > limit))
        if bad.size:
            one = bad[0]
            raise CorruptError(
                f"{self._describe(int(ids[one]))}: field {self._name!r}: expected offsets that rise within [0, {limit[one]}], "
                f"found {starts[one]} and {ends[one]}"
            )
        sizes = (ends - starts) * self.field.dtype.itemsize
        if sizes.max() > MAX_RECORD_BYTES:
            where = self._describe(int(ids[np.argmax(sizes)]))
            raise SizeOverflowError(f"{where}: field {self._name!r} has {sizes.max()} bytes, expected {MAX_RECORD_BYTES} at most")
        if sizes.sum() > MAX_BATCH_BYTES:
            raise BatchTooLargeError(
                f"{self._describe(int(ids[0]))} and others: field {self._name!r} has {sizes.sum()} bytes, expected "
                f"{MAX_BATCH_BYTES} at most; read fewer records at a time"
            )


def _none_if_all(present: Present) -> Present:
    return None if present is None or present.all() else present
