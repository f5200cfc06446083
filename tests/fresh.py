"""Fresh processes that start quickly: forks of an interpreter that has imported penstock, and has seen nothing else.

A program with the imports done waits on a pipe. For every request it forks a child, which reads a pickled source and answers with
its digest. The child has nothing in common with the process that pickled the source but the code.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from penstock.testing import SourceSuite
from penstock.testing.source_suite import DEADLINE_S, digest

ROOT = Path(__file__).parents[1]
digest_in_new_interpreter = SourceSuite.digest_in_new_process


def serve() -> None:
    """Answer requests until there are no more."""
    while size := sys.stdin.buffer.read(8):
        recipe = sys.stdin.buffer.read(int.from_bytes(size))
        child = os.fork()
        if child == 0:
            _answer(recipe)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != 0:
            os.write(1, f"the process ended with {code}\n".encode())


def _answer(recipe: bytes) -> None:
    signal.alarm(DEADLINE_S)  # a hang ends with a signal, and is reported as one
    try:
        text = digest(pickle.loads(recipe)[:])
    except BaseException as error:
        text = repr(error).replace("\n", " ")
    os.write(1, f"{text}\n".encode())
    os._exit(0)


@contextlib.contextmanager
def fresh_processes() -> Iterator[None]:
    """SourceSuite reads its pickled sources in such processes, instead of starting an interpreter for each."""
    command = [sys.executable, "-m", "tests.fresh"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None

        def ask(self: SourceSuite, recipe: bytes) -> str:
            server.stdin.write(len(recipe).to_bytes(8) + recipe)
            server.stdin.flush()
            return server.stdout.readline().decode().strip()

        SourceSuite.digest_in_new_process = ask  # type: ignore[method-assign]
        yield
        SourceSuite.digest_in_new_process = digest_in_new_interpreter  # type: ignore[method-assign]


if __name__ == "__main__":
    serve()
