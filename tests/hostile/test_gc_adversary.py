"""gc where no lock protects a writer or a copy under way: what was acknowledged, or is being copied, stays."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.hostile.gc_adversary import FIELDS, batch, is_whole, unlock

import penstock as pen
from penstock.errors import ConflictError, PenstockError
from penstock.store import Target, Writer, commit_fragments, write_fragment

HOUR_S = 3600


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with pen.create(tmp_path / "a.pen", FIELDS, chunk_records=8) as out:
        out.extend(batch(0, 20))
    return tmp_path / "a.pen"


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets hours pass."""
    real = time.time

    def pass_hours(hours: float) -> None:
        monkeypatch.setattr(time, "time", lambda: real() + hours * HOUR_S)

    return pass_hours


def collect(path: Path, **options: Any) -> tuple[str, ...]:
    """gc of somebody whom the lock does not reach."""
    unlock(path)
    return pen.gc(path, keep=1, **options).files


@contextmanager
def before_each_call(names: tuple[str, ...], work: Callable[[int], object]) -> Iterator[None]:
    """Call work(k) right before the k-th of some functions of os."""
    calls = 0
    with pytest.MonkeyPatch.context() as patch:

        def watched(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **options: Any) -> Any:
                nonlocal calls
                calls += 1
                work(calls)
                return real(*args, **options)

            return call

        for name in names:
            patch.setattr(os, name, watched(getattr(os, name)))
        yield


def commit_with_gc_at(path: Path, place: int, **options: Any) -> bool:
    """Commit 20 records, with gc right before a system call of the writer; False if there are not so many calls."""
    done: list[int] = []

    def collect_once(call: int) -> None:
        if call == place and not done:
            done.append(call)
            collect(path, **options)

    with pen.open(path, mode="a", threads=1) as out, before_each_call(("open", "fsync", "link", "listdir"), collect_once):
        out.extend(batch(20, 20))
        out.commit()
    return bool(done)


def test_gc_at_any_moment_of_a_commit_takes_nothing_from_it(path: Path, tmp_path: Path) -> None:
    places = 0
    for place in range(1, 1000):
        copy = tmp_path / f"copy{place}.pen"
        shutil.copytree(path, copy)
        if not commit_with_gc_at(copy, place):
            break
        assert is_whole(copy, 40) == "", place
        shutil.rmtree(copy)
        places += 1
    assert places > 15


@pytest.mark.parametrize("how", ["extend", "update", "fragments", "rebalance"])
def test_a_commit_whose_files_were_removed_is_refused(path: Path, how: str) -> None:
    def transaction(out: Writer) -> None:
        if how == "fragments":
            receipts = [write_fragment(Target.of(out), [batch(20 + 10 * task, 10)], task=task, tasks=2) for task in range(2)]
            adopt = out.adopt_chunks
            out.adopt_chunks = lambda *given: (adopt(*given), collect(path, keep_hours=0))[0]  # type: ignore[method-assign]
            commit_fragments(out, receipts)
        elif how == "update":
            out.update([1], {"x": [1]})
        else:
            out.extend(batch(20, 20))

    def attacked() -> None:
        with pen.open(path, mode="a") as out:
            if how != "fragments":
                draft = out._files.draft
                out._files.draft = lambda *given: (collect(path, keep_hours=0), draft(*given))[1]  # type: ignore[method-assign]
            if how == "rebalance":
                out.start_over()
            transaction(out)

    with pytest.raises(ConflictError, match=r"(?s)a\.pen/(chunk|redirect)/.*removed meanwhile.*write the records again"):
        attacked()
    assert is_whole(path, 20) == ""
    assert list((path / "manifest").glob(".tmp-*")) == []
    with pen.open(path, mode="a") as out:
        out.extend(batch(20, 5))
    assert is_whole(path, 25) == ""


def test_the_same_writer_can_go_on_after_a_commit_whose_files_were_removed(path: Path) -> None:
    with pen.open(path, mode="a", threads=1) as out:
        out.extend(batch(20, 20))
        assert len(collect(path, keep_hours=0)) == 2
        with pytest.raises(ConflictError):
            out.commit()
        out.extend(batch(20, 20))
        assert out.commit() == 2
    assert is_whole(path, 40) == ""


