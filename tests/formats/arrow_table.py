"""A table with every kind of column that can be a field, and its records."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

Record = dict[str, Any]

N = 31


def column(kind: pa.DataType, value: Any, missing: int = 0) -> pa.Array:
    """``value(i)`` of every record; every ``missing``-th is missing."""
    return pa.array([None if missing and i % missing == 1 else value(i) for i in range(N)], kind)


def tensors() -> pa.Array:
    kind = pa.fixed_shape_tensor(pa.int16(), (2, 3))
    return pa.ExtensionArray.from_storage(kind, column(kind.storage_type, lambda i: list(range(i, i + 6)), 6))


def table() -> pa.Table:
    """Every kind of column that can be a field, most of them with missing values."""
    struct_type = pa.struct({"bytes": pa.binary(), "path": pa.string(), "size": pa.struct({"width": pa.uint8()})})
    return pa.table(
        {
            "label": column(pa.int64(), lambda i: i * i),
            "small": column(pa.uint8(), lambda i: i, 5),
            "half": pa.array(np.arange(N, dtype=np.float16)),
            "flag": column(pa.bool_(), lambda i: i % 3 == 0, 7),
            "vector": column(pa.list_(pa.float32(), 3), lambda i: [i, i + 0.5, -i], 4),
            "grid": column(pa.list_(pa.list_(pa.int32(), 2), 2), lambda i: [[i, 1], [2, 3]]),
            "flags": column(pa.list_(pa.bool_(), 3), lambda i: [i % 2 == 0, True, False], 9),
            "nothing": column(pa.list_(pa.int8(), 0), lambda i: []),
            "tensor": tensors(),
            "digest": column(pa.binary(4), lambda i: bytes([i] * 4), 3),
            "text": column(pa.string(), lambda i: "é" * (i % 4), 5),
            "long": column(pa.large_string(), lambda i: "word " * i),
            "raw": column(pa.large_binary(), lambda i: bytes([i] * (i % 5)), 6),
            "words": column(pa.list_(pa.int32()), lambda i: list(range(i % 6)), 5),
            "reals": column(pa.large_list(pa.float64()), lambda i: [i / 7] * (i % 3)),
            "bits": column(pa.list_(pa.bool_()), lambda i: [True, False, True][: i % 4]),
            "image": column(
                struct_type,
                lambda i: {"bytes": b"x" * (i % 3), "path": None if i % 2 else f"{i}.png", "size": {"width": i} if i % 4 else None},
                5,
            ),
            "name": column(pa.dictionary(pa.int8(), pa.string()), lambda i: ["ant", "bee", "", "éé"][i % 4], 6),
            "code": column(pa.dictionary(pa.uint16(), pa.int32()), lambda i: 1000 + i % 3, 4),
        }
    )


def record(i: int) -> Record:
    def missing(every: int, value: Any) -> Any:
        return None if i % every == 1 else value

    return {
        "label": np.int64(i * i),
        "small": missing(5, np.uint8(i)),
        "half": np.float16(i),
        "flag": missing(7, np.bool_(i % 3 == 0)),
        "vector": missing(4, np.array([i, i + 0.5, -i], np.float32)),
        "grid": np.array([[i, 1], [2, 3]], np.int32),
        "flags": missing(9, np.array([i % 2 == 0, True, False])),
        "nothing": np.empty(0, np.int8),
        "tensor": missing(6, np.arange(i, i + 6, dtype=np.int16).reshape(2, 3)),
        "digest": missing(3, np.full(4, i, np.uint8)),
        "text": missing(5, "é" * (i % 4)),
        "long": "word " * i,
        "raw": missing(6, bytes([i] * (i % 5))),
        "words": missing(5, np.arange(i % 6, dtype=np.int32)),
        "reals": np.full(i % 3, i / 7),
        "bits": np.array([True, False, True][: i % 4], np.bool_),
        "image.bytes": missing(5, b"x" * (i % 3)),
        "image.path": missing(5, None if i % 2 else f"{i}.png"),
        "image.size.width": missing(5, np.uint8(i) if i % 4 else None),
        "name": missing(6, ["ant", "bee", "", "éé"][i % 4]),
        "code": missing(4, np.int32(1000 + i % 3)),
    }


def write(path: Path | io.BytesIO, data: pa.Table, *, stream: bool = False, rows: int = 10, compression: str | None = None) -> None:
    opener = pa.ipc.new_stream if stream else pa.ipc.new_file
    target = path if isinstance(path, io.BytesIO) else str(path)
    with opener(target, data.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(data, max_chunksize=rows)
