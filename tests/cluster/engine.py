"""Engines run in processes of their own: they keep threads and sockets, and start others."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tests.cluster.maps import words
from tests.store.records import digest

import penstock as pen
from penstock.store.generation import load_manifest

ROOT = Path(__file__).parents[2]
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "PYTHONPATH": str(ROOT)}
TEXTS = [" ".join(f"w{i * j % 17}" for j in range(i % 5)) for i in range(3000)]


def run(*command: object) -> str:
    """What a program prints; it fails the test if it fails, or does not end."""
    arguments = [sys.executable, *map(str, command)]
    environment = {**os.environ, **QUIET}
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def facts(program: str, directory: Path) -> dict[str, Any]:
    """What a program of this folder found out."""
    found: dict[str, Any] = json.loads(run(f"tests/cluster/{program}", directory).rpartition("\nFACTS ")[2])
    return found


def make_source(directory: Path) -> None:
    """A store of texts, and what one process makes of it."""
    pen.convert({"number": np.arange(3000), "text": TEXTS}, directory / "source.pen")
    pen.convert(directory / "source.pen", directory / "here.pen", map=words, chunk_bytes=8192)


def facts_of(path: Path) -> dict[str, Any]:
    """What must be the same for every engine."""
    with pen.open(path) as store:
        rows = [chunk.rows for chunk in load_manifest(path).chunks]
        return {"digest": digest(store), "generation": store.generation, "rows": rows}
