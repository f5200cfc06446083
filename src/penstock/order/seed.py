"""Where randomness comes from: keys hashed from (seed, epoch, purpose, number)."""

from enum import IntEnum

from penstock import _core

__all__ = ["MAX_SEED", "Purpose", "derive_key", "derive_root"]

MAX_SEED = 2**64 - 1


class Purpose(IntEnum):
    """What a key is for. The numbers are part of the specification of the order and never change."""

    SHUFFLE = 1
    RANDOM = 2
    BLOCK_SEQUENCE = 3
    BLOCK_GROUP = 4
    MIXTURE = 5
    DESIGN = 6
    DESIGN_SEQUENCE = 7
    DESIGN_OFFSET = 8
    SUBSTITUTE = 9
    TRANSFORM = 10


def derive_root(seed: int, epoch: int, purpose: Purpose) -> int:
    """The key of a family of decisions; ``_core.absorb(root, number)`` is the key of one of them."""
    return _core.absorb(_core.absorb(_core.absorb(0, seed), epoch), purpose)


def derive_key(seed: int, epoch: int, purpose: Purpose, number: int = 0) -> int:
    """The key of one decision. (seed, epoch + 1) and (seed + 1, epoch) are unrelated."""
    return _core.derive_key(seed, epoch, purpose, number)
