"""Samplers for torch's own DataLoader: the order of a loader, ranks, epochs, and states that count what the trainer had."""

import json
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch.utils.data
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.effort import every
from torchdata.stateful_dataloader import StatefulDataLoader

import penstock as pen
from penstock.deliver.torch import BatchSampler, MapDataset, Sampler, as_tensors
from penstock.order import BlockShuffle, Mixture, Shuffle

TAILS = ["keep", "drop", "pad", "wrap"]


class Squares(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> int:
        return index * index


def source(n: int = 23) -> pen.Source:
    return pen.open(np.arange(n), field="x")


def saved(state: Any) -> Any:
    return json.loads(json.dumps(state))


def test_a_sampler_gives_the_ids_of_an_order_epoch_after_epoch() -> None:
    order = BlockShuffle(10_000, block=100, window=4, seed=9)
    sampler = Sampler(order)
    for epoch in range(3):
        assert list(sampler) == order.indices(epoch, 0, 10_000).tolist()
        assert sampler.epoch == epoch


def test_every_world_th_id_is_a_ranks() -> None:
    order = Shuffle(30_001, seed=9)
    for rank in range(3):
        assert list(Sampler(order, shard=pen.Shard(rank, 3))) == order.indices(0, rank, 30_001, 3).tolist()


def test_everything_with_a_length_can_be_sampled() -> None:
    shuffled = Shuffle(23, seed=7).indices(0, 0, 23).tolist()
    for data in (23, Squares(), source(), MapDataset(source())):
        assert list(Sampler(data, seed=7)) == shuffled
        assert list(Sampler(data)) == list(range(23))
    assert list(Sampler(source().shuffle(seed=7))) == shuffled
    assert list(Sampler(Shuffle(23, seed=7))) == shuffled
    mixture = Mixture({"a": Shuffle(20, seed=1), "b": Shuffle(3, seed=2)}, seed=3)
    assert list(Sampler(mixture)) == mixture.indices(0, 0, len(mixture)).tolist()


def test_a_trillion_records_cost_nothing() -> None:
    sampler = Sampler(10**12, seed=7)
    assert len(sampler) == 10**12
    assert list(islice(sampler, 3)) == Shuffle(10**12, seed=7).indices(0, 0, 3).tolist()
    assert next(iter(BatchSampler(10**12, 10**6, seed=7)))[:3] == Shuffle(10**12, seed=7).indices(0, 0, 3).tolist()


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="has an order already"):
        Sampler(Shuffle(5, seed=1), seed=2)
    with pytest.raises(TypeError, match="whole number"):
        Sampler(2.5)
    with pytest.raises(ValueError, match="tail must be one of"):
        Sampler(5, tail="stop")
    with pytest.raises(TypeError, match=r"MixedStream.*use DataLoader or IterableDataset"):
        BatchSampler(pen.mix({"a": source().in_order()}, seed=1), 4)
    with pytest.raises(ValueError, match="cannot be divided among 3 ranks"):
        BatchSampler(23, 4, shard=pen.Shard(0, 3))
    with pytest.raises(ValueError, match="epoch must be in"):
        Sampler(5).set_epoch(-1)
    with pytest.raises(ValueError, match="tail='drop' drops all of 2 ids: there are fewer than the 3 ranks"):
        Sampler(2, shard=pen.Shard(0, 3), tail="drop")


def test_banned_records_do_not_come() -> None:
    assert 3 not in list(Sampler(source().shuffle(seed=7).without([3])))
    late = source().shuffle(seed=7).without([3], from_step=2)
    with pytest.raises(ValueError, match="use BatchSampler"):
        Sampler(late)
    loader = pen.Loader(late, 4)
    assert list(BatchSampler(late, 4)) == [loader.explain(step)["ids"].tolist() for step in range(6)]


