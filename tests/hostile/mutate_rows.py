"""Damaged .npy, .shard, .rox and .safetensors files, tables of token files and of saved data sets, TFRecord files, tar archives,
shards and chunks: the records they had, other values where values were damaged, or an error with the path.

    python -m tests.hostile.mutate_rows --count N [--kind npy|shard|rox|idx|...] [--url]

Mutants are made by lot: flipped bytes, cuts, inserted, deleted and zeroed extents, numbers at the edges of their ranges, edits of
the text of headers. They are opened and read in forked children with a limit of address space and a deadline. Where a format has
checksums, half of the mutants, and all of tf.Example, get them anew. Otherwise bytes of data that are flipped are other values.
What may not happen is a crash, a hang, an error that is not penstock's or does not name the file, an allocation beyond reason, or
values that are not bytes of the file.
"""

import argparse
import gzip
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from safetensors.numpy import save
from tests.formats import shards, token_files
from tests.formats.energon_files import prepare
from tests.formats.packed_files import items_index, mds_shard, packed, record
from tests.hostile import file_changer
from tests.remote.double import Double
from tests.sanitized import limit_address_space

import penstock as pen
from penstock.errors import PenstockError
from penstock.formats import rows, tokens
from penstock.formats.huggingface import open_saved
from penstock.formats.lance import open_lance
from penstock.formats.litdata import open_litdata
from penstock.formats.mds import open_mds
from penstock.formats.zarr import open_zarr
from penstock.records import Source
from penstock.remote.url import url_path
from penstock.remote.window import RemoteOptions


@dataclass(frozen=True)
class Target:
    """What is opened where it is not the damaged file itself, how, and the good files next to that."""

    opened: str
    options: Mapping[str, Any] = field(default_factory=dict)
    others: Callable[[], Mapping[str, bytes]] = dict
    open: Callable[..., Source] = pen.open


KINDS = (
    *("npy", "shard", "rox", "idx", "idx scattered", "idx documents", "idx modes", "llm.c"),
    *("ds.index", "ds.metadata", "ds.metadata and index", "ds.loss", "csv.gz", "bin", "json"),
    *("tfrecord", "example", "tar"),
    *("safetensors", "state.json", "indices.arrow"),
    *("tgz", "energon", "energon tar", "lines", "lines meta", "lines index", "lines zstd"),
    *("mds", "mds index", "mds zstd", "items", "items index", "items zstd", "items batches", "items samples", "rows"),
    *("zarray", "zarr chunk", "lance"),
)
EXAMPLE = {"data": pen.Field.bytes(), "label": pen.Field("i8"), "box": pen.Field.ragged("f4"), "codes": pen.Field.ragged("i8")}
TARGETS = {
    "idx": Target("a.idx", {}, lambda: {"a.bin": tokens_image()}),
    "idx scattered": Target("a.idx", {"scattered": True}, lambda: {"a.bin": tokens_image()}),
    "idx documents": Target("a.idx", {"records": "document"}, lambda: {"a.bin": tokens_image()}),
    "idx modes": Target("a.idx", {}, lambda: {"a.bin": tokens_image()}),  # of multimodal data, which is refused
    "llm.c": Target("a.bin", {"block_size": 32}),
    "ds.index": Target("a.ds", {}, lambda: {"a.ds": tokens_image()}),
    "ds.metadata": Target("a.ds", {"block_size": 32}, lambda: {"a.ds": tokens_image()}),
    "ds.metadata and index": Target("a.ds", {}, lambda: {"a.ds": tokens_image(), "a.ds.index": image("ds.index")}),
    "ds.loss": Target("a.ds", {}, lambda: {"a.ds": tokens_image(), "a.ds.index": image("ds.index")}),
    "csv.gz": Target("a.npy", {"documents": True, "dtype": "uint16"}, lambda: {"a.npy": tokens_image()}),
    "bin": Target("", {}, lambda: {"index.json": image("json")}),
    "json": Target("", {}, lambda: {"a.bin": image("bin")}, open_litdata),  # a directory without a good one is a folder of files
    "tfrecord": Target("a.tfrecord"),
    "example": Target("a.tfrecord", {"decode": "example", "schema": EXAMPLE}),
    "tar": Target("a.tar"),
}


