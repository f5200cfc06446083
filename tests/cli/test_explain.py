"""penstock explain."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import RECORDS, Run, Seen

import penstock as pen

JOB = """
import numpy as np, penstock as pen

def mixture():
    web, code = pen.open({"x": np.arange(30)}), pen.open({"x": np.arange(100, 120)})
    mixed = pen.mix({"web": web.shuffle(seed=1), "co\\x1bde": code.shuffle(seed=2)}, weights={"web": 0.5, "co\\x1bde": 0.5}, seed=3)
    return pen.Loader(mixed, 8)

def sequences():
    tokens = pen.open(np.arange(400, dtype=np.uint16).reshape(4, 100), field="t")
    return pen.Loader(pen.open("tokens.rox").shuffle(seed=1).sequences(50), 4)

def number():
    return 7
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: Path) -> str:
    name = f"explain_job_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_the_records_of_every_rank_are_listed(run: Run, store: Path) -> None:
    result = run("explain", store, 2, "--batch-size", 8, "--world", 2, "--seed", 7)
    ids = pen.open(store).shuffle(seed=7).order.indices(0, 16, 24).tolist()
    assert result.exit_code == 0, result.output
    for rank in (0, 1):
        assert ", ".join(map(str, ids[rank::2])) in result.stdout
    assert "16, 18 …" in result.stdout
    assert "17, 19 …" in result.stdout


def test_json_has_epoch_position_and_ids(run_json: Callable[..., Any], store: Path) -> None:
    found = run_json("explain", store, 7, "--batch-size", 8, "--in-order")
    assert found == {"step": 7, "epoch": 1, "position": 16, "ids": list(range(16, 24)), "world": 1}


def test_the_records_themselves_are_shown(run: Run, store: Path) -> None:
    result = run("explain", store, 0, "--batch-size", 8, "--in-order", "--most", 2, "--show")
    assert result.exit_code == 0, result.output
    assert "caption 0" in result.stdout
    assert "caption 1" in result.stdout
    assert "caption 2" not in result.stdout


def test_a_mixture_names_its_data_sets(run: Run, job: str) -> None:
    result = run("explain", f"{job}:mixture", 1, "--show", columns=200)
    assert result.exit_code == 0, result.output
    assert "web:" in result.stdout
    assert "co\\x1bde:" in result.stdout
    assert "\x1b" not in result.stdout
    found = run("explain", f"{job}:mixture", 1, "--json")
    assert found.exit_code == 0
    assert '"source"' in found.stdout


def test_sequences_are_named_by_their_tokens_and_cannot_be_shown(run: Run, job: str) -> None:
    result = run("explain", f"{job}:sequences", 0)
    assert result.exit_code == 0, result.output
    assert "tokens " in result.stdout
    assert run("explain", f"{job}:sequences", 0, "--show").exit_code == 2


def test_a_step_costs_the_same_wherever_it_is(run_json: Callable[..., Any], store: Path) -> None:
    found = run_json("explain", 10**9, store, "--batch-size", 8)
    assert found["epoch"] == 10**9 // (RECORDS // 8)
    assert len(np.unique(found["ids"])) == 8


def test_it_is_legible_in_40_columns_and_a_terminal_sees_colors(run: Run, in_terminal: Callable[..., Seen], store: Path) -> None:
    result = run("explain", store, 0, "--batch-size", 40, columns=40)
    assert max(map(len, result.stdout.splitlines())) <= 40
    assert "\x1b[" in in_terminal("explain", store, 0, "--batch-size", 8).output


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["nothing.pen", "0"], 3, "no such file"),
        (["DATA", "x"], 2, "STEP"),
        (["DATA", "--", "-1"], 2, "STEP"),
        (["DATA", "0", "--batch-size", "9", "--world", "2"], 2, "cannot be divided among 2 ranks"),
        (["DATA", "5", "--tail", "drop", "--batch-size", "99"], 2, "drops every epoch whole"),
        (["JOB:number", "0"], 2, "expected a function that gives a penstock loader, got int"),
    ],
)
def test_mistakes_are_one_line(run: Run, store: Path, job: str, words: list[str], code: int, told: str) -> None:
    result = run("explain", *[store if word == "DATA" else word.replace("JOB", job) for word in words])
    assert result.exit_code == code, result.output
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


def test_records_that_cannot_be_read_are_exit_code_3(run: Run, damaged: Path) -> None:
    assert run("explain", damaged, 0, "--batch-size", 8).exit_code == 0
    assert run("explain", damaged, 0, "--batch-size", 8, "--show", "--most", 40).exit_code == 3
