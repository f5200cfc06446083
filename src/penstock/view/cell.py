"""Cells: values of records as plain JSON, short enough for a page whatever they are."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.view.picture import MOST_BYTES, edges, image_kind

__all__ = ["LONG", "SHORT", "Cell", "Limits", "cell_of", "plain_number"]

Cell = dict[str, Any]
"""``kind`` is number, text, image, array, plot, bytes, missing, large or error; the other keys depend on it."""

MOST_EXACT = 2**53
"""Whole numbers beyond this are sent as texts: a browser would round them."""


@dataclass(frozen=True)
class Limits:
    """How much of a value is sent: letters of texts, elements of arrays, points of plots, bytes."""

    letters: int
    elements: int
    points: int
    hex_bytes: int


SHORT = Limits(letters=400, elements=16, points=96, hex_bytes=32)
"""For many records."""
LONG = Limits(letters=50_000, elements=256, points=600, hex_bytes=512)
"""For one record."""


def cell_of(value: Any, limits: Limits) -> Cell:
    """A value as a cell."""
    if value is None:
        return {"kind": "missing"}
    if isinstance(value, str):
        return {"kind": "text", "text": _sendable(value[: limits.letters]), "length": len(value)}
    if isinstance(value, bytes):
        return _cell_of_bytes(value, limits)
    array = np.asarray(value)
    return _cell_of_array(array, limits) if array.ndim else {"kind": "number", "value": plain_number(array[()])}


def _sendable(text: str) -> str:
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


def _outline(array: npt.NDArray[Any], most: int) -> dict[str, Any]:
    """The course of a vector: of long ones the least and the largest of every piece, so that no peak is lost."""
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
