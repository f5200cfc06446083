"""Beginnings and ends: iterators that are dropped, interrupts, exits, forks, memory, several threads."""

import gc
import io
import json
import os
import random
import select
import signal
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from tests.effort import count, every, is_campaign
from tests.loader.child import DEADLINE_S, finish, heard, start
from tests.loader.model import KINDS, delivered_ids, make_loader, naive_batches, naive_ids

import penstock as pen
from penstock.loader import native_engine
from penstock.loader.lookahead import Lookahead
from penstock.remote.url import url_path

# L3: consumers that stop early


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def native_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def settle(wanted: int) -> int:
    """The number of threads; one that has ended is there for another moment."""
    for _ in range(1000):
        if native_threads() <= wanted:
            break
        threading.Event().wait(0.01)
    return native_threads()


@pytest.mark.parametrize("kind", KINDS)
def test_l3_iterators_that_are_dropped_leave_nothing_behind(kind: str) -> None:
    loader = make_loader(kind)
    files, threads, crew = open_files(), native_threads(), threading.active_count()
    expected = make_loader("plain")
    for _ in range(count(40, 1000)):
        assert delivered_ids(next(iter(loader))) == delivered_ids(next(iter(expected)))
    for _ in range(3):
        for _batch in loader:
            break
    gc.collect()
    assert open_files() == files
    assert settle(threads) <= threads  # fewer where those of an earlier test were still ending
    assert threading.active_count() == crew


@pytest.mark.parametrize("kind", KINDS)
def test_l3_a_loop_that_breaks_off_can_be_taken_up(kind: str) -> None:
    loader = make_loader(kind)
    expected = [naive_ids(loader.stream.order, cells) for cells in list(_first(13))]
    found = []
    while len(found) < 13:
        for batch in loader:
            found.append(delivered_ids(batch))
            if len(found) % 3 == 0:
                break
    assert found == expected


def _first(count: int) -> list[Any]:
    run = naive_batches(97, 8, "keep")
    return [next(run) for _ in range(count)]


@pytest.mark.parametrize("kind", KINDS)
def test_l3_an_error_of_the_trainer_ends_the_threads(kind: str) -> None:
    loader = make_loader(kind)
    before = native_threads()
    batches = iter(loader)
    next(batches)
    with pytest.raises(ZeroDivisionError), batches:
        1 / 0  # noqa: B018
    assert settle(before) <= before
    assert loader.step == 1


def test_l3_many_loaders_at_once() -> None:
    loaders = [make_loader("threads" if number % 2 else "native", 20 + number) for number in range(12)]
    runs = [iter(loader) for loader in loaders]
    for _ in range(2):
        for run in runs:
            next(run)
    for run in runs:
        run.close()


def test_two_iterators_share_one_cursor() -> None:
    """Each next is the next batch, whoever asks."""
    for kind in KINDS:
        loader = make_loader(kind)
        expected = [naive_ids(loader.stream.order, cells) for cells in _first(10)]
        one, other = iter(loader), loader.forever()
        found = [delivered_ids(next(one if number % 3 else other)) for number in range(10)]
        assert found == expected
        one.close()
        other.close()


def test_closed_iterators_begin_again() -> None:
    for kind in KINDS:
        loader = make_loader(kind)
        batches = iter(loader)
        found = []
        for _ in range(4):
            found.append(delivered_ids(next(batches)))
            batches.close()
        assert found == [naive_ids(loader.stream.order, cells) for cells in _first(4)]


# L4: interrupts


@pytest.mark.parametrize("kind", every(2, ["native", "plain", "threads", "slow"]))
def test_l4_interrupts_end_the_program(kind: str) -> None:
    """One program is interrupted once, one twice; in a campaign, six twice."""
    chance = random.Random(kind)
    for number in range(count(2, 7)):
        process = start("loop", kind)
        assert heard(process) == "ready"
        threading.Event().wait(chance.random() * 0.1)
        process.send_signal(signal.SIGINT)
        if number > 0:
            threading.Event().wait(chance.random() * 0.02)
            process.send_signal(signal.SIGINT)
        code, _, error = finish(process)
        assert code in (130, -signal.SIGINT)
        assert "KeyboardInterrupt" in error


