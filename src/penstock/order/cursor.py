"""Cursor: the whole state of a position in an endless run, in 24 bytes.

::

    bytes  0..8    seed       unsigned, little-endian
    bytes  8..16   epoch      unsigned, little-endian
    bytes 16..24   position   unsigned, little-endian; positions of this epoch already consumed, by all ranks together
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from penstock.argument import set_whole, shown, whole_number
from penstock.errors import StateError
from penstock.order.seed import MAX_SEED

__all__ = ["ORDER_VERSION", "Cursor"]

ORDER_VERSION = 1
"""Version of the arithmetic of all orders. The same version, seed, epoch and position give the same id for ever."""

_LAYOUT = struct.Struct("<QQQ")


@dataclass(frozen=True)
class Cursor:
    """Where a run stands. It names the next position, not the last one.

    >>> from penstock.order import Cursor
    >>> cursor = Cursor(seed=7).advance(250, length=100)
    >>> cursor
    Cursor(seed=7, epoch=2, position=50)
    >>> Cursor.from_bytes(bytes(cursor)) == cursor
    True
    """

    seed: int
    epoch: int = 0
    position: int = 0

    def __post_init__(self) -> None:
        set_whole(self, "seed", most=MAX_SEED)
        set_whole(self, "epoch")
        set_whole(self, "position")

    def advance(self, count: int, *, length: int) -> "Cursor":
        """The cursor ``count`` positions on, in epochs of ``length`` positions; the end of an epoch is the start of the next."""
        count, length = whole_number("count", count), whole_number("length", length, least=1)
        epochs, position = divmod(self.position + count, length)
        return Cursor(self.seed, self.epoch + epochs, position)

    def __bytes__(self) -> bytes:
        return _LAYOUT.pack(self.seed, self.epoch, self.position)

    @classmethod
    def from_bytes(cls, state: bytes) -> "Cursor":
        """The cursor packed by ``bytes(cursor)``."""
        if not isinstance(state, bytes | bytearray) or len(state) != _LAYOUT.size:
            found = f"{len(state)}" if isinstance(state, bytes | bytearray) else type(state).__name__
            raise StateError(f"expected a cursor of {_LAYOUT.size} bytes, got {found}: the state was cut or is something else")
        return _checked(*_LAYOUT.unpack(state))

    def state_dict(self) -> dict[str, int]:
        """Plain integers, with the version of the order they belong to."""
        return {"order_version": ORDER_VERSION, "seed": self.seed, "epoch": self.epoch, "position": self.position}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, int]) -> "Cursor":
        """The cursor saved by ``state_dict``; StateError if keys are missing or the order has another version."""
        expected = {"order_version", "seed", "epoch", "position"}
        if not isinstance(state, Mapping) or set(state) != expected:
            keys = (
                sorted(key if isinstance(key, str) else shown(key) for key in islice(state, 6))
                if isinstance(state, Mapping)
                else None
            )
            found = type(state).__name__ if keys is None else shown(keys)
            raise StateError(f"expected a state with the keys {sorted(expected)}, got {found}")
        if type(state["order_version"]) is not int or state["order_version"] != ORDER_VERSION:
            raise StateError(
                f"expected order_version {ORDER_VERSION}, got {shown(state['order_version'])}: "
                "resume with the version of penstock that saved this state, or start anew"
            )
        return _checked(state["seed"], state["epoch"], state["position"])


def _checked(seed: int, epoch: int, position: int) -> Cursor:
    try:
        return Cursor(seed, epoch, position)
    except (TypeError, ValueError) as error:
        raise StateError(f"damaged state: {error}") from error
