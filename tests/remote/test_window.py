"""The window: what is held is there and right, the budget is kept, a plan fetches every byte once and lets go of it in time."""

import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import count
from tests.remote.double import Double, Fault

from penstock.errors import MissingError, WindowTooSmallError
from penstock.remote import window as window_module
from penstock.remote.objects import ObjectInfo
from penstock.remote.peers import Supply
from penstock.remote.plan import KEPT, Need, Plan
from penstock.remote.url import UrlPath, url_path
from penstock.remote.window import RemoteFiles, RemoteOptions, Window

PAGE = 4096
STEPS = count(120, 300)


class Data:
    """Objects in memory, and what they hold."""

    def __init__(self, host: str, sizes: Sequence[int]) -> None:
        self.bytes = [np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes() for size in sizes]
        self.files: list[tuple[UrlPath, ObjectInfo]] = []
        for number, data in enumerate(self.bytes):
            path = url_path(f"memory://{host}/object-{number}")
            path.objects.put(path.key, data)
            self.files.append((path, path.objects.head(path.key)))

    def log(self) -> list[tuple[str, int, int]]:
        """Switches the log of requests on, and gives it."""
        account = self.files[0][0].objects.account
        account.log = []
        return account.log


def arrays(ranges: Sequence[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = np.array(ranges, np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


@pytest.fixture
def data(request: pytest.FixtureRequest) -> Data:
    return Data(request.node.name.replace("[", "-").replace("]", ""), [300_000, 5, 1_000_000])


@pytest.fixture
def window(data: Data) -> Iterator[RemoteFiles]:
    files = RemoteFiles(data.files, window_bytes=200_000)
    yield files
    files.close()


def check(window: RemoteFiles, data: Data, ranges: Sequence[tuple[int, int, int]]) -> None:
    with window.hold(*arrays(ranges)):
        for number, start, stop in ranges:
            if stop > start:
                assert window.landings[number].read(start, stop) == data.bytes[number][start:stop]


def wait_until(predicate: Callable[[], bool]) -> None:
    """For less than the longest wait for a notification."""
    deadline = time.monotonic() + 30
    while not predicate():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_held_ranges_are_there_and_right(window: RemoteFiles, data: Data) -> None:
    check(window, data, [(0, 0, 10), (2, 999_990, 1_000_000), (1, 0, 5), (0, 5, 30_000), (0, 7, 7)])


def test_nothing_is_fetched_twice_while_it_is_there(window: RemoteFiles, data: Data) -> None:
    log = data.log()
    check(window, data, [(0, 1000, 2000), (0, 3000, 4000)])
    check(window, data, [(0, 1500, 3500)])
    check(window, data, [(0, 900, 4100)])
    fetched = sorted((start, stop) for method, _, start, stop in log if method == "GET")
    assert fetched == [(900, 1000), (1000, 4000), (4000, 4100)]


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from([0, 2]), st.integers(0, 300_000), st.integers(0, 20_000)), min_size=1, max_size=5),
        min_size=1,
        max_size=12,
    ),
    st.booleans(),
)
def test_any_holds_give_the_bytes_of_the_objects_within_the_budget(holds: list[list[tuple[int, int, int]]], whole: bool) -> None:
    data = Data("any", [300_000, 5, 1_000_000])
    released: list[int] = []
    window = RemoteFiles(data.files, window_bytes=300_000, whole_files=whole, on_release=released.append)
    for ranges in holds:
        cut = [(n, start, min(start + size, len(data.bytes[n]))) for n, start, size in ranges]
        check(window, data, cut)
        assert window.used_bytes <= 300_000
        assert sum(landing.resident() for landing in window.landings) <= 300_000
    assert window.most_bytes <= 300_000
    window.close()
    assert sum(landing.resident() for landing in window.landings) == 0


def test_a_hold_larger_than_the_window_is_refused(window: RemoteFiles) -> None:
    with pytest.raises(WindowTooSmallError, match="window_bytes=200000"), window.hold(*arrays([(2, 0, 500_000)])):
        pass
    assert window.used_bytes == 0


