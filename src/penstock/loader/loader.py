"""Loader: executes a stream. It holds the only thing that changes, a cursor."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from types import TracebackType
from typing import Any

from penstock.argument import byte_size, shown, whole_number
from penstock.errors import BatchError, StateError, StateMismatchError
from penstock.interfaces import IntArray
from penstock.interrupt import shielded
from penstock.loader.batches import Batches, close_of
from penstock.loader.engine import Engine, Lent
from penstock.loader.needs import Forecast, forecast, network
from penstock.loader.schedule import TAILS, EpochSchedule, PhaseSchedule, Place, Schedule
from penstock.loader.start import make_engine
from penstock.loader.state import WHOLE, Known, State, check_state, make_state, parse_state
from penstock.loader.stats import Meter, Stats
from penstock.loader.work import SOURCE, VALID, OnError, Work, seed_for
from penstock.order import Cursor, Phase, Shard
from penstock.records import SAMPLINGS, Outputs, Source, fixed_output, is_same_data
from penstock.source.fingerprint import fingerprint_of
from penstock.stream import Stream

__all__ = ["Loader"]


class Loader:
    """Batches of a stream, in order, read ahead of time.

    ``for batch in loader`` gives the rest of the epoch; the next ``for`` is the next epoch. ``loader.forever()`` never ends. A
    batch is a dict of arrays; fields of varying length are :class:`~penstock.Ragged`.

    * ``batch_size``  samples of a batch of the whole job; ``shard`` takes this rank's part of it
    * ``tail``        what happens to a last, short batch: "keep" it, "drop" it, "pad" it (batches then have a field ``valid``), or
      "wrap" around into the next epoch
    * ``prefetch``    bytes that may be read ahead, such as "64MB"; left out, as many as are useful
    * ``threads``     how many read and transform; 0 reads in the caller's thread, when asked
    * ``transform``   ``fn(batch)``, or ``fn(batch, info)`` with ``info.step``, ``.epoch``, ``.ids`` and ``.seeds``, one per sample
    * ``executor``    any ``concurrent.futures.Executor``, for transforms that hold the interpreter
    * ``ids``         the name of a field to add, with the record ids; with a mixture they count within each stream, and a field
      ``<ids>_source`` has the number of the stream in ``loader.stream.leaf_names``
    * ``on_error``    "raise", "skip" (unreadable records are replaced by others, the same in every run), or a function that is told
    * ``phases``      a curriculum, instead of ``batch_size``
    * ``restart``     every ``for`` begins at step 0 again: for evaluation, which is to see the same records each time
    * ``check``       how a state knows the data again: by "samples" spread over it, or as a "whole", by a digest of all records,
      which are read for it at the first :meth:`state_dict` and at every :meth:`load_state_dict`
    * ``out``         memory of your own (pinned, shared) to be filled: dicts of arrays, used in turn; a batch lives until as many
      others as there are dicts have been taken

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
        self._first = _make_schedule(stream, batch_size, phases, tail, self._shard)
        self._schedule = self._zero = self._first
        self._batch_size = batch_size
        self._phases = None if phases is None else tuple(phases)
        stream = self._zero.stream
        _check_added(stream, ids, tail)
        if out and executor is not None:
            raise ValueError("out is memory of this process, which an executor cannot fill")
        self._work = Work(stream, transform, ids, on_error, tail == "pad", _checked_out(out, stream, self._most_samples()))
        self._budget = None if prefetch is None else byte_size("prefetch", prefetch, least=0)
        self._threads = min(8, os.cpu_count() or 1) if threads is None else whole_number("threads", threads, most=1024)
        self._executor = None if executor is None else Lent(executor)
        self._restart = restart
        self._check = check
        self._whole: str | None = None  # the digest of all records, once it was computed
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
    def restart(self) -> bool:
        """Whether every ``for`` begins at step 0 again."""
        return self._restart

    @property
    def step(self) -> int:
        """The step of the next batch: batches delivered so far, in this run and those it goes on from."""
        return self._at[0]

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        if self._restart:
            return 0
        return self._schedule.epoch_at(*self._at[:2])

    def __len__(self) -> int:
        """Batches of the current epoch, those already delivered included; TypeError if it never ends."""
        if self._phases is None:
            len(self.stream)
        return self._schedule.steps_in(self.epoch) if self._phases is None else self._phase_schedule.total

    @property
    def _phase_schedule(self) -> PhaseSchedule:
        assert isinstance(self._schedule, PhaseSchedule)
        return self._schedule

    def remaining(self) -> range:
        """The steps that ``for batch in loader`` gives next: the rest of the epoch, or of all phases."""
        if self._restart:
            return range(self._zero.first_step(1))
        end = self._phase_schedule.total if self._phases is not None else self._schedule.first_step(self.epoch + 1)
        return range(self.step, max(self.step, end))

    def seek(self, step: int) -> None:
        """Go to any step, in the past or the future; it costs the same wherever it is."""
        if self._restart:
            raise ValueError("a loader with restart=True begins every iteration at step 0: leave restart out to seek")
        self._seek(whole_number("step", step))

    def _seek(self, step: int) -> None:
        if step == self._schedule.total:
            self._move(step, *self._end(step))
            return
        place = self._schedule.place(step)
        self._move(step, place.epoch, place.position)

    def _end(self, step: int) -> tuple[int, int]:
        if step == 0:
            return 0, 0
        last = self._schedule.place(step - 1)
        return last.next_epoch, last.next_position

    def _rewind(self) -> None:
        """What every new iteration does first: a loader for evaluation goes back to step 0."""
        if self._restart:
            self._schedule = self._zero
            self._move(0, 0, 0)

    def _move(self, step: int, epoch: int, position: int) -> None:
        self._at = (step, epoch, position)
        self._moves += 1

    # Batches

    def __iter__(self) -> "Batches":
        return Batches(self, endless=False)

    def forever(self) -> "Batches":
        """Batches without end, epoch after epoch; with phases, until the last one is over."""
        if self._phases is None and not self._schedule.is_endless:
            raise ValueError(
                f"an epoch has no batch ({self.stream.num_samples} samples, batches of {self._batch_size}): nothing would ever come"
            )
        return Batches(self, endless=True)

    @shielded
    def close(self) -> None:
        """Stop reading ahead, in every iterator. Idempotent; the loader can be used again, and goes on where it stands."""
        close_of(self)

    def __enter__(self) -> "Loader":
        return self

    @shielded
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _start(self, first: int, end: int | None) -> Engine:
        return make_engine(
            self._work,
            self._schedule,
            first,
            end,
            budget=self._budget,
            threads=self._threads,
            executor=self._executor,
            meter=self._meter,
        )

    def _delivered(self, place: Place) -> None:
        self._at = (place.step + 1, place.next_epoch, place.next_position)

    # State

    @property
    def cursor(self) -> Cursor:
        """Seed, epoch and position, in 24 bytes."""
        return Cursor(self.stream.seed, *self._at[1:])

    def _plan(self, of_stream: Mapping[str, Any]) -> dict[str, str]:
        plan = {key: str(value) for key, value in of_stream.items()}
        if self._phases is not None:
            plan["phases"] = repr(self._phases) if len(self._phases) < 9 else fingerprint_of(repr(self._phases))
        return plan

    @cached_property
    def _identity(self) -> tuple[Known, dict[str, str]]:
        """What is known of the data, and the plan; computed once, because files are looked at for it."""
        return self._known(), self._plan(self.stream.plan())

    def _known(self) -> Known:
        found = {sampling.name: self.stream.sample_digest(sampling) for sampling in SAMPLINGS}
        if self._check == WHOLE:
            found[WHOLE] = self._whole or self.stream.data_digest()
        return Known(self.stream.data_fingerprint, {name: digest for name, digest in found.items() if digest is not None})

    def _differences(self, known: Known) -> list[str]:
        """How the data differs from that of a state; it is looked at anew."""
        if self._check == WHOLE:
            own = self._whole = self.stream.data_digest()
            theirs = known.samples.get(WHOLE, "no digest of all records")
            return [] if own == theirs else [f"data: {shown(theirs[:24])} in the state, {own[:24]!r} of all records here"]
        stream = self.stream
        if is_same_data(known.samples, known.fingerprint, stream.sample_digest, lambda: stream.data_fingerprint):
            return []
        own = stream.data_fingerprint
        if own == known.fingerprint:
            return ["data: names, sizes and ends of the files are those of the state, what is between them is not"]
        return [f"data: {shown(known.fingerprint[:16])} in the state, {own[:16]!r} here"]

    def state_dict(self) -> dict[str, Any]:
        """The state as plain JSON types. It counts what was delivered, never what was read ahead."""
        (data, plan), (step, epoch, position) = self._identity, self._at
        cursor = Cursor(self.stream.seed, epoch, position)
        return make_state(cursor, step, self._batch_size or 0, data, plan, self.stream.order_version)

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Go on where a run stood. The number of ranks and the batch size may be others; data and order may not.

        ``strict=False`` takes the state of other data or another order; only position and step are then used.
        """
        found, stream = parse_state(state), self._first.stream
        if strict:
            stream = self._fitting(found, stream)
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

    def _fitting(self, state: State, stream: Stream) -> Stream:
        """The stream that goes on with a state: the loader's own, or the order of an older version of it."""
        if state.order_version > stream.order_version:
            raise StateMismatchError(f"the state has order version {state.order_version}, this loader {stream.order_version}")
        is_old = state.order_version < stream.order_version
        stream, plan = stream.continued(state.cursor.epoch) if is_old else (stream, stream.plan())
        check_state(state, self._plan(plan), self._differences(state.data))
        if state.cursor.seed != stream.seed:
            raise StateMismatchError(f"the state has the seed {state.cursor.seed}, this loader {stream.seed}")
        return stream

    def _follow(self, stream: Stream) -> None:
        """Load another stream from here on."""
        if stream is not self._zero.stream:
            self._schedule = self._zero = replace(self._first, stream=stream)
            self._work = self._work.of_stream(stream)
            self.__dict__.pop("_identity", None)

    def get_state(self) -> bytes:
        """The 24-byte cursor. ValueError where the run goes on in the order of version 1, which 24 bytes cannot say."""
        if self.stream.order_version < self._first.stream.order_version:
            raise ValueError("this run goes on in the order of version 1, which 24 bytes cannot say: use state_dict()")
        return bytes(self.cursor)

    def set_state(self, state: bytes) -> None:
        """Go to the place of a cursor that :meth:`get_state` gave. Only its seed is compared; :meth:`load_state_dict` is sure."""
        cursor = Cursor.from_bytes(state)
        if cursor.seed != self.stream.seed:
            raise StateMismatchError(f"the state has the seed {cursor.seed}, this loader {self.stream.seed}")
        with self._unchanged_if_refused():
            self._go_on(None, cursor.epoch, cursor.position)

    def _go_on(self, step: int | None, epoch: int, position: int) -> None:
        zero = self._zero
        if isinstance(zero, PhaseSchedule):
            self._go_on_in_phases(zero, step, epoch, position)
            return
        axis = zero.axis_of(epoch)
        if position > axis or (position and position == axis):
            raise StateError(f"damaged state: position {position} of an epoch of {axis}")
        expected = zero.first_step(epoch) + -(-position // max(1, (self._batch_size or 1) * zero.stream.stride))
        for candidate in (expected, expected - 1):
            if candidate >= 0 and (step is None or candidate == step) and _stands_at(zero, candidate, epoch, position):
                self._schedule = zero
                self._move(candidate, epoch, position)
                return
        anchor = expected if step is None else step
        self._schedule = replace(zero, start=anchor, epoch=epoch, position=position)
        self._move(anchor, epoch, position)

    def _go_on_in_phases(self, zero: PhaseSchedule, step: int | None, epoch: int, position: int) -> None:
        total = zero.total
        if step is None:
            line = position if zero.stream.counts_samples else epoch * zero.stream.axis + position
            low, high = 0, total
            while low < high:
                middle = (low + high) // 2
                place = zero.place(middle)
                at = place.position if zero.stream.counts_samples else place.epoch * zero.stream.axis + place.position
                low, high = (middle + 1, high) if at < line else (low, middle)
            step = low
        if step > total:
            raise StateError(f"damaged state: step {step} of a curriculum of {total}")
        place_epoch, place_position = self._end(step) if step == total else (zero.place(step).epoch, zero.place(step).position)
        if (place_epoch, place_position) != (epoch, position):
            raise StateMismatchError(
                f"step {step} of these phases stands at {(place_epoch, place_position)}, the state at {(epoch, position)}"
            )
        self._move(step, epoch, position)

    # Questions

    def explain(self, step: int) -> dict[str, Any]:
        """What is in the batch of any step, past or future, on all ranks together; nothing is read."""
        schedule = replace(self._schedule, shard=Shard())
        place = schedule.place(whole_number("step", step))
        picks = self._work.picks(place)
        return {"step": place.step, "epoch": place.epoch, "position": place.position, **picks.describe()}

    def where(self, record: Any, *, epochs: range | None = None) -> list[dict[str, int]]:
        """Epoch, position and step of every time a record comes in those epochs (the current one unless given)."""
        if not isinstance(self._schedule, EpochSchedule):
            raise TypeError("with phases, ask the stream: loader.stream.where(record)")
        found = []
        for epoch, position in self.stream.where(record, epochs=range(self.epoch, self.epoch + 1) if epochs is None else epochs):
            step = self._schedule.step_of(epoch, position)
            if step is not None and not self.stream.is_banned(record, step):
                found.append({"epoch": epoch, "position": position, "step": step})
        return found

    def seed_for(self, ids: IntArray, *, epoch: int | None = None) -> Any:
        """A seed for each record, different in every epoch, for random transforms that can be repeated."""
        return seed_for(self.stream.seed, self.epoch if epoch is None else epoch, ids)

    def stats(self) -> Stats:
        """Where the time goes, and one sentence of advice."""
        return self._meter.read(self._threads, self._work.skipped, network(self.stream))

    def forecast(self) -> Forecast:
        """What the rest of the epoch is going to take from object stores; nothing is fetched."""
        return forecast(self._work, self._schedule, self.remaining())

    def __getstate__(self) -> dict[str, Any]:
        """For another process: everything but the figures, the lock and the executor, which are this process's."""
        return {**self.__dict__, "_meter": None, "_executor": None, "_turn": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"_check": "samples"} | state)
        self._meter, self._turn = Meter(), threading.Lock()

    def __repr__(self) -> str:
        return f"<penstock Loader: step {self.step}, epoch {self.epoch}, batches of {self._batch_size}, {self.stream!r}>"


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


