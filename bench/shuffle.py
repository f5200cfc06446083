"""What a shuffled index costs: time, memory and start-up of penstock's orders beside those of numpy, torch and Grain.

::

    python bench/shuffle.py [--json FILE] [--quick] [--grain]
"""

import argparse
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

from contender import ORDERS, WHOLES, OrderTrial, WholeTrial
from measure import Spread, interleave, machine, progress, run_child, seconds, versions, write_json
from penstock import _core
from penstock.report.doctor import Others
from shuffle_report import FAR, FULL, GRAIN, NUMPY, QUICK, TRILLION, Result, Settings, judge_goals, text

COLD = Path(__file__).with_name("cold.py")


class GrainTrial:
    """Grain's shuffle, 1 call per index, in its own process."""

    def __init__(self, worker: Any, n: int, pass_s: float) -> None:
        self._worker = worker
        self._request = {"n": n, "rounds": 4, "count": max(200, round(pass_s / 4e-6) if n >= 65_536 else 1000)}
        self._seed = 0
        self._last: dict[str, Any] = {}

    def __call__(self) -> float:
        self._seed += 1
        self._last = self._worker.ask("time", seed=self._seed, **self._request)
        return float(self._last["ns"])

    def verify(self) -> str:
        last = self._last
        assert 0 <= last["lowest"] <= last["highest"] < self._request["n"], f"ids from {last['lowest']} to {last['highest']}"
        assert last["distinct"] == last["count"], f"{last['distinct']} distinct ids of {last['count']}"
        return "start distinct, in range"

    def close(self) -> None:
        pass


Trial: TypeAlias = OrderTrial | WholeTrial | GrainTrial


def measure_speed(settings: Settings, worker: Any) -> list[Result]:
    """All contenders at all lengths, taking turns."""
    results = []
    for n in sorted({*settings.lengths, settings.baseline}):
        began = time.perf_counter()
        trials = _trials(settings, n, worker)
        turns = {f"{name}, {threads}": trial for (name, threads), trial in trials.items()}
        spreads = interleave(turns, rounds=settings.rounds, label=f"n={n:,}")
        progress(f"n={n:,} checking")
        with ThreadPoolExecutor(2) as pool:
            checks = list(pool.map(lambda trial: trial.verify(), trials.values()))
        for ((name, threads), trial), checked in zip(trials.items(), checks, strict=True):
            results.append(Result(name, threads, n, spreads[f"{name}, {threads}"], checked))
            trial.close()
        progress(f"n={n:,}: {time.perf_counter() - began:.1f} s", lasting=True)
    return results


def _trials(settings: Settings, n: int, worker: Any) -> dict[tuple[str, int], Trial]:
    trials: dict[tuple[str, int], Trial] = {}
    if n in settings.lengths:
        for name, make in ORDERS.items():
            for threads in (1, 2):
                trials[name, threads] = OrderTrial(make(n), threads=threads, pass_s=settings.pass_s)
        if worker is not None:
            trials[GRAIN, 1] = GrainTrial(worker, n, settings.pass_s)
    for name in () if n > 10**8 else WHOLES if n in settings.lengths else (NUMPY,):
        trials[name, 1] = WholeTrial(name, n, pass_s=settings.pass_s)
    return trials


def measure_calls(settings: Settings) -> list[dict[str, Any]]:
    """Nanoseconds per call of ``indices`` for batches as a loader asks for them: the share of the Python wrapper."""
    rows = []
    for name, make in ORDERS.items():
        order = make(10**8)
        for batch in (1, 64, 256, 1024):
            starts = range(0, settings.calls * batch, batch)

            def work(starts: range = starts, batch: int = batch, indices: Callable[..., object] = order.indices) -> float:
                took_s = seconds(lambda: [indices(1, start, start + batch) for start in starts], time.thread_time)
                return took_s / len(starts) * 1e9

            spread = interleave({name: work}, rounds=5, label="calls")[name]
            rows.append({"name": name, "batch": batch, "ns_per_call": spread.to_json()})
    return rows


def measure_cold(settings: Settings) -> list[dict[str, Any]]:
    """Seconds to the first index in a fresh process, imports excluded, at the start of a run and far into it."""
    rows = []
    for name in ORDERS:
        for epoch, position in ((0, 0), (7, FAR)):
            progress(f"first index of {name} at {position:,} of epoch {epoch}")
            found = [run_child(COLD, "first", name, TRILLION, epoch, position) for _ in range(settings.children)]
            assert len({child["index"] for child in found}) == 1, f"{name} gave different ids in different processes"
            times = {key: Spread(tuple(child[key] for child in found)).to_json() for key in ("first_s", "seek_s", "other_epoch_s")}
            rows.append({"name": name, "n": TRILLION, "epoch": epoch, "position": position, "index": found[0]["index"], **times})
    return rows


def measure_memory(settings: Settings) -> list[dict[str, Any]]:
    """Growth of the resident set, one fresh process per contender."""
    wanted = [(name, n) for n in (settings.baseline, TRILLION) for name in ORDERS]
    wanted += [(name, settings.baseline) for name in WHOLES]
    progress("memory")
    with ThreadPoolExecutor(2) as pool:  # nothing is timed here
        grown = pool.map(lambda want: run_child(COLD, "memory", *want), wanted)
        return [{"name": name, "n": n, **found} for (name, n), found in zip(wanted, grown, strict=True)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time, memory and start-up of shuffled indices.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("--quick", action="store_true", help="fewer lengths and turns, under 20 s")
    parser.add_argument("--grain", action="store_true", help="also Grain, in a virtual environment of its own (made if missing)")
    options = parser.parse_args(arguments)
    settings = QUICK if options.quick else FULL
    began, others = time.perf_counter(), Others()
    report: dict[str, Any] = {"machine": machine(), "versions": versions("penstock", "numpy", "torch")}
    report["versions"]["simd"] = _core.available_simd()[-1].name
    results = _speed(settings, report, grain=options.grain)
    report["calls"], report["cold"] = measure_calls(settings), measure_cold(settings)
    report["memory"] = measure_memory(settings)
    report["others_share"] = others.share()
    report["goals"] = judge_goals(results, report["cold"], report["memory"])
    lines = text(report, results, settings)
    if options.grain:
        import rival_grain

        report["grain"] = rival_grain.judge()
        lines += rival_grain.report_lines(report["grain"])
    report["seconds"] = time.perf_counter() - began
    progress(f"took {report['seconds']:.0f} s", lasting=True)
    print("\n".join(lines))
    if options.json is not None:
        write_json(options.json, report)
    return 0


def _speed(settings: Settings, report: dict[str, Any], *, grain: bool) -> list[Result]:
    worker = None
    if grain:
        import rival_grain  # needs scipy, so only on request

        rival_grain.make_environment()
        report["versions"]["grain"] = rival_grain.PINNED.partition("==")[2]
        worker = rival_grain.GrainWorker()
    try:
        results = measure_speed(settings, worker)
    finally:
        if worker is not None:
            worker.close()
    report["speed"] = [result.to_json() for result in results]
    return results


if __name__ == "__main__":
    raise SystemExit(main())
