"""Dask: its executor, as it is, gives the store that one process gives."""

from typing import Any

from tests.cluster.engine import EngineSuite


class TestDask(EngineSuite):
    program = "dask_program.py"

    def test_functions_that_only_dask_can_send_are_sent_and_verify_runs_there(self, facts: dict[str, Any]) -> None:
        assert facts["a function of the moment"]
        assert facts["problems"] == 0
