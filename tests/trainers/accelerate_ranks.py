"""One rank, started by torchrun or as its fork (forked_ranks.py): loops of one's own and under accelerate. It checks itself.

The first rank also forks a process that knows nothing of ranks, before anything but the imports was done: it does the same alone.

Usage: python -m torch.distributed.run ... accelerate_ranks.py <directory>
"""

import multiprocessing
import os
import sys
import warnings
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration
from train_ranks import train

import penstock as pen
from penstock.deliver.torch import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    MapDataset,
    Sampler,
    UnshardedWarning,
    as_tensors,
    deliver,
)

RECORDS, BATCH, STEPS = 48, 8, 6
EVERYTHING = list(range(RECORDS))
DATA = pen.open(np.arange(RECORDS), field="x")


def make_loader(shard: pen.Shard | None, **options: Any) -> pen.Loader:
    return pen.Loader(DATA.shuffle(seed=7), BATCH, shard=shard, **options)


def wanted(step: int) -> list[int]:
    """The records of a step, on all ranks."""
    return sorted(make_loader(None).explain(step)["ids"].tolist())


def together(batches: Iterable[Any]) -> list[list[int]]:
    """The records of each step, on all ranks."""
    found = []
    for batch in batches:
        parts = [batch["x"].tolist()]
        if dist.is_initialized():
            parts = [None] * dist.get_world_size()  # type: ignore[list-item]
            dist.all_gather_object(parts, batch["x"].tolist())
        found.append(sorted(x for part in parts for x in part))
    return found


def flat(lists: Iterable[list[int]]) -> list[int]:
    return sorted(x for one in lists for x in one)


def theirs(**options: Any) -> Any:
    return torch.utils.data.DataLoader(MapDataset(DATA), collate_fn=as_tensors, **options)


def check_own_loops(shard: pen.Shard) -> None:
    """Every record once an epoch; an evaluation is the same each time."""
    for make in (deliver, DataLoader, lambda loader: DataLoader(loader, num_workers=1)):
        batches = make(make_loader(shard))
        for epoch in range(2):
            assert together(batches) == [wanted(epoch * STEPS + step) for step in range(STEPS)]
        evaluation = make(make_loader(shard, restart=True))
        for count in (2, STEPS, 3):
            assert together(islice(evaluation, count)) == [wanted(step) for step in range(count)]


def check_warnings(world: int) -> None:
    """Every rank gets the same: warned about, unless it is an evaluation or there is one rank."""
    every = {
        "deliver": lambda options: deliver(make_loader(None, **options)),
        "DataLoader": lambda options: DataLoader(make_loader(None, **options)),
        "IterableDataset": lambda options: torch.utils.data.DataLoader(
            IterableDataset(make_loader(None, **options)), batch_size=None
        ),
        "Sampler": lambda options: theirs(sampler=Sampler(DATA), batch_size=BATCH),
        "BatchSampler": lambda options: theirs(batch_sampler=BatchSampler(DATA, BATCH)),
    }
    for name, make in every.items():
        for options in ({}, {"restart": True}):
            is_evaluation = bool(options) and "Sampler" not in name
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                assert flat(batch["x"].tolist() for batch in make(options)) == EVERYTHING
            told = [str(one.message) for one in caught if one.category is UnshardedWarning]
            assert bool(told) == (world > 1 and not is_evaluation), (name, options, told)
            assert all("has 2 ranks and this loader no shard" in one for one in told)


