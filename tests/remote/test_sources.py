"""Sources at URLs: found as files are, opened with few small requests, and equal to the same files on disk, record by record."""

import io
import os
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
from tests.array_record import write_array_record
from tests.golden.make_foreign import rox

import penstock as pen
from penstock.errors import (
    EmptyFileError,
    EmptySourceError,
    FormatError,
    MissingError,
    NoMatchError,
    SchemaMismatchError,
    SourceChangedError,
    StateMismatchError,
    TrailingBytesError,
    TruncatedError,
    UnsafePathError,
    UnsupportedTypeError,
    WindowTooSmallError,
)
from penstock.formats.array import NpySource, open_npy
from penstock.formats.rows import RowShards, open_rows
from penstock.formats.tokens import TokenBlocks, open_tokens
from penstock.records import DENSE, FEW
from penstock.remote.fetch import LoggedRequest
from penstock.remote.url import UrlPath, url_path
from penstock.source import encode_rows, write_collection, write_rows, write_tokens

ROWS = np.random.default_rng(0).standard_normal((61, 5)).astype(np.float32)
TOKENS = np.random.default_rng(1).integers(0, 2**16, 5000).astype(np.uint16)


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> UrlPath:
    """An empty store in memory, of this test alone."""
    return url_path(f"memory://{request.node.name.partition('[')[0]}-{abs(hash(request.node.name))}")


def put(place: UrlPath, data: bytes) -> str:
    place.objects.put(place.key, data)
    return str(place)


def put_npy(place: UrlPath, array: np.ndarray, version: tuple[int, int] | None = None) -> str:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    return put(place, file.getvalue())


def upload(directory: Path, place: UrlPath) -> str:
    """The files below a directory, under a URL."""
    for path in directory.rglob("*"):
        if path.is_file():
            put(place / path.relative_to(directory).as_posix(), path.read_bytes())
    return str(place)


def put_shards(place: UrlPath, *cuts: int) -> list[str]:
    """ROWS in several shards."""
    return [put(place / f"s{number:02d}.shard", encode_rows(part)) for number, part in enumerate(np.split(ROWS, cuts))]


def watched(place: UrlPath) -> list[LoggedRequest]:
    """The requests from now on."""
    place.objects.account.log = []
    return place.objects.account.log


# The same as on disk


@pytest.mark.parametrize("width", [1, 5, 8192])
def test_check_17_rows_and_batches_are_the_same_from_disk_and_from_a_store(bucket: UrlPath, tmp_path: Path, width: int) -> None:
    rows = np.random.default_rng(width).standard_normal((700, width)).astype(np.float32)
    write_rows(rows, tmp_path / "rows", max_shard_rows=300)
    url = upload(tmp_path / "rows", bucket / "rows")
    with pen.open(tmp_path / "rows") as local, pen.open(url) as remote:
        assert isinstance(remote, RowShards)
        assert remote.fingerprint == local.fingerprint
        assert (remote.blocks.size, remote.total_rows, remote.width) == (local.blocks.size, 700, width)
        assert (remote.reads_blocks, local.reads_blocks) == (True, False)
        for align in (False, True):
            for ours, theirs in zip(remote.batches(align=align), local.batches(align=align), strict=True):
                assert ours[0].tobytes() == theirs[0].tobytes()
                assert ours[1].tolist() == theirs[1].tolist()
        for threads in (0, 2):
            loaders = [
                pen.Loader(source.shuffle(seed=3, block=50, window=4), batch_size=64, threads=threads, ids="id")
                for source in (remote, local)
            ]
            for ours, theirs in zip(*loaders, strict=True):
                assert ours["id"].tolist() == theirs["id"].tolist()
                assert ours["row"].tobytes() == theirs["row"].tobytes()


def test_tokens_and_sequences_are_the_same_from_disk_and_from_a_store(bucket: UrlPath, tmp_path: Path) -> None:
    write_tokens([TOKENS], tmp_path / "x.rox", block_size=64, max_shard_bytes=3000)
    url = upload(tmp_path, bucket / "tokens")
    with pen.open(tmp_path) as local, pen.open(url) as remote:
        assert isinstance(remote, TokenBlocks)
        assert remote.fingerprint == local.fingerprint
        assert remote[:]["tokens"].values.tobytes() == TOKENS.tobytes()
        assert remote.documents(TOKENS[100]).tolist() == local.documents(TOKENS[100]).tolist()
        assert remote.read_tokens([0, 4900, 7], 100).tolist() == local.read_tokens([0, 4900, 7], 100).tolist()
        loaders = [pen.Loader(source.shuffle(seed=1, block=8, window=2).sequences(100), batch_size=8) for source in (remote, local)]
        for ours, theirs in zip(*loaders, strict=True):
            assert ours["tokens"].tobytes() == theirs["tokens"].tobytes()


