"""Ray: the same stores as without it, in one commit each; nothing half visible. Ray has a process of its own, and no network."""

from pathlib import Path
from typing import Any

import pytest
from tests.cluster.engine import facts as facts_from
from tests.cluster.engine import facts_of, make_source, run


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("ray")
    make_source(made)
    return made


@pytest.fixture(scope="module")
def facts(directory: Path) -> dict[str, Any]:
    return facts_from("ray_program.py", directory)


def test_a_conversion_on_ray_gives_the_store_that_one_process_gives(directory: Path, facts: dict[str, Any]) -> None:
    assert facts["convert"] == {**facts_of(directory / "here.pen"), "told": 3000}


def test_a_task_whose_worker_was_killed_is_done_again(directory: Path, facts: dict[str, Any]) -> None:
    found = facts["convert_with_a_worker_that_dies"]
    assert found["was_killed"]
    assert found["problems"] == 0
    assert (found["digest"], found["generation"]) == (facts_of(directory / "source.pen")["digest"], 1)


def test_a_task_that_raises_publishes_nothing_and_a_second_run_succeeds(directory: Path, facts: dict[str, Any]) -> None:
    found = facts["convert_with_a_task_that_raises"]
    assert "record 1700 is cursed" in found["raised"]
    assert found["hidden"]
    assert (found["digest"], found["generation"]) == (facts_of(directory / "source.pen")["digest"], 1)


def test_rebalance_and_verify_run_on_ray(facts: dict[str, Any]) -> None:
    assert facts["maintain"] == {"same": True, "utilisation": 1.0, "problems": 0}


def test_every_kind_of_field_goes_through_ray_data_and_back_in_order(facts: dict[str, Any]) -> None:
    found = facts["read_and_write"]
    assert found["generation"] == 1
    assert found["read_tasks"] > 1
    assert found["codec"] == "Zstd(1)"
    assert "there is a store already" in found["again"]


def test_what_ray_made_is_written_in_its_order_or_not_at_all(facts: dict[str, Any]) -> None:
    found = facts["write_what_ray_made"]
    assert "record 1000 is cursed" in found.pop("raised")
    assert found == {"in_order": True, "hidden": True, "generation": 1, "empty": 0}


def test_missing_tensors_are_refused_by_name(facts: dict[str, Any]) -> None:
    assert "field 'x': expected every record, found missing ones" in facts["missing_tensors"]["refused"]


def test_ray_is_the_users_to_start(facts: dict[str, Any]) -> None:
    assert facts["not_running"] == "RuntimeError: expected a Ray that runs, found none: call ray.init(...) first"


def test_without_ray_the_import_says_how_to_install_it() -> None:
    code = """
import sys
sys.modules["ray"] = None
try:
    import penstock.cluster.ray
except ImportError as error:
    print(error)
"""
    assert run("-c", code) == "this needs ray: pip install 'penstock[ray]'\n"
