"""Datasets and the DataLoader: any number of workers, forked or spawned, gives the batches of the loader, and states are exact."""

import json
import multiprocessing
import os
import signal
from itertools import islice
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.utils.data
from tests import effort
from torchdata.stateful_dataloader import StatefulDataLoader

import penstock as pen
from penstock.deliver.torch import BatchSampler, DataLoader, IterableDataset, MapDataset, Sampler, as_tensors, deliver
from penstock.errors import BatchError, StateError, WorkerDiedError

resource_tracker.ensure_running()  # Python's own, started by the first spawned process, stays as long as the tests: no leak

STEPS = 6
"""Batches of an epoch of the loaders below."""

Lists = list[list[int]]


def make_loader(**options: Any) -> pen.Loader:
    return pen.Loader(pen.open(np.arange(23), field="x").shuffle(seed=7), 4, **options)


def lists(batches: Any) -> Lists:
    return [batch["x"].tolist() for batch in batches]


def straight(epochs: int = 3) -> Lists:
    loader = make_loader()
    return [one for _ in range(epochs) for one in lists(loader)]


def plain(dataset: IterableDataset, **options: Any) -> Any:
    return torch.utils.data.DataLoader(dataset, batch_size=None, **options)


def seeds(batch: dict[str, Any], info: Any) -> dict[str, Any]:
    return {**batch, "seed": info.seeds}


def fail_at_3(batch: dict[str, Any], info: Any) -> dict[str, Any]:
    if info.step == 3:
        raise ArithmeticError("spoilt")
    return batch


WAYS = [
    pytest.param({"num_workers": 0}, id="none"),
    pytest.param({"num_workers": 1}, id="one"),
    pytest.param({"num_workers": 2}, id="two"),
    pytest.param({"num_workers": 2, "persistent_workers": True}, id="persistent"),
]


# Map-style


def test_a_source_is_a_map_style_dataset() -> None:
    source = pen.open(np.arange(23) * 2, field="x")
    for data in (source, MapDataset(source)):
        assert len(data) == 23
        assert data[3]["x"] == 6
    batches = torch.utils.data.DataLoader(source, batch_size=4, sampler=Sampler(source, seed=7))  # type: ignore[arg-type]
    assert lists(batches) == [[2 * i for i in one] for one in straight(1)]


def test_a_map_dataset_reads_a_batch_at_once() -> None:
    data = MapDataset(pen.open(np.arange(23), field="x"))
    assert as_tensors(data.__getitems__([5, 1, 1]))["x"].tolist() == [5, 1, 1]
    assert as_tensors(data.__getitems__([]))["x"].tolist() == []
    with pytest.raises(TypeError, match=r"collate_fn=penstock\.deliver\.torch\.as_tensors"):
        next(iter(torch.utils.data.DataLoader(data, batch_size=4)))
    with pytest.raises(TypeError, match="expected a penstock source"):
        MapDataset([1, 2])  # type: ignore[arg-type]


def test_forked_workers_read_a_store_the_parent_has_used(tmp_path: Path) -> None:
    fields = {"x": pen.Field("i8"), "text": pen.Field.text(codec=pen.Zstd(3))}
    with pen.create(tmp_path / "a.pen", fields) as out:
        out.extend({"x": np.arange(23), "text": [f"text {i}" for i in range(23)]})
    with pen.open(tmp_path / "a.pen") as store:
        assert store[7]["text"] == "text 7"
        running = iter(pen.Loader(store, 4, threads=2, transform=dict))  # threads of the parent are busy when it forks
        next(running)
        data = MapDataset(store)
        for _ in range(effort.count(1, 3)):
            batches = torch.utils.data.DataLoader(data, batch_sampler=BatchSampler(store, 4), num_workers=2, collate_fn=as_tensors)
            texts = [text for batch in batches for text in batch["text"]]
            assert texts == [f"text {i}" for i in range(23)]
        for one in (DataLoader(pen.Loader(store, 4), num_workers=2), plain(IterableDataset(pen.Loader(store, 4)), num_workers=2)):
            assert [text for batch in one for text in batch["text"]] == texts
        assert len(lists(running)) == 5


# IterableDataset


