"""Fragments: records that one process writes into chunk files, and another one commits.

::

    writer = create(path, fields)                               the driver; no other process writes or collects meanwhile
    target = Target.of(writer)                                  small, and can be sent anywhere
    receipt = write_fragment(target, batches, task=3, tasks=8)  anywhere, in any order, as often as it takes
    commit_fragments(writer, receipts)                          one manifest, all or nothing, in the order of the tasks

A fragment is a writer of its own as far as names go: 128 random bits, new for every attempt, so that no two attempts touch a file.
One that fails removes its files; what a killed one leaves behind is named by no manifest, and gc removes it.

A receipt says what a fragment has written. It is plain JSON, small, and distrusted where it is committed::

    {"dataset": identity, "task": 3, "tasks": 8, "writer": identity, "rows": 1000, "bytes": 81920,
     "chunks": [[serial, file bytes, rows, crc of the tail, decoded bytes], ...]}

Task 3 of 8 has written 1000 records into these chunks of the data set, one after the other. The names of the files follow from
writer and serial, so that a receipt cannot name any other file.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from typing import Any, TypeVar

from penstock.argument import MAX_LENGTH, whole_number
from penstock.errors import CorruptError, ReadError
from penstock.remote.window import RemoteOptions
from penstock.store.column import Column
from penstock.store.generation import storage_of
from penstock.store.manifest import ChunkEntry, Manifest, SegmentEntry
from penstock.store.reader import ChunkReader, Reading
from penstock.store.storage import IDENTITY, Claim, Location
from penstock.store.writer import Writer

__all__ = [
    "AT_ONCE",
    "Call",
    "Receipt",
    "Target",
    "adopt_chunks",
    "commit_fragments",
    "discarding",
    "is_whole",
    "keep_chunks",
    "run_tasks",
    "write_fragment",
]

Receipt = dict[str, Any]
"""What :func:`write_fragment` returns."""

MAX_TASKS = 2**31
_KEYS = {"dataset", "task", "tasks", "writer", "rows", "bytes", "chunks"}
_U32 = 2**32 - 1

AT_ONCE = 1024
"""Tasks that are given to an executor before the first is done: more than the workers of a large cluster, few to remember."""

LOOK_S = 1.0
"""How often cancelled tasks are looked for that their executor does not report."""

Task = TypeVar("Task")
Result = TypeVar("Result")
Call = tuple[Callable[[Task], Result], Task]
"""What to call, and with what. Both are pickled by executors that run in other processes."""


@dataclass(frozen=True)
class Fragment:
    """The chunks of one task, in the order of their records."""

    task: int
    tasks: int
    chunks: tuple[ChunkEntry, ...]

    @property
    def names(self) -> list[str]:
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

    Of a task that was done twice the first receipt counts; no manifest names the files of the other, and gc removes them.
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
    names = [name for fragment in ordered for name in fragment.names]
    if len(set(names)) != len(names):
        raise ValueError(f"expected every chunk once, got {next(name for name in names if names.count(name) > 1)} twice")
    return ordered


@dataclass(frozen=True)
class Target:
    """Where fragments of one data set go, and what their chunks are like. Small, immutable, and can be pickled."""

    location: Location
    form: Manifest
    committed: frozenset[str] = frozenset()
    """Writers of chunks that are in the store already."""

    @classmethod
    def of(cls, writer: Writer) -> "Target":
        """The target of fragments that this writer is going to commit."""
        location = writer.location
        form = replace(writer.base, length=0, next_chunk=0, chunks=(), segments=(), redirects=())
        committed = frozenset(chunk.writer for chunk in writer.base.chunks)
        return cls(location.absolute() if isinstance(location, Path) else location, form, committed)


class _NoClaim(Claim):
    """The right to write of a fragment: any process will do, for it publishes nothing."""

    def check_process(self) -> None:
        pass


def write_fragment(
    target: Target, batches: Iterable[Mapping[str, Any]], *, task: int = 0, tasks: int = 1, threads: int = 1
) -> Receipt:
    """Write batches, as :meth:`Writer.extend` takes them, into chunks of their own; returns the receipt to commit them with.

    An exception, of ``batches`` too, removes what was written. It may be called again for the same task, in any process.
    """
    writer = Writer(storage_of(target.location), target.form, _NoClaim(target.location), threads=threads)
    try:
        for batch in batches:
            if batch and all(isinstance(column, Column) for column in batch.values()):
                writer.extend_columns(batch)
            else:
                writer.extend(batch)
        chunks = writer.release_chunks()
    finally:
        writer.close()
    return make_receipt(target.form.dataset, writer.identity, Fragment(task, tasks, chunks))


def commit_fragments(writer: Writer, receipts: Iterable[object]) -> int:
    """Append the records of fragments, in the order of their tasks, and commit; returns the generation.

    There must be a receipt of every task. All chunk files are looked at first: ReadError if one is absent or not what its receipt
    says, and nothing is committed. Their files stay, whatever happens, until gc removes them.
    """
    base = writer.base
    fragments = in_order(receipts, base.dataset)
    taken = {(chunk.writer, chunk.serial) for chunk in base.chunks}
    for fragment in fragments:
        for chunk, name in zip(fragment.chunks, fragment.names, strict=True):
            if (chunk.writer, chunk.serial) in taken:
                raise ValueError(
                    f"receipt of task {fragment.task}: expected a new chunk, got {name}, which is in the store already"
                )
    missing = _check_chunks(Target.of(writer), fragments)
    writer.adopt_chunks([chunk for fragment in fragments for chunk in fragment.chunks], missing)
    return writer.commit()


def is_whole(target: Target, receipt: object) -> bool:
    """Whether a receipt is one of this data set, and its chunk files are there as it says."""
    try:
        _check_chunks(target, [read_receipt(receipt, target.form.dataset)])
    except (TypeError, ValueError, ReadError):
        return False
    return True


def keep_chunks(writer: Writer) -> list[Receipt]:
    """Receipts of the chunks that a writer has written since the last call, one each, with the number of the chunk as the task.

    The files stay even if the writer ends without a commit, so that another one can begin with them: :func:`adopt_chunks`.
    """
    dataset = writer.base.dataset
    return [make_receipt(dataset, chunk.writer, Fragment(chunk.number, MAX_TASKS, (chunk,))) for chunk in writer.keep_chunks()]


def adopt_chunks(writer: Writer, receipts: Iterable[Receipt]) -> int:
    """Begin a new store with chunks that were kept: 0, 1, ... as far as they are there and whole. Returns the number of records."""
    known, target = {receipt["task"]: receipt for receipt in receipts}, Target.of(writer)
    first = [known[number] for number in takewhile(known.__contains__, count())]
    try:
        fragments = [read_receipt(receipt, target.form.dataset) for receipt in first]
        missing = _check_chunks(target, fragments)
    except (TypeError, ValueError, ReadError):  # one after the other, to see how far they are whole
        fragments = [read_receipt(receipt, target.form.dataset) for receipt in takewhile(partial(is_whole, target), first)]
        missing = _check_chunks(target, fragments)
    return len(writer.adopt_chunks([chunk for fragment in fragments for chunk in fragment.chunks], missing))


@contextmanager
def discarding(target: Target) -> Iterator[list[Receipt]]:
    """A list for the receipts of one's own tasks: if the block fails, their files are removed as far as that is possible.

    The commit goes behind the block: a commit that fails may have happened all the same.
    """
    receipts: list[Receipt] = []
    try:
        yield receipts
    except BaseException:
        for receipt in receipts:
            fragment = read_receipt(receipt, target.form.dataset)
            if target.committed.isdisjoint(chunk.writer for chunk in fragment.chunks):
                storage_of(target.location).discard(fragment.names)
        raise


def _check_chunks(target: Target, fragments: Iterable[Fragment]) -> set[int]:
    """The numbers of the fields with missing values; ReadError unless every chunk is there, of the size and with the tail that its
    receipt says, and has all fields.
    """
    chunks = [chunk for fragment in fragments for chunk in fragment.chunks]
    if not chunks:
        return set()
    wanted, segments, first = sorted(target.form.numbers.values()), [], 0
    for number, chunk in enumerate(chunks):
        segments.append(SegmentEntry(first, chunk.rows, number, 0))
        first += chunk.rows
    numbered = tuple(replace(chunk, number=number) for number, chunk in enumerate(chunks))
    manifest = replace(target.form, length=first, next_chunk=len(chunks), chunks=numbered, segments=tuple(segments))
    with closing(ChunkReader(target.location, manifest, Reading(1, "pread", True, 1 << 30, RemoteOptions()))) as reader:

        def check(place: int) -> set[int]:
            fields = reader.chunk_fields(place)
            found = sorted(number for number, _, _ in fields)
            if found != wanted:
                raise CorruptError(f"{target.location}: expected a chunk of the fields {wanted}, found {found}")
            return {number for number, _, has_validity in fields if has_validity}

        return set[int]().union(*storage_of(target.location).each(check, range(len(chunks))))


# Tasks on an executor


def run_tasks(
    calls: "Iterable[Call[Task, Result]]", executor: Executor | None, *, at_once: int = AT_ONCE
) -> Iterator[tuple[Task, Result]]:
    """Tasks and their results in the order in which they are done; without an executor, one after the other here.

    After a failure nothing new is begun. What is running is waited for and yielded, then the failure is raised, with a note that
    names the task. A caller that stops early waits for nothing.
    """
    if executor is None:
        yield from ((task, work(task)) for work, task in calls)
        return
    waiting, running, failed = iter(calls), dict[Future[Result], Task](), list[BaseException]()
    try:
        while True:
            _submit(waiting, running, failed, executor, at_once)
            if not running:
                break
            wait(running, timeout=LOOK_S, return_when=FIRST_COMPLETED)
            for future in [one for one in running if one.done()]:  # also those that an executor cancelled without a report
                if future not in running:
                    continue  # cancelled below
                task = running.pop(future)
                error = _error_of(future, task)
                if error is None:
                    yield task, future.result()
                    continue
                failed.append(error)
                for other in [other for other in running if other.cancel()]:
                    del running[other]
    finally:
        for future in running:
            future.cancel()
    if failed:
        raise failed[0]


def _submit(
    waiting: "Iterator[Call[Task, Result]]",
    running: "dict[Future[Result], Task]",
    failed: list[BaseException],
    executor: Executor,
    at_once: int,
) -> None:
    """Give tasks to the executor, as many as it may have; what fails here counts as a failure of its task."""
    try:
        while not failed and len(running) < at_once and (call := next(waiting, None)) is not None:
            running[executor.submit(call[0], call[1])] = call[1]
    except Exception as error:
        failed.append(error)


def _error_of(future: "Future[Result]", task: Task) -> BaseException | None:
    """Why a task was not done; None if it was."""
    if future.cancelled():
        return CancelledError(f"{task} was not done: the executor was shut down, or cancelled it")
    error = future.exception()
    if error is not None:
        error.add_note(f"in {task}")
    return error
