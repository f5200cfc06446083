"""A run that was saved goes on as if nothing had happened: on other ranks, with other batches, again and again."""

import json
from itertools import islice
from typing import Any

import pytest
from tests.loader.model import (
    TAILS,
    WORLDS,
    Cell,
    assert_equal_batches,
    delivered_ids,
    make_orders,
    make_stream,
    naive_batches,
    naive_ids,
    refuses,
    unite,
)

import penstock as pen
from penstock.loader.resume_check import verify_resume
from penstock.order import Shard, Shuffle

N = 97
SIZE = 24  # divisible by every world


def make(
    world: int = 1, rank: int = 0, *, tail: str = "keep", size: int = SIZE, threads: int = 0, n: int = N, **more: Any
) -> pen.Loader:
    return pen.Loader(make_stream(n), size, tail=tail, shard=Shard(rank, world), threads=threads, ids="id", prefetch="1MB", **more)


def expected(tail: str, steps: int, size: int = SIZE, n: int = N) -> list[Any]:
    order = make_orders(n)["shuffle"]
    return [naive_ids(order, cells) for cells in islice(naive_batches(n, size, tail), steps)]


def saved(loader: pen.Loader) -> Any:
    return json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("threads", [0, 4])
@pytest.mark.sampled(3)
def test_l7_every_step_resumes_to_the_same_batches(tail: str, threads: int) -> None:
    report = verify_resume(lambda: make(tail=tail, size=8, threads=threads), steps=18, points=range(19))
    assert (report.steps, report.points) == (18, tuple(range(19)))
    assert report.batches == 2 * sum(18 - k for k in range(19)) + sum(range(19)) + 18


