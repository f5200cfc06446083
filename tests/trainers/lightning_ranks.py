"""Lightning on two processes that its own launcher starts: this program is run once, and runs itself again. It checks itself.

Usage: python lightning_ranks.py <directory>
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hidden  # noqa: F401 (before lightning)
import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint

import penstock as pen
from penstock.deliver.torch import BatchSampler, DataLoader, IterableDataset, MapDataset, Sampler, as_tensors, deliver

RECORDS, BATCH, STEPS = 48, 8, 6
DATA = pen.open({"x": np.arange(RECORDS)})
Make = Callable[[pen.Loader], Any]


def make_loader(**options: Any) -> pen.Loader:
    return pen.Loader(DATA.shuffle(seed=7), BATCH, shard=pen.Shard.from_environment(), **options)


def wanted(first: int, last: int) -> list[list[int]]:
    """The records of some steps, on all ranks."""
    loader = pen.Loader(DATA.shuffle(seed=7), BATCH)
    return [sorted(loader.explain(step)["ids"].tolist()) for step in range(first, last)]


class Model(pl.LightningModule):
    """Keeps what it sees, on all ranks together; validations apart."""

    def __init__(self, train: Callable[[], Any], validation: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.train_dataloader = train
        if validation is not None:
            self.val_dataloader = validation
            self.validation_step = self.see
        self.trained: list[list[int]] = []
        self.validated: list[list[list[int]]] = []

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        self.trained.append(self.gathered(batch))
        return self.layer(batch["x"].float()[:, None]).square().mean() * 1e-6

    def on_validation_epoch_start(self) -> None:
        self.validated.append([])

    def see(self, batch: Any, number: int) -> None:
        self.validated[-1].append(self.gathered(batch))

    def predict_step(self, batch: Any) -> list[int]:
        return self.gathered(batch)

    def gathered(self, batch: Any) -> list[int]:
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, batch["x"].tolist())
        return sorted(x for part in parts for x in part)


def make_trainer(**options: Any) -> pl.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", **quiet, **{"enable_checkpointing": "callbacks" in options, **options}
    )


def check_epochs(make: Make) -> None:
    """Every record once an epoch; the sanity check and every validation see the same records."""
    model = Model(lambda: make(make_loader()), lambda: make(make_loader(restart=True)))
    make_trainer(max_epochs=2, limit_val_batches=3, num_sanity_val_steps=2).fit(model)
    assert model.trained == wanted(0, 2 * STEPS)
    assert model.validated == [wanted(0, 2), wanted(0, 3), wanted(0, 3)]


def check_resume(make: Make, place: Path) -> None:
    """From a checkpoint within an epoch a run goes on with the rest, from one behind an epoch with the next."""
    for stop, end, when in ((4, {"max_steps": 4}, {"every_n_train_steps": 4}), (STEPS, {"max_epochs": 1}, {"every_n_epochs": 1})):
        model, again = Model(lambda: make(make_loader())), Model(lambda: make(make_loader()))
        written = ModelCheckpoint(place / str(stop), **when)
        make_trainer(**end, callbacks=[written]).fit(model)
        trainer = make_trainer(max_epochs=2)
        trainer.fit(again, ckpt_path=written.best_model_path)
        assert (model.trained, again.trained) == (wanted(0, stop), wanted(stop, 2 * STEPS))
    trainer.save_checkpoint(place / "end.ckpt")
    again = Model(lambda: make(make_loader()))
    make_trainer(max_epochs=3).fit(again, ckpt_path=place / "end.ckpt")
    assert again.trained == wanted(2 * STEPS, 3 * STEPS)


def check_prediction() -> None:
    """It sees the records of an evaluation, in its order."""
    model = Model(list)
    for _ in range(2):
        assert make_trainer().predict(model, deliver(make_loader(restart=True))) == wanted(0, STEPS)


def check_samplers() -> None:
    """Lightning divides a sampler without a shard; one with a shard is refused, unless Lightning is told not to divide."""

    def batches(sampler: Any, **options: Any) -> Callable[[], Any]:
        return lambda: torch.utils.data.DataLoader(MapDataset(DATA), sampler=sampler(), collate_fn=as_tensors, **options)

    def sharded() -> Sampler:
        return Sampler(DATA, seed=7, shard=pen.Shard.from_environment())

    model = Model(batches(lambda: Sampler(DATA, seed=7), batch_size=4))
    make_trainer(max_epochs=1).fit(model)
    assert sorted(x for batch in model.trained for x in batch) == list(range(RECORDS))  # it shuffles once more
    with pytest.raises(ValueError, match=r"divided twice, by shard=.*Wrapper, .* use_distributed_sampler=False to the Trainer"):
        make_trainer(max_epochs=1).fit(Model(batches(sharded, batch_size=4)))
    model = Model(batches(sharded, batch_size=4))
    make_trainer(max_epochs=2, use_distributed_sampler=False).fit(model)
    assert model.trained == wanted(0, 2 * STEPS)

    def whole() -> Any:
        sampler = BatchSampler(DATA, BATCH, seed=7, shard=pen.Shard.from_environment())
        return torch.utils.data.DataLoader(MapDataset(DATA), batch_sampler=sampler, collate_fn=as_tensors)

    with pytest.raises(TypeError, match="use_distributed_sampler=False"):  # Lightning's own refusal
        make_trainer(max_epochs=1).fit(Model(whole))


def check_iterable() -> None:
    """What Lightning leaves alone."""
    model = Model(lambda: torch.utils.data.DataLoader(IterableDataset(make_loader()), batch_size=None))
    make_trainer(max_epochs=2).fit(model)
    assert model.trained == wanted(0, 2 * STEPS)


if __name__ == "__main__":
    place, is_child = Path(sys.argv[1]), "LOCAL_RANK" in os.environ
    assert pen.Shard.from_environment() == (pen.Shard(1, 2) if is_child else pen.Shard())  # the first process is alone as yet
    for number, make in enumerate((DataLoader, deliver)):
        check_epochs(make)
        check_resume(make, place / str(number))
    check_epochs(lambda loader: DataLoader(loader, num_workers=1, persistent_workers=True))
    check_prediction()
    check_samplers()
    check_iterable()
    dist.destroy_process_group()
    (place / f"rank{int(is_child)}").touch()
