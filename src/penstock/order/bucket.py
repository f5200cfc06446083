"""Bucketed: an order in which records of similar length are in one batch, so that padded batches have little padding."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, check_positions, check_run, whole_number
from penstock.order.order import InvertibleOrder
from penstock.order.permutation import Permutation, Purpose, derive_key

__all__ = ["Bucketed"]

MOST_WINDOWS = 4
"""Windows that are kept: several threads may be on both sides of an edge between two."""

Lengths = npt.NDArray[np.integer[Any]]


class Bucketed:
    """The records of another order, rearranged within windows of ``window`` batches: those of a window are sorted by length, cut
    into batches of ``batch_size``, and the batches are shuffled.

    Every record comes once an epoch, as in ``order``; the next epoch has other windows. Records behind the last whole batch of an
    epoch stay where they are, so that a short last batch is one by lot, not the longest records. ``lengths`` are those of the
    records by id, or a function that gives them; it is called when they are needed, and again in a pickled copy.

    A window is sorted when it is needed, and kept for a while. Immutable; safe to use from several threads.

    >>> import numpy as np
    >>> from penstock.order import Bucketed, Shuffle
    >>> lengths = np.array([9, 1, 8, 2, 7, 3, 6, 4, 5])
    >>> order = Bucketed(Shuffle(9, seed=7), lengths, batch_size=2, window=4)
    >>> lengths[order.indices(0, 0, 9)].tolist()
    [3, 4, 8, 9, 1, 2, 5, 6, 7]
    """

    def __init__(
        self, order: InvertibleOrder, lengths: npt.ArrayLike | Callable[[], Lengths], *, batch_size: int, window: int = 64
    ) -> None:
        if not isinstance(order, InvertibleOrder) or isinstance(order, Bucketed):
            raise TypeError(f"buckets need an order that has every record once, such as Shuffle, got {order!r}")
        self.order, self._n = order, int(getattr(order, "n", len(order)))
        self.batch_size = whole_number("batch_size", batch_size, least=1)
        self.window = whole_number("window", window, least=1)
        self._given = lengths if callable(lengths) else _checked(lengths, self._n)
        self._known: Lengths | None = None
        self._kept: OrderedDict[tuple[int, int], tuple[IntArray, IntArray]] = OrderedDict()

    @property
    def n(self) -> int:
        """Records that ids may name."""
        return self._n

    @property
    def seed(self) -> int:
        """That of the other order; 0 if it has none."""
        return int(getattr(self.order, "seed", 0))

    @property
    def lengths(self) -> Lengths:
        """Those of all records, by id."""
        if self._known is None:
            self._known = _checked(self._given() if callable(self._given) else self._given, self._n)
        return self._known

    def prepare(self) -> None:
        """Get the lengths now."""
        _ = self.lengths

    @property
    def window_size(self) -> int:
        """Positions of a window."""
        return self.window * self.batch_size

    def __len__(self) -> int:
        return len(self.order)

    @property
    def identity(self) -> tuple[Any, ...]:
        """What the order follows from."""
        given = self._given
        told = given if callable(given) else hashlib.sha256(np.ascontiguousarray(given, np.int64).data).hexdigest()[:32]
        return self.order, told, self.batch_size, self.window

    def __repr__(self) -> str:
        order, told, size, window = self.identity
        return f"Bucketed({order!r}, lengths={told!r}, batch_size={size}, window={window})"

    def __eq__(self, other: object) -> bool:
        return self.identity == other.identity if isinstance(other, Bucketed) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.identity)

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self.order, self._given, self.batch_size, self.window)

    def indices(self, epoch: int, start: int, stop: int, step: int = 1) -> IntArray:
        run = check_run(start, stop, step, len(self))
        return self._ids(epoch, np.arange(run.start, run.stop, run.step, dtype=np.int64))

    def at(self, epoch: int, positions: npt.ArrayLike) -> IntArray:
        return self._ids(epoch, check_positions("positions", positions, len(self)))

    def positions(self, epoch: int, ids: npt.ArrayLike) -> IntArray:
        places = self.order.positions(epoch, ids)
        found = places.copy()
        for window, mine in self._windows(places):
            found[mine] = window * self.window_size + self._plan(epoch, window)[1][places[mine] - window * self.window_size]
        return found

    def _ids(self, epoch: int, positions: IntArray) -> IntArray:
        epoch = whole_number("epoch", epoch)
        ids = np.empty(positions.size, np.int64)
        rest = np.flatnonzero(positions >= self._num_full)
        if rest.size:
            ids[rest] = self.order.at(epoch, positions[rest])
        for window, mine in self._windows(positions):
            ids[mine] = self._plan(epoch, window)[0][positions[mine] - window * self.window_size]
        return ids

    @property
    def _num_full(self) -> int:
        """Positions of whole batches."""
        return len(self) // self.batch_size * self.batch_size

    def _windows(self, positions: IntArray) -> list[tuple[int, Any]]:
        """The windows of positions, and which of these are in each; not those behind the last whole batch."""
        if positions.size == 0:
            return []
        size = self.window_size
        low, high = int(positions.min()), int(positions.max())
        if high < self._num_full and low // size == high // size:
            return [(low // size, slice(None))]
        numbers = np.where(positions < self._num_full, positions // size, -1)
        return [(number, np.flatnonzero(numbers == number)) for number in np.unique(numbers).tolist() if number >= 0]

    def _plan(self, epoch: int, window: int) -> tuple[IntArray, IntArray]:
        """The ids of a window, and the place of each of those that the other order has there."""
        kept = self._kept.get((epoch, window))
        if kept is None:
            first = window * self.window_size
            last = min(first + self.window_size, self._num_full)
            ids = self.order.indices(epoch, first, last)
            rising = np.argsort(self.lengths[ids], kind="stable")
            batches = Permutation((last - first) // self.batch_size, key=derive_key(self.seed, epoch, Purpose.BUCKET, window))
            chosen = rising.reshape(-1, self.batch_size)[batches.run(0, len(batches))].reshape(-1)
            back = np.empty(chosen.size, np.int64)
            back[chosen] = np.arange(chosen.size)
            kept = self._kept[epoch, window] = ids[chosen], back
            while len(self._kept) > MOST_WINDOWS:
                self._kept.popitem(last=False)
        return kept


def _made(order: InvertibleOrder, lengths: Any, batch_size: int, window: int) -> Bucketed:
    return Bucketed(order, lengths, batch_size=batch_size, window=window)


def _checked(lengths: npt.ArrayLike, count: int) -> Lengths:
    found = np.asarray(lengths)
    if found.ndim != 1 or found.dtype.kind not in "iu" or found.size != count:
        raise ValueError(f"expected {count} lengths, whole numbers, one for every record, got {found.dtype} of shape {found.shape}")
    return found
