"""MDS shards and LitData chunks, built byte by byte from the descriptions of their formats."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Values = Sequence[bytes]


def packed(records: Sequence[bytes], between: bytes = b"") -> bytes:
    """A file: the number of records, their table, and the records."""
    first = 4 + 4 * (len(records) + 1) + len(between)
    offsets = np.cumsum([first, *map(len, records)])
    return np.uint32(len(records)).tobytes() + offsets.astype("<u4").tobytes() + between + b"".join(records)


def record(values: Values, told: Sequence[bool]) -> bytes:
    """The sizes of values that have none of their own, and the values."""
    sizes = [len(value) for value, is_told in zip(values, told, strict=True) if is_told]
    return np.array(sizes, "<u4").tobytes() + b"".join(values)


def mds_shard(columns: Mapping[str, tuple[str, int | None]], rows: Sequence[Values], name: str) -> tuple[bytes, dict[str, Any]]:
    """The bytes of a shard, and what the index says of it."""
    told = [size is None for _, size in columns.values()]
    about = {
        "column_encodings": [encoding for encoding, _ in columns.values()],
        "column_names": list(columns),
        "column_sizes": [size for _, size in columns.values()],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": 1 << 26,
        "version": 2,
    }
    raw = packed([record(row, told) for row in rows], json.dumps(about, sort_keys=True).encode())
    file = {"basename": name, "bytes": len(raw), "hashes": {}}
    return raw, {**about, "raw_data": file, "samples": len(rows), "zip_data": None}


def write_mds(folder: Path, columns: Mapping[str, tuple[str, int | None]], shards: Sequence[Sequence[Values]]) -> Path:
    """A directory of shards."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = []
    for number, rows in enumerate(shards):
        raw, about = mds_shard(columns, rows, f"shard.{number:05}.mds")
        (folder / f"shard.{number:05}.mds").write_bytes(raw)
        listed.append(about)
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": listed}))
    return folder


def tree(keys: Sequence[str]) -> str:
    """A dict of leaves as torch writes it."""
    leaf = {"type": None, "context": None, "children_spec": []}
    return json.dumps([1, {"type": "builtins.dict", "context": json.dumps(keys), "children_spec": [leaf] * len(keys)}])


def items_index(leaves: Mapping[str, str], chunks: Mapping[str, int], **config: Any) -> bytes:
    """The index of chunks of items."""
    about = {"compression": None, "encryption": None, "item_loader": "PyTreeLoader", "data_format": list(leaves.values())}
    about |= {"data_spec": tree(list(leaves))} | config
    listed = [{"filename": name, "chunk_bytes": 0, "chunk_size": items, "dim": None} for name, items in chunks.items()]
    return json.dumps({"chunks": listed, "config": about}).encode()


def write_items(folder: Path, leaves: Mapping[str, str], chunks: Sequence[Sequence[Values]], **config: Any) -> Path:
    """A directory of chunks."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(chunks):
        (folder / f"chunk-0-{number}.bin").write_bytes(packed([record(row, [True] * len(row)) for row in rows]))
    names = {f"chunk-0-{number}.bin": len(rows) for number, rows in enumerate(chunks)}
    (folder / "index.json").write_bytes(items_index(leaves, names, **config))
    return folder
