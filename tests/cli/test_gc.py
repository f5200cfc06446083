"""penstock gc: says what goes, removes nothing else, and nothing at all in a dry run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import RECORDS, Run

import penstock as pen


@pytest.fixture
def old(store: Path) -> Path:
    """A store with two generations that nobody needs, and a third."""
    pen.rebalance(store)
    return store


def files(store: Path) -> dict[str, int]:
    return {str(path): path.stat().st_size for path in store.rglob("*") if path.is_file()}


def test_old_generations_go(run_json: Callable[..., Any], old: Path) -> None:
    before = files(old)
    found = run_json("gc", old, "--keep", 1, "--keep-hours", 0)
    gone = before.keys() - files(old).keys()
    assert (set(found["files"]), found["freed_bytes"]) == (gone, sum(before[name] for name in gone))
    assert (found["kept_generations"], found["dry_run"], len(gone)) == ([3], False, 5)
    with pen.open(old) as data:
        assert len(data) == RECORDS


def test_a_dry_run_says_the_same_and_removes_nothing(run: Run, run_json: Callable[..., Any], old: Path) -> None:
    before = files(old)
    planned = run_json("gc", old, "--keep", 1, "--keep-hours", 0, "--dry-run")
    shown = run("gc", old, "--keep", 1, "--keep-hours", 0, "--dry-run")
    assert files(old) == before
    assert run_json("gc", old, "--keep", 1, "--keep-hours", 0) == {**planned, "dry_run": False}
    assert shown.stdout.splitlines()[:-1] == planned["files"]
    assert shown.stdout.splitlines()[-1].startswith("would free 5 files, ")


def test_young_generations_stay_unless_told_otherwise(run: Run, old: Path) -> None:
    result = run("gc", old, "--keep", 1)
    assert (result.exit_code, result.stdout) == (0, "freed 0 files, 0 B; generations 1 to 3 stay\n")
    assert run("gc", old, "--keep", 2, "--keep-hours", 0).stdout.splitlines()[-1].endswith("; generations 2 to 3 stay")


def test_what_a_crashed_writer_left_goes(run_json: Callable[..., Any], old: Path) -> None:
    left = old / "chunk" / f"{'0' * 32}-00000000.zr"
    left.write_bytes(b"half a chunk")
    assert run_json("gc", old)["files"] == []  # it may belong to a commit under way on another host, or to a copy
    assert run_json("gc", old, "--keep", 3, "--keep-hours", 0)["files"] == [str(left)]
    assert not left.exists()


def test_a_store_at_a_url_is_collected(run_json: Callable[..., Any], store: Path) -> None:
    pen.convert(str(store), "memory://cli-gc/a.pen")
    pen.rebalance("memory://cli-gc/a.pen")
    assert run_json("gc", "memory://cli-gc/a.pen")["files"] == []
    assert len(run_json("gc", "memory://cli-gc/a.pen", "--keep", 1, "--keep-hours", 0)["files"]) == 2


def test_what_is_no_store_is_exit_code_3(run: Run, images: Path, tmp_path: Path) -> None:
    for path in (images, tmp_path / "nothing", "memory://cli-gc/nothing"):
        result = run("gc", path)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (3, "", 1), result.output


def test_a_store_that_is_being_written_is_exit_code_4(run: Run, old: Path) -> None:
    with pen.open(old, mode="a"):
        result = run("gc", old)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (4, "", 1)


def test_wrong_arguments_are_exit_code_2(run: Run, old: Path) -> None:
    assert run("gc", old, "--keep", 0).exit_code == 2
    assert run("gc", old, "--keep-hours", -1).exit_code == 2
    assert run("gc", old, "--keep", "all").exit_code == 2
