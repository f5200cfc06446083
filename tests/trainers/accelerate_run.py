"""A loop under accelerate, with save_state and load_state: killed and resumed. Usage: python -m tests.trainers.accelerate_run"""

import shutil
from pathlib import Path

import torch
from accelerate import Accelerator
from tests.trainers import run

import penstock as pen
from penstock.deliver.torch import DataLoader


def train(place: Path, log: run.Log) -> None:
    accelerator = Accelerator(cpu=True)
    loader = run.make_loader(pen.Shard.from_environment(), tail="drop")
    plain = run.Model()
    model, optimizer, batches = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters(), lr=0.01), DataLoader(loader))
    assert batches.loader is loader, "prepare gives it back as it is: nothing is divided twice"
    if (place / "done").exists():
        accelerator.load_state(str(place / "saved"))
    while loader.step < run.STEPS:
        for batch in batches:  # the rest of the epoch after a resume, then the next epoch
            optimizer.zero_grad()
            logits = model(batch["tokens"], batch["position"])
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100, reduction="sum"
            ) / (run.ROWS // run.num_ranks() * run.LENGTH)
            accelerator.backward(loss)
            optimizer.step()
            if loader.step % run.SAVED == 0:
                accelerator.save_state(str(place / "next"))
                accelerator.wait_for_everyone()
                if accelerator.is_main_process:
                    shutil.rmtree(place / "saved", ignore_errors=True)
                    (place / "next").rename(place / "saved")
                    (place / "done").touch()
                accelerator.wait_for_everyone()
            log(loader.step, run.over_ranks(loss))
            if loader.step == run.STEPS:
                break


if __name__ == "__main__":
    run.main(__file__, train, ["accelerate", "torch"])
