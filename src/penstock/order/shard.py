"""Shard: which positions of a global batch are this rank's."""

import os
import sys
from dataclasses import dataclass

from penstock.argument import set_whole, whole_number

__all__ = ["Shard"]


@dataclass(frozen=True)
class Shard:
    """Rank ``rank`` of ``world``: it takes the positions p with p mod world = rank.

    ::

        position         0  1  2  3  4  5  6  7 | 8  9 ...     (batch_size=8)
        Shard(0, 1)      0  1  2  3  4  5  6  7 | 8  9 ...
        Shard(0, 2)      0     2     4     6    | 8    ...
        Shard(1, 2)         1     3     5     7 |    9 ...
        Shard(3, 4)               3           7 |      ...

    Together the ranks hold every position once, whatever the world size, so a run may go on with another number of ranks.

    >>> from penstock.order import Shard
    >>> list(Shard(rank=1, world=2).run(0, 8))
    [1, 3, 5, 7]
    """

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        set_whole(self, "world", least=1)
        set_whole(self, "rank")
        if self.rank >= self.world:
            raise ValueError(f"rank must be in [0, {self.world}), got {self.rank}")

    @classmethod
    def from_environment(cls) -> "Shard":
        """This process's rank and the number of ranks, as torchrun (RANK, WORLD_SIZE), a started ``jax.distributed`` or SLURM
        (SLURM_PROCID, SLURM_NTASKS) say, in that order; rank 0 of 1 where nobody says anything.
        """
        for rank, world in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
            if rank == "SLURM_PROCID" and (found := _of_jax()) is not None:
                return cls(*found)
            if rank in os.environ and world in os.environ:
                try:
                    return cls(int(os.environ[rank]), int(os.environ[world]))
                except ValueError as error:
                    raise ValueError(
                        f"{rank}={os.environ[rank]!r} and {world}={os.environ[world]!r} name no rank: {error}"
                    ) from error
        return cls()

    def run(self, start: int, stop: int) -> range:
        """This rank's positions within [start, stop), as a range that fits ``order.indices(epoch, r.start, r.stop, r.step)``."""
        start, stop = whole_number("start", start), whole_number("stop", stop)
        first = start + (self.rank - start) % self.world
        return range(min(first, stop), stop, self.world)


def _of_jax() -> tuple[int, int] | None:
    """Rank and world of jax.distributed, if the program uses jax and has started it. jax is not imported for that."""
    distributed = getattr(sys.modules.get("jax"), "distributed", None)
    if distributed is None or not distributed.is_initialized():
        return None
    jax = sys.modules["jax"]
    return jax.process_index(), jax.process_count()
