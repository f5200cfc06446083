"""Damaged files of foreign formats: flipped bits, cut and zeroed extents, inserted bytes, and numbers at the edges of their range.

Every mutant is read in a forked child with a deadline and a limit on memory. Allowed are a typed error that names the file, and
records; a crash, a hang or another exception is a fault. (Most formats have no checksums, so that damaged data may be read.)

``python -m tests.hostile.mutate [FORMAT...] --count N --seed S`` prints what came out for each format, and every fault.
"""

import argparse
import collections
import csv
import gzip
import io
import json
import random
import shutil
import signal
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tests.array_record import write_array_record
from tests.hostile.bombs import GIB, in_child

from penstock.errors import PenstockError

N = 40
RNG = np.random.default_rng(5)
ROWS = RNG.random((N, 3, 4), np.float32)
TEXTS = ["é" * (i % 5) + str(i) * (i % 4) for i in range(N)]
DEADLINE_S = 2
BATCH = 200
"""Mutants that are read by one child, one after the other. If it ends badly, those that are left are read one by one."""


def table() -> pa.Table:
    lists = [list(range(i % 6)) for i in range(N)]
    return pa.table(
        {
            "x": np.arange(N),
            "t": pa.array([None if i % 7 == 0 else text for i, text in enumerate(TEXTS)]),
            "l": pa.array(lists, pa.list_(pa.int16())),
            "f": pa.array([[float(i), 1.0] for i in range(N)], pa.list_(pa.float32(), 2)),
            "b": pa.array([i % 3 == 0 for i in range(N)]),
            "s": pa.array([{"a": i, "u": None if i % 5 == 0 else TEXTS[i]} for i in range(N)]),
            "d": pa.array(TEXTS).dictionary_encode(),
            "j": pa.array([[TEXTS[k] for k in one] for one in lists]),
        }
    )


