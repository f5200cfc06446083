"""Values of records as files of a directory, under names that cannot leave it."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np

from penstock.cli.picture import encoded, has_pillow, is_picture
from penstock.cli.record import Record
from penstock.cli.value import is_large
from penstock.errors import StoreError

__all__ = ["save_values"]

_UNSAFE = re.compile(r"[^A-Za-z0-9_]+")


def save_values(record: Record, directory: Path) -> dict[str, str]:
    """Write the images and the other large values of a record. Returns the files by field; one that is there is never replaced."""
    written = {}
    for place, (name, value) in enumerate(record.values.items()):
        if is_picture(value) or is_large(value):
            suffix, data = _file(value)
            written[name] = str(_write(directory / f"{record.id}-{_stem(name, place)}{suffix}", data))
    return written


def _stem(name: str, place: int) -> str:
    """A field's name as part of a file name; with its place where something had to be changed, so that no two are the same."""
    stem = _UNSAFE.sub("_", name)[:64]
    return stem if stem == name else f"{stem}-{place}"


def _file(value: Any) -> tuple[str, bytes]:
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
