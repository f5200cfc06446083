"""MosaicML's shards of lines: those that the package wrote, and those that no writer should have written."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.golden.make_packed_files import N, line
from tests.golden.make_token_files import DIRECTORY

import penstock as pen
from penstock.errors import FormatError, ObjectChangedError, PenstockError, SourceChangedError
from penstock.records import Source
from penstock.remote.url import url_path
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


def test_shards_behind_links_are_read(tmp_path: Path):
    (tmp_path / "link").symlink_to(GOLDEN / "json")
    with pen.open(tmp_path / "link") as source:
        assert source.read([N - 1])["n"].tolist() == [int(line(N - 1)["n"])]


@pytest.mark.parametrize("name", ["json", "csv-zstd"])
def test_a_pickled_source_at_a_url_keeps_the_versions_of_its_objects(name: str):
    place = url_path(f"memory://lines-{name}/data")
    for path in sorted((GOLDEN / name).iterdir()):
        place.objects.put(f"data/{path.name}", path.read_bytes())
    with pen.open(str(place)) as source:
        recipe = pickle.dumps(source)
        assert source[0]["n"] == line(0)["n"]
    with pickle.loads(recipe) as same:
        assert same[0]["n"] == line(0)["n"]
    shard = min(path for path in (GOLDEN / name).iterdir() if ".meta" not in path.name and path.name.startswith("shard"))
    place.objects.put(f"data/{shard.name}", shard.read_bytes()[:-5] + b"other")
    with pytest.raises(ObjectChangedError, match="shard"), pickle.loads(recipe) as same:
        same.read(np.arange(N))


def test_a_file_with_the_offsets_of_two_shards_is_refused(tmp_path: Path):
    directory = shutil.copytree(GOLDEN / "json", tmp_path / "data")
    index = json.loads((directory / "index.json").read_text())
    first, second = index["shards"][:2]
    text = "".join(f"{json.dumps({'n': n, 'text': 'a' * (9 - len(str(n))), 'x': 0.5})}\n" for n in (1, 22, 3))
    ends = [0, *np.cumsum([len(one) + 1 for one in text.splitlines()]).tolist()]
    for shard, edges in ((first, ends), (second, [0, ends[2], ends[2], ends[3]])):
        (directory / shard["raw_meta"]["basename"]).write_bytes(np.array([3, *edges], "<u4").tobytes())
        shard["raw_data"] = first["raw_data"] | {"bytes": len(text)}
        shard |= {"samples": 3, "raw_meta": shard["raw_meta"] | {"bytes": 20}}
    (directory / first["raw_data"]["basename"]).write_text(text)
    (directory / "index.json").write_text(json.dumps(index | {"shards": [first, second]}))
    with pytest.raises(FormatError, match="expected a file for each shard"):
        pen.open(directory)


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
