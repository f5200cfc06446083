"""One rank of a run that goes on from a state for some steps, and proves that the ranks' parts are the global batches."""

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import penstock as pen
from penstock.deliver.torch import deliver


def train(place: Path, steps: int) -> None:
    """Reads ``a.pen`` and ``state.json`` of a directory; writes ``checkpoint`` and ``found.json``."""
    shard = pen.Shard.from_environment()
    assert (shard.rank, shard.world) == (dist.get_rank(), dist.get_world_size())
    loader = pen.Loader(pen.open(place / "a.pen").shuffle(seed=7), 6, shard=shard, ids="id", tail="wrap")
    delivery = deliver(loader, forever=True)
    delivery.load_state_dict(json.loads((place / "state.json").read_text()))
    found: list[list[int]] = []
    for batch in delivery:
        assert torch.equal(batch["id"], batch["x"])
        parts = [torch.empty_like(batch["id"]) for _ in range(shard.world)]
        dist.all_gather(parts, batch["id"])
        together = torch.stack(parts, dim=1).flatten().tolist()
        assert together == loader.explain(loader.step - 1)["ids"].tolist()
        found.append(together)
        if len(found) == steps:
            break
    states: list[Any] = [None] * shard.world
    dist.all_gather_object(states, delivery.state_dict())
    assert all(one == states[0] for one in states)
    dcp.save({"data": delivery}, checkpoint_id=place / "checkpoint")
    if shard.rank == 0:
        (place / "found.json").write_text(json.dumps({"world": shard.world, "batches": found, "state": states[0]}))
