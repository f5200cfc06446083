"""Options that contradict each other, and functions of the user's that fail, are told in one line; nothing is overwritten."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import penstock as pen
from penstock.cli.main import app

MODULE = """
import numpy as np
import penstock as pen
number = 7
def loader():
    return pen.Loader(pen.open({"x": np.arange(20)}).shuffle(seed=1), 4)
def boom():
    raise RuntimeError("my bad")
def leave():
    raise SystemExit(9)
def short(batch):
    return {"x": batch["x"][:1]}
def undefined(batch):
    return {"x": nothing}
def deep(batch):
    return {"x": np.reshape(batch["data"], (7, 7))}
def no_dict(batch):
    return batch["data"]
def broken_transform():
    return pen.Loader(pen.open({"x": np.arange(20)}).shuffle(seed=1), 4, transform=short_of_a_key)
def short_of_a_key(batch):
    return batch["y"]
class Tidy:
    def __call__(self, batch):
        raise ValueError("my bad")
tidy = Tidy()
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    np.save(tmp_path / "x.npy", np.arange(60.0).reshape(20, 3))
    pen.convert({"x": np.arange(20)}, tmp_path / "old.pen")
    (tmp_path / "mine_of_tests.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["where", "mine_of_tests:boom", "7"], "mine_of_tests:boom raised RuntimeError: my bad (mine_of_tests.py:8)"),
        (["where", "mine_of_tests:leave", "7"], "raised SystemExit: 9"),
        (["where", "mine_of_tests:number", "7"], "expected a function without arguments, got a int"),
        (["where", "mine_of_tests:nothing", "7"], "has no function 'nothing'"),
        (["explain", "mine_of_tests:loader", "1", "--seed", "9"], "sets batch size, order and ranks itself"),
        (["where", "mine_of_tests:loader", "1", "--batch-size", "8"], "sets batch size"),
        (["explain", "x.npy", "1", "--in-order", "--block", "4"], "--in-order does not shuffle"),
        (["info", "a=x.npy", "a=x.npy"], "a different name for every field"),
        (["info", ""], "got an empty argument"),
        (["info", "a="], "got an empty argument"),
        (["verify-resume", "x.npy", "--tail", "drop"], "a smaller batch"),
        (["convert", "x.npy", "y.pen", "--separator", "0"], "must end in .rox"),
        (["convert", "x.npy", "y.shard", "--codec", "zstd"], "not compressed"),
        (["convert", "x.npy", "y.parquet"], "convert writes a store"),
        (["convert", "x.npy", "y.pen", "--chunk-bytes", "1"], "chunk_bytes"),
        (["shuffle-report", "x.npy", "--batch-size", "4", "--html", "x.npy"], "a file that is not a report exists already"),
        (["info", "x.npy", "--generation", "1"], "only a store has generations"),
        (["head", "x.npy", "x.npy", "--generation", "1"], "only a store has generations"),
        (["show", "data=x.npy", "1", "--generation", "1"], "only a store has generations"),
        (["verify", "x*.npy", "--generation", "1"], "only a store has generations"),
        (["info", "x.npy", "-s", "region=here"], "needs a URL, got x.npy"),
        (["head", "a=x.npy", "-s", "region=here"], "needs a URL, got a=x.npy"),
        (["verify", "old.pen", "-s", "region=here"], "needs a URL, got old.pen"),
        (["explain", "old.pen", "1", "-s", "region=here"], "needs a URL, got old.pen"),
        (["convert", "x.npy", "y.pen", "-s", "region=here"], "needs a URL, got x.npy y.pen"),
        (["convert", "x.npy", "y.pen", "--map", "mine_of_tests:undefined"], "'nothing' is not defined (mine_of_tests.py:14)"),
        (["convert", "x.npy", "y.pen", "--map", "mine_of_tests:deep"], "(mine_of_tests.py:16)"),
        (["convert", "x.npy", "y.pen", "--map", "mine_of_tests:tidy"], "raised ValueError: my bad (mine_of_tests.py:25)"),
        (["convert", "x.npy", "y.pen", "--map", "mine_of_tests:no_dict"], "the map must return a dict of fields, got a ndarray"),
    ],
)
def test_a_mistake_is_one_line_and_changes_nothing(words: list[str], told: str, here: Path) -> None:
    before = {path: path.read_bytes() for path in here.iterdir() if path.is_file()}
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2, done.output
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2  # a conversion says first how many records there are
    assert "Traceback" not in done.output
    assert {path: path.read_bytes() for path in here.iterdir() if path.is_file()} == before


def test_a_transform_that_fails_is_told_with_its_line() -> None:
    done = CliRunner().invoke(app, ["bench", "mine_of_tests:broken_transform", "--seconds", "0.1"])
    assert done.exit_code == 3, done.output
    assert done.stderr.endswith("KeyError: 'y' (mine_of_tests.py:22)\n")


def test_a_map_that_drops_records_is_counted_as_it_is(here: Path) -> None:
    np.save(here / "z.npy", np.arange(20))
    done = CliRunner().invoke(app, ["convert", "x=z.npy", "short.pen", "--map", "mine_of_tests:short", "--json"])
    assert done.exit_code == 0, done.output
    assert '"records": 1,' in done.stdout
