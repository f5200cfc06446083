"""MixedStream: several streams drawn from by weight."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray
from penstock.batch import Batch, Outputs, scatter, typed
from penstock.errors import SchemaMismatchError, StateMismatchError
from penstock.fingerprint import fingerprint_of
from penstock.native import _core
from penstock.order import Amendment, Balance, Mixture, Phase
from penstock.order.mixture import StagedWeights
from penstock.order.position import Weights
from penstock.records import Sampling
from penstock.schema import Field
from penstock.stream.ban_file import with_bans
from penstock.stream.cost import MixedCosts
from penstock.stream.picks import MixedPicks, Picks, grouped, join
from penstock.stream.stream import PartStream, Stream, Unreadable

if TYPE_CHECKING:
    from penstock.image import ImageOptions

__all__ = ["MixedStream", "mix"]


def mix(
    streams: Mapping[str, Stream],
    *,
    seed: int,
    weights: Weights | StagedWeights | None = None,
    stop: str = "first_exhausted",
    batch_size: int | None = None,
    unit: str = "sample",
    period: int = 1024,
    by: str = "samples",
    temperature: float | None = None,
    max_epochs: Mapping[str, float] | None = None,
) -> "MixedStream":
    """Mix streams by weight. Any step of the mixture is computed directly.

    ``weights`` are numbers by name (default: the lengths of the streams), or ``[(step, weights), ...]``: steps count over the whole
    run, in batches of the loader (``batch_size`` is not needed; if given, it must be the loader's). ``stop`` says when an epoch
    ends: "first_exhausted", "all_exhausted" (exhausted streams start over, reshuffled), "all_exhausted_without_replacement" (every
    record once) or "forever". ``unit="batch"`` draws whole batches from one stream. All streams must have the same fields.

    * ``by``           what weights are shares of: "samples", "tokens", or the elements of a field, given by its name
    * ``temperature``  instead of weights: the weight of a stream is its size to the power 1 / temperature
    * ``max_epochs``   caps by name: the number of epochs of a stream that the whole run uses at most; then the others share its
      weight. If none is left, the run ends

    :meth:`MixedStream.amend` adds streams and changes weights from a step on.

    >>> import numpy as np, penstock as pen
    >>> web, code = pen.open({"x": np.zeros(700)}), pen.open({"x": np.ones(300)})
    >>> mixed = pen.mix({"web": web.shuffle(seed=1), "code": code.shuffle(seed=2)}, weights={"web": 0.7, "code": 0.3}, seed=5)
    >>> len(mixed), float(next(iter(pen.Loader(mixed, batch_size=1000)))["x"].mean())
    (1000, 0.3)
    """
    options: dict[str, Any] = {"seed": seed, "weights": weights, "stop": stop, "unit": unit, "batch_size": batch_size}
    more: dict[str, Any] = {"by": None if by == "samples" else by, "temperature": temperature, "max_epochs": max_epochs}
    return MixedStream(streams, **options, period=period, **{key: value for key, value in more.items() if value is not None})


class MixedStream(Stream):
    """Samples of several streams; made by :func:`mix`. Weights by step and whole batches count batches of the loader."""

    def __init__(
        self,
        streams: Mapping[str, Stream],
        *,
        phases: Sequence[Phase] | None = None,
        tail: str = "keep",
        version: int = 2,
        **options: Any,
    ) -> None:
        if not isinstance(streams, Mapping) or not streams:
            raise ValueError(f"expected a dict of streams by name, got {streams!r}")
        for name, stream in streams.items():
            if not isinstance(stream, Stream):
                raise TypeError(f"{name!r} must be a stream, such as source.shuffle(seed=7), got {type(stream).__name__}")
            if isinstance(stream, MixedStream) and stream.needs_steps:
                raise ValueError(
                    f"{name!r} has weights by step or draws whole batches, and has no steps of its own inside another mixture: "
                    "give them to the outer mixture"
                )
            if isinstance(stream, MixedStream) and stream.has_caps:
                raise ValueError(
                    f"{name!r} has max_epochs, which are those of a whole run, inside another mixture: give the outer mixture "
                    "max_epochs, or mix all streams in one mixture"
                )
            if isinstance(stream, MixedStream) and stream.never_ends:
                raise ValueError(f"{name!r} is a mixture that never ends, so it cannot be a part of another: give it another stop")
        self._streams, self._options, self._phases = dict(streams), options, None if phases is None else tuple(phases)
        self._tail, self._version = tail, version
        _check_schemas(self._streams)
        self._check_phases()
        # Checked now in any case; without a batch size what it says is not used.
        lengths = {name: stream.num_samples if phases is None else stream.axis for name, stream in self._streams.items()}
        given = self._mixture_options()
        amendments = [replace(one, add={str(name): lengths.pop(str(name)) for name in one.add}) for one in self.amendments]
        if self.amendments:
            given["amendments"] = amendments
        if given.pop("by", None) is not None:
            given["tokens"] = {name: self._tokens_of(name) for name in self._streams}
        self._laid = Mixture(lengths, phases=self._phases, **given)

    def _mixture_options(self) -> dict[str, Any]:
        size = self._options["batch_size"]
        return {**self._options, "batch_size": 1 if size is None else size, "tail": self._tail if self.needs_steps else "keep"}

    @property
    def amendments(self) -> tuple[Amendment, ...]:
        """The changes from steps on, each with the names of the streams that it adds."""
        return tuple(self._options.get("amendments", ()))

    @property
    def by(self) -> str:
        """What weights are shares of."""
        return str(self._options.get("by", "samples"))

    def _tokens_of(self, name: str) -> Fraction:
        """The mean number of tokens, or of elements of a field, of a sample of a stream."""
        try:
            return self._streams[name].mean_tokens(None if self.by == "tokens" else self.by)
        except (TypeError, ValueError, KeyError) as error:
            raise type(error)(f"by={self.by!r}: stream {name!r}: {error.args[0] if error.args else error}") from error

    def mean_tokens(self, field: str | None = None) -> Fraction:
        """Of an epoch."""
        means = [stream.mean_tokens(field) for stream in self._streams.values()]
        given = self.mixture.plan.given
        return sum((mean * count for mean, count in zip(means, given, strict=True)), Fraction(0)) / max(1, sum(given))

    def amend(
        self,
        step: int,
        *,
        weights: Weights | None = None,
        add: Mapping[str, Stream] | None = None,
        max_epochs: Mapping[str, float] | None = None,
    ) -> "MixedStream":
        """The same mixture up to a step of the loader, and from that step on with other weights, other caps, and more streams.

        Every stream goes on where it was: nothing comes twice because of the change, and nothing is left out. ``weights`` are for
        all streams that there are then; 0 for those that are to come no more. They replace weights by step and those of phases. A
        state that the mixture without the amendment saved at the step or before goes on in this one.

        >>> import numpy as np, penstock as pen
        >>> web, code = pen.open({"x": np.zeros(700)}), pen.open({"x": np.ones(300)})
        >>> mixed = pen.mix({"web": web.shuffle(seed=1)}, seed=5, stop="forever")
        >>> amended = mixed.amend(step=100, weights={"web": 0.7, "code": 0.3}, add={"code": code.shuffle(seed=2)})
        >>> loader = pen.Loader(amended, batch_size=1000)
        >>> float(loader.batch(99)["x"].mean()), float(loader.batch(100)["x"].mean())
        (0.0, 0.301)
        """
        if add is not None and not isinstance(add, Mapping):
            raise TypeError(f"add must be a dict of streams by name, got {type(add).__name__}")
        added = {} if add is None else dict(add)
        amendment = Amendment(step, weights=weights, add=dict.fromkeys(added, 0), max_epochs=max_epochs)
        again = sorted(set(added) & set(self._streams))
        if again:
            raise ValueError(f"an amendment adds {again}, which the mixture has already: leave them out, and give them weights")
        return self._remade({**self._streams, **added}, amendments=(*self.amendments, amendment))

    def unamended(self) -> "Iterator[tuple[int, MixedStream]]":
        for number in reversed(range(len(self.amendments))):
            kept, left_out = self.amendments[:number], self.amendments[number:]
            names = {name for amendment in left_out for name in amendment.add}
            streams = {name: stream for name, stream in self._streams.items() if name not in names}
            yield self.amendments[number].step, self._remade(streams, amendments=kept or None)

    @property
    def has_caps(self) -> bool:
        """Whether a stream has a cap, so that epochs are not alike, and the run may end."""
        return bool(self._options.get("max_epochs"))

    def _check_phases(self) -> None:
        size = self._options["batch_size"]
        if self._phases and any(isinstance(stream, MixedStream) and stream.has_sequences for stream in self._streams.values()):
            raise ValueError(
                "phases change the length of sequences, which a mixture inside another mixture counts whole: "
                "mix all streams of tokens in one mixture"
            )
        for phase in self._phases or ():
            if size is not None and phase.batch_size != size:
                raise ValueError(
                    f"the mixture is for batches of {size}, a phase has {phase.batch_size}: leave batch_size out of mix()"
                )

    @property
    def has_sequences(self) -> bool:
        return any(stream.has_sequences for stream in self._streams.values())

    @property
    def never_ends(self) -> bool:
        return bool(self._options["stop"] == "forever") and (self._phases is not None or self._laid.is_endless)

    @property
    def endless_epoch(self) -> int | None:
        return None if self._phases is not None else self.mixture.endless_epoch

    @property
    def is_finite(self) -> bool:
        """Whether caps end the run."""
        return self._phases is None and self.axis > 0 and self.mixture.ends

    @property
    def needs_steps(self) -> bool:
        """Whether the order depends on where batches begin: with weights by step, amendments, and where whole batches are drawn."""
        return self._has_stages or bool(self.amendments) or self._options["unit"] == "batch"

    @property
    def _has_stages(self) -> bool:
        weights = self._options["weights"]
        return isinstance(weights, Sequence) and len(weights) > 0 and isinstance(weights[0], Sequence)

    @property
    def mixture(self) -> Mixture:
        """The order of the samples; TypeError if it depends on the batch size, and that is not known."""
        if self.needs_steps and self._phases is None and self._options["batch_size"] is None:
            raise TypeError(
                "the order of a mixture with weights by step, amendments, or whole batches depends on the batch size: "
                "give it to a Loader, or to mix(batch_size=)"
            )
        return self._laid

    def for_batches(self, batch_size: int, tail: str) -> "MixedStream":
        size = self._options["batch_size"]
        if size is not None and size != batch_size:
            raise ValueError(
                f"the mixture is for batches of {size}, the loader has batches of {batch_size}: leave batch_size out of mix()"
            )
        for stream in self._streams.values():
            stream.for_batches(batch_size, tail)
        return self._remade(self._streams, tail=tail, batch_size=batch_size) if self.needs_steps else self

    @property
    def order_version(self) -> int:
        """2 where weights by step counted from the start of every epoch, or where whole batches left records out, in version 1."""
        if self._lost_records or self._restarted_weights:
            return self._version
        return min(self._version, max(stream.order_version for stream in self._streams.values()))

    @property
    def _lost_records(self) -> bool:
        """Whether version 1 left out records that do not fill a batch of their own."""
        options = self._options
        return self._phases is None and (options["unit"], options["stop"]) == ("batch", "all_exhausted_without_replacement")

    @property
    def _restarted_weights(self) -> bool:
        """Whether version 1 restarted weights by step in every epoch."""
        return self._has_stages and len(self._laid.runs) > 1

    def continued(self, epoch: int) -> tuple[Stream, dict[str, Any]]:
        """A run of version 1 continues where its order was right: weights by step were in the first epoch."""
        found = {name: stream.continued(epoch) for name, stream in self._streams.items()}
        is_old = any(stream is not self._streams[name] for name, (stream, _) in found.items())
        reason = ""
        if self._lost_records:
            reason = "whole batches without replacement left out records that did not fill a batch"
        elif self._restarted_weights and epoch > 0:
            reason = "weights by step began anew in every epoch"
        elif self._restarted_weights and is_old:
            reason = "weights by step began anew in every epoch, and sequences were in another order: only one of these can go on"
        if reason:
            raise StateMismatchError(f"the state was saved in epoch {epoch} by version 1, in which {reason}: begin a new run")
        streams = {name: stream for name, (stream, _) in found.items()}
        again = MixedStream(streams, phases=self._phases, tail=self._tail, version=1, **self._options)
        return (again if is_old else self), again.plan()

    def _remade(self, streams: Mapping[str, Stream], **changed: Any) -> "MixedStream":
        options = {"phases": self._phases, "tail": self._tail, "version": self._version, **self._options} | changed
        if options.get("amendments", ()) is None:
            del options["amendments"]
        return MixedStream(streams, **options)

    @property
    def axis(self) -> int:
        """Samples of the first epoch."""
        return len(self.mixture)

    @property
    def axes(self) -> Sequence[tuple[int, int]]:
        """Samples of epochs: they differ where weights change by step."""
        return [(run.first, run.plan.num_samples) for run in self.mixture.runs]

    def __len__(self) -> int:
        """Samples of an epoch; TypeError if it never ends."""
        if self.never_ends and self._phases is None:
            raise TypeError("an epoch of this mixture never ends, so it has no length")
        return self.num_samples

    @property
    def elements(self) -> int:
        """Records or tokens of all streams together, those apart that amendments add."""
        added = {name for amendment in self.amendments for name in amendment.add}
        return sum(stream.axis for name, stream in self._streams.items() if name not in added)

    @property
    def has_records(self) -> bool:
        return all(stream.has_records for stream in self._streams.values())

    def replace_unreadable(self, picks: MixedPicks, positions: list[tuple[int, int]], unreadable: Unreadable) -> MixedPicks | None:
        parts = list(picks.parts)
        for number, (part, stream) in enumerate(zip(picks.parts, self._streams.values(), strict=True)):
            if part is not None:
                mine = [positions[i] for i in np.flatnonzero(picks.which == number)]
                parts[number] = stream.replace_unreadable(part, mine, unreadable) or part
        changed = any(new is not old for new, old in zip(parts, picks.parts, strict=True))
        return replace(picks, parts=tuple(parts)) if changed else None

    @property
    def is_mixture(self) -> bool:
        return True

    @property
    def counts_samples(self) -> bool:
        return True

    @property
    def seed(self) -> int:
        return self._laid.seed

    @property
    def names(self) -> tuple[str, ...]:
        """The streams in their order."""
        return self._laid.names

    @property
    def leaf_names(self) -> tuple[str, ...]:
        """The streams that are no mixtures, as ``ids=`` counts them; one of a mixture in this one as "outer/inner"."""
        names: list[str] = []
        for name, stream in self._streams.items():
            names += [f"{name}/{inner}" for inner in stream.leaf_names] if isinstance(stream, MixedStream) else [name]
        return tuple(names)

    @cached_property
    def _widths(self) -> tuple[int, ...]:
        return tuple(len(stream.leaf_names) if isinstance(stream, MixedStream) else 1 for stream in self._streams.values())

    @property
    def streams(self) -> tuple[Stream, ...]:
        return tuple(self._streams.values())

    @property
    def schema(self) -> Mapping[str, Field]:
        """The fields that all streams have; values may be missing where they may in one of them."""
        schemas = [stream.schema for stream in self._streams.values()]
        return {name: field.with_nullable(any(s[name].nullable for s in schemas)) for name, field in schemas[0].items()}

    @cached_property
    def _nullable(self) -> frozenset[str]:
        return frozenset(name for name, field in self.schema.items() if field.nullable)

    @property
    def data_fingerprint(self) -> str:
        return fingerprint_of("mixed", [(name, stream.data_fingerprint) for name, stream in self._streams.items()])

    def sample_digest(self, sampling: Sampling) -> str | None:
        share = sampling.shared(len(self._streams))
        found = {name: stream.sample_digest(share) for name, stream in self._streams.items()}
        return None if None in found.values() else fingerprint_of("mixed", list(found.items()))

    def data_digest(self) -> str:
        return fingerprint_of("mixed", [(name, stream.data_digest()) for name, stream in self._streams.items()])

    def plan(self) -> dict[str, Any]:
        """Weights, and the plan of every stream."""
        options = self._mixture_options()
        if not self.needs_steps or self._phases is not None:
            del options["batch_size"]  # it changes nothing
        if self._version == 1 or not self.needs_steps or len(self._laid.runs) == 1:
            del options["tail"]
        plan: dict[str, Any] = {
            f"mixture {key}": repr(options[key] if key in ("batch_size", "tail", "by") else getattr(self._laid, key))
            for key in options
        }
        if "by" in options:
            plan["mixture tokens"] = ", ".join(map(str, self._laid.tokens or ()))
        for name, stream in self._streams.items():
            inner = stream.continued(0)[1] if self._version == 1 else stream.plan()
            plan |= {f"{name}: {key}": value for key, value in inner.items()} | {f"{name}: samples": str(stream.num_samples)}
        return plan

    def recipe(self) -> Any:
        streams = {name: stream.recipe() for name, stream in self._streams.items()}
        if None in streams.values() or self._version == 1:
            return None
        left_out = ("amendments", "batch_size")  # the loader has the batch size
        options = {name: value for name, value in self._options.items() if value is not None and name not in left_out}
        amendments = [
            {"step": one.step, "weights": one.weights, "add": list(one.add), "max_epochs": one.max_epochs}
            for one in self.amendments
        ]
        return {"mix": options, "streams": streams, "amend": amendments}

    def with_phases(self, phases: Sequence[Phase]) -> "MixedStream":
        for part in self.parts:
            if part.has_records:
                part.with_phases(phases)  # refuses buckets
        return self._remade(self._streams, phases=phases)

    def costing(self, balance: Balance) -> MixedCosts:
        return MixedCosts(tuple(stream.costing(balance) for stream in self._streams.values()))

    def sized(self, seq_len: int) -> "MixedStream":
        streams = {name: stream.sized(seq_len) for name, stream in self._streams.items()}
        return self._remade(streams)

    def locate_at(self, epoch: int, positions: IntArray, step: int = 0) -> MixedPicks:
        which, parts = self._split(epoch, positions)
        found = [self._locate_part(number, part, step) for number, part in enumerate(parts)]
        return MixedPicks(self.names, which, tuple(found), self._widths)

    def _split(self, epoch: int, positions: IntArray) -> tuple[npt.NDArray[np.int32], list[IntArray]]:
        """The stream of each position, and the elements of every stream."""
        which, element = self.mixture.choose_at(epoch, positions)
        order, ends = grouped(which, len(self.names))
        element = element[order]
        return which, [element[low:high] for low, high in pairwise([0, *ends.tolist()])]

    def native_order(self, epoch: int, position: int, leaf: int) -> _core.OrderNode | None:
        found = None if self._phases is not None else self.mixture.native_line(epoch)
        if found is None:
            return None
        line, root, before = found
        parts = []
        for stream, width, given, had in zip(self.streams, self._widths, line.given_before(position), before, strict=True):
            length = stream.num_samples
            own_epoch, place = divmod(had + given, max(1, length))
            order = stream.native_order(own_epoch, place, leaf)
            if order is None:
                return None
            parts.append((order, own_epoch * length, length))
            leaf += width
        return _core.OrderNode.mix(line, root, before, parts)

    @property
    def parts(self) -> tuple[PartStream, ...]:
        return tuple(part for stream in self._streams.values() for part in stream.parts)

    def leaves(self, epoch: int, positions: IntArray) -> Iterator[tuple[PartStream, int, IntArray]]:
        for stream, elements in zip(self._streams.values(), self._split(epoch, positions)[1], strict=True):
            for _, own_epoch, places in self._places(stream, elements):
                yield from stream.leaves(own_epoch, places)

    def _places(self, stream: Stream, elements: IntArray) -> Iterator[tuple[IntArray | None, int, IntArray]]:
        """Elements of a stream's endless line, which are positions with phases and otherwise whole samples, epoch by epoch: which
        of them (None: all), the epoch, and their positions in it.
        """
        scale = 1 if self._phases is not None else stream.stride
        length = stream.axis if self._phases is not None else stream.num_samples
        if elements.size == 0:
            return
        first, last = int(elements.min()) // length, int(elements.max()) // length
        if first == last:  # almost always, and much quicker
            places = elements - first * length if first else elements
            yield None, first, places if scale == 1 else places * scale
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
        back[np.concatenate([mine for mine, _ in found if mine is not None])] = np.arange(elements.size)
        joined: Picks = join([picks for _, picks in found]).take(back)
        return joined

    def fetch(self, picks: MixedPicks, out: Outputs | None = None) -> Batch:
        """Read every stream's samples, and put them in their places."""
        if len(picks) == 0:
            first = next(iter(self._streams.values()))
            return typed(first.fetch(first.locate(0, range(0)), out), self._nullable)
        batches = [
            (np.flatnonzero(picks.which == number), self._streams[name].fetch(part))
            for number, (name, part) in enumerate(zip(self.names, picks.parts, strict=True))
            if part is not None
        ]
        if len(batches) == 1 and not out:
            return typed(batches[0][1], self._nullable)
        schema = self.schema
        names = list(batches[0][1])
        merged = {name: scatter(name, schema[name], [(m, b[name]) for m, b in batches], len(picks), out or {}) for name in names}
        return typed(merged, self._nullable)

    def with_images(self, names: Sequence[str], options: "ImageOptions", seed: int | None) -> "MixedStream":
        """Of every stream of the mixture."""
        return self._remade({name: stream.with_images(names, options, seed) for name, stream in self._streams.items()})

    def with_masks(self, names: Sequence[str], size: int | Sequence[int] | None, fill: int, of: str | None) -> "MixedStream":
        return self._remade({name: stream.with_masks(names, size, fill, of) for name, stream in self._streams.items()})

    def boxes_of(self, picks: MixedPicks, field: str | None) -> npt.NDArray[np.int32]:
        boxes = np.zeros((len(picks), 5), np.int32)
        parts = zip(self._streams.values(), picks.parts, strict=True)
        found = [stream.boxes_of(part, field) for stream, part in parts if part is not None]
        if found:
            picks.gather(found, boxes)
        return boxes

    def without(self, ids: Mapping[str, Any] | str | os.PathLike[str], *, from_step: int = 0) -> "MixedStream":
        """The same mixture in which records, given by the name of their stream, no longer come from ``from_step`` on. Instead of
        them, the name of a ban file.
        """
        if isinstance(ids, str | os.PathLike):
            return with_bans(self, ids, from_step)
        unknown = [name for name in ids if name not in self._streams]
        if unknown:
            raise KeyError(f"unknown streams {unknown}; there are {list(self._streams)}")
        streams = dict(self._streams)
        for name, banned in ids.items():
            stream = streams[name]
            if not hasattr(stream, "without"):
                raise TypeError(f"stream {name!r} has no single records to leave out")
            streams[name] = stream.without(banned, from_step=from_step)
        return self._remade(streams)

    def unbanned(self, from_step: int) -> "MixedStream":
        return self._remade({name: stream.unbanned(from_step) for name, stream in self._streams.items()})

    def where(self, record: Any, *, epochs: range = range(1), before: int | None = None) -> list[tuple[int, int]]:
        """(epoch, position) of every time a record or document comes in those epochs; it is given as (name of its stream, id). If
        an epoch never ends, ``before`` is the position at which to stop.
        """
        if not isinstance(record, tuple):
            raise TypeError(f"a record of a mixture is named by (stream, id), got {record!r}")
        if record[0] not in self.names:
            raise KeyError(f"unknown stream {record[0]!r}; there are {list(self.names)}")
        endless = self.endless_epoch
        if endless is not None and endless in epochs and before is None:
            raise ValueError(
                "an epoch of this mixture never ends, so a record comes in it without end: ask a loader with steps=range(...)"
            )
        number = self.names.index(record[0])
        stream = self._streams[record[0]]
        if self._phases is not None and stream.has_sequences:
            raise TypeError("with phases that may change their length, ask the mixture without phases where a document is")
        found: list[tuple[int, int]] = []
        for epoch in epochs:
            if endless is not None and epoch >= endless:
                places = self._places_before(epoch, number, record[1], before or 0) if epoch == endless else ()
                return found + sorted((epoch, place) for place in places)
            places = self._places_of(epoch, number, record[1], self.mixture.span_of(epoch, number))
            found += sorted((epoch, place) for place in places)
        return found

    def _places_of(self, epoch: int, number: int, record: Any, span: tuple[int, int]) -> Iterator[int]:
        """The positions of a record of a stream in an epoch; its elements in it are among those of a span."""
        stream, (low, high) = self.streams[number], span
        length = max(1, stream.num_samples)
        for own_epoch, position in stream.where(record, epochs=range(low // length, -(-high // length))):
            place = self.mixture.position_of(epoch, number, own_epoch * length + position // stream.stride)
            if place is not None:
                yield place

    def _places_before(self, epoch: int, number: int, record: Any, before: int) -> Iterator[int]:
        """Those below ``before`` in an epoch that never ends."""
        mixture = self.mixture
        low, high = mixture.span_of(epoch, number)
        plan, had = mixture.plan_of(epoch), mixture.given_before(epoch)[number]
        given = mixture.num_given(epoch, min(before, plan.num_samples))[number]
        segments = [one for one in plan.segments if one.start <= before]
        ahead = max((one.period * one.unit for one in segments), default=0)  # in a period, elements are shuffled
        deferred = (one.deferred.end(number) for one in segments if one.deferred is not None)
        high = max(min(high, had + given + ahead), *deferred, 0)
        return (place for place in self._places_of(epoch, number, record, (low, high)) if place < before)

    def ranges_of(self, record: Any, epochs: range, before: int | None = None) -> Iterator[tuple[int, int, int]]:
        for epoch, position in self.where(record, epochs=epochs, before=before):
            yield epoch, position, position + 1

    def holds(self, picks: MixedPicks, record: Any) -> bool:
        part = picks.parts[self.names.index(record[0])]
        return part is not None and self._streams[record[0]].holds(part, record[1])

    def explain(self, picks: MixedPicks, *, documents: bool = False) -> dict[str, Any]:
        parts = {
            name: stream.explain(part, documents=documents)
            for (name, stream), part in zip(self._streams.items(), picks.parts, strict=True)
            if part is not None
        }
        return picks.describe() | {"parts": parts}

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()


def _check_schemas(streams: Mapping[str, Stream]) -> None:
    plain = {name: [(n, f.kind, f.element, f.shape, f.ndim) for n, f in stream.schema.items()] for name, stream in streams.items()}
    first = next(iter(plain))
    for name, fields in plain.items():
        if fields != plain[first]:
            raise SchemaMismatchError(
                f"streams of a mixture must have the same fields: {first!r} has {dict(streams[first].schema)}, "
                f"{name!r} has {dict(streams[name].schema)}"
            )
