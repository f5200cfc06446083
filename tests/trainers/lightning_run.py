"""Lightning, by its own launcher and by torchrun: killed and resumed. Usage: python -m tests.trainers.lightning_run"""

import os
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from tests.trainers import run

import penstock as pen
from penstock.deliver.lightning import Data

SEEN: list[list[int]] = []


class Module(pl.LightningModule):
    def __init__(self, log: run.Log) -> None:
        super().__init__()
        self.model, self.told = run.Model(), log

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.model.loss(batch["tokens"], batch["position"], batch["labels"])

    def on_validation_epoch_start(self) -> None:
        SEEN.append([])

    def validation_step(self, batch: dict[str, torch.Tensor]) -> None:
        SEEN[-1] += batch["tokens"].flatten().tolist()


class Losses(pl.Callback):
    """After the callback that saves checkpoints."""

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int) -> None:
        module.told(trainer.global_step, run.over_ranks(outputs["loss"]))


def train(place: Path, log: run.Log) -> None:
    """Runs that end are endless (a mixture without an end), the others have epochs."""
    endless = "ENDLESS" in os.environ

    def make(shard: pen.Shard) -> pen.Loader:
        loader = run.make_loader(shard, tail="drop")
        if not endless:
            return loader
        mixed = pen.mix({"a": loader.stream, "b": loader.stream}, weights={"a": 1, "b": 2}, seed=3, stop="forever")
        return pen.Loader(mixed, run.ROWS, shard=shard)

    data = Data(make, lambda shard: run.make_loader(shard, restart=True, tail="drop"))
    saved = ModelCheckpoint(place, every_n_train_steps=run.SAVED, save_top_k=1, monitor="step", mode="max", filename="last")
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ["RANKS"]),
        strategy="ddp" if int(os.environ["RANKS"]) > 1 else "auto",
        max_steps=run.STEPS,
        precision="64-true",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=2,
        limit_val_batches=3,
        val_check_interval=6,
        check_val_every_n_epoch=None,
        callbacks=[saved, Losses()],
    )
    trainer.fit(Module(log), datamodule=data, ckpt_path=place / "last.ckpt" if (place / "last.ckpt").exists() else None)
    assert len(SEEN) > 2
    assert all(one == SEEN[-1] for one in SEEN[1:]), "every validation sees the same records"


if __name__ == "__main__":
    run.main(__file__, train, ["lightning"], degrees=((2, 1),))  # torchrun
    if not sys.argv[1:]:
        os.environ["ENDLESS"] = "1"
        run.main(__file__, train, ["lightning"], degrees=((1, 2),), launcher=False)
