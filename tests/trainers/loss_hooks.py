"""Losses logged from Lightning and from the Trainer of transformers: every loss at its record. It checks itself.

Usage: python -m tests.trainers.loss_hooks
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch import Trainer as LightningTrainer
from transformers import Trainer, TrainingArguments

import penstock as pen
from penstock.deliver.huggingface import log_losses, over_loaders
from penstock.deliver.lightning import Data, LogLosses
from penstock.trace import Run

DATA = pen.open({"x": np.arange(48)})


def make_loader(shard: pen.Shard | None = None) -> pen.Loader:
    return pen.Loader(DATA.shuffle(seed=7), 8, shard=shard, tail="drop")


def make_endless(shard: pen.Shard | None = None) -> pen.Loader:
    streams = {"a": DATA.shuffle(seed=7), "b": DATA.shuffle(seed=8)}
    return pen.Loader(pen.mix(streams, seed=1, stop="forever"), 8, shard=shard)


def check(run: Path, loader: pen.Loader, steps: int) -> None:
    """The loss of a record was its number."""
    found = Run.open(run, loader)
    assert found.table.steps.tolist() == list(range(steps)), found.table.steps
    for step in range(steps):
        visits = found.visits(step)
        assert visits.loss.tolist() == visits.id.tolist(), step


class Module(LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: Any, number: int) -> dict[str, torch.Tensor]:
        return {"loss": self.layer(batch["x"].float()[:, None]).square().mean() * 1e-6, "losses": batch["x"].float()}

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 1e-6)


def lightning(place: Path) -> None:
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    for name, make in (("ends", make_loader), ("endless", make_endless)):
        log = pen.LossLog(place / name)
        trainer = LightningTrainer(max_steps=10, enable_model_summary=False, callbacks=[LogLosses(log)], **quiet)
        trainer.fit(Module(), datamodule=Data(make))
        assert log.lost == 0
        check(place / name, make(), 10)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x: torch.Tensor, labels: Any = None) -> dict[str, torch.Tensor]:
        return {"loss": self.layer(x.float()[:, None]).square().mean() * 1e-6, "losses": x.float()}


class Logging(over_loaders(Trainer)):  # type: ignore[misc]
    log_batch: Any = None
    times: tuple[int, ...] = (1,)  # how often the losses of a batch are logged, in turn
    number = 0

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **rest: Any) -> Any:
        outputs = model(**inputs)
        for _ in range(self.times[self.number % len(self.times)]):
            self.log_batch(outputs["losses"])
        self.number += 1
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]


def transformers_sometimes(place: Path) -> None:
    """Losses of every third batch only, and of one of them twice: none is that of another batch."""
    for accumulated in (1, 3):
        options: dict[str, Any] = {"max_steps": 6 // accumulated, "report_to": [], "use_cpu": True, "disable_tqdm": True}
        options |= {"per_device_train_batch_size": 8, "gradient_accumulation_steps": accumulated, "save_strategy": "no"}
        arguments = TrainingArguments(str(place / "out"), remove_unused_columns=False, **options)
        trainer = Logging(Model(), arguments, train_dataset=make_loader())
        trainer.times = (0, 0, 1, 0, 0, 2)
        log = pen.LossLog(place / str(accumulated))
        trainer.log_batch = log_losses(trainer, log)
        trainer.train()
        found = Run.open(place / str(accumulated), make_loader())
        assert found.table.steps.tolist() == [2, 5], found.table.steps
        for step in (2, 5):
            visits = found.visits(step)
            assert visits.loss.tolist() == visits.id.tolist(), (accumulated, step)


def transformers(place: Path) -> None:
    for accumulated in (1, 4):
        options: dict[str, Any] = {"max_steps": 12 // accumulated, "report_to": [], "use_cpu": True, "disable_tqdm": True}
        options |= {"per_device_train_batch_size": 8, "gradient_accumulation_steps": accumulated, "save_strategy": "no"}
        arguments = TrainingArguments(str(place / "out"), remove_unused_columns=False, **options)
        trainer = Logging(Model(), arguments, train_dataset=make_loader())
        log = pen.LossLog(place / str(accumulated))
        trainer.log_batch = log_losses(trainer, log)
        trainer.train()
        assert log.lost == 0, log
        found = Run.open(place / str(accumulated), make_loader())
        assert len(found.table) >= (12 if accumulated == 1 else 8), found.table.steps
        check(place / str(accumulated), make_loader(), len(found.table))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        for number, program in enumerate((lightning, transformers, transformers_sometimes)):
            program(Path(directory, str(number)))
            print(f"{program.__name__}: every loss at its record", file=sys.stderr)  # noqa: T201
