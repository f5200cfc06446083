"""What holds for every test: nothing is left behind, and properties are tried on the same examples in every run."""

import functools
import gc
import os
import signal
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer.testing
from hypothesis import HealthCheck, settings
from tests.cli import warm
from tests.effort import is_campaign

from penstock.formats.hdf5 import shared_process
from penstock.remote.url import url_path
from penstock.testing import OrderSuite, ResumeSuite, SourceSuite

# A shell that starts the tests in the background has SIGINT ignored, and every program that they start would inherit that.
# A signal that is handled here has its default in programs started from here.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Hundreds of programs that tests start import penstock: with its bytecode on disk they need half the time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Every client of an object store reads all certificates of the machine, 15 ms each time: here, and in programs, there is one.
os.environ |= {"SSL_CERT_FILE": str(Path(__file__).with_name("authority.pem")), "SSL_CERT_DIR": os.devnull}

# A command line is made once, and not whenever a test runs a command: 20 ms each time.
typer.testing._get_command = functools.cache(typer.testing._get_command)  # type: ignore[attr-defined]

PATIENCE_S = 60

# The first profile is what make test runs. In the other one properties are tried on many more examples, other ones each time, and
# tests that take a sample take everything (see tests/effort.py): make campaign, or pytest --hypothesis-profile=campaign
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=6, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("campaign", settings.get_profile("ci"), derandomize=False, max_examples=1000)
settings.load_profile("ci")

# What sources, orders and loaders inherit is the same code for all of them. Every suite tries what is named here, and an eighth of
# the rest (orders and loaders: a quarter), another part for every suite and every order; in a campaign everything.
ALWAYS: dict[type, set[Callable[..., None]]] = {
    SourceSuite: {
        SourceSuite.test_every_record_is_right_by_itself,
        SourceSuite.test_batches_are_right_whatever_the_ids,
    },
    OrderSuite: {
        OrderSuite.test_seek_gives_a_slice_of_the_whole,
        OrderSuite.test_at_gives_the_ids_of_any_positions,
        OrderSuite.test_epoch_holds_every_record_once,
        OrderSuite.test_inverse_undoes_the_order,
    },
    ResumeSuite: {
        ResumeSuite.test_runs_are_equal,
        ResumeSuite.test_any_step_is_found_by_itself,
        ResumeSuite.test_every_place_resumes_to_the_same_batches,
        ResumeSuite.test_states_of_other_runs_are_refused,
    },
}
STRIDES = {SourceSuite: 8, OrderSuite: 4, ResumeSuite: 4}
TURNS = {
    test: (turn, STRIDES[suite])
    for suite, always in ALWAYS.items()
    for turn, test in enumerate(one for name, one in vars(suite).items() if name.startswith("test_") and one not in always)
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Take a sample of what many suites inherit, and of tests that say so."""
    _forget_modules()
    if is_campaign():
        return
    seen: Counter[tuple[str, str]] = Counter()
    items[:] = [item for item in items if not isinstance(item, pytest.Function) or (_is_taken(item) and _is_drawn(item, seen))]


def _forget_modules() -> None:
    """What was imported is not looked at by the garbage collector any more, here and in forks: half a million with torch."""
    gc.collect()
    gc.freeze()


def _is_taken(item: pytest.Function) -> bool:
    found = TURNS.get(getattr(item.function, "__func__", item.function))
    if found is None or item.parent is None:
        return True
    turn, stride = found
    suite = zlib.crc32(item.parent.nodeid.encode())
    parameters = sum(item.callspec.indices.values()) if hasattr(item, "callspec") else 0
    return (suite + parameters + turn) % stride == 0


def _is_drawn(item: pytest.Function, seen: Counter[tuple[str, str]]) -> bool:
    """Whether a case of a test with the mark ``sampled`` is one of the sample."""
    mark = item.get_closest_marker("sampled")
    if mark is None or item.parent is None:
        return True
    test = (item.parent.nodeid, item.originalname)
    seen[test] += 1
    return (seen[test] - 1) % mark.args[0] == 0


def _left_open() -> set[tuple[str, str]]:
    # One process reads HDF5 for all tests, and two start the programs of them.
    found, kept = set(), {str(number) for number in (*shared_process().descriptors, *warm.descriptors())}
    for number in set(os.listdir("/proc/self/fd")) - kept:
        try:
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
        except FileNotFoundError:  # the descriptor of this very listing
            continue
    return found


@pytest.fixture(scope="session", autouse=True)
def obstore_is_running() -> None:
    """The threads of obstore last as long as the process: they are started before the first test."""
    url_path("memory://start").objects.put("a", b"")


@pytest.fixture(scope="session", autouse=True)
def sidecars_are_not_in_the_home_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    directory = tmp_path_factory.mktemp("index")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.formats.sidecar.cache_directory", lambda: directory)
        yield


@pytest.fixture(scope="session")
def csv_was_read() -> None:
    """pyarrow keeps a pipe for signals from the first CSV on that it reads in the main thread: it is there before a test."""
    from pyarrow import BufferReader, csv

    csv.read_csv(BufferReader(b"x\n1\n"))


@pytest.fixture(autouse=True)
def leak_fence(obstore_is_running: None) -> Iterator[None]:
    """Threads and descriptors are the same after every test as before it."""
    threads, files = set(threading.enumerate()), _left_open()
    yield
    threads_left, files_left = set(threading.enumerate()) - threads, _left_open() - files
    if not threads_left and not files_left:
        return
    gc.collect()  # a caught exception holds its frames, and they what they used, in a circle
    # What was told to end or to close, such as the thread of a progress bar or a connection, may need a moment on a busy machine.
    until = time.monotonic() + PATIENCE_S
    for late in set(threading.enumerate()) - threads:
        late.join(max(0, until - time.monotonic()))
    while _left_open() - files and time.monotonic() < until:
        time.sleep(0.01)
    assert {t.name for t in set(threading.enumerate()) - threads} == set()
    assert _left_open() - files == set()
