"""Samplers for torch.utils.data, in the order and with the state of a penstock loader, and what divides batches among ranks.

A loader that gives every rank the same data is warned about, and one that is divided twice is refused: accelerate and Lightning
divide the batches of a torch DataLoader among the ranks by wrapping its sampler or dataset. The wrapper does not announce itself,
but it calls what it wraps: so the call stack is searched for one when an iteration begins.
"""

import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Generic, TypeVar

import torch.distributed as dist
import torch.utils.data

from penstock.argument import IntArray, shown, whole_number
from penstock.batch import Batch, Outputs, fixed_output
from penstock.errors import StateError
from penstock.fingerprint import fingerprint_of
from penstock.loader import Loader
from penstock.order import Cursor, Order, Shard
from penstock.records import Recipe, Source
from penstock.schema import Field
from penstock.stream import ImageStream, RecordStream, Stream
from penstock.stream.picks import RecordPicks

LIGHTNING = "pass use_distributed_sampler=False to the Trainer"
ACCELERATE = "leave the DataLoader out of accelerator.prepare, or use penstock.deliver.torch.DataLoader"
DIVIDERS = {
    "BatchSamplerShard": ACCELERATE,
    "IterableDatasetShard": ACCELERATE,
    "DataLoaderDispatcher": ACCELERATE,
    "DistributedSamplerWrapper": LIGHTNING,
    "UnrepeatedDistributedSamplerWrapper": LIGHTNING,
}
"""Classes that give each rank a part of what they wrap, and how else to keep them from it."""


class UnshardedWarning(UserWarning):
    """Several ranks of ``torch.distributed``, and a loader without a shard: every rank gets every record."""


def check_ranks(shard: Shard, *, is_evaluation: bool = False) -> None:
    """Warn if every rank would get the same records, ValueError if the ranks' parts would be divided once more.

    An evaluation may want all records on every rank, so it is not warned about.
    """
    if shard.world > 1:
        refuse_second_division(shard)
    elif not is_evaluation and num_ranks() > 1 and _divider() is None:
        warnings.warn(
            f"torch.distributed has {num_ranks()} ranks and this loader no shard, so every rank gets the same records: pass "
            "shard=penstock.Shard.from_environment(), or ignore penstock.deliver.torch.UnshardedWarning if that is intended",
            UnshardedWarning,
            stacklevel=3,
        )


def refuse_second_division(shard: Shard) -> None:
    """ValueError if the caller's callers divide what this shard has divided already."""
    divider = _divider() if shard.world > 1 else None
    if divider is not None:
        raise ValueError(
            f"the records are divided twice, by shard={shard} and by {type(divider).__module__}.{type(divider).__name__}, so most "
            f"of them would never be used: leave shard out, or {DIVIDERS[type(divider).__name__]}"
        )


def num_ranks() -> int:
    """Ranks of the process group; 1 without one."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _divider() -> Any:
    """The innermost wrapper on the call stack that divides among several ranks; None without one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner, _, method = frame.f_code.co_qualname.partition(".")
        if method and owner in DIVIDERS and (wrapper := frame.f_locals.get("self")) is not None and _parts(wrapper) > 1:
            return wrapper
        frame = frame.f_back
    return None


def _parts(wrapper: Any) -> int:
    counts = (wrapper, "num_processes"), (wrapper, "num_replicas"), (getattr(wrapper, "state", None), "num_processes")
    return next((int(getattr(one, name)) for one, name in counts if getattr(one, name, None) is not None), 1)


IDS_AT_ONCE = 4096
"""Ids that a sampler computes in one go."""


T_co = TypeVar("T_co", covariant=True)


