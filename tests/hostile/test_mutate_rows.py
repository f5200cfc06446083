"""A sample of damaged .npy, .shard and .rox files, and of tables of token files."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.effort import count, every
from tests.hostile.mutate_rows import AT_URLS, FRESH, KINDS, NAMES, TARGETS, attack, image, outcome

ROOT = Path(__file__).parents[2]
DEADLINE_S = 800
FORKING = [kind for kind in KINDS if kind not in FRESH]


@pytest.mark.parametrize("kind", FORKING)
def test_damaged_files_are_read_as_they_are_or_are_errors_with_the_path(kind: str) -> None:
    outcomes, wrong = attack(kind, count(30 if kind in TARGETS else 50, 10_000))
    assert wrong == []
    if kind == "energon":  # an index that is not right is not used
        assert set(outcomes) == {"same"}
    else:
        assert len(outcomes) > (1 if kind in TARGETS else 4)


@pytest.mark.parametrize("kind", every(3, AT_URLS))
def test_damaged_objects_at_urls_are_read_as_they_are_or_are_errors_with_the_path(kind: str) -> None:
    """The first one is good."""
    outcomes, wrong = attack(kind, count(4, 1000), -1, at_url=True)
    assert wrong == []
    assert outcomes["UnsupportedTypeError" if kind == "idx modes" else "same"] >= 1


@pytest.mark.parametrize("kind", FORKING)
def test_the_files_that_are_damaged_are_good(tmp_path: Path, kind: str) -> None:
    found = outcome(tmp_path / NAMES.get(kind, f"a.{kind}"), image(kind), "pread", kind)
    assert found == ("UnsupportedTypeError" if kind == "idx modes" else "same")


@pytest.mark.parametrize("kind", every(2, FRESH))
def test_the_same_of_packages_that_do_not_survive_a_fork(kind: str) -> None:
    wanted = count(8 if kind == "lance" else 50, 10_000)
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "tests.hostile.mutate_rows",
        "--kind",
        kind,
        "--count",
        str(wanted),
        "--seed=-1",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert f"{kind}: {wanted} mutants, 0 wrong: " in done.stdout, done.stdout + done.stderr
    assert "'same'" in done.stdout
    assert "'CorruptError'" in done.stdout