@pytest.mark.parametrize("way", WAYS)
def test_any_number_of_workers_gives_the_same_batches(way: dict[str, Any]) -> None:
    dataset = IterableDataset(make_loader())
    batches = plain(dataset, **way)
    found: Lists = []
    for epoch in range(3):
        dataset.set_epoch(epoch)
        assert len(batches) == STEPS
        found += lists(batches)
    assert found == straight()


def test_spawned_workers_give_the_same_batches() -> None:
    """Dataset and DataLoader; with a transform, whose seeds are the same wherever it runs."""
    loader = make_loader(transform=seeds, shard=pen.Shard(1, 2))
    wanted = [(batch["x"].tolist(), batch["seed"].tolist()) for batch in make_loader(transform=seeds, shard=pen.Shard(1, 2))]
    how = {"multiprocessing_context": "spawn"}
    for make in effort.every(
        2, [lambda: DataLoader(loader, num_workers=1, **how), lambda: plain(IterableDataset(loader), num_workers=1, **how)]
    ):
        assert [(batch["x"].tolist(), batch["seed"].tolist()) for batch in make()] == wanted


def test_more_workers_than_batches() -> None:
    loader = pen.Loader(pen.open(np.arange(3), field="x"), 4)
    dataset = IterableDataset(loader)
    for batches in (plain(dataset, num_workers=2), DataLoader(loader, num_workers=2)):
        assert lists(batches) == [[0, 1, 2]]
    persistent = plain(
        IterableDataset(pen.Loader(pen.open(np.arange(3), field="x").shuffle(seed=1), 4)), num_workers=2, persistent_workers=True
    )
    loader = pen.Loader(pen.open(np.arange(3), field="x").shuffle(seed=1), 4)
    for _ in range(3):
        assert lists(persistent) == lists(loader)


def test_the_dataset_has_a_cursor_of_its_own_from_where_the_loader_stands() -> None:
    loader = make_loader()
    loader.seek(2)
    dataset = IterableDataset(loader)
    assert lists(dataset) == straight()[2:6]
    assert lists(dataset) == straight()[6:12]
    assert loader.step == 2
    with pytest.raises(TypeError, match="expected a penstock Loader"):
        IterableDataset([])  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2])
def test_consumed_makes_the_state_of_a_dataset_exact(workers: int) -> None:
    dataset = IterableDataset(make_loader())
    for done, _ in enumerate(plain(dataset, num_workers=workers), start=1):
        state = json.loads(json.dumps(dataset.state_dict(consumed=done)))
        again = IterableDataset(make_loader())
        again.load_state_dict(state)
        assert lists(plain(again)) == (straight()[done:STEPS] or straight()[STEPS : 2 * STEPS])


def test_phases_are_one_iteration() -> None:
    def make() -> pen.Loader:
        phases = [pen.Phase(3, batch_size=2), pen.Phase(4, batch_size=6)]
        return pen.Loader(pen.open(np.arange(23), field="x").shuffle(seed=7), phases=phases)

    dataset = IterableDataset(make())
    wanted = lists(make())
    assert lists(plain(dataset, num_workers=2)) == wanted
    assert lists(dataset) == wanted
    assert lists(dataset) == []
    assert lists(DataLoader(make(), num_workers=2)) == wanted
    with pytest.raises(ValueError, match="no epoch to choose"):
        dataset.set_epoch(1)


# Evaluation


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.sampled(2)
def test_every_iteration_of_a_restarting_loader_begins_at_step_0(way: dict[str, Any]) -> None:
    """After a whole epoch, after a part of one, after nothing, after a state; whatever epoch a trainer names."""
    state = make_loader().state_dict() | {"step": 2, "cursor": bytes(pen.order.Cursor(7, 0, 8)).hex()}
    loader, dataset = make_loader(restart=True), IterableDataset(make_loader(restart=True))
    for batches, subject in ((DataLoader(loader, **way), loader), (plain(dataset, **way), dataset)):
        for count in (STEPS, 2, 0, 4, STEPS):
            assert lists(islice(batches, count)) == straight()[:count]
        subject.load_state_dict(state)
        assert lists(batches) == straight(1)
    for one in (DataLoader(loader, **way), dataset):
        one.set_epoch(3)
        assert lists(one) == straight(1)


