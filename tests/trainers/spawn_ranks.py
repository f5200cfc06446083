"""What torch.multiprocessing.spawn runs in two ranks; it sets no variable. Every rank checks itself."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
import torch.utils.data

import penstock as pen
from penstock.deliver.torch import DataLoader, IterableDataset, UnshardedWarning, deliver

RECORDS, BATCH, STEPS = 48, 8, 6
DATA = pen.open(np.arange(RECORDS), field="x")


def make_loader(shard: pen.Shard | None) -> pen.Loader:
    return pen.Loader(DATA.shuffle(seed=7), BATCH, shard=shard)


def together(batches: Any) -> list[list[int]]:
    found = []
    for batch in batches:
        parts: list[Any] = [None, None]
        dist.all_gather_object(parts, batch["x"].tolist())
        found.append(sorted(parts[0] + parts[1]))
    return found


def run(rank: int, place: Path, with_reader: bool = True) -> None:
    """``with_reader``: also in a process that rank 0 spawns, which imports torch anew."""
    assert pen.Shard.from_environment() == pen.Shard()  # nothing says otherwise as yet
    early = make_loader(pen.Shard.from_environment())
    dist.init_process_group("gloo", init_method=f"file://{place}/ranks", rank=rank, world_size=2)
    shard = pen.Shard.from_environment()
    assert shard == pen.Shard(rank, 2)
    wanted = [sorted(make_loader(None).explain(step)["ids"].tolist()) for step in range(2 * STEPS)]
    for batches in (deliver(make_loader(shard)), DataLoader(make_loader(shard))):
        assert together(batches) + together(batches) == wanted
    # A loader that was made too early is noticed, also where a process reads it that does not know the ranks.
    iterable = torch.utils.data.DataLoader(IterableDataset(early), batch_size=None, num_workers=1, multiprocessing_context="spawn")
    for late in (deliver(early), *([iterable] if rank == 0 and with_reader else [])):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            next(iter(late))
        assert [one.category for one in caught] == [UnshardedWarning]
    dist.destroy_process_group()
    (place / f"rank{rank}").touch()
