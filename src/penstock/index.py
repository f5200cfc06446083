"""Indices as numpy understands them, turned into record ids."""

from typing import Any

import numpy as np

from penstock import _core
from penstock.interfaces import IntArray

__all__ = ["as_ids", "is_single"]


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
