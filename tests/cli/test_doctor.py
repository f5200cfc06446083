"""penstock doctor."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import PATIENCE_S, Run, Seen, command

from penstock.report import doctor


@pytest.fixture(autouse=True)
def little_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """To measure a disk; programs of their own write as much as they do."""
    monkeypatch.setattr(doctor, "TEST_BYTES", 4 << 20)


def test_every_line_has_a_level_and_the_end_says_it_all(run: Run, store: Path) -> None:
    result = run("doctor", store, columns=200)
    assert result.exit_code == 0, result.output
    *lines, empty, last = result.stdout.splitlines()
    assert all(line.startswith(("ok ", "hurts ", "breaks ", "        ")) for line in lines)
    assert (empty, last[-1]) == ("", ".")
    for name in ("cores", "memory", "disk speed", "page cache", "shuffle", "/dev/shm"):
        assert f"{name}: " in result.stdout
    assert not list(store.parent.glob(".penstock-doctor*"))


def test_json_has_the_findings(run_json: Callable[..., Any]) -> None:
    found = run_json("doctor")
    assert found["fit"] is True
    assert {"name", "level", "found", "remedy"} == set(found["findings"][0])


def test_what_breaks_is_exit_code_1(store: Path) -> None:
    words = ["sh", "-c", 'ulimit -n 60; exec "$@"', "sh", *command("doctor", "--json")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1, done.stderr
    assert '"breaks"' in done.stdout
    assert "ulimit -n" in done.stdout


def test_patterns_and_fields_are_found(run_json: Callable[..., Any], images: Path, labels: Path) -> None:
    for words, files in (([f"image={images}", f"label={labels}"], 2), ([str(images.parent / "im*.npy")], 1)):
        found = {one["name"]: one for one in run_json("doctor", *words)["findings"]}
        assert f"in {files} file" in found["data"]["found"]


def test_it_is_legible_in_40_columns_and_a_terminal_sees_colors(run: Run, in_terminal: Callable[..., Seen]) -> None:
    assert max(map(len, run("doctor", columns=40).stdout.splitlines())) <= 40
    assert "\x1b[32mok" in in_terminal("doctor").output


@pytest.mark.parametrize(("words", "code"), [(["nothing.pen"], 3), (["--no-such-option"], 2)])
def test_mistakes_are_one_line(run: Run, words: list[str], code: int) -> None:
    result = run("doctor", *words)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.count("\n") == 1
