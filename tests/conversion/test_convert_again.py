"""Conversions that are begun twice, or go on with something else."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as pen
from penstock.conversion import convert as module
from penstock.conversion.record_map import as_map
from penstock.conversion.tasks import Note
from penstock.errors import LockedError, StoreError
from penstock.formats.array import ArraySource
from penstock.source import BatchMap

DEADLINE_S = 300


class Held(ArraySource):
    """Records that come when they may."""

    begun = threading.Event()
    may = threading.Event()

    def _read(self, ids: Any, fields: Any, out: Any) -> Any:
        if int(ids[0]) > 0:
            self.begun.set()
            assert self.may.wait(DEADLINE_S)
        return super()._read(ids, fields, out)


def test_a_second_conversion_beside_the_first_takes_nothing_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.conversion.convert.BATCH_BYTES", 8192)
    rows = np.arange(8192)
    failed: list[BaseException] = []

    def first() -> None:
        try:
            pen.convert(Held({"x": rows}), tmp_path / "x.pen", chunk_bytes=8192, threads=1)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    try:
        assert Held.begun.wait(DEADLINE_S)
        with pytest.raises(LockedError):
            pen.convert(Held({"x": rows}), tmp_path / "x.pen", chunk_bytes=8192, threads=1)
    finally:
        Held.may.set()
        thread.join(DEADLINE_S)
    assert failed == []
    assert pen.verify(tmp_path / "x.pen") == []
    with pen.open(tmp_path / "x.pen") as data:
        assert data["x"][:].tolist() == rows.tolist()


class Once:
    """Fails for the second task, the first time."""

    def __init__(self) -> None:
        self.failed = False

    def __call__(self, batch: Any) -> Any:
        if batch["x"][0] >= 50 and not self.failed:
            self.failed = True
            raise OSError("once")
        return batch


@pytest.mark.parametrize("name", ["x.pen", "x.idx"])
def test_what_a_conversion_next_to_it_has_finished_is_not_taken_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The other one begins and finishes after this one has looked whether there is something."""
    seen = module._check_partial
    options: dict[str, Any] = {"map": BatchMap(lambda batch: batch, task_records=5)} if name == "x.idx" else {}

    def look(partial: Path, note: Path) -> bool:
        found = seen(partial, note)
        monkeypatch.setattr(module, "_check_partial", seen)
        with monkeypatch.context() as patch:
            patch.setattr(module, "_give_name", interrupt)
            patch.setattr(module, "Staging", interrupt)
            with pytest.raises(KeyboardInterrupt):
                pen.convert({"x": [np.arange(3)] * 10}, tmp_path / name, **options)
        return found

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_check_partial", look)
    with pytest.raises(StoreError, match="another conversion to the same name has written this"):
        pen.convert({"x": [np.arange(4)] * 10}, tmp_path / name, **options)
    assert not (tmp_path / name).exists()


def test_other_tasks_are_not_mixed_with_those_that_were_done(tmp_path: Path) -> None:
    work = Once()
    with pytest.raises(OSError, match="once"):
        pen.convert({"x": np.arange(100)}, tmp_path / "x.pen", map=BatchMap(Once(), task_records=50))
    work.failed = True
    with pytest.raises(StoreError, match="with other options"):
        pen.convert({"x": np.arange(100)}, tmp_path / "x.pen", map=BatchMap(work, task_records=60))


def test_data_that_was_changed_in_place_is_not_mixed_with_what_was_done(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(1_000_000))

    def stop(records: int, size: int) -> None:
        raise OSError("stopped")

    def convert(progress: Any) -> None:
        with pen.open(tmp_path / "x.npy", field="x") as source:
            pen.convert(source, tmp_path / "x.pen", progress=progress, chunk_bytes="1MB")

    with pytest.raises(OSError, match="stopped"):
        convert(stop)
    array = np.load(tmp_path / "x.npy", mmap_mode="r+")
    array[600_000:700_000] = -1
    array.flush()
    with pytest.raises(StoreError, match="other data"):
        convert(None)
    array[600_000:700_000] = np.arange(600_000, 700_000)
    array.flush()
    convert(None)
    with pen.open(tmp_path / "x.pen") as made:
        assert made["x"][:].tolist() == list(range(1_000_000))


def test_a_note_of_version_1_goes_on(tmp_path: Path) -> None:
    about = {"source": "x", "samples": "y"}
    path = tmp_path / "a.pen.partial.json"
    first = Note.of(path, {"source": "x"}, is_begun=False)
    assert Note.of(path, about, is_begun=True).dataset == first.dataset
    with pytest.raises(StoreError, match="other data"):
        Note.of(path, about | {"source": "z"}, is_begun=True)


def times(factor: int) -> Any:
    return lambda batch: {"x": batch["x"] * factor}


class Scale:
    def __init__(self, factor: Any) -> None:
        self.factor = factor

    def go(self, batch: Any) -> Any:
        return {"x": batch["x"] * self.factor}


def with_default(batch: Any, factor: int = 2) -> Any:
    return {"x": batch["x"] * factor}


def mark(function: Any) -> str:
    made = as_map(function)
    assert made is not None
    return made.fingerprint


def test_what_a_map_was_made_with_belongs_to_it() -> None:
    assert mark(times(1)) == mark(times(1)) != mark(times(2))
    assert mark(Scale(1).go) == mark(Scale(1).go) != mark(Scale(2).go)
    assert mark(Scale(np.arange(3)).go) == mark(Scale(np.arange(3)).go) != mark(Scale(np.arange(4)).go)
    before = mark(with_default)
    with_default.__defaults__ = (3,)
    assert mark(with_default) != before
