"""Permutation(n, key): a keyed bijection of [0, n) of which any part can be computed alone."""

from collections.abc import Callable
from typing import overload

import numpy as np
import numpy.typing as npt

from penstock import _core
from penstock.argument import check_positions, check_run, whole_number
from penstock.interfaces import IntArray
from penstock.order.seed import MAX_SEED

__all__ = ["Permutation"]


class Permutation:
    """A bijection of [0, n), chosen by a 64-bit key. Immutable; safe to use from several threads.

    Up to 65,536 elements it is a Fisher-Yates table of at most 128 KiB; above, a Feistel network without any table, so that a
    permutation of 10**12 elements costs nothing to make.

    >>> from penstock.order import Permutation
    >>> p = Permutation(10**12, key=7)
    >>> p.inverse(p.forward(900_000_000_000))
    900000000000
    """

    __slots__ = ("_native", "key", "n")

    def __init__(self, n: int, *, key: int) -> None:
        self.n = whole_number("n", n)
        self.key = whole_number("key", key, most=MAX_SEED)
        self._native = _core.Permutation(self.n, self.key)

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        return f"Permutation({self.n}, key={self.key})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Permutation) and (self.n, self.key) == (other.n, other.key)

    def __hash__(self) -> int:
        return hash((self.n, self.key))

    def __reduce__(self) -> tuple[object, ...]:
        return (_make, (self.n, self.key))

    def run(self, start: int, stop: int, step: int = 1) -> IntArray:
        """The images of start, start + step, ... below stop."""
        run = check_run(start, stop, step, self.n)
        out = np.empty(len(run), np.int64)
        self._native.run(run.start, run.step, out)
        return out

    @overload
    def forward(self, position: int) -> int: ...
    @overload
    def forward(self, position: npt.ArrayLike) -> IntArray: ...
    def forward(self, position: npt.ArrayLike) -> int | IntArray:
        """The image of a position, or of an array of positions."""
        return _apply(self._native.forward, "position", position, self.n)

    @overload
    def inverse(self, index: int) -> int: ...
    @overload
    def inverse(self, index: npt.ArrayLike) -> IntArray: ...
    def inverse(self, index: npt.ArrayLike) -> int | IntArray:
        """The position whose image is ``index``, or an array of them."""
        return _apply(self._native.inverse, "index", index, self.n)


def _make(n: int, key: int) -> Permutation:
    return Permutation(n, key=key)


def _apply(function: Callable[[IntArray, IntArray], None], name: str, value: npt.ArrayLike, n: int) -> int | IntArray:
    single = np.ndim(value) == 0
    array = check_positions(name, np.atleast_1d(np.asarray(value)), n)
    out = np.empty(array.size, np.int64)
    function(array, out)
    return int(out[0]) if single else out
