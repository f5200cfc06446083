"""Batches: arrays by field name, masked where values may be missing, and Ragged for records of different lengths."""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.ma  # numpy imports it late, which a signal handler that saves a state must not run into
import numpy.typing as npt

from penstock.argument import IntArray, as_ids, is_single, whole_number
from penstock.errors import SchemaMismatchError
from penstock.native import _core
from penstock.schema import Field

__all__ = [
    "Batch",
    "Outputs",
    "Ragged",
    "batch_bytes",
    "check_told",
    "empty",
    "fields_of",
    "fixed_output",
    "masked",
    "only",
    "scatter",
    "typed",
    "unmasked",
]

RECYCLED_BYTES = 32 << 10
"""Arrays from this size on come from the pool of buffers."""

Batch = dict[str, Any]
"""Arrays, masked ones where values may be missing, and :class:`~penstock.Ragged` by field name."""

Outputs = Mapping[str, npt.NDArray[Any]]
"""Arrays to be filled instead of new ones, by field name."""


def _lines(offsets: IntArray, shapes: IntArray, size: tuple[int, ...]) -> tuple[IntArray, IntArray, IntArray]:
    """Of every line along the last dimension of items that is within an array of items of ``size``: where it begins in the values
    and in the array, and how many elements are copied.
    """
    lines = np.prod(shapes[:, :-1], axis=1, dtype=np.int64) * (shapes[:, -1] > 0)
    item = np.repeat(np.arange(len(shapes)), lines)
    left = line = np.arange(item.size) - np.repeat(np.cumsum(lines) - lines, lines)
    shape = shapes[item]
    inside, place, scale = np.ones(item.size, np.bool_), np.zeros(item.size, np.int64), 1
    for dimension in range(shapes.shape[1] - 2, -1, -1):
        left, at = np.divmod(left, shape[:, dimension])
        inside &= at < size[dimension]
        place += at * scale
        scale *= size[dimension]
    source, target = offsets[item] + line * shape[:, -1], (item * scale + place) * size[-1]
    return source[inside], target[inside], np.minimum(shape[:, -1], size[-1])[inside]


