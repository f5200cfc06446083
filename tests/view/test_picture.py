"""Which values are pictures, and what is never sent as one."""

import io
import struct
from http import HTTPStatus
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.view.hostile import HTML, SVG

from penstock.view.guard import RefusedError
from penstock.view.records import MOST_BYTES, edges, image_kind, make_image


def decoded(value: Any, edge: int | None = None) -> np.ndarray[Any, Any]:
    answer = make_image(value, edge)
    assert (answer.status, answer.kind) == (HTTPStatus.OK, "image/png")
    return np.asarray(Image.open(io.BytesIO(answer.body)))


@pytest.mark.parametrize("shape", [(8, 9), (20, 30, 1), (20, 30, 3), (20, 30, 4), (3, 20, 30), (1, 20, 30)])
def test_arrays_of_bytes_are_pictures(shape: tuple[int, ...]) -> None:
    value = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    expected = value if value.ndim == 2 or shape[2] in (3, 4) else value[..., 0] if shape[2] == 1 else np.moveaxis(value, 0, 2)
    assert np.array_equal(decoded(value), expected[..., 0] if expected.shape[2:] == (1,) else expected)


@pytest.mark.parametrize("shape", [(7, 30), (30,), (8, 9, 2), (8, 9, 5), (2, 8, 9), (8, 8, 8, 3), (0, 9), (20, 30, 0)])
def test_others_are_not(shape: tuple[int, ...]) -> None:
    assert edges(np.dtype(np.uint8), shape) is None
    with pytest.raises(RefusedError, match="not an image"):
        make_image(np.zeros(shape, np.uint8), None)


def test_real_numbers_are_stretched_from_black_to_white() -> None:
    value = np.linspace(-5, 5, 64).reshape(8, 8)
    value[0, 1], value[0, 2] = np.nan, np.inf
    found = decoded(value)
    assert (found[0, 0], found[7, 7], found[0, 1], found[0, 2]) == (0, 255, 0, 0)
    assert decoded(np.full((8, 8), 3.0)).max() == 0
    assert decoded(np.array([[-1e308, 1e308] * 4] * 8)).tolist()[0][:2] == [0, 255]
    assert decoded(np.arange(64, dtype=np.int64).reshape(8, 8))[7, 7] == 255


def test_large_arrays_are_thinned_for_previews() -> None:
    value = np.zeros((1000, 500, 3), np.uint8)
    assert decoded(value, 256).shape == (250, 125, 3)
    assert decoded(value).shape == (1000, 500, 3)


def test_too_many_pixels_are_refused() -> None:
    with pytest.raises(RefusedError, match="more than"):
        make_image(np.broadcast_to(np.uint8(0), (MOST_BYTES // 8 + 1, 8)), None)


@pytest.mark.parametrize(
    "data", [SVG, HTML, b"", b"GIF", b"<?xml version='1.0'?>" + SVG, b"%PDF-1.4", b"BM" + bytes(60), b"RIFF0000WAVE"]
)
def test_only_four_kinds_of_files_are_images(data: bytes) -> None:
    assert image_kind(data) is None
    with pytest.raises(RefusedError):
        make_image(data, None)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
@pytest.mark.parametrize("options", [{}, {"lossless": True}, {"progressive": True, "exif": b"Exif\0\0" + bytes(3000)}])
def test_the_size_of_an_image_is_known_without_decoding_it(
    kind: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.BytesIO()
    Image.new("RGB", (321, 123)).save(out, kind, **options)
    assert make_image(out.getvalue(), None).body == out.getvalue()
    monkeypatch.setattr("penstock.view.records.MOST_BYTES", 3 * 321 * 123 - 1)
    with pytest.raises(RefusedError, match="321 x 123 pixels"):
        make_image(out.getvalue(), None)


def test_a_small_file_of_very_many_pixels_is_refused() -> None:
    out = io.BytesIO()
    Image.new("1", (9000, 9000)).save(out, "PNG")
    assert len(out.getvalue()) < 100_000
    with pytest.raises(RefusedError, match="9000 x 9000 pixels"):
        make_image(out.getvalue(), None)


def test_a_header_may_end_anywhere() -> None:
    for kind in ("PNG", "JPEG", "GIF", "WEBP"):
        out = io.BytesIO()
        Image.new("RGB", (30, 20)).save(out, kind)
        data = out.getvalue()
        for length in range(12, min(200, len(data))):
            assert make_image(data[:length], None).kind == f"image/{kind.lower()}"
    assert make_image(b"\xff\xd8\xff" + struct.pack(">BH", 0xE0, 0) * 100, None).kind == "image/jpeg"
    assert make_image(b"\xff\xd8" + b"\xff" * 100_000, None).kind == "image/jpeg"
