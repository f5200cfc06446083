"""What a loader delivers, as the page shows it: the samples of a step with the documents in them, shares of streams over steps, and
the losses of a run.
"""

import math
import os
import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from penstock.argument import IntArray
from penstock.loader import Loader
from penstock.records import Source
from penstock.run_plan import plan
from penstock.stream import DocumentTable, MixedStream, PartStream
from penstock.stream.documents import TOKENS_OF_LETTER, text_of
from penstock.tokenizer import TextTokenizer
from penstock.trace import LossTable, Run, Visits, blame_step, find_spikes
from penstock.trace.blame import Level
from penstock.trace.loss_table import is_missing
from penstock.trace.run import RecordKey, global_place, key_in, leaf_names, visits_of
from penstock.view.records import Limits, plain_number, sendable

MOST_PIECES = 64  # documents of a sample that are shown
MOST_SPIKES = 40
MOST_SUSPECTS = 12
NUM_EDGES = 60  # stretches of steps for which shares are computed
NUM_PIECES = 300  # of a loss curve: each gives its least, mean and largest loss
SHORT_RUN = 10_000  # steps that are shown of a loader that never ends
MOST_STEPS = 2**40

Row = dict[str, Any]


class ShownLoader:
    """A loader, and the run it belongs to if there is one. Safe to use from several threads."""

    def __init__(self, loader: Loader, run: Run | None = None) -> None:
        self.loader, self._run, self._lock = loader, run, threading.RLock()
        self._level: Level | None = None
        self._seen = None if run is None else _versions(run.table.path)
        self.names = leaf_names(loader.stream)

    @property
    def has_losses(self) -> bool:
        return self._run is not None

    @property
    def parts(self) -> Sequence[PartStream]:
        """The streams that samples come from."""
        return self.loader.stream.parts

    def source(self, part: int) -> Source:
        return self.parts[part].source

    def describe(self, tokenizer: TextTokenizer | None) -> dict[str, Any]:
        """What the page needs to know before it asks for anything."""
        parts = [
            {"name": name, "kind": type(part).__name__, "fields": list(part.source.schema), "records": len(part.source)}
            for name, part in zip(self.names, self.parts, strict=True)
        ]
        return {
            "parts": parts,
            "is_mixture": isinstance(self.loader.stream, MixedStream),
            "has_losses": self.has_losses,
            "has_tokenizer": tokenizer is not None,
            "has_order": self.loader.phases is None,
        }

    def close(self) -> None:
        self.loader.stream.close()

    # The run, as far as it has come

    def _opened(self) -> tuple[Run, Level]:
        """The losses so far: files of a run that goes on are opened anew when they have grown. The lock is held."""
        run = self._run
        assert run is not None
        versions = _versions(run.table.path)
        if versions != self._seen:
            run = self._run = Run(LossTable.open(run.table.path), run.given)
            self._seen, self._level = versions, None
        if self._level is None:
            self._level = Level(run.table)
        return run, self._level

    def visits(self, step: int) -> tuple[Loader, Visits, bool]:
        """The loader of a step, what is in its batch, and whether its losses are known."""
        if self._run is None:
            return self.loader, visits_of(self.loader, step), False
        with self._lock:
            run, _ = self._opened()
            steps = run.table.steps
            near = int(steps[min(int(np.searchsorted(steps, step)), len(steps) - 1)])
            loader = run.loader_at(near)
            return (loader, run.visits(step), True) if near == step else (loader, visits_of(loader, step), False)

    def places(self, part: int, record: int, epoch: int) -> list[dict[str, int]]:
        """When a record or document comes in an epoch; of a stream without an end, in the first steps."""
        key = key_in(self.loader.stream, RecordKey(part, record))
        if isinstance(self.loader.stream, MixedStream) and self.loader.stream.never_ends:
            return self.loader.where(key, steps=range(SHORT_RUN))
        return self.loader.where(key, epochs=range(epoch, epoch + 1))

    def losses(self, low: int | None, high: int | None) -> dict[str, Any]:
        """The loss over steps [low, high), as pieces with their least, mean and largest, and the largest spikes among them."""
        with self._lock:
            run, level = self._opened()
            table = run.table
            first, last = (int(np.searchsorted(table.steps, one)) for one in (low or 0, MOST_STEPS if high is None else high))
            inside = slice(first, max(first, last))
            found = [one for one in find_spikes(table, most=10_000, level=level) if low is None or low <= one.step]
            spikes = [one for one in found if high is None or one.step < high]
            return {
                "steps": len(table),
                "first": int(table.steps[0]),
                "last": int(table.steps[-1]),
                "losses": int(table.num_losses.sum()),
                "damaged": table.damaged,
                "pieces": _pieces(table.steps[inside], table.mean[inside], level.at[inside]),
                "num_spikes": len(spikes),
                "spikes": [
                    {
                        "step": one.step,
                        "mean": _plain(one.mean),
                        "level": _plain(one.level),
                        "z": _plain(one.z),
                        "lost": one.not_finite,
                    }
                    for one in spikes[:MOST_SPIKES]
                ],
            }

    def blame(self, step: int) -> dict[str, Any]:
        """What a step consists of: the records with the largest part in what is above the level."""
        with self._lock:
            run, level = self._opened()
            found = blame_step(run, step, most=MOST_SUSPECTS, level=level)
        records = [
            {
                "part": one.key.source,
                "id": one.id,
                "is_record": _is_record(self.parts[one.key.source]),
                "sample": visit.sample,
                "share": _plain(visit.share),
                "loss": _plain(visit.loss),
                "z": _plain(visit.z),
                "visits": len(one.visits),
                "times": one.times,
            }
            for one, visit in found.visits
        ]
        spike = found.spike
        return {"step": step, "mean": _plain(spike.mean), "level": _plain(spike.level), "z": _plain(spike.z), "records": records}

    # The mixture over time

    def shares(self, steps: int | None) -> dict[str, Any]:
        """The share of every stream in stretches of the first steps (of a run, or an epoch, unless given), and its plan."""
        total = min(self._num_steps() if steps is None else steps, self.loader.schedule.total or MOST_STEPS)
        edges = np.unique(np.linspace(0, total, NUM_EDGES + 1).astype(np.int64))
        counts = [[one.samples for one in plan(self.loader, int(edge), network=False).streams] for edge in edges]
        given = np.diff(np.array(counts, np.float64), axis=0)
        shares = given / np.maximum(1, given.sum(axis=1, keepdims=True))
        whole = plan(self.loader, int(total), network=False)
        streams = [
            {
                "name": sendable(one.name),
                "samples": one.samples,
                "share": one.share,
                "epochs": one.epochs,
                "exhausted_at": one.exhausted_at,
                "tokens": None if one.tokens is None else float(one.tokens),
                "padding": one.padding,
            }
            for one in whole.streams
        ]
        return {"steps": int(total), "edges": edges.tolist(), "shares": np.round(shares, 5).tolist(), "streams": streams}

    def _num_steps(self) -> int:
        if self._run is not None:
            with self._lock:
                return int(self._opened()[0].table.steps[-1]) + 1
        return steps_of(self.loader) or SHORT_RUN


