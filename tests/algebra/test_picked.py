"""Some fields of a source, as a source."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as pen
from penstock.loader.native_engine import native_groups
from penstock.records import Source
from penstock.testing import SourceSuite

N = 43
IMAGES = np.random.default_rng(3).integers(0, 256, (N, 4, 4), dtype=np.uint8)
FIELDS = {"image": pen.Field("u1", (4, 4)), "label": pen.Field("i4"), "caption": pen.Field.text(codec=pen.Zstd(3))}


def write(path: Any) -> None:
    with pen.create(path, FIELDS) as out:
        out.extend({"image": IMAGES, "label": np.arange(N), "caption": [f"picture {i}" for i in range(N)]})


class TestPickedFields(SourceSuite):
    def make(self, directory: Path) -> Source:
        np.save(directory / "image.npy", IMAGES)
        return pen.open({"image": directory / "image.npy", "label": np.arange(N)}).pick("label", "image")

    def records(self) -> list[dict[str, Any]]:
        return [{"label": np.int64(i), "image": IMAGES[i]} for i in range(N)]


class TestPickedText(SourceSuite):
    def make(self, directory: Path) -> Source:
        return pen.open({"label": np.arange(N), "caption": [f"picture {i}" for i in range(N)]}).pick("caption")

    def records(self) -> list[dict[str, Any]]:
        return [{"caption": f"picture {i}"} for i in range(N)]


def test_a_loader_reads_the_picked_fields_natively(tmp_path: Path) -> None:
    write(tmp_path / "a.pen")
    with pen.open(tmp_path / "a.pen") as data:
        batches = list(pen.Loader(data.pick("image", "label").shuffle(seed=7), 10))
        assert {name for batch in batches for name in batch} == {"image", "label"}
        whole = list(pen.Loader(data.shuffle(seed=7), 10))
        for one, other in zip(batches, whole, strict=True):
            assert np.array_equal(one["image"], other["image"])
        assert native_groups(data.pick("label").shuffle(seed=7)) is not None


def test_picked_fields_come_from_a_url_in_the_same_order(tmp_path: Path) -> None:
    write("memory://picked/a.pen")
    write(tmp_path / "a.pen")
    with pen.open("memory://picked/a.pen") as far, pen.open(tmp_path / "a.pen") as near:
        there, here = (pen.Loader(data.pick("label").shuffle(seed=7, block=4, window=2), 10) for data in (far, near))
        assert [b["label"].tolist() for b in there] == [b["label"].tolist() for b in here]


@pytest.mark.parametrize(("fields", "error"), [(("nothing",), KeyError), ((), ValueError), (("label", "label"), ValueError)])
def test_what_cannot_be_picked_is_refused(fields: tuple[str, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        pen.open({"label": np.arange(3)}).pick(*fields)


def test_a_list_of_names_is_refused_with_how_to_write_it() -> None:
    with pytest.raises(TypeError, match=r"pick takes the names of fields, as in pick\('x', 'y'\), got \['label'\]"):
        pen.open({"label": np.arange(3)}).pick(["label"])  # type: ignore[arg-type]
