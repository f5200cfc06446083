"""Encoded pictures: the fields that hold them, and what becomes of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np

from penstock.argument import whole_number
from penstock.native import _core
from penstock.schema import Field

__all__ = ["IMAGE", "MOST_SIDE", "ImageOptions", "find_encoded"]

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

MOST_SIDE = 1 << 14
"""Pixels of a side of what is made."""

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
    numbers: bool = False

    @classmethod
    def of(cls, size: int | Sequence[int], **given: Any) -> "ImageOptions":
        """Of what a user gives. ValueError if it does not fit together."""
        height, width = _sides(size)
        for name, allowed in (("crop", CROPS), ("layout", LAYOUTS)):
            if given[name] not in list(allowed):
                raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {given[name]!r}")
        given["dtype"] = np.dtype(given["dtype"]).str[1:]
        if given["dtype"] not in TYPES:
            raise ValueError(f"dtype must be u1, f2 or f4, got {given['dtype']}")
        given["channels"] = whole_number("channels", given["channels"])
        if given["channels"] not in (1, 3):
            raise ValueError(f"channels must be 1 or 3, got {given['channels']}")
        for name in ("mean", "std"):
            given[name] = _per_channel(name, given[name], given["channels"])
            if given[name] is not None and given["dtype"] == "u1":
                raise ValueError(f"{name} is for floats: pass dtype='f4' or 'f2', or leave it out")
        for name in ("scale", "ratio"):
            low, high = _pair(name, given[name], "(low, high)")
            given[name] = float(low), float(high)
        given |= {name: float(given[name]) for name in ("fraction", "flip")}
        given["fill"] = whole_number("fill", given["fill"], most=255)
        given["max_pixels"] = whole_number("max_pixels", given["max_pixels"], least=1)
        made = cls(height, width, **given)
        _ = made.maker  # which refuses numbers that make no sense
        return made

    def of_masks(self, size: int | Sequence[int] | None, fill: int) -> "ImageOptions":
        """Of the masks of these pictures: class numbers of the same parts. ValueError if that size would be of other parts."""
        height, width = (self.height, self.width) if size is None else _sides(size)
        if self.crop in ("center", "pad") and (height, width) != (self.height, self.width):
            raise ValueError(
                f"with crop={self.crop!r} masks have the size of their images, {self.height} x {self.width}, because the part "
                f"that is taken depends on it; got {height} x {width}"
            )
        number = whole_number("fill", fill, most=255)
        plain = replace(self, layout="nchw", dtype="u1", mean=None, std=None, channels=1, numbers=True)
        return replace(plain, height=height, width=width, fill=number)

    @property
    def maker(self) -> _core.ImageMaker:
        """What makes the arrays. Native, immutable, shared."""
        return _make(self)

    @property
    def shape(self) -> tuple[int, ...]:
        if self.numbers:
            return (self.height, self.width)
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


def _sides(size: Any) -> tuple[int, int]:
    sides = (size, size) if isinstance(size, int | np.integer) else _pair("size", size, "a whole number, or (height, width)")
    height, width = (whole_number("size", side, least=1, most=MOST_SIDE) for side in sides)
    return height, width


def _pair(name: str, value: Any, expected: str) -> tuple[Any, ...]:
    if not isinstance(value, Sequence | np.ndarray):
        raise TypeError(f"{name} must be {expected}, got {value!r}")
    if len(value) != 2:
        raise ValueError(f"{name} must be {expected}, got {value!r}")
    return tuple(value)


def _per_channel(name: str, value: Any, channels: int) -> tuple[float, ...] | None:
    if value is None:
        return None
    given = np.asarray(value, np.float64).reshape(-1).tolist()
    numbers = tuple(given * channels if len(given) == 1 else given)
    if len(numbers) != channels or not all(np.isfinite(numbers)) or (name == "std" and min(numbers) <= 0):
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
        numbers=options.numbers,
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
            raise KeyError(f"unknown field {name!r}; fields of bytes, which may hold images, are {encoded or 'not there'}")
        data, path = found[0], None
    else:
        data, path = name, None
    if not _has_bytes(schema[data]):
        raise TypeError(
            f"field {data!r} is {schema[data]!r}; expected encoded images (JPEG, PNG, WebP), which are a field of bytes: open "
            "the data without decoding them"
        )
    return data, path


def _has_bytes(field: Field) -> bool:
    is_array = field.kind == "ragged" and field.ndim == 1 and field.dtype == np.dtype(np.uint8)
    return field.kind == "bytes" or is_array
