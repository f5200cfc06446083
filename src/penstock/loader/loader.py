"""Loader: executes a stream. It holds the only thing that changes, a cursor."""

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from types import TracebackType
from typing import Any

import numpy as np

from penstock.argument import MAX_LENGTH, IntArray, byte_size, shown, whole_number
from penstock.batch import Outputs, fixed_output
from penstock.errors import BatchError, StateError, StateMismatchError
from penstock.interrupt import check as check_interrupt
from penstock.interrupt import lower, shield, shielded
from penstock.loader.engine import Engine, ExecutorEngine, Lent, PlainEngine, ThreadEngine
from penstock.loader.lookahead import Forecast, Lookahead, forecast, network, windows_of
from penstock.loader.make_batch import SOURCE, VALID, Dealing, OnError, Work, seed_for
from penstock.loader.native_engine import PINNED_PART, NativeEngine, NativeGroup, native_groups
from penstock.loader.schedule import TAILS, Place, Schedule, make_schedule
from penstock.loader.state import WHOLE, Identity, parse_state
from penstock.loader.stats import Meter, Stats
from penstock.order import Balance, Cursor, Phase, Shard
from penstock.order.balance import TOKENS
from penstock.records import Source
from penstock.remote.window import Window, is_changing
from penstock.stream import Stream

__all__ = ["Batches", "Loader", "make_dealing"]

MOST_MEASURED = 1000
"""Steps whose padding is added up."""