class Resumable(ABC, Generic[T_co]):
    """Iterations over a loader's steps. The loader stands where the iteration that runs began; only a new iteration moves it.

    The first iteration begins where the state stands, each later one with the next epoch. One from which nothing was drawn is none.
    With a loader that restarts, every iteration begins at step 0.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._turn = 0  # number of the iteration that runs
        self._begun, self._drawn = False, 0

    @property
    def loader(self) -> Loader:
        """Whose steps these are. It stands where the iteration that runs began."""
        return self._loader

    @property
    def epoch(self) -> int:
        """The epoch of the iteration that runs or, before anything was drawn, of the next one."""
        return self._loader.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of an epoch. If a loaded state is within that epoch, it continues there."""
        refuse_second_division(self._loader.shard)
        if go_to_epoch(self._loader, epoch, again=self._begun):
            self._turn, self._begun, self._drawn = self._turn + 1, False, 0

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """The state as plain JSON types, as :meth:`penstock.Loader.state_dict` gives it.

        ``consumed`` says how much of this iteration the trainer has had. If it is left out, what was drawn in this process counts:
        that is too much where torch draws ahead of the trainer, which it does as soon as there are workers.
        """
        count = self._drawn if consumed is None else whole_number("consumed", consumed)
        steps = self._loader.remaining()
        self._seek(min(steps.start + count, steps.stop))
        state = self._loader.state_dict()
        self._seek(steps.start)
        return state

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Let the next iteration resume a run; see :meth:`penstock.Loader.load_state_dict`."""
        self._loader.load_state_dict(state, strict=strict)
        self._turn, self._begun, self._drawn = self._turn + 1, False, 0

    def begin(self) -> tuple[int, range]:
        """A new iteration: its number and its steps, which are the rest of the epoch at first, then the next epoch."""
        if self._begun:
            self._seek(self._loader.remaining().stop)
        self._loader.rewind()
        self._turn, self._begun, self._drawn = self._turn + 1, False, 0
        return self._turn, self._loader.remaining()

    def count(self, turn: int, drawn: int, *, begun: bool = True) -> None:
        """Note how many items of an iteration were drawn. Nothing happens if a newer one has begun."""
        if turn == self._turn:
            self._begun, self._drawn = begun, drawn

    def _seek(self, step: int) -> None:
        if step != self._loader.step:
            self._loader.move_to(step)

    @abstractmethod
    def items(self, steps: range) -> Iterator[T_co]:
        """What comes at those steps of the iteration, one item each; at the last one there may be none."""


def go_to_epoch(loader: Loader, epoch: int, *, again: bool = False) -> bool:
    """Move a loader to the start of an epoch; whether it was moved. It stays within that epoch if it is there, unless ``again``."""
    epoch = whole_number("epoch", epoch)
    if loader.restart:
        return False
    if loader.phases is not None:
        if epoch:
            raise ValueError(f"all phases of a run are one iteration, so there is no epoch to choose, got epoch {epoch}")
        return False
    if epoch > loader.epoch:
        loader.move_to(loader.schedule.first_step(epoch))
    elif epoch < loader.epoch or again:
        loader.set_state(bytes(Cursor(loader.stream.seed, epoch)))
    else:
        return False
    return True


def begin_with_epoch(loader: Loader, epoch: int) -> None:
    """Move a loader to an epoch, if it has not begun.

    Lightning names the epoch to the samplers of everything it iterates over. Where a loader has begun, or has a state, it knows
    better. But Lightning does not load states from a checkpoint behind an epoch: then the epoch it names is the one to take.
    """
    if whole_number("epoch", epoch) and loader.step == 0 and loader.phases is None:
        go_to_epoch(loader, epoch)


class Iteration(Iterator[T_co]):
    """One iteration, or the share of it that a worker has. torchdata's StatefulDataLoader saves its state."""

    def __init__(self, subject: Resumable[T_co], worker: int = 0, workers: int = 1) -> None:
        self._subject, self._worker, self._workers = subject, worker, workers
        self._turn, self._steps = -1, range(0)
        self._taken = 0
        self._items: Iterator[T_co] | None = None

    def _aim(self) -> None:
        """Settle which steps these are. Done late: an unused iterator must not count as an epoch."""
        if self._turn < 0:
            if self._worker == 0:
                check_ranks(self._subject.loader.shard, is_evaluation=self._subject.loader.restart)
            self._turn, steps = self._subject.begin()
            self._steps = steps[self._worker :: self._workers]

    def __next__(self) -> T_co:
        self._aim()
        if self._items is None:
            self._items = self._subject.items(self._steps[self._taken :])
        try:
            item = next(self._items)
            self._taken += 1
        except StopIteration:
            self._taken = len(self._steps)
            raise
        except Exception:
            self._items = None  # the next call tries again, and does not take the error for the end
            raise
        finally:
            self._subject.count(self._turn, self._taken * self._workers)
        return item

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration began, and how much of it was taken. At its end it stays this iteration's: nothing more comes."""
        self._aim()
        return {"start": self._subject.state_dict(consumed=0), "taken": self._taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume the same worker, of the same number of workers."""
        if not isinstance(state, Mapping) or set(state) != {"start", "taken"} or type(state["taken"]) is not int:
            raise StateError(f"expected a state with the keys ['start', 'taken'], got {shown(state)}")
        if state["taken"] < 0:
            raise StateError(f"damaged state: expected a number of batches as taken, got {shown(state['taken'])}")
        self._subject.load_state_dict(state["start"])
        self._turn, self._items = -1, None
        self._aim()
        self._taken = min(state["taken"], len(self._steps))
        self._subject.count(self._turn, self._taken * self._workers, begun=self._taken > 0)


class Sampler(Resumable[int], torch.utils.data.Sampler[int]):
    """Record ids for ``torch.utils.data.DataLoader(dataset, sampler=...)``.

    ``data`` is a stream such as ``source.shuffle(seed=7)``, or an order; or a source, a dataset with a length or that length
    itself, which are taken in order or, with a ``seed``, shuffled. With a ``shard`` every world-th id is this rank's; ``tail``
    says what happens if that gives some ranks one more: "keep" it, "drop" it, "pad" the others with ids from the start of the
    epoch, or "wrap" around into the next one.

    The first iteration begins where the state stands, each later one with the next epoch; ``set_epoch`` chooses another. A
    DataLoader draws ids ahead of the trainer, so the exact state is ``state_dict(consumed=k)``, where k counts ids of this rank in
    this iteration: batches that the trainer had, times their size.

    >>> from penstock.deliver.torch import Sampler
    >>> sampler = Sampler(5, seed=7)
    >>> list(sampler), list(sampler)
    ([1, 0, 3, 4, 2], [1, 3, 2, 4, 0])
    """

    def __init__(self, data: Any, *, seed: int | None = None, shard: Shard | None = None, tail: str = "keep") -> None:
        stream, shard = _stream_of(data, seed), Shard() if shard is None else shard
        if any(step > 0 for step, _ in stream.bans):
            raise ValueError("records are banned from a step on, and a sampler of single ids has no steps: use BatchSampler")
        if tail == "drop" and 0 < len(stream) < shard.world:
            raise ValueError(f"tail='drop' drops all of {len(stream)} ids: there are fewer than the {shard.world} ranks")
        Resumable.__init__(self, Loader(stream, shard.world, shard=shard, tail=tail, threads=0))

    def __len__(self) -> int:
        """Ids of this rank in an epoch, from its start."""
        loader = self._loader
        first = loader.schedule.first_step(loader.epoch)
        return _num_samples(loader, first + len(loader) - 1) + len(loader) - 1 if len(loader) else 0

    def __iter__(self) -> Iterator[int]:
        return Iteration(self)

    def items(self, steps: range) -> Iterator[int]:
        """All steps but the last are full rounds of the ranks, so their positions are one run."""
        loader = self._loader
        stream, rank, world, epoch = loader.stream, loader.shard.rank, loader.shard.world, loader.epoch
        first = loader.cursor.position + (steps.start - loader.step) * world
        last = loader.work.picks(loader.schedule.place(steps[-1])) if steps else None
        for low in range(0, len(steps) - 1, IDS_AT_ONCE):
            high = min(low + IDS_AT_ONCE, len(steps) - 1)
            yield from _ids_of(stream.locate(epoch, range(first + low * world + rank, first + high * world, world)))
        if last is not None:
            yield from _ids_of(last)


class BatchSampler(Resumable[list[int]], torch.utils.data.Sampler[list[int]]):
    """Lists of record ids for ``torch.utils.data.DataLoader(dataset, batch_sampler=...)``: the batches of a loader.

    ``data`` and ``seed`` are those of :class:`Sampler`, ``batch_size`` (that of the whole job), ``shard`` and ``tail`` those of
    :class:`penstock.Loader`. Epochs and state are as with :class:`Sampler`; ``consumed`` counts batches.

    >>> from penstock.deliver.torch import BatchSampler
    >>> list(BatchSampler(5, 2, seed=7))
    [[1, 0], [3, 4], [2]]
    """

    def __init__(
        self, data: Any, batch_size: int, *, seed: int | None = None, shard: Shard | None = None, tail: str = "keep"
    ) -> None:
        Resumable.__init__(self, Loader(_stream_of(data, seed), batch_size, shard=shard, tail=tail, threads=0))

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self._loader)

    def __iter__(self) -> Iterator[list[int]]:
        return Iteration(self)

    def items(self, steps: range) -> Iterator[list[int]]:
        work, schedule = self._loader.work, self._loader.schedule
        return (_ids_of(work.picks(schedule.place(step))) for step in steps)


def _num_samples(loader: Loader, step: int) -> int:
    return loader.schedule.place(step).num_samples


def _ids_of(picks: Any) -> list[int]:
    assert isinstance(picks, RecordPicks)
    ids: list[int] = picks.ids.tolist()
    return ids


def _stream_of(data: Any, seed: int | None) -> RecordStream:
    if isinstance(data, RecordStream | Order):
        if seed is not None:
            raise ValueError(f"{type(data).__name__} has an order already, so seed must be left out, got {seed!r}")
        return data if isinstance(data, RecordStream) else RecordStream(_Ids(int(getattr(data, "n", len(data)))), data)
    if isinstance(data, ImageStream):
        raise TypeError("a sampler only gives ids, and the data set would decode: give it stream.records, or use DataLoader")
    if isinstance(data, Stream):
        raise TypeError(
            f"samples of a {type(data).__name__} are not single records: use DataLoader or IterableDataset with a Loader"
        )
    source = data if isinstance(data, Source) else _Ids(len(data) if hasattr(data, "__len__") else whole_number("data", data))
    return source.in_order() if seed is None else source.shuffle(seed=seed)


class _Ids(Source):
    """``count`` records, each of which is its own id: for data that penstock does not read."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    @property
    def schema(self) -> Mapping[str, Field]:
        return {"id": Field("i8")}

    @property
    def fingerprint(self) -> str:
        return fingerprint_of("ids", self._count)

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        column = fixed_output("id", self.schema["id"], len(ids), out)
        column[:] = ids
        return dict.fromkeys(fields, column)

    def _recipe(self) -> Recipe:
        return _Ids, (self._count,)
