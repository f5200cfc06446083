"""Samplers, datasets and a DataLoader for torch.utils.data, all in the order and with the state of a penstock loader.

torch's workers are asked for work before the trainer wants it, so nothing here can see by itself what the trainer has consumed, except
:class:`DataLoader`, through which every batch passes. The others take the number from the caller: ``state_dict(consumed=k)``.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch.utils.data

from penstock.argument import whole_number
from penstock.deliver.torch_tensor import as_tensors
from penstock.errors import StateError
from penstock.interfaces import IntArray, Order
from penstock.loader import Loader
from penstock.loader.schedule import Place
from penstock.loader.work import Work
from penstock.order import Cursor, Shard
from penstock.records import Batch, Outputs, Recipe, Source, fixed_output
from penstock.schema import Field
from penstock.source.fingerprint import fingerprint_of
from penstock.stream import RecordStream, Stream
from penstock.stream.picks import RecordPicks

__all__ = ["BatchSampler", "DataLoader", "IterableDataset", "MapDataset", "Sampler"]

IDS_AT_ONCE = 4096
"""Ids that a sampler computes in one go."""


class _Resumable:
    """Iterations over a loader's steps. The loader stands where the iteration that runs began; only a new iteration moves it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._begun, self._drawn = False, 0

    @property
    def epoch(self) -> int:
        """The epoch of the iteration that runs or, before anything was drawn, of the next one."""
        return self._loader.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of an epoch. Where a loaded state stands within that epoch, it goes on from there."""
        epoch = whole_number("epoch", epoch)
        if self._begun or epoch != self.epoch:
            self._loader.set_state(bytes(Cursor(self._loader.stream.seed, epoch)))
            self._begun, self._drawn = False, 0

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """The state as plain JSON types, as :meth:`penstock.Loader.state_dict` gives it.

        ``consumed`` says how much of this iteration the trainer has had. If it is left out, what was drawn in this process counts:
        that is too much where torch draws ahead of the trainer, which it does as soon as there are workers.
        """
        count = self._drawn if consumed is None else whole_number("consumed", consumed)
        steps = _remaining(self._loader)
        if count == 0 or not steps:
            return self._loader.state_dict()
        self._loader.seek(min(steps.start + count, steps.stop))
        state = self._loader.state_dict()
        self._loader.seek(steps.start)
        return state

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Let the next iteration go on where a run stood; see :meth:`penstock.Loader.load_state_dict`."""
        self._loader.load_state_dict(state, strict=strict)
        self._begun, self._drawn = False, 0

    def _begin(self) -> range:
        """The steps of a new iteration: the rest of the epoch at first, then the next epoch."""
        if self._begun and (steps := _remaining(self._loader)):
            self._loader.seek(steps.stop)
        self._begun, self._drawn = False, 0
        return _remaining(self._loader)


def _remaining(loader: Loader) -> range:
    """The steps from the loader's cursor to the end of its epoch."""
    return range(loader.step, max(loader.step, loader._schedule.first_step(loader.epoch + 1)))


# Samplers


class Sampler(_Resumable, torch.utils.data.Sampler[int]):
    """Record ids for ``torch.utils.data.DataLoader(dataset, sampler=...)``.

    ``data`` is a stream such as ``source.shuffle(seed=7)``, or an order, a source, a dataset with a length or that length itself; the
    latter three are taken in order or, with a ``seed``, shuffled. With a ``shard`` every world-th id is this rank's; ``tail`` says
    what happens if the ranks' numbers differ: "keep" that, "drop" the ids too many, "pad" with ids from the start of the epoch, or
    "wrap" around into the next one.

    The first iteration begins where the state stands, each later one with the next epoch; ``set_epoch`` chooses another. ``consumed``
    of :meth:`state_dict` counts ids of this rank: batches that the trainer had, times their size.

    >>> from penstock.deliver.torch import Sampler
    >>> sampler = Sampler(5, seed=7)
    >>> list(sampler), list(sampler)
    ([0, 1, 4, 3, 2], [3, 0, 4, 1, 2])
    """

    def __init__(self, data: Any, *, seed: int | None = None, shard: Shard | None = None, tail: str = "keep") -> None:
        stream, shard = _stream_of(data, seed), Shard() if shard is None else shard
        if any(step > 0 for step, _ in stream.bans):
            raise ValueError("records are banned from a step on, and a sampler of single ids has no steps: use BatchSampler")
        _Resumable.__init__(self, Loader(stream, shard.world, shard=shard, tail=tail, threads=0))

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


