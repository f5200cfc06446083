"""The chunks of a store: how large they are, and how much of them records still refer to."""

from typing import Any

from penstock.store.generation import load_redirects, storage_of
from penstock.store.reader import Store
from penstock.store.row_map import live_rows

__all__ = ["MOST_CHUNKS", "chunk_map"]

MOST_CHUNKS = 2000
"""So many chunks are shown, from the first on."""


def chunk_map(store: Store) -> dict[str, Any]:
    """One entry a chunk. Of fields with records of varying size, live bytes are taken in proportion to rows."""
    manifest = store.manifest
    rows = live_rows(manifest, load_redirects(store.path, manifest))
    shown = manifest.chunks[:MOST_CHUNKS]
    found = []
    for chunk, fields in zip(shown, storage_of(store.path).each(store.chunks.chunk_fields, range(len(shown))), strict=True):
        live = sum(size * rows.get((chunk.number, number), 0) // max(1, chunk.rows) for number, size, _ in fields)
        full = max(chunk.decoded / manifest.chunk_bytes, chunk.rows / manifest.chunk_records)
        stored = sum(size for _, size, _ in fields)
        found.append({"number": chunk.number, "rows": chunk.rows, "stored": stored, "live": live, "full": round(min(1.0, full), 3)})
    return {
        "generation": store.generation,
        "chunks": found,
        "total": len(manifest.chunks),
        "stored": sum(entry["stored"] for entry in found),
        "live": sum(entry["live"] for entry in found),
        "chunk_bytes": manifest.chunk_bytes,
        "redirects": len(manifest.redirects),
    }
