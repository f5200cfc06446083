"""The store beside a list of dicts, at a URL: the same machine, the same promises."""

from typing import Any

from hypothesis import settings
from tests.remote.store_kit import memory_url
from tests.store.test_state_machine import StoreMachine


class RemoteStoreMachine(StoreMachine):
    """In a memory store."""

    def place(self) -> Any:
        return memory_url()


RemoteStoreMachine.TestCase.settings = settings(max_examples=settings.default.max_examples // 4, stateful_step_count=30)  # type: ignore[union-attr]
TestRemoteStore = RemoteStoreMachine.TestCase
