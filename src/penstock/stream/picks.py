"""Picks: what the samples of a batch are, before anything is read."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray
from penstock.native import _core

__all__ = ["MixedPicks", "Picks", "RecordPicks", "SpanPicks", "expanded", "flatten", "grouped", "ids_of", "join", "sources_of"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RecordPicks:
    """Records of one source, each a sample; ``weights`` where the order is a design, ``seeds`` where something of a sample is
    drawn. Of several sources, where ``sources`` has the number of each sample's.
    """

    ids: IntArray
    weights: FloatArray | None = None
    sources: npt.NDArray[np.int32] | None = None
    seeds: npt.NDArray[np.uint64] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, low: int, high: int) -> "RecordPicks":
        """Samples [low, high)."""
        return self.take(slice(low, high))

    def take(self, places: slice | IntArray) -> "RecordPicks":
        others: list[Any] = [None if one is None else one[places] for one in (self.weights, self.sources, self.seeds)]
        return RecordPicks(self.ids[places], *others)

    def with_seeds(self, seeds: npt.NDArray[np.uint64]) -> "RecordPicks":
        return RecordPicks(self.ids, self.weights, self.sources, seeds)

    def describe(self) -> dict[str, Any]:
        """As ``explain`` shows them."""
        return {"ids": self.ids} if self.weights is None else {"ids": self.ids, "weights": self.weights}


@dataclass(frozen=True, eq=False)
class SpanPicks:
    """Sequences of ``size`` tokens, each put together from runs: sample i has the runs ``first[i]:first[i + 1]``. A run that starts
    below 0 is not read. Of packed documents, ``documents`` has the document of each run (-1: padding) and its place in it.
    """

    size: int
    starts: IntArray
    counts: IntArray
    first: IntArray
    documents: IntArray | None = None

    def __len__(self) -> int:
        return len(self.first) - 1

    def part(self, low: int, high: int) -> "SpanPicks":
        first = self.first[low : high + 1]
        runs = slice(first[0], first[-1])
        return SpanPicks(self.size, self.starts[runs], self.counts[runs], first - first[0], self._documents_of(runs))

    def take(self, places: IntArray) -> "SpanPicks":
        runs = np.diff(self.first)[places]
        first = np.concatenate([[0], np.cumsum(runs)]).astype(np.int64)
        chosen = np.arange(first[-1]) + np.repeat(self.first[:-1][places] - first[:-1], runs)
        return SpanPicks(self.size, self.starts[chosen], self.counts[chosen], first, self._documents_of(chosen))

    def _documents_of(self, runs: slice | IntArray) -> IntArray | None:
        return None if self.documents is None else self.documents[runs]

    @property
    def ids(self) -> IntArray:
        """The first token of each sample; of one that begins with a token that is not read, the first of the data behind it, or a
        number below 0.
        """
        heads = self.first[:-1]
        ids = self.starts[heads]
        if self.documents is not None:
            owner = self.documents[:, 0]
            after = np.minimum(heads + 1, len(self.starts) - 1)
            has_data = (owner[heads] >= 0) & (owner[after] == owner[heads]) & (after < self.first[1:]) & (self.starts[after] >= 0)
            ids = np.where(ids >= 0, ids, np.where(has_data, self.starts[after], -2 - owner[heads]))
        return ids

    def describe(self) -> dict[str, Any]:
        """As ``explain`` shows them: the runs of tokens of each sample; of packed documents also (document, from, to)."""
        is_read = self.starts >= 0
        edges = np.concatenate([[0], np.cumsum(is_read)])[self.first]
        samples = [slice(low, high) for low, high in pairwise(edges.tolist())]
        pairs = np.stack([self.starts, self.starts + self.counts], axis=1)[is_read]
        shown: dict[str, Any] = {"tokens": [pairs[one] for one in samples]}
        if self.documents is not None:
            shown["documents"] = self._spans(self.documents, np.where(is_read, self.counts, 0))
        return shown

    def _spans(self, documents: IntArray, counts: IntArray) -> list[IntArray]:
        """(document, from, to) of the pieces of each sample; from = to for one of added tokens only."""
        sample = np.repeat(np.arange(len(self)), np.diff(self.first))
        owner = documents[:, 0]
        is_head = owner >= 0
        is_head[1:] &= (owner[1:] != owner[:-1]) | (sample[1:] != sample[:-1])
        heads = np.flatnonzero(is_head)
        ends = np.concatenate([[0], np.cumsum(np.where(owner >= 0, counts, 0))])
        sizes = np.diff(np.append(ends[heads], ends[-1]))
        spans = np.column_stack([documents[heads], documents[heads, 1] + sizes])
        edges = np.searchsorted(sample[heads], np.arange(len(self) + 1))
        return [spans[low:high] for low, high in pairwise(edges.tolist())]


@dataclass(frozen=True, eq=False)
class MixedPicks:
    """Samples of several streams: sample i is of number ``which[i]``; ``parts[k]`` has those of number k in their order, and is
    itself made of ``widths[k]`` streams that are no mixtures.
    """

    names: tuple[str, ...]
    which: npt.NDArray[np.int32]
    parts: "tuple[Picks | None, ...]"
    widths: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.which)

    @cached_property
    def places(self) -> tuple[IntArray, IntArray]:
        """The samples of every part, part by part, and where each part ends there."""
        return grouped(self.which, len(self.names))

    def gather(self, values: Sequence[npt.NDArray[Any]], out: npt.NDArray[Any]) -> None:
        """Put values of the parts that are there into the places of their samples."""
        out[self.places[0]] = values[0] if len(values) == 1 else np.concatenate(values)

    def take(self, places: IntArray) -> "MixedPicks":
        which = self.which[places]
        order, ends = self.places
        rank = np.empty(len(self), np.int64)
        rank[order] = np.arange(order.size) - np.repeat(np.append(0, ends[:-1]), np.diff(ends, prepend=0))
        chosen = rank[places]
        parts = tuple(None if part is None else part.take(chosen[which == k]) for k, part in enumerate(self.parts))
        return MixedPicks(self.names, which, parts, self.widths)

    def describe(self) -> dict[str, Any]:
        names = np.array(self.names)[self.which]
        return {"source": names, "parts": {n: p.describe() for n, p in zip(self.names, self.parts, strict=True) if p is not None}}


Picks = RecordPicks | SpanPicks | MixedPicks


def grouped(which: npt.NDArray[np.int32], count: int) -> tuple[IntArray, IntArray]:
    """The places of each of ``count`` groups in their order, group by group, and where each group ends there."""
    order, ends = np.empty(which.size, np.int64), np.empty(count, np.int64)
    _core.group_by(which, order, ends)
    return order, ends


def expanded(first: IntArray, count: IntArray) -> tuple[IntArray, IntArray]:
    """first[i], first[i] + 1, ... (count[i] of them) of every i, one after the other, with i."""
    row = np.repeat(np.arange(len(first)), count)
    return row, np.arange(row.size) + np.repeat(first - (np.cumsum(count) - count), count)


def ids_of(picks: Picks) -> IntArray:
    """The record of each sample; the first token of a sequence; the record within its own stream for a mixture."""
    if not isinstance(picks, MixedPicks):
        return picks.ids
    ids = np.empty(len(picks), np.int64)
    if len(picks):
        picks.gather([ids_of(part) for part in picks.parts if part is not None], ids)
    return ids


def sources_of(picks: Picks) -> npt.NDArray[np.int32] | None:
    """Which stream of a mixture each sample is from, counted through mixtures in mixtures; None where there is only one."""
    if not isinstance(picks, MixedPicks):
        return picks.sources if isinstance(picks, RecordPicks) else None
    first = np.concatenate([[0], np.cumsum(picks.widths)]).astype(np.int32)
    if first[-1] == len(picks.names):  # no mixture is in this one
        return picks.which
    sources = np.empty(len(picks), np.int32)
    found = [(number, part, sources_of(part)) for number, part in enumerate(picks.parts) if part is not None]
    if found:
        picks.gather([first[n] + (np.zeros(len(part), np.int32) if s is None else s) for n, part, s in found], sources)
    return sources


def join(parts: Sequence[Any]) -> Any:
    """Concatenate picks of one stream."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], RecordPicks):
        weights = None if parts[0].weights is None else np.concatenate([part.weights for part in parts])
        seeds = None if parts[0].seeds is None else np.concatenate([part.seeds for part in parts])
        return RecordPicks(np.concatenate([part.ids for part in parts]), weights, seeds=seeds)
    if isinstance(parts[0], SpanPicks):
        runs = np.concatenate([np.diff(part.first) for part in parts])
        return SpanPicks(
            parts[0].size,
            np.concatenate([part.starts for part in parts]),
            np.concatenate([part.counts for part in parts]),
            np.concatenate([[0], np.cumsum(runs)]).astype(np.int64),
            None if any(part.documents is None for part in parts) else np.concatenate([part.documents for part in parts]),
        )
    columns = zip(*(part.parts for part in parts), strict=True)
    joined = tuple(join(there) if (there := [one for one in column if one is not None]) else None for column in columns)
    return MixedPicks(parts[0].names, np.concatenate([part.which for part in parts]), joined, parts[0].widths)


