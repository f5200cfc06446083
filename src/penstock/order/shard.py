"""Shard: which positions of a global batch are this rank's."""

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
    """

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        set_whole(self, "world", least=1)
        set_whole(self, "rank")
        if self.rank >= self.world:
            raise ValueError(f"rank must be in [0, {self.world}), got {self.rank}")

    def run(self, start: int, stop: int) -> range:
        """This rank's positions within [start, stop), as a range that fits ``order.indices(epoch, r.start, r.stop, r.step)``."""
        start, stop = whole_number("start", start), whole_number("stop", stop)
        first = start + (self.rank - start) % self.world
        return range(min(first, stop), stop, self.world)
