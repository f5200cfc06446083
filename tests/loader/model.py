"""What a loader must deliver, in plain lists, and how tests look at what it does deliver."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

import penstock as pen
from penstock.batch import Ragged
from penstock.formats.array import ArraySource
from penstock.order import BlockShuffle, Order, Random, Sequential, Shuffle, Sliding
from penstock.stream import RecordStream

TAILS = ("keep", "drop", "pad", "wrap")
WORLDS = (1, 2, 3, 4, 8)
SIZES = (0, 1, 2, 3, 5, 97)
KINDS = {"plain": (0, None), "native": (2, None), "threads": (2, lambda batch: batch)}
"""Threads and transform of a loader, by who makes its batches."""

Cell = tuple[int, int] | None
"""An epoch and a position; None fills a batch up."""


def naive_batches(
    n: int | Callable[[int], int], size: int, tail: str, *, epoch: int = 0, position: int = 0
) -> Iterator[list[Cell]]:
    """The batches of the whole job from a place on, without end, or until epochs have none; epochs have ``n`` samples each, or
    as many as a function says.
    """
    length_of = n if callable(n) else lambda _: n
    if tail == "wrap":
        yield from _wrapped(length_of, size, epoch, position)
        return
    while True:
        rest: list[Cell] = [(epoch, p) for p in range(position, length_of(epoch))]
        batches = [rest[low : low + size] for low in range(0, len(rest), size)]
        if batches and len(batches[-1]) < size:
            if tail == "drop":
                batches.pop()
            elif tail == "pad":
                batches[-1] += [None] * (size - len(batches[-1]))
        if not batches and position == 0:
            return
        yield from batches
        epoch, position = epoch + 1, 0


def _wrapped(length_of: Callable[[int], int], size: int, epoch: int, position: int) -> Iterator[list[Cell]]:
    while length_of(epoch) > 0:
        batch: list[Cell] = []
        for _ in range(size):
            batch.append((epoch, position))
            epoch, position = (epoch, position + 1) if position + 1 < length_of(epoch) else (epoch + 1, 0)
        yield batch


def refuses(n: int, size: int, tail: str) -> bool:
    """Whether a loader would drop every epoch whole, which it refuses."""
    return tail == "drop" and 0 < n < size


def naive_place(n: int, size: int, tail: str, batches: list[list[Cell]]) -> tuple[int, int]:
    """Where a run that began at the beginning stands after those batches."""
    cells = [cell for cell in batches[-1] if cell is not None] if batches else []
    if not cells:
        return 0, 0
    epoch, position = cells[-1]  # type: ignore[misc]
    left = n - position - 1
    is_over = left == 0 or (tail == "drop" and left < size)
    return (epoch + 1, 0) if is_over else (epoch, position + 1)


@lru_cache
def _line(order: Order, epoch: int) -> list[int]:
    ids: list[int] = order.indices(epoch, 0, len(order)).tolist()
    return ids


def naive_ids(order: Order, cells: list[Cell]) -> list[int | None]:
    """Record ids of a batch."""
    return [None if cell is None else _line(order, cell[0])[cell[1]] for cell in cells]


def delivered_ids(batch: Any) -> list[int | None]:
    """Record ids of a batch with a field ``id``, None where it is only filled up."""
    valid = batch.get("valid", np.ones(len(batch["id"]), np.bool_))
    return [int(i) if good else None for i, good in zip(batch["id"], valid, strict=True)]


def make_source(n: int, *, texts: bool = False) -> ArraySource:
    """Records that tell their id in every field."""
    columns: dict[str, Any] = {"x": np.arange(n, dtype=np.int64) * 10, "pair": np.arange(2 * n, dtype=np.float32).reshape(n, 2)}
    if texts:
        columns["text"] = Ragged.from_items([f"record {i}" * (i % 3) for i in range(n)], dtype="u1", kind="text")
    return ArraySource(columns, threads=1)


def make_orders(n: int, seed: int = 7) -> dict[str, Order]:
    """One of each kind."""
    orders: dict[str, Order] = {
        "sequential": Sequential(n),
        "shuffle": Shuffle(n, seed=seed),
        "blocks": BlockShuffle(n, block=5, window=2, lanes=2, seed=seed),
        "random": Random(n, seed=seed),
    }
    if n > 0:
        orders["sliding"] = Sliding(n, window=min(3, n), stride=min(2, n))
    return orders


def make_stream(n: int, kind: str = "shuffle", *, seed: int = 7, texts: bool = False) -> RecordStream:
    """Records in an order."""
    return RecordStream(make_source(n, texts=texts), make_orders(n, seed)[kind])


def make_loader(kind: str, n: int = 97, size: int = 8, **options: Any) -> pen.Loader:
    """A loader whose batches tell their ids."""
    threads, transform = KINDS[kind]
    return pen.Loader(make_stream(n), size, ids="id", threads=threads, transform=transform, **options)


def unite(parts: list[list[Any]]) -> list[Any]:
    """The batch of the whole job from those of all ranks: sample i is of rank i mod world."""
    total = sum(map(len, parts))
    return [parts[i % len(parts)][i // len(parts)] for i in range(total)]


def assert_equal_batches(one: Any, other: Any) -> None:
    """Two batches must be equal, field by field, with their types."""
    from penstock.batch import fields_of

    assert fields_of(one) == fields_of(other)


def take(batches: Iterator[Any], count: int) -> list[Any]:
    """So many batches, or as many as there are."""
    found = []
    while len(found) < count and (batch := next(batches, None)) is not None:
        found.append(batch)
    return found


def epochs_of(loader: pen.Loader, count: int) -> list[list[Any]]:
    """The batches of so many epochs."""
    return [list(loader) for _ in range(count)]
