"""Several iterators over one loader, each in a thread of its own: they share the cursor, so no batch comes twice."""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.effort import count
from tests.loader.model import delivered_ids, make_loader

DEADLINE_S = 300
STEPS = 250


@pytest.fixture
def eager_switching() -> Any:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_switching")
@pytest.mark.parametrize("kind", ["plain", "native", "threads"])
def test_l15_iterators_in_threads_never_deliver_a_step_twice(kind: str) -> None:
    for _ in range(count(3, 8)):
        with make_loader(kind, 4 * STEPS, 4) as loader:

            def consume(batches: Any) -> list[tuple[int, ...]]:
                return [tuple(delivered_ids(next(batches))) for _ in range(STEPS // 4)]

            with ThreadPoolExecutor(4) as pool:
                runs = [pool.submit(consume, loader.forever()) for _ in range(4)]
                found = [batch for run in runs for batch in run.result(DEADLINE_S)]
            assert sorted(found) == sorted(tuple(loader.explain(step)["ids"].tolist()) for step in range(4 * (STEPS // 4)))
