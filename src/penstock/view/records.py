"""Records as rows of cells: values as short plain JSON, pictures as image files. An unreadable value is a cell that says so."""

import math
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray
from penstock.errors import PenstockError
from penstock.records import Source
from penstock.stream.documents import TOKENS_OF_LETTER, has_tokens, text_of
from penstock.tokenizer import TextTokenizer
from penstock.view.guard import RefusedError, Response

MOST_BYTES = 64 << 20  # an image of more bytes than this, as pixels, is not shown
LEAST_EDGE = 8  # smaller matrices are shown as numbers

Array = npt.NDArray[Any]
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
MOST_EXACT = 2**53  # whole numbers beyond this are sent as texts: a browser would round them
MOST_FIELDS = 64  # fields of a record that are shown
MOST_NAME = 200  # letters of the name of a class
PAGE_BYTES = 64 << 20  # bytes that are read for a page, about, and the most of a field


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


def make_image(value: Any, edge: int | None) -> Response:
    """A value as an image; arrays are reduced until no edge is longer than ``edge``."""
    if value is None:
        raise RefusedError(HTTPStatus.NOT_FOUND, "this record misses the field")
    if isinstance(value, bytes):
        return _original(value)
    if not isinstance(value, np.ndarray) or edges(value.dtype, value.shape) is None:
        raise RefusedError(HTTPStatus.NOT_FOUND, "this value is not an image")
    if value.size > MOST_BYTES:
        raise RefusedError(HTTPStatus.NOT_FOUND, f"the image has {value.size} bytes, more than the {MOST_BYTES} that are shown")
    return Response(HTTPStatus.OK, "image/png", _png(_pixels(value, edge)))


def _pixels(array: Array, edge: int | None) -> npt.NDArray[np.uint8]:
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


def _original(data: bytes) -> Response:
    kind = image_kind(data)
    if kind is None:
        raise RefusedError(HTTPStatus.NOT_FOUND, "these bytes are not PNG, JPEG, WebP or GIF")
    width, height = _size(kind, data)
    if 3 * width * height > MOST_BYTES or len(data) > MOST_BYTES:
        raise RefusedError(
            HTTPStatus.NOT_FOUND, f"the image has {width} x {height} pixels, more than the {MOST_BYTES // 3} that are shown"
        )
    return Response(HTTPStatus.OK, kind, data)


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


Cell = dict[str, Any]  # `kind` is number, text, tokens, image, array, plot, bytes, missing, large or error; others depend on it


@dataclass(frozen=True)
class Limits:
    """How much of a value is sent: letters of texts, elements of arrays, points of plots, bytes."""

    letters: int
    elements: int
    points: int
    hex_bytes: int


SHORT = Limits(letters=400, elements=16, points=96, hex_bytes=32)  # for many records
LONG = Limits(letters=50_000, elements=256, points=600, hex_bytes=512)  # for one record


def cell_of(value: Any, limits: Limits) -> Cell:
    if value is None:
        return {"kind": "missing"}
    if isinstance(value, str):
        return {"kind": "text", "text": sendable(value[: limits.letters]), "length": len(value)}
    if isinstance(value, bytes):
        return _cell_of_bytes(value, limits)
    array = np.asarray(value)
    return _cell_of_array(array, limits) if array.ndim else {"kind": "number", "value": plain_number(array[()])}


def sendable(text: str) -> str:
    """Half of a surrogate pair is no letter, and cannot be sent as one."""
    return text.encode("utf-8", "replace").decode()


def _cell_of_bytes(value: bytes, limits: Limits) -> Cell:
    kind = image_kind(value)
    if kind is not None and len(value) <= MOST_BYTES:
        return {"kind": "image", "what": kind.partition("/")[2].upper(), "bytes": len(value)}
    return {"kind": "bytes", "hex": value[: limits.hex_bytes].hex(" "), "length": len(value)}


def _cell_of_array(array: npt.NDArray[Any], limits: Limits) -> Cell:
    what = {"shape": list(array.shape), "dtype": str(array.dtype)}
    if edges(array.dtype, array.shape) is not None and array.size <= MOST_BYTES:
        return {"kind": "image", **what}
    shown = [plain_number(item) for item in array.reshape(-1)[: limits.elements]]
    if array.ndim != 1 or array.size <= SHORT.elements or array.dtype.kind == "c":
        return {"kind": "array", **what, "values": shown}
    return {"kind": "plot", **what, "values": shown, **_outline(array, limits.points)}


def _cell_of_tokens(tokenizer: TextTokenizer, value: Any, limits: Limits) -> Cell:
    """Tokens as text, and the first of them as numbers."""
    if value is None:
        return {"kind": "missing"}
    array = np.asarray(value)
    few = array[: TOKENS_OF_LETTER * limits.letters]
    text = text_of(tokenizer, few)
    return {
        "kind": "tokens",
        "shape": list(array.shape),
        "dtype": str(array.dtype),
        "values": [plain_number(item) for item in array[: SHORT.elements]],
        "text": sendable(text[: limits.letters]),
        "is_cut": few.size < array.size or len(text) > limits.letters,
    }


