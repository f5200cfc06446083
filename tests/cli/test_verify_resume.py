"""penstock verify-resume."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import PATIENCE_S, Run, Seen, start

JOB = """
import os, threading, numpy as np, penstock as pen

def good():
    return pen.Loader(pen.open({"x": np.arange(50)}).shuffle(seed=7), 8)

class Forgetful(pen.Loader):
    def load_state_dict(self, state, *, strict=True):
        super().load_state_dict(state, strict=strict)
        self.seek(self.step + 1)

def forgetful():
    return Forgetful(pen.open({"x": np.arange(50)}).shuffle(seed=7), 8)

def stuck():
    with open("fifo", "w") as out:
        out.write(str(os.getpid()))
    threading.Event().wait(120)
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"resume_job_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_a_good_loader_resumes(run: Run, run_json: Callable[..., Any], job: str) -> None:
    result = run("verify-resume", f"{job}:good")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("resumes exactly\na run of 15 batches, saved and resumed at")
    found = run_json("verify-resume", f"{job}:good", "--steps", 9, "--points", "0,4, 9")
    assert found["points"] == [0, 4, 9]
    assert (found["resumes"], found["killed"], found["steps"]) == (True, False, 9)


def test_data_in_an_order_resumes(run_json: Callable[..., Any], store: Path) -> None:
    assert run_json("verify-resume", store, "--batch-size", 8, "--block", 8, "--window", 2, "--steps", 6, "--points", "3")[
        "resumes"
    ]


def test_a_difference_is_exit_code_1_with_point_step_and_field(run: Run, run_json: Callable[..., Any], job: str) -> None:
    result = run("verify-resume", f"{job}:forgetful", "--steps", 6, "--points", 3, columns=200)
    assert result.exit_code == 1
    assert "does not resume" in result.stdout
    assert "resumed after 3 batches by load_state_dict, step 3: field 'x' differs" in result.stdout
    found = run_json("verify-resume", f"{job}:forgetful", "--steps", 6, "--points", 3, code=1)
    assert not found["resumes"]
    assert "step 3" in found["difference"]


def test_a_process_that_is_killed_goes_on_exactly(run_json: Callable[..., Any], store: Path) -> None:
    found = run_json("verify-resume", store, "--kill", "--steps", 12, "--points", "5", "--batch-size", 8, "--tail", "wrap")
    assert found == {"resumes": True, "killed": True, "steps": 12, "points": [5], "batches": 12}


@pytest.mark.usefixtures("warm_processes")
def test_a_killed_loader_that_forgets_is_found(run_json: Callable[..., Any], job: str) -> None:
    found = run_json("verify-resume", f"{job}:forgetful", "--kill", "--steps", 12, "--points", "2", code=1)
    assert "killed after 2 batches, step" in found["difference"]
    assert "field 'x' differs" in found["difference"]


def test_an_interrupt_leaves_no_process_behind(job: str, tmp_path: Path) -> None:
    os.mkfifo("fifo")
    words = ["verify-resume", f"{job}:stuck", "--kill"]
    with start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(tmp_path)}) as process:
        with open("fifo") as fifo:
            child = int(fifo.read())
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE_S)[0] == b""
        assert process.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_terminal_sees_progress_and_colors(in_terminal: Callable[..., Seen], store: Path) -> None:
    seen = in_terminal("verify-resume", store, "--batch-size", 8, "--steps", 4)
    assert seen.exit_code == 0
    assert "comparing batches" in seen.output
    assert "\x1b[1;32mresumes exactly" in seen.output


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["nothing.pen"], 3, "no such file"),
        (["nothing.pen", "--kill"], 3, "no such file"),
        (["DATA", "--points", "x"], 2, "expected numbers of batches"),
        (["DATA", "--steps", "3", "--points", "4"], 2, "points must be in"),
        (["DATA", "--steps", "x"], 2, "--steps"),
        (["no_such_module:make"], 2, "a module that can be imported"),
    ],
)
@pytest.mark.usefixtures("warm_processes")
def test_mistakes_are_one_line(run: Run, store: Path, words: list[str], code: int, told: str) -> None:
    result = run("verify-resume", *[store if word == "DATA" else word for word in words])
    assert result.exit_code == code, result.output
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


def test_damaged_data_is_exit_code_3(run: Run, damaged: Path) -> None:
    assert run("verify-resume", damaged, "--batch-size", 8, "--steps", 3).exit_code == 3


def test_it_is_legible_in_40_columns(run: Run, job: str) -> None:
    assert max(map(len, run("verify-resume", f"{job}:good", "--steps", 3, columns=40).stdout.splitlines())) <= 40
