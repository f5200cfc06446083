"""Writes order.json, the golden values of the order, from the pure-Python reference and never from the native code.

    python -m tests.golden.make_order        (from the root of the repository)

A change of any value in order.json is a change of every user's order: it needs a new ORDER_VERSION.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.order import reference
from tests.order.reference import Geometry, Segment

PATH = Path(__file__).with_name("order.json")

MAX_WORD = 2**64 - 1
REDRAW_KEY, REDRAW_PLACE = 3, 56_448
"""A key whose table of 65,536 needs a second word for a draw, and the place of that draw."""

LENGTHS = (1, 2, 7, 64, 1_000, 65_535, 65_536, 65_537, 10**6, 2**20 + 1, 2**32 + 1, 10**12, 2**62, 2**62 + 1, 2**63 - 1)
DRAW_LENGTHS = (1, 10, 1_000, 10**12, 3 * 2**61, 2**63 - 1)  # a quarter of all words is refused below 3 * 2**61

GEOMETRIES = (
    Geometry(64, 1, 8, 2),
    Geometry(65, 100, 1, 1),  # one block, short
    Geometry(70, 8, 2, 16),  # more lanes than blocks
    Geometry(130, 32, 100, 1),  # one group, with a short block
    Geometry(1_000, 50, 3, 4),  # even lanes
    Geometry(997, 32, 2, 3),  # lanes and a short block
    Geometry(1_003, 10, 4, 8),
    Geometry(5_000, 7, 16, 8),
    Geometry(70_000, 1, 16, 1),  # the sequence of blocks is a network
    Geometry(66_000, 300, 219, 1),  # the first group is a network
)

ONE = 2**63
SEGMENTS = (
    Segment(0, 100, 1, False, (0, ONE * 7 // 10, ONE * 9 // 10, ONE), (0, 0, 0)),
    Segment(1_000, 37, 4, True, (0, 20, 20, 37), (700, 200, 100)),
    Segment(1_037, 70_000, 2, False, (0, ONE // 3, ONE * 2 // 3, ONE), (780, 200, 168)),
)


def positions_of(n: int) -> list[int]:
    """All positions below n or 64 of them: the first 32, 16 spread evenly, the last 16."""
    if n <= 64:
        return list(range(n))
    return [*range(32), *(n * k // 17 for k in range(1, 17)), *range(n - 16, n)]


def words() -> Iterator[int]:
    """Endless 64-bit words, the corners first."""
    yield from (0, 1, MAX_WORD, 2**63, 2**32 - 1, 2**32)
    state = 0
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield state


def permutation_case(n: int, key: int, positions: list[int]) -> dict[str, Any]:
    return {"n": n, "key": key, "positions": positions, "images": reference.permutation(n, key, positions)}


def block_case(geometry: Geometry, seed: int, epoch: int) -> dict[str, Any]:
    order = reference.block_shuffle(geometry, reference.derive_key(seed, epoch, 3), reference.derive_root(seed, epoch, 4))
    positions = positions_of(geometry.n)
    ids = [order[position] for position in positions]
    return {**geometry._asdict(), "seed": seed, "epoch": epoch, "positions": positions, "ids": ids}


def mixture_case(root: int) -> dict[str, Any]:
    positions = [*range(0, 1_000, 50), *range(1_000, 1_037, 3), *range(1_037, 211_037, 6_774)]
    choices = [reference.mixture_at(SEGMENTS, root, position) for position in positions]
    segments = [vars(segment) | {"edges": list(segment.edges), "before": list(segment.before)} for segment in SEGMENTS]
    which, element = (list(column) for column in zip(*choices, strict=True))
    return {"segments": segments, "root": root, "positions": positions, "which": which, "element": element}


def draw_case(n: int, key: int) -> dict[str, Any]:
    positions = positions_of(2**63 - 1)
    return {
        "n": n,
        "key": key,
        "positions": positions,
        "draws": [reference.random_draw(n, key, position) for position in positions],
    }


def systematic_case(n: int, size: int, offset: int) -> dict[str, Any]:
    return {"n": n, "size": size, "offset": offset, "places": [reference.systematic(n, size, offset, p) for p in range(64)]}


def shuffle_case(n: int, seed: int, epoch: int) -> dict[str, Any]:
    key = reference.derive_key(seed, epoch, 1)
    return {
        "n": n,
        "seed": seed,
        "epoch": epoch,
        "positions": positions_of(n),
        "ids": reference.permutation(n, key, positions_of(n)),
    }


def random_case(n: int, seed: int, epoch: int) -> dict[str, Any]:
    key = reference.derive_key(seed, epoch, 2)
    ids = [reference.random_draw(n, key, position) for position in positions_of(n)]
    return {"n": n, "seed": seed, "epoch": epoch, "positions": positions_of(n), "ids": ids}


def make() -> dict[str, Any]:
    """All golden values, by algorithm."""
    word = words()
    tuples = [(next(word), next(word), next(word) % 9, next(word)) for _ in range(64)]
    return {
        "finalize": [[w, reference.finalize(w)] for w, _, _, _ in tuples],
        "absorb": [[w, v, reference.absorb(w, v)] for w, v, _, _ in tuples],
        "derive_key": [[*t, reference.derive_key(*t)] for t in tuples],
        "permutation": [
            *(permutation_case(n, next(word), positions_of(n)) for n in LENGTHS),
            permutation_case(65_536, REDRAW_KEY, sorted({*positions_of(65_536)[1:], REDRAW_PLACE})),
        ],
        "draw": [draw_case(n, next(word)) for n in DRAW_LENGTHS],
        "block_shuffle": [block_case(geometry, seed, 2 * seed) for seed, geometry in enumerate(GEOMETRIES)],
        "mixture": [mixture_case(next(word)) for _ in range(2)],
        "systematic": [
            systematic_case(*case) for case in ((64, 64, 63), (1_000, 100, 7), (10**12, 999, 12345), (2**63 - 1, 64, 2**62))
        ],
        "shuffle": [shuffle_case(*case) for case in ((100, 0, 0), (1_000, 7, 3), (10**12, MAX_WORD, 2**40))],
        "random": [random_case(*case) for case in ((100, 0, 0), (10**12, MAX_WORD, 2**40))],
    }


def dump(values: dict[str, Any]) -> str:
    """JSON with one case per line, so that a difference can be read."""
    parts = (f" {json.dumps(name)}: [\n  " + ",\n  ".join(map(json.dumps, cases)) + "\n ]" for name, cases in values.items())
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    PATH.write_text(dump(make()))
