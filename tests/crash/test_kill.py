"""kill -9 at any moment: the next open shows the last acknowledged commit, or the one that was under way, and nothing between."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli import warm
from tests.crash.keep_writing import expected
from tests.crash.subject import read
from tests.crash.trace import ROOT

import penstock as pen
from penstock.errors import MissingError

MOMENTS = 4


def _kill_after(path: Path, acks: int, more_s: float) -> tuple[int, int]:
    """Start a writer, kill it some time after so many commits; returns the commits acknowledged and started."""
    command = [sys.executable, "-m", "tests.crash.keep_writing", str(path)]
    with warm.popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        lines = []
        while sum(line.startswith("ACK") for line in lines) < acks:
            lines.append(writer.stdout.readline())
            assert lines[-1], "the writer ended by itself"
        until = time.perf_counter() + more_s
        while time.perf_counter() < until:  # not to wait for anything, but to strike at another place of the protocol
            pass
        writer.kill()
        lines += writer.stdout.readlines()
    numbers = {word: [int(line.split()[1]) for line in lines if line.startswith(word)] for word in ("ACK", "START")}
    return max(numbers["ACK"], default=0), max(numbers["START"], default=0)


def test_after_kill_the_last_acknowledged_commit_is_there(tmp_path: Path) -> None:
    rng = random.Random(20)
    path, acked = tmp_path / "s.pen", 0
    for _ in range(MOMENTS):
        newly, started = _kill_after(path, rng.randrange(8), rng.random() * 0.01)
        acked = max(acked, newly)
        try:
            generation, found = read(path)
        except MissingError:
            assert acked == 0
            continue
        assert acked <= generation <= max(acked, started)
        assert found == expected(generation)
        acked = generation
    assert acked > 0
    assert pen.verify(path) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_store_whose_first_writer_was_killed_can_be_made_again(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "s.pen"
    acked, started = _kill_after(path, 0, 0.2 * random.Random(seed).random())
    try:
        generation = read(path)[0]
        assert acked <= generation <= started
    except MissingError:
        assert acked == 0
    acked, started = _kill_after(path, 2, 0.0)
    generation, found = read(path)
    assert acked <= generation <= started
    assert found == expected(generation)
