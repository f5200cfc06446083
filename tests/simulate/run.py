"""One run of a case, and what must hold: batches as on this machine, or an error that a fault explains; no hang, no leak, no
memory beyond the window, no byte fetched again while it is in memory.
"""

import contextlib
import gc
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, Protocol
from unittest import mock

import numpy as np
from tests.simulate import thread
from tests.simulate.case import Case, Leg, Order, all_data, expected
from tests.simulate.network import RETRIED, WRONG, Bucket, Version, Weather, place_in

import penstock as pen
from penstock import process
from penstock.errors import (
    BatchError,
    CorruptError,
    MissingError,
    ObjectChangedError,
    PenstockError,
    StoreUnavailableError,
    TruncatedError,
    WindowTooSmallError,
)
from penstock.loader import loader as loading
from penstock.records import Source
from penstock.remote import fetch, window
from penstock.remote.fetch import Policy
from penstock.remote.residency import PAGE, Range, Residency
from penstock.remote.window import SharedWindow, Window

QUIET_S = 5000.0
"""After this time, no request and no wait that was begun is left."""


class WrongError(AssertionError):
    """A run showed what must not be."""


# What is watched from inside


class Ledger:
    """Which bytes are in memory by what was written and released, next to the accounts of the windows themselves."""

    def __init__(self) -> None:
        self.written: dict[Any, list[tuple[int, int]]] = {}
        self.wrong: list[str] = []
        self.windows: list[Window] = []

    def write(self, landing: Any, start: int, stop: int) -> None:
        if start < stop:
            parts = self.written.setdefault(landing, [])
            if any(low < stop and start < high for low, high in parts):
                self.wrong.append(f"bytes {start} to {stop} were written a second time")
            parts.append((start, stop))

    def clear(self, landing: Any, start: int, stop: int) -> None:
        parts = self.written.pop(landing, [])
        kept = [part for low, high in parts for part in ((low, min(high, start)), (max(low, stop), high)) if part[0] < part[1]]
        if kept:
            self.written[landing] = kept

    def request(self, landing: Any, start: int, stop: int) -> None:
        for low, high in self.written.get(landing, ()):
            if low < stop and start < high:
                self.wrong.append(f"bytes {start} to {stop} were requested, of which {low} to {high} are in memory")


