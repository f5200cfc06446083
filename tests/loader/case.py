"""Random loaders of every kind, and what they must deliver, in plain lists."""

import math
import random
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tests.loader.model import TAILS, WORLDS, make_orders, naive_batches
from tests.stream.tokens import make_tokens, naive_line

import penstock as pen
from penstock.formats.array import ArraySource
from penstock.order import Mixture, Order, Phase, Shard, Shuffle
from penstock.order.mixture import STOP_POLICIES
from penstock.stream import RecordStream
from penstock.stream.stream import Stream

KINDS = ("records", "mixture", "sequences", "mixture of sequences")
TOKENS = ((7, 3), (50, 8), (97, 16), (256, 16), (300, 7), (1000, 64))
"""Token files: how many tokens, in pages of how many."""

Batch = list[Any]
"""What samples hold: a number, or a tuple of tokens; None where a batch is only filled up."""


@dataclass(frozen=True)
class Case:
    """A run: what is loaded, and the ranks that load it one after the other."""

    seed: int
    kind: str
    n: int
    order: str
    tail: str
    size: int
    seq_len: int
    stop: str
    unit: str
    staged: bool
    phases: tuple[Phase, ...] | None
    files: tuple[tuple[int, int], tuple[int, int]]
    legs: tuple["Leg", ...]

    @property
    def mixes(self) -> bool:
        """Whether several streams are mixed."""
        return "mixture" in self.kind

    @property
    def has_tokens(self) -> bool:
        """Whether samples are sequences."""
        return "sequences" in self.kind


@dataclass(frozen=True)
class Leg:
    """So many ranks, for so many steps, with so many threads; then the run is saved."""

    world: int
    steps: int
    threads: int
    prefetch: int | None
    transform: bool
    as_bytes: bool
    size: int | None  # another batch size than before


def make_case(seed: int) -> Case:
    """A case that follows from its number."""
    chance = random.Random(seed)
    worlds = [chance.choice(WORLDS) for _ in range(3)]
    unit_size = math.lcm(*worlds)
    size = unit_size * chance.choice((1, 1, 2, 3))
    kind = chance.choice(KINDS)
    phases = None
    if chance.random() < 0.35:
        lengths = (1, 2, 5, 8, 16) if "sequences" in kind else (1,)
        phases = tuple(
            Phase(chance.randrange(6), unit_size * chance.choice((1, 2)), chance.choice(lengths))
            for _ in range(chance.randrange(1, 4))
        )
    stop, unit, staged = chance.choice(STOP_POLICIES), chance.choice(("sample", "sample", "batch")), chance.random() < 0.3
    has_steps = "mixture" in kind and (unit == "batch" or staged)  # such a run keeps its batch size
    legs = []
    for number, world in enumerate(worlds):
        may_change = number and phases is None and not has_steps
        other = unit_size * chance.choice((1, 2, 4)) if may_change and chance.random() < 0.25 else None
        legs.append(
            Leg(
                world,
                chance.choice((0, 1, 1, 2, 3, 7)),
                chance.choice((0, 0, 1, 3)),
                chance.choice((0, 1, 300, 10_000, 64_000_000)),
                chance.random() < 0.3,
                other is None and chance.random() < 0.3,
                other,
            )
        )
    repeats = kind == "mixture of sequences" and stop in ("all_exhausted", "forever")  # what is repeated may not be empty
    return Case(
        seed,
        kind,
        chance.choice((1, 2, 3, 5, 8, 23, 60, 97)),
        chance.choice(("sequential", "shuffle", "shuffle", "blocks", "random", "sliding")),
        chance.choice(TAILS),
        size,
        chance.choice((1, 2, 5) if repeats else (1, 2, 5, 8, 10, 16)),
        stop,
        unit,
        staged,
        phases,
        (chance.choice(TOKENS), chance.choice(TOKENS)),
        tuple(legs),
    )


class Data:
    """Token files, written once."""

    def __init__(self, directory: Path) -> None:
        self._sources = {(count, page): make_tokens(directory, count, page, dtype="uint16") for count, page in TOKENS}

    def tokens(self, file: tuple[int, int]) -> Any:
        """One of them, as a source."""
        return self._sources[file]

    def close(self) -> None:
        """Close the files."""
        for source in self._sources.values():
            source.close()


def mixture_options(case: Case) -> dict[str, Any]:
    """What is said of a mixture."""
    weights: Any = {"a": 1, "b": 2}
    if case.staged and case.phases is None:
        weights = [(0, weights), (1, {"a": 3, "b": 1}), (3, {"a": 1, "b": 1})]
    return {"seed": case.seed, "weights": weights, "stop": case.stop, "unit": case.unit}


def make_stream(case: Case, data: Data) -> Stream:
    """What is loaded. Records hold numbers that differ between the streams of a mixture."""
    if case.has_tokens:
        streams: list[Stream] = [
            data.tokens(file).shuffle(seed=case.seed).sequences(case.seq_len, page=file[1]) for file in case.files
        ]
    else:
        streams = [
            RecordStream(ArraySource({"x": np.arange(low, low + n)}, threads=1), _order(case, n)) for low, n in _ranges(case)
        ]
    return pen.mix(dict(zip("ab", streams, strict=True)), **mixture_options(case)) if case.mixes else streams[0]


def _ranges(case: Case) -> list[tuple[int, int]]:
    return [(0, case.n), (case.n, 2 * case.n + 1)]


def _order(case: Case, n: int) -> Order:
    return _cached_order(n, case.seed, case.order)


@lru_cache(64)
def _cached_order(n: int, seed: int, kind: str) -> Order:
    return make_orders(n, seed)[kind]


