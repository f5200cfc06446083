"""Simulate: record a plan once, enumerate the states a power cut may leave behind, and check each of them.

    python -m tests.crash.simulate PLAN[:MUTANT] ... [--subsets N] [--most N] [--seed N] [--recoveries N]

prints one line of JSON for each plan: the number of events (writes and changed names), of distinct states, of those opened, and of
wrong ones, with the first of these in words.
"""

import argparse
import json
import random
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.crash import trace, workload
from tests.crash.check import check_state, materialise, scratch
from tests.crash.disk import SUBSETS, Disk, Materials, choices
from tests.crash.plan import State, named, record, states

STORE = "s.pen"
RECOVERY = "recovery"


@dataclass
class Outcome:
    """What a simulation found."""

    plan: str
    mutant: str
    events: int
    states: int
    opened: int
    wrong: int
    first_wrong: str = ""


@dataclass(frozen=True)
class Found:
    """A distinct state: its files by digest, and the commits it must lie between."""

    tree: Mapping[str, bytes | None]
    acked: int
    started: int


class Simulation:
    """The states of one trace."""

    def __init__(self, text: str, root: str, seed: int, subsets: int, before: Mapping[str, bytes | None] | None = None) -> None:
        self._disk = Disk(root, before)
        self.materials = Materials(self._disk)
        self.events = 0
        self._text, self._rng, self._subsets = text, random.Random(seed), subsets

    def states(self) -> list[Found]:
        """Every distinct state once. The bytes of LOCK, a note for people, do not make a state another one."""
        found: dict[frozenset[tuple[str, bytes | None]], Found] = {}
        calls = trace.parse(self._text)
        met: set[object] = set()
        for moment in self._disk.replay(calls):
            situation = (moment.happened, moment.pending, moment.acked, moment.started)
            if situation in met:
                continue
            met.add(situation)
            for choice in dict.fromkeys(choices(self._disk, moment, self._rng, self._subsets)):
                tree = self.materials.tree(moment, choice)
                key = frozenset((path, None if path.endswith("/LOCK") else digest) for path, digest in tree.items())
                acked, started = moment.acked, moment.started
                if key in found:
                    acked, started = max(acked, found[key].acked), min(started, found[key].started)
                found[key] = Found(tree, acked, started)
        self.events = len(self._disk.events)
        return list(found.values())

    def bytes_of(self, state: Found) -> dict[str, bytes | None]:
        """A state with its bytes."""
        return {path: None if digest is None else self.materials.content(digest) for path, digest in state.tree.items()}


def simulate(
    plan: str, mutant: str = "", *, subsets: int = SUBSETS, most: int | None = None, seed: int = 0, recoveries: int = 0
) -> Outcome:
    """Record, enumerate and check one plan; then, for some of its states, the recovery from them in the same way."""
    model = states(named(plan))
    where = Path(scratch())
    try:
        text = _record((plan, str(where / "disk" / STORE), mutant), where, {})
        simulation = Simulation(text, str(where / "disk"), seed, subsets)
        found = simulation.states()
        outcome = Outcome(plan, mutant, simulation.events, len(found), 0, 0)
        rng = random.Random(seed)
        mixed = rng.sample(found, len(found))  # so that a mutant is caught early
        _check(outcome, simulation, mixed[:most], model, stop=bool(mutant))
        settled = [state for state in found if state.acked > 0]
        for state in rng.sample(settled, min(recoveries, len(settled))):
            _recover(outcome, simulation.bytes_of(state), model, where, seed, subsets)
        return outcome
    finally:
        shutil.rmtree(where)


def _record(work: tuple[str, str, str], where: Path, before: Mapping[str, bytes | None]) -> str:
    shutil.rmtree(where / "disk", ignore_errors=True)
    (where / "disk").mkdir()
    materialise(before, where / "disk")
    trace.record(lambda: workload.main(*work), where / "trace", where)
    return (where / "trace").read_text()


def _check(outcome: Outcome, simulation: Simulation, found: list[Found], model: list[State | None], *, stop: bool) -> None:
    for state in found:
        problem = check_state(simulation.bytes_of(state), STORE, model, state.acked, state.started)
        outcome.opened += 1
        if problem is not None:
            outcome.wrong += 1
            outcome.first_wrong = outcome.first_wrong or problem
            if stop:
                return


def _recover(
    outcome: Outcome, before: Mapping[str, bytes | None], model: list[State | None], where: Path, seed: int, subsets: int
) -> None:
    """A second power cut, while a writer goes on from the state the first one left."""
    text = _record((RECOVERY, str(where / "disk" / STORE), ""), where, before)
    generation = max(int(Path(p).stem) for p in before if p.endswith(".json"))
    after = [*model[: generation + 1], [*(model[generation] or []), record(0), record(1)]]
    simulation = Simulation(text, str(where / "disk"), seed, subsets, before)
    # The recovery counts its commits from 1; the store it began with is at `generation`.
    found = [Found(s.tree, generation + s.acked, generation + s.started) for s in simulation.states()]
    outcome.states += len(found)
    _check(outcome, simulation, found, after, stop=False)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("plans", nargs="+")
    parser.add_argument("--subsets", type=int, default=SUBSETS)
    parser.add_argument("--most", type=int, help="open no more than so many of the states")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--recoveries", type=int, default=0)
    given = parser.parse_args()
    options = {key: value for key, value in vars(given).items() if key != "plans"}
    for name in given.plans:
        plan, _, mutant = name.partition(":")
        sys.stdout.write(json.dumps(asdict(simulate(plan, mutant, **options))) + "\n")


if __name__ == "__main__":
    main()
