"""Trains with Ray Train on two workers, goes on with one, and has seen the data in the order that was fixed before it began."""

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import torch.distributed as dist
from ray import train
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

import penstock as pen
from penstock.deliver.torch import deliver

RECORDS, BATCH, STEPS, SAVE_EVERY = 2000, 32, 60, 10


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


def work(config: dict[str, Any]) -> None:
    """One worker: a plain loader with this rank's shard. It goes on from the checkpoint if there is one."""
    context = train.get_context()
    shard = pen.Shard(context.get_world_rank(), context.get_world_size())
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    data = pen.open(config["data"])
    loader = pen.Loader(data.shuffle(seed=7), batch_size=BATCH, shard=shard, ids="id", tail="drop")
    seen = []
    if config["checkpoint"] is not None:
        saved = torch.load(Path(config["checkpoint"]) / "state.pt", weights_only=True)
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
        if loader.step % SAVE_EVERY == 0:
            report(model, loader, torch.cat(seen), float(loss), is_first=shard.rank == 0)
        if loader.step == config["stop"]:
            break


def report(model: torch.nn.Module, loader: pen.Loader, seen: torch.Tensor, loss: float, *, is_first: bool) -> None:
    """Tell Ray where the run stands; the first rank hands over the checkpoint."""
    figures = {"step": loader.step, "loss": loss}
    if not is_first:
        train.report(figures)
        return
    with tempfile.TemporaryDirectory() as name:
        torch.save({"model": model.state_dict(), "loader": loader.state_dict(), "seen": seen}, Path(name) / "state.pt")
        train.report(figures, checkpoint=Checkpoint.from_directory(name))


def run(name: str, directory: Path, world: int, *, stop: int, checkpoint: Checkpoint | None = None) -> Checkpoint:
    """A run on so many workers, up to a step; gives its last checkpoint."""
    config = {"data": str(directory / "train.pen"), "stop": stop, "checkpoint": None if checkpoint is None else checkpoint.path}
    trainer = TorchTrainer(
        work,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=world),
        run_config=RunConfig(name=name, storage_path=str(directory / "runs")),
        torch_config=TorchConfig(backend="gloo"),
    )
    result = trainer.fit()
    print(f"  workers: {world}  stopped at step {result.metrics['step']}, loss {result.metrics['loss']:.4f}", flush=True)
    return result.checkpoint


def order_of(checkpoint: Checkpoint) -> Any:
    """The ids of all samples so far, in the order in which the run saw them."""
    return torch.load(Path(checkpoint.path) / "state.pt", weights_only=True)["seen"].numpy()


def planned(data: Path) -> Any:
    """The ids of all samples of the run: a function of data, seed and step, which needs no training and no workers."""
    loader = pen.Loader(pen.open(data).shuffle(seed=7), batch_size=BATCH, tail="drop")
    return np.concatenate([loader.explain(step)["ids"] for step in range(STEPS)])


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all workers are on this machine
    with tempfile.TemporaryDirectory(prefix="r") as name:
        ray.init(num_cpus=3, include_dashboard=False, _temp_dir=f"{name}/ray", log_to_driver=False, logging_level="ERROR")
        make_data(Path(name) / "train.pen")
        print(f"{RECORDS} records, {STEPS} steps of {BATCH}; two workers, from step {STEPS // 2} on one", flush=True)
        half = run("elastic-1", Path(name), 2, stop=STEPS // 2)
        whole = run("elastic-2", Path(name), 1, stop=STEPS, checkpoint=half)
        seen, expected = order_of(whole), planned(Path(name) / "train.pen")
        ray.shutdown()
    same = np.array_equal(seen, expected)
    print(f"the order of all {len(expected)} samples is {'the one that was planned' if same else 'NOT THE ONE THAT WAS PLANNED'}")
    raise SystemExit(not same)
