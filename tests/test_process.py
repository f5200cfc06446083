"""Few things open at a time, values kept while they fit, both new after a fork; blocking calls in other threads."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.process import FewOpen, Recent, map_at_once
from penstock.testing.source_suite import run_in_fork


class Thing:
    def __init__(self, log: list[str], key: int) -> None:
        self.log, self.key = log, key
        log.append(f"open {key}")

    def close(self) -> None:
        self.log.append(f"close {self.key}")


def use(few: FewOpen[int, Thing], *keys: int) -> None:
    for key in keys:
        with few.use(key) as thing:
            assert thing.key == key


def test_the_least_recently_used_is_closed_first() -> None:
    log: list[str] = []
    few: FewOpen[int, Thing] = FewOpen(lambda key: Thing(log, key), 2)
    use(few, 1, 2, 1, 3)
    assert log == ["open 1", "open 2", "open 3", "close 2"]
    use(few, 1, 3)
    assert len(log) == 4
    few.close()
    few.close()
    assert sorted(log[4:]) == ["close 1", "close 3"]
    use(few, 1)
    assert log[-1] == "open 1"


def test_what_two_threads_have_opened_is_kept_once() -> None:
    log: list[str] = []
    few: FewOpen[int, Thing] = FewOpen(lambda key: Thing(log, key), 2)
    use(few, 1)
    assert few.missing([1, 2]) == [2]
    few.add({1: Thing(log, 1), 2: Thing(log, 2)})
    assert log == ["open 1", "open 1", "open 2", "close 1"]
    assert few.missing([1, 2]) == []
    few.close()


def test_what_is_in_use_stays_open() -> None:
    log: list[str] = []
    few: FewOpen[int, Thing] = FewOpen(lambda key: Thing(log, key), 1)
    with few.use(1):
        use(few, 2, 3)
        assert "close 1" not in log
    use(few, 4)
    assert "close 1" in log


def test_an_opener_that_fails_leaves_nothing_behind() -> None:
    def fail(key: int) -> Thing:
        raise OSError(key)

    few: FewOpen[int, Thing] = FewOpen(fail, 1)
    for _ in range(2):
        with pytest.raises(OSError, match="7"), few.use(7):
            pass
    few.close()


def test_a_forked_child_opens_its_own_and_closes_nothing_of_its_parent() -> None:
    log: list[str] = []
    few: FewOpen[int, Thing] = FewOpen(lambda key: Thing(log, key), 2)
    with few.use(1):

        def in_child() -> str:
            few.close()
            with few.use(1) as thing:
                return f"{thing.key} {log}"

        assert run_in_fork(in_child) == "1 ['open 1', 'open 1']"


def test_values_are_made_once_and_evicted_by_bytes() -> None:
    made: list[int] = []
    recent = Recent(100)

    def make(key: int) -> tuple[int, int]:
        made.append(key)
        return key, 60

    assert [recent.get((key, 0), lambda key=key: make(key)) for key in (1, 1, 2, 2, 1)] == [1, 1, 2, 2, 1]  # type: ignore[misc]
    assert made == [1, 2, 1]
    assert (2, 0) not in recent
    assert (1, 0) in recent
    recent.clear()
    assert (1, 0) not in recent


def test_threads_wait_for_the_one_that_makes_a_value() -> None:
    made: list[int] = []
    recent = Recent(100)

    def make() -> tuple[int, int]:
        made.append(1)
        return 5, 1

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: recent.get((0, 0), make), range(50))) == [5] * 50
    assert made == [1]


@pytest.mark.parametrize("are_remote", [False, True])
def test_results_come_in_order(are_remote: bool) -> None:
    assert list(map_at_once(lambda x: x * x, range(100), are_remote=are_remote)) == [x * x for x in range(100)]


LATE = """
from penstock.process import in_thread, interruptible
class Late:
    def __init__(self):
        self.calls = in_thread, interruptible
    def __del__(self):
        print(self.calls[0](lambda: 1).result(), self.calls[1](lambda: 2))
interruptible(lambda: 0)
keep = Late()
"""

HANDLER = """
import signal
from penstock.process import interruptible
seen = []
def handle(*_):
    if not busy:
        busy.append(1)
        seen.append(interruptible(lambda: 1))
        busy.clear()
busy = []
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.0007)
while len(seen) < 500:
    assert interruptible(lambda: 2) == 2
signal.setitimer(signal.ITIMER_REAL, 0)
print(set(seen))
"""


@pytest.mark.parametrize(("program", "shown"), [(LATE, "1 2"), (HANDLER, "{1}")], ids=["at the end", "in a signal handler"])
def test_blocking_calls_are_made_at_odd_moments_too(program: str, shown: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, shown, "")
