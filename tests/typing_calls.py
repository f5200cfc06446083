"""What type checkers know of the calls that people write: ``make lint`` checks this file, no test imports it."""

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
