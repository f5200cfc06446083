"""penstock shuffle-report."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.conftest import Run, Seen
from tests.report.conftest import open_fonts
from tests.report.test_page import Page


@pytest.fixture(scope="module", autouse=True)
def fonts_are_open() -> None:
    open_fonts()


@pytest.fixture
def sorted_data(tmp_path: Path) -> list[str]:
    np.save(tmp_path / "x.npy", np.zeros((4096, 10), np.uint8))
    np.save(tmp_path / "label.npy", np.arange(4096) // 410)
    return [f"x={tmp_path}/x.npy", f"label={tmp_path}/label.npy"]


def test_six_measures_and_a_window_are_told(run: Run, sorted_data: list[str]) -> None:
    result = run("shuffle-report", *sorted_data, "--label", "label", "--block", 64, "--window", 1, "--batch-size", 32)
    assert result.exit_code == 0, result.output
    for name in ("S1 ", "S2 ", "S3 ", "S4 ", "S5 ", "S6 ", "poor", "10 classes of the data", "is the smallest that reaches"):
        assert name in result.stdout
    assert "perfect shuffle" in result.stdout
    assert "▒" in result.stdout


def test_json_has_figures_verdicts_and_pictures(run_json: Callable[..., Any], sorted_data: list[str]) -> None:
    found = run_json(
        "shuffle-report", *sorted_data, "--block", 64, "--window", 2, "--batch-size", 32, "--labels", 10, "--target", 0.8
    )
    assert [one["name"] for one in found["verdicts"]] == ["S1", "S2", "S3", "S4", "S5", "S6"]
    assert found["suggestion"]["memory_bytes"] == found["suggestion"]["window"] * 64 * 18
    assert found["class_mix"] < found["ideal_class_mix"]
    assert len(found["heat"]) == 64


def test_what_is_read_is_told(run: Run, run_json: Callable[..., Any], sorted_data: list[str]) -> None:
    words = [*sorted_data, "--block", 64, "--window", 4, "--batch-size", 32]
    found = run_json("shuffle-report", *words)["locality"]
    assert (found["cache"], found["num_blocks"], found["epoch"]["block_reads"], found["read_per_used"]) == (4, 64, 64, 1)
    assert found["epoch"]["bytes_used"] == 4096 * 18
    assert run_json("shuffle-report", *words, "--cache", 0)["locality"]["read_per_used"] == found["requested_per_used"] > 7
    shown = run("shuffle-report", *words).stdout
    for told in (
        "blocks read, 4 blocks kept",
        "seeks between records",
        "same block as the record before",
        "reads every block about once",
    ):
        assert told in shown.replace("\n", " ")


def test_blocks_that_are_read_whole_are_those_of_the_data(run_json: Callable[..., Any], tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(1000)}), tmp_path / "x.parquet", row_group_size=100)
    found = run_json("shuffle-report", tmp_path / "x.parquet", "--batch-size", 20, "--block", 50, "--window", 2)
    assert found["reads_blocks"] is True
    assert found["locality"]["num_blocks"] == 10
    assert found["locality"]["read_per_used"] > 1.5  # a block of the shuffle is half of one of the data
    aligned = run_json("shuffle-report", tmp_path / "x.parquet", "--batch-size", 20, "--block", 100, "--window", 2)
    assert aligned["locality"]["read_per_used"] == 1


def test_records_without_data_are_judged(run_json: Callable[..., Any]) -> None:
    found = run_json("shuffle-report", "--records", 10**12, "--block", 8192, "--batch-size", 32, "--world", 4)
    assert found["order"] == "BlockShuffle(n=1000000000000, block=8192, seed=0, window=16, lanes=1)"
    assert found["suggestion"]["memory_bytes"] is None


def test_a_page_and_pictures_are_written(run: Run, sorted_data: list[str], tmp_path: Path) -> None:
    words = ["--label", "label", "--batch-size", 32, "--html", tmp_path / "a.html", "--png", tmp_path / "plots"]
    result = run("shuffle-report", *sorted_data, *words)
    assert result.exit_code == 0, result.output
    page = Page((tmp_path / "a.html").read_text())
    assert "How well is" in page.shown
    assert "S6" in page.shown
    assert "bytes read per byte used" in page.shown
    assert page.handlers == []
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == ["class-mix.png", "heat-map.png"]


@pytest.mark.parametrize("columns", [40, 60, 100])
def test_it_fits_the_terminal(run: Run, columns: int) -> None:
    result = run("shuffle-report", "--records", 4096, "--batch-size", 32, columns=columns)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= columns


def test_letters_that_an_old_terminal_has_are_used(run: Run) -> None:
    result = run("shuffle-report", "--records", 4096, "--batch-size", 32, env={"PYTHONIOENCODING": "ascii"})
    assert result.exit_code == 0


def test_a_terminal_sees_colors(in_terminal: Callable[..., Seen]) -> None:
    seen = in_terminal("shuffle-report", "--records", 4096, "--batch-size", 32)
    assert seen.exit_code == 0
    assert "\x1b[32mS1" in seen.output


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ([], 2, "expected data or --records"),
        (["DATA", "--records", "100"], 2, "and not both"),
        (["nothing.npy"], 3, "no such file"),
        (["--records", "100", "--label", "x"], 2, "--label needs data"),
        (["DATA", "--label", "no"], 2, "unknown field 'no'"),
        (["DATA", "--label", "image"], 2, "expected one value per record"),
        (["DATA", "--batch-size", "256"], 2, "at least two batches of 256"),
        (["--records", "x"], 2, "--records"),
        (["--records", "100", "--target", "2"], 2, "--target"),
        (["--records", "100", "--batch-size", "8", "--html", "/proc/a.html"], 4, "writing failed"),
    ],
)
def test_mistakes_are_one_line(run: Run, store: Path, words: list[str], code: int, told: str) -> None:
    result = run("shuffle-report", *[store if word == "DATA" else word for word in words])
    assert result.exit_code == code, result.output
    assert told in result.stderr
    assert result.stderr.count("\n") == 1
