"""A sample of damaged .npy, .shard and .rox files, and of tables of token files."""

from pathlib import Path

import pytest
from tests.effort import count
from tests.hostile.mutate_rows import KINDS, NAMES, TARGETS, attack, image, outcome


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_read_as_they_are_or_are_errors_with_the_path(kind: str) -> None:
    outcomes, wrong = attack(kind, count(300, 10_000))
    assert wrong == []
    assert len(outcomes) > (1 if kind in TARGETS else 4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_that_are_damaged_are_good(tmp_path: Path, kind: str) -> None:
    found = outcome(tmp_path / NAMES.get(kind, f"a.{kind}"), image(kind), "pread", kind)
    assert found == ("UnsupportedTypeError" if kind == "idx modes" else "same")
