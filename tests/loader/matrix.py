"""Every kind of source in every combination: which engine reads it, what is prefetched, and whether the figures are true.

Nothing here is known beforehand: files of every kind are written, a loader is made for each cell, and the library and a server that
counts requests are asked. ``test_matrix.py`` says what the answers must be, ``tools/docs/engines.py`` makes a page of them.
"""

import json
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.array_record import write_array_record
from tests.effort import is_campaign
from tests.formats import shards, token_files
from tests.pictures import encode
from tests.remote.double import Double

import penstock as pen
from penstock.errors import PenstockError, WindowTooSmallError
from penstock.loader.lookahead import Walk, _Planner, disk_extents, disk_uses
from penstock.records import Source
from penstock.source import write_collection, write_rows, write_tokens
from penstock.stream import Stream

COUNT, WIDTH, BLOCK, BATCH = 3000, 32, 150, 100
X = np.random.default_rng(7).standard_normal((2 * COUNT, WIDTH), dtype=np.float32)
TEXTS = [f"record {number:04d} {'and more ' * 8}" for number in range(2 * COUNT)]
HOW: dict[str, Any] = {"seed": 7, "block": BLOCK, "window": 2}
SMALL_WINDOW = 400 << 10  # less than any file, more than the blocks that are shuffled together


# The files: two parts of everything, of the records in ``ids``


def _store(path: Path, ids: range) -> None:
    fields = {"x": pen.Field("f4", (WIDTH,), codec=pen.LZ4()), "text": pen.Field.text(codec=pen.Zstd(3))}
    with pen.create(path, fields, chunk_records=BLOCK) as out:
        out.extend({"x": X[ids.start : ids.stop], "text": [TEXTS[number] for number in ids]})


def _npy(path: Path, ids: range) -> None:
    np.save(path, X[ids.start : ids.stop])


def _shard(path: Path, ids: range) -> None:
    write_rows(X[ids.start : ids.stop], path)


def _rox(path: Path, ids: range) -> None:
    write_tokens([np.frombuffer("".join(TEXTS[number] for number in ids).encode(), "u1").astype("u2")], path, block_size=84)


def _documents(ids: range) -> list[np.ndarray]:
    """Texts of different lengths as tokens."""
    return [np.frombuffer((TEXTS[number] + "x" * (number % 7)).encode(), "u1").astype("<u2") for number in ids]


def _megatron(path: Path, ids: range) -> None:
    token_files.write_megatron(path.with_suffix(""), _documents(ids))


def _datatrove(path: Path, ids: range) -> None:
    token_files.write_datatrove(path, _documents(ids))


def _litdata(path: Path, ids: range) -> None:
    token_files.write_litdata(path, [_documents(ids)], "no_header_numpy:5")


def _hdf5(path: Path, ids: range, **options: Any) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=X[ids.start : ids.stop], **options)


def _hdf5_chunks(path: Path, ids: range) -> None:
    _hdf5(path, ids, chunks=(BLOCK, WIDTH))


def _hdf5_compressed(path: Path, ids: range) -> None:
    _hdf5(path, ids, chunks=(BLOCK, WIDTH), compression="gzip")


def _rows(ids: range) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(X[ids.start : ids.stop].reshape(-1)), WIDTH)


def _arrow(path: Path, table: pa.Table, compression: str | None = None) -> None:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema, options=options) as out:
        out.write_table(table, max_chunksize=100)


def _arrow_numbers(path: Path, ids: range) -> None:
    _arrow(path, pa.table({"x": _rows(ids)}))


def _arrow_texts(path: Path, ids: range) -> None:
    _arrow(path, pa.table({"text": [TEXTS[number] for number in ids]}))


def _arrow_nested(path: Path, ids: range) -> None:
    _arrow(path, pa.table({"turns": [[{"role": "user", "text": TEXTS[number]}] for number in ids]}))


def _arrow_compressed(path: Path, ids: range) -> None:
    _arrow(path, pa.table({"x": _rows(ids)}), "zstd")


