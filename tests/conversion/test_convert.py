"""convert: arrays and stores into new stores."""

import contextlib
import importlib
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli import warm
from tests.store.records import FIELDS, assert_store, digest, make_records, without_addresses, write

import penstock as pen
from penstock import Field, Ragged
from penstock.errors import SchemaMismatchError
from penstock.formats.array import ArraySource
from penstock.source import write_tokens
from penstock.store import stats
from penstock.store.generation import load_manifest

conversion = importlib.import_module("penstock.conversion.convert")

GUESSES: list[tuple[Any, Field]] = [
    (np.zeros((4, 2, 3), np.uint8), Field("u1", (2, 3))),
    (np.zeros(4, ">f4"), Field("f4")),
    (np.zeros(4, np.bool_), Field("bool")),
    (np.zeros((4, 0)), Field("f8", (0,))),
    (np.ma.masked_array([1, 2, 3, 4], mask=[0, 1, 0, 0]), Field("i8")),
    ([1, 2, 3, 4], Field("i8")),
    ([1.5, 2, 3, 4], Field("f8")),
    ([[1, 2]] * 4, Field("i8", (2,))),
    (["a", None, "", "b"], Field.text()),
    (np.array(["a", "b", "c", "d"]), Field.text()),
    ([None, b"a", b"", bytearray(b"b")], Field.bytes()),
    ([np.zeros(2, np.int16), np.zeros(0, np.int16), None, np.zeros(3, np.int16)], Field.ragged("i2")),
    ([None, np.zeros((2, 3), np.float32), np.zeros((0, 3), np.float32), np.zeros((1, 1), np.float32)], Field.ragged("f4", 2)),
    (Ragged.from_items([[1], [], None, [2, 3]], dtype="u2"), Field.ragged("u2")),
    (Ragged.from_items([[[1]], [[]], None, [[2, 3]]], dtype="u2", ndim=2), Field.ragged("u2", 2)),
    (Ragged.from_items(["a", "", None, "b"], dtype="u1", kind="text"), Field.text()),
    (Ragged.from_items([b"a", b"", None, b"b"], dtype="u1", kind="bytes"), Field.bytes()),
]


def plain(column: Any) -> list[Any]:
    return [item.tolist() if isinstance(item, np.ndarray) else item for item in column]


@pytest.mark.parametrize(("data", "field"), GUESSES, ids=lambda value: repr(value)[:40])
def test_fields_follow_from_the_data(tmp_path: Path, data: Any, field: Field) -> None:
    pen.convert({"x": data, "n": np.arange(4)}, tmp_path / "a.pen")
    store = pen.open(tmp_path / "a.pen")
    is_missing = [item is None or item is np.ma.masked for item in data]
    assert store.schema == {"x": field.with_nullable(any(is_missing)), "n": Field("i8")}
    found = store["x"][:]
    if isinstance(found, Ragged):
        assert plain(found) == plain([bytes(item) if isinstance(item, bytearray) else item for item in data])
    else:
        assert found.tolist() == np.ma.asarray(data).tolist()


