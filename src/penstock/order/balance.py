"""Balance: how the samples of a global batch are dealt to ranks and micro-batches so that they cost about the same.

Longest processing time first, with a limit on counts (``native/core/balance.h``). It is computed from the whole batch, so that
every rank finds the same without a word to the others. What is in the batch never changes.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, set_whole
from penstock.native import _core

__all__ = ["ATTENTION", "TOKENS", "Balance", "Costs", "deal", "room_of_slots", "scaled"]

ATTENTION, TOKENS = "attention", "tokens"
"""Costs that follow from the lengths of documents; any other name is that of a field."""

MOST_WIDTH = 1 << 20

Costs = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Balance:
    """What samples cost, and in how many micro-batches a rank trains on its part of a batch.

    * ``by``             "attention": the sum of n (12 width + n) over the documents of n tokens that a sample shows, which is what
      a layer of a causal transformer computes, up to a factor; "tokens": their sum; or a field of the records: its value where it
      is a number, its length where it varies
    * ``width``          of the model: the size of its hidden state
    * ``micro_batches``  of a rank: the first has its first samples. Each is balanced over the ranks, which wait for one another
      there
    * ``field``          with "attention" and "tokens", the field of records whose length counts, where several vary

    >>> from penstock.order import Balance
    >>> Balance("attention", width=2048).cost([100, 8192])
    array([  2467600, 268435456], dtype=uint64)
    """

    by: str
    _: KW_ONLY
    width: int = 4096
    micro_batches: int = 1
    field: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.by, str) or not self.by:
            raise TypeError(f"balance must be 'attention', 'tokens' or the name of a field, got {self.by!r}")
        set_whole(self, "width", least=1, most=MOST_WIDTH)
        set_whole(self, "micro_batches", least=1)
        if self.field is not None and not self.is_of_lengths:
            raise ValueError(f"field= is for balance by 'attention' or 'tokens', got field={self.field!r} with {self.by!r}")

    @classmethod
    def of(cls, given: "Balance | str") -> "Balance":
        """What a caller gives: the name alone will do."""
        if not isinstance(given, Balance | str):
            raise TypeError(f"balance must be 'attention', 'tokens', the name of a field or a Balance, got {type(given).__name__}")
        return cls(given) if isinstance(given, str) else given

    @property
    def is_of_lengths(self) -> bool:
        """Whether costs follow from the lengths of documents."""
        return self.by in (ATTENTION, TOKENS)

    @property
    def factors(self) -> tuple[int, int]:
        """(a, b): n tokens that attend to each other cost n (a + b n)."""
        return (12 * self.width, 1) if self.by == ATTENTION else (1, 0)

    def cost(self, lengths: npt.ArrayLike) -> Costs:
        """What documents of those lengths cost; more than 2^63 is taken for that."""
        tokens = np.asarray(lengths, np.uint64)
        ones = np.arange(tokens.size + 1, dtype=np.int64)
        found = np.empty(tokens.size, np.uint64)
        _core.piece_costs(ones, ones[:-1], tokens.reshape(-1).astype(np.int64), *self.factors, found)
        return found.reshape(tokens.shape)


def scaled(costs: npt.NDArray[Any]) -> Costs:
    """Costs as whole numbers of at most 2^40: whole numbers lose low bits where one is larger, others are measured by the largest.

    ValueError if one is negative or no number.
    """
    if costs.size == 0:
        return np.empty(0, np.uint64)
    if costs.dtype.kind == "f":
        largest = float(costs.max())
        if not (np.isfinite(costs).all() and float(costs.min()) >= 0):
            raise ValueError("expected costs that are numbers of at least 0")
        if largest == 0:
            return np.zeros(costs.size, np.uint64)
        return np.rint(costs.astype(np.float64) / largest * _core.MAX_COST).astype(np.uint64)
    if int(costs.min()) < 0:
        raise ValueError(f"expected costs of at least 0, found {int(costs.min())}")
    found = costs.astype(np.uint64)
    return found >> np.uint64(max(0, (int(found.max()) - 1).bit_length() - 40))


def room_of_slots(count: int, batch_size: int, world: int, micro_batches: int) -> IntArray:
    """Samples of every slot, those of rank 0 first, where a batch that may hold ``batch_size`` samples has ``count``. A rank has as
    many as without balance, and its micro-batches are filled one after the other.
    """
    each = batch_size // (world * micro_batches)
    own = (count - np.arange(world, dtype=np.int64) + world - 1) // world
    room: IntArray = np.clip(own[:, None] - each * np.arange(micro_batches, dtype=np.int64), 0, each).reshape(-1)
    return room


def deal(costs: npt.NDArray[Any], room: IntArray, micro_batches: int) -> IntArray:
    """Samples by number, those of slot 0 first; those of a slot in rising order."""
    order = np.empty(costs.size, np.int64)
    _core.deal(scaled(costs), np.ascontiguousarray(room, np.int64), micro_batches, order)
    return order