@pytest.mark.parametrize("kind", KINDS)
def test_l4_after_an_interrupt_the_loader_goes_on(kind: str) -> None:
    loader = make_loader(kind)
    expected = [naive_ids(loader.stream.order, cells) for cells in _first(13)]
    found = []
    batches = iter(loader)
    while len(found) < 13:
        try:
            if len(found) in (3, 4, 9):
                signal.raise_signal(signal.SIGINT)
            found.append(delivered_ids(next(batches)))
        except KeyboardInterrupt:
            found.append(delivered_ids(next(batches)))
    assert found == expected
    batches.close()


# L5: the end of the interpreter


@pytest.mark.parametrize(
    ("program", "kind"), [("leave", "native"), ("leave", "threads"), ("leave", "slow"), ("half_made", "threads")]
)
@pytest.mark.sampled(2)
def test_l5_the_interpreter_ends_in_silence(program: str, kind: str) -> None:
    code, out, error = finish(start(program, kind, options=("-X", "dev", "-W", "error")))
    assert (code, out, error) == (0, "done\n", "")


def test_l5_the_error_of_the_program_is_the_only_one() -> None:
    code, _, error = finish(start("fail", "threads", options=("-X", "dev", "-W", "error")))
    assert code == 1
    assert error.count("Traceback") == 1
    assert error.strip().endswith("ValueError: the trainer's own")


def test_check_50_nothing_is_imported_and_nothing_printed() -> None:
    code, out, error = finish(start("modules", "threads"))
    assert (code, out, error) == (0, "", "[]")


# L6: memory


@pytest.mark.parametrize(
    ("kind", "threads"), [("native", 1), ("threads", 4), *([("native", 4), ("threads", 1)] if is_campaign() else [])]
)
def test_l6_check_45_memory_is_bounded_by_prefetch(kind: str, threads: int, tmp_path: Path) -> None:
    """Batches of 8 MiB, 32 MB ahead: at most those, one that the trainer holds, one that it had before, and a little."""
    code, out, error = finish(start("memory", kind, tmp_path / "big.npy", "32MB", 8, threads))
    assert code == 0, error
    assert int(out) < 32 * 10**6 + (2 * 8 << 20) + (6 << 20)


@pytest.mark.parametrize("kind", every(2, ["native", "threads"]))
def test_l6_a_batch_larger_than_prefetch_is_read_alone(kind: str, tmp_path: Path) -> None:
    code, out, error = finish(start("memory", kind, tmp_path / "big.npy", "1MB", 16, 4))
    assert code == 0, error
    assert int(out) < (3 * 16 << 20) + (6 << 20)


# Forks


@pytest.mark.parametrize("kind", KINDS)
def test_forks_in_the_middle_of_iteration(kind: str) -> None:
    """The child goes on where the parent stood, and so does the parent."""
    loader = make_loader(kind)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    expected = [naive_ids(loader.stream.order, cells) for cells in _first(13)]
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            mine = [delivered_ids(batch) for batch in batches]
            mine += [delivered_ids(batch) for batch in loader][:0]
            os.write(writing, b"good" if mine == expected[4:] and loader.step >= 13 else repr(mine).encode()[:4000])
        except BaseException as error:
            os.write(writing, repr(error).encode()[:4000])
        finally:
            os._exit(0)
    os.close(writing)
    assert [delivered_ids(batch) for batch in batches] == expected[4:]
    with os.fdopen(reading) as answer:
        if not select.select([answer], [], [], DEADLINE_S)[0]:
            os.kill(child, signal.SIGKILL)
        text = answer.read()
    os.waitpid(child, 0)
    assert text == "good"


# L14: nothing with a name


@pytest.mark.parametrize("kind", every(2, ["native", "threads"], 1))
def test_l14_a_killed_program_leaves_nothing_behind(kind: str, tmp_path: Path) -> None:
    process = start("names", kind)
    try:
        assert select.select([process.stdout], [], [], DEADLINE_S)[0]
        assert process.stdout.readline() == b"ready\n"
        opened = {os.path.realpath(f"/proc/{process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{process.pid}/fd")}
        mapped = {line.split(maxsplit=5)[-1] for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines()}
    finally:
        process.kill()
        finish(process)
    assert not any(path.startswith("/dev/shm") for path in opened | mapped)