class Loader:
    """Batches of a stream, in order, prefetched.

    ``for batch in loader`` is the rest of the epoch; the next ``for`` is the next epoch. ``loader.forever()`` never ends. A
    batch is a dict of arrays; fields of varying length are :class:`~penstock.Ragged`.

    * ``batch_size``  the global batch size, over all ranks; ``shard`` selects this rank's part
    * ``tail``        what happens to a last, short batch: "keep" it, "drop" it, "pad" it (batches then have a field ``valid``), or
      "wrap" around into the next epoch
    * ``prefetch``    bytes to prefetch, such as "64MB"; by default chosen by the loader
    * ``threads``     number of threads that read and transform; 0 reads in the caller's thread, on demand
    * ``transform``   ``fn(batch)``, or ``fn(batch, info)`` with ``info.step``, ``.epoch``, ``.ids`` and ``.seeds``, one per sample
    * ``executor``    any ``concurrent.futures.Executor``, for transforms that hold the GIL
    * ``ids``         the name of a field to add, with the record ids; with a mixture they count within each stream, and a field
      ``<ids>_source`` has the number of the stream in ``loader.stream.leaf_names``
    * ``on_error``    "raise", "skip" (unreadable records are replaced by others, the same in every run), or a function to call
    * ``phases``      a curriculum, instead of ``batch_size``
    * ``balance``     "attention", "tokens", the name of a field, or a :class:`~penstock.Balance`: ranks get equal numbers of
      samples at about the same total cost, instead of every world-th sample. The global batch stays the same
    * ``batch_tokens``  instead of ``batch_size``, for packs of that length: the batch of a rank is one packed sequence, with
      exactly the ``cu_seqlens`` of its documents
    * ``restart``     every ``for`` starts at step 0: for evaluation, which needs the same records each time
    * ``check``       how a state identifies the data: by "samples" spread over it, or "whole", by a digest of all records, which
      are read at the first :meth:`state_dict` and at every :meth:`load_state_dict`
    * ``out``         a ring of preallocated buffers (pinned, shared): dicts of arrays. Batch i is overwritten by batch
      i + len(out)

    >>> import numpy as np, penstock as pen
    >>> loader = pen.Loader(pen.open(np.arange(10), field="x").shuffle(seed=7), batch_size=4)
    >>> [len(batch["x"]) for batch in loader]
    [4, 4, 2]
    >>> state = loader.state_dict()
    >>> loader.epoch, loader.step
    (1, 3)
    """

    def __init__(
        self,
        stream: Stream | Source,
        batch_size: int | None = None,
        *,
        shard: Shard | None = None,
        tail: str = "keep",
        prefetch: int | str | None = None,
        threads: int | None = None,
        transform: Callable[..., Any] | None = None,
        executor: Executor | None = None,
        ids: str | None = None,
        on_error: OnError = "raise",
        phases: Sequence[Phase] | None = None,
        out: Sequence[Outputs] = (),
        restart: bool = False,
        check: str = "samples",
        balance: Balance | str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        if isinstance(stream, Source):
            stream = stream.in_order()
        if not isinstance(stream, Stream):
            raise TypeError(f"expected a stream, such as source.shuffle(seed=7), or a source, got {type(stream).__name__}")
        if tail not in TAILS:
            raise ValueError(f"tail must be one of {', '.join(TAILS)}, got {tail!r}")
        if on_error not in ("raise", "skip") and not callable(on_error):
            raise ValueError(f"on_error must be 'raise', 'skip' or a function, got {on_error!r}")
        if check not in ("samples", WHOLE):
            raise ValueError(f"check must be 'samples' or 'whole', got {check!r}")
        self._shard = Shard() if shard is None else shard
        if batch_tokens is not None:
            batch_size = _rows_of(stream, batch_tokens, (batch_size, phases, balance), self._shard)
        self._balance = None if balance is None else Balance.of(balance)
        self._first = make_schedule(stream, batch_size, phases, tail, self._shard)
        dealing = None if self._balance is None else make_dealing(self._balance, self._first)
        if dealing is not None:
            self._first = replace(self._first, is_dealt=True)
        self._schedule = self._zero = self._first
        self._batch_size = batch_size
        self._phases = None if phases is None else tuple(phases)
        stream = self._zero.stream
        _check_added(stream, ids, tail)
        if out and executor is not None:
            raise ValueError("out is memory of this process, which an executor cannot fill")
        self._work = Work(
            stream,
            transform,
            ids,
            on_error,
            tail == "pad",
            _checked_out(out, stream, self._most_samples()),
            dealing,
            is_flat=batch_tokens is not None,
        )
        self._budget = None if prefetch is None else byte_size("prefetch", prefetch, least=0)
        self._threads = min(8, os.cpu_count() or 1) if threads is None else whole_number("threads", threads, most=1024)
        self._executor = None if executor is None else Lent(executor)
        self._restart = restart
        self._identity = Identity(stream, self._phases, check)
        self._meter = Meter()
        self._at = (0, 0, 0)  # step, epoch, position; replaced as a whole, so that other threads may look
        self._moves = 0  # how often the cursor was set; batches under way are then worth nothing
        self._turn = threading.Lock()  # held by the iterator that takes a batch

    def _most_samples(self) -> int:
        """Samples of the largest batch of this rank."""
        sizes = [self._batch_size or 0, *(phase.batch_size for phase in self._phases or ())]
        return max(sizes) // self._shard.world

    # Where the run stands

    @property
    def stream(self) -> Stream:
        """What is loaded."""
        return self._work.stream

    @property
    def shard(self) -> Shard:
        """This rank's part of every batch."""
        return self._shard

    @property
    def threads(self) -> int:
        """How many threads read and transform."""
        return self._threads

    @property
    def engine(self) -> str:
        """What makes the batches: "native" threads, Python "threads", an "executor", or the "caller" with ``threads=0``."""
        return self._choose_engine()[0]

    @property
    def restart(self) -> bool:
        """Whether every ``for`` starts at step 0."""
        return self._restart

    @property
    def phases(self) -> tuple[Phase, ...] | None:
        """The curriculum; None with a batch size."""
        return self._phases

    @property
    def balance(self) -> Balance | None:
        """How samples are assigned to ranks by cost; None if each rank takes every world-th sample."""
        return self._balance

    # For delivery to frameworks, which make batches in workers of their own and count them here

    @property
    def schedule(self) -> Schedule:
        """Where in the stream each step is."""
        return self._schedule

    @property
    def work(self) -> Work:
        """What makes the batch of a place in the schedule. Another object after a state of an older order was loaded."""
        return self._work

    @property
    def moves(self) -> int:
        """How often the cursor was set. Batches prefetched before that are discarded."""
        return self._moves

    @property
    def step(self) -> int:
        """The step of the next batch: batches delivered so far, in this run and the runs it continues."""
        return self._at[0]

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._zero.epoch_at(0, 0) if self._restart else self._schedule.epoch_at(*self._at[:2])

    def __len__(self) -> int:
        """Batches of the current epoch, those already delivered included; TypeError if it never ends."""
        if self._phases is None and self.stream.endless_epoch == self.epoch:
            raise TypeError("an epoch of this mixture never ends, so it has no length")
        return self._schedule.steps_in(self.epoch) if self._phases is None else self._schedule.total or 0

    def remaining(self) -> range:
        """The steps of the next ``for batch in loader``: the rest of the epoch, or of all phases."""
        if self._restart:
            return range(self._zero.first_step(self.epoch + 1))
        end = self._schedule.first_step(self.epoch + 1) if self._phases is None else self._schedule.total or 0
        return range(self.step, max(self.step, end))

    def seek(self, step: int) -> None:
        """Move to any step, past or future, at constant cost."""
        if self._restart:
            raise ValueError("a loader with restart=True begins every iteration at step 0: leave restart out to seek")
        self.move_to(whole_number("step", step))

    def move_to(self, step: int) -> None:
        """:meth:`seek`, also within an iteration of a loader with ``restart=True``."""
        if step == self._schedule.total:
            self._move(step, *self._schedule.end(step))
            return
        place = self._schedule.place(step)
        self._move(step, place.epoch, place.position)

    def rewind(self) -> None:
        """What every new iteration does first: a loader for evaluation goes back to step 0."""
        if self._restart:
            self._schedule = self._zero
            self._move(0, 0, 0)

    def begin_epoch(self, epoch: int) -> None:
        """Move to the first batch of an epoch, whatever state was loaded; with phases or ``restart=True``, to step 0."""
        self._schedule = self._zero
        self.move_to(self._zero.first_step(epoch) if self._phases is None and not self._restart else 0)

    def _move(self, step: int, epoch: int, position: int) -> None:
        self._at = (step, epoch, position)
        self._moves += 1

    # Batches

    def __iter__(self) -> "Batches":
        return Batches(self, endless=False)

    def batch(self, step: int) -> Any:
        """This rank's batch of any step, past or future, read now, in the caller's thread; the loader does not move."""
        work = replace(self._work, out=()) if self._work.out else self._work
        return work.make(self._schedule.place(whole_number("step", step)))

    def forever(self) -> "Batches":
        """Batches without end, epoch after epoch; with phases, until the last one ends; with caps, until all are reached."""
        if self._phases is None and not self._schedule.is_endless and not self.stream.is_finite:
            raise ValueError(
                f"an epoch has no batch ({self.stream.num_samples} samples, batches of {self._batch_size}): "
                "no batch would ever be returned"
            )
        return Batches(self, endless=True)

    @shielded
    def close(self) -> None:
        """Stop prefetching, in every iterator. Idempotent; the loader can be used again, and continues at its current step."""
        close_of(self)

    def __enter__(self) -> "Loader":
        return self

    @shielded
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _choose_engine(self) -> tuple[str, list[NativeGroup] | None]:
        """The name of the engine that fits, and what native threads read."""
        work, schedule = self._work, self._schedule
        if self._executor is not None:
            return "executor", None
        if self._threads == 0 or len(work.out) == 1:
            return "caller", None
        groups = native_groups(work.stream) if work.transform is None and not work.out else None
        sizes = [(count // schedule.shard.world, length) for count, length in schedule.shapes]
        if groups is not None and not all(group.allows(*size) for group in groups for size in sizes):
            groups = None
        return ("threads" if groups is None else "native"), groups

    def _start(self, first: int, end: int | None) -> Engine:
        """The engine that fits, for steps from ``first`` on; until ``end``, if there is one."""
        work, schedule, budget, threads, meter = self._work, self._schedule, self._budget, self._threads, self._meter
        work.prepare()
        steps = range(first, MAX_LENGTH if end is None else end)
        places = map(schedule.place, steps)
        name, groups = self._choose_engine()
        if self._executor is not None:
            return ExecutorEngine(work, places, budget, self._executor, Lookahead(work, schedule, range(0)), meter)
        if name == "caller":
            return PlainEngine(work, places, Lookahead(work, schedule, steps, disk=False), meter)
        ahead = Lookahead(work, schedule, steps, part=1.0 if groups is None else PINNED_PART)
        try:
            if groups is not None:
                return NativeEngine(work, groups, schedule, steps, budget, threads, ahead, meter)
            return ThreadEngine(work, places, budget, threads, ahead, meter)
        except BaseException:  # such as no more threads
            ahead.close()
            raise

    # State

    @property
    def cursor(self) -> Cursor:
        """Seed, epoch and position, in 24 bytes."""
        return Cursor(self.stream.seed, *self._at[1:])

    def state_dict(self) -> dict[str, Any]:
        """The state as plain JSON types. It counts delivered batches, never prefetched ones."""
        step, epoch, position = self._at
        return self._identity.state(Cursor(self.stream.seed, epoch, position), step, self._batch_size or 0)

    def state_at(self, step: int) -> dict[str, Any]:
        """The state before a step, past or future, as :meth:`state_dict` returns it there; the loader does not move.

        For trainers that count the steps themselves, or take batches before they train on them.
        """
        step = whole_number("step", step)
        if step == self._schedule.total:
            epoch, position = self._schedule.end(step)
        else:
            place = self._schedule.place(step)
            epoch, position = place.epoch, place.position
        return self._identity.state(Cursor(self.stream.seed, epoch, position), step, self._batch_size or 0)

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Continue a run. The number of ranks and the batch size may differ; data and order may not.

        ``strict=False`` accepts the state of other data or another order, and uses only its position and step.
        """
        found, stream = parse_state(state), self._first.stream
        if strict:
            stream = self._identity.fitting(found, stream)
        if self._restart:  # the next iteration begins at step 0
            return
        with self._unchanged_if_refused():
            self._follow(stream)
            self._go_on(found.step, found.cursor.epoch, found.cursor.position)

    @contextmanager
    def _unchanged_if_refused(self) -> Iterator[None]:
        before = dict(self.__dict__)
        try:
            yield
            self._check_place()
        except BaseException:
            self.__dict__.update(before)
            raise

    def _check_place(self) -> None:
        """StateError if there is no such place as the cursor names: no run gets there."""
        step, epoch, position = self._at
        if step >= 2**63:
            raise StateError(f"damaged state: step {step}, which no run reaches")
        if step == self._schedule.total:
            return
        try:
            self._work.picks(self._schedule.place(step))
        except (BatchError, IndexError) as error:
            raise StateError(f"damaged state: epoch {epoch}, position {position}: {shown(str(error))}") from error

    def _follow(self, stream: Stream) -> None:
        """Load another stream from here on."""
        if stream is not self._zero.stream:
            self._schedule = self._zero = replace(self._first, stream=stream)
            self._work = self._work.of_stream(stream)
            self._identity = self._identity.of_stream(stream)

    def get_state(self) -> bytes:
        """The 24-byte cursor. ValueError if the run continues in the order of version 1, which 24 bytes cannot express."""
        if self.stream.order_version < self._first.stream.order_version:
            raise ValueError("this run continues in the order of version 1, which 24 bytes cannot express: use state_dict()")
        return bytes(self.cursor)

    def set_state(self, state: bytes) -> None:
        """Move to a cursor from :meth:`get_state`. Compares only the seed; :meth:`load_state_dict` also compares data and order."""
        cursor = Cursor.from_bytes(state)
        if cursor.seed != self.stream.seed:
            raise StateMismatchError(f"the state has the seed {cursor.seed}, this loader {self.stream.seed}")
        with self._unchanged_if_refused():
            self._go_on(None, cursor.epoch, cursor.position)

    def _go_on(self, step: int | None, epoch: int, position: int) -> None:
        self._schedule, step = self._zero.resumed(step, epoch, position)
        self._move(step, epoch, position)

    # Questions

    def explain(self, step: int, *, documents: bool = False) -> dict[str, Any]:
        """The content of the global batch of any step, past or future; reads no record.

        For sequences and packs, ``documents`` has (document, from, to) of every sample, if documents are known.
        ``documents=True`` also finds documents that end with a separator in token files; the first call reads all tokens.
        """
        schedule = replace(self._schedule, shard=Shard(), is_dealt=False)
        place = schedule.place(whole_number("step", step))
        told = self._work.stream_for(place).explain(self._work.picks(place), documents=documents)
        if self._balance is not None:
            told |= self._dealt(place)
        return {"step": place.step, "epoch": place.epoch, "position": place.position, **told}

    def _dealt(self, place: Place) -> dict[str, IntArray]:
        """Rank and micro-batch of every sample of a batch, and what it costs; what fills the batch up costs nothing."""
        dealt = self._work.dealt(self._schedule.place(place.step))
        world, micro = self._shard.world, self._balance.micro_batches if self._balance is not None else 1
        rank, slot = np.divmod(dealt.slots, micro)
        filling = np.arange(rank.size, place.num_samples)
        size = max(1, place.num_samples // (world * micro))
        costs = np.concatenate([dealt.costs, np.zeros(filling.size, dealt.costs.dtype)])
        return {
            "rank": np.concatenate([rank, filling % world]),
            "slot": np.concatenate([slot, filling // world // size]),
            "cost": costs,
        }

    def where(self, record: Any, *, epochs: range | None = None, steps: range | None = None) -> list[dict[str, int]]:
        """Epoch, position and step of every use of a record or document in those epochs (default: the current one), or
        at those steps, which are required if an epoch never ends.
        """
        if self._phases is not None:
            raise TypeError("with phases, ask the stream: loader.stream.where(record)")
        before = None
        if steps is not None:
            if epochs is not None:
                raise ValueError("give epochs or steps, not both")
            if not steps:
                return []
            last = self._schedule.place(max(steps))
            epochs, before = range(self._schedule.place(min(steps)).epoch, last.next_epoch + 1), last.next_position
        elif epochs is None:
            epochs = range(self.epoch, self.epoch + 1)
        ranges = self.stream.ranges_of(record, epochs, before)
        samples = dict.fromkeys(sample for one in ranges for sample in self._schedule.samples_in(*one))
        return [
            {"epoch": epoch, "position": position, "step": step}
            for epoch, position, step in samples
            if (steps is None or step in steps)
            and self.stream.holds(self.stream.locate_at(epoch, np.array([position]), step), record)
        ]

    def padding_ratio(self, field: str | None = None, *, multiple_of: int = 1, steps: range | None = None) -> float:
        """The share of padding in this rank's batches of the current epoch (of ``steps``, if given) where each is padded to its
        longest record, or to the next multiple; of packs, the share that no document fills. No record is read.

        ``field`` is the one that is padded, where several vary in length. Of more than 1,000 steps, as many are looked at.
        """
        schedule, multiple = self._schedule, whole_number("multiple_of", multiple_of, least=1)
        if steps is None:
            first = schedule.first_step(self.epoch)
            steps = range(first, first + len(self))
        costing = self.stream.costing(Balance(TOKENS, field=field))
        used = total = 0
        for step in steps[:: -(-len(steps) // MOST_MEASURED) or 1]:
            place = schedule.place(step)
            lengths = costing.of(self._work.picks(place))
            longest = self._work.stream_for(place).stride if self.stream.has_sequences else int(lengths.max(initial=0))
            used += int(lengths.sum())
            total += lengths.size * -(-longest // multiple) * multiple
        return 1 - used / total if total else 0.0

    def seed_for(self, ids: IntArray, *, epoch: int | None = None) -> Any:
        """A seed for each record, different in every epoch, for reproducible random transforms."""
        return seed_for(self.stream.seed, self.epoch if epoch is None else epoch, ids)

    def stats(self) -> Stats:
        """Where the time goes, and one sentence of advice."""
        return self._meter.read(self._threads, self._work.skipped, network(self._windows))

    @cached_property
    def _windows(self) -> list[Window]:
        return windows_of(self.stream)

    def forecast(self) -> Forecast:
        """What the rest of the epoch will fetch from object stores; fetches nothing."""
        return forecast(self._work, self._schedule, self.remaining())

    def __getstate__(self) -> dict[str, Any]:
        """For another process: everything but the figures, the lock and the executor, which are this process's."""
        kept = {name: value for name, value in self.__dict__.items() if name != "_windows"}
        return {**kept, "_meter": None, "_executor": None, "_turn": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._meter, self._turn = Meter(), threading.Lock()

    def __repr__(self) -> str:
        return f"<penstock Loader: step {self.step}, epoch {self.epoch}, batches of {self._batch_size}, {self.stream!r}>"


def make_dealing(balance: Balance, schedule: Schedule) -> Dealing:
    """ValueError, TypeError or KeyError if samples cannot be divided so. The costs of records are read."""
    slots = schedule.shard.world * balance.micro_batches
    for size, _ in schedule.shapes:
        if size % slots:
            raise ValueError(
                f"a batch of {size} cannot be divided among {schedule.shard.world} ranks in {balance.micro_batches} micro-batches "
                f"each: use a multiple of {slots}"
            )
    costing = schedule.stream.costing(balance)
    for part in schedule.stream.parts:
        lanes = getattr(part.order, "lanes", 1)
        if lanes > 1:
            raise ValueError(
                f"the order has {lanes} lanes, which give each rank its own blocks, and balance assigns samples to any rank: "
                "leave out lanes, or balance"
            )
    costing.prepare()
    return Dealing(balance, schedule.shard, costing)


def _rows_of(stream: Stream, batch_tokens: int, others: tuple[Any, ...], shard: Shard) -> int:
    """The batch size where the batch of a rank is one packed sequence of ``batch_tokens``."""
    tokens = whole_number("batch_tokens", batch_tokens, least=1)
    if any(other is not None for other in others):
        raise ValueError("batch_tokens makes the batch of a rank one packed sequence: leave out batch_size, phases and balance")
    if {part.packed_length for part in stream.parts} != {tokens}:
        raise ValueError(
            f"batch_tokens={tokens} is for packed sequences of that many tokens: load stream.pack({tokens}, ...), "
            "or a mixture of such streams"
        )
    return shard.world


def _check_added(stream: Stream, ids: str | None, tail: str) -> None:
    """ValueError if a field that the loader adds to its batches would take the place of another."""
    names = () if ids is None else (ids, ids + SOURCE) if stream.is_mixture else (ids,)
    for name in names:
        if name in stream.schema:
            raise ValueError(f"the stream has a field {name!r} already; choose another name for the ids")
        if tail == "pad" and name == VALID:
            raise ValueError(f"tail='pad' adds a field {VALID!r}: choose another name for the ids")
    if tail == "pad" and VALID in stream.schema:
        raise ValueError(
            f"the stream has a field {VALID!r} already: use another tail, or leave the field out with source.pick(...)"
        )


def _checked_out(out: Sequence[Outputs], stream: Stream, count: int) -> tuple[Outputs, ...]:
    """Memory of the user's, large enough for every batch."""
    schema = stream.schema
    for arrays in out:
        for name, array in arrays.items():
            if name not in schema or not schema[name].is_fixed:
                fixed = [one for one, field in schema.items() if field.is_fixed]
                raise ValueError(f"out: expected arrays for fixed fields, among {fixed}, got one for {name!r}")
            if len(array) < count:
                raise ValueError(f"out[{name!r}] must have room for {count} samples, got {len(array)}")
            fixed_output(name, schema[name], count, {name: array[:count]})
    return tuple(out)


# Iterators


class _Closed:
    """An engine that was open. No code runs when it goes, when interrupts are raised anywhere again."""

    engine: Engine

    def close(self) -> None:
        """It is."""


class _Opened(_Closed):
    """An engine, from before it is made until it was closed. While there is one, interrupts wait until the loader can be left."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        self._process = os.getpid()
        shield(self)
        self.engine = make()

    @shielded
    def close(self) -> None:
        """End its threads, unless they are those of the process that this one was forked from."""
        self.__class__ = _Closed  # type: ignore[assignment]
        if hasattr(self, "engine") and self._process == os.getpid():
            self.engine.close()
        lower(self)

    @shielded
    def __del__(self) -> None:
        if is_changing():  # collected as garbage by a thread that has the lock of a window: closed by another, behind that
            threading.Thread(target=self.close, name="penstock-close", daemon=True).start()
        else:
            self.close()


class Batches:
    """An iterator over the batches of a loader. It follows the loader's cursor: after ``seek`` the next batch is that step's."""

    def __init__(self, loader: Loader, *, endless: bool) -> None:
        self._loader, self._endless = loader, endless
        self._opened: _Opened | None = None
        self._moves = -1
        self._end: int | None = None
        self._failure: BaseException | None = None
        loader.rewind()
        self._aim()
        _open.add(self)

    def _aim(self) -> None:
        """Begin, or begin anew, at the loader's cursor."""
        self._drop()
        loader = self._loader
        self._moves = loader._moves
        if self._endless:
            self._end = loader._schedule.total
            return
        self._end = loader.remaining().stop
        if loader.step >= self._end and loader._phases is None and not loader.restart:  # nothing is left of this epoch
            loader._at = (loader.step, loader.epoch + 1, 0)

    def _begin(self) -> Engine:
        """Who makes the batches from here on."""
        return self._loader._start(self._loader.step, self._end)

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> Any:
        check_interrupt()  # in a loop that does little else, an interrupt would hardly ever find the loader idle
        with self._loader._turn:  # the cursor is the loader's: iterators in several threads take turns
            return self._next()

    @shielded
    def _next(self) -> Any:
        loader = self._loader
        loader._meter.enter()
        if self._failure is not None:
            raise self._failure
        if self._moves != loader._moves:
            self._check_restart()
            self._aim()
        if self._end is not None and loader.step >= self._end:
            self._drop()
            raise StopIteration
        opened = self._opened
        try:
            if opened is None:
                opened = self._opened = _Opened(self._begin)
            shield(opened)
            place, batch = opened.engine.take()  # of this one, even if another thread closes the iterator meanwhile
        except BaseException as error:
            self._drop()
            is_end = opened is None or isinstance(error, StopIteration)  # which is what a closed engine raises
            if isinstance(error, Exception) and not is_end:
                self._failure = error
            raise
        if place.step != loader.step:  # another iterator took batches meanwhile
            self._check_restart()
            loader._moves += 1
            return self._next()
        loader._at = (place.step + 1, place.next_epoch, place.next_position)
        loader._meter.leave(place.num_samples)
        return batch

    def _check_restart(self) -> None:
        """The iterations of a loader for evaluation do not share a cursor: a second one ends the first."""
        if self._loader.restart and self._moves >= 0:
            raise RuntimeError("another iteration over this loader with restart=True has begun: finish one before the next")

    @shielded
    def close(self) -> None:
        """Stop reading ahead, also while another thread waits for a batch. Idempotent; a later ``next`` begins again."""
        self._drop()

    def _drop(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def __enter__(self) -> "Batches":
        return self

    @shielded
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


_open: "weakref.WeakSet[Batches]" = weakref.WeakSet()


@shielded
def close_of(loader: Loader) -> None:
    """Close every iterator over a loader."""
    for batches in list(_open):
        if batches._loader is loader:
            batches.close()


def _begin_anew() -> None:
    """In a forked child: the engines are the parent's, and a turn that a thread of the parent has would never end."""
    for batches in list(_open):
        batches._loader._turn = threading.Lock()
        batches._moves = -1


os.register_at_fork(after_in_child=_begin_anew)


@atexit.register
@shielded
def _close_all() -> None:
    """Threads end before the interpreter does. A thread of the user's that still takes batches stops at the next one: its turn is
    taken and not given back, so that it is not in native code when the interpreter goes.
    """
    for batches in list(_open):
        batches.close()
        batches._loader._turn.acquire(timeout=0.5)
        batches.close()
    shield(_close_all)  # for what is closed after this, such as windows on remote data
