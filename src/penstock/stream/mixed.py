"""MixedStream: several streams drawn from by weight."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.errors import SchemaMismatchError
from penstock.interfaces import IntArray
from penstock.order import Mixture, Phase
from penstock.order.mixture import StagedWeights
from penstock.order.phase import Weights
from penstock.ragged import Ragged
from penstock.records import Batch, Outputs, fixed_output, masked
from penstock.schema import Field
from penstock.source.fingerprint import fingerprint_of
from penstock.stream.picks import MixedPicks, Picks, join
from penstock.stream.stream import Stream

__all__ = ["MixedStream", "mix"]


def mix(
    streams: Mapping[str, Stream],
    *,
    seed: int,
    weights: Weights | StagedWeights | None = None,
    stop: str = "first_exhausted",
    batch_size: int = 1,
    unit: str = "sample",
    period: int = 1024,
) -> "MixedStream":
    """Streams drawn from by weight, in closed form: any step of the mixture is found at once.

    ``weights`` are numbers by name (those of the lengths if left out), or ``[(step, weights), ...]`` with ``batch_size`` samples to
    a step. ``stop`` says when an epoch ends: "first_exhausted", "all_exhausted" (smaller ones start over, reshuffled),
    "all_exhausted_without_replacement" (every record once) or "forever". ``unit="batch"`` draws whole batches of ``batch_size``
    samples. Every record comes with its stream's fields; all streams must have the same ones.

    >>> import numpy as np, penstock as pen
    >>> web, code = pen.open({"x": np.zeros(700)}), pen.open({"x": np.ones(300)})
    >>> mixed = pen.mix({"web": web.shuffle(seed=1), "code": code.shuffle(seed=2)}, weights={"web": 0.7, "code": 0.3}, seed=5)
    >>> len(mixed), float(next(iter(pen.Loader(mixed, batch_size=1000)))["x"].mean())
    (1000, 0.3)
    """
    return MixedStream(streams, seed=seed, weights=weights, stop=stop, unit=unit, batch_size=batch_size, period=period)


class MixedStream(Stream):
    """Samples of several streams; made by :func:`mix`."""

    def __init__(self, streams: Mapping[str, Stream], *, phases: Sequence[Phase] | None = None, **options: Any) -> None:
        if not isinstance(streams, Mapping) or not streams:
            raise ValueError(f"expected a dict of streams by name, got {streams!r}")
        for name, stream in streams.items():
            if not isinstance(stream, Stream):
                raise TypeError(f"{name!r} must be a stream, such as source.shuffle(seed=7), got {type(stream).__name__}")
        self._streams, self._options, self._phases = dict(streams), options, None if phases is None else tuple(phases)
        _check_schemas(self._streams)
        lengths = {name: stream.axis if phases is not None else len(stream) for name, stream in streams.items()}
        self._mixture = Mixture(lengths, phases=self._phases, **options)

    @property
    def axis(self) -> int:
        """Samples of an epoch."""
        return len(self._mixture)

    @property
    def elements(self) -> int:
        """Records or tokens of all streams together."""
        return sum(stream.axis for stream in self._streams.values())

    @property
    def counts_samples(self) -> bool:
        """Positions are numbers of samples."""
        return True

    @property
    def seed(self) -> int:
        """The seed of the mixture."""
        return self._mixture.seed

    @property
    def names(self) -> tuple[str, ...]:
        """The streams in their order."""
        return self._mixture.names

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams in their order."""
        return tuple(self._streams.values())

    @property
    def schema(self) -> Mapping[str, Field]:
        """The fields that all streams have."""
        return next(iter(self._streams.values())).schema

    @property
    def data_fingerprint(self) -> str:
        """Of all streams and their names."""
        return fingerprint_of("mixed", [(name, stream.data_fingerprint) for name, stream in self._streams.items()])

    def plan(self) -> dict[str, Any]:
        """Weights, and the plan of every stream."""
        plan: dict[str, Any] = {f"mixture {key}": repr(getattr(self._mixture, key)) for key in self._options}
        for name, stream in self._streams.items():
            plan |= {f"{name}: {key}": value for key, value in stream.plan().items()} | {f"{name}: samples": str(len(stream))}
        return plan

    def with_phases(self, phases: Sequence[Phase]) -> "MixedStream":
        """The same mixture for batches whose shape, and perhaps weights, change during the run."""
        return MixedStream(self._streams, phases=phases, **self._options)

    def sized(self, seq_len: int) -> "MixedStream":
        """The same mixture of samples of another length."""
        streams = {name: stream.sized(seq_len) for name, stream in self._streams.items()}
        return MixedStream(streams, phases=self._phases, **self._options)

    def locate_at(self, epoch: int, positions: IntArray, step: int = 0) -> MixedPicks:
        """The samples at any positions."""
        which, element = self._mixture.choose_at(epoch, positions)
        parts = [self._locate_part(number, element[which == number], step) for number in range(len(self.names))]
        return MixedPicks(self.names, which, tuple(parts))

    def leaves(self, epoch: int, positions: IntArray) -> Iterator[tuple[Stream, int, IntArray]]:
        """The streams from which samples come, each with its own epochs and positions."""
        which, element = self._mixture.choose_at(epoch, positions)
        for number, stream in enumerate(self._streams.values()):
            for _, own_epoch, places in self._places(stream, element[which == number]):
                yield from stream.leaves(own_epoch, places)

    def _places(self, stream: Stream, elements: IntArray) -> Iterator[tuple[IntArray, int, IntArray]]:
        """Elements of a stream's endless line, which are positions with phases and otherwise whole samples, epoch by epoch: which
        of them, the epoch, and their positions in it.
        """
        scale = 1 if self._phases is not None else stream.stride
        length = stream.axis if self._phases is not None else len(stream)
        if elements.size == 0:
            return
        first, last = int(elements.min()) // length, int(elements.max()) // length
        if first == last:  # almost always, and much quicker
            yield np.arange(elements.size), first, (elements - first * length) * scale
            return
        epochs, places = np.divmod(elements, length)
        for epoch in np.unique(epochs).tolist():
            mine = np.flatnonzero(epochs == epoch)
            yield mine, epoch, places[mine] * scale

    def _locate_part(self, number: int, elements: IntArray, step: int) -> Picks | None:
        """Samples of one stream, by their elements on its endless line."""
        if elements.size == 0:
            return None
        stream = self._streams[self.names[number]]
        parts = self._places(stream, elements)
        found = [(mine, stream.locate_at(epoch, places, step)) for mine, epoch, places in parts]
        if len(found) == 1:
            return found[0][1]
        back = np.empty(elements.size, np.int64)
        back[np.concatenate([mine for mine, _ in found])] = np.arange(elements.size)
        joined: Picks = join([picks for _, picks in found]).take(back)
        return joined

    def fetch(self, picks: MixedPicks, out: Outputs | None = None) -> Batch:
        """Read every stream's samples, and put them in their places."""
        if len(picks) == 0:
            first = next(iter(self._streams.values()))
            return first.fetch(first.locate(0, range(0)), out)
        batches = [
            (np.flatnonzero(picks.which == number), self._streams[name].fetch(part))
            for number, (name, part) in enumerate(zip(self.names, picks.parts, strict=True))
            if part is not None
        ]
        if len(batches) == 1 and not out:
            return batches[0][1]
        schema = self.schema
        names = list(batches[0][1])
        return {name: _merge(name, schema, [(m, b[name]) for m, b in batches], len(picks), out or {}) for name in names}

    def without(self, ids: Mapping[str, Any], *, from_step: int = 0) -> "MixedStream":
        """The same mixture in which records, given by the name of their stream, no longer come from ``from_step`` on."""
        unknown = [name for name in ids if name not in self._streams]
        if unknown:
            raise KeyError(f"unknown streams {unknown}; there are {list(self._streams)}")
        streams = dict(self._streams)
        for name, banned in ids.items():
            stream = streams[name]
            if not hasattr(stream, "without"):
                raise TypeError(f"stream {name!r} has no single records to leave out")
            streams[name] = stream.without(banned, from_step=from_step)
        return MixedStream(streams, phases=self._phases, **self._options)

    def where(self, record: Any, *, epochs: range = range(1)) -> list[tuple[int, int]]:
        """(epoch, position) of every time a record comes in those epochs; the record is given as (name of its stream, id)."""
        if not isinstance(record, tuple):
            raise TypeError(f"a record of a mixture is named by (stream, id), got {record!r}")
        if record[0] not in self.names:
            raise KeyError(f"unknown stream {record[0]!r}; there are {list(self.names)}")
        if self._mixture.stop == "forever":
            raise ValueError("an epoch of this mixture never ends, so a record comes in it without end")
        number = self.names.index(record[0])
        stream, given = self._streams[record[0]], self._mixture.plan.given[number]
        found: list[tuple[int, int]] = []
        for epoch in epochs:
            own = range(epoch * given // len(stream), -(-(epoch + 1) * given // len(stream)))
            for own_epoch, position in stream.where(record[1], epochs=own):
                place = self._mixture.position_of(epoch, number, own_epoch * len(stream) + position)
                if place is not None:
                    found.append((epoch, place))
        return found

    def close(self) -> None:
        """Close every stream."""
        for stream in self._streams.values():
            stream.close()


def _merge(name: str, schema: Mapping[str, Field], parts: list[tuple[IntArray, Any]], count: int, out: Outputs) -> Any:
    first = parts[0][1]
    if isinstance(first, Ragged):
        back = np.empty(count, np.int64)
        back[np.concatenate([mine for mine, _ in parts])] = np.arange(count)
        return Ragged.join([column for _, column in parts]).take(back)
    array = fixed_output(name, schema[name], count, out)
    present = np.ones(count, np.bool_)
    for mine, column in parts:
        if isinstance(column, np.ma.MaskedArray):
            present[mine] = ~np.ma.getmaskarray(column).any(axis=tuple(range(1, column.ndim)))
        array[mine] = np.asarray(column)
    return masked(array, None if present.all() else present)


def _check_schemas(streams: Mapping[str, Stream]) -> None:
    plain = {name: [(n, f.kind, f.element, f.shape, f.ndim) for n, f in stream.schema.items()] for name, stream in streams.items()}
    first = next(iter(plain))
    for name, fields in plain.items():
        if fields != plain[first]:
            raise SchemaMismatchError(
                f"streams of a mixture must have the same fields: {first!r} has {dict(streams[first].schema)}, "
                f"{name!r} has {dict(streams[name].schema)}"
            )
