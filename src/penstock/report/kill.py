"""Real deaths: a process that trains with a loader is killed in the middle, again and again, and goes on in a new process.

After every step it writes a line to a log: the step, what was in the batch, and its state. At the end the log must have every step
once, with the batches of a run that was never killed.
"""

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from penstock.argument import whole_number
from penstock.errors import StateMismatchError, WorkerDiedError
from penstock.loader.verify import fields_of
from penstock.report.runner import Endless

__all__ = ["Kills", "train", "verify_kills"]

AHEAD = 3
"""Steps that a process may be ahead of the one that kills it: it dies at work."""

WAIT_S = 600.0
"""The longest time a process may take for a batch."""


@dataclass(frozen=True)
class Kills:
    """What was compared: a run of ``steps`` batches, killed after each of ``points`` batches or a little later."""

    steps: int
    points: tuple[int, ...]


def train(make_loader: Callable[[], Any], log: str | Path, steps: int, *, pace: int | None = None) -> None:
    """Take batches until the log has ``steps`` of them, and go on where it ends. A line on stdout says that one is in it.

    ``pace`` is a descriptor from which a byte is read before every step, until its end: so that a process which is to be killed in
    the middle is not done before.
    """
    done = _read(Path(log))
    loader = make_loader()
    if done:
        loader.load_state_dict(done[-1]["state"])
    kept = sum(len(_line(entry)) for entry in done)
    with open(log, "ab", buffering=0) as file:
        file.truncate(kept)  # a line that was cut short by the end of the process is no step
        batches = Endless(loader)
        for step in range(len(done), steps):
            pace = None if pace is None or not os.read(pace, 1) else pace
            batch = next(batches, None)
            if batch is None:
                break
            file.write(_line({"step": step, "fields": fields_of(batch), "state": loader.state_dict()}))
            os.write(1, b"%d\n" % step)
        batches.close()


def _line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry).encode() + b"\n"


def _read(log: Path) -> list[dict[str, Any]]:
    """The whole lines of a log."""
    if not log.exists():
        return []
    return [json.loads(line) for line in log.read_bytes().split(b"\n")[:-1]]


def verify_kills(
    command: Callable[[str, int], Sequence[str]],
    *,
    steps: int = 60,
    points: Sequence[int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Kills:
    """Run a command that calls :func:`train`, with and without kill -9, and compare. ``command(log, steps)`` gives its words; it
    must pace itself by its stdin (``pace=0``). It is killed after each of ``points`` batches, or a few later (three, evenly spread,
    unless given). A difference raises StateMismatchError.
    """
    steps = whole_number("steps", steps, least=1)
    chosen = [steps * k // 4 for k in (1, 2, 3)] if points is None else points
    chosen = sorted({whole_number("points", point, most=steps) for point in chosen} - {0, steps})
    told = progress or (lambda records, size: None)
    with tempfile.TemporaryDirectory(prefix="penstock-kill-") as place:
        whole, killed = Path(place) / "whole.jsonl", Path(place) / "killed.jsonl"
        _run(command(str(whole), steps), None, told)
        expected = _read(whole)
        died = [point for point in chosen if _run(command(str(killed), steps), point - len(_read(killed)), told)]
        _run(command(str(killed), steps), None, told)
        _compare(expected, _read(killed), died)
    return Kills(len(expected), tuple(died))


def _run(words: Sequence[str], kill_after: int | None, told: Callable[[int, int], None]) -> bool:
    """Run a process to its end, or kill it after so many lines of output; whether it was killed."""
    if kill_after is not None and kill_after <= 0:
        return False  # the last one came further than this point before it died
    with tempfile.TemporaryFile() as said, _process(words, said) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        _let(process.stdin, 0 if kill_after is None else AHEAD)
        for seen, _ in enumerate(_lines(process.stdout.fileno()), start=1):
            told(1, 0)
            if seen == kill_after:
                process.send_signal(signal.SIGKILL)
                return process.wait(WAIT_S) == -signal.SIGKILL
            _let(process.stdin, 0 if kill_after is None else 1)
        if process.wait(WAIT_S) != 0:
            said.seek(0)
            last = said.read().decode(errors="replace").strip().splitlines()[-1:]
            raise WorkerDiedError(f"the process that trains ended with {process.returncode}: {''.join(last) or 'it said nothing'}")
        return False


def _let(pace: IO[bytes], steps: int) -> None:
    """Let a process go so many steps further; 0: as many as it likes."""
    if steps == 0:
        pace.close()
        return
    with suppress(BrokenPipeError):  # it is done
        pace.write(bytes(steps))
        pace.flush()


@contextmanager
def _process(words: Sequence[str], said: IO[bytes]) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said)
    try:
        yield process
    finally:
        process.kill()
        process.wait(WAIT_S)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _lines(descriptor: int) -> Iterator[bytes]:
    rest, deadline = b"", time.monotonic() + WAIT_S
    while True:
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise WorkerDiedError(f"the process that trains gave no batch for {WAIT_S:.0f} s")
        data = os.read(descriptor, 65536)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        deadline = time.monotonic() + WAIT_S
        yield from lines


def _compare(expected: list[dict[str, Any]], found: list[dict[str, Any]], points: Sequence[int]) -> None:
    told = f"killed after {', '.join(map(str, points)) or 'no'} batches"
    for step, (one, other) in enumerate(zip(expected, found, strict=False)):
        if other["step"] != step:
            raise StateMismatchError(f"{told}: expected step {step} in the log, got step {other['step']}")
        for field in dict.fromkeys([*one["fields"], *other["fields"]]):
            if one["fields"].get(field) != other["fields"].get(field):
                raise StateMismatchError(f"{told}, step {step}: field {field!r} differs from the run that was not killed")
    if len(expected) != len(found):
        raise StateMismatchError(f"{told}: expected {len(expected)} batches, got {len(found)}")