def class_names(source: Source, field: str) -> Sequence[str]:
    """The names of the classes that the numbers of a field stand for, as the metadata of the data has them; none if it does not."""
    given, names = source.schema[field], source.metadata.get(field)
    is_class = given.is_fixed and not given.shape and given.dtype.kind in "iu"
    return names if is_class and isinstance(names, list | tuple) and all(isinstance(name, str) for name in names) else ()


def _cell_of_class(names: Sequence[str], value: Any, limits: Limits) -> Cell:
    """A number with the name of its class, if it has one."""
    cell = cell_of(value, limits)
    number = cell.get("value")
    if isinstance(number, int) and 0 <= number < len(names):
        cell["name"] = sendable(names[number][:MOST_NAME])
    return cell


def _outline(array: npt.NDArray[Any], most: int) -> dict[str, Any]:
    """A vector as points; long ones by the minimum and maximum of every piece, so that no peak is lost."""
    values = array if array.dtype.kind in "iuf" else array.astype(np.float32)  # truth values, and what ml_dtypes knows
    if values.size > most:
        pieces = np.linspace(0, values.size, most // 2, endpoint=False).astype(np.int64)
        values = np.stack([np.fmin.reduceat(values, pieces), np.fmax.reduceat(values, pieces)], axis=1).reshape(-1)
    values = values.astype(np.float64)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    return {"low": low, "high": high, "points": [float(v) if math.isfinite(v) else None for v in values.tolist()]}


def plain_number(value: Any) -> int | float | str:
    """A number as JSON can hold it; others as texts."""
    item = value.item() if isinstance(value, np.generic) else value
    if isinstance(item, bool):
        return str(item).lower()
    if isinstance(item, int):
        return item if abs(item) <= MOST_EXACT else str(item)
    if isinstance(item, float) and math.isfinite(item):
        return item
    return str(item) if isinstance(item, float | complex) else plain_number(float(value))


Words = Callable[[Exception], str]  # what a page may say about an error


def rows(
    source: Source, ids: IntArray, limits: Limits, words: Words = str, tokenizer: TextTokenizer | None = None
) -> list[dict[str, Any]]:
    """The first fields of records, in the order of ``ids``. A tokenizer makes texts of whole numbers in a row."""
    columns = []
    for name in list(source.schema)[:MOST_FIELDS]:
        made: Callable[..., Cell] = cell_of
        if tokenizer is not None and has_tokens(source.schema[name]):
            made = partial(_cell_of_tokens, tokenizer)
        elif names := class_names(source, name):
            made = partial(_cell_of_class, names)
        columns.append(_column(source, name, ids, partial(made, limits=limits), words))
    return [{"id": int(ids[place]), "cells": [column[place] for column in columns]} for place in range(len(ids))]


def _column(source: Source, name: str, ids: IntArray, make: Callable[[Any], Cell], words: Words) -> list[Cell]:
    field = source.schema[name]
    if field.is_fixed and edges(field.dtype, field.shape) is not None and field.stride <= MOST_BYTES:
        return [{"kind": "image", "shape": list(field.shape), "dtype": str(field.dtype)} for _ in ids]  # read when it is looked at
    try:
        sizes = sizes_of(source, name, ids)
    except PenstockError as error:
        return [{"kind": "error", "text": words(error)} for _ in ids]
    readable = np.cumsum(sizes) <= PAGE_BYTES
    cells = iter(_read_cells(source, name, ids[readable], make, words))
    return [next(cells) if fits else {"kind": "large", "bytes": size} for fits, size in zip(readable, sizes.tolist(), strict=True)]


def sizes_of(source: Source, name: str, ids: IntArray) -> IntArray:
    field = source.schema[name]
    if field.is_fixed:
        return np.full(len(ids), field.stride, np.int64)
    return np.asarray(source.lengths(name, ids) * field.dtype.itemsize, np.int64)


def _read_cells(source: Source, name: str, ids: IntArray, make: Callable[[Any], Cell], words: Words) -> list[Cell]:
    """All at once; one by one if that fails."""
    try:
        column = source.read(ids, [name])[name]
        return [make(item_at(column, place)) for place in range(len(ids))]
    except (PenstockError, UnicodeDecodeError) as error:
        if len(ids) == 1:
            return [{"kind": "error", "text": words(error)}]
        return [cell for place in range(len(ids)) for cell in _read_cells(source, name, ids[place : place + 1], make, words)]


def item_at(column: Any, place: int) -> Any:
    """One value of a batch; None if it is missing."""
    if not isinstance(column, np.ma.MaskedArray):
        return column[place]
    mask = np.ma.getmaskarray(column)[place]
    return None if mask.all() else column.data[place]


def read_value(source: Source, name: str, record: int, most: int) -> Any:
    """One field of one record; None if it is missing. RefusedError if it has more than ``most`` bytes."""
    ids = np.array([record], np.int64)
    size = int(sizes_of(source, name, ids)[0])
    if size > most:
        raise RefusedError(HTTPStatus.NOT_FOUND, f"the value has {size} bytes, more than the {most} that are shown")
    return item_at(source.read(ids, [name])[name], 0)
