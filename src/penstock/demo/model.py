"""A tiny classifier of pictures: one hidden layer, in torch where that is installed, else in numpy."""

from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Model", "make_model"]

HIDDEN = 64
RATE = 0.1


class Model(Protocol):
    """Something that learns from a batch, and whose weights can be saved."""

    def learn(self, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int32]) -> float:
        """One step of gradient descent; the loss before it."""

    def weights(self) -> list[npt.NDArray[np.float32]]:
        """The weights as they are now."""

    def set_weights(self, weights: list[npt.NDArray[np.float32]]) -> None:
        """Go on from these."""


def make_model(pixels: int, classes: int, *, framework: str) -> Model:
    """A new model; ``framework`` is torch, numpy, or auto. Equal ones start with equal weights."""
    if framework not in ("auto", "torch", "numpy"):
        raise ValueError(f"framework must be auto, torch or numpy, got {framework!r}")
    start = _start(pixels, classes)
    if framework == "torch" or (framework == "auto" and find_spec("torch") is not None):
        return TorchModel(start)
    return NumpyModel(start)


def _start(pixels: int, classes: int) -> list[npt.NDArray[np.float32]]:
    random = np.random.default_rng(0)
    shapes = [(pixels, HIDDEN), (HIDDEN,), (HIDDEN, classes), (classes,)]
    return [(random.normal(0, 1, shape) / np.sqrt(shape[0]) * (len(shape) > 1)).astype(np.float32) for shape in shapes]


def _features(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Grey pictures of mean 0 and spread 1: shapes, whatever their colours."""
    grey = images.mean(-1, dtype=np.float32).reshape(len(images), -1)
    grey -= grey.mean(1, keepdims=True)
    return np.asarray(grey / (grey.std(1, keepdims=True) + 1e-6), np.float32)


class NumpyModel:
    """The model in plain numpy."""

    def __init__(self, weights: list[npt.NDArray[np.float32]]) -> None:
        self.set_weights(weights)

    def learn(self, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int32]) -> float:
        """One step of gradient descent; the loss before it."""
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

    def weights(self) -> list[npt.NDArray[np.float32]]:
        """The weights as they are now."""
        return [weight.copy() for weight in self._weights]

    def set_weights(self, weights: list[npt.NDArray[np.float32]]) -> None:
        """Go on from these."""
        self._weights = [weight.copy() for weight in weights]


class TorchModel:
    """The same in torch."""

    def __init__(self, weights: list[npt.NDArray[np.float32]]) -> None:
        import torch

        torch.set_num_threads(1)  # the same sums in the same order, in every run
        self._torch: Any = torch
        self.set_weights(weights)

    def learn(self, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int32]) -> float:
        """One step of gradient descent; the loss before it."""
        torch = self._torch
        w1, b1, w2, b2 = self._weights
        hidden = torch.relu(torch.from_numpy(_features(images)) @ w1 + b1)
        loss = torch.nn.functional.cross_entropy(hidden @ w2 + b2, torch.from_numpy(labels).long())
        slopes = torch.autograd.grad(loss, self._weights)
        with torch.no_grad():
            for weight, slope in zip(self._weights, slopes, strict=True):
                weight -= RATE * slope
        return float(loss.detach())

    def weights(self) -> list[npt.NDArray[np.float32]]:
        """The weights as they are now."""
        return [weight.detach().numpy().copy() for weight in self._weights]

    def set_weights(self, weights: list[npt.NDArray[np.float32]]) -> None:
        """Go on from these."""
        self._weights = [self._torch.tensor(weight, requires_grad=True) for weight in weights]
