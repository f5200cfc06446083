"""Codecs: how the records of a field are compressed, each record alone."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock import _core
from penstock.argument import whole_number

__all__ = ["LZ4", "Codec", "Deflate", "Raw", "Zstd", "codec_from_json", "codec_to_json", "train_dictionary"]


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
