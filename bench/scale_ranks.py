"""The part of scale.py that needs no data: 10,000 ranks and 10^12 records on paper. What a rank pays to plan its part of a batch,
what the most expensive rank costs, how many requests a host makes, and the plan of 500 sources next to the run it describes.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import penstock as pen
from balance import max_over_mean, packed_costs
from measure import seconds, table
from penstock.argument import IntArray
from penstock.batch import Batch, Outputs
from penstock.order import BlockShuffle, Mixture, Order, Shuffle
from penstock.order.balance import deal, room_of_slots
from penstock.records import Recipe, Source

RECORDS, RECORD_BYTES = 10**12, 1024
WORLDS = (8, 32, 256, 2048, 10_000)
EACH, HOST = 4, 8
"""Samples of a rank in a batch, ranks of a host."""
SOURCES, PLAN_GOAL_S = 500, 1.0
AT_ONCE = 64
"""Steps of a run that are counted out at a time."""


class Paper(Source):
    """Records that are only counted."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    @property
    def schema(self) -> dict[str, pen.Field]:
        return {"x": pen.Field("u1", (RECORD_BYTES,))}

    @property
    def fingerprint(self) -> str:
        return f"paper {self._length}"

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        raise NotImplementedError("there is no data")

    def _recipe(self) -> Recipe:
        return (Paper, (self._length,))


def cpu_us(work: Callable[[], object], rounds: int = 30) -> float:
    return 1e6 * min(seconds(work, time.thread_time) for _ in range(rounds))


