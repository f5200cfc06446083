"""Where a run stands, and which positions are this rank's: Cursor and Shard.

A cursor is the whole state of an endless run, in 24 bytes::

    bytes  0..8    seed       unsigned, little-endian
    bytes  8..16   epoch      unsigned, little-endian
    bytes 16..24   position   unsigned, little-endian; positions of this epoch already consumed, by all ranks together
"""

import os
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from penstock.argument import set_whole, shown, whole_number
from penstock.errors import StateError
from penstock.order.permutation import MAX_SEED

__all__ = ["ORDER_VERSION", "Cursor", "Shard"]

ORDER_VERSION = 1
"""Version of the arithmetic of all orders. The same version, seed, epoch and position always give the same id."""

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


LAUNCHER = ("RANK", "WORLD_SIZE")
"""What torchrun tells each process, and with it everything that is built on torchrun."""

MPI = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))
"""What Open MPI and MPICH tell each process."""

RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
"""Variables that are above 0 only where there are several processes."""

SIZES = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""Variables that are above 1 only where there are several processes."""

FIRST_RESERVED_STEP = 0xFFFFFFF0
"""SLURM's numbers of steps that ``srun`` did not start, such as that of a batch script, begin here."""


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
        """This process's rank and the number of ranks. The first of these that has an answer gives it:

        * ``torch.distributed`` or ``jax.distributed``, once the program has initialised it
        * RANK and WORLD_SIZE, as torchrun sets them
        * OMPI_COMM_WORLD_RANK and _SIZE, or PMI_RANK and PMI_SIZE: MPI
        * SLURM_PROCID and SLURM_STEP_NUM_TASKS (or SLURM_NTASKS), in a process that ``srun`` started
        * WORLD_SIZE, NODE_RANK and LOCAL_RANK, as Lightning sets them

        Rank 0 of 1 where there is no sign of a second process. ValueError where there is one but the rank cannot be told; call it
        after ``init_process_group`` then.
        """
        return cls(*(_of_groups() or _of_variables()))

    def run(self, start: int, stop: int) -> range:
        """This rank's positions within [start, stop), as a range that fits ``order.indices(epoch, r.start, r.stop, r.step)``."""
        start, stop = whole_number("start", start), whole_number("stop", stop)
        first = start + (self.rank - start) % self.world
        return range(min(first, stop), stop, self.world)


def _of_groups() -> tuple[int, int] | None:
    """Rank and world of a process group that the program has initialised. No framework is imported for that."""
    groups = [group for group in (_of_torch(), _of_jax()) if group is not None]
    several = {group for group in groups if group[1] > 1}
    if len(several) > 1:
        raise ValueError(
            f"torch.distributed says rank {groups[0][0]} of {groups[0][1]}, jax.distributed rank {groups[1][0]} of "
            f"{groups[1][1]}: pass shard=Shard(rank, world)"
        )
    return max(groups, key=lambda group: group[1], default=None)


def _of_torch() -> tuple[int, int] | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _of_jax() -> tuple[int, int] | None:
    distributed = getattr(sys.modules.get("jax"), "distributed", None)
    if distributed is None or not distributed.is_initialized():
        return None
    jax = sys.modules["jax"]
    return jax.process_index(), jax.process_count()


def _of_variables() -> tuple[int, int]:
    """Rank and world as a launcher says in the environment."""
    found = _pair(*LAUNCHER)
    if found is not None:
        return found
    others = [pair for pair in (*(_pair(*names) for names in MPI), _of_srun()) if pair is not None]
    if "WORLD_SIZE" not in os.environ:
        if others:
            return others[0]
    else:
        world = _number("WORLD_SIZE")
        found = next((pair for pair in others if pair[1] == world), None) or (_of_node(world) if world > 1 else None)
        if found is not None:
            return found
    if any(_exceeds(name, 0) for name in RANKS) or any(_exceeds(name, 1) for name in SIZES):
        seen = ", ".join(f"{name}={os.environ[name]}" for name in (*RANKS, *SIZES) if name in os.environ)
        raise ValueError(
            f"this is one of several processes, but its rank cannot be told from {seen}: call Shard.from_environment() after "
            "torch.distributed.init_process_group (in Lightning in a *_dataloader hook), or pass shard=Shard(rank, world)"
        )
    return 0, 1


def _of_srun() -> tuple[int, int] | None:
    """Rank and world in a task of ``srun``.

    The shell of a batch script has SLURM_PROCID=0 and the SLURM_NTASKS of the job, too, but is one process, whatever that says.
    """
    step = "SLURM_STEP_ID" if "SLURM_STEP_ID" in os.environ else "SLURM_STEPID"
    if not 0 <= _number(step, -1) < FIRST_RESERVED_STEP:
        return None
    return _pair("SLURM_PROCID", "SLURM_STEP_NUM_TASKS") or _pair("SLURM_PROCID", "SLURM_NTASKS")


def _of_node(world: int) -> tuple[int, int] | None:
    """Rank from that of the node and that within it. It needs the number of processes per node, but for the first node."""
    if "LOCAL_RANK" not in os.environ:
        return None
    local, per_node = _number("LOCAL_RANK"), _number("LOCAL_WORLD_SIZE", 0)
    node = _number("NODE_RANK", _number("GROUP_RANK", 0 if per_node == world else -1))
    if node < 0 or local < 0 or (node > 0 and per_node < 1) or (per_node > 0 and local >= per_node):
        return None
    if node * per_node + local >= world:
        return None
    return node * per_node + local, world


def _pair(rank: str, world: str) -> tuple[int, int] | None:
    """Rank and world where both variables are set."""
    if rank not in os.environ or world not in os.environ:
        return None
    found = _number(rank), _number(world)
    if not 0 <= found[0] < found[1]:
        raise ValueError(f"expected a rank below a number of processes, got {rank}={found[0]} and {world}={found[1]}")
    return found


def _exceeds(name: str, limit: int) -> bool:
    text = os.environ.get(name, "")
    return text.isdecimal() and int(text) > limit


def _number(name: str, default: int | None = None) -> int:
    text = os.environ.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise ValueError(f"expected a whole number in the variable {name}, got {text!r}") from None
