"""Note: what is known of an unfinished conversion, in a file beside the store that grows.

::

    {"about": {...}, "dataset": identity}     what is converted, and how; the store it becomes
    {"dataset": ..., "task": 0, ...}          the receipt of a task that is done, or of a chunk that is written; a line each

Behind the JSON of every line comes its crc32, in hexadecimal. A line that is cut off or damaged does not count: its task is done
again.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from penstock.errors import StoreError
from penstock.source.publish import replace_file
from penstock.store.filesystem import translated
from penstock.store.format import IDENTITY, new_identity
from penstock.system import is_there, reading

__all__ = ["Note", "records_noted"]


@dataclass(frozen=True)
class Note:
    """The note of one conversion. Receipts in it are as trustworthy as the file is: whoever uses them checks them."""

    path: Path
    dataset: str

    @classmethod
    def of(cls, path: Path, about: Mapping[str, object], *, is_begun: bool) -> "Note":
        """The note of a conversion that is begun, or a new one; StoreError if it is one of another conversion."""
        if is_begun and is_there(path):
            first = next(iter(_lines(path)), {})
            dataset = first.get("dataset") if _is_of(first.get("about"), json.loads(json.dumps(about))) else None
            if not isinstance(dataset, str) or not IDENTITY.fullmatch(dataset):
                raise StoreError(
                    f"{path}: this is an unfinished conversion of other data or with other options; remove it and {path.stem}"
                )
            return cls(path, dataset)
        dataset = new_identity()
        replace_file(path, _line({"about": about, "dataset": dataset}).encode())
        return cls(path, dataset)

    @property
    def title(self) -> str:
        """The name of the store that grows."""
        return self.path.name.removesuffix(".partial.json")

    def add(self, receipt: Mapping[str, Any]) -> None:
        """Remember that a task is done."""
        with translated(self.path, "noting what is done"), self.path.open("a") as file:
            file.write(f"\n{_line(receipt)}")  # whatever the line before looks like

    def receipts(self) -> list[dict[str, Any]]:
        """What was remembered; the later one of two for one task counts."""
        return [line for line in _lines(self.path)[1:] if isinstance(line.get("task"), int)]

    def forget_after(self, records: int) -> None:
        """Keep only the receipts of the first ``records`` records. Those behind are of an earlier run, and what this run writes
        need not end where they begin.
        """
        known, kept, rows = {line["task"]: line for line in self.receipts()}, _lines(self.path)[:1], 0
        while rows < records and (line := known.get(len(kept) - 1)) is not None:
            kept.append(line)
            rows += int(line["rows"])
        replace_file(self.path, "".join(map(_line, kept)).encode())


def _is_of(found: object, about: dict[str, object]) -> bool:
    """Whether a note is of this conversion. Notes of version 1 say nothing of samples of the data."""
    return isinstance(found, dict) and {"samples": about.get("samples"), **found} == about


def records_noted(path: Path) -> int:
    """Records in the chunks 0, 1, ... that the note of an interrupted conversion names; 0 without a note."""
    lines = _lines(path)[1:] if is_there(path) else []
    rows = {line["task"]: line["rows"] for line in lines if all(isinstance(line.get(name), int) for name in ("task", "rows"))}
    return sum(takewhile(bool, (rows.get(number, 0) for number in count())))


def _line(value: Mapping[str, Any]) -> str:
    text = json.dumps(value)
    return f"{text} {zlib.crc32(text.encode()):08x}\n"


def _lines(path: Path) -> list[dict[str, Any]]:
    """The lines that are JSON objects, and whole."""
    found = []
    with reading(path):
        text = path.read_text(errors="replace")
    for line in text.splitlines():
        text, _, crc = line.rpartition(" ")
        try:
            value = json.loads(text) if crc == f"{zlib.crc32(text.encode()):08x}" else None
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found
