"""Where randomness comes from: keys hashed from (seed, epoch, purpose, number)."""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from penstock import _core

__all__ = ["MAX_SEED", "Purpose", "absorb_all", "derive_key", "derive_root"]

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


def absorb_all(root: int, words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """``_core.absorb(root, word)`` of every word, on arrays."""
    z = (np.uint64(root) ^ words) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)), np.uint64)


def derive_key(seed: int, epoch: int, purpose: Purpose, number: int = 0) -> int:
    """The key of one decision. (seed, epoch + 1) and (seed + 1, epoch) are unrelated."""
    return _core.derive_key(seed, epoch, purpose, number)
