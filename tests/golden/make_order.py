"""Writes order.json, the golden values of the order, from the pure-Python reference and never from the native code.

    python -m tests.golden.make_order        (from the root of the repository)

A change of any value in order.json is a change of every user's order: it needs a new ORDER_VERSION.
"""

import json
from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any

from tests.order import reference
from tests.order.reference import Geometry, Run, Segment, Shape

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

STAGED = [[0, [1, 2, 0]], [5, [0, 0.1, 0.9]], [12, [3, 1, 1]]]
SHAPES = [[5, 4, 8, None], [0, 2, 3, None], [7, 2, 16, [1, 0, 0]], [4, 8, 4, [0.2, 0.3, 0.5]]]
SHUFFLES = [{"shuffle": 50, "seed": 8}, 60, {"shuffle": 1, "seed": 9}]
MIXTURES: tuple[dict[str, Any], ...] = (
    {"parts": [700, 300], "weights": [0.7, 0.3]},
    {"parts": [500, 20, 90], "weights": [0.1, 0.8, 0.1], "period": 16, "epoch": 3},
    {"parts": [3, 50, 17], "weights": [2, 3, 5], "stop": "all_exhausted", "period": 16},
    {"parts": [4, 32, 9, 0], "weights": [1, 1, 0.5, 2], "stop": "all_exhausted_without_replacement", "period": 8, "epoch": 1},
    {"parts": [5, 7, 11], "weights": [0.6, 0.3, 0.1], "stop": "forever"},
    {"parts": [5, 7], "weights": [1e-5, 1], "stop": "forever"},  # a period of 100,001 is a network
    {"parts": SHUFFLES, "weights": None, "stop": "all_exhausted", "period": 16, "epoch": 2},
    {"parts": [50, 60, 70], "weights": STAGED, "batch_size": 8, "period": 16},
    {"parts": [50, 60, 70], "weights": STAGED, "batch_size": 8, "stop": "all_exhausted", "period": 16, "epoch": 1},
    {"parts": [50, 60, 70], "weights": STAGED, "batch_size": 4, "stop": "all_exhausted_without_replacement", "period": 16},
    {
        "parts": [9, 600, 70],
        "weights": STAGED,
        "batch_size": 8,
        "stop": "all_exhausted_without_replacement",
        "period": 16,
    },  # starved
    {"parts": [50, 60, 70], "weights": STAGED, "batch_size": 8, "unit": "batch", "period": 7},
    {"parts": [53, 60, 71], "weights": [1, 2, 3], "batch_size": 8, "unit": "batch", "stop": "all_exhausted", "period": 7},
    {"parts": [53, 7, 71], "weights": [1, 2, 3], "batch_size": 8, "unit": "batch", "stop": "all_exhausted_without_replacement"},
    {"parts": [50, 60, 70], "weights": STAGED, "batch_size": 8, "unit": "batch", "stop": "forever", "period": 7},
    {"parts": [500, 900, 400], "weights": [1, 3, 2], "phases": SHAPES, "period": 16, "epoch": 1},
    {"parts": [500, 900, 400], "weights": [1, 3, 2], "phases": SHAPES, "unit": "batch", "stop": "all_exhausted", "period": 16},
    {"parts": [99, 300, 400], "weights": [1, 3, 2], "phases": SHAPES, "stop": "all_exhausted_without_replacement", "period": 16},
    {"parts": [20, 30, 40], "weights": None, "phases": SHAPES, "stop": "forever", "unit": "batch", "period": 16},
    {"parts": [20, 30, 40], "weights": STAGED, "batch_size": 4, "period": 16, "epoch": 2, "tail": "drop"},
    {"parts": [20, 30, 40], "weights": STAGED, "batch_size": 7, "stop": "all_exhausted", "period": 16, "epoch": 1, "tail": "wrap"},
    {
        "parts": [20, 31, 43],
        "weights": STAGED,
        "batch_size": 4,
        "unit": "batch",
        "stop": "all_exhausted_without_replacement",
        "period": 16,
        "epoch": 1,
    },
)