def test_large_requests_are_cut_into_slices_that_fit(window: RemoteFiles, data: Data) -> None:
    numbers, starts, stops = arrays([(2, i * 1000, i * 1000 + 1000) for i in range(900)])
    seen = []
    for part in window.slices(starts, stops):
        with window.hold(numbers[part], starts[part], stops[part]):
            seen += list(range(900))[part]
    assert seen == list(range(900))


def test_a_missing_object_is_told_and_leaves_the_window_usable(data: Data) -> None:
    path, info = data.files[0]
    gone = (path.with_name("gone"), ObjectInfo("gone", info.size, None, info.modified))
    window = RemoteFiles([gone, *data.files], window_bytes=100_000)
    for _ in range(2):
        with pytest.raises(MissingError, match="gone"), window.hold(*arrays([(0, 0, 10)])):
            pass
    assert window.used_bytes == 0
    with window.hold(*arrays([(1, 0, 10)])):
        assert window.landings[1].read(0, 10) == data.bytes[0][:10]
    window.close()


def test_the_rest_of_a_file_can_be_evicted_after_a_part_of_it_could_not_be_fetched(data: Data) -> None:
    window = RemoteFiles(data.files, window_bytes=300_000, whole_files=True)
    check(window, data, [(2, 0, 200_000)])
    path, _ = data.files[2]
    path.objects.delete(path.key)
    with pytest.raises(MissingError), window.hold(*arrays([(2, 500_000, 510_000)])):
        pass
    assert window.used_bytes > 0
    assert idle(window)
    check(window, data, [(0, 0, 250_000)])
    window.close()


def test_what_is_idle_in_a_hole_does_not_keep_a_read_from_its_room(data: Data) -> None:
    files = RemoteFiles(data.files, window_bytes=2 * PAGE)
    check(files, data, [(0, 3454, 3455)])
    check(files, data, [(0, 2372, 2672), (0, 4117, 4380)])  # two pages, or three if the byte between them stays
    files.close()


def test_what_a_plan_gives_up_in_a_hole_is_not_counted_any_more(data: Data) -> None:
    files = RemoteFiles(data.files, window_bytes=PAGE)
    plan = Plan(files.window, iter([Need(0, *arrays([(0, 42, 1600)]), last=5)]))
    check(files, data, [(0, 42, 1600)])
    check(files, data, [(0, 0, 1), (0, 1840, 2007)])
    plan.close()
    files.close()


def test_a_read_that_waits_for_room_is_told_if_its_files_are_closed(data: Data) -> None:
    shared = Window(PAGE)
    one, other = (RemoteFiles(data.files, window_bytes=PAGE, window=shared) for _ in range(2))
    errors: list[BaseException] = []

    def read() -> None:
        try:
            check(one, data, [(0, 100, 200)])
        except ValueError as error:
            errors.append(error)

    with other.hold(*arrays([(0, 0, 10)])):
        reader = threading.Thread(target=read)
        reader.start()
        wait_until(lambda: shared.num_waiting > 0)
        one.close()
        reader.join(60)
        assert [str(error) for error in errors] == ["the source is closed"]
    other.close()


def test_threads_that_need_more_than_fits_together_take_turns(data: Data) -> None:
    window = RemoteFiles(data.files, window_bytes=100_000)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(20):
                start = chance.randrange(900_000)
                check(window, data, [(2, start, start + 70_000)])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert failures == []
    assert window.most_bytes <= 100_000
    window.close()


def test_a_forked_child_begins_with_an_empty_window(window: RemoteFiles, data: Data) -> None:
    check(window, data, [(0, 0, 100_000)])
    child = os.fork()
    if child == 0:
        code = 1
        try:
            check(window, data, [(0, 50_000, 120_000)])
            code = 0 if window.used_bytes < 200_000 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    check(window, data, [(0, 0, 100_000)])


