"""The training run of the demo, in a process that may be killed at any moment: ``python -m penstock.demo DATA RUN``.

The data set is generated, not downloaded: coloured shapes with captions, eight classes. The model has one hidden layer, in torch
where that is installed, else in numpy.

RUN is a directory. ``checkpoint.npz`` holds the weights and the state of the loader as of the last multiple of ten steps;
``log.jsonl`` has a line per step: its number, the loss, a checksum of the batch, the ids of its first records. A second
start resumes from the checkpoint and truncates the log to match.
"""

import argparse
import json
import os
import signal
import sys
import zlib
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.formats.open import open_source
from penstock.loader import Loader
from penstock.schema import Field, Zstd

EDGE = 32
CLASSES = ("disc", "square", "ring", "cross", "triangle", "stripes", "diamond", "dots")
COLOURS = {
    "red": (214, 69, 65),
    "green": (62, 156, 84),
    "blue": (58, 110, 200),
    "yellow": (232, 190, 60),
    "violet": (140, 84, 170),
    "white": (240, 240, 236),
}
FIELDS = {"image": Field("u1", (EDGE, EDGE, 3)), "label": Field("i4"), "caption": Field.text(codec=Zstd(3))}
HIDDEN = 64
RATE = 0.1
EVERY = 10  # steps between checkpoints
LOG = "log.jsonl"
CHECKPOINT = "checkpoint.npz"

Floats = npt.NDArray[np.float32]


