"""MosaicML's shards of lines: those that the package wrote, and those that no writer should have written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.golden.make_packed_files import N, line
from tests.golden.make_token_files import DIRECTORY

import penstock as pen
from penstock.errors import PenstockError, SourceChangedError
from penstock.records import Source
from penstock.testing import SourceSuite

GOLDEN = DIRECTORY / "lines"
Record = dict[str, Any]


def records_of(source: Source) -> list[Record]:
    with source:
        return [source[i] for i in range(len(source))]


class TestJsonShards(SourceSuite):
    def make(self, directory: Path) -> Source:
        shutil.copytree(GOLDEN / "json", directory / "data")
        return pen.open(directory / "data")

    def records(self) -> list[Record]:
        return [line(i) for i in range(N)]


class TestCompressedCsvShards(SourceSuite):
    def make(self, directory: Path) -> Source:
        shutil.copytree(GOLDEN / "csv-zstd", directory / "data")
        return pen.open(directory / "data", fields={"words": "text", "n": "n"}, kept_bytes="1MB")

    def records(self) -> list[Record]:
        return [{"words": line(i)["text"], "n": line(i)["n"]} for i in range(N)]


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.iterdir()))
def test_shards_of_every_format_are_read_as_they_were_written(name: str):
    with pen.open(GOLDEN / name) as source:
        assert {name: (field.kind, str(field.dtype)) for name, field in source.schema.items()} == {
            "n": ("fixed", "int64"),
            "text": ("text", "uint8"),
            "x": ("fixed", "float64"),
        }
        batch = source.read(np.arange(N)[::-1])
        assert batch["n"].tolist() == [int(line(i)["n"]) for i in reversed(range(N))]
        assert batch["x"].tobytes() == np.array([line(i)["x"] for i in reversed(range(N))]).tobytes()
        assert [batch["text"][i] for i in range(N)] == [line(i)["text"] for i in reversed(range(N))]


def test_values_that_only_python_writes_into_json(tmp_path: Path):
    write(tmp_path, [{"x": float("nan")}, {"x": float("-inf")}, {"x": 2}], {"x": "float"})
    values = [record["x"] for record in records_of(pen.open(tmp_path))]
    assert np.array_equal(values, [np.nan, -np.inf, 2.0], equal_nan=True)


def write(directory: Path, rows: list[Any], columns: dict[str, str]) -> None:
    """A directory of one shard of JSON lines."""
    texts = [(json.dumps(row) + "\n").encode() for row in rows]
    data, offsets = b"".join(texts), np.cumsum([0, *map(len, texts)]).astype("<u4")
    meta = np.uint32(len(rows)).tobytes() + offsets.tobytes() + b"{}"
    shard = {
        "format": "json",
        "version": 2,
        "columns": columns,
        "newline": "\n",
        "compression": None,
        "samples": len(rows),
        "raw_data": {"basename": "a.json", "bytes": len(data)},
        "raw_meta": {"basename": "a.meta", "bytes": len(meta)},
        "zip_data": None,
        "zip_meta": None,
    }
    for name, content in (("a.json", data), ("a.meta", meta), ("index.json", json.dumps({"shards": [shard]}).encode())):
        (directory / name).write_bytes(content)


def poke(name: str, at: int, value: bytes) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        content = bytearray((directory / name).read_bytes())
        content[at : at + len(value)] = value
        (directory / name).write_bytes(content)

    return apply


def of_first(**values: Any) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        content = json.loads((directory / "index.json").read_text())
        content["shards"][0] |= values
        (directory / "index.json").write_text(json.dumps(content))

    return apply


@pytest.mark.parametrize(
    "harm",
    [
        of_first(version=3),
        of_first(newline=""),
        of_first(newline=None),
        of_first(columns=[]),
        of_first(columns={"n": 1}),
        of_first(columns={"n": "pkl"}),
        of_first(format="csv"),
        of_first(samples=3),
        of_first(raw_meta=None),
        of_first(raw_data={"basename": "../a.json", "bytes": 1}),
        of_first(raw_data={"basename": "a.json", "bytes": 1}),
        of_first(compression="zstd"),
        poke("a.meta", 0, b"\x07"),
        poke("a.meta", 4, b"\x01"),
        poke("a.meta", 8, b"\xff"),
        poke("a.meta", 12, b"\xff"),
        lambda directory: (directory / "a.meta").unlink(),
    ],
)
def test_bad_shards_are_refused_when_they_are_opened(tmp_path: Path, harm: Callable[[Path], None]):
    write(tmp_path, [{"n": 1}, {"n": 2}], {"n": "int"})
    harm(tmp_path)
    with pytest.raises(PenstockError, match=str(tmp_path)):
        pen.open(tmp_path)


@pytest.mark.parametrize(
    "row", [{"n": 1.5}, {"n": True}, {"n": 2**63}, {"n": None}, {"n": "1"}, {"m": 1}, {"n": 1, "m": 2}, [1], {"n": [1]}]
)
def test_samples_that_do_not_fit_are_refused_when_they_are_read(tmp_path: Path, row: Any):
    write(tmp_path, [{"n": 1}, row], {"n": "int"})
    with pen.open(tmp_path) as source:
        assert source[0] == {"n": 1}
        with pytest.raises(PenstockError, match=r"a\.json"):
            source[1]


def test_lines_that_are_not_where_the_table_says_are_refused(tmp_path: Path):
    write(tmp_path, [{"t": "ab"}, {"t": "\ud800"}], {"t": "str"})
    with pen.open(tmp_path) as source, pytest.raises(PenstockError, match=r"expected a value of Field\.text"):
        source[1]
    poke("a.meta", 8, b"\x05")(tmp_path)
    with pen.open(tmp_path) as source, pytest.raises(PenstockError, match="expected a line that ends with"):
        source[0]


def test_shards_that_change_are_noticed(tmp_path: Path):
    write(tmp_path, [{"n": 1}, {"n": 2}], {"n": "int"})
    with pen.open(tmp_path) as source:
        write(tmp_path, [{"n": 3}, {"n": 4}], {"n": "int"})
        with pytest.raises(SourceChangedError):
            source[0]
