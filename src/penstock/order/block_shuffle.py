"""BlockShuffle: a shuffle for media where a run of records costs little more to read than one."""

from dataclasses import KW_ONLY, dataclass, field

import numpy as np
import numpy.typing as npt

from penstock import _core
from penstock.argument import check_positions, check_run, set_whole, whole_number
from penstock.interfaces import IntArray
from penstock.order.recent import Recent
from penstock.order.seed import MAX_SEED, Purpose, derive_key, derive_root

__all__ = ["BlockShuffle"]


@dataclass(frozen=True)
class BlockShuffle:
    """Every record once per epoch; blocks of neighbouring records are read together, ``window`` of them mixed at a time.

    The blocks are permuted; then the records of ``window`` consecutive blocks are permuted together, which makes a group.
    ``window=1`` reads block after block, ``window=None`` mixes all of them, which is a global shuffle. Data sorted by class needs
    a wide window: of 1,000 blocks sorted into 10 classes, windows of 1, 4 and 16 show 1.0, 3.4 and 8.1 classes in a batch of 64.

    ``lanes`` deals the permuted blocks to so many lanes in turn, and position p reads lane p mod lanes. A rank of a world that
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
    _recent: Recent[_core.BlockEpoch | _core.Permutation] = field(default_factory=Recent, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        set_whole(self, "n")
        set_whole(self, "block", least=1)
        if self.window is not None:
            set_whole(self, "window", least=1)
        set_whole(self, "lanes", least=1)
        set_whole(self, "seed", most=MAX_SEED)

    def __len__(self) -> int:
        return self.n

    @property
    def num_blocks(self) -> int:
        """How many blocks there are; the last may be short."""
        return -(-self.n // self.block)

    def indices(self, epoch: int, start: int, stop: int, step: int = 1) -> IntArray:
        """Ids at positions start, start + step, ... below stop."""
        run = check_run(start, stop, step, self.n)
        out = np.empty(len(run), np.int64)
        self._epoch(epoch).run(run.start, run.step, out)
        return out

    def at(self, epoch: int, positions: npt.ArrayLike) -> IntArray:
        """Ids at any positions."""
        wanted = check_positions("positions", positions, self.n)
        out = np.empty(wanted.size, np.int64)
        self._epoch(epoch).forward(wanted, out)
        return out

    def positions(self, epoch: int, ids: npt.ArrayLike) -> IntArray:
        """Where each id stands in the epoch."""
        wanted = check_positions("ids", ids, self.n)
        out = np.empty(wanted.size, np.int64)
        self._epoch(epoch).inverse(wanted, out)
        return out

    def _epoch(self, epoch: int) -> _core.BlockEpoch | _core.Permutation:
        epoch = whole_number("epoch", epoch)
        return self._recent.get(epoch, lambda: self._make_epoch(epoch))

    def _make_epoch(self, epoch: int) -> _core.BlockEpoch | _core.Permutation:
        groups = derive_root(self.seed, epoch, Purpose.BLOCK_GROUP)
        window = self.num_blocks if self.window is None else self.window
        if window >= self.num_blocks and self.lanes == 1:  # one group holds everything: permuting its blocks first adds nothing
            return _core.Permutation(self.n, _core.absorb(groups, 0))
        sequence = derive_key(self.seed, epoch, Purpose.BLOCK_SEQUENCE)
        return _core.BlockEpoch(self.n, self.block, max(1, window), self.lanes, sequence, groups)