def batches(num_records: int, *, seed: int, classes: Sequence[str] = CLASSES, size: int = 1000) -> Iterator[dict[str, Any]]:
    """Batches of records, sorted by class: the worst case for a shuffle."""
    numbers = np.array([CLASSES.index(name) for name in classes])
    labels = numbers[np.arange(num_records) * len(classes) // num_records]
    for low in range(0, num_records, size):
        yield draw(labels[low : low + size], seed=[seed, low])


def draw(labels: npt.NDArray[np.integer], *, seed: int | list[int]) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    count, names = len(labels), list(COLOURS)
    front = random.integers(0, len(names), count)
    back = (front + random.integers(1, len(names), count)) % len(names)
    radius = random.uniform(0.45, 0.8, count).astype(np.float32)
    inside = _masks(np.asarray(labels), _grid(random, count, radius))[..., None]
    palette = np.array(list(COLOURS.values()), np.float32)
    image = np.where(inside, palette[front][:, None, None], palette[back][:, None, None] * 0.35)
    image += random.normal(0, 10, image.shape).astype(np.float32)
    sizes = np.where(radius < 0.6, "small", "large")
    captions = [
        f"a {size} {names[f]} {CLASSES[label]} on {names[b]}" for size, f, label, b in zip(sizes, front, labels, back, strict=True)
    ]
    return {"image": image.clip(0, 255).astype(np.uint8), "label": np.asarray(labels, np.int32), "caption": captions}


def _grid(random: np.random.Generator, count: int, radius: Floats) -> tuple[Floats, Floats]:
    """For every picture the coordinates of its pixels, as seen from its shape: moved, and scaled so that the shape has size 1."""
    line = np.linspace(-1, 1, EDGE, dtype=np.float32)
    x0, y0 = random.uniform(-0.2, 0.2, (2, count, 1, 1)).astype(np.float32)
    scale = radius[:, None, None]
    return (line[None, None, :] - x0) / scale, (line[None, :, None] - y0) / scale


def _masks(labels: npt.NDArray[Any], grid: tuple[Floats, Floats]) -> npt.NDArray[np.bool_]:
    x, y = np.broadcast_arrays(*grid)
    masks = np.zeros(x.shape, bool)
    for number in np.unique(labels).tolist():
        chosen = labels == number
        masks[chosen] = _mask(CLASSES[number], x[chosen], y[chosen])
    return masks


def _mask(shape: str, x: Floats, y: Floats) -> npt.NDArray[np.bool_]:
    distance, ax, ay = np.hypot(x, y), np.abs(x), np.abs(y)
    masks = {
        "disc": distance < 0.9,
        "square": np.maximum(ax, ay) < 0.8,
        "ring": np.abs(distance - 0.7) < 0.22,
        "cross": (np.minimum(ax, ay) < 0.25) & (np.maximum(ax, ay) < 0.95),
        "triangle": (y < 0.75) & (2 * ax < y + 0.9),
        "stripes": (np.maximum(ax, ay) < 0.95) & (np.floor(y * 4) % 2 == 0),
        "diamond": ax + ay < 0.95,
        "dots": np.hypot(ax - 0.5, ay - 0.5) < 0.32,
    }
    return np.asarray(masks[shape], bool)


def make_model(pixels: int, classes: int, *, framework: str) -> "NumpyModel":
    """A new model; ``framework`` is torch, numpy, or auto. Equal ones start with equal weights."""
    if framework not in ("auto", "torch", "numpy"):
        raise ValueError(f"framework must be auto, torch or numpy, got {framework!r}")
    start = _start(pixels, classes)
    if framework == "torch" or (framework == "auto" and find_spec("torch") is not None):
        return TorchModel(start)
    return NumpyModel(start)


def _start(pixels: int, classes: int) -> list[Floats]:
    random = np.random.default_rng(0)
    shapes = [(pixels, HIDDEN), (HIDDEN,), (HIDDEN, classes), (classes,)]
    return [(random.normal(0, 1, shape) / np.sqrt(shape[0]) * (len(shape) > 1)).astype(np.float32) for shape in shapes]


def _features(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Grey pictures of mean 0 and spread 1: shapes, whatever their colours."""
    grey = images.mean(-1, dtype=np.float32).reshape(len(images), -1)
    grey -= grey.mean(1, keepdims=True)
    return np.asarray(grey / (grey.std(1, keepdims=True) + 1e-6), np.float32)


class NumpyModel:
    """The model in plain numpy. ``learn`` takes one step of gradient descent and returns the loss before it."""

    def __init__(self, weights: list[Floats]) -> None:
        self.set_weights(weights)

    def learn(self, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int32]) -> float:
        w1, b1, w2, b2 = self._weights
        x, rows = _features(images), np.arange(len(labels))
        hidden = np.maximum(x @ w1 + b1, 0)
        scores = hidden @ w2 + b2
        scores -= scores.max(1, keepdims=True)
        chances = np.exp(scores)
        chances /= chances.sum(1, keepdims=True)
        loss = -np.log(chances[rows, labels] + 1e-9).mean()
        wrong = chances
        wrong[rows, labels] -= 1
        wrong /= len(labels)
        back = (wrong @ w2.T) * (hidden > 0)
        for weight, slope in zip(self._weights, (x.T @ back, back.sum(0), hidden.T @ wrong, wrong.sum(0)), strict=True):
            weight -= np.float32(RATE) * slope
        return float(loss)

    def weights(self) -> list[Floats]:
        return [weight.copy() for weight in self._weights]

    def set_weights(self, weights: list[Floats]) -> None:
        self._weights: list[Any] = [weight.copy() for weight in weights]


class TorchModel(NumpyModel):
    """The same in torch."""

    def __init__(self, weights: list[Floats]) -> None:
        import torch

        torch.set_num_threads(1)  # the same sums in the same order, in every run
        self._torch: Any = torch
        super().__init__(weights)

    def learn(self, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int32]) -> float:
        torch = self._torch
        w1, b1, w2, b2 = self._weights
        hidden = torch.relu(torch.from_numpy(_features(images)) @ w1 + b1)
        loss = torch.nn.functional.cross_entropy(hidden @ w2 + b2, torch.from_numpy(labels).long())
        slopes = torch.autograd.grad(loss, self._weights)
        with torch.no_grad():
            for weight, slope in zip(self._weights, slopes, strict=True):
                weight -= RATE * slope
        return float(loss.detach())

    def weights(self) -> list[Floats]:
        return [weight.detach().numpy().copy() for weight in self._weights]

    def set_weights(self, weights: list[Floats]) -> None:
        self._weights = [self._torch.tensor(weight, requires_grad=True) for weight in weights]


def make_loader(data: str, *, batch_size: int = 128, seed: int = 7) -> Loader:
    return Loader(open_source(data).pick("image", "label").shuffle(seed=seed), batch_size, tail="drop", ids="id")


def checkpoint(run: Path) -> tuple[list[Any], dict[str, Any]] | None:
    """Weights and the state of the loader as saved last; None if nothing was."""
    if not (run / CHECKPOINT).exists():
        return None
    with np.load(run / CHECKPOINT, allow_pickle=False) as saved:
        return [saved[f"w{number}"] for number in range(4)], json.loads(saved["state"].tobytes())


def save(run: Path, model: NumpyModel, loader: Loader) -> None:
    """All or nothing: under another name, then renamed."""
    arrays: dict[str, Any] = {f"w{number}": weight for number, weight in enumerate(model.weights())}
    state = np.frombuffer(json.dumps(loader.state_dict()).encode(), np.uint8)
    temporary = run / f".{CHECKPOINT}"
    with temporary.open("wb") as file:
        np.savez(file, **arrays, state=state)
    os.replace(temporary, run / CHECKPOINT)


def main(arguments: list[str] | None = None) -> None:
    """Train; with ``--die-at N`` the process kills itself, as a machine would, before it has finished step N."""
    parser = argparse.ArgumentParser(prog="python -m penstock.demo", description="A training run that may be killed.")
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


def _train(run: Path, model: NumpyModel, loader: Loader, steps: int, die_at: int | None) -> None:
    with _log_up_to(run / LOG, loader.step).open("a") as log:
        for batch in loader.forever():
            step = loader.step - 1
            if step == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            loss = model.learn(batch["image"], batch["label"])
            crc = zlib.crc32(np.ascontiguousarray(batch["image"]).data, zlib.crc32(batch["id"].tobytes()))
            line = json.dumps({"step": step, "loss": round(loss, 4), "batch": crc, "ids": batch["id"][:4].tolist()})
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


if __name__ == "__main__":
    main()