@lru_cache(512)
def _ids(order: Order, epoch: int) -> list[int]:
    ids: list[int] = order.indices(epoch, 0, len(order)).tolist()
    return ids


def make_ranks(case: Case, stream: Stream, leg: Leg, size: int) -> list[pen.Loader]:
    """The loaders of a leg."""
    options: dict[str, Any] = {"phases": case.phases} if case.phases is not None else {"batch_size": size}
    if leg.transform:
        options["transform"] = _identity
    return [
        pen.Loader(stream, tail=case.tail, shard=Shard(rank, leg.world), threads=leg.threads, prefetch=leg.prefetch, **options)
        for rank in range(leg.world)
    ]


def _identity(batch: Any) -> Any:
    return batch


# What must come


def naive_run(case: Case, size: int, count: int, epoch: int = 0, position: int = 0) -> list[Batch]:
    """The batches of the whole job from a place on: so many, or as many as there are."""
    if case.phases is not None:
        return _naive_phases(case)
    if case.has_tokens and not case.mixes:
        return _naive_sequences(case, size, count, epoch, position)
    lengths = _mixture(case).length_of if case.mixes else lambda _: len(_order(case, case.n))
    batches = islice(
        naive_batches(lambda e: min(lengths(e), 5000 + position), size, case.tail, epoch=epoch, position=position), count
    )
    return [[None if cell is None else _sample(case, *cell) for cell in batch] for batch in batches]


def _naive_sequences(case: Case, size: int, count: int, epoch: int, position: int) -> list[Batch]:
    file, length = case.files[0], case.seq_len
    tokens = file[0]
    if case.tail == "wrap":
        first = epoch * tokens + position
        return [
            [_tokens(file, case.seed, first + (step * size + i) * length, length) for i in range(size)] for step in range(count)
        ]
    found: list[Batch] = []
    while len(found) < count:
        rest = [_tokens(file, case.seed, epoch * tokens + p, length) for p in range(position, tokens - length + 1, length)]
        batches: list[Batch] = [list(rest[low : low + size]) for low in range(0, len(rest), size)]
        if batches and len(batches[-1]) < size and case.tail == "drop":
            batches.pop()
        if batches and case.tail == "pad":
            batches[-1] += [None] * (size - len(batches[-1]))
        if not batches and position == 0:
            break
        found += batches
        epoch, position = epoch + 1, 0
    return found[:count]


@lru_cache(64)
def _mixture(case: Case) -> Mixture:
    stride = 1 if case.phases is not None else case.seq_len
    lengths = {
        name: (file[0] // stride if case.has_tokens else len(_order(case, n)))
        for name, file, (_, n) in zip("ab", case.files, _ranges(case), strict=True)
    }
    return Mixture(lengths, phases=case.phases, batch_size=case.size, tail=case.tail, **mixture_options(case))


@lru_cache(512)
def _choices(case: Case, epoch: int, first: int) -> list[tuple[int, int]]:
    """Data set and element at many positions."""
    mixture = _mixture(case)
    which, element = mixture.choose(epoch, first, min(mixture.length_of(epoch), first + 256))
    return list(zip(which.tolist(), element.tolist(), strict=True))


def _sample(case: Case, epoch: int, position: int, seq_len: int = 0) -> Any:
    """The sample at a position; ``seq_len`` where a phase says how long it is."""
    if not case.mixes:
        return _ids(_order(case, case.n), epoch)[position]
    which, element = _choices(case, epoch, position // 256 * 256)[position % 256]
    if not case.has_tokens:
        low, n = _ranges(case)[which]
        order = _order(case, n)
        turn, place = divmod(element, len(order))
        return low + _ids(order, turn)[place]
    file = case.files[which]
    if seq_len:
        return _tokens(file, case.seed, element, seq_len)
    turn, place = divmod(element, file[0] // case.seq_len)
    return _tokens(file, case.seed, turn * file[0] + place * case.seq_len, case.seq_len)


def _naive_phases(case: Case) -> list[Batch]:
    assert case.phases is not None
    found: list[Batch] = []
    sample = element = 0
    most = len(_mixture(case)) if case.mixes else math.inf
    for phase in case.phases:
        for _ in range(phase.steps or 0):
            if sample + phase.batch_size > most:
                return found
            if case.mixes:
                found.append([_sample(case, 0, sample + i, phase.seq_len) for i in range(phase.batch_size)])
            elif case.has_tokens:
                starts = [element + i * phase.seq_len for i in range(phase.batch_size)]
                found.append([_tokens(case.files[0], case.seed, start, phase.seq_len) for start in starts])
            else:
                length = len(_order(case, case.n))
                found.append([_sample(case, *divmod(sample + i, length)) for i in range(phase.batch_size)])
            sample += phase.batch_size
            element += phase.step_elements
    return found


def _tokens(file: tuple[int, int], seed: int, start: int, count: int) -> tuple[int, ...]:
    """Tokens of the endless line of a file."""
    found: list[int] = []
    while len(found) < count:
        epoch, place = divmod(start + len(found), file[0])
        found += _epoch_line(file, seed, epoch)[place : place + count - len(found)]
    return tuple(found)


@lru_cache(512)
def _epoch_line(file: tuple[int, int], seed: int, epoch: int) -> list[int]:
    count, page = file
    return naive_line(range(count), page, Shuffle(count // min(page, count), seed=seed), epoch)


def samples(case: Case, batch: Any) -> Batch:
    """What a delivered batch holds."""
    rows = [tuple(row) for row in batch["tokens"].tolist()] if case.has_tokens else batch["x"].tolist()
    valid = batch.get("valid", np.ones(len(rows), np.bool_))
    return [row if good else None for row, good in zip(rows, valid, strict=True)]