@pytest.mark.parametrize("dtype", ["<i2", ">f8", "bool"])
def test_arrays_are_the_same_from_disk_and_from_a_store(bucket: UrlPath, tmp_path: Path, dtype: str) -> None:
    for number, rows in enumerate((30, 0, 1)):
        np.save(tmp_path / f"{number}.npy", (np.arange(rows * 6) % 5).astype(dtype).reshape(rows, 2, 3))
    url = upload(tmp_path, bucket / "arrays")
    with pen.open(tmp_path) as local, pen.open(url) as remote:
        assert isinstance(remote, NpySource)
        assert remote.fingerprint == local.fingerprint
        assert remote.schema == local.schema
        assert remote[::-1]["data"].tobytes() == local[::-1]["data"].tobytes()


def test_extents_are_where_the_records_are(bucket: UrlPath) -> None:
    put_shards(bucket, 0, 20, 20, 23)
    line = [TOKENS[low : low + 20] for low in range(0, 1000, 20)]
    for number, blocks in enumerate((line[:20], [], line[20:])):
        put(bucket / f"tokens/{number}.rox", rox([block.tobytes() for block in blocks], b"uint16"))
    with open_rows(str(bucket)) as rows, open_tokens(str(bucket / "tokens")) as tokens:
        ids = np.random.default_rng(0).integers(0, 61, 200)
        for source, some, stride in ((rows, ids, 20), (tokens, ids % 50, 40), (rows, np.arange(61), 20), (rows, ids[:0], 20)):
            assert source.remote is not None
            numbers, starts, stops = source.extents(some, some + 1)
            found = b"".join(
                source.remote.files[n][0].objects.read(source.remote.files[n][1], start, stop)
                for n, start, stop in zip(numbers.tolist(), starts.tolist(), stops.tolist(), strict=True)
            )
            name = next(iter(source.schema))
            assert found == source[some][name].tobytes()
            assert len(found) == len(some) * stride
        numbers, starts, stops = tokens.token_leaf.extents(np.array([390, 5, 0]), np.array([410, 5, 1000]))
        assert list(zip(numbers.tolist(), starts.tolist(), stops.tolist(), strict=True)) == [
            (0, 780, 800),
            (2, 0, 20),
            (0, 0, 800),
            (2, 0, 1200),
        ]


