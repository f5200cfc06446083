"""Learns shapes from a folder of JPEG files; is stopped in the middle, and resumes with the losses of a run never interrupted."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

import penstock as pen
from penstock.deliver.torch import deliver

SHAPES = ("circle", "cross", "square")
EACH, SIZE, BATCH, EPOCHS = 100, 32, 30, 8


def draw(shape: str, chance: np.random.Generator) -> Image.Image:
    """A shape of any bright color on dark noise, in a picture of any size."""
    width, height = chance.integers(50, 80, 2).tolist()
    image = Image.fromarray(chance.integers(0, 80, (height, width, 3)).astype(np.uint8))
    x, y, r = int(chance.integers(20, width - 20)), int(chance.integers(20, height - 20)), int(chance.integers(13, 18))
    brush, color = ImageDraw.Draw(image), tuple(chance.integers(150, 256, 3).tolist())
    if shape == "circle":
        brush.ellipse((x - r, y - r, x + r, y + r), fill=color)
    elif shape == "square":
        brush.rectangle((x - r, y - r, x + r, y + r), fill=color)
    else:
        brush.line((x - r, y - r, x + r, y + r), fill=color, width=7)
        brush.line((x - r, y + r, x + r, y - r), fill=color, width=7)
    return image


def make_photos(folder: Path, chance: np.random.Generator, each: int) -> None:
    for shape in SHAPES:
        (folder / shape).mkdir(parents=True)
        for number in range(each):
            draw(shape, chance).save(folder / shape / f"{number:03}.jpg", quality=90)


def make_model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 32)):
        layers += [torch.nn.Conv2d(inputs, outputs, 3, stride=2), torch.nn.BatchNorm2d(outputs), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(32 * 9, len(SHAPES)))
    return model, torch.optim.Adam(model.parameters(), lr=3e-3)


class Run:
    """A training run that can be saved at any step."""

    def __init__(self, photos: Path) -> None:
        stream = pen.open(photos).shuffle(seed=7).images("image", SIZE, scale=(0.6, 1), dtype="f4", mean=0.3, std=0.25)
        self.loader = pen.Loader(stream, BATCH, tail="drop")
        self.model, self.optimizer = make_model()

    def train(self, steps: int) -> list[float]:
        losses = []
        with deliver(self.loader, forever=True) as batches:
            for _, batch in zip(range(steps), batches, strict=False):
                loss = torch.nn.functional.cross_entropy(self.model(batch["image"]), batch["label"].long())
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                losses.append(loss.item())
        return losses

    def save(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "loader": self.loader.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loader.load_state_dict(state["loader"])

    def accuracy(self, photos: Path) -> float:
        stream = pen.open(photos).in_order().images("image", SIZE, crop=None, flip=0, dtype="f4", mean=0.3, std=0.25)
        self.model.eval()
        with torch.no_grad():
            right = [self.model(batch["image"]).argmax(1) == batch["label"] for batch in deliver(pen.Loader(stream, BATCH))]
        return float(torch.cat(right).float().mean())


def main() -> tuple[float, float]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        for name, seed, each in (("train", 0, EACH), ("test", 1, 30)):
            make_photos(Path(place) / name, np.random.default_rng(seed), each)
        whole, first, second = (Run(Path(place) / "train") for _ in range(3))
        steps = EPOCHS * len(whole.loader)
        losses = whole.train(steps)
        begun = first.train(steps // 3)
        torch.save(first.save(), Path(place) / "checkpoint")
        second.load(torch.load(Path(place) / "checkpoint", weights_only=True))
        assert begun + second.train(steps - len(begun)) == losses, "the run that was resumed differs"
        accuracy = whole.accuracy(Path(place) / "test")
    print(f"{steps} steps, loss {losses[0]:.2f} -> {losses[-1]:.2f}, {accuracy:.0%} of new pictures are told apart")
    return losses[-1], accuracy


if __name__ == "__main__":
    main()
