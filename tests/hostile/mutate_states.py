"""States of strangers: real states of every kind of stream, mutated, are refused in one short line or taken for what they say.

    python -m tests.hostile.mutate_states --count 10000 --seed 0

Mutated are the dicts (values of any type and size, keys, parts of states of other runs), the bytes of their JSON, and the 24-byte
cursors. A state that is taken must say the same afterwards, and its next batch must come. One that is refused raises a StateError
with a printable message of one line, and leaves the loader where it was. More than MAX_GROWTH of memory, or DEADLINE_S for one
state, is a failure.
"""

import argparse
import copy
import json
import random
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.golden.make_states import FOLDER, Data, cases
from tests.loader.test_old_states import NOW, UNBUILDABLE

import penstock as pen
from penstock.errors import StateError

MAX_MESSAGE = 4000
MAX_GROWTH = 512 << 20
DEADLINE_S = 300
LONG = "x" * (48 << 20)
HIDDEN = "\x1b[2J\r\n\0\u202e\u2028\ud800"


def _deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def _round() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


JUNK: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**63 - 1, 2**63, 2**64, 10**5000, -(10**5000), 0.0, 1.5, float("nan"), float("inf"), 1j,
    "", "0", "x" * 48, "0" * 48, "f" * 48, "0" * 47, "0" * 96, HIDDEN, HIDDEN * 1000, LONG, b"", b"0" * 48, bytearray(24),
    [], {}, (),
    [0] * 100_000, {str(i): "x" for i in range(100_000)}, {i: i for i in range(1000)}, {HIDDEN: HIDDEN}, {LONG: LONG},
    {"x": LONG, HIDDEN: None}, _deep(5000), _round(), {1, 2}, range(10**9), object(), ValueError("x"), int, print,
]  # fmt: skip
"""What may be anywhere in a checkpoint."""


class Subject:
    """A loader, and states that it saved."""

    def __init__(self, name: str, loader: pen.Loader) -> None:
        self.name, self.loader = name, loader
        self.states: list[dict[str, Any]] = []
        self.cursors: list[bytes] = []
        for step in (0, 1, 3):
            loader.seek(step)
            self.states.append(loader.state_dict())
            self.cursors.append(loader.get_state())

    def load(self, state: Any) -> str:
        """What became of a state: "taken", or "refused"; AssertionError if neither is right."""
        before = self.loader.state_dict()
        refused = _refusal(lambda: self.loader.load_state_dict(state))
        if refused is not None:
            assert self.loader.state_dict() == before, f"{self.name}: a refused state has moved the loader: {refused}"
            return "refused"
        after = self.loader.state_dict()
        assert after["order_version"] >= state["order_version"]  # an order that is the same in both versions
        for key in ("version", "step"):
            assert after[key] == state[key], f"{self.name}: {key} {state[key]} was taken as {after[key]}"
        assert after["cursor"] == state["cursor"].lower(), f"{self.name}: cursor {state['cursor']} taken as {after['cursor']}"
        assert {**after["plan"], **state["plan"]} == {**state["plan"], **after["plan"]}, f"{self.name}: another plan was taken"
        known = state.get("samples", {})
        assert known.get("dense", known.get("few", state["data"])) in (*after["samples"].values(), after["data"])
        self._read()
        return "taken"

    def set(self, packed: Any) -> str:
        """The same of a cursor."""
        before = self.loader.state_dict()
        if _refusal(lambda: self.loader.set_state(packed)) is not None:
            assert self.loader.state_dict() == before
            return "refused"
        assert self.loader.get_state() == bytes(packed), f"{self.name}: cursor {packed!r} was taken for another"
        self._read()
        return "taken"

    def _read(self) -> None:
        with iter(self.loader) as batches:
            next(batches, None)
        self.loader.load_state_dict(self.states[0])


def _refusal(load: Callable[[], None]) -> str | None:
    """The message, if a state is refused as it should be."""
    try:
        load()
    except StateError as error:
        message = str(error)
        assert 0 < len(message) <= MAX_MESSAGE, f"a message of {len(message)} characters: {message[:200]!r}..."
        assert message.isprintable(), f"not printable: {message!r}"
        return message
    return None


