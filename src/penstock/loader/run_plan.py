"""plan: what a run is going to see: epochs, tokens and repeats of every stream, and what it fetches. No record is read."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from penstock.argument import whole_number
from penstock.loader.loader import Loader
from penstock.loader.lookahead import forecast, windows_of
from penstock.loader.schedule import PhaseSchedule, Schedule
from penstock.order import Mixture
from penstock.stream import Stream
from penstock.stream.mixed import MixedStream

__all__ = ["RunPlan", "StreamPlan", "plan"]


@dataclass(frozen=True)
class StreamPlan:
    """What one stream gives in a run. ``length`` are its samples an epoch; ``exhausted_at`` is the step whose batch has the last
    sample of its first epoch, ``capped_at`` the one with the last sample that its cap allows; None if the run does not get there.
    ``repeated`` are the records or sequences that come more than k times (see :func:`plan`). ``tokens`` are the samples times the
    mean number of tokens, None where there are none. ``padding``, ``truncated``, ``documents`` describe packs: the share of
    padding, the share of tokens that are cut off or dropped, and documents per sequence.
    """

    name: str
    length: int
    samples: int
    share: float
    epochs: float
    repeated: int
    exhausted_at: int | None
    capped_at: int | None
    tokens: float | None
    token_share: float | None
    padding: float | None
    truncated: float | None
    documents: float | None


@dataclass(frozen=True)
class RunPlan:
    """What a run of a number of steps is going to see, on all ranks together; see :func:`plan`.

    ``bytes``, ``requests`` and ``peak_bytes`` are what this rank takes from object stores, and the most of it that is in memory at
    a time. ``batch_bytes`` are the bytes of the largest batch of this rank, fields of varying length apart.
    """

    steps: int
    samples: int
    epochs: int
    tokens: float | None
    seen_more_than: int
    streams: tuple[StreamPlan, ...]
    batch_bytes: int
    bytes: int
    requests: int
    peak_bytes: int


def plan(
    what: Loader | Stream,
    steps: int | None = None,
    *,
    batch_size: int | None = None,
    seen_more_than: int = 1,
    network: bool = True,
) -> RunPlan:
    """What the first ``steps`` of a loader see (all steps of the first epoch or of the phases unless given), computed without data.

    ``seen_more_than=k`` counts the samples of each stream that come more than k times. ``network=False`` leaves out what is fetched
    from object stores, for which all steps are walked through. A mixture in a mixture counts as one stream.

    >>> import numpy as np, penstock as pen
    >>> web, code = pen.open({"x": np.zeros(7000)}), pen.open({"x": np.ones(1000)})
    >>> streams = {"web": web.shuffle(seed=1), "code": code.shuffle(seed=2)}
    >>> mixed = pen.mix(streams, weights={"web": 0.5, "code": 0.5}, seed=5, stop="forever")
    >>> found = pen.plan(mixed, steps=100, batch_size=50)
    >>> [(one.name, one.samples, one.epochs, one.exhausted_at, one.repeated) for one in found.streams]
    [('web', 2509, 0.35842857142857143, None, 0), ('code', 2491, 2.491, 40, 1000)]
    """
    loader = what if isinstance(what, Loader) else Loader(what, batch_size)
    if steps is None:
        if loader.phases is None:
            len(loader.stream)  # which says so if there is none
        steps = loader.schedule.first_step(1)
    steps, total = whole_number("steps", steps), loader.schedule.total
    steps = steps if total is None else min(steps, total)
    found = _streams(loader, steps, whole_number("seen_more_than", seen_more_than))
    tokens = [one.tokens for one in found]
    taken = forecast(loader.work, loader.schedule, range(steps)) if network and windows_of(loader.stream) else None
    return RunPlan(
        steps,
        sum(one.samples for one in found),
        loader.schedule.place(steps - 1).epoch + 1 if steps else 0,
        None if None in tokens else sum(float(one) for one in tokens if one is not None),
        seen_more_than,
        found,
        _batch_bytes(loader),
        taken.bytes if taken else 0,
        taken.requests if taken else 0,
        taken.peak_bytes if taken else 0,
    )


def _batch_bytes(loader: Loader) -> int:
    size = max((count for count, _ in loader.schedule.shapes), default=0) // loader.shard.world
    return size * sum(field.stride for field in loader.stream.schema.values() if field.is_fixed)


def _streams(loader: Loader, steps: int, times: int) -> tuple[StreamPlan, ...]:
    stream, schedule = loader.stream, loader.schedule
    if not stream.is_mixture:
        count = _delivered(schedule, steps)
        tokens = None if _mean(stream, None) is None else float(_mean(stream, None)) * count
        last = _step_with(schedule, stream.num_samples - 1, steps) if stream.num_samples else None
        return (_described("data", stream, count, count, times, last, None, tokens),)
    mixed = cast(MixedStream, stream)
    mixture = mixed.mixture
    counts = _drawn(schedule, mixture, steps)
    parts = dict(zip(mixture.names, mixed.streams, strict=True))
    means = [_mean(part, mixed.by) for part in parts.values()]
    tokens = None if None in means else sum(float(mean or 0) * count for mean, count in zip(means, counts, strict=True))
    found = []
    for k, (name, part) in enumerate(parts.items()):
        length, cap = mixture.lengths[k], mixture.caps[k]
        unit = 1 if loader.phases is None else max(1, length // max(1, part.num_samples))
        ends = [None if number is None else _step_of_number(schedule, mixture, k, number, steps) for number in (length, cap)]
        samples = counts[k] // unit
        found.append(_described(name, part, samples, sum(counts) // unit, times, ends[0], ends[1], tokens))
    return tuple(found)


def _described(
    name: str, stream: Stream, samples: int, of: int, times: int, exhausted: int | None, capped: int | None, tokens: float | None
) -> StreamPlan:
    length, mean = stream.num_samples, _mean(stream, None)
    own = None if mean is None else float(mean) * samples
    facts = stream.packing_facts()
    return StreamPlan(
        name,
        length,
        samples,
        samples / max(1, of),
        samples / max(1, length),
        min(length, max(0, samples - times * length)),
        exhausted,
        capped,
        own,
        None if own is None or not tokens else own / tokens,
        facts.get("padding"),
        facts.get("truncated"),
        facts.get("documents"),
    )


def _mean(stream: Stream, by: str | None) -> Any:
    try:
        return stream.mean_tokens(None if by in (None, "samples", "tokens") else by)
    except (TypeError, KeyError):
        return None


def _delivered(schedule: Schedule, steps: int) -> int:
    """Samples of the first steps, those apart that only fill a batch up."""
    if steps == 0:
        return 0
    if isinstance(schedule, PhaseSchedule):
        last = schedule.curriculum.place(steps - 1)
        return last.sample + schedule.curriculum.phases[last.phase].batch_size
    epoch, position = schedule.end(steps)
    stride = schedule.stream.stride
    before = sum(_in_epoch(schedule, one) for one in range(epoch))
    return before + position // stride


def _in_epoch(schedule: Any, epoch: int) -> int:
    """Samples of an epoch that come."""
    samples = int(schedule.axis_of(epoch) // schedule.stream.stride)
    size = int(schedule.batch_size)
    return samples // size * size if schedule.tail == "drop" else samples


def _drawn(schedule: Schedule, mixture: Mixture, steps: int) -> Sequence[int]:
    """Elements that each stream of a mixture gives in the first steps."""
    epoch, position = schedule.end(steps) if steps else (0, 0)
    counts = list(mixture.num_given(epoch, position)) if position else [0] * len(mixture.names)
    if getattr(schedule, "tail", "keep") != "drop":
        return [had + now for had, now in zip(mixture.given_before(epoch), counts, strict=True)]
    for one in range(epoch):  # without what was dropped at its end
        here = mixture.num_given(one, _in_epoch(schedule, one))
        counts = [had + now for had, now in zip(counts, here, strict=True)]
    return counts


def _step_of_number(schedule: Schedule, mixture: Mixture, which: int, number: int, steps: int) -> int | None:
    """The step in which a stream gives its element number ``number``, counted from 1 as they come; None if the run ends before."""
    if number == 0:
        return None
    end = schedule.end(steps)[0] + 1 if steps else 0
    epoch = bisect_left(range(end), number, key=lambda one: mixture.given_before(one + 1)[which])
    if epoch >= end:
        return None
    position = mixture.position_of_number(epoch, which, number - 1 - mixture.given_before(epoch)[which])
    return None if position is None else _step_at(schedule, epoch, position, steps)


def _step_at(schedule: Schedule, epoch: int, position: int, steps: int) -> int | None:
    """The step whose batch has a position, or the next one if it is dropped; None behind the last."""
    step = bisect_left(range(steps), (epoch, position), key=lambda one: _last_of(schedule, one))
    return step if step < steps else None


def _last_of(schedule: Schedule, step: int) -> tuple[int, int]:
    """The last position of a step's batch, of all ranks."""
    place = schedule.place(step)
    if place.next_epoch > place.epoch and place.next_position == 0:
        return place.next_epoch - 1, 1 << 63
    return place.next_epoch, place.next_position - 1


def _step_with(schedule: Schedule, sample: int, steps: int) -> int | None:
    """The step with a sample of the first epoch of a stream that is no mixture."""
    return _step_at(schedule, 0, sample * schedule.stream.stride, steps)