def open_without_io(path: Path, *, io: str, threads: int) -> Source:
    """What has to be opened by Arrow."""
    return open_saved(path, threads=threads)


TARGETS["state.json"] = Target("", {}, lambda: {"dataset_info.json": b"{}", "a.arrow": stream_image()}, open_without_io)
TARGETS["indices.arrow"] = Target(
    "",
    {},
    lambda: {"dataset_info.json": b"{}", "a.arrow": stream_image(), "state.json": state_image(indices=True)},
    open_without_io,
)


def open_zarr_plain(path: Path, *, io: str, threads: int) -> Source:
    """What has to be opened by tensorstore."""
    return open_zarr(path, threads=threads)


def open_lance_around(path: Path, *, io: str, threads: int) -> Source:
    """A data set with a data file that is damaged."""
    place = path / "data"
    for name, content in lance_images().items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes((path / "a.lance").read_bytes() if name.endswith(".lance") else content)
    return open_lance(place, threads=threads)


@cache
def lance_images() -> dict[str, bytes]:
    """The files of a data set, made by another process: this one forks."""
    code = "import sys, lance, pyarrow as pa; lance.write_dataset(pa.ipc.open_stream(sys.stdin.buffer).read_all(), sys.argv[1])"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", code, f"{folder}/a"], input=stream_image(), check=True)
        return {str(path.relative_to(f"{folder}/a")): path.read_bytes() for path in Path(folder, "a").rglob("*") if path.is_file()}


def open_rows(path: Path, *, io: str, threads: int) -> Source:
    """What has to be opened by Arrow."""
    return open_litdata(path, threads=threads)


def in_batches(level: str) -> dict[str, str]:
    return {"compression": "zstd", "compression_level": level}