def planning(world: int) -> dict[str, Any]:
    """Processor time of one rank for its part of one batch of 10^12 records; that of all ranks where samples are dealt."""
    size = world * EACH
    step, rank = RECORDS // size // 3, world // 2
    weights = {f"s{k}": 1 + k % 7 for k in range(SOURCES)}
    parts = {name: Shuffle(RECORDS // SOURCES, seed=k) for k, name in enumerate(weights)}
    orders: dict[str, Order] = {
        "shuffle": Shuffle(RECORDS, seed=7),
        "block shuffle": BlockShuffle(RECORDS, block=4096, window=16, lanes=world, seed=7),
        f"mixture of {SOURCES}": Mixture(parts, weights=weights, seed=7),
    }
    found: dict[str, Any] = {"world": world}
    for name, order in orders.items():
        found[name] = cpu_us(lambda order=order: order.indices(0, step * size + rank, (step + 1) * size, world))
    costs = np.random.default_rng(1).lognormal(6, 1, size).astype(np.uint64)
    room = room_of_slots(size, size, world, 1)
    found["dealt by cost"] = cpu_us(lambda: deal(costs, room, 1), 10)
    loader = pen.Loader(Paper(RECORDS).shuffle(seed=7), size, shard=pen.Shard(rank, world))
    found["seek"] = cpu_us(lambda: loader.seek(step))
    return found


def imbalance(world: int, width: int) -> tuple[float, float]:
    """max / mean over ranks of web-like packs of 8,192 tokens, without balance and with it; the mean of some batches."""
    size, plain, balanced = world * EACH, [], []
    for costs in packed_costs("web", 8192, size, 8, width):
        plain.append(max_over_mean(costs, np.arange(size).reshape(-1, world).T.reshape(-1), world))
        balanced.append(max_over_mean(costs, deal(costs, room_of_slots(size, size, world, 1), 1), world))
    return float(np.mean(plain)), float(np.mean(balanced))


def requests(world: int, block: int, window: int, lanes: int) -> tuple[float, float]:
    """Blocks that the ranks of a host fetch for a batch, each once as long as it is needed, and bytes for a byte that is used.

    Counted over the steps in which the lanes of a rank go through one group of blocks, from the middle of an epoch on.
    """
    size = world * EACH
    order = BlockShuffle(RECORDS, block=block, window=window, lanes=lanes, seed=7)
    steps = max(1, window * block * lanes // size)
    group = window * block * lanes
    first = -(-(RECORDS // 2 // group * group) // size)
    blocks = used = 0
    for rank in range(world // 2, world // 2 + min(HOST, world)):
        positions = ((first + np.arange(steps))[:, None] * size + np.arange(rank, size, world)).reshape(-1)
        places = order.at(0, positions) // block
        blocks += np.unique(places).size
        used += positions.size
    return blocks / steps, blocks * block / used


def plan_of_sources(steps: int = 10_000, size: int = 2048) -> dict[str, Any]:
    """The plan of 500 sources, and a run of the same mixture that is counted out."""
    chance = np.random.default_rng(3)
    lengths = np.maximum(100, chance.lognormal(9, 1.2, SOURCES)).astype(int)
    streams: dict[str, Any] = {f"s{k}": Paper(int(n)).shuffle(seed=k) for k, n in enumerate(lengths)}
    caps = {f"s{k}": 1 + k % 4 for k in range(0, SOURCES, 3)}
    weights = {name: float(one) for name, one in zip(streams, chance.lognormal(0, 1, SOURCES).round(3) + 0.01, strict=True)}
    began = time.thread_time()
    mixed = pen.mix(streams, weights=weights, seed=5, stop="forever", max_epochs=caps)
    made = time.thread_time()
    found = pen.plan(mixed, steps, batch_size=size)
    done = time.thread_time()
    counts = np.zeros(SOURCES, np.int64)
    ends: list[list[int | None]] = [[None, None] for _ in range(SOURCES)]
    seen = [np.zeros(n, np.int64) for n in lengths]
    for first in range(0, steps * size, AT_ONCE * size):
        picks = mixed.locate(0, range(first, min(first + AT_ONCE * size, steps * size)))
        for k, part in enumerate(picks.parts):
            if part is None:
                continue
            seen[k] += np.bincount(part.ids, minlength=int(lengths[k]))
            before, counts[k] = int(counts[k]), counts[k] + len(part)
            for number, limit in enumerate((lengths[k], caps.get(f"s{k}", 0) * lengths[k])):
                if before < limit <= counts[k]:
                    last = np.flatnonzero(picks.which == k)[limit - before - 1]
                    ends[k][number] = (first + int(last)) // size
    expected = [(int(counts[k]), *ends[k], int((seen[k] > 1).sum())) for k in range(SOURCES)]
    told = [(one.samples, one.exhausted_at, one.capped_at, one.repeated) for one in found.streams]
    return {"make_s": made - began, "plan_s": done - made, "samples": steps * size, "equal": told == expected}


def report() -> tuple[str, dict[str, Any], bool]:
    """Tables, everything measured, and whether goals are met."""
    planned = [planning(world) for world in WORLDS]
    names = [name for name in planned[0] if name != "world"]
    text = f"Processor time of a rank for its part of a batch, microseconds; 10^12 records, {EACH} samples a rank\n"
    text += table(["ranks", *names], [[f"{one['world']:,}", *(f"{one[name]:,.0f}" for name in names)] for one in planned])
    costs = {world: {width: imbalance(world, width) for width in (0, 4096)} for world in WORLDS}
    rows = [[f"{world:,}", *(f"{a:.3f} -> {b:.3f}" for a, b in found.values())] for world, found in costs.items()]
    text += f"\n\nmax / mean cost over ranks, {EACH} packs of 8,192 each, without balance -> with it\n"
    text += table(["ranks", "attention only", "width 4,096"], rows)
    fetched = []
    for world in WORLDS:
        for name, lanes in (("one lane", 1), ("a lane for each rank", world)):
            found = requests(world, 4096, 16, lanes)
            fetched.append({"world": world, "lanes": lanes, "requests": found[0], "bytes for one": found[1], "name": name})
    rows = [[f"{one['world']:,}", one["name"], f"{one['requests']:.2g}", f"{one['bytes for one']:.1f}"] for one in fetched]
    text += (
        f"\n\nRequests of a host of {HOST} ranks for a batch; blocks of 4,096 records (4 MiB), windows of 16; ranks share nothing\n"
    )
    text += table(["ranks", "order", "requests", "bytes read for one used"], rows)
    plan = plan_of_sources()
    text += f"\n\nplan of {SOURCES} sources: {plan['plan_s']:.2f} s (and {plan['make_s']:.2f} s to make the mixture); "
    text += f"{'equal to' if plan['equal'] else 'NOT what happens in'} a run of {plan['samples']:,} samples, counted out"
    met = bool(plan["equal"]) and plan["plan_s"] <= PLAN_GOAL_S
    return text, {"planning": planned, "imbalance": costs, "requests": fetched, "plan": plan}, met
