"""Writing and opening: stores beside a plain file of the same bytes, and how long a store takes to open."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as pen
from measure import Spread, interleave, progress, seconds
from penstock.store.generation import load_manifest
from penstock.store.manifest import SegmentEntry, encode_manifest
from penstock.store.storage import manifest_file
from store_case import Text
from store_limit import Crew

__all__ = ["BARE_ENCODE", "PLAIN", "WRITE_BATCHES", "WRITE_WHOLE", "WRITE_ZSTD", "measure_open", "measure_write"]

PLAIN = "plain file, one fsync"
WRITE_WHOLE = "penstock, one extend"
WRITE_BATCHES = "penstock, extend of 4,096 records"
WRITE_ZSTD = "penstock, text with Zstd(3)"
BARE_ENCODE = "bare zstd, 2 threads, in memory"
RECORD = 2048


def measure_write(directory: Path, crew: Crew, *, num_bytes: int, text: Text, rounds: int) -> dict[str, dict[str, Any]]:
    """Seconds per byte of payload, durable at the end; every turn writes fresh files, which are removed and forgotten after it."""
    data = np.random.default_rng(3).integers(0, 2**64, num_bytes // 8, np.uint64).view(np.uint8).reshape(-1, RECORD)
    records = text.make()
    frames = crew.encode(3, records.values, records.offsets)

    def alone(write: Callable[[Path], object], size: int) -> Callable[[], float]:
        def turn() -> float:
            path = directory / "written"
            os.sync()
            touch_memory(size + (1 << 28))
            took_s = seconds(lambda: write(path))
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            return took_s / size

        return turn

    def store(path: Path, step: int) -> None:
        with pen.create(path, {"x": pen.Field("u1", (RECORD,))}, threads=crew.threads) as out:
            for low in range(0, len(data), step):
                out.extend({"x": data[low : low + step]})

    turns = {
        PLAIN: alone(lambda path: write_plain(path, data), data.nbytes),
        WRITE_WHOLE: alone(lambda path: store(path, len(data)), data.nbytes),
        WRITE_BATCHES: alone(lambda path: store(path, 4096), data.nbytes),
        WRITE_ZSTD: alone(lambda path: text.write(path, records), records.values.size),
        BARE_ENCODE: alone(lambda _: frames.encode(), records.values.size),
    }
    turns[PLAIN]()  # the disk's first gigabyte is not like the others
    found = interleave(turns, rounds=rounds, slow_rounds=rounds, label="write")
    sizes = {name: records.values.size if name in (WRITE_ZSTD, BARE_ENCODE) else data.nbytes for name in turns}
    return {name: {"bytes": sizes[name], "s_per_byte": spread.to_json()} for name, spread in found.items()}


def touch_memory(size: int) -> None:
    """Use and free so much memory. A hypervisor takes free memory away, and to get a page back costs ten times its writing."""
    np.empty(size, np.uint8)[::4096] = 1


def write_plain(path: Path, data: npt.NDArray[np.uint8]) -> None:
    """One file, written from front to back in pieces of 8 MiB, one fsync at the end."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        view = memoryview(data.reshape(-1))
        for low in range(0, len(view), 8 << 20):
            part = view[low : low + (8 << 20)]
            while len(part) > 0:
                part = part[os.write(descriptor, part) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def measure_open(directory: Path, lengths: tuple[int, ...], *, virtual_chunks: int, rounds: int) -> list[dict[str, Any]]:
    """Seconds to open a store of 4-byte labels, and to open one and read a record in the middle; warm, in a process that runs."""
    rows = []
    for length in lengths:
        path = directory / f"labels-{length}"
        with pen.create(path, {"label": pen.Field("i4")}) as out:
            for low in range(0, length, 1 << 24):
                out.extend({"label": np.arange(low, min(length, low + (1 << 24)), dtype=np.int32)})
        rows.append(_time_open(path, f"{length:,}", rounds))
        shutil.rmtree(path)
    if virtual_chunks:
        rows.append(_time_open(make_virtual(directory / "virtual", virtual_chunks), f"{virtual_chunks * 6104:,}, virtual", rounds))
        shutil.rmtree(directory / "virtual")
    return rows


def _time_open(path: Path, name: str, rounds: int) -> dict[str, Any]:
    progress(f"open {name}")
    middle = len(pen.open(path)) // 2
    want = pen.open(path).read([middle])["label"][0]

    def read() -> None:
        assert pen.open(path).read([middle])["label"][0] == want

    opened = Spread(tuple(seconds(lambda: pen.open(path)) for _ in range(rounds)))
    first = Spread(tuple(seconds(read) for _ in range(rounds)))
    chunks = len(load_manifest(path).chunks)
    return {"records": name, "chunks": chunks, "open_s": opened.to_json(), "first_record_s": first.to_json()}


def make_virtual(path: Path, num_chunks: int) -> Path:
    """A store whose chunks are one and the same file: as many entries as a terabyte has, without the terabyte."""
    with pen.create(path, {"label": pen.Field("i4")}) as out:
        out.extend({"label": np.arange(6104, dtype=np.int32)})
    one = load_manifest(path)
    chunk = one.chunks[0]
    many = replace(
        one,
        generation=2,
        parent=one.digest,
        length=num_chunks * chunk.rows,
        next_chunk=num_chunks,
        chunks=tuple(replace(chunk, number=number) for number in range(num_chunks)),
        segments=tuple(SegmentEntry(number * chunk.rows, chunk.rows, number, 0) for number in range(num_chunks)),
    )
    (path / manifest_file(2)).write_bytes(encode_manifest(many))
    return path