class BatchSampler(_Resumable, torch.utils.data.Sampler[list[int]]):
    """Lists of record ids for ``torch.utils.data.DataLoader(dataset, batch_sampler=...)``: the batches of a loader.

    ``data`` and ``seed`` are those of :class:`Sampler`, ``batch_size`` (that of the whole job), ``shard`` and ``tail`` those of
    :class:`penstock.Loader`. Epochs go as with :class:`Sampler`. ``consumed`` of :meth:`state_dict` counts batches.

    >>> from penstock.deliver.torch import BatchSampler
    >>> list(BatchSampler(5, 2, seed=7))
    [[0, 1], [4, 3], [2]]
    """

    def __init__(
        self, data: Any, batch_size: int, *, seed: int | None = None, shard: Shard | None = None, tail: str = "keep"
    ) -> None:
        _Resumable.__init__(self, Loader(_stream_of(data, seed), batch_size, shard=shard, tail=tail, threads=0))

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
        return {name: column for name in fields}

    def _recipe(self) -> Recipe:
        return _Ids, (self._count,)


# Datasets


class MapDataset(torch.utils.data.Dataset[Any]):
    """The records of a source for ``torch.utils.data.DataLoader``: a batch is read at once, not record by record.

    Batches come whole, so the DataLoader needs ``collate_fn=as_tensors``.

    >>> import numpy as np, penstock as pen, torch
    >>> from penstock.deliver.torch import BatchSampler, MapDataset, as_tensors
    >>> data = MapDataset(pen.open(np.arange(5) * 10, field="x"))
    >>> [b["x"] for b in torch.utils.data.DataLoader(data, batch_sampler=BatchSampler(data, 3, seed=7), collate_fn=as_tensors)]
    [tensor([ 0, 10, 40]), tensor([30, 20])]
    """

    def __init__(self, source: Source) -> None:
        if not isinstance(source, Source):
            raise TypeError(f"expected a penstock source, such as penstock.open(...), got {type(source).__name__}")
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, id: int) -> Any:
        """One record."""
        return self.source[id]

    def __getitems__(self, ids: list[int]) -> Batch:
        """A batch of records."""
        return _WholeBatch(self.source.read(ids))


class _WholeBatch(dict[str, Any]):
    """A batch that torch would take for a list of records."""

    def __missing__(self, key: object) -> NoReturn:
        raise TypeError(f"no field {key!r}; a DataLoader over MapDataset needs collate_fn=penstock.deliver.torch.as_tensors")


class IterableDataset(_Resumable, torch.utils.data.IterableDataset[Any]):
    """The batches of a loader, as tensors, for ``torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=...)``.

    Worker w of W makes every W-th batch, and torch takes from the workers in turn, so every number of workers, forked or spawned,
    gives the same batches in the same order. With torchdata's StatefulDataLoader the state is exact by itself. With torch's
    DataLoader it is ``dataset.state_dict(consumed=k)``, with k batches that the trainer had of this iteration.

    In one process, and with ``persistent_workers=True``, the first iteration begins where the state stands and each later one with the
    next epoch. Other workers are copies of the dataset as it is in the main process: call ``set_epoch`` there before each epoch.
    :class:`DataLoader` needs none of this care.
    """

    def __init__(self, loader: Loader) -> None:
        _Resumable.__init__(self, _checked(loader))

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self._loader)

    def __iter__(self) -> "_Share":
        return _Share(self)


