"""Columns of Arrow arrays: plain, dictionary-encoded, nested as JSON; and the memory of their buffers."""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray
from penstock.batch import Outputs, Ragged, empty, fixed_output, masked
from penstock.errors import BatchTooLargeError, CorruptError, SizeOverflowError, UnsupportedTypeError
from penstock.formats.arrow_file import ArrowField, is_view, json_type, plain, storage, storage_type, view_lengths
from penstock.formats.files import MAX_BLOCK_BYTES, check_block, check_texts
from penstock.formats.rows_in_files import FileRows, Rows, reader_of_files, reader_of_memory, version_of
from penstock.native import _core
from penstock.process import need
from penstock.records import Blocks, Extents
from penstock.schema import MAX_RECORD_BYTES, Field
from penstock.system import file_access

__all__ = [
    "ArrowColumn",
    "BufferMemory",
    "Bytes",
    "FileMemory",
    "Memory",
    "NotInFileError",
    "OffsetColumn",
    "gather_spans",
    "make_column",
    "ranges",
]

MAX_BATCH_BYTES = 16 << 30

Bytes = npt.NDArray[np.uint8]
Present = npt.NDArray[np.bool_] | None
Describe = Callable[[int], str]
Places = tuple[IntArray, IntArray]
"""Addresses from and to."""


# The memory of buffers


class NotInFileError(Exception):
    """A buffer that is not in the file as it is, because it was decompressed or converted."""


class Memory(ABC):
    """Place buffers first, then ``seal``, then read. Sealed memory is safe to use from several threads and after fork."""

    _rows: Rows
    max_block_bytes = MAX_BLOCK_BYTES
    """What a batch of nested records may take."""

    @abstractmethod
    def place(self, buffer: Any) -> int:
        """The address of the first byte of an Arrow buffer."""

    @abstractmethod
    def seal(self) -> None:
        """No more buffers will come."""

    @abstractmethod
    def rows_at(self, addresses: IntArray, counts: IntArray, stride: int) -> Rows:
        """A reader of rows of ``stride`` bytes: ``counts`` of them from every address on, one after the other."""

    def read(self, addresses: IntArray, size: int) -> Bytes:
        """``size`` bytes from every address on, a row for each."""
        out = empty((addresses.size, size), np.dtype(np.uint8))
        self._rows.read(addresses, out, size)
        return out

    def fill(self, addresses: IntArray, out: npt.NDArray[Any], size: int) -> None:
        """``size`` bytes from every address on, one after the other in ``out``."""
        self._rows.read(addresses, out, size)

    def bits(self, places: IntArray) -> npt.NDArray[np.bool_]:
        """Bits by their number from the first bit of the memory on."""
        found = self.read(places >> 3, 1).reshape(-1) >> (places & 7).astype(np.uint8)
        return (found & 1).astype(np.bool_)

    def null_bits(self, array: Any) -> int:
        """Place the bits that say which elements of an array are there: the number of the first, or -1 if no element is null."""
        bitmap = array.buffers()[0] if array.null_count else None
        return -1 if bitmap is None else 8 * self.place(bitmap) + int(array.offset)

    def spans(self, addresses: IntArray, sizes: IntArray) -> Bytes:
        """``sizes`` bytes from every address on, one after the other."""
        return gather_spans(self._rows, addresses, sizes)

    def native_field(
        self, chunks: IntArray, bits: IntArray, offset_bytes: int, item_bytes: int, *, is_text: bool
    ) -> _core.SpanReader | None:
        """A native reader of a column; see ``_core.arrow_field``."""
        line = self._rows.native()
        return (
            None if line is None else _core.arrow_field(line[0], chunks, bits, offset_bytes, item_bytes, is_text, MAX_BATCH_BYTES)
        )

    @property
    def paths(self) -> Sequence[str]:
        """The files on a disk of this machine; none if buffers are in memory."""
        return self._rows.paths

    def extents(self, places: Places) -> Extents:
        """In which bytes of which files addresses are."""
        return self._rows.extents(*places)

    def close(self) -> None:
        """Nothing can be read any more. Idempotent."""
        self._rows.close()


