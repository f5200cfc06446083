"""Pictures among the values of records: recognised, made small, and drawn with characters."""

import importlib.util
import io
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.color import Color
from rich.style import Style
from rich.text import Text

from penstock.cli.record import MOST_BYTES

__all__ = ["Encoded", "drawing", "encoded", "has_pillow", "is_picture", "small_pixels"]

LEAST_SIDE = 8
"""Smaller arrays are rather read as numbers."""
PREVIEW = 48
"""Of image files, at most so many pixels a side are kept."""

_MAGIC = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG"}

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Encoded:
    """A PNG or JPEG file among the values. Its pixels are there if Pillow could read them."""

    kind: str
    width: int = 0
    height: int = 0
    pixels: Pixels | None = None

    @property
    def suffix(self) -> str:
        """That of its file name."""
        return ".png" if self.kind == "PNG" else ".jpg"

    def __str__(self) -> str:
        if self.width:
            return f"{self.kind}, {self.width} x {self.height} pixels"
        return f"{self.kind}, which cannot be decoded" + (
            "" if has_pillow() else ": this needs pillow: pip install 'penstock[image]'"
        )


def has_pillow() -> bool:
    """Whether Pillow is installed."""
    return importlib.util.find_spec("PIL") is not None


def is_picture(value: Any) -> bool:
    """Whether an array looks like an image: bytes, height x width, or with 1 or 3 colors."""
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim not in (2, 3):
        return False
    return min(value.shape[:2]) >= LEAST_SIDE and (value.ndim == 2 or value.shape[2] in (1, 3))


def encoded(data: bytes) -> Encoded | None:
    """The image file that bytes are, with small pixels; None if they are none."""
    kind = next((kind for magic, kind in _MAGIC.items() if data.startswith(magic)), None)
    if kind is None:
        return None
    if not has_pillow():
        return Encoded(kind)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images, which are not decoded here
            return _decoded(kind, data)
    except Exception:  # broken files make Pillow raise almost anything
        return Encoded(kind)


def _decoded(kind: str, data: bytes) -> Encoded:
    from PIL import Image

    with Image.open(io.BytesIO(data), formats=(kind,)) as image:
        width, height = image.size
        image.draft("RGB", (4 * PREVIEW, 4 * PREVIEW))
        if 3 * image.width * image.height > MOST_BYTES:
            return Encoded(kind, width, height)
        return Encoded(kind, width, height, small_pixels(np.asarray(image.convert("RGB")), PREVIEW))


def small_pixels(picture: Pixels, most: int) -> Pixels:
    """The same as height x width x 3, with at most so many pixels a side: means of those that fall together."""
    cube = picture.reshape(*picture.shape[:2], -1)
    factor = max(1.0, max(cube.shape[:2]) / most)
    skip = max(1, int(factor / 8))  # means of a few hundred pixels need not look at thousands
    cube = cube[::skip, ::skip]
    height, width = (max(1, round(side * skip / factor)) for side in cube.shape[:2])
    rows = np.linspace(0, cube.shape[0], height, endpoint=False).astype(np.int64)
    columns = np.linspace(0, cube.shape[1], width, endpoint=False).astype(np.int64)
    sums = np.add.reduceat(np.add.reduceat(cube.astype(np.float32), rows, axis=0), columns, axis=1)
    counts = np.multiply.outer(np.diff(rows, append=cube.shape[0]), np.diff(columns, append=cube.shape[1]))
    return np.broadcast_to((sums / counts[..., None]).astype(np.uint8), (height, width, 3))


def drawing(pixels: Pixels) -> Text:
    """Pixels as text: one character for two of them, one above the other."""
    lines = []
    for top in range(0, len(pixels), 2):
        line = Text(no_wrap=True, overflow="crop")
        for column in range(pixels.shape[1]):
            below = _color(pixels[top + 1, column]) if top + 1 < len(pixels) else None
            line.append("▀", Style(color=_color(pixels[top, column]), bgcolor=below))
        lines.append(line)
    return Text("\n", no_wrap=True, overflow="crop").join(lines)


def _color(pixel: Pixels) -> Color:
    red, green, blue = pixel.tolist()
    return Color.from_rgb(red, green, blue)
