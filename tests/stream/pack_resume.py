"""Packs resume exactly: saved behind every step on some number of ranks, resumed on another, and compared.

    python -m tests.stream.pack_resume [--steps 16] [--rest 2] [--only NAME]

prints a table: for every kind of packed stream how many states were saved and resumed, how many batches of all ranks together were
compared, and how many differed. Ends with 1 if any did.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tests.formats import token_files
from tests.order import reference

import penstock as pen
from penstock.order import Shard
from penstock.source import write_documents, write_tokens

WORLDS = (1, 2, 3, 4, 8)
SIZE = 24
"""Samples of a batch: any of the worlds divides it."""

FIELDS = ("tokens", "segment", "position", "labels")
PHASES = (
    pen.Phase(3, batch_size=SIZE, seq_len=16),
    pen.Phase(2, batch_size=2 * SIZE, seq_len=8),
    pen.Phase(0, batch_size=SIZE, seq_len=20),
    pen.Phase(4, batch_size=SIZE, seq_len=40),
    pen.Phase(3, batch_size=SIZE, seq_len=16),
    pen.Phase(30, batch_size=SIZE, seq_len=12),
)
SAME_LENGTH = (pen.Phase(4, batch_size=SIZE, seq_len=16), pen.Phase(30, batch_size=2 * SIZE, seq_len=16))


def documents_of(count: int, salt: int, first: int) -> list[Any]:
    """Documents of tokens that all differ: some are empty, few are longer than a sequence."""
    lengths = [reference.absorb(salt, number) % 31 >> reference.absorb(salt, number + count) % 3 for number in range(count)]
    lengths[count // 2] = 120
    ends = np.cumsum(lengths).tolist()
    return [np.arange(first + end - length, first + end, dtype="<u2") for length, end in zip(lengths, ends, strict=True)]


@dataclass
class Data:
    """Small corpora of every kind, in a directory."""

    path: Path
    documents: list[Any] = field(default_factory=lambda: documents_of(180, 3, 100))
    others: list[Any] = field(default_factory=lambda: documents_of(90, 8, 30_000))

    def write(self) -> None:
        for name, documents in (("main", self.documents), ("other", self.others)):
            pen.convert({"ids": pen.Ragged.from_items(documents, dtype="u2")}, self.path / f"{name}.pen")
        write_documents(self.documents, self.path / "m.idx", dtype="u2")
        masks = [one % 3 > 0 for one in self.documents]
        token_files.write_datatrove(self.path / "d.ds", self.documents, masks)
        write_tokens([np.append(one, 0).astype("u2") for one in self.documents], self.path / "t.rox", dtype="u2", block_size=64)

    def open(self, name: str) -> Any:
        return pen.open(self.path / name)


Make = Callable[[Data], Any]


def packed(name: str, *, block: int | None = 8, **options: Any) -> Make:
    """A pack of one of the corpora."""
    return lambda data: data.open(name).shuffle(seed=11, block=block).pack(16, window=40, **{"fields": FIELDS, **options})


def banned(make: Make) -> Make:
    """The same without some documents, some of them later."""
    return lambda data: make(data).without(range(0, 150, 9)).without(range(1, 150, 7), from_step=5)


def mixed(*makes: Make, **options: Any) -> Make:
    def make(data: Data) -> Any:
        return pen.mix({"abc"[number]: one(data) for number, one in enumerate(makes)}, seed=5, **options)

    return make


BOTH = (packed("main.pen", eos=7), packed("other.pen", eos=7, block=None))


def banned_mixture(data: Data) -> Any:
    made = mixed(*BOTH, weights={"a": 3, "b": 1}, stop="forever")(data)
    return made.without({"a": range(0, 180, 9)}).without({"b": [1, 5, 70], "a": [2]}, from_step=4)


@dataclass(frozen=True)
class Run:
    """A stream, and how it is loaded."""

    make: Make
    options: dict[str, Any] = field(default_factory=lambda: {"batch_size": SIZE})


def run(make: Make, **options: Any) -> Run:
    return Run(make, {"batch_size": SIZE, **options} if "phases" not in options else options)


RUNS = {
    "fit": run(packed("main.pen", eos=7)),
    "fit, tail wrap": run(packed("main.pen"), tail="wrap"),
    "fit, tail drop": run(packed("main.pen", bos=8, eos=7, first_segment=1), tail="drop"),
    "fit, in order": run(lambda data: data.open("main.pen").in_order().pack(16, window=40, fields=FIELDS)),
    "fit, multiple_of": run(packed("main.pen", multiple_of=4, eos=7)),
    "always": run(packed("main.pen", split="always", bos=8)),
    "never, truncated": run(packed("main.pen", split="never", long="truncate", eos=7)),
    "never, dropped": run(packed("main.pen", split="never", long="drop")),
    "token file": run(packed("t.rox", separator=0, block=None)),
    "Megatron": run(packed("m.idx", block=None)),
    "datatrove, loss masks": run(packed("d.ds", block=None, fields=(*FIELDS, "loss_mask"), eos=7)),
    "fit, bans": run(banned(packed("main.pen", eos=7))),
    "always, bans": run(banned(packed("main.pen", split="always"))),
    "never, bans": run(banned(packed("main.pen", split="never", long="truncate"))),
    "Megatron, bans": run(banned(packed("m.idx", block=None)), tail="wrap"),
    "mixture": run(mixed(*BOTH, weights={"a": 3, "b": 1}, stop="all_exhausted")),
    "mixture, every token once": run(mixed(*BOTH, stop="all_exhausted_without_replacement"), tail="wrap"),
    "mixture of splits": run(mixed(packed("main.pen", split="never", long="drop"), packed("main.pen", split="always"))),
    "mixture, weights by step": run(mixed(*BOTH, weights=[(0, {"a": 1, "b": 1}), (4, {"a": 1, "b": 3})], stop="forever")),
    "mixture in a mixture": run(mixed(mixed(*BOTH, stop="all_exhausted"), packed("m.idx", eos=7, block=None))),
    "mixture, bans": run(banned_mixture),
    "phases": run(packed("main.pen", eos=7), phases=list(PHASES)),
    "phases, always": run(packed("main.pen", split="always"), phases=list(PHASES)),
    "phases, never": run(packed("main.pen", split="never", long="truncate"), phases=list(PHASES)),
    "phases, token file": run(packed("t.rox", separator=0, block=None), phases=list(PHASES)),
    "phases, bans": run(banned(packed("main.pen", eos=7)), phases=list(PHASES)),
    "phases, loss masks": run(packed("d.ds", block=None, fields=(*FIELDS, "loss_mask")), phases=list(PHASES)),
    "phases of a mixture": run(mixed(*BOTH, stop="forever", weights={"a": 1, "b": 1}), phases=list(SAME_LENGTH)),
    "phases of a mixture, bans": run(banned_mixture, phases=list(SAME_LENGTH)),
}


@contextmanager
def loaders(stream: Any, world: int, options: dict[str, Any], state: str | None, threads: int = 0) -> Iterator[list[Any]]:
    """The ranks of a world, at a state."""
    with ExitStack() as stack:
        made = [
            stack.enter_context(pen.Loader(stream, shard=Shard(rank, world), threads=threads, **options)) for rank in range(world)
        ]
        for loader in made:
            if state is not None:
                loader.load_state_dict(json.loads(state))
        yield made


def batches(ranks: Sequence[Any], steps: int) -> Iterator[dict[str, Any]]:
    """Batches of all ranks together, in the order of their samples."""
    iterators = [rank.forever() for rank in ranks]
    for _ in range(steps):
        yield united([next(one) for one in iterators])


def united(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    size = sum(len(part["tokens"]) for part in parts)
    whole = {name: np.empty((size, *values.shape[1:]), values.dtype) for name, values in parts[0].items()}
    for rank, part in enumerate(parts):
        for name, values in part.items():
            whole[name][rank :: len(parts)] = values
    return whole


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return list(one) == list(other) and all(
        one[name].dtype == other[name].dtype and np.array_equal(one[name], other[name]) for name in one
    )


@dataclass
class Seen:
    """What was compared."""

    steps: int = 0
    saved: int = 0
    resumed: int = 0
    compared: int = 0
    wrong: list[str] = field(default_factory=list)


def check(run: Run, data: Data, steps: int, *, worlds: Sequence[int] = WORLDS, stride: int = 1, rest: int | None = None) -> Seen:
    """Save behind every ``stride``-th step on each world, resume on each, and compare the ``rest`` of the run, or all of it. Some
    are resumed by native threads.
    """
    stream, seen = run.make(data), Seen(steps)
    open_ranks = partial(loaders, stream, options=run.options)
    with open_ranks(1, state=None) as ranks:
        whole = list(batches(ranks, steps))
    for before in worlds:
        for step, state in enumerate(_saved(open_ranks, before, whole, seen)):
            if step % stride:
                continue
            seen.saved += 1
            for after in worlds:
                seen.resumed += 1
                count = steps - step if rest is None else min(rest, steps - step)
                threads = 2 if seen.resumed % 16 == 1 else 0  # few: they take long to start
                with open_ranks(after, state=state, threads=threads) as ranks:
                    for number, batch in enumerate(batches(ranks, count), step):
                        seen.compared += 1
                        if not same(batch, whole[number]):
                            seen.wrong.append(f"saved behind step {step} on {before}, resumed on {after}: step {number} differs")
                            break
    stream.close()
    return seen


def _saved(open_ranks: Any, world: int, whole: Sequence[dict[str, Any]], seen: Seen) -> Iterator[str]:
    """The state before every step of a run on a world, whose batches are compared too."""
    with open_ranks(world, state=None) as ranks:
        yield _state(ranks, seen)
        for step, batch in enumerate(batches(ranks, len(whole))):
            seen.compared += 1
            if not same(batch, whole[step]):
                seen.wrong.append(f"never interrupted, on {world}: step {step} differs")
            yield _state(ranks, seen)


def _state(ranks: Sequence[Any], seen: Seen) -> str:
    states = {json.dumps(rank.state_dict()) for rank in ranks}
    if len(states) > 1:
        seen.wrong.append(f"the states of {len(ranks)} ranks differ")
    return states.pop()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Resume equality of packs, at every step, on every pair of worlds.")
    parser.add_argument("--steps", type=int, default=16, help="batches of a run")
    parser.add_argument("--rest", type=int, default=2, help="batches that are compared behind a resume; 0: all")
    parser.add_argument("--only", metavar="NAME", choices=RUNS)
    given = parser.parse_args()
    began, total, wrong = time.monotonic(), 0, list[str]()
    _say(f"{'packed stream':28} {'steps':>6} {'saved':>6} {'resumed':>8} {'compared':>9} {'different':>9}")
    with tempfile.TemporaryDirectory() as directory:
        data = Data(Path(directory))
        data.write()
        for name in [given.only] if given.only else RUNS:
            seen = check(RUNS[name], data, given.steps, rest=given.rest or None)
            _say(f"{name:28} {seen.steps:6} {seen.saved:6} {seen.resumed:8} {seen.compared:9} {len(seen.wrong):9}")
            total, wrong = total + seen.compared, wrong + [f"{name}: {one}" for one in seen.wrong]
    for line in wrong[:20]:
        _say(line)
    worlds = ", ".join(map(str, WORLDS))
    _say(f"{total} batches compared, worlds {worlds} each with each, {len(wrong)} different, {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
