"""A few cases of the campaign."""

from tests.loader.campaign import run


def test_l7_random_runs_beside_plain_lists() -> None:
    seen, failed = run(10**6, 60)
    assert failed == []
    assert seen["cases"] == 60
    assert seen["batches"] > 200
