"""penstock rebalance: full chunks again, the same records, and figures from before and after."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import Run, Seen, damage

import penstock as pen


@pytest.fixture
def wasteful(tmp_path: Path) -> Path:
    """A store of three small chunks, of which much is deleted."""
    with pen.create(tmp_path / "a.pen", {"x": pen.Field("i8", (10,))}) as out:
        for start in range(0, 100, 10):
            out.extend({"x": np.arange(10 * start, 10 * start + 100).reshape(10, 10)})
            out.commit()
        out.delete([*range(25, 100)])
        out.delete([3, 4, 13, 14])
    return tmp_path / "a.pen"


def test_a_store_is_rewritten(run_json: Callable[..., Any], wasteful: Path) -> None:
    with pen.open(wasteful) as data:
        before = data["x"][:]
    found = run_json("rebalance", wasteful, "--threads", 1)
    assert (found["before"]["chunks"], found["after"]["chunks"]) == (3, 1)
    assert found["before"]["utilisation"] < 0.9 < found["after"]["utilisation"] == 1.0
    assert found["after"]["generation"] == found["before"]["generation"] + 1
    with pen.open(wasteful) as data:
        assert np.array_equal(data["x"][:], before)


def test_people_see_before_and_after(run: Run, wasteful: Path) -> None:
    result = run("rebalance", wasteful, columns=40)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 40
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()[1:]}
    assert (rows["records"], rows["chunks"]) == (["21", "21"], ["3", "1"])
    assert "penstock gc" in result.stderr


def test_a_store_at_a_url_is_rewritten(run_json: Callable[..., Any], wasteful: Path) -> None:
    pen.convert(str(wasteful), "memory://cli-rebalance/a.pen")
    assert run_json("rebalance", "memory://cli-rebalance/a.pen")["after"]["records"] == 21


def test_a_terminal_gets_a_bar(in_terminal: Callable[..., Seen], wasteful: Path) -> None:
    seen = in_terminal("rebalance", wasteful, columns=40)
    assert seen.exit_code == 0
    assert "rebalance" in seen.output
    assert "100%" in seen.output


def test_what_is_no_store_is_exit_code_3(run: Run, images: Path, tmp_path: Path) -> None:
    for path in (images, tmp_path / "nothing", "memory://cli-rebalance/nothing"):
        result = run("rebalance", path)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (3, "", 1), result.output


def test_a_broken_store_stays_as_it_is(run: Run, wasteful: Path) -> None:
    for chunk in (wasteful / "chunk").iterdir():
        damage(chunk)
    before = sorted(path.name for path in (wasteful / "manifest").iterdir())
    result = run("rebalance", wasteful)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (3, "", 1)
    assert sorted(path.name for path in (wasteful / "manifest").iterdir()) == before


def test_a_store_that_is_being_written_is_exit_code_4(run: Run, wasteful: Path) -> None:
    with pen.open(wasteful, mode="a"):
        result = run("rebalance", wasteful)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (4, "", 1)


def test_wrong_arguments_are_exit_code_2(run: Run, wasteful: Path) -> None:
    assert run("rebalance", wasteful, "--threads", 0).exit_code == 2
    assert run("rebalance").exit_code == 2
    assert run("rebalance", wasteful, wasteful).exit_code == 2