def test_a_restarting_delivery_begins_at_step_0() -> None:
    batches = deliver(make_loader(restart=True))
    for count in (STEPS, 2, 0, 4, STEPS):
        assert lists(islice(batches, count)) == straight()[:count]
    running = iter(batches)
    assert lists(islice(running, 2)) + lists(running) == straight(1)


# torchdata

TORCHDATA = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it


@TORCHDATA
@pytest.mark.parametrize("way", [*WAYS[:1], *WAYS[2:]])
def test_the_state_of_a_stateful_data_loader_is_exact(way: dict[str, Any]) -> None:
    def make() -> tuple[Any, IterableDataset]:
        dataset = IterableDataset(make_loader())
        return StatefulDataLoader(dataset, batch_size=None, **way), dataset

    for stop in effort.every(2, (0, 1, 4, 5, 7), 1):
        loader, dataset = make()
        taken: Lists = []
        for epoch in range(2):
            dataset.set_epoch(epoch)
            taken += lists(islice(loader, stop - len(taken)))
            if len(taken) == stop:
                break
        again, dataset = make()
        again.load_state_dict(loader.state_dict())
        rest = lists(again)
        dataset.set_epoch(epoch + 1)
        rest += lists(again)
        assert taken + rest == straight()[: (epoch + 2) * STEPS]


@TORCHDATA
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_data_loader_goes_on_behind_an_ended_epoch(workers: int) -> None:
    def make(kind: str) -> tuple[Any, Any]:
        if kind == "dataset":
            dataset = IterableDataset(make_loader())
            return StatefulDataLoader(dataset, batch_size=None, num_workers=workers), dataset
        data = MapDataset(pen.open(np.arange(23), field="x"))
        if kind == "sampler":
            sampler: Any = Sampler(data, seed=7)
            how: dict[str, Any] = {"sampler": sampler, "batch_size": 4}
        else:
            sampler = BatchSampler(data, 4, seed=7)
            how = {"batch_sampler": sampler}
        return StatefulDataLoader(data, num_workers=workers, collate_fn=as_tensors, **how), sampler

    for kind in ("dataset", "sampler", "batch_sampler"):
        loader, _ = make(kind)
        assert lists(loader) == straight(1)
        again, subject = make(kind)
        again.load_state_dict(loader.state_dict())
        subject.set_epoch(1)
        assert lists(again) == straight()[STEPS : 2 * STEPS]


def test_a_state_of_something_else_is_refused() -> None:
    for state in ({}, {"start": {}, "taken": "1"}, [], {"start": {}, "taken": 1}):
        with pytest.raises(StateError):
            iter(IterableDataset(make_loader())).load_state_dict(state)  # type: ignore[attr-defined]


# DataLoader


@pytest.mark.parametrize("way", WAYS)
def test_the_data_loader_gives_the_batches_of_the_loader_and_counts_them(way: dict[str, Any]) -> None:
    loader = make_loader()
    batches = DataLoader(loader, **way)
    found: Lists = []
    for _ in range(2):
        assert len(batches) == STEPS
        for batch in batches:
            found.append(batch["x"].tolist())
            assert loader.step == len(found)
    assert found == straight(2)


def test_a_run_goes_on_with_another_number_of_workers() -> None:
    state, found = None, []
    for stop, workers in ((2, 2), (5, 0), (8, 1), (13, 2), (18, 0)):
        batches = DataLoader(make_loader(), num_workers=workers)
        if state is not None:
            batches.load_state_dict(state)
        while len(found) < stop:
            found += lists(islice(batches, stop - len(found)))
        state = json.loads(json.dumps(batches.state_dict()))
        assert state["step"] == stop
    assert found == straight()


@pytest.mark.parametrize("way", WAYS[2:])
def test_a_data_loader_left_early_gives_the_rest_next_time(way: dict[str, Any]) -> None:
    batches = DataLoader(make_loader(), **way)
    assert lists(islice(batches, 2)) + lists(batches) + lists(batches) == straight(2)
    batches.load_state_dict({**batches.state_dict(), "step": 0, "cursor": bytes(pen.order.Cursor(7)).hex()})
    assert lists(batches) == straight(1)


