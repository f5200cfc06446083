"""Making and opening stores: what is refused, and that refusing leaves nothing behind."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.store.records import files, make_records, write

import penstock as pen
from penstock import Field
from penstock.errors import (
    CorruptError,
    MissingError,
    NotPublishedError,
    PenstockError,
    ReadError,
    SnapshotExpiredError,
    StoreError,
)

ONE = {"x": Field("i4")}


def test_file_in_the_way_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "a.pen").write_text("mine")
    with pytest.raises(StoreError, match="found a file"):
        pen.create(tmp_path / "a.pen", ONE)
    assert (tmp_path / "a.pen").read_text() == "mine"


def test_foreign_directory_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_text("mine")
    with pytest.raises(StoreError, match="holds other files"):
        pen.create(tmp_path, ONE)
    assert [name.name for name in tmp_path.iterdir()] == ["photo.jpg"]


def test_existing_store_is_refused_and_kept(tmp_path: Path) -> None:
    write(tmp_path / "a.pen", make_records(3))
    there = files(tmp_path / "a.pen")
    with pytest.raises(StoreError, match="there is a store already"):
        pen.create(tmp_path / "a.pen", ONE)
    assert files(tmp_path / "a.pen") == there
    assert len(pen.open(tmp_path / "a.pen")) == 3


def test_directory_without_a_parent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        pen.create(tmp_path / "no" / "a.pen", ONE)


BAD_OPTIONS: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"chunk_bytes": 1}, ValueError),
    ({"chunk_bytes": "many"}, ValueError),
    ({"chunk_bytes": 1e9}, TypeError),
    ({"chunk_records": 0}, ValueError),
    ({"chunk_records": 2**32}, ValueError),
    ({"threads": 0}, ValueError),
    ({"threads": 1000}, ValueError),
    ({"threads": "2"}, TypeError),
]


@pytest.mark.parametrize(("options", "error"), BAD_OPTIONS, ids=str)
def test_bad_options_make_nothing(tmp_path: Path, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        pen.create(tmp_path / "a.pen", ONE, **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fields", [{}, {"x": "i4"}, {"": Field("i4")}, {"x\n": Field("i4")}], ids=repr)
def test_bad_fields_make_nothing(tmp_path: Path, fields: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        pen.create(tmp_path / "a.pen", fields)
    assert list(tmp_path.iterdir()) == []


def test_empty_directory_and_one_without_a_commit_are_taken(tmp_path: Path) -> None:
    (tmp_path / "a.pen").mkdir()
    pen.create(str(tmp_path / "a.pen"), ONE).close()
    with pytest.raises(NotPublishedError, match="nothing was ever committed"):
        pen.open(tmp_path / "a.pen")
    with pytest.raises(NotPublishedError):
        pen.open(tmp_path / "a.pen", mode="a")
    with pen.create(tmp_path / "a.pen", ONE) as out:
        out.extend({"x": [1]})
    assert len(pen.open(str(tmp_path / "a.pen"))) == 1


@pytest.mark.parametrize("mode", ["r", "a"])
def test_what_is_no_store_is_named(tmp_path: Path, mode: Any) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "directory").mkdir()
    for name, error in {"nothing": MissingError, "directory": MissingError, "file": ReadError}.items():
        with pytest.raises(error, match=name):
            pen.open(tmp_path / name, mode=mode)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["directory", "file"]


def test_missing_store_is_also_a_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        pen.open(tmp_path / "nothing")
    assert issubclass(CorruptError, ValueError)
    assert issubclass(SnapshotExpiredError, PenstockError)


BAD_OPENINGS: list[dict[str, Any]] = [{"mode": "w"}, {"mode": "a", "generation": 1}, {"io": "fast"}, {"threads": -1}]


@pytest.mark.parametrize("options", BAD_OPENINGS, ids=str)
def test_bad_options_of_open_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    write(tmp_path / "a.pen", make_records(3))
    with pytest.raises((ValueError, TypeError)):
        pen.open(tmp_path / "a.pen", **options)


def test_store_of_one_record_of_every_kind_of_field(tmp_path: Path) -> None:
    fields = {f"f{i}": Field("u1", (i,)) for i in range(300)}
    with pen.create(tmp_path / "a.pen", fields) as out:
        out.append({name: np.full(field.shape, 3, np.uint8) for name, field in fields.items()})
    record = pen.open(tmp_path / "a.pen")[0]
    assert [value.tolist() for value in record.values()] == [[3] * i for i in range(300)]
