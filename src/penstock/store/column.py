"""Column: the records of one field on their way into a chunk, whatever form the user gave them in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray
from penstock.batch import Ragged, check_told, masked
from penstock.schema import MAX_RECORD_BYTES, Field

__all__ = [
    "MAX_RECORD_BYTES",
    "Bytes",
    "Column",
    "as_batch",
    "checked_cast",
    "guess_field",
    "join_columns",
    "join_present",
    "make_column",
    "missing_column",
    "try_cast",
]

Bytes = npt.NDArray[np.uint8]
PARTLY_MASKED = "a record must be masked as a whole or not at all"


@dataclass(frozen=True)
class Column:
    """Decoded records one after the other. Record i is ``values[offsets[i]:offsets[i + 1]]``, or row i of equal rows."""

    rows: int
    values: Bytes
    offsets: IntArray | None  # None: all records have the same size
    present: npt.NDArray[np.bool_] | None  # None: nothing is missing
    shapes: npt.NDArray[np.uint32] | None  # a row per record for ragged fields of two dimensions or more

    def sizes(self, low: int, high: int) -> IntArray | int:
        """Bytes of records [low, high); one number if they are all alike."""
        if self.offsets is None:
            return self.values.size // self.rows if self.rows else 0
        return np.diff(self.offsets[low : high + 1])

    def part(self, low: int, high: int) -> "Column":
        """Records [low, high), without a copy."""
        present = None if self.present is None else self.present[low:high]
        if self.offsets is None:
            stride = self.values.size // self.rows if self.rows else 0
            return Column(high - low, self.values[low * stride : high * stride], None, present, None)
        offsets = self.offsets[low : high + 1]
        values = self.values[offsets[0] : offsets[-1]]
        return Column(high - low, values, offsets - offsets[0], present, None if self.shapes is None else self.shapes[low:high])

    def copy(self) -> "Column":
        """The same records in memory of their own."""
        return Column(
            self.rows,
            self.values.copy(),
            None if self.offsets is None else self.offsets.copy(),
            None if self.present is None else self.present.copy(),
            None if self.shapes is None else self.shapes.copy(),
        )


def make_column(name: str, field: Field, data: Any) -> Column:
    """The records of one field: an array, a list (None is a missing record), a masked array, or a Ragged."""
    check_told(name, data)
    try:
        data = _without_masks(data)
        return _fixed(field, data) if field.is_fixed else _variable(field, data)
    except (TypeError, ValueError, OverflowError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"field {name!r} ({field!r}): {error}") from error


def as_batch(field: Field, column: Column) -> Any:
    """A column as the user gets it: an array, masked where records are missing, or a Ragged."""
    if column.offsets is None:
        return masked(column.values.view(field.dtype).reshape(column.rows, *field.shape), column.present)
    kind = field.kind if field.kind in ("text", "bytes") else "array"
    itemsize = field.dtype.itemsize
    offsets = column.offsets if itemsize == 1 else column.offsets // itemsize
    return Ragged(column.values.view(field.dtype), offsets, kind, column.shapes, column.present)


def guess_field(name: str, data: Any) -> Field:
    """The field that fits a column of data; nullable if a value is missing, or if the column has a mask."""
    try:
        data = _without_masks(data)
    except ValueError as error:
        raise ValueError(f"field {name!r}: {error}") from error
    return _guess_type(name, data).with_nullable(_may_miss(data))


def _without_masks(data: Any) -> Any:
    """A list of records in which None is what is missing, also where numpy's masked arrays and ``np.ma.masked`` said so."""
    if not isinstance(data, list | tuple) or not any(isinstance(item, np.ma.MaskedArray) for item in data):
        return data
    return [_without_mask(item) if isinstance(item, np.ma.MaskedArray) else item for item in data]


def _without_mask(record: np.ma.MaskedArray[Any, Any]) -> Any:
    mask = np.ma.getmaskarray(record)
    if not mask.any():
        return record.data
    if not mask.all():
        raise ValueError(PARTLY_MASKED)
    return None


def _may_miss(data: Any) -> bool:
    if isinstance(data, Ragged):
        return data.present is not None
    if isinstance(data, list | tuple) or (isinstance(data, np.ndarray) and data.dtype.kind == "O"):
        return any(item is None for item in data)
    return isinstance(data, np.ma.MaskedArray)


