"""Interrupts at any moment of a loader's life leave nothing behind, are not lost, and end the program or let it go on."""

import asyncio
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.effort import count, every
from tests.hostile.interrupts import KINDS, Case, draw, fault, nursery

import penstock as pen
from penstock import interrupt
from penstock.errors import WorkerDiedError
from penstock.loader.engine import PlainEngine

DEADLINE_S = 300

Run = Callable[[Case], dict[str, Any]]
AT_LINES, AT_MOMENTS = every(4, KINDS), every(8, KINDS, 3)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with nursery([*AT_LINES, *AT_MOMENTS]) as made:
        yield made


@pytest.mark.parametrize("kind", AT_LINES)
def test_programs_that_are_interrupted_at_any_line_end_or_go_on(run: Run, kind: str) -> None:
    chance = random.Random(kind)
    for _ in range(count(1, 40)):
        case = draw(chance, kind, by_lines=True)
        answer = run(case)
        assert fault(case, answer) == "", (case, answer["said"])


@pytest.mark.parametrize("kind", AT_MOMENTS)
def test_programs_that_are_interrupted_at_any_moment_end_or_go_on(run: Run, kind: str) -> None:
    chance = random.Random(kind)
    for _ in range(count(1, 40)):
        case = draw(chance, kind, by_lines=False)
        answer = run(case)
        assert fault(case, answer) == "", (case, answer["said"])


def loader(**options: Any) -> pen.Loader:
    return pen.Loader(pen.open(np.arange(100), field="x").shuffle(seed=7), 10, **({"threads": 2} | options))


# The handler of SIGINT


@pytest.fixture(autouse=True)
def no_handler_is_left_by_other_tests() -> None:
    """An engine whose last reference another thread gives up leaves the handler in place, until the main thread closes one."""
    interrupt.shield(no_handler_is_left_by_other_tests)
    interrupt.lower(no_handler_is_left_by_other_tests)


def test_the_handler_is_that_of_the_program_again_when_no_iterator_is_open() -> None:
    own = signal.getsignal(signal.SIGINT)
    one, other = iter(loader()), iter(loader())
    next(one), next(other)
    assert signal.getsignal(signal.SIGINT) is not own
    one.close()
    assert signal.getsignal(signal.SIGINT) is not own
    del other
    assert signal.getsignal(signal.SIGINT) is own
    for _ in loader():
        pass
    assert signal.getsignal(signal.SIGINT) is own


def test_a_handler_that_the_program_sets_meanwhile_is_called_and_stays() -> None:
    heard: list[int] = []
    own = signal.getsignal(signal.SIGINT)
    batches = iter(loader())
    next(batches)

    def note(number: int, frame: object) -> None:
        heard.append(number)
        before(number, frame)  # as handlers do that go on with the one they replace

    before: Any = signal.signal(signal.SIGINT, note)
    try:
        next(batches)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert heard == [signal.SIGINT]
        batches.close()
        assert signal.getsignal(signal.SIGINT) is note
    finally:
        signal.signal(signal.SIGINT, own)


@pytest.mark.parametrize("threads", [0, 2])
def test_where_interrupts_are_ignored_they_stay_ignored(threads: int) -> None:
    own = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for _ in loader(threads=threads):
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, own)


def test_loaders_in_other_threads_leave_the_handler_alone() -> None:
    own = signal.getsignal(signal.SIGINT)
    found: list[Any] = []

    def consume() -> None:
        batches = iter(loader())
        next(batches)
        found.append(signal.getsignal(signal.SIGINT))
        batches.close()

    thread = threading.Thread(target=consume)
    thread.start()
    thread.join(DEADLINE_S)
    assert found == [own]


