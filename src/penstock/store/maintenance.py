"""What keeps a store in shape: verify, rebalance, gc, and the figures that say when."""

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock.argument import whole_number
from penstock.errors import ReadError
from penstock.store.create import append_to
from penstock.store.filesystem import Filesystem
from penstock.store.generation import generations, load_manifest, load_redirects
from penstock.store.layout import (
    CHUNK_DIRECTORY,
    LOCK_NAME,
    MANIFEST_DIRECTORY,
    REDIRECT_DIRECTORY,
    chunk_name,
    generation_of,
    is_data_name,
    manifest_name,
    redirect_name,
)
from penstock.store.lock import Lock
from penstock.store.manifest import Manifest
from penstock.store.redirect import Table
from penstock.store.snapshot import Store, open_store
from penstock.store.writer import Progress

__all__ = ["Collected", "Problem", "Rebalanced", "Stats", "gc", "rebalance", "stats", "verify"]

READ_BYTES = 16 << 20
"""About so many bytes are read at a time while a store is rewritten."""


@dataclass(frozen=True)
class Stats:
    """How full a store is. ``utilisation`` is live_bytes / stored_bytes; far below 1, a rebalance frees the rest."""

    records: int
    generation: int
    chunks: int
    unfull_chunks: int
    redirects: int
    live_bytes: int
    stored_bytes: int
    row_utilisation: float

    @property
    def utilisation(self) -> float:
        """Live bytes over stored bytes; 1.0 for an empty store."""
        return self.live_bytes / self.stored_bytes if self.stored_bytes else 1.0


def stats(store: Store) -> Stats:
    """Figures of one generation. Of fields with records of varying size, live bytes are taken in proportion to rows."""
    manifest = store._manifest
    index = {chunk.number: place for place, chunk in enumerate(manifest.chunks)}
    redirects = load_redirects(store.path, manifest)
    live = _live_rows(manifest, redirects)
    live_bytes = stored = full = 0
    for chunk in manifest.chunks:
        for number, data_bytes in store._native().chunk_fields(index[chunk.number]):
            stored += data_bytes
            live_bytes += data_bytes * live.get((chunk.number, number), 0) // max(1, chunk.rows)
        full += chunk.decoded >= 0.9 * manifest.chunk_bytes or chunk.rows >= 0.9 * manifest.chunk_records
    capacity = sum(chunk.rows for chunk in manifest.chunks)
    return Stats(
        manifest.length,
        manifest.generation,
        len(manifest.chunks),
        len(manifest.chunks) - full,
        sum(len(table) for table in redirects.values()),
        live_bytes,
        stored,
        manifest.length / capacity if capacity else 1.0,
    )


def _live_rows(manifest: Manifest, redirects: dict[int, Table]) -> dict[tuple[int, int], int]:
    """How many rows of each (chunk, field) a record still refers to."""
    live: dict[tuple[int, int], int] = {}
    firsts = np.array([segment.first_id for segment in manifest.segments], np.int64)
    for number in manifest.numbers.values():
        table = redirects.get(number)
        moved = np.zeros(len(manifest.segments), np.int64)
        if table is not None and table.size:
            moved = np.bincount(np.searchsorted(firsts, table["id"].astype(np.int64), side="right") - 1, minlength=len(firsts))
            for chunk, count in zip(*np.unique(table["chunk"], return_counts=True), strict=True):
                live[int(chunk), number] = live.get((int(chunk), number), 0) + int(count)
        for segment, gone in zip(manifest.segments, moved.tolist(), strict=True):
            live[segment.chunk, number] = live.get((segment.chunk, number), 0) + segment.count - gone
    return live


@dataclass(frozen=True)
class Problem:
    """Something wrong in a store: where, and what."""

    file: str
    what: str


def verify(path: str | os.PathLike[str], *, generation: int | None = None, progress: Progress | None = None) -> list[Problem]:
    """Check every record and index of a generation; returns what is wrong, naming file, field and rows, or an empty list."""
    directory = Path(path)
    try:
        store = open_store(directory, generation=generation)
    except ReadError as error:
        return [Problem(str(directory), str(error))]
    names = {number: name for name, number in store._manifest.numbers.items()}
    problems = []
    for place, chunk in enumerate(store._manifest.chunks):
        file = str(directory / CHUNK_DIRECTORY / chunk_name(chunk.writer, chunk.serial))
        try:
            found = store._native().verify_chunk(place)
        except ReadError as error:
            found = [str(error)]
        for what in found:
            named = re.sub(r"\bfield (\d+)", lambda m: f"field {names.get(int(m[1]), m[1])!r}", what)
            problems.append(Problem(file, named.removeprefix(f"{file}: ")))
        if progress is not None:
            progress(chunk.rows, chunk.size)
    return problems


