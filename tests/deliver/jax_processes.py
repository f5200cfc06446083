"""One of two processes, run by test_jax.py with its rank, the port of the coordinator, and a directory for what it saw."""

import json
import re
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import penstock as pen
from penstock.deliver.jax import deliver

STEPS = 11


def make_loader(**options: Any) -> pen.Loader:
    return pen.Loader(pen.open(np.arange(64), field="x").shuffle(seed=7), 8, **{"tail": "drop", **options})


def refuses(told: str, loader: pen.Loader, **options: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        deliver(loader, **options)


def own_rows(array: jax.Array) -> list[int]:
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start)
    return [int(value) for shard in shards for value in np.asarray(shard.data)]


def check_refusals(rank: int) -> None:
    needed = f"process {rank} of 2 needs a loader with shard=Shard(rank={rank}, world=2)"
    for wrong in (pen.Shard(), pen.Shard(1 - rank, 2), pen.Shard(rank, 4)):
        refuses(needed, make_loader(shard=wrong))
    local = NamedSharding(Mesh(np.array(jax.local_devices()), ("data",)), P("data"))
    refuses(needed, make_loader(), sharding=local)
    # Ranks would have parts of unequal size.
    short = pen.Loader(pen.open(np.arange(61), field="x"), 8, shard=pen.Shard(rank, 2), transform=lambda batch: batch)
    refuses("a batch of 5 samples cannot be divided into 2 equal parts: the last batch of an epoch is a short one", short)


def check_rows_in_common(rank: int) -> None:
    """Both processes hold every row, and half of the columns: then both read the same."""
    devices = np.array(jax.devices()).reshape(1, -1)
    sharding = NamedSharding(Mesh(devices, ("data", "model")), P("data", "model"))
    data = np.arange(8 * 4 * 4).reshape(32, 4)
    needed = f"process {rank} of 2 needs a loader with shard=Shard(rank=0, world=1)"
    refuses(needed, make_loader(shard=pen.Shard(rank, 2)), sharding=sharding)
    with deliver(pen.Loader(pen.open(data, field="x"), 8), sharding=sharding) as batches:
        for step, batch in enumerate(batches):
            assert batch["x"].shape == (8, 4)
            for shard in batch["x"].addressable_shards:
                assert np.array_equal(shard.data, data[step * 8 : step * 8 + 8][shard.index])


def check_own_devices(rank: int) -> None:
    """A sharding over the devices of one process: each has arrays of its own."""
    local = NamedSharding(Mesh(np.array(jax.local_devices()), ("data",)), P("data"))
    with deliver(make_loader(shard=pen.Shard(rank, 2)), sharding=local) as batches:
        batch, expected = next(batches), next(iter(make_loader()))
    assert batch["x"].is_fully_addressable
    assert np.asarray(batch["x"]).tolist() == expected["x"][rank::2].tolist()


def check_scalars(rank: int) -> None:
    with deliver(make_loader(shard=pen.Shard(rank, 2), transform=lambda batch, info: {**batch, "step": info.step})) as batches:
        assert [int(batch["step"]) for batch in batches] == list(range(8))


def train(rank: int, directory: Path) -> None:
    total = jax.jit(lambda x: x.sum())
    seen: dict[str, Any] = {"own": [], "all": []}
    with deliver(make_loader(shard=pen.Shard.from_environment()), forever=True) as batches:
        for batch in islice(batches, STEPS):
            assert batch["x"].shape == (8,)
            everything = multihost_utils.process_allgather(batch["x"], tiled=True)
            assert int(total(batch["x"])) == everything.sum()
            seen["own"].append(own_rows(batch["x"]))
            seen["all"].append(everything.tolist())
        seen["state"] = batches.state_dict()
    (directory / f"rank{rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    rank, port = int(sys.argv[1]), sys.argv[2]
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank, initialization_timeout=300)
    check_refusals(rank)
    check_rows_in_common(rank)
    check_own_devices(rank)
    check_scalars(rank)
    train(rank, Path(sys.argv[3]))
    jax.distributed.shutdown()