def without(name: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {other: content for other, content in files.items() if other != name}


TARGETS["mds"] = Target("", {}, lambda: {"index.json": image("mds index")})
TARGETS["mds index"] = Target("", {}, lambda: {"a.mds": image("mds")}, open_mds)
TARGETS["mds zstd"] = Target("", {}, lambda: {"index.json": mds_images(True)["index.json"]})
TARGETS["items"] = Target("", {}, lambda: {"index.json": image("items index")})
TARGETS["items index"] = Target("", {}, lambda: {"a.bin": image("items")}, open_litdata)
TARGETS["items zstd"] = Target("", {}, lambda: {"index.json": items_index(LEAVES, {"a.bin": 50}, compression="zstd")})
TARGETS["items batches"] = Target("", {}, lambda: {"index.json": items_index(LEAVES, {"a.bin": 50}, **in_batches("batch"))})
TARGETS["items samples"] = Target("", {}, lambda: {"index.json": items_index(LEAVES, {"a.bin": 50}, **in_batches("sample"))})
TARGETS["rows"] = Target("", {}, lambda: {"index.json": items_index({"x": "bytes"}, {"a.bin": 50})}, open_rows)
TARGETS["tgz"] = Target("a.tgz")
INFO = {".nv-meta/.info.json": b'{"shard_counts": {"a.tar": 50}}'}
TARGETS["energon"] = Target("a.tar", {}, lambda: INFO | {"a.tar": image("energon tar")})
TARGETS["energon tar"] = Target("a.tar", {}, lambda: energon_images())
TARGETS["lines"] = Target("", {}, lambda: without("a.json", line_images(False)), open_mds)
TARGETS["lines meta"] = Target("", {}, lambda: without("a.meta", line_images(False)), open_mds)
TARGETS["lines index"] = Target("", {}, lambda: without("index.json", line_images(False)), open_mds)
TARGETS["lines zstd"] = Target("", {}, lambda: without("a.json.zstd", line_images(True)), open_mds)
TARGETS["zarray"] = Target("", {}, lambda: {"0.0": image("zarr chunk")}, open_zarr_plain)
TARGETS["zarr chunk"] = Target("", {}, lambda: {".zarray": image("zarray")}, open_zarr_plain)
TARGETS["lance"] = Target("", {}, dict, open_lance_around)
NAMES = {"zarray": ".zarray", "zarr chunk": "0.0"}
NAMES |= {"mds": "a.mds", "mds index": "index.json", "mds zstd": "a.mds.zstd"}
NAMES |= {"items": "a.bin", "items index": "index.json", "items zstd": "a.bin"}
NAMES |= {"items batches": "a.bin", "items samples": "a.bin", "rows": "a.bin"}
NAMES |= {"energon": ".nv-meta/index.sqlite", "energon tar": "a.tar"}
NAMES |= {"lines": "a.json", "lines meta": "a.meta", "lines index": "index.json", "lines zstd": "a.json.zstd"}
NAMES |= {"json": "index.json", "llm.c": "a.bin", "example": "a.tfrecord", "ds.metadata and index": "a.ds.metadata"}
NAMES |= {kind: kind for kind in ("state.json", "indices.arrow")}
NAMES |= {kind: "a.idx" for kind in KINDS if kind.startswith("idx ")}
FRESH = ("zarray", "zarr chunk", "lance")
"""Kinds that are read by packages that a forked process cannot use if its parent has."""

AT_URLS = tuple(
    kind for kind in KINDS if TARGETS.get(kind, Target("")).open in (pen.open, open_mds, open_litdata) and "energon" not in kind
)
"""Kinds that are read at URLs where they are, and not as copies. (zarr: tests/remote.)"""

UNSEEN = (
    "mds zstd",
    "items zstd",
    "items batches",
    "items samples",
    "tgz",
    "lines",
    "lines meta",
    "lines zstd",
    "zarray",
    "zarr chunk",
    "lance",
)
"""Kinds whose values are not in the files as they are read."""

CHILD_BYTES = 1 << 30
"""What a child may take of address space beyond what it has; mutants have a few kilobytes."""

DEADLINE_S = 300
GROUP = 200
"""Mutants of one child."""

EDGES = [
    edge + step
    for edge in (0, 1 << 7, 1 << 15, 1 << 16, 1 << 31, 1 << 32, 1 << 60, 1 << 61, 1 << 62, 1 << 63)
    for step in (-1, 0, 1)
]
WORDS = [
    b"True",
    b"False",
    b"None",
    b"-1",
    b"0",
    b"99999999999999999999",
    b"(",
    b")",
    b",",
    b"'",
    b"{",
    b"}",
    b"|O",
    b"<f4",
    b">i8",
    b"V9",
]
WORDS += [b"__import__", b"1" * 40, b"(" * 60, b"\n", b"\0", b"\xff", b"1e9", b"0x10", b"1_0", b"'descr'", b"'shape'", b"[[[["]


def tokens_image() -> bytes:
    """The values as tokens."""
    return file_changer.values(1)[:50].tobytes()


def samples() -> list[dict[str, Any]]:
    """Records of tf.Example."""
    return [
        {"data": row.tobytes(), "label": np.int64(-n), "box": row[:3], "codes": np.arange(n % 5) * 300}
        for n, row in enumerate(file_changer.values(1)[:50])
    ]


def messages(data: bytes) -> list[bytes]:
    """The records of a TFRecord file, as far as it has them."""
    found, place = [], 0
    while place + 12 <= len(data):
        size = int.from_bytes(data[place : place + 8], "little")
        found.append(data[place + 12 : place + 12 + size])
        place += size + 16
    return found


def sealed(kind: str, data: bytes) -> bytes:
    """The same with checksums that are right, of as much as can be told."""
    if kind == "tfrecord":
        return shards.tfrecord(messages(data))
    blocks = [bytearray(data[low : low + 512]) for low in range(0, len(data), 512)]
    for block in blocks:
        if len(block) == 512 and block[257:262] == b"ustar":
            block[148:156] = b" " * 8
            block[148:156] = b"%06o\0 " % sum(block)
    return b"".join(blocks)


def stream_image() -> bytes:
    """The values in an Arrow stream."""
    data = file_changer.values(1)[:50]
    return arrow_stream("x", pa.FixedSizeListArray.from_arrays(pa.array(data.reshape(-1)), 16))


def arrow_stream(name: str, column: pa.Array) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([(name, column.type)])) as writer:
        writer.write_batch(pa.record_batch([column], [name]))
    return bytes(sink.getvalue())


def state_image(*, indices: bool = False) -> bytes:
    """What says which files a saved data set has."""
    state = {"_data_files": [{"filename": "a.arrow"}], "_split": None, "_format_kwargs": {}}
    return json.dumps(state | ({"_indices_data_files": [{"filename": "indices.arrow"}]} if indices else {})).encode()


