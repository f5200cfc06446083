"""Small pictures for tests, and what a stream makes of them by the formulas of docs/reference/order.md, one by one."""

import io
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from tests.order import reference

from penstock import _core
from penstock.image import ImageOptions

IMAGE_PURPOSE = 15
KINDS = ("JPEG", "PNG", "WebP")


def pixels(number: int, height: int, width: int) -> npt.NDArray[np.uint8]:
    """A smooth picture that no other number has."""
    y, x = np.mgrid[:height, :width]
    planes = [(x * 3 + number * 10) % 256, (y * 4 + number) % 256, np.full((height, width), number * 5 % 256)]
    return np.stack(planes, axis=-1).astype(np.uint8)


def encode(picture: npt.NDArray[np.uint8], kind: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, kind, **options)
    return file.getvalue()


def pictures(count: int, sides: tuple[int, int] = (24, 30)) -> list[bytes]:
    """Of different formats and sizes, at least these."""
    return [encode(pixels(n, sides[0] + 5 * n % 17, sides[1] + 7 * n % 23), KINDS[n % len(KINDS)]) for n in range(count)]


def options(size: Any, **given: Any) -> ImageOptions:
    """As ``stream.images`` takes them."""
    usual: dict[str, Any] = {"crop": "random", "flip": 0.5, "layout": "nchw", "dtype": "u1", "mean": None, "std": None}
    usual |= {"scale": (0.08, 1.0), "ratio": (3 / 4, 4 / 3), "fraction": 1.0, "fill": 0, "channels": 3}
    return ImageOptions.of(size, **{**usual, "max_pixels": _core.DEFAULT_MAX_PIXELS, **given})


def seed_of(seed: int, epoch: int, record: int, position: int | None = None) -> int:
    """The seed of a sample; with a position where a record may come several times in an epoch."""
    word = reference.derive_key(seed, epoch, IMAGE_PURPOSE, record)
    return word if position is None else reference.absorb(word, position)


def make(how: ImageOptions, samples: Iterable[tuple[bytes, int]]) -> npt.NDArray[Any]:
    """Pictures with their seeds, decoded one at a time."""
    made = []
    for data, seed in samples:
        out = np.empty(how.shape, how.dtype)
        file = np.frombuffer(data, np.uint8)
        seeds = np.array([seed], np.uint64)
        how.maker.make(file, np.array([0, file.size]), seeds, out.reshape(-1).view(np.uint8), _core.ThreadPool(1))
        made.append(out)
    return np.stack(made) if made else np.empty((0, *how.shape), how.dtype)
