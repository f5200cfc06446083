"""O11: a writer that dies before any of its requests changes nothing that readers see; gc finds what it left."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli import warm
from tests.effort import count, every
from tests.remote.double import Double
from tests.remote.store_kit import contents, memory_url

import penstock as pen
from penstock import Field
from penstock.remote.url import UrlPath, url_path
from penstock.store import open_store

FIELDS = {"x": Field("i4"), "t": Field.text()}


class DeadError(Exception):
    """The process is no more."""


class Fatal(list[Any]):
    """A log of requests whose writer dies instead of making one of them, or any after it."""

    def __init__(self, survives: int) -> None:
        super().__init__()
        self._left = survives

    def append(self, request: Any) -> None:
        self._left -= 1
        if self._left < 0:
            raise DeadError
        super().append(request)


def first(url: UrlPath) -> None:
    with pen.create(url, FIELDS, chunk_records=3) as out:
        out.extend({"x": range(8), "t": [str(i) for i in range(8)]})


def extend(url: UrlPath) -> None:
    with pen.open(url, mode="a", threads=1) as out:
        out.extend({"x": range(20, 27), "t": ["new"] * 7})


def change(url: UrlPath) -> None:
    with pen.open(url, mode="a", threads=1) as out:
        out.update([1, 4], {"t": ["one", "four"]})
        out.delete([0, 3])


def rebalance(url: UrlPath) -> None:
    pen.rebalance(url, threads=1)


def collect(url: UrlPath) -> None:
    pen.gc(url, keep=1, keep_hours=0)


def seen(url: UrlPath) -> list[tuple[int, str]]:
    with open_store(url) as store:
        batch = store[:]
        return list(zip(batch["x"].tolist(), batch["t"].to_list(), strict=True))


def copy(url: UrlPath) -> UrlPath:
    made = memory_url()
    for name, data in contents(url).items():
        made.objects.put((made / name).key, data)
    return made


@pytest.mark.parametrize("action", [extend, change, rebalance, collect])
def test_o11_killed_before_every_request(action: Callable[[UrlPath], None]) -> None:
    base = memory_url()
    first(base)
    change(base)
    before = seen(base)
    whole = copy(base)
    action(whole)
    after = seen(whole)
    outcomes, killed = [], 0
    while True:
        url = copy(base)
        url.objects.account.log = Fatal(killed)
        try:
            action(url)
            break
        except DeadError:
            killed += count(2, 1)
        finally:
            url.objects.account.log = None
        outcomes.append(seen(url))
        assert outcomes[-1] in (before, after)
        assert pen.verify(url) == []
        extend(url)  # the next writer goes on, whatever was left
        assert seen(url) == outcomes[-1] + [(i, "new") for i in range(20, 27)]
        assert pen.gc(url).files == ()
        pen.gc(url, keep=1, keep_hours=0)
        with open_store(url) as store:
            named = len(store.manifest.chunks) + len(store.manifest.redirects) + 1
        assert len(contents(url)) == named
        assert seen(url) == outcomes[-1] + [(i, "new") for i in range(20, 27)]
    assert killed > 4
    assert seen(url) == after
    # Before the commit it is the old state, after it the new one.
    assert outcomes == sorted(outcomes, key=lambda state: state == after and before != after)


def test_o11_killed_before_every_request_of_a_new_store() -> None:
    killed = 0
    while True:
        url = memory_url()
        url.objects.account.log = Fatal(killed)
        try:
            first(url)
            break
        except DeadError:
            killed += 1
        finally:
            url.objects.account.log = None
        assert not any(name.endswith(".json") for name in contents(url))
        first(url)
        assert len(seen(url)) == 8
    assert killed > 4


KILLED = """
import json, os, sys
import penstock as pen
from penstock.remote.url import url_path
url, options, survives = json.loads(sys.argv[1])
place = url_path(url, options)

class Fatal(list):
    def append(self, request):
        super().append(request)
        if len(self) > survives:
            os._exit(9)

with pen.open(place, mode="a", single_writer=True) as out:
    place.objects.account.log = Fatal()
    out.extend({"x": range(20, 27), "t": ["new"] * 7})
"""


def test_o11_a_process_that_is_gone_in_the_middle() -> None:
    with Double() as double:
        url = url_path(f"{double.base}/a.pen", double.storage_options)
        try:
            first(url)
            before = seen(url)
            for survives in every(3, range(20)):
                arguments = json.dumps([str(url), double.storage_options, survives])
                done = warm.run([sys.executable, "-c", KILLED, arguments], cwd=Path(__file__).parents[2], timeout=600, check=False)
                if done.returncode == 0:
                    break
                assert done.returncode == 9
                assert seen(url) == before
            assert done.returncode == 0
            assert survives > 3
            assert seen(url) == before + [(i, "new") for i in range(20, 27)]
            pen.gc(url, keep=1, keep_hours=0)
            assert sum("/chunk/" in key for key in list(double.keys())) == 3 + 3
        finally:
            url.objects.close()
