"""penstock where."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Run, Seen

import penstock as pen

JOB = """
import numpy as np, penstock as pen

def mixture():
    web, code = pen.open({"x": np.arange(30)}), pen.open({"x": np.arange(100, 120)})
    return pen.Loader(pen.mix({"web": web.shuffle(seed=1), "code": code.shuffle(seed=2)}, seed=3), 8, shard=pen.Shard(1, 2))

def phases():
    return pen.Loader(pen.open({"x": np.arange(30)}), phases=[pen.Phase(steps=3, batch_size=4)])
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"where_job_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_every_epoch_is_listed(run_json: Callable[..., Any], store: Path) -> None:
    found = run_json("where", store, 7, "--batch-size", 8, "--seed", 5, "--epochs", 4, "--world", 4)
    assert [one["epoch"] for one in found] == [0, 1, 2, 3]
    with pen.open(store) as data:
        for one in found:
            for rank in range(4):
                loader = pen.Loader(data.shuffle(seed=5), 8, shard=pen.Shard(rank, 4), ids="id", threads=0)
                loader.seek(one["step"])
                assert (7 in next(iter(loader))["id"]) == (rank == one["rank"])


def test_the_ranks_of_batches_across_epochs_are_right(run_json: Callable[..., Any], store: Path) -> None:
    found = run_json("where", store, 7, "--batch-size", 12, "--tail", "wrap", "--epochs", 6, "--world", 3)
    with pen.open(store) as data:
        for one in found:
            loader = pen.Loader(data.shuffle(seed=0), 12, tail="wrap", shard=pen.Shard(one["rank"], 3), ids="id", threads=0)
            loader.seek(one["step"])
            assert 7 in next(iter(loader))["id"]


def test_a_record_of_a_mixture_is_named_with_its_data_set(run_json: Callable[..., Any], run: Run, job: str) -> None:
    found = run_json("where", f"{job}:mixture", "code:3")
    assert found
    assert all(one["rank"] in (0, 1) for one in found)
    assert run("where", f"{job}:mixture", "code:3").stdout.count("\n") == len(found) + 1


def test_a_record_that_never_comes_is_said_so(run: Run, store: Path) -> None:
    result = run("where", store, 39, "--batch-size", 32, "--tail", "drop", "--in-order")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "record 39 is in no batch of 3 epochs\n"


def test_it_is_legible_in_40_columns_and_a_terminal_sees_colors(run: Run, in_terminal: Callable[..., Seen], store: Path) -> None:
    assert max(map(len, run("where", store, 7, columns=40).stdout.splitlines())) <= 40
    assert "\x1b[" in in_terminal("where", store, 7).output


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["nothing.pen", "7"], 3, "no such file"),
        (["DATA", "x"], 2, "expected the id of a record"),
        (["DATA", "40"], 2, "40"),
        (["DATA", "web:7"], 2, "an id without a name"),
        (["JOB:mixture", "7"], 2, "expected NAME:ID"),
        (["JOB:mixture", "no:7"], 2, "unknown stream 'no'"),
        (["JOB:phases", "7"], 2, "with phases, ask the stream"),
        (["DATA", "7", "--epochs", "0"], 2, "--epochs"),
    ],
)
def test_mistakes_are_one_line(run: Run, store: Path, job: str, words: list[str], code: int, told: str) -> None:
    result = run("where", *[store if word == "DATA" else word.replace("JOB", job) for word in words])
    assert result.exit_code == code, result.output
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


# DATA comes first, as in every other command


@pytest.mark.parametrize(("name", "word"), [("where", "7"), ("explain", "1")])
def test_the_number_before_the_data_is_understood_with_a_note(run: Run, store: Path, images: Path, name: str, word: str) -> None:
    for data in ([store], [images, images]):
        wanted, found = run(name, *data, word, "--batch-size", 8), run(name, word, *data, "--batch-size", 8)
        assert (wanted.exit_code, wanted.stderr) == (0, ""), wanted.output
        assert (found.exit_code, found.stdout) == (0, wanted.stdout)
        assert found.stderr.startswith("note: DATA comes first")
        assert found.stderr.count("\n") == 1


def test_a_named_record_before_the_function_is_understood_with_a_note(run: Run, job: str) -> None:
    wanted, found = run("where", f"{job}:mixture", "code:3"), run("where", "code:3", f"{job}:mixture")
    assert (found.exit_code, found.stdout, wanted.stderr) == (0, wanted.stdout, "")
    assert found.stderr.startswith("note: DATA comes first")


@pytest.mark.parametrize("name", ["where", "explain"])
def test_data_whose_name_is_a_number_is_data(run: Run, store: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(store.parent)
    store.rename(store.with_name("7"))
    found = run(name, "7", "1", "--batch-size", 8)
    assert (found.exit_code, found.stderr) == (0, "")
    refused = run(name, "7", "train.pen", "--batch-size", 8)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "'train.pen'" in refused.stderr
    assert run(name, "8", "9").exit_code == 3  # two numbers, and no file of the first name


@pytest.mark.parametrize("name", ["where", "explain"])
def test_a_missing_word_is_said(run: Run, store: Path, name: str) -> None:
    result = run(name, store)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(("name", "last"), [("where", "ID"), ("explain", "STEP")])
def test_the_help_has_data_first(run: Run, name: str, last: str) -> None:
    usage = next(line for line in run(name, "--help", columns=200).stdout.splitlines() if "Usage:" in line)
    assert 0 < usage.index("DATA") < usage.index(f" {{{last}}}")
