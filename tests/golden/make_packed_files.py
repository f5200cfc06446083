"""Writes tests/golden/foreign/{mds,lines,items}: small shards of MosaicML Streaming and chunks of LitData, made by these packages.

::

    python -m tests.golden.make_packed_files            say whether the files are what the packages write, change nothing
    python -m tests.golden.make_packed_files --force    write them anew

It needs an environment with mosaicml-streaming and litdata, of which only the writers are used: ``make token-packages`` makes one.
The tests read the files, and compare with :func:`sample` and :func:`item`.
"""

import decimal
import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.golden.make_token_files import bare, compare

N = 23
FEW = 7
"""Samples of the compressed ones."""

ENCODINGS = {
    "array": "ndarray",
    "bytes": "bytes",
    "decimal": "str_decimal",
    "digits": "str_int",
    "f2": "float16",
    "f4": "float32",
    "f8": "float64",
    "float": "str_float",
    "grid": "ndarray:float32:2,3",
    "i1": "int8",
    "i2": "int16",
    "i4": "int32",
    "i8": "int64",
    "int": "int",
    "jpeg": "jpeg",
    "json": "json",
    "pil": "pil",
    "png": "png",
    "text": "str",
    "tokens": "ndarray:uint16",
    "u1": "uint8",
    "u2": "uint16",
    "u4": "uint32",
    "u8": "uint64",
}


def pixels(i: int) -> np.ndarray:
    """Of a small picture."""
    return np.random.default_rng(i).integers(0, 256, (3 + i % 4, 5, 3), np.uint8)


def sample(i: int) -> dict[str, Any]:
    """What a record of the MDS shards has, as penstock gives it."""
    picture = pixels(i)
    height, width = picture.shape[:2]
    numbers = {f"{kind}{size}": np.dtype(f"{kind}{size}").type(i) for kind in "iu" for size in (1, 2, 4, 8)}
    numbers |= {f"f{size}": np.dtype(f"f{size}").type(i + 0.25) for size in (2, 4, 8)}
    values = {
        "array": np.arange((1 + i % 3) * 300, dtype=np.int32).reshape(1 + i % 3, 300) - i,
        "bytes": bytes(range(i)),
        "decimal": f"{i}.50",
        "digits": str(10**i),
        "float": str(i / 8),
        "grid": np.arange(6, dtype=np.float32).reshape(2, 3) * i,
        "int": np.int64(-i),
        "jpeg": b"\xff\xd8" + bytes(i % 5),
        "json": json.dumps({"i": i, "list": [i, None]}),
        "pil": struct.pack("<3I", width, height, 3) + b"RGB" + picture.tobytes(),
        "png": b"\x89PNG" + bytes(i % 3),
        "text": "é" * (i % 6) + str(i),
        "tokens": np.arange(1 + 17 * i, dtype=np.uint16),
        **numbers,
    }
    return {name: values[name] for name in ENCODINGS}


def written(i: int) -> dict[str, Any]:
    """The same, as the writer takes it."""
    from PIL import Image

    made = sample(i)
    made |= {"decimal": decimal.Decimal(made["decimal"]), "digits": int(made["digits"]), "float": float(made["float"])}
    return made | {"int": -i, "json": json.loads(made["json"]), "pil": Image.fromarray(pixels(i))}


def mds(folder: Path) -> None:
    """Shards of all encodings, the same few samples with every compression, two directories merged, and a column of pickles."""
    bare("streaming")
    bare("streaming.base")
    sys.modules["streaming.base"].MDSWriter = None  # type: ignore[attr-defined]
    from streaming.base.format.mds.writer import MDSWriter

    def write(name: str, columns: dict[str, str], samples: Any, **options: Any) -> None:
        with MDSWriter(out=str(folder / name), columns=columns, **options) as writer:
            for one in samples:
                writer.write(one)

    write("plain", ENCODINGS, (written(i) for i in range(N)), size_limit=20_000)
    for compression in ("zstd:7", "gz", "bz2", "br", "snappy"):
        name = compression.partition(":")[0]
        hashes = ["sha1"] if name == "zstd" else []  # those of gz depend on the time
        write(name, ENCODINGS, (written(i) for i in range(FEW)), size_limit=8_000, compression=compression, hashes=hashes)
    write("pickle", {"x": "int", "y": "pkl"}, ({"x": i, "y": [i]} for i in range(3)))
    write("fixed", {"x": "int", "y": "ndarray:int16:4"}, ({"x": i, "y": np.arange(4, dtype=np.int16) + i} for i in range(N)))


def line(i: int) -> dict[str, Any]:
    """What a record of MosaicML's shards of lines has. Cells may have anything but what is between them."""
    return {"n": np.int64((-1) ** i * 7**i), "text": '"é"\r' * (i % 3) + str(i), "x": np.float64(i / 8)}


LINE_COLUMNS = {"n": "int", "text": "str", "x": "float"}


