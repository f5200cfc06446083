"""Dask: its executor, as it is, gives the store that one process gives."""

from pathlib import Path
from typing import Any

import pytest
from tests.cluster.engine import facts as facts_from
from tests.cluster.engine import facts_of, make_source


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("dask")
    make_source(made)
    return made


@pytest.fixture(scope="module")
def facts(directory: Path) -> dict[str, Any]:
    return facts_from("dask_program.py", directory)


def test_a_conversion_on_dask_gives_the_store_that_one_process_gives(directory: Path, facts: dict[str, Any]) -> None:
    assert facts["convert"] == {**facts_of(directory / "here.pen"), "told": 3000}


def test_a_task_whose_worker_was_killed_is_done_again(directory: Path, facts: dict[str, Any]) -> None:
    assert facts["killed"]["was_killed"]
    assert (facts["killed"]["digest"], facts["killed"]["generation"]) == (facts_of(directory / "source.pen")["digest"], 1)


def test_functions_that_only_dask_can_send_are_sent_and_verify_runs_there(facts: dict[str, Any]) -> None:
    assert facts["a function of the moment"]
    assert facts["problems"] == 0
