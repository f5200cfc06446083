"""Values of records, for people and as JSON."""

from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console, ConsoleRenderable, Group

from penstock.cli.output import number, text
from penstock.cli.picture import drawing, encoded, is_picture, small_pixels
from penstock.cli.record import TooLarge
from penstock.cli.safe import clip
from penstock.report.words import size

__all__ = ["FEW", "as_json", "can_draw", "is_large", "shown"]

FEW = 16
"""Arrays of up to so many elements are shown in full; of longer ones, so many are."""
FEW_BYTES = 24
MOST_LETTERS = 400
JSON_ELEMENTS = 256
JSON_LETTERS = 10_000

Array = npt.NDArray[Any]


def can_draw(out: Console) -> bool:
    """Whether pictures can be seen there: a terminal with colors."""
    return out.is_terminal and out.color_system is not None and not out.no_color


def is_large(value: Any) -> bool:
    """Whether a value is more than is shown of it."""
    if isinstance(value, np.ndarray):
        return value.size > FEW
    return len(value) > (FEW_BYTES if isinstance(value, bytes) else MOST_LETTERS) if isinstance(value, bytes | str) else False


# For people


def shown(value: Any, *, preview: int) -> ConsoleRenderable:
    """A value in a line or two; pictures are also drawn, with at most ``preview`` pixels a side (0: not at all)."""
    if value is None:
        return text("missing", "italic magenta")
    if isinstance(value, TooLarge):
        return text(value, "yellow")
    if isinstance(value, str):
        return text(clip(value, MOST_LETTERS)) if value else text('""')
    if isinstance(value, bytes):
        return _shown_bytes(value, preview=preview)
    return _shown_array(value, preview=preview) if isinstance(value, np.ndarray) else text(value)


def _shown_bytes(value: bytes, *, preview: int) -> ConsoleRenderable:
    image = encoded(value)
    if image is not None:
        line = text(f"{image}, {size(len(value))}")
        return line if image.pixels is None or not preview else Group(line, drawing(small_pixels(image.pixels, preview)))
    dots = "…" if len(value) > FEW_BYTES else ""
    return text(f"{value[:FEW_BYTES].hex(' ')}{dots}{' ' if value else ''}({number(len(value))} bytes)")


def _shown_array(value: Array, *, preview: int) -> ConsoleRenderable:
    if value.size == 0:
        return text(f"{_type(value)}, empty")
    if value.size <= FEW:
        return text(_numbers(value))
    line = text(", ".join([_type(value), *(f"{name} {_figure(figure)}" for name, figure in figures(value).items())]))
    if is_picture(value):
        return Group(line, drawing(small_pixels(value, preview))) if preview else line
    return Group(line, text(f"{_numbers(value[:FEW]).removesuffix(']')} …", "dim")) if value.ndim == 1 else line


def _type(value: Array) -> str:
    return f"{' x '.join(map(str, value.shape))} {value.dtype}"


def _figure(value: float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else number(value)


def _numbers(value: Array) -> str:
    line = " ".join(np.array2string(value, threshold=FEW, precision=4, max_line_width=10_000, suppress_small=True).split())
    return line.replace("[ ", "[")


def figures(value: Array) -> dict[str, float]:
    """Least, mean and largest of an array, without what is no number; of truth values how many are true."""
    if value.size == 0 or value.dtype.kind == "c":
        return {}
    if value.dtype.kind == "b":
        return {"true": int(np.count_nonzero(value)), "false": int(value.size - np.count_nonzero(value))}
    if value.dtype.kind in "iu":
        return {"min": int(value.min()), "mean": float(value.mean()), "max": int(value.max())}
    return _figures_of_floats(value if value.dtype.kind == "f" else value.astype(np.float32))  # those of ml_dtypes are no floats


def _figures_of_floats(value: Array) -> dict[str, float]:
    absent = int(np.count_nonzero(np.isnan(value)))
    kept = value[~np.isnan(value)] if absent else value
    with np.errstate(all="ignore"):
        found: dict[str, float] = (
            {}
            if kept.size == 0
            else {"min": float(kept.min()), "mean": float(kept.mean(dtype=np.float64)), "max": float(kept.max())}
        )
    return found | ({"nan": absent} if absent else {})


# As JSON


def as_json(value: Any) -> Any:
    """A value for scripts: what is short as it is, of the rest its figures or its beginning."""
    if isinstance(value, TooLarge):
        return {"bytes": value.num_bytes, "not_read": str(value)}
    if isinstance(value, bytes):
        return {"hex": value[:FEW_BYTES].hex(), "length": len(value)}
    if isinstance(value, str):
        return value if len(value) <= JSON_LETTERS else {"text": value[:JSON_LETTERS], "length": len(value)}
    if isinstance(value, np.ndarray) and value.size > JSON_ELEMENTS:
        return {"shape": list(value.shape), "dtype": str(value.dtype), **figures(value)}
    return value
