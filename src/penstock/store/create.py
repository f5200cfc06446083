"""Making a store, and opening one for writing."""

import os
from collections.abc import Mapping
from pathlib import Path

from penstock.argument import byte_size, whole_number
from penstock.errors import StoreError
from penstock.schema import Field, Schema
from penstock.store.filesystem import Filesystem
from penstock.store.generation import generations, is_store, load_manifest
from penstock.store.layout import DIRECTORIES, LOCK_NAME, new_identity
from penstock.store.lock import Lock
from penstock.store.manifest import Manifest
from penstock.store.writer import Progress, Writer

__all__ = ["append_to", "create"]

DEFAULT_CHUNK_BYTES = "64MiB"
DEFAULT_CHUNK_RECORDS = 2**24


def create(
    path: str | os.PathLike[str],
    fields: Mapping[str, Field],
    *,
    chunk_bytes: int | str = DEFAULT_CHUNK_BYTES,
    chunk_records: int = DEFAULT_CHUNK_RECORDS,
    threads: int = 2,
    progress: Progress | None = None,
) -> Writer:
    """Make a new store and return its writer. Nothing is published before the first commit.

    >>> import tempfile, penstock as pen
    >>> path = tempfile.mkdtemp() + "/train.pen"
    >>> with pen.create(path, {"x": pen.Field("f4", (3,)), "caption": pen.Field.text()}) as out:
    ...     out.extend({"x": [[1, 2, 3], [4, 5, 6]], "caption": ["one", "two"]})
    range(0, 2)
    >>> pen.open(path)[1]["caption"]
    'two'
    """
    schema = Schema.make(fields)
    size, records = (
        byte_size("chunk_bytes", chunk_bytes, least=4096),
        whole_number("chunk_records", chunk_records, least=1, most=2**32 - 1),
    )
    whole_number("threads", threads, least=1, most=256)
    directory, files = Path(path), Filesystem()
    if directory.is_dir() and any(name not in (*DIRECTORIES, LOCK_NAME) for name in files.names(directory)):
        raise StoreError(f"{directory}: the directory holds other files; choose an empty or new one")
    for place in (directory, *(directory / name for name in DIRECTORIES)):
        try:
            files.make_directory(place)
        except FileExistsError:
            if not place.is_dir():
                raise StoreError(f"{place}: expected a directory or nothing, found a file") from None
    lock = Lock(directory / LOCK_NAME)
    try:
        if generations(directory):
            raise StoreError(f"{directory}: there is a store already; open it with mode='a', or remove it")
        base = Manifest(
            dataset=new_identity(),
            generation=0,
            parent=None,
            write_id=new_identity(),
            length=0,
            fields=dict(schema.fields),
            numbers=dict(schema.numbers),
            chunk_bytes=size,
            chunk_records=records,
            next_chunk=0,
            chunks=(),
            segments=(),
            redirects=(),
        )
        return Writer(directory, base, lock, threads=threads, progress=progress, is_new=True)
    except BaseException:
        lock.close()
        raise


def append_to(path: str | os.PathLike[str], *, threads: int = 2, progress: Progress | None = None) -> Writer:
    """A writer on the newest generation of a store."""
    directory = Path(path)
    if not is_store(directory):
        load_manifest(directory)  # raises, and says why
    lock = Lock(directory / LOCK_NAME)
    try:
        return Writer(directory, load_manifest(directory), lock, threads=threads, progress=progress)
    except BaseException:
        lock.close()
        raise
