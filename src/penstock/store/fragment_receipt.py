"""Receipts: what a fragment says it has written. Plain JSON, small, and distrusted by whoever commits it.

::

    {"dataset": identity, "task": 3, "tasks": 8, "writer": identity, "rows": 1000, "bytes": 81920,
     "chunks": [[serial, file bytes, rows, crc of the tail, decoded bytes], ...]}

Task 3 of 8 has written 1000 records into these chunks of the data set, one after the other. The names of the files follow from
writer and serial, so that a receipt cannot name any other file.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.argument import MAX_LENGTH, whole_number
from penstock.store.format import IDENTITY
from penstock.store.manifest import ChunkEntry

__all__ = ["MAX_TASKS", "Fragment", "Receipt", "in_order", "make_receipt", "read_receipt"]

Receipt = dict[str, Any]
"""What :func:`write_fragment` returns."""

MAX_TASKS = 2**31
_KEYS = {"dataset", "task", "tasks", "writer", "rows", "bytes", "chunks"}
_U32 = 2**32 - 1


@dataclass(frozen=True)
class Fragment:
    """The chunks of one task, in the order of their records."""

    task: int
    tasks: int
    chunks: tuple[ChunkEntry, ...]

    @property
    def names(self) -> list[str]:
        """Its files within the store."""
        return [chunk.file for chunk in self.chunks]


def make_receipt(dataset: str, writer: str, fragment: Fragment) -> Receipt:
    """A fragment as plain JSON."""
    chunks = fragment.chunks
    return {
        "dataset": dataset,
        "task": fragment.task,
        "tasks": fragment.tasks,
        "writer": writer,
        "rows": sum(chunk.rows for chunk in chunks),
        "bytes": sum(chunk.size for chunk in chunks),
        "chunks": [[chunk.serial, chunk.size, chunk.rows, chunk.crc, chunk.decoded] for chunk in chunks],
    }


def read_receipt(value: object, dataset: str) -> Fragment:
    """The fragment of a data set that a receipt tells of; TypeError or ValueError if it is not one."""
    if not isinstance(value, Mapping) or set(value) != _KEYS:
        raise TypeError(f"expected a receipt, a dict with {sorted(_KEYS)}, got {repr(value)[:200]}")
    if value["dataset"] != dataset:
        raise ValueError(f"expected a receipt of data set {dataset}, got one of {str(value['dataset'])[:40]}")
    tasks = whole_number("tasks of a receipt", value["tasks"], least=1, most=MAX_TASKS)
    task = whole_number("task of a receipt", value["task"], most=tasks - 1)
    writer = value["writer"]
    if not isinstance(writer, str) or not IDENTITY.fullmatch(writer):
        raise ValueError(f"receipt of task {task}: expected a writer of 32 hexadecimal digits, got {repr(writer)[:100]}")
    rows = value["chunks"]
    if not isinstance(rows, list | tuple):
        raise TypeError(f"receipt of task {task}: expected a list of chunks, got a {type(rows).__name__}")
    chunks = tuple(_chunk(task, writer, row) for row in rows)
    found = (sum(chunk.rows for chunk in chunks), sum(chunk.size for chunk in chunks))
    if (value["rows"], value["bytes"]) != found:
        raise ValueError(f"receipt of task {task}: expected the sums of its chunks, {found}, got {value['rows']}, {value['bytes']}")
    return Fragment(task, tasks, chunks)


def _chunk(task: int, writer: str, row: object) -> ChunkEntry:
    if not isinstance(row, list | tuple) or len(row) != 5:
        raise TypeError(f"receipt of task {task}: expected 5 numbers per chunk, got {repr(row)[:100]}")
    limits = (("serial", 0, _U32), ("size", 1, MAX_LENGTH), ("rows", 1, _U32), ("crc", 0, _U32), ("decoded bytes", 0, MAX_LENGTH))
    serial, size, rows, crc, decoded = (
        whole_number(f"receipt of task {task}: {name} of a chunk", number, least=least, most=most)
        for number, (name, least, most) in zip(row, limits, strict=True)
    )
    return ChunkEntry(0, writer, serial, size, rows, crc, decoded)


def in_order(receipts: Iterable[object], dataset: str) -> list[Fragment]:
    """One fragment for each task, in the order of the tasks, whatever order the receipts came in.

    Of a task that was done twice the first receipt counts; the files of the other are named by nobody, and gc removes them.
    """
    found: dict[int, Fragment] = {}
    for fragment in (read_receipt(receipt, dataset) for receipt in receipts):
        if found and fragment.tasks != next(iter(found.values())).tasks:
            raise ValueError(f"expected receipts of one plan, got tasks of {fragment.tasks} and {next(iter(found.values())).tasks}")
        found.setdefault(fragment.task, fragment)
    tasks = next(iter(found.values())).tasks if found else 0
    if len(found) != tasks:
        absent = next(task for task in range(tasks) if task not in found)
        raise ValueError(f"expected a receipt of each of {tasks} tasks, got {len(found)}: that of task {absent} is missing")
    ordered = [found[task] for task in range(tasks)]
    _check_files(ordered)
    return ordered


def _check_files(fragments: Sequence[Fragment]) -> None:
    names = [name for fragment in fragments for name in fragment.names]
    if len(set(names)) != len(names):
        raise ValueError(f"expected every chunk once, got {next(name for name in names if names.count(name) > 1)} twice")