# Mutations


def mutated(state: dict[str, Any], other: dict[str, Any], rng: random.Random) -> Any:
    """A state with one to three changes."""
    if rng.random() < 0.02:
        return rng.choice(JUNK)
    changed = copy.deepcopy(state)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        place = rng.choice([changed, changed, changed, changed.get("plan"), changed.get("samples")])
        if isinstance(place, dict) and place:
            _change(place, other, rng)
    return changed


def _change(place: dict[Any, Any], other: dict[str, Any], rng: random.Random) -> None:
    key = rng.choice(list(place))
    how = rng.randrange(8)
    if how == 0:
        del place[key]
    elif how == 1:
        place[rng.choice([HIDDEN, LONG, "another", 7, None, b"x", ("x",)])] = rng.choice(JUNK)
    elif how == 2:
        place[f"{key}{HIDDEN}"] = place.pop(key)
    elif how == 3 and key in other:
        place[key] = copy.deepcopy(other[key])
    elif how in (4, 5):
        place[key] = _edited(place[key], rng)
    else:
        place[key] = rng.choice(JUNK)


def _edited(value: Any, rng: random.Random) -> Any:
    """A value that is nearly right."""
    if type(value) is int:
        return value + rng.choice((-1, 1, 2**32, -value - 1)) if rng.random() < 0.5 else value ^ (1 << rng.randrange(70))
    if not isinstance(value, str):
        return rng.choice(JUNK)
    at = rng.randrange(len(value) + 1)
    return rng.choice(
        [
            value[:at],
            value[at:],
            value[:at] + "x" + value[at:],
            value[:at] + "0" + value[at + 1 :],
            value * 2,
            value.upper(),
            value + HIDDEN,
        ]
    )


def scrambled(data: bytes, rng: random.Random) -> bytes:
    """Bytes with a few flips, cuts or insertions."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(changed) + 1)
        how = rng.randrange(4)
        if how == 0 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            del changed[at : at + rng.randrange(1, 9)]
        elif how == 2:
            changed[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif at < len(changed):
            changed[at] = rng.choice(b'0123456789{}[]",:-.eE\\ua')
    return bytes(changed)


# The run


@contextmanager
def subjects() -> Iterator[list[Subject]]:
    """Loaders of every kind of stream."""
    data = Data(FOLDER)
    found = []
    for case in cases():
        if case.name not in UNBUILDABLE:
            found.append(Subject(case.name, case.loader(data, resumes=True, make=NOW.get(case.name))))
    try:
        yield found
    finally:
        for one in found:
            one.loader.close()
            one.loader.stream.close()


def attack(one: Subject, other: Subject, rng: random.Random) -> str:
    """One mutation of something that a loader saved, and what became of it."""
    how = rng.randrange(4)
    if how < 2:
        return one.load(mutated(rng.choice(one.states), rng.choice(other.states), rng))
    if how == 2:
        try:
            state = json.loads(scrambled(json.dumps(rng.choice(one.states)).encode(), rng))
        except (ValueError, RecursionError):
            return "no JSON"
        return one.load(state)
    packed = scrambled(rng.choice(one.cursors), rng) if rng.random() < 0.9 else rng.choice([*JUNK, *other.cursors])
    return one.set(packed)


def run(count: int, seed: int) -> Counter[str]:
    """``count`` mutations; how many were taken, and how many refused."""
    rng, done = random.Random(seed), Counter[str]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    old = signal.signal(signal.SIGALRM, _late)
    try:
        with subjects() as found:
            for number in range(count):
                signal.alarm(DEADLINE_S)
                done[attack(found[number % len(found)], rng.choice(found), rng)] += 1
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before
    assert growth < MAX_GROWTH, f"{growth >> 20} MiB more memory"
    return done


def _late(signum: int, frame: Any) -> None:
    raise TimeoutError(f"a state took longer than {DEADLINE_S} s")


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sys.stdout.write(f"{dict(run(options.count, options.seed))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
