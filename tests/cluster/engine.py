"""Engines run in processes of their own: they keep threads and sockets, and start others."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from tests.cluster.maps import FailAt, words
from tests.store.records import digest

import penstock as pen
from penstock.source import BatchMap
from penstock.store.generation import load_manifest

ROOT = Path(__file__).parents[2]
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "PYTHONPATH": str(ROOT)}
QUICK = {"DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "forkserver"}
"""Workers of Dask are forks of one process that has imported it; in a campaign interpreters, as is its default."""
SMALL = {"chunk_bytes": 8192}
CURSED = 1700
TEXTS = [" ".join(f"w{i * j % 17}" for j in range(i % 5)) for i in range(3000)]


def run(*command: object) -> str:
    """What a program prints; it fails the test if it fails, or does not end."""
    from tests.effort import is_campaign  # and Hypothesis, which the programs do not need

    arguments = [sys.executable, *map(str, command)]
    environment = {**os.environ, **QUIET, **({} if is_campaign() else QUICK)}
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=840, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def facts(program: str, directory: Path) -> dict[str, Any]:
    """What a program of this folder found out."""
    found: dict[str, Any] = json.loads(run(f"tests/cluster/{program}", directory).rpartition("\nFACTS ")[2])
    return found


def make_source(directory: Path) -> None:
    """A store of texts, and what one process makes of it."""
    pen.convert({"number": np.arange(3000), "text": TEXTS}, directory / "source.pen")
    pen.convert(directory / "source.pen", directory / "here.pen", map=words, **SMALL)


def facts_of(path: Path) -> dict[str, Any]:
    """What must be the same for every engine."""
    with pen.open(path) as store:
        rows = [chunk.rows for chunk in load_manifest(path).chunks]
        return {"digest": digest(store), "generation": store.generation, "rows": rows}


def source_fields(directory: Path) -> Mapping[str, pen.Field]:
    with pen.open(directory / "source.pen") as source:
        return source.schema


# What a program of this folder does with its engine


def convert(directory: Path, engine: Callable[..., None]) -> dict[str, Any]:
    told: list[int] = []
    path = directory / "words.pen"
    engine(directory / "source.pen", path, map=words, progress=lambda rows, size: told.append(rows), **SMALL)
    return facts_of(path) | {"told": sum(told)}


def convert_with_a_worker_that_dies(directory: Path, engine: Callable[..., None]) -> dict[str, Any]:
    """Killed with SIGKILL in the middle of a task; the engine does the task again, in another process."""
    marker, path = directory / "marker", directory / "killed.pen"
    marker.touch()
    cursed = BatchMap(FailAt(CURSED, marker, kill=True), fields=source_fields(directory))
    engine(directory / "source.pen", path, map=cursed, **SMALL)
    return facts_of(path) | {"was_killed": not marker.exists(), "problems": len(pen.verify(path))}


class EngineSuite:
    """What holds for every engine; a class that inherits it names its program."""

    program: ClassVar[str]

    def test_a_conversion_gives_the_store_that_one_process_gives(self, directory: Path, facts: dict[str, Any]) -> None:
        assert facts["convert"] == {**facts_of(directory / "here.pen"), "told": 3000}

    def test_a_task_whose_worker_was_killed_is_done_again(self, directory: Path, facts: dict[str, Any]) -> None:
        found = facts["convert_with_a_worker_that_dies"]
        assert found["was_killed"]
        assert found["problems"] == 0
        assert (found["digest"], found["generation"]) == (facts_of(directory / "source.pen")["digest"], 1)
