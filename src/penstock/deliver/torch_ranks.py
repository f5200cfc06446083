"""Ranks of torch: a loader that gives every rank the same data is warned about, and one that is divided twice is refused.

accelerate and Lightning divide the batches of a torch DataLoader among the ranks by wrapping its sampler or dataset. The wrapper
does not announce itself, but it calls what it wraps: so the call stack is searched for one when an iteration begins.
"""

import sys
import warnings
from types import FrameType
from typing import Any

import torch.distributed as dist

from penstock.order import Shard

__all__ = ["UnshardedWarning", "check_ranks", "refuse_second_division"]

LIGHTNING = "pass use_distributed_sampler=False to the Trainer"
ACCELERATE = "leave the DataLoader out of accelerator.prepare, or use penstock.deliver.torch.DataLoader"
DIVIDERS = {
    "BatchSamplerShard": ACCELERATE,
    "IterableDatasetShard": ACCELERATE,
    "DataLoaderDispatcher": ACCELERATE,
    "DistributedSamplerWrapper": LIGHTNING,
    "UnrepeatedDistributedSamplerWrapper": LIGHTNING,
}
"""Classes that give each rank a part of what they wrap, and how else to keep them from it."""


class UnshardedWarning(UserWarning):
    """Several ranks of ``torch.distributed``, and a loader without a shard: every rank gets every record."""


def check_ranks(shard: Shard, *, is_evaluation: bool = False) -> None:
    """Warn if every rank would get the same records, ValueError if the ranks' parts would be divided once more.

    An evaluation may want all records on every rank, so it is not warned about.
    """
    if shard.world > 1:
        refuse_second_division(shard)
    elif not is_evaluation and num_ranks() > 1 and _divider() is None:
        warnings.warn(
            f"torch.distributed has {num_ranks()} ranks and this loader no shard, so every rank gets the same records: pass "
            "shard=penstock.Shard.from_environment(), or ignore penstock.deliver.torch.UnshardedWarning if that is meant",
            UnshardedWarning,
            stacklevel=3,
        )


def refuse_second_division(shard: Shard) -> None:
    """ValueError if the caller's callers divide what this shard has divided already."""
    divider = _divider() if shard.world > 1 else None
    if divider is not None:
        raise ValueError(
            f"the records are divided twice, by shard={shard} and by {type(divider).__module__}.{type(divider).__name__}, so most "
            f"of them would never be seen: leave shard out, or {DIVIDERS[type(divider).__name__]}"
        )


def num_ranks() -> int:
    """Ranks of the process group; 1 without one."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _divider() -> Any:
    """The innermost wrapper on the call stack that divides among several ranks; None without one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner, _, method = frame.f_code.co_qualname.partition(".")
        if method and owner in DIVIDERS and (wrapper := frame.f_locals.get("self")) is not None and _parts(wrapper) > 1:
            return wrapper
        frame = frame.f_back
    return None


def _parts(wrapper: Any) -> int:
    counts = (wrapper, "num_processes"), (wrapper, "num_replicas"), (getattr(wrapper, "state", None), "num_processes")
    return next((int(getattr(one, name)) for one, name in counts if getattr(one, name, None) is not None), 1)
