"""Several threads on one iterator, for as long as wanted: every batch comes once, whoever takes it, saves, or closes.

As a program: ``python -m tests.loader.campaign --stress SECONDS``
"""

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

from tests.loader.child import DEADLINE_S
from tests.loader.model import KINDS, delivered_ids, make_loader

import penstock as pen


def share(kind: str, n: int, size: int, takers: int) -> int:
    """Threads take an epoch by one iterator, while another one saves: no batch twice, none missing. Returns their number."""
    loader = make_loader(kind, n, size)
    steps = -(-n // size)
    over = threading.Event()
    with iter(loader) as batches, ThreadPoolExecutor(takers + 1) as pool:
        saving = pool.submit(_save, loader, over)
        taking = [pool.submit(_take, batches) for _ in range(takers)]
        try:
            found = [batch for done in taking for batch in done.result(DEADLINE_S)]
        finally:
            over.set()
        states = saving.result(DEADLINE_S)
    assert Counter(found) == _expected(loader, steps)
    assert loader.step == steps
    _check_states(kind, n, size, states)
    return steps


def close_meanwhile(kind: str, n: int, size: int, takers: int, chance: random.Random) -> int:
    """Threads take an epoch by one iterator, while another one closes it again and again: what was given up comes later, once."""
    loader = make_loader(kind, n, size)
    steps = -(-n // size)
    pauses = [chance.random() * 0.002 for _ in range(50)]
    over = threading.Event()
    found: list[Any] = []
    with ThreadPoolExecutor(takers + 1) as pool:
        while loader.step < steps:
            with iter(loader) as batches:
                over.clear()
                closing = pool.submit(_close, batches, pauses, over)
                taking = [pool.submit(_take, batches) for _ in range(takers)]
                try:
                    found += [batch for done in taking for batch in done.result(DEADLINE_S)]
                finally:
                    over.set()
                closing.result(DEADLINE_S)
    assert Counter(found) == _expected(loader, steps)
    return steps


@contextmanager
def hasty() -> Iterator[None]:
    """Threads take turns far more often, so that what seldom happens between two lines happens."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def _take(batches: Iterator[Any]) -> list[Any]:
    return [tuple(delivered_ids(batch)) for batch in batches]


def _save(loader: pen.Loader, over: threading.Event) -> list[Any]:
    states = []
    while not over.is_set():
        states.append(loader.state_dict())
    return states


def _check_states(kind: str, n: int, size: int, states: list[Any]) -> None:
    fresh = make_loader(kind, n, size)
    for state in {str(state): state for state in states}.values():
        fresh.load_state_dict(state)
        assert fresh.cursor.epoch * n + fresh.cursor.position == min(n, size * fresh.step)


def _close(batches: Any, pauses: list[float], over: threading.Event) -> None:
    for pause in pauses:
        if over.wait(pause):
            return
        batches.close()


def _expected(loader: pen.Loader, steps: int) -> Counter[Any]:
    return Counter(tuple(loader.explain(step)["ids"].tolist()) for step in range(steps))


def run(seconds: float) -> Counter[str]:
    """Stress of all kinds; how often, and with how many batches."""
    seen: Counter[str] = Counter()
    chance = random.Random(1)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        kind = chance.choice(list(KINDS))
        n, size, takers = chance.randrange(1, 2000), chance.randrange(1, 33), chance.randrange(2, 9)
        with hasty() if chance.random() < 0.5 else nullcontext():
            seen["batches"] += share(kind, n, size, takers) + close_meanwhile(kind, n, size, takers, chance)
        seen[kind] += 2
    return seen