def _parquet(path: Path, ids: range) -> None:
    table = pa.table({"x": _rows(ids), "text": [TEXTS[number] for number in ids]})
    pq.write_table(table, path, row_group_size=BLOCK)


def _jsonl(path: Path, ids: range) -> None:
    rows = ({**{f"x{k}": round(float(X[n, k]), 3) for k in range(8)}, "text": TEXTS[n]} for n in ids)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _array_record(path: Path, ids: range) -> None:
    write_array_record(path, [X[number].tobytes() for number in ids])


def _tfrecord(path: Path, ids: range) -> None:
    path.write_bytes(shards.tfrecord([X[number].tobytes() for number in ids]))


def _tar(path: Path, ids: range) -> None:
    path.write_bytes(shards.tar((f"{number:04}.x", X[number].tobytes()) for number in ids))


def _folder(path: Path, ids: range) -> None:
    for number in ids if is_campaign() else ids[::10]:
        file = path / f"{number % 2}" / f"{number:04d}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(TEXTS[number])


NOT_ASKED = () if is_campaign() else ("d", "shard", "ds", "chunks")
"""Suffixes of kinds that are not read at URLs in every run: a folder takes a request for each of thousands of records, the others
are read as `.npy` and as Megatron are."""


@cache
def _pictures() -> list[bytes]:
    """Small PNG files, more than a small window holds."""
    chance = np.random.default_rng(8)
    return [encode(chance.integers(0, 256, (6, 8, 3), np.uint8), "PNG") for _ in range(COUNT)]


def _picture_store(path: Path) -> None:
    with pen.create(path, {"image": pen.Field.bytes()}, chunk_records=BLOCK) as out:
        out.extend({"image": _pictures()})


