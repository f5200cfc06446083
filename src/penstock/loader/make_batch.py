"""Work: from a place in the schedule to a finished batch, by any thread or process, always with the same result."""

import inspect
import pickle
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, as_positions
from penstock.batch import Batch, Outputs
from penstock.errors import BatchError
from penstock.interrupt import exposed
from penstock.loader.schedule import Place, Span
from penstock.order import Balance, Shard
from penstock.order.balance import deal, room_of_slots
from penstock.order.permutation import Purpose, absorb_all, derive_root
from penstock.stream import Stream
from penstock.stream.cost import Costing
from penstock.stream.pack import flatten_pack
from penstock.stream.picks import Picks, ids_of, join, sources_of
from penstock.stream.stream import Unreadable

__all__ = ["Dealing", "Info", "Work", "make_elsewhere", "pack", "seed_for"]

MOST_ROUNDS = 100

SOURCE = "_source"
"""Behind the name of the ids: the field with the number of each sample's stream in a mixture."""

MOST_DEALT = 64
"""Batches whose dealing is kept: prefetch and the engine ask for the same."""

VALID = "valid"
"""The field that says which samples of a padded batch are real."""


def seed_for(seed: int, epoch: int, ids: IntArray) -> npt.NDArray[np.uint64]:
    """A seed for each record, different in every epoch: what a random transform of the record should start from."""
    root = derive_root(seed, epoch, Purpose.TRANSFORM)
    return absorb_all(root, np.asarray(ids, np.int64).astype(np.uint64))


@dataclass(frozen=True)
class Info:
    """What a transform may ask about its batch."""

    step: int
    epoch: int
    ids: IntArray
    seed: int = field(repr=False)

    @cached_property
    def seeds(self) -> npt.NDArray[np.uint64]:
        """A seed for each sample, the same in every run."""
        return seed_for(self.seed, self.epoch, self.ids)


@dataclass(frozen=True, eq=False)
class Dealt:
    """The samples of a batch, dealt to ranks. Samples are numbers within the batch; ``order`` has those of the first slot first."""

    order: IntArray
    room: IntArray
    costs: npt.NDArray[Any]

    def of_rank(self, shard: Shard) -> IntArray:
        """The samples of a rank, in the order of its batch."""
        ends = np.cumsum(self.room.reshape(shard.world, -1).sum(axis=1))
        return self.order[ends[shard.rank] - self.room.reshape(shard.world, -1)[shard.rank].sum() : ends[shard.rank]]

    @property
    def slots(self) -> IntArray:
        """The slot of each sample."""
        slots = np.empty(self.order.size, np.int64)
        slots[self.order] = np.repeat(np.arange(self.room.size), self.room)
        return slots


class _Recent:
    """What was dealt for the last places, a slot for each. Safe to use from several threads; empty in a pickled copy."""

    def __init__(self) -> None:
        self._kept: list[tuple[Place, Dealt, Picks] | None] = [None] * MOST_DEALT

    def get(self, place: Place) -> tuple[Dealt, Picks] | None:
        kept = self._kept[place.step % MOST_DEALT]
        return kept[1:] if kept is not None and kept[0] == place else None

    def put(self, place: Place, dealt: Dealt, picks: Picks) -> None:
        self._kept[place.step % MOST_DEALT] = place, dealt, picks

    def __reduce__(self) -> tuple[Any, ...]:
        return _Recent, ()


@dataclass(frozen=True, eq=False)
class Dealing:
    """How batches are dealt to ranks by what samples cost, and which rank this is."""

    balance: Balance
    shard: Shard
    costing: Costing
    recent: _Recent = field(default_factory=_Recent, repr=False)

    def of_stream(self) -> "Dealing":
        """The same of the same data in another order."""
        return Dealing(self.balance, self.shard, self.costing)

    def deal(self, place: Place, picks: Picks) -> Dealt:
        """Deal all samples of a batch."""
        assert place.whole is not None
        costs, micro = self.costing.of(picks), self.balance.micro_batches
        room = room_of_slots(len(picks), place.whole.batch_size, self.shard.world, micro)
        return Dealt(deal(costs, room, micro), room, costs)


Transform = Callable[..., Any]
OnError = str | Callable[[BaseException, IntArray], None]


