"""convert: any records into a new store, with other codecs, chunk sizes or fewer fields."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.codec import Codec, Raw
from penstock.schema import Field
from penstock.store.column import guess_field
from penstock.store.create import DEFAULT_CHUNK_BYTES, DEFAULT_CHUNK_RECORDS, create
from penstock.store.maintenance import READ_BYTES, batches
from penstock.store.snapshot import Store
from penstock.store.writer import Progress

__all__ = ["convert"]


def convert(
    source: Store | Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    fields: Sequence[str] | None = None,
    codec: Codec | Mapping[str, Codec] | None = None,
    chunk_bytes: int | str = DEFAULT_CHUNK_BYTES,
    chunk_records: int = DEFAULT_CHUNK_RECORDS,
    threads: int = 2,
    progress: Progress | None = None,
) -> None:
    """Write a new store from another one, or from a dict of arrays, lists and :class:`~penstock.Ragged`.

    ``fields`` picks some of them; ``codec`` is one for all, or a dict for some. ``progress(records, bytes)`` is called
    after every chunk.
    """
    schema = dict(source.schema) if isinstance(source, Store) else {name: guess_field(name, data) for name, data in source.items()}
    chosen = list(schema) if fields is None else list(fields)
    unknown = [name for name in [*chosen, *(codec if isinstance(codec, Mapping) else {})] if name not in schema]
    if unknown:
        raise ValueError(f"unknown fields {unknown}; the source has {list(schema)}")
    made = {name: _with_codec(schema[name], codec.get(name) if isinstance(codec, Mapping) else codec) for name in chosen}
    options = {"chunk_bytes": chunk_bytes, "chunk_records": chunk_records}
    with create(path, made, threads=threads, progress=progress, **options) as out:  # type: ignore[arg-type]
        if isinstance(source, Store):
            for low, high in batches(source):
                out.extend_columns(source.columns(slice(low, high), chosen))
        else:
            _write_arrays(out, {name: source[name] for name in chosen})


def _write_arrays(out: Any, columns: Mapping[str, Any]) -> None:
    """Arrays in slices, so that a memory-mapped array is never read whole; everything else at once."""
    if not all(isinstance(data, np.ndarray) for data in columns.values()):
        out.extend(columns)
        return
    lengths = {name: len(data) for name, data in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"all fields must have the same number of records, got {lengths}")
    rows = next(iter(lengths.values()))
    step = max(1, READ_BYTES * 8 // max(1, sum(data.nbytes // max(1, rows) for data in columns.values())))
    for low in range(0, rows, step):
        out.extend({name: data[low : low + step] for name, data in columns.items()})


def _with_codec(field: Field, codec: Codec | None) -> Field:
    chosen = field.codec if codec is None else codec
    if field.kind == "fixed":
        return Field(field.dtype, field.shape, codec=chosen)
    if field.kind == "ragged":
        return Field.ragged(field.dtype, field.ndim, codec=chosen)
    return (Field.text if field.kind == "text" else Field.bytes)(codec=chosen or Raw())
