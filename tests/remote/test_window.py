"""The window: what is held is there and right, the budget is kept, a plan fetches every byte once and lets go of it in time."""

import os
import random
import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import MissingError, WindowTooSmallError
from penstock.remote.objects import ObjectInfo
from penstock.remote.plan import Need, Plan
from penstock.remote.url import UrlPath, url_path
from penstock.remote.window import RemoteFiles, RemoteOptions

PAGE = 4096


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
        thread.join(60)
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

    plan = Plan(window, needs())
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
    plan = Plan(window, needs)
    with pytest.raises(WindowTooSmallError, match="step 0 needs at least"):
        plan.wait(0)
    plan.close()


def test_a_read_beside_a_plan_that_fills_the_window_gets_its_room(window: RemoteFiles, data: Data) -> None:
    plan = Plan(window, blocks(45_000, 1))
    check(window, data, [(0, 0, 100_000)])
    for step in range(22):
        plan.wait(step)
        check(window, data, [(2, step * 45_000, step * 45_000 + 45_000)])
        plan.passed(step)
    plan.close()
    assert window.most_bytes <= 200_000


def test_two_plans_share_a_window(window: RemoteFiles, data: Data) -> None:
    plans = [Plan(window, blocks(45_000, 1)), Plan(window, blocks(45_000, 1))]
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

    plan = Plan(window, needs())
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
    return window._residency.idle_bytes == window.used_bytes and window._residency.fetching == 0


def test_a_plan_over_scattered_ranges_lets_go_of_everything(data: Data) -> None:
    """Also of what was fetched only because it lies between two ranges."""
    chance = random.Random(1)
    window = RemoteFiles(data.files, window_bytes=600_000)

    def needs() -> Iterator[Need]:
        for step in range(300):
            places = [chance.randrange(990_000) for _ in range(16)]
            yield Need(step, *arrays([(2, place, place + 100) for place in places]), last=step)

    plan = Plan(window, needs())
    for step in range(300):
        plan.wait(step)
        plan.passed(step)
    plan.close()
    until = time.monotonic() + 20
    while window._residency.fetching and time.monotonic() < until:
        time.sleep(0.001)
    assert idle(window)
    window.close()


def test_a_read_does_not_wait_for_all_of_a_plan(window: RemoteFiles, data: Data) -> None:
    def needs() -> Iterator[Need]:
        for step in range(10_000):
            start = step % 90 * 10_000
            yield Need(step, *arrays([(2, start, start + 10_000)]), last=step)

    plan = Plan(window, needs())
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
