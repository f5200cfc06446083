"""Parts of a source by a hash: the same records in the same part for all time, whatever is appended.

Part k has the records whose 64-bit hash is in [floor(F(k) * 2**64), floor(F(k + 1) * 2**64)), F(k) being the exact sum of the
fractions before it. So a part depends on nothing but its own fraction and those before it.
"""

from collections.abc import Mapping
from contextlib import closing
from fractions import Fraction
from itertools import accumulate
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import exact_fraction, shown, whole_number
from penstock.batch import Ragged
from penstock.conversion.reading import READ_BYTES, read_spans
from penstock.errors import SchemaMismatchError
from penstock.native import _core
from penstock.order.permutation import MAX_SEED, Purpose, absorb_all, derive_root
from penstock.records import Source, provide
from penstock.schema import Field

__all__ = ["bounds_of", "hash_values", "split"]

Words = npt.NDArray[np.uint64]

HASHED = 1 << 16
"""Ids that are hashed at a time: few enough for the cache of a processor."""

MOST_PARTS = 1 << 16


def split(source: Source, parts: Mapping[str, float], seed: int, by: str | None) -> dict[str, Source]:
    """See :meth:`penstock.Source.split`."""
    bounds = bounds_of(parts)
    root = derive_root(whole_number("seed", seed, most=MAX_SEED), 0, Purpose.SPLIT)
    if by is not None:
        _check_field(source.schema, by)
    which = np.empty(len(source), np.uint8 if len(bounds) < 256 else np.uint32)  # the part of each record; one more: none
    low = 0
    for words in _hashes_of_ids(root, len(source)) if by is None else _hashes_of_field(root, source, by):
        which[low : low + words.size] = np.searchsorted(bounds, words, side="right")
        low += words.size
    return {name: source.select(np.flatnonzero(which == number)) for number, name in enumerate(parts)}


def bounds_of(parts: Mapping[str, float]) -> Words:
    """Where each part ends, in the order given: the first hash behind it. One at 2**64 is left out, as no hash is there."""
    if not isinstance(parts, Mapping):
        raise TypeError(f"parts must be a dict of fractions by name, got {shown(parts)}")
    if not 1 <= len(parts) < MOST_PARTS:
        raise ValueError(f"expected 1 to {MOST_PARTS - 1} parts, got {len(parts)}")
    for name, fraction in parts.items():
        if not isinstance(name, str):
            raise TypeError(f"the name of a part must be a text, got {shown(name)}")
        if not isinstance(fraction, Real | Fraction) or isinstance(fraction, bool) or not 0 <= fraction <= 1:
            raise ValueError(f"part {name!r}: expected a fraction in [0, 1], got {shown(fraction)}")
    ends = list(accumulate(exact_fraction(fraction) for fraction in parts.values()))
    if ends[-1] > 1:
        raise ValueError(
            f"the fractions must be at most 1 together, got {float(ends[-1])!r} ({shown(dict(parts))}); "
            "sums such as 0.1 + 0.2 are exact as fractions.Fraction"
        )
    whole = (int(end * 2**64) for end in ends)
    return np.array([end for end in whole if end < 2**64], np.uint64)


def _hashes_of_ids(root: int, length: int) -> Any:
    for low in range(0, length, HASHED):
        yield absorb_all(root, np.arange(low, min(length, low + HASHED), dtype=np.uint64))


def _hashes_of_field(root: int, source: Source, name: str) -> Any:
    """Those of all values of a field, which is read once, batch by batch."""
    low = 0
    with closing(read_spans(source, [name], range(len(source)), READ_BYTES, as_columns=False)) as batches:
        for batch in batches:
            column = batch[name]
            missing = ~_present(column)
            if missing.any():
                raise SchemaMismatchError(
                    f"field {name!r}: record {low + int(np.argmax(missing))} has no value, so it belongs to no part: "
                    "split by another field, or select the records that have one first"
                )
            yield hash_values(root, column)
            low += len(column)


def _present(column: Any) -> npt.NDArray[np.bool_]:
    if isinstance(column, Ragged):
        return np.ones(len(column), np.bool_) if column.present is None else column.present
    return np.logical_not(np.ma.getmaskarray(column))


def hash_values(root: int, column: Any) -> Words:
    """The hash of every value: of a byte string or the UTF-8 of a text, or of a whole number, whatever its width."""
    if isinstance(column, Ragged):
        out = np.empty(len(column), np.uint64)
        _core.absorb_strings(root, np.ascontiguousarray(column.values), np.ascontiguousarray(column.offsets), out)
        return out
    plain = np.ma.getdata(column)
    return absorb_all(root, plain.astype(np.int64).view(np.uint64) if plain.dtype.kind == "i" else plain.astype(np.uint64))


def _check_field(schema: Mapping[str, Field], name: str) -> None:
    """Values that are equal if and only if their bytes are: no floats, and no arrays."""
    if name not in schema:
        raise KeyError(f"unknown field {name!r}; there are {list(schema)}")
    field = schema[name]
    is_number = field.kind == "fixed" and field.shape == () and field.dtype.kind in "biu"
    if not is_number and field.kind not in ("text", "bytes"):
        raise TypeError(f"a split is by texts, bytes or whole numbers, field {name!r} is {field!r}")


provide(split=split)
