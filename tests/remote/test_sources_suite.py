"""Every source that can be at a URL keeps the promises of all sources, on a server that other processes see too."""

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.shards import example, tfrecord
from tests.golden.make_foreign import rox
from tests.golden.make_shards import DIRECTORY, SAMPLES
from tests.remote.seaweed import Seaweed

import penstock as pen
from penstock.records import Source
from penstock.remote.url import UrlPath
from penstock.source import encode_rows, write_collection
from penstock.testing import SourceSuite
from penstock.testing.source_suite import assert_batch

Record = dict[str, Any]

ROWS = np.random.default_rng(0).standard_normal((31, 5)).astype(np.float32)
TOKENS = np.random.default_rng(1).integers(0, 2**16, 1000).astype(np.uint16)

_numbers = itertools.count()
_places: dict[type, UrlPath] = {}


class RemoteSuite(SourceSuite):
    """Data that is put under a URL of its own."""

    @pytest.fixture(autouse=True)
    def server(self, seaweed: Seaweed, prefix: UrlPath) -> None:
        self.options, self.root = seaweed.storage_options, prefix

    def put(self, place: UrlPath) -> None:
        raise NotImplementedError

    def open(self, place: UrlPath) -> Source:
        source: Source = pen.open(place)
        return source

    def make(self, directory: Path) -> Source:
        """Of data that is put there once, for all tests; anew where a test wants it a second time."""
        if type(self) in _places and directory.name != "other":
            return self.open(_places[type(self)])
        place = self.root / f"{next(_numbers)}"
        self.put(place)
        _places[type(self)] = place
        return self.open(place)

    def test_closing_twice_does_no_harm(self, tmp_path: Path, expected: list[Record]) -> None:
        """Connections are the store's, not the source's, and stay for the next one; memory is given back."""
        with self.make(tmp_path) as source:
            batch = source[:]
        source.close()
        assert source.remote is None or source.remote.used_bytes == 0
        assert_batch(batch, expected)


class TestRows(RemoteSuite):
    """As float64, some shards without rows."""

    def put(self, place: UrlPath) -> None:
        for number, part in enumerate(np.split(ROWS, [0, 20, 20, 23])):
            place.objects.put(f"{place.key}/{number}.shard", encode_rows(part))

    def open(self, place: UrlPath) -> Source:
        source: Source = pen.open(f"{place}/*.shard", storage_options=self.options, dtype="f8", field="x")
        return source

    def records(self) -> list[Record]:
        return [{"x": row.astype(np.float64)} for row in ROWS]


class TestArrays(RemoteSuite):
    def put(self, place: UrlPath) -> None:
        place.objects.put(f"{place.key}/a.npy", npy(ROWS[:7].astype(">f8")))
        place.objects.put(f"{place.key}/b.npy", npy(ROWS[7:].astype(">f8")))

    def records(self) -> list[Record]:
        return [{"data": row.astype("f8")} for row in ROWS]


class TestTokens(RemoteSuite):
    """Blocks of several sizes, some of none."""

    sizes = ([20] * 10 + [7], [], [20] * 5 + [0, 1])

    def put(self, place: UrlPath) -> None:
        blocks = iter(self.blocks())
        for number, sizes in enumerate(self.sizes):
            content = rox([next(blocks).tobytes() for _ in sizes], b"uint16")
            place.objects.put(f"{place.key}/x_{number}.rox", content)

    def blocks(self) -> list[np.ndarray]:
        return np.split(TOKENS, np.cumsum(list(itertools.chain(*self.sizes))))[:-1]

    def records(self) -> list[Record]:
        return [{"tokens": block} for block in self.blocks()]


class TestTFRecord(RemoteSuite):
    """By a directory, with a shard of no records."""

    cuts = (0, 13, 13, 31)

    def put(self, place: UrlPath) -> None:
        for number, (low, high) in enumerate(itertools.pairwise(self.cuts)):
            content = tfrecord([row.tobytes() for row in ROWS[low:high]])
            place.objects.put(f"{place.key}/train.tfrecord-{number:05}-of-00003", content)

    def records(self) -> list[Record]:
        return [{"data": row.tobytes()} for row in ROWS]


