"""What the samples of a batch are: taking some of them, and putting parts together."""

from typing import Any

import numpy as np
import pytest

from penstock.stream.picks import MixedPicks, RecordPicks, SpanPicks, join


def describe(picks: Any) -> list[Any]:
    """Sample by sample."""
    if isinstance(picks, RecordPicks):
        weights = [None] * len(picks) if picks.weights is None else picks.weights.tolist()
        return list(zip(picks.ids.tolist(), weights, strict=True))
    if isinstance(picks, SpanPicks):
        edges = zip(picks.first[:-1], picks.first[1:], strict=True)
        return [list(zip(picks.starts[a:b].tolist(), picks.counts[a:b].tolist(), strict=True)) for a, b in edges]
    parts = [iter([] if part is None else describe(part)) for part in picks.parts]
    return [(picks.names[k], next(parts[k])) for k in picks.which]


def make(kind: str, count: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    if kind == "records":
        return RecordPicks(rng.integers(0, 99, count))
    if kind == "weighted":
        return RecordPicks(rng.integers(0, 99, count), rng.random(count))
    if kind == "spans":
        first = np.concatenate([[0], np.cumsum(rng.integers(1, 4, count))]).astype(np.int64)
        return SpanPicks(8, rng.integers(0, 99, first[-1]), rng.integers(1, 9, first[-1]), first)
    which = rng.integers(0, 3, count).astype(np.int32)
    parts = tuple(make("spans", int((which == k).sum()), seed + k) if (which == k).any() else None for k in range(3))
    return MixedPicks(("a", "b", "c"), which, parts, (1, 1, 1))


@pytest.mark.parametrize("kind", ["records", "weighted", "spans", "mixed"])
def test_parts_are_taken_and_put_together(kind: str) -> None:
    rng = np.random.default_rng(1)
    for seed in range(20):
        parts = [make(kind, count, 10 * seed + count) for count in rng.integers(0, 9, rng.integers(1, 5))]
        joined = join(parts)
        assert describe(joined) == [sample for part in parts for sample in describe(part)]
        assert len(joined) == len(describe(joined))
        if len(joined):
            places = rng.integers(0, len(joined), 12)
            assert describe(joined.take(places)) == [describe(joined)[i] for i in places]
            assert joined.describe()
