"""Fragments: records that one process writes into chunk files, and another one commits.

::

    writer = create(path, fields)                               the driver; nobody else writes or collects meanwhile
    target = Target.of(writer)                                  small, and can be sent anywhere
    receipt = write_fragment(target, batches, task=3, tasks=8)  anywhere, in any order, as often as it takes
    commit_fragments(writer, receipts)                          one manifest, all or nothing, in the order of the tasks

A fragment is a writer of its own as far as names go: 128 random bits, new for every attempt, so that no two attempts touch a file.
One that fails removes its files; what a killed one leaves behind is named by no manifest, and gc removes it.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from penstock.errors import CorruptError, ReadError
from penstock.remote.window import RemoteOptions
from penstock.store.column import Column
from penstock.store.format import Location
from penstock.store.fragment_receipt import MAX_TASKS, Fragment, Receipt, in_order, make_receipt, read_receipt
from penstock.store.generation import storage_of
from penstock.store.manifest import Manifest, SegmentEntry
from penstock.store.snapshot import Reading, Store
from penstock.store.writer import Writer

__all__ = ["Receipt", "Target", "adopt_chunks", "commit_fragments", "discarding", "is_whole", "keep_chunks", "write_fragment"]


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
        location = writer._files.location
        form = replace(writer._base, length=0, next_chunk=0, chunks=(), segments=(), redirects=())
        committed = frozenset(chunk.writer for chunk in writer._base.chunks)
        return cls(location.absolute() if isinstance(location, Path) else location, form, committed)


class _Nobody:
    """The right to write of a fragment: it needs none, for it publishes nothing."""

    def check_process(self) -> None:
        """Any process will do."""

    def close(self) -> None:
        """Nothing is held."""


def write_fragment(
    target: Target, batches: Iterable[Mapping[str, Any]], *, task: int = 0, tasks: int = 1, threads: int = 1
) -> Receipt:
    """Write batches, as :meth:`Writer.extend` takes them, into chunks of their own; returns the receipt to commit them with.

    An exception, of ``batches`` too, removes what was written. It may be called again for the same task, here or elsewhere.
    """
    writer = Writer(storage_of(target.location), target.form, _Nobody(), threads=threads)
    try:
        for batch in batches:
            if batch and all(isinstance(column, Column) for column in batch.values()):
                writer.extend_columns(batch)
            else:
                writer.extend(batch)
        chunks = writer._release()
    finally:
        writer.close()
    return make_receipt(target.form.dataset, writer._chunks.identity, Fragment(task, tasks, chunks))


def commit_fragments(writer: Writer, receipts: Iterable[object]) -> int:
    """Append the records of fragments, in the order of their tasks, and commit; returns the generation.

    There must be a receipt of every task. All chunk files are looked at first: ReadError if one is absent or not what its receipt
    says, and nothing is committed. Their files stay, whatever happens, until gc removes them.
    """
    base = writer._base
    fragments = in_order(receipts, base.dataset)
    taken = {(chunk.writer, chunk.serial) for chunk in base.chunks}
    for fragment in fragments:
        for chunk, name in zip(fragment.chunks, fragment.names, strict=True):
            if (chunk.writer, chunk.serial) in taken:
                raise ValueError(
                    f"receipt of task {fragment.task}: expected a new chunk, got {name}, which is in the store already"
                )
    missing = _check_chunks(Target.of(writer), fragments)
    writer._adopt([chunk for fragment in fragments for chunk in fragment.chunks], missing)
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
    dataset = writer._base.dataset
    return [make_receipt(dataset, chunk.writer, Fragment(chunk.number, MAX_TASKS, (chunk,))) for chunk in writer._keep()]


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
    return len(writer._adopt([chunk for fragment in fragments for chunk in fragment.chunks], missing))


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
    with Store(target.location, manifest, Reading(1, "pread", True, 1 << 30, RemoteOptions())) as store:

        def check(place: int) -> set[int]:
            fields = store._chunk_fields(place)
            found = sorted(number for number, _, _ in fields)
            if found != wanted:
                raise CorruptError(f"{target.location}: expected a chunk of the fields {wanted}, found {found}")
            return {number for number, _, has_validity in fields if has_validity}

        return set[int]().union(*storage_of(target.location).each(check, range(len(chunks))))
