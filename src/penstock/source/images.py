"""Images: the bytes of a file to an array of pixels, through Pillow."""

import io
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import BatchTooLargeError, CorruptError, UnsupportedTypeError
from penstock.source.limit import MAX_BLOCK_BYTES, check_block
from penstock.source.optional import need

__all__ = ["MAX_PIXELS", "decode_image"]

PIXEL_BYTES = 16
"""What a pixel takes while it is decoded: in the colors of the file, in RGB, and resized."""

MAX_PIXELS = MAX_BLOCK_BYTES // PIXEL_BYTES
"""Images of more pixels than this are refused before they are decoded, unless ``max_block_bytes`` allows more."""

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Those that Pillow decodes by itself; it hands others, such as EPS, to outside programs."""


def decode_image(data: bytes, size: tuple[int, int] | None = None, max_block_bytes: int = MAX_BLOCK_BYTES) -> npt.NDArray[np.uint8]:
    """The pixels of an image: height x width x 3, red, green and blue; resized to ``size`` (height, width) if given.

    Transparency is dropped, and a rotation that the file asks for is not done. CorruptError if the bytes are no image;
    BatchTooLargeError if they claim to need more than ``max_block_bytes``, and more than 64 times their own size.
    """
    pillow = need("PIL.Image", "image")
    try:
        with pillow.open(io.BytesIO(data), formats=FORMATS) as image:
            _check_mode(image)
            check_block(
                f"an image of {image.width} x {image.height}", PIXEL_BYTES * image.width * image.height, len(data), max_block_bytes
            )
            pixels = image.convert("RGB")
            if size is not None:
                pixels = pixels.resize(size[::-1], pillow.Resampling.BILINEAR)
            return np.asarray(pixels)
    except (BatchTooLargeError, CorruptError, UnsupportedTypeError, MemoryError):
        raise
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise BatchTooLargeError(f"{error} If the data can be trusted, set PIL.Image.MAX_IMAGE_PIXELS") from error
    except Exception as error:  # broken files make Pillow raise almost anything
        raise CorruptError(f"expected an image ({', '.join(FORMATS)}), found {len(data)} other bytes: {error}") from error


def _check_mode(image: Any) -> None:
    if image.mode.startswith(("I", "F")):
        raise UnsupportedTypeError(f"expected an image of 8 bits per color, found mode {image.mode}; give a decode function")
