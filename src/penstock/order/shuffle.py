"""Random orders: Shuffle (a permutation per epoch), Random (draws with replacement) and BlockShuffle, for media where a run of
records costs little more to read than one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, check_positions, check_run, set_whole, whole_number
from penstock.native import _core
from penstock.order.permutation import MAX_SEED, Purpose, derive_key, derive_root

__all__ = ["BlockShuffle", "Random", "Shuffle"]

T = TypeVar("T")


class _Recent(Generic[T]):
    """Keeps the value of the last key. Safe to use from several threads; starts empty in a pickled copy.

    It only saves work: an order gives the same ids with or without it.
    """

    __slots__ = ("_pair",)

    def __init__(self) -> None:
        self._pair: tuple[int, T] | None = None

    def get(self, key: int, make: Callable[[], T]) -> T:
        """The value of ``key``, made now unless it was the key asked for last."""
        pair = self._pair
        if pair is None or pair[0] != key:
            self._pair = pair = (key, make())
        return pair[1]

    def __reduce__(self) -> tuple[Any, ...]:
        return (_Recent, ())


_Native = _core.BlockEpoch | _core.Permutation


class _Permuted(ABC):
    """An order whose epochs are bijections that native code computes; the one of the last epoch is kept."""

    n: int
    _recent: _Recent[_Native]

    @abstractmethod
    def _make_epoch(self, epoch: int) -> _Native: ...

    def __len__(self) -> int:
        return self.n

    def indices(self, epoch: int, start: int, stop: int, step: int = 1) -> IntArray:
        run = check_run(start, stop, step, self.n)
        out = np.empty(len(run), np.int64)
        self._epoch(epoch).run(run.start, run.step, out)
        return out

    def at(self, epoch: int, positions: npt.ArrayLike) -> IntArray:
        wanted = check_positions("positions", positions, self.n)
        out = np.empty(wanted.size, np.int64)
        self._epoch(epoch).forward(wanted, out)
        return out

    def positions(self, epoch: int, ids: npt.ArrayLike) -> IntArray:
        wanted = check_positions("ids", ids, self.n)
        out = np.empty(wanted.size, np.int64)
        self._epoch(epoch).inverse(wanted, out)
        return out

    def native_epoch(self, epoch: int) -> _Native:
        """The bijection of an epoch."""
        return self._epoch(epoch)

    def _epoch(self, epoch: int) -> _Native:
        epoch = whole_number("epoch", epoch)
        return self._recent.get(epoch, lambda: self._make_epoch(epoch))


@dataclass(frozen=True)
class Shuffle(_Permuted):
    """Every record once per epoch, in an order drawn from all orders, fresh in each epoch.

    Nothing is stored: the id at any position of any epoch is computed when asked for.

    >>> from penstock.order import Shuffle
    >>> Shuffle(10, seed=7).indices(epoch=0, start=0, stop=10)
    array([1, 5, 3, 9, 7, 6, 0, 2, 4, 8])
    >>> Shuffle(10**12, seed=7).indices(epoch=7, start=900_000_000_000, stop=900_000_000_003)
    array([425646342553, 601820254391,  34913709844])
    """

    n: int
    _: KW_ONLY
    seed: int
    _recent: _Recent[_Native] = field(default_factory=_Recent, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        set_whole(self, "n")
        set_whole(self, "seed", most=MAX_SEED)

    def _make_epoch(self, epoch: int) -> _core.Permutation:
        return _core.Permutation(self.n, derive_key(self.seed, epoch, Purpose.SHUFFLE))


@dataclass(frozen=True)
class Random:
    """Independent draws with replacement, without bias: n positions per epoch, each any record with equal chance.

    One epoch misses about 36.8 % of the records; :class:`Shuffle` misses none.

    >>> from penstock.order import Random
    >>> Random(10, seed=7).indices(epoch=0, start=0, stop=10)
    array([8, 9, 4, 2, 6, 9, 4, 0, 0, 7])
    """

    n: int
    _: KW_ONLY
    seed: int

    def __post_init__(self) -> None:
        set_whole(self, "n")
        set_whole(self, "seed", most=MAX_SEED)

    def __len__(self) -> int:
        return self.n

    def indices(self, epoch: int, start: int, stop: int, step: int = 1) -> IntArray:
        run = check_run(start, stop, step, self.n)
        out = np.empty(len(run), np.int64)
        _core.random_run(self.n, self._key(epoch), run.start, run.step, out)
        return out

    def at(self, epoch: int, positions: npt.ArrayLike) -> IntArray:
        wanted = check_positions("positions", positions, self.n)
        out = np.empty(wanted.size, np.int64)
        _core.random_at(self.n, self._key(epoch), wanted, out)
        return out

    def _key(self, epoch: int) -> int:
        return derive_key(self.seed, whole_number("epoch", epoch), Purpose.RANDOM)


@dataclass(frozen=True)
class BlockShuffle(_Permuted):
    """Every record once per epoch; blocks of neighbouring records are read together, ``window`` of them mixed at a time.

    The blocks are permuted; then the records of ``window`` consecutive blocks are permuted together, which makes a group.
    ``window=1`` reads block after block, ``window=None`` mixes all of them, which is a global shuffle. Data sorted by class needs
    a wide window: of 1,000 blocks sorted into 10 classes, windows of 1, 4 and 16 show 1.0, 3.4 and 8.1 classes in a batch of 64.

    ``lanes`` deals the permuted blocks to that many lanes in turn, and position p reads lane p mod lanes. A rank of a world that
    divides ``lanes`` then reads only blocks of its own, while the global order is the same for every world size::

        lanes=4   position  0  1  2  3  4  5  6  7  8 ...
                  lane      0  1  2  3  0  1  2  3  0 ...
        world=2   rank      0  1  0  1  0  1  0  1  0 ...

    Where the lanes do not come out even, their ends form a tail in which two ranks may read the same block.

    In flight is one group per lane: at most window x block records, the memory a reader needs.

    >>> from penstock.order import BlockShuffle
    >>> order = BlockShuffle(12, block=3, window=2, seed=7)
    >>> order.indices(0, 0, 6) // 3                          # the first six records come from two blocks
    array([1, 2, 2, 1, 1, 2])
    >>> sorted(order.indices(0, 0, 12).tolist()) == list(range(12))
    True
    """

    n: int
    _: KW_ONLY
    block: int
    seed: int
    window: int | None = 16
    lanes: int = 1
    _recent: _Recent[_Native] = field(default_factory=_Recent, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        set_whole(self, "n")
        set_whole(self, "block", least=1)
        if self.window is not None:
            set_whole(self, "window", least=1)
        set_whole(self, "lanes", least=1)
        set_whole(self, "seed", most=MAX_SEED)

    @property
    def num_blocks(self) -> int:
        """How many blocks there are; the last may be short."""
        return -(-self.n // self.block)

    def _make_epoch(self, epoch: int) -> _Native:
        groups = derive_root(self.seed, epoch, Purpose.BLOCK_GROUP)
        window = self.num_blocks if self.window is None else self.window
        if window >= self.num_blocks and self.lanes == 1:  # one group holds everything: permuting its blocks first adds nothing
            return _core.Permutation(self.n, _core.absorb(groups, 0))
        sequence = derive_key(self.seed, epoch, Purpose.BLOCK_SEQUENCE)
        return _core.BlockEpoch(self.n, self.block, max(1, window), self.lanes, sequence, groups)
