"""Workloads of bench/store.py: the records, and everyone who reads them.

A contender is called with the number of a batch and returns its fields. All get the same batches: a random order of all records
cut into equal parts, so that no turn finds its records in a cache of the processor.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as pen
from measure import seconds
from store_limit import Crew, Frames, address, page_of
from store_rival import RIVALS, Rival

__all__ = ["AHEAD", "ASLEEP", "BARE", "LIMIT", "READ", "READ_OUT", "Fixed", "Ids", "Text", "Trial", "disk_bytes", "first_touch"]

LIMIT = "LIMIT: C gather, 2 threads"
ASLEEP = "the same, helper asleep between calls"
AHEAD = "the same with prefetch"
READ = "penstock read(ids)"
READ_OUT = "penstock read(ids, out=)"
BARE = "LIMIT: bare zstd, 2 threads"

Batch = Mapping[str, npt.NDArray[Any]]
Reader = Callable[[int], Any]


class Ids:
    """Batches of random ids, and where they lie, for C."""

    def __init__(self, num_records: int, batch: int) -> None:
        order = np.random.default_rng(7).permutation(num_records).astype(np.int64)
        self._order = order[: num_records // batch * batch].reshape(-1, batch)
        first = address(self._order)
        self.addresses = [first + number * batch * 8 for number in range(len(self._order))]
        self.batch = batch

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, number: int) -> npt.NDArray[np.int64]:
        return self._order[number]

    def all(self) -> list[npt.NDArray[np.int64]]:
        """Every batch as an array of its own, so that taking one costs nothing."""
        return list(self._order)


class Trial:
    """One contender: a turn reads so many batches that it lasts about ``pass_s``, and returns seconds per record."""

    def __init__(self, reader: Reader, ids: Ids, check: Callable[[int, Any], None], *, pass_s: float) -> None:
        self._reader, self._ids, self._check = reader, ids, check
        reader(0)
        once_s = min(seconds(lambda number=number: reader(number)) for number in range(1, 4))
        self._count = max(1, min(len(ids), round(pass_s / max(once_s, 1e-6))))
        self._round, self._last = 0, 0
        self._found: Any = None
        self()  # warm up

    def __call__(self) -> float:
        first = self._round * 7919 % len(self._ids)  # the same in round k for all
        numbers = [(first + k) % len(self._ids) for k in range(self._count)]
        self._round += 1
        took_s = seconds(lambda: self._read(numbers))
        self._last = numbers[-1]
        self.verify()
        return took_s / (self._count * self._ids.batch)

    def _read(self, numbers: list[int]) -> None:
        reader, found = self._reader, None
        for number in numbers:
            found = None  # dropped before the next is read, so that everyone works in the memory of one batch
            found = reader(number)
        self._found = found

    def verify(self) -> None:
        """Every byte of the last batch of the turn."""
        self._check(self._last, self._found)
        self._found = None


@dataclass(frozen=True)
class Fixed:
    """Records with fields of one size."""

    name: str
    fields: tuple[tuple[str, str, int], ...]  # name, dtype, elements (0: a single number)
    num_records: int
    batches: tuple[int, ...]
    goal: float
    disk_goal: float | None

    @property
    def record_bytes(self) -> int:
        return sum(np.dtype(dtype).itemsize * max(1, size) for _, dtype, size in self.fields)

    def make(self, directory: Path) -> dict[str, npt.NDArray[Any]]:
        """The records in plain files, mapped."""
        rng, made = np.random.default_rng(1), {}
        for name, dtype, size in self.fields:
            shape = (self.num_records, size) if size else (self.num_records,)
            total, path = int(np.prod(shape)) * np.dtype(dtype).itemsize, directory / f"{name}.bin"
            with path.open("wb") as file:
                for low in range(0, total, 1 << 26):
                    file.write(rng.bytes(min(1 << 26, total - low)))
            made[name] = np.asarray(np.memmap(path, dtype, mode="r", shape=shape))
        return made

    def write(self, path: Path, columns: Batch) -> None:
        """The records as a store."""
        fields = {name: pen.Field(dtype, (size,) if size else ()) for name, dtype, size in self.fields}
        with pen.create(path, fields) as out:
            step = max(1, (32 << 20) // self.record_bytes)
            for low in range(0, self.num_records, step):
                out.extend({name: data[low : low + step] for name, data in columns.items()})

    def readers(self, crew: Crew, asleep: Crew, columns: Batch, path: Path, ids: Ids) -> dict[str, Reader]:
        """LIMIT, numpy and the store."""
        store, each, where = pen.open(path, threads=crew.threads), ids.all(), ids.addresses
        plain, ahead = (crew.gather(columns, ids.batch, ahead=flag) for flag in (False, True))
        woken = asleep.gather(columns, ids.batch, ahead=False)
        taken, filled = ({name: page_of(data.shape, data.dtype) for name, data in plain.out.items()} for _ in range(2))

        def take_out(number: int) -> Batch:
            for name, data in columns.items():
                np.take(data, each[number], axis=0, out=taken[name], mode="clip")  # any other mode takes a detour by a buffer
            return taken

        touch_all(store)
        return {
            LIMIT: lambda number: plain(where[number]),
            ASLEEP: lambda number: woken(where[number]),
            AHEAD: lambda number: ahead(where[number]),
            "numpy memmap arr[ids]": lambda number: {name: data[each[number]] for name, data in columns.items()},
            "numpy memmap take(out=)": take_out,
            READ: lambda number: store.read(each[number]),
            READ_OUT: lambda number: store.read(each[number], out=filled),
        }

    def rivals(self, directory: Path, columns: Batch) -> dict[str, Rival]:
        """The others, where they are installed."""
        return {name: rival.fixed(directory / rival.__name__, columns) for name, rival in RIVALS.items()}

    def checker(self, columns: Batch, ids: Ids) -> Callable[[int, Batch], None]:
        """Compares every byte of a batch."""

        def check(number: int, found: Batch) -> None:
            for name, data in columns.items():
                assert found[name].dtype == data.dtype, f"{name}: expected {data.dtype}, found {found[name].dtype}"
                assert np.array_equal(found[name], data[ids[number]]), f"wrong bytes in {name} of batch {number}"

        return check


def touch_all(store: pen.Source) -> None:
    """Read everything once: pages mapped, checksums verified."""
    record_bytes = max(64, sum(field.stride for field in store.schema.values() if field.is_fixed))
    step = max(1, (32 << 20) // record_bytes)
    for low in range(0, len(store), step):
        store.read(slice(low, low + step))


def first_touch(crew: Crew, columns: Batch, path: Path, ids: Ids, directory: Path) -> dict[str, Callable[[], float]]:
    """One pass over all records in random order right after opening: nothing mapped, no page verified; seconds per record."""
    each, where = ids.all(), ids.addresses

    def limit() -> float:
        fresh = {
            name: np.asarray(np.memmap(directory / f"{name}.bin", data.dtype, mode="r", shape=data.shape))
            for name, data in columns.items()
        }
        gather = crew.gather(fresh, ids.batch, ahead=False)
        return seconds(lambda: [gather(at) for at in where]) / (len(each) * ids.batch)

    def store(verify: bool) -> float:
        opened = pen.open(path, threads=crew.threads, verify=verify)
        out = {name: page_of((ids.batch, *data.shape[1:]), data.dtype) for name, data in columns.items()}
        return seconds(lambda: [opened.read(one, out=out) for one in each]) / (len(each) * ids.batch)

    return {
        f"{LIMIT}, fresh map": limit,
        f"{READ_OUT}, fresh, verify=True": lambda: store(True),
        f"{READ_OUT}, fresh, verify=False": lambda: store(False),
    }


class Text:
    """Records of 200 B to 20 KB, 3 KB on average, of words that zstd makes three times shorter."""

    name = "3 KB text, Zstd(3)"
    goal = 0.9

    def __init__(self, num_records: int, batch: int) -> None:
        self.num_records, self.batches = num_records, (batch,)

    def make(self) -> pen.Ragged:
        rng = np.random.default_rng(2)
        letters = np.frombuffer(b"etaoinshrdlucmfwypvbgkjqxz", np.uint8)
        lengths = rng.integers(2, 10, 30_000)
        vocabulary = [letters[(rng.random(n) ** 2 * 26).astype(int)].tobytes() + b" " for n in lengths]
        ranks = np.minimum(rng.zipf(1.15, 6_000_000), len(vocabulary)) - 1
        words = np.frombuffer(b"".join(vocabulary[rank] for rank in ranks.tolist()), np.uint8)
        sizes = np.clip(rng.lognormal(7.7, 0.8, self.num_records), 200, 20_000).astype(np.int64)
        starts = rng.integers(0, words.size - 20_000, self.num_records)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        values = np.empty(offsets[-1], np.uint8)
        for start, low, high in zip(starts.tolist(), offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            values[low:high] = words[start : start + high - low]
        return pen.Ragged(values, offsets, "text")

    def write(self, path: Path, records: pen.Ragged) -> None:
        with pen.create(path, {"text": pen.Field.text(codec=pen.Zstd(3))}) as out:
            step = 4096
            for low in range(0, self.num_records, step):
                offsets = records.offsets[low : low + step + 1]
                out.extend({"text": pen.Ragged(records.values, offsets, "text")})

    def readers(self, crew: Crew, frames: Frames, path: Path, ids: Ids) -> dict[str, Reader]:
        store, each, where = pen.open(path, threads=crew.threads), ids.all(), ids.addresses
        decoder = frames.decoder(ids.batch)

        def read(number: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
            found = store.read(each[number])["text"]
            return found.values, found.offsets

        touch_all(store)
        return {BARE: lambda number: decoder(where[number]), READ: read}

    def rivals(self, directory: Path, records: pen.Ragged) -> dict[str, Rival]:
        return {
            f"{name}, not compressed": rival.variable(directory / rival.__name__, records.values, records.offsets)
            for name, rival in RIVALS.items()
        }

    def checker(self, records: pen.Ragged, ids: Ids) -> Callable[[int, Any], None]:
        def check(number: int, found: Any) -> None:
            values, offsets = found
            wanted = ids[number]
            low, high = records.offsets[wanted], records.offsets[wanted + 1]
            assert np.array_equal(np.diff(offsets), high - low), f"wrong lengths in batch {number}"
            parts = [records.values[a:b] for a, b in zip(low.tolist(), high.tolist(), strict=True)]
            assert np.array_equal(values, np.concatenate(parts)), f"wrong bytes in batch {number}"

        return check


def disk_bytes(path: Path) -> int:
    """Bytes of all files below a directory."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