_ledger = Ledger()


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Inside, windows tell the ledger what they do."""
    download, fetching = window._Download, fetch._Fetch
    write, first = download.write, fetching._begin
    remove, drop, announce = Residency.remove, Residency.drop, Residency.announce_release
    release, begin = Window.release, Window._begin

    def watched_write(self: Any, offset: int, data: Any) -> None:
        write(self, offset, data)
        _ledger.write(self.landing, offset, offset + len(data))

    def watched_first(self: Any, start: int, stop: int | None, least: int) -> Any:
        sink = getattr(self._write, "__self__", None)
        if isinstance(sink, download) and stop is not None:
            _ledger.request(sink.landing, start, stop)
        return first(self, start, stop, least)

    def watched_remove(self: Residency, one: Range, freed: Any = None) -> None:
        if self.has(one):
            _ledger.clear(self._memory[one.number].landing, one.start, one.stop)
            if one.holds and one.error is None and one.is_ready:
                _ledger.wrong.append(f"a range that is held was evicted: {one}")
        remove(self, one, freed)

    def watched_drop(self: Residency, number: int) -> None:
        _ledger.written.pop(self._memory[number].landing, None)
        if any(one.holds for one in self.ranges_of(number)):
            _ledger.wrong.append(f"a file that is held was dropped: {self.ranges_of(number)}")
        drop(self, number)

    def watched_announce(self: Residency, number: int) -> None:
        _ledger.written.pop(self._memory[number].landing, None)  # dropped, or fetched again because it is wrong
        announce(self, number)

    def watched_release(self: Window, held: Any, of: Any) -> None:
        for one in held:
            if one.error is None and not self.residency.has(one) and not self._is_stopped(one.number):
                _ledger.wrong.append(f"a range is gone that was held: {one}")
        release(self, held, of)

    def watched_begin(self: Window) -> None:
        begin(self)
        _ledger.windows.append(self)

    with contextlib.ExitStack() as stack:
        for owner, name, function in (
            (download, "write", watched_write),
            (fetching, "_begin", watched_first),
            (Residency, "remove", watched_remove),
            (Residency, "drop", watched_drop),
            (Residency, "announce_release", watched_announce),
            (Window, "release", watched_release),
            (Window, "_begin", watched_begin),
        ):
            stack.enter_context(mock.patch.object(owner, name, function))
        yield


def check_accounts(one: Window) -> None:
    """What a window says of itself is what is there."""
    residency = one.residency
    ranges = [range_ for there in residency._files.values() for range_ in there.ranges]
    used = sum(range_.cost for range_ in ranges)
    if used != residency.used:
        raise WrongError(f"the window has {used} bytes, and says {residency.used}")
    if residency.most > one.limit:
        raise WrongError(f"the window had {residency.most} bytes, its limit is {one.limit}")
    if residency.fetching != sum(not range_.is_ready for range_ in ranges):
        raise WrongError(f"the window says {residency.fetching} ranges are on their way: {ranges}")
    if not 0 <= residency.idle_bytes <= residency.used:
        raise WrongError(f"{residency.idle_bytes} bytes are idle of {residency.used}")


def check_unpinned(one: Window) -> None:
    """Closed loaders keep nothing; what they left is idle, or still on its way."""
    kept = [range_ for there in one.residency._files.values() for range_ in there.ranges if range_.holds or range_.plans]
    if kept or one.prefetchers or one._holders:
        raise WrongError(f"leak: loaders are closed, and {kept} is kept, by {one.prefetchers} and {one._holders}")


def check_released(one: Window) -> None:
    """Nothing is kept when loaders are closed and everything is quiet."""
    check_accounts(one)
    for there in one.residency._files.values():
        for range_ in there.ranges:
            if range_.is_kept:
                raise WrongError(f"leak: {range_} is still kept")
    if one._holders or one.prefetchers or one.num_waiting or one._queue or one._threads or one._bad:
        raise WrongError(
            f"leak: holders {one._holders}, plans {one.prefetchers}, waiting {one.num_waiting}, queue {one._queue}, "
            f"threads {one._threads}, bad {one._bad}"
        )


# What happens


def transform(batch: Any) -> Any:
    """Nothing; but Python threads have to do it."""
    return batch


class Circumstances(Protocol):
    """What every kind of case says."""

    @property
    def seed(self) -> int: ...
    @property
    def sizes(self) -> tuple[tuple[str, float], ...]:
        """Constants of the product by name, smaller than they are: the data is, too."""

    @property
    def is_main(self) -> bool:
        """Whether the thread that the run begins with is the main one."""

    @property
    def policy(self) -> Policy: ...
    @property
    def weather(self) -> Weather: ...
    @property
    def preempt(self) -> float: ...
    @property
    def late(self) -> float: ...


class Run:
    """One case of any kind. ``_tell`` is what happens, ``_explains`` which errors are right."""

    case: Circumstances

    def __init__(self, case: Circumstances, objects: dict[str, Version], say: Callable[[str], None] | None = None) -> None:
        self.scheduler = thread.Scheduler(random.Random(case.seed + 1), preempt=case.preempt, late=case.late, say=say)
        thread.begin(self.scheduler)
        self.bucket = Bucket(objects, case.weather, random.Random(case.seed + 2), case.policy)
        self.failures: list[BaseException] = []
        self.compared = 0
        """Batches, or ranges, that were read and compared."""
        self._is_closing = self._is_healed = False

    def _tell(self) -> None:
        raise NotImplementedError

    def run(self) -> None:
        """WrongError or HangError unless all is well."""
        global _ledger
        _ledger = Ledger()
        scheduler = self.scheduler
        main = self._consumer = thread.Thread(target=self._main, name="consumer")
        try:
            with self._sized():
                scheduler.main = main if self.case.is_main else None
                main.start()
                scheduler.run(lambda: not main.is_alive())
                scheduler.run(lambda: scheduler.is_idle)
            if main.error is not None:
                raise main.error
            for one in _ledger.windows:
                check_released(one)
                if one.residency.used:
                    raise WrongError(f"leak: {one.residency.used} bytes are in memory after the end")
            if alive := scheduler.alive():
                raise WrongError(f"{len(alive)} threads never end\n{scheduler.stacks()}")
            if errors := [one.error for one in scheduler.threads if one.error is not None]:
                raise errors[0]
            if _ledger.wrong:
                raise WrongError(_ledger.wrong[0])
        finally:
            scheduler.end()
            window._open.clear()  # those of another run are none of the next one's business
            loading._open.clear()
            thread.begin(thread.Scheduler(random.Random(0)))

    @contextlib.contextmanager
    def _sized(self) -> Iterator[None]:
        """Requests and gaps of the sizes of the case."""
        before = []
        for key, value in self.case.sizes:
            for module, name in _places(key):
                before.append((module, name, getattr(module, name)))
                setattr(module, name, value)
        try:
            yield
        finally:
            for module, name, value in before:
                setattr(module, name, value)

    # In the thread of the consumer

    def _main(self) -> None:
        try:
            self._tell()
        except (WrongError, thread.HangError):
            raise
        except PenstockError as error:
            self._justify(error)
        finally:
            process.end_threads()

    def _heal(self) -> None:
        """From now on the network works; the run goes on with the same sources when nothing is left of what failed."""
        self.bucket.weather = replace(self.case.weather, faults=())
        thread._sleep(QUIET_S)
        self._is_healed = True

    # Errors

    def _justify(self, error: BaseException) -> None:
        """WrongError unless what was injected explains an error."""
        while isinstance(error, BatchError) and error.__cause__ is not None:
            error = error.__cause__
        self.failures.append(error)
        self.scheduler.say(f"error: {type(error).__name__}: {error}")
        happened, policy = self.bucket.happened, self.case.policy
        retried, wrong = sum(happened[kind] for kind in RETRIED), sum(happened[kind] for kind in WRONG)
        if isinstance(error, ObjectChangedError):
            is_right = happened["replaced"] + happened["other etag"] > 0
        elif isinstance(error, MissingError):
            is_right = happened["gone"] > 0
        elif isinstance(error, StoreUnavailableError):
            is_right = retried + wrong >= policy.tries
        elif isinstance(error, TruncatedError | CorruptError):
            # The chunks of a store are known by their size and checksums only, until the first answer.
            wrong += happened["cut"]
            is_right = wrong >= policy.wrong_tries or (wrong > 0 and retried + wrong >= policy.tries) or happened["replaced"] > 0
        else:
            is_right = self._explains(error)
        if self._is_healed and thread.current_thread() is self._consumer:
            is_right = is_right and (self.bucket.struck is not None or isinstance(error, WindowTooSmallError))
        if not is_right:
            raise WrongError(f"{type(error).__name__}: {error}; there was no reason: {dict(happened)}") from error

    def _explains(self, error: BaseException) -> bool:
        """Whether the case, and not the network, explains an error."""
        raise NotImplementedError


class LoaderRun(Run):
    """Loaders of sources that are opened at a URL."""

    case: Case

    def __init__(self, case: Case, say: Callable[[str], None] | None = None) -> None:
        self.case = case
        self._right = expected(case.order, case.batch_size)  # now: in the middle, it would be a part of the run
        self._right_second = [] if case.second is None else expected(*case.second[:2])
        objects = {key: version for name in case.order.data for key, version in all_data()[name].objects}
        super().__init__(case, objects, say)
        self._done = 0
        self._state: tuple[bytes, dict[str, Any] | None] | None = None

    def _tell(self) -> None:
        case = self.case
        with contextlib.ExitStack() as stack:
            sources = self._open(stack)
            self.bucket.is_open = True
            other = self._begin_second(sources)
            legs = deque(case.legs)
            while legs:
                leg = legs.popleft()
                if leg.is_new_source and not self.bucket.struck:
                    self.bucket.is_open = False
                    sources = self._open(stack)
                    self.bucket.is_open = True
                try:
                    self._leg(sources, leg, other)
                except PenstockError as error:
                    self._justify(error)
                    if self.bucket.struck or self._is_healed or isinstance(self.failures[-1], WindowTooSmallError):
                        return
                    self._heal()
                    legs.appendleft(replace(leg, is_new_source=False))
                for one in _ledger.windows:
                    check_accounts(one)
            if isinstance(other, thread.Thread):
                other.join()
            thread._sleep(QUIET_S)  # a thread of a closed loader may still read what it has begun to read
            for one in _ledger.windows:
                check_unpinned(one)

    def _leg(self, sources: list[Source], leg: Leg, other: Any) -> None:
        with contextlib.ExitStack() as inner:
            loader = self._loader(sources, self.case.order, self.case.batch_size, leg)
            inner.callback(loader.close)
            if self._state is not None:
                self._resume(loader, self._state)
            if other is not None and not isinstance(other, thread.Thread):
                inner.callback(other.close)
            try:
                self._take(loader, leg, self._done, other)
            finally:
                self._done = loader.step
                self._state = loader.get_state(), None
            if leg.uses_state_dict:
                self._state = loader.get_state(), loader.state_dict()

    def _open(self, stack: contextlib.ExitStack) -> list[Source]:
        case, root = self.case, place_in(self.bucket)
        options: dict[str, Any] = {"window_bytes": case.window_pages * PAGE}
        if case.shares_window:
            options["shared"] = SharedWindow()
        sources = [stack.enter_context(all_data()[name].open(root, **options)) for name in case.order.data]
        stack.callback(self._begin_to_close)
        return sources

    def _begin_to_close(self) -> None:
        self._is_closing = True

    def _loader(self, sources: list[Source], order: Order, batch_size: int, leg: Leg) -> pen.Loader:
        return pen.Loader(
            order.make(sources),
            batch_size,
            threads=0 if leg.engine == "caller" else 2,
            transform=transform if leg.engine == "threads" else None,
            prefetch=leg.prefetch,
        )

    def _resume(self, loader: pen.Loader, state: tuple[bytes, dict[str, Any] | None]) -> None:
        if state[1] is None:
            loader.set_state(state[0])
        else:
            loader.load_state_dict(state[1])

    def _take(self, loader: pen.Loader, leg: Leg, done: int, other: Any) -> None:
        right, batches = self._right, loader.forever()
        if self.case.takes_away:
            thread.Thread(target=self._take_away, args=(loader,), name="closer").start()
        others = iter(()) if other is None or isinstance(other, thread.Thread) else other
        for step in range(done, min(done + leg.steps, len(right))):
            try:
                batch = next(batches)
            except StopIteration:
                if not self.case.takes_away:
                    raise WrongError(f"no batch at step {step}") from None
                return
            self._compare(batch, right[step], f"step {step}")
            next(others, None)
            thread._sleep(leg.think_s)

    def _take_away(self, loader: pen.Loader) -> None:
        thread._sleep(self.case.weather.latency_s * 3 * self.scheduler.draw())
        self.scheduler.say("the loader is closed by another thread")
        loader.close()

    def _compare(self, batch: Any, right: Any, where: str) -> None:
        self.compared += 1
        self.scheduler.say(f"batch: {where}")
        if batch.keys() != right.keys() or not all(_same(batch[name], right[name]) for name in right):
            raise WrongError(f"{where}: the batch differs")

    def _begin_second(self, sources: list[Source]) -> Any:
        """The second loader: a thread, or an iterator whose batches are taken in turn with those of the first."""
        if self.case.second is None:
            return None
        order, size, steps, in_thread = self.case.second
        taken = self._second(sources, order, size, steps)
        if not in_thread:
            return taken
        other = thread.Thread(target=self._in_thread, args=(taken,), name="second")
        other.start()
        return other

    def _in_thread(self, taken: Iterator[None]) -> None:
        try:
            for _ in taken:
                pass
        except PenstockError as error:
            self._justify(error)
        except ValueError as error:
            self._justify(error)

    def _second(self, sources: list[Source], order: Order, size: int, steps: int) -> Iterator[None]:
        leg = self.case.legs[0]
        right = self._right_second
        with self._loader(sources, order, size, leg) as loader:
            batches = loader.forever()
            for step in range(steps):
                self._compare(next(batches), right[step], f"step {step} of the second loader")
                yield

    def _explains(self, error: BaseException) -> bool:
        if isinstance(error, WindowTooSmallError):
            return self.case.may_be_too_small
        return isinstance(error, ValueError) and "closed" in str(error) and self._is_closing


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, pen.Ragged):
        return list(map(_plain, one)) == list(map(_plain, other))
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


@cache
def _places(key: str) -> list[tuple[Any, str]]:
    """Where a constant is that a case changes: in the module that defines it, and in those that import it. (Not by ``hasattr``:
    modules of old names import new ones then, and torch with them.)
    """
    modules = {name: module for name, module in sys.modules.items() if name.startswith("penstock.")}
    owner, name = key.split(".")
    (home,) = (module for path, module in modules.items() if path.endswith(f".{owner}") and name in vars(module))
    shared = isinstance(getattr(home, name), int) and name in ("PIECE_BYTES", "GAP_BYTES")
    return [(module, name) for module in modules.values() if module is home or (shared and name in vars(module))]


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Inside, runs are possible."""
    all_data()
    with thread.installed(), watched():
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            yield
        finally:
            gc.enable()
            gc.unfreeze()
