"""One case, run by real loaders and by the model, and compared."""

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from tests.crossing.case import Case, Leg
from tests.crossing.data import Form
from tests.crossing.mixing import ENDLESS, FAR
from tests.crossing.model import (
    NAMES,
    Job,
    Mix,
    NothingLeftError,
    Packs,
    PhasedJob,
    Place,
    Records,
    Sample,
    Sequences,
    Stream,
    cost,
    samples,
)

from penstock import Loader, Ragged
from penstock.order import BlockShuffle, Sequential, Shuffle
from penstock.order.permutation import Purpose, derive_key


class WrongError(AssertionError):
    """The loader and the model differ."""


class RefusalError(Exception):
    """The loader refused; ``stage`` says when."""

    def __init__(self, stage: str, cause: Exception) -> None:
        super().__init__(f"{stage}: {type(cause).__name__}: {cause}")
        self.stage, self.cause = stage, cause


def attempt(stage: str, call: Callable[[], Any]) -> Any:
    """What a call of penstock gives; what it raises is a refusal, to be looked up."""
    try:
        return call()
    except StopIteration:
        raise
    except Exception as error:
        raise RefusalError(stage, error) from error


def expect(what: str, expected: Any, found: Any) -> None:
    if expected != found:
        raise WrongError(f"{what}: expected {expected!r}, got {found!r}")


# A batch in plain values


def observe(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Ragged):
        items = [item.tolist() if isinstance(item, np.ndarray) else item for item in value]
        return ("ragged", value.kind, value.values.dtype.name, None if value.present is None else "present", items)
    if isinstance(value, np.ma.MaskedArray):
        return ("masked", value.dtype.name, value.shape, value.tolist())
    return ("array", value.dtype.name, value.shape, value.tolist())


def shape_values(form: Form, values: list[Any]) -> tuple[Any, ...]:
    """A field of a batch as :func:`observe` gives it."""
    if form.kind != "fixed":
        kind = "array" if form.kind == "ragged" else form.kind
        return ("ragged", kind, form.dtype, "present" if form.nullable else None, values)
    kind = "masked" if form.nullable else "array"
    return (kind, form.dtype, (len(values), *form.shape), values)


@dataclass
class Expected:
    """A batch of one rank."""

    forms: dict[str, Form]
    rows: list[Sample | None]

    def fields(self, leg: Leg, stream: Stream) -> dict[str, Form]:
        found = dict(self.forms)
        if leg.ids:
            found["id"] = Form("fixed", "int64")
            if isinstance(stream, Mix):
                found["id_source"] = Form("fixed", "int32")
        if leg.tail == "pad":
            found["valid"] = Form("fixed", "bool")
        return found


def value_of(row: Sample, name: str) -> Any:
    if name == "id":
        return row.id
    if name == "id_source":
        return row.leaf
    return True if name == "valid" else row.values[name]


def compare_batch(where: str, leg: Leg, job: Job, place: Place, expected: Expected, batch: Any) -> None:
    forms = expected.fields(leg, job.stream)
    told = {name: batch[name] for name in ("told", "told_ids", "told_seeds") if name in batch}
    expect(f"{where}: fields", sorted(forms), sorted(set(batch) - set(told)))
    for name, form in forms.items():
        found = observe(batch[name])
        if leg.tokens is not None and name in ("cu_seqlens", "max_seqlen"):
            if None not in expected.rows:
                expect(f"{where}: field {name!r}", _flat(name, expected.rows), found)
            continue
        rows: list[Any] = [None if row is None else value_of(row, name) for row in expected.rows]
        if name == "valid":
            rows = [row is not None for row in expected.rows]
        else:  # what fills a batch up may be anything of the right type
            if len(found[-1]) == len(rows):
                rows = [got if row is None else value for row, value, got in zip(expected.rows, rows, found[-1], strict=True)]
        expect(f"{where}: field {name!r}", shape_values(form, rows), found)
    expect(f"{where}: told", leg.transform == "telling", bool(told))
    if told:
        compare_told(where, job, place, expected, told)


