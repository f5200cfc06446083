"""Weighted: draws with replacement in proportion to weights, any of which can be computed alone."""

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import MAX_LENGTH, IntArray, check_positions, check_run, shown, whole_number
from penstock.native import _core
from penstock.order.permutation import MAX_SEED, Purpose, derive_key

__all__ = ["Weighted"]

MOST_WEIGHTS = 2**32 - 1

Columns = npt.NDArray[np.uint32]


class Weighted:
    """Independent draws with replacement, record i with a chance of ``weights[i]`` over the sum of all weights.

    ``size`` positions make an epoch; as many as there are weights unless given. A record of weight 0 never comes. The weights are
    made into an alias table of 8 bytes a record, in exact integers: a chance is wrong by less than 2**-30 of itself, and by
    2**-31 of the mean chance. Immutable; safe to use from several threads.

    >>> from penstock.order import Weighted
    >>> order = Weighted([1, 0, 3], seed=7, size=8)
    >>> order.indices(epoch=0, start=0, stop=8)
    array([2, 0, 2, 0, 2, 2, 2, 2])
    """

    __slots__ = ("_digest", "_n", "_seed", "_size", "_table")

    def __init__(self, weights: npt.ArrayLike, *, seed: int, size: int | None = None) -> None:
        checked = _check_weights(weights)
        self._fill(_core.AliasTable(checked) if checked.size else None, checked.size, seed, size)

    def _fill(self, table: _core.AliasTable | None, n: int, seed: int, size: int | None) -> None:
        self._n, self._table = n, table
        self._seed = whole_number("seed", seed, most=MAX_SEED)
        self._size = n if size is None else whole_number("size", size, most=MAX_LENGTH if n else 0)
        self._digest = hashlib.sha256(self._columns().data).hexdigest()

    @property
    def n(self) -> int:
        """Records, one for each weight."""
        return self._n

    @property
    def seed(self) -> int:
        return self._seed

    @property
    def size(self) -> int:
        """Positions of an epoch."""
        return self._size

    @property
    def digest(self) -> str:
        """The sha256 of the alias table: the same for weights that give the same draws."""
        return self._digest

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"Weighted(<{self.n} weights {self._digest[:32]}>, seed={self.seed}, size={self.size})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Weighted):
            return NotImplemented
        return (self.digest, self.seed, self.size) == (other.digest, other.seed, other.size)

    def __hash__(self) -> int:
        return hash((self._digest, self._seed, self._size))

    def __getstate__(self) -> tuple[Columns, int, int]:
        return self._columns(), self._seed, self._size

    def __setstate__(self, state: tuple[Columns, int, int]) -> None:
        columns, seed, size = state
        self._fill(_core.AliasTable.of_columns(columns) if len(columns) else None, len(columns), seed, size)

    def _columns(self) -> Columns:
        """(bound, other id) of every column of the table."""
        columns = np.empty((self.n, 2), np.uint32)
        if self._table is not None:
            self._table.copy_columns(columns)
        return columns

    def indices(self, epoch: int, start: int, stop: int, step: int = 1) -> IntArray:
        """Ids at positions start, start + step, ... below stop."""
        run = check_run(start, stop, step, self._size)
        out = np.empty(len(run), np.int64)
        key = self._key_of(epoch)
        if self._table is not None:
            self._table.run(key, run.start, run.step, out)
        return out

    def at(self, epoch: int, positions: npt.ArrayLike) -> IntArray:
        wanted = check_positions("positions", positions, self._size)
        out = np.empty(wanted.size, np.int64)
        key = self._key_of(epoch)
        if self._table is not None:
            self._table.at(key, wanted, out)
        return out

    def draw(self, word: int) -> int:
        """The record that a word of 64 random bits draws."""
        if self._table is None:
            raise IndexError("expected a weight to draw by, got none")
        return self._table.by_word(word)

    def draw_but(self, word: int, banned: IntArray) -> int:
        """The record that a word of 64 random bits draws of those that are not banned. Takes time in proportion to all weights."""
        columns = self._columns()
        shares = columns[:, 0].astype(np.uint64)
        np.add.at(shares, columns[:, 1], np.uint64(2**32) - columns[:, 0])
        shares[banned] = 0
        ends = np.cumsum(shares)
        if ends.size == 0 or ends[-1] == 0:
            raise IndexError("expected a weight to draw by, got none")
        return int(np.searchsorted(ends, np.uint64(word * int(ends[-1]) >> 64), side="right"))

    def can_come(self) -> npt.NDArray[np.bool_]:
        """Of every record: whether it can be drawn at all, that is, has a weight above 0."""
        found = np.empty(self.n, np.uint8)
        if self._table is not None:
            self._table.mark_drawn(found)
        return found.view(np.bool_)

    def _key_of(self, epoch: int) -> int:
        return derive_key(self._seed, whole_number("epoch", epoch), Purpose.WEIGHTED)


def _check_weights(weights: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Weights as float64 numbers; ValueError or TypeError, with the first record whose weight cannot be one."""
    given: npt.NDArray[Any] = np.ma.getdata(weights) if isinstance(weights, np.ma.MaskedArray) else np.asarray(weights)
    if given.ndim != 1:
        raise ValueError(f"weights must be one number per record, got shape {given.shape}")
    if given.size > MOST_WEIGHTS:
        raise ValueError(f"a weighted order has at most {MOST_WEIGHTS} records, got {given.size}")
    if given.dtype.kind in "cOSUMm" and given.size:
        raise TypeError(f"weights must be real numbers, got dtype {given.dtype}")
    missing = np.ma.getmaskarray(weights) if isinstance(weights, np.ma.MaskedArray) else np.zeros(given.shape, np.bool_)
    if missing.any():
        raise ValueError(f"every record needs a weight, that of record {int(np.argmax(missing))} is missing")
    found = np.ascontiguousarray(given, np.float64)
    good = np.isfinite(found) & (found >= 0)
    if not good.all():
        bad = int(np.argmin(good))
        raise ValueError(f"weights must be finite and at least 0, got {shown(found[bad].item())} for record {bad}")
    if found.size and not found.any():
        raise ValueError(f"at least one weight must be above 0, got {found.size} of 0")
    return found
