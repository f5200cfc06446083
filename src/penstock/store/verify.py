"""verify: every byte of a generation checked and every record of it decoded, and what is wrong named."""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from penstock.errors import ReadError
from penstock.interfaces import IntArray
from penstock.remote.url import UrlPath
from penstock.store.format import as_location
from penstock.store.fragment import run_tasks
from penstock.store.generation import load_redirects
from penstock.store.reader import Store, open_store
from penstock.store.row_map import Residents, residents_of
from penstock.store.writer import Progress

__all__ = ["Problem", "verify"]

MOST_CHUNKS = 16
"""Chunks of a task on an executor, at most: worth opening the store for."""
FEWEST_TASKS = 32
MOST_RECORDS = 1 << 16
"""Records of a field that are decoded at a time, at most,"""
MOST_BYTES = 64 << 20
"""and their bytes."""
MOST_PROBLEMS = 100
"""Records of a chunk that are named because they do not decode, at most: a hostile store may have any number of them."""


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
    decode: bool = True,
) -> list[Problem]:
    """Check every index and page of a generation and decode every record; returns what is wrong, naming file, field and record (or
    the rows of a page), or an empty list: then every record can be read as :func:`~penstock.open` reads it unless told otherwise.

    Right checksums say that bytes are as they were written, not that a writer, or a stranger, wrote what can be read. Where it is
    known who wrote the store, ``decode=False`` stops there. A chunk needs 64 MiB
    of memory, or as much as its largest record. With an ``executor``, any ``concurrent.futures.Executor``, runs of chunks are
    checked in its threads, processes or machines.

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
        chunks = store.manifest.chunks
        most = 1 if executor is None else max(1, min(MOST_CHUNKS, len(chunks) // FEWEST_TASKS))
        runs = [range(low, min(len(chunks), low + most)) for low in range(0, len(chunks), most)]
        try:
            lives = residents_of(store.manifest, load_redirects(location, store.manifest), runs) if decode else [{} for _ in runs]
        except ReadError as error:
            return [Problem(str(location), str(error))]
        found: dict[int, list[Problem]] = {}
        for run, problems in run_tasks(((_Check(store, here), run) for here, run in zip(lives, runs, strict=True)), executor):
            found[run.start] = problems
            if progress is not None:
                for place in run:
                    progress(chunks[place].rows, chunks[place].size)
        return [problem for low in sorted(found) for problem in found[low]]


@dataclass(frozen=True)
class _Check:
    """What is called in the workers: it is pickled, and opens the store there. Chunks without residents are not decoded."""

    store: Store
    lives: Mapping[int, Residents]

    def __call__(self, places: range) -> list[Problem]:
        return [problem for place in places for problem in _check_chunk(self.store, place, self.lives.get(place, Residents()))]


def _check_chunk(store: Store, place: int, lives: Residents) -> list[Problem]:
    chunk = store.manifest.chunks[place]
    file = f"{store.path}/{chunk.file}"
    try:
        bad = store.chunks.verify_chunk(place)
        found = [what for _, what in bad]
        damaged = {number for number, _ in bad}  # their records are not tried: whatever is wrong with them comes of that
        with store.chunks.hold_chunk(place):
            wrong = list(islice(_wrong_records(store, place, lives, damaged), MOST_PROBLEMS + 1))
        found += wrong[:MOST_PROBLEMS] + ["more records cannot be read"] * (len(wrong) > MOST_PROBLEMS)
    except ReadError as error:
        found = [str(error)]
    return [Problem(file, what.removeprefix(f"{file}: ")) for what in found]


def _wrong_records(store: Store, place: int, lives: Residents, damaged: set[int]) -> Iterator[str]:
    """What is wrong with records whose pages are right."""
    for name, number in store.manifest.numbers.items():
        if number not in damaged:
            for ids in lives.ids(number, MOST_RECORDS):
                here = ids[store.chunks.chunks_of(name, ids) == place]
                yield from _wrong_among(store, name, here)


def _wrong_among(store: Store, name: str, ids: IntArray) -> Iterator[str]:
    """What is wrong with each of these records of a field that cannot be read; found by halves."""
    left = [ids]
    while left:
        part = left.pop()
        try:
            for some in _parts(store, name, part):
                store.chunks.read_field(name, some, {})
        except ReadError as error:
            if part.size > 1:
                left += [part[part.size // 2 :], part[: part.size // 2]]
            else:
                yield _in_words(error, name, int(part[0]))


def _parts(store: Store, name: str, ids: IntArray) -> Iterator[IntArray]:
    """Ids, as many at a time as fit into the memory that there is for them."""
    field = store.manifest.fields[name]
    sizes = np.full(ids.size, field.stride if field.is_fixed else 0, np.int64)
    if not field.is_fixed and ids.size:
        sizes = store.chunks.measure(name, ids)
    ends = np.cumsum(np.maximum(sizes, 0))
    low = 0
    while low < ids.size:
        before = int(ends[low - 1]) if low else 0
        high = max(low + 1, int(np.searchsorted(ends, before + MOST_BYTES, side="right")))
        yield ids[low:high]
        low = high


def _in_words(error: ReadError, name: str, record: int) -> str:
    text = str(error)
    return text if f"record {record}" in text else f"field {name!r}, record {record}: {text}"
