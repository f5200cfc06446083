"""The seams of penstock: what an order must offer to the layers above it."""

from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

__all__ = ["IntArray", "InvertibleOrder", "Order"]

IntArray: TypeAlias = npt.NDArray[np.int64]


@runtime_checkable
class Order(Protocol):
    """A pure function (epoch, position) -> record id, defined for every position without looking at any other.

    Implementations are immutable values: equal parameters give equal orders, in every process, on every platform. They may be used
    from several threads, pickled and forked. ``penstock.testing.OrderSuite`` checks all of this for a class of your own.
    """

    def __len__(self) -> int:
        """Positions per epoch; those of epoch 0 for an order with ``length_of(epoch)``, whose epochs may differ in length."""

    def indices(self, epoch: int, start: int, stop: int, step: int = 1) -> IntArray:
        """Ids at positions start, start + step, ... below stop. Raises IndexError unless 0 <= start <= stop <= len."""

    def at(self, epoch: int, positions: npt.ArrayLike) -> IntArray:
        """Ids at any positions, in the order given. Raises IndexError if one is not in [0, len)."""


@runtime_checkable
class InvertibleOrder(Order, Protocol):
    """An order in which every id stands at exactly one position of an epoch."""

    def positions(self, epoch: int, ids: npt.ArrayLike) -> IntArray:
        """Where each id stands in the epoch: the inverse of ``at``. Raises IndexError if an id is not in [0, len)."""