def test_a_data_loader_goes_to_the_epoch_a_trainer_names_unless_it_is_there() -> None:
    batches = DataLoader(make_loader())
    for epoch in (2, 0, 1):
        batches.set_epoch(epoch)
        assert lists(batches) == straight()[epoch * STEPS : (epoch + 1) * STEPS]
    batches.set_epoch(0)
    assert lists(islice(batches, 2)) == straight()[:2]
    batches.set_epoch(0)
    assert lists(batches) == straight()[2:STEPS]
    batches.sampler.set_epoch(5)  # which a loader that has begun does not heed
    assert lists(batches) == straight()[STEPS : 2 * STEPS]
    for fresh in (DataLoader(make_loader()), deliver(make_loader())):
        running = iter(fresh)
        fresh.sampler.set_epoch(1)  # Lightning says so between the two
        assert lists(running) == straight()[STEPS : 2 * STEPS]


def test_phases_have_no_epoch_to_go_to_but_the_first() -> None:
    batches = DataLoader(pen.Loader(pen.open(np.arange(23), field="x"), phases=[pen.Phase(3, batch_size=2)]))
    batches.set_epoch(0)
    batches.sampler.set_epoch(1)
    assert len(lists(batches)) == 3
    with pytest.raises(ValueError, match="no epoch to choose, got epoch 1"):
        batches.set_epoch(1)


def test_the_dataset_of_a_data_loader_has_the_length_of_the_data_and_no_records() -> None:
    batches = DataLoader(make_loader(shard=pen.Shard(0, 2)))
    assert len(batches.dataset) == 23
    with pytest.raises(TypeError, match="iterate over the DataLoader itself"):
        batches.dataset[0]


def test_a_failing_batch_of_a_dataset_stays_raised() -> None:
    dataset = IterableDataset(make_loader(transform=fail_at_3))
    batches = iter(dataset)
    assert lists(islice(batches, 3)) == straight()[:3]
    for _ in range(2):
        with pytest.raises(BatchError, match=r"step 3.*spoilt"):
            next(batches)
    assert dataset.state_dict()["step"] == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_a_failing_batch_is_raised_at_its_place(workers: int) -> None:
    loader = make_loader(transform=fail_at_3)
    batches = iter(DataLoader(loader, num_workers=workers))
    assert lists(islice(batches, 3)) == straight()[:3]
    with pytest.raises(BatchError, match=r"step 3.*spoilt"):
        next(batches)
    assert loader.step == 3


def die_at_3(batch: dict[str, Any], info: Any) -> dict[str, Any]:
    if info.step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return batch


def test_a_killed_worker_is_named_and_the_run_can_go_on() -> None:
    loader, found = make_loader(transform=die_at_3), []
    with pytest.raises(WorkerDiedError, match=r"step \d: DataLoader worker .*(killed by signal: Killed|exited unexpectedly)"):
        found.extend(batch["x"].tolist() for batch in DataLoader(loader, num_workers=2))
    assert loader.step == len(found) < 4
    again = make_loader()
    again.load_state_dict(loader.state_dict())
    assert found + lists(DataLoader(again, num_workers=2)) == straight(1)


def test_an_iteration_over_a_loader_that_was_moved_ends_with_an_error() -> None:
    loader = make_loader()
    batches = iter(DataLoader(loader))
    next(batches)
    loader.seek(4)
    with pytest.raises(RuntimeError, match="moved from step 1 to 4"):
        next(batches)
    assert lists(DataLoader(loader)) == straight()[4:6]


def test_what_the_loader_decides_about_is_refused() -> None:
    with pytest.raises(TypeError, match="decides about batch_size, shuffle"):
        DataLoader(make_loader(), batch_size=3, shuffle=True)
    with pytest.raises(TypeError, match="expected a penstock Loader"):
        DataLoader([1, 2])  # type: ignore[arg-type]


def test_many_short_lived_data_loaders_leave_nothing_behind() -> None:
    """Threads and descriptors are counted after every test; here also processes and shared memory."""
    loader, first = make_loader(), straight()[0]
    for number in range(effort.count(36, 200)):
        loader.seek(0)
        workers = number % 3 // 2
        batches = DataLoader(loader, num_workers=workers) if number % 2 else plain(IterableDataset(loader), num_workers=workers)
        assert next(iter(batches))["x"].tolist() == first
    assert multiprocessing.active_children() == []
    assert [name for name in os.listdir("/dev/shm") if name.startswith(f"torch_{os.getpid()}_")] == []
