"""penstock index: builds the sidecars of files ahead of time, and removes them, nothing else."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import Run

from penstock.formats import sidecar, spans, token_line
from penstock.formats.sidecar import SUFFIX


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files of JSON lines; small files have sidecars, too, from the moment they are written."""
    monkeypatch.setattr("penstock.system.SETTLED_NS", -(10**9))
    monkeypatch.setattr(spans, "KEPT_BYTES", 1)
    monkeypatch.setattr(token_line, "KEPT_BYTES", 1)
    monkeypatch.setattr(sidecar, "cache_directory", lambda: tmp_path / "cache")
    directory = tmp_path / "data"
    directory.mkdir()
    for name, count in {"a.jsonl": 3, "b.jsonl": 4}.items():
        (directory / name).write_text("".join(json.dumps({"x": i}) + "\n" for i in range(count)))
    return directory


def indexes(directory: Path) -> list[str]:
    return sorted(str(path) for path in directory.glob(f"*{SUFFIX}"))


def test_indexes_are_built_once_and_told(run: Run, run_json: Callable[..., Any], lines: Path) -> None:
    found = run_json("index", lines)
    assert (found["records"], found["indexes"], found["built"]) == (7, indexes(lines), indexes(lines))
    assert len(indexes(lines)) == 2
    again = run_json("index", lines)
    assert (again["indexes"], again["built"]) == (indexes(lines), [])
    assert run("index", lines).stdout.startswith("7 records: 2 indexes, ")
    info = run_json("info", lines)
    assert info["index"] == {"count": 2, "bytes": found["bytes"]}
    assert "index" in run("info", lines).stdout


def test_only_the_indexes_of_the_named_files_are_removed(run: Run, run_json: Callable[..., Any], lines: Path) -> None:
    run_json("index", lines)
    other = lines / f".a.jsonl.notes{SUFFIX}"
    other.write_text("somebody else's")
    before = indexes(lines)
    removed = run_json("index", "--remove", lines / "a.jsonl")["removed"]
    assert len(removed) == 1
    assert ".a.jsonl." in removed[0]
    assert indexes(lines) == sorted(set(before) - set(removed))
    assert run("index", "--remove", f"{lines}/*.jsonl").stdout.splitlines()[-1].startswith("removed 1 index, ")
    assert indexes(lines) == [str(other)]
    assert sorted(path.name for path in lines.glob("[ab]*")) == ["a.jsonl", "b.jsonl"]


def test_indexes_in_the_cache_are_found_by_their_files(
    run_json: Callable[..., Any], lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = sidecar.Subject.places
    monkeypatch.setattr(sidecar.Subject, "places", lambda self, cache: list(places(self, cache))[1:])
    assert len(run_json("index", lines)["built"]) == 2
    assert indexes(lines) == []
    assert len(indexes(tmp_path / "cache")) == 2
    assert len(run_json("index", "--remove", lines / "b.jsonl")["removed"]) == 1
    assert len(indexes(tmp_path / "cache")) == 1
    (tmp_path / "cache" / f"broken{SUFFIX}").write_bytes(b"?")
    assert len(run_json("index", "--remove", lines)["removed"]) == 1
    assert os.listdir(tmp_path / "cache") == [f"broken{SUFFIX}"]


def test_documents_of_token_files_are_indexed_by_their_separator(run: Run, run_json: Callable[..., Any], lines: Path) -> None:
    path = lines / "t.bin"
    (np.arange(1000) % 50).astype(np.uint16).tofile(path)
    words = ("index", path, "-o", "dtype=uint16", "-o", "check=false", "--separator", 0)
    assert len(run_json(*words)["built"]) == 1
    assert run_json(*words)["built"] == []
    refused = run("index", lines / "a.jsonl", "--separator", 0)
    assert (refused.exit_code, "token files have separators" in refused.stderr) == (2, True)


def test_data_that_needs_no_index_says_so(run: Run, store: Path) -> None:
    result = run("index", store)
    assert (result.exit_code, "no index is needed" in result.stdout) == (0, True)


def test_every_command_reads_lines(run: Run, run_json: Callable[..., Any], lines: Path, tmp_path: Path) -> None:
    path = lines / "b.jsonl"
    assert run_json("info", path)["fields"]["x"]["dtype"] == "int64"
    assert [one["fields"]["x"] for one in run_json("head", path, "-n", 2)] == [0, 1]
    assert run_json("show", path, 3)[0]["fields"]["x"] == 3
    assert run_json("verify", path)["ok"]
    assert run("convert", path, tmp_path / "new.pen").exit_code == 0
    assert run_json("info", tmp_path / "new.pen")["records"] == 4
    path.write_text('{"x": 1}\n' * 2000 + '{"x": "a"}\n' + '{"x": 1}\n' * 2000)
    os.utime(path, (1, 1))
    result = run("verify", path, "-o", 'schema={"x": "i8"}')
    assert result.exit_code == 1
    assert "line 2001" in result.stdout