class TestExamples(TestTFRecord):
    def put(self, place: UrlPath) -> None:
        messages = [example({"x": row, "n": np.int64(n)}) for n, row in enumerate(ROWS)]
        place.objects.put(f"{place.key}/a.tfrecord", tfrecord(messages))

    def open(self, place: UrlPath) -> Source:
        source: Source = pen.open(place / "a.tfrecord", decode="example")
        return source

    def records(self) -> list[Record]:
        return [{"n": np.int64(n), "x": row} for n, row in enumerate(ROWS)]


class TestTar(RemoteSuite):
    """Files of the package, next to notes, in a window of a few pages."""

    def put(self, place: UrlPath) -> None:
        for path in sorted((DIRECTORY / "webdataset").iterdir()):
            place.objects.put(f"{place.key}/{path.name}", path.read_bytes())
        place.objects.put(f"{place.key}/README.md", b"shards")

    def open(self, place: UrlPath) -> Source:
        source: Source = pen.open(place, window_bytes="1MiB")
        return source

    def records(self) -> list[Record]:
        return [{name: one.get(name) for name in ("__key__", "cls", "jpg", "json", "seg.png")} for one in SAMPLES]


class TestCollection(RemoteSuite):
    def put(self, place: UrlPath) -> None:
        for number, part in enumerate(np.split(ROWS, [3, 20])):
            place.objects.put(f"{place.key}/{number}.shard", encode_rows(part))
        write_collection([place / f"{number}.shard" for number in range(3)], place / "all.json")

    def open(self, place: UrlPath) -> Source:
        source: Source = pen.open(place / "all.json")
        return source

    def records(self) -> list[Record]:
        return [{"row": row} for row in ROWS]


class TestAligned(RemoteSuite):
    """An array at a URL, beside texts in memory."""

    def put(self, place: UrlPath) -> None:
        place.objects.put(f"{place.key}/x.npy", npy(ROWS))

    def open(self, place: UrlPath) -> Source:
        source: Source = pen.open({"x": place / "x.npy", "name": [f"{i}" for i in range(31)]})
        return source

    def records(self) -> list[Record]:
        return [{"x": row, "name": f"{i}"} for i, row in enumerate(ROWS)]


class TestStore(RemoteSuite):
    equal_when_written_again = False

    def put(self, place: UrlPath) -> None:
        with pen.create(place, {"x": pen.Field("f4", (5,)), "t": pen.Field.text(codec=pen.Zstd(3))}, chunk_records=7) as out:
            out.extend({"x": ROWS, "t": [f"{i}" * i if i % 3 else None for i in range(31)]})

    def records(self) -> list[Record]:
        return [{"x": row, "t": f"{i}" * i if i % 3 else None} for i, row in enumerate(ROWS)]


ODD = [
    "a b.npy",
    "a+b.npy",
    "a%20b.npy",
    "100%.npy",
    "[1].npy",
    "ü.npy",
    "日本.npy",
    "a=b&c.npy",
    "'q'.npy",
    "x#y.npy",
    "~.npy",
    "$.npy",
    "q?.npy",
]


def test_odd_names_are_found_and_read(prefix: UrlPath) -> None:
    for number, name in enumerate(ODD):
        prefix.objects.put(f"{prefix.key}/{name}", npy(np.array([number])))
        prefix.objects.put(f"{prefix.key}/deep er/{name}/{name}", npy(np.array([number])))
    order = sorted(range(len(ODD)), key=lambda number: ODD[number].encode())
    for what in (prefix, prefix / "*.npy", prefix / "deep er/*/*.npy", prefix / "**/d*/*/*"):
        with pen.open(what) as source:
            assert source["data"][:].tolist() == order
    for number, name in enumerate(ODD):
        with pen.open(prefix / name) as one:
            assert one["data"][:].tolist() == [number]
    with pen.open([prefix / name for name in ODD]) as source:
        assert source["data"][:].tolist() == list(range(len(ODD)))


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()