@dataclass(frozen=True, eq=False)
class Ragged:
    """Item i is ``values[offsets[i]:offsets[i + 1]]``, decoded as ``kind`` says ("array", "bytes" or "text").

    ``shapes`` has a row per item where items have two dimensions or more; ``present`` is False where an item is missing, and None
    where none is. An empty item is not a missing one.

    >>> import numpy as np
    >>> from penstock import Ragged
    >>> batch = Ragged(np.array([1, 2, 3]), np.array([0, 2, 2, 3]))
    >>> [item.tolist() for item in batch]
    [[1, 2], [], [3]]
    >>> batch.pad(value=-1)
    array([[ 1,  2],
           [-1, -1],
           [ 3, -1]])
    >>> [item.tolist() for item in batch[[2, 0]]]
    [[3], [1, 2]]
    """

    values: npt.NDArray[Any]
    offsets: IntArray
    kind: str = "array"
    shapes: npt.NDArray[np.uint32] | None = None
    present: npt.NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> IntArray:
        """Elements of each item."""
        return np.diff(self.offsets)

    def __getitem__(self, index: Any) -> Any:
        """One item: an array, ``bytes``, ``str``, or None if it is missing. A slice, a mask or a list of places: a Ragged."""
        if isinstance(index, slice) and index.step in (None, 1):
            return self._part(*index.indices(len(self))[:2])
        if not is_single(index):
            return self.take(as_ids(index, len(self)))
        index = int(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"index must be in [{-len(self)}, {len(self)}), got {index}")
        index %= len(self)
        if self.present is not None and not self.present[index]:
            return None
        item = self.values[self.offsets[index] : self.offsets[index + 1]]
        if self.kind == "text":
            return item.tobytes().decode()
        if self.kind == "bytes":
            return item.tobytes()
        return item if self.shapes is None else item.reshape(self.shapes[index])

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def to_list(self) -> list[Any]:
        return list(self)

    def _part(self, low: int, high: int) -> "Ragged":
        """Items [low, high), without a copy of the values."""
        high = max(low, high)
        offsets = self.offsets[low : high + 1]
        shapes = None if self.shapes is None else self.shapes[low:high]
        present = None if self.present is None else self.present[low:high]
        return Ragged(self.values[offsets[0] : offsets[-1]], offsets - offsets[0], self.kind, shapes, present)

    def take(self, ids: IntArray) -> "Ragged":
        """The items at those places, in that order; a place may come several times."""
        lengths = self.lengths[ids]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][ids] - offsets[:-1], lengths)
        shapes = None if self.shapes is None else self.shapes[ids]
        return Ragged(self.values[places], offsets, self.kind, shapes, None if self.present is None else self.present[ids])

    def pad(
        self, length: int | Sequence[int] | None = None, *, value: Any = 0, multiple_of: int | Sequence[int] = 1
    ) -> npt.NDArray[Any]:
        """All items in one array, filled up with ``value`` (missing items wholly) or cut to ``length``: an int, or one for every
        dimension. Without it, as large as the largest item in every dimension, or as the next multiple of ``multiple_of``: an int
        for all dimensions, or one for each.
        """
        shapes = self.lengths[:, None] if self.shapes is None else self.shapes.astype(np.int64)
        if length is None:
            length = shapes.max(axis=0, initial=0).tolist()
        elif multiple_of != 1:
            raise ValueError(f"pass length= or multiple_of=, not both: got length={length} and multiple_of={multiple_of}")
        size = tuple(whole_number("length", n) for n in ([length] if isinstance(length, int | np.integer) else length))
        multiples = [multiple_of] * len(size) if isinstance(multiple_of, int | np.integer) else list(multiple_of)
        for name, numbers in (("length", size), ("multiple_of", multiples)):
            if len(numbers) != shapes.shape[1]:
                raise ValueError(f"{name} must have {shapes.shape[1]} numbers, one for every dimension of the items, got {numbers}")
        size = tuple(-(-n // whole_number("multiple_of", m, least=1)) * m for n, m in zip(size, multiples, strict=True))
        out = np.full((len(self), *size), value, self.values.dtype)
        source, target, count = _lines(self.offsets, shapes, size)
        ends = np.cumsum(count)
        within = np.arange(int(ends[-1]) if ends.size else 0) - np.repeat(ends - count, count)
        out.reshape(-1)[np.repeat(target, count) + within] = self.values[np.repeat(source, count) + within]
        return out

    @classmethod
    def join(cls, parts: Sequence["Ragged"]) -> "Ragged":
        """The items of several, of one kind, one after the other."""
        if len(parts) == 1:
            return parts[0]
        values = np.concatenate([part.values[part.offsets[0] : part.offsets[-1]] for part in parts])
        offsets = np.concatenate([[0], np.cumsum(np.concatenate([part.lengths for part in parts]))]).astype(np.int64)
        shapes = None if parts[0].shapes is None else np.concatenate([part.shapes for part in parts if part.shapes is not None])
        present = None
        if any(part.present is not None for part in parts):
            present = np.concatenate([np.ones(len(part), np.bool_) if part.present is None else part.present for part in parts])
        return cls(values, offsets, parts[0].kind, shapes, present)

    @classmethod
    def from_items(cls, items: Sequence[Any], *, dtype: npt.DTypeLike, kind: str = "array", ndim: int = 1) -> "Ragged":
        """Pack items; None is a missing one."""
        present = np.array([item is not None for item in items], np.bool_)
        if kind == "array":
            arrays = [np.empty((0,) * ndim, dtype) if item is None else np.asarray(item, dtype) for item in items]
            for array in arrays:
                if array.ndim != ndim:
                    raise ValueError(f"items must have {ndim} dimensions, got shape {array.shape}")
            flat = [array.reshape(-1) for array in arrays]
            values = np.concatenate(flat) if flat else np.empty(0, dtype)
            lengths = [array.size for array in arrays]
            shapes = np.array([array.shape for array in arrays], np.uint32).reshape(len(arrays), ndim) if ndim > 1 else None
        else:
            texts = [b"" if item is None else item.encode() if isinstance(item, str) else bytes(item) for item in items]
            values = np.frombuffer(b"".join(texts), np.uint8)
            lengths = [len(text) for text in texts]
            shapes = None
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return cls(values, offsets, kind, shapes, None if present.all() else present)


def only(column: Any) -> Any:
    """The one record of a batch of one."""
    if isinstance(column, Ragged):
        return column[0]
    if isinstance(column, np.ma.MaskedArray):
        if _has_missing(column):
            return None
        column = column.data
    item = column[0]
    return item if isinstance(item, np.ndarray) else item[()]


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """A new array, as numpy.empty gives it; large ones in memory that was used before, which saves the page faults."""
    rows = shape[0] if shape else 1
    stride = math.prod(shape[1:]) * dtype.itemsize
    if rows * stride < RECYCLED_BYTES:
        return np.empty(shape, dtype)
    array = _core.empty(rows, stride).view(dtype)
    return array if array.shape == shape else array.reshape(shape)


def fixed_output(name: str, field: Field, count: int, out: Outputs) -> npt.NDArray[Any]:
    """The array for ``count`` records of a fixed field: the one in ``out``, checked, or a new one."""
    whole = (count, *field.shape)
    array = out.get(name)
    if array is None:
        return empty(whole, field.dtype)
    if array.shape != whole or array.dtype != field.dtype or not array.flags.c_contiguous or not array.flags.writeable:
        raise ValueError(
            f"out[{name!r}] must be a writable, contiguous {field.dtype} array of {whole}, got {array.dtype} {array.shape}"
        )
    return array


def typed(batch: Batch, nullable: frozenset[str]) -> Batch:
    """A batch whose types follow from the schema alone, whatever happens to be missing in it; changes ``batch``.

    SchemaMismatchError if a value of a field that is not nullable is missing. (Below 1 us for 4 fields of which none is nullable.)
    """
    for name, column in batch.items():
        if type(column) is np.ndarray:
            if name in nullable:
                batch[name] = masked(column, None, nullable=True)
        elif isinstance(column, Ragged):
            if name in nullable:
                if column.present is None:
                    batch[name] = replace(column, present=np.ones(len(column), np.bool_))
            elif column.present is not None:
                if not column.present.all():
                    raise _missing(name)
                batch[name] = replace(column, present=None)
        elif isinstance(column, np.ma.MaskedArray):
            if name not in nullable:
                if _has_missing(column):
                    raise _missing(name)
                batch[name] = column.data
        elif name in nullable and isinstance(column, np.ndarray):
            batch[name] = masked(column, None, nullable=True)
    return batch


def _has_missing(column: np.ma.MaskedArray[Any, Any]) -> bool:
    """Whether a record is missing. Records of no elements have a mask only if one of them is."""
    mask = column.mask
    return mask is not np.ma.nomask and (bool(mask.any()) or (mask.size == 0 and len(column) > 0))


def _missing(name: str) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"field {name!r}: a value is missing, and the schema says that none can be: declare the field with nullable=True"
    )


def check_told(name: str, column: Any) -> None:
    """ValueError if a record without elements is missing: the mask of a batch has no elements there either, to tell which."""
    if isinstance(column, np.ma.MaskedArray) and column.size == 0 and _has_missing(column):
        raise ValueError(
            f"field {name!r}: a record of shape {column.shape[1:]} is missing, and a batch cannot tell which, as such records have "
            "no elements: leave the field out, or use one of varying length"
        )


def unmasked(column: Any) -> Any:
    """The plain array of a masked one in which nothing is missing; anything else as it is."""
    return column.data if isinstance(column, np.ma.MaskedArray) and not _has_missing(column) else column


def masked(array: npt.NDArray[Any], present: npt.NDArray[Any] | None, *, nullable: bool = False) -> npt.NDArray[Any]:
    """Records of a fixed field, masked where ``present`` is false. ``None`` says that all are there: the array has a mask only if
    it is of a nullable field.
    """
    if present is None:
        if not nullable:
            return array
        has_elements = array.size > 0 or len(array) == 0
        return np.ma.MaskedArray(array, mask=np.zeros(array.shape, np.bool_) if has_elements else np.ma.nomask)
    mask = np.broadcast_to(np.logical_not(present).reshape(-1, *([1] * (array.ndim - 1))), array.shape)
    return np.ma.MaskedArray(array, mask=mask.copy())


def scatter(name: str, field: Field, parts: Sequence[tuple[IntArray, Any]], count: int, out: Outputs) -> Any:
    """One field of a batch of ``count`` records, put together from parts: the i-th record of a column goes to row ``rows[i]``.

    Every row is given by exactly one part.
    """
    if not field.is_fixed:
        if not parts:
            kind = "array" if field.kind == "ragged" else field.kind
            return Ragged.from_items([], dtype=field.dtype, kind=kind, ndim=field.ndim)
        back = np.empty(count, np.int64)
        back[np.concatenate([rows for rows, _ in parts])] = np.arange(count)
        return Ragged.join([column for _, column in parts]).take(back)
    array = fixed_output(name, field, count, out)
    present = np.ones(count, np.bool_)
    for rows, column in parts:
        if isinstance(column, np.ma.MaskedArray):
            present[rows] = _present(column)
        array[rows] = np.asarray(column)
    return masked(array, None if present.all() else present)


def _present(column: np.ma.MaskedArray[Any, Any]) -> npt.NDArray[np.bool_]:
    """Which records are there. Of records without elements only this is known: whether one of them is missing."""
    if column.size == 0:
        return np.full(len(column), not _has_missing(column))
    return np.logical_not(np.ma.getmaskarray(column).any(axis=tuple(range(1, column.ndim))))


def batch_bytes(batch: Any) -> int:
    """Bytes of the arrays of a batch."""
    if isinstance(batch, Mapping | list | tuple):
        return sum(map(batch_bytes, batch.values() if isinstance(batch, Mapping) else batch))
    if isinstance(batch, Ragged):
        return int(batch.values.nbytes + batch.offsets.nbytes)
    return int(getattr(batch, "nbytes", 64))


def fields_of(batch: Any) -> dict[str, str]:
    """The leaves of a batch by their path, each as a text that only equal ones have."""
    leaves: dict[str, str] = {}
    _collect("", batch, leaves)
    return leaves


def _collect(path: str, value: Any, leaves: dict[str, str]) -> None:
    if isinstance(value, Mapping):
        for key in value:
            _collect(f"{path}.{key}" if path else str(key), value[key], leaves)
    elif isinstance(value, list | tuple):
        leaves[path] = f"{type(value).__name__} of {len(value)}"
        for number, item in enumerate(value):
            _collect(f"{path}[{number}]", item, leaves)
    else:
        leaves[path] = _leaf(path, value)


def _leaf(path: str, value: Any) -> str:
    if value is None or (isinstance(value, str | bytes | bytearray | int | float | complex) and not isinstance(value, np.generic)):
        return repr(value) if len(repr(value)) <= 80 else f"{type(value).__name__} {_sha(repr(value).encode())}"
    if isinstance(value, Ragged):
        items = [str(value.lengths.tolist()), *(str(None if p is None else p.tolist()) for p in (value.shapes, value.present))]
        return f"ragged {value.kind} {_array(value.values[value.offsets[0] : value.offsets[-1]])} {_sha(repr(items).encode())}"
    if isinstance(value, np.ma.MaskedArray):
        return f"masked {_array(value.filled(value.dtype.type()))} {_array(np.ma.getmaskarray(value))}"
    try:
        return _array(np.asarray(value.detach().cpu() if hasattr(value, "detach") else value))
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{path or 'the batch'}: cannot compare a {type(value).__name__} ({error}): pass digest=") from error


def _array(array: Any) -> str:
    if array.dtype.hasobject:
        if array.ndim == 0:
            raise TypeError("expected an array, or something that becomes one")
        return f"objects {array.shape} {_sha(repr([_leaf('', item) for item in array.reshape(-1)]).encode())}"
    return f"{array.dtype} {array.shape} {_sha(np.ascontiguousarray(array).tobytes())}"


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