@pytest.mark.parametrize(
    "data",
    [[object()] * 2, [{}] * 2, np.array([None, 1]), {"a": 1}, 5, np.array(5), [1 + 2j, "a"], np.array(["2020-01-01"], "M8[D]")],
    ids=without_addresses,
)
def test_other_data_is_refused_and_makes_nothing(tmp_path: Path, data: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        pen.convert({"x": data}, tmp_path / "a.pen")
    assert not (tmp_path / "a.pen" / "manifest").exists() or not list((tmp_path / "a.pen" / "manifest").iterdir())


def test_lengths_must_agree(tmp_path: Path) -> None:
    for source in ({"x": np.zeros(3), "y": np.zeros(4)}, {"x": np.zeros(3), "y": ["a"] * 4}):
        with pytest.raises(ValueError, match="same number of records"):
            pen.convert(source, tmp_path / "a.pen")


def test_no_records_make_an_empty_store(tmp_path: Path) -> None:
    pen.convert({"x": np.empty((0, 3), np.float32)}, tmp_path / "a.pen")
    assert pen.open(tmp_path / "a.pen")[:]["x"].shape == (0, 3)


def test_memory_mapped_arrays_are_written_in_slices(tmp_path: Path) -> None:
    array = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.int32, shape=(3_000, 256))
    array[:] = np.arange(3_000)[:, None]
    array.flush()
    source = np.load(tmp_path / "x.npy", mmap_mode="r")
    seen: list[int] = []
    pen.convert({"x": source}, tmp_path / "a.pen", chunk_bytes="1MiB", progress=lambda rows, size: seen.append(rows))
    assert sum(seen) == 3_000
    assert len(seen) == 3
    assert np.array_equal(pen.open(tmp_path / "a.pen")["x"][:], source)


RECORDS = make_records(60, seed=8)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write(tmp_path / "source.pen", RECORDS[:40], chunk_records=7)
    with pen.open(tmp_path / "source.pen", mode="a") as out:
        out.update([3], {"caption": ["new"]})
        out.delete([5, 6])
    return tmp_path / "source.pen"


@pytest.mark.parametrize("codec", [None, pen.Raw(), pen.Zstd(1), {"label": pen.LZ4(), "caption": pen.Raw()}], ids=repr)
def test_store_to_store_with_another_codec(tmp_path: Path, source: Path, codec: Any) -> None:
    before = pen.open(source)
    pen.convert(before, tmp_path / "b.pen", codec=codec)
    after = pen.open(tmp_path / "b.pen")
    assert digest(after) == digest(before)
    assert stats(after).redirects == 0
    assert after.generation == 1
    for name, field in after.schema.items():
        wanted = codec.get(name, FIELDS[name].codec) if isinstance(codec, dict) else codec or FIELDS[name].codec
        assert field.codec == wanted
        assert (field.kind, field.element, field.shape, field.ndim) == (
            FIELDS[name].kind, FIELDS[name].element, FIELDS[name].shape, FIELDS[name].ndim
        )  # fmt: skip


def test_store_to_store_with_other_chunks(tmp_path: Path, source: Path) -> None:
    before = pen.open(source)
    pen.convert(before, tmp_path / "b.pen", chunk_records=5, chunk_bytes="1MB", threads=3)
    assert [chunk.rows for chunk in load_manifest(tmp_path / "b.pen").chunks] == [5] * 7 + [3]
    assert digest(pen.open(tmp_path / "b.pen")) == digest(before)


def test_store_to_store_with_fewer_fields_in_another_order(tmp_path: Path, source: Path) -> None:
    before = pen.open(source)
    pen.convert(before, tmp_path / "b.pen", fields=["tokens", "label"])
    after = pen.open(tmp_path / "b.pen")
    assert list(after.schema) == ["tokens", "label"]
    assert_store(after, [{"tokens": before[i]["tokens"], "label": before[i]["label"]} for i in range(len(before))])


def test_unknown_fields_are_refused(tmp_path: Path, source: Path) -> None:
    for options in ({"fields": ["nothing"]}, {"codec": {"nothing": pen.Raw()}}):
        with pytest.raises(ValueError, match="unknown fields"):
            pen.convert(pen.open(source), tmp_path / "b.pen", **options)
    assert not (tmp_path / "b.pen").exists()


