"""One writer at a time, whoever dies or forks."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli import warm
from tests.store.records import assert_store, columns, files, make_records, write

import penstock as pen
from penstock.errors import ForkedWriterError, LockedError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "a.pen", make_records(3), chunk_records=2)
    return tmp_path / "a.pen"


def test_second_writer_in_this_process_is_told_who_has_the_lock(path: Path) -> None:
    with pen.open(path, mode="a") as out:
        for call in (
            lambda: pen.open(path, mode="a"),
            lambda: pen.rebalance(path),
            lambda: pen.gc(path),
            lambda: pen.create(path, out.base.fields),
        ):
            with pytest.raises(LockedError, match=f"process {os.getpid()} "):
                call()
        out.append({"label": 1})
    assert len(pen.open(path)) == 4
    pen.open(path, mode="a").close()


def test_readers_need_no_lock(path: Path) -> None:
    with pen.open(path, mode="a"):
        assert len(pen.open(path)) == 3
        assert pen.verify(path) == []


HOLD = """
import sys, penstock as pen
from tests.store.records import columns, make_records
out = pen.open(sys.argv[1], mode="a")
out.extend(columns(make_records(9, seed=1)))
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLD, str(path)]
    with warm.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_writer_in_another_process_is_named(path: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(LockedError, match=f"process {holder.pid} "):
        pen.open(path, mode="a")
    assert_store(pen.open(path), make_records(3))


def test_lock_of_a_killed_writer_is_free_at_once(path: Path, holder: subprocess.Popen[str]) -> None:
    leftovers = set(files(path))
    holder.send_signal(signal.SIGKILL)
    assert holder.wait() == -signal.SIGKILL
    with pen.open(path, mode="a") as out:
        out.extend(columns(make_records(2, seed=2)))
    assert_store(pen.open(path), make_records(3) + make_records(2, seed=2))
    collected = set(pen.gc(path, keep_hours=0).files)
    assert collected == {str(path / name) for name in leftovers if "chunk" in name} - _named(path)
    assert len(collected) == 4


def _named(path: Path) -> set[str]:
    return {str(path / "chunk" / f"{c.writer}-{c.serial:08x}.zr") for c in pen.open(path).manifest.chunks}


def in_child(work: object) -> int:
    """The exit code of a forked child that calls ``work``."""
    child = os.fork()
    if child == 0:
        try:
            code = work()  # type: ignore[operator]
        except BaseException:
            code = 99
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_forked_child_cannot_use_the_writer_and_leaves_the_parents_alone(path: Path) -> None:
    records = make_records(20, seed=1)
    with pen.open(path, mode="a") as out:
        out.extend(columns(records[:10]))
        before = files(path)

        def misuse() -> int:
            calls = [
                lambda: out.append({"label": 1}),
                lambda: out.extend({"label": [1]}),
                lambda: out.update([0], {"label": [1]}),
                lambda: out.delete([0]),
                out.commit,
                out.abort,
            ]
            refused = 0
            for call in calls:
                try:
                    call()
                except ForkedWriterError as error:
                    refused += f"process {os.getppid()}" in str(error)
            out.close()
            return refused

        assert in_child(misuse) == 6
        assert files(path) == before
        with pytest.raises(LockedError):
            pen.open(path, mode="a")
        out.extend(columns(records[10:]))
    assert_store(pen.open(path), make_records(3) + records)


def test_block_of_a_writer_left_in_a_child_neither_commits_nor_unlocks(path: Path) -> None:
    out = pen.open(path, mode="a")
    out.append({"label": 1})

    def leave() -> int:
        try:
            with out:
                pass
        except ForkedWriterError:
            return 7
        return 0

    assert in_child(leave) == 7
    with pytest.raises(LockedError):
        pen.open(path, mode="a")
    assert out.commit() == 2
    out.close()
    assert pen.open(path).generations() == [1, 2]


def test_child_that_exits_like_any_program_leaves_the_parents_files_alone(path: Path) -> None:
    code = """
import os, sys, penstock as pen
from tests.store.records import files
from pathlib import Path
path = Path(sys.argv[1])
out = pen.open(path, mode="a")
out.extend({"label": range(50)})
before = files(path)
child = os.fork()
if child == 0:
    sys.exit(0)  # with all that an interpreter does at its end
assert os.waitpid(child, 0)[1] == 0
assert files(path) == before
out.commit()
out.close()
print(len(pen.open(path)))
"""
    done = warm.run(
        [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", code, str(path)],  # 3.12 warns of every fork
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        cwd=Path(__file__).parents[2],
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "53\n", "")


def test_child_that_outlives_the_writer_does_not_keep_the_lock(path: Path) -> None:
    out = pen.open(path, mode="a")
    ends, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(tell)
        os.read(ends, 1)
        os._exit(0)
    try:
        out.append({"label": 1})
        out.commit()
        out.close()
        pen.open(path, mode="a").close()
    finally:
        os.close(tell)
        os.close(ends)
        os.waitpid(child, 0)
    assert len(pen.open(path)) == 4


def test_child_may_open_a_writer_of_its_own_once_the_parent_is_done(path: Path) -> None:
    pen.open(path, mode="a").close()

    def write_there() -> int:
        with pen.open(path, mode="a") as out:
            return out.append({"label": 4})

    assert in_child(write_there) == 3
    assert len(pen.open(path)) == 4
