"""Checks of arguments, so that every order refuses bad input in the same words."""

import operator
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from penstock.interfaces import IntArray

__all__ = ["MAX_LENGTH", "check_positions", "check_run", "whole_number"]

MAX_LENGTH = 2**63 - 1
"""The largest number of records or positions."""


def whole_number(name: str, value: SupportsIndex, *, least: int = 0, most: int = MAX_LENGTH) -> int:
    """``value`` as an int within [least, most], or a TypeError or ValueError that names it."""
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    number = operator.index(value)
    if not least <= number <= most:
        raise ValueError(f"{name} must be in [{least}, {most}], got {number}")
    return number


def check_run(epoch: int, start: int, stop: int, step: int, length: int) -> int:
    """How many positions start, start + step, ... lie below stop; IndexError unless they lie in [0, length]."""
    whole_number("epoch", epoch)
    whole_number("step", step, least=1)
    start, stop = operator.index(start), operator.index(stop)
    if not 0 <= start <= stop <= length:
        raise IndexError(f"positions must satisfy 0 <= start <= stop <= {length}, got start={start}, stop={stop}")
    return -(-(stop - start) // step)


def check_positions(name: str, values: npt.ArrayLike, length: int) -> IntArray:
    """``values`` as a contiguous one-dimensional int64 array, every one in [0, length)."""
    array = np.asarray(values)
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
