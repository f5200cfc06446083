"""Data to look at."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.cli import warm
from tests.view.serving import Visitor, serving

import penstock as pen
from penstock.view.dataset import ShownData
from penstock.view.server import Routes

RECORDS = 120
FIELDS = {
    "image": pen.Field("u1", (16, 12, 3)),
    "label": pen.Field("i4"),
    "caption": pen.Field.text(codec=pen.Zstd(3)),
    "file": pen.Field.bytes(),
    "wave": pen.Field("f4", (400,)),
    "pair": pen.Field("f8", (2,)),
    "tokens": pen.Field.ragged("u2"),
    "mask": pen.Field("bool", (9, 10)),
}


@pytest.fixture(scope="session", autouse=True)
def warm_is_running() -> None:
    """The server of processes lasts as long as this one: it is started before the first test."""
    warm.address()


def encoded(kind: str, number: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (20, 10), (number, 2 * number, 5)).save(out, kind)
    return out.getvalue()


def batch(count: int) -> dict[str, object]:
    random = np.random.default_rng(5)
    kinds = ("PNG", "JPEG", "GIF", "WEBP")
    return {
        "image": random.integers(0, 256, (count, 16, 12, 3), np.uint8),
        "label": np.arange(count) * 4 // count,
        "caption": [f"record {number}" for number in range(count)],
        "file": [encoded(kinds[number % 4], number) for number in range(count)],
        "wave": random.normal(size=(count, 400)).astype(np.float32),
        "pair": np.stack([np.arange(count), np.full(count, np.nan)], axis=1),
        "tokens": [np.arange(number % 5) for number in range(count)],
        "mask": random.random((count, 9, 10)) > 0.5,
    }


@pytest.fixture(scope="session")
def store_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of three generations."""
    path = tmp_path_factory.mktemp("view") / "train.pen"
    with pen.create(path, FIELDS, chunk_records=16) as out:
        out.extend(batch(RECORDS))
    with pen.open(path, mode="a") as out:
        out.update([3], {"caption": ["a newer caption"]})
    with pen.open(path, mode="a") as out:
        out.delete(list(range(40, 80)))
    return path


def routes_at(path: Path, *, watched: Path | None = None) -> Routes:
    def open_at(generation: int | None) -> pen.Source:
        return pen.open(path) if generation is None else pen.open(path, generation=generation)

    return Routes(ShownData(open_at, [str(path)]), watched)


@pytest.fixture
def visitor(store_path: Path) -> Iterator[Visitor]:
    with serving(routes_at(store_path)) as found:
        yield found
