"""Tensors in .safetensors files, which the package of that name writes."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save, save_file

import penstock as pen
from penstock.errors import (
    FormatError,
    SchemaMismatchError,
    TrailingBytesError,
    TruncatedError,
    UnsupportedTypeError,
)
from penstock.records import Source
from penstock.testing import SourceSuite

Record = dict[str, Any]

N = 41
RNG = np.random.default_rng(3)
COLUMNS: dict[str, np.ndarray] = {
    "image": RNG.integers(0, 256, (N, 5, 3), np.uint8),
    "label": np.arange(N, dtype=np.int64) - 7,
    "good": np.arange(N) % 3 == 0,
    "nothing": np.empty((N, 0), np.float32),
    "odd": RNG.random((N, 3)).astype(np.float16),
    "wave": RNG.random((N, 2)).astype(np.complex64),
}
SMALL: dict[str, np.ndarray] = {
    "half": RNG.standard_normal((N, 4)).astype(ml_dtypes.bfloat16),
    "eighth": RNG.standard_normal((N, 5)).astype(ml_dtypes.float8_e4m3fn),
    "fifth": RNG.standard_normal(N).astype(ml_dtypes.float8_e5m2),
}


def written_order(columns: dict[str, np.ndarray]) -> list[str]:
    """The package puts types of many bytes first, and names in their order."""
    return list(header_of(save(columns)))


def header_of(raw: bytes) -> dict[str, Any]:
    [length] = struct.unpack_from("<Q", raw)
    header: dict[str, Any] = json.loads(raw[8 : 8 + length])
    return {name: value for name, value in header.items() if name != "__metadata__"}


class TestTensors(SourceSuite):
    """Three files, one of them without rows."""

    def make(self, directory: Path) -> Source:
        for number, rows in enumerate([slice(0, 17), slice(17, 17), slice(17, N)]):
            part = {name: np.ascontiguousarray(column[rows]) for name, column in COLUMNS.items()}
            save_file(part, directory / f"{number}.safetensors", {"format": "np"})
        source: Source = pen.open(directory / "*.safetensors")
        return source

    def records(self) -> list[Record]:
        return [{name: COLUMNS[name][i] for name in written_order(COLUMNS)} for i in range(N)]


class TestSmallTypes(SourceSuite):
    """Under other names, next to a tensor of another length and one of a single value."""

    def make(self, directory: Path) -> Source:
        save_file({**SMALL, "scale": np.array(3.0), "vocabulary": np.arange(5)}, directory / "a.safetensors")
        source: Source = pen.open(directory / "a.safetensors", fields={"x": "half", "y": "eighth", "z": "fifth"}, io="pread")
        return source

    def records(self) -> list[Record]:
        return [dict(zip("xyz", (column[i] for column in SMALL.values()), strict=True)) for i in range(N)]


def test_tensors_of_other_lengths_are_an_error_that_lists_them(tmp_path: Path) -> None:
    save_file({"x": np.zeros((6, 2), np.float32), "y": np.zeros(5, np.int64), "scale": np.array(1.0)}, tmp_path / "a.safetensors")
    with pytest.raises(
        SchemaMismatchError, match=r"'y': I64 \[5\], 'scale': F64 \[\], 'x': F32 \[6, 2\]: choose .* fields=\["
    ) as caught:
        pen.open(tmp_path / "a.safetensors")
    assert str(tmp_path / "a.safetensors") in str(caught.value)
    with pytest.raises(SchemaMismatchError, match=r"'scale': F64 \[\]"):
        pen.open(tmp_path / "a.safetensors", fields=["scale"])
    assert pen.open(tmp_path / "a.safetensors", fields=["y"])["y"][:].tolist() == [0] * 5


def test_files_of_other_fields_are_an_error(tmp_path: Path) -> None:
    save_file({"x": np.zeros((6, 2), np.float32)}, tmp_path / "a.safetensors")
    for number, other in enumerate(
        ({"y": np.zeros((6, 2), np.float32)}, {"x": np.zeros((6, 3), np.float32)}, {"x": np.zeros((6, 2))})
    ):
        save_file(other, tmp_path / f"b{number}.safetensors")
        with pytest.raises(
            SchemaMismatchError, match=rf"b{number}\.safetensors: expected 'x': Field\('f4', \(2,\)\) as in .*a\.safe"
        ):
            pen.open([tmp_path / "a.safetensors", tmp_path / f"b{number}.safetensors"])


def test_unknown_and_doubled_fields_are_refused(tmp_path: Path) -> None:
    save_file({"x": np.zeros(6)}, tmp_path / "a.safetensors")
    with pytest.raises(KeyError, match=r"no tensor 'y'; there are \['x'\]"):
        pen.open(tmp_path / "a.safetensors", fields=["y"])
    with pytest.raises(ValueError, match="every name once"):
        pen.open(tmp_path / "a.safetensors", fields=["x", "x"])
    with pytest.raises(TypeError, match="list of names"):
        pen.open(tmp_path / "a.safetensors", fields="x")


def test_a_name_that_no_field_has_needs_another(tmp_path: Path) -> None:
    save_file({"a\nb": np.arange(6)}, tmp_path / "a.safetensors")
    with pytest.raises(SchemaMismatchError, match="another name: fields="):
        pen.open(tmp_path / "a.safetensors")
    assert pen.open(tmp_path / "a.safetensors", fields={"x": "a\nb"})["x"][:].tolist() == list(range(6))


GOOD = {
    "x": {"dtype": "U16", "shape": [3, 2], "data_offsets": [0, 12]},
    "y": {"dtype": "U8", "shape": [3], "data_offsets": [12, 15]},
}

# What is done to a good file: its header, or all of it; the error, and what it says.
BAD: dict[str, tuple[Callable[[dict[str, Any]], object] | Callable[[bytes], bytes], type[Exception], str]] = {
    "overlap": (lambda h: h["y"].update(data_offsets=[11, 14]), FormatError, "'y' at byte [0-9]+, behind tensor 'x', found it at"),
    "hole": (lambda h: h["y"].update(data_offsets=[13, 16]), FormatError, "'y' at byte [0-9]+, behind tensor 'x', found it at"),
    "first": (lambda h: h["x"].update(data_offsets=[1, 13]), FormatError, "'x' at byte [0-9]+, behind the header"),
    "beyond": (lambda h: h["x"].update(shape=[30, 2], data_offsets=[0, 120]), FormatError, "'x'"),
    "long": (lambda h: h["y"].update(shape=[30], data_offsets=[12, 42]), TruncatedError, "for 2 tensors"),
    "short": (lambda h: h["y"].update(shape=[2], data_offsets=[12, 14]), TrailingBytesError, "for 2 tensors"),
    "shape": (lambda h: h["x"].update(shape=[3, 3]), FormatError, "18 bytes for tensor 'x' of U16"),
    "negative": (lambda h: h["x"].update(shape=[-3, -2]), FormatError, "expected dtype, shape and data_offsets"),
    "huge": (lambda h: h["x"].update(shape=[2**62, 1]), FormatError, "expected dtype, shape and data_offsets"),
    "many": (lambda h: h["x"].update(shape=[1] * 100), FormatError, "expected dtype, shape and data_offsets"),
    "text": (lambda h: h["x"].update(shape="3"), FormatError, "expected dtype, shape and data_offsets"),
    "bool": (lambda h: h["x"].update(shape=[True, 6]), FormatError, "expected dtype, shape and data_offsets"),
    "swapped": (lambda h: h["x"].update(dtype="F4", data_offsets=[12, 0]), FormatError, "bytes 12 to 0"),
    "more": (lambda h: h["x"].update(stride=1), FormatError, "expected dtype, shape and data_offsets"),
    "type": (lambda h: h["x"].update(dtype="F4"), UnsupportedTypeError, "found 'F4' in tensor 'x': choose the others with fields="),
    "list": (lambda raw: packed(b"[]", bytes(15)), FormatError, "expected the tensors by name"),
    "not json": (lambda raw: packed(b"{" * 50, bytes(15)), FormatError, "JSON"),
    "not utf-8": (lambda raw: packed(b'{"\xff": 1}', bytes(15)), FormatError, "JSON"),
    "deep": (lambda raw: packed(b"[" * 100_000, b""), FormatError, "JSON"),
    "twice": (
        lambda raw: packed(json.dumps(GOOD).encode().replace(b'"y"', b'"x"'), bytes(15)),
        FormatError,
        "every name once",
    ),
    "none": (lambda raw: packed(b"{}", b""), SchemaMismatchError, "at least one tensor"),
    "five": (lambda raw: raw[:5], TruncatedError, "8 bytes before a header"),
    "cut header": (lambda raw: raw[:50], TruncatedError, "expected a header of"),
    "long header": (lambda raw: struct.pack("<Q", 100_000_001) + raw[8:], FormatError, "at most 100000000 bytes"),
    "cut": (lambda raw: raw[:-1], TruncatedError, "for 2 tensors"),
    "longer": (lambda raw: raw + b"x", TrailingBytesError, "for 2 tensors"),
}


def packed(header: bytes, data: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + data


@pytest.mark.parametrize("name", BAD)
def test_a_bad_header_is_an_error_with_the_path(tmp_path: Path, name: str) -> None:
    change, kind, words = BAD[name]
    header = json.loads(json.dumps(GOOD))
    good = packed(json.dumps(header).encode(), bytes(range(15)))
    (tmp_path / "good.safetensors").write_bytes(good)
    assert pen.open(tmp_path / "good.safetensors")[1]["x"].tolist() == [0x0504, 0x0706]
    changed = change(header) if "raw" not in change.__code__.co_varnames else change(good)  # type: ignore[arg-type]
    raw = changed if isinstance(changed, bytes) else packed(json.dumps(header).encode(), bytes(15))
    (tmp_path / "a.safetensors").write_bytes(raw)
    with pytest.raises(kind, match=words) as caught:
        pen.open(tmp_path / "a.safetensors")
    assert type(caught.value) is kind
    assert str(tmp_path / "a.safetensors") in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    save_file({"x": np.arange(1000)}, tmp_path / "a.safetensors")
    with pen.open(tmp_path / "a.safetensors") as data:
        save_file({"x": np.arange(1000) + 1}, tmp_path / "b.safetensors")
        (tmp_path / "b.safetensors").rename(tmp_path / "a.safetensors")
        with pytest.raises(pen.errors.SourceChangedError):
            data[5]
