"""Permutation(n, key): a keyed bijection of [0, n) of which any part can be computed alone; and where its keys come from: hashes of
(seed, epoch, purpose, number).
"""

from collections.abc import Callable
from enum import IntEnum
from typing import overload

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, check_positions, check_run, whole_number
from penstock.native import _core

__all__ = ["MAX_SEED", "Permutation", "Purpose", "absorb_all", "derive_key", "derive_root"]

MAX_SEED = 2**64 - 1


class Purpose(IntEnum):
    """What a key is for. The numbers are part of the specification of the order and never change."""

    SHUFFLE = 1
    RANDOM = 2
    BLOCK_SEQUENCE = 3
    BLOCK_GROUP = 4
    MIXTURE = 5
    DESIGN = 6
    DESIGN_SEQUENCE = 7
    DESIGN_OFFSET = 8
    SUBSTITUTE = 9
    TRANSFORM = 10
    PACK = 11
    PACK_GROUPS = 12
    SPLIT = 13
    WEIGHTED = 14
    IMAGE = 15
    BUCKET = 16


def derive_root(seed: int, epoch: int, purpose: Purpose) -> int:
    """The key of a family of decisions; ``_core.absorb(root, number)`` is the key of one of them."""
    return _core.absorb(_core.absorb(_core.absorb(0, seed), epoch), purpose)


def absorb_all(root: int | npt.NDArray[np.uint64], words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """``_core.absorb(root, word)`` of every word, on arrays; of its own root where there is one for each."""
    z = (np.uint64(root) ^ words) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)), np.uint64)


def derive_key(seed: int, epoch: int, purpose: Purpose, number: int = 0) -> int:
    """The key of one decision. (seed, epoch + 1) and (seed + 1, epoch) are unrelated."""
    return _core.derive_key(seed, epoch, purpose, number)


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
