"""Whatever call fails, or ends the writer: the store is what the last commit left, and can be written to again."""

from typing import Any

import pytest
from tests.crash.inject import FAULTS
from tests.crash.run import WORKERS, run_all

STRIDE, PARTS = 20, 4 * WORKERS  # every 20th call of a quarter of the table; all of it: make crash
LEAST_FAULTS = 16


@pytest.fixture(scope="module")
def injected() -> list[dict[str, Any]]:
    """The faults, in as many processes as there are workers."""
    return list(run_all([["tests.crash.inject", "--part", f"{i}/{PARTS}", "--stride", str(STRIDE)] for i in range(WORKERS)]))


def test_a_store_survives_every_injected_fault(injected: list[dict[str, Any]]) -> None:
    assert [what for result in injected for what in result["wrong"]] == []


@pytest.mark.parametrize("kind", FAULTS)
def test_every_kind_of_fault_took_place(injected: list[dict[str, Any]], kind: str) -> None:
    assert sum(result["faults"].get(kind, 0) for result in injected) >= 2


def test_enough_faults_took_place(injected: list[dict[str, Any]]) -> None:
    assert sum(sum(result["faults"].values()) for result in injected) >= LEAST_FAULTS
