"""Fingerprints and sample digests: what they see, what they do not care for, and how much they look at."""

import os
import pickle
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.array_record import write_array_record
from tests.effort import every

import penstock as pen
from penstock import fingerprint, system
from penstock.errors import SourceChangedError
from penstock.fingerprint import SAMPLE_BYTES, page_ranges, sample_ranges, shares_of, spread
from penstock.records import DENSE, FEW, SAMPLINGS, Source
from penstock.source import write_collection, write_rows, write_tokens

RNG = np.random.default_rng(0)
ROWS = RNG.integers(0, 255, (40_000, 64), np.uint8)


def npy(directory: Path) -> Path:
    np.save(directory / "a.npy", ROWS)
    return directory / "a.npy"


def shard(directory: Path) -> Path:
    write_rows(ROWS.view(np.float32), directory / "a.shard")
    return directory / "a.shard"


def rox(directory: Path) -> Path:
    write_tokens([ROWS.reshape(-1).astype(np.uint16)], directory / "a.rox")
    return directory / "a.rox"


def parquet(directory: Path) -> Path:
    pa.parquet.write_table(pa.table({"x": ROWS.reshape(-1).view(np.int64)}), directory / "a.parquet", compression="none")
    return directory / "a.parquet"


def arrow(directory: Path) -> Path:
    pa.feather.write_feather(pa.table({"x": ROWS.reshape(-1).view(np.int64)}), directory / "a.arrow", compression="uncompressed")
    return directory / "a.arrow"


def compressed_arrow(directory: Path) -> Path:
    pa.feather.write_feather(pa.table({"x": ROWS.reshape(-1).view(np.int64)}), directory / "a.arrow", compression="lz4")
    return directory / "a.arrow"


def hdf5(directory: Path) -> Path:
    with h5py.File(directory / "a.h5", "w") as file:
        file["x"] = ROWS
    return directory / "a.h5"


def array_record(directory: Path) -> Path:
    write_array_record(directory / "a.array_record", (row.tobytes() for row in ROWS[:20_000]))
    return directory / "a.array_record"


KINDS: dict[str, Callable[[Path], Path]] = {
    one.__name__: one for one in (npy, shard, rox, parquet, arrow, compressed_arrow, hdf5, array_record)
}


