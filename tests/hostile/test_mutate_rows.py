"""A sample of damaged .npy, .shard and .rox files, and of tables of token files."""

import pytest
from tests.effort import count
from tests.hostile.mutate_rows import KINDS, TARGETS, attack


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_read_as_they_are_or_are_errors_with_the_path(kind: str) -> None:
    outcomes, wrong = attack(kind, count(300, 10_000))
    assert wrong == []
    assert len(outcomes) > (1 if kind in TARGETS else 4)