def test_dictionary_goes_with_the_field(tmp_path: Path) -> None:
    places = ["kitchen", "cellar", "balcony"]
    texts = [
        f'{{"sensor": {i % 97}, "temperature": {i % 31}, "humidity": {i % 7}, "place": "{places[i % 3]}"}}' for i in range(2000)
    ]
    pen.convert({"t": texts}, tmp_path / "plain.pen", codec=pen.Zstd(3))
    dictionary = pen.train_dictionary(texts, size=1024)
    pen.convert(pen.open(tmp_path / "plain.pen"), tmp_path / "small.pen", codec={"t": pen.Zstd(3, dictionary)})
    pen.convert(pen.open(tmp_path / "small.pen"), tmp_path / "again.pen")
    for name in ("plain", "small", "again"):
        assert pen.open(tmp_path / f"{name}.pen")["t"][:].to_list() == texts
    assert pen.open(tmp_path / "again.pen").schema["t"].codec == pen.Zstd(3, dictionary)
    sizes = [stats(pen.open(tmp_path / f"{name}.pen")).stored_bytes for name in ("plain", "small", "again")]
    assert sizes[1] == sizes[2] < sizes[0] / 1.5


def test_existing_store_is_not_overwritten(tmp_path: Path, source: Path) -> None:
    with pytest.raises(pen.PenstockError, match="it exists already"):
        pen.convert({"x": np.zeros(3)}, source)
    assert len(pen.open(source)) == 38


# Interruptions


class StoppedError(Exception):
    pass


class Flaky(ArraySource):
    """Fails when a record from ``fails_at`` on is read."""

    fails_at = 1 << 60

    def _read(self, ids: Any, fields: Any, out: Any) -> Any:
        if ids.size and ids.max() >= self.fails_at:
            raise StoppedError
        return super()._read(ids, fields, out)


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "BATCH_BYTES", 4000)


def chunks(path: Path) -> list[tuple[int, int, int, int]]:
    return [(chunk.number, chunk.rows, chunk.decoded, chunk.size) for chunk in load_manifest(path).chunks]


@pytest.mark.usefixtures("small_steps")
def test_an_interrupted_conversion_goes_on_where_it_was(tmp_path: Path) -> None:
    data = Flaky({"x": np.arange(20_000).reshape(-1, 4), "t": [str(i) if i % 7 else None for i in range(5_000)]})
    pen.convert(data, tmp_path / "whole.pen", chunk_bytes=8192)
    left = []
    for data.fails_at in (0, 1, 700, 1500, 1501, 4000, 4999, 1 << 60):
        seen: list[int] = []
        with pytest.raises(StoppedError) if data.fails_at < 5_000 else contextlib.nullcontext():
            pen.convert(data, tmp_path / "a.pen", chunk_bytes=8192, progress=lambda rows, size, seen=seen: seen.append(rows))
        assert (tmp_path / "a.pen").exists() == (data.fails_at > 5_000)
        left.append(sum(seen))
    assert sum(left[:-1]) + left[-1] < 5_000 + 8 * 3 * 300  # at most a few chunks are done again each time
    assert left[-1] < 1_000
    store = pen.open(tmp_path / "a.pen")
    assert np.array_equal(store["x"][:], data["x"][:])
    assert store["t"][:].to_list() == data["t"][:].to_list()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pen", "whole.pen"]
    assert pen.verify(tmp_path / "a.pen") == []
    assert chunks(tmp_path / "a.pen") == chunks(tmp_path / "whole.pen")
    assert (store.generation, store.schema) == (1, pen.open(tmp_path / "whole.pen").schema)
    assert len(list((tmp_path / "a.pen/chunk").iterdir())) == len(list((tmp_path / "whole.pen/chunk").iterdir()))


@pytest.mark.usefixtures("small_steps")
def test_an_unfinished_conversion_of_other_data_is_not_touched(tmp_path: Path) -> None:
    data = Flaky({"x": np.arange(10_000)})
    data.fails_at = 8_000
    with pytest.raises(StoppedError):
        pen.convert(data, tmp_path / "a.pen", chunk_bytes=4096)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    for other in (
        lambda: pen.convert({"x": np.arange(9_999)}, tmp_path / "a.pen", chunk_bytes=4096),
        lambda: pen.convert(data, tmp_path / "a.pen", chunk_bytes=4096, codec=pen.Zstd()),
        lambda: pen.convert(data, tmp_path / "a.pen"),
    ):
        with pytest.raises(pen.PenstockError, match="unfinished conversion of other data or with other options"):
            other()
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert len(list((tmp_path / "a.pen.partial/chunk").iterdir())) > 10


