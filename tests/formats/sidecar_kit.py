"""A sidecar of three arrays: what it is of, what makes it, what it holds. Imports little: programs that are started import it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.formats.rows_in_files import version_of
from penstock.formats.sidecar import Sidecar, SidecarWriter, Subject

NUMBERS = np.arange(5000, dtype=np.int64) * 3  # more than two pages
WORDS = np.arange(7, dtype=np.uint32)


@dataclass(frozen=True)
class Described:
    path: Path
    size: int
    version: Any


def described(path: Path) -> Described:
    return Described(path, path.stat().st_size, version_of(path))


def subject_of(path: Path, *more: Path, options: tuple[object, ...] = ()) -> Subject:
    return Subject("test", [described(one) for one in (path, *more)], options)


class Counting:
    """A builder that counts how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, writer: SidecarWriter) -> None:
        self.calls += 1
        pieces = np.split(NUMBERS, [1, 1, 2000, 4999])
        assert writer.add("numbers", np.int64, pieces).tolist() == NUMBERS.tolist()
        writer.add("words", "u4", [WORDS])
        writer.add("nothing", "u1", [])


def check(found: Sidecar) -> None:
    found.check()
    assert found["numbers"].tolist() == NUMBERS.tolist()
    assert found["words"].tolist() == WORDS.tolist()
    assert found["words"].dtype == np.uint32
    assert found["nothing"].size == 0
    assert "nobody" not in found
