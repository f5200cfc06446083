"""Pictures: which values are some, and their bytes for a browser. Only PNG, JPEG, WebP and GIF ever leave as images."""

import struct
import zlib
from http import HTTPStatus
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.view.answer import Answer, RefusedError

__all__ = ["MOST_BYTES", "edges", "image_kind", "make_image"]

MOST_BYTES = 64 << 20
"""An image of more bytes than this, as pixels, is not shown."""
LEAST_EDGE = 8
"""Smaller matrices are rather read as numbers."""

Array = npt.NDArray[Any]
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}


def edges(dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Height and width of arrays that are shown as pictures; None for others.

    Bytes and truth values of height x width, with 1, 3 or 4 colours in the last place or 1 or 3 in the first; other real numbers
    of height x width.
    """
    if len(shape) == 2:
        found = shape if dtype.kind in "buif" else None
    elif len(shape) == 3 and dtype.kind in "bu" and dtype.itemsize == 1:
        found = shape[:2] if shape[2] in _COLOUR_TYPES else shape[1:] if shape[0] in (1, 3) else None
    else:
        found = None
    return (found[0], found[1]) if found is not None and min(found) >= LEAST_EDGE else None


def make_image(value: Any, edge: int | None) -> Answer:
    """A value as an image; of arrays, only so many pixels that no edge is longer than ``edge``."""
    if value is None:
        raise RefusedError(HTTPStatus.NOT_FOUND, "this record misses the field")
    if isinstance(value, bytes):
        return _original(value)
    if not isinstance(value, np.ndarray) or edges(value.dtype, value.shape) is None:
        raise RefusedError(HTTPStatus.NOT_FOUND, "this value is no picture")
    if value.size > MOST_BYTES:
        raise RefusedError(HTTPStatus.NOT_FOUND, f"the picture has {value.size} bytes, more than the {MOST_BYTES} that are shown")
    return Answer(HTTPStatus.OK, "image/png", _png(_pixels(value, edge)))


def _pixels(array: Array, edge: int | None) -> npt.NDArray[np.uint8]:
    """Height x width x colours."""
    cube = array[..., None] if array.ndim == 2 else array if array.shape[2] in _COLOUR_TYPES else np.moveaxis(array, 0, 2)
    skip = 1 if edge is None else max(1, -(-max(cube.shape[:2]) // edge))
    cube = cube[::skip, ::skip]
    if cube.dtype == np.uint8:
        return cube
    return cube.astype(np.uint8) * np.uint8(255) if cube.dtype.kind == "b" else _stretched(cube)


def _stretched(cube: Array) -> npt.NDArray[np.uint8]:
    """Other numbers, from the least (black) to the largest (white); what is no number is black."""
    with np.errstate(all="ignore"):
        values = cube.astype(np.float64)
        finite = np.isfinite(values)
        low, high = (values[finite].min(), values[finite].max()) if finite.any() else (0.0, 0.0)
        scaled = (values / 2 - low / 2) * (255 / (high / 2 - low / 2)) if high > low else np.zeros_like(values)
        return np.where(finite, np.nan_to_num(scaled), 0).clip(0, 255).astype(np.uint8)


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Signature, header, one compressed run of rows (each behind a filter byte of 0), end; see the PNG specification."""
    height, width, colours = pixels.shape
    rows = np.zeros((height, 1 + width * colours), np.uint8)
    rows[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[colours], 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )


# Files that are images already


def image_kind(data: bytes) -> str | None:
    """The content type of an image file, told by its first bytes; None for everything else, SVG among it."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def _original(data: bytes) -> Answer:
    kind = image_kind(data)
    if kind is None:
        raise RefusedError(HTTPStatus.NOT_FOUND, "these bytes are no PNG, JPEG, WebP or GIF")
    width, height = _size(kind, data)
    if 3 * width * height > MOST_BYTES or len(data) > MOST_BYTES:
        raise RefusedError(
            HTTPStatus.NOT_FOUND, f"the picture has {width} x {height} pixels, more than the {MOST_BYTES // 3} that are shown"
        )
    return Answer(HTTPStatus.OK, kind, data)


def _size(kind: str, data: bytes) -> tuple[int, int]:
    """Width and height as the file says, which may be a few bytes that stand for very many pixels; zeros if it does not say."""
    if kind == "image/png" and len(data) >= 24:
        width, height = struct.unpack(">II", data[16:24])
    elif kind == "image/gif" and len(data) >= 10:
        width, height = struct.unpack("<HH", data[6:10])
    elif kind == "image/webp":
        width, height = _size_of_webp(data)
    else:
        width, height = _size_of_jpeg(data) if kind == "image/jpeg" else (0, 0)
    return int(width), int(height)


def _size_of_webp(data: bytes) -> tuple[int, int]:
    """At most 14 bits an edge, but for the extended form, which says its canvas in 24 bits each."""
    if data[12:16] == b"VP8X" and len(data) >= 30:
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if data[12:16] == b"VP8L" and len(data) >= 25:
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if data[12:16] == b"VP8 " and len(data) >= 30:
        return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
    return 0, 0


def _size_of_jpeg(data: bytes) -> tuple[int, int]:
    """From the first frame header (C0 to CF, but for C4, C8 and CC); segments before it are jumped over by their lengths."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        if 0xC0 <= data[at + 1] <= 0xCF and data[at + 1] not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 1 if data[at + 1] == 0xFF else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return 0, 0
