"""Blocks of coming batches are asked for ahead of time: the right bytes, each block once an epoch, and not too far ahead."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import BatchError
from penstock.loader import lookahead
from penstock.loader.lookahead import AdvisedFiles, DiskAdvice, Lookahead, Walk, disk_extents, disk_uses
from penstock.records import Source
from penstock.report.doctor import cached_share
from penstock.source import write_tokens

N = 1000
ROWS = np.random.default_rng(5).integers(0, 256, (N, 32), dtype=np.uint8)
DEADLINE_S = 300


def npy_parts(directory: Path) -> Source:
    for number, part in enumerate(np.split(ROWS, [0, 400, 700])):
        np.save(directory / f"{number}.npy", part)
    return pen.open(str(directory / "*.npy"))


def store(directory: Path) -> Source:
    with pen.create(directory / "a.pen", {"row": pen.Field("u1", (32,))}, chunk_records=300) as out:
        out.extend({"row": ROWS})
    return pen.open(directory / "a.pen")


def token_files(directory: Path) -> Source:
    write_tokens(list(ROWS), directory / "a.rox", block_size=32, max_shard_bytes=9_000)
    return pen.open(directory / "a.rox")


def hdf5(directory: Path) -> Source:
    with h5py.File(directory / "a.h5", "w") as file:
        file["row"] = ROWS
    return pen.open(directory / "a.h5")


def arrow(directory: Path) -> Source:
    table = pa.table({"row": pa.FixedSizeListArray.from_arrays(pa.array(ROWS.reshape(-1)), 32)})
    with pa.OSFile(str(directory / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=300)
    return pen.open(directory / "a.arrow")


def on_disk(data: Source, ids: range) -> Iterator[tuple[str, int, int]]:
    """Where records are: files, and bytes from and to."""
    extents = data.extents(np.array([ids.start]), np.array([ids.stop]))
    yield from ((data.paths[number], start, stop) for number, start, stop in zip(*(e.tolist() for e in extents), strict=True))


MAKERS = [npy_parts, store, token_files, hdf5, arrow]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("ids", [range(0, 1), range(0, N), range(399, 401), range(250, 950), range(N - 1, N)])
@pytest.mark.sampled(3)
def test_ranges_on_the_disk_hold_the_records(make: Any, ids: range, tmp_path: Path) -> None:
    with make(tmp_path) as data:
        found = b"".join(Path(path).read_bytes()[start:stop] for path, start, stop in on_disk(data, ids))
    wanted = ROWS[ids.start : ids.stop].tobytes()
    assert wanted in found
    assert len(found) <= len(wanted) + 2 * 4 * 65536  # whole pages of a store, in up to four chunks


def test_fields_that_were_changed_do_not_confuse_the_ranges(tmp_path: Path) -> None:
    store(tmp_path).close()
    with pen.open(tmp_path / "a.pen", mode="a") as out:
        out.update([0, 500], {"row": np.zeros((2, 32), np.uint8)})
    with pen.open(tmp_path / "a.pen") as data:
        for path, start, stop in on_disk(data, range(0, N)):
            assert 0 <= start < stop <= Path(path).stat().st_size


def loader(data: Source, **options: Any) -> pen.Loader:
    return pen.Loader(data.shuffle(seed=7, block=10, window=4, **options), 8)


def blocks_of(run: pen.Loader, steps: range) -> list[tuple[int, range]]:
    return [(step, ids) for step, reads, ids in disk_uses(Walk(run._work, run._schedule, steps)) if reads is not None]


@pytest.mark.parametrize("lanes", [1, 3])
def test_every_block_is_asked_for_once_an_epoch_before_it_is_needed(lanes: int, tmp_path: Path) -> None:
    with npy_parts(tmp_path) as data:
        run = loader(data, lanes=lanes)
        per_epoch = len(run)
        found = blocks_of(run, range(0, 2 * per_epoch))
        assert sorted(ids.start for _, ids in found) == sorted([*range(0, N, 10)] * 2)
        first_use: dict[tuple[int, int], int] = {}
        for step in range(2 * per_epoch):
            for one in run.explain(step)["ids"].tolist():
                first_use.setdefault((step // per_epoch, one // 10), step)
        asked = {(index // 100, ids.start // 10): step for index, (step, ids) in enumerate(found)}
        assert asked.keys() == first_use.keys()
        assert all(asked[key] < first_use[key] for key in asked)


@pytest.mark.parametrize("how", [{}, {"block": 100, "window": 50}])
def test_little_data_that_is_read_all_over_is_asked_for_whole_at_the_start(how: dict[str, int], tmp_path: Path) -> None:
    with npy_parts(tmp_path) as data:
        run = pen.Loader(data.shuffle(seed=7, **how), 8)
        found = blocks_of(run, range(3, 1 << 40))  # once, however many epochs follow
        assert {step for step, _ in found} == {2}
        assert [one for _, ids in found for one in ids] == [*range(N)]


def test_of_much_data_that_is_read_all_over_nothing_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with npy_parts(tmp_path) as data:
        monkeypatch.setattr(lookahead, "MOST_AHEAD_BYTES", 2 * ROWS.nbytes - 1)
        assert blocks_of(pen.Loader(data.shuffle(seed=7), 8), range(0, 1 << 40)) != []
        both = pen.mix({"a": data.shuffle(seed=7), "b": data.select(slice(0, N)).shuffle(seed=8)}, seed=1)
        assert [one for _, ids in blocks_of(pen.Loader(both, 8), range(0, 1 << 40)) for one in ids] == [*range(N)]  # one of two
        monkeypatch.setattr(lookahead, "MOST_AHEAD_BYTES", ROWS.nbytes - 1)
        assert blocks_of(pen.Loader(data.shuffle(seed=7), 8), range(0, 1 << 40)) == []


@pytest.mark.parametrize("seq_len", [10, 32, 100])
@pytest.mark.parametrize("kind", ["blocks", "in order"])
@pytest.mark.sampled(2)
def test_every_byte_of_sequences_is_asked_for_once_an_epoch_before_it_is_needed(kind: str, seq_len: int, tmp_path: Path) -> None:
    with token_files(tmp_path) as data:
        pages = data.shuffle(seed=7, block=10, window=4) if kind == "blocks" else data.in_order()
        run = pen.Loader(pages.sequences(seq_len), 8, tail="keep")
        asked = {(path, place): step for step, path, place in _bytes_asked(run, range(len(run)))}
        flat, needed = ROWS.reshape(-1), 0
        names = sorted(str(path) for path in tmp_path.glob("*.rox"))
        ends = np.cumsum(data.token_leaf.extents(np.array([0]), np.array([flat.size]))[2])
        for step in range(len(run)):
            for low, high in np.concatenate(run.explain(step)["tokens"]).tolist():
                for token in (low, high - 1):
                    number = int(np.searchsorted(ends, token, side="right"))
                    assert asked[names[number], token - int(ends[number - 1] if number else 0)] < step
                needed += high - low
        assert needed == len(run.stream) * seq_len
        assert len(asked) <= flat.size


def _bytes_asked(run: pen.Loader, steps: range) -> Iterator[tuple[int, str, int]]:
    """Every byte that is asked for, once."""
    seen: set[tuple[str, int]] = set()
    for step, reads, pages in disk_uses(Walk(run._work, run._schedule, steps)):
        for path, start, stop in () if reads is None else disk_extents(reads, pages):
            for place in range(start, stop):
                assert (path, place) not in seen
                seen.add((path, place))
                yield step, path, place


def test_in_order_every_record_is_asked_for_once(tmp_path: Path) -> None:
    with npy_parts(tmp_path) as data:
        run = pen.Loader(data.in_order(), 8)
        assert [i for _, ids in blocks_of(run, range(0, len(run))) for i in ids] == list(range(N))


def test_data_in_memory_are_not_read_ahead() -> None:
    with pen.open(ROWS, field="row") as data:
        for stream in (data.shuffle(seed=7), data.shuffle(seed=7, block=10, window=4)):
            run = pen.Loader(stream, 8)
            ahead = Lookahead(run._work, run._schedule, range(0, 10))
            assert ahead._disk is None


class Asked:
    """Takes down what is asked for."""

    def __init__(self) -> None:
        self.records = 0
        self.change = threading.Condition()

    def advise(self, path: str, start: int, stop: int) -> None:
        with self.change:
            self.records += (stop - start) // 32
            self.change.notify()

    def passed(self, step: int) -> None:
        """Nothing was asked for ahead of its turn."""

    def close(self) -> None:
        """Nothing is open."""

    def wait_for(self, records: int) -> None:
        with self.change:
            assert self.change.wait_for(lambda: self.records >= records, DEADLINE_S)


def test_it_stays_a_bounded_number_of_bytes_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.loader.lookahead.AHEAD_BYTES", 100 * 32)
    with npy_parts(tmp_path) as data:
        run, asked = loader(data), Asked()
        ahead = DiskAdvice(run._work, run._schedule, range(0, 125), asked)
        asked.wait_for(80)
        assert asked.records <= 160  # 100 records ahead, and the blocks of the groups in which that ends
        ahead.passed(60)  # 488 records
        asked.wait_for(560)
        assert asked.records <= 680
        ahead.passed(124)
        asked.wait_for(N)
        ahead.close()
        ahead.close()
        assert asked.records == N


def test_blocks_of_which_the_system_has_a_part_are_asked_for(tmp_path: Path) -> None:
    path, size = tmp_path / "x", 8 << 20
    path.write_bytes(bytes(size))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # nothing happens where files are always in memory
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # nothing else is read with a byte
        for place in (0, size // 2, size - 1):
            os.pread(file.fileno(), 1, place)
        files = AdvisedFiles()
        files.advise(str(path), 0, size)
        files.close()
        until = time.monotonic() + DEADLINE_S
        while cached_share([path]) != 1 and time.monotonic() < until:
            time.sleep(0.01)
        assert cached_share([path]) == 1


def combined(data: Source, kind: str) -> Any:
    """The same records through one stream, a mixture, or a mixture in a mixture."""
    how = {"seed": 7, "block": 10, "window": 4}
    if kind == "plain":
        return data.shuffle(**how)
    parts = [data.select(slice(low, high)).shuffle(**how) for low, high in ((0, 250), (250, 500), (500, N))]
    inner = pen.mix({"a": parts[0], "b": parts[1]}, seed=1, stop="all_exhausted", period=8)
    return pen.mix({"in": inner, "c": parts[2]}, seed=2, stop="all_exhausted", period=8) if kind == "nested" else inner


@pytest.mark.parametrize("kind", ["plain", "mixture", "nested"])
def test_streams_of_a_mixture_share_what_is_read_ahead(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookahead, "AHEAD_BYTES", 160 * 32)
    with npy_parts(tmp_path) as data:
        run = pen.Loader(combined(data, kind), 8)
        groups = 40 * len(run.stream.parts)
        asked = 0
        for step, ids in blocks_of(run, range(0, len(run))):
            asked += len(ids)
            assert asked <= 8 * (step + 1) + 160 + groups + 64  # groups begin with all of their blocks; steps are told about


@pytest.mark.parametrize("kind", ["plain", "mixture", "nested"])
def test_blocks_of_a_mixture_are_asked_for_once_an_epoch_before_they_are_needed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookahead, "AHEAD_BYTES", 160 * 32)
    with npy_parts(tmp_path) as data:
        run = pen.Loader(combined(data, kind), 8)
        steps = range(0, len(run))
        needed: dict[tuple[Any, ...], int] = {}
        for at, parts in Walk(run._work, run._schedule, steps).stretches():
            for number, step in enumerate(at):
                for part in (one.of_step(number, len(at)) for one in parts):
                    for block in np.unique(part.reads.stream.units_of(part.picks(step)) // 10).tolist():
                        needed.setdefault((part.reads.stream.source, part.epoch, block), step)
        uses = disk_uses(Walk(run._work, run._schedule, steps))
        asked: dict[tuple[Any, int], list[int]] = {}
        for step, reads, ids in uses:
            if reads is not None:
                asked.setdefault((reads.stream.source, ids.start // 10), []).append(step)
        assert sum(map(len, asked.values())) == len(needed)
        for source, block in asked:
            first_uses = sorted(step for (one, _, number), step in needed.items() if one is source and number == block)
            assert all(before < used for before, used in zip(asked[source, block], first_uses, strict=True))


def test_blocks_of_a_stream_that_rarely_comes_are_asked_for_before_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no more than two batches are read ahead, and the record may be in any of 16."""
    monkeypatch.setattr(lookahead, "AHEAD_BYTES", 2 * 8 * 32)
    monkeypatch.setattr(lookahead, "PIECE_BYTES", 2 * 32)
    with npy_parts(tmp_path) as data:
        parts = {"often": data.select(slice(0, 900)).in_order(), "rare": data.select(slice(900, N)).in_order()}
        run = pen.Loader(pen.mix(parts, weights={"often": 30, "rare": 1}, seed=2), 8)
        needed: dict[tuple[Any, int], int] = {}
        for step in range(len(run)):
            for name, part in run.explain(step)["parts"].items():
                for one in part["ids"].tolist():
                    needed.setdefault((parts[name].source, one // 2), step)
        for step, reads, ids in disk_uses(Walk(run._work, run._schedule, range(len(run)))):
            assert reads is None or step < needed[reads.stream.source, ids.start // 2]


def test_what_is_read_directly_has_room_until_it_is_used_next_to_a_large_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group of the mapped stream decides how far ahead both are read; nearly all of that is read directly."""
    monkeypatch.setattr(lookahead, "AHEAD_BYTES", 20 * 32)
    monkeypatch.setattr(lookahead, "DIRECT_AHEAD_BYTES", 10 * 32)
    names = [tmp_path / "mapped.npy", tmp_path / "direct.npy"]
    for name in names:
        np.save(name, ROWS)
    with pen.open(names[0], io="map") as mapped, pen.open(names[1], io="direct") as direct:
        parts = {"mapped": mapped.shuffle(seed=1, block=100, window=9), "direct": direct.shuffle(seed=2, block=5, window=2)}
        run = pen.Loader(pen.mix(parts, weights={"mapped": 1, "direct": 19}, seed=3, stop="forever"), 8)
        walk = Walk(run._work, run._schedule, range(100))
        asked = [
            (step, len(units) * 32) for step, reads, units in disk_uses(walk) if reads is not None and reads.stream.source is direct
        ]
        ahead = max(sum(size for at, size in asked if at <= step) - 8 * (step + 1) * 32 for step in range(100))
        assert ahead <= lookahead.direct_room(walk)


def test_closing_does_not_wait_for_batches_that_never_come(tmp_path: Path) -> None:
    with npy_parts(tmp_path) as data:
        run = pen.Loader(data.shuffle(seed=7, block=10, window=4), 8)
        with run:
            next(iter(run))
        assert not [thread for thread in threading.enumerate() if thread.name == "penstock-disk-advice"]


@pytest.mark.parametrize("make", MAKERS)
def test_batches_are_those_of_a_loader_that_does_not_read_ahead(make: Any, tmp_path: Path) -> None:
    with make(tmp_path) as data:
        stream = data.shuffle(seed=7, block=10, window=4)
        field = next(iter(data.schema))
        plain, ahead = (pen.Loader(stream, 8, threads=threads) for threads in (0, 2))
        for one, other in zip(plain, ahead, strict=True):
            assert np.array_equal(one[field], other[field])


def test_a_file_that_is_gone_is_told_by_the_batch_and_not_by_the_thread(tmp_path: Path) -> None:
    with npy_parts(tmp_path) as data:
        for path in tmp_path.glob("*.npy"):
            path.unlink()
        with pytest.raises(BatchError, match="No such file"), pen.Loader(data.shuffle(seed=7, block=10, window=4), 8) as run:
            list(run)


def test_a_mixture_that_no_longer_reads_from_the_disk_lets_the_thread_rest_and_end(tmp_path: Path) -> None:
    with npy_parts(tmp_path) as data:
        memory = pen.open(dict.fromkeys(data.schema, ROWS))
        streams = {"disk": data.shuffle(seed=1, block=10, window=2), "memory": memory.shuffle(seed=2)}
        weights = [(0, {"disk": 1, "memory": 1}), (2, {"disk": 0, "memory": 1})]
        mixed = pen.mix(streams, seed=3, weights=weights, stop="forever", batch_size=8)
        run = pen.Loader(mixed, 8, threads=2)
        blocks = disk_uses(Walk(run._work, run._schedule, range(0, 1 << 40)))
        assert any(source is None and step > 100 for step, source, _ in blocks)  # it says what to wait for, and does not search on
        batches = run.forever()
        for _ in range(5):
            next(batches)
        reader = next(thread for thread in threading.enumerate() if thread.name == "penstock-disk-advice")
        batches.close()
        reader.join(DEADLINE_S)
        assert not reader.is_alive()
