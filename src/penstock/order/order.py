"""What an order is, and the orders without randomness: Sequential, and Sliding over a circle of records."""

from dataclasses import KW_ONLY, dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from penstock.argument import MAX_LENGTH, IntArray, as_positions, check_positions, check_run, set_whole, whole_number

__all__ = ["InvertibleOrder", "Order", "Sequential", "Sliding"]


@runtime_checkable
class Order(Protocol):
    """A pure function (epoch, position) -> record id, defined for every position without looking at any other.

    Implementations are immutable values: equal parameters give equal orders, in every process, on every platform. They may be used
    from several threads, pickled and forked. ``penstock.testing.OrderSuite`` checks all of this for a class of your own.

    >>> from penstock.order import Order, Random
    >>> isinstance(Random(10, seed=7), Order)
    True
    """

    def __len__(self) -> int:
        """Positions per epoch; those of epoch 0 for an order with ``length_of(epoch)``, whose epochs may differ in length."""

    def indices(self, epoch: int, start: int, stop: int, step: int = 1) -> IntArray:
        """Ids at positions start, start + step, ... below stop. Raises IndexError unless 0 <= start <= stop <= len."""

    def at(self, epoch: int, positions: npt.ArrayLike) -> IntArray:
        """Ids at any positions, in the order given. Raises IndexError if one is not in [0, len)."""


@runtime_checkable
class InvertibleOrder(Order, Protocol):
    """An order in which every id stands at exactly one position of an epoch.

    >>> from penstock.order import InvertibleOrder, Random, Shuffle
    >>> isinstance(Shuffle(10, seed=7), InvertibleOrder), isinstance(Random(10, seed=7), InvertibleOrder)
    (True, False)
    """

    def positions(self, epoch: int, ids: npt.ArrayLike) -> IntArray:
        """Where each id stands in the epoch: the inverse of ``at``. Raises IndexError if an id is not in [0, len)."""


@dataclass(frozen=True)
class Sequential:
    """Records 0, 1, 2, ... of every epoch.

    With ``wrap=True`` the records form a circle: positions past the end start over, so no batch is ever short.

    >>> from penstock.order import Sequential
    >>> Sequential(10, wrap=True).indices(0, 8, 12)
    array([8, 9, 0, 1])
    """

    n: int
    _: KW_ONLY
    wrap: bool = False

    def __post_init__(self) -> None:
        set_whole(self, "n")

    def __len__(self) -> int:
        return self.n

    def indices(self, epoch: int, start: int, stop: int, step: int = 1) -> IntArray:
        """Ids at positions start, start + step, ... below stop; with ``wrap`` stop may exceed the length."""
        whole_number("epoch", epoch)
        run = check_run(start, stop, step, self._limit())
        return self._wrapped(as_positions(run))

    def at(self, epoch: int, positions: npt.ArrayLike) -> IntArray:
        whole_number("epoch", epoch)
        return self._wrapped(check_positions("positions", positions, self._limit()))

    def positions(self, epoch: int, ids: npt.ArrayLike) -> IntArray:
        whole_number("epoch", epoch)
        return check_positions("ids", ids, self.n).copy()

    def _limit(self) -> int:
        return MAX_LENGTH if self.wrap and self.n > 0 else self.n

    def _wrapped(self, positions: IntArray) -> IntArray:
        return positions % self.n if self.wrap and self.n > 0 else positions.copy()


@dataclass(frozen=True)
class Sliding:
    """Windows of ``window`` records, each ``stride`` after the one before, over the circle of records.

    An epoch has ceil(n / stride) windows, so that every stretch of the circle starts one; the next epoch goes on where this one
    ended. Nothing is cut off at the end of the data:

    >>> from penstock.order import Sliding
    >>> Sliding(10, window=4).indices(0, 0, 12).reshape(3, 4)
    array([[0, 1, 2, 3],
           [4, 5, 6, 7],
           [8, 9, 0, 1]])
    >>> Sliding(10, window=4).indices(1, 0, 4)
    array([2, 3, 4, 5])

    ``stride`` is ``window`` unless given; a smaller one makes windows overlap, a larger one leaves records out.
    """

    n: int
    _: KW_ONLY
    window: int
    stride: int | None = None

    def __post_init__(self) -> None:
        set_whole(self, "n")
        set_whole(self, "window", least=1)
        if self.stride is not None:
            set_whole(self, "stride", least=1)
        if self._num_windows() * self.window > MAX_LENGTH:
            raise ValueError(f"an epoch of {self._num_windows()} windows of {self.window} exceeds {MAX_LENGTH} positions")

    def __len__(self) -> int:
        return self._num_windows() * self.window

    def indices(self, epoch: int, start: int, stop: int, step: int = 1) -> IntArray:
        run = check_run(start, stop, step, len(self))
        return self._ids(epoch, as_positions(run))

    def at(self, epoch: int, positions: npt.ArrayLike) -> IntArray:
        return self._ids(epoch, check_positions("positions", positions, len(self)))

    def _num_windows(self) -> int:
        return -(-self.n // (self.stride or self.window))

    def _ids(self, epoch: int, positions: IntArray) -> IntArray:
        epoch = whole_number("epoch", epoch)
        if positions.size == 0:
            return positions.copy()
        # Unsigned, and reduced before every sum: a window starts below n + stride <= 2n, and no sum of two such terms overflows.
        n, stride = np.uint64(self.n), np.uint64((self.stride or self.window) % self.n)
        first = np.uint64(epoch * self._num_windows() * (self.stride or self.window) % self.n)
        windows, offsets = np.divmod(positions.astype(np.uint64), np.uint64(self.window))
        ids = (windows * stride % n + first) % n
        return ((ids + offsets % n) % n).astype(np.int64)
