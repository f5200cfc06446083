"""A small data set that is made, not downloaded: coloured shapes with captions, eight classes."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.codec import Zstd
from penstock.schema import Field

__all__ = ["CLASSES", "EDGE", "FIELDS", "batches", "draw"]

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

Floats = npt.NDArray[np.float32]


def batches(num_records: int, *, seed: int, classes: Sequence[str] = CLASSES, size: int = 1000) -> Iterator[dict[str, Any]]:
    """Batches of records, sorted by class: the worst case for a shuffle."""
    numbers = np.array([CLASSES.index(name) for name in classes])
    labels = numbers[np.arange(num_records) * len(classes) // num_records]
    for low in range(0, num_records, size):
        yield draw(labels[low : low + size], seed=[seed, low])


def draw(labels: npt.NDArray[np.integer], *, seed: int | list[int]) -> dict[str, Any]:
    """One picture and one caption for each label."""
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
    """Which pixels belong to the shape."""
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
