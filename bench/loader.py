"""What the loader costs: global shuffle of a warm store, beside the most the machine can do and torch's DataLoader.

::

    python bench/loader.py [--json FILE] [--quick]
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as pen
from loader_report import finish, judged, rates
from measure import Spread, interleave, machine, run_child, seconds, versions
from penstock.report.doctor import Others
from penstock.source import write_tokens
from store_case import Fixed, Ids
from store_limit import Crew

OUT = Path(__file__).parent.parent / "out"
CHILD = Path(__file__).parent / "loader_child.py"
PLAIN_LIMIT, AHEAD_LIMIT = "C gather, 2 threads", "C gather with software prefetch, 2 threads"
"""LIMIT is the faster one of these."""
OURS = "penstock Loader"
SEQUENCES = "penstock Loader, sequences of tokens"

CASES = (
    (Fixed("256 x 2 KiB", (("x", "u1", 2048),), 400_000, (256,), 0.8, None), 256, 0.8),
    (Fixed("64 x 150,528 B (9.6 MB)", (("x", "u1", 150_528),), 6_000, (64,), 0.9, None), 64, 0.9),
    (Fixed("4,096 x 2 KiB (8.4 MB)", (("x", "u1", 2048),), 400_000, (4096,), 0.9, None), 4096, 0.9),
    (Fixed("1,024 x (128 B + label)", (("x", "u1", 128), ("label", "i4", 0)), 2_000_000, (1024,), 0.6, None), 1024, 0.6),
)


class Turns:
    """Batches of a loader in turns of about ``pass_s``; each goes on where the last one ended, and its last batch is checked."""

    def __init__(self, batches: Callable[[], Iterator[Any]], check: Callable[[Any], None], batch: int, *, pass_s: float) -> None:
        self._batches, self._check, self._batch = batches(), check, batch
        for _ in range(4):
            next(self._batches)
        once_s = seconds(lambda: [next(self._batches) for _ in range(8)]) / 8
        self._count = max(2, round(pass_s / once_s))

    def __call__(self) -> float:
        last: list[Any] = []

        def turn() -> None:
            found = None
            for _ in range(self._count):
                found = next(self._batches)
            last.append(found)

        took_s = seconds(turn)
        self._check(last[0])
        return took_s / (self._count * self._batch)


def limit_batches(crew: Crew, columns: dict[str, npt.NDArray[Any]], ids: Ids, ahead: bool) -> Iterator[Any]:
    gather = crew.gather(columns, ids.batch, ahead=ahead)
    while True:
        for number, where in enumerate(ids.addresses):
            yield gather(where) | {"row": ids[number]}


def torch_batches(directory: Path, columns: dict[str, npt.NDArray[Any]], batch: int, workers: int) -> Iterator[Any]:
    """A map-style dataset over memory maps, batches fetched at once, as its users do it."""
    import torch

    from torch_maps import Maps

    dataset = Maps({name: (directory / f"{name}.bin", str(data.dtype), data.shape) for name, data in columns.items()})
    while True:
        sampler = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(dataset), batch, drop_last=True)
        yield from torch.utils.data.DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=workers)


def sequence_batches(path: Path, columns: dict[str, npt.NDArray[Any]], batch: int) -> Iterator[Any]:
    """The same bytes as one line of tokens, pages of two records shuffled, cut into sequences of a record each."""
    size = columns["x"].shape[1]
    write_tokens([columns["x"].reshape(-1)], path, block_size=2 * size)
    loader = pen.Loader(pen.open(path).shuffle(seed=3).sequences(size), batch, tail="drop", threads=2, ids="first")
    for found in loader.forever():
        yield {"x": found["tokens"], "row": found["first"] // size}


def measure(case: Fixed, batch: int, crew: Crew, rounds: int) -> dict[str, Spread]:
    with tempfile.TemporaryDirectory(prefix="loader-", dir=OUT) as place:
        directory = Path(place)
        columns = case.make(directory)
        case.write(directory / "store", columns)
        store = pen.open(directory / "store", threads=2)
        for low in range(0, len(store), 100_000):
            store.read(slice(low, min(len(store), low + 100_000)))

        def check(found: Any) -> None:
            rows = np.asarray(found["row"])
            for name, data in columns.items():
                assert np.array_equal(np.asarray(found[name]), data[rows]), f"wrong bytes in {name}"

        turns = {
            name: Turns(lambda ahead=ahead: limit_batches(crew, columns, Ids(len(store), batch), ahead), check, batch, pass_s=0.15)
            for name, ahead in ((PLAIN_LIMIT, False), (AHEAD_LIMIT, True))
        }
        loader = pen.Loader(store.shuffle(seed=3), batch, tail="drop", threads=2, ids="row")
        turns[OURS] = Turns(loader.forever, check, batch, pass_s=0.15)
        if batch == 256:
            turns[SEQUENCES] = Turns(lambda: sequence_batches(directory / "x.rox", columns, batch), check, batch, pass_s=0.15)
        for workers in (0, 2):
            name = f"torch DataLoader over memmap, {workers} workers"
            turns[name] = Turns(lambda workers=workers: torch_batches(directory, columns, batch, workers), check, batch, pass_s=0.3)
        return interleave(turns, rounds=rounds, label=case.name)


def small_costs() -> dict[str, float]:
    """State, explanation, and what threads do for a transform that sleeps."""
    data = pen.open(np.arange(1_000_000), field="x")
    loader = pen.Loader(data.shuffle(seed=1), 256)
    loader.state_dict()
    state_us = min(seconds(loader.state_dict) for _ in range(200)) * 1e6
    explain_ms = max(min(seconds(lambda step=step: loader.explain(step)) for _ in range(5)) for step in (0, 3_000, 10**9)) * 1e3

    def sleepy(batch: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.01)
        return batch

    took = {}
    for threads in (0, 4):
        slow = pen.Loader(data.select(slice(0, 16_000)).shuffle(seed=1), 256, threads=threads, transform=sleepy)
        took[threads] = seconds(lambda slow=slow: list(slow))
    return {"state_us": state_us, "explain_ms": explain_ms, "threads_ratio": took[0] / took[4]}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The loader, warm, globally shuffled.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("--quick", action="store_true", help="fewer turns and epochs, ten million records instead of a hundred")
    options = parser.parse_args(arguments)
    OUT.mkdir(parents=True, exist_ok=True)
    began, others = time.perf_counter(), Others()
    crew = Crew(2, spins=20_000)
    goals: list[list[str]] = []
    report: dict[str, Any] = {"machine": machine(), "versions": versions("penstock", "numpy", "torch"), "reads": {}}
    for case, batch, goal in CASES:
        spreads = measure(case, batch, crew, 7 if options.quick else 25)
        limit = min((PLAIN_LIMIT, AHEAD_LIMIT), key=lambda name: spreads[name].median)
        print(f"\n{case.name}\n\n{rates(spreads, limit, 'samples/s')}")
        report["reads"][case.name] = {name: s.to_json() for name, s in spreads.items()}
        goals.append(judged(f"{case.name}: of LIMIT", spreads[limit].median / spreads[OURS].median, goal, at_least=True))
        if SEQUENCES in spreads:
            ratio = spreads[limit].median / spreads[SEQUENCES].median
            goals.append(judged(f"{case.name}, as sequences: of LIMIT", ratio, 0.6, at_least=True))
    crew.close()
    with tempfile.TemporaryDirectory(prefix="loader-", dir=OUT) as place:
        path, rows = f"{place}/labels", 10_000_000 if options.quick else 100_000_000
        with pen.create(path, {"label": pen.Field("i4")}) as out:
            for low in range(0, rows, 10_000_000):
                out.extend({"label": np.arange(low, low + 10_000_000, dtype=np.int32)})
        times = [run_child(CHILD, "start_times", path, str(rows)) for _ in range(5)]
        pen.convert({"x": np.zeros((200_000, 2048), np.uint8)}, f"{place}/records")
        grown = run_child(CHILD, "memory_of_epochs", f"{place}/records", "5" if options.quick else "20")["grown_mb"]
    report |= {"start": times, "grown_mb": grown, "small": (small := small_costs())}
    goals += [
        judged(f"first batch of {rows:,} records, ms", max(t["first_ms"] for t in times), 50, at_least=False),
        judged(f"resume in the middle of {rows:,} records, ms", max(t["resume_ms"] for t in times), 50, at_least=False),
        judged("anonymous memory over 64 MB of prefetch, MB", max(grown) - 64, 60, at_least=False),
        judged("growth from the second epoch to the last, MB", grown[-1] - grown[1], 2, at_least=False),
        judged("state_dict, microseconds", small["state_us"], 20, at_least=False),
        judged("explain of any step, ms", small["explain_ms"], 1, at_least=False),
        judged("4 threads over 0, transform that sleeps", small["threads_ratio"], 3, at_least=True),
    ]
    finish(report, goals, others, began, options.json)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    raise SystemExit(main())