class BufferMemory(Memory):
    """Buffers in memory. They are kept alive, not copied."""

    def __init__(self, threads: int) -> None:
        self._threads, self._end = threads, 0
        self._places: dict[tuple[int, int], int] = {}
        self._arrays: list[Bytes] = []

    def place(self, buffer: Any) -> int:
        """The address of a buffer; one that comes again has the address it had."""
        key = (buffer.address, buffer.size)
        if key not in self._places:
            self._places[key] = self._end
            if buffer.size:
                self._arrays.append(np.frombuffer(buffer, np.uint8))
                self._end += buffer.size
        return self._places[key]

    def seal(self) -> None:
        self._rows = reader_of_memory(self._arrays or [np.empty(0, np.uint8)], threads=self._threads)
        self._starts, self._places = np.cumsum([0, *(array.size for array in self._arrays)]), {}

    def rows_at(self, addresses: IntArray, counts: IntArray, stride: int) -> Rows:
        numbers = np.searchsorted(self._starts, addresses, side="right") - 1
        found = zip(numbers.tolist(), (addresses - self._starts[numbers]).tolist(), counts.tolist(), strict=True)
        pieces = [self._arrays[number][at : at + count * stride] for number, at, count in found]
        return reader_of_memory([piece.reshape(-1, stride) for piece in pieces], threads=1)


class FileMemory(Memory):
    """Buffers that are in files as they are. The files are opened again when they are read, never through Arrow."""

    def __init__(self, threads: int) -> None:
        self._threads, self._end = threads, 0
        self._files: list[FileRows] = []

    def add_file(self, path: str, whole: Any) -> None:
        """Buffers placed from now on are in this file, which may be a link; ``whole`` is the buffer of all its bytes."""
        self._start, self._base, self._size = whole.address, self._end, whole.size
        real = Path(os.path.realpath(path))
        self._files.append(FileRows(real, whole.size, 0, whole.size, version_of(real)))
        self._end += whole.size

    def place(self, buffer: Any) -> int:
        """The address of a buffer. NotInFileError if it is not part of the file."""
        offset: int = buffer.address - self._start
        if buffer.size == 0:
            return self._base
        if offset < 0 or offset + buffer.size > self._size:
            raise NotInFileError
        return self._base + offset

    def seal(self) -> None:
        self._rows = reader_of_files(self._files, 1, access=file_access("auto", self._files[0].path), threads=self._threads)

    def rows_at(self, addresses: IntArray, counts: IntArray, stride: int) -> Rows:
        bases = np.cumsum([0, *(file.size for file in self._files)])
        numbers = np.searchsorted(bases, addresses, side="right") - 1
        pieces = [
            replace(self._files[number], offset=(addresses - bases[number])[here], rows=counts[here])
            for number in np.unique(numbers).tolist()
            for here in [numbers == number]
        ]
        return reader_of_files(pieces, stride, access=file_access("auto", self._files[0].path), threads=1)


def ranges(starts: IntArray, lengths: IntArray) -> IntArray:
    """start, start + 1, ... of every start, one after the other."""
    ends = np.cumsum(lengths)
    places: IntArray = np.arange(int(ends[-1]) if ends.size else 0, dtype=np.int64)
    places += np.repeat(starts - (ends - lengths), lengths)
    return places


def gather_spans(rows: Rows, addresses: IntArray, sizes: IntArray) -> Bytes:
    """Runs of different sizes, one after the other. ``rows`` has rows of one byte."""
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    out = empty((int(offsets[-1]),), np.dtype(np.uint8))
    rows.read_spans(addresses, offsets, out)
    return out


# Columns


