"""Pickled sources are read in fresh processes, which start quickly."""

from collections.abc import Iterator

import pytest
from tests.fresh import fresh_processes


@pytest.fixture(scope="session", autouse=True)
def pickles_are_read_in_fresh_processes() -> Iterator[None]:
    with fresh_processes():
        yield