@pytest.mark.usefixtures("small_steps")
def test_chunks_that_were_lost_or_damaged_meanwhile_are_written_again(tmp_path: Path) -> None:
    data = Flaky({"x": np.arange(10_000)})
    for damage in (Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1])):
        data.fails_at = 8_000
        with pytest.raises(StoppedError):
            pen.convert(data, tmp_path / "a.pen", chunk_bytes=4096, threads=1)
        damage(sorted((tmp_path / "a.pen.partial/chunk").iterdir())[3])
        data.fails_at = 1 << 60
        pen.convert(data, tmp_path / "a.pen", chunk_bytes=4096)
        assert pen.open(tmp_path / "a.pen")["x"][:].tolist() == list(range(10_000))
        assert pen.verify(tmp_path / "a.pen") == []
        shutil.rmtree(tmp_path / "a.pen")


KILLED = """
import importlib, os, signal, sys, threading
import penstock as pen
importlib.import_module("penstock.conversion.convert").BATCH_BYTES = 100_000
rows = 0
lock = threading.Lock()  # threads report too: one of them prints and kills
def progress(count, size):
    global rows
    with lock:
        rows += count
        if rows >= int(sys.argv[3]):
            print(rows, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
pen.convert(sys.argv[1], sys.argv[2], chunk_bytes=65536, progress=progress)
print(rows)
"""


def test_a_killed_conversion_goes_on_with_the_chunk_it_was_at(tmp_path: Path) -> None:
    """A process that dies without a word, in the middle, several times, far below a gigabyte; 49 chunks of 2048 records."""
    np.save(tmp_path / "x.npy", np.arange(400_000).reshape(-1, 4))
    written = []
    for kill_at in (1, 20_000, 60_000, 10**9):
        command = [sys.executable, "-c", KILLED, str(tmp_path / "x.npy"), str(tmp_path / "a.pen"), str(kill_at)]
        done = warm.run(command, timeout=600, capture_output=True, text=True)
        assert done.returncode == (-signal.SIGKILL if kill_at < 10**9 else 0), done.stderr
        written.append(int(done.stdout))
    assert sum(written) <= 100_000 + 3 * 6 * 2048  # what was on its way when it was killed is done again
    assert written[-1] < 100_000 - 60_000
    pen.convert(tmp_path / "x.npy", tmp_path / "whole.pen", chunk_bytes=65536)
    assert chunks(tmp_path / "a.pen") == chunks(tmp_path / "whole.pen")
    assert np.array_equal(pen.open(tmp_path / "a.pen")["data"][:], np.arange(400_000).reshape(-1, 4))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pen", "whole.pen", "x.npy"]
    assert len(list((tmp_path / "a.pen/chunk").iterdir())) == 49


def test_a_conversion_killed_before_it_got_its_name_only_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(conversion, "_give_name", lambda *_: (_ for _ in ()).throw(StoppedError))
        with pytest.raises(StoppedError):
            pen.convert({"x": np.arange(100)}, tmp_path / "a.pen")
    seen: list[int] = []
    pen.convert({"x": np.arange(100)}, tmp_path / "a.pen", progress=lambda rows, size: seen.append(rows))
    assert seen == []
    assert pen.open(tmp_path / "a.pen")["x"][:].tolist() == list(range(100))


def test_a_bar_is_drawn_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with monkeypatch.context() as terminal:
        terminal.setenv("TTY_COMPATIBLE", "1")
        terminal.setenv("COLUMNS", "100")
        for name, options in (("a", {}), ("c", {"map": dict})):
            pen.convert({"x": np.arange(1000)}, tmp_path / f"{name}.pen", progress=True, **options)
            assert "1000/1000" in capsys.readouterr().err
    pen.convert({"x": np.arange(1000)}, tmp_path / "b.pen")
    assert capsys.readouterr() == ("", "")


