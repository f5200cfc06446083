"""Orders: pure functions (seed, epoch, position) -> record id. No I/O, no threads, no clock.

Every order is a value with ``len`` (positions per epoch) and ``indices(epoch, start, stop)``; most can also say where a record
stands (``positions``). The arithmetic is written down in ``docs/reference/order.md`` and never changes within ``ORDER_VERSION``.
"""

from penstock.order.balance import Balance
from penstock.order.bucket import Bucketed
from penstock.order.design import (
    Design,
    default_budget,
    designed_sampling_mandatory,
    fraction_schedule,
    in_fraction,
)
from penstock.order.mixture import Amendment, Choice, Mixture
from penstock.order.order import BlockShuffle, InvertibleOrder, Order, Random, Sequential, Shuffle, Sliding, Weighted
from penstock.order.pack import Pack, Pieces
from penstock.order.permutation import Permutation
from penstock.order.position import ORDER_VERSION, Curriculum, Cursor, Phase, PhasePlace, Shard

__all__ = [
    "ORDER_VERSION",
    "Amendment",
    "Balance",
    "BlockShuffle",
    "Bucketed",
    "Choice",
    "Curriculum",
    "Cursor",
    "Design",
    "InvertibleOrder",
    "Mixture",
    "Order",
    "Pack",
    "Permutation",
    "Phase",
    "PhasePlace",
    "Pieces",
    "Random",
    "Sequential",
    "Shard",
    "Shuffle",
    "Sliding",
    "Weighted",
    "default_budget",
    "designed_sampling_mandatory",
    "fraction_schedule",
    "in_fraction",
]
