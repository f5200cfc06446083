"""A training run in a process of its own, which may be killed at any moment: ``python -m penstock.demo.train DATA RUN``.

RUN is a directory. ``checkpoint.npz`` holds the weights and the state of the loader as of the last multiple of ten steps;
``log.jsonl`` has a line per step: its number, the loss, a checksum of the batch, the ids of its first records. Started again,
the run goes on from the checkpoint, and the log with it.
"""

import argparse
import json
import os
import signal
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from penstock.demo.model import Model, make_model
from penstock.demo.shapes import CLASSES, EDGE
from penstock.loader import Loader
from penstock.source.registry import open_source

__all__ = ["LOG", "checkpoint", "main", "make_loader"]

EVERY = 10
LOG = "log.jsonl"
CHECKPOINT = "checkpoint.npz"


def make_loader(data: str, *, batch_size: int = 128, seed: int = 7) -> Loader:
    """The loader of every run of the demo."""
    return Loader(open_source(data).pick("image", "label").shuffle(seed=seed), batch_size, tail="drop", ids="id")


def checkpoint(run: Path) -> tuple[list[Any], dict[str, Any]] | None:
    """Weights and the state of the loader as saved last; None if nothing was."""
    if not (run / CHECKPOINT).exists():
        return None
    with np.load(run / CHECKPOINT, allow_pickle=False) as saved:
        return [saved[f"w{number}"] for number in range(4)], json.loads(saved["state"].tobytes())


def save(run: Path, model: Model, loader: Loader) -> None:
    """All or nothing: under another name, then renamed."""
    arrays: dict[str, Any] = {f"w{number}": weight for number, weight in enumerate(model.weights())}
    state = np.frombuffer(json.dumps(loader.state_dict()).encode(), np.uint8)
    temporary = run / f".{CHECKPOINT}"
    with temporary.open("wb") as file:
        np.savez(file, **arrays, state=state)
    os.replace(temporary, run / CHECKPOINT)


def main(arguments: list[str] | None = None) -> None:
    """Train; with ``--die-at N`` the process kills itself, as a machine would, before it has finished step N."""
    parser = argparse.ArgumentParser(prog="python -m penstock.demo.train", description="A training run that may be killed.")
    parser.add_argument("data")
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--die-at", type=int)
    parser.add_argument("--framework", default="auto")
    wanted = parser.parse_args(arguments)
    wanted.run.mkdir(parents=True, exist_ok=True)
    model = make_model(EDGE * EDGE, len(CLASSES), framework=wanted.framework)
    with make_loader(wanted.data) as loader:
        saved = checkpoint(wanted.run)
        if saved is not None:
            model.set_weights(saved[0])
            loader.load_state_dict(saved[1])
        _train(wanted.run, model, loader, wanted.steps, wanted.die_at)


def _train(run: Path, model: Model, loader: Loader, steps: int, die_at: int | None) -> None:
    with _log_up_to(run / LOG, loader.step).open("a") as log:
        for batch in loader.forever():
            step = loader.step - 1
            if step == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            loss = model.learn(batch["image"], batch["label"])
            line = json.dumps({"step": step, "loss": round(loss, 4), "batch": _crc(batch), "ids": batch["id"][:4].tolist()})
            log.write(line + "\n")
            log.flush()
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
            if loader.step % EVERY == 0:
                save(run, model, loader)
            if loader.step >= steps:
                return


def _log_up_to(path: Path, step: int) -> Path:
    """The log without the steps that were done but not saved: they come again."""
    lines = path.read_text().splitlines()[:step] if path.exists() else []
    path.write_text("".join(line + "\n" for line in lines))
    return path


def _crc(batch: dict[str, Any]) -> int:
    return zlib.crc32(np.ascontiguousarray(batch["image"]).data, zlib.crc32(batch["id"].tobytes()))


if __name__ == "__main__":
    main()