@dataclass(frozen=True)
class Rebalanced:
    """A store before and after it was rewritten."""

    before: Stats
    after: Stats


def rebalance(path: str | os.PathLike[str], *, threads: int = 2, progress: Progress | None = None) -> Rebalanced:
    """Rewrite the live records in id order into full chunks, as one new generation.

    Older generations, and whoever reads them, stay as they are; :func:`gc` removes their files later.
    """
    directory = Path(path)
    with append_to(directory, threads=threads, progress=progress) as writer:
        store = open_store(directory, generation=writer.generation)
        before = stats(store)
        writer._start_over()
        for low, high in batches(store):
            writer.extend_columns(store.columns(slice(low, high), list(store.schema)))
        writer.commit()
    return Rebalanced(before, stats(open_store(directory)))


def batches(store: Store) -> list[tuple[int, int]]:
    """Ranges of ids of about READ_BYTES each."""
    if len(store) == 0:
        return []
    figures = stats(store)
    rows = max(1, int(READ_BYTES / max(1, figures.live_bytes / len(store))))
    return [(low, min(len(store), low + rows)) for low in range(0, len(store), rows)]


@dataclass(frozen=True)
class Collected:
    """What gc removed (or, in a dry run, would remove): files and their bytes; and the generations that stay."""

    files: tuple[str, ...]
    freed_bytes: int
    kept_generations: tuple[int, ...]


def gc(path: str | os.PathLike[str], *, keep: int = 10, keep_hours: float = 24.0, dry_run: bool = False) -> Collected:
    """Remove old generations, and files that no remaining generation names: leftovers of crashed writers among them.

    The newest ``keep`` generations stay, and every one younger than ``keep_hours``. A reader on this machine keeps what it has
    opened; others may find an older generation gone.
    """
    directory = Path(path)
    whole_number("keep", keep, least=1)
    there = generations(directory)
    if not there:
        load_manifest(directory)  # raises, and says why
    lock = Lock(directory / LOCK_NAME)
    try:
        there = generations(directory)
        now = time.time()
        young = {g for g in there if now - os.stat(directory / MANIFEST_DIRECTORY / manifest_name(g)).st_mtime < keep_hours * 3600}
        kept = sorted(set(there[-keep:]) | young)
        return _collect(directory, kept, dry_run)
    finally:
        lock.close()


def _collect(directory: Path, kept: list[int], dry_run: bool) -> Collected:
    files = Filesystem()
    named = set()
    for generation in kept:
        manifest = load_manifest(directory, generation)
        named |= {directory / CHUNK_DIRECTORY / chunk_name(c.writer, c.serial) for c in manifest.chunks}
        named |= {directory / REDIRECT_DIRECTORY / redirect_name(r.writer, r.serial) for r in manifest.redirects}
    old = []
    for name in files.names(directory / MANIFEST_DIRECTORY):
        number = generation_of(name)
        if name.startswith(".tmp-") or (number is not None and number not in kept):
            old.append(directory / MANIFEST_DIRECTORY / name)
    loose = [
        directory / place / name
        for place in (CHUNK_DIRECTORY, REDIRECT_DIRECTORY)
        for name in files.names(directory / place)
        if is_data_name(name) and directory / place / name not in named
    ]
    freed = sum(os.lstat(path).st_size for path in [*old, *loose])
    if not dry_run:
        # The newest name may not be durable yet: its writer may have been killed before it could see to that.
        files.sync_directory(directory / MANIFEST_DIRECTORY)
        for path in old:
            files.remove(path)
        files.sync_directory(directory / MANIFEST_DIRECTORY)  # manifests are gone for good before what they name goes
        for path in loose:
            files.remove(path)
    return Collected(tuple(str(path) for path in [*old, *loose]), freed, tuple(kept))