# Other formats


def test_rows_and_tokens_are_written_from_any_source(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).random((3000, 5), np.float32)
    pen.convert({"row": rows, "label": np.arange(3000)}, tmp_path / "a.pen")
    pen.convert(tmp_path / "a.pen", tmp_path / "a.shard", fields=["row"])
    assert np.array_equal(pen.open(tmp_path / "a.shard")["row"][:], rows)
    documents = [np.arange(i % 7, dtype=np.uint16) for i in range(500)]
    pen.convert({"ids": documents}, tmp_path / "a.rox", separator=60_000)
    joined = np.concatenate([np.append(one, 60_000) for one in documents])
    tokens = pen.open(tmp_path / "a.rox")
    assert tokens.dtype == np.uint16
    assert np.array_equal(tokens.read_tokens([0], tokens.num_tokens)[0], joined)
    pen.convert({"text": ["ab", "", "c"]}, tmp_path / "t.rox", separator="\n")
    assert pen.open(tmp_path / "t.rox").read_tokens([0], 6).tobytes() == b"ab\n\nc\n"


def test_rows_and_tokens_need_one_field_that_fits(tmp_path: Path) -> None:
    two = {"row": np.zeros((3, 2), np.float32), "label": np.arange(3)}
    for name in ("a.shard", "a.rox"):
        with pytest.raises(ValueError, match="choose one"):
            pen.convert(two, tmp_path / name)
    with pytest.raises(ValueError, match="one dimension"):
        pen.convert({"x": np.zeros((3, 2, 2))}, tmp_path / "a.rox")
    with pytest.raises(ValueError, match=r"."):
        pen.convert({"x": np.zeros((3, 2, 2), np.float32)}, tmp_path / "a.shard")
    assert list(tmp_path.iterdir()) == []


def test_missing_records_are_not_written_as_tokens_or_rows(tmp_path: Path) -> None:
    values = np.ma.MaskedArray(np.arange(12, dtype="u2").reshape(4, 3), mask=np.repeat([[0], [1], [0], [0]], 3, 1))
    for name in ("a.rox", "a.shard"):
        with pytest.raises((SchemaMismatchError, TypeError, ValueError), match="missing"):
            pen.convert({"x": values.astype("f4" if name.endswith("shard") else "u2")}, tmp_path / name)
    with pytest.raises(TypeError, match="plain elements"):
        write_tokens([np.ma.MaskedArray([1, 2], mask=[False, True], dtype="u2")], tmp_path / "b.rox")
    assert list(tmp_path.iterdir()) == []


def test_chunks_behind_a_gap_are_not_taken_up_by_a_third_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run may end its chunks elsewhere, as here, where the function of the map was changed."""
    monkeypatch.setattr(importlib.import_module("penstock.conversion.convert"), "BATCH_BYTES", 4096)
    source, path = pen.open({"i": np.arange(4000)}), tmp_path / "a.pen"

    def convert(width: int, most: int) -> None:
        def text(record: dict[str, Any]) -> dict[str, Any]:
            return {"t": f"{record['i']:06d}" + "x" * width}

        def stop(records: int, size: int) -> None:
            told.append(records)
            if len(told) > most:
                raise InterruptedError

        told: list[int] = []
        mapped = source.map(text, schema={"t": Field.text()})
        with contextlib.suppress(InterruptedError):
            pen.convert(mapped, path, chunk_bytes=4096, progress=stop, threads=1)

    convert(4, 6)
    note = tmp_path / "a.pen.partial.json"
    note.write_text("\n".join(line for line in note.read_text().splitlines() if '"task": 2,' not in line) + "\n")
    convert(7, 1)
    convert(7, 1 << 30)
    with pen.open(path) as store:
        assert [int(text[:6]) for text in store["t"][:]] == list(range(4000))