@dataclass(frozen=True)
class Work:
    """How batches are made: the stream, what is done with a batch, and what happens when a record cannot be read."""

    stream: Stream
    transform: Transform | None = None
    ids: str | None = None
    on_error: OnError = "raise"
    pads: bool = False
    out: tuple[Outputs, ...] = ()
    dealing: Dealing | None = None
    is_flat: bool = False
    _sized: dict[int, Stream] = field(default_factory=dict, repr=False, compare=False)
    _skipped: list[int] = field(default_factory=list, repr=False, compare=False)

    @property
    def finishes(self) -> bool:
        """Whether :meth:`finish` does anything, transforms apart."""
        return self.ids is not None or self.pads or self.is_flat

    def prepare(self) -> None:
        """Read the lengths and costs that samples are arranged by. Prefetch asks for them with the memory of remote data locked."""
        if self.dealing is not None:
            self.dealing.costing.prepare()
        for part in self.stream.parts:
            part.prepare()

    def __post_init__(self) -> None:
        if self.on_error != "raise" and not self.stream.has_records:
            raise ValueError("on_error: a sequence of tokens cannot be replaced by another; use on_error='raise'")

    @property
    def skipped(self) -> int:
        """How many samples could not be read and were replaced, here."""
        return sum(self._skipped)

    def of_stream(self, stream: Stream) -> "Work":
        """The same with another stream."""
        dealing = None if self.dealing is None else self.dealing.of_stream()
        return replace(self, stream=stream, dealing=dealing, _sized={})

    def stream_for(self, place: Place) -> Stream:
        """The stream, cut into samples of the length that the phase says."""
        if place.seq_len is None:
            return self.stream
        if place.seq_len not in self._sized:
            self._sized[place.seq_len] = self.stream.sized(place.seq_len)
        return self._sized[place.seq_len]

    def picks(self, place: Place) -> Picks:
        """What is in the batch; nothing is read."""
        try:
            if place.whole is None:
                return self._located(place, place.spans)
            kept = self._dealt_picks(place)[1]
            return kept.take(np.arange(len(kept)))  # a copy: the caller may change its arrays
        except Exception as error:
            raise BatchError(f"step {place.step}, epoch {place.epoch}: {type(error).__name__}: {error}") from error

    def _located(self, place: Place, spans: Sequence[Span]) -> Picks:
        stream = self.stream_for(place)
        if not spans:
            return stream.locate(place.epoch, range(0), place.step)
        found: Picks = join([stream.locate(span.epoch, span.run, place.step) for span in spans])
        return found

    def dealt(self, place: Place) -> Dealt:
        """Which rank has which samples of a batch that is dealt by their costs."""
        return self._dealt_picks(place)[0]

    def _dealt_picks(self, place: Place) -> tuple[Dealt, Picks]:
        """How a batch is dealt, and this rank's part of it."""
        dealing = self.dealing
        assert dealing is not None
        assert place.whole is not None
        known = dealing.recent.get(place)
        if known is None:
            whole = self._located(place, place.whole.spans)
            dealt = dealing.deal(place, whole)
            picks: Picks = whole.take(dealt.of_rank(dealing.shard))
            if place.padding:
                picks = join([picks, self._located(place, _last(place.spans, place.padding))])
            known = dealt, picks
            dealing.recent.put(place, *known)
        return known

    def own(self, place: Place) -> tuple[IntArray, IntArray]:
        """Epoch and position of each of this rank's samples, in the order of its batch."""
        if place.whole is None:
            return _cells(place.spans)
        assert self.dealing is not None
        epochs, positions = _cells(place.whole.spans)
        mine = self.dealt(place).of_rank(self.dealing.shard)
        filling = _cells(_last(place.spans, place.padding))
        return np.concatenate([epochs[mine], filling[0]]), np.concatenate([positions[mine], filling[1]])

    def _buffers(self, place: Place, count: int) -> Outputs:
        """The user's memory for a batch: that of its turn, as much of it as the batch needs."""
        if not self.out:
            return {}
        return {name: array[:count] for name, array in self.out[place.step % len(self.out)].items()}

    def make(self, place: Place) -> Any:
        """The finished batch."""
        picks = self.picks(place)
        stream, out = self.stream_for(place), self._buffers(place, len(picks))
        try:
            batch = stream.fetch(picks, out)
        except Exception as error:
            if self.on_error == "raise":
                raise BatchError(_failed(place, picks, error)) from error
            picks, batch = self._refill(place, stream, picks, out)
        return self.finish(place, picks, batch)

    def finish(self, place: Place, picks: Picks, batch: Batch) -> Any:
        """A batch as it was read, with the fields that the loader adds, transformed."""
        if self.ids is not None:
            batch[self.ids] = ids_of(picks)
            if (sources := sources_of(picks)) is not None:
                batch[self.ids + SOURCE] = sources
        if self.is_flat:
            flatten_pack(batch)
        if self.pads:
            batch[VALID] = np.arange(len(picks)) < len(picks) - place.padding
        if self.transform is None:
            return batch
        try:
            info = (Info(place.step, place.epoch, ids_of(picks), self.stream.seed),) if _takes_two(self.transform) else ()
            made = _call(self.transform, batch, *info)
            if made is None:
                raise TypeError("it returned None; a transform returns the batch")
            return made
        except Exception as error:
            raise BatchError(f"the transform failed on {_failed(place, picks, error)}") from error

    def _refill(self, place: Place, stream: Stream, picks: Picks, out: Outputs) -> tuple[Picks, Batch]:
        """Records that cannot be read are replaced by others, the same on every rank and in every run."""
        positions = list(zip(*(cells.tolist() for cells in self.own(place)), strict=True))
        unreadable = Unreadable(place.step, self._told)
        wanted = ids_of(picks)
        for _ in range(MOST_ROUNDS):
            fixed = stream.replace_unreadable(picks, positions, unreadable)
            if fixed is None:
                self._skipped.append(int(np.count_nonzero(ids_of(picks) != wanted)))
                return picks, stream.fetch(picks, out)
            picks = fixed
        raise BatchError(f"step {place.step}: too few records can be read; records {unreadable.ids[:10]} ... failed")

    def _told(self, error: Exception, ids: IntArray) -> None:
        if callable(self.on_error):
            _call(self.on_error, error, ids)