def overwrite(path: Path, start: int, data: bytes) -> None:
    """Other bytes in the same place of the same file, with the same time."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size


def inverted(path: Path, start: int, count: int) -> bytes:
    return bytes(255 - byte for byte in path.read_bytes()[start : start + count])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [0.123, 0.456, 0.987])
@pytest.mark.sampled(5)
def test_a_percent_of_a_file_that_was_changed_in_place_is_seen(tmp_path: Path, kind: str, place: float) -> None:
    path = KINDS[kind](tmp_path)
    size = path.stat().st_size
    with pen.open(path) as source:
        before, recipe = source.sample_digest(DENSE), pickle.dumps(source)
        start = int(size * place)
        assert not any(low < start + size // 100 and start < high for low, high in sample_ranges(size))
        overwrite(path, start, inverted(path, start, size // 100))
        assert source.sample_digest(DENSE) != before
        with pytest.raises((SourceChangedError, ValueError)):
            pickle.loads(recipe)


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_were_renamed_or_copied_are_the_same(tmp_path: Path, kind: str) -> None:
    path = KINDS[kind](tmp_path)
    (tmp_path / "other").mkdir()
    copy = tmp_path / "other" / f"another name{path.suffix}"
    shutil.copyfile(path, copy)
    with pen.open(path) as source, pen.open(copy) as other:
        assert other.sample_digest(DENSE) == source.sample_digest(DENSE)
        assert other.sample_digest(FEW) == source.sample_digest(FEW)
        assert source.sample_digest(FEW) != source.sample_digest(DENSE)


def test_the_order_of_files_counts_and_their_names_do_not(tmp_path: Path) -> None:
    parts = np.split(ROWS, [10_000, 20_000])
    for name, part in zip(("a", "b", "c"), parts, strict=True):
        np.save(tmp_path / f"{name}.npy", part)
    for name, part in zip(("z3", "z1", "z2"), parts, strict=True):
        np.save(tmp_path / f"{name}.npy", part)

    def digest(names: list[str]) -> str | None:
        with pen.open([tmp_path / f"{name}.npy" for name in names]) as source:
            return source.sample_digest(DENSE)

    assert digest(["a", "b", "c"]) == digest(["z3", "z1", "z2"])
    assert len({digest(["a", "b", "c"]), digest(["b", "a", "c"]), digest(["a", "c", "b"]), digest(["a", "b"])}) == 4
    with pen.open(tmp_path / "z*.npy") as sorted_by_name:
        assert sorted_by_name.sample_digest(DENSE) == digest(["b", "c", "a"])


def test_two_files_do_not_pass_for_one_that_has_their_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    np.save(tmp_path / "one/a.npy", ROWS[:100])
    np.save(tmp_path / "two/a.npy", ROWS[:40])
    np.save(tmp_path / "two/b.npy", ROWS[40:100])
    with pen.open(tmp_path / "one") as one, pen.open(tmp_path / "two") as two:
        assert one[:]["data"].tobytes() == two[:]["data"].tobytes()
        assert one.sample_digest(DENSE) != two.sample_digest(DENSE)


# Sources without files of their own, and sources made of others


TEXTS = [f"text {number} {'x' * (number % 50)}" for number in range(40_000)]


def memory() -> dict[str, Any]:
    return {"x": ROWS.copy(), "t": [*TEXTS], "r": pen.Ragged(np.arange(80_000), np.arange(0, 80_002, 2))}


@pytest.mark.parametrize("field", ["x", "t", "r"])
@pytest.mark.parametrize("in_arrow", [False, True])
def test_a_percent_of_an_array_in_memory_that_is_another_is_seen(field: str, in_arrow: bool) -> None:
    def source(columns: dict[str, Any]) -> Source:
        if in_arrow:
            lists = pa.LargeListArray.from_arrays(columns["r"].offsets, columns["r"].values)
            return pen.open(pa.table({"x": columns["x"].reshape(-1).view(np.int64)[::8], "t": columns["t"], "r": lists}))
        return pen.open(columns)

    before = source(memory())
    columns = memory()
    rows = slice(12_345, 12_745)
    if field == "x":
        columns["x"][rows] ^= 255
    elif field == "t":
        columns["t"][rows] = [text.replace("text", "TEXT") for text in columns["t"][rows]]
    else:
        columns["r"].values[24_690:25_490] = -1
    assert source(memory()).sample_digest(DENSE) == before.sample_digest(DENSE)
    assert source(columns).sample_digest(DENSE) != before.sample_digest(DENSE)


@pytest.mark.parametrize("count", [3, 40_000])
def test_values_under_a_mask_do_not_count(count: int) -> None:
    mask = np.arange(count) % 3 == 1
    values = np.arange(count * 5, dtype=np.int32).reshape(count, 5)
    hidden, seen = values.copy(), values.copy()
    hidden[mask] = -1
    seen[0] = -1

    def digests(column: Any) -> list[str | None]:
        whole = np.ma.MaskedArray(column, mask=np.broadcast_to(mask[:, None], column.shape))
        return [pen.open({"x": whole}).sample_digest(sampling) for sampling in SAMPLINGS]

    assert digests(values) == digests(hidden)
    assert all(one != other for one, other in zip(digests(values), digests(seen), strict=True))


def test_large_records_of_varying_length_are_not_all_looked_at() -> None:
    one = pa.table({"t": [b"x" * (1 << 20)] * 40 + [b"y"] * 4000})
    assert pen.open(one).sample_digest(DENSE) == pen.open(one).sample_digest(DENSE)


def test_a_percent_of_a_folder_that_was_changed_in_place_is_seen(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"{number:02d}.bin").write_bytes(RNG.bytes(200_000))
    with pen.open(tmp_path) as source:
        before = source.sample_digest(DENSE)
        overwrite(tmp_path / "17.bin", 0, bytes(100_000))
        assert source.sample_digest(DENSE) != before


def test_selections_of_other_records_differ() -> None:
    ids = RNG.permutation(40_000)
    other = ids.copy()
    other[12_345:12_745] = other[12_345:12_745][::-1]
    source = pen.open(ROWS)
    assert source.select(ids).sample_digest(DENSE) != source.select(other).sample_digest(DENSE)
    assert source.select(ids).sample_digest(DENSE) == pen.open(ROWS.copy()).select(ids).sample_digest(DENSE)


def test_a_range_is_the_same_however_it_is_spelled() -> None:
    source = pen.open({"x": np.arange(20)})

    def digests(*ranges: range | slice) -> set[str | None]:
        return {source.select(one).sample_digest(DENSE) for one in ranges}

    assert len(digests(range(0, 10, 3), range(0, 12, 3), slice(0, 11, 3))) == 1
    assert len(digests(range(4, 5), range(4, 9, 7))) == 1
    assert len(digests(range(0), range(5, 5), slice(9, 2))) == 1
    assert len(digests(range(0, 10, 3), range(1, 10, 3), range(0, 10, 2), range(0, 13, 3), range(9, -1, -3))) == 5


def test_what_is_made_of_sources_sees_their_changes() -> None:
    changed = ROWS.copy()
    changed[12_345:12_745] ^= 255

    def made(rows: Any) -> list[str | None]:
        source = pen.open({"x": rows, "y": np.arange(40_000)})
        others = [
            source.pick("x"),
            source.map(dict),
            pen.open({"a": source, "b": pen.open(np.arange(40_000))}),
            pen.open([source] * 2),
        ]
        return [one.sample_digest(DENSE) for one in others]

    assert made(ROWS) == made(ROWS.copy())
    assert all(one != other for one, other in zip(made(ROWS), made(changed), strict=True))


def test_a_part_of_a_collection_that_was_changed_in_place_is_refused(tmp_path: Path) -> None:
    for number, part in enumerate(np.split(ROWS, 4)):
        np.save(tmp_path / f"{number}.npy", part)
    write_collection([tmp_path / f"{number}.npy" for number in range(4)], tmp_path / "all.json")
    path = tmp_path / "2.npy"
    overwrite(path, 100_000, inverted(path, 100_000, 50_000))
    with pen.open(tmp_path / "all.json") as source:
        assert source[0]["data"].tolist() == ROWS[0].tolist()
        with pytest.raises(SourceChangedError, match=r"2\.npy"):
            source[25_000]


def test_a_collection_tells_its_digest_without_opening_a_part(tmp_path: Path) -> None:
    for number, part in enumerate(np.split(ROWS, 4)):
        np.save(tmp_path / f"{number}.npy", part)
    write_collection([tmp_path / f"{number}.npy" for number in range(4)], tmp_path / "all.json")
    with pen.open([pen.open(tmp_path / f"{number}.npy") for number in range(4)]) as listed:
        expected = [listed.sample_digest(DENSE), listed.sample_digest(FEW)]
        recipe = pickle.dumps(listed)
    (tmp_path / "1.npy").unlink()
    with pen.open(tmp_path / "all.json") as source:
        assert [source.sample_digest(DENSE), source.sample_digest(FEW)] == expected
        with pickle.loads(pickle.dumps(source)) as twin:
            assert twin.sample_digest(FEW) == expected[1]
    assert len(recipe) > 0


def test_a_collection_of_version_1_is_known_by_its_fingerprint(tmp_path: Path) -> None:
    import json

    np.save(tmp_path / "a.npy", ROWS)
    write_collection([tmp_path / "a.npy"], tmp_path / "all.json")
    content = json.loads((tmp_path / "all.json").read_text())
    del content["parts"][0]["samples"]
    (tmp_path / "old.json").write_text(json.dumps(content))
    with pen.open(tmp_path / "old.json") as old, pen.open(tmp_path / "all.json") as new:
        assert (old.sample_digest(DENSE), old.sample_digest(FEW)) == (None, None)
        assert old.fingerprint == new.fingerprint
        assert old[7]["data"].tolist() == ROWS[7].tolist()
        with pickle.loads(pickle.dumps(old)) as twin:
            assert twin.sample_digest(DENSE) is None


def test_a_pickle_of_version_1_opens(tmp_path: Path) -> None:
    from penstock.records import _reopen

    path = npy(tmp_path)
    with pen.open(path) as source, _reopen(*source._recipe(), source.fingerprint) as twin:
        assert twin[5]["data"].tolist() == ROWS[5].tolist()
    with pytest.raises(SourceChangedError):
        _reopen(*source._recipe(), "another")


# How much is looked at


@given(count=st.integers(0, 10**6) | st.integers(10**9, 10**15), places=st.integers(4, 600))
def test_places_are_spread_over_everything(count: int, places: int) -> None:
    found = spread(count, places)
    assert found == sorted(set(found))
    assert len(found) == min(count, places)
    if count:
        assert (found[0], found[-1]) == (0, count - 1)
        longest = max(np.diff(found), default=0)
        assert longest <= 2 * -(-count // max(1, places - 2)) + 1


def test_the_pages_of_a_source_are_bounded_and_every_file_gives_some() -> None:
    for sizes in ([10**12], [10**9] * 5000, [10**12, 70_000, 1, 0], [1] * 100):
        pages = [page_ranges(size, share) for size, share in zip(sizes, shares_of(sizes, 512), strict=True)]
        assert sum(map(len, pages)) <= 512 + 3 * len(sizes)
        assert all(pages)
        assert all(0 <= low <= high <= size for size, ranges in zip(sizes, pages, strict=True) for low, high in ranges)
        assert sum(high - low for ranges in pages for low, high in ranges) <= (512 + 16 * len(sizes)) * SAMPLE_BYTES


def test_the_digest_of_a_file_is_remembered_until_it_changes(tmp_path: Path) -> None:
    old = Path(np.__file__)
    first = fingerprint.digest_files("x", [old], DENSE)
    hits = fingerprint._remembered.cache_info().hits
    assert fingerprint.digest_files("x", [old], DENSE) == first
    assert fingerprint._remembered.cache_info().hits == hits + 1
    new = tmp_path / "a.npy"
    np.save(new, ROWS)  # just now, so that another change might leave the time as it is
    held = fingerprint._remembered.cache_info().currsize
    fingerprint.digest_files("x", [new], DENSE)
    assert fingerprint._remembered.cache_info().currsize == held


# Digests of all records


def test_the_digest_of_all_records_is_the_same_in_every_format(tmp_path: Path) -> None:
    labels, texts = np.arange(3000), [None if number % 7 == 0 else f"text {number}" for number in range(3000)]
    memory = pen.open({"x": ROWS[:3000, :3], "y": labels, "t": pen.Ragged.from_items(texts, dtype=np.uint8, kind="text")})
    with pen.create(tmp_path / "a.pen", memory.schema, chunk_records=700) as out:
        out.extend(memory[:2000])
        out.extend(memory[2000:])
    with pen.open(tmp_path / "a.pen") as store, pen.open([store.select(slice(100)), store.select(slice(100, None))]) as joined:
        assert memory.digest() == store.digest() == joined.digest()
        assert store.pick("y").digest() != memory.digest()
        assert store.pick("y").digest() == pen.open({"y": labels}).digest() != pen.open({"z": labels}).digest()
        assert store.select(slice(None, None, -1)).digest() != memory.digest()


def test_the_digest_of_all_records_sees_one_bit() -> None:
    seen = set()
    for place in [None, *range(0, 40_000, 3_989)]:
        rows = ROWS.copy()
        if place is not None:
            rows[place, 5] ^= 1
        seen.add(pen.open(rows).digest())
    assert len(seen) == 12
    done = []
    pen.open(ROWS).digest(progress=lambda records, size: done.append((records, size)))
    assert np.sum(done, axis=0).tolist() == [40_000, ROWS.nbytes]


def test_digests_tell_missing_from_empty_and_one_split_from_another() -> None:
    items: list[list[Any]] = [["a", "bc"], ["ab", "c"], ["abc", ""], ["abc", None], ["abc"], ["", "abc"], [None, "abc"]]
    found = {pen.open({"t": pen.Ragged.from_items(one, dtype=np.uint8, kind="text")}).digest() for one in items}
    assert len(found) == len(items)
    masked = [np.ma.MaskedArray([5, 6], mask=[False, mask]) for mask in (False, True)]
    masked.append(np.ma.MaskedArray([5, 7], mask=[False, True]))
    one, other, same = (pen.open({"x": column}).digest() for column in masked)
    assert one != other == same
    assert one == pen.open({"x": np.array([5, 6])}).digest()


def store(directory: Path) -> Path:
    pen.convert(pen.open({"x": ROWS[:5000]}), directory / "a.pen")
    return directory / "a.pen"


MADE: dict[str, Callable[[Source], Source]] = {
    "plain": lambda source: source,
    "select": lambda source: source.select(slice(0, 100)),
    "pick": lambda source: source.pick(*source.schema),
    "list": lambda source: pen.open([source, source]),
    "dict": lambda source: pen.open({"a": source}),
}


@pytest.mark.parametrize(("kind", "made"), every(7, list(product([*KINDS, "store"], MADE))))
def test_a_digest_of_all_records_is_remembered_until_a_file_changes(
    tmp_path: Path, kind: str, made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store(tmp_path) if kind == "store" else KINDS[kind](tmp_path)
    file = next(path.glob("chunk/*")) if kind == "store" else path
    with pen.open(path) as opened:
        source, read = MADE[made](opened), []

        def digest() -> str:
            return source.digest(progress=lambda records, size: read.append(records))

        monkeypatch.setattr(system, "SETTLED_NS", 1 << 62)
        first = digest()
        once = len(read)
        assert digest() == first
        assert len(read) == 2 * once > 0  # files that were written just now: another change might leave their times as they are
        monkeypatch.setattr(system, "SETTLED_NS", -1)
        assert [digest(), digest(), digest()] == [first] * 3
        assert len(read) == 3 * once
        os.utime(file, ns=(1, 1))
        try:
            digest()
        except SourceChangedError:  # a map of the file is no longer trusted at all
            read += [0] * once
        assert len(read) == 4 * once


def test_a_file_without_a_name_has_a_digest_as_long_as_it_is_open(tmp_path: Path) -> None:
    path = npy(tmp_path)
    with pen.open(path) as source:
        expected = source.digest()
        path.unlink()
        assert source.digest() == expected
