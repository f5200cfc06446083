"""Records that are spans of files: a small format of its own, with every kind of field, and the sidecars of its files."""

import errno
import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.remote.store_kit import memory_url

import penstock as pen
from penstock import Field, _core
from penstock.errors import BatchError, CorruptError, PenstockError, SchemaMismatchError, SourceChangedError
from penstock.formats import spans
from penstock.formats.files import Files, Names, find_files
from penstock.formats.sidecar import SUFFIX
from penstock.formats.spans import FileSpans, ScannedFile, SpanField, SpanIndex, SpanOptions, SpanSource
from penstock.records import Recipe, Source
from penstock.remote.window import RemoteOptions
from penstock.testing import SourceSuite

Record = dict[str, Any]

FIELDS = {
    "image": SpanField(Field.bytes()),
    "label": SpanField(Field("i8")),
    "pair": SpanField(Field("f4", (2,))),
    "caption": SpanField(Field.text()),
    "codes": SpanField(Field.ragged("i4")),
    "name": SpanField(Field.text(), "key"),
}
IN_FILE = ("image", "label", "pair", "caption", "codes")


def record_of(i: int) -> Record:
    return {
        "image": bytes(range(i % 7)) * (i % 3),
        "label": np.int64(i * i),
        "pair": np.array([i, -i], np.float32) if i % 4 else None,
        "caption": f"Bild {i} \N{SNOWMAN}" if i % 5 else None,
        "codes": np.arange(i % 6, dtype=np.int32),
        "name": f"n{i}",
    }


RECORDS = [record_of(i) for i in range(40)]


def encode(records: list[Record]) -> bytes:
    """The bytes of all fields, one after the other, with a gap behind each record; a table of them in JSON; its size."""
    body, table = bytearray(b"BLOB"), []
    for record in records:
        row: list[Any] = []
        for name in IN_FILE:
            value = record[name]
            data = b"" if value is None else value.encode() if isinstance(value, str) else value
            data = data if isinstance(data, bytes) else data.tobytes()
            row.append([len(body), -1 if value is None else len(data)])
            body += data
        table.append([*row, record["name"]])
        body += b"~" * 5
    tail = json.dumps(table).encode()
    return bytes(body) + tail + len(tail).to_bytes(4, "little")


scanned: list[str] = []


def scan(file: ScannedFile) -> FileSpans:
    scanned.append(str(file))
    if file.read(0, 4).tobytes() != b"BLOB":
        raise CorruptError(f"{file}: expected BLOB")
    size = int(file.read(file.size - 4, file.size).view("<u4")[0])
    rows = json.loads(file.read(file.size - 4 - size, file.size - 4).tobytes())
    keys, words = bytearray(), []
    for *places, key in rows:
        words.append([number for place in places for number in place] + [len(keys), len(key)])
        keys += key.encode()
    table = np.array(words, np.int64).reshape(len(rows), 2 * len(IN_FILE) + 2)
    return FileSpans([*IN_FILE, "key"], table, np.frombuffer(bytes(keys), np.uint8), len(IN_FILE))


class BlobSource(SpanSource):
    def __init__(self, files: Files, how: SpanOptions, fields: Any = None) -> None:
        self._how, self._chosen = how, fields
        super().__init__(SpanIndex("blob", files, scan, how), FIELDS if fields is None else fields)

    def _identity(self) -> tuple[Any, ...]:
        return "blob", list(self.schema)

    def _recipe(self) -> Recipe:
        return (BlobSource, (self._files, self._how, self._chosen))


def open_blobs(what: Names, fields: Any = None, **options: Any) -> BlobSource:
    return BlobSource(find_files(what, (".blob",)), SpanOptions(2, **options), fields)


def write(directory: Path, cuts: tuple[int, ...] = (0, 11, 11, 40)) -> Path:
    directory.mkdir(exist_ok=True)
    for number, (low, high) in enumerate(itertools.pairwise(cuts)):
        (directory / f"{number}.blob").write_bytes(encode(RECORDS[low:high]))
    return directory


def put(place: Any) -> Any:
    for number, (low, high) in enumerate(((0, 11), (11, 11), (11, 40))):
        place.objects.put(f"{place.key}/{number}.blob", encode(RECORDS[low:high]))
    return place


