"""Trains on two ranks, is killed in the middle, goes on with one, and has seen the data in the order of a run never interrupted."""

import multiprocessing
import os
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import penstock as pen
from penstock.deliver.torch import deliver

RECORDS, BATCH, STEPS, SAVE_EVERY = 2000, 32, 90, 10
fork = multiprocessing.get_context("fork")


def make_data(path: Path) -> None:
    """Points of which the model should learn on which side of a plane they lie."""
    points = np.random.default_rng(0).normal(size=(RECORDS, 8)).astype(np.float32)
    with pen.create(path, {"point": pen.Field("f4", (8,)), "side": pen.Field("f4", (1,))}) as out:
        out.extend({"point": points, "side": points[:, :1] > 0})


def gathered(ids: torch.Tensor, world: int) -> torch.Tensor:
    """The ids of the global batch, from the parts of all ranks."""
    parts = [torch.empty_like(ids) for _ in range(world)]
    dist.all_gather(parts, ids)
    return torch.stack(parts, dim=1).flatten()  # rank r has every world-th sample, from r on


def train(checkpoint: Path, shard: pen.Shard, progress: Connection) -> None:
    """One rank of a run. It goes on from the checkpoint if there is one."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{checkpoint}.ranks", rank=shard.rank, world_size=shard.world)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    data = pen.open(checkpoint.parent / "train.pen")
    loader = pen.Loader(data.shuffle(seed=7), batch_size=BATCH, shard=shard, ids="id", tail="drop")
    seen = []
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
        seen = [saved["seen"]]
    for batch in deliver(loader, forever=True):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(batch["point"]), batch["side"])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            dist.all_reduce(gradient)
            parameter.data -= 0.1 * gradient / shard.world
        seen.append(gathered(batch["id"], shard.world))
        if loader.step % SAVE_EVERY == 0 and shard.rank == 0:
            state = {"model": model.state_dict(), "loader": loader.state_dict(), "seen": torch.cat(seen), "loss": loss.detach()}
            torch.save(state, f"{checkpoint}.new")
            os.replace(f"{checkpoint}.new", checkpoint)
            progress.send(loader.step)
        if loader.step == STEPS:
            break
    dist.destroy_process_group()


def run(checkpoint: Path, world: int, kill_after: int | None = None) -> dict[str, Any]:
    """Start all ranks of a run and, if asked, kill them once it has saved so many steps. Gives the last checkpoint."""
    Path(f"{checkpoint}.ranks").unlink(missing_ok=True)
    saves, progress = fork.Pipe(duplex=False)
    ranks = [fork.Process(target=train, args=(checkpoint, pen.Shard(rank, world), progress)) for rank in range(world)]
    for rank in ranks:
        rank.start()
    progress.close()
    while kill_after is not None and saves.recv() < kill_after:
        pass
    for rank in ranks:
        if kill_after is not None:
            rank.kill()
        rank.join()
    saved = torch.load(checkpoint, weights_only=True)
    ends = ", ".join(str(rank.exitcode) for rank in ranks)
    print(f"  ranks: {world}  exit codes: {ends}  checkpoint: step {saved['loader']['step']}, loss {saved['loss']:.4f}")
    return saved


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        make_data(Path(name) / "train.pen")
        print(f"{RECORDS} records, {STEPS} steps of {BATCH}; killed while training on 2 ranks, then resumed on 1")
        run(Path(name) / "killed", world=2, kill_after=STEPS // 2)
        resumed = run(Path(name) / "killed", world=1)
        print("never interrupted")
        straight = run(Path(name) / "straight", world=1)
    same = torch.equal(resumed["seen"], straight["seen"])
    print(f"the order of all {len(straight['seen'])} samples is {'the same' if same else 'NOT THE SAME'}")
    raise SystemExit(not same)