@given(n=st.integers(0, 60), world=st.integers(1, 5), tail=st.sampled_from(TAILS), epoch=st.integers(0, 3))
def test_ranks_share_an_epoch_as_the_tail_says(n: int, world: int, tail: str, epoch: int) -> None:
    assume(tail != "drop" or n == 0 or n >= world)
    parts = []
    for rank in range(world):
        sampler = Sampler(n, seed=3, shard=pen.Shard(rank, world), tail=tail)
        if n >= world:
            sampler.set_epoch(epoch)
        parts.append(list(sampler))
        assert len(sampler) == len(parts[-1])
    counts = Counter(one for part in parts for one in part)
    if tail != "keep":
        assert len({len(part) for part in parts}) <= 1
    if tail == "keep":
        assert counts == Counter(range(n))
    if tail == "drop":
        assert counts.total() == n // world * world
        assert not counts or max(counts.values()) == 1
    if tail == "pad" and n:
        assert set(counts) == set(range(n))
        assert counts.total() == -(-n // world) * world


@given(n=st.integers(1, 40), batch=st.integers(1, 4), world=st.integers(1, 3), tail=st.sampled_from(TAILS))
def test_a_batch_sampler_gives_the_batches_of_the_loader(n: int, batch: int, world: int, tail: str) -> None:
    assume(tail != "drop" or n >= batch * world)
    for rank in range(world):
        shard = pen.Shard(rank, world)
        loader = pen.Loader(source(n).shuffle(seed=5), batch * world, shard=shard, tail=tail, threads=0)
        sampler = BatchSampler(source(n).shuffle(seed=5), batch * world, shard=shard, tail=tail)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            assert len(sampler) == len(loader)
            assert list(sampler) == [one["x"].tolist() for one in loader]


@given(n=st.integers(1, 30), cut=st.integers(0, 30), world=st.integers(1, 4), other=st.integers(1, 4), tail=st.sampled_from(TAILS))
def test_a_sampler_goes_on_with_another_number_of_ranks(n: int, cut: int, world: int, other: int, tail: str) -> None:
    """What the first ranks did not give, the others give, each id once."""
    assume(tail != "drop" or n >= world)
    cut = min(cut, n // world)
    given_out: list[int] = []
    for rank in range(world):
        sampler = Sampler(n, seed=1, shard=pen.Shard(rank, world), tail=tail)
        given_out += islice(sampler, cut)
        state = saved(sampler.state_dict())
    for rank in range(other):
        sampler = Sampler(n, seed=1, shard=pen.Shard(rank, other), tail="keep")
        sampler.load_state_dict(state)
        given_out += sampler
    ended = cut == len(Sampler(n, seed=1, shard=pen.Shard(0, world), tail=tail))  # then the state is the start of the next epoch
    assert Counter(given_out) == Counter([*given_out[: cut * world], *range(n)] if ended else range(n))


@pytest.mark.parametrize("tail", TAILS)
def test_a_state_at_any_place_is_followed_by_the_rest(tail: str) -> None:
    for make in (lambda: Sampler(11, seed=2, shard=pen.Shard(1, 2), tail=tail), lambda: BatchSampler(11, 4, seed=2, tail=tail)):
        whole, subject, place = make(), make(), 0
        straight = [one for _ in range(4) for one in whole]
        for _ in range(2):
            for _ in subject:
                place += 1
                state = saved(subject.state_dict())
                again = make()
                again.load_state_dict(state)
                assert again.state_dict() == state
                rest = list(again) + list(again)
                assert rest == straight[place : place + len(rest)]


def test_set_epoch_chooses_the_next_iteration() -> None:
    order, sampler = Shuffle(23, seed=7), Sampler(23, seed=7)
    for epoch in (0, 5, 5, 2, 3):
        sampler.set_epoch(epoch)
        assert list(sampler) == order.indices(epoch, 0, 23).tolist()


def test_set_epoch_keeps_the_place_of_a_loaded_state() -> None:
    first = Sampler(23, seed=7)
    drawn = list(islice(first, 10))
    again = Sampler(23, seed=7)
    again.load_state_dict(first.state_dict())
    again.set_epoch(0)
    assert drawn + list(again) == Shuffle(23, seed=7).indices(0, 0, 23).tolist()
    again.set_epoch(1)
    assert list(again) == Shuffle(23, seed=7).indices(1, 0, 23).tolist()


def test_an_iteration_left_early_is_followed_by_the_next_epoch_and_one_never_used_is_none() -> None:
    order, sampler = Shuffle(23, seed=7), Sampler(23, seed=7)
    iter(sampler)
    assert list(islice(sampler, 5)) == order.indices(0, 0, 5).tolist()
    assert list(sampler) == order.indices(1, 0, 23).tolist()


def test_consumed_is_exact_where_a_data_loader_draws_ahead() -> None:
    sampler = Sampler(Squares(), seed=7)
    straight = [i * i for epoch in range(2) for i in Shuffle(23, seed=7).indices(epoch, 0, 23).tolist()]
    batches = torch.utils.data.DataLoader(Squares(), batch_size=4, sampler=sampler, num_workers=2)
    for done, _ in enumerate(batches, start=1):
        ahead, state = sampler.state_dict(), saved(sampler.state_dict(consumed=done * 4))
        again = Sampler(Squares(), seed=7)
        again.load_state_dict(state)
        rest = list(torch.utils.data.DataLoader(Squares(), batch_size=None, sampler=again))
        assert rest == (straight[done * 4 : 23] or straight[23:])
        if done == 1:
            assert ahead != state


def test_a_batch_sampler_reads_whole_batches() -> None:
    data = MapDataset(source())
    sampler = BatchSampler(data, 4, seed=7)
    batches = torch.utils.data.DataLoader(data, batch_sampler=sampler, collate_fn=as_tensors, num_workers=2)
    wanted = [one["x"].tolist() for one in pen.Loader(source().shuffle(seed=7), 4)]
    assert len(batches) == 6
    for done, batch in enumerate(batches, start=1):
        assert batch["x"].tolist() == wanted[done - 1]
        assert sampler.state_dict(consumed=done)["step"] == done


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Sampler, BatchSampler])
@pytest.mark.sampled(3)
def test_the_state_of_a_stateful_data_loader_is_exact(kind: Any, workers: int) -> None:
    def make() -> tuple[Any, Any]:
        sampler = Sampler(23, seed=7) if kind is Sampler else BatchSampler(23, 4, seed=7)
        how = {"sampler": sampler, "batch_size": 4} if kind is Sampler else {"batch_sampler": sampler}
        return StatefulDataLoader(Squares(), num_workers=workers, **how), sampler

    loader, _ = make()
    straight = [one.tolist() for _ in range(2) for one in loader]
    for stop in every(2, (1, 5, 6, 7), 1):
        loader, sampler = make()
        taken = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            taken += [one.tolist() for one in islice(loader, stop - len(taken))]
            if len(taken) == stop:
                break
        again, sampler = make()
        again.load_state_dict(loader.state_dict())
        rest = [one.tolist() for one in again]
        sampler.set_epoch(1)
        rest += [one.tolist() for one in again]
        assert taken == straight[:stop]
        assert rest[: 12 - stop] == straight[stop:]
