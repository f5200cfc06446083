"""What an order is, and the orders of one source.

Without randomness: Sequential, and Sliding over a circle of records. Shuffle is a permutation per epoch; BlockShuffle is for media
where a run of records costs little more to read than one. Draws with replacement: Random, and Weighted, in proportion to weights.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from penstock.argument import MAX_LENGTH, IntArray, as_positions, check_positions, check_run, set_whole, shown, whole_number
from penstock.native import _core
from penstock.order.permutation import MAX_SEED, Purpose, derive_key, derive_root

__all__ = ["BlockShuffle", "InvertibleOrder", "Order", "Random", "Sequential", "Shuffle", "Sliding", "Weighted"]


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
        self.native_epoch(epoch).run(run.start, run.step, out)
        return out

    def at(self, epoch: int, positions: npt.ArrayLike) -> IntArray:
        wanted = check_positions("positions", positions, self.n)
        out = np.empty(wanted.size, np.int64)
        self.native_epoch(epoch).forward(wanted, out)
        return out

    def positions(self, epoch: int, ids: npt.ArrayLike) -> IntArray:
        wanted = check_positions("ids", ids, self.n)
        out = np.empty(wanted.size, np.int64)
        self.native_epoch(epoch).inverse(wanted, out)
        return out

    def native_epoch(self, epoch: int) -> _Native:
        """The bijection of an epoch."""
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
