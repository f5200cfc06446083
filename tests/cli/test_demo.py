"""penstock demo: what it promises is what happens, and it replaces nothing but an older demo."""

import json
import os
import pty
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from tests.cli import warm
from tests.cli.conftest import start
from tests.effort import count, is_campaign
from typer.testing import CliRunner

import penstock as pen
from penstock.cli.main import app
from penstock.demo import CLASSES, EDGE, LOG, batches, checkpoint, make_model
from penstock.demo import main as train


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    from penstock.demo import FIELDS

    with pen.create(tmp_path / "shapes.pen", FIELDS) as out:
        for batch in batches(2000, seed=1):
            out.extend(batch)
    return tmp_path / "shapes.pen"


STEPS = count(80, 150)
QUICK = f"""
import penstock.cli.demo
from penstock.cli.main import main
penstock.cli.demo.SECONDS, penstock.cli.demo.STEPS, penstock.cli.demo.DIES_AT = 0.1, {STEPS}, 43
main()
"""
"""The program, with runs of fewer steps, and a loader whose speed is measured for a shorter time."""


def run_beside_a_terminal(words: list[str]) -> tuple[int, str, str]:
    """Exit code, stdout, and what a terminal of 100 columns got as stderr."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": "100"}
    seen = b""
    with tempfile.TemporaryFile("w+") as out:
        streams = {"stdout": out, "stderr": follower, "env": environment}
        process = start(*words, **streams) if is_campaign() else warm.popen([sys.executable, "-c", QUICK, *words], **streams)
        os.close(follower)
        try:
            while piece := os.read(leader, 65536):
                seen += piece
        except OSError:  # the other end is gone
            pass
        finally:
            os.close(leader)
        code = process.wait(300)
        out.seek(0)
        return code, out.read(), seen.decode()


def test_the_whole_demo_keeps_its_promises_and_shows_them(tmp_path: Path) -> None:
    words = ["demo", str(tmp_path / "demo"), "--records", "2000"]
    code, out, shown = run_beside_a_terminal([*words, "--framework", "numpy", "--json"])
    assert code == 0, shown
    found = json.loads(out)
    assert found["resumed_exactly"] is True
    assert found["exit_code"] == -9
    assert found["steps"] == len(found["losses"]) == STEPS
    assert np.mean(found["losses"][-10:]) < 0.5 * found["losses"][0]
    assert sum(found["mixture"].values()) == 1024
    assert abs(found["mixture"]["shapes"] - 0.7 * 1024) <= 1
    page = (tmp_path / "demo" / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    with pen.open(tmp_path / "demo" / "shapes.pen") as data:
        assert len(data) == 2000
        assert found["explained"]["ids"][0] in range(2000)
    assert "▀" in shown
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    for words in ("Write a data set", "2500/2500", "Look at it", "Kill a run", "loss", "Mix two", "Explain a batch", "report"):
        assert words in plain


def test_a_directory_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    done = CliRunner().invoke(app, ["demo", str(tmp_path)])
    assert done.exit_code == 2
    assert "not a demo" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(app, ["demo", str(tmp_path / "file" / "demo")])
    assert done.exit_code in (2, 3, 4)
    assert done.stderr.count("\n") == 1


def test_a_killed_run_leaves_a_checkpoint_from_which_it_goes_on(shapes: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "penstock.demo", str(shapes), str(run), "--framework", "numpy", "--steps", "40"]
    assert warm.run([*command, "--die-at", "25"], capture_output=True, timeout=600).returncode == -9
    saved = checkpoint(run)
    assert saved is not None
    assert saved[1]["step"] == 20
    assert len((run / LOG).read_text().splitlines()) == 25
    train([str(shapes), str(run), "--framework", "numpy", "--steps", "40"])
    train([str(shapes), str(tmp_path / "whole"), "--framework", "numpy", "--steps", "40"])
    assert (run / LOG).read_text() == (tmp_path / "whole" / LOG).read_text()


def test_both_frameworks_learn_the_same(shapes: Path) -> None:
    with pen.open(shapes) as data:
        batch = data[np.random.default_rng(0).integers(0, 2000, 64)]
    models = [make_model(EDGE * EDGE, len(CLASSES), framework=name) for name in ("numpy", "torch")]
    for _ in range(5):
        losses = [model.learn(batch["image"], batch["label"]) for model in models]
        assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    for one, other in zip(*(model.weights() for model in models), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_the_same_seed_draws_the_same_pictures() -> None:
    one, other, third = (next(batches(1000, seed=seed)) for seed in (1, 1, 2))
    assert np.array_equal(one["image"], other["image"])
    assert one["caption"] == other["caption"]
    assert not np.array_equal(one["image"], third["image"])
    assert set(one["label"].tolist()) == set(range(len(CLASSES)))


def test_an_unknown_framework_is_refused() -> None:
    with pytest.raises(ValueError, match="auto, torch or numpy"):
        make_model(4, 2, framework="tensorflow")