class _Share:
    """The batches that one worker makes in one iteration."""

    def __init__(self, dataset: IterableDataset) -> None:
        worker = torch.utils.data.get_worker_info()
        self._worker, self._workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        self._dataset, self._taken = dataset, 0
        self._steps: range | None = None  # known once something is asked: an iterator nobody uses is no iteration

    def _aim(self) -> range:
        if self._steps is None:
            self._steps = self._dataset._begin()
        return self._steps

    def __iter__(self) -> "_Share":
        return self

    def __next__(self) -> Any:
        steps, number = self._aim(), self._worker + self._taken * self._workers
        self._dataset._begun, self._dataset._drawn = True, min(number + 1, len(steps))
        if number >= len(steps):
            raise StopIteration
        loader = self._dataset._loader
        batch = loader._work.make(loader._schedule.place(steps[number]))
        self._taken += 1
        return as_tensors(batch)

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration began, and how many batches of it this worker has made."""
        self._aim()
        return {"start": self._dataset._loader.state_dict(), "taken": self._taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the same worker of as many stood."""
        if not isinstance(state, Mapping) or set(state) != {"start", "taken"} or type(state["taken"]) is not int:
            raise StateError(f"expected a state with the keys ['start', 'taken'], got {str(state)[:200]}")
        self._dataset.load_state_dict(state["start"])
        self._steps, self._taken = self._dataset._begin(), whole_number("taken", state["taken"])
        self._dataset._begun = self._taken > 0


# DataLoader


class DataLoader(torch.utils.data.DataLoader[Any]):
    """torch's DataLoader over a penstock loader: worker processes make its batches, as tensors, in its order.

    The loader's cursor moves with every batch the trainer takes, so its state is exact, for any number of workers, now and when a run
    goes on; every ``for`` is the rest of the epoch or the next one, as with the loader. Options are torch's (``prefetch_factor``,
    ``persistent_workers``, ``multiprocessing_context``, ``pin_memory``, ...), but for those the loader decides about.

    >>> import numpy as np, penstock as pen
    >>> from penstock.deliver.torch import DataLoader
    >>> batches = DataLoader(pen.Loader(pen.open(np.arange(6), field="x"), batch_size=4))
    >>> [batch["x"] for batch in batches], batches.state_dict()["step"]
    ([tensor([0, 1, 2, 3]), tensor([4, 5])], 2)
    """

    def __init__(self, loader: Loader, *, num_workers: int = 0, **options: Any) -> None:
        decided = {"batch_size", "batch_sampler", "collate_fn", "drop_last", "in_order", "sampler", "shuffle"} & set(options)
        if decided:
            raise TypeError(f"the penstock loader decides about {', '.join(sorted(decided))}: leave that out")
        self._loader = _checked(loader)
        super().__init__(
            _Places(loader._work),  # type: ignore[arg-type]
            batch_size=None,
            sampler=_PlaceSampler(loader),  # type: ignore[arg-type]
            collate_fn=as_tensors,
            num_workers=num_workers,
            **options,
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return _counted(self._loader, self._loader.step, super().__iter__())

    def state_dict(self) -> dict[str, Any]:
        """The loader's state."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Let the next iteration go on where a run stood; see :meth:`penstock.Loader.load_state_dict`."""
        self._loader.load_state_dict(state, strict=strict)


class _Places(torch.utils.data.Dataset[Any]):
    """A batch for each place in the schedule. Workers get places, not steps: they need not know how the run went so far."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __getitem__(self, place: Place) -> Any:
        return self._work.make(place)


class _PlaceSampler(torch.utils.data.Sampler[Place]):
    """The places of the rest of the loader's epoch."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Place]:
        return map(self._loader._schedule.place, _remaining(self._loader))


def _counted(loader: Loader, step: int, batches: Iterator[Any]) -> Iterator[Any]:
    """Batches, with the loader's cursor moved along."""
    for batch in batches:
        if loader.step != step:
            raise RuntimeError(f"the loader was moved from step {step} to {loader.step} meanwhile: begin a new iteration")
        step += 1
        loader.seek(step)
        yield batch


def _checked(loader: Any) -> Loader:
    if not isinstance(loader, Loader):
        raise TypeError(f"expected a penstock Loader, got {type(loader).__name__}")
    return loader