MDS_COLUMNS: dict[str, tuple[str, int | None]] = {"a": ("ndarray", None), "s": ("str", None), "x": ("ndarray:float32:16", 64)}
LEAVES = {"a": "numpy", "s": "bytes", "x": "no_header_numpy:9"}


@cache
def mds_images(is_zipped: bool) -> dict[str, bytes]:
    """A shard of 50 samples, and its index."""
    data = file_changer.values(1)[:50]
    rows = [(bytes([34, 2 << 2, 2, 8]) + row.tobytes(), row.tobytes().hex().encode(), row.tobytes()) for row in data]
    raw, about = mds_shard(MDS_COLUMNS, rows, "a.mds")
    stored = compress_zstd(raw)
    if is_zipped:
        about |= {"compression": "zstd", "zip_data": {"basename": "a.mds.zstd", "bytes": len(stored)}}
    return {"shard": stored if is_zipped else raw, "index.json": json.dumps({"version": 2, "shards": [about]}).encode()}


@cache
def items_image() -> bytes:
    """A chunk of 50 items."""
    data = file_changer.values(1)[:50]
    heads = np.array([9, 2, 2, 8], "<u4").tobytes()
    rows = [(heads + row.tobytes(), row.tobytes(), row.tobytes()) for row in data]
    return packed([record(row, [True] * 3) for row in rows])


def batches_image() -> bytes:
    """The same chunk, with items that are compressed in batches of 20."""
    raw = items_image()
    offsets = np.frombuffer(raw, "<u4", 51, 4).astype(np.int64)
    bodies = [compress_zstd(raw[offsets[low] : offsets[min(50, low + 20)]]) for low in range(0, 50, 20)]
    head = struct.pack("<8sHHIII", b"LDFZ01\0\0", 1, 0, 50, 20, 3) + (offsets - offsets[0]).astype("<u4").tobytes()
    at, frames = len(head) + 24 * len(bodies), b""
    for number, body in enumerate(bodies):
        low, high = 20 * number, min(50, 20 * number + 20)
        frames += struct.pack("<IIQII", low, high - low, at, len(body), int(offsets[high] - offsets[low]))
        at += len(body)
    return head + frames + b"".join(bodies)


def samples_image() -> bytes:
    """The same chunk, with items that are compressed one by one."""
    raw = items_image()
    offsets = np.frombuffer(raw, "<u4", 51, 4).tolist()
    return packed([compress_zstd(raw[low:high]) for low, high in pairwise(offsets)])


def rows_image() -> bytes:
    """A chunk whose items are rows of an Arrow file."""
    column = pa.array([row.tobytes() for row in file_changer.values(1)[:50]])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, pa.schema([("x", column.type)])) as writer:
        writer.write_batch(pa.record_batch([column], ["x"]))
    ipc = sink.getvalue().to_pybytes()
    head = struct.pack("<I", 50) + struct.pack("<I", 4 * 52) * 51
    return head + ipc + struct.pack("<I", len(ipc)) + b"LDARW01\0"


