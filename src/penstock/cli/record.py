"""Records for people and scripts: read within a limit, shown in a line or two, drawn if they are pictures, saved as files.

What data says of its own size is not trusted; names of saved files cannot leave their directory.
"""

import importlib.util
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.color import Color
from rich.console import Console, ConsoleRenderable, Group
from rich.style import Style
from rich.text import Text

from penstock.argument import as_ids
from penstock.batch import only
from penstock.cli.terminal import clip, number, text
from penstock.errors import ImageError, ReadError, StoreError
from penstock.native import _core
from penstock.records import Source
from penstock.report.formatting import size
from penstock.store.reader import Store

MOST_BYTES = 64_000_000  # the largest record that is decoded
LEAST_SIDE = 8  # smaller arrays are shown as numbers
PREVIEW = 48  # pixels per side that are kept of image files
_MAGIC = {"PNG": (b"\x89PNG\r\n\x1a\n", b""), "JPEG": (b"\xff\xd8\xff", b""), "WebP": (b"RIFF", b"WEBP")}
"""What bytes begin with, and what is at byte 8."""
FEW = 16  # elements of an array that are shown
FEW_BYTES = 24
MOST_LETTERS = 400
JSON_ELEMENTS = 256
JSON_LETTERS = 10_000


@dataclass(frozen=True)
class TooLarge:
    """Stands for a value that was not read."""

    num_bytes: int

    def __str__(self) -> str:
        return f"{size(self.num_bytes)}, not read: a record is shown up to {size(MOST_BYTES)}"


@dataclass(frozen=True)
class Record:
    """A record by field name. Missing values are None."""

    id: int
    values: Mapping[str, Any]


def chosen(source: Source, fields: str | None) -> list[str]:
    """The names in ``a,b``; all fields if None. A name may have commas in it: of several readings the longest name counts."""
    schema = source.schema
    if fields is None:
        return list(schema)
    pieces, names = fields.split(","), list[str]()
    while pieces:
        ends = range(len(pieces), 0, -1)
        end = next((end for end in ends if ",".join(pieces[:end]).strip() in schema), 1)
        names.append(",".join(pieces[:end]).strip())
        del pieces[:end]
    names = [name for name in names if name]
    unknown = [name for name in names if name not in schema]
    if unknown or not names:
        raise ValueError(f"unknown fields {unknown or fields!r}; there are {list(schema)}")
    return names


def read_record(source: Source, number: int, fields: Sequence[str]) -> Record:
    """Those fields of a record, without those that would make it larger than the limit."""
    wanted = int(as_ids(number, len(source))[0])
    try:
        values, room = {}, MOST_BYTES
        for name in fields:
            needed = _bytes_of(source, name, wanted)
            values[name] = TooLarge(needed) if needed > room else None
            room -= needed if needed <= room else 0
        batch = source.read([wanted], [name for name in fields if values[name] is None])
    except ReadError as error:
        raise type(error)(f"record {wanted}: {error}") from error
    return Record(wanted, values | {name: only(column) for name, column in batch.items()})


def _bytes_of(source: Source, name: str, number: int) -> int:
    """Bytes of a value, known without reading it; 0 where only reading would tell."""
    field = source.schema[name]
    if field.is_fixed:
        return field.stride
    return int(source.lengths(name, [number])[0]) * field.dtype.itemsize if isinstance(source, Store) else 0


Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Encoded:
    """A PNG, JPEG or WebP file among the values. Its pixels are there if they could be decoded."""

    kind: str
    width: int = 0
    height: int = 0
    pixels: Pixels | None = None

    @property
    def suffix(self) -> str:
        return {"PNG": ".png", "JPEG": ".jpg"}.get(self.kind, ".webp")

    def __str__(self) -> str:
        if self.width:
            return f"{self.kind}, {self.width} x {self.height} pixels"
        return f"{self.kind}, which cannot be decoded"


