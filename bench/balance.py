"""What balance and buckets do: cost over ranks with and without, what dealing takes, padding with and without buckets, and how
random buckets leave an order. Lengths are drawn; no data is read. ``python bench/balance.py [--json FILE]``
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from measure import machine, seconds, table, versions, write_json
from penstock import _core
from penstock.argument import IntArray
from penstock.order import Bucketed, Pack, Shuffle
from penstock.order.balance import deal, room_of_slots
from penstock.order.quality import Setting, measure

CORPORA = {"web": (500, 1.1), "code": (600, 1.6), "chat": (300, 0.8)}
"""Median and sigma of lognormal lengths of documents."""

AUDIO = {"audio": (160_000, 0.7), "captions": (40, 0.5), "web": CORPORA["web"]}
"""The same of records that are padded: 10 seconds at 16 kHz, words, documents."""

WORLDS = (1, 2, 4, 8, 32)
GOALS = {("web", 8192): 1.05, ("code", 32_768): 1.1}
DEAL_MS = 1.0


def draw(median: float, sigma: float, count: int, seed: int = 1) -> IntArray:
    return np.maximum(1, np.random.default_rng(seed).lognormal(np.log(median), sigma, count)).astype(np.int64)


def packed_costs(name: str, length: int, samples: int, batches: int, width: int) -> list[IntArray]:
    """The costs of batches of packs; of attention alone where the width is 0."""
    lengths = draw(*CORPORA[name], 1 << 19)
    packing = Pack(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), length, seed=7)
    found = []
    for number in range(min(batches, len(packing) // samples)):
        pieces = packing.pieces(0, np.arange(number * samples, (number + 1) * samples))
        costs = np.empty(samples, np.uint64)
        _core.piece_costs(pieces.first, pieces.document, pieces.count, 12 * width, 1, costs)
        found.append(costs)
    return found


def max_over_mean(costs: Any, order: IntArray, world: int) -> float:
    loads = costs[order].reshape(world, -1).astype(np.float64).sum(axis=1)
    return float(loads.max() / loads.mean())


def imbalance(name: str, length: int, width: int, samples: int = 256, world: int = 32) -> dict[str, Any]:
    """Mean and worst max/mean over ranks, with and without balance."""
    room = room_of_slots(samples, samples, world, 1)
    plain, balanced = [], []
    for costs in packed_costs(name, length, samples, 40, width):
        plain.append(max_over_mean(costs, np.arange(samples).reshape(-1, world).T.reshape(-1), world))
        order = deal(costs, room, 1)
        balanced.append(max_over_mean(costs, order, world))
        unions = {tuple(np.sort(deal(costs, room_of_slots(samples, samples, one, 1), 1)).tolist()) for one in WORLDS}
        assert unions == {tuple(range(samples))}
    return {
        "corpus": name,
        "length": length,
        "width": width,
        "batches": len(plain),
        "without": float(np.mean(plain)),
        "balanced": float(np.mean(balanced)),
        "worst": max(balanced),
    }


def dealing_ms(samples: int, world: int, micro: int) -> float:
    """Processor time of dealing one batch, in milliseconds."""
    costs = draw(500, 1.6, samples).astype(np.uint64)
    room = room_of_slots(samples, samples, world, micro)
    return 1000 * min(seconds(lambda: deal(costs, room, micro), time.thread_time) for _ in range(50))


def padding(name: str, batch: int, window: int, count: int = 1 << 17) -> dict[str, Any]:
    """Padding of batches by lot and of buckets, and the measures of both orders."""
    lengths = draw(*AUDIO[name], count)
    shuffle = Shuffle(count, seed=7)
    bucketed = Bucketed(shuffle, lengths, batch_size=batch, window=window)
    found: dict[str, Any] = {"records": name, "batch": batch, "window": window}
    for label, order in (("random", shuffle), ("bucketed", bucketed)):
        ids = order.indices(0, 0, count)
        assert np.array_equal(np.sort(ids), np.arange(count))
        own = lengths[ids].reshape(-1, batch)
        found[label] = float(1 - own.sum() / (own.max(axis=1) * batch).sum())
        by_time = own.mean(axis=1)
        found[f"{label} S"] = {one.name: one.value / one.ideal for one in measure(order, Setting(batch, 1024))}
        found[f"{label} trend"] = float(abs(np.corrcoef(by_time[1:], by_time[:-1])[0, 1]))
    return found


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Balance over ranks, buckets of similar length.")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    say = sys.stdout.write
    shapes = [("web", 8192), ("web", 32_768), ("code", 8192), ("code", 32_768), ("chat", 8192)]
    costs = [imbalance(name, length, width) for name, length in shapes for width in (0, 768, 4096)]
    head = ["corpus", "L", "width", "max/mean without", "balanced", "worst of 40", "goal"]
    rows = []
    met = True
    for one in costs:
        goal = GOALS.get((one["corpus"], one["length"]))
        met &= goal is None or one["balanced"] <= goal
        rows.append([one["corpus"], f"{one['length']}", f"{one['width'] or 'attention only'}", f"{one['without']:.3f}"])
        rows[-1] += [f"{one['balanced']:.3f}", f"{one['worst']:.3f}", "" if goal is None else f"<= {goal}"]
    say("Cost over 32 ranks, 256 packs; every world of 1, 2, 4, 8, 32 has the same union\n" + table(head, rows) + "\n\n")
    times = {f"{n} samples, {w} ranks, {m} micro-batches": dealing_ms(n, w, m) for n, w, m in ((4096, 32, 1), (4096, 512, 8))}
    met &= all(ms <= DEAL_MS for ms in times.values())
    say("".join(f"dealing {name}: {ms:.3f} ms\n" for name, ms in times.items()) + "\n")
    pads = [padding(name, batch, window) for name in AUDIO for batch, window in ((64, 16), (64, 64), (64, 256))]
    head = ["records", "batch", "window", "padding random", "bucketed", "S1", "S3", "S4", "S6", "neighbours (random)"]
    rows = []
    for one in pads:
        own, trend = one["bucketed S"], f"{one['bucketed trend']:.3f} ({one['random trend']:.3f})"
        rows.append([one["records"], f"{one['batch']}", f"{one['window']}", f"{one['random']:.1%}", f"{one['bucketed']:.1%}"])
        rows[-1] += [f"{own[name]:.3f}" for name in ("S1", "S3", "S4", "S6")] + [trend]
    say("Padding to the longest of a batch; measures relative to a perfect shuffle; correlation of neighbouring batches' lengths\n")
    say(table(head, rows) + "\n")
    if given.json is not None:
        report = {"machine": machine(), "versions": versions("numpy"), "imbalance": costs, "deal_ms": times, "padding": pads}
        write_json(given.json, report)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
