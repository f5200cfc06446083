"""Field: the type of one named part of a record, and its form in the manifest."""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import whole_number
from penstock.codec import Codec, Raw, codec_from_json, codec_to_json

__all__ = ["LARGE_RECORD_BYTES", "MAX_RECORD_BYTES", "Field", "Schema", "field_from_json", "field_to_json", "is_plain_name"]

MAX_NAME = 128
MAX_NDIM = 32
MAX_RECORD_BYTES = 2**32 - 1
LARGE_RECORD_BYTES = 2**30
"""Version 1 of penstock knows no larger records."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
"""Unicode categories without a visible form: controls, format characters, surrogates, private use, separators of lines."""

# The whole list of element types; nothing else in a manifest is accepted. Values are numpy names, or attributes of ml_dtypes.
_NUMPY = {
    "bool": "?", "i1": "i1", "i2": "<i2", "i4": "<i4", "i8": "<i8", "u1": "u1", "u2": "<u2", "u4": "<u4", "u8": "<u8",
    "f2": "<f2", "f4": "<f4", "f8": "<f8", "c8": "<c8", "c16": "<c16",
}  # fmt: skip
_ML = {"bf16": "bfloat16", "f8e4m3fn": "float8_e4m3fn", "f8e4m3b11fnuz": "float8_e4m3b11fnuz", "f8e5m2": "float8_e5m2"}


def _dtype_of(name: str) -> np.dtype[Any]:
    if name in _NUMPY:
        return np.dtype(_NUMPY[name])
    if name in _ML:
        try:
            import ml_dtypes
        except ImportError as error:
            raise ImportError(f"the element type {name} needs ml_dtypes: pip install ml_dtypes") from error
        made: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML[name]))
        return made
    raise ValueError(f"element type must be one of {', '.join([*_NUMPY, *_ML])}, got {name!r}")


def _name_of(dtype: npt.DTypeLike) -> str:
    if isinstance(dtype, str) and dtype in _ML:
        return dtype
    wanted = np.dtype(dtype)
    for name, code in _NUMPY.items():
        if wanted == np.dtype(code) or wanted.newbyteorder("=") == np.dtype(code):
            return name
    for name, attribute in _ML.items():
        if wanted.name == attribute:
            return name
    raise TypeError(f"element type must be one of {', '.join([*_NUMPY, *_ML])}, got {wanted}")


@dataclass(frozen=True, init=False)
class Field:
    """A fixed field: arrays of one ``dtype`` and ``shape``. See also :meth:`ragged`, :meth:`bytes` and :meth:`text`.

    ``nullable`` says that values may be missing. Every batch then has a masked array (or a :class:`~penstock.Ragged` with
    ``present``) for the field, whether or not one of its values is missing; a batch of any other field never has.

    >>> from penstock import Field, Zstd
    >>> Field("u1", (224, 224, 3))
    Field('u1', (224, 224, 3))
    >>> Field.text(codec=Zstd(3))
    Field.text(codec=Zstd(3))
    """

    kind: str
    element: str
    shape: tuple[int, ...]
    ndim: int
    codec: Codec
    nullable: bool = False

    def __init__(
        self, dtype: npt.DTypeLike, shape: tuple[int, ...] | int = (), *, codec: Codec | None = None, nullable: bool = False
    ) -> None:
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        dimensions = tuple(whole_number("a dimension", size) for size in sizes)
        self._set("fixed", _name_of(dtype), dimensions, len(sizes), codec=codec, nullable=nullable)

    @classmethod
    def ragged(cls, dtype: npt.DTypeLike, ndim: int = 1, *, codec: Codec | None = None, nullable: bool = False) -> "Field":
        """Arrays of one ``dtype`` and number of dimensions, each of its own shape."""
        dimensions = whole_number("ndim", ndim, least=1, most=MAX_NDIM)
        return cls.__new__(cls)._set("ragged", _name_of(dtype), (), dimensions, codec=codec, nullable=nullable)

    @classmethod
    def bytes(cls, *, codec: Codec | None = None, nullable: bool = False) -> "Field":
        """Byte strings: encoded images, audio, anything."""
        return cls.__new__(cls)._set("bytes", "u1", (), 1, codec=codec, nullable=nullable)

    @classmethod
    def text(cls, *, codec: Codec | None = None, nullable: bool = False) -> "Field":
        """Python strings, stored as UTF-8."""
        return cls.__new__(cls)._set("text", "u1", (), 1, codec=codec, nullable=nullable)

    def _set(self, kind: str, element: str, shape: tuple[int, ...], ndim: int, *, codec: Codec | None, nullable: bool) -> "Field":
        if codec is not None and not isinstance(codec, Codec):
            raise TypeError(f"codec must be Raw(), Deflate(), Zstd() or LZ4(), got {codec!r}")
        if not isinstance(nullable, bool):
            raise TypeError(f"nullable must be True or False, got {nullable!r}")
        if len(shape) > MAX_NDIM:
            raise ValueError(f"a shape has at most {MAX_NDIM} dimensions, got {len(shape)}")
        values = {"kind": kind, "element": element, "shape": shape, "ndim": ndim, "codec": codec or Raw(), "nullable": nullable}
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if kind == "fixed" and self.stride > MAX_RECORD_BYTES:
            raise ValueError(f"a record of a field has at most {MAX_RECORD_BYTES} bytes, {shape} of {element} needs {self.stride}")
        return self

    def with_codec(self, codec: Codec | None) -> "Field":
        """The same field with another codec; with its own if None."""
        return self._with(self.codec if codec is None else codec, self.nullable)

    def with_nullable(self, nullable: bool) -> "Field":
        """The same field of which values may be missing, or may not."""
        return self if nullable == self.nullable else self._with(self.codec, nullable)

    def _with(self, codec: Codec, nullable: bool) -> "Field":
        return Field.__new__(Field)._set(self.kind, self.element, self.shape, self.ndim, codec=codec, nullable=nullable)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return _dtype_of(self.element)

    @property
    def is_fixed(self) -> bool:
        """Whether all records have one size."""
        return self.kind == "fixed"

    @cached_property
    def stride(self) -> int:
        """Bytes of a decoded record of a fixed field."""
        size = self.dtype.itemsize
        for length in self.shape:
            size *= length
        return size

    def __repr__(self) -> str:
        options = [] if isinstance(self.codec, Raw) else [f"codec={self.codec!r}"]
        options += ["nullable=True"] if self.nullable else []
        if self.kind == "fixed":
            return f"Field({', '.join([repr(self.element), *([repr(self.shape)] if self.shape else []), *options])})"
        parts = [repr(self.element), *([f"ndim={self.ndim}"] if self.ndim > 1 else [])] if self.kind == "ragged" else []
        return f"Field.{self.kind}({', '.join([*parts, *options])})"


def is_plain_name(name: str) -> bool:
    """Whether version 1 of penstock knows field names like this one."""
    return _PLAIN_NAME.fullmatch(name) is not None


def _name_fault(name: object) -> str | None:
    """What is wrong with a field name; None if nothing is."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME:
        return f"expected a text of 1 to {MAX_NAME} characters"
    if is_plain_name(name):
        return None
    if any(unicodedata.category(char) in _HIDDEN or (char.isspace() and char != " ") for char in name):
        return "expected visible characters and spaces only"
    if name != name.strip():
        return "expected no space at the beginning or the end"
    if not unicodedata.is_normalized("NFC", name):
        return "expected the normal form NFC, as unicodedata.normalize('NFC', name) gives it"
    return None


