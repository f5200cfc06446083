"""Every combination of streams and loaders is right, or refused as the table says."""

import os
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import pytest
from tests.crossing.campaign import run_cases
from tests.crossing.data import close_data, remote_at
from tests.crossing.generate import make_case
from tests.crossing.mutants import MUTANTS
from tests.crossing.operations import CANNOT_MEET, OPERATIONS
from tests.effort import every
from tests.remote.seaweed import serving

from penstock.remote.objects import close_all

CASES = 2_000
ONCE_WRONG = (50_042_180, 50_076_660, 90_005_199, 90_040_773, 90_045_928, 90_060_783, 110_047_494, 110_056_916, 110_090_866)
"""Seeds that the campaign found, in the library, the model or the table."""


@pytest.fixture(autouse=True)
def data_is_closed() -> Iterator[None]:
    yield
    close_data()


def test_every_case_delivers_what_the_model_says_or_is_refused_by_the_table() -> None:
    seen = run_cases(range(CASES), most_wrong=3)
    assert not seen.wrong, "\n\n".join(f"seed {seed}:\n{text}" for seed, text in seen.wrong)
    assert seen.cases == CASES


def test_seeds_that_were_wrong_once_are_right() -> None:
    for seed in ONCE_WRONG:
        assert run_cases(range(seed, seed + 1)).wrong == []


def test_remote_data_on_a_real_object_store_delivers_the_same(tmp_path: Path) -> None:
    seeds = list(islice((seed for seed in count() if "remote" in make_case(seed).tags), 15))
    with serving(tmp_path) as server, remote_at(server.url, server.storage_options):
        for seed in seeds:
            seen = run_cases(range(seed, seed + 1))
            assert not seen.wrong, f"seed {seed}:\n{seen.wrong[0][1]}"
        close_all()


def test_a_case_follows_from_its_seed() -> None:
    assert [make_case(seed).code() for seed in range(50)] == [make_case(seed).code() for seed in range(50)]


def test_rules_of_operations_name_operations_that_exist() -> None:
    named = set().union(*(first | second for _, first, second in CANNOT_MEET))
    assert named <= set(OPERATIONS)
    assert set().union(*(make_case(seed).tags for seed in range(500))) <= set(OPERATIONS)


def test_every_mutant_fits_todays_code() -> None:
    for name in every(3, list(MUTANTS)):
        child = os.fork()
        if child == 0:
            try:
                MUTANTS[name]()
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, f"the mutant {name!r} is out of date"
