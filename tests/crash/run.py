"""Runs programs of the crash proof, two at a time, and collects their lines of JSON."""

import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from tests.cli import warm
from tests.crash.trace import ROOT

WORKERS = 2


def run(command: Sequence[str]) -> list[dict[str, Any]]:
    """The lines of JSON a module prints; RuntimeError with what it said if it fails."""
    done = warm.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-4000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def run_all(commands: Sequence[Sequence[str]], workers: int = WORKERS) -> Iterator[dict[str, Any]]:
    """The results of several, as they come."""
    with ThreadPoolExecutor(workers) as pool:
        jobs = [pool.submit(run, command) for command in commands]
        try:
            for job in as_completed(jobs):
                yield from job.result()
        finally:
            for job in jobs:
                job.cancel()
