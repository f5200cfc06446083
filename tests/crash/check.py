"""Check: puts a crash state on a disk, opens it with the real reader, compares it with the model, and writes to it once more."""

import os
import random
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.crash.plan import State, record
from tests.crash.subject import FIELDS, batch, read

import penstock as pen
from penstock.errors import MissingError, NotPublishedError

MOST_OLDER = 4
EXTRA = 7_777
"""The serial number of the record written after the crash."""


def scratch() -> str:
    """A directory in memory where there is one: a state is written, read and removed within milliseconds."""
    return tempfile.mkdtemp(prefix="penstock-crash-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)


def check_state(tree: Mapping[str, bytes | None], name: str, states: list[State | None], acked: int, started: int) -> str | None:
    """What is wrong with a crash state, or None. ``name`` is that of the store in the tree."""
    where = Path(scratch())
    try:
        materialise(tree, where)
        return check_store(where / name, states, acked, started)
    finally:
        shutil.rmtree(where)


def materialise(tree: Mapping[str, bytes | None], where: Path) -> None:
    """Make the directories and files of a tree."""
    for path in sorted(tree):
        data = tree[path]
        if data is None:
            os.mkdir(where / path)
        else:
            with open(where / path, "wb") as file:
                file.write(data)


def check_store(path: Path, states: list[State | None], acked: int, started: int) -> str | None:
    """What is wrong with a store after a crash, or None; it is written to once more.

    It must be at a generation from ``acked`` to ``started``, every generation it lists must read as the model has it, and a writer
    must be able to go on.
    """
    try:
        generation, found = read(path)
    except Exception as error:
        absent = isinstance(error, NotPublishedError) or (isinstance(error, MissingError) and not (path / "manifest").exists())
        if absent and acked == 0:
            return _go_on(path, 0, [])
        return f"acknowledged {acked}, started {started}, found {type(error).__name__}: {error}"
    if not acked <= generation <= started:
        return f"acknowledged {acked}, started {started}, found generation {generation}"
    if found != states[generation]:
        return f"generation {generation} has other records than were written: {found} instead of {states[generation]}"
    return _older(path, states, generation) or _go_on(path, generation, found)


def _older(path: Path, states: list[State | None], newest: int) -> str | None:
    """Whether the generations that are listed can be read; if there are many, some of them, other ones in every state."""
    names = sorted(os.listdir(path / "manifest"))
    older = [int(name.removesuffix(".json")) for name in names if name.endswith(".json")][:-1]
    for generation in random.Random(str(names)).sample(older, min(MOST_OLDER, len(older))):
        try:
            found = read(path, generation)[1]
        except Exception as error:
            return f"generation {generation} is listed but cannot be read: {type(error).__name__}: {error}"
        if found != states[generation]:
            return f"generation {generation} has other records than were written: {found} instead of {states[generation]}"
    return None


def _go_on(path: Path, generation: int, records: State) -> str | None:
    """Whether one more record can be written and read back."""
    extra = record(EXTRA)
    try:
        writer = pen.open(path, mode="a", threads=1) if generation else pen.create(path, FIELDS, threads=1)
        with writer:
            writer.extend(batch([extra]))
        found = read(path)
    except Exception as error:
        return f"cannot be written after the crash: {type(error).__name__}: {error}"
    added = {name: None for record in records[:1] for name in record if name not in extra}
    if found != (generation + 1, [*records, extra | added]):
        return f"one more record gave {found} after generation {generation}"
    return None
