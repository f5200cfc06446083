"""Images: the bytes of a file to an array of pixels, through Pillow."""

import io
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import CorruptError, UnsupportedTypeError
from penstock.source.optional import need

__all__ = ["MAX_PIXELS", "decode_image"]

MAX_PIXELS = 1 << 26
"""Images of more pixels than this are refused before they are decoded."""

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Those that Pillow decodes by itself; it hands others, such as EPS, to outside programs."""


def decode_image(data: bytes, size: tuple[int, int] | None = None) -> npt.NDArray[np.uint8]:
    """The pixels of an image: height x width x 3, red, green and blue; resized to ``size`` (height, width) if given.

    Transparency is dropped, and a rotation that the file asks for is not done. CorruptError if the bytes are no image.
    """
    pillow = need("PIL.Image", "image")
    try:
        with pillow.open(io.BytesIO(data), formats=FORMATS) as image:
            _check(image)
            pixels = image.convert("RGB")
            if size is not None:
                pixels = pixels.resize(size[::-1], pillow.Resampling.BILINEAR)
            return np.asarray(pixels)
    except (CorruptError, UnsupportedTypeError, MemoryError):
        raise
    except Exception as error:  # broken files make Pillow raise almost anything
        raise CorruptError(f"expected an image ({', '.join(FORMATS)}), found {len(data)} other bytes: {error}") from error


def _check(image: Any) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise CorruptError(f"expected an image of at most {MAX_PIXELS} pixels, found {image.width} x {image.height}")
    if image.mode.startswith(("I", "F")):
        raise UnsupportedTypeError(f"expected an image of 8 bits per color, found mode {image.mode}; give a decode function")
