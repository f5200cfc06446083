"""Pictures into arrays, a second time: plain Python and numpy, from docs/reference/images.md, never calling the native code."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tests.order.reference import WORD, absorb

Bytes = npt.NDArray[np.uint8]
Weights = npt.NDArray[np.int64]

LN2_HIGH = float.fromhex("0x1.62e42fefa3p-1")
LN2_LOW = float.fromhex("0x1.3de6af278ece6p-42")
INVERSE_LN2 = float.fromhex("0x1.71547652b82fep+0")
ROOT_HALF = float.fromhex("0x1.6a09e667f3bcdp-1")
ATTEMPTS = 10


class Box(NamedTuple):
    """Pixels of a picture as it is displayed."""

    x: int
    y: int
    width: int
    height: int
    flip: bool = False


@dataclass(frozen=True)
class Crop:
    """What decides about a box besides the picture and the seed."""

    kind: str = "random"
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    fraction: float = 1.0
    flip: float = 0.5
    size: tuple[int, int] = field(default=(224, 224))  # width and height of the output


def exp(x: float) -> float:
    """E to the power of x."""
    k = math.floor(x * INVERSE_LN2 + 0.5)
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    total = 1.0
    for i in range(14, 0, -1):
        total = 1.0 + total * r / i
    return math.ldexp(total, k)


def log(x: float) -> float:
    """The natural logarithm."""
    m, exponent = math.frexp(x)
    if m < ROOT_HALF:
        m, exponent = m * 2.0, exponent - 1
    s = (m - 1.0) / (m + 1.0)
    total = 0.0
    for i in range(25, 0, -2):
        total = total * (s * s) + 1.0 / i
    return exponent * LN2_HIGH + (exponent * LN2_LOW + 2.0 * s * total)


def unit(seed: int, number: int) -> float:
    """Word ``number`` of a seed as a number in [0, 1)."""
    return (absorb(seed, number) >> 11) * 2.0**-53


def below(seed: int, number: int, n: int) -> int:
    """Word ``number`` of a seed as an integer below n."""
    return absorb(seed, number) * n // WORD


def rounded(x: float) -> int:
    """To nearest, halves up."""
    return math.floor(x + 0.5)


def clamped(x: int, most: int) -> int:
    """Between 1 and ``most``."""
    return min(max(x, 1), most)


def random_box(crop: Crop, width: int, height: int, seed: int) -> Box:
    """torchvision's RandomResizedCrop."""
    area = float(width) * float(height)
    low = log(crop.ratio[0])
    span = log(crop.ratio[1]) - low
    for t in range(ATTEMPTS):
        target = area * (crop.scale[0] + unit(seed, 4 * t) * (crop.scale[1] - crop.scale[0]))
        ratio = exp(low + unit(seed, 4 * t + 1) * span)
        w, h = rounded(math.sqrt(target * ratio)), rounded(math.sqrt(target / ratio))
        if 1 <= w <= width and 1 <= h <= height:
            y = below(seed, 4 * t + 2, height - h + 1)
            return Box(below(seed, 4 * t + 3, width - w + 1), y, w, h)
    w, h = width, height
    if width / height < crop.ratio[0]:
        h = clamped(rounded(width / crop.ratio[0]), height)
    elif width / height > crop.ratio[1]:
        w = clamped(rounded(height * crop.ratio[1]), width)
    return Box((width - w) // 2, (height - h) // 2, w, h)


def center_box(crop: Crop, width: int, height: int) -> Box:
    """The central box with the ratio of the output."""
    across, down = crop.size
    per_pixel = crop.fraction * min(width / across, height / down)
    w, h = clamped(rounded(per_pixel * across), width), clamped(rounded(per_pixel * down), height)
    return Box((width - w) // 2, (height - h) // 2, w, h)


def box_of(crop: Crop, width: int, height: int, seed: int) -> Box:
    """What is taken of a picture of that size."""
    found = Box(0, 0, width, height)
    if crop.kind == "random":
        found = random_box(crop, width, height, seed)
    elif crop.kind == "center":
        found = center_box(crop, width, height)
    return found._replace(flip=unit(seed, 4 * ATTEMPTS) < crop.flip)


def fit_inside(width: int, height: int, across: int, down: int) -> Box:
    """Where a picture is in an output of another ratio, with padding around it."""
    w, h = across, down
    if width * down < height * across:
        w = clamped((2 * width * down + height) // (2 * height), across)
    else:
        h = clamped((2 * height * across + width) // (2 * width), down)
    return Box((across - w) // 2, (down - h) // 2, w, h)


def weights_of(start: int, length: int, scale: int, outputs: int) -> list[tuple[int, list[int]]]:
    """For every output: the first pixel of the decoded picture, and the weights from there on, with the sum 2**15."""
    half = outputs * scale
    support = 2 * max(half, length)
    low, high = start // scale, -(-(start + length) // scale)
    found = []
    for i in range(outputs):
        middle = 2 * start * outputs + (2 * i + 1) * length
        exact = {k: support - abs((2 * k + 1) * half - middle) for k in range(low, high)}
        taps = [k for k in exact if exact[k] > 0]
        total = sum(exact[k] for k in taps)
        weights, before, running = [], 0, 0
        for k in taps:
            running += exact[k]
            behind = ((running << 15) + total // 2) // total
            weights.append(min(behind - before, 2**15 - 1))
            before = behind
        found.append((taps[0], weights))
    return found


def column(picture: Weights, first: int, weights: list[int]) -> Weights:
    """One row between the passes: rows of a picture, weighted and added, with 7 bits behind the point."""
    products = picture[first : first + len(weights)] * np.array(weights).reshape(-1, 1, 1)
    if len(weights) <= 16:
        return (products >> 8).sum(0) + len(weights) // 2
    return (products.sum(0) + 128) >> 8


def resize(picture: Bytes, box: Box, width: int, height: int, scale: int = 1) -> Bytes:
    """The box of a picture (decoded at 1/scale), height x width x channels, as bytes."""
    wide = picture.astype(np.int64)
    rows = np.stack([column(wide, *taps) for taps in weights_of(box.y, box.height, scale, height)])
    across = np.zeros((width, picture.shape[1]), np.int64)
    for row, (first, weights) in zip(across, weights_of(box.x, box.width, scale, width), strict=True):
        row[first : first + len(weights)] = weights
    made = ((np.tensordot(across, rows, (1, 1)).swapaxes(0, 1) + (1 << 21)) >> 22).astype(np.uint8)
    return made[:, ::-1] if box.flip else made


def nearest(numbers: Bytes, box: Box, width: int, height: int) -> Bytes:
    """The box of a mask, height x width: each output has the number of the pixel in which its middle is."""
    rows = [(2 * box.y * height + (2 * i + 1) * box.height) // (2 * height) for i in range(height)]
    columns = [(2 * box.x * width + (2 * i + 1) * box.width) // (2 * width) for i in range(width)]
    made = numbers[np.ix_(rows, columns)]
    return made[:, ::-1] if box.flip else made


def as_float(picture: Bytes, mean: tuple[float, ...], std: tuple[float, ...]) -> npt.NDArray[np.float32]:
    """(value / 255 - mean) / std, by one multiplication and one addition of float32."""
    # means and deviations are float32 numbers
    wide_mean, wide_std = np.float32(mean).astype(np.float64), np.float32(std).astype(np.float64)
    factor = (1.0 / (255.0 * wide_std)).astype(np.float32)
    offset = (-(wide_mean / wide_std)).astype(np.float32)
    return picture.astype(np.float32) * factor + offset
