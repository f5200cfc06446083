"""The figures of a running loader: written by a run, read while they are written."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from tests.view.serving import serving

import penstock as pen
from penstock.view import StatsLog
from penstock.view.server import MOST_LOG_BYTES, MOST_POINTS, Routes, read_figures

LINE = {"time_s": 1.0, "batches": 1, "samples": 64, "bytes": 100, "wait_s": 0.5, "busy_s": 0.5, "advice": "all is well"}


def line(number: int, **changes: object) -> str:
    grown = {name: value * number if isinstance(value, int | float) else value for name, value in LINE.items()}
    return json.dumps({**grown, **changes}) + "\n"


def test_what_a_run_writes_is_what_the_page_shows(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    loader = pen.Loader(pen.open({"x": np.arange(1000)}), batch_size=10)
    with StatsLog(path, every_s=0) as log:
        for _ in loader:
            log.add(loader)
    with serving(Routes(None, path)) as visitor:
        found = visitor.json("api/live")
        about = visitor.json("api/about")
        assert visitor.get("api/records").status == 404
    assert about == {"names": [], "data": None, "watched": "run.jsonl", "loader": None}
    assert (found["state"], found["last"]["batches"], found["last"]["samples"]) == ("running", 100, 1000)
    assert found["last"]["advice"] == json.loads(path.read_text().splitlines()[-1])["advice"]
    assert len(found["points"]) >= 90
    assert all(0 <= point["waiting"] <= 1 and point["samples_per_s"] > 0 for point in found["points"])


def test_a_log_writes_no_more_often_than_it_was_told(tmp_path: Path) -> None:
    loader = pen.Loader(pen.open({"x": np.arange(1000)}), batch_size=10)
    with StatsLog(tmp_path / "run.jsonl", every_s=3600) as log:
        for _ in loader:
            log.add(loader)
    log.close()
    assert len((tmp_path / "run.jsonl").read_text().splitlines()) == 1


def test_a_second_run_goes_on_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(line(number) for number in (1, 2, 3)) + "".join(line(number, time_s=10 + number) for number in (1, 2)))
    found = read_figures(path)
    assert [point["time_s"] for point in found["points"]] == [2.0, 3.0, 12]
    assert found["points"][0] == {"time_s": 2.0, "samples_per_s": 64.0, "bytes_per_s": 100.0, "waiting": 0.5}


def test_a_file_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    with serving(Routes(None, tmp_path / "later.jsonl")) as visitor:
        assert visitor.json("api/live") == {"state": "absent", "points": []}
        (tmp_path / "later.jsonl").write_text(line(1))
        assert visitor.json("api/live")["last"]["samples"] == 64


def test_a_line_that_is_being_written_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(line(1) + line(2)[:-20])
    assert read_figures(path)["last"]["samples"] == 64


@pytest.mark.parametrize(
    "junk",
    [
        "",
        "\n",
        "{}",
        "[1]",
        "null",
        "not json",
        "[" * 100_000,
        '{"time_s": NaN}',
        json.dumps({**LINE, "samples": "<b>"}),
        json.dumps({**LINE, "samples": True}),
        json.dumps({**LINE, "bytes": 10**400}),
        json.dumps({**LINE, "wait_s": None}),
        "1" * 5000,
        "\x00\x01",
    ],
)
def test_other_lines_are_passed_over(tmp_path: Path, junk: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(f"{line(1)}{junk}\n{line(2)}".encode() + b"\xff\xfe\n")
    found = read_figures(path)
    assert (found["last"]["samples"], len(found["points"])) == (128, 1)


def test_hostile_figures_stay_texts_and_numbers(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(line(1, advice="<script>" * 1000, network={"bytes": "<b>", "requests": 3}, skipped="<i>"))
    last = read_figures(path)["last"]
    assert last["network"] == {"requests": 3}
    assert len(last["advice"]) == 500
    assert "skipped" not in last


def test_of_a_long_file_the_end_is_read_and_few_points_are_sent(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(line(number) for number in range(1, 40_000)))
    assert path.stat().st_size > MOST_LOG_BYTES
    found = read_figures(path)
    assert found["last"]["samples"] == 64 * 39_999
    assert 0.9 * MOST_POINTS / 2 < len(found["points"]) <= MOST_POINTS
    assert found["points"][-1]["time_s"] == 39_999.0


def test_what_cannot_be_read_says_so(tmp_path: Path) -> None:
    assert read_figures(tmp_path)["state"] == "unreadable: Is a directory"
    assert read_figures(tmp_path / ("x" * 300))["state"] == "unreadable: File name too long"


def test_a_pipe_is_no_file_to_watch(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_figures(tmp_path / "pipe")["state"] == "unreadable: not a regular file"
