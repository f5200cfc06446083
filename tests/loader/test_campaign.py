"""A few cases of the campaign."""

from tests.effort import count
from tests.loader.campaign import run


def test_l7_random_runs_beside_plain_lists() -> None:
    seen, failed = run(10**6, count(30, 60))
    assert failed == []
    assert seen["cases"] == count(30, 60)
    assert seen["batches"] > count(100, 200)
