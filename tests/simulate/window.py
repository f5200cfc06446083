"""The other kind of case: threads that read ranges of objects through windows, and plans; without sources and loaders.

A run takes a tenth of the time of one with a loader, and every call is drawn: two holds at a time, a hold that is given up before
its bytes came, files that are closed or fetched again while others read them, needs whose last step becomes known late. What is
right are the bytes of the objects.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from tests.simulate import thread
from tests.simulate.case import draw_case, draw_weather
from tests.simulate.network import Version, Weather, place_in
from tests.simulate.run import QUIET_S, LoaderRun, Run, WrongError, check_accounts, check_unpinned

from penstock.errors import ReadError, WindowTooSmallError
from penstock.remote import residency
from penstock.remote.fetch import Policy
from penstock.remote.objects import ObjectInfo
from penstock.remote.plan import KEPT, UNKNOWN, Need, Plan
from penstock.remote.residency import PAGE, PAGE_GAP, Extents, Range, merge
from penstock.remote.window import ROOM_S, Hold, RemoteFiles, Window

# What a seed means

Span = tuple[int, int, int]
"""A range of a file: its number, start and stop."""


class Read(NamedTuple):
    """What a thread does next. ``then`` is done while the ranges are held."""

    how: str
    files: int
    spans: tuple[Span, ...]
    think_s: float = 0.0
    then: "Read | None" = None


class Block(NamedTuple):
    """What a plan needs from a step to a last one. ``kind``: block, single, kept or optional; ``is_late``: the last step of a block
    is told only when that of the next one is looked at.
    """

    kind: str
    first: int
    last: int
    spans: tuple[Span, ...]
    is_late: bool


class Walk(NamedTuple):
    """A plan and the thread that follows it: steps until it is closed, how far it looks, and whether it checks what is kept."""

    files: int
    steps: int
    blocks: tuple[Block, ...]
    ahead: int
    part: float
    is_strict: bool
    think_s: float


@dataclass(frozen=True)
class WindowCase:
    """All that a seed says."""

    seed: int
    sizes_of: tuple[tuple[int, ...], ...]
    """The sizes of the objects of each set of files."""
    whole_files: tuple[bool, ...]
    shares_window: bool
    window_pages: int
    readers: tuple[tuple[Read, ...], ...]
    walks: tuple[Walk, ...]
    closed: tuple[int, float] | None
    """Files that another thread closes in the middle, and when."""
    sizes: tuple[tuple[str, float], ...]
    policy: Policy
    weather: Weather
    preempt: float
    late: float
    is_main: bool = False


SIZES: dict[str, tuple[float, ...]] = {
    "residency.PIECE_BYTES": (1500, PAGE, 5000, 8 << 20, 8 << 20, 8 << 20),
    "residency.GAP_BYTES": (0, 300, 5000, 64 << 10),
    "residency.FEW": (1, 2, 64),
    "fetch.CONNECTIONS": (1, 2, 4, 16),
    "process.HEARD_S": (5.0, 20.0),
    "plan.MOST_AHEAD": (1, 3, 8),
    "plan.MOST_NEEDS": (1, 4),
    "plan.MOST_EMPTY": (1, 128),
}
LENGTHS = (1, 40, 300, 1500, PAGE, 2 * PAGE, 1 << 20)
THINK_S = (0.0, 0.0, 0.02, 0.5, 20.0)
_BYTES = random.Random(0).randbytes(1 << 17)


class _Draw:
    """Draws a case."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self.uniform = self._draw.random

    def one_of(self, values: Sequence[Any]) -> Any:
        return values[int(self.uniform() * len(values))]

    def case(self, seed: int) -> WindowCase:
        one_of, uniform = self.one_of, self.uniform
        self.objects = tuple(
            tuple(2000 + int(uniform() * one_of((2000, 8000, 18_000))) for _ in range(one_of((1, 1, 2, 3))))
            for _ in range(one_of((1, 1, 2)))
        )
        pages = sum(-(-size // PAGE) for sizes in self.objects for size in sizes)
        num_walks = one_of((0, 0, 1, 1, 1, 2))
        num_readers = one_of((1, 2, 2, 3)) if num_walks == 0 else one_of((0, 1, 1, 1, 2)) if num_walks == 1 else one_of((0, 1))
        return WindowCase(
            seed=seed,
            sizes_of=self.objects,
            whole_files=tuple(uniform() < 0.2 for _ in self.objects),
            shares_window=uniform() < 0.5,
            window_pages=one_of((2, 3, 4, 6, max(1, pages // 2), pages, 2 * pages + 8, 1000)),
            readers=tuple(tuple(self.read() for _ in range(one_of((1, 1, 2)))) for _ in range(num_readers)),
            walks=tuple(self.walk() for _ in range(num_walks)),
            closed=(one_of(range(len(self.objects))), one_of((0.01, 0.1, 1.0)) * uniform()) if uniform() < 0.1 else None,
            sizes=tuple((name, one_of(values)) for name, values in SIZES.items()),
            policy=Policy(tries=one_of((10, 10, 3)), piece_bytes=one_of((1 << 16, 1500, 4096)), hedge_s=one_of((2.0, 2.0, 0.05))),
            weather=draw_weather(self._draw),
            preempt=one_of((0.0, 0.05, 0.3, 0.9)),
            late=one_of((0.0, 0.0, 0.02, 0.2)),
        )

    def read(self, depth: int = 0) -> Read:
        how = self.one_of(("with", "with", "with", "begin", "begin", "sliced", "abandon", "peek", "refetch"))
        if self.uniform() < 0.03:
            how = "close"
        files = self.one_of(range(len(self.objects)))
        if depth and how in ("refetch", "close", "sliced"):
            how = "with"
        then = self.read(depth + 1) if depth < 2 and how in ("with", "begin") and self.uniform() < 0.15 else None
        return Read(how, files, self.spans(files, (1, 1, 2, 3)), self.one_of(THINK_S), then)

    def spans(self, files: int, counts: Sequence[int]) -> tuple[Span, ...]:
        return tuple(self.span(files) for _ in range(self.one_of(counts)))

    def span(self, files: int) -> Span:
        number = self.one_of(range(len(self.objects[files])))
        size = self.objects[files][number]
        start = 0 if self.uniform() < 0.2 else int(self.uniform() * size)
        return number, start, min(size, start + self.one_of(LENGTHS))

    def walk(self) -> Walk:
        one_of, uniform = self.one_of, self.uniform
        files, steps = one_of(range(len(self.objects))), one_of((1, 2, 2, 3))
        blocks = []
        for _ in range(one_of((1, 2, 2, 3))):
            kind, first = one_of(("block", "block", "block", "single", "kept", "optional")), one_of(range(steps))
            last = first if kind == "single" else min(steps + 1, first + one_of((0, 1, 2)))
            spans = self.spans(files, (0, 1, 1, 2))
            if not spans and any(block.first == first and not block.spans for block in blocks):
                continue  # a look-ahead has at most one empty need in a step
            blocks.append(Block(kind, first, last, spans, uniform() < 0.5))
        blocks.sort(key=lambda block: block.first)
        closed_after = one_of((steps, steps, one_of(range(steps))))
        ahead, part = one_of((0, 0, 1, 2)), one_of((1.0, 1.0, 0.5))
        return Walk(files, closed_after, tuple(blocks), ahead, part, uniform() < 0.6, one_of(THINK_S))


def draw_window_case(seed: int) -> WindowCase:
    """The case of a seed; the same in every process."""
    return _Draw(seed).case(seed)


# What happens


class WindowRun(Run):
    """Threads that read through windows."""

    case: WindowCase

    def __init__(self, case: WindowCase, say: Callable[[str], None] | None = None) -> None:
        self.case = case
        self._objects: list[list[tuple[str, Version]]] = []
        for files, sizes in enumerate(case.sizes_of):
            first = 40_000 * files
            data = [_BYTES[first + 21_000 * number // 2 : first + 21_000 * number // 2 + size] for number, size in enumerate(sizes)]
            self._objects.append([(f"{files}-{number}", Version(one, f"etag-{files}-{number}")) for number, one in enumerate(data)])
        super().__init__(case, {key: version for some in self._objects for key, version in some}, say)
        self._files: list[RemoteFiles] = []
        self._closed: set[int] = set()
        self._read_now: Counter[tuple[int, int]] = Counter()  # readers that hold a file, by its set and number
        self._depth: Counter[Any] = Counter()  # holds of a thread
        self._wanted: dict[str, list[tuple[int, int]]] = {}
        self._failed: list[tuple[int, tuple[Span, ...]]] = []
        self._subject, self._may_be_small = 0, False

    # In the first thread

    def _tell(self) -> None:
        case = self.case
        self._open()
        self.bucket.is_open = True
        jobs: list[Callable[[], None]] = [lambda reads=reads: self._do_all(reads) for reads in case.readers]  # type: ignore[misc]
        jobs += [lambda walk=walk: self._follow(walk) for walk in case.walks]  # type: ignore[misc]
        threads = [thread.Thread(target=job, name="reader") for job in jobs[1:]]
        if case.closed is not None:
            threads.append(thread.Thread(target=self._close_later, args=case.closed, name="closer"))
        for one in threads:
            one.start()
        jobs[0]()
        for one in threads:
            one.join()
        thread._sleep(QUIET_S)
        self._check_quiet()
        again = [(files, spans) for files, spans in self._failed if files not in self._closed and spans]
        if again and self.bucket.struck is None:
            self._heal()
            self._do(Read("with", *again[0]))
        for number in range(len(self._files)):
            self._close(number)
        if any(landing.is_mapped for files in self._files for landing in files.landings):
            raise WrongError("leak: a closed file is still mapped")
        self._check_requests()

    def _open(self) -> None:
        case, root = self.case, place_in(self.bucket)
        shared = Window(case.window_pages * PAGE) if case.shares_window else None
        for number, objects in enumerate(self._objects):
            infos = [(root / key, ObjectInfo(key, len(version.data), version.etag, 0.0)) for key, version in objects]
            self._files.append(
                RemoteFiles(
                    infos,
                    window_bytes=case.window_pages * PAGE,
                    whole_files=case.whole_files[number],
                    on_release=self._on_release(number),
                    window=shared,
                )
            )

    def _on_release(self, files: int) -> Callable[[int], None]:
        def released(number: int) -> None:
            if self._read_now[files, number]:
                raise WrongError(f"file {number} of {files} is released while it is read")

        return released

    def _close(self, files: int) -> None:
        self.scheduler.say(f"close files {files}")
        self._closed.add(files)
        self._files[files].close()

    def _close_later(self, files: int, seconds: float) -> None:
        thread._sleep(seconds)
        self._close(files)

    def _check_quiet(self) -> None:
        """Nothing is kept, and there is no more memory in use than windows say."""
        for one in {id(files.window): files.window for files in self._files}.values():
            check_accounts(one)
            check_unpinned(one)
            resident = sum(landing.resident() for files in self._files if files.window is one for landing in files.landings)
            if resident > one.residency.used:
                raise WrongError(f"{resident} bytes are in memory, the window says {one.residency.used}")

    def _check_requests(self) -> None:
        """No byte was requested that nobody wanted, but for small holes."""
        if "other range" in self.bucket.happened:
            return
        most = max(PAGE_GAP, dict(self.case.sizes)["residency.GAP_BYTES"])
        for _, key, start, stop in self.bucket.log:
            at = start
            for low, high in sorted(self._wanted.get(key, ())):
                if low < stop and high > at:
                    if low - at > most:
                        break
                    at = high
            if stop - at > most:
                raise WrongError(f"{key}: bytes {start} to {stop} were requested, which nobody wanted")

    # In threads that read

    def _do_all(self, reads: Sequence[Read]) -> None:
        for one in reads:
            self._do(one)

    def _do(self, one: Read) -> None:
        """Do it; an error must have a reason."""
        began, is_nested = self.scheduler.now, self._depth[thread.current_thread()] > 0
        if self.scheduler.is_told:
            self.scheduler.say(f"{one.how} {one.files}: {one.spans}")
        try:
            _ACTIONS[one.how](self, one)
        except (ReadError, WindowTooSmallError, ValueError) as error:
            small = isinstance(error, WindowTooSmallError)
            self._may_be_small = small and (is_nested or self.scheduler.now - began > ROOM_S or self._is_too_much(one))
            self._explain(error, one.files, one.spans)

    def _explain(self, error: Exception, files: int, spans: tuple[Span, ...]) -> None:
        self._subject = files
        self._justify(error)
        if not isinstance(error, WindowTooSmallError) and files not in self._closed:
            self._failed.append((files, spans))

    def _explains(self, error: BaseException) -> bool:
        if isinstance(error, WindowTooSmallError):
            return self._may_be_small
        return isinstance(error, ReadError | ValueError) and "closed" in str(error) and self._subject in self._closed

    def _is_too_much(self, one: Read) -> bool:
        """Whether a window is too small for ranges, if there is nothing else in it."""
        if one.how == "sliced":
            return any(self._cost(one.files, [span]) > self._limit for span in one.spans) or self._limit < 4 * PAGE
        return self._cost(one.files, one.spans) > self._limit

    def _cost(self, files: int, spans: Sequence[Span], gap: int = PAGE_GAP) -> int:
        pieces = merge(*_columns(spans), gap, residency.PIECE_BYTES)
        return sum(Range(*map(int, piece)).cost for piece in zip(*pieces, strict=True))

    @property
    def _limit(self) -> int:
        return self.case.window_pages * PAGE

    def _hold(self, files: int, spans: Sequence[Span]) -> Hold:
        self._want(files, spans)
        return self._files[files].hold(*_columns(spans))

    def _want(self, files: int, spans: Sequence[Span]) -> None:
        for number, start, stop in spans:
            self._wanted.setdefault(f"{files}-{number}", []).append((start, stop))

    def _read(self, one: Read) -> None:
        hold = self._hold(one.files, one.spans)
        if one.how == "begin":
            hold.begin()
            try:
                self._depth[thread.current_thread()] += 1
                thread._sleep(one.think_s)
            finally:
                self._depth[thread.current_thread()] -= 1
        self._compare(hold, one)

    def _compare(self, hold: Hold, one: Read) -> None:
        """The bytes are there from the beginning to the end of a hold."""
        with hold:
            me, numbers = thread.current_thread(), [(one.files, number) for number in {span[0] for span in one.spans}]
            self._depth[me] += 1
            self._read_now.update(numbers)
            try:
                self._look(one)
                thread._sleep(one.think_s)
                if one.then is not None:
                    self._do(one.then)
                self._look(one)
            finally:
                self._depth[me] -= 1
                self._read_now.subtract(numbers)

    def _look(self, one: Read) -> None:
        landings, objects = self._files[one.files].landings, self._objects[one.files]
        for number, start, stop in one.spans:
            if landings[number].read(start, stop) != objects[number][1].data[start:stop]:
                raise WrongError(f"bytes {start} to {stop} of file {number} of {one.files} are wrong")
        self.compared += len(one.spans)

    def _abandon(self, one: Read) -> None:
        hold = self._hold(one.files, one.spans)
        hold.begin()
        thread._sleep(one.think_s)
        hold.end()

    def _read_slices(self, one: Read) -> None:
        _, starts, stops = _columns(one.spans)
        for part in self._files[one.files].slices(starts, stops):
            self._read(one._replace(how="with", spans=one.spans[part]))

    def _refetch(self, one: Read) -> None:
        self._files[one.files].refetch(one.spans[0][0])

    def _peek(self, one: Read) -> None:
        """What is said to be in memory is."""
        files, number = self._files[one.files], one.spans[0][0]
        with files.window.lock:
            if files.holds_whole(number):
                self._look(one._replace(spans=((number, 0, files.landings[number].size),)))

    def _close_files(self, one: Read) -> None:
        self._close(one.files)

    # In threads that follow a plan

    def _follow(self, walk: Walk) -> None:
        try:
            plan = Plan(self._files[walk.files].window, self._needs(walk))
        except ValueError as error:
            return self._explain(error, walk.files, ())
        try:
            for step in range(walk.steps):
                if not self._step(walk, plan, step):
                    break
        finally:
            plan.close()

    def _needs(self, walk: Walk) -> Iterator[Need]:
        """What a look-ahead tells of blocks: their last step late, those that stay again where they were given up."""
        first = self._files[walk.files].first
        told: list[tuple[Need, int]] = []
        again: list[tuple[int, int, Need]] = []
        for place, block in enumerate(walk.blocks):
            yield from self._again(again, block.first)
            for need, last in told:
                need.last = last
            self._want(walk.files, block.spans)
            numbers, starts, stops = _columns(block.spans)
            last = KEPT if block.kind == "kept" else block.last
            need = Need(block.first, numbers + first, starts, stops, last, None if block.kind == "single" else place)
            need.is_optional = block.kind == "optional"
            if block.kind == "kept":
                again.append((block.last, place, need))
            elif block.is_late:
                need.last = UNKNOWN
                told.append((need, block.last))
            yield need
        yield from self._again(again, walk.steps + 2)
        for need, last in told:
            need.last = last

    def _again(self, kept: list[tuple[int, int, Need]], step: int) -> Iterator[Need]:
        for one in sorted([one for one in kept if one[0] <= step], key=lambda one: one[:2]):
            kept.remove(one)
            if one[2].is_given_up:
                yield Need(one[0], one[2].numbers, one[2].starts, one[2].stops, KEPT, one[1])

    def _step(self, walk: Walk, plan: Plan, step: int) -> bool:
        """Read what a step needs; False if that cannot be."""
        live = [place for place, block in enumerate(walk.blocks) if block.first <= step <= block.last]
        spans = tuple(span for place in live for span in walk.blocks[place].spans)
        began = self.scheduler.now
        try:
            if walk.ahead:
                plan.reached(step + walk.ahead, walk.part)
            hold = self._kept(walk, plan, step, live)
        except (ReadError, WindowTooSmallError, ValueError) as error:
            self._may_be_small = self.scheduler.now - began > ROOM_S or self._is_planned_too_much(walk, step)
            self._explain(error, walk.files, spans)
            return False
        read = Read("with", walk.files, spans, walk.think_s)
        if hold is None:
            if spans:
                self._do(read)
        else:
            try:
                self._compare(hold, read)
            except (ReadError, ValueError) as error:
                self._explain(error, walk.files, spans)
                return False
        plan.passed(step)
        return True

    def _kept(self, walk: Walk, plan: Plan, step: int, live: Sequence[int]) -> Hold | None:
        """What a plan keeps for a step; all of it that has to be, if nothing went wrong."""
        blocks = [place for place in live if walk.blocks[place].spans]
        if not walk.is_strict:
            plan.wait(step)
            return plan.hold(blocks)
        with self._files[walk.files].window.lock:
            plan.wait(step)
            sure = [
                place
                for place in blocks
                if walk.blocks[place].kind == "block" and walk.blocks[place].last > walk.blocks[place].first
            ]
            hold = plan.hold(sure)
            if hold is None and not self.bucket.happened and walk.files not in self._closed:
                raise WrongError(f"step {step}: the plan does not keep all of {sure}")
            if hold is None or len(sure) == len(blocks):
                return hold
            hold.end()
            return plan.hold(blocks)

    def _is_planned_too_much(self, walk: Walk, step: int) -> bool:
        """Whether a window may be too small for what a plan keeps at a step: what others keep may lie across it."""
        window = self._files[walk.files].window
        if any(self._files[other.files].window is window for other in self.case.walks if other is not walk):
            return True
        live = [block for block in walk.blocks if block.first <= step <= block.last and block.spans]
        return sum(2 * self._cost(walk.files, block.spans, int(residency.GAP_BYTES)) + 2 * PAGE for block in live) > self._limit


_ACTIONS: dict[str, Callable[[WindowRun, Read], None]] = {
    "with": WindowRun._read,
    "begin": WindowRun._read,
    "sliced": WindowRun._read_slices,
    "abandon": WindowRun._abandon,
    "refetch": WindowRun._refetch,
    "peek": WindowRun._peek,
    "close": WindowRun._close_files,
}


def _columns(spans: Sequence[Span]) -> Extents:
    table = np.array(spans, np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


# Both kinds

KINDS = ("window", "loader")


def run_seed(kind: str, seed: int, say: Callable[[str], None] | None = None) -> Run:
    """Run the case of a seed. WrongError, HangError, or what the product raised, if it is wrong."""
    run: Run = LoaderRun(draw_case(seed), say) if kind == "loader" else WindowRun(draw_window_case(seed), say)
    run.run()
    return run