def steps_of(loader: Loader) -> int | None:
    """Steps of an epoch, or of all phases; None of a mixture that never ends."""
    stream = loader.stream
    if loader.phases is None and isinstance(stream, MixedStream) and stream.never_ends:
        return None
    return loader.schedule.first_step(1)


def _versions(path: Path) -> list[tuple[str, int]]:
    with os.scandir(path) as entries:
        return sorted((entry.name, entry.stat().st_size) for entry in entries if entry.is_file())


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _pieces(steps: IntArray, mean: Any, level: Any) -> list[list[float | None]]:
    """[step, least, mean, largest, level] of pieces of equal length; None where no loss is finite."""
    if len(steps) == 0:
        return []
    starts = np.unique(np.linspace(0, len(steps), NUM_PIECES, endpoint=False).astype(np.int64)).tolist()
    found: list[list[float | None]] = []
    for low, high in zip(starts, [*starts[1:], len(steps)], strict=True):
        some = mean[low:high]
        known = some[np.isfinite(some)]
        figures = [float(known.min()), float(known.mean()), float(known.max())] if known.size else [None, None, None]
        found.append([int(steps[low + (high - low) // 2]), *figures, float(level[low + (high - low) // 2])])
    return found


# The samples of a batch


def _is_record(part: PartStream) -> bool:
    """Whether the ids of a stream are those of records of its source."""
    documents = _documents(part)
    return documents.are_records if documents is not None else not part.has_sequences


def _documents(part: PartStream) -> DocumentTable | None:
    """The documents of sequences; None of records, and where documents are not known."""
    if not part.has_sequences or not getattr(part, "has_documents", True):
        return None
    found: DocumentTable = part.documents  # type: ignore[attr-defined]
    return found


class BatchReader:
    """Samples of a batch as rows for the page: records are left to the caller, sequences become pieces of documents."""

    def __init__(self, loader: Loader, step: int, visits: Visits, tokenizer: TextTokenizer | None, limits: Limits) -> None:
        self._visits, self._tokenizer, self._limits = visits, tokenizer, limits
        self._told, self._step = loader, step
        self.parts, self.place = loader.stream.parts, global_place(loader, step)
        stream = loader.work.stream_for(self.place)
        field = stream.schema.get("tokens")
        self._length = None if field is None or not field.is_fixed or not stream.has_sequences else int(field.shape[0])
        self._edges = np.searchsorted(visits.sample, np.arange(self.num_samples + 1))

    @property
    def num_samples(self) -> int:
        return self.place.num_samples - self.place.padding

    def rows(self, start: int, stop: int) -> list[Row]:
        """Samples [start, stop): those of records have an ``id``, those of documents ``pieces``."""
        return [self._row(sample) for sample in range(start, min(stop, self.num_samples))]

    def _row(self, sample: int) -> Row:
        low, high = int(self._edges[sample]), int(self._edges[sample + 1])
        if low == high:
            return {"sample": sample, "part": 0, "length": self._length, "pieces": [], "more": 0}
        part = int(self._visits.source[low])
        if not self.parts[part].has_sequences:
            return {"sample": sample, "part": part, "id": int(self._visits.id[low]), "loss": self._loss(low)}
        if _documents(self.parts[part]) is None:
            pieces = self._runs_of(self.parts[part], sample, low)
            return {"sample": sample, "part": part, "length": self._length, "pieces": pieces, "more": 0}
        pieces = [self._piece(self.parts[part], place) for place in range(low, min(high, low + MOST_PIECES))]
        return {"sample": sample, "part": part, "length": self._length, "pieces": pieces, "more": max(0, high - low - MOST_PIECES)}

    def _loss(self, place: int) -> float | str | None:
        loss = self._visits.loss[place : place + 1]
        return None if is_missing(loss)[0] else _plain(float(loss[0]))

    def _piece(self, part: PartStream, place: int) -> Row:
        """A piece of a document: its tokens [low, high), of how many, and what they say."""
        visits, documents = self._visits, _documents(part)
        assert documents is not None
        number, low, high = int(visits.id[place]), int(visits.low[place]), int(visits.high[place])
        row: Row = {"id": number, "low": low, "high": high, "loss": self._loss(place)}
        end = min(high, low + TOKENS_OF_LETTER * self._limits.letters)
        name = documents.name(number)
        about: Row = {"of": documents.length(number), "is_record": documents.are_records}
        if name != str(number):
            about["name"] = sendable(os.path.basename(name)[: self._limits.letters])
        if documents.has_tokens:
            return {**row, **about, **self._said(documents.read(number, low, end), end < high)}
        text = documents.text(number, low, end)
        return {**row, **about, **self._cut(text, end < high)}

    def _runs_of(self, part: PartStream, sample: int, place: int) -> list[Row]:
        """A sequence of which no document is known: its runs of tokens, by the place of the first one in the data."""
        rows = []
        for low, high in np.asarray(self._runs[sample]).reshape(-1, 2)[:MOST_PIECES].tolist():
            end = min(high, low + TOKENS_OF_LETTER * self._limits.letters)
            tokens = part.read_tokens(low, end)  # type: ignore[attr-defined]
            about = {"id": low, "low": 0, "high": high - low, "of": None, "is_record": False, "loss": self._loss(place)}
            rows.append({**about, **self._said(tokens, end < high)})
        return rows

    @cached_property
    def _runs(self) -> list[Any]:
        """The runs of tokens of every sample; None of a record."""
        return _runs_told(self._told.explain(self._step))

    def _said(self, tokens: Any, is_cut: bool) -> Row:
        if self._tokenizer is None:
            few = [plain_number(one) for one in tokens[: self._limits.elements]]
            return {"values": few, "is_cut": is_cut or len(few) < len(tokens)}
        return self._cut(text_of(self._tokenizer, tokens), is_cut)

    def _cut(self, text: str, is_cut: bool) -> Row:
        return {"text": sendable(text[: self._limits.letters]), "is_cut": is_cut or len(text) > self._limits.letters}


def _runs_told(told: dict[str, Any]) -> list[Any]:
    """Of what ``explain`` tells, the runs of tokens of every sample."""
    if "source" in told:
        left = {name: iter(_runs_told(part)) for name, part in told["parts"].items()}
        return [next(left[name]) for name in told["source"].tolist()]
    return [None] * len(told["ids"]) if "ids" in told else list(told["tokens"])
