"""Token files of other tools, built byte by byte from the descriptions of their formats."""

import gzip
import json
import struct
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

CODES = {"|u1": 1, "|i1": 2, "<i2": 3, "<i4": 4, "<i8": 5, "<f8": 6, "<f4": 7, "<u2": 8}

Documents = Sequence[np.ndarray]


def megatron_index(
    lengths: Sequence[int],
    dtype: np.dtype,
    *,
    pointers: Sequence[int] | None = None,
    documents: Sequence[int] | None = None,
    head: tuple[int, int] | None = None,
    code: int | None = None,
    version: int = 1,
) -> bytes:
    """The bytes of an .idx; ``head`` has counts that it says instead of the true ones."""
    if pointers is None:
        pointers = (np.cumsum([0, *lengths])[:-1] * dtype.itemsize).tolist()
    if documents is None:
        documents = range(len(lengths) + 1)
    counts = head or (len(lengths), len(documents))
    start = b"MMIDIDX\0\0" + struct.pack("<QBQQ", version, CODES.get(dtype.str, 0) if code is None else code, *counts)
    return start + np.array(lengths, "<i4").tobytes() + np.array(pointers, "<i8").tobytes() + np.array(documents, "<i8").tobytes()


def write_megatron(prefix: Path, documents: Documents) -> None:
    line = np.concatenate(documents)
    prefix.with_name(f"{prefix.name}.bin").write_bytes(line.tobytes())
    prefix.with_name(f"{prefix.name}.idx").write_bytes(megatron_index([len(one) for one in documents], line.dtype))


def write_olmo(path: Path, documents: Documents, *, tail: int = 0) -> None:
    """The last ``tail`` documents are not in the table."""
    path.write_bytes(np.concatenate(documents).tobytes())
    ends = np.cumsum([0, *(len(one) for one in documents)]).tolist()
    rows = list(pairwise(ends))
    lines = "".join(f"{low},{high},id-{i},corpus,{i}\n" for i, (low, high) in enumerate(rows[: len(rows) - tail]))
    path.with_suffix(".csv.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))


def write_datatrove(path: Path, documents: Documents, masks: Documents | None = None) -> None:
    path.write_bytes(np.concatenate(documents).tobytes())
    ends = np.cumsum([len(one) for one in documents])
    path.with_name(f"{path.name}.index").write_bytes(ends.astype("<u8").tobytes())
    if masks is not None:
        path.with_name(f"{path.name}.loss").write_bytes(np.concatenate(masks).astype(np.bool_).tobytes())


def litdata_chunk(documents: Documents) -> bytes:
    ends = np.cumsum([4 * (len(documents) + 2), *(one.nbytes for one in documents)]).astype("<u4")
    return struct.pack("<I", len(documents)) + ends.tobytes() + b"".join(one.tobytes() for one in documents)


def litdata_index(chunks: Sequence[Documents], data_format: str, **config: object) -> bytes:
    told = [
        {
            "filename": f"chunk-0-{number}.bin",
            "chunk_bytes": len(litdata_chunk(documents)),
            "chunk_size": len(documents),
            "dim": sum(map(len, documents)),
        }
        for number, documents in enumerate(chunks)
    ]
    plain = {"compression": None, "encryption": None, "item_loader": "TokensLoader", "data_format": [data_format]}
    return json.dumps({"chunks": told, "config": plain | config}).encode()


def write_litdata(directory: Path, chunks: Sequence[Documents], data_format: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for number, documents in enumerate(chunks):
        (directory / f"chunk-0-{number}.bin").write_bytes(litdata_chunk(documents))
    (directory / "index.json").write_bytes(litdata_index(chunks, data_format))


def write_llm_c(path: Path, tokens: np.ndarray) -> None:
    magic, version = (20240520, 1) if tokens.itemsize == 2 else (20240801, 7)
    header = struct.pack("<3i", magic, version, len(tokens))
    path.write_bytes(header.ljust(1024, b"\0") + tokens.tobytes())
