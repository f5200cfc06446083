"""Directories of a store that are links to those of another one: nothing is read, written or removed through them."""

import json
import os
import pickle
import shutil
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as pen
from penstock.errors import CorruptError, PenstockError
from penstock.store import Target, commit_fragments, write_fragment
from penstock.store.storage import DIRECTORIES

FIELDS = {"x": pen.Field("i8"), "text": pen.Field.text()}


def make(path: Path, first: int = 0) -> Path:
    """A store with two chunks, a redirect and two generations."""
    with pen.create(path, FIELDS, chunk_records=8) as out:
        out.extend({"x": np.arange(first, first + 16), "text": [f"record {first + i}" for i in range(16)]})
        out.commit()
        out.update([3], {"x": [-1]})
    return path


def tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != "LOCK"}


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    return make(tmp_path / "precious.pen")


@pytest.fixture(params=DIRECTORIES)
def stranger(request: pytest.FixtureRequest, tmp_path: Path, precious: Path) -> Path:
    """A store of a stranger, from an archive: one of its directories is a link to that of the precious store."""
    made, archive = make(tmp_path / "made.pen", 100), tmp_path / "archive.tar"
    shutil.rmtree(made / request.param)
    (made / request.param).symlink_to(f"../{precious.name}/{request.param}")
    with tarfile.open(archive, "w") as out:
        out.add(made, "stranger.pen")
    shutil.rmtree(made)
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    assert (tmp_path / "stranger.pen" / request.param).is_symlink()
    return tmp_path / "stranger.pen"


def append(path: Path) -> None:
    with pen.open(path, mode="a") as out:
        out.extend({"x": [1], "text": ["one"]})


def create(path: Path) -> None:
    with pen.create(path, FIELDS) as out:
        out.extend({"x": [1], "text": ["one"]})


def fragments(path: Path) -> None:
    with pen.open(path, mode="a") as out:
        commit_fragments(out, [write_fragment(Target.of(out), [{"x": [1], "text": ["one"]}])])


CALLS: dict[str, Callable[[Path], object]] = {
    "gc": pen.gc,
    "gc everything": lambda path: pen.gc(path, keep=1, keep_hours=0),
    "gc dry run": lambda path: pen.gc(path, dry_run=True),
    "append": append,
    "create": create,
    "rebalance": pen.rebalance,
    "fragments": fragments,
    "open": pen.open,
    "open a generation": lambda path: pen.open(path, generation=1),
    "verify": lambda path: _raise(pen.verify(path)),
}


def _raise(problems: Sequence[Any]) -> None:
    raise PenstockError(str(problems))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.sampled(4)
def test_no_call_goes_through_a_linked_directory(call: str, stranger: Path, precious: Path) -> None:
    before = tree(precious)
    with pytest.raises(PenstockError, match=r"stranger\.pen") as caught:
        CALLS[call](stranger)
    assert tree(precious) == before
    assert pen.verify(precious) == []
    if call != "create":
        assert "symbolic link" in str(caught.value)


def test_the_first_commit_of_a_new_store_goes_through_no_link(tmp_path: Path, precious: Path) -> None:
    """Directories that wait for a store: the links are there before it is made."""
    before = tree(precious)
    for name in DIRECTORIES:
        new = tmp_path / f"new-{name}.pen"
        new.mkdir()
        (new / name).symlink_to(precious / name)
        with pytest.raises(PenstockError, match=str(new / name)):
            create(new)
    assert tree(precious) == before


def test_a_directory_that_becomes_a_link_under_a_writer_is_not_followed(tmp_path: Path, precious: Path) -> None:
    path, before = make(tmp_path / "a.pen", 100), tree(precious)
    with pen.open(path, mode="a") as out:
        for name in DIRECTORIES:
            (path / name).rename(path / f"{name}-moved")
            (path / name).symlink_to(precious / name)
        out.extend({"x": [5], "text": ["five"]})
        out.update([0], {"x": [7]})
        out.commit()  # into the directories that it has opened
    for name in DIRECTORIES:
        (path / name).unlink()
        (path / f"{name}-moved").rename(path / name)
    assert tree(precious) == before
    assert pen.open(path)["x"][[0, -1]].tolist() == [7, 5]
    assert pen.verify(path) == []


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_reader_is_not_made_anew_through_a_link(name: str, tmp_path: Path) -> None:
    path = make(tmp_path / "a.pen")
    with pen.open(path) as store:
        packed = pickle.dumps(store)
        (path / name).rename(tmp_path / "elsewhere")
        (path / name).symlink_to(tmp_path / "elsewhere")
        for call in (store.refresh, lambda: pickle.loads(packed), lambda: pen.open(path)):
            with pytest.raises(CorruptError, match=rf"a\.pen/{name}: expected a directory, found a symbolic link"):
                call()