class ArrowColumn(ABC):
    """One field of arrays one after the other. Add arrays, ``seal``, read. Sealed columns are safe to use from several threads."""

    def __init__(self, name: str, leaf: ArrowField, memory: Memory, describe: Describe) -> None:
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
        self._sizes: IntArray = np.array(self._lengths, np.int64)
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

    def native(self) -> tuple[Any, int] | None:
        """A native reader for the loader, as :meth:`penstock.Source.native_reader` gives it."""
        return None

    def places(self, starts: IntArray, stops: IntArray) -> Places:
        """Addresses between which the bytes of records [start, stop) are, about: offsets are not read to find them."""
        if not len(self):
            return NOTHING, NOTHING
        starts, stops = starts[stops > starts], stops[stops > starts]
        first = self._arrays.of(starts)
        counts = self._arrays.of(stops - 1) - first + 1
        run, which = np.repeat(np.arange(starts.size), counts), ranges(first, counts)
        low = np.maximum(starts[run] - self._firsts[which], 0)
        high = np.minimum(stops[run] - self._firsts[which], self._sizes[which])
        found = self._places_in(which, low, high)
        for level in self._levels:
            there = level[which] >= 0
            begin, low_bit, high_bit = level[which][there], low[there], high[there]
            found.append(((begin + low_bit) >> 3, (begin + high_bit + 7) >> 3))
        return _joined(found)

    def _places_in(self, which: IntArray, low: IntArray, high: IntArray) -> list[Places]:
        """Those of records [low, high) of arrays, without the bits that say which are there."""
        return []

    def _native_field(self, address: IntArray, values: IntArray, limits: IntArray, widths: tuple[int, int]) -> Any:
        bits = np.stack(self._levels, axis=1) if self._levels else np.empty((address.size, 0), np.int64)
        chunks = np.stack([self._sizes, address, values, limits], axis=1)
        return self._memory.native_field(chunks, bits, *widths, is_text=self.field.kind == "text")

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


class FixedColumn(ArrowColumn):
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


class SpanColumn(ArrowColumn):
    """Records of varying length."""

    def read(self, ids: IntArray, out: Outputs) -> Any:
        """The records as a batch has them, one after the other."""
        values, lengths, present = self.spans(ids)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        if self.field.kind == "text":
            check_texts(values, offsets, lambda one: f"{self._describe(int(ids[one]))}: field {self._name!r} is not UTF-8")
        kind = "array" if self.field.kind == "ragged" else self.field.kind
        return Ragged(values, offsets, kind, None, _none_if_all(present))

    @abstractmethod
    def spans(self, ids: IntArray) -> tuple[npt.NDArray[Any], IntArray, Present]:
        """Values and lengths of records, and which are present; those that are not have no values."""


class NumberColumn(FixedColumn):
    """Numbers, and fixed lists of numbers, as they are in the arrays."""

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
        super().seal()
        self._ends = np.append(self._firsts[1:], len(self))
        if len(self):
            self._facts[0] -= self._firsts * self.field.stride
            levels = zip(self._counts, self._facts[1:], strict=True)
            self._nulls = [(count, nulls) for count, nulls in levels if np.any(nulls >= 0)]

    def fill(self, ids: IntArray, out: npt.NDArray[Any]) -> Present:
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

    def native(self) -> tuple[Any, int] | None:
        """Of the records alone where none is missing."""
        stride = self.field.stride
        if self._nulls or not len(self) or not stride:
            return None
        address = self._facts[0] + self._firsts * stride
        if not self._levels:
            return self._memory.rows_at(address, self._sizes, stride).native()
        reader = self._native_field(address, np.zeros_like(address), np.zeros_like(address), (0, stride))
        return None if reader is None else (reader, -1)

    def _places_in(self, which: IntArray, low: IntArray, high: IntArray) -> list[Places]:
        begin = self._facts[0][which] + self._firsts[which] * self.field.stride
        return [(begin + low * self.field.stride, begin + high * self.field.stride)]


