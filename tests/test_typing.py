"""What type checkers know of the calls that people write."""

from pathlib import Path

from mypy import api

CALLS = """
from pathlib import Path
from typing import assert_type
import numpy as np
import penstock as pen
from penstock.formats.array import ArraySource
from penstock.store import Writer

assert_type(pen.open("a.npy"), pen.Source)
assert_type(pen.open(Path("a.pen"), threads=2), pen.Source)
assert_type(pen.open("s3://bucket/a.pen", storage_options={}), pen.Source)
assert_type(pen.open(["a.npy", "b.npy"]), pen.Source)
assert_type(pen.open({"x": np.zeros(3)}), pen.Source)
assert_type(pen.open(np.zeros(3)), pen.Source)
assert_type(pen.open("a.pen", mode="a"), Writer)
assert_type(pen.open("a.pen", "a"), Writer)
assert_type(pen.open(ArraySource({"x": np.zeros(3)})), ArraySource)
assert_type(pen.open("a.npy").select([1, 2]).pick("data"), pen.Source)
"""


def test_open_says_what_it_returns(tmp_path: Path) -> None:
    (tmp_path / "calls.py").write_text(CALLS)
    out, err, code = api.run(["--strict", f"--cache-dir={tmp_path}", str(tmp_path / "calls.py")])
    assert code == 0, out + err
