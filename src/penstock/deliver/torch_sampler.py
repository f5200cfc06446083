"""Samplers for torch.utils.data, in the order and with the state of a penstock loader."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch.utils.data

from penstock.argument import whole_number
from penstock.interfaces import IntArray, Order
from penstock.loader import Loader
from penstock.loader.schedule import PhaseSchedule
from penstock.order import Cursor, Shard
from penstock.records import Batch, Outputs, Recipe, Source, fixed_output
from penstock.schema import Field
from penstock.source.fingerprint import fingerprint_of
from penstock.stream import RecordStream, Stream
from penstock.stream.picks import RecordPicks

__all__ = ["BatchSampler", "Resumable", "Sampler"]

IDS_AT_ONCE = 4096
"""Ids that a sampler computes in one go."""


class Resumable:
    """Iterations over a loader's steps. The loader stands where the iteration that runs began; only a new iteration moves it.

    The first iteration begins where the state stands, each later one with the next epoch. One from which nothing was drawn is none.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._begun, self._drawn = False, 0

    @property
    def epoch(self) -> int:
        """The epoch of the iteration that runs or, before anything was drawn, of the next one."""
        return self._loader.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of an epoch. Where a loaded state stands within that epoch, it goes on from there."""
        loader, epoch = self._loader, whole_number("epoch", epoch)
        if isinstance(loader._schedule, PhaseSchedule):
            raise ValueError("all phases of a run are one iteration, so there is no epoch to choose")
        if epoch > loader.epoch:
            self._seek(loader._schedule.first_step(epoch))
        elif epoch < loader.epoch or self._begun:
            loader.set_state(bytes(Cursor(loader.stream.seed, epoch)))
        else:
            return
        self._begun, self._drawn = False, 0

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
        """Let the next iteration go on where a run stood; see :meth:`penstock.Loader.load_state_dict`."""
        self._loader.load_state_dict(state, strict=strict)
        self._begun, self._drawn = False, 0

    def _begin(self) -> range:
        """The steps of a new iteration: the rest of the epoch at first, then the next epoch."""
        if self._begun:
            self._seek(self._loader.remaining().stop)
        self._begun, self._drawn = False, 0
        return self._loader.remaining()

    def _seek(self, step: int) -> None:
        if step != self._loader.step:
            self._loader.seek(step)


class Sampler(Resumable, torch.utils.data.Sampler[int]):
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
        Resumable.__init__(self, Loader(stream, shard.world, shard=shard, tail=tail, threads=0))

    def __len__(self) -> int:
        """Ids of this rank in an epoch, from its start."""
        loader = self._loader
        first = loader._schedule.first_step(loader.epoch)
        return _num_samples(loader, first + len(loader) - 1) + len(loader) - 1 if len(loader) else 0

    def __iter__(self) -> Iterator[int]:
        steps = self._begin()
        self._begun = True
        for number, one in enumerate(self._ids(steps), start=1):
            self._drawn = number
            yield one
        self._drawn = len(steps)

    def _ids(self, steps: range) -> Iterator[int]:
        """One id per step: all but the last step are full rounds of the ranks, so their positions are one run."""
        loader = self._loader
        stream, world = loader.stream, loader.shard.world
        epoch, first = loader.epoch, loader.cursor.position
        for low in range(0, len(steps) - 1, IDS_AT_ONCE):
            high = min(low + IDS_AT_ONCE, len(steps) - 1)
            picks = stream.locate(epoch, range(first + low * world + loader.shard.rank, first + high * world, world))
            yield from _ids_of(picks)
        if steps:
            yield from _ids_of(loader._work.picks(loader._schedule.place(steps[-1])))


class BatchSampler(Resumable, torch.utils.data.Sampler[list[int]]):
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
        steps = self._begin()
        self._begun = True
        for number, step in enumerate(steps, start=1):
            self._drawn = number
            yield _ids_of(self._loader._work.picks(self._loader._schedule.place(step)))


def _num_samples(loader: Loader, step: int) -> int:
    return sum(len(span.run) for span in loader._schedule.place(step).spans)


def _ids_of(picks: Any) -> list[int]:
    assert isinstance(picks, RecordPicks)
    ids: list[int] = picks.ids.tolist()
    return ids


def _stream_of(data: Any, seed: int | None) -> RecordStream:
    if isinstance(data, RecordStream | Order):
        if seed is not None:
            raise ValueError(f"{type(data).__name__} has an order already, so seed must be left out, got {seed!r}")
        return data if isinstance(data, RecordStream) else RecordStream(_Ids(int(getattr(data, "n", len(data)))), data)
    if isinstance(data, Stream):
        raise TypeError(
            f"samples of a {type(data).__name__} are no single records: use DataLoader or IterableDataset with a Loader"
        )
    source = data if isinstance(data, Source) else _Ids(len(data) if hasattr(data, "__len__") else whole_number("data", data))
    return source.in_order() if seed is None else source.shuffle(seed=seed)


class _Ids(Source):
    """So many records, each of which is its own id: for data that penstock does not read."""

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
