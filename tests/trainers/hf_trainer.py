"""The Trainer of transformers over penstock's DataLoader: ended and resumed, on one process, then on two ranks. It checks itself.

Usage: python -m tests.trainers.hf_trainer; it runs itself again as the processes that train, with a directory.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from transformers import Trainer, TrainerCallback, TrainingArguments

import penstock as pen
from penstock.deliver.torch import DataLoader

RECORDS, BATCH, STEPS, EPOCHS = 48, 8, 6, 3
DATA = pen.open({"x": np.arange(RECORDS)})


def make_loader(**options: Any) -> pen.Loader:
    return pen.Loader(DATA.shuffle(seed=7), BATCH, shard=pen.Shard.from_environment(), **options)


def wanted(first: int, last: int) -> list[list[int]]:
    """The records of some steps, on all ranks."""
    loader = pen.Loader(DATA.shuffle(seed=7), BATCH)
    return [sorted(loader.explain(step)["ids"].tolist()) for step in range(first, last)]


def gathered(batch: torch.Tensor) -> list[int]:
    parts: list[Any] = [batch.tolist()]
    if dist.is_initialized():
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, batch.tolist())
    return sorted(x for part in parts for x in part)


class Model(torch.nn.Module):
    """Keeps what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.trained: list[list[int]] = []
        self.evaluated: list[list[int]] = []

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        (self.trained if self.training else self.evaluated).append(gathered(x))
        return {"loss": self.layer(x.float()[:, None]).square().mean() * 1e-6}


class PenstockTrainer(Trainer):
    """What the documentation shows: the loaders go where the Trainer expects datasets."""

    workers = 0

    def get_train_dataloader(self) -> DataLoader:
        return DataLoader(self.train_dataset, num_workers=self.workers)

    def get_eval_dataloader(self, eval_dataset: pen.Loader | None = None) -> DataLoader:
        return DataLoader(self.eval_dataset if eval_dataset is None else eval_dataset)


class Stop(TrainerCallback):
    """Ends a run after a step and its checkpoint."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


def make_trainer(place: Path, workers: int, **options: Any) -> PenstockTrainer:
    arguments = TrainingArguments(
        str(place),
        use_cpu=True,
        num_train_epochs=EPOCHS,
        save_steps=1000,
        eval_strategy="steps",
        eval_steps=5,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        per_device_train_batch_size=BATCH // pen.Shard.from_environment().world,
    )
    loaders = {"train_dataset": make_loader(), "eval_dataset": make_loader(restart=True)}
    trainer = PenstockTrainer(Model(), arguments, **loaders, **options)
    trainer.workers = workers
    return trainer


def check_resume(place: Path, stop: int, workers: int, loads_state: bool) -> None:
    """A run that ends after a step, and one that goes on from its checkpoint, together see what one run would."""
    first = make_trainer(place, workers, callbacks=[Stop(stop)])
    first.train()
    state = first.train_dataset.state_dict()
    assert state["step"] == stop
    again = make_trainer(place, workers)
    if loads_state:  # needless, but it does no harm: batches are not left out twice
        again.train_dataset.load_state_dict(state)
    again.train(resume_from_checkpoint=True)
    assert first.model.trained + again.model.trained == wanted(0, EPOCHS * STEPS), (stop, workers, loads_state)
    seen = first.model.evaluated + again.model.evaluated
    assert seen == wanted(0, STEPS) * max(3, len(seen) // STEPS)


def train(place: Path) -> None:
    """One process, or one rank."""
    cases = [(4, 0, False), (6, 0, False), (9, 0, False), (9, 1, False), (4, 0, True), (9, 0, True), (6, 0, True)]
    for number, case in enumerate(cases):
        check_resume(place / str(number), *case)
    shard = pen.Shard.from_environment()
    if dist.is_initialized():
        dist.destroy_process_group()
    (place / f"rank{shard.rank}of{shard.world}").touch()


def main() -> None:
    """Every number of ranks."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for launcher, ranks in (([], {"rank0of1"}), (torchrun, {"rank0of2", "rank1of2"})):
        with tempfile.TemporaryDirectory() as place:
            environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
            subprocess.run([sys.executable, *launcher, __file__, place], env=environment, check=True, timeout=600)
            assert {path.name for path in Path(place).glob("rank*")} == ranks
        sys.stdout.write(f"{len(ranks)} process(es): every resumed run saw what one run sees\n")


if __name__ == "__main__":
    train(Path(sys.argv[1])) if sys.argv[1:] else main()
