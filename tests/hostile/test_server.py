"""Every attack of the hostile server, once."""

from collections.abc import Iterator

import pytest
from tests.hostile.server import CASES, Hostile, problems
from tests.remote.conftest import no_connections

__all__ = ["no_connections"]  # a fixture for every test here: waits until its connections are gone


@pytest.fixture(scope="module")
def servers(obstore_is_running: None) -> Iterator[tuple[Hostile, Hostile]]:
    with Hostile() as server, Hostile("127.0.0.2") as stranger:
        yield server, stranger


@pytest.mark.parametrize(("name", "scheme"), CASES)
@pytest.mark.sampled(5)
def test_an_attack_ends_in_the_right_records_or_a_typed_error_with_its_place(
    servers: tuple[Hostile, Hostile], name: str, scheme: str
) -> None:
    assert problems(name, scheme, *servers) == []
