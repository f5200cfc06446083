"""Grain and Orbax: batches of a loader in a Grain data set, states by Grain's handler and by ours; killed and resumed.

Before that, data goes from penstock to Grain and back. Usage: python -m tests.trainers.grain_run
"""

import pickle
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import grain
import numpy as np
import orbax.checkpoint as ocp
import torch
import torch.distributed as dist
from tests.trainers import run

import penstock as pen
from penstock.deliver.grain import BatchDataset, GrainSource, Samples
from penstock.deliver.maxtext import maxtext
from penstock.deliver.orbax import LoaderRestore, LoaderSave

FIELDS = ("tokens", "labels", "segment", "position")


def check_sources() -> None:
    """A penstock source is one of Grain's; a stream keeps its order in Grain; a source of Grain's is one of penstock's."""
    data = pen.open({"x": np.arange(20), "name": [f"n{i}" for i in range(20)]})
    mapped = grain.MapDataset.source(data).shuffle(seed=3).map(lambda record: int(record["x"]))
    assert sorted(mapped) == list(range(20))
    stream = data.shuffle(seed=7)
    order = [int(x) for batch in pen.Loader(stream, 4) for x in batch["x"]]
    samples = grain.MapDataset.source(Samples(stream))
    assert [int(record["x"]) for record in samples] == order
    back = GrainSource(grain.MapDataset.source([{"x": i, "name": f"n{i}"} for i in range(20)]))
    assert [int(x) for batch in pen.Loader(back.shuffle(seed=7), 4) for x in batch["x"]] == order
    assert back[3]["name"] == "n3"
    other = GrainSource([{"x": i, "name": f"m{i}"} for i in range(20)])
    assert other.fingerprint != back.fingerprint
    assert pickle.loads(pickle.dumps(other)).fingerprint == other.fingerprint
    assert GrainSource([b"ab", b"c"])[1]["value"] == b"c"


def check_iterators() -> None:
    """Grain's own iterators over our sources resume by their own states, ours by the loader's."""
    loader = run.make_loader(tail="drop")
    dataset = BatchDataset(loader, forever=True).map(lambda batch: batch["tokens"].tolist())
    whole = list(islice(dataset, 20))
    iterator = iter(dataset)
    first = list(islice(iterator, 9))
    state = iterator.get_state()
    again = iter(dataset)
    again.set_state(state)
    assert first + list(islice(again, 11)) == whole
    assert loader.step == 0
    epochs = Samples(loader.stream, num_samples=300)
    pipeline = grain.MapDataset.source(epochs).batch(8).to_iter_dataset()
    iterator = iter(pipeline)
    found = [next(iterator)["tokens"].tolist() for _ in range(20)]
    assert found == [run.make_loader(tail="wrap").batch(step)["tokens"].tolist() for step in range(20)]


def train(place: Path, log: run.Log) -> None:
    if run.num_ranks() == 1 and "RANK" not in __import__("os").environ:
        shard = pen.Shard()
    else:
        dist.init_process_group("gloo")
        shard = pen.Shard.from_environment()
    packs = pen.open({"tokens": run.documents()}).shuffle(seed=7).pack(run.LENGTH, fields=FIELDS, first_segment=1)
    loader = pen.Loader(packs, run.ROWS, shard=shard, tail="wrap", transform=maxtext)
    model = run.Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    manager = ocp.CheckpointManager(place.absolute())
    iterator = iter(BatchDataset(loader, forever=True))
    step = manager.latest_step() or 0
    if step:
        weights = {name: np.zeros(value.shape) for name, value in model.state_dict().items()}
        restored: Any = manager.restore(
            step,
            args=ocp.args.Composite(
                weights=ocp.args.StandardRestore(weights),
                grain=grain.checkpoint.CheckpointRestore(iterator),
                data=LoaderRestore(loader),
            ),
        )
        assert loader.state_dict() == iterator.get_state()
        assert loader.step == step
        model.load_state_dict({name: torch.from_numpy(np.asarray(value)) for name, value in restored.weights.items()})
    if shard.world > 1:
        dist.barrier()
    while step < run.STEPS:
        batch = {name: torch.from_numpy(value) for name, value in next(iterator).items()}
        labels = torch.where(batch["targets_segmentation"] > 0, batch["targets"], -100)
        optimizer.zero_grad()
        loss = model.loss(batch["inputs"], batch["inputs_position"], labels)
        loss.backward()
        for parameter in model.parameters() if shard.world > 1 else ():
            dist.all_reduce(parameter.grad)
            parameter.grad /= shard.world
        optimizer.step()
        step += 1
        if step % run.SAVED == 0 and shard.rank == 0:
            loader.load_state_dict(iterator.get_state())  # for ours; the data set took a copy of the loader
            weights = {name: value.numpy() for name, value in model.state_dict().items()}
            manager.save(
                step,
                args=ocp.args.Composite(
                    weights=ocp.args.StandardSave(weights),
                    grain=grain.checkpoint.CheckpointSave(iterator),
                    data=LoaderSave(loader),
                ),
            )
            manager.wait_until_finished()
        log(step, run.over_ranks(loss))
    manager.close()


if __name__ == "__main__":
    if not sys.argv[1:]:
        check_sources()
        check_iterators()
    run.main(__file__, train, ["grain", "orbax-checkpoint", "jax"])
