"""TFRecord files and tar archives as the tests write them, byte by byte."""

import io
import struct
import tarfile
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from penstock import _core


def masked_crc(data: bytes) -> int:
    crc = _core.crc32c(np.frombuffer(data, np.uint8), 0, _core.CrcPath.PORTABLE)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def tfrecord(records: Iterable[bytes]) -> bytes:
    """A file of records."""
    out = bytearray()
    for data in records:
        length = struct.pack("<Q", len(data))
        out += length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))
    return bytes(out)


def varint(number: int) -> bytes:
    number %= 2**64
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, data: bytes) -> bytes:
    """A field of bytes or of a message."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(value: Any, *, packed: bool = True) -> bytes:
    """A list: of byte strings, floats or ints."""
    if isinstance(value, bytes):
        value = [value]
    values = np.atleast_1d(value) if not isinstance(value, list) else value
    if isinstance(values, list):
        return field(1, b"".join(field(1, one) for one in values))
    if values.dtype.kind == "f":
        items = [struct.pack("<f", one) for one in values]
        return field(2, field(1, b"".join(items)) if packed else b"".join(varint(1 << 3 | 5) + one for one in items))
    items = [varint(int(one)) for one in values]
    return field(3, field(1, b"".join(items)) if packed else b"".join(varint(1 << 3) + one for one in items))


def entry(name: str, content: bytes) -> bytes:
    return field(1, field(1, name.encode()) + field(2, content))


def example(features: Mapping[str, Any], *, packed: bool = True) -> bytes:
    """A tf.Example; None is left out."""
    return field(1, b"".join(entry(k, feature(v, packed=packed)) for k, v in features.items() if v is not None))


def tar(members: Iterable[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT) -> bytes:
    """An archive of files, by Python's tarfile."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()
