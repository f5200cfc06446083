"""Conversion in tasks: through a map of batches, on an executor.

Every task writes a fragment of the new store and gives a receipt; the receipts, in the order of the tasks, become one commit. On a
disk they are also noted down next to the store that grows, so that an interrupted conversion does only what is left. At a URL,
where nothing can be renamed, it starts over. The note::

    {"about": {...}, "dataset": identity}     what is converted, and how; the store it becomes
    {"dataset": ..., "task": 0, ...}          the receipt of a task that is done, or of a chunk that is written; a line each

Behind the JSON of every line comes its crc32, in hexadecimal. A line that is cut off or damaged does not count: its task is done
again.
"""

import json
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from penstock.batch import Ragged
from penstock.conversion.reading import Task, plan, read_spans, rows_of_chunk
from penstock.conversion.record_map import RecordMap, guess_fields
from penstock.errors import StoreError
from penstock.fingerprint import fingerprint_of
from penstock.formats.array import ArraySource
from penstock.formats.publish import replace_file
from penstock.progress import Progress, reporting
from penstock.records import DENSE, Source
from penstock.remote.url import UrlPath
from penstock.schema import Field, Schema, field_to_json
from penstock.store.fragment import AT_ONCE, Receipt, Target, commit_fragments, discarding, is_whole, run_tasks, write_fragment
from penstock.store.generation import generations, load_manifest
from penstock.store.maintenance import gc
from penstock.store.storage import IDENTITY, MANIFEST_DIRECTORY, new_identity
from penstock.store.writer import ChunkLimits, begin_store
from penstock.system import is_directory, is_there, reading, writing

__all__ = ["Conversion", "Input", "Note", "about_conversion", "is_committed", "records_noted"]


@dataclass(frozen=True)
class Note:
    """The note of one conversion. Receipts in it are as trustworthy as the file is, and are checked where they are used."""

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

    def is_finished(self, store: Path) -> bool:
        """Whether the store that grows is complete. StoreError if it is that of another conversion, begun at the same time."""
        if not is_committed(store):
            return False
        if load_manifest(store).dataset != self.dataset:
            raise StoreError(f"{store}: another conversion to the same name has written this; remove it and {self.path.name}")
        return True

    def add(self, receipt: Mapping[str, Any]) -> None:
        """Remember that a task is done."""
        with writing(self.path, "noting what is done"), self.path.open("a") as file:
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


def is_committed(store: Path) -> bool:
    """Whether a store that grows has its commit."""
    return is_directory(store / MANIFEST_DIRECTORY) and bool(generations(store))


def about_conversion(source: Source, layout: ChunkLimits, schema: Mapping[str, Field]) -> dict[str, object]:
    """What must be the same for an interrupted conversion to go on."""
    return {
        "source": source.fingerprint,
        "samples": source.sample_digest(DENSE),
        "records": len(source),
        "options": {"chunk_bytes": layout.size, "chunk_records": layout.chunk_records},
        "fields": [field_to_json(name, number, schema[name]) for name, number in Schema.make(schema).numbers.items()],
    }


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


BATCH_BYTES = 32 << 20
LIGHT_BYTES = 1 << 20
"""A source with more of its data in memory is not sent to other processes: every task gets its own records."""
HEAVY_AT_ONCE = 8


@dataclass(frozen=True)
class Input:
    """What is read, and what becomes of it; ``first`` is the id of its record 0. Pickled, it opens its source where it arrives."""

    source: Source
    names: tuple[str, ...]
    map: RecordMap | None
    first: int = 0

    def batches(self, task: Task) -> Generator[Mapping[str, Any]]:
        """The records of a task as they are to be written."""
        ids = range(task.low - self.first, task.high - self.first)
        if self.map is None:
            return read_spans(self.source, self.names, ids, BATCH_BYTES, as_columns=True)
        return self.map.over(read_spans(self.source, self.names, ids, self.map.size, as_columns=False), task.low)

    @property
    def metadata(self) -> dict[str, Any]:
        """What is known of the source, and of what the map makes."""
        return {**self.source.metadata, **({} if self.map is None else self.map.metadata)}

    def guess(self, task: Task) -> dict[str, Field]:
        """The fields of the first batch of a task."""
        batch = next(self.batches(task), None)
        if batch is None:
            raise ValueError("there is no record to infer the fields from: pass map=BatchMap(fn, fields=...)")
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
        with closing(self.input.batches(task)) as batches:
            return write_fragment(self.target, batches, task=task.number, tasks=task.tasks, threads=self.threads)


@dataclass(frozen=True)
class Conversion:
    """Records on their way into a new store, task by task. ``threads`` is per task."""

    input: Input
    tasks: Sequence[Task]
    layout: ChunkLimits
    executor: Executor | None
    threads: int

    @classmethod
    def of(cls, reads: Input, layout: ChunkLimits, executor: Executor | None, threads: int) -> "Conversion":
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
        with begin_store(url, schema, self.layout, dataset=new_identity(), metadata=self.input.metadata) as writer:
            target = Target.of(writer)
            with discarding(target) as receipts, reporting(progress, url.name, len(self.input.source)) as report:
                for receipt in self._run(target, self.tasks, report):
                    receipts.append(receipt)  # at once, so that a failure knows of it
            commit_fragments(writer, receipts)

    def to_path(self, path: Path, schema: Mapping[str, Field], progress: Progress | bool | None, note: Note) -> None:
        """Write a store in a directory, or finish one that was begun; ``note`` keeps the receipts."""
        if note.is_finished(path):
            return  # only its name was left to do
        with begin_store(path, schema, self.layout, dataset=note.dataset, metadata=self.input.metadata) as writer:
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
        """The same, of one in tasks."""
        return about_conversion(self.input.source, self.layout, schema) | {
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
