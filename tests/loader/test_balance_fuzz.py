"""Balance, buckets and batch_tokens by lot, without a model of how samples are dealt: only what must hold of every step.

All ranks together have the batch of one rank without balance, and every rank has as many as without. In a micro-batch no two ranks
are further apart than its most expensive sample. Buckets have every record once an epoch, in batches that no other cut of their
window would pad less. A run that is stopped anywhere goes on the same.
"""

import json
import random
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
from tests.effort import count

import penstock as pen

LENGTHS = {
    "equal": lambda chance, n: [3] * n,
    "two": lambda chance, n: [chance.choice([1, 40]) for _ in range(n)],
    "rising": lambda chance, n: list(range(n)),
    "skewed": lambda chance, n: [int(chance.lognormvariate(2, 1.5)) for _ in range(n)],
    "one giant": lambda chance, n: [1] * (n - 1) + [5000],
}


def flat(lists: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(lists))


def source_of(lengths: list[int]) -> pen.Source:
    """Records that tell their id, and as many tokens as their length says."""
    ids = [np.full(length, number, np.int32) for number, length in enumerate(lengths)]
    return pen.open(
        {"ids": pen.Ragged.from_items(ids, dtype="i4"), "x": np.arange(len(lengths)), "cost": np.array(lengths, "f4") / 7}
    )


def by_rank(stream: Any, size: int, world: int, state: Any = None, **options: Any) -> list[list[list[int]]]:
    """The ids of every step, rank by rank, of two epochs."""
    runs = []
    for rank in range(world):
        loader = pen.Loader(stream, size, shard=pen.Shard(rank, world), threads=0, ids="id", **options)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        runs.append([batch["id"].tolist() for _ in range(2) for batch in loader])
    return [list(step) for step in zip(*runs, strict=True)]