@pytest.mark.parametrize("io", ["map", "pread", "direct"])
def test_a_directory_that_becomes_a_link_under_a_reader_is_not_followed(io: str, tmp_path: Path) -> None:
    """Chunks are opened when they are first read."""
    path = make(tmp_path / "a.pen")
    with pen.open(path, io=io) as store:
        assert store["x"][:3].tolist() == [0, 1, 2]
        (path / "chunk").rename(tmp_path / "elsewhere")
        (path / "chunk").symlink_to(tmp_path / "elsewhere")
        assert store["x"][:3].tolist() == [0, 1, 2]  # of a file that was opened before
        for call in (lambda: store["x"][8:], lambda: store["text"][9], lambda: store["x"][3]):
            with pytest.raises(PenstockError, match=r"a\.pen/chunk: expected a directory, found a symbolic link"):
                call()
        (path / "chunk").unlink()
        (tmp_path / "elsewhere").rename(path / "chunk")
        assert store["x"][3:10].tolist() == [-1, *range(4, 10)]


def test_a_store_without_empty_directories_is_read(tmp_path: Path) -> None:
    """Archives and object stores have no empty directories."""
    with pen.create(tmp_path / "a.pen", FIELDS) as out:
        out.commit()
    for name in ("chunk", "redirect"):
        (tmp_path / "a.pen" / name).rmdir()
    assert len(pen.open(tmp_path / "a.pen")) == 0
    assert pen.verify(tmp_path / "a.pen") == []


def test_a_lock_that_is_a_second_name_of_a_file_is_not_written_to(tmp_path: Path) -> None:
    path, precious = make(tmp_path / "a.pen"), tmp_path / "precious.txt"
    precious.write_text("precious")
    (path / "LOCK").unlink()
    (path / "LOCK").hardlink_to(precious)
    append(path)
    pen.gc(path, keep=1)
    assert precious.read_text() == "precious"


def test_a_store_swapped_for_another_while_gc_runs_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gc removes in the directories that it has listed, whatever has their names by then."""
    path, copy = make(tmp_path / "a.pen"), tmp_path / "copy.pen"
    shutil.copytree(path, copy)
    for file in (path / "manifest").glob("*2.json"):
        file.unlink()  # what only generation 2 names is a leftover here, and not in the copy
    fsync = os.fsync

    def swap(descriptor: int) -> None:
        if copy.exists():
            path.rename(tmp_path / "old.pen")
            copy.rename(path)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", swap)
    gone = pen.gc(path, keep=1, keep_hours=0).files
    assert len(gone) == 2
    assert pen.verify(path) == []
    assert pen.open(path).generations() == [1, 2]


def test_a_store_that_is_itself_behind_a_link_is_used_as_ever(tmp_path: Path, precious: Path) -> None:
    link = tmp_path / "link.pen"
    link.symlink_to(precious)
    append(link)
    pen.rebalance(link)
    pen.gc(link, keep=1, keep_hours=0)
    assert pen.verify(precious) == []
    assert pen.open(precious)["x"][:].tolist() == [*range(3), -1, *range(4, 16), 1]


@pytest.mark.parametrize("map_", [None, lambda batch: batch], ids=["plain", "tasks"])
def test_a_conversion_does_not_grow_in_a_link(tmp_path: Path, precious: Path, map_: Any) -> None:
    source = {"x": np.arange(10)}
    partial, note = tmp_path / "new.pen.partial", tmp_path / "new.pen.partial.json"

    def stop(*_: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        pen.convert(source, tmp_path / "new.pen", progress=stop, map=map_)
    assert json.loads(note.read_text().splitlines()[0].rpartition(" ")[0])
    shutil.rmtree(partial)
    before = tree(precious)
    partial.symlink_to(precious)
    with pytest.raises(PenstockError, match="symbolic link"):
        pen.convert(source, tmp_path / "new.pen", map=map_)
    assert tree(precious) == before
    assert not (tmp_path / "new.pen").exists()
    partial.unlink()
    pen.convert(source, tmp_path / "new.pen", map=map_)
    assert pen.open(tmp_path / "new.pen")["x"][:].tolist() == list(range(10))