@pytest.mark.parametrize("tail", TAILS)
def test_l7_chained_three_times_across_the_ends_of_epochs(tail: str) -> None:
    batches = expected(tail, 20)
    for first in range(6):
        for second in (0, 1, 4):
            for third in (0, 5):
                found: list[Any] = []
                state = None
                for count in (first, second, third, 3):
                    loader = make(tail=tail, threads=0)
                    if state is not None:
                        loader.load_state_dict(state)
                    assert loader.step == len(found)
                    with loader.forever() as run:
                        found += [delivered_ids(next(run)) for _ in range(count)]
                    state = saved(loader)
                assert found == batches[: len(found)]


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.sampled(3)
def test_l8_check_34_saved_on_some_ranks_and_resumed_on_others(world: int, tail: str) -> None:
    """The state of any rank is the state of the run; together the new ranks go on with the global sequence."""
    total = 11
    batches = expected(tail, total)
    loaders = [make(world, rank, tail=tail) for rank in range(world)]
    runs = [loader.forever() for loader in loaders]
    states = []
    for step in range(total):
        found = [saved(loader) for loader in loaders]
        assert all(state == found[0] for state in found)
        states.append(found[0])
        assert unite([delivered_ids(next(run)) for run in runs]) == batches[step]
    for other in WORLDS:
        ranks = [make(other, rank, tail=tail) for rank in range(other)]
        for step, state in enumerate(states):
            for loader in ranks:
                loader.load_state_dict(state)
                assert loader.step == step
            again = [loader.forever() for loader in ranks]
            rest = [unite([delivered_ids(next(run)) for run in again]) for _ in range(min(3, total - step))]
            assert rest == batches[step : step + 3], (other, step)


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("path", [(2, 3, 1), (8, 4, 2)])
@pytest.mark.sampled(3)
def test_l8_the_number_of_ranks_changes_again_and_again(path: tuple[int, ...], tail: str) -> None:
    batches, done, state = expected(tail, 16), 0, None
    for world in path * 2:
        ranks = [make(world, rank, tail=tail, threads=rank % 3) for rank in range(world)]
        for loader in ranks:
            if state is not None:
                loader.load_state_dict(state)
        runs = [loader.forever() for loader in ranks]
        for _ in range(2):
            assert unite([delivered_ids(next(run)) for run in runs]) == batches[done]
            done += 1
        state = saved(ranks[-1])
        for run in runs:
            run.close()


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.sampled(3)
def test_check_43_batches_read_ahead_do_not_count(tail: str, threads: int) -> None:
    for transform in (None, lambda batch: batch):
        loader = make(tail=tail, size=8, threads=threads, transform=transform)
        batches = expected(tail, 30, 8)
        with loader.forever() as run:
            for step in range(15):
                assert delivered_ids(next(run)) == batches[step]
                state = saved(loader)
                assert state["step"] == loader.step == step + 1
                fresh = make(tail=tail, size=8, threads=0)
                fresh.load_state_dict(state)
                with fresh.forever() as rest:
                    assert delivered_ids(next(rest)) == batches[step + 1]


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("size", [5, 8, 48, 97, 120])
@pytest.mark.sampled(3)
def test_another_batch_size_repeats_and_loses_nothing(tail: str, size: int) -> None:
    if refuses(N, size, tail):
        return
    order = make_orders(N)["shuffle"]
    for step in (0, 1, 2, 4, 5, 9):
        loader = make(tail=tail)
        with loader.forever() as run:
            seen = [delivered_ids(next(run)) for _ in range(step)]
        other = make(tail=tail, size=size)
        other.load_state_dict(saved(loader))
        assert other.step == step
        cursor = loader.cursor
        cells = islice(naive_batches(N, size, tail, epoch=cursor.epoch, position=cursor.position), 2 * N // size + 2)
        rest: list[list[Cell]] = list(cells)
        if not other._schedule.is_endless:  # batches larger than the epoch, and the last one is dropped
            assert list(other) == []
            continue
        with other.forever() as run:
            for batch in rest:
                assert delivered_ids(next(run)) == naive_ids(order, batch)
        assert seen == expected(tail, step)


@pytest.mark.parametrize("tail", TAILS)
def test_states_of_runs_with_two_batch_sizes_resume(tail: str) -> None:
    """The state of a run that went on with another batch size is as good as any."""
    loader = make(tail=tail)
    with loader.forever() as run:
        next(run)
    middle = make(tail=tail, size=9)
    middle.load_state_dict(saved(loader))
    with middle.forever() as run:
        found = []
        for _ in range(30):
            found.append((saved(middle), next(run)))
        end = saved(middle)
    for number, (state, _) in enumerate(found):
        fresh = make(tail=tail, size=9)
        fresh.load_state_dict(state)
        assert saved(fresh) == state
        with fresh.forever() as run:
            for _, batch in found[number:]:
                assert_equal_batches(next(run), batch)
        assert saved(fresh) == end


@pytest.mark.parametrize("tail", TAILS)
def test_seek_in_a_resumed_run(tail: str) -> None:
    batches = expected(tail, 20)
    loader = make(tail=tail)
    with loader.forever() as run:
        for _ in range(7):
            next(run)
    state = saved(loader)
    fresh = make(tail=tail)
    fresh.load_state_dict(state)
    with fresh.forever() as run:
        for step in (3, 12, 0, 7):
            fresh.seek(step)
            assert delivered_ids(next(run)) == batches[step]
    other = make(tail=tail, size=8)
    other.load_state_dict(state)
    other.seek(9)
    other.seek(7)
    assert saved(other)["cursor"] == state["cursor"]
    with pytest.raises(IndexError, match="begins at step 7"):
        other.seek(6)


@pytest.mark.parametrize("tail", TAILS)
def test_loading_in_the_middle_of_a_loop_goes_on_from_there(tail: str) -> None:
    batches = expected(tail, 12, 8)
    for threads in (0, 2):
        loader = make(tail=tail, size=8, threads=threads)
        start = saved(loader)
        with loader.forever() as run:
            assert [delivered_ids(next(run)) for _ in range(5)] == batches[:5]
            five = saved(loader)
            loader.load_state_dict(start)
            assert [delivered_ids(next(run)) for _ in range(2)] == batches[:2]
            loader.load_state_dict(five)
            assert delivered_ids(next(run)) == batches[5]


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.sampled(3)
def test_little_data_resumes_too(n: int, tail: str) -> None:
    for size in (size for size in (1, 2, 3, 8) if not refuses(n, size, tail)):
        report = verify_resume(lambda size=size: make(tail=tail, size=size, n=n), steps=6)  # type: ignore[misc]
        assert report.steps in (0, 6)


def test_the_end_of_an_epoch_is_the_start_of_the_next() -> None:
    for tail in ("keep", "drop", "pad"):
        loader = make(tail=tail)
        first = list(loader)
        state = saved(loader)
        assert (loader.epoch, loader.cursor.position, loader.step) == (1, 0, len(first))
        fresh = make(tail=tail)
        fresh.load_state_dict(state)
        assert [delivered_ids(batch) for batch in fresh] == [delivered_ids(batch) for batch in loader]


def test_l16_seeds_and_epochs_are_not_mixed_up() -> None:
    lines = {(seed, epoch): tuple(Shuffle(N, seed=seed).indices(epoch, 0, N)) for seed in range(4) for epoch in range(4)}
    assert len(set(lines.values())) == 16
    for seed in range(3):
        one = pen.Loader(make_stream(N, seed=seed), N, ids="id", threads=0)
        other = pen.Loader(make_stream(N, seed=seed + 1), N, ids="id", threads=0)
        list(one)
        assert delivered_ids(next(iter(one))) != delivered_ids(next(iter(other)))