@pytest.fixture(autouse=True)
def nothing_scanned() -> None:
    scanned.clear()


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files may be trusted from the moment they were written, and small ones have sidecars."""
    monkeypatch.setattr("penstock.system.SETTLED_NS", -(10**9))
    monkeypatch.setattr(spans, "KEPT_BYTES", 1)


class TestSpans(SourceSuite):
    def make(self, directory: Path) -> Source:
        return open_blobs(write(directory / "data"))

    def records(self) -> list[Record]:
        return RECORDS


class TestSpansByPread(TestSpans):
    def make(self, directory: Path) -> Source:
        return open_blobs(write(directory / "data"), io="pread")


@pytest.mark.usefixtures("settled")
class TestSpansOfSidecars(TestSpans):
    def make(self, directory: Path) -> Source:
        write(directory / "data")
        open_blobs(directory / "data").close()
        return open_blobs(directory / "data")


def assert_equal(found: Any, expected: Any) -> None:
    assert list(found) == list(expected)
    for name, other in expected.items():
        if isinstance(other, pen.Ragged):
            assert list(map(plain, found[name])) == list(map(plain, other))
        else:
            assert np.ma.getmaskarray(found[name]).tolist() == np.ma.getmaskarray(other).tolist()
            assert np.ma.filled(found[name], 0).tolist() == np.ma.filled(other, 0).tolist()


def plain(item: Any) -> Any:
    return item.tolist() if isinstance(item, np.ndarray) else item


def test_objects_are_read_through_a_small_window(tmp_path: Path):
    place = put(memory_url("data"))
    with open_blobs(write(tmp_path / "data")) as local, open_blobs(place, remote=RemoteOptions(window_bytes="64KiB")) as data:
        assert data.remote is not None
        assert_equal(data[:], local[:])
        assert data.remote.most_bytes <= 64 << 10


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("chosen", [list(FIELDS), ["label", "pair"], ["image", "codes"], ["name"]], ids=len)
def test_loaders_read_natively_what_the_source_reads(tmp_path: Path, remote: bool, chosen: list[str]):
    with open_blobs(put(memory_url("data")) if remote else write(tmp_path / "data")) as data:
        seen: list[int] = []
        with pen.Loader(data.pick(*chosen).shuffle(seed=3, block=8), 7, threads=2, ids="id") as loader:
            for batch in loader:
                ids = batch.pop("id")
                assert_equal(batch, data.read(ids, chosen))
                seen += ids.tolist()
            assert loader.engine == "native"
        assert sorted(seen) == list(range(40))


@pytest.mark.usefixtures("settled")
def test_files_are_scanned_once_and_again_when_they_change(tmp_path: Path):
    path = write(tmp_path / "data")
    with open_blobs(path):
        assert sorted(scanned) == [str(path / f"{n}.blob") for n in range(3)]
    assert sum(name.endswith(SUFFIX) for name in os.listdir(path)) == 3
    with open_blobs(path) as again:
        assert len(scanned) == 3
        assert again["name"][39] == "n39"
    (path / "1.blob").write_bytes(encode(RECORDS[:2]))
    with open_blobs(path) as changed:
        assert scanned[3:] == [str(path / "1.blob")]
        assert len(changed) == 42


@pytest.mark.usefixtures("settled")
def test_a_file_that_is_listed_several_times_is_scanned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.formats.sidecar.cache_directory", lambda: tmp_path / "cache")
    path = write(tmp_path / "data")
    with open_blobs([path / "1.blob", path / "0.blob", *[path / "1.blob"] * 6]) as data:
        one = open_blobs(path / "1.blob")["name"][:].to_list()
        assert data["name"][:].to_list() == one + open_blobs(path / "0.blob")["name"][:].to_list() + 6 * one
    assert sorted(scanned) == [str(path / f"{n}.blob") for n in range(2)]
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("settled")
def test_a_bad_file_does_not_undo_the_work_on_others(tmp_path: Path):
    path = write(tmp_path / "data", tuple(range(0, 41, 4)))
    (path / "9.blob").write_bytes(b"BLOT" + encode([])[4:])
    with pytest.raises(CorruptError, match=r"9\.blob: expected BLOB"):
        open_blobs(path)
    kept = [name for name in os.listdir(path) if name.endswith(SUFFIX)]
    assert kept
    (path / "9.blob").write_bytes(encode(RECORDS[36:]))
    scanned.clear()
    with open_blobs(path) as data:
        assert len(scanned) == 10 - len(kept)
        assert data["label"][:].tolist() == [i * i for i in range(40)]


def large_sidecar(path: Path) -> Path:
    """The sidecar of a file of many records."""
    path.mkdir()
    (path / "0.blob").write_bytes(encode(RECORDS * 50))
    open_blobs(path).close()
    (sidecar,) = path.glob(f".*{SUFFIX}")
    return sidecar


@pytest.mark.usefixtures("settled")
def test_a_damaged_page_of_a_sidecar_is_an_error_when_it_is_needed(tmp_path: Path):
    sidecar = large_sidecar(tmp_path / "data")
    content = bytearray(sidecar.read_bytes())
    place = content.index(np.array([4, 0, 4, 8], np.int64).tobytes())  # of record 0
    content[place + 100_000] ^= 1
    sidecar.write_bytes(content)
    with open_blobs(tmp_path / "data") as data:
        assert len(scanned) == 1
        assert data[0]["name"] == "n0"
        with pytest.raises(CorruptError, match=f"{sidecar}: .* remove the file"):
            data[:]
        with pytest.raises(CorruptError, match="remove the file"):
            data.extents(np.array([0]), np.array([len(data)]))
        with pen.Loader(data.in_order(), 2000) as loader, pytest.raises(BatchError, match="remove the file"):
            next(iter(loader))


@pytest.mark.usefixtures("settled")
def test_a_sidecar_that_is_cut_under_a_reader_does_not_end_the_process(tmp_path: Path):
    sidecar = large_sidecar(tmp_path / "data")
    with open_blobs(tmp_path / "data") as data:
        os.truncate(sidecar, 8192)
        with pytest.raises(PenstockError, match="cut"):
            data[:]


def told(monkeypatch: pytest.MonkeyPatch, found: FileSpans) -> None:
    """Let a scan find this, whatever there is."""
    monkeypatch.setitem(globals(), "scan", lambda file: found)


@pytest.mark.parametrize(("start", "size"), [(0, 101), (100, 1), (-1, 1), (2**62, 2**62), (0, -2)])
def test_spans_out_of_the_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int, size: int):
    (tmp_path / "0.blob").write_bytes(b"B" * 100)
    told(monkeypatch, FileSpans.of({"image": ([0, start], [1, size])}))
    with open_blobs(tmp_path, {"image": FIELDS["image"]}) as data:
        assert data[0]["image"] == b"B"
        with pytest.raises(CorruptError, match=r"0\.blob, record 1: expected a place within"):
            data[1]


def test_texts_are_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "0.blob").write_bytes(b"caf\xc3\xa9!")
    told(monkeypatch, FileSpans.of({"t": ([0, 0, 4], [5, 4, -1])}))
    with open_blobs(tmp_path, {"t": SpanField(Field.text())}) as data:
        assert data[[2, 0]]["t"].to_list() == [None, "café"]
        assert data.lengths("t", [0, 1, 2]).tolist() == [5, 4, 0]
        with pytest.raises(CorruptError, match=r"0\.blob, record 1: the text is not UTF-8"):
            data[1]
        with pen.Loader(data.in_order(), 3) as loader, pytest.raises(BatchError, match="record 1"):
            next(iter(loader))


def test_fixed_fields_have_their_size_in_every_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "0.blob").write_bytes(bytes(100))
    told(monkeypatch, FileSpans.of({"x": ([0, 8], [8, 7])}))
    with pytest.raises(SchemaMismatchError, match="expected 8 bytes in every record, found 7 to 8"):
        open_blobs(tmp_path, {"x": SpanField(Field("i8"))})
    with (
        open_blobs(tmp_path, {"x": SpanField(Field.ragged("i4"))}) as data,
        pytest.raises(CorruptError, match=r"record 1: .* 4 bytes"),
    ):
        data[:]


def test_checksums_of_records_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "0.blob").write_bytes(b"onetwo")
    crcs = [_core.crc32c(np.frombuffer(word, np.uint8)) for word in (b"one", b"too")]
    told(monkeypatch, FileSpans(["x"], np.array([[0, 3, crcs[0]], [3, 3, crcs[1]]], np.int64), has_crcs=True))
    with open_blobs(tmp_path, {"x": SpanField(Field.bytes())}) as data:
        assert data[0]["x"] == b"one"
        with pytest.raises(CorruptError, match=r"0\.blob, record 1: the checksum"):
            data[1]


@pytest.mark.usefixtures("settled")
def test_a_file_that_is_replaced_is_not_read(tmp_path: Path):
    path = write(tmp_path / "data")
    open_blobs(path).close()
    with open_blobs(path) as data:
        (path / "new").write_bytes((path / "2.blob").read_bytes())
        os.replace(path / "new", path / "2.blob")
        with pytest.raises(SourceChangedError):
            data[:]


def test_closed_sources_say_so(tmp_path: Path):
    data = open_blobs(write(tmp_path / "data"))
    data.close()
    with pytest.raises(ValueError, match="the source is closed"):
        data[0]


@pytest.mark.usefixtures("settled")
def test_many_files_hold_no_descriptors(tmp_path: Path):
    path = write(tmp_path / "data", tuple(range(41)))
    open_blobs(path).close()
    before = len(os.listdir("/proc/self/fd"))
    with open_blobs(path) as data:
        assert len(data[:]["name"]) == 40
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.usefixtures("settled")
def test_where_sidecars_cannot_be_written_they_are_in_the_cache_directory_or_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = write(tmp_path / "data")

    def refuse(target: Any, *_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(target))

    make = os.mkdir
    monkeypatch.setattr(os, "mkdir", lambda name, *more: refuse(name) if str(name).startswith(str(path)) else make(name, *more))
    monkeypatch.setattr("penstock.formats.sidecar.cache_directory", lambda: tmp_path / "cache")
    for _ in range(2):
        with open_blobs(path) as data:
            assert data["name"][:].to_list() == [record["name"] for record in RECORDS]
        assert len(scanned) == 3
    assert len(list((tmp_path / "cache").iterdir())) == 3
    assert len(list(path.iterdir())) == 3
    monkeypatch.setattr("penstock.formats.sidecar.cache_directory", lambda: None)
    with open_blobs(path) as data:
        assert data["name"][:].to_list() == [record["name"] for record in RECORDS]
    assert len(scanned) == 6


@pytest.mark.usefixtures("settled")
def test_tables_of_objects_are_in_the_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.formats.sidecar.cache_directory", lambda: tmp_path / "cache")
    place = put(memory_url("data"))
    for _ in range(2):
        with open_blobs(place) as data:
            assert data["name"][:].to_list() == [record["name"] for record in RECORDS]
        assert len(scanned) == 3
    assert len(list((tmp_path / "cache").iterdir())) == 3


@pytest.mark.usefixtures("settled")
def test_a_sidecar_whose_arrays_do_not_fit_together_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write(tmp_path / "data", (0, 40))
    for change in (
        lambda facts: facts[:-1],
        lambda facts: facts + np.eye(1, facts.size, 0, dtype=np.int64)[0],
        lambda facts: facts + np.eye(1, facts.size, 1, dtype=np.int64)[0],
        lambda facts: facts + 100 * np.eye(1, facts.size, 2, dtype=np.int64)[0],
        lambda facts: facts + np.eye(1, facts.size, 3, dtype=np.int64)[0],
    ):
        for sidecar in path.glob(f".*{SUFFIX}"):
            sidecar.unlink()
        with monkeypatch.context() as patch:
            patch.setattr(FileSpans, "write", lambda self, writer, change=change: write_changed(self, writer, change))
            with pytest.raises(CorruptError, match=r"expected where the records of .*0\.blob are: remove the file"):
                open_blobs(path)
        with pytest.raises(CorruptError, match="remove the file"):
            open_blobs(path)


original = FileSpans.write


def write_changed(found: FileSpans, writer: Any, change: Any) -> None:
    class Changing:
        def add(self, name: str, dtype: Any, pieces: Any) -> Any:
            whole = np.concatenate([np.empty(0, dtype), *pieces])
            return writer.add(name, dtype, [change(whole) if name == "facts" else whole])

    original(found, Changing())


def test_a_scan_that_takes_long_shows_a_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(spans, "SLOW_S", -1)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the output for a terminal
    with open_blobs(write(tmp_path / "data", tuple(range(0, 41, 4)))) as data:
        assert len(data) == 40
    assert "index" in capsys.readouterr().err