@pytest.mark.parametrize("kind", every(2, ["native", "threads", "slow", "plain"], 1))
def test_l4_a_handler_of_signals_may_save_and_close(kind: str) -> None:
    """As programs do when a scheduler tells them to end: in the middle of whatever the loader does."""
    for delay in (0.0, 0.03):
        process = start("save_on_signal", kind)
        assert heard(process) == "ready"
        threading.Event().wait(delay)
        process.send_signal(signal.SIGTERM)
        code, out, error = finish(process)
        assert (code, error) == (0, "")
        state = json.loads(out)
        assert int.from_bytes(bytes.fromhex(state["cursor"])[16:24], "little") == 32 * (state["step"] % 313)


@pytest.mark.parametrize("kind", every(3, ["native", "threads", "slow"], 1))
def test_l5_the_interpreter_ends_while_a_thread_waits_for_a_batch(kind: str) -> None:
    code, out, error = finish(start("leave_in_a_thread", kind, options=("-X", "dev", "-W", "error")))
    assert (code, out, error) == (0, "done\n", "")


def test_what_a_signal_handler_raises_reaches_the_caller_of_a_native_loader() -> None:
    """It was taken for a batch that failed, which was read again: a watchdog was not heard."""

    class AlarmError(Exception):
        pass

    library = str(Path(pen.__file__).parent)

    def on_alarm(_: int, frame: FrameType | None) -> None:
        """Raises within the library only: another alarm may come before the timer is off."""
        if frame is not None and frame.f_code.co_filename.startswith(library):
            raise AlarmError

    rows = np.zeros((64, 4 << 20), np.uint8)
    loader = pen.Loader(pen.open(rows).in_order(), 64, threads=2)
    assert loader.engine == "native"
    before = signal.signal(signal.SIGALRM, on_alarm)
    try:
        batches = loader.forever()
        next(batches)
        signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
        with pytest.raises(AlarmError):
            deque(batches, maxlen=0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        batches.close()


@pytest.mark.parametrize("tail", ["keep", "wrap"])
def test_what_a_signal_handler_raises_while_batches_are_planned_is_heard(tail: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken for an error of the data, which is raised where it comes again."""

    class AlarmError(Exception):
        pass

    stream = pen.open(np.arange(1000), field="x").shuffle(seed=7)
    expected = [batch["x"].tolist() for batch in pen.Loader(stream, 7, tail=tail, threads=0)]
    loader = pen.Loader(stream, 7, tail=tail, threads=2)
    assert loader.engine == "native"
    find, calls = native_engine.NativeEngine._find, 0

    def find_once(self: Any, picks: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise AlarmError
        return find(self, picks)

    monkeypatch.setattr(native_engine.NativeEngine, "_find", find_once)
    with pytest.raises(AlarmError):
        deque(iter(loader), maxlen=0)
    step = loader.step
    assert step < len(expected)
    assert [batch["x"].tolist() for batch in loader] == expected[step:]


def test_interrupted_native_threads_end_before_their_bytes_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a URL they were evicted while a thread read them: a segmentation fault."""
    npy = io.BytesIO()
    np.save(npy, np.arange(1000))
    place = url_path("memory://interrupted/x.npy")
    place.objects.put(place.key, npy.getvalue())
    with pen.open("memory://interrupted/x.npy") as data, pen.Loader(data.in_order(), 10, threads=2) as loader:
        assert loader.engine == "native"
        batches = iter(loader)
        next(batches)
        events: list[str] = []
        close, passed = native_engine.NativeEngine._close_rings, Lookahead.passed

        def interrupt(_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(native_engine, "_wait_for_batch", interrupt)
        monkeypatch.setattr(native_engine.NativeEngine, "_close_rings", lambda self: (events.append("end"), close(self))[1])
        monkeypatch.setattr(Lookahead, "passed", lambda self, step: (events.append("passed"), passed(self, step))[1])
        monkeypatch.setattr(native_engine._Stretch, "next", _last_of(native_engine._Stretch.next))
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        assert events[0] == "end"
        assert "passed" not in events


def _last_of(following: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """As if every batch were the last of those that were asked for together, whose bytes are then released."""

    def last(stretch: Any) -> Any:
        place = following(stretch)
        stretch.taken = stretch.count
        return place

    return last