def flatten(picks: Picks) -> tuple[RecordPicks | SpanPicks, npt.NDArray[np.int32] | None]:
    """The samples of a mixture in their order, each by its place in its own source, and the number of the stream of each sample;
    there is none where there is only one stream.
    """
    if not isinstance(picks, MixedPicks):
        return picks, sources_of(picks)
    streams = sources_of(picks)
    spans = _spans_of(picks)
    return (RecordPicks(ids_of(picks), seeds=_seeds_of(picks)) if spans is None else spans), streams


def _seeds_of(picks: Picks) -> npt.NDArray[np.uint64] | None:
    """The seeds of samples in their order; None if there are none."""
    if not isinstance(picks, MixedPicks):
        return picks.seeds if isinstance(picks, RecordPicks) else None
    found = [_seeds_of(part) for part in picks.parts if part is not None]
    there = [seeds for seeds in found if seeds is not None]
    if not there or len(there) < len(found):
        return None
    seeds = np.empty(len(picks), np.uint64)
    picks.gather(there, seeds)
    return seeds


def _spans_of(picks: Picks) -> SpanPicks | None:
    """The runs of tokens of samples in their order; None if samples are records."""
    if not isinstance(picks, MixedPicks):
        return picks if isinstance(picks, SpanPicks) else None
    parts = [_spans_of(part) for part in picks.parts if part is not None]
    there = [part for part in parts if part is not None]
    if not there:
        return None
    rank = np.empty(len(picks), np.int64)
    picks.gather([np.arange(len(picks))], rank)
    together: SpanPicks = join(there).take(rank)
    return together