@pytest.mark.parametrize("seed", range(count(24, 1000)))
@pytest.mark.sampled(2)
def test_every_step_has_the_samples_of_the_batch_and_ranks_that_cannot_be_evened_out(seed: int) -> None:
    chance = random.Random(seed)
    world, micro, each = chance.choice([1, 2, 3, 4]), chance.choice([1, 1, 2, 3]), chance.choice([1, 2, 5])
    size = world * micro * each
    lengths = LENGTHS[chance.choice(list(LENGTHS))](chance, max(size, chance.choice([size, 3 * size + 1, 50, 97])))
    stream: Any = source_of(lengths).shuffle(seed=seed)
    if chance.random() < 0.3:
        stream = stream.buckets(size, field="ids", window=chance.choice([1, 3, 64]))
    if chance.random() < 0.3:
        stream = stream.without(chance.sample(range(len(lengths)), len(lengths) // 3), from_step=chance.choice([0, 2]))
    tail = chance.choice(["keep", "drop"])
    by = chance.choice(["ids", "cost", "tokens", "attention"])
    width = chance.choice([1, 4096])
    balance = pen.Balance(by, width=width, micro_batches=micro, field="ids" if by in ("tokens", "attention") else None)
    plain = by_rank(stream, size, 1, tail=tail)
    dealt = by_rank(stream, size, world, tail=tail, balance=balance)
    assert [sorted(flat(ranks)) for ranks in dealt] == [sorted(step[0]) for step in plain]
    for step, ranks in enumerate(dealt):
        whole = len(plain[step][0])
        assert [len(ids) for ids in ranks] == [len(range(rank, whole, world)) for rank in range(world)]
        if whole == size:
            check_slots(lengths, ranks, micro, by, width)
    place = chance.randrange(len(dealt))
    state = pen.Loader(stream, size, tail=tail, balance=balance).state_at(place)
    other = chance.choice([one for one in (1, 2, 3, 4) if size % one == 0])
    again = by_rank(stream, size, other, state, tail=tail)
    for one, ranks in zip(plain[place:], again, strict=False):
        assert sorted(flat(ranks)) == sorted(one[0])


def check_slots(lengths: list[int], ranks: list[list[int]], micro: int, by: str, width: int) -> None:
    """In every micro-batch two slots differ by at most the largest sample."""
    each = len(ranks[0]) // micro

    def cost(number: int) -> float:
        n = lengths[number]
        return n * (12 * width + n) if by == "attention" else n

    for m in range(micro):
        slots = [[cost(one) for one in ids[m * each : (m + 1) * each]] for ids in ranks]
        largest = max(max(slot) for slot in slots)
        spread = max(map(sum, slots)) - min(map(sum, slots))
        assert spread <= largest * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(count(16, 500)))
@pytest.mark.sampled(2)
def test_buckets_hold_every_record_once_and_pad_least(seed: int) -> None:
    chance = random.Random(1000 + seed)
    size, window = chance.choice([1, 2, 4, 7]), chance.choice([1, 2, 5, 64])
    lengths = LENGTHS[chance.choice(list(LENGTHS))](chance, chance.choice([1, 20, 63, 140]))
    plain = source_of(lengths).shuffle(seed=seed)
    stream = plain.buckets(size, field="ids", window=window)
    loaders = [pen.Loader(one, size, threads=0, ids="id") for one in (plain, stream)]
    for _ in range(2):
        shuffled, bucketed = ([batch["id"].tolist() for batch in loader] for loader in loaders)
        assert sorted(flat(bucketed)) == list(range(len(lengths)))
        assert [len(batch) for batch in bucketed] == [len(batch) for batch in shuffled]
        full = [batch for batch in bucketed if len(batch) == size]
        for low in range(0, len(full), window):
            own = flat(full[low : low + window])
            assert sorted(own) == sorted(flat(shuffled[low : low + window])[: len(own)])
            best = sorted((lengths[one] for one in own), reverse=True)[::size]  # the longest of batches, cut from the longest on
            assert sum(max(lengths[one] for one in batch) for batch in full[low : low + window]) == sum(best)
        if len(lengths) % size:
            assert bucketed[-1] == shuffled[-1]
    first = next(iter(pen.Loader(stream, size, threads=0)))["ids"]
    padded = first.pad(multiple_of=3)
    assert padded.shape[1] % 3 == 0
    assert padded.shape[1] - max(map(len, first)) in range(3)


@pytest.mark.parametrize("seed", range(count(8, 300)))
@pytest.mark.sampled(2)
def test_a_row_for_each_rank_is_the_packed_documents_and_nothing_else(seed: int) -> None:
    chance = random.Random(2000 + seed)
    world, length = chance.choice([1, 2, 3]), chance.choice([8, 16, 33])
    lengths = [1 + one % 50 for one in LENGTHS["skewed"](chance, 80)]
    fields = ("tokens", "position", "segment", "labels", "cu_seqlens", "max_seqlen")
    stream = source_of(lengths).shuffle(seed=seed).pack(length, field="ids", fields=fields, window=20, pad=-7)
    seen = [0] * len(lengths)
    for rank in range(world):
        for batch in pen.Loader(stream, batch_tokens=length, shard=pen.Shard(rank, world), threads=0):
            bounds = batch["cu_seqlens"].tolist()
            if not len(batch["tokens"]):
                assert bounds == [0]
                continue
            row, segment = batch["tokens"][0], batch["segment"][0]
            assert (bounds[0], bounds[-1], int(batch["max_seqlen"])) == (0, length, int(np.diff(bounds).max()))
            for low, high in pairwise(bounds):
                own = set(row[low:high].tolist())
                assert len(own) == 1  # tokens tell their document
                assert len(set(segment[low:high].tolist())) == 1
                (document,) = own
                assert (document == -7) == (segment[low] == -1)
                if document != -7:
                    seen[document] += high - low
                    assert batch["position"][0][low:high].tolist() == list(range(high - low))
                    assert batch["labels"][0][low:high].tolist() == [document] * (high - low - 1) + [-100]
    assert seen == lengths
