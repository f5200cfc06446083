"""plan: what a run is going to see: epochs, tokens and repeats of every stream, and what it fetches. No record is read."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, cast

import numpy as np

from penstock.argument import IntArray, whole_number
from penstock.loader.loader import Loader
from penstock.loader.lookahead import forecast, windows_of
from penstock.loader.schedule import PhaseSchedule, Schedule
from penstock.order import InvertibleOrder, Mixture, Random, Sliding, Weighted
from penstock.stream import Stream
from penstock.stream.mixed import MixedStream

__all__ = ["RunPlan", "StreamPlan", "plan"]


MOST_GROUPS = 64
"""Groups of documents that are planned to see how many documents are cut, over all streams."""
NOTHING: IntArray = np.empty(0, np.int64)
MOST_EPOCHS = 10_000
"""Epochs with a dropped end in which it is counted what comes of each stream; of more, as many as those say."""
MOST_DROPPED = 1 << 22
"""Samples that are dropped at the ends of epochs, of which it is looked up which ones they are."""


@dataclass(frozen=True)
class StreamPlan:
    """What one stream gives in a run. ``length`` are its samples an epoch; ``exhausted_at`` is the step whose batch has the last
    sample of its first epoch, ``capped_at`` the one with the last sample that its cap allows; None if the run does not get there.
    ``repeated`` are the records that come more than k times (see :func:`plan`), bans apart; None where they are drawn with
    replacement, and where ``tail="drop"`` leaves out more than four million samples; of sequences, about as many as the epochs say.
    Where it cuts more than 10,000 equal epochs of a mixture, ``samples`` are extrapolated from as many.
    ``tokens`` are the samples times the mean number of tokens, or of elements of the field that a mixture goes by; None where there
    are none. Of packs: ``padding`` is the share of padding (the padding ratio), ``cut`` that of documents that are not in one
    sequence as a whole (the truncation ratio; measured in some groups of documents), ``truncated`` that of tokens that never come,
    and ``documents`` how many there are per sequence (the concatenation ratio).
    """

    name: str
    length: int
    samples: int
    share: float
    epochs: float
    repeated: int | None
    exhausted_at: int | None
    capped_at: int | None
    tokens: float | None
    token_share: float | None
    padding: float | None
    truncated: float | None
    cut: float | None
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
    if isinstance(what, Loader) and batch_size is not None:
        raise ValueError(f"the loader has a batch size of its own: leave out batch_size={batch_size}")
    loader = what if isinstance(what, Loader) else Loader(what, batch_size)
    if steps is None:
        if loader.stream.endless_epoch == 0:
            raise TypeError("an epoch of this mixture never ends: pass steps=")
        steps = loader.schedule.first_step(1)
    steps, total = whole_number("steps", steps), loader.schedule.total
    steps = steps if total is None else min(steps, total)
    found = _streams(loader, steps, whole_number("seen_more_than", seen_more_than))
    tokens = [one.tokens for one in found]
    taken = forecast(loader.work, loader.schedule, range(steps)) if network and windows_of(loader.stream) else None
    return RunPlan(
        steps,
        _delivered(loader.schedule, steps),
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


@dataclass(frozen=True)
class _Seen:
    """What a run sees of a stream: samples, elements (tokens of sequences, otherwise samples), tokens, and records that come more
    often than a number of times.
    """

    samples: int
    elements: int
    tokens: float | None
    repeated: int | None


def _streams(loader: Loader, steps: int, times: int) -> tuple[StreamPlan, ...]:
    stream, schedule = loader.stream, loader.schedule
    if not stream.is_mixture:
        return (_of_one(loader, steps, times),)
    mixed = cast(MixedStream, stream)
    mixture = mixed.mixture
    seen = _of_mixture(loader, mixed, steps, times)
    tokens = None if any(one.tokens is None for one in seen) else sum(one.tokens or 0.0 for one in seen)
    samples = sum(one.samples for one in seen)
    given, caps = _given(schedule, mixture, steps), mixture.caps_at(steps)
    unit = 1 if mixture.stop == "all_exhausted_without_replacement" or mixture.unit == "sample" else mixture.batch_size
    if isinstance(schedule, PhaseSchedule) and steps:
        phase = schedule.curriculum.phases[schedule.curriculum.place(steps - 1).phase]
        unit = phase.step_elements if mixture.unit == "batch" else phase.seq_len
    found = []
    for k, (name, part) in enumerate(zip(mixture.names, mixed.streams, strict=True)):
        cap = caps[k]
        is_capped = cap is not None and given[k] > 0 and cap - given[k] < unit
        ends = [
            None if number is None else _step_of_number(schedule, mixture, k, number, steps)
            for number in (mixture.lengths[k], given[k] if is_capped else None)
        ]
        groups = max(1, MOST_GROUPS // len(mixture.names))
        found.append(_described(name, part, seen[k], (samples, tokens), ends, mixture.lengths[k], groups))
    return tuple(found)


def _of_one(loader: Loader, steps: int, times: int) -> StreamPlan:
    stream, schedule = loader.stream, loader.schedule
    samples, length = _delivered(schedule, steps), stream.num_samples
    mean = _mean(stream, None)
    if not isinstance(schedule, PhaseSchedule) or not stream.has_sequences:
        dropped, end, repeated = _dropped(schedule, steps), samples, None
        if dropped is not None:
            missing = np.concatenate([NOTHING, *(epoch * length + np.arange(run.start, run.stop) for epoch, run in dropped)])
            end = samples + missing.size
            repeated = _repeated(stream, length, end, missing, times)
        seen = _Seen(samples, samples, None if mean is None else float(mean) * samples, repeated)
        last = _step_at(schedule, 0, (length - 1) * stream.stride, steps) if length else None
        return _described("data", stream, seen, (samples, seen.tokens), [last, None], length)
    cut = [(count, stream.sized(size)) for count, size in _by_phase(schedule, steps)]
    if stream.counts_samples:  # packs: other sequences in every phase
        tokens = sum(float(_mean(sized, None)) * count for count, sized in cut)
        epochs = sum(Fraction(count, max(1, sized.num_samples)) for count, sized in cut)
        axis, last = max(1, length), None
        elements = int(epochs * axis)
    else:
        axis, elements = stream.axis, sum(count * sized.stride for count, sized in cut)
        tokens, last = float(elements), _step_at(schedule, 0, axis - 1, steps)
    seen = _Seen(samples, elements, tokens, _scaled(elements, axis, length, times))
    return _described("data", stream, seen, (samples, tokens), [last, None], axis)


def _by_phase(schedule: PhaseSchedule, steps: int) -> list[tuple[int, int]]:
    """Samples, and the length of each, of the phases that the first steps are in."""
    curriculum = schedule.curriculum
    parts = [(curriculum.steps_of(number), phase) for number, phase in enumerate(curriculum.phases)]
    return [(len(range(run.start, min(run.stop, steps))) * phase.batch_size, phase.seq_len) for run, phase in parts]


def _of_mixture(loader: Loader, mixed: MixedStream, steps: int, times: int) -> list[_Seen]:
    schedule, mixture = loader.schedule, mixed.mixture
    counts = _drawn(schedule, mixture, steps)
    means = [_mean(part, mixed.by) for part in mixed.streams]
    parts = list(zip(mixed.streams, counts, means, strict=True))
    if isinstance(schedule, PhaseSchedule) and mixed.has_sequences:
        samples, first = [0] * len(counts), 0
        for count, size in _by_phase(schedule, steps):
            low, high = (mixture.num_given(0, position) for position in (first, first + count))
            samples = [had + (end - begin) // size for had, begin, end in zip(samples, low, high, strict=True)]
            first += count
        return [
            _Seen(
                samples[k],
                count,
                None if mean is None else float(mean * count / part.stride),
                _scaled(count, mixture.lengths[k], part.num_samples, times),
            )
            for k, (part, count, mean) in enumerate(parts)
        ]
    dropped = _dropped(schedule, steps)
    holes = mixture.holes(*schedule.end(steps)) if steps else [(0, NOTHING) for _ in counts]
    if dropped:
        choices = [mixture.choose(epoch, run.start, run.stop) for epoch, run in dropped]
        which, element = (np.concatenate([choice[k] for choice in choices]) for k in range(2))
        holes = [(end, np.concatenate([missing, element[which == k]])) for k, (end, missing) in enumerate(holes)]
    return [
        _Seen(
            count,
            count,
            None if mean is None else float(mean) * count,
            None if dropped is None else _repeated(part, part.num_samples, *holes[k], times),
        )
        for k, (part, count, mean) in enumerate(parts)
    ]


def _dropped(schedule: Schedule, steps: int) -> list[tuple[int, range]] | None:
    """Of every epoch before the end, the samples that tail="drop" leaves out; None if they are too many to look at."""
    if steps == 0 or isinstance(schedule, PhaseSchedule) or schedule.tail != "drop":
        return []
    end, stride = schedule.end(steps)[0], schedule.stream.stride
    runs = [
        (alike, range(_in_epoch(schedule, alike.start), schedule.axis_of(alike.start) // stride)) for alike in _alike(schedule, end)
    ]
    if sum(len(alike) * len(run) for alike, run in runs) > MOST_DROPPED:
        return None
    return [(epoch, run) for alike, run in runs if run for epoch in alike]


def _scaled(elements: int, axis: int, length: int, times: int) -> int:
    """Sequences that come more often than a number of times, as the epochs say."""
    return min(length, max(0, elements - times * axis) * length // max(1, axis))


def _repeated(stream: Stream, length: int, end: int, missing: IntArray, times: int) -> int | None:
    """Records of which more than ``times`` elements are among the first ``end`` ones of a stream, those that are missing apart."""
    order = getattr(stream, "order", None) if stream.has_records else None
    if isinstance(order, Random | Weighted | Sliding):
        return None
    if length == 0:
        return 0
    if order is None:  # of sequences it is not known which are alike
        end, missing = end - missing.size, missing[:0]
    epoch, rest = divmod(end, length)
    count = length if epoch > times else rest if epoch == times else 0
    if missing.size == 0:
        return count
    missing = np.sort(missing)
    records = missing % length
    if isinstance(order, InvertibleOrder):
        edges = np.flatnonzero(np.diff(missing // length)) + 1
        by_epoch = np.split(missing, edges)
        records = np.concatenate([order.at(int(own[0]) // length, own % length) for own in by_epoch])
    records, fewer = np.unique(records, return_counts=True)
    places = order.positions(epoch, records) if isinstance(order, InvertibleOrder) else records
    full = epoch + (places < rest)
    return count - int(np.count_nonzero((full > times) & (full - fewer <= times)))


def _described(
    name: str,
    stream: Stream,
    seen: _Seen,
    of: tuple[int, float | None],
    ends: Sequence[int | None],
    axis: int,
    groups: int = MOST_GROUPS,
) -> StreamPlan:
    facts, (samples, tokens) = stream.packing_facts(groups), of
    return StreamPlan(
        name,
        stream.num_samples,
        seen.samples,
        seen.samples / max(1, samples),
        seen.elements / max(1, axis),
        seen.repeated,
        ends[0],
        ends[1],
        seen.tokens,
        None if seen.tokens is None or not tokens else seen.tokens / tokens,
        facts.get("padding"),
        facts.get("truncated"),
        facts.get("cut"),
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
    before = sum(len(alike) * _in_epoch(schedule, alike.start) for alike in _alike(schedule, epoch))
    return before + position // schedule.stream.stride


def _alike(schedule: Schedule, end: int) -> list[range]:
    """The epochs before one, in runs of the same length."""
    firsts = [first for first, _ in schedule.stream.axes if first < end]
    return [range(low, high) for low, high in pairwise([*firsts, end])]


def _in_epoch(schedule: Any, epoch: int) -> int:
    """Samples of an epoch that come."""
    samples = int(schedule.axis_of(epoch) // schedule.stream.stride)
    size = int(schedule.batch_size)
    return samples // size * size if schedule.tail == "drop" else samples


def _given(schedule: Schedule, mixture: Mixture, steps: int) -> list[int]:
    """Elements that each stream of a mixture gives in the first steps, with those that are dropped at the ends of epochs."""
    epoch, position = schedule.end(steps) if steps else (0, 0)
    counts = mixture.num_given(epoch, position) if position else [0] * len(mixture.names)
    return [had + now for had, now in zip(mixture.given_before(epoch), counts, strict=True)]


def _drawn(schedule: Schedule, mixture: Mixture, steps: int) -> Sequence[int]:
    """The same without what is dropped."""
    if getattr(schedule, "tail", "keep") != "drop":
        return _given(schedule, mixture, steps)
    epoch, position = schedule.end(steps) if steps else (0, 0)
    counts = list(mixture.num_given(epoch, position)) if position else [0] * len(mixture.names)
    for alike in _alike(schedule, epoch):
        full, looked_at = _in_epoch(schedule, alike.start), alike[:MOST_EPOCHS]
        here = np.sum([mixture.num_given(one, full) for one in looked_at], axis=0, dtype=object)
        counts = [had + int(now) * len(alike) // len(looked_at) for had, now in zip(counts, here, strict=True)]
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
