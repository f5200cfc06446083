"""penstock bench."""

import os
import pty
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import PATIENCE_S, Run, Seen, start
from tests.report.conftest import open_fonts
from tests.report.test_page import Page


@pytest.fixture(scope="module", autouse=True)
def fonts_are_open() -> None:
    open_fonts()


QUICK = ("--seconds", "0.1", "--batch-size", "8")


def test_the_figures_are_told(run: Run, store: Path) -> None:
    result = run("bench", store, *QUICK)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    for name in ("samples", "bytes", "of the limit", "a batch takes", "first batch", "resume", "memory", "one batch alone", "* "):
        assert name in result.stdout


def test_json_has_what_was_measured(run_json: Callable[..., Any], images: Path, labels: Path) -> None:
    found = run_json("bench", f"image={images}", f"label={labels}", *QUICK, "--work", 0.5, "--threads", 1)
    assert (found["batch_samples"], found["threads"]) == (8, 1)
    assert found["batch_bytes"] == 8 * (16 * 12 * 3 + 8)
    assert found["ratio"] > 0
    assert found["trainer"]["work_s"] == 0.0005
    assert sum(found["waits"]["counts"]) == found["batches"]
    assert found["advice"]


def test_a_function_of_the_users_is_measured(run_json: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import numpy as np, penstock as pen\n\ndef make():\n    return pen.Loader(pen.open({'x': np.arange(90)}), 30, threads=0)\n"
    )
    (tmp_path / "bench_job.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    found = run_json("bench", "bench_job:make", "--seconds", 0.1)
    assert (found["batch_samples"], found["threads"]) == (30, 0)


def test_a_page_and_pictures_are_written(run: Run, store: Path, tmp_path: Path) -> None:
    result = run("bench", store, *QUICK, "--block", 8, "--window", 2, "--html", tmp_path / "a.html", "--png", tmp_path / "plots")
    assert result.exit_code == 0, result.output
    assert "wrote" in result.stderr
    page = Page((tmp_path / "a.html").read_text())
    assert "How fast is train.pen?" in page.shown
    assert f"penstock bench {store} --batch-size 8 --seconds 0.1 --block 8 --window 2" in page.shown
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == ["batch-latency.png", "throughput.png", "time-split.png"]


def test_secrets_do_not_reach_the_page(run: Run, store: Path, tmp_path: Path) -> None:
    result = run("bench", f"file://{store}", *QUICK, "-s", "token=SECRET", "--html", tmp_path / "a.html")
    assert "SECRET" not in result.output
    assert result.exit_code != 0 or "SECRET" not in (tmp_path / "a.html").read_text()


def test_it_is_legible_in_40_columns(run: Run, store: Path) -> None:
    result = run("bench", store, *QUICK, columns=40)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 40


def test_a_terminal_that_wants_no_colors_sees_none(in_terminal: Callable[..., Seen], store: Path) -> None:
    seen = in_terminal("bench", store, *QUICK, env={"NO_COLOR": "1"})
    assert seen.exit_code == 0
    assert "measuring" in seen.output
    assert "\x1b[36m" not in seen.output


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["nothing.pen"], 3, "no such file"),
        (["no_such_module:make"], 2, "a module that can be imported"),
        (["os:no_such_function"], 2, "has no function"),
        (["DATA", "--batch-size", "x"], 2, "--batch-size"),
        (["DATA", "--seconds", "0"], 2, "--seconds"),
        (["DATA", "--batch-size", "1000", "--tail", "drop"], 2, "drops every epoch whole"),
        (["DATA", "--tail", "no"], 2, "tail must be one of"),
        (["DATA", "--seconds", "0.1", "--html", "/proc/a.html"], 4, "writing failed"),
        (["DATA", "--seconds", "0.1", "--png", "/proc/a"], 4, "making the directory failed"),
    ],
)
def test_mistakes_are_one_line(run: Run, store: Path, words: list[str], code: int, told: str) -> None:
    result = run("bench", *[store if word == "DATA" else word for word in words])
    assert result.exit_code == code
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


def test_damaged_data_is_exit_code_3(run: Run, damaged: Path) -> None:
    result = run("bench", damaged, *QUICK)
    assert result.exit_code == 3
    assert result.stderr.count("\n") == 1


def test_an_interrupt_ends_it_at_once(store: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        words = ["bench", store, "--seconds", 300, "--batch-size", 8]
        with start(*words, stdout=subprocess.PIPE, stderr=theirs, env={**os.environ, "TERM": "xterm"}) as process:
            os.close(theirs)
            seen = b""
            while b"measuring" not in seen:
                seen += os.read(ours, 4096)
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 130
    finally:
        os.close(ours)