PLANNED: tuple[dict[str, Any], ...] = (
    {"parts": [10, 100], "weights": [1, 1], "max_epochs": {"0": 2.5}, "epochs": 4},
    {"parts": [10, 20], "stop": "forever", "max_epochs": {"0": 3, "1": 1.5}},
    {"parts": [7, 30, 20], "weights": [2, 2, 1], "stop": "all_exhausted", "max_epochs": {"0": 4, "2": 0.35}, "epochs": 3},
    {"parts": [40, 9], "stop": "all_exhausted_without_replacement", "max_epochs": {"0": 1.3}, "epochs": 3, "tail": "drop"},
    {"parts": [50, 60, 70], "weights": [5, 3, 2], "tokens": ["1001/7", "17/3", "2048"], "stop": "forever"},
    {"parts": [50, 60, 70], "tokens": ["100", "50/3", "10"], "temperature": 2, "stop": "all_exhausted", "epochs": 2},
    {"parts": [1000, 100, 10], "temperature": 3.5},
    {
        "parts": [50, 60],
        "weights": [2, 1],
        "stop": "forever",
        "period": 100,
        "amendments": [[9, [1, 3], []], [14, [1, 1, 4], [30]]],
    },
    {"parts": [20, 30], "weights": [1, 2], "amendments": [[5, [2, 1, 3], [25]]], "epochs": 4, "tail": "wrap", "batch_size": 7},
    {
        "parts": [30, 20],
        "weights": [1, 1],
        "tokens": ["5", "9/2", "31/3"],
        "max_epochs": {"0": 2, "1": 0.5},
        "amendments": [[3, [1, 1, 1], [40]], [8, [0, 1, 2], []]],
        "stop": "all_exhausted_without_replacement",
        "tail": "drop",
        "epochs": 4,
    },
)
BUCKETS = ((97, 4, 3, 0), (300, 8, 16, 5), (64, 64, 1, 2**40))
DEALS = ((96, 32, 1, 96), (96, 4, 3, 96), (70, 4, 2, 96), (24, 2, 3, 24))

SIZES = [40, 0, 50, 7, 103]
MASSES = [round((k * k % 101) ** 1.5 + 1 / (k + 3), 6) for k in range(300)]
DESIGNS: tuple[dict[str, Any], ...] = (
    {"kind": "simple", "n": 97, "size": 97},
    {"kind": "simple", "n": 10**12, "size": 10**6},
    {"kind": "fraction", "n": 350, "fraction": 0.29},
    {"kind": "stratified", "n": 97, "strata": 10, "size": 64},
    {"kind": "stratified", "n": 10**12, "strata": 4096, "size": 2000},
    {"kind": "stratified", "n": 2**63 - 1, "strata": 3 * 2**61, "size": 64},
    {"kind": "stratified", "n": 200, "strata": SIZES, "size": 70},
    {"kind": "stratified", "n": 10**15 + 7, "strata": [10**15, 3, 4], "size": 100_000},
    {"kind": "proportional", "n": 300, "masses": MASSES, "size": 80},  # some are certain
    {"kind": "proportional", "n": 20, "masses": MASSES[:20], "size": 7},
    {"kind": "proportional", "n": 200, "masses": [3.5, 9, 1e-300, 1e300, 0.1], "strata": SIZES, "size": 130},
    {"kind": "proportional", "n": 200, "masses": [0] * 5, "strata": SIZES, "size": 64},
)
PHASES = [Shape(5, 4, 8), Shape(0, 9, 9), Shape(30, 2, 16), Shape(10**9, 8, 4)]


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