def test_a_read_larger_than_the_window_is_cut_and_a_record_larger_than_it_is_refused(bucket: UrlPath) -> None:
    rows = np.random.default_rng(0).standard_normal((300, 4096)).astype(np.float32)
    url = put(bucket / "wide.shard", encode_rows(rows))
    with pen.open(url, window_bytes=100_000) as source:
        assert source[:]["row"].tobytes() == rows.tobytes()
        assert source.remote.most_bytes <= 100_000
    with pen.open(url, window_bytes="4KiB") as source, pytest.raises(WindowTooSmallError, match="window_bytes"):
        source[0]
    put(bucket / "long.rox", rox([TOKENS.tobytes()] * 40, b"uint16"))
    with pen.open(str(bucket / "long.rox"), window_bytes=100_000) as source:
        assert source.read_tokens([0, 1, 2], 60_000 // 3).shape == (3, 20_000)
        assert source[:]["tokens"].tobytes() == TOKENS.tobytes() * 40
        assert source.read_tokens([0, 1, 2], 0).shape == (3, 0)
        assert source.read_tokens([], 5).shape == (0, 5)


def test_records_of_no_bytes_and_sources_of_no_records(bucket: UrlPath) -> None:
    put_npy(bucket / "a/0.npy", np.zeros((5, 0)))
    put_npy(bucket / "b/0.npy", np.zeros((0, 3)))
    put(bucket / "c/0.rox", rox([], b"uint16"))
    put(bucket / "d/0.rox", rox([b"", b""], b"uint16"))
    for name, length in (("a", 5), ("b", 0), ("c", 0), ("d", 2)):
        with pen.open(f"{bucket}/{name}") as source:
            assert len(source) == length
            assert {len(column) for column in source[:].values()} == {length}
            if length:
                assert sum(1 for _ in pen.Loader(source.shuffle(seed=1), batch_size=1)) == length


# What is asked for


def gets(log: Sequence[LoggedRequest]) -> list[tuple[str, int, int]]:
    """The ranges that were asked for; from the end, without a start, as (key, -1, -1)."""
    asked = [(key, start, stop) for method, key, start, stop in log if method == "GET"]
    return sorted((key, -1 if start is None else start, -1 if stop is None else stop) for key, start, stop in asked)


def test_check_21_opening_shards_reads_32_bytes_each_and_no_payload(bucket: UrlPath) -> None:
    urls = put_shards(bucket / "rows", *range(1, 40))
    heads = sorted((url.removeprefix(f"{bucket}/"), 0, 32) for url in urls)
    log = watched(bucket)
    for what, listings in ((f"{bucket}/rows/*.shard", 1), (urls, 0), (bucket / "rows", 1)):
        with open_rows(what) as source:
            assert source.total_rows == 61
            assert gets(log) == heads
            assert [method for method, *_ in log if method != "GET"] == ["LIST"] * listings
            log.clear()
            assert source[60]["row"].tolist() == ROWS[60].tolist()
            assert gets(log) == [("rows/s39.shard", 32 + 20 * 21, 32 + 20 * 22)]
            log.clear()


def test_opening_tokens_reads_footers_and_indices(bucket: UrlPath) -> None:
    urls = [put(bucket / f"{n}.rox", rox([TOKENS[:100].tobytes()] * 3, b"uint16")) for n in range(3)]
    log = watched(bucket)
    with pen.open(urls) as source:
        assert len(source) == 9
    with pen.open(f"{bucket}/*.rox") as source:
        assert len(source) == 9
    assert gets(log) == sorted((f"{n}.rox", *part) for n in range(3) for part in ((-1, -1), (600, 624), (624, 656), (600, 624)))


def test_opening_arrays_reads_128_bytes_and_more_only_of_longer_headers(bucket: UrlPath) -> None:
    put_npy(bucket / "a.npy", np.arange(1000))
    put_npy(bucket / "b.npy", np.arange(1000), (3, 0))
    header = "{'descr': '<i8', 'fortran_order': False, 'shape': (2,)}".ljust(500)
    put(bucket / "c.npy", b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode() + bytes(16))
    log = watched(bucket)
    with pen.open(f"{bucket}/*.npy") as source:
        assert len(source) == 2002
    assert gets(log) == [("a.npy", 0, 128), ("b.npy", 0, 128), ("c.npy", 0, 128), ("c.npy", 0, 510)]


def test_fingerprints_are_sampled_once_and_travel_with_pickles(bucket: UrlPath, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((40_000, 8)).astype(np.float32)
    write_rows(rows, tmp_path / "large.shard")
    with pen.open(tmp_path / "large.shard") as local, pen.open(upload(tmp_path, bucket) + "/large.shard") as remote:
        log = watched(bucket)
        assert remote.fingerprint == local.fingerprint
        size = (tmp_path / "large.shard").stat().st_size
        samples = [(start, start + 4096) for start in (0, size // 2, size - 4096)]
        assert gets(log) == [("large.shard", *sample) for sample in sorted(samples)]
        log.clear()
        with pickle.loads(pickle.dumps(remote)) as twin:
            assert twin.fingerprint == local.fingerprint
            assert log == []
            assert twin[39_999]["row"].tolist() == rows[39_999].tolist()


def test_sample_digests_take_few_requests_and_are_those_of_the_files(bucket: UrlPath, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((40_000, 8)).astype(np.float32)
    (tmp_path / "one").mkdir()
    write_rows(rows, tmp_path / "one/large.shard")
    write_rows(rows, tmp_path / "many", max_shard_rows=2000)
    for name, most in (("one", 32), ("many", 3 * 20)):
        with pen.open(tmp_path / name) as local, pen.open(upload(tmp_path / name, bucket / f"other {name}")) as remote:
            log = watched(bucket)
            assert remote.sample_digest(FEW) == local.sample_digest(FEW)
            assert len(gets(log)) <= most
            assert remote.sample_digest(DENSE) is None
            log.clear()
            assert remote.sample_digest(FEW) == local.sample_digest(FEW)
            assert log == []


def test_pages_that_the_fingerprint_has_read_are_not_asked_for_again(bucket: UrlPath, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((40_000, 8)).astype(np.float32)
    write_rows(rows, tmp_path / "rows", max_shard_rows=2000)
    with pen.open(tmp_path / "rows") as local, pen.open(upload(tmp_path / "rows", bucket / "rows")) as remote:
        assert remote.fingerprint == local.fingerprint
        log = watched(bucket)
        assert remote.sample_digest(FEW) == local.sample_digest(FEW)
        assert gets(log) == []


def test_objects_that_were_replaced_by_others_of_the_same_size_are_refused(bucket: UrlPath, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((100_000, 8)).astype(np.float32)
    put(bucket / "a.shard", encode_rows(rows))
    with pen.open(f"{bucket}/a.shard") as source:
        state = pen.Loader(source.shuffle(seed=7, block=100), 64).state_dict()
    rows[10_000:30_000] += 1
    put(bucket / "a.shard", encode_rows(rows))
    with pen.open(f"{bucket}/a.shard") as source, pytest.raises(StateMismatchError, match="data"):
        pen.Loader(source.shuffle(seed=7, block=100), 64).load_state_dict(state)


def test_a_pickle_asks_for_nothing_and_data_that_was_replaced_is_refused(bucket: UrlPath) -> None:
    urls = [*put_shards(bucket), put_npy(bucket / "a.npy", ROWS), put(bucket / "a.rox", rox([TOKENS.tobytes()] * 3, b"uint16"))]
    for url, data in zip(urls, (encode_rows(ROWS + 1), b"x", b"x"), strict=True):
        with pen.open(url) as source:
            recipe = pickle.dumps(source)
            log = watched(bucket)
            with pickle.loads(recipe) as twin:
                assert log == []
                assert repr(twin[-1]) == repr(source[-1])
            put(url_path(url), data)
            with pickle.loads(recipe) as twin, pytest.raises(SourceChangedError):
                twin[0]


# Names


def test_check_20_shards_are_in_the_order_of_their_name_bytes_and_lists_keep_theirs(bucket: UrlPath) -> None:
    urls = [put(bucket / f"s{n}.shard", encode_rows(np.full((1, 1), n, np.float32))) for n in (2, 10)]
    for what in (str(bucket), f"{bucket}/", f"{bucket}/s*.shard"):
        with pen.open(what) as source:
            assert source["row"][:].tolist() == [[10], [2]]
    with pen.open(urls) as source:
        assert source["row"][:].tolist() == [[2], [10]]


NAMES = [
    "a.npy", "b.npy", "B.npy", "b2.npy", ".hidden.npy", "c.txt", "[x].npy", "ü.npy", "a b.npy", "100%.npy", "a+b=c.npy", "d/a.npy",
    "d/e/a.npy", "d/.h/a.npy", "d-e/a.npy", "d.npy/inner.npy", "D/a.npy", "x/1.npy", "x/10.npy", "x/2.npy", "d/e/f/g/a.npy",
]  # fmt: skip
PATTERNS = [
    "*.npy", "?.npy", "[ab].npy", "[!a].npy", "[b-c]*.npy", "**/*.npy", "**/a.npy", "d/**/a.npy", "*/a.npy", "d*/a.npy", "x/*.npy",
    "d/?/a.npy", ".*.npy", "d/.h/*.npy", "[[]x].npy", "*/*/*.npy", "a*", "**/e/**/*.npy", "d/e/f/g/*", "ü*", "* *", "*%*", "*.NPY",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_find_the_same_names_in_the_same_order_as_on_disk(bucket: UrlPath, tmp_path: Path, pattern: str) -> None:
    for number, name in enumerate(NAMES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "x.tmp.npy", np.array([number]))
        os.replace(tmp_path / "x.tmp.npy", tmp_path / name)
    upload(tmp_path, bucket)
    found: list[Any] = []
    for root in (str(tmp_path), str(bucket)):
        try:
            with pen.open(f"{root}/{pattern}") as source:
                found.append(source["data"][:].tolist())
        except (FormatError, NoMatchError) as error:
            found.append(type(error))
    assert found[0] == found[1]


def test_an_object_whose_name_is_a_pattern_is_that_object(bucket: UrlPath) -> None:
    for number, name in enumerate(("a*.npy", "ab.npy", "a[1].npy", "a1.npy")):
        put_npy(bucket / name, np.array([number]))
    for number, name in enumerate(("a*.npy", "ab.npy", "a[1].npy", "a1.npy")):
        with pen.open(f"{bucket}/{name}") as source:
            assert source["data"][:].tolist() == [number]


def test_directories_and_stores_whose_names_are_patterns_open_by_name_and_by_pattern(bucket: UrlPath) -> None:
    for number, name in enumerate(("run[1]", "run1", "run?")):
        pen.convert({"data": np.array([number])}, bucket / name / "a.pen")
        put_npy(bucket / name / "arrays/x.npy", np.array([number]))
        for what in (bucket / name / "a.pen", bucket / name / "arrays", f"{bucket}/{name}/arrays/x.npy"):
            with pen.open(what) as source:
                assert source["data"][:].tolist() == [number]
        with open_npy(bucket / name / "arrays") as source:
            assert source["data"][:].tolist() == [number]
    for pattern in ("run*/a.pen", "run*/arrays", "*/*.pen", "run*/arrays/*.npy"):
        with pen.open(f"{bucket}/{pattern}") as source:
            assert source["data"][:].tolist() == [1, 2, 0]


def test_empty_objects_that_stand_for_directories_are_left_out(bucket: UrlPath) -> None:
    put(bucket / "x", b"")
    put(bucket / "x/y", b"")
    put(bucket / "x-1", b"")
    put_npy(bucket / "x/a.npy", np.arange(3))
    put_npy(bucket / "x/y/b.npy", np.arange(3))
    with pen.open(f"{bucket}/x") as source:
        assert len(source) == 3


def test_a_format_follows_from_the_content_if_the_suffix_says_nothing(bucket: UrlPath) -> None:
    put_npy(bucket / "an array", np.arange(3))
    put(bucket / "rows.bin", encode_rows(ROWS))
    put(bucket / "tokens", rox([TOKENS.tobytes()], b"uint16"))
    put(bucket / "unknown.xyz", b"something else, and quite long")
    put(bucket / "short", b"x")
    put(bucket / "empty", b"")
    for name, kind in (("an array", NpySource), ("rows.bin", RowShards), ("tokens", TokenBlocks)):
        with pen.open(f"{bucket}/{name}") as source:
            assert isinstance(source, kind)
    for name in ("unknown.xyz", "short"):
        with pytest.raises(FormatError, match=rf"{name}: neither its suffix nor its content"):
            pen.open(f"{bucket}/{name}")
    with pytest.raises(EmptyFileError, match="empty"):
        pen.open(f"{bucket}/empty")


def test_token_shards_open_by_directory_prefix_pattern_and_name(bucket: UrlPath, tmp_path: Path) -> None:
    write_tokens([TOKENS], tmp_path / "x.rox", block_size=64, max_shard_bytes=1500)
    (tmp_path / "x_2.rox").write_bytes((tmp_path / "x_000003.rox").read_bytes())
    (tmp_path / "xy_000000.rox").write_bytes((tmp_path / "x_000003.rox").read_bytes())
    upload(tmp_path, bucket / "tokens")
    for name in ("", "/x", "/x.rox", "/x_*.rox", "/x_000001.rox"):
        with pen.open(f"{tmp_path}{name}") as local, pen.open(f"{bucket}/tokens{name}") as remote:
            assert remote.fingerprint == local.fingerprint
            assert remote.num_tokens == local.num_tokens
    with open_tokens([f"{bucket}/tokens/x", f"{bucket}/tokens/xy_000000.rox"]) as source:
        assert source.num_tokens > TOKENS.size
    for name in ("nothing", "nothing.rox", "x_", "x_00"):
        with pytest.raises(MissingError, match=name):
            pen.open(f"{bucket}/tokens/{name}")
        with pytest.raises(MissingError, match=name):
            open_tokens(f"{bucket}/tokens/{name}")


def test_a_url_with_a_suffix_can_be_a_directory(bucket: UrlPath) -> None:
    put_npy(bucket / "arrays.npy/a.npy", np.arange(3))
    with pen.open(f"{bucket}/arrays.npy") as source:
        assert len(source) == 3


# Lists and dicts


def test_urls_and_paths_go_together(bucket: UrlPath, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(5))
    remote = put_npy(bucket / "b.npy", np.arange(5, 9))
    put_npy(bucket / "more/c.npy", np.arange(9, 11))
    for part in (remote, url_path(remote), pen.open(remote)):
        with pen.open([tmp_path / "a.npy", part, f"{bucket}/more"]) as source:
            assert source["data"][:].tolist() == list(range(11))
            assert source.reads_blocks
    with pen.open({"x": tmp_path / "a.npy", "y": put_npy(bucket / "y.npy", np.arange(5) * 2), "n": list("abcde")}) as source:
        assert source[3] == {"x": 3, "y": 6, "n": "d"}
        [batch] = pen.Loader(source.in_order(), batch_size=5)
        assert batch["y"].tolist() == [0, 2, 4, 6, 8]
    with pen.open([tmp_path / "a.npy", remote], window_bytes="1MiB") as source:
        assert len(source) == 9
    with pen.open({"x": [url_path(remote), remote]}) as source:
        assert len(source) == 8
    with pytest.raises(ValueError, match="got both"):
        open_npy([tmp_path / "a.npy", remote])


def test_parts_of_several_formats_are_concatenated(bucket: UrlPath) -> None:
    put_npy(bucket / "a/x.npy", ROWS[:3])
    put(bucket / "b.shard", encode_rows(ROWS[3:]))
    with open_rows(str(bucket / "b.shard"), field="data") as rows, pen.open([f"{bucket}/a/x.npy", rows]) as source:
        assert source["data"][:].tobytes() == ROWS.tobytes()
    put_npy(bucket / "c/part-0/x.npy", np.arange(3))
    put_npy(bucket / "c/part-1/x.npy", np.arange(3, 5))
    with pen.open(f"{bucket}/c/part-*") as source:
        assert source["data"][:].tolist() == [0, 1, 2, 3, 4]


def test_parts_share_one_window(bucket: UrlPath) -> None:
    urls = [put_npy(bucket / f"{n:02d}.npy", np.arange(n, n + 1)) for n in range(20)]
    write_collection(urls, bucket / "all.json")
    put_npy(bucket / "x/20.npy", np.arange(20, 21))
    for what in ([*urls, f"{bucket}/x"], f"{bucket}/all.json", [urls[0], f"{bucket}/x"]):
        with pen.open(what, window_bytes=80_000) as source:
            assert source["data"][:].tolist()[-1] in (19, 20)
            with source._parts.use(0) as part, source._parts.use(1) as other:
                assert part.remote.window is other.remote.window
                assert part.remote.window_bytes == 80_000
                assert part.remote.most_bytes <= 80_000


# Collections


def test_a_collection_at_a_url_names_parts_beside_it_and_at_other_urls(bucket: UrlPath, tmp_path: Path) -> None:
    other = url_path(f"memory://other-{bucket.objects.host}")
    parts = [put_npy(bucket / "c/a.npy", np.arange(3)), put_npy(bucket / "c/sub/b.npy", np.arange(3, 5))]
    parts += [put_npy(other / "c.npy", np.arange(5, 9))]
    write_collection([parts[0], url_path(parts[1]), parts[2]], f"{bucket}/c/all.json")
    content = bucket.objects.read_all("c/all.json", 1 << 20).decode()
    assert '"url": "a.npy"' in content
    assert '"url": "sub/b.npy"' in content
    assert f'"url": "{other}/c.npy"' in content
    log = watched(bucket)
    with pytest.raises(UnsafePathError, match=r"c/all\.json.*found 'memory://other-.*allow_urls"):
        pen.open(f"{bucket}/c/all.json")
    with pen.open(f"{bucket}/c/all.json", allow_urls=True) as source:
        assert len(source) == 9
        assert {key for _, key, *_ in log} == {"c/all.json"}
        assert source.reads_blocks
        assert source["data"][::-1].tolist() == list(range(8, -1, -1))
    np.save(tmp_path / "local.npy", np.arange(3))
    with pytest.raises(UnsafePathError, match="at URLs too"):
        write_collection([tmp_path / "local.npy"], f"{bucket}/c/bad.json")
    put_npy(bucket / "c/a.npy", np.arange(1, 4))
    with pen.open(f"{bucket}/c/all.json", allow_urls=True) as source, pytest.raises(SourceChangedError, match=r"a\.npy"):
        source[0]


@pytest.mark.parametrize("url", ["../x.npy", "/etc/passwd", "a/../../x.npy", "file:///etc/passwd", "a\0.npy", "", "gopher://x/y"])
def test_hostile_collections_at_urls_are_refused(bucket: UrlPath, url: str) -> None:
    write_collection([put_npy(bucket / "a.npy", np.arange(3))], f"{bucket}/all.json")
    content = bucket.objects.read_all("all.json", 1 << 20).decode()
    put(bucket / "bad.json", content.replace('"a.npy"', repr(url).replace("'", '"').replace("\\x00", "\\u0000")).encode())
    with pytest.raises(UnsafePathError, match=r"bad\.json"):
        pen.open(f"{bucket}/bad.json")


# What is refused


def test_what_is_not_there_is_missing(bucket: UrlPath) -> None:
    put_npy(bucket / "a.npy", np.arange(3))
    for name in ("b.npy", "b.shard", "b.json", "b", "b/c", "a.npy/b"):
        with pytest.raises(MissingError, match=f"{bucket}/{name}"):
            pen.open(f"{bucket}/{name}")
    with pytest.raises(MissingError, match=r"b\.npy"):
        pen.open([f"{bucket}/a.npy", f"{bucket}/b.npy"])
    with pytest.raises(NoMatchError, match=r"no object matches"):
        pen.open(f"{bucket}/*.shard")
    with pytest.raises(NoMatchError, match=r"expected objects named \*\.shard"):
        open_rows(str(bucket))


@pytest.mark.parametrize("url", ["/../x.npy", "/a/../../x.npy", "/./x.npy", "/a//x.npy", "/a\0.npy", "/a\n.npy"])
def test_check_24_names_that_lead_elsewhere_are_refused(bucket: UrlPath, url: str) -> None:
    for open_it in (pen.open, open_npy):
        with pytest.raises(UnsafePathError):
            open_it(f"{bucket}{url}")


@pytest.mark.parametrize("name", ["a.h5", "a.arrow", "a.feather", "a.array_record"])
def test_formats_whose_packages_need_files_say_so(bucket: UrlPath, name: str) -> None:
    put(bucket / name, b"anything")
    for what in (f"{bucket}/{name}", f"{bucket}/a*", [f"{bucket}/{name}"], str(bucket)):
        with pytest.raises(
            ValueError, match=r"needs files: pass cache='a directory' to copy the 8 bytes to this machine, or convert"
        ):
            pen.open(what)


def _write_hdf5(path: Path, low: int) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(low, low + 50)


def _write_arrow(path: Path, low: int) -> None:
    table = pa.table({"x": np.arange(low, low + 50)})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table)


def _write_records(path: Path, low: int) -> None:
    write_array_record(path, [str(number).encode() for number in range(low, low + 50)])


COPIED = {"h5": _write_hdf5, "arrow": _write_arrow, "array_record": _write_records}


@pytest.mark.parametrize("suffix", COPIED)
def test_files_for_packages_that_need_them_are_copied_once(bucket: UrlPath, tmp_path: Path, suffix: str) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for number in range(3):
        COPIED[suffix](here / f"{number}.{suffix}", 50 * number)
        put(bucket / f"{number}.{suffix}", (here / f"{number}.{suffix}").read_bytes())
    counts = bucket.objects.account
    with pen.open(f"{here}/*.{suffix}") as local, pen.open(f"{bucket}/*.{suffix}", cache=tmp_path / "cache") as copied:
        field = next(iter(local.schema))
        assert copied.fingerprint == local.fingerprint
        assert copied.schema == local.schema
        ours, theirs = (list(pen.Loader(data.shuffle(seed=1), 16, ids="id")) for data in (local, copied))
        assert [one["id"].tolist() for one in ours] == [one["id"].tolist() for one in theirs]
        assert all(list(one[field]) == list(other[field]) for one, other in zip(ours, theirs, strict=True))
    before = counts.snapshot().bytes
    with pen.open([f"{bucket}/{number}.{suffix}" for number in range(3)], cache=tmp_path / "cache") as again:
        assert len(again) == 150
    assert counts.snapshot().bytes == before
    COPIED[suffix](here / f"new.{suffix}", 1000)
    put(bucket / f"0.{suffix}", (here / f"new.{suffix}").read_bytes())
    with pen.open(f"{bucket}/0.{suffix}", cache=tmp_path / "cache") as new, pen.open(here / f"new.{suffix}") as same:
        assert list(new[0].values()) == list(same[0].values())
    shutil.rmtree(tmp_path / "cache-files")
    with pytest.raises(
        ValueError, match=r"does not fit into .*cache-files, which may have 10 in all: remove files there, or raise"
    ):
        pen.open(f"{bucket}/1.{suffix}", cache=tmp_path / "cache", cache_bytes=10)


def test_archives_pickles_and_mixed_formats_are_refused(bucket: UrlPath) -> None:
    for suffix in (".npz", ".pkl", ".pt"):
        put(bucket / f"x{suffix}", b"anything")
        for what in (f"{bucket}/x{suffix}", [f"{bucket}/x{suffix}"], f"{bucket}/*{suffix}"):
            with pytest.raises(UnsupportedTypeError, match=r"zip archive|executed"):
                pen.open(what)
    put_npy(bucket / "d/a.npy", np.arange(3))
    put(bucket / "d/b.shard", encode_rows(ROWS))
    with pytest.raises(SchemaMismatchError, match="npy, rows"):
        pen.open(f"{bucket}/d")


def test_unknown_options_are_refused(bucket: UrlPath) -> None:
    url = put_npy(bucket / "a.npy", np.arange(3))
    with pytest.raises(TypeError, match="no_such_option"):
        pen.open(url, no_such_option=1)
    with pytest.raises(ValueError, match="window_bytes"):
        pen.open(url, window_bytes=-1)
    with pytest.raises(ValueError, match="storage_options"):
        pen.open(url, storage_options={"no_such_option": "1"})


Make = Callable[[bytes], bytes]

DAMAGED: list[tuple[str, Make, type[Exception]]] = [
    ("o08_no_bytes", lambda raw: b"", EmptyFileError),
    ("o09_short_header", lambda raw: raw[:31], TruncatedError),
    ("o09_payload_cut", lambda raw: raw[:-1], TruncatedError),
    ("o09_payload_longer", lambda raw: raw + b"x", TrailingBytesError),
    ("o09_bad_magic", lambda raw: b"X" + raw[1:], FormatError),
    ("o09_bad_dtype", lambda raw: raw[:24] + b"\1" + raw[25:], UnsupportedTypeError),
    ("o09_no_width", lambda raw: raw[:16] + bytes(8) + raw[24:], FormatError),
]


@pytest.mark.parametrize(("make", "error"), [case[1:] for case in DAMAGED], ids=[case[0] for case in DAMAGED])
def test_damaged_shards_are_found_when_they_are_opened(bucket: UrlPath, make: Make, error: type[Exception]) -> None:
    put(bucket / "good.shard", encode_rows(ROWS))
    put(bucket / "x.shard", make(encode_rows(ROWS)))
    for what in (f"{bucket}/x.shard", f"{bucket}/*.shard", [f"{bucket}/good.shard", f"{bucket}/x.shard"]):
        with pytest.raises(error, match=r"x\.shard") as caught:
            pen.open(what)
        assert type(caught.value) is error


def test_o08_shards_without_rows_are_skipped_and_nothing_but_them_is_refused(bucket: UrlPath) -> None:
    put_shards(bucket, 0, 20, 20, 23)
    with pen.open(str(bucket)) as source:
        assert source["row"][:].tobytes() == ROWS.tobytes()
        assert [len(ids) for _, ids in source.batches(align=True)] == [20, 3, 38]
    put(bucket / "none/a.shard", encode_rows(ROWS[:0]))
    with pytest.raises(EmptySourceError, match=r"none/a\.shard"):
        pen.open(f"{bucket}/none")
    put(bucket / "mixed/a.shard", encode_rows(ROWS))
    put(bucket / "mixed/b.shard", encode_rows(ROWS[:, :4]))
    with pytest.raises(SchemaMismatchError, match=r"b\.shard: expected rows of 5 values"):
        pen.open(f"{bucket}/mixed")


def test_damaged_tokens_and_arrays_are_found_when_they_are_opened(bucket: UrlPath) -> None:
    whole = rox([TOKENS.tobytes()], b"uint16")
    for number, (raw, error) in enumerate(
        ((whole[:31], TruncatedError), (whole[:-1], FormatError), (whole[1:], TruncatedError), (b"", EmptyFileError))
    ):
        put(bucket / f"{number}.rox", raw)
        with pytest.raises(error, match=rf"{number}\.rox"):
            pen.open(f"{bucket}/{number}.rox")
    put_npy(bucket / "a.npy", np.arange(100))
    raw = bucket.objects.read_all("a.npy", 1 << 20)
    for number, (part, error) in enumerate(
        ((raw[:9], TruncatedError), (raw[:50], TruncatedError), (raw[:-1], TruncatedError), (raw + b"x", TrailingBytesError))
    ):
        put(bucket / f"{number}.npy", part)
        with pytest.raises(error, match=rf"{number}\.npy"):
            pen.open(f"{bucket}/{number}.npy")


def test_a_closed_source_reads_no_more(bucket: UrlPath) -> None:
    [url] = put_shards(bucket)
    source = pen.open(url)
    source.close()
    source.close()
    with pytest.raises(ValueError, match="closed"):
        source[0]