def _arrow(path: Path, *, stream: bool = False, codec: str | None = None) -> None:
    data = table()
    with pa.OSFile(str(path), "wb") as sink:
        make = pa.ipc.new_stream if stream else pa.ipc.new_file
        with make(sink, data.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
            writer.write_table(data, max_chunksize=16)


def hdf5_plain(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["whole"] = ROWS
        file.create_dataset("g/chunks", data=ROWS, chunks=(8, 3, 4))
        file.create_dataset("labels", data=np.arange(N), chunks=(7,))


def hdf5_latest(path: Path) -> None:
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("chunks", data=ROWS, chunks=(8, 3, 4), maxshape=(None, 3, 4))
        file.create_dataset("gzip", data=ROWS, chunks=(8, 3, 4), compression="gzip", shuffle=True)
        file.create_dataset("t", data=TEXTS, dtype=h5py.string_dtype(), chunks=(9,))


def hdf5_varied(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("gzip", data=ROWS, chunks=(8, 3, 4), compression="gzip")
        file.create_dataset("lzf", data=np.arange(N), chunks=(7,), compression="lzf", fletcher32=True)
        file.create_dataset("pieces", data=ROWS, chunks=(9, 2, 4), compression="gzip")
        file.create_dataset("t", data=TEXTS, dtype=h5py.string_dtype())
        lists = file.create_dataset("lists", (N,), dtype=h5py.vlen_dtype(np.int32))
        for i in range(N):
            lists[i] = np.arange(i % 6)


def array_record(path: Path) -> None:
    write_array_record(path, [TEXTS[i].encode() * 10 for i in range(N)], "group_size:4")


def json_lines() -> bytes:
    rows = table().select(["x", "t", "l", "f", "b", "s", "j"]).to_pylist()
    return "".join(json.dumps(row, ensure_ascii=i % 2 == 0) + "\n" for i, row in enumerate(rows)).encode()


def zstd_frames(path: Path) -> None:
    whole, codec = json_lines(), pa.Codec("zstd")
    path.write_bytes(b"".join(codec.compress(whole[low : low + 900], asbytes=True) for low in range(0, len(whole), 900)))


def delimited(path: Path) -> None:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["x", "t", "f", "b"])
        rows.writerows([i, f'{text}"\n,' * (i % 2), i / 4, i % 3 == 0] for i, text in enumerate(TEXTS))


def image(path: Path) -> None:
    from PIL import Image

    raw = io.BytesIO()
    for number, kind in enumerate(("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP")):
        picture = Image.fromarray(RNG.integers(0, 256, (9, 11, 3), np.uint8))
        picture.save(part := io.BytesIO(), kind)
        raw.write(struct.pack("<II", number, len(part.getvalue())) + part.getvalue())
    path.write_bytes(raw.getvalue())


Maker = Callable[[Path], object]
FORMATS: dict[str, tuple[Maker, str]] = {
    "arrow": (_arrow, ".arrow"),
    "arrow_stream": (lambda path: _arrow(path, stream=True), ".arrow"),
    "arrow_lz4": (lambda path: _arrow(path, codec="lz4"), ".arrow"),
    "arrow_zstd_stream": (lambda path: _arrow(path, codec="zstd", stream=True), ".arrow"),
    "parquet": (lambda path: pq.write_table(table(), path, row_group_size=16), ".parquet"),
    "parquet_checked": (
        lambda path: pq.write_table(table(), path, row_group_size=16, compression="zstd", write_page_checksum=True),
        ".parquet",
    ),
    "parquet_plain": (lambda path: pq.write_table(table(), path, use_dictionary=False, data_page_version="2.0"), ".parquet"),
    "hdf5_plain": (hdf5_plain, ".h5"),
    "hdf5_latest": (hdf5_latest, ".h5"),
    "hdf5_varied": (hdf5_varied, ".h5"),
    "array_record": (array_record, ".array_record"),
    "image": (image, ".png"),
    "jsonl": (lambda path: path.write_bytes(json_lines()), ".jsonl"),
    "jsonl_gzip": (lambda path: path.write_bytes(gzip.compress(json_lines())), ".jsonl.gz"),
    "jsonl_zstd": (zstd_frames, ".jsonl.zst"),
    "csv": (delimited, ".csv"),
}

EDGES = [0, 1, 2**7 - 1, 2**8 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 8]


def mutant(whole: bytes, seed: int) -> bytes:
    """One damaged copy, always the same for a seed."""
    rng, data = random.Random(seed), bytearray(whole)
    used = [place for place in range(0, len(whole), 7) if whole[place]] or [0]

    def place() -> int:
        """Anywhere; more often where there is something, and at the ends."""
        low = max(0, len(data) - 600)
        return min(
            len(data) - 1,
            rng.choice(
                [
                    rng.randrange(len(data)),
                    rng.choice(used) + rng.randrange(7),
                    rng.randrange(low, len(data)),
                    rng.randrange(min(len(data), 3000)),
                ]
            ),
        )

    kind = rng.randrange(6)
    if kind == 0:
        for _ in range(rng.choice([1, 1, 2, 8])):
            data[place()] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del data[rng.randrange(len(data)) :]
    elif kind == 2:
        start = place() // 512 * 512 if rng.random() < 0.5 else place()
        size = rng.choice([1, 8, 64, 512, 4096])
        data[start : start + size] = bytes(len(data[start : start + size]))
    elif kind == 3:
        start = place()
        data[start:start] = rng.randbytes(rng.choice([1, 4, 8, 100]))
    elif kind == 4:
        start, width = place(), rng.choice([1, 2, 4, 8])
        data[start : start + width] = (rng.choice(EDGES) % 2 ** (8 * width)).to_bytes(width, "little")
    else:
        start, size = place(), rng.choice([8, 32, 512])
        other = place()
        data[start : start + size] = data[other : other + size]
    return bytes(data)


def read(path: Path, name: str) -> str:
    """What comes of reading a mutant: an error by name, "read", or a fault."""
    import penstock as pen
    from penstock.formats import hdf5

    hdf5.DEADLINE_S = DEADLINE_S
    options = {"decode": "image", "suffixes": [".png"]} if name == "image" else {}
    try:
        with pen.open(path.parent if name == "image" else path, **options) as source:
            count = min(len(source), 2 * N)
            source[:count]
            source[np.random.default_rng(0).permutation(count)]
        return "read"
    except PenstockError as error:
        words = str(error)
        if path.name not in words and str(path.parent) not in words:
            return f"fault: no path: {type(error).__name__}: {words[:300]}"
        return type(error).__name__ if words.isprintable() and len(words) < 2000 else f"fault: words: {words[:300]!r}"
    except MemoryError:
        return f"fault: MemoryError {traceback.format_exc()[-600:]}"
    except Exception:
        return f"fault: {traceback.format_exc()[-900:]}"


def _write(path: Path, name: str, whole: bytes, seed: int) -> None:
    if name != "image":
        path.write_bytes(mutant(whole, seed))
        return
    parts, place = [], 0
    while place < len(whole):
        size = struct.unpack_from("<I", whole, place + 4)[0]
        parts.append(whole[place + 8 : place + 8 + size])
        place += 8 + size
    path.write_bytes(mutant(parts[seed % len(parts)], seed) or b"x")


def _run(directory: Path, name: str, whole: bytes, seeds: list[int]) -> list[tuple[int, str]]:
    """What comes of mutants. A child that ends badly is cut down to the one that ended it."""
    log, path = directory / "log", directory / "data" / f"a{FORMATS[name][1]}"
    path.parent.mkdir(exist_ok=True)
    log.write_text("")

    def work() -> dict[str, Any]:
        with log.open("a") as out:
            for seed in seeds:
                signal.alarm(100)
                _write(path, name, whole, seed)
                print(json.dumps([seed, read(path, name)]), file=out, flush=True)
        return {"outcome": "done"}

    ended = in_child(work, 3 * GIB)["outcome"]
    found = [(int(seed), str(what)) for seed, what in map(json.loads, log.read_text().splitlines())]
    if ended == "done" or len(found) == len(seeds):
        return found
    guilty = seeds[len(found)]
    return [*found, (guilty, f"fault: {ended}"), *_run(directory, name, whole, seeds[len(found) + 1 :])]


def attack(name: str, count: int, first: int = 0) -> tuple[dict[str, int], list[tuple[int, str]]]:
    """How often each outcome came, and the faults with their seeds."""
    directory = Path(tempfile.mkdtemp())
    try:
        made = directory / f"made{FORMATS[name][1]}"
        in_child(lambda: {"outcome": str(FORMATS[name][0](made))}, 64 * GIB)
        whole = made.read_bytes()
        outcomes: collections.Counter[str] = collections.Counter()
        faults = []
        for low in range(first, first + count, BATCH):
            for seed, what in _run(directory, name, whole, list(range(low, min(low + BATCH, first + count)))):
                outcomes[what.partition(":")[0]] += 1
                faults += [(seed, what)] if what.startswith("fault") else []
        return dict(outcomes), faults
    finally:
        shutil.rmtree(directory)


def main() -> None:
    """Attack formats, all of them by default."""
    parser = argparse.ArgumentParser()
    parser.add_argument("formats", nargs="*")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    for name in chosen.formats or FORMATS:
        outcomes, faults = attack(name, chosen.count, chosen.seed)
        if chosen.json:
            sys.stdout.write(json.dumps({"format": name, "outcomes": outcomes, "faults": faults}) + "\n")
            continue
        sys.stdout.write(f"{name} {sum(outcomes.values())} {outcomes}\n")
        sys.stdout.writelines(f"    {seed} {what}\n" for seed, what in faults[:10])
        sys.stdout.flush()


if __name__ == "__main__":
    main()
