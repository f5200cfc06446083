"""Where the tests of pickled sources read them: in forks of a fresh program here, in interpreters of their own elsewhere."""

import pickle

import numpy as np
from tests.fresh import digest_in_new_interpreter

import penstock as pen
from penstock.testing import SourceSuite
from penstock.testing.source_suite import digest


def test_a_fresh_process_and_a_new_interpreter_read_the_same() -> None:
    source = pen.open({"x": np.arange(10)})
    recipe = pickle.dumps(source)
    assert SourceSuite().digest_in_new_process(recipe) == digest(source[:])
    assert digest_in_new_interpreter(SourceSuite(), recipe) == digest(source[:])


def test_what_goes_wrong_there_is_said_here() -> None:
    assert "UnpicklingError" in SourceSuite().digest_in_new_process(b"?")
    assert "UnpicklingError" in digest_in_new_interpreter(SourceSuite(), b"?")
