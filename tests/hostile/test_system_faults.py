"""System calls that fail under readers, converters, writers and commands: right results, or errors of the tree that say where."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.array_record import write_array_record
from tests.crash.trace import run_traced
from tests.effort import every, is_campaign
from tests.hostile.fault_workloads import WORKLOADS, command
from tests.hostile.system_faults import Attack

import penstock as pen
from penstock.errors import AccessDeniedError, NoSpaceError, PenstockError, ReadError
from penstock.source import write_collection, write_tokens

SAMPLED = {"read files": 360, "convert npy to .pen": 760, "write_collection again": 600}
"""Workloads of every run, and how far apart the faults are that are taken; in a campaign, every fault of all of them."""


@pytest.fixture(scope="module")
def attack(tmp_path_factory: pytest.TempPathFactory) -> Attack:
    return Attack(tmp_path_factory.mktemp("faults").resolve())


@pytest.mark.parametrize("name", list(WORKLOADS) if is_campaign() else list(SAMPLED))
def test_whatever_call_fails_the_result_is_right_or_an_error_says_where(attack: Attack, name: str) -> None:
    taken, wrong = 0, []
    for fault in every(SAMPLED.get(name, 1), list(attack.faults(name)), first=len(name)):
        is_hit, what = attack.inject(fault)
        taken += is_hit
        wrong += [] if what is None else [f"{fault}: {what}"]
    assert wrong == []
    assert taken >= 1


Failing = Callable[..., None]


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[Failing]:
    """Runs something in a child in which the ``when``-th call of a kind, on a path if one is given, fails."""

    def run(work: Callable[[], object], call: str, error: str, path: Path | None, when: str = "1") -> None:
        log = tmp_path / "log"
        rules = [
            *([] if path is None else ["-P", str(path)]),
            "-e",
            f"trace={call}",
            "-e",
            f"inject={call}:error={error}:when={when}",
        ]
        code = run_traced(work, rules, tmp_path / "trace", log)
        assert "INJECTED" in (tmp_path / "trace").read_text()
        assert code == 0

    return run  # type: ignore[return-value]


RING_FAULTS = [("io_uring_setup", "EPERM"), ("io_uring_setup", "ENOSYS"), ("io_uring_enter", "EINTR"), ("io_uring_enter", "EIO")]


@pytest.mark.parametrize(("call", "error"), RING_FAULTS, ids="-".join)
def test_direct_reads_go_on_by_threads_where_there_is_no_ring(tmp_path: Path, failing: Failing, call: str, error: str) -> None:
    rows = np.arange(200_000).reshape(2000, 100)
    np.save(tmp_path / "x.npy", rows)
    ids = np.random.default_rng(1).permutation(2000)

    def read() -> None:
        with pen.open(tmp_path / "x.npy", io="direct", threads=1) as data:
            for _ in range(3):
                assert np.array_equal(data["data"][ids], rows[ids])
            with pen.Loader(data.shuffle(seed=1, block=100, window=4), 50, threads=2) as loader:
                assert sorted(row for batch in loader for row in batch["data"][:, 0].tolist()) == rows[:, 0].tolist()

    failing(read, call, error, None, when="1+" if call == "io_uring_setup" else "1")


def raises(kind: type[BaseException], text: str, work: Callable[[], object]) -> Callable[[], None]:
    def check() -> None:
        with pytest.raises(kind, match=text):
            work()

    return check


def test_a_directory_that_cannot_be_listed_is_not_left_out_of_a_pattern(tmp_path: Path, failing: Failing) -> None:
    """glob leaves it out, and the data would be less than it is."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "x.npy", np.arange(3))
    for pattern in ("*/*.npy", "**/*.npy"):
        opened = raises(
            ReadError, "listing the directory failed: Input/output error.*two", lambda p=pattern: pen.open(str(tmp_path / p))
        )
        failing(opened, "getdents64", "EIO", tmp_path / "two")


def test_too_many_open_files_are_told_with_the_limit_to_raise(tmp_path: Path, failing: Failing) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    failing(raises(ReadError, "x.npy|ulimit -n", lambda: pen.open(tmp_path / "x.npy")), "openat", "EMFILE", tmp_path / "x.npy")


def test_a_file_that_may_not_be_read_is_a_permission_error(tmp_path: Path, failing: Failing) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    for kind in (AccessDeniedError, PermissionError):
        failing(raises(kind, "Permission denied", lambda: pen.open(tmp_path / "x.npy")), "openat", "EACCES", tmp_path / "x.npy")


