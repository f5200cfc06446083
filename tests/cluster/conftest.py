"""One run of a program for all tests of its class."""

from pathlib import Path
from typing import Any

import pytest
from tests.cluster import engine


@pytest.fixture(scope="class")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("engine")
    engine.make_source(made)
    return made


@pytest.fixture(scope="class")
def facts(request: pytest.FixtureRequest, directory: Path) -> dict[str, Any]:
    """What the program of the class found out."""
    assert request.cls is not None
    return engine.facts(request.cls.program, directory)
