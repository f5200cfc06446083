"""Writes packs.json, golden plans of packed documents, from the pure-Python reference and never from the native code.

    python -m tests.golden.make_packs        (from the root of the repository)

A change of any value is a change of every user's order.
"""

import json
from pathlib import Path
from typing import Any

from tests.order import reference
from tests.order.reference import Packing

PATH = Path(__file__).with_name("packs.json")


def lengths_of(count: int, most: int, key: int) -> list[int]:
    """Short and long documents, some of them empty."""
    words = [reference.absorb(key, number) for number in range(count)]
    return [word % (most + 1) >> (word >> 60) for word in words]


SHORT, LONG, EVEN = lengths_of(150, 60, 1), lengths_of(40, 400, 2), [16] * 40
CASES: tuple[tuple[list[int], Packing, int], ...] = (
    (SHORT, Packing(64, 7, 1, 50), 0),
    (SHORT, Packing(64, 7, 1, 50), 3),
    (SHORT, Packing(100, 8, 4, 10), 1),
    (SHORT, Packing(33, 2**64 - 1, 16, 2, extra=1), 0),
    (SHORT, Packing(64, -1, 1, 60), 0),
    (LONG, Packing(32, 9, 1, 12), 0),
    (LONG, Packing(48, 9, 3, 4, multiple=8, extra=2), 2),
    (LONG, Packing(50, 9, 3, 4, split="always"), 0),
    (LONG, Packing(48, 9, 3, 4, split="always", multiple=6), 1),
    (SHORT, Packing(64, 7, 8, 5, split="never"), 0),
    (LONG, Packing(64, 7, 4, 3, split="never"), 1),
    (LONG, Packing(64, 7, 4, 3, split="never", drops=True), 2),
    (EVEN, Packing(16, 5, 1, 20), 0),
    (EVEN, Packing(15, 5, 1, 20), 0),
    ([1000], Packing(7, 5, 1, 1), 0),
    ([0, 0, 3, 0], Packing(4, 5, 1, 2), 0),
)


def make() -> list[dict[str, Any]]:
    """The cases, each with all sequences of its epoch."""
    return [
        {"lengths": lengths, **packing._asdict(), "epoch": epoch, "sequences": reference.pack_epoch(lengths, packing, epoch)}
        for lengths, packing, epoch in CASES
    ]


def dump(cases: list[dict[str, Any]]) -> str:
    """As the file has them."""
    return "[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n"


if __name__ == "__main__":
    PATH.write_text(dump(make()))
