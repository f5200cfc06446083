"""Ray: the same stores as without it, in one commit each; nothing half visible. Ray has a process of its own, and no network."""

from pathlib import Path
from typing import Any

from tests.cluster.engine import EngineSuite, facts_of


class TestRay(EngineSuite):
    program = "ray_program.py"

    def test_a_task_that_raises_publishes_nothing_and_a_second_run_succeeds(self, directory: Path, facts: dict[str, Any]) -> None:
        found = facts["convert_with_a_task_that_raises"]
        assert "record 1700 is cursed" in found["raised"]
        assert found["hidden"]
        assert (found["digest"], found["generation"]) == (facts_of(directory / "source.pen")["digest"], 1)

    def test_rebalance_and_verify_run_on_ray(self, facts: dict[str, Any]) -> None:
        assert facts["maintain"] == {"same": True, "utilisation": 1.0, "problems": 0}

    def test_every_kind_of_field_goes_through_ray_data_and_back_in_order(self, facts: dict[str, Any]) -> None:
        found = facts["read_and_write"]
        assert found["generation"] == 1
        assert found["read_tasks"] > 1
        assert found["codec"] == "Zstd(1)"
        assert "a store exists already" in found["again"]

    def test_what_ray_made_is_written_in_its_order_or_not_at_all(self, facts: dict[str, Any]) -> None:
        found = facts["write_what_ray_made"]
        assert "record 1000 is cursed" in found.pop("raised")
        assert found == {"in_order": True, "hidden": True, "generation": 1, "empty": 0}

    def test_missing_tensors_are_refused_by_name(self, facts: dict[str, Any]) -> None:
        assert "field 'x': expected every record, found missing ones" in facts["missing_tensors"]["refused"]

    def test_ray_is_the_users_to_start(self, facts: dict[str, Any]) -> None:
        assert facts["not_running"] == "RuntimeError: expected a Ray that runs, found none: call ray.init(...) first"
