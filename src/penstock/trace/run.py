"""Run: the losses of a run together with the loader that says what they are of. Which record had which loss, and the batch
itself.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.argument import IntArray
from penstock.errors import StateMismatchError
from penstock.loader import Loader
from penstock.loader.loader import make_dealing
from penstock.loader.make_batch import SOURCE, Dealing
from penstock.loader.schedule import Place
from penstock.order import Shard
from penstock.stream import MixedStream, PartStream, Stream
from penstock.stream.picks import expanded
from penstock.trace.loss_log import MISSING, Losses, Stretch
from penstock.trace.loss_table import LossTable
from penstock.trace.recipe import make_loader

__all__ = ["RecordKey", "Run", "Visits", "global_place", "key_in", "leaf_names", "visits_of"]

WHOSE = "it is not known which loss is whose"
"""How messages about losses that do not fit the order end."""

EPOCHS_AT_ONCE, MOST_EPOCHS = 64, 4096
"""Epochs that are searched for a record before its visits are counted, and those of a stream in a mixture that never ends."""

RECORD = "record of a visit"
"""The name of a field of ids that no data has."""


@dataclass(frozen=True, order=True)
class RecordKey:
    """A record or document: the number of its stream in ``leaf_names``, and its id there."""

    source: int
    id: int


@dataclass(frozen=True, eq=False)
class Visits:
    """What is in the batch of a step, one entry for each record, or piece of a document: the place of its sample in the global
    batch, its stream, its id, the tokens [low, high) of the document (0, 0 of a record), and its loss, ``MISSING`` if that is not
    known.
    """

    step: int
    sample: IntArray
    source: IntArray
    id: IntArray
    low: IntArray
    high: IntArray
    loss: Losses

    def __len__(self) -> int:
        return len(self.id)

    def take(self, places: Any) -> "Visits":
        columns = (self.sample, self.source, self.id, self.low, self.high, self.loss)
        return Visits(self.step, *(column[places] for column in columns))

    def record(self, place: int) -> RecordKey:
        return RecordKey(int(self.source[place]), int(self.id[place]))


def leaf_names(stream: Stream) -> tuple[str, ...]:
    """The streams that samples come from, by name; one of a mixture in another as "outer/inner". "" where there is only one."""
    return stream.leaf_names if isinstance(stream, MixedStream) else ("",)


def global_place(loader: Loader, step: int) -> Place:
    """The batch of a step on all ranks together."""
    return replace(loader.schedule, shard=Shard(), is_dealt=False).place(step)


def visits_of(loader: Loader, step: int) -> Visits:
    """What is in the batch of a step, with samples that only fill it up. No record is read, unless those that cannot be read are
    replaced by others.
    """
    place = global_place(loader, step)
    if loader.work.on_error != "raise":
        batch = replace(loader.work, transform=None, ids=RECORD, pads=False, out=()).make(place)
        ids = np.asarray(batch[RECORD], np.int64)
        source = np.asarray(batch.get(RECORD + SOURCE, np.zeros(len(ids))), np.int64)
        zeros = np.zeros(len(ids), np.int64)
        found = Visits(step, np.arange(len(ids)), source, ids, zeros, zeros, _unknown(len(ids)))
    else:
        has_documents = all(getattr(part, "has_documents", True) for part in loader.stream.parts)
        told = loader.explain(step, documents=has_documents)
        sample, source, rows = _flat(told, loader.stream, 0)
        order = np.argsort(sample, kind="stable")
        rows = rows[order]
        found = Visits(step, sample[order], source[order], rows[:, 0], rows[:, 1], rows[:, 2], _unknown(len(order)))
    return found


def _earlier(stream: Stream) -> Iterator[Stream]:
    """A stream, and what it may have been earlier in its run: without its last amendments and bans."""
    for one in (stream, *(before for _, before in stream.unamended())):
        yield one
        for step in sorted({step for part in one.parts for step, _ in part.bans}, reverse=True):
            yield one.unbanned(step)


def _searched(loader: Loader, steps: IntArray) -> Iterator[range]:
    """Ranges of steps to be searched for a record, of few epochs each: as many epochs as a log has steps, but no more."""
    if getattr(loader.stream, "never_ends", False):  # one epoch, which is searched from its beginning
        shortest = max(1, min(part.num_samples for part in loader.stream.parts))
        if loader.schedule.place(int(steps[-1])).position // shortest <= MOST_EPOCHS:
            yield range(int(steps[0]), int(steps[-1]) + 1)
        return
    breaks = np.flatnonzero(np.diff(steps) != 1) + 1
    for run in np.split(steps, breaks)[:MOST_EPOCHS]:
        width = EPOCHS_AT_ONCE * max(1, loader.schedule.steps_in(loader.schedule.place(int(run[0])).epoch + 1))
        for low in range(int(run[0]), int(run[-1]) + 1, width):
            yield range(low, min(low + width, int(run[-1]) + 1))


def _unknown(count: int) -> Losses:
    return np.full(count, MISSING, np.float32)


def _flat(told: dict[str, Any], stream: Stream, first: int) -> tuple[IntArray, IntArray, IntArray]:
    """What ``explain`` tells: the sample, the number of the stream, and (id, low, high), of every record or piece of a document."""
    if "source" in told:
        assert isinstance(stream, MixedStream)
        found = []
        for name, part in zip(stream.names, stream.streams, strict=True):
            if name in told["parts"]:
                sample, source, rows = _flat(told["parts"][name], part, first)
                found.append((np.flatnonzero(told["source"] == name)[sample], source, rows))
            first += len(leaf_names(part))
        samples, sources, all_rows = zip(*found, strict=True) if found else ([np.empty(0, np.int64)],) * 3
        return np.concatenate(samples), np.concatenate(sources), np.concatenate(all_rows).reshape(-1, 3)
    if "ids" in told:
        ids = np.asarray(told["ids"], np.int64)
        rows = np.column_stack([ids, np.zeros_like(ids), np.zeros_like(ids)])
        return np.arange(len(ids)), np.full(len(ids), first), rows
    pieces = told["documents"] if "documents" in told else [_whole(runs) for runs in told["tokens"]]
    counts = np.array([len(one) for one in pieces], np.int64)
    rows = np.concatenate([np.empty((0, 3), np.int64), *pieces])
    return np.repeat(np.arange(len(pieces)), counts), np.full(len(rows), first), rows


def _whole(runs: Any) -> IntArray:
    """A sample of tokens of which no document is known: by its first token."""
    runs = np.asarray(runs, np.int64).reshape(-1, 2)
    return np.array([[runs[0, 0], 0, int((runs[:, 1] - runs[:, 0]).sum())]] if len(runs) else [], np.int64).reshape(-1, 3)


class Run:
    """A run: its losses, and a loader of its data and order. For one thread.

    The loader may stand anywhere, and may have any batch size and shard; StateMismatchError if it has other data or another order
    than the losses were logged with. Without a loader, the stream is made as the log says (if it was made with ``data=``): of
    ``data``, which is what ``penstock.open`` takes, or a dict of it by the names of a mixture's streams; or, with ``trust=True``,
    of the paths and URLs that the log names. Do not trust the log of a stranger.

    >>> import tempfile, numpy as np, penstock as pen
    >>> from penstock.trace import Run
    >>> def make_loader():
    ...     return pen.Loader(pen.open({"x": np.arange(100)}).shuffle(seed=7), batch_size=10)
    >>> with tempfile.TemporaryDirectory() as path:
    ...     loader = make_loader()
    ...     with pen.LossLog(path, loader) as log:
    ...         for batch in loader:
    ...             log(batch["x"] / 100.0)
    ...     visits = Run.open(path, make_loader()).visits(3)
    >>> visits.id[:3].tolist(), np.allclose(visits.loss, visits.id / 100)
    ([49, 17, 51], True)
    """

    def __init__(self, table: LossTable, loader: Loader | None = None, *, data: Any = None, trust: bool = False) -> None:
        self.table, (told, stretch) = table, table.made_by
        self.lacks_transform = loader is None and bool((told or {}).get("transform"))
        if loader is None:
            loader = make_loader(told, stretch.batch_size, stretch.tail, table.path, data, trust=trust)
        self.given = loader
        self._loaders: dict[int, Loader] = {}
        self._dealings: dict[int, Dealing] = {}

    @classmethod
    def open(cls, path: str | os.PathLike[str], loader: Loader | None = None, *, data: Any = None, trust: bool = False) -> "Run":
        """The run in a directory."""
        return cls(LossTable.open(path), loader, data=data, trust=trust)

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of streams, as visits count them."""
        return leaf_names(self.given.stream)

    def part(self, source: int) -> PartStream:
        """The stream of a number in :attr:`sources`."""
        return self.given.stream.parts[source]

    def loader_at(self, step: int) -> Loader:
        """A loader whose batch of that step is the one that was logged. It delivers the global batch."""
        number = int(self.table.stretch_of[self.table.place(step)])
        if number not in self._loaders:
            self._loaders[number] = self._loader_of(self.table.stretches[number])
        return self._loaders[number]

    def _loader_of(self, stretch: Stretch) -> Loader:
        given, work = self.given, self.given.work
        size: dict[str, Any] = {"batch_size": stretch.batch_size} if given.phases is None else {"phases": given.phases}
        if stretch.tail not in ("keep", "drop", "pad", "wrap") or (stretch.batch_size == 0) != (given.phases is not None):
            raise StateMismatchError(
                f"{self.table.path}: the run has {'phases' if stretch.batch_size == 0 else f'batches of {stretch.batch_size}'}, "
                f"the loader {'phases' if given.phases is not None else 'a batch size'}: give the loader of that run"
            )
        on_error = (work.on_error if work.on_error != "raise" else "skip") if stretch.skips else "raise"
        options: dict[str, Any] = {"transform": work.transform, "ids": work.ids, "on_error": on_error, "threads": 0}
        mismatch: StateMismatchError | None = None
        for stream in _earlier(given.stream):
            loader = Loader(stream, tail=stretch.tail, **size, **options)
            try:
                loader.load_state_dict(stretch.state)
            except StateMismatchError as error:
                mismatch = mismatch or error
                continue
            own = loader.state_at(stretch.state["step"])
            if own["plan"] == stretch.state["plan"] or not any(stream.unamended()):
                return loader  # an amended mixture takes states of the one before, too
        raise StateMismatchError(f"{self.table.path}: the loader is not that of the run: {mismatch}") from mismatch

    def visits(self, step: int) -> Visits:
        """The records of a step with their losses. A packed sample of which only the sample has a loss gives it to all its
        documents.

        StateMismatchError if there are more or fewer losses than the order has samples or documents.
        """
        stretch, loader = self.table.stretch(step), self.loader_at(step)
        place, visits = self.place(step), visits_of(loader, step)
        edges = np.searchsorted(visits.sample, np.arange(place.num_samples + 1))
        for rank, losses in self.table.of(step).items():
            samples = self.samples_of(step, rank)
            sample, mine = expanded(edges[samples], edges[samples + 1] - edges[samples])
            wanted = len(samples) if stretch.per == "sample" else len(mine)
            if len(losses) != wanted:
                raise StateMismatchError(
                    f"{self.table.path}: step {step} has {len(losses)} losses of rank {rank}, and the order {wanted} "
                    f"{stretch.per}s: {WHOSE}"
                )
            visits.loss[mine] = losses[sample] if stretch.per == "sample" else losses
        return visits.take(visits.sample < place.num_samples - place.padding) if place.padding else visits

    def place(self, step: int) -> Place:
        """Where the batch of a step is, of all ranks together. StateMismatchError if the order has no such step."""
        loader = self.loader_at(step)
        try:
            return global_place(loader, step)
        except IndexError as error:
            raise StateMismatchError(f"{self.table.path}: there are losses of step {step}: {error}: {WHOSE}") from error

    def samples_of(self, step: int, rank: int) -> IntArray:
        """Which samples of the global batch a rank had, in the order of its own batch."""
        loader, number = self.loader_at(step), int(self.table.stretch_of[self.table.place(step)])
        stretch, place = self.table.stretches[number], self.place(step)
        every: IntArray = np.arange(rank, place.num_samples, stretch.world)
        if stretch.balance is None:
            return every
        schedule = replace(loader.schedule, shard=Shard(0, stretch.world), is_dealt=True)  # all ranks find the same
        if number not in self._dealings:
            try:
                self._dealings[number] = make_dealing(stretch.balance, schedule)
            except (KeyError, TypeError, ValueError) as error:
                raise StateMismatchError(
                    f"{self.table.path}: samples cannot be assigned to ranks as the log says: {error}"
                ) from error
        dealt = replace(loader.work, dealing=self._dealings[number]).dealt(schedule.place(step))
        own = dealt.of_rank(Shard(rank, stretch.world))
        return np.concatenate([own, every[len(own) :]])  # what fills a batch up is every world-th again

    def steps_with(self, record: RecordKey, most: int = 100) -> Sequence[int]:
        """The logged steps at which a record comes, as far as the order can say so without looking at all of them; at most
        ``most``.
        """
        if not self.knows_documents(record.source):
            return []
        key, found = self.key(record), set[int]()
        for number in np.unique(self.table.stretch_of).tolist():
            steps = self.table.steps[self.table.stretch_of == number]
            loader = self.loader_at(int(steps[0]))
            try:
                for some in _searched(loader, steps):
                    seen = np.array([one["step"] for one in loader.where(key, steps=some)], np.int64)
                    found.update(np.intersect1d(seen, steps).tolist())
                    if len(found) >= most:
                        break
            except (TypeError, ValueError, IndexError):  # an order without an inverse, phases, or steps that it does not have
                return []
        return sorted(found)[:most]

    def knows_documents(self, source: int) -> bool:
        """Whether ids of a stream are those of records or documents; otherwise they are first tokens of samples."""
        return bool(getattr(self.part(source), "has_documents", True))

    def key(self, record: RecordKey) -> Any:
        """A record as ``where`` and ``without`` name it: its id, or (name, id) in a mixture."""
        return key_in(self.given.stream, record)

    def batch(self, step: int) -> Any:
        """The exact batch of a step, of all ranks together, read and transformed anew. ValueError if the loader had a transform,
        and is not given.
        """
        if self.lacks_transform:
            raise ValueError(
                f"{self.table.path}: the loader of the run had a transform, which a log does not keep: give the loader "
                "(--of MODULE:FUNCTION in a shell)"
            )
        return self.loader_at(step).work.make(self.place(step))


def key_in(stream: Stream, record: RecordKey) -> Any:
    """A record as :meth:`penstock.Loader.where` names it."""
    if not isinstance(stream, MixedStream):
        return record.id
    first = 0
    for name, part in zip(stream.names, stream.streams, strict=True):
        width = len(leaf_names(part))
        if record.source < first + width:
            return name, key_in(part, RecordKey(record.source - first, record.id))
        first += width
    raise IndexError(f"there is no stream {record.source} among {leaf_names(stream)}")
