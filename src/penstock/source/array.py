"""Arrays in memory as a source: one array, or a dict of arrays, lists and Ragged of one length."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import SchemaMismatchError, UnsupportedTypeError
from penstock.interfaces import IntArray
from penstock.ragged import Ragged
from penstock.records import Batch, Blocks, Outputs, Recipe, Sampling, Source, fixed_output, masked
from penstock.schema import Field
from penstock.source.fingerprint import digest_arrays, fingerprint_arrays, fingerprint_of
from penstock.source.rows_in_files import Rows, default_threads, reader_of_memory
from penstock.store.column import as_batch, guess_field, make_column

__all__ = ["ArraySource", "open_array"]


def open_array(data: Any, *, field: str = "data", threads: int | None = None) -> "ArraySource":
    """An array as the one field of a source."""
    return ArraySource({field: data}, threads=threads)


class ArraySource(Source):
    """Columns in memory. They are not copied: whoever changes them changes the source."""

    def __init__(self, columns: Mapping[str, Any], *, threads: int | None = None) -> None:
        if not columns:
            raise ValueError("expected at least one field, got none")
        self._threads = default_threads(threads)
        self._schema: dict[str, Field] = {}
        self._columns: dict[str, Any] = {}
        for name, data in columns.items():
            self._schema[name], self._columns[name] = _column(name, data)
        lengths = {name: len(column) for name, column in self._columns.items()}
        if len(set(lengths.values())) > 1:
            raise SchemaMismatchError(f"all fields must have the same number of records, got {lengths}")
        self._length = next(iter(lengths.values()))
        self._rows: dict[str, Rows] = {
            name: reader_of_memory([np.asarray(column)], threads=self._threads)
            for name, column in self._columns.items()
            if self._schema[name].is_fixed
        }

    def __len__(self) -> int:
        return self._length

    @property
    def schema(self) -> Mapping[str, Field]:
        """The fields by name."""
        return dict(self._schema)

    @property
    def fingerprint(self) -> str:
        """Of types, shapes and samples of the data."""
        return fingerprint_of(
            "arrays",
            [(name, repr(field.with_nullable(False)), _fingerprint(self._columns[name])) for name, field in self._schema.items()],
        )

    def sample_digest(self, sampling: Sampling) -> str:
        """Of types, shapes and samples of the data."""
        share = sampling.shared(len(self._schema))
        fields = [(name, repr(field.with_nullable(False))) for name, field in self._schema.items()]
        return fingerprint_of("arrays", fields, [_digest(self._columns[name], share) for name in self._schema])

    @property
    def blocks(self) -> Blocks:
        """Runs of about 1 MiB: memory has no natural ones."""
        stride = sum(field.stride for field in self._schema.values() if field.is_fixed)
        return Blocks(len(self), max(1, (1 << 20) // max(1, stride)))

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        return {name: self._read_field(name, ids, out) for name in fields}

    def _read_field(self, name: str, ids: IntArray, out: Outputs) -> Any:
        field, column = self._schema[name], self._columns[name]
        if not field.is_fixed:
            return column.take(ids)
        array = fixed_output(name, field, ids.size, out)
        self._rows[name].read(ids, array)
        if not isinstance(column, np.ma.MaskedArray):
            return array
        missing = np.ma.getmaskarray(column)[ids].any(axis=tuple(range(1, column.ndim)))
        return masked(array, np.logical_not(missing) if missing.any() else None)

    def native_reader(self, field: str) -> tuple[Any, int] | None:
        """The reader of an array without missing values."""
        if field not in self._rows or isinstance(self._columns[field], np.ma.MaskedArray):
            return None
        return self._rows[field].native()

    def _recipe(self) -> Recipe:
        return (_rebuild, (self._columns, self._threads))

    def close(self) -> None:
        """Nothing to let go of."""


def _rebuild(columns: Mapping[str, Any], threads: int) -> ArraySource:
    return ArraySource(columns, threads=threads)


def as_array(name: str, data: Any) -> npt.NDArray[Any]:
    """A tensor, or whatever else numpy can make an array of; on the CPU that needs no copy."""
    try:
        if str(getattr(data, "dtype", "")) == "torch.bfloat16":  # which numpy does not know by itself
            return np.asarray(data.view(sys.modules["torch"].int16)).view(Field("bf16").dtype)
        return np.asarray(data)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"field {name!r}: this {type(data).__name__} cannot be read as an array: {error}") from error


def _column(name: str, data: Any) -> tuple[Field, Any]:
    """A column and its field. Fixed ones become arrays whose records are contiguous, of the machine's byte order."""
    if hasattr(data, "__array__") and not isinstance(data, np.ndarray):
        data = as_array(name, data)
    if isinstance(data, np.ndarray) and data.dtype.kind not in "OUS":
        if data.ndim == 0:
            raise SchemaMismatchError(f"field {name!r}: expected an array with a record per row, got a single value")
        try:
            field = Field(data.dtype, data.shape[1:], nullable=isinstance(data, np.ma.MaskedArray))
        except TypeError as error:
            raise UnsupportedTypeError(f"field {name!r}: {error}") from error
        if data.dtype != field.dtype or not data.flags.c_contiguous:
            mask = np.ma.getmaskarray(data) if isinstance(data, np.ma.MaskedArray) else None
            plain = np.ascontiguousarray(data, dtype=field.dtype)
            return field, plain if mask is None else np.ma.MaskedArray(plain, mask=mask)
        return field, data
    field = guess_field(name, data)
    return field, as_batch(field, make_column(name, field, data))


def _fingerprint(column: Any) -> str:
    return fingerprint_arrays(*_arrays(column))


def _digest(column: Any, sampling: Sampling) -> str:
    return digest_arrays(*_arrays(column), sampling)


def _arrays(column: Any) -> tuple[str, list[npt.NDArray[Any]]]:
    """What kind of column it is, and the arrays it is made of."""
    if isinstance(column, Ragged):
        parts = [column.values, column.offsets, *(p for p in (column.shapes, column.present) if p is not None)]
        return f"ragged {column.kind}", parts
    arrays = [np.asarray(column)]
    if isinstance(column, np.ma.MaskedArray):
        arrays.append(np.ma.getmaskarray(column))
    return "array", arrays