def lines(folder: Path) -> None:
    """The same samples as lines of JSON, CSV, TSV, and with a separator of two letters, plain and compressed."""
    bare("streaming")
    bare("streaming.base")
    sys.modules["streaming.base"].MDSWriter = None  # type: ignore[attr-defined]
    from streaming.base.format.json.writer import JSONWriter
    from streaming.base.format.xsv.writer import CSVWriter, TSVWriter, XSVWriter

    def write(name: str, writer: Any, **options: Any) -> None:
        with writer(out=str(folder / name), columns=LINE_COLUMNS, size_limit=300, **options) as made:
            for i in range(N):
                made.write({"n": int(line(i)["n"]), "text": line(i)["text"], "x": float(line(i)["x"])})

    for name, writer in (("json", JSONWriter), ("csv", CSVWriter), ("tsv", TSVWriter)):
        write(name, writer)
        write(f"{name}-zstd", writer, compression="zstd:7")
    write("xsv", XSVWriter, separator="::", newline="\r\n;")


def item(i: int) -> dict[str, Any]:
    """What a record of the LitData chunks has, as penstock gives it."""
    return {
        "bytes": bytes(range(i)),
        "nested.flag": np.bool_(i % 2 == 0),
        "nested.float": np.float64(i / 8),
        "nested.number": np.int64(i),
        "nested.text": "é" * (i % 6),
        "array": np.arange(2 * i, dtype=np.float32).reshape(2, i),
        "row": np.arange(i, dtype=np.int16),
        "scalar": np.float32(i),
        "tensor": np.arange(3 * i, dtype=np.int64).reshape(i, 1, 3),
        "vector": np.arange(i, dtype=np.float64),
    }


def row(i: int) -> dict[str, Any]:
    """A row of nested values."""
    return {
        "id": i,
        "chat": {"role": "é" * (i % 3), "scores": [j / 4 for j in range(i % 4)]},
        "label": None if i % 5 == 0 else i % 2,
    }


NESTED: list[Any] = [
    [],
    {},
    ["é", "", "texts"],
    [1, -(2**63), 2**63 - 1],
    [0.5, -1e300],
    [True, False],
    [2**64, 1],
    [1, "mixed", None, [[]]],
    {"a": {"b": [{"c": 1}]}, "": None, "text": "é", "int": -7, "float": 0.25, "flag": True},
    [{"role": "user", "n": 1, "x": 0.5, "ok": True, "no": None}, {"role": "é", "n": -1, "x": 2.0, "ok": False, "no": "now"}],
    [{"role": "user"}, {"content": 1}],
    "text",
    12,
    1.5,
    False,
    None,
]
"""Lists and dicts of every form that LitData has for them."""


def nested(i: int) -> dict[str, Any]:
    """What a record with a nested leaf has, as penstock gives it."""
    value = json.dumps(NESTED[i % len(NESTED)], ensure_ascii=False, separators=(",", ":"))
    return {"n": np.int64(i), "x": np.arange(i, dtype=np.float32), "chat": value}


def yielded(i: int) -> dict[str, Any]:
    """The same, as the function of a user yields it."""
    import torch

    made = item(i)
    return {
        "bytes": made["bytes"],
        "nested": {
            "flag": bool(made["nested.flag"]),
            "float": float(made["nested.float"]),
            "number": int(made["nested.number"]),
            "text": made["nested.text"],
        },
        "array": made["array"],
        "row": made["row"],
        "scalar": torch.tensor(made["scalar"]),
        "tensor": torch.from_numpy(made["tensor"]),
        "vector": torch.from_numpy(made["vector"]),
    }


def items(folder: Path) -> None:
    """Chunks of nested items, the same compressed as a whole and in batches, single leaves, rows and pickles;
    leaves that are lists and dicts, and graphs.
    """
    import torch
    from litdata.streaming.serializers import Graph, JsonLeaf
    from litdata.streaming.writer import BinaryWriter

    def write(name: str, some: Any, **options: Any) -> None:
        writer = BinaryWriter(str(folder / name), **options)
        for number, one in enumerate(some):
            writer[number] = one
        writer.done()
        writer.merge()

    def with_leaf(i: int) -> dict[str, Any]:
        return {"n": i, "x": np.arange(i, dtype=np.float32), "chat": JsonLeaf(NESTED[i % len(NESTED)])}

    def with_graph(i: int) -> dict[str, Any]:
        return {"n": i, "graph": Graph(x=torch.ones(2, i), edge_index=torch.zeros(2, 3, dtype=torch.int64))}

    write("nested", map(with_leaf, range(N)), chunk_size=9)
    write("graph", map(with_graph, range(3)), chunk_size=3)
    write("plain", map(yielded, range(N)), chunk_bytes=3_000)
    write("zstd", map(yielded, range(N)), chunk_bytes=3_000, compression="zstd", compression_level="chunk")
    write("batches", map(yielded, range(FEW)), chunk_bytes=3_000, compression="zstd")
    write("batches-of-3", map(yielded, range(N)), chunk_bytes=6_000, compression="zstd", compression_batch_size=3)
    write("samples", map(yielded, range(FEW)), chunk_bytes=3_000, compression="zstd", compression_level="sample")
    write("rows", ({"text": "x" * i, "id": i} for i in range(FEW)), chunk_size=3)
    write("nested-rows", map(row, range(600)), chunk_size=300, compression="zstd")
    write("texts", (f"text {i}" for i in range(FEW)), chunk_size=3)
    write("pickle", ({"x": i, "y": {i}} for i in range(3)), chunk_size=3)


WRITERS: dict[str, Callable[[Path], None]] = {"mds": mds, "lines": lines, "items": items}


if __name__ == "__main__":
    compare(WRITERS)