def _guess_type(name: str, data: Any) -> Field:
    if isinstance(data, Ragged):
        if data.kind == "array":
            return Field.ragged(data.values.dtype, 1 if data.shapes is None else data.shapes.shape[1])
        return Field.text() if data.kind == "text" else Field.bytes()
    if isinstance(data, np.ndarray) and data.dtype.kind not in "OUS":
        return Field(data.dtype, data.shape[1:])
    if isinstance(data, Mapping | str | bytes):
        raise TypeError(f"field {name!r}: expected arrays, texts or byte strings, got a {type(data).__name__}")
    first = next((item for item in data if item is not None), None)
    if isinstance(first, str):
        return Field.text()
    if isinstance(first, bytes | bytearray):
        return Field.bytes()
    if hasattr(first, "__array__") and (example := np.asarray(first)).ndim > 0:
        return Field.ragged(example.dtype, example.ndim)
    return _guess_numbers(name, data, first)


def _guess_numbers(name: str, data: Any, first: Any) -> Field:
    """The field of numbers and lists of them: fixed if all records have one shape, ragged otherwise."""
    there = data if isinstance(data, np.ndarray) else [item for item in data if item is not None]
    if len(there) == 0 and len(data) > 0:
        raise TypeError(f"field {name!r}: expected a value to infer the type from, got {len(data)} missing ones")
    try:
        array = np.asarray(there)
    except ValueError:  # lists of different lengths
        return _guess_ragged(name, data)
    if array.dtype.kind in "OUS":
        raise TypeError(f"field {name!r}: expected arrays, texts or byte strings, got {type(first).__name__}")
    return Field(array.dtype, array.shape[1:])


def _guess_ragged(name: str, data: Any) -> Field:
    arrays: list[npt.NDArray[Any]] = []
    for number, item in enumerate(data):
        if item is None:
            continue
        try:
            arrays.append(np.asarray(item))
        except ValueError as error:
            raise TypeError(
                f"field {name!r}: record {number} is a list whose parts have different lengths, which no field holds"
            ) from error
        if arrays[-1].dtype.kind in "OUS" or arrays[-1].ndim == 0 or arrays[-1].ndim != arrays[0].ndim:
            raise TypeError(
                f"field {name!r}: expected lists of numbers of {max(1, arrays[0].ndim)} dimensions in all records, "
                f"got {repr(item)[:100]} in record {number}"
            )
    filled = [array.dtype for array in arrays if array.size] or [arrays[0].dtype]
    return Field.ragged(np.result_type(*filled), arrays[0].ndim)


def missing_column(field: Field, rows: int) -> Column:
    """A column in which every record is missing."""
    present = np.zeros(rows, np.bool_)
    if field.is_fixed:
        return Column(rows, np.zeros(rows * field.stride, np.uint8), None, present, None)
    shapes = np.zeros((rows, field.ndim), np.uint32) if field.kind == "ragged" and field.ndim > 1 else None
    return Column(rows, np.empty(0, np.uint8), np.zeros(rows + 1, np.int64), present, shapes)


def join_columns(parts: Sequence[Column]) -> Column:
    """Columns of one field one after the other."""
    if len(parts) == 1:
        return parts[0]
    rows = sum(part.rows for part in parts)
    values = np.concatenate([part.values for part in parts])
    present = join_present(parts)
    if parts[0].offsets is None:
        return Column(rows, values, None, present, None)
    sizes = np.concatenate([np.diff(part.offsets) for part in parts if part.offsets is not None])
    shapes = None if parts[0].shapes is None else np.concatenate([part.shapes for part in parts if part.shapes is not None])
    return Column(rows, values, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), present, shapes)


def join_present(parts: Sequence[Column]) -> npt.NDArray[np.bool_] | None:
    """What is present in columns one after the other; None if nothing is missing."""
    if all(part.present is None for part in parts):
        return None
    return np.concatenate([np.ones(part.rows, np.bool_) if part.present is None else part.present for part in parts])