class BitColumn(NumberColumn):
    """Booleans, which Arrow packs: places are numbers of bits here."""

    def _address(self, address: int, number: int, kind: Any) -> int:
        return 8 * address + number

    def native(self) -> None:
        """Bits are no rows of bytes."""

    def _places_in(self, which: IntArray, low: IntArray, high: IntArray) -> list[Places]:
        return [(begin >> 3, (end + 7) >> 3) for begin, end in super()._places_in(which, low, high)]

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

    def native(self) -> tuple[Any, int] | None:
        """Unless elements may be null, or are bits."""
        if not len(self) or self._packed or np.any(self._facts[1] >= 0):
            return None
        offsets, _, first, limit = self._facts
        reader = self._native_field(offsets, first, limit, (self._width, self.field.dtype.itemsize))
        return None if reader is None else (reader.varying, -1)

    def _places_in(self, which: IntArray, low: IntArray, high: IntArray) -> list[Places]:
        offsets, _, first, limit = (fact[which] for fact in self._facts)
        sizes = self._sizes[which]
        begin = first + np.floor(limit * (low / sizes)).astype(np.int64) * self.field.dtype.itemsize
        end = first + np.ceil(limit * (high / sizes)).astype(np.int64) * self.field.dtype.itemsize
        values = (begin >> 3, (end + 7) >> 3) if self._packed else (begin, end)
        return [(offsets + low * self._width, offsets + (high + 1) * self._width), values]

    def lengths(self, ids: IntArray) -> IntArray:
        """Elements of records, 0 for those that are missing. The values are not read."""
        _, _, starts, ends = self._edges(ids)
        return ends - starts

    def _edges(self, ids: IntArray) -> tuple[IntArray, Present, IntArray, IntArray]:
        """Arrays of records, which of these are there, and the first and the last offset of each."""
        if ids.size == 0:
            return NOTHING, None, NOTHING, NOTHING
        which = self._arrays.of(ids)
        present = self._present(ids, which)
        offsets, _, _, limit = (fact[which] for fact in self._facts)
        edges = self._memory.read(offsets + (ids - self._firsts[which]) * self._width, 2 * self._width)
        starts, ends = edges.view(f"<i{self._width}").astype(np.int64).T
        if present is not None:
            starts, ends = np.where(present, starts, 0), np.where(present, ends, 0)
        self._check_edges(ids, starts, ends, limit)
        return which, present, starts, ends

    def spans(self, ids: IntArray) -> tuple[npt.NDArray[Any], IntArray, Present]:
        dtype = self.field.dtype
        which, present, starts, ends = self._edges(ids)
        if ids.size == 0:
            return np.empty(0, dtype), np.empty(0, np.int64), None
        lengths = ends - starts
        self._check_batch(ids, lengths * dtype.itemsize)
        _, inner, first, _ = (fact[which] for fact in self._facts)
        self._check_elements(ids, inner, starts, lengths)
        if self._packed:
            return self._memory.bits(ranges(first + starts, lengths)), lengths, present
        values = self._memory.spans(first + starts * dtype.itemsize, lengths * dtype.itemsize)
        return values.view(dtype), lengths, present

    def _check_edges(self, ids: IntArray, starts: IntArray, ends: IntArray, limit: IntArray) -> None:
        """Every record must be within the values of its array."""
        bad = np.flatnonzero((starts < 0) | (ends < starts) | (ends > limit))
        if bad.size:
            one = bad[0]
            raise CorruptError(
                f"{self._describe(int(ids[one]))}: field {self._name!r}: expected offsets that rise within [0, {limit[one]}], "
                f"found {starts[one]} and {ends[one]}"
            )

    def _check_batch(self, ids: IntArray, sizes: IntArray) -> None:
        """No record, and not the batch, may be larger than the limit."""
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


