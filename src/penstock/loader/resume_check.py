"""verify_resume: a run that is saved and resumed anywhere gives the batches of one that was never interrupted."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from penstock.argument import whole_number
from penstock.batch import fields_of
from penstock.errors import StateError, StateMismatchError

__all__ = ["Report", "verify_resume"]

MOST_STEPS = 200
BEYOND_EPOCH = 8
"""Batches beyond the first epoch, unless the caller says otherwise."""

SPREAD = 20
"""Places at which a run is saved, evenly spread, in addition to the first, the last and the ends of epochs."""

_END = object()


@dataclass(frozen=True)
class Report:
    """What was compared: a run of ``steps`` batches, resumed after each of ``points`` batches; ``batches`` comparisons in all."""

    steps: int
    points: tuple[int, ...]
    batches: int


def verify_resume(
    make_loader: Callable[[], Any],
    *,
    steps: int | None = None,
    points: Iterable[int] | None = None,
    digest: Callable[[Any], Any] | None = None,
) -> Report:
    """Save and resume a loader at many places, and compare every batch that comes afterwards with an uninterrupted run.

    ``make_loader()`` gives a fresh loader, of the same configuration every time. The run has ``steps`` batches (an epoch and a
    little more, at most 200, unless given) and is saved after each of ``points`` batches: as JSON, as the bytes of ``get_state``
    where there are any, and from one resumed run to the next. ``digest`` makes of a batch what is compared, for batches that are
    not dicts, lists and tuples of arrays. A difference raises StateMismatchError with the point, the step and the field.

    >>> import numpy as np, penstock as pen
    >>> from penstock.loader.resume_check import verify_resume
    >>> data = pen.open(np.arange(10), field="x").shuffle(seed=7)
    >>> verify_resume(lambda: pen.Loader(data, batch_size=4), points=[0, 2, 3]).steps
    11
    """
    run = _Run(make_loader, fields_of if digest is None else digest)
    run.record(None if steps is None else whole_number("steps", steps))
    chosen = run.choose_points() if points is None else run.check_points(points)
    for point in chosen:
        run.compare_from(point)
    run.compare_chain(chosen)
    return Report(len(run.expected), tuple(chosen), run.compared)


@dataclass
class _Run:
    """A run that was never interrupted, and comparisons with it."""

    make_loader: Callable[[], Any]
    digest: Callable[[Any], Any]
    expected: list[Any] = field(default_factory=list)
    epoch_ends: list[int] = field(default_factory=list)
    is_over: bool = False  # the run gives no more batches after the expected ones
    compared: int = 0

    def record(self, steps: int | None) -> None:
        """The uninterrupted run."""
        most = MOST_STEPS if steps is None else steps
        with _batches(self.make_loader(), self.epoch_ends) as batches:
            for batch in batches:
                if steps is None and self.epoch_ends:
                    most = min(MOST_STEPS, self.epoch_ends[0] + BEYOND_EPOCH)
                if len(self.expected) >= most:
                    return
                self.expected.append(self.digest(batch))
        self.is_over = True

    def choose_points(self) -> list[int]:
        """The first and the last place, the ends of epochs, and an even spread."""
        total = len(self.expected)
        spread = {total * number // SPREAD for number in range(SPREAD)}
        wanted = spread | {1, total - 1, total} | {end + offset for end in self.epoch_ends for offset in (-1, 0, 1)}
        return sorted(point for point in wanted if 0 <= point <= total)

    def check_points(self, points: Iterable[int]) -> list[int]:
        """Points as the user gave them."""
        return sorted({whole_number("points", point, most=len(self.expected)) for point in points})

    def compare_from(self, point: int) -> None:
        """Save after ``point`` batches, with others read ahead, and resume in fresh loaders."""
        loader = self.make_loader()
        with _batches(loader) as batches:
            self._follow(batches, 0, point, "not resumed at all")
            state = _as_json(loader.state_dict())
            self._resume(lambda fresh: fresh.load_state_dict(state), point, "load_state_dict")
            if hasattr(loader, "get_state") and hasattr(loader, "set_state"):
                packed = loader.get_state()
                self._resume(lambda fresh: fresh.set_state(packed), point, "set_state")

    def _resume(self, load: Callable[[Any], None], point: int, how: str) -> None:
        fresh = self.make_loader()
        load(fresh)
        with _batches(fresh) as batches:
            self._follow(batches, point, len(self.expected), f"resumed after {point} batches by {how}")
            if self.is_over and next(batches, _END) is not _END:
                raise StateMismatchError(
                    f"resumed after {point} batches by {how}: expected the end after {len(self.expected)} batches, got another one"
                )

    def compare_chain(self, points: Sequence[int]) -> None:
        """One run that is resumed at every point in turn."""
        state = None
        for point, following in pairwise(dict.fromkeys([0, *points, len(self.expected)])):
            loader = self.make_loader()
            if state is not None:
                loader.load_state_dict(state)
            with _batches(loader) as batches:
                self._follow(batches, point, following, f"resumed at every point, the last time after {point} batches")
                state = _as_json(loader.state_dict())

    def _follow(self, batches: Iterator[Any], first: int, end: int, told: str) -> None:
        """Take batches [first, end) and compare them."""
        for step in range(first, end):
            batch = next(batches, _END)
            if batch is _END:
                raise StateMismatchError(f"{told}, step {step}: expected a batch, got the end")
            self.compared += 1
            found = _difference(self.expected[step], self.digest(batch))
            if found is not None:
                raise StateMismatchError(f"{told}, step {step}: {found}")


@contextmanager
def _batches(loader: Any, ends: list[int] | None = None) -> Iterator[Iterator[Any]]:
    """Batches of a loader, epoch after epoch, until two of them have none; ``ends`` gets the steps at which epochs end."""
    current: list[Any] = []

    def run() -> Iterator[Any]:
        step, empty = 0, 0
        while empty < 2:
            current[:] = [iter(loader)]
            before = step
            for batch in current[0]:
                step += 1
                yield batch
            empty = empty + 1 if step == before else 0
            if ends is not None and step > before:
                ends.append(step)

    try:
        yield run()
    finally:
        for iterator in current:
            if hasattr(iterator, "close"):
                iterator.close()


def _as_json(state: Any) -> Any:
    try:
        return json.loads(json.dumps(state))
    except (TypeError, ValueError) as error:
        raise StateError(f"expected a state of plain JSON types: {error}") from error


def _difference(expected: Any, found: Any) -> str | None:
    """What differs first, in words."""
    if not all(isinstance(one, Mapping) for one in (expected, found)):
        return None if expected == found else f"the batch differs: expected {_short(expected)}, got {_short(found)}"
    for name in dict.fromkeys([*expected, *found]):
        if name not in found or name not in expected:
            return f"field {name!r}: expected {'it' if name in expected else 'none'}, got {'it' if name in found else 'none'}"
        if expected[name] != found[name]:
            return f"field {name!r} differs: expected {_short(expected[name])}, got {_short(found[name])}"
    return None


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
