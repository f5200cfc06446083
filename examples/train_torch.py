"""Trains on two ranks, is killed in the middle, goes on with one, and has seen the data in the order of a run never interrupted."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import penstock as pen
from penstock.deliver.torch import deliver

RECORDS, BATCH, STEPS, SAVE_EVERY = 2000, 32, 90, 10


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


def train(directory: Path, checkpoint: Path) -> None:
    """One rank of a run. It goes on from the checkpoint if there is one."""
    shard = pen.Shard.from_environment()
    dist.init_process_group("gloo", init_method=f"file://{checkpoint}.ranks", rank=shard.rank, world_size=shard.world)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = pen.Loader(pen.open(directory / "train.pen").shuffle(seed=7), batch_size=BATCH, shard=shard, ids="id", tail="drop")
    seen = []
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
        seen = [saved["seen"]]
    for batch in deliver(loader, forever=True):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(batch["point"]), batch["side"])
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= shard.world
        optimizer.step()
        seen.append(gathered(batch["id"], shard.world))
        if loader.step % SAVE_EVERY == 0 and shard.rank == 0:
            state = {"model": model.state_dict(), "loader": loader.state_dict(), "seen": torch.cat(seen), "loss": loss.detach()}
            torch.save(state, f"{checkpoint}.new")
            os.replace(f"{checkpoint}.new", checkpoint)
            print(f"saved {loader.step}", flush=True)
        if loader.step == STEPS:
            break
    dist.destroy_process_group()


def run(directory: Path, name: str, world: int, kill_after: int = STEPS + 1) -> dict[str, torch.Tensor]:
    """Start all ranks of a run; kill them once it has saved so many steps. Gives the last checkpoint."""
    checkpoint = directory / name
    (directory / f"{name}.ranks").unlink(missing_ok=True)
    command = [sys.executable, __file__, str(directory), str(checkpoint)]
    environments = [{**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world)} for rank in range(world)]
    ranks = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for environment in environments]
    for line in ranks[0].stdout:
        if int(line.split()[1]) >= kill_after:
            for rank in ranks:
                rank.kill()
    ends = [(rank.communicate(), rank.returncode)[1] for rank in ranks]
    saved = torch.load(checkpoint, weights_only=True)
    print(
        f"  {world} rank{'s' * (world > 1)}: ended with {ends}, checkpoint of step {saved['loader']['step']}, loss {saved['loss']:.4f}"
    )
    return saved


if __name__ == "__main__":
    if len(sys.argv) == 3:
        train(Path(sys.argv[1]), Path(sys.argv[2]))
        raise SystemExit
    with tempfile.TemporaryDirectory() as name:
        make_data(Path(name) / "train.pen")
        print(f"{RECORDS} records, {STEPS} steps of {BATCH}; killed with SIGKILL while training on 2 ranks, then resumed on 1:")
        run(Path(name), "killed", world=2, kill_after=STEPS // 2)
        resumed = run(Path(name), "killed", world=1)
        print("never interrupted:")
        straight = run(Path(name), "straight", world=1)
    same = torch.equal(resumed["seen"], straight["seen"])
    print(f"the order of all {len(straight['seen'])} samples is {'the same' if same else 'NOT THE SAME'}")
    raise SystemExit(not same)
