"""Orders of chance over the whole data set: a permutation per epoch, or draws with replacement."""

from dataclasses import KW_ONLY, dataclass, field

import numpy as np
import numpy.typing as npt

from penstock import _core
from penstock.argument import check_positions, check_run, set_whole, whole_number
from penstock.interfaces import IntArray
from penstock.order.recent import Recent
from penstock.order.seed import MAX_SEED, Purpose, derive_key

__all__ = ["Random", "Shuffle"]


@dataclass(frozen=True)
class Shuffle:
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
    _recent: Recent[_core.Permutation] = field(default_factory=Recent, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        set_whole(self, "n")
        set_whole(self, "seed", most=MAX_SEED)

    def __len__(self) -> int:
        return self.n

    def indices(self, epoch: int, start: int, stop: int, step: int = 1) -> IntArray:
        """Ids at positions start, start + step, ... below stop."""
        run = check_run(start, stop, step, self.n)
        out = np.empty(len(run), np.int64)
        self._permutation(epoch).run(run.start, run.step, out)
        return out

    def at(self, epoch: int, positions: npt.ArrayLike) -> IntArray:
        """Ids at any positions."""
        wanted = check_positions("positions", positions, self.n)
        out = np.empty(wanted.size, np.int64)
        self._permutation(epoch).forward(wanted, out)
        return out

    def positions(self, epoch: int, ids: npt.ArrayLike) -> IntArray:
        """Where each id stands in the epoch."""
        wanted = check_positions("ids", ids, self.n)
        out = np.empty(wanted.size, np.int64)
        self._permutation(epoch).inverse(wanted, out)
        return out

    def _permutation(self, epoch: int) -> _core.Permutation:
        epoch = whole_number("epoch", epoch)
        return self._recent.get(epoch, lambda: _core.Permutation(self.n, derive_key(self.seed, epoch, Purpose.SHUFFLE)))


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
        """Ids at positions start, start + step, ... below stop."""
        run = check_run(start, stop, step, self.n)
        out = np.empty(len(run), np.int64)
        _core.random_run(self.n, self._key(epoch), run.start, run.step, out)
        return out

    def at(self, epoch: int, positions: npt.ArrayLike) -> IntArray:
        """Ids at any positions."""
        wanted = check_positions("positions", positions, self.n)
        out = np.empty(wanted.size, np.int64)
        _core.random_at(self.n, self._key(epoch), wanted, out)
        return out

    def _key(self, epoch: int) -> int:
        return derive_key(self.seed, whole_number("epoch", epoch), Purpose.RANDOM)
