"""Plans: what a writer does, as data; and the model that says what a reader must find after every commit.

A plan is run twice: by :mod:`tests.crash.workload` on a real store, and by :func:`states` on a list of dicts.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

Record = dict[str, object]
State = list[Record]

NAMES = ("number", "image", "caption", "track")


@dataclass(frozen=True)
class Step:
    """One thing to do. ``first`` is the serial of the first record made; ``count`` also the generations a gc keeps."""

    kind: str
    first: int = 0
    count: int = 0
    ids: tuple[int, ...] = ()
    names: tuple[str, ...] = NAMES


@dataclass(frozen=True)
class Plan:
    """Steps on a new store with these options. The fields are NAMES; see :func:`record`."""

    steps: tuple[Step, ...]
    chunk_records: int = 1000
    threads: int = 1
    options: dict[str, object] = field(default_factory=dict)


def record(serial: int) -> Record:
    """The record of a serial number, as a reader returns it: missing, empty and zero all occur."""
    return {
        "number": None if serial % 7 == 3 else serial % 5 * serial,
        "image": [serial % 251, serial // 251 % 251, 0, 7, serial % 3, 9],
        "caption": None if serial % 6 == 1 else f"record {serial} " * (serial % 4),
        "track": None if serial % 9 == 4 else [float(serial + i) for i in range(serial % 4)],
    }


def grown(count: int) -> list[object]:
    """The values of a field that is added."""
    return [None if i % 5 == 3 else 7 * i for i in range(count)]


class Model:
    """A store as a list of dicts."""

    def __init__(self) -> None:
        self.published: list[State | None] = [None]
        self.records: State = []
        self.added: list[str] = []
        self.changed = True

    def run(self, step: Step) -> None:
        getattr(self, "_" + step.kind.replace("-", "_"))(step)

    def _extend(self, step: Step) -> None:
        missing = dict.fromkeys(self.added)
        self.records = [*self.records, *(record(step.first + i) | missing for i in range(step.count))]
        self.changed |= step.count > 0

    def _update(self, step: Step) -> None:
        self.records = [dict(old) for old in self.records]
        for i, index in enumerate(step.ids):
            new = record(step.first + i)
            self.records[index].update({name: new[name] for name in step.names})
        self.changed |= bool(step.ids)

    def _delete(self, step: Step) -> None:
        gone = sorted(set(step.ids))
        end = len(self.records) - len(gone)
        movers = [i for i in range(end, len(self.records)) if i not in gone]
        kept = list(self.records[:end])
        for hole, mover in zip([i for i in gone if i < end], movers, strict=True):
            kept[hole] = self.records[mover]
        self.records = kept
        self.changed |= bool(gone)

    def _commit(self, step: Step) -> None:
        if self.changed:
            self.published.append(self.records)
            self.changed = False

    _killed_commit = _commit  # the link was made; whether it survives depends on what comes next

    def _abort(self, step: Step) -> None:
        self.records = list(self.published[-1] or [])
        self.changed = len(self.published) == 1

    _reopen = _abort

    def _rebalance(self, step: Step) -> None:
        self._abort(step)
        self.published.append(self.records)

    def _grow(self, step: Step) -> None:
        """A commit of its own: ``names`` has the one field that is added."""
        self._abort(step)
        self.records = [old | {step.names[0]: value} for old, value in zip(self.records, grown(len(self.records)), strict=True)]
        self.added.append(step.names[0])
        self.published.append(self.records)

    def _gc(self, step: Step) -> None:
        self._abort(step)

    def _race(self, step: Step) -> None:
        """Two writers append; the one that links first wins, the other gets a ConflictError."""
        self._abort(step)
        self._extend(Step("extend", step.first, step.count))
        self._commit(step)


def states(plan: Plan) -> list[State | None]:
    """The records of every generation; None for generation 0, before anything was published."""
    model = Model()
    for step in plan.steps:
        model.run(step)
    return model.published


# Plans with names. Each covers a way of writing; chunk_records is small where several chunks should go into one commit.

COMMIT, ABORT, REOPEN, REBALANCE = Step("commit"), Step("abort"), Step("reopen"), Step("rebalance")


def _extend(first: int, count: int) -> Step:
    return Step("extend", first, count)


def _update(ids: tuple[int, ...], first: int, names: tuple[str, ...] = NAMES) -> Step:
    return Step("update", first, ids=ids, names=names)


def _delete(*ids: int) -> Step:
    return Step("delete", ids=ids)


def _grow(name: str) -> Step:
    return Step("grow", names=(name,))


def _gc(keep: int) -> Step:
    return Step("gc", count=keep)


def _small_commits(count: int, step: Callable[[int], tuple[Step, ...]]) -> tuple[Step, ...]:
    return tuple(s for i in range(count) for s in (*step(i), COMMIT))


NAMED: dict[str, Plan] = {
    "empty": Plan((COMMIT,)),
    "create": Plan((_extend(0, 5), COMMIT)),
    "create-chunks": Plan((_extend(0, 9), COMMIT), chunk_records=3),
    "create-threads": Plan((_extend(0, 12), COMMIT, _extend(12, 6), COMMIT), chunk_records=3, threads=2),
    "append": Plan((_extend(0, 4), COMMIT, _extend(4, 3), COMMIT, _extend(7, 1), COMMIT)),
    "append-chunks": Plan((_extend(0, 2), COMMIT, _extend(2, 9), COMMIT), chunk_records=4),
    "append-reopened": Plan((_extend(0, 4), COMMIT, REOPEN, _extend(4, 3), COMMIT, REOPEN, _extend(7, 3), COMMIT)),
    "append-to-empty": Plan((COMMIT, _extend(0, 4), COMMIT)),
    "update": Plan((_extend(0, 6), COMMIT, _update((1, 4), 50), COMMIT, _update((4,), 60), COMMIT)),
    "update-field": Plan(
        (_extend(0, 6), COMMIT, _update((0, 5), 50, ("caption",)), COMMIT, _update((0,), 70, ("number",)), COMMIT)
    ),
    "update-twice": Plan((_extend(0, 6), COMMIT, _update((2, 2), 50), _update((2,), 80, ("track",)), COMMIT)),
    "delete": Plan((_extend(0, 8), COMMIT, _delete(1, 6), COMMIT, _delete(0), COMMIT)),
    "delete-last": Plan((_extend(0, 4), COMMIT, _delete(3), COMMIT, _extend(30, 2), COMMIT)),
    "delete-all": Plan((_extend(0, 5), COMMIT, _delete(0, 1, 2, 3, 4), COMMIT, _extend(20, 2), COMMIT)),
    "mixed": Plan(
        (_extend(0, 8), COMMIT, _update((3,), 40), _delete(0, 7), _extend(50, 4), COMMIT, _delete(2), _update((1, 2), 90), COMMIT)
    ),
    "mixed-chunks": Plan(
        (_extend(0, 8), COMMIT, _update((3, 1, 5), 40), _delete(0, 7), _extend(50, 4), COMMIT), chunk_records=2, threads=2
    ),
    "fold": Plan((_extend(0, 12), COMMIT, *_small_commits(10, lambda i: (_update((i,), 100 + i, ("number", "caption")),)))),
    "fold-deletes": Plan((_extend(0, 24), COMMIT, *_small_commits(10, lambda i: (_delete(i),)))),
    "small-commits": Plan(_small_commits(8, lambda i: (_extend(i, 1),))),
    "rebalance": Plan((_extend(0, 9), COMMIT, _update((2, 5), 40), _delete(0), COMMIT, REBALANCE), chunk_records=3),
    "rebalance-append": Plan((_extend(0, 6), COMMIT, _delete(1), COMMIT, REBALANCE, REOPEN, _extend(30, 2), COMMIT)),
    "rebalance-empty": Plan((_extend(0, 3), COMMIT, _delete(0, 1, 2), COMMIT, REBALANCE, REOPEN, _extend(30, 2), COMMIT)),
    "grow": Plan((_extend(0, 7), COMMIT, _grow("one"), REOPEN, _extend(20, 2), _delete(1), COMMIT, _grow("two")), chunk_records=3),
    "grow-rebalance": Plan((_extend(0, 5), COMMIT, _update((2,), 40), COMMIT, _grow("one"), REBALANCE, _gc(1)), threads=2),
    "gc": Plan((_extend(0, 4), COMMIT, _update((0, 1), 40), COMMIT, _delete(0), COMMIT, _gc(1))),
    "gc-keep": Plan((_extend(0, 4), COMMIT, _update((0,), 40), COMMIT, _delete(0), COMMIT, REBALANCE, _gc(2))),
    "rebalance-gc": Plan((_extend(0, 6), COMMIT, _update((0, 2), 40), COMMIT, REBALANCE, _gc(1), REOPEN, _extend(60, 2), COMMIT)),
    "gc-twice": Plan((_extend(0, 3), COMMIT, _extend(3, 3), COMMIT, _gc(1), REOPEN, _update((1,), 40), COMMIT, _gc(1))),
    "abort": Plan((_extend(0, 3), COMMIT, _extend(3, 5), _delete(0), ABORT, _extend(40, 2), COMMIT), chunk_records=2),
    "abort-first": Plan((_extend(0, 5), ABORT, _extend(20, 2), COMMIT), chunk_records=2),
    "killed-append": Plan((_extend(0, 3), COMMIT, _extend(3, 2), Step("killed-commit"), REOPEN, _extend(5, 2), COMMIT)),
    "killed-gc": Plan((_extend(0, 3), COMMIT, _update((1,), 40), Step("killed-commit"), _gc(1), REOPEN, _extend(5, 2), COMMIT)),
    "killed-rebalance": Plan((_extend(0, 3), COMMIT, _delete(0), Step("killed-commit"), REBALANCE, _gc(1))),
    "killed-create": Plan((_extend(0, 3), Step("killed-commit"), REOPEN, _extend(3, 2), COMMIT)),
    "recovery": Plan((_extend(0, 2), COMMIT, _gc(1)), chunk_records=2),  # on whatever a crash left behind
    "race": Plan((_extend(0, 3), COMMIT, Step("race", 10, 2), REOPEN, _extend(20, 1), COMMIT)),
}


def named(name: str) -> Plan:
    """The plan of a name: one of NAMED, or ``random-<seed>``."""
    return random_plan(int(name.removeprefix("random-"))) if name.startswith("random-") else NAMED[name]


def random_plan(seed: int) -> Plan:
    """A plan drawn by lot: five to nine transactions of one to three changes each, with maintenance between them."""
    rng = random.Random(seed)
    steps: list[Step] = [_extend(0, rng.randint(1, 9)), COMMIT]
    model = Model()
    for step in steps:
        model.run(step)

    def do(step: Step) -> None:
        steps.append(step)
        model.run(step)

    for _ in range(rng.randint(4, 8)):
        for _ in range(rng.randint(1, 3)):
            do(_random_change(rng, len(model.records)))
        ending = rng.choices(["commit", "abort", "killed-commit"], [10, 1, 1])[0]
        do(Step(ending))
        if ending == "killed-commit" or rng.random() < 0.3:
            do(rng.choice([REOPEN, REBALANCE, _gc(rng.randint(1, 3))]))
        if steps[-1].kind in ("rebalance", "gc"):
            do(REOPEN)
    return Plan(tuple(steps), chunk_records=rng.choice([2, 3, 5, 1000]), threads=rng.randint(1, 2))


def _random_change(rng: random.Random, length: int) -> Step:
    kind = rng.choices(["extend", "update", "delete"], [3, 3, 2])[0] if length else "extend"
    serial = rng.randrange(10_000)
    if kind == "extend":
        return _extend(serial, rng.randint(1, 7))
    ids = tuple(rng.randrange(length) for _ in range(rng.randint(1, min(3, length))))
    if kind == "delete":
        return _delete(*ids)
    return _update(ids, serial, tuple(sorted(rng.sample(NAMES, rng.randint(1, len(NAMES))))))
