"""Field and codec: the type of one named part of a record, how it is compressed, and the form of both in the manifest."""

import base64
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import whole_number
from penstock.native import _core

__all__ = [
    "LARGE_RECORD_BYTES",
    "LZ4",
    "MAX_RECORD_BYTES",
    "Codec",
    "Deflate",
    "Field",
    "Raw",
    "Schema",
    "Zstd",
    "codec_from_json",
    "codec_to_json",
    "field_from_json",
    "field_to_json",
    "is_plain_name",
    "train_dictionary",
]

MAX_NAME = 128
MAX_NDIM = 32
MAX_RECORD_BYTES = 2**32 - 1
LARGE_RECORD_BYTES = 2**30
"""Version 1 of penstock knows no larger records."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
"""Unicode categories without a visible form: controls, format characters, surrogates, private use, separators of lines."""

# Codecs: every record is compressed alone


@dataclass(frozen=True)
class Raw:
    """No compression. Fixed-size records are then a plain array, read at the speed of memory.

    >>> from penstock import Field, Raw
    >>> Field("f4", (3,)).codec == Raw()
    True
    """

    name = "raw"
    number = 0
    level = 0


@dataclass(frozen=True)
class Deflate:
    """Deflate (as in zip and png), level 1 to 12.

    >>> from penstock import Deflate, Field
    >>> Field.bytes(codec=Deflate(9))
    Field.bytes(codec=Deflate(level=9))
    """

    level: int = 6
    name = "deflate"
    number = 1

    def __post_init__(self) -> None:
        whole_number("level", self.level, least=1, most=12)


@dataclass(frozen=True)
class Zstd:
    """Zstandard, level 1 to 22. A ``dictionary`` (see :func:`train_dictionary`) helps records of a few hundred bytes most.

    >>> from penstock import Field, Zstd
    >>> Field.text(codec=Zstd(10))
    Field.text(codec=Zstd(10))
    """

    level: int = 3
    dictionary: bytes | None = None
    name = "zstd"
    number = 2

    def __post_init__(self) -> None:
        whole_number("level", self.level, least=1, most=22)
        if self.dictionary is not None and not isinstance(self.dictionary, bytes):
            raise TypeError(f"dictionary must be bytes, got {type(self.dictionary).__name__}")

    def __repr__(self) -> str:
        return f"Zstd({self.level})" if self.dictionary is None else f"Zstd({self.level}, dictionary={len(self.dictionary)} bytes)"


@dataclass(frozen=True)
class LZ4:
    """LZ4: level 1 is fast, 2 to 12 compress better and read as fast.

    >>> from penstock import LZ4, Field
    >>> Field("u1", (224, 224, 3), codec=LZ4())
    Field('u1', (224, 224, 3), codec=LZ4(level=1))
    """

    level: int = 1
    name = "lz4"
    number = 3

    def __post_init__(self) -> None:
        whole_number("level", self.level, least=1, most=12)


Codec = Raw | Deflate | Zstd | LZ4

_BY_NAME: dict[str, type[Deflate] | type[Zstd] | type[LZ4]] = {"deflate": Deflate, "zstd": Zstd, "lz4": LZ4}


def codec_to_json(codec: Codec) -> dict[str, object]:
    """Name, level and dictionary: what the next chunk is written with. Chunks carry the dictionary they were written with."""
    if isinstance(codec, Raw):
        return {"name": codec.name}
    made: dict[str, object] = {"name": codec.name, "level": codec.level}
    if isinstance(codec, Zstd) and codec.dictionary is not None:
        made["dictionary"] = base64.b64encode(codec.dictionary).decode()
    return made


def codec_from_json(value: object) -> Codec:
    """The codec of :func:`codec_to_json`; ValueError if it is not one."""
    if isinstance(value, dict):
        if value == {"name": "raw"}:
            return Raw()
        if set(value) == {"name", "level"} and value["name"] in _BY_NAME:
            return _BY_NAME[value["name"]](whole_number("level", value["level"]))
        if set(value) == {"name", "level", "dictionary"} and value["name"] == "zstd" and isinstance(value["dictionary"], str):
            return Zstd(whole_number("level", value["level"]), base64.b64decode(value["dictionary"], validate=True))
    raise ValueError(f"expected a codec, got {str(value)[:200]}")


def train_dictionary(samples: Sequence[bytes | str], *, size: int = 65_536) -> bytes:
    """A zstd dictionary from sample records: a few thousand typical ones, together about a hundred times ``size``.

    >>> from penstock import Zstd, train_dictionary
    >>> samples = [f"user {number} logged in from host {number % 7} at hour {number % 24}" for number in range(2000)]
    >>> codec = Zstd(3, dictionary=train_dictionary(samples, size=1024))
    >>> len(codec.dictionary) <= 1024
    True
    """
    whole_number("size", size, least=256)
    encoded = [sample.encode() if isinstance(sample, str) else bytes(sample) for sample in samples]
    ends = np.cumsum([len(sample) for sample in encoded]).astype(np.uint64)
    return _core.train_dictionary(np.frombuffer(b"".join(encoded), np.uint8), ends, size)


# Fields

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
        _fill(self, "fixed", _name_of(dtype), dimensions, len(sizes), codec=codec, nullable=nullable)

    @classmethod
    def ragged(cls, dtype: npt.DTypeLike, ndim: int = 1, *, codec: Codec | None = None, nullable: bool = False) -> "Field":
        """Arrays of one ``dtype`` and number of dimensions, each of its own shape."""
        dimensions = whole_number("ndim", ndim, least=1, most=MAX_NDIM)
        return _fill(cls.__new__(cls), "ragged", _name_of(dtype), (), dimensions, codec=codec, nullable=nullable)

    @classmethod
    def bytes(cls, *, codec: Codec | None = None, nullable: bool = False) -> "Field":
        """Byte strings: encoded images, audio, anything."""
        return _fill(cls.__new__(cls), "bytes", "u1", (), 1, codec=codec, nullable=nullable)

    @classmethod
    def text(cls, *, codec: Codec | None = None, nullable: bool = False) -> "Field":
        """Python strings, stored as UTF-8."""
        return _fill(cls.__new__(cls), "text", "u1", (), 1, codec=codec, nullable=nullable)

    def with_codec(self, codec: Codec | None) -> "Field":
        """The same field with another codec; with its own if None."""
        return self._with(self.codec if codec is None else codec, self.nullable)

    def with_nullable(self, nullable: bool) -> "Field":
        """The same field of which values may be missing, or may not."""
        return self if nullable == self.nullable else self._with(self.codec, nullable)

    def _with(self, codec: Codec, nullable: bool) -> "Field":
        return _fill(Field.__new__(Field), self.kind, self.element, self.shape, self.ndim, codec=codec, nullable=nullable)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        return _dtype_of(self.element)

    @property
    def is_fixed(self) -> bool:
        """Whether all records have one size."""
        return self.kind == "fixed"

    @cached_property
    def stride(self) -> int:
        """Bytes of a decoded record of a fixed field."""
        return self.dtype.itemsize * math.prod(self.shape)

    def __repr__(self) -> str:
        options = [] if isinstance(self.codec, Raw) else [f"codec={self.codec!r}"]
        options += ["nullable=True"] if self.nullable else []
        if self.kind == "fixed":
            return f"Field({', '.join([repr(self.element), *([repr(self.shape)] if self.shape else []), *options])})"
        parts = [repr(self.element), *([f"ndim={self.ndim}"] if self.ndim > 1 else [])] if self.kind == "ragged" else []
        return f"Field.{self.kind}({', '.join([*parts, *options])})"


def _fill(made: Field, kind: str, element: str, shape: tuple[int, ...], ndim: int, *, codec: Codec | None, nullable: bool) -> Field:
    """Set the attributes of a new field, checked."""
    if codec is not None and not isinstance(codec, Codec):
        raise TypeError(f"codec must be Raw(), Deflate(), Zstd() or LZ4(), got {codec!r}")
    if not isinstance(nullable, bool):
        raise TypeError(f"nullable must be True or False, got {nullable!r}")
    if len(shape) > MAX_NDIM:
        raise ValueError(f"a shape has at most {MAX_NDIM} dimensions, got {len(shape)}")
    values = {"kind": kind, "element": element, "shape": shape, "ndim": ndim, "codec": codec or Raw(), "nullable": nullable}
    for name, value in values.items():
        object.__setattr__(made, name, value)
    if kind == "fixed" and made.stride > MAX_RECORD_BYTES:
        raise ValueError(f"a record of a field has at most {MAX_RECORD_BYTES} bytes, {shape} of {element} needs {made.stride}")
    return made


def is_plain_name(name: str) -> bool:
    """Whether version 1 of penstock knows field names like this one."""
    return _PLAIN_NAME.fullmatch(name) is not None


def _check_name(name: object) -> None:
    """ValueError, with what is wrong, unless this can be the name of a field."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME:
        fault = f"expected a text of 1 to {MAX_NAME} characters"
    elif is_plain_name(name):
        return
    elif any(unicodedata.category(char) in _HIDDEN or (char.isspace() and char != " ") for char in name):
        fault = "expected visible characters and spaces only"
    elif name != name.strip():
        fault = "expected no space at the beginning or the end"
    elif not unicodedata.is_normalized("NFC", name):
        fault = "expected the normal form NFC, as unicodedata.normalize('NFC', name) gives it"
    else:
        return
    raise ValueError(f"a field name: {fault}, got {ascii(name)[:200]}")


@dataclass(frozen=True)
class Schema:
    """The fields of a data set by name, each with its number in the files."""

    fields: Mapping[str, Field]
    numbers: Mapping[str, int] = field(repr=False)

    @classmethod
    def make(cls, fields: Mapping[str, Field]) -> "Schema":
        """Fields numbered in the order given."""
        for name, one in fields.items():
            _check_name(name)
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
    _check_name(name)
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