def _cells(spans: Sequence[Span]) -> tuple[IntArray, IntArray]:
    """Epoch and position of each sample."""
    none = np.empty(0, np.int64)
    epochs = [none, *(np.full(len(span.run), span.epoch, np.int64) for span in spans)]
    return np.concatenate(epochs), np.concatenate([none, *(as_positions(span.run) for span in spans)])


def _last(spans: Sequence[Span], count: int) -> list[Span]:
    """The last samples; those that fill a batch up are spans of their own."""
    found: list[Span] = []
    for span in reversed(spans):
        if count <= 0:
            break
        found.insert(0, span)
        count -= len(span.run)
    return found


@exposed
def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the user's, which may take its time."""
    return function(*arguments)


def _takes_two(transform: Transform) -> bool:
    """Whether a transform wants to know about its batch: fn(batch, info)."""
    try:
        parameters = inspect.signature(transform).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty]
    return len(needed) == 2


def _failed(place: Place, picks: Picks, error: BaseException) -> str:
    ids = ids_of(picks)
    shown = f"{ids[:8].tolist()}{' ...' if ids.size > 8 else ''}"
    mixed = " of a mixture" if sources_of(picks) is not None else ""
    return f"step {place.step}, epoch {place.epoch}, records {shown}{mixed}: {type(error).__name__}: {error}"


# In other processes: the work goes there as a small recipe, and is unpacked once

MOST_KEPT = 4

_unpacked: "OrderedDict[bytes, Work]" = OrderedDict()


def pack(work: Work) -> bytes:
    """The work as bytes. They are made and read by processes of one run only, never stored."""
    try:
        return pickle.dumps(work)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(f"the stream and the transform must be picklable to be sent to an executor: {error}") from error


def make_elsewhere(packed: bytes, place: Place) -> Any:
    """The batch of a place, made here."""
    work = _unpacked.get(packed)
    if work is None:
        work = _unpacked[packed] = pickle.loads(packed)
        while len(_unpacked) > MOST_KEPT:
            _unpacked.popitem(last=False)
    return work.make(place)
