"""A program in another environment that answers one request at a time: a line of JSON each way."""

import json
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["Worker"]


PATIENCE_S = 600
"""A reply that takes longer does not come."""


class Worker:
    """The process. Not thread-safe."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str] | None = None, log: Path | None = None) -> None:
        self._log = log
        with open(log or os.devnull, "ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                bufsize=1,
                env=env,
                start_new_session=True,
            )

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Send a request and wait for its reply."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], PATIENCE_S)[0]:
            os.killpg(self._process.pid, signal.SIGKILL)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the program ended with {self._process.wait()} on {do!r}{self._last_words()}")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _last_words(self) -> str:
        lines = [] if self._log is None else self._log.read_text(errors="replace").strip().splitlines()
        return f": {lines[-1][:300]}" if lines else ""

    def pause(self) -> None:
        """Stop it, and all it has started, where they stand: nothing of theirs runs while others are measured."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """After :meth:`pause`."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        """End the process; a second call does nothing."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with suppress(BrokenPipeError, ProcessLookupError):
                self.go_on()
                self._process.stdin.close()
            self._wait()

    def _wait(self) -> None:
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
