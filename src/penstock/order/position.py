"""Where a run stands, which positions are this rank's, and which are a step's where the shape of batches changes during a run:
Cursor, Shard, Phase and Curriculum.

A cursor is the whole state of an endless run, in 24 bytes::

    bytes  0..8    seed       unsigned, little-endian
    bytes  8..16   epoch      unsigned, little-endian
    bytes 16..24   position   unsigned, little-endian; positions of this epoch already consumed, by all ranks together
"""

import os
import struct
import sys
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import accumulate, islice
from numbers import Real

from penstock.argument import MAX_LENGTH, exact_fraction, set_whole, shown, whole_number
from penstock.errors import StateError
from penstock.order.permutation import MAX_SEED

__all__ = ["ORDER_VERSION", "Curriculum", "Cursor", "Phase", "PhasePlace", "Shard"]

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
                "resume with the version of penstock that saved this state, or start a new run"
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

    Together the ranks have every position once, for any world size, so a run may continue with another number of ranks.

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
            f"this is one of several processes, but its rank cannot be determined from {seen}: call Shard.from_environment() after "
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


Weights = Mapping[str, float] | Sequence[float]


def copy_weights(weights: Weights | None) -> Weights | None:
    """A copy of weights that the caller cannot change; by name in one order, so that equal ones look equal."""
    if weights is None or isinstance(weights, Mapping):
        return None if weights is None else {name: weights[name] for name in sorted(weights, key=str)}
    if not isinstance(weights, Sequence):
        raise TypeError(f"weights must be a list or a dict, got {weights!r}")
    return tuple(weights)


@dataclass(frozen=True)
class Phase:
    """A stretch of training with batches of one shape: ``steps`` batches of ``batch_size`` samples of ``seq_len`` elements.

    Instead of ``steps`` the length may be given in ``epochs`` (a fraction is fine); steps are then rounded down to whole batches.
    ``weights`` replace those of a mixture while the phase lasts.

    >>> from penstock.order import Phase
    >>> Phase(epochs=0.5, batch_size=8, seq_len=128).num_steps(length=1_000_000)
    488
    """

    steps: int | None = None
    batch_size: int = 1
    seq_len: int = 1
    weights: Weights | None = None
    _: KW_ONLY
    epochs: float | None = None

    def __post_init__(self) -> None:
        set_whole(self, "batch_size", least=1)
        set_whole(self, "seq_len", least=1)
        object.__setattr__(self, "weights", copy_weights(self.weights))
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"a phase needs either steps or epochs, got steps={self.steps!r}, epochs={self.epochs!r}")
        if self.steps is not None:
            set_whole(self, "steps")
        elif not (isinstance(self.epochs, Real) and not isinstance(self.epochs, bool) and 0 <= self.epochs <= MAX_LENGTH):
            raise ValueError(f"epochs must be a finite number of at least 0, got {repr(self.epochs)[:40]}")

    @property
    def step_elements(self) -> int:
        """Elements in one batch."""
        return self.batch_size * self.seq_len

    def num_steps(self, length: int | None) -> int:
        """How many batches the phase has, if an epoch has ``length`` elements (needed for a phase given in epochs)."""
        if self.steps is not None:
            return self.steps
        if length is None or self.epochs is None:
            raise ValueError("a phase given in epochs needs the length of an epoch: pass length= in elements")
        return int(exact_fraction(self.epochs) * length / self.step_elements)


@dataclass(frozen=True)
class PhasePlace:
    """Where a step stands: ``step`` of phase number ``phase``; its first sample and first element on the line of the whole run.

    >>> from penstock.order import Curriculum, Phase
    >>> Curriculum([Phase(100, batch_size=8, seq_len=128), Phase(50, batch_size=4, seq_len=512)]).place(101)
    PhasePlace(phase=1, step=1, sample=804, element=104448)
    """

    phase: int
    step: int
    sample: int
    element: int


@dataclass(frozen=True)
class Curriculum:
    """Phases one after the other on one line: where the shape changes, the data goes on, and nothing repeats.

    >>> from penstock.order import Curriculum, Phase
    >>> plan = Curriculum([Phase(5, batch_size=4, seq_len=8), Phase(3, batch_size=2, seq_len=16)])
    >>> len(plan)
    8
    >>> plan.place(6)
    PhasePlace(phase=1, step=1, sample=22, element=192)
    """

    phases: Sequence[Phase]
    _: KW_ONLY
    length: int | None = None
    _steps: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _samples: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _elements: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        phases = tuple(self.phases)
        for phase in phases:
            if not isinstance(phase, Phase):
                raise TypeError(f"phases must be Phase objects, got {phase!r}")
        if self.length is not None:
            set_whole(self, "length")
        steps = [phase.num_steps(self.length) for phase in phases]
        pairs = list(zip(steps, phases, strict=True))
        object.__setattr__(self, "phases", phases)
        object.__setattr__(self, "_steps", tuple(accumulate(steps, initial=0)))
        object.__setattr__(self, "_samples", tuple(accumulate((n * phase.batch_size for n, phase in pairs), initial=0)))
        object.__setattr__(self, "_elements", tuple(accumulate((n * phase.step_elements for n, phase in pairs), initial=0)))
        if self._elements[-1] > MAX_LENGTH:
            raise ValueError(f"the phases consume {self._elements[-1]} elements, more than {MAX_LENGTH}")

    def __len__(self) -> int:
        return self._steps[-1]

    @property
    def num_samples(self) -> int:
        return self._samples[-1]

    @property
    def num_elements(self) -> int:
        return self._elements[-1]

    def steps_of(self, phase: int) -> range:
        if not 0 <= whole_number("phase", phase, least=-MAX_LENGTH) < len(self.phases):
            raise IndexError(f"phase must be in [0, {len(self.phases)}), got {phase}")
        return range(self._steps[phase], self._steps[phase + 1])

    def place(self, step: int) -> PhasePlace:
        """Where ``step`` stands; IndexError past the last one. Costs the same for every step."""
        step = whole_number("step", step, least=-MAX_LENGTH)
        if not 0 <= step < len(self):
            raise IndexError(f"step must be in [0, {len(self)}), got {step}")
        phase = bisect_right(self._steps, step) - 1
        within = step - self._steps[phase]
        shape = self.phases[phase]
        return PhasePlace(
            phase, within, self._samples[phase] + within * shape.batch_size, self._elements[phase] + within * shape.step_elements
        )

    def step_of(self, element: int) -> int:
        """The step that consumes an element of the line; IndexError past the last one."""
        element = whole_number("element", element, least=-MAX_LENGTH)
        if not 0 <= element < self.num_elements:
            raise IndexError(f"element must be in [0, {self.num_elements}), got {element}")
        phase = bisect_right(self._elements, element) - 1
        return self._steps[phase] + (element - self._elements[phase]) // self.phases[phase].step_elements
