"""Checks of arguments and indices, so that bad input is refused in the same words everywhere."""

import operator
import re
import reprlib
from collections.abc import Collection, Sized
from fractions import Fraction
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.native import _core

__all__ = [
    "MAX_LENGTH",
    "IntArray",
    "as_ids",
    "as_positions",
    "byte_size",
    "check_positions",
    "check_run",
    "exact_fraction",
    "is_single",
    "set_whole",
    "shown",
    "whole_number",
]

IntArray: TypeAlias = npt.NDArray[np.int64]

MAX_LENGTH = 2**63 - 1
"""The largest number of records or positions."""


MAX_SHOWN = 100
"""Characters of a value in a message."""


class _Short(reprlib.Repr):
    """A repr that is short from the start: what is not shown is not made into text."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = 2 * MAX_SHOWN

    def repr_str(self, x: str, level: int) -> str:
        return ascii(x[:MAX_SHOWN]) + ("..." if len(x) > MAX_SHOWN else "")

    def repr_bytes(self, x: bytes, level: int) -> str:
        return repr(x[:MAX_SHOWN]) + ("..." if len(x) > MAX_SHOWN else "")

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= 256 else f"<a number of {x.bit_length()} bits>"

    def repr_instance(self, x: object, level: int) -> str:
        if isinstance(x, str | bytes | bytearray | int | Collection) and not isinstance(x, np.ndarray | bool):
            return f"<{type(x).__name__}{f' of {len(x)}' if isinstance(x, Sized) else ''}>"
        return super().repr_instance(x, level)


_SHORT = _Short()


def shown(value: object) -> str:
    """A value of anybody's for a message: at most about 100 characters, printable, on one line."""
    text = _SHORT.repr(value)
    text = text if text.isprintable() and text.isascii() else ascii(text)[1:-1]
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def whole_number(name: str, value: SupportsIndex, *, least: int = 0, most: int = MAX_LENGTH) -> int:
    """``value`` as an int within [least, most], or a TypeError or ValueError that names it."""
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, got {shown(value)}")
    number = operator.index(value)
    if not least <= number <= most:
        raise ValueError(f"{name} must be in [{least}, {most}], got {shown(number)}")
    return number


_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def byte_size(name: str, value: SupportsIndex | str, *, least: int = 1) -> int:
    """A number of bytes: a whole number, or a text such as "64MB" (decimal) or "64MiB" (binary)."""
    if not isinstance(value, str):
        return whole_number(name, value, least=least)
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", value)
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(f"{name} must be a number of bytes such as 65536, '64MB' or '64MiB', got {shown(value)}")
    return whole_number(name, int(float(match[1]) * _UNITS[match[2].lower()]), least=least)


def set_whole(value: object, name: str, *, least: int = 0, most: int = MAX_LENGTH) -> None:
    """Replace an attribute of a frozen object by itself as a plain int, checked: numpy's integers would overflow later."""
    object.__setattr__(value, name, whole_number(name, getattr(value, name), least=least, most=most))


def check_run(start: SupportsIndex, stop: SupportsIndex, step: SupportsIndex, length: int) -> range:
    """Positions start, start + step, ... below stop, as plain ints; IndexError unless 0 <= start <= stop <= length."""
    run = range(operator.index(start), operator.index(stop), whole_number("step", step, least=1))
    if not 0 <= run.start <= run.stop <= length:
        raise IndexError(f"positions must satisfy 0 <= start <= stop <= {length}, got start={run.start}, stop={run.stop}")
    return run


def as_positions(run: range) -> IntArray:
    """The positions of a run. (numpy.arange computes its length in floats and loses the last one of very long spans.)"""
    if run.step == 1 and run.start >= 0 and run.stop < 1 << 52:  # exact in floats
        return np.arange(run.start, run.stop, dtype=np.int64)
    return np.arange(len(run), dtype=np.int64) * np.int64(run.step) + np.int64(run.start) if len(run) else np.empty(0, np.int64)


def exact_fraction(value: float | Fraction) -> Fraction:
    """A number as the decimal it is written as: 0.7 is seven tenths, not the nearest binary fraction."""
    return Fraction(value) if isinstance(value, int | Fraction) else Fraction(str(value))


def check_positions(name: str, values: npt.ArrayLike, length: int) -> IntArray:
    """``values`` as a contiguous one-dimensional int64 array, every one in [0, length)."""
    array = np.asarray(values)
    if array.dtype == np.int64 and array.ndim == 1 and array.flags.c_contiguous and _core.all_below(array, length):
        return array
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {array.shape}")
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be whole numbers, got dtype {array.dtype}")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= length:
        raise IndexError(f"{name} must be in [0, {length}), got {low if low < 0 else high}")
    return np.ascontiguousarray(array, dtype=np.int64)


def is_single(key: Any) -> bool:
    """Whether a key names one record rather than a batch."""
    if isinstance(key, np.ndarray):
        return key.ndim == 0 and key.dtype.kind in "iu"
    return isinstance(key, int | np.integer) and not isinstance(key, bool | np.bool_)


def as_ids(key: Any, length: int) -> IntArray:
    """Record ids of a slice, a boolean mask, or any whole numbers (negative ones count from the end), in the order given."""
    if (
        isinstance(key, np.ndarray)
        and key.dtype == np.int64
        and key.ndim == 1
        and key.flags.c_contiguous
        and _core.all_below(key, length)
    ):
        return key  # what a sampler gives: one quick look, no copy
    if isinstance(key, slice):
        return np.arange(*key.indices(length), dtype=np.int64)
    if isinstance(key, tuple):
        raise IndexError(f"records have one index, got {len(key)}")
    array = np.asarray(key)
    if is_single(key):
        array = array.reshape(1)
    if array.ndim != 1:
        raise IndexError(f"ids must be one-dimensional, got shape {array.shape}")
    if array.dtype == np.bool_:
        if array.size != length:
            raise IndexError(f"a mask must have one value per record, {length}, got {array.size}")
        return np.flatnonzero(array)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu":
        raise IndexError(f"ids must be whole numbers, a mask or a slice, got {array.dtype}")
    low, high = int(array.min()), int(array.max())
    if low < -length or high >= length:
        raise IndexError(f"ids must be in [{-length}, {length}), got {low if low < -length else high}")
    ids = np.ascontiguousarray(array, dtype=np.int64)
    return np.where(ids < 0, ids + length, ids) if low < 0 else ids