def test_a_lock_that_is_refused_is_an_error_that_says_where(tmp_path: Path, failing: Failing) -> None:
    write_tokens(["abc"], tmp_path / "t.rox")
    append = raises(
        PenstockError, "locking failed: No locks available.*t.rox", lambda: write_tokens(["d"], tmp_path / "t.rox", append=True)
    )
    failing(append, "flock", "ENOLCK", tmp_path / "t.rox")
    assert bytes(pen.open(tmp_path / "t.rox")["tokens"][0]) == b"abc"


def test_a_full_disk_while_a_note_is_written_is_a_full_disk(tmp_path: Path, failing: Failing) -> None:
    note = tmp_path / "d.pen.partial.json"
    convert = raises(NoSpaceError, "partial.json", lambda: pen.convert({"x": np.arange(99)}, tmp_path / "d.pen", chunk_records=10))
    failing(convert, "write", "ENOSPC", note)
    pen.convert({"x": np.arange(99)}, tmp_path / "d.pen", chunk_records=10)
    assert pen.open(tmp_path / "d.pen")["x"][:].tolist() == list(range(99))
    assert not note.exists()


def test_a_note_that_cannot_be_removed_is_in_the_way_of_no_other(tmp_path: Path, failing: Failing) -> None:
    note = tmp_path / "d.pen.partial.json"
    failing(lambda: pen.convert({"x": np.arange(9)}, tmp_path / "d.pen"), "unlink", "EIO", note)
    assert note.exists()
    shutil.rmtree(tmp_path / "d.pen")
    pen.convert({"x": np.arange(5)}, tmp_path / "d.pen")
    assert pen.open(tmp_path / "d.pen")["x"][:].tolist() == list(range(5))
    assert not note.exists()


def calls_of(work: Callable[[], object], tmp_path: Path) -> list[str]:
    """fsync and rename, in order, with the names of the files."""
    run_traced(work, ["-e", "trace=fsync,rename,renameat,renameat2"], tmp_path / "trace", Path(os.devnull))
    return [
        line.split(maxsplit=1)[1] for line in (tmp_path / "trace").read_text().splitlines() if "fsync" in line or "rename" in line
    ]


@pytest.mark.parametrize("what", ["collection", "note"])
def test_small_files_are_durable_before_and_after_they_get_their_names(tmp_path: Path, what: str) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    if what == "collection":
        name, calls = "c.json", calls_of(lambda: write_collection([tmp_path / "x.npy"], tmp_path / "c.json"), tmp_path)
    else:
        name, calls = "d.pen.partial.json", calls_of(lambda: pen.convert(tmp_path / "x.npy", tmp_path / "d.pen"), tmp_path)
    renamed = next(i for i, call in enumerate(calls) if call.startswith("rename") and f'/{name}"' in call)
    assert any(call.startswith("fsync") and f"/{name}>" in call for call in calls[:renamed])
    assert any(call.startswith("fsync") and f"<{tmp_path}>" in call for call in calls[renamed:])


def test_a_collection_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, failing: Failing) -> None:
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", np.arange(3))
    write_collection([tmp_path / "a.npy"], tmp_path / "c.json")
    again = raises(PenstockError, "c.json", lambda: write_collection([tmp_path / "a.npy", tmp_path / "b.npy"], tmp_path / "c.json"))
    failing(again, "rename", "EIO", None)
    assert len(pen.open(tmp_path / "c.json")) == 3
    assert sorted(os.listdir(tmp_path)) == ["a.npy", "b.npy", "c.json", "log", "trace"]


def test_what_could_not_be_read_once_is_a_finding_even_if_it_can_be_read_again(tmp_path: Path, failing: Failing) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))

    def check() -> None:
        seen: Any = command("verify", str(tmp_path / "x.npy"), "--json")
        assert (seen.code, "Input/output error" in seen.printed) == (1, True), seen

    failing(check, "openat", "EIO", tmp_path / "x.npy", when="2")


def test_an_array_record_that_cannot_be_mapped_is_named(tmp_path: Path, failing: Failing) -> None:
    """The headers of its chunks are looked at through a map, whose failure was a bare PermissionError."""
    path = tmp_path / "x.array_record"
    write_array_record(path, [bytes([number]) for number in range(4)])
    failing(raises(AccessDeniedError, r"x\.array_record", lambda: pen.open(path)[2]), "mmap", "EACCES", path)


def test_an_array_record_whose_close_fails_is_named(tmp_path: Path, failing: Failing) -> None:
    """The package closes its file with a bare RuntimeError."""
    path = tmp_path / "x.array_record"
    write_array_record(path, [bytes([number]) for number in range(4)])
    failing(
        raises(ReadError, r"x\.array_record: closing the file failed", lambda: pen.open(path)[2]), "close", "EIO", path, when="2+"
    )