def check_prepared(accelerator: Accelerator, shard: pen.Shard, place: Path) -> None:
    """A DataLoader of penstock is left as it is, with an exact state, and without one batches are skipped once."""
    loader = make_loader(shard)
    batches = DataLoader(loader)
    assert accelerator.prepare(batches) is batches
    assert together(islice(batches, 4)) == [wanted(step) for step in range(4)]
    accelerator.save_state(str(place))
    accelerator.wait_for_everyone()
    rest = [wanted(step) for step in range(4, 2 * STEPS)]
    assert together(batches) + together(batches) == rest
    accelerator.load_state(str(place))
    assert loader.step == 4
    assert together(skip_first_batches(batches, 4)) + together(batches) == rest
    accelerator.free_memory()
    delivery = deliver(make_loader(shard), device=accelerator.device)
    assert accelerator.prepare(delivery) is delivery
    accelerator.register_for_checkpointing(delivery)
    assert together(islice(delivery, 4)) == [wanted(step) for step in range(4)]
    accelerator.save_state(str(place / "delivery"))
    accelerator.wait_for_everyone()
    assert together(delivery) + together(delivery) == rest
    accelerator.load_state(str(place / "delivery"))
    assert together(delivery) + together(delivery) == rest
    for workers in (0, 1):
        fresh = accelerator.prepare(DataLoader(make_loader(shard), num_workers=workers))
        assert together(skip_first_batches(fresh, 4)) + together(fresh) == rest


def check_division(accelerator: Accelerator, shard: pen.Shard) -> None:
    """accelerate divides what has no shard, and what has one is refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnshardedWarning)
        for batches in (
            theirs(sampler=Sampler(DATA, seed=7), batch_size=2),
            theirs(batch_sampler=BatchSampler(DATA, 2, seed=7)),
            torch.utils.data.DataLoader(IterableDataset(make_loader(None)), batch_size=None),
        ):
            prepared = accelerator.prepare(batches)
            for _ in range(2):
                assert flat(together(prepared)) == EVERYTHING
    if shard.world == 1:
        return
    iterable = torch.utils.data.DataLoader(IterableDataset(make_loader(shard)), batch_size=None)
    every = [
        theirs(sampler=Sampler(DATA, seed=7, shard=shard), batch_size=2),
        theirs(sampler=Sampler(DATA, seed=7, shard=shard), batch_size=2, num_workers=1),
        theirs(batch_sampler=BatchSampler(DATA, 4, seed=7, shard=shard)),
        iterable,
        torch.utils.data.DataLoader(IterableDataset(make_loader(shard)), batch_size=None, num_workers=1),
    ]
    for batches in map(accelerator.prepare, every):
        with pytest.raises(
            ValueError, match=r"divided twice, by shard=Shard\(rank=\d, world=2\) and by accelerate.*leave shard out"
        ):
            next(iter(batches))
    undispatched = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
    with pytest.raises(ValueError, match=r"divided twice, .*IterableDatasetShard"):
        next(iter(undispatched.prepare(iterable)))


def check(place: Path) -> None:
    before = pen.Shard.from_environment()  # from the variables
    accelerator = Accelerator(cpu=True)
    shard = pen.Shard.from_environment()  # from the process group, where there is one
    assert shard == before == pen.Shard(accelerator.process_index, int(os.environ.get("WORLD_SIZE", "1")))
    check_own_loops(shard)
    check_warnings(shard.world)
    check_prepared(accelerator, shard, place)
    check_division(accelerator, shard)
    if shard.world > 1:
        train(place, 9)
    accelerator.end_training()
    (place / f"rank{shard.rank}of{shard.world}").touch()


def check_alone(place: Path) -> None:
    """What a process does that no launcher has started."""
    for name in [
        name for name in os.environ if "RANK" in name or "WORLD_SIZE" in name or name.startswith(("MASTER_", "TORCHELASTIC_"))
    ]:
        del os.environ[name]
    check(place)


def main(place: Path) -> None:
    """One rank."""
    alone = multiprocessing.get_context("fork").Process(target=check_alone, args=(place / "alone",))
    if os.environ["RANK"] == "0":
        alone.start()
    check(place)
    if os.environ["RANK"] == "0":
        alone.join()
        assert alone.exitcode == 0


if __name__ == "__main__":
    main(Path(sys.argv[1]))
