"""Files that are changed under a reader: the bytes of before, or an error that says what happened; never a signal."""

import os
import pickle
import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli import warm
from tests.effort import count, every
from tests.hostile.file_changer import CHANGES, FORMATS, HARMLESS, Trial, attack

import penstock as pen
from penstock.errors import PenstockError, ReadError, SourceChangedError

PLAIN = [
    Trial(kind, change, io)
    for io in ("map", "pread", "direct")
    for change in CHANGES
    for kind in FORMATS
    if kind != "arrow" or io == "map"
]


@pytest.mark.parametrize("trial", every(4, PLAIN), ids=lambda trial: f"{trial.kind}-{trial.change}-{trial.io}")
def test_a_file_that_is_changed_is_read_as_it_was_or_the_error_is_true(trial: Trial, tmp_path: Path) -> None:
    outcome = trial.run(tmp_path)
    assert trial.change not in HARMLESS or outcome == "right"


def test_changes_at_any_moment_in_any_engine() -> None:
    rng = random.Random(7)
    assert attack([Trial.drawn(rng) for _ in range(count(15, 2000))], lambda text: None) == []


def test_a_file_that_is_rewritten_in_place_and_then_grows_is_refused(tmp_path: Path) -> None:
    """A file that has grown before the first look at it was only appended to, as far as one can see: then it is tried again."""

    def append(path: Path) -> None:
        with path.open("ab") as file:
            file.write(b"more")

    def is_refused(path: Path) -> bool:
        np.save(path, np.arange(5000))
        with pen.open(path, io="pread") as source:
            source[0]
            os.utime(path, ns=(1, 1))
            grow = threading.Timer(0.02, lambda: append(path))  # which gives it another time
            grow.start()
            try:
                source[:]
            except SourceChangedError as error:
                return "written to since" in str(error)
            finally:
                grow.join()
        return False

    assert any(is_refused(tmp_path / f"{number}.npy") for number in range(50))


@pytest.mark.parametrize("how", ["replaced", "in place"])
def test_a_parquet_file_that_was_replaced_by_one_of_the_same_layout_is_refused(tmp_path: Path, how: str) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": np.arange(1000)}), path, row_group_size=100)
    pq.write_table(pa.table({"x": np.arange(1000)[::-1].copy()}), tmp_path / "b.parquet", row_group_size=100)
    with pen.open(path, cache_bytes=1) as source:
        assert source[0]["x"] == 0
        if how == "replaced":
            (tmp_path / "b.parquet").replace(path)
        else:
            path.write_bytes((tmp_path / "b.parquet").read_bytes())
        with pytest.raises(SourceChangedError, match="since it was opened"):
            source[500]


def answer_of_child(work: Callable[[], object]) -> str:
    """What a forked child says: the name of its error, or "right"."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work()
            os.write(writing, b"right")
        except PenstockError as error:
            os.write(writing, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    assert os.waitpid(child, 0)[1] == 0
    return text


def test_a_forked_child_never_reads_a_file_that_came_in_place_of_the_first(tmp_path: Path) -> None:
    """It opens files itself. What it may not do is to read other bytes than its parent."""
    path, other = tmp_path / "a.npy", tmp_path / "b.npy"
    np.save(path, np.zeros(5000))
    np.save(other, np.ones(5000))
    with pen.open(path) as source:
        assert np.all(source[:]["data"] == 0)
        assert answer_of_child(lambda: source[:]) == "right"
        other.rename(path)
        assert answer_of_child(lambda: source[:]) == "SourceChangedError"
        assert np.all(source[:]["data"] == 0)


def test_a_file_replaced_between_opening_and_the_first_read_is_an_error(tmp_path: Path) -> None:
    path, other = tmp_path / "a.npy", tmp_path / "b.npy"
    np.save(path, np.zeros(5000))
    np.save(other, np.ones(5000))
    with pen.open(path) as source:
        other.rename(path)
        with pytest.raises(SourceChangedError, match=r"a\.npy: the file was replaced .* open the data again"):
            source[:]
    with pen.open(path) as source:
        assert np.all(source[:]["data"] == 1)


def test_a_pickle_of_a_file_that_was_replaced_is_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "a.npy", tmp_path / "b.npy"
    np.save(path, np.zeros(5000))
    np.save(other, np.ones(5000))
    with pen.open(path) as source:
        recipe = pickle.dumps(source)
    other.rename(path)
    with pytest.raises(SourceChangedError):
        pickle.loads(recipe)


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A program of its own."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return warm.run(command, timeout=600, capture_output=True, text=True)


@pytest.mark.parametrize("moment", ["at once", "later"])
def test_a_cut_file_is_an_error_when_faulthandler_was_enabled_after_opening(tmp_path: Path, moment: str) -> None:
    np.save(tmp_path / "a.npy", np.zeros(200_000))
    done = run(
        """
        import faulthandler, os, sys, time
        import penstock as pen
        from penstock.errors import TruncatedError
        source = pen.open(sys.argv[1])
        source[0]
        faulthandler.enable()
        end = time.monotonic() + (0.5 if sys.argv[2] == "later" else 0)
        while time.monotonic() < end:
            source[0]
        for size in (100_000, 5000, 0):
            os.truncate(sys.argv[1], size)
            try:
                source[:]
            except TruncatedError as error:
                print("cut" if sys.argv[1] in str(error) else error)
        """,
        tmp_path / "a.npy",
        moment,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["cut"] * 3), done.stderr
    assert moment == "at once" or done.stderr == ""  # the guard is in place again, and nothing is dumped


def test_a_bus_error_elsewhere_still_reaches_faulthandler_once_and_ends_the_process(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(1000))
    done = run(
        """
        import faulthandler, mmap, os, sys, time
        import penstock as pen
        source = pen.open(sys.argv[1])
        source[0]
        faulthandler.enable()
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            source[0]
        with open(sys.argv[1] + ".mine", "w+b") as file:
            file.write(bytes(10_000))
            file.flush()
            memory = mmap.mmap(file.fileno(), 10_000)
            file.truncate(0)
            memory[5000]
        """,
        tmp_path / "a.npy",
    )
    assert done.returncode == -7
    assert done.stderr.count("Fatal Python error: Bus error") == 1


def test_memory_of_a_file_that_was_cut_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(100_000))
    source = pen.open({"x": np.load(tmp_path / "a.npy", mmap_mode="r")})
    os.truncate(tmp_path / "a.npy", 5000)
    with pytest.raises(ReadError, match=r"a\.npy: the file was cut"):
        source[90_000:]


def test_too_many_open_files_are_a_typed_error_with_a_remedy(tmp_path: Path) -> None:
    for kind in ("map", "pread"):
        np.save(tmp_path / f"{kind}.npy", np.zeros(1000))
    done = run(
        """
        import os, resource, sys
        import penstock as pen
        from penstock.errors import ReadError
        source = [pen.open(path, io=path.split("/")[-1][:-4]) for path in sys.argv[1:]]
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        held = []
        try:
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        for read in (lambda: source[0][:], lambda: source[1][:], lambda: pen.open(sys.argv[1]), lambda: source[0].fingerprint):
            try:
                read()
            except ReadError as error:
                print(error.errno == 24 and "ulimit -n" in str(error) and ".npy" in str(error))
        """,
        tmp_path / "map.npy",
        tmp_path / "pread.npy",
    )
    assert (done.returncode, done.stdout.split()) == (0, ["True"] * 4), done.stderr
