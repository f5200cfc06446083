"""One rank, started by torchrun: goes on from a state for some steps, and proves that the ranks' parts are the global batches.

Usage: python -m torch.distributed.run ... train_ranks.py <store> <state.json> <steps> <output directory>
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import penstock as pen
from penstock.deliver.torch import deliver


def main(store: str, state: str, steps: int, output: Path) -> None:
    dist.init_process_group("gloo")
    shard = pen.Shard.from_environment()
    assert (shard.rank, shard.world) == (dist.get_rank(), dist.get_world_size())
    loader = pen.Loader(pen.open(store).shuffle(seed=7), 6, shard=shard, ids="id", tail="wrap")
    delivery = deliver(loader, forever=True)
    delivery.load_state_dict(json.loads(Path(state).read_text()))
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
    dcp.save({"data": delivery}, checkpoint_id=output / "checkpoint")
    if shard.rank == 0:
        (output / "found.json").write_text(json.dumps({"world": shard.world, "batches": found, "state": states[0]}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