@cache
def energon_images() -> dict[str, bytes]:
    """The index that Energon makes of the archive."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.tar").write_bytes(image("energon tar"))
        prepare(Path(folder), ["a.tar"])
        return {f".nv-meta/{name}": Path(folder, ".nv-meta", name).read_bytes() for name in ("index.sqlite", ".info.json")}


@cache
def line_images(is_zipped: bool) -> dict[str, bytes]:
    """A shard of 50 lines of JSON, its offsets, and its index."""
    lines = [(json.dumps({"t": row.tobytes().hex()}) + "\n").encode() for row in file_changer.values(1)[:50]]
    data, offsets = b"".join(lines), np.cumsum([0, *map(len, lines)]).astype("<u4")
    files = {"a.json": data, "a.meta": struct.pack("<I", 50) + offsets.tobytes() + b"{}"}
    shard = {"format": "json", "version": 2, "columns": {"t": "str"}, "newline": "\n", "samples": 50, "compression": None}
    for what, name in (("data", "a.json"), ("meta", "a.meta")):
        shard[f"raw_{what}"] = {"basename": name, "bytes": len(files[name])}
    if is_zipped:
        files = {f"{name}.zstd": compress_zstd(content) for name, content in files.items()}
        shard["compression"] = "zstd"
        stored = zip(("data", "meta"), files.items(), strict=True)
        shard |= {f"zip_{what}": {"basename": name, "bytes": len(content)} for what, (name, content) in stored}
    return files | {"index.json": json.dumps({"shards": [shard]}).encode()}


def compress_zstd(raw: bytes) -> bytes:
    return bytes(pa.compress(raw, codec="zstd", asbytes=True))


@cache
def image(kind: str) -> bytes:
    """A good file of 50 records of 16 values, or the table of one."""
    data = file_changer.values(1)[:50]
    documents = list(data.view("<u2"))
    if kind.startswith("idx"):
        documents_at = [*range(0, 51, 5), 50] if kind == "idx documents" else None
        modes = bytes(50) if kind == "idx modes" else b""
        return token_files.megatron_index([16] * 50, np.dtype("<f4"), documents=documents_at) + modes
    if kind == "llm.c":
        return struct.pack("<3i", 20240520, 1, 1600).ljust(1024, b"\0") + data.tobytes()
    if kind.startswith("ds.metadata"):
        return b"gpt2|2\n1600\n1.6 KT\n"
    if kind == "ds.loss":
        return bytes(number % 3 > 0 for number in range(1600))
    if kind == "ds.index":
        return (np.arange(1, 51) * 32).astype("<u8").tobytes()
    if kind == "csv.gz":
        return gzip.compress(b"".join(b"%d,%d,id\n" % (low, low + 32) for low in range(0, 1600, 32)), mtime=0)
    if kind == "bin":
        return token_files.litdata_chunk(documents)
    if kind == "json":
        return token_files.litdata_index([documents], "no_header_numpy:5").replace(b"chunk-0-0.bin", b"a.bin")
    if kind == "tfrecord":
        return shards.tfrecord([row.tobytes() for row in data])
    if kind == "example":
        return shards.tfrecord([shards.example(one) for one in samples()])
    if kind == "tgz":
        return gzip.compress(image("tar"), mtime=0)
    if kind == "energon":
        return energon_images()[".nv-meta/index.sqlite"]
    if kind.startswith("lines"):
        return line_images(kind == "lines zstd")[NAMES[kind]]
    if kind == "rows":
        return rows_image()
    if kind in ("items batches", "items samples"):
        return batches_image() if kind == "items batches" else samples_image()
    if kind in ("tar", "energon tar"):
        names = [("d" * 99 + "/" if n == 7 and kind == "tar" else "") + f"{n}.x" for n in range(50)]
        return shards.tar([(name, row.tobytes()) for name, row in zip(names, data, strict=True)])
    if kind == "zarray":
        about = {"shape": [50, 16], "chunks": [50, 16], "dtype": "<f4", "fill_value": 0, "order": "C", "filters": None}
        return json.dumps(about | {"compressor": {"id": "zlib", "level": 1}, "zarr_format": 2}).encode()
    if kind == "zarr chunk":
        return zlib.compress(data.tobytes())
    if kind == "lance":
        return next(content for name, content in lance_images().items() if name.endswith(".lance"))
    if kind.startswith("mds"):
        return mds_images(kind == "mds zstd")["index.json" if kind == "mds index" else "shard"]
    if kind == "items index":
        return items_index(LEAVES, {"a.bin": 50})
    if kind.startswith("items"):
        return compress_zstd(items_image()) if kind == "items zstd" else items_image()
    if kind == "safetensors":
        return save({"x": data, "y": data[:, 0].copy()})
    if kind == "state.json":
        return state_image()
    if kind == "indices.arrow":
        return arrow_stream("indices", pa.array(np.arange(50, dtype=np.uint64)))
    if kind == "shard":
        return rows.HEADER.pack(rows.MAGIC, 50, 16, 0, 0) + data.tobytes()
    if kind == "rox":
        ends = (np.arange(1, 51) * 64).astype("<i8")
        return data.tobytes() + ends.tobytes() + tokens.encode_footer(50, data.nbytes, data.dtype)
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "a.npy"), data)
        return Path(folder, "a.npy").read_bytes()


def structure(kind: str) -> range:
    """The bytes of a file that say how the others are to be read."""
    known = {
        "npy": range(128),
        "shard": range(32),
        "rox": range(len(image("rox")) - 32 - 50 * 8, len(image("rox"))),
        "bin": range(208),
        "llm.c": range(16),
        "safetensors": range(160),
        "mds": range(900),
        "items": range(700),
    }
    return known.get(kind, range(len(image(kind))))


def mutate(kind: str, rng: random.Random) -> bytes:
    """A damaged file; half of the damage is done where it matters most."""
    if kind == "example":
        found = messages(image(kind))
        place = rng.randrange(len(found))
        found[place] = mutate_bytes(found[place], range(len(found[place])), rng)
        return shards.tfrecord(found)
    data = mutate_bytes(image(kind), structure(kind), rng)
    return sealed(kind, data) if kind in ("tfrecord", "tar", "energon tar") and rng.random() < 0.5 else data


def mutate_bytes(good: bytes, places: range, rng: random.Random) -> bytes:
    data = bytearray(good)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        at = rng.choice(places) if rng.random() < 0.7 else rng.randrange(len(data) or 1)
        rng.choice(MUTATIONS)(data, min(at, len(data)), rng)
    return bytes(data)


def _flip(data: bytearray, at: int, rng: random.Random) -> None:
    data[at : at + 1] = bytes([rng.randrange(256)])


def _cut(data: bytearray, at: int, rng: random.Random) -> None:
    del data[at:]


def _delete(data: bytearray, at: int, rng: random.Random) -> None:
    del data[at : at + rng.choice([1, 4, 8, 64, 4096])]


def _insert(data: bytearray, at: int, rng: random.Random) -> None:
    data[at:at] = rng.randbytes(rng.choice([1, 4, 8, 64, 4096]))


def _clear(data: bytearray, at: int, rng: random.Random) -> None:
    size = min(rng.choice([1, 4, 8, 64, 4096]), len(data) - at)
    data[at : at + size] = bytes(size)


def _edge(data: bytearray, at: int, rng: random.Random) -> None:
    at -= at % 2
    value = struct.pack("<Q", rng.choice(EDGES) % 2**64)[: rng.choice([1, 2, 4, 8, 8])]
    if at + len(value) <= len(data):
        data[at : at + len(value)] = value


def _word(data: bytearray, at: int, rng: random.Random) -> None:
    word = rng.choice(WORDS)
    data[at : at + rng.choice([0, len(word)])] = word


MUTATIONS: list[Callable[[bytearray, int, random.Random], None]] = [_flip, _cut, _delete, _insert, _clear, _edge, _word]


def expected(kind: str) -> list[bytes]:
    """The values of the fields of a good file."""
    if kind == "example":
        return [b"".join(np.asarray(one[name]).tobytes() for one in samples()) for name in EXAMPLE]
    if kind.startswith("lines"):
        return ["".join(row.tobytes().hex() for row in file_changer.values(1)[:50]).encode()]
    if kind in ("tar", "tgz", "energon", "energon tar"):
        is_long = kind in ("tar", "tgz")
        return ["".join(("d" * 99 + "/" if n == 7 and is_long else "") + f"{n}" for n in range(50)).encode(), tokens_image()]
    if kind.startswith("mds"):
        texts = "".join(row.tobytes().hex() for row in file_changer.values(1)[:50]).encode()
        return [tokens_image(), texts, tokens_image()]
    if kind.startswith("items"):
        return [tokens_image()] * 3
    if kind == "safetensors":
        return [tokens_image(), file_changer.values(1)[:50, 0].tobytes()]
    return [tokens_image(), image("ds.loss")] if kind == "ds.loss" else [tokens_image()]


def is_in(value: Any, files: list[bytes]) -> bool:
    """Whether the bytes of a value, in either order, are in a file."""
    if value is None:
        return True
    if isinstance(value, str | bytes):
        value = np.frombuffer(value.encode() if isinstance(value, str) else value, np.uint8)
    swapped = value.byteswap().tobytes()
    return value.nbytes == 0 or any(value.tobytes() in file or swapped in file for file in files)


def opened(target: Target, folder: Path, io: str) -> Source:
    """The damaged data, on disk or, with ``io`` "url", as objects of a server on loopback that are those files."""
    if io != "url":
        return target.open(folder / target.opened, io=io, threads=1, **target.options)
    double = _double()
    double.state.objects.clear()
    for file in folder.rglob("*"):
        if file.is_file():
            double.put(f"{folder.name}/{file.relative_to(folder)}", file.read_bytes())
    url = f"{double.base}/{folder.name}" + (f"/{target.opened}" if target.opened else "")
    if target.open is pen.open:
        return pen.open(url, storage_options=double.storage_options, threads=1, **target.options)
    return target.open(url_path(url, double.storage_options), remote=RemoteOptions(), threads=1, **target.options)


@cache
def _double() -> Double:
    """The server, in a child: it ends with that."""
    return Double()


def outcome(path: Path, data: bytes, io: str, kind: str) -> str:
    """What becomes of a mutant. AssertionError if it is nothing that may be."""
    folder = path.parents[NAMES.get(kind, "").count("/")]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    target = TARGETS.get(kind, Target(path.name))
    others = target.others()
    for name, content in others.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    try:
        with opened(target, folder, io) as source:
            batch = source[:]
            for name, found in batch.items() if kind not in UNSEEN else ():
                for one in [getattr(found, "values", found)] if kind not in TARGETS else found:
                    if kind != "example" or name == "data":  # numbers have another form in the file
                        assert is_in(one, [data, *others.values()]), "values that are not there"
            same = [getattr(found, "values", found).tobytes() for found in batch.values()] == expected(kind)
            return "same" if same else "other values"
    except PenstockError as error:
        text = str(error)
        assert any(name in text for name in (path.name, *others)) or f"{folder.name}/" in text, f"no path: {text}"
        assert len(text) < 1000, f"a message of {len(text)} characters: {text[:200]}"
        assert text.isprintable(), f"not printable: {text!r}"
        return type(error).__name__


def _serve(folder: Path, kind: str, seeds: range, out: int, at_url: bool) -> None:
    """In a child: a line for every mutant, before it and after it."""
    limit_address_space(CHILD_BYTES)
    for seed in seeds:
        signal.alarm(DEADLINE_S)
        rng = random.Random(f"{kind} {seed}")
        data = mutate(kind, rng) if seed >= 0 else image(kind)
        try:
            for name in os.listdir(folder):  # of another kind
                shutil.rmtree(folder / name) if (folder / name).is_dir() else os.unlink(folder / name)
            text = outcome(
                folder / NAMES.get(kind, f"a.{kind}"), data, "url" if at_url else rng.choice(["map", "pread", "direct"]), kind
            )
        except BaseException as error:
            text = f"WRONG {type(error).__name__}: {error}".replace("\n", " ")[:500]
        os.write(out, f"{seed} {text}\n".encode())


def attack(kind: str, count: int, first: int = 0, at_url: bool = False) -> tuple[Counter[str], list[str]]:
    """How mutants ended, and what was wrong."""
    outcomes, wrong = Counter[str](), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        for low in range(first, first + count, GROUP):
            seeds = range(low, min(low + GROUP, first + count))
            code, lines = _in_child(Path(folder), kind, seeds, at_url)
            outcomes.update(line.split(" ", 1)[1] for line in lines if " WRONG " not in line)
            wrong += [f"{kind} {line}" for line in lines if " WRONG " in line]
            if code != 0 or len(lines) != len(seeds):
                wrong.append(f"{kind} {seeds[min(len(lines), len(seeds) - 1)]} ended the process with {code}")
    return outcomes, wrong


def _in_child(folder: Path, kind: str, seeds: range, at_url: bool) -> tuple[int, list[str]]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _serve(folder, kind, seeds, writing, at_url)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        lines = file.read().splitlines()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), lines


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--seed", type=int, default=0, help="the first mutant; -1: the good file")
    parser.add_argument("--url", action="store_true", help="objects of a server on loopback instead of files")
    given = parser.parse_args()
    failed = False
    for kind in [given.kind] if given.kind else AT_URLS if given.url else KINDS:
        outcomes, wrong = attack(kind, given.count, given.seed, given.url)
        sys.stdout.write(f"{kind}: {given.count} mutants, {len(wrong)} wrong: {dict(outcomes.most_common())}\n")
        sys.stdout.writelines(f"{line}\n" for line in wrong[:50])
        sys.stdout.flush()
        failed |= bool(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
