"""Files of a few kilobytes that claim to be gigabytes, and how much memory reading one takes.

Every maker writes one file or folder and gives its path. ``python -m tests.hostile.bombs [NAME...]`` reads each in a forked child
with a limit on its memory, and prints a line of JSON: what was raised, and by how much memory grew.
"""

import importlib
import json
import mmap
import os
import pkgutil
import resource
import signal
import struct
import sys
import tempfile
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
from tests.array_record import write_array_record

import penstock as pen
import penstock.formats
from penstock.errors import PenstockError

GIB = 1 << 30
DEADLINE_S = 300
Maker = Callable[[Path], Path]


def zeros(count: int) -> Any:
    """int64 zeros as an Arrow array that takes no memory: nobody has written to its pages."""
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(mmap.mmap(-1, 8 * count))])


def zstd_zeros(size: int) -> bytes:
    """A zstd frame of zeros: blocks of one repeated byte, 4 bytes for every 128 KiB."""
    block, rest = 1 << 17, size % (1 << 17)
    blocks = struct.pack("<I", block << 3 | 1 << 1)[:3] + b"\0"
    last = struct.pack("<I", rest << 3 | 1 << 1 | 1)[:3] + b"\0"
    return b"\x28\xb5\x2f\xfd\x00\x58" + blocks * (size // block) + last


def deflate_zeros(size: int) -> bytes:
    """A zlib stream of at least ``size`` zeros, without the checksum at its end."""
    packer, part = zlib.compressobj(9), 1 << 24
    head = packer.compress(bytes(part)) + packer.flush(zlib.Z_FULL_FLUSH)
    body = packer.compress(bytes(part)) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + body * (size // part)


# Parquet, by hand: pages and footer in Thrift's compact protocol


def varint(number: int) -> bytes:
    out = b""
    while number >= 128:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def zigzag(number: int) -> bytes:
    return varint(number << 1 if number >= 0 else (-number << 1) - 1)


class I64(int):
    """A number of 64 bits; others have 32."""


def struct_of(fields: dict[int, Any]) -> bytes:
    """A Thrift struct of ints, texts, structs (dicts) and lists of them."""
    out, last = b"", 0
    for number, value in fields.items():
        out += bytes([number - last << 4 | _kind(value)]) + _value(value)
        last = number
    return out + b"\0"


def _kind(value: Any) -> int:
    if isinstance(value, int):
        return 6 if isinstance(value, I64) else 5
    return {bytes: 8, list: 9, dict: 12}[type(value)]


def _value(value: Any) -> bytes:
    if isinstance(value, int):
        return zigzag(value)
    if isinstance(value, bytes):
        return varint(len(value)) + value
    if isinstance(value, dict):
        return struct_of(value)
    return bytes([len(value) << 4 | _kind(value[0])]) + b"".join(map(_value, value))


PLAIN, RLE, DELTA_BYTE_ARRAY, DICTIONARY = 0, 3, 7, 8
INT64, BYTE_ARRAY, FIXED = 2, 6, 7


def page(kind: int, body: bytes, header: dict[int, Any], size: int | None = None) -> bytes:
    """A page: 0 for data, 2 for a dictionary. ``size`` is what the body claims to decode to."""
    place = {0: 5, 2: 7}[kind]
    return struct_of({1: kind, 2: len(body) if size is None else size, 3: len(body), place: header}) + body


def parquet(
    rows: int, pages: bytes, column: dict[int, Any], *, dictionary: int = 0, values: int | None = None, codec: int = 0
) -> bytes:
    """A file of one row group and one column; ``dictionary`` is the size of its first page, if that is a dictionary."""
    count = rows if values is None else values
    path = column.pop(99, [column[4]])
    schema = [{4: b"schema", 5: 1}, *column.pop(98, [column])]
    chunk = {
        1: column[1],
        2: [PLAIN, RLE, DICTIONARY],
        3: path,
        4: codec,
        5: I64(count),
        6: I64(100),
        7: I64(len(pages)),
        9: I64(4 + dictionary),
    }
    if dictionary:
        chunk[11] = I64(4)
    group = {1: [{2: I64(4), 3: chunk}], 2: I64(100), 3: I64(rows)}
    footer = struct_of({1: 1, 2: schema, 3: I64(rows), 4: [group]})
    return b"PAR1" + pages + footer + struct.pack("<I", len(footer)) + b"PAR1"


def _dictionary_column(rows: int, entry: bytes, column: dict[int, Any]) -> bytes:
    first = page(2, entry, {1: 1, 2: PLAIN})
    body = bytes([1]) + varint(rows << 1) + b"\0"  # one run of the number 0, of one bit
    return parquet(rows, first + page(0, body, {1: rows, 2: DICTIONARY, 3: RLE, 4: RLE}), column, dictionary=len(first))


def parquet_runs(directory: Path) -> Path:
    """2 GiB of numbers in one run."""
    return _written(directory / "a.parquet", _dictionary_column(1 << 28, bytes(8), {1: INT64, 3: 0, 4: b"x"}))


def parquet_wide(directory: Path) -> Path:
    """Few records of 1 MB."""
    return _written(directory / "a.parquet", _dictionary_column(1 << 14, bytes(1 << 20), {1: FIXED, 2: 1 << 20, 3: 0, 4: b"x"}))


def parquet_reserved(directory: Path) -> Path:
    """A footer that promises records of which there is no page."""
    return _written(
        directory / "a.parquet", parquet(1 << 28, page(0, bytes(8), {1: 1, 2: PLAIN, 3: RLE, 4: RLE}), {1: INT64, 3: 0, 4: b"x"})
    )


def parquet_page(directory: Path) -> Path:
    """One record, in a page that is said to decode to 2 GB, and does."""
    body = zstd_zeros(2**31 - 1)
    pages = page(0, body, {1: 1, 2: PLAIN, 3: RLE, 4: RLE}, 2**31 - 1)
    return _written(directory / "a.parquet", parquet(1, pages, {1: INT64, 3: 0, 4: b"x"}, codec=6))


def parquet_list(directory: Path) -> Path:
    """One record, a list of 2^31 - 1 numbers."""
    count = 2**31 - 1
    first = page(2, bytes(8), {1: 1, 2: PLAIN})
    repeated = varint(1 << 1) + b"\0" + varint((count - 1) << 1) + b"\1"  # a new record, then more of it
    levels = struct.pack("<I", len(repeated)) + repeated
    defined = varint(count << 1) + b"\1"
    levels += struct.pack("<I", len(defined)) + defined
    body = levels + bytes([1]) + varint(count << 1) + b"\0"
    pages = first + page(0, body, {1: count, 2: DICTIONARY, 3: RLE, 4: RLE})
    column = {1: INT64, 4: b"x", 98: [{3: 0, 4: b"x", 5: 1, 6: 3}, {3: 2, 4: b"list", 5: 1}, {1: INT64, 3: 0, 4: b"element"}]}
    column[99] = [b"x", b"list", b"element"]
    return _written(directory / "a.parquet", parquet(1, pages, column, dictionary=len(first), values=count))


def _delta(first: int, then: int, count: int) -> bytes:
    """DELTA_BINARY_PACKED: a number, then another one count - 1 times."""
    low = min(0, then - first)
    out = varint(128) + varint(4) + varint(count) + zigzag(first)
    packed = np.full(32, -low, "<u4")
    packed[0] = then - first - low
    out += zigzag(low) + bytes([32, 32, 32, 32]) + packed.tobytes() + np.full(96, -low, "<u4").tobytes()
    return out + (zigzag(0) + bytes(4)) * max(0, -(-(count - 1) // 128) - 1)


def parquet_prefixes(directory: Path) -> Path:
    """Texts of 1 MB, each the same as the one before it."""
    count, size = 1 << 14, 1 << 20
    body = _delta(0, size, count) + _delta(size, 0, count) + b"x" * size
    pages = page(0, body, {1: count, 2: DELTA_BYTE_ARRAY, 3: RLE, 4: RLE})
    return _written(directory / "a.parquet", parquet(count, pages, {1: BYTE_ARRAY, 3: 0, 4: b"x", 6: 0}))


# Arrow


def _arrow(path: Path, table: Any, *, stream: bool = False, codec: str = "zstd") -> Path:
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(str(path), table.schema, options=options) as writer:
        writer.write_table(table)
    return path


def arrow_file(directory: Path) -> Path:
    return _arrow(directory / "a.arrow", pa.table({"x": zeros(3 << 26)}))


def arrow_stream(directory: Path) -> Path:
    return _arrow(directory / "a.arrow", pa.table({"x": zeros(3 << 26)}), stream=True)


def arrow_lz4(directory: Path) -> Path:
    return _arrow(directory / "a.feather", pa.table({"x": zeros(3 << 26)}), codec="lz4")


def arrow_dictionary(directory: Path) -> Path:
    codes = pa.array(np.zeros(100, np.int32))
    return _arrow(directory / "a.arrow", pa.table({"x": pa.DictionaryArray.from_arrays(codes, zeros(3 << 26))}))


def arrow_columns(directory: Path) -> Path:
    """No column is large; all of them together are."""
    return _arrow(directory / "a.arrow", pa.table({f"x{i}": zeros(1 << 25) for i in range(8)}))


def arrow_views(directory: Path) -> Path:
    """Views of one text of 1 MB, which become texts of their own."""
    views = np.tile(np.array([1 << 20, int.from_bytes(b"xxxx", "little"), 0, 0], "<i4"), 1 << 14)
    array = pa.Array.from_buffers(pa.string_view(), 1 << 14, [None, pa.py_buffer(views), pa.py_buffer(b"x" * (1 << 20))])
    with pa.ipc.new_file(str(directory / "a.arrow"), pa.schema({"x": pa.string_view()})) as writer:
        writer.write_table(pa.table({"x": array}))
    return directory / "a.arrow"


def arrow_nothing(directory: Path) -> Path:
    """A record that is a list of 2^30 nulls, which take no bytes."""
    nulls = pa.nulls(1 << 30)
    array = pa.ListArray.from_arrays(pa.array([0, 1 << 30], pa.int32()), nulls)
    return _arrow(directory / "a.arrow", pa.table({"x": array}))


def arrow_laughs(directory: Path) -> Path:
    """Lists of views of lists of views ..., each level all of the one below it a thousand times."""
    array = pa.array(np.zeros(1000, np.int8))
    for _ in range(3):
        offsets, sizes = pa.array(np.zeros(1000, np.int32)), pa.array(np.full(1000, 1000, np.int32))
        array = pa.ListViewArray.from_arrays(offsets, sizes, array)
    with pa.ipc.new_file(str(directory / "a.arrow"), pa.schema({"x": array.type})) as writer:
        writer.write_table(pa.table({"x": array}))
    return directory / "a.arrow"


# HDF5


def _chunk(path: Path, rows: int, stored: bytes, **how: Any) -> Path:
    with h5py.File(path, "w") as file:
        data = file.create_dataset("x", (rows,), "i8", chunks=(rows,), **how)
        data.id.write_direct_chunk((0,), stored)
    return path


def hdf5_inflated(directory: Path) -> Path:
    """A small chunk that goes on after its end."""
    return _chunk(directory / "a.h5", 100, deflate_zeros(3 << 29), compression="gzip")


def hdf5_inflated_parts(directory: Path) -> Path:
    """The same in chunks that are parts of rows, which HDF5 itself has to put together."""
    path = directory / "a.h5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("x", (100, 20), "i8", chunks=(10, 10), compression="gzip")
        for place in np.ndindex(10, 2):
            data.id.write_direct_chunk(
                (place[0] * 10, place[1] * 10), deflate_zeros(3 << 29) if place == (0, 0) else zlib.compress(bytes(800))
            )
    return path


def hdf5_chunk(directory: Path) -> Path:
    return _chunk(directory / "a.h5", 3 << 26, deflate_zeros(1 << 24), compression="gzip")


def hdf5_lzf(directory: Path) -> Path:
    return _chunk(directory / "a.h5", 3 << 26, bytes(1000), compression="lzf")


def hdf5_unwritten(directory: Path) -> Path:
    """Chunks that were never written, of records of 2 GB."""
    path = directory / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (4, 1 << 31), "u1", chunks=(1, 1 << 31), compression="gzip")
    return path


# The rest


def array_record_group(directory: Path) -> Path:
    write_array_record(directory / "a.array_record", [bytes(1 << 24)] * 96, "group_size:96,zstd")
    return directory / "a.array_record"


def image_png(directory: Path) -> Path:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">2I5B", 30_000, 30_000, 8, 2, 0, 0, 0))
    data = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", deflate_zeros(1 << 26)) + chunk(b"IEND", b"")
    return _written(_folder(directory) / "a.png", data).parent


def image_bmp(directory: Path) -> Path:
    head = struct.pack("<IiiHHIIiiII", 40, 12_000, 12_000, 1, 24, 0, 0, 0, 0, 0, 0)
    return _written(_folder(directory) / "a.bmp", b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + head).parent


def sparse_file(directory: Path) -> Path:
    path = _folder(directory) / "a.bin"
    path.touch()
    os.truncate(path, 3 * GIB)
    return path.parent


def jsonl_gzip(directory: Path) -> Path:
    """2 GiB of zeros in a line."""
    stream = deflate_zeros(2 * GIB)
    return _written(directory / "a.jsonl.gz", bytes.fromhex("1f8b08000000000000ff") + stream[2:])


def jsonl_zstd(directory: Path) -> Path:
    """Frames of 64 MiB of zeros."""
    return _written(directory / "a.jsonl.zst", zstd_zeros(64 << 20) * 64)


def csv_zstd(directory: Path) -> Path:
    return _written(directory / "a.csv.zst", zstd_zeros(4 * GIB))


def _folder(directory: Path) -> Path:
    (directory / "folder").mkdir()
    return directory / "folder"


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


BOMBS: dict[str, tuple[Maker, dict[str, Any]]] = {
    maker.__name__: (maker, {"decode": "image"} if maker.__name__.startswith("image") else {})
    for maker in (
        parquet_runs, parquet_wide, parquet_reserved, parquet_page, parquet_list, parquet_prefixes,
        arrow_file, arrow_stream, arrow_lz4, arrow_dictionary, arrow_columns, arrow_views, arrow_nothing, arrow_laughs,
        hdf5_inflated, hdf5_inflated_parts, hdf5_chunk, hdf5_lzf, hdf5_unwritten,
        array_record_group, image_png, image_bmp, sparse_file, jsonl_gzip, jsonl_zstd, csv_zstd,
    )
}  # fmt: skip


def read(path: Path, options: dict[str, Any]) -> dict[str, Any]:
    """What reading record 0 raises, and the growth of memory in MB, here and in programs that were started."""
    before = _peak_bytes()
    words = ""
    try:
        with pen.open(path, **options) as source:
            source[0]
        outcome = "read"
    except PenstockError as error:
        outcome, words = type(error).__name__, str(error)
    except BaseException as error:
        outcome, words = f"bare {type(error).__name__}", traceback.format_exc()
    return {"outcome": outcome, "words": words, "growth_mb": (_peak_bytes() - before) >> 20}


def _peak_bytes() -> int:
    own, others = (resource.getrusage(who).ru_maxrss << 10 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max(own, others)


def in_child(work: Callable[[], dict[str, Any]], limit: int = 2 * GIB) -> dict[str, Any]:
    """The result of ``work`` in a forked child with so much memory more than it begins with; how it ended if it did not return."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(DEADLINE_S)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * mmap.PAGESIZE + limit, resource.RLIM_INFINITY))
        os.write(theirs, json.dumps(work()).encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as file:
        answer = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return json.loads(answer) if code == 0 else {"outcome": f"ended with {code}", "words": "", "growth_mb": 0}


def main(names: list[str]) -> None:
    """Read bombs, all of them by default."""
    assert pen.open  # with all that it needs
    for module in pkgutil.iter_modules(penstock.formats.__path__, "penstock.formats."):
        importlib.import_module(module.name)  # once, and not in every child
    for name in names or BOMBS:
        maker, options = BOMBS[name]
        with tempfile.TemporaryDirectory() as directory:
            made = in_child(lambda directory=directory, maker=maker: {"path": str(maker(Path(directory)))}, 64 * GIB)  # type: ignore[misc]
            path = Path(made["path"])  # made in a child too: libraries start threads
            size = sum(one.stat().st_blocks * 512 for one in [path, *path.glob("*")])
            found = in_child(lambda path=path, options=options: read(path, options))  # type: ignore[misc]
        sys.stdout.write(json.dumps({"name": name, "stored_bytes": size, **found}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
