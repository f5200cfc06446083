"""Packing: padding, documents cut, and the time to plan, on three distributions of document lengths.

::

    python bench/pack.py [--documents N]

Lengths are lognormal: like web pages, code and chats. "cut" counts documents that fit a sequence and were cut all the same, in
percent of those that fit; "pieces" is the mean of a sequence. Times are processor time of one thread: planning for each document,
and a seek to a random sequence in a plan that is not kept.
"""

import argparse
import time

import numpy as np

from penstock.order import Pack

DISTRIBUTIONS = {"web": (500, 1.1), "code": (600, 1.6), "chat": (300, 0.8)}
LENGTHS = (2048, 8192, 32768)
SEEKS = 25


def lengths_of(name: str, count: int) -> np.ndarray:
    median, sigma = DISTRIBUTIONS[name]
    return np.maximum(1, np.random.default_rng(7).lognormal(np.log(median), sigma, count)).astype(np.int64)


def measure(name: str, lengths: np.ndarray, length: int, split: str) -> str:
    """One line of the table."""
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    pack = Pack(bounds, length, seed=1, block=64, split=split, long="truncate" if split == "never" else "error")
    sequences = len(pack)
    began = time.thread_time()
    plans = [pack._make_plan(0, group) for group in range(pack.num_groups)]
    planning = time.thread_time() - began
    cuts = np.bincount(np.concatenate([plan.document for plan in plans]), minlength=lengths.size)
    fits = lengths <= length
    kept = sum(int(plan.count.sum()) for plan in plans)
    seeks = []
    for number in np.random.default_rng(8).integers(sequences, size=SEEKS):
        pack.edges(1)
        began = time.thread_time()
        pack._make_plan(1, int(np.searchsorted(pack.edges(1), number, side="right")) - 1)
        seeks.append(time.thread_time() - began)
    padding, cut = 100 * (1 - kept / sequences / length), 100 * np.mean(cuts[fits] > 1)
    return (
        f"{name:5} {length:6} {split:7} {pack.window:7} {padding:8.3f} {cut:8.3f} {cuts.sum() / sequences:7.2f} "
        f"{1e9 * planning / lengths.size:8.1f} {1e3 * np.median(seeks):8.2f}"
    )


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1 << 20)
    count = parser.parse_args().documents
    print("data  length split    window padding%     cut%  pieces   ns/doc  seek ms")
    for name in DISTRIBUTIONS:
        lengths = lengths_of(name, count)
        for length in LENGTHS:
            for split in ("fit", "always", "never"):
                print(measure(name, lengths, length, split), flush=True)


if __name__ == "__main__":
    main()
