"""What holds for every test of delivery."""

import threading
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def queues_of_torch_end() -> Iterator[None]:
    """The threads of a torch DataLoader's queues end a moment after it: wait for them, before others look for what was left."""
    yield
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join(10)
