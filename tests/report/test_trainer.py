"""Training that is killed: the log of a run, and the comparison with one that was not."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import penstock as pen
from penstock import report
from penstock.errors import StateMismatchError, WorkerDiedError

CHILD = """
import sys, numpy as np, penstock as pen
from penstock.report import train
log, steps, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
class Forgetful(pen.Loader):
    def load_state_dict(self, state, *, strict=True):
        pass
kind = Forgetful if how == "forgets" else pen.Loader
if how == "fails":
    raise SystemExit("no data today")
train(lambda: kind(pen.open({"x": np.arange(1000)}).shuffle(seed=7), 8, tail="drop"), log, steps, pace=0)
"""


def child(how: str) -> "Sequence[str]":
    return lambda log, steps: [sys.executable, "-c", CHILD, log, str(steps), how]  # type: ignore[return-value]


def make() -> pen.Loader:
    return pen.Loader(pen.open({"x": np.arange(100)}).shuffle(seed=7), 8)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What would go to stdout."""
    said: list[bytes] = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda to, data: said.append(data) or len(data) if to == 1 else write(to, data))
    return said


def test_a_run_that_goes_on_from_its_log_has_every_step_once(tmp_path: Path, silent: list[bytes]) -> None:
    report.train(make, tmp_path / "whole", 30)
    for steps in (4, 4, 17, 30):
        report.train(make, tmp_path / "parts", steps)
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()
    assert silent[:30] == [b"%d\n" % step for step in range(30)]


@pytest.mark.parametrize("cut", [1, 20])
def test_a_line_that_was_cut_short_is_no_step(tmp_path: Path, silent: list[bytes], cut: int) -> None:
    report.train(make, tmp_path / "whole", 9)
    whole = (tmp_path / "whole").read_bytes()
    (tmp_path / "torn").write_bytes(whole[:-cut])
    report.train(make, tmp_path / "torn", 9)
    assert (tmp_path / "torn").read_bytes() == whole
    assert [json.loads(line)["step"] for line in whole.splitlines()] == list(range(9))


def test_a_loader_that_forgets_its_state_is_found() -> None:
    with pytest.raises(StateMismatchError, match=r"killed after 2 batches, step \d+: field 'x' differs"):
        report.verify_kills(child("forgets"), steps=9, points=[2])  # type: ignore[arg-type]


def test_a_process_that_fails_is_reported_with_its_last_word() -> None:
    with pytest.raises(WorkerDiedError, match="ended with 1: no data today"):
        report.verify_kills(child("fails"), steps=4)  # type: ignore[arg-type]
