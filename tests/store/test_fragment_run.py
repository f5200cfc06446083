"""Tasks on an executor that is shut down, cancels, or breaks: told, and never taken for done."""

import os
import subprocess
import sys
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as pen
from penstock.store.fragment import run_tasks


class Cancelling(Executor):
    """Cancels every task but the first; with a word to those who wait, or without."""

    def __init__(self, *, tells: bool) -> None:
        self._tells, self._given = tells, 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._given += 1
        if self._given == 1:
            future.set_result(fn(*args))
        else:
            future.cancel()
            if self._tells:
                future.set_running_or_notify_cancel()
        return future


class Breaking(Executor):
    """Takes two tasks and then no more."""

    def __init__(self) -> None:
        self._given = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._given += 1
        if self._given > 2:
            raise RuntimeError("no more")
        future: Future[Any] = Future()
        future.set_result(fn(*args))
        return future


def double(number: int) -> int:
    return 2 * number


@pytest.mark.parametrize("tells", [True, False])
def test_a_task_that_was_cancelled_is_not_taken_for_done(tells: bool) -> None:
    found: list[tuple[int, int]] = []
    with pytest.raises(CancelledError, match="was not done"):
        found.extend(run_tasks([(double, number) for number in range(5)], Cancelling(tells=tells)))
    assert found == [(0, 0)]


def test_what_was_done_before_an_executor_broke_is_not_lost() -> None:
    found: list[tuple[int, int]] = []
    with pytest.raises(RuntimeError, match="no more"):
        found.extend(run_tasks([(double, number) for number in range(5)], Breaking()))
    assert sorted(found) == [(0, 0), (1, 2)]


def test_a_real_failure_is_told_and_not_those_that_it_cancelled() -> None:
    def fail(number: int) -> int:
        raise OSError(f"real reason {number}")

    with ThreadPoolExecutor(2) as pool, pytest.raises(OSError, match="real reason"):
        list(run_tasks([(fail, number) for number in range(100)], pool))


def test_verify_on_an_executor_that_is_shut_down_does_not_say_that_all_is_well(tmp_path: Path) -> None:
    pen.convert({"x": np.arange(1000)}, tmp_path / "a.pen", chunk_records=100)
    with pytest.raises(CancelledError):
        pen.verify(tmp_path / "a.pen", executor=Cancelling(tells=False))


def test_a_forked_child_that_lives_on_does_not_keep_the_lock(tmp_path: Path) -> None:
    code = """
import os, signal, sys
import penstock as pen
out = pen.create(sys.argv[1], {"x": pen.Field("i8")})
out.extend({"x": [1, 2, 3]})
out.commit()
child = os.fork()
if child == 0:
    os.close(1)
    os.close(2)
    signal.pause()
    os._exit(0)
print(child, flush=True)
os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.pen")], capture_output=True, text=True, timeout=60, check=True
    )
    try:
        with pen.open(tmp_path / "a.pen", mode="a") as out:
            out.extend({"x": [4]})
    finally:
        os.kill(int(done.stdout), 9)
    with pen.open(tmp_path / "a.pen") as data:
        assert len(data) == 4
