"""verify: every byte of a generation checked, and what is wrong named."""

import os
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from penstock.errors import ReadError
from penstock.remote.url import UrlPath
from penstock.store.fragment_run import run_tasks
from penstock.store.layout import CHUNK_DIRECTORY, chunk_name
from penstock.store.location import as_location
from penstock.store.snapshot import Store, open_store
from penstock.store.writer import Progress

__all__ = ["Problem", "verify"]

MOST_CHUNKS = 16
"""So many chunks make a task on an executor: worth opening the store for."""
FEWEST_TASKS = 32


@dataclass(frozen=True)
class Problem:
    """Something wrong in a store: where, and what."""

    file: str
    what: str


def verify(
    path: str | os.PathLike[str] | UrlPath,
    *,
    generation: int | None = None,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
) -> list[Problem]:
    """Check every record and index of a generation; returns what is wrong, naming file, field and rows, or an empty list.

    With an ``executor``, any ``concurrent.futures.Executor``, runs of chunks are checked in its threads, processes or machines.

    >>> import tempfile, numpy as np, penstock as pen
    >>> path = tempfile.mkdtemp() + "/x.pen"
    >>> pen.convert({"x": np.arange(100)}, path)
    >>> pen.verify(path)
    []
    """
    location = as_location(path, storage_options)
    try:
        store = open_store(location, generation=generation)
    except ReadError as error:
        return [Problem(str(location), str(error))]
    with store:
        chunks = store._manifest.chunks
        most = 1 if executor is None else max(1, min(MOST_CHUNKS, len(chunks) // FEWEST_TASKS))
        places = [range(low, min(len(chunks), low + most)) for low in range(0, len(chunks), most)]
        found: dict[int, list[Problem]] = {}
        check = _Check(store)
        for run, problems in run_tasks(((check, run) for run in places), executor):
            found[run.start] = problems
            if progress is not None:
                for place in run:
                    progress(chunks[place].rows, chunks[place].size)
        return [problem for low in sorted(found) for problem in found[low]]


@dataclass(frozen=True)
class _Check:
    """What is called in the workers: it is pickled, and opens the store there."""

    store: Store

    def __call__(self, places: range) -> list[Problem]:
        return [problem for place in places for problem in _check_chunk(self.store, place)]


def _check_chunk(store: Store, place: int) -> list[Problem]:
    chunk = store._manifest.chunks[place]
    file = f"{store.path}/{CHUNK_DIRECTORY}/{chunk_name(chunk.writer, chunk.serial)}"
    try:
        found = store._verify_chunk(place)
    except ReadError as error:
        found = [str(error)]
    return [Problem(file, what.removeprefix(f"{file}: ")) for what in found]