def test_refetched_bytes_are_fetched_again(window: RemoteFiles, data: Data) -> None:
    check(window, data, [(0, 0, 1000)])
    log = data.log()
    window.landings[0].write(0, b"x" * 1000)
    window.refetch(0)
    check(window, data, [(0, 0, 1000)])
    assert [(start, stop) for method, _, start, stop in log if method == "GET"] == [(0, 1000)]


def blocks(size: int, steps_each: int) -> Iterator[Need]:
    """An object of a million bytes read block after block, each for some steps."""
    before = None
    for number in range(1_000_000 // size):
        if before is not None:
            before.last = number * steps_each - 1
        before = Need(number * steps_each, *arrays([(2, number * size, (number + 1) * size)]))
        yield before


@pytest.mark.parametrize("whole", [False, True])
def test_a_plan_fetches_every_byte_once_and_lets_go_of_it_in_time(data: Data, whole: bool) -> None:
    if whole:  # one file for each block: then a file can go when its block is over
        data = Data("plan-whole", [50_000] * 20)
    window = RemoteFiles(data.files, window_bytes=180_000, whole_files=whole)
    log = data.log()

    def needs() -> Iterator[Need]:
        before = None
        for number in range(20):
            if before is not None:
                before.last = number * 3 - 1
            place = (number, 0, 50_000) if whole else (2, number * 50_000, number * 50_000 + 50_000)
            before = Need(number * 3, *arrays([place]))
            yield before

    plan = Plan(window.window, needs())
    for step in range(60):
        plan.wait(step)
        number = step // 3
        check(window, data, [(number, 10, 49_000) if whole else (2, number * 50_000 + 10, number * 50_000 + 49_000)])
        plan.passed(step)
        assert sum(landing.resident() for landing in window.landings) <= 180_000
    plan.close()
    ranges = sorted((key, start, stop) for method, key, start, stop in log if method == "GET")
    assert sum(stop - start for _, start, stop in ranges) == 1_000_000
    assert len(set(ranges)) == len(ranges)
    assert window.most_bytes <= 180_000
    window.close()


def test_a_plan_that_can_never_fit_says_so(window: RemoteFiles) -> None:
    needs = iter([Need(0, *arrays([(2, i * 60_000, (i + 1) * 60_000)])) for i in range(5)])
    plan = Plan(window.window, needs)
    with pytest.raises(WindowTooSmallError, match="step 0 needs at least"):
        plan.wait(0)
    plan.close()


def scattered(first: int, count: int) -> list[tuple[int, int, int]]:
    """Ten bytes of each of a number of pages, which is what they cost."""
    return [(2, 2 * PAGE * number, 2 * PAGE * number + 10) for number in range(first, first + count)]


def test_an_error_of_the_window_counts_the_pages_that_ranges_take(window: RemoteFiles) -> None:
    plan = Plan(window.window, iter([Need(0, *arrays(scattered(0, 60)), last=1)]))
    with pytest.raises(WindowTooSmallError, match=f"step 0 needs at least {60 * PAGE} bytes at once, window_bytes is 200000"):
        plan.wait(0)
    plan.close()
    with (
        pytest.raises(WindowTooSmallError, match=f"{60 * PAGE} bytes are needed at once"),
        window.hold(*arrays(scattered(0, 60))),
    ):
        pass


def test_an_error_of_a_plan_counts_what_others_hold(window: RemoteFiles) -> None:
    with window.hold(*arrays([(0, 0, 30 * PAGE)])):
        plan = Plan(window.window, iter([Need(0, *arrays(scattered(0, 20)), last=1)]))
        with pytest.raises(WindowTooSmallError, match=f"{20 * PAGE} bytes at once, others hold {30 * PAGE}, window_bytes"):
            plan.wait(0)
        plan.close()


def test_what_a_single_step_reads_and_does_not_fit_is_left_to_the_step(window: RemoteFiles, data: Data) -> None:
    too_many = Need(1, *arrays(scattered(0, 60)), last=1)
    plan = Plan(window.window, iter([Need(0, *arrays([(0, 0, 10)]), last=5), too_many, Need(2, *arrays([(0, 10, 20)]), last=2)]))
    for step in range(3):
        plan.wait(step)
        for part in window.slices(too_many.starts, too_many.stops) if step == 1 else ():
            check(window, data, scattered(0, 60)[part])
        plan.passed(step)
    assert plan.reached(2)
    plan.close()


def test_what_is_optional_is_kept_where_there_is_memory_and_gives_way_to_what_is_not(window: RemoteFiles) -> None:
    def need(start: int, *, is_optional: bool = False) -> Need:
        return Need(0, *arrays([(2, start, start + 80_000)]), last=3, is_optional=is_optional)

    plan = Plan(window.window, iter([need(0), need(100_000, is_optional=True), need(200_000), need(300_000, is_optional=True)]))
    plan.wait(0)
    assert plan.reached(0)
    with window.window.lock:
        kept = [one.start for one in window.window.residency.ranges_of(2) if one.plans]
    assert kept == [0, 200_000]
    plan.close()


def test_a_plan_does_not_fetch_again_what_it_gave_up_and_no_longer_needs(window: RemoteFiles, data: Data) -> None:
    log = data.log()
    plan = Plan(window.window, iter([Need(0, *arrays([(2, 0, 100_000)]), last=0), Need(1, *arrays([(0, 0, 10)]), last=1)]))
    plan.wait(0)
    with window.hold(*arrays([(2, 0, 10)])):
        pass  # now it is there, and not only being fetched
    with window.hold(*arrays([(0, 100_000, 290_000)])):
        plan.passed(0)
    plan.wait(1)
    plan.close()
    assert [(start, stop) for _, key, start, stop in log if key.endswith("object-2")] == [(0, 100_000)]


def test_a_read_beside_a_plan_that_fills_the_window_gets_its_room(window: RemoteFiles, data: Data) -> None:
    plan = Plan(window.window, blocks(45_000, 1))
    check(window, data, [(0, 0, 100_000)])
    for step in range(22):
        plan.wait(step)
        check(window, data, [(2, step * 45_000, step * 45_000 + 45_000)])
        plan.passed(step)
    plan.close()
    assert window.most_bytes <= 200_000


def test_a_read_across_the_end_of_what_a_plan_keeps_gets_its_room(window: RemoteFiles, data: Data) -> None:
    plan = Plan(window.window, iter([Need(0, *arrays([(2, 0, 150_000)]), last=5, block="first")]))
    plan.wait(0)
    check(window, data, [(2, 100_000, 250_000)])  # with all of what the plan keeps, it would be too much
    plan.wait(0)
    hold = plan.hold(["first"])
    assert hold is not None
    with hold:
        assert window.landings[2].read(0, 150_000) == data.bytes[2][:150_000]
    plan.close()
    assert window.most_bytes <= 200_000


def test_a_plan_that_waits_is_told_that_it_gave_something_up(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Window, "_limit", lambda self: 0)  # nothing comes: all is on its way
    files = RemoteFiles(data.files, window_bytes=2 * PAGE)
    needs = [Need(0, *arrays([(0, 0, 10)]), last=1), Need(0, *arrays([(2, 0, 2 * PAGE)]), last=1)]
    plan = Plan(files.window, iter(needs))

    def follow() -> None:
        with pytest.raises(ValueError, match="closed"):
            plan.wait(0)

    follower = threading.Thread(target=follow)
    follower.start()
    wait_until(lambda: files.window.num_waiting > 0)
    with pytest.raises(WindowTooSmallError), files.hold(*arrays([(2, 20 * PAGE, 30 * PAGE)])):
        pass
    wait_until(lambda: files.used_bytes == PAGE)  # the first need again
    files.close()
    follower.join(60)
    assert not follower.is_alive()


def test_two_plans_share_a_window(window: RemoteFiles, data: Data) -> None:
    plans = [Plan(window.window, blocks(45_000, 1)), Plan(window.window, blocks(45_000, 1))]
    for step in range(22):
        for plan in plans:
            plan.wait(step)
            check(window, data, [(2, step * 45_000, step * 45_000 + 45_000)])
            plan.passed(step)
    for plan in plans:
        plan.close()


def test_an_error_of_the_plan_ends_it_and_is_left_to_the_batch(window: RemoteFiles, data: Data) -> None:
    def needs() -> Iterator[Need]:
        yield Need(0, *arrays([(0, 0, 10)]))
        raise RuntimeError("no more")

    plan = Plan(window.window, needs())
    plan.wait(1)
    assert plan.reached(10)
    check(window, data, [(0, 0, 10), (2, 5, 10)])
    plan.close()


def test_a_closed_window_reads_nothing(window: RemoteFiles) -> None:
    window.close()
    window.close()
    with pytest.raises(ValueError, match="closed"), window.hold(*arrays([(0, 0, 1)])):
        pass


def test_options_are_sizes_in_words(data: Data) -> None:
    window = RemoteOptions(window_bytes="1MiB").open_files(data.files)
    assert window.window_bytes == 1 << 20
    assert window.landings[0].size == 300_000
    window.close()
    assert PAGE == 4096


def idle(window: RemoteFiles) -> bool:
    """Whether nobody keeps anything."""
    return window.window.residency.idle_bytes == window.used_bytes and window.window.residency.fetching == 0


def test_a_plan_over_scattered_ranges_lets_go_of_everything(data: Data) -> None:
    """Also of what was fetched only because it lies between two ranges."""
    chance = random.Random(1)
    window = RemoteFiles(data.files, window_bytes=600_000)

    def needs() -> Iterator[Need]:
        for step in range(STEPS):
            places = [chance.randrange(990_000) for _ in range(16)]
            yield Need(step, *arrays([(2, place, place + 100) for place in places]), last=step)

    plan = Plan(window.window, needs())
    for step in range(STEPS):
        plan.wait(step)
        plan.passed(step)
    plan.close()
    until = time.monotonic() + 120
    while window.window.residency.fetching and time.monotonic() < until:
        time.sleep(0.001)
    assert idle(window)
    window.close()


def test_a_read_does_not_wait_for_all_of_a_plan(window: RemoteFiles, data: Data) -> None:
    def needs() -> Iterator[Need]:
        for step in range(10_000):
            start = step % 90 * 10_000
            yield Need(step, *arrays([(2, start, start + 10_000)]), last=step)

    plan = Plan(window.window, needs())
    check(window, data, [(0, 0, 150_000)])
    assert window.requests < 100
    for step in range(50):
        plan.wait(step)
        check(window, data, [(2, step * 10_000, step * 10_000 + 10_000)])
        plan.passed(step)
    plan.close()


def test_small_ranges_take_small_pages_where_large_ones_were() -> None:
    data = Data("large-pages", [40_000_000])
    window = RemoteFiles(data.files, window_bytes=17_000_000)
    for low in range(0, 40_000_000, 8_000_000):
        check(window, data, [(0, low, low + 8_000_000)])
    for low in range(1_000_000, 40_000_000, 2_000_000):
        check(window, data, [(0, low, low + 100)])
        assert window.landings[0].resident() <= 17_000_000
    window.close()


def test_memory_stays_until_the_last_reader_of_a_closed_window_has_gone(window: RemoteFiles, data: Data) -> None:
    with window.hold(*arrays([(0, 0, 50_000)])):
        window.close()
        assert window.landings[0].read(0, 50_000) == data.bytes[0][:50_000]
    assert not window.landings[0].is_mapped
    assert window.used_bytes == 0


def kept_blocks(ranges: Sequence[tuple[int, int, int]]) -> Iterator[Need]:
    for number, one in enumerate(ranges):
        yield Need(number, *arrays([one]), last=KEPT, block=number)


def test_what_a_plan_keeps_gives_way_to_what_a_step_needs(window: RemoteFiles, data: Data) -> None:
    needs = list(kept_blocks([(2, i * 60_000, (i + 1) * 60_000) for i in range(8)]))
    plan = Plan(window.window, iter(needs))
    for step in range(8):
        plan.wait(step)
        check(window, data, [(2, step * 60_000, (step + 1) * 60_000)])
        plan.passed(step)
    assert [need.is_given_up for need in needs] == [True] * 5 + [False] * 3
    assert plan.hold([0]) is None
    plan.close()
    assert idle(window)


def test_what_was_kept_stays_for_the_next_plan(window: RemoteFiles, data: Data) -> None:
    log = data.log()
    for _ in range(2):
        plan = Plan(window.window, kept_blocks([(2, 0, 60_000), (2, 60_000, 120_000)]))
        plan.wait(1)
        check(window, data, [(2, 0, 120_000)])
        plan.close()
    assert len(log) == 2
    check(window, data, [(0, 0, 150_000)])  # unless its memory is needed


def test_a_plan_does_not_hold_what_could_not_be_fetched(data: Data) -> None:
    path, info = data.files[0]
    gone = (path.with_name("gone"), ObjectInfo("gone", info.size, None, info.modified))
    window = RemoteFiles([gone, *data.files], window_bytes=100_000)
    plan = Plan(window.window, kept_blocks([(0, 0, 10), (1, 0, 10)]))
    with pytest.raises(MissingError), window.hold(*arrays([(0, 0, 10)])):
        pass
    assert plan.hold([0]) is None
    hold = plan.hold([1])
    assert hold is not None
    with hold:
        assert window.landings[1].read(0, 10) == data.bytes[0][:10]
    plan.close()
    window.close()


def test_a_plan_does_not_hold_what_was_closed(data: Data) -> None:
    shared = Window(1_000_000)
    one, other = (RemoteFiles(data.files[i : i + 1], window_bytes=0, window=shared) for i in (0, 2))
    plan = Plan(shared, kept_blocks([(0, 0, 10), (1, 0, 10)]))
    with one.hold(*arrays([(0, 0, 10)])):
        pass
    one.close()
    assert plan.hold([0]) is None
    hold = plan.hold([1])
    assert hold is not None
    with hold:
        assert other.landings[0].read(0, 10) == data.bytes[2][:10]
    plan.close()
    other.close()


def test_a_thread_waits_for_no_window_while_it_holds_one_that_is_entered_later(data: Data) -> None:
    first, second = (RemoteFiles(data.files, window_bytes=100_000) for _ in range(2))
    are_held, may_end = threading.Event(), threading.Event()

    def fill() -> None:
        with first.hold(*arrays([(2, 0, 90_000)])):
            are_held.set()
            may_end.wait(300)

    thread = threading.Thread(target=fill)
    thread.start()
    assert are_held.wait(300)
    # The other thread may wait for the second window next: each would wait for the other.
    with (
        second.hold(*arrays([(2, 0, 10)])),
        pytest.raises(WindowTooSmallError),
        first.hold(*arrays([(0, 0, 90_000)])),
    ):
        pass
    may_end.set()
    thread.join()
    first.close()
    second.close()


def test_a_hold_that_was_begun_is_ended_if_the_window_is_closed_before_it_is_entered(data: Data) -> None:
    window = RemoteFiles(data.files, window_bytes=200_000)
    plan = Plan(window.window, iter([Need(0, *arrays([(0, 0, 10_000)]), block="all")]))
    plan.wait(0)
    hold = plan.hold(["all"])
    assert hold is not None
    window.close()
    with pytest.raises(ValueError, match="closed"), hold:
        pass
    assert not window.window._holders
    plan.close()


def test_a_thread_with_the_ident_of_one_that_ended_holds_nothing(window: RemoteFiles) -> None:
    hold = window.hold(*arrays([(0, 0, 10_000)]))
    holders: list[bool] = []
    for work in (hold.begin, *[lambda: holders.append(window.window.is_holder())] * 100):  # the system gives idents again
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert holders == [False] * 100
    hold.end()
    assert not window.window._holders


def test_a_thread_that_holds_something_waits_for_requests_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """They end by themselves, whatever it holds."""
    gate = threading.Event()
    with Double() as server:
        server.put("object", bytes(300_000))
        server.plan("GET", "object", Fault(gate=gate), after=1)
        path = url_path(f"{server.base}/object", server.storage_options)
        files = RemoteFiles([(path, path.objects.head(path.key))], window_bytes=200_000)
        wait = files.window._wait

        def let_go_and_wait() -> None:
            gate.set()
            wait()

        monkeypatch.setattr(files.window, "_wait", let_go_and_wait)
        with files.hold(*arrays([(0, 0, PAGE)])):
            other = files.hold(*arrays([(0, 25 * PAGE, 45 * PAGE)]))
            other.begin()
            other.end()  # its request is under way, and nobody wants it any more
            with files.hold(*arrays([(0, 45 * PAGE, 73 * PAGE)])):
                assert gate.is_set()
        files.close()


def test_nothing_is_left_of_files_that_were_closed(data: Data) -> None:
    shared = Window(1_000_000)
    keeper = RemoteFiles(data.files, window_bytes=0, window=shared)
    released: list[weakref.ref[object]] = []
    for _ in range(3):
        owner = Owner()
        files = RemoteFiles(data.files, window_bytes=0, window=shared, on_release=owner.forget)
        hold = files.hold(*arrays([(0, 0, 10)]))
        with hold:
            files.close()
        released.append(weakref.ref(owner))
        del owner, files, hold
    assert [one() for one in released] == [None] * 3
    check(keeper, data, [(0, 0, 10), (2, 5, 90)])
    keeper.close()


class Owner:
    """Something that wants to know when bytes go."""

    def forget(self, number: int) -> None:
        assert number == 0


def test_a_plan_does_not_look_ahead_for_nothing(window: RemoteFiles) -> None:
    seen = 0

    def needs() -> Iterator[Need]:
        nonlocal seen
        yield Need(0, *arrays([(0, 0, 10)]), last=KEPT)
        for step in range(100_000):
            seen += 1
            yield Need(step, *arrays([]), last=step)

    plan = Plan(window.window, needs())
    for step in range(500):
        plan.wait(step)
        assert plan.reached(step)
        plan.passed(step)
        assert step < seen < step + 200
    plan.close()


def test_memory_that_a_request_writes_to_outlives_a_close(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_module, "CLOSE_S", 0.01)
    begun, gate = threading.Event(), threading.Event()
    bring = Supply.bring

    def late(self: Supply, *arguments: Any) -> None:
        begun.set()
        assert gate.wait(60)
        bring(self, *arguments)

    monkeypatch.setattr(Supply, "bring", late)
    files = RemoteFiles(data.files, window_bytes=200_000)
    hold = files.hold(*arrays([(0, 0, 50_000)]))
    hold.begin()
    assert begun.wait(60)
    (thread,) = (one for one in threading.enumerate() if one.name == "penstock-fetch" and one.is_alive())
    hold.end()
    files.close()
    assert files.used_bytes > 0
    gate.set()
    thread.join(60)
    assert files.used_bytes == 0
    assert not files.landings[0].is_mapped


def test_threads_that_fetch_last_as_long_as_a_plan(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_module, "IDLE_S", 600)
    used: set[threading.Thread] = set()
    bring = Supply.bring

    def noted(self: Supply, *arguments: Any) -> None:
        used.add(threading.current_thread())
        bring(self, *arguments)

    monkeypatch.setattr(Supply, "bring", noted)
    files = RemoteFiles(data.files, window_bytes=80_000)
    plan = Plan(files.window, (Need(step, *arrays([(2, 40_000 * step, 40_000 * (step + 1))]), last=step) for step in range(20)))
    for step in range(20):
        plan.wait(step)
        check(files, data, [(2, 40_000 * step, 40_000 * (step + 1))])
        plan.passed(step)
    assert len(used) <= 3  # as many as ranges at a time, of which two fit
    assert all(thread.is_alive() for thread in used)
    plan.close()
    for thread in used:
        thread.join(60)
    assert not any(thread.is_alive() for thread in used)
    files.close()
