"""Conversion in tasks: here, or on the processes and machines of an executor. Everything appears in one commit, or nothing does.

Every task writes a fragment of the new store and gives a receipt; the receipts, in the order of the tasks, become one commit. On a
disk they are also noted down beside the store that grows, so that an interrupted conversion does only what is left; at a URL, where
nothing can be renamed, it starts over.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from penstock.progress import Progress, reporting
from penstock.ragged import Ragged
from penstock.records import DENSE, Source
from penstock.remote.url import UrlPath
from penstock.schema import Field, Schema, field_to_json
from penstock.source.array import ArraySource
from penstock.source.batch_map import BatchMap, guess_fields
from penstock.source.convert_note import Note
from penstock.source.fingerprint import fingerprint_of
from penstock.source.plan import Task, plan, rows_of_chunk
from penstock.source.spans import read_spans
from penstock.store.create import Layout, begin_store
from penstock.store.format import MANIFEST_DIRECTORY, new_identity
from penstock.store.fragment import AT_ONCE, Receipt, Target, commit_fragments, discarding, is_whole, run_tasks, write_fragment
from penstock.store.generation import generations
from penstock.store.maintenance import gc
from penstock.system import is_directory

__all__ = ["Conversion", "Input", "Job"]

BATCH_BYTES = 32 << 20
LIGHT_BYTES = 1 << 20
"""A source with more of its data in memory is not sent to other processes: every task gets its own records."""
HEAVY_AT_ONCE = 8


@dataclass(frozen=True)
class Input:
    """What is read, and what becomes of it; ``first`` is the id of its record 0. Pickled, it opens its source where it arrives."""

    source: Source
    names: tuple[str, ...]
    map: BatchMap | None
    first: int = 0

    def batches(self, task: Task) -> Iterator[Mapping[str, Any]]:
        """The records of a task as they are to be written."""
        ids = range(task.low - self.first, task.high - self.first)
        if self.map is None:
            return read_spans(self.source, self.names, ids, BATCH_BYTES, as_columns=True)
        return map(self.map, read_spans(self.source, self.names, ids, self.map.size, as_columns=False))

    def guess(self, task: Task) -> dict[str, Field]:
        """The fields of the first batch of a task."""
        batch = next(self.batches(task), None)
        if batch is None:
            raise ValueError("there is no record to find out the fields from: give map=BatchMap(fn, fields=...)")
        return guess_fields(batch)

    def part(self, task: Task) -> "Input":
        """The same with nothing but the records of a task, in memory."""
        batch = self.source.read(np.arange(task.low, task.high), list(self.names))
        return replace(self, source=ArraySource(batch), first=task.low)


@dataclass(frozen=True)
class Job:
    """A fragment per task: what is called in the workers."""

    input: Input
    target: Target
    threads: int

    def __call__(self, task: Task) -> Receipt:
        """Write the fragment of a task."""
        return write_fragment(self.target, self.input.batches(task), task=task.number, tasks=task.tasks, threads=self.threads)


@dataclass(frozen=True)
class Conversion:
    """Records on their way into a new store, task by task. ``threads`` is per task."""

    input: Input
    tasks: Sequence[Task]
    layout: Layout
    executor: Executor | None
    threads: int

    @classmethod
    def of(cls, reads: Input, layout: Layout, executor: Executor | None, threads: int) -> "Conversion":
        """The same tasks for the same data, wherever they are done."""
        task_records = None if reads.map is None else reads.map.task_records
        if task_records is None:
            task_records = rows_of_chunk(reads.source, reads.names, layout.size, layout.chunk_records)
        return cls(reads, plan(reads.source, task_records), layout, executor, threads if executor is None else 1)

    def guess_fields(self) -> dict[str, Field]:
        """The fields of what comes out, from the first batch, mapped where all the others are."""
        known = None if self.input.map is None else self.input.map.fields
        if self.input.map is None or known is not None:
            return dict(known if known is not None else {name: self.input.source.schema[name] for name in self.input.names})
        reads = self.input.part(self.tasks[0]) if self._is_heavy() else self.input
        return next(run_tasks([(reads.guess, self.tasks[0])], self.executor))[1]

    def to_url(self, url: UrlPath, schema: Mapping[str, Field], progress: Progress | bool | None) -> None:
        """Write a store at a URL. What a failure leaves behind is removed as far as it is known; gc removes the rest."""
        with begin_store(url, schema, self.layout, dataset=new_identity(), metadata=self.input.source.metadata) as writer:
            target = Target.of(writer)
            with discarding(target) as receipts, reporting(progress, url.name, len(self.input.source)) as report:
                for receipt in self._run(target, self.tasks, report):
                    receipts.append(receipt)  # at once, so that a failure knows of it
            commit_fragments(writer, receipts)

    def to_path(self, path: Path, schema: Mapping[str, Field], progress: Progress | bool | None, note: Note) -> None:
        """Write a store in a directory, or finish one that was begun; ``note`` keeps the receipts."""
        if is_directory(path / MANIFEST_DIRECTORY) and generations(path):
            return  # only its name was left to do
        with begin_store(path, schema, self.layout, dataset=note.dataset, metadata=self.input.source.metadata) as writer:
            target = Target.of(writer)
            done = self._done(note, target)
            left = [task for task in self.tasks if task.number not in done]
            records = len(self.input.source) - sum(task.high - task.low for task in left)
            with reporting(progress, note.title, len(self.input.source), done=records) as report:
                for receipt in self._run(target, left, report):
                    note.add(receipt)
                    done[receipt["task"]] = receipt
            commit_fragments(writer, list(done.values()))
        gc(path, keep=1, keep_hours=0)  # what killed tasks have left

    def _done(self, note: Note, target: Target) -> dict[int, Receipt]:
        """Receipts of tasks of this plan whose files are whole. A task of which there are two that differ is done again."""
        done: dict[int, Receipt] = {}
        doubtful = set[int]()
        for receipt in note.receipts():
            if self._fits(receipt) and is_whole(target, receipt) and done.setdefault(receipt["task"], receipt) != receipt:
                doubtful.add(receipt["task"])
        return {task: receipt for task, receipt in done.items() if task not in doubtful}

    def _fits(self, receipt: Receipt) -> bool:
        """Whether a receipt is of a task of this plan, with as many records where that is known."""
        number = receipt["task"]
        if receipt.get("tasks") != len(self.tasks) or not 0 <= number < len(self.tasks):
            return False
        return self.input.map is not None or receipt.get("rows") == self.tasks[number].high - self.tasks[number].low

    def about(self, schema: Mapping[str, Field]) -> dict[str, object]:
        """What must be the same for an interrupted conversion to go on."""
        numbers = Schema.make(schema).numbers
        return {
            "source": self.input.source.fingerprint,
            "samples": self.input.source.sample_digest(DENSE),
            "records": len(self.input.source),
            "options": {"chunk_bytes": self.layout.size, "chunk_records": self.layout.chunk_records},
            "fields": [field_to_json(name, number, schema[name]) for name, number in numbers.items()],
            "read": list(self.input.names),
            "map": None if self.input.map is None else self.input.map.fingerprint,
            "tasks": fingerprint_of("tasks", [(task.low, task.high) for task in self.tasks]),
        }

    def _run(self, target: Target, tasks: Sequence[Task], report: Progress | None) -> Iterator[Receipt]:
        """The receipts of tasks as they are done."""
        job, is_heavy = Job(self.input, target, self.threads), self._is_heavy()
        calls = ((replace(job, input=self.input.part(task)) if is_heavy else job, task) for task in tasks)
        for task, receipt in run_tasks(calls, self.executor, at_once=HEAVY_AT_ONCE if is_heavy else AT_ONCE):
            yield receipt
            if report is not None:
                report(task.high - task.low, receipt["bytes"])

    def _is_heavy(self) -> bool:
        """Whether the source is too large to be sent with every task."""
        is_here = self.executor is None or isinstance(self.executor, ThreadPoolExecutor)
        return not is_here and _bytes_in(self.input.source) > LIGHT_BYTES


def _bytes_in(value: object) -> int:
    """About how many bytes of data are sent along with a source."""
    if isinstance(value, Source):
        return _bytes_in(value._recipe()[1])
    if isinstance(value, Ragged):
        return int(value.values.nbytes + value.offsets.nbytes)
    if isinstance(value, Mapping | list | tuple):
        return sum(_bytes_in(part) for part in (value.values() if isinstance(value, Mapping) else value))
    if isinstance(value, partial):
        return _bytes_in(value.args)
    if is_dataclass(value) and not isinstance(value, type):
        return sum(_bytes_in(getattr(value, field.name)) for field in fields(value))
    return int(getattr(value, "nbytes", 0))