def test_leftovers_go_when_they_are_a_day_old(path: Path, later: Callable[[float], None]) -> None:
    out = pen.open(path, mode="a", threads=1)
    out.extend(batch(20, 20))
    young = {str(file) for file in (path / "chunk").iterdir()} - set(named(path))
    assert len(young) == 2
    assert collect(path) == ()
    later(23.9)
    assert collect(path) == ()
    later(24.1)
    assert set(collect(path)) == young
    out.close()
    assert is_whole(path, 20) == ""


def named(path: Path) -> list[str]:
    with pen.open(path) as store:
        return [str(path / "chunk" / f"{c.writer}-{c.serial:08x}.zr") for c in store.manifest.chunks]


def test_a_clock_that_was_wrong_takes_nothing_from_a_commit(path: Path, later: Callable[[float], None]) -> None:
    """Files from the future are young; a clock that is a year ahead removes what a commit then misses."""
    later(-24 * 365)
    with pen.open(path, mode="a") as out:
        out.extend(batch(20, 20))
        assert collect(path) == ()
    later(24 * 365)
    with pen.open(path, mode="a", threads=1) as out:
        out.extend(batch(40, 20))
        assert len(collect(path)) > 2
        with pytest.raises(ConflictError):
            out.commit()
    assert is_whole(path, 40) == ""


def test_a_mirror_copied_chunks_first_stays_whole_whenever_gc_runs(path: Path, tmp_path: Path) -> None:
    """Copies keep the times of their originals, which are old."""
    mirror = tmp_path / "mirror.pen"
    shutil.copytree(path, mirror)
    with pen.open(path, mode="a") as out:
        out.extend(batch(20, 20))
        out.update([1], {"x": [1]})
    for file in path.rglob("*"):
        os.utime(file, (1e9, 1e9))
    for directory in ("chunk", "redirect", "manifest"):
        for file in sorted((path / directory).iterdir()):
            shutil.copy2(file, mirror / directory / file.name)
            collect(mirror)
    assert is_whole(mirror, 40) == ""
    assert pen.open(mirror).generation == 2


def test_gc_keeps_what_is_committed_while_it_runs(path: Path, later: Callable[[float], None]) -> None:
    """A transaction older than what gc keeps, committed at any moment of gc until it begins to remove chunks."""
    places = 0
    for place in range(1, 1000):
        copy = path.with_name(f"copy{place}.pen")
        shutil.copytree(path, copy)
        later(0)
        out = pen.open(copy, mode="a", threads=1)
        out.extend(batch(20, 20))
        unlock(copy)
        later(25)
        begun: list[int] = []

        def commit_once(call: int, out: Writer = out, begun: list[int] = begun, place: int = place) -> None:
            if call == place and not begun:
                begun.append(call)
                out.commit()

        with before_each_call(("fsync", "listdir"), commit_once):
            pen.gc(copy, keep=1)
        if not begun:
            out.close()
            break
        out.close()
        assert is_whole(copy, 40) == "", place
        shutil.rmtree(copy)
        places += 1
    assert places > 5


def test_gc_whose_generations_another_one_removes_says_so_or_goes_on(path: Path) -> None:
    """A commit and the end of the generation before it, right before each look at a file."""
    for place in range(1, 1000):
        copy = path.with_name(f"copy{place}.pen")
        shutil.copytree(path, copy)
        with pen.open(copy, mode="a", threads=1) as out:
            out.extend(batch(20, 20))
            unlock(copy)
            done: list[int] = []

            def replace(call: int, out: Writer = out, done: list[int] = done, place: int = place, copy: Path = copy) -> None:
                if call == place and not done:
                    done.append(call)
                    out.commit()
                    (copy / "manifest" / f"{1:020d}.json").unlink()

            with before_each_call(("stat",), replace), contextlib.suppress(PenstockError):
                pen.gc(copy, keep=1)
        if not done:
            break
        assert is_whole(copy, 40) == "", place
    assert place > 4
