"""Pictures made smaller by a conversion: what comes out, what stays, and that it goes on where it was interrupted."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.pictures import encode, pictures, pixels

import penstock as pen
from penstock.conversion.record_map import ImageMap
from penstock.errors import ImageError
from penstock.source import ShrinkImages


def size_of(data: bytes) -> tuple[str | None, tuple[int, int]]:
    with Image.open(io.BytesIO(data)) as image:
        return image.format, image.size


def folder(path: Path) -> Path:
    """Two classes: photographs that are too large, and one that is small enough."""
    for name, data in (
        ("cats/a.jpg", encode(pixels(1, 120, 200))),
        ("cats/b.png", encode(pixels(2, 200, 100), "PNG")),
        ("dogs/c.jpg", encode(pixels(3, 30, 40))),
        ("dogs/d.webp", encode(pixels(4, 30, 40), "WebP")),
    ):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def test_pictures_are_as_large_as_allowed_and_classes_keep_their_names(tmp_path: Path) -> None:
    source = folder(tmp_path / "photos")
    pen.convert(source, tmp_path / "x.pen", image={"max_side": 64, "quality": 80})
    with pen.open(tmp_path / "x.pen") as made:
        assert [size_of(data) for data in made["data"]] == [
            ("JPEG", (64, 38)),
            ("JPEG", (32, 64)),
            ("JPEG", (40, 30)),
            ("JPEG", (40, 30)),
        ]
        assert made["data"][2] == (source / "dogs/c.jpg").read_bytes()
        assert made.metadata["label"] == ["cats", "dogs"]
        assert made["label"][:].tolist() == [0, 0, 1, 1]
        near = np.asarray(Image.open(io.BytesIO(made["data"][0])), np.int32)
        large = np.asarray(Image.open(source / "cats/a.jpg").resize((64, 38), Image.Resampling.BILINEAR), np.int32)
        assert np.abs(near - large).mean() < 6


def test_missing_pictures_stay_missing_and_broken_ones_are_named(tmp_path: Path) -> None:
    items = [*pictures(5), None]
    pen.convert({"image": items, "other": [b""] * 6}, tmp_path / "x.pen", image=ShrinkImages(16))
    with pen.open(tmp_path / "x.pen") as made:
        assert [max(size_of(data)[1]) for data in made["image"] if data is not None] == [16] * 5
        assert made["image"][5] is None
    with pytest.raises(ImageError, match="record 2, field 'image'"):
        pen.convert({"image": [*pictures(2), b"none"]}, tmp_path / "y.pen", image=ShrinkImages(16))


def test_an_error_names_the_file_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "photos" / "cats"
    folder.mkdir(parents=True)
    for number, data in enumerate([*pictures(2), b"none"]):
        (folder / f"{number}.jpg").write_bytes(data)
    with pytest.raises(ImageError, match=r"record 2, field 'data', path 'cats/2\.jpg': neither JPEG"):
        pen.convert(tmp_path / "photos", tmp_path / "x.pen", image=ShrinkImages(16))


def test_an_interrupted_conversion_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = pictures(24)
    pen.convert({"image": items}, tmp_path / "whole.pen", image=ShrinkImages(16), chunk_records=4)
    real, seen = ImageMap._shrunk, []

    def fail(self: Any, numbered: tuple[Any, int]) -> Any:
        seen.append(numbered[1])
        if numbered[1] >= 12:
            raise KeyboardInterrupt
        return real(self, numbered)

    monkeypatch.setattr(ImageMap, "_shrunk", fail)
    with pytest.raises(KeyboardInterrupt):
        pen.convert({"image": items}, tmp_path / "x.pen", image=ShrinkImages(16), chunk_records=4)
    monkeypatch.setattr(ImageMap, "_shrunk", lambda self, numbered: seen.append(numbered[1]) or real(self, numbered))
    seen.clear()
    pen.convert({"image": items}, tmp_path / "x.pen", image=ShrinkImages(16), chunk_records=4)
    assert 0 not in seen
    assert 12 in seen
    with pen.open(tmp_path / "x.pen") as made, pen.open(tmp_path / "whole.pen") as whole:
        assert made.digest() == whole.digest()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"image": {"max_side": 0}}, "max_side"),
        ({"image": {"max_side": 16_385}}, "max_side must be in"),
        ({"image": {"max_side": 8, "quality": 101}}, "quality"),
        ({"image": ShrinkImages(8), "map": dict}, "its own map"),
        ({"image": ShrinkImages(8), "tokenizer": "x.json"}, "one of them"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        pen.convert({"image": pictures(2)}, tmp_path / "x.pen", **given)
    with pytest.raises(ValueError, match="cannot store images"):
        pen.convert({"image": pictures(2)}, tmp_path / "x.shard", image=ShrinkImages(8))
