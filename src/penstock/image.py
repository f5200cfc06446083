"""Encoded pictures: the fields that hold them, and what becomes of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np

from penstock.argument import whole_number
from penstock.native import _core
from penstock.schema import Field

__all__ = ["IMAGE", "ImageOptions", "find_encoded"]

CROPS = {
    None: _core.ImageCrop.NONE,
    "center": _core.ImageCrop.CENTER,
    "random": _core.ImageCrop.RANDOM,
    "pad": _core.ImageCrop.PAD,
}
LAYOUTS = {"nchw": _core.ImageLayout.NCHW, "nhwc": _core.ImageLayout.NHWC}
TYPES = {"u1": _core.ImageType.U1, "f2": _core.ImageType.F2, "f4": _core.ImageType.F4}

IMAGE = "image"
"""What the only field of bytes may be called, whatever its name."""

SUFFIXES = ("jpg", "jpeg", "png", "webp")

MOST_SIDE = 1 << 15

Pair = tuple[float, float]


@dataclass(frozen=True)
class ImageOptions:
    """What becomes of a picture: what :meth:`Stream.images` takes, checked."""

    height: int
    width: int
    crop: str | None = "random"
    scale: Pair = (0.08, 1.0)
    ratio: Pair = (3 / 4, 4 / 3)
    fraction: float = 1.0
    flip: float = 0.5
    layout: str = "nchw"
    dtype: str = "u1"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    fill: int = 0
    channels: int = 3
    max_pixels: int = _core.DEFAULT_MAX_PIXELS

    @classmethod
    def of(cls, size: int | Sequence[int], **given: Any) -> "ImageOptions":
        """Of what a user gives. ValueError if it does not fit together."""
        sides = (size, size) if isinstance(size, int | np.integer) else tuple(size)
        if len(sides) != 2:
            raise ValueError(f"size must be a number of pixels, or (height, width), got {size!r}")
        height, width = (whole_number("size", side, least=1, most=MOST_SIDE) for side in sides)
        for name, allowed in (("crop", CROPS), ("layout", LAYOUTS)):
            if given[name] not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {given[name]!r}")
        given["dtype"] = np.dtype(given["dtype"]).str[1:]
        if given["dtype"] not in TYPES:
            raise ValueError(f"dtype must be u1, f2 or f4, got {given['dtype']}")
        given["channels"] = whole_number("channels", given["channels"], least=1, most=3)
        for name in ("mean", "std"):
            given[name] = _per_channel(name, given[name], given["channels"])
            if given[name] is not None and given["dtype"] == "u1":
                raise ValueError(f"{name} is for floats: give dtype='f4' or 'f2', or leave it out")
        for name in ("scale", "ratio"):
            low, high = map(float, given[name])
            given[name] = low, high
        given |= {name: float(given[name]) for name in ("fraction", "flip")}
        given["fill"] = whole_number("fill", given["fill"], most=255)
        given["max_pixels"] = whole_number("max_pixels", given["max_pixels"], least=1)
        made = cls(height, width, **given)
        _ = made.maker  # which refuses numbers that make no sense
        return made

    @property
    def maker(self) -> _core.ImageMaker:
        """What makes the arrays. Native, immutable, shared."""
        return _make(self)

    @property
    def shape(self) -> tuple[int, ...]:
        if self.layout == "nchw":
            return (self.channels, self.height, self.width)
        return (self.height, self.width, self.channels)

    def describe(self) -> str:
        """As a plan has them: those that are not what they are unless given, so that options that come later change no plan."""
        told = [
            (f.name, getattr(self, f.name))
            for f in fields(self)
            if f.name in ("height", "width") or getattr(self, f.name) != f.default
        ]
        return ", ".join(f"{name}={value!r}" for name, value in told)


def _per_channel(name: str, value: Any, channels: int) -> tuple[float, ...] | None:
    if value is None:
        return None
    numbers = tuple(float(one) for one in np.broadcast_to(np.asarray(value, np.float64).reshape(-1), (channels,)))
    if not all(np.isfinite(numbers)) or (name == "std" and min(numbers) <= 0):
        raise ValueError(
            f"{name} must be numbers{' above 0' if name == 'std' else ''}, one for each of {channels} channels, got {value!r}"
        )
    return numbers


@lru_cache(maxsize=64)
def _make(options: ImageOptions) -> _core.ImageMaker:
    mean, std = (None if one is None else (*one, *one[:1] * (3 - len(one))) for one in (options.mean, options.std))
    return _core.ImageMaker(
        height=options.height,
        width=options.width,
        crop=CROPS[options.crop],
        scale=options.scale,
        ratio=options.ratio,
        fraction=options.fraction,
        flip=options.flip,
        layout=LAYOUTS[options.layout],
        type=TYPES[options.dtype],
        mean=mean,
        std=std,
        fill=options.fill,
        channels=options.channels,
        max_pixels=options.max_pixels,
    )


def find_encoded(schema: Mapping[str, Field], name: str) -> tuple[str, str | None]:
    """The field of bytes that a name of pictures stands for: of that name; of an image column of Hugging Face, which is the fields
    ``name.bytes`` and ``name.path``; or, for "image", the only field of bytes, or the only one named like a kind of files, as in
    tar archives. With it the field that names files, if there is one.
    """
    if name not in schema and f"{name}.bytes" in schema:
        data, path = f"{name}.bytes", f"{name}.path" if f"{name}.path" in schema else None
    elif name not in schema:
        encoded = [one for one, field in schema.items() if _has_bytes(field)]
        found = encoded if len(encoded) == 1 else [one for one in encoded if one.lower() in SUFFIXES]
        if name != IMAGE or len(found) != 1:
            raise KeyError(f"unknown field {name!r}; fields of bytes, which may hold pictures, are {encoded or 'not there'}")
        data, path = found[0], None
    else:
        data, path = name, None
    if not _has_bytes(schema[data]):
        raise TypeError(
            f"field {data!r} is {schema[data]!r}; expected encoded pictures (JPEG, PNG, WebP), which are a field of bytes: open "
            "the data without decoding them"
        )
    return data, path


def _has_bytes(field: Field) -> bool:
    is_array = field.kind == "ragged" and field.ndim == 1 and field.dtype == np.dtype(np.uint8)
    return field.kind == "bytes" or is_array
