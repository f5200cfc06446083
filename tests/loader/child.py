"""Programs in processes of their own: started, asked, ended; every wait is bounded."""

import os
import select
import subprocess
import sys
from pathlib import Path

from tests.cli import warm

ROOT = Path(__file__).parents[2]
DEADLINE_S = 300

Child = subprocess.Popen[bytes]


def start(*arguments: object, options: tuple[str, ...] = ()) -> Child:
    """Run a program of ``tests.loader.program``."""
    command = [sys.executable, *options, "-m", "tests.loader.program", *map(str, arguments)]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}  # large arrays are given back when they are freed
    pipe = subprocess.PIPE
    # What measures memory, imports or the end of the interpreter is an interpreter of its own.
    begin = subprocess.Popen if options or arguments[0] in ("memory", "modules") else warm.popen
    return begin(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=pipe)


def heard(child: Child) -> str:
    """The next line that a program says; "" if it has ended."""
    assert child.stdout is not None
    assert select.select([child.stdout], [], [], DEADLINE_S)[0], "the program says nothing"
    return child.stdout.readline().decode().rstrip("\n")


def tell(child: Child, line: str) -> None:
    """Give a program a line to read."""
    assert child.stdin is not None
    child.stdin.write(f"{line}\n".encode())
    child.stdin.flush()


def finish(child: Child) -> tuple[int, str, str]:
    """Exit code, output and errors of a program, which is given time to end by itself."""
    try:
        out, error = child.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        out, error = child.communicate()
        raise AssertionError(f"the program did not end; it said {out!r} {error!r}") from None
    return child.returncode, out.decode(), error.decode()
