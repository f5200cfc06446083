"""Making a store, and opening one for writing."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.argument import byte_size, set_whole, whole_number
from penstock.errors import StoreError
from penstock.remote.url import UrlPath
from penstock.schema import Field, Schema
from penstock.store.format import MANIFEST_DIRECTORY, Location, as_location, new_identity
from penstock.store.generation import generations, load_manifest, storage_of
from penstock.store.manifest import Manifest
from penstock.store.manifest_json import encode_metadata
from penstock.store.writer import Progress, Writer

__all__ = ["Layout", "append_to", "begin_store", "create"]

DEFAULT_CHUNK_BYTES = "64MiB"
DEFAULT_CHUNK_RECORDS = 2**24


def create(
    path: str | os.PathLike[str] | UrlPath,
    fields: Mapping[str, Field],
    *,
    chunk_bytes: int | str = DEFAULT_CHUNK_BYTES,
    chunk_records: int = DEFAULT_CHUNK_RECORDS,
    threads: int = 2,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    single_writer: bool = False,
    metadata: Mapping[str, Any] | None = None,
) -> Writer:
    """Make a new store and return its writer. Nothing is published before the first commit.

    Fields with ``nullable=True`` may miss values; any other field becomes nullable with the first commit in which one is missing.
    ``metadata`` is a small JSON object about the data (class names, tokenizer, origin), which ``open(path).metadata`` gives back.

    ``path`` may be the URL of an object store; ``storage_options`` are then credentials, region and endpoint. A server that
    cannot create an object only if it is absent is refused, unless ``single_writer`` promises that there is no other writer.

    >>> import tempfile, penstock as pen
    >>> path = tempfile.mkdtemp() + "/train.pen"
    >>> with pen.create(path, {"x": pen.Field("f4", (3,)), "caption": pen.Field.text()}) as out:
    ...     out.extend({"x": [[1, 2, 3], [4, 5, 6]], "caption": ["one", "two"]})
    range(0, 2)
    >>> pen.open(path)[1]["caption"]
    'two'
    """
    layout = Layout(chunk_bytes, chunk_records)
    return begin_store(
        as_location(path, storage_options),
        fields,
        layout,
        dataset=new_identity(),
        threads=threads,
        progress=progress,
        single_writer=single_writer,
        metadata=metadata,
    )


@dataclass(frozen=True)
class Layout:
    """When a chunk is full: its decoded bytes, or its records, whichever comes first."""

    chunk_bytes: int | str = DEFAULT_CHUNK_BYTES
    chunk_records: int = DEFAULT_CHUNK_RECORDS

    def __post_init__(self) -> None:
        object.__setattr__(self, "chunk_bytes", byte_size("chunk_bytes", self.chunk_bytes, least=4096))
        set_whole(self, "chunk_records", least=1, most=2**32 - 1)

    @property
    def size(self) -> int:
        """The bytes as a number."""
        return int(self.chunk_bytes)


def begin_store(
    location: Location,
    fields: Mapping[str, Field],
    layout: Layout,
    *,
    dataset: str,
    threads: int = 2,
    progress: Progress | None = None,
    single_writer: bool = False,
    metadata: Mapping[str, Any] | None = None,
) -> Writer:
    """The writer of a new store with an identity that is known already: chunks of it may have been written before."""
    schema, text = Schema.make(fields), encode_metadata(metadata or {})
    whole_number("threads", threads, least=1, most=256)
    storage = storage_of(location)
    storage.prepare()
    claim = storage.claim(single_writer=single_writer)
    try:
        if generations(storage):
            raise StoreError(f"{location}: there is a store already; open it with mode='a', or remove it")
        base = Manifest(
            dataset=dataset,
            generation=0,
            parent=None,
            write_id=new_identity(),
            length=0,
            fields={name: field.with_nullable(False) for name, field in schema.fields.items()},
            numbers=dict(schema.numbers),
            chunk_bytes=layout.size,
            chunk_records=layout.chunk_records,
            next_chunk=0,
            chunks=(),
            segments=(),
            redirects=(),
            declared_nullable=frozenset(schema.numbers[name] for name, field in schema.fields.items() if field.nullable),
            found_nullable=frozenset(),
            metadata=text,
        )
        return Writer(storage, base, claim, threads=threads, progress=progress, is_new=True)
    except BaseException:
        claim.close()
        raise


def append_to(
    path: str | os.PathLike[str] | UrlPath,
    *,
    threads: int = 2,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    single_writer: bool = False,
) -> Writer:
    """A writer on the newest generation of a store; ``storage_options`` and ``single_writer`` are those of :func:`create`."""
    location = as_location(path, storage_options)
    storage = storage_of(location)
    storage.names(MANIFEST_DIRECTORY)  # raises where there is no store, before a lock is made there
    claim = storage.claim(single_writer=single_writer)
    try:
        return Writer(storage, load_manifest(storage), claim, threads=threads, progress=progress)
    except BaseException:
        claim.close()
        raise
