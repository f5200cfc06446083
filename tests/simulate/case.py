"""What a seed means: the data, the stream, the loaders, the window, the network and the scheduler of one run."""

import atexit
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from tests.simulate.network import FINAL, RETRIED, WRONG, Version, Weather

import penstock as pen
from penstock.records import Source
from penstock.remote.fetch import Policy
from penstock.remote.residency import PAGE
from penstock.source import write_rows, write_tokens
from penstock.store import chunk, writer
from penstock.stream import Stream

# Data


@dataclass(frozen=True)
class Data:
    """Files of a name: what is opened of them, the records (or tokens) there, and the objects by key."""

    name: str
    opened: tuple[str, ...]
    length: int
    objects: tuple[tuple[str, Version], ...]
    is_tokens: bool = False

    @property
    def pages(self) -> int:
        return sum(-(-len(version.data) // PAGE) for _, version in self.objects)

    def open(self, root: Any, **options: Any) -> Source:
        places = [root / name for name in self.opened]
        return pen.open(places[0] if len(places) == 1 else places, **options)


def _values(count: int, width: int, first: int = 0) -> Any:
    """Records that are different from each other in every value."""
    return (np.arange(count * width, dtype="u4").reshape(count, width) + first) * np.uint32(2654435761)


def _text(number: int) -> str:
    return f"record {number} " * (number % 7)


def _write(root: Path) -> list[tuple[str, tuple[str, ...], int]]:
    np.save(root / "small.npy", _values(24, 64))
    np.save(root / "page.npy", _values(4, 1250))
    np.save(root / "tiny.npy", _values(700, 3))
    for number in range(3):
        np.save(root / f"part{number}.npy", _values(9 + number, 64, 10_000 * number))
        write_rows(_values(9 + number, 64, 10_000 * number).view("f4"), root / f"part{number}.shard")
    write_rows(_values(30, 64).view("f4"), root / "rows.shard")
    numbers = iter(range(1_000_000))

    def identity() -> str:
        return f"{next(numbers):032x}"

    with (
        mock.patch.object(chunk, "new_identity", identity),
        mock.patch.object(writer, "new_identity", identity),
    ):
        with pen.create(root / "plain", {"x": pen.Field("u4", (64,)), "y": pen.Field("i8")}, chunk_bytes="4KiB") as out:
            out.extend({"x": _values(26, 64), "y": np.arange(26)})
        fields = {"x": pen.Field("u4", (32,), codec=pen.LZ4()), "text": pen.Field.text(codec=pen.Zstd(1))}
        with pen.create(root / "varying", fields, chunk_bytes="4KiB") as out:
            out.extend({"x": _values(60, 32), "text": [_text(number) for number in range(60)]})
    (root / "tokens").mkdir()
    write_tokens([np.arange(2500, dtype="u2")], root / "tokens" / "all.rox", block_size=32, max_shard_bytes=2600)
    return [
        ("small", ("small.npy",), 24),
        ("page", ("page.npy",), 4),
        ("tiny", ("tiny.npy",), 700),
        ("list", ("part0.npy", "part1.npy", "part2.npy"), 30),
        ("shard", ("rows.shard",), 30),
        ("shards", ("part0.shard", "part2.shard"), 20),
        ("plain", ("plain",), 26),
        ("varying", ("varying",), 60),
        ("tokens", ("tokens",), 0),
    ]


@cache
def directory() -> Path:
    path = Path(tempfile.mkdtemp(prefix="simulate-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@cache
def all_data() -> dict[str, Data]:
    """Every kind of data, written once; the same bytes in every process."""
    root, found = directory(), {}
    for name, opened, length in _write(root):
        files = [path for one in opened for path in ([root / one] if (root / one).is_file() else sorted((root / one).rglob("*")))]
        objects = tuple(
            (str(path.relative_to(root)), Version(path.read_bytes(), f"etag-{number}"))
            for number, path in enumerate(files)
            if path.is_file()
        )
        found[name] = Data(name, opened, length or len(pen.open(root / opened[0])), objects, name == "tokens")
    return found


# Streams

ALIKE = (("small", "list"), ("small", "small"), ("shard", "shards"), ("shards", "shard"), ("list", "small"))
"""Data with the same fields, which can be mixed."""


@dataclass(frozen=True)
class Order:
    """A stream of some data: its kind and its numbers."""

    kind: str
    data: tuple[str, ...]
    numbers: tuple[int, ...] = ()

    def make(self, sources: Sequence[Source]) -> Stream:
        one, numbers = sources[0], self.numbers
        if self.kind == "select":
            one = one.select(slice(numbers[1], None, numbers[2]))
        if self.kind == "mixture":
            streams = {"a": _shuffled(one, numbers), "b": sources[1].in_order()}
            return pen.mix(streams, seed=numbers[0], weights={"a": 0.6, "b": 0.4}, stop="all_exhausted")
        stream = one.in_order() if self.kind == "in order" else _shuffled(one, numbers if self.kind == "blocks" else numbers[:1])
        return stream.sequences(numbers[-1]) if self.is_cut else stream

    @property
    def is_cut(self) -> bool:
        """Whether it is one of tokens, in sequences."""
        return self.data == ("tokens",) and self.numbers[-1] > 0


def _shuffled(source: Source, numbers: Sequence[int]) -> Any:
    if len(numbers) < 3:  # all over the data, and not in blocks, which are the default at URLs
        return source.shuffle(seed=numbers[0], block=1, window=len(source))
    return source.shuffle(seed=numbers[0], block=numbers[1], window=numbers[2])


def _draw_order(draw: random.Random) -> Order:
    kind = draw.choice(("in order", "shuffle", "blocks", "blocks", "select", "mixture"))
    seed = draw.randrange(3)
    if kind == "mixture":
        return Order(kind, draw.choice(ALIKE), (seed, 8, 2))
    name = draw.choice(("small", "page", "tiny", "list", "shard", "shards", "plain", "plain", "varying", "tokens"))
    length = 0 if name != "tokens" else draw.choice((0, 30, 100))
    if kind == "blocks":
        most = all_data()[name].length
        return Order(kind, (name,), (seed, draw.choice((2, 8, max(2, most // 5))), draw.choice((1, 2, 3)), length))
    if kind == "select":
        return Order(kind, (name,), (seed, draw.choice((0, 3)), draw.choice((1, 2)), 0))
    return Order(kind, (name,), (seed, length))


# The run


@dataclass(frozen=True)
class Leg:
    """A part of a run: steps that are taken, by which engine, and how slow the consumer is."""

    steps: int
    engine: str
    prefetch: int | None
    think_s: float
    is_new_source: bool
    uses_state_dict: bool


@dataclass(frozen=True)
class Case:
    """All that a seed says."""

    seed: int
    order: Order
    batch_size: int
    legs: tuple[Leg, ...]
    second: tuple[Order, int, int, bool] | None
    """Another loader on the same window: its order, batch size, steps, and whether it runs in a thread of its own."""
    window_pages: int
    shares_window: bool
    sizes: tuple[tuple[str, float], ...]
    """Constants of the product by name, smaller than they are: the data is, too."""
    is_main: bool
    policy: Policy
    weather: Weather
    preempt: float
    late: float
    takes_away: bool
    """Whether another thread closes the first loader in the middle."""

    def pages(self) -> int:
        """The pages of all data."""
        return sum(all_data()[name].pages for name in self.order.data)

    @property
    def may_be_too_small(self) -> bool:
        """Whether the window may be too small for what is read at once."""
        return self.window_pages < 2 * self.pages() + 8 or self.second is not None

    @property
    def has_faults(self) -> bool:
        return bool(self.weather.faults) or self.weather.final is not None


SIZES: dict[str, tuple[float, ...]] = {
    "residency.PIECE_BYTES": (1000, PAGE, 5000, 8 << 20),
    "residency.GAP_BYTES": (0, 300, 5000, 64 << 10),
    "fetch.CONNECTIONS": (1, 2, 4, 16),
    "process.HEARD_S": (0.1, 1.0, 1.0, 1.0),
    "plan.MOST_AHEAD": (1, 3, 8),
    "plan.MOST_NEEDS": (1, 4),
    "lookahead.MOST_STEPS": (1, 4),
}
"""By the module that defines them; those that import them have the same."""
ENGINES = ("caller", "native", "threads")


def draw_weather(draw: random.Random) -> Weather:
    """A network; every other one without faults."""
    choice, uniform = draw.choice, draw.random
    faults, chance, most, final = (), 0.0, 0, None
    if uniform() < 0.5:
        faults = tuple(draw.sample(RETRIED + WRONG, choice((1, 2, 8))))
        chance, most = choice((0.05, 0.2, 0.6, 1.0)), choice((1, 2, 5, 40))
    if uniform() < 0.2:
        final = choice(FINAL)
    return Weather(
        latency_s=choice((0.001, 0.02, 0.3)),
        spread=choice((0.0, 1.0, 1.0, 2.0)),
        bytes_per_s=choice((2e4, 1e6, 1e8)),
        packet_bytes=choice((700, 3000, 100_000)),
        faults=faults,
        chance=chance,
        most=most,
        final=final,
        final_s=choice((0.0, 0.1, 1.0)),
        ignores_conditions=uniform() < 0.5,
    )


def draw_case(seed: int) -> Case:
    """The case of a seed; the same in every process."""
    draw = random.Random(seed)
    order = _draw_order(draw)
    choice, uniform = draw.choice, draw.random
    legs = []
    for number in range(choice((1, 1, 1, 2))):
        legs.append(
            Leg(
                steps=choice((1, 1, 2, 3)),
                engine=choice(ENGINES),
                prefetch=choice((None, None, 0, 5000, 50_000)),
                think_s=choice((0.0, 0.0, 0.0, 0.05, 3.0)),
                is_new_source=number > 0 and uniform() < 0.3,
                uses_state_dict=uniform() < 0.04,
            )
        )
    second = None
    if uniform() < 0.2:
        other = choice((Order("in order", order.data[:1], (0, 0)), Order("shuffle", order.data[:1], (1, 0))))
        second = (other, choice((1, 3, 8)), choice((1, 2)), uniform() < 0.5)
    pages = sum(all_data()[name].pages for name in order.data)
    weather = draw_weather(draw)
    return Case(
        seed=seed,
        order=order,
        batch_size=choice((1, 2, 5, 8)),
        legs=tuple(legs),
        second=second,
        window_pages=choice((2, 3, 4, 6, max(2, pages // 2), pages, 2 * pages + 8, 1000)),
        shares_window=uniform() < 0.5,
        sizes=tuple((name, choice(values)) for name, values in SIZES.items()),
        is_main=uniform() < 0.5,
        policy=Policy(tries=choice((10, 10, 3)), piece_bytes=choice((1 << 16, 1500, 4096)), hedge_s=choice((2.0, 2.0, 0.05))),
        weather=weather,
        preempt=choice((0.0, 0.0, 0.05, 0.3, 0.9)),
        late=choice((0.0, 0.0, 0.02, 0.2)),
        takes_away=uniform() < 0.05,
    )


# What is right

Transform = Callable[[Any], Any]
_expected: dict[tuple[Order, int], list[Any]] = {}
MOST_STEPS = 6


@cache
def _local(name: str) -> Source:
    return all_data()[name].open(directory())


def expected(order: Order, batch_size: int) -> list[Any]:
    """The first batches, of the same data on this machine."""
    key = order, batch_size
    if key not in _expected:
        if len(_expected) > 4000:
            _expected.clear()
        with pen.Loader(order.make([_local(name) for name in order.data]), batch_size, threads=0) as loader:
            batches = loader.forever()
            _expected[key] = [next(batches) for _ in range(MOST_STEPS)]
    return _expected[key]