@dataclass(frozen=True)
class Schema:
    """The fields of a data set by name, each with its number in the files."""

    fields: Mapping[str, Field]
    numbers: Mapping[str, int] = field(repr=False)

    @classmethod
    def make(cls, fields: Mapping[str, Field]) -> "Schema":
        """Fields numbered in the order given."""
        for name, one in fields.items():
            fault = _name_fault(name)
            if fault is not None:
                raise ValueError(f"a field name: {fault}, got {ascii(name)[:200]}")
            if not isinstance(one, Field):
                raise TypeError(f"field {name!r} must be a Field, got {one!r}")
        if not fields:
            raise ValueError("a data set needs at least one field, got none")
        if len(fields) > 4096:
            raise ValueError(f"a data set has at most 4096 fields, got {len(fields)}")
        return cls(dict(fields), {name: number for number, name in enumerate(fields)})


def field_to_json(name: str, number: int, one: Field) -> dict[str, object]:
    """A field as the manifest has it. Which fields are nullable is said elsewhere: version 1 refuses keys that it does not know."""
    base: dict[str, object] = {"name": name, "number": number, "kind": one.kind, "codec": codec_to_json(one.codec)}
    if one.kind == "fixed":
        base |= {"dtype": one.element, "shape": list(one.shape)}
    elif one.kind == "ragged":
        base |= {"dtype": one.element, "ndim": one.ndim}
    return base


_KEYS = {
    "fixed": {"name", "number", "kind", "codec", "dtype", "shape"},
    "ragged": {"name", "number", "kind", "codec", "dtype", "ndim"},
    "bytes": {"name", "number", "kind", "codec"},
    "text": {"name", "number", "kind", "codec"},
}


def field_from_json(value: object) -> tuple[str, int, Field]:
    """Name, number and field of :func:`field_to_json`; ValueError or TypeError if it is not one."""
    if not isinstance(value, dict) or value.get("kind") not in _KEYS or set(value) != _KEYS[value["kind"]]:
        raise ValueError(f"expected a field, got {str(value)[:200]}")
    kind, codec = value["kind"], codec_from_json(value["codec"])
    name, number = value["name"], whole_number("number", value["number"], most=4095)
    fault = _name_fault(name)
    if fault is not None:
        raise ValueError(f"a field name: {fault}, got {ascii(name)[:200]}")
    if kind == "fixed":
        if not isinstance(value["shape"], list) or not isinstance(value["dtype"], str) or len(value["shape"]) > MAX_NDIM:
            raise ValueError(f"expected a shape and a dtype, got {str(value)[:200]}")
        return (
            name,
            number,
            Field(_dtype_of(value["dtype"]), tuple(whole_number("a dimension", n) for n in value["shape"]), codec=codec),
        )
    if kind == "ragged":
        if not isinstance(value["dtype"], str):
            raise ValueError(f"expected a dtype, got {str(value)[:200]}")
        return name, number, Field.ragged(_dtype_of(value["dtype"]), whole_number("ndim", value["ndim"]), codec=codec)
    return name, number, (Field.bytes if kind == "bytes" else Field.text)(codec=codec)
