"""Maps that other processes import, and stores to compare."""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.batch import Batch


def words(batch: Batch) -> Mapping[str, Any]:
    """Other fields, and another number of records: one per word, none for an empty text."""
    found = [(int(number), word) for number, text in zip(batch["number"], batch["text"], strict=True) for word in text.split()]
    return {"number": np.array([number for number, _ in found], np.int64), "word": [word for _, word in found]}


def same(batch: Batch) -> Batch:
    return batch


@dataclass(frozen=True)
class FailAt:
    """Fails, or kills its process, at a record, as long as a file is there; the file goes when it has done so."""

    record: int
    marker: Path
    kill: bool = False

    def __call__(self, batch: Batch) -> Batch:
        if self.marker.exists() and self.record in batch["number"].tolist():
            self.marker.unlink()
            if self.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError(f"record {self.record} is cursed")
        return batch