def has_pillow() -> bool:
    return importlib.util.find_spec("PIL") is not None


def is_picture(value: Any) -> bool:
    """Whether an array looks like an image: bytes, height x width, or with 1 or 3 colors."""
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim not in (2, 3):
        return False
    return min(value.shape[:2]) >= LEAST_SIDE and (value.ndim == 2 or value.shape[2] in (1, 3))


def encoded(data: bytes) -> Encoded | None:
    """The image file that bytes are, with small pixels; None if they are none."""
    kind = next((kind for kind, (magic, name) in _MAGIC.items() if data.startswith(magic) and name in data[8:12]), None)
    if kind is None:
        return None
    width = height = 0
    try:
        file = np.frombuffer(data, np.uint8)
        _, width, height, _ = _core.probe_image(file)
        return Encoded(kind, width, height, _small(file, kind, width, height))
    except ImageError:
        return Encoded(kind, width, height)


def _small(file: Pixels, kind: str, width: int, height: int) -> Pixels | None:
    """The pixels of a picture, small; None if they take too much memory. (A JPEG is decoded at an eighth of its size.)"""
    if 3 * width * height > MOST_BYTES * (64 if kind == "JPEG" else 1):
        return None
    factor = max(1.0, max(width, height) / PREVIEW)
    size = max(1, round(height / factor)), max(1, round(width / factor))
    maker = _core.ImageMaker(height=size[0], width=size[1], crop=_core.ImageCrop.NONE)
    pixels = np.empty((*size, 3), np.uint8)
    maker.make(file, np.array([0, file.size]), np.zeros(1, np.uint64), pixels.reshape(-1), _core.ThreadPool(1))
    return pixels


def small_pixels(picture: Pixels, most: int) -> Pixels:
    """The same as height x width x 3, with at most ``most`` pixels per side: means of neighbours."""
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
        return text(f"{_type_of(value)}, empty")
    if value.size <= FEW:
        return text(_numbers(value))
    line = text(", ".join([_type_of(value), *(f"{name} {_figure(figure)}" for name, figure in figures(value).items())]))
    if is_picture(value):
        return Group(line, drawing(small_pixels(value, preview))) if preview else line
    return Group(line, text(f"{_numbers(value[:FEW]).removesuffix(']')} …", "dim")) if value.ndim == 1 else line


def _type_of(value: Array) -> str:
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


def value_as_json(value: Any) -> Any:
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


_UNSAFE = re.compile(r"[^A-Za-z0-9_]+")


def save_values(record: Record, directory: Path) -> dict[str, str]:
    """Write the images and the other large values of a record. Returns the files by field; one that is there is never replaced."""
    written = {}
    for place, (name, value) in enumerate(record.values.items()):
        if is_picture(value) or is_large(value):
            suffix, data = _file_of(value)
            written[name] = str(_write(directory / f"{record.id}-{_stem(name, place)}{suffix}", data))
    return written


def _stem(name: str, place: int) -> str:
    """A field's name as part of a file name; with its place where something had to be changed, so that no two are the same."""
    stem = _UNSAFE.sub("_", name)[:64]
    return stem if stem == name else f"{stem}-{place}"


def _file_of(value: Any) -> tuple[str, bytes]:
    if isinstance(value, str):
        return ".txt", value.encode()
    if isinstance(value, bytes):
        image = encoded(value)
        return (".bin" if image is None else image.suffix), value
    out = io.BytesIO()
    if is_picture(value) and has_pillow():
        from PIL import Image

        Image.fromarray(value[..., 0] if value.shape[2:] == (1,) else value).save(out, "PNG")
        return ".png", out.getvalue()
    np.save(out, value, allow_pickle=False)
    return ".npy", out.getvalue()


def _write(path: Path, data: bytes) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(data)
    except FileExistsError as error:
        raise StoreError(f"{path}: there is something already; save to another directory, or remove it") from error
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from error
    return path