def sliding_case(n: int, window: int, stride: int, epoch: int) -> dict[str, Any]:
    positions = positions_of(-(-n // stride) * window)
    ids = [reference.sliding(n, window, stride, epoch, position) for position in positions]
    return {"n": n, "window": window, "stride": stride, "epoch": epoch, "positions": positions, "ids": ids}


def mixture_order_case(seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    """A public mixture; a part is a length or a shuffle."""
    defaults = {
        "stop": "first_exhausted",
        "batch_size": 1,
        "unit": "sample",
        "phases": None,
        "period": 1024,
        "epoch": 0,
        "seed": seed,
    }
    case = defaults | settings
    parts, weights, epoch = case["parts"], case["weights"], case["epoch"]
    lengths = [part if isinstance(part, int) else part["shuffle"] for part in parts]
    by_batch = case["unit"] == "batch"
    if case["phases"] is not None:
        stages = reference.stages_by_phase([Shape(*phase) for phase in case["phases"]], weights or lengths, by_batch)
    else:
        pairs = weights if weights is not None and isinstance(weights[0], list) else [[0, weights or lengths]]
        stages = reference.stages_by_step(pairs, case["batch_size"], case["batch_size"] if by_batch else 1)
    run = {"epoch": epoch if case["phases"] is None else 0, "batch_size": case["batch_size"], "tail": case.get("tail", "keep")}
    line, before = reference.mixture_epoch(lengths, stages, case["stop"], case["period"], **run)
    positions = positions_of(line.samples)
    choices = [reference.mixture_choice(line, seed, epoch, position, None if case["phases"] else before) for position in positions]
    ids = [sum(lengths[:k]) + part_id(parts[k], element) for k, element in choices]
    which, element = (list(column) for column in zip(*choices, strict=True))
    return case | {"length": line.samples, "positions": positions, "which": which, "element": element, "ids": ids}


def planned_case(seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    """A mixture of single samples with caps, shares of tokens, a temperature or amendments: the samples of its first epochs."""
    defaults = {"weights": None, "tokens": None, "temperature": None, "max_epochs": {}, "amendments": [], "epochs": 1}
    case = defaults | {"stop": "first_exhausted", "batch_size": 4, "tail": "keep", "period": 16, "seed": seed} | settings
    lengths = [*case["parts"], *(length for _, _, added in case["amendments"] for length in added)]
    means = case["tokens"] and [Fraction(mean) for mean in case["tokens"]]

    def shares(given: Any, count: int) -> list[Fraction]:
        own = reference.sample_weights(given, lengths[:count], means and means[:count], case["temperature"])
        return own + [Fraction(0)] * (len(lengths) - count)

    count, changes = len(case["parts"]), []
    for step, given, added in case["amendments"]:
        count += len(added)
        changes.append(reference.Change(step, shares(given, count)))
    caps = [
        floor(Fraction(str(case["max_epochs"][str(k)])) * n) if str(k) in case["max_epochs"] else reference.UNCAPPED
        for k, n in enumerate(lengths)
    ]
    first = shares(case["weights"], len(case["parts"]))
    run = Run(lengths, first, case["stop"], case["period"], case["batch_size"], case["tail"], seed, caps, changes)
    found = reference.amended_run(run, case["epochs"], 120)
    drawn = [one for epoch in found for one in epoch[:120]]
    which, element = ([one[k] for one in drawn] for k in range(2))
    return case | {
        "lengths": [len(epoch) for epoch in found],
        "positions": list(range(len(drawn))),
        "which": which,
        "element": element,
    }


def bucketed_case(n: int, batch_size: int, window: int, epoch: int) -> dict[str, Any]:
    lengths = [k * 7919 % 97 for k in range(n)]
    plain = reference.permutation(n, reference.derive_key(7, epoch, 1))
    ids = reference.bucketed(plain, lengths, 7, epoch, batch_size, window)
    return {"n": n, "batch_size": batch_size, "window": window, "epoch": epoch, "positions": list(range(n)), "ids": ids}


def deal_case(count: int, world: int, micro: int, size: int) -> dict[str, Any]:
    costs = [(k * k * 7919 + 13) % 101 * 2 ** (k % 45) for k in range(count)]
    return {"positions": costs, "world": world, "micro": micro, "size": size, "slots": reference.deal(costs, size, world, micro)}


def part_id(part: int | dict[str, int], element: int) -> int:
    if isinstance(part, int):
        return element % part
    epoch, position = divmod(element, part["shuffle"])
    return reference.permutation(part["shuffle"], reference.derive_key(part["seed"], epoch, 1), [position])[0]


def design_case(seed: int, case: dict[str, Any]) -> dict[str, Any]:
    n, strata, masses = case["n"], case.get("strata"), case.get("masses")
    size = case["size"] if "size" in case else round(Fraction(str(case["fraction"])) * n)
    positions = positions_of(size)
    if masses is None and not isinstance(strata, list):
        ids = reference.design_equal(n, size, n if strata is None else strata, seed, positions)
        weights = [n / size] * len(positions)
    else:
        sizes = [1] * n if strata is None else strata
        if masses is None:
            expected = reference.expected_by_size(sizes, size)
        else:
            expected = reference.expected_by_mass([float(mass) for mass in masses], sizes, size)
        counts = reference.whole_counts(expected, sizes, size)
        ids, weights = reference.design_weighted(counts, sizes, seed, positions)
    return {**case, "seed": seed, "length": size, "positions": positions, "ids": ids, "weights": weights}


def curriculum_case(phases: list[Shape]) -> dict[str, Any]:
    steps = positions_of(sum(phase.steps for phase in phases))
    places = [reference.curriculum_place(phases, step) for step in steps]
    return {"phases": phases, "positions": steps, "places": places}


def epochs_case(epochs: float) -> dict[str, Any]:
    shapes = [(length, batch, seq) for length in (10, 1_000, 10**15) for batch, seq in ((1, 1), (7, 1), (3, 16))]
    return {"epochs": epochs, "shapes": shapes, "steps": [reference.steps_of_epochs(epochs, *shape) for shape in shapes]}


def in_fraction_case(fraction: float) -> dict[str, Any]:
    ids = positions_of(2**63 - 1)
    return {"fraction": fraction, "positions": ids, "inside": [reference.in_fraction(number, fraction) for number in ids]}


WEIGHTS: tuple[list[float], ...] = (
    [1, 2, 3, 4],
    [0, 0, 5e-324, 0],
    [0.1] * 70,
    [1 / (k + 1) for k in range(200)],
    [float(k % 3) for k in range(99)],
    [1e300, 1e-300, 0, 3e299, 1, 1],
    [*([0.1] * 63), 0.1000001],
)


def weighted_case(seed: int, epoch: int, weights: list[float]) -> dict[str, Any]:
    table = reference.alias_table(weights)
    key = reference.derive_key(seed, epoch, 14)
    positions = positions_of(10**12)
    ids = [reference.weighted_draw(table, key, position) for position in positions]
    return {"seed": seed, "epoch": epoch, "weights": weights, "table": table, "positions": positions, "ids": ids}


STRINGS = [
    "",
    "a",
    "abcdefg",
    "abcdefgh",
    "abcdefghi",
    "Grüße, 世界",
    "\0",
    "\0\0",
    *(f"document {k}" * (k % 7) for k in range(56)),
]


def split_case(seed: int, fractions: list[float]) -> dict[str, Any]:
    ids = positions_of(2**63 - 1)
    words = [reference.split_hash(seed, number) for number in ids]
    parts = [reference.split_part(word, fractions) for word in words]
    return {"seed": seed, "fractions": fractions, "positions": ids, "hashes": words, "parts": parts}


def split_strings_case(seed: int) -> dict[str, Any]:
    words = [reference.split_hash(seed, text.encode()) for text in STRINGS]
    return {"seed": seed, "positions": list(range(len(STRINGS))), "texts": STRINGS, "hashes": words}


def make(geometries: Sequence[Geometry] = GEOMETRIES) -> dict[str, Any]:
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
        "block_shuffle": [block_case(geometry, seed, 2 * seed) for seed, geometry in enumerate(geometries)],
        "mixture": [mixture_case(next(word)) for _ in range(2)],
        "systematic": [
            systematic_case(*case) for case in ((64, 64, 63), (1_000, 100, 7), (10**12, 999, 12345), (2**63 - 1, 64, 2**62))
        ],
        "shuffle": [shuffle_case(*case) for case in ((100, 0, 0), (1_000, 7, 3), (10**12, MAX_WORD, 2**40))],
        "random": [random_case(*case) for case in ((100, 0, 0), (10**12, MAX_WORD, 2**40))],
        "sliding": [
            sliding_case(*case)
            for case in ((10, 4, 4, 1), (100, 7, 3, 5), (97, 3, 10, 2), (10**12, 2048, 1024, 2**40), (5, 13, 7, 1))
        ],
        "mixture_order": [mixture_order_case(seed, case) for seed, case in enumerate(MIXTURES)],
        "planned": [planned_case(seed, case) for seed, case in enumerate(PLANNED)],
        "bucketed": [bucketed_case(*case) for case in BUCKETS],
        "deal": [deal_case(*case) for case in DEALS],
        "design": [design_case(seed, case) for seed, case in enumerate(DESIGNS)],
        "curriculum": [curriculum_case(PHASES), curriculum_case(PHASES[:1])],
        "epochs": [epochs_case(epochs) for epochs in (0, 0.29, 0.7, 1, 2.3, 1e-9)],
        "in_fraction": [in_fraction_case(fraction) for fraction in (0, 0.1, 0.29, 0.5, 1)],
        "weighted": [weighted_case(number, 5 * number, weights) for number, weights in enumerate(WEIGHTS)],
        "split": [split_case(0, [0.1, 0.2, 0.3]), split_case(7, [0.01, 0.99]), split_case(MAX_WORD, [0, 1, 0])],
        "split_strings": [split_strings_case(0), split_strings_case(7)],
    }


def dump(values: dict[str, Any]) -> str:
    """JSON with one case per line, so that a difference can be read."""
    parts = (f" {json.dumps(name)}: [\n  " + ",\n  ".join(map(json.dumps, cases)) + "\n ]" for name, cases in values.items())
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    PATH.write_text(dump(make()))