NOTHING: IntArray = np.empty(0, np.int64)


def _joined(found: Sequence[Places]) -> Places:
    starts, stops = (np.concatenate(edges) for edges in zip((NOTHING, NOTHING), *found, strict=True))
    return starts, stops


VALUE_BYTES = 32.0
"""What a small value takes in Python."""

Values = TypeVar("Values", bound=ArrowColumn)


def make_column(name: str, leaf: ArrowField, memory: Memory, describe: Describe) -> ArrowColumn:
    """A column of no records, to which arrays are added. ``describe`` says where a record is, for messages."""
    has_dictionary = need("pyarrow", "arrow").types.is_dictionary(storage_type(leaf.type))
    kind: Callable[..., ArrowColumn]
    if leaf.field.is_fixed:
        kind = FixedDictionary if has_dictionary else BitColumn if leaf.field.element == "bool" else NumberColumn
    else:
        kind = JsonColumn if leaf.is_json else SpanDictionary if has_dictionary else OffsetColumn
    return kind(name, leaf, memory, describe)


class DictionaryColumn(ArrowColumn, Generic[Values]):
    """Records that are numbers of values in a dictionary; every array may have another one."""

    def __init__(self, name: str, leaf: ArrowField, memory: Memory, describe: Describe) -> None:
        super().__init__(name, leaf, memory, describe)
        kind = storage_type(leaf.type)
        codes = ArrowField((), kind.index_type, Field(kind.index_type.to_pandas_dtype()))
        self._codes = NumberColumn(name, codes, memory, describe)
        inner = ArrowField(("values",), kind.value_type, leaf.field)
        self._values = cast(Values, make_column(name, inner, memory, self._describe_value))
        self._known: dict[tuple[int, ...], int] = {}
        self._num_values, self._num_records = 0, 0
        self._users: list[tuple[int, int]] = []  # the first value of every dictionary, and the first record that has it

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

    def places(self, starts: IntArray, stops: IntArray) -> Places:
        """Of the numbers; the dictionaries are small."""
        return _joined([super().places(starts, stops), self._codes.places(starts, stops)])

    def _describe_value(self, value: int) -> str:
        """Where the first record is that has the dictionary of a value."""
        record = next(record for first, record in reversed(self._users) if first <= value)
        return f"{self._describe(record)}, value {value} of the dictionaries"

    def seal(self) -> None:
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

    def fill(self, ids: IntArray, out: npt.NDArray[Any]) -> Present:
        values, there = self._lookup(ids)
        if there is None:
            return self._values.fill(values, out)
        part = empty((values.size, *self.field.shape), self.field.dtype)
        found = self._values.fill(values, part)
        out[there] = part
        return _within(there, found)


class SpanDictionary(DictionaryColumn[SpanColumn], SpanColumn):
    """Values of varying length."""

    def spans(self, ids: IntArray) -> tuple[npt.NDArray[Any], IntArray, Present]:
        values, there = self._lookup(ids)
        if there is None:
            return self._values.spans(values)
        data, found_lengths, found = self._values.spans(values)
        lengths = np.zeros(ids.size, np.int64)
        lengths[there] = found_lengths
        return data, lengths, _within(there, found)


class JsonColumn(SpanColumn):
    """Lists of texts, structs or lists, as one JSON text a record: made when it is read, without spaces, keys as in the schema.

    The arrays are kept, and trusted: those that come from a file are checked before.
    """

    def __init__(self, name: str, leaf: ArrowField, memory: Memory, describe: Describe) -> None:
        super().__init__(name, leaf, memory, describe)
        self._nested: list[Any] = []
        self._weights: list[Any] = []

    def _place(self, array: Any) -> list[int]:
        self._nested.append(array)
        self._weights.append(weights(array))
        return []

    def spans(self, ids: IntArray) -> tuple[npt.NDArray[Any], IntArray, Present]:
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