def _fixed(field: Field, data: Any) -> Column:
    present = None
    if isinstance(data, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(data)
        others = tuple(range(1, mask.ndim))
        if mask.size and not np.array_equal(mask.any(axis=others), mask.all(axis=others)):
            raise ValueError(PARTLY_MASKED)
        present = ~mask.any(axis=others)
        data = data.filled(0)
    elif isinstance(data, list | tuple) and any(item is None for item in data):
        present = np.array([item is not None for item in data], np.bool_)
        there = [item for item in data if item is not None]
        array = np.zeros((len(data), *field.shape), field.dtype)
        if there:
            array[present] = checked_cast(np.asarray(there), field.dtype)
        data = array
    elif isinstance(data, list | tuple) and not data:
        data = np.empty((0, *field.shape), field.dtype)
    array = checked_cast(np.asarray(data), field.dtype)
    if array.ndim == 0 or array.shape[1:] != field.shape:
        raise ValueError(f"expected shape (n, {', '.join(map(str, field.shape))}), got {array.shape}")
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return Column(array.shape[0], flat, None, None if present is None or present.all() else np.asarray(present), None)


_FLOATS = {"bfloat16", "float8_e4m3fn", "float8_e4m3b11fnuz", "float8_e5m2"}


def _kind(dtype: np.dtype[Any]) -> str:
    """b, i, f or c: bool, whole, real or complex numbers; an empty text for anything that is not a number."""
    if dtype.names is not None or dtype.hasobject:
        return ""
    return "f" if dtype.name in _FLOATS else {"b": "b", "i": "i", "u": "i", "f": "f", "c": "c"}.get(dtype.kind, "")


def checked_cast(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """``array`` as ``dtype`` if every value keeps its meaning, as :func:`try_cast` says; ValueError otherwise."""
    if array.dtype == dtype:
        return array
    cast, fits = try_cast(array, dtype)
    if not np.all(fits):
        what = "complex values" if _kind(array.dtype) == "c" and _kind(dtype) != "c" else f"values of {array.dtype}"
        raise ValueError(f"{what} do not fit {dtype}: for example {array[~fits].flat[0]}")
    return cast


def try_cast(
    array: npt.NDArray[Any], dtype: np.dtype[Any], *, rounding: bool = False
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """``array`` as ``dtype``, and which values keep their meaning. TypeError if they are no numbers.

    A float may be rounded to a shorter one, which is what the type asks for. It may not become infinite or NaN, and a whole number
    may not become another, unless ``rounding`` says that the nearest will do: that of a type of floats, or the nearest whole number
    to a float. Nothing may leave the range of the type.
    """
    if array.size == 0:
        return np.empty(array.shape, dtype), np.ones(array.shape, np.bool_)
    source, target = _kind(array.dtype), _kind(dtype)
    if not source:
        raise TypeError(f"expected {dtype}, got {array.dtype}")
    if source == "c" and target != "c":
        cast, fits = try_cast(array.real, dtype, rounding=rounding)
        return cast, fits & (array.imag == 0)
    with np.errstate(all="ignore"):
        if source == "f" and target in "bi":
            whole = array.astype(np.float64)
            return _float_to_whole(np.rint(whole) if rounding else whole, dtype)
        cast = array.astype(dtype)
        if target in "fc" and source in "fc":
            if dtype.kind in "fc" and np.isfinite(cast).all():  # nearly always: 2 instead of 13 ns a value
                return cast, np.ones(array.shape, np.bool_)
            wide = np.complex128 if "c" in (source, target) else np.float64
            before, after = array.astype(wide), cast.astype(wide)
            fits = (np.isfinite(before) & np.isfinite(after)) | (before == after) | (np.isnan(before) & np.isnan(after))
        elif target in "fc":
            real = cast.real.astype(np.float64) if target == "c" else cast.astype(np.float64)
            fits = np.isfinite(real) if rounding else _is_whole_number(real, array)
        else:
            fits = (cast.astype(array.dtype) == array) & ((array < 0) == (cast < 0))
    return cast, fits


def _float_to_whole(array: npt.NDArray[np.float64], dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Floats as whole numbers (or bool), and which of them are some of that type: a float64 holds both ends of its range."""
    least, most = (0.0, 1.0) if dtype.kind == "b" else (float(np.iinfo(dtype).min), float(np.iinfo(dtype).max))
    end = most + 1  # for 64 bits, most is rounded up to it already
    fits = (array >= least) & (array < end) & (array == np.trunc(array))
    return np.where(fits, array, 0.0).astype(dtype), fits


def _is_whole_number(real: npt.NDArray[np.float64], array: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether floats are those whole numbers. A float64 holds any that a shorter float holds; at the end of their range a whole
    number of 64 bits would overflow on the way back.
    """
    wide = np.uint64 if array.dtype.kind == "u" else np.int64
    inside = (real >= -(2.0**63)) & (real < 2.0**63) if wide is np.int64 else (real >= 0) & (real < 2.0**64)
    same: npt.NDArray[np.bool_] = inside & (np.where(inside, real, 0).astype(wide) == array.astype(wide))
    return same


def _variable(field: Field, data: Any) -> Column:
    ragged = data if isinstance(data, Ragged) else _pack(field, data)
    offsets, present, shapes = _checked(field, ragged)
    values = np.ascontiguousarray(checked_cast(ragged.values, field.dtype)).view(np.uint8)
    ends = offsets * field.dtype.itemsize
    if np.any(np.diff(ends) > MAX_RECORD_BYTES):
        raise ValueError(f"a record of a field has at most {MAX_RECORD_BYTES} bytes")
    values = values[ends[0] : ends[-1]]
    if field.kind == "text":
        _check_text(values, ends - ends[0])
    return Column(len(offsets) - 1, values, ends - ends[0], present, shapes)


def _checked(field: Field, ragged: Ragged) -> tuple[IntArray, npt.NDArray[np.bool_] | None, npt.NDArray[np.uint32] | None]:
    """Offsets, presence and shapes of a Ragged, which the caller may have put together."""
    offsets, values = np.asarray(ragged.offsets), ragged.values
    if values.ndim != 1 or offsets.ndim != 1 or offsets.size == 0 or offsets.dtype.kind not in "iu":
        raise ValueError(
            f"expected values and whole offsets of one dimension, got {values.shape} and {offsets.dtype} {offsets.shape}"
        )
    offsets = offsets.astype(np.int64)
    if np.any(np.diff(offsets) < 0) or offsets[0] < 0 or offsets[-1] > values.size:
        raise ValueError(f"offsets must rise from 0 or more to at most {values.size}")
    present = ragged.present
    if present is not None and (present.dtype != np.bool_ or present.shape != (offsets.size - 1,)):
        raise ValueError(f"expected {offsets.size - 1} booleans that say what is present, got {present.dtype} {present.shape}")
    if field.kind != "ragged" or field.ndim == 1:
        return offsets, present, None
    if ragged.shapes is None or ragged.shapes.shape != (offsets.size - 1, field.ndim):
        raise ValueError(f"items must have {field.ndim} dimensions")
    shapes = checked_cast(ragged.shapes, np.dtype(np.uint32))
    if not np.array_equal(np.prod(shapes.astype(object), axis=1), np.diff(offsets).astype(object)):
        raise ValueError("a shape does not fit the length of its item")
    return offsets, present, shapes


def _check_text(values: Bytes, ends: IntArray) -> None:
    """Every item must be UTF-8 by itself: the whole is, and no item begins in the middle of a character."""
    values.tobytes().decode()
    starts = ends[:-1][np.diff(ends) > 0]
    if np.any(values[starts] & 0xC0 == 0x80):
        raise ValueError("an item begins in the middle of a character")


def _pack(field: Field, data: Any) -> Ragged:
    if isinstance(data, str | bytes | bytearray):
        raise TypeError(f"expected a list of records, got one {type(data).__name__}")
    items = list(data)
    wanted: tuple[type, ...] = {"text": (str,), "bytes": (bytes, bytearray, memoryview, np.ndarray)}.get(field.kind, ())
    for item in items:
        if wanted and item is not None and not isinstance(item, wanted):
            raise TypeError(f"expected {' or '.join(t.__name__ for t in wanted)}, got {type(item).__name__}")
    if field.kind == "ragged":
        for item in items:
            if item is not None and np.asarray(item).ndim != field.ndim:
                raise ValueError(f"items must have {field.ndim} dimensions, got shape {np.asarray(item).shape}")
        arrays = [None if item is None else checked_cast(np.asarray(item), field.dtype) for item in items]
        return Ragged.from_items(arrays, dtype=field.dtype, ndim=field.ndim)
    return Ragged.from_items(items, dtype=np.uint8, kind=field.kind)