def _picture_parquet(path: Path) -> None:
    column = pa.array([{"bytes": one, "path": None} for one in _pictures()], pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    pq.write_table(pa.table({"image": column}), path, row_group_size=BLOCK)


def _picture_folder(path: Path) -> None:
    path.mkdir()
    for number, one in enumerate(_pictures()):
        (path / f"{number:04d}.png").write_bytes(one)


@dataclass(frozen=True)
class Kind:
    """A kind of files; ``pictures`` writes one with encoded pictures, where it can hold them."""

    suffix: str
    write: Callable[[Path, range], None]
    field: str
    pictures: Callable[[Path], Any] | None = None


KINDS = {
    "store": Kind("pen", _store, "x", _picture_store),
    "`.npy`": Kind("npy", _npy, "data"),
    "`.shard`": Kind("shard", _shard, "row"),
    "`.rox`": Kind("rox", _rox, "tokens"),
    "Megatron": Kind("idx", _megatron, "tokens"),
    "datatrove": Kind("ds", _datatrove, "tokens"),
    "LitData tokens": Kind("chunks", _litdata, "tokens"),
    "HDF5, contiguous": Kind("h5", _hdf5, "x"),
    "HDF5, chunks": Kind("h5", _hdf5_chunks, "x"),
    "HDF5, compressed": Kind("h5", _hdf5_compressed, "x"),
    "Arrow, numbers": Kind("arrow", _arrow_numbers, "x"),
    "Arrow, texts": Kind("arrow", _arrow_texts, "text"),
    "Arrow, nested": Kind("arrow", _arrow_nested, "turns"),
    "Arrow, compressed": Kind("arrow", _arrow_compressed, "x"),
    "Parquet": Kind("parquet", _parquet, "x", _picture_parquet),
    "JSON lines": Kind("jsonl", _jsonl, "x0"),
    "ArrayRecord": Kind("array_record", _array_record, "data", lambda path: write_array_record(path, _pictures())),
    "TFRecord": Kind("tfrecord", _tfrecord, "data", lambda path: path.write_bytes(shards.tfrecord(_pictures()))),
    "WebDataset": Kind(
        "tar", _tar, "x", lambda path: path.write_bytes(shards.tar((f"{n:04}.png", one) for n, one in enumerate(_pictures())))
    ),
    "folder of files": Kind("d", _folder, "data", _picture_folder),
}


# The combinations


class Parts:
    """The two parts of a kind, at paths or URLs, opened as often as is asked for."""

    def __init__(self, base: str, kind: Kind, **options: Any) -> None:
        self.names = [f"{base}/{part}.{kind.suffix}" for part in "ab"]
        self.pictures = None if kind.pictures is None else f"{base}/pictures.{kind.suffix}"
        self.collection = f"{base}/all.json"
        self.field, self.options = kind.field, options
        self.opened: list[Source] = []

    def open(self, what: Any) -> Source:
        self.opened.append(pen.open(what, **self.options))
        return self.opened[-1]

    def one(self, part: int = 0) -> Source:
        return self.open(self.names[part])

    def close(self) -> None:
        for source in self.opened:
            source.close()


def _same(record: dict[str, Any]) -> dict[str, Any]:
    return record


def _mix(parts: Parts) -> Stream:
    streams = {"a": parts.one(0).shuffle(**HOW), "b": parts.one(1).shuffle(**HOW)}
    return pen.mix(streams, seed=1, stop="all_exhausted")


def _mix_in_mix(parts: Parts) -> Stream:
    return pen.mix({"in": _mix(parts), "c": parts.one(1).shuffle(**HOW)}, seed=2, stop="all_exhausted")


def _images(parts: Parts) -> Stream:
    if parts.pictures is None:
        raise ValueError("images need bytes")
    return parts.open(parts.pictures).shuffle(**HOW).images("image", 4)


USES: dict[str, Callable[[Parts], Stream]] = {
    "plain": lambda parts: parts.one().shuffle(**HOW),
    "select a range": lambda parts: parts.one().select(slice(7, COUNT - 9)).shuffle(**HOW),
    "select ids": lambda parts: parts.one().select(np.arange(COUNT)[::-1].copy()).shuffle(**HOW),
    "pick": lambda parts: parts.one().pick(parts.field).shuffle(**HOW),
    "dict": lambda parts: pen.open({"a": parts.one(0).pick(parts.field), "b": parts.one(1).pick(parts.field)}).shuffle(**HOW),
    "list": lambda parts: parts.open(parts.names).shuffle(**HOW),
    "collection": lambda parts: parts.open(parts.collection).shuffle(**HOW),
    "mix": _mix,
    "mix in mix": _mix_in_mix,
    "sequences": lambda parts: parts.one().shuffle(**HOW).sequences(100),
    "images": _images,
    "map": lambda parts: (data := parts.one()).map(_same, schema=data.schema).shuffle(**HOW),
}
ASKED = tuple(use for use in USES if is_campaign() or use in ("mix in mix", "sequences"))
"""Two of them; in a campaign all, as for the page of the reference."""


# The questions


@dataclass(frozen=True)
class OnDisk:
    """What a loader does with files on a disk: its engine, and whether most of the bytes are prefetched."""

    engine: str
    is_prefetched: bool


@dataclass(frozen=True)
class AtUrl:
    """What a loader does at URLs: its engine, how its bytes are planned, whether its forecast was "exact", an "upper bound" or "too
    low", and whether it counted requests and bytes as the server did.
    """

    engine: str
    plan: str
    forecast: str
    counts: bool


@dataclass(frozen=True)
class Cell:
    """One kind of source in one combination. At URLs: where everything fits into the window, and where it does not. None where
    there is no such thing, a text where it is refused.
    """

    disk: OnDisk | None
    fits: AtUrl | str | None
    larger: AtUrl | str | None


@cache
def cells(uses: tuple[str, ...]) -> dict[tuple[str, str], Cell]:
    """Of all kinds in some combinations."""
    with tempfile.TemporaryDirectory() as place, Double() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", place)  # where the indexes of objects are
        made = {}
        for number, (name, kind) in enumerate(KINDS.items()):
            directory = Path(place) / str(number)
            directory.mkdir()
            _write(directory, kind, "images" in uses)
            for file in directory.rglob("*"):
                if file.is_file():
                    server.put(f"{number}/{file.relative_to(directory)}", file.read_bytes())
            if kind.suffix == "jsonl":
                with closing(Parts(f"{server.base}/{number}", kind, storage_options=server.storage_options)) as parts:
                    parts.open(parts.names)  # builds their indexes
            for use in uses:
                made[name, use] = _ask(directory, server, f"{server.base}/{number}", (kind, use))
        return made


def _write(directory: Path, kind: Kind, with_pictures: bool) -> None:
    names = [directory / f"{part}.{kind.suffix}" for part in "ab"]
    for name, ids in zip(names, (range(COUNT), range(COUNT, 2 * COUNT)), strict=True):
        kind.write(name, ids)
    if kind.pictures is not None and with_pictures:
        kind.pictures(directory / f"pictures.{kind.suffix}")
    write_collection(names, directory / "all.json")


def _ask(directory: Path, server: Double, url: str, what: tuple[Kind, str]) -> Cell:
    kind, use = what
    with closing(Parts(str(directory), kind)) as parts:
        try:
            stream = USES[use](parts)
        except ValueError as error:
            if "s need" not in str(error):  # sequences of records that are no documents, pictures of those that are no bytes
                raise
            return Cell(None, None, None)
        with pen.Loader(stream, BATCH) as loader:
            disk = OnDisk(loader.engine, _prefetched(loader) > 0.5)
    windows: list[dict[str, Any]] = [{}, {"window_bytes": SMALL_WINDOW}]
    if kind.suffix in NOT_ASKED:
        return Cell(disk, None, None)
    fits, larger = (_ask_at_url(server, Parts(url, kind, storage_options=server.storage_options, **one), use) for one in windows)
    return Cell(disk, fits, larger)


def _prefetched(loader: pen.Loader) -> float:
    """The part of the bytes of all files that is advised within an epoch."""
    advised: dict[str, Any] = {}
    for _, reads, units in disk_uses(Walk(loader.work, loader.schedule, loader.remaining())):
        for path, start, stop in () if reads is None else disk_extents(reads, units):
            advised.setdefault(path, np.zeros(Path(path).stat().st_size, np.bool_))[start:stop] = True
    sizes = sum(len(one) for one in advised.values())
    return sum(int(one.sum()) for one in advised.values()) / sizes if sizes else 0.0


def _ask_at_url(server: Double, parts: Parts, use: str) -> AtUrl | str | None:
    with closing(parts):
        try:
            for part in range(2):  # the first process that opens an archive reads all of it
                parts.one(part).close()
            if use == "images" and parts.pictures is not None:
                parts.open(parts.pictures).close()
            with pen.Loader(USES[use](parts), BATCH) as loader:
                return _run(server, loader)
        except (PenstockError, ValueError) as error:
            cause = error.__cause__ or error
            if isinstance(cause, WindowTooSmallError):
                return "needs a larger window"
            if "cannot be read at a URL" in str(cause) or "needs files" in str(cause):
                return None
            raise


def _run(server: Double, loader: pen.Loader) -> AtUrl:
    """Load an epoch."""
    plans = _Planner(Walk(loader.work, loader.schedule, loader.remaining()))._modes.values()
    foreseen, before = loader.forecast(), loader.stats().network
    server.clear()
    for _ in loader:
        pass
    after = loader.stats().network
    ranges = [request.range or (0, 0) for request in server.requests("GET")]
    served = len(ranges), sum(stop - start for start, stop in ranges)
    expected, counted = (foreseen.requests, foreseen.bytes), (after.requests - before.requests, after.bytes - before.bytes)
    is_bound = all(most >= found for most, found in zip(expected, served, strict=True))
    forecast = "exact" if expected == served else "upper bound" if is_bound else "too low"
    return AtUrl(loader.engine, ", ".join(sorted(set(plans))), forecast, counted == served)
