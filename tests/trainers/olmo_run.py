"""The Trainer of OLMo-core on a processor, with its checkpoints: killed and resumed. Usage: python -m tests.trainers.olmo_run"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from olmo_core.distributed.utils import get_rank, get_world_size
from olmo_core.train import Duration, TrainerConfig, prepare_training_environment, teardown_training_environment
from olmo_core.train.callbacks import Callback, CheckpointerCallback
from olmo_core.train.train_module import BasicTrainModule
from tests.trainers import run

from penstock.deliver.olmo_core import OlmoDataLoader

LOSSES: dict[int, float] = {}


class Module(BasicTrainModule):
    """Its own loss divides by the tokens of this rank, which differ: ours by a constant."""

    def train_batch(self, batch: dict[str, Any], dry_run: bool = False) -> None:
        assert [sum(row) for row in batch["doc_lens"].tolist()] == [run.LENGTH] * len(batch["input_ids"])
        position = torch.stack([torch.cat([torch.arange(n) for n in row if n]) for row in batch["doc_lens"].tolist()])
        logits = self.model(batch["input_ids"], position)
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100, reduction="sum"
        )
        loss = loss / (run.ROWS // run.num_ranks() * run.LENGTH)
        loss.backward()
        if not dry_run:
            LOSSES[self.trainer.global_step] = run.over_ranks(loss)
            self.record_ce_loss(loss.detach().float())

    def num_flops_per_token(self, seq_len: int) -> None:
        return None

    def global_num_flops_in_batch(self, batch: dict[str, Any]) -> None:
        return None


@dataclass
class Told(Callback):
    """A step is told when the next one begins: behind the callback that saves."""

    log: Any = None

    def pre_load_batch(self) -> None:
        if self.trainer.global_step in LOSSES:
            self.log(self.trainer.global_step, LOSSES.pop(self.trainer.global_step))

    post_train = pre_load_batch


def train(place: Path, log: run.Log) -> None:
    ranks = int(os.environ["RANKS"])
    prepare_training_environment(backend="cpu:gloo", shared_filesystem=True)
    model: torch.nn.Module = run.Model()
    if ranks > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    size = run.ROWS * run.LENGTH
    module = Module(model, torch.optim.AdamW(model.parameters(), lr=0.01), rank_microbatch_size=size // ranks)
    stream = run.make_loader().stream
    loader = OlmoDataLoader(
        stream, global_batch_size=size, work_dir=place / "work", dp_world_size=get_world_size(), dp_rank=get_rank()
    )
    config = TrainerConfig(
        save_folder=str(place / "saved"),
        work_dir=str(place / "work"),
        save_overwrite=True,
        max_duration=Duration.steps(run.STEPS),
        metrics_collect_interval=1,
        device="cpu",
        callbacks={
            "checkpointer": CheckpointerCallback(save_interval=run.SAVED, save_async=False, pre_train_checkpoint=False),
            "told": Told(log=log),
        },
    )
    config.build(module, loader).fit()
    teardown_training_environment()


if __name__ == "__main__":
    run.main(__file__, train, ["ai2-olmo-core", "torch"], always=True)