def _make_schedule(stream: Stream, batch_size: int | None, phases: Sequence[Phase] | None, tail: str, shard: Shard) -> Schedule:
    if (batch_size is None) == (phases is None):
        raise ValueError("a loader needs either a batch_size or phases")
    if phases is not None:
        return PhaseSchedule.of(stream, phases, shard)
    size = whole_number("batch_size", batch_size, least=1)  # type: ignore[arg-type]
    if size % shard.world:
        raise ValueError(f"batch_size is that of the whole job: {size} cannot be divided among {shard.world} ranks")
    schedule = EpochSchedule(stream.for_batches(size, tail), size, tail, shard)
    first, axis = schedule.stream.axes[-1]
    if axis == 0 and first > 0:
        raise ValueError(
            f"from epoch {first} on an epoch has no samples, because an empty stream of the mixture has a weight then: give it 0"
        )
    if first > 0 and not schedule.is_endless:
        raise ValueError(
            f"from epoch {first} on tail='drop' drops every epoch whole: it has {axis} samples, a batch {size}: "
            "use a smaller batch_size, other weights, or another tail"
        )
    if schedule.stream.axis > 0 and schedule.total == 0:
        if schedule.stream.num_samples > 0:
            raise ValueError(
                f"tail='drop' drops every epoch whole: it has {schedule.stream.num_samples} samples, a batch {size}: "
                "use a smaller batch_size, or another tail"
            )
        raise ValueError(
            f"an epoch has {schedule.stream.axis} tokens, fewer than the {schedule.stream.stride} of a sequence: "
            "use shorter sequences, or tail='wrap'"
        )
    return schedule


def _stands_at(schedule: EpochSchedule, step: int, epoch: int, position: int) -> bool:
    """Whether the batch of a step begins there."""
    try:
        place = schedule.place(step)
    except IndexError:
        return False
    return (place.epoch, place.position) == (epoch, position)