@pytest.mark.parametrize("threads", [0, 2])
def test_an_interrupt_ends_a_transform_that_takes_its_time(threads: int) -> None:
    """In the main thread it is raised in the transform, otherwise where the main thread waits for it."""
    begun, go_on = threading.Event(), threading.Event()

    def wait(batch: Any) -> Any:
        begun.set()
        for _ in range(int(10 * DEADLINE_S)):  # a signal that comes right before a wait is only seen behind it
            if go_on.wait(0.1):
                break
        return batch

    def interrupt() -> None:
        begun.wait(DEADLINE_S)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        if threads:
            go_on.set()

    helper = threading.Thread(target=interrupt)
    helper.start()
    one = loader(threads=threads, transform=wait)
    with pytest.raises(KeyboardInterrupt):
        list(one)
    helper.join()
    go_on.set()
    left = 10 - one.step
    assert len(list(one)) == left


def test_a_loop_in_asyncio_is_interrupted_as_usual() -> None:
    async def consume() -> None:
        for _ in loader():
            await asyncio.sleep(0)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(consume())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("options", [{"transform": lambda batch: batch}, {"block": True}], ids=["threads", "read-ahead"])
def test_threads_end_when_an_engine_is_lost_without_being_closed(options: dict[str, Any], tmp_path: Path) -> None:
    """As when a handler of another signal raises in the middle of its making."""
    np.save(tmp_path / "rows.npy", np.arange(1000))
    source = pen.open(tmp_path / "rows.npy", field="x")
    stream = source.shuffle(seed=7, block=10, window=4) if options.pop("block", False) else source.shuffle(seed=7)
    before = set(threading.enumerate())  # other packages have threads that never end: zarr's event loop
    one = pen.Loader(stream, 10, threads=2, **options)
    engine = one._start(0, None)  # without an end, so that the thread that reads ahead has none either
    engine.take()
    started = set(threading.enumerate()) - before
    assert started
    del engine
    for thread in started:
        thread.join(DEADLINE_S)
    assert set(threading.enumerate()) <= before


# Forks


def in_fork(action: Callable[[], object]) -> str:
    """What an action gives in a fork, or the error; a hang ends with a signal."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(DEADLINE_S)
        try:
            text = str(action())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode()[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return text if status == 0 else f"ended with {status}"


@pytest.mark.parametrize("begun", [False, True])
def test_an_executor_that_a_fork_inherited_is_refused(begun: bool) -> None:
    with ThreadPoolExecutor(1) as executor:
        executor.submit(int).result()
        one = loader(executor=executor)
        batches = iter(one)
        if begun:
            next(batches)
        answer = in_fork(lambda: next(batches)["x"].tolist())
        assert answer.startswith(f"{WorkerDiedError.__name__}: the loader got its executor in process {os.getpid()}")
        assert answer.endswith("make the executor, and a loader with it, in the process that uses them")
        assert len(list(batches)) == (9 if begun else 10)


def test_a_fork_may_give_a_loader_an_executor_of_its_own() -> None:
    def take() -> int:
        with ThreadPoolExecutor(1) as executor:
            return len(list(loader(executor=executor)))

    assert in_fork(take) == "10"


def test_a_lock_of_the_meter_that_a_thread_holds_at_the_fork_does_not_stop_the_child() -> None:
    one = loader(threads=0)

    def take() -> int:
        return len(list(one))

    with one._meter._lock:
        assert in_fork(take) == "10"


def test_a_fork_while_threads_make_batches_reads_on() -> None:
    """At any moment of what they do, with whatever they hold."""
    one = loader(transform=lambda batch: batch)
    expected = [batch["x"].tolist() for batch in loader(threads=0)]
    for _ in range(count(10, 200)):
        for number, batch in enumerate(one):
            assert batch["x"].tolist() == expected[number]
            if number == 2:
                assert in_fork(lambda: [batch["x"].tolist() for batch in one] == expected[3:]) == "True"
        one.seek(0)


def test_an_interrupt_that_was_deferred_comes_before_the_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a loop that does nothing else too, where the loader is almost never idle."""
    one, take = loader(threads=0), PlainEngine.take

    def take_interrupted(self: PlainEngine) -> Any:
        monkeypatch.setattr(PlainEngine, "take", take)
        signal.raise_signal(signal.SIGINT)
        return take(self)

    monkeypatch.setattr(PlainEngine, "take", take_interrupted)
    batches = iter(one)
    next(batches)
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert one.step == 1
    assert len(list(one)) == 9