def _flat(name: str, rows: list[Sample | None]) -> tuple[Any, ...]:
    """The bounds of documents in a batch of one sequence at most: only those that are there."""
    own = [row.values[name] for row in rows if row is not None]
    if name == "max_seqlen":
        return ("array", "int32", (), own[0] if own else 0)
    ends = sorted(set(own[0])) if own else [0]
    return ("array", "int32", (len(ends),), ends)


def compare_told(where: str, job: Job, place: Place, expected: Expected, told: dict[str, Any]) -> None:
    count = len(expected.rows)
    valid = [row for row in expected.rows if row is not None]
    expect(f"{where}: info.step and epoch", [[place.step, place.epoch]] * count, told["told"].tolist())
    expect(f"{where}: info.ids", [row.id for row in valid], told["told_ids"].tolist()[: len(valid)])
    if job.tail != "wrap" and not isinstance(job.stream, Mix) and not isinstance(job, PhasedJob):
        seeds = [derive_key(job.stream.seed, place.epoch, Purpose(10), row.id % 2**64) for row in valid]
        expect(f"{where}: info.seeds", seeds, told["told_seeds"].tolist()[: len(valid)])


# Questions


def compare_explain(where: str, leg: Leg, job: Job, place: Place, found: dict[str, Any]) -> None:
    whole = samples(job, place)
    rows = [row for row in whole if row is not None]
    expect(f"{where}: explain rank", leg.balance is not None, "rank" in found)
    if leg.balance is not None:
        slots = leg.slots(job.stream, whole)
        told = {number: (rank, m) for rank, own in enumerate(slots) for m, some in enumerate(own) for number in some}
        pairs = list(zip(found["rank"].tolist(), found["slot"].tolist(), strict=True))
        expect(f"{where}: explain rank and slot", [told[number] for number in range(len(rows))], pairs[: len(rows)])
        costs = [cost(job.stream, row, leg.balance[0]) for row in rows]
        expect(f"{where}: explain cost", costs, found["cost"].tolist()[: len(rows)])
        each = len(whole) // leg.world // leg.balance[1]
        filling = [(number % leg.world, number // leg.world // each) for number in range(len(rows), len(whole))]
        expect(f"{where}: explain rank and slot of what fills up", filling, pairs[len(rows) :])
    for name, value in (("step", place.step), ("epoch", place.epoch), ("position", place.position)):
        expect(f"{where}: explain {name}", value, found[name])
    _compare_picks(f"{where}: explain", job.stream, rows, found)


def _documents_of(stream: Sequences, row: Sample) -> list[list[int]]:
    """(document, from, to) of the tokens of a sample; separators are not of the documents."""
    spans: list[list[int]] = []
    for place in row.places:
        document = bisect_right(stream.starts, place) - 1
        inside = place - stream.starts[document]
        if spans and spans[-1][0] == document and spans[-1][2] == inside:
            spans[-1][2] += 1
        else:
            spans.append([document, inside, inside + 1])
    ends = [len(tokens) - len(stream.separators) for tokens in stream.storage]
    return [[document, min(low, ends[document]), min(high, ends[document])] for document, low, high in spans]


def _compare_picks(where: str, stream: Stream, rows: list[Sample], found: dict[str, Any]) -> None:
    if isinstance(stream, Sequences):
        places = [[place for low, high in spans.tolist() for place in range(low, high)] for spans in found["tokens"][: len(rows)]]
        expect(f"{where} tokens", [list(row.places) for row in rows], places)
        if not stream.has_pages and not isinstance(stream, Packs):
            told = [spans.tolist() for spans in found["documents"][: len(rows)]]
            expect(f"{where} documents", [_documents_of(stream, row) for row in rows], told)
    elif isinstance(stream, Mix):
        tops = [k for k, (_, part) in enumerate(stream.parts) for _ in part.leaf_names()]
        names = [stream.parts[tops[row.leaf]][0] for row in rows]
        expect(f"{where} source", names, found["source"].tolist()[: len(rows)])
        first = 0
        for name, part in stream.parts:
            inner = [replace(row, leaf=row.leaf - first) for row, own in zip(rows, names, strict=True) if own == name]
            if inner:
                _compare_picks(f"{where} parts {name}", part, inner, found["parts"][name])
            first += len(part.leaf_names())
    else:
        expect(f"{where} ids", [row.planned for row in rows], found["ids"].tolist()[: len(rows)])


# Runs


@dataclass
class Rank:
    """A loader and its iterator."""

    loader: Loader
    run: Any = None


class Checker:
    """Runs a case. ``seen`` counts what was compared."""

    def __init__(self, case: Case) -> None:
        self.case, self.seen = case, Counter[str]()
        self.anchored = True  # whether steps count from the start of the run

    def run(self) -> None:
        place: Place | None = Place()
        state = None
        for number, leg in enumerate(self.case.legs):
            stream = attempt("stream", partial(_make_stream, self.case, leg))
            ranks = [Rank(attempt("loader", partial(_make_loader, stream, leg, rank))) for rank in range(leg.world)]
            job = leg.job(self.case.stream_of(leg))
            try:
                if state is not None:
                    for rank in ranks:
                        attempt("load", lambda rank=rank, state=state: rank.loader.load_state_dict(json.loads(state)))
                    self._must_be_alike(number, leg, job, place)
                place = self._leg(f"leg {number}", leg, job, ranks, place)
                states = {json.dumps(rank.loader.state_dict()) for rank in ranks}
                expect(f"leg {number}: number of different states", 1, len(states))
                state = states.pop()
            finally:
                for rank in ranks:
                    rank.loader.close()
            if place is None:
                for later in self.case.legs[number + 1 :]:  # may be refused all the same
                    stream = attempt("stream", partial(_make_stream, self.case, later))
                    for rank in range(later.world):
                        attempt("loader", partial(_make_loader, stream, later, rank)).close()
                return

    def _must_be_alike(self, number: int, leg: Leg, job: Job, place: Place | None) -> None:
        """A state was loaded: if the order of a mixture depends on batch size or tail, they must be those of the run before (or the
        step must begin at the same place with both), and what it did not know of amendments must be of later steps.
        """
        step = 0 if place is None else place.step
        before, stream = self.case.legs[number - 1], self.case.stream_of(leg)
        if isinstance(stream, Mix):
            earlier = self.case.stream_of(before)
            assert isinstance(earlier, Mix)
            known = len(earlier.amendments)
            expect(f"leg {number}: amendments of the state that was taken", True, known <= len(stream.amendments))
            late = [one.step for one in stream.amendments[known:] if one.step < step]
            expect(f"leg {number}: amendments before step {step}, at which the state was taken", [], late)
        if not isinstance(stream, Mix) or not stream.is_bound or leg.phases is not None or leg.restart:
            return
        if step and _walk(job, step) != place:
            expect(f"leg {number}: batch size of the state that was taken", before.size, leg.size)
        if before.tail != leg.tail and earlier.is_bound and not stream.is_endless:
            one, other = stream.bind(before.size or 1, before.tail), stream.bind(leg.size or 1, leg.tail)
            if any(one.layout(epoch) != other.layout(epoch) for epoch in range(8)):
                expect(f"leg {number}: tail of the state that was taken", before.tail, leg.tail)

    def _leg(self, where: str, leg: Leg, job: Job, ranks: list[Rank], place: Place | None) -> Place | None:
        assert place is not None
        loaded, place = place, job.settle(place)
        if place is not None and place.step and not isinstance(job, PhasedJob):
            self.anchored = _walk(job, place.step) == loaded
        if leg.restart:  # where it stands before the first batch does not matter
            place = job.settle(Place())
        else:
            self._compare_place(where, ranks, place, loaded)
        self._compare_length(where, leg, job, ranks, place)
        if place is None:
            for rank in ranks:
                expect(f"{where}: batches of no epoch", [], attempt("run", lambda rank=rank: list(rank.loader)))
            return None
        if self.case.seed % 4 == 0 and self.anchored and not isinstance(job, PhasedJob):
            with suppress(NothingLeftError):  # the batches will show it
                self._where(where, job, ranks[0].loader)
        if leg.seek is not None and self.anchored:
            place = self._seek(where, leg, job, ranks, place)
        if leg.restart and leg.seek is None and leg.take:
            self._batches(where, leg, job, ranks, place, min(leg.take, 2))
            for rank in ranks:
                rank.run = None
        if leg.take == 0 and (leg.seek is None or not self.anchored):
            return loaded
        return self._batches(where, leg, job, ranks, place, leg.take)

    def _where(self, where: str, job: Job, loader: Loader) -> None:
        """When some record comes in the first two epochs."""
        leaves = _record_leaves(job.stream)
        if not leaves or not all(isinstance(leaf.order, Sequential | Shuffle | BlockShuffle) for _, _, leaf in leaves):
            return
        number, names, leaf = leaves[self.case.seed // 4 % len(leaves)]
        if not leaf.table.length or any(job.stream.axis(epoch) > FAR for epoch in range(2)):
            return
        record = self.case.seed // 64 % leaf.table.length
        expected = []
        place = job.settle(Place())
        while place is not None and place.epoch < 2:
            for cell, row in zip(job.cells(place), samples(job, place), strict=True):
                if cell is None or row is None or cell[0] >= 2 or row.leaf != number:
                    continue
                if row.original == record and row.planned == record:
                    expected.append((cell[0], cell[1], place.step))
            place = job.after(place)
        asked: Any = record
        for name in reversed(names):
            asked = (name, asked)
        found = attempt("where", lambda: loader.where(asked, epochs=range(2)))
        expect(f"{where}: where({asked!r})", sorted(expected), sorted((f["epoch"], f["position"], f["step"]) for f in found))
        self.seen["where"] += 1

    def _seek(self, where: str, leg: Leg, job: Job, ranks: list[Rank], place: Place) -> Place:
        if isinstance(job, PhasedJob):
            target: Place | None = job.place(leg.seek) if leg.seek <= len(job.shapes) else None  # type: ignore[operator]
        else:
            target = _walk(job, leg.seek or 0)
        if target is None:
            return place
        for rank in ranks:
            attempt("seek", lambda rank=rank: rank.loader.seek(leg.seek))
        self._compare_place(f"{where} after seek({leg.seek})", ranks, target)
        return target

    def _batches(self, where: str, leg: Leg, job: Job, ranks: list[Rank], place: Place, take: int) -> Place | None:
        """Take batches, epoch after epoch."""
        left, skipped = take, [0] * len(ranks)
        following: Place | None = place
        while left and following is not None:
            rest = job.rest(following) if not leg.forever else _endless(job, following)
            for rank in ranks:
                rank.run = attempt("run", lambda rank=rank: rank.loader.forever() if leg.forever else iter(rank.loader))
            over = True
            for here in rest:
                if left == 0:
                    over = False
                    break
                self._batch(f"{where}, step {here.step}", leg, job, ranks, here, skipped)
                following = job.after(here)
                left -= 1
                behind = None if isinstance(job, PhasedJob) else job.behind(here)
                self._compare_place(f"{where} after step {here.step}", ranks, following, behind)
            if over and (not leg.forever or isinstance(job, PhasedJob)):
                for rank in ranks:
                    ended = attempt("run", lambda rank=rank: next(rank.run, "end"))
                    expect(f"{where}: behind the last batch of the epoch", "end", ended if isinstance(ended, str) else "a batch")
            for rank in ranks:
                rank.run.close()
            if isinstance(job, PhasedJob) or leg.restart:
                break
        if leg.threads == 0 and leg.tail != "pad" and not leg.restart:
            found = [rank.loader.stats().skipped for rank in ranks]
            expect(f"{where}: stats().skipped", skipped, found)
        if leg.restart:
            return None
        return following

    def _batch(self, where: str, leg: Leg, job: Job, ranks: list[Rank], place: Place, skipped: list[int]) -> None:
        try:
            rows = samples(job, place)
        except NothingLeftError:  # a rank must say so
            for rank in ranks:
                attempt("run", lambda rank=rank: next(rank.run, None))
            raise
        forms = job.forms(place)
        for number, rank in enumerate(ranks):
            own = leg.share(job.stream, rows, number)
            batch = attempt("run", lambda rank=rank: next(rank.run, None))
            if batch is None:
                raise WrongError(f"{where}: rank {number}: expected a batch, got the end")
            compare_batch(f"{where}, rank {number}", leg, job, place, Expected(forms, own), batch)
            skipped[number] += sum(row is not None and row.id != row.planned for row in own)
        self.seen["batches"] += 1
        if place.step % 3 == self.case.seed % 3:
            compare_explain(where, leg, job, place, attempt("explain", lambda: ranks[0].loader.explain(place.step)))

    def _compare_place(self, where: str, ranks: list[Rank], place: Place | None, loaded: Place | None = None) -> None:
        """The next batch is that of ``place``; the cursor is where a loaded state was, even if nothing is left of its epoch."""
        if place is None:
            return
        at = loaded or place
        for number, rank in enumerate(ranks):
            cursor = rank.loader.cursor
            epoch = (
                place.epoch if rank.loader.restart else rank.loader.epoch
            )  # that of a restarting loader is the one it begins with
            found = (epoch, rank.loader.step, cursor.epoch, cursor.position)
            expect(f"{where}: rank {number}: epoch, step, cursor", (place.epoch, place.step, at.epoch, at.position), found)

    def _compare_length(self, where: str, leg: Leg, job: Job, ranks: list[Rank], place: Place | None) -> None:
        if not isinstance(job, PhasedJob) and place is not None and job.stream.axis(place.epoch) > ENDLESS:
            with suppress(TypeError):
                raise WrongError(f"{where}: len(loader): expected a TypeError, got {len(ranks[0].loader)}")
            return
        if isinstance(job, PhasedJob):
            expect(f"{where}: len(loader)", len(job.shapes), len(ranks[0].loader))
            return
        if isinstance(job.stream, Mix) and job.stream.is_staged:
            return
        if place is None and ranks[0].loader.step:  # behind the end of a run: the length is that of its last epoch
            return
        count = 0
        if place is not None:
            first: Place | None = place
            if self.anchored:
                first = job.settle(Place())
                while first is not None and first.epoch < place.epoch:
                    first = job.after(first)
            count = sum(1 for _ in job.rest(first))
        expect(f"{where}: len(loader)", count, len(ranks[0].loader))


def _make_stream(case: Case, leg: Leg) -> Any:
    return eval(case.stream_of(leg).code(), NAMES)


def _make_loader(stream: Any, leg: Leg, rank: int) -> Any:
    return eval(leg.code("stream", str(rank)), NAMES | {"stream": stream})


def _record_leaves(stream: Stream, names: tuple[str, ...] = ()) -> list[tuple[int, tuple[str, ...], Records]]:
    """Number, names and stream of the leaves; nothing where one of them has no records."""
    if isinstance(stream, Records):
        return [(0, names, stream)]
    if not isinstance(stream, Mix):
        return []
    found: list[tuple[int, tuple[str, ...], Records]] = []
    for (name, _), part in zip(stream.parts, stream.banning, strict=True):
        inner = _record_leaves(part, (*names, name))
        if not inner:
            return []
        found += [(len(found) + number, path, leaf) for number, path, leaf in inner]
    return found


def _walk(job: Job, steps: int) -> Place | None:
    """The place of a step, counted out from the start."""
    place = job.settle(Place())
    for _ in range(steps):
        if place is None:
            return None
        place = job.after(place)
    return place


def _endless(job: Job, place: Place) -> Iterator[Place]:
    if isinstance(job, PhasedJob):
        yield from job.rest(place)
        return
    following: Place | None = place
    while following is not None:
        yield following
        following = job.after(following)
