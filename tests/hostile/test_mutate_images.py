"""Damaged pictures are decoded or refused, in bounded time and memory, and alike by every level of the kernels."""

import subprocess
import sys

from tests.effort import count


def test_mutants_are_pictures_or_typed_errors() -> None:
    number = count(150, 5000)
    arguments = [sys.executable, "-m", "tests.hostile.mutate_images", "--count", str(number), "--seed", "3"]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert sum(int(outcome[0]) for outcome in outcomes) == number
    assert {"JPEG", "PNG", "WebP"} <= {outcome[1] for outcome in outcomes}
