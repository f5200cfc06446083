"""O10: two writers, many commits each. Every record is there once, and every commit is a generation."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.cli import warm
from tests.effort import count
from tests.remote.double import Double
from tests.remote.store_kit import memory_url

import penstock as pen
from penstock import Field
from penstock.remote.url import UrlPath, url_path
from penstock.store import open_store

COMMITS = count(30, 100)
FIELDS = {"writer": Field("i4"), "number": Field("i4"), "text": Field.text()}

WRITER = """
import json, sys
import penstock as pen
url, options, writer, commits = json.loads(sys.argv[1])
with pen.open(url, mode="a", storage_options=options) as out:
    for number in range(commits):
        count = 1 + (writer + number) % 3
        given = out.extend({"writer": [writer] * count, "number": [number] * count, "text": [f"{writer}-{number}"] * count})
        out.commit()
        assert len(out.last_range) == count and out.last_range.start >= given.start
print("done")
"""


def check(url: UrlPath, writers: int, commits: int) -> None:
    with open_store(url) as store:
        assert store.generation == 1 + writers * commits
        assert store.generations() == list(range(1, 2 + writers * commits))
        batch = store[:]
        expected = sorted((w, n) for w in range(writers) for n in range(commits) for _ in range(1 + (w + n) % 3))
        assert sorted(zip(batch["writer"].tolist(), batch["number"].tolist(), strict=True)) == expected
        assert batch["text"].to_list() == [f"{w}-{n}" for w, n in zip(batch["writer"], batch["number"], strict=True)]
        for writer in range(writers):  # in the order in which they were written
            numbers = batch["number"][batch["writer"] == writer]
            assert np.all(np.diff(numbers) >= 0)
        lengths = []
        for generation in range(1, store.generation + 1, 17):
            with open_store(url, generation=generation) as older:
                lengths.append(len(older))
        assert lengths == sorted(lengths)
    assert pen.verify(url) == []


@pytest.mark.parametrize("writers", [2, 4])
@pytest.mark.sampled(2)
def test_o10_writers_in_threads(writers: int) -> None:
    url = memory_url()
    pen.create(url, FIELDS).__exit__(None, None, None)
    commits, failures = 2 * COMMITS // writers, []

    def write(writer: int) -> None:
        try:
            with pen.open(url, mode="a", threads=1) as out:
                for number in range(commits):
                    count = 1 + (writer + number) % 3
                    text = [f"{writer}-{number}"] * count
                    out.extend({"writer": [writer] * count, "number": [number] * count, "text": text})
                    out.commit()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert failures == []
    check(url, writers, commits)


def test_o10_writers_in_processes() -> None:
    import json

    with Double() as double:
        url = url_path(f"{double.base}/deep/a.pen", double.storage_options)
        try:
            pen.create(url, FIELDS).__exit__(None, None, None)
            children = [
                warm.popen(
                    [sys.executable, "-c", WRITER, json.dumps([str(url), double.storage_options, writer, COMMITS])],
                    cwd=Path(__file__).parents[2],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
                for writer in range(2)
            ]
            for child in children:
                printed, _ = child.communicate(timeout=600)
                assert printed == "done\n"
            check(url, 2, COMMITS)
        finally:
            url.objects.close()
