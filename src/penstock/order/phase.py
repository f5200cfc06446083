"""Phase and Curriculum: batches whose shape changes during a run, over one continuous line of data."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import accumulate
from numbers import Real

from penstock.argument import MAX_LENGTH, exact_fraction, set_whole, whole_number

__all__ = ["Curriculum", "Phase", "PhasePlace"]

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
