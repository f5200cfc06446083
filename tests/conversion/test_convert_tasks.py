"""convert with a map and on executors: the same records in the same order, in one commit, or nothing."""

import functools
import importlib
import json
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from tests.cluster.engine import TEXTS
from tests.cluster.maps import FailAt, same, words
from tests.cluster.pool import new_pool, running_pool
from tests.conversion.test_convert import Flaky, StoppedError
from tests.remote.store_kit import contents, memory_url
from tests.store.records import assert_store, digest, files, make_records, write
from tests.text import trained

import penstock as pen
from penstock import Field
from penstock.conversion.reading import plan, rows_of_chunk
from penstock.conversion.record_map import as_map
from penstock.errors import NotPublishedError, SchemaMismatchError, StoreError
from penstock.formats.array import ArraySource
from penstock.source import BatchMap, Converted, Tokenize
from penstock.store import stats
from penstock.store.generation import load_manifest

conversion = importlib.import_module("penstock.conversion.convert")

NUMBERS = np.arange(3000)
SMALL = {"chunk_bytes": 8192}


@pytest.fixture(scope="module", autouse=True)
def resource_tracker_is_running() -> None:
    """multiprocessing starts it with the first process, and keeps it as long as this one lasts."""
    resource_tracker.ensure_running()


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    with running_pool() as pool:
        yield pool


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Texts and numbers, on a disk."""
    pen.convert({"number": NUMBERS, "text": TEXTS}, tmp_path / "source.pen")
    return tmp_path / "source.pen"


def expected_words() -> list[tuple[int, str]]:
    return [(number, word) for number, text in enumerate(TEXTS) for word in text.split()]


@pytest.mark.parametrize("in_memory", [False, True], ids=["on disk", "in memory"])
def test_here_threads_and_processes_give_the_same_store(
    tmp_path: Path, source: Path, processes: Executor, in_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.conversion.tasks.LIGHT_BYTES", 1000)
    given: Any = {"number": NUMBERS, "text": TEXTS} if in_memory else source
    with ThreadPoolExecutor(3) as threads:
        for name, executor in (("here", None), ("threads", threads), ("processes", processes)):
            told: list[int] = []
            pen.convert(
                given,
                tmp_path / f"{name}.pen",
                map=words,
                executor=executor,
                progress=lambda rows, size, t=told: t.append(rows),
                **SMALL,
            )
            assert sum(told) == 3000
            assert len(told) > 4
    stores = [pen.open(tmp_path / f"{name}.pen") for name in ("here", "threads", "processes")]
    assert {digest(store) for store in stores} == {digest(stores[0])}
    assert [store.generation for store in stores] == [1, 1, 1]
    assert list(zip(stores[0]["number"][:].tolist(), stores[0]["word"][:], strict=True)) == expected_words()
    assert stores[0].schema == {"number": Field("i8"), "word": Field.text()}
    assert len({tuple(chunk.rows for chunk in store.manifest.chunks) for store in stores}) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here.pen", "processes.pen", "source.pen", "threads.pen"]


def test_all_kinds_of_fields_come_through_an_executor_without_a_loss(tmp_path: Path) -> None:
    records = make_records(200, seed=2)
    write(tmp_path / "source.pen", records, chunk_records=30)
    with ThreadPoolExecutor(2) as pool:
        pen.convert(tmp_path / "source.pen", tmp_path / "a.pen", executor=pool, **SMALL)
        pen.convert(tmp_path / "source.pen", tmp_path / "b.pen", executor=pool, map=same, **SMALL)
    assert_store(pen.open(tmp_path / "a.pen"), records)
    assert_store(pen.open(tmp_path / "b.pen"), records)


def test_records_of_one_size_fill_their_chunks(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        pen.convert({"x": np.zeros((10_000, 8), np.int32)}, tmp_path / "a.pen", executor=pool, chunk_bytes=16384)
    assert [chunk.rows for chunk in load_manifest(tmp_path / "a.pen").chunks] == [512] * 19 + [272]


def test_a_map_sees_only_the_fields_that_were_picked_and_codecs_are_for_what_it_gives(tmp_path: Path, source: Path) -> None:
    seen: set[tuple[str, ...]] = set()

    def lengths(batch: dict[str, Any]) -> dict[str, Any]:
        seen.add(tuple(batch))
        return {"length": np.array([len(text) for text in batch["text"]], np.int32)}

    pen.convert(source, tmp_path / "a.pen", fields=["text"], map=lengths, codec={"length": pen.Zstd(1)})
    store = pen.open(tmp_path / "a.pen")
    assert seen == {("text",)}
    assert store.schema == {"length": Field("i4", codec=pen.Zstd(1))}
    assert store["length"][:].tolist() == [len(text) for text in TEXTS]
    with pytest.raises(ValueError, match="unknown fields"):
        pen.convert(source, tmp_path / "b.pen", map=lengths, codec={"text": pen.Raw()})


def test_fields_that_are_given_are_kept_also_where_nothing_comes_out(tmp_path: Path) -> None:
    fields = {"number": Field("i2"), "word": Field.bytes(), "later": Field("f4", (3,))}

    def nothing(batch: dict[str, Any]) -> dict[str, Any]:
        return {"number": []}

    pen.convert({"number": NUMBERS}, tmp_path / "a.pen", map=BatchMap(nothing, fields=fields))
    store = pen.open(tmp_path / "a.pen")
    assert (len(store), store.schema, store.generation) == (0, fields, 1)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda batch: [1], "must return a dict of fields"),
        (lambda batch: {"x": [object()]}, "BatchMap"),
        (lambda batch: {"x": []}, "no value"),
        (lambda batch: {}, "at least one field"),
        (lambda batch: {"x": [1], "y": [1, 2]}, "same number of records"),
        (lambda batch: {"x": [1] if batch["number"][0] == 0 else ["text"]}, "field 'x'"),
        (lambda batch: {"x": [1]} if batch["number"][0] == 0 else {"y": [1]}, "unknown fields"),
    ],
)
def test_a_map_that_gives_something_else_is_refused_and_nothing_appears(tmp_path: Path, function: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        pen.convert({"number": NUMBERS}, tmp_path / "a.pen", map=BatchMap(function, batch_bytes=800))
    assert not (tmp_path / "a.pen").exists()


def test_what_is_no_map_or_makes_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="map must be a function"):
        pen.convert({"number": NUMBERS}, tmp_path / "a.pen", map=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tokens have one dimension"):
        pen.convert({"number": NUMBERS}, tmp_path / "a.rox", map=same)
    with pytest.raises(ValueError, match="no record to infer"):
        pen.convert({"number": NUMBERS[:0]}, tmp_path / "a.pen", map=same)
    for options in ({"batch_bytes": 0}, {"task_records": 0}, {"fields": {}}):
        with pytest.raises(ValueError, match=r"."):
            BatchMap(same, **options)
    assert list(tmp_path.iterdir()) == []


# Row and token files


def tokens_of(batch: Any) -> Any:
    """As many numbers as a text has letters; none of a text for every tenth."""
    return {"tokens": [np.arange(len(text), dtype="u2") for text in batch["text"] if len(text) % 10]}


def halves(batch: Any) -> Any:
    return {"row": np.stack([batch["number"] / 2, batch["number"]], axis=1).astype("f4")}


@pytest.mark.parametrize("name", ["a.rox", "a.idx", "a.ds", "a.bin", "a.shard"])
def test_a_map_makes_row_and_token_files(tmp_path: Path, source: Path, processes: Executor, name: str) -> None:
    function, expected = (halves, {"row": NUMBERS}) if name == "a.shard" else (tokens_of, tokens_of({"text": TEXTS}))
    options: dict[str, Any] = {} if name == "a.shard" else {"separator": 9}
    made = pen.convert(source, tmp_path / name, map=BatchMap(function, batch_bytes=3000), **options, **SMALL)
    (tmp_path / "b").mkdir()
    pen.convert(source, tmp_path / "b" / name, map=function, executor=processes, **options, **SMALL)
    assert made == Converted(len(next(iter(expected.values()))))
    for path in sorted((tmp_path / "b").iterdir()):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    with pen.open(tmp_path / name, **({"dtype": "u2"} if name == "a.bin" else {})) as data:
        found = data[next(iter(data.schema))][:]
    if name == "a.shard":
        assert np.array_equal(found, halves({"number": NUMBERS})["row"])
    else:
        line = [int(token) for tokens in expected["tokens"] for token in [*tokens, 9]]
        assert [int(token) for tokens in found for token in tokens] == line
    assert not [path.name for path in tmp_path.iterdir() if "partial" in path.name or path.name.startswith(".")]


def test_processes_make_the_same_tokens_of_texts(tmp_path: Path, source: Path, processes: Executor) -> None:
    how = Tokenize(trained(), eos=0, batch_bytes=2000)
    made = [
        pen.convert(source, tmp_path / "a.idx", tokenizer=how),
        pen.convert(source, tmp_path / "b.idx", tokenizer=how, executor=processes, **SMALL),
    ]
    assert made[0] == made[1] is not None
    for end in ("idx", "bin"):
        assert (tmp_path / f"a.{end}").read_bytes() == (tmp_path / f"b.{end}").read_bytes()


def test_an_executor_without_a_map_makes_files_too(tmp_path: Path) -> None:
    rows = np.arange(4000, dtype="u2").reshape(1000, 4)
    pen.convert({"x": rows}, tmp_path / "a.idx")
    with ThreadPoolExecutor(2) as pool:
        assert pen.convert({"x": rows}, tmp_path / "b.idx", executor=pool, **SMALL) == Converted(1000)
    for end in ("idx", "bin"):
        assert (tmp_path / f"a.{end}").read_bytes() == (tmp_path / f"b.{end}").read_bytes()


@pytest.mark.parametrize(
    ("name", "function", "message"),
    [
        ("a.rox", lambda batch: {"x": [[1]], "y": [[2]]}, r"has one field, the source has \['x', 'y'\]"),
        ("a.shard", lambda batch: {"x": [[1], [1, 2]]}, "rows have one dimension and one width"),
        ("a.ds", lambda batch: {"x": [np.array([1.5])]}, "tokens of float64 cannot be stored there"),
        ("a.idx", lambda batch: {"x": [np.array([1], "u4"), None]}, "tokens of uint32 cannot be stored there"),
    ],
)
def test_what_a_map_gives_must_fit_the_file_and_is_looked_at_first(tmp_path: Path, name: str, function: Any, message: str) -> None:
    seen: list[int] = []
    with pytest.raises(ValueError, match=message):
        pen.convert({"number": NUMBERS}, tmp_path / name, map=function, progress=lambda *_: seen.append(1))
    assert (seen, list(tmp_path.iterdir())) == ([], [])


def test_missing_records_of_a_map_are_not_written_as_tokens(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatchError, match="missing records, which such a file cannot hold"):
        pen.convert({"number": NUMBERS}, tmp_path / "a.rox", map=lambda batch: {"x": [np.array([1], "u2"), None]})
    assert not (tmp_path / "a.rox").exists()


# Failures


@pytest.mark.parametrize("kill", [False, True], ids=["raises", "killed"])
def test_a_failed_task_publishes_nothing_and_what_was_done_is_not_done_again(tmp_path: Path, source: Path, kill: bool) -> None:
    """With a pool of processes of which one raises, or is killed with SIGKILL in the middle of its task."""
    (tmp_path / "marker").touch()
    cursed = BatchMap(FailAt(1700, tmp_path / "marker", kill), fields={"number": Field("i8"), "text": Field.text()})
    path = tmp_path / "a.pen"
    with new_pool() as pool, pytest.raises(BrokenProcessPool if kill else RuntimeError):
        pen.convert(source, path, map=cursed, executor=pool, **SMALL)
    assert not (tmp_path / "marker").exists()
    assert not path.exists()
    with pytest.raises(NotPublishedError):
        pen.open(tmp_path / "a.pen.partial")
    done = [parsed(line)["rows"] for line in (tmp_path / "a.pen.partial.json").read_text().splitlines() if '"rows"' in line]
    told: list[int] = []
    pen.convert(source, path, map=cursed, progress=lambda rows, size: told.append(rows), **SMALL)
    assert sum(told) == 3000 - sum(done)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.pen", "source.pen"]
    assert set(files(path)) == {f"chunk/{c.writer}-{c.serial:08x}.zr" for c in load_manifest(path).chunks} | {
        "manifest/00000000000000000001.json"
    }
    assert_texts(path)


def assert_texts(path: Path) -> None:
    with pen.open(path) as store:
        assert store.generation == 1
        assert store["number"][:].tolist() == NUMBERS.tolist()
        assert store["text"][:].to_list() == TEXTS
    assert pen.verify(path) == []
    with pen.open(path, mode="a") as out:  # it can be written afterwards
        out.append({"number": 3000})


def test_at_a_url_a_failure_leaves_nothing_and_a_restart_starts_over() -> None:
    data, place = Flaky({"number": np.arange(5000)}), memory_url()
    with ThreadPoolExecutor(2) as pool:
        for data.fails_at in (0, 2500, 4999):
            with pytest.raises(StoppedError):
                pen.convert(data, place, executor=pool, **SMALL)
            assert contents(place) == {}
        data.fails_at = 1 << 60
        told: list[int] = []
        pen.convert(data, place, executor=pool, progress=lambda rows, size: told.append(rows), **SMALL)
        assert sum(told) == 5000
        with pytest.raises(StoreError, match="already"):
            pen.convert(data, place, executor=pool)
    with pen.open(place) as store:
        assert store["number"][:].tolist() == list(range(5000))
        assert store.generation == 1


def parsed(line: str) -> Any:
    """A line of the note, without its crc."""
    return json.loads(line.rpartition(" ")[0])


def signed(text: str) -> str:
    return f"{text} {zlib.crc32(text.encode()):08x}"


@pytest.mark.parametrize("spoil", ["receipt", "bit", "line", "chunk", "hostile", "all"])
def test_receipts_that_cannot_be_trusted_are_done_again(tmp_path: Path, spoil: str) -> None:
    data = Flaky({"number": np.arange(5000)})
    data.fails_at = 4000
    with pytest.raises(StoppedError):
        pen.convert(data, tmp_path / "a.pen", map=same, **SMALL)
    note = tmp_path / "a.pen.partial.json"
    head, *lines = [line for line in note.read_text().splitlines() if line]
    assert len(lines) == 3
    first = parsed(lines[0])
    chunk = tmp_path / "a.pen.partial" / "chunk" / f"{first['writer']}-00000000.zr"
    match spoil:
        case "receipt":
            lines[0] = signed(json.dumps({**first, "chunks": [*first["chunks"][:-1], [0, 1, 1, 1, 1]]}))
        case "bit":  # it would be another task's, with the same number of records
            lines[0] = lines[0].replace('"task": 0', '"task": 2')
            assert '"task": 2' in lines[0]
        case "line":
            lines[-1] = lines[-1][:50]
        case "chunk":
            chunk.unlink()
        case "hostile":
            bad = ['{"task": 2, "writer": "../.."}', "null", "[]", '{"task": -1}', '{"task": 10000000000000000000000}', "\0"]
            lines += [*bad, *map(signed, bad)]
        case "all":
            lines = []
    note.write_text("\n".join([head, *lines]))  # the last line without its end
    data.fails_at = 1 << 60
    pen.convert(data, tmp_path / "a.pen", map=same, **SMALL)
    with pen.open(tmp_path / "a.pen") as store:
        assert store["number"][:].tolist() == list(range(5000))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pen"]


def test_a_conversion_that_was_killed_before_it_got_its_name_only_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*arguments: object) -> None:
        raise StoppedError

    with monkeypatch.context() as patch:
        patch.setattr(conversion, "_give_name", stop)
        with pytest.raises(StoppedError):
            pen.convert({"number": NUMBERS}, tmp_path / "a.pen", map=same)
    before = load_manifest(tmp_path / "a.pen.partial")
    pen.convert({"number": NUMBERS}, tmp_path / "a.pen", map=same)
    assert load_manifest(tmp_path / "a.pen") == before


def test_an_unfinished_conversion_of_other_data_or_with_another_map_is_not_touched(tmp_path: Path) -> None:
    data = Flaky({"number": np.arange(5000)})
    data.fails_at = 4000
    with pytest.raises(StoppedError):
        pen.convert(data, tmp_path / "a.pen", map=lambda batch: batch, **SMALL)
    data.fails_at = 1 << 60
    for options in (
        {"map": lambda batch: {**batch}, **SMALL},
        {"map": same, **SMALL},
        {"map": lambda batch: batch, "chunk_bytes": 4096},
        {"map": lambda batch: batch, "codec": pen.LZ4(), **SMALL},
        {"map": None, **SMALL},
    ):
        with pytest.raises(StoreError, match="unfinished conversion of other data or with other options"):
            pen.convert(data, tmp_path / "a.pen", **options)
    pen.convert(data, tmp_path / "a.pen", map=lambda batch: batch, **SMALL)
    assert len(pen.open(tmp_path / "a.pen")) == 5000


def scaled(batch: dict[str, Any], factor: int = 1, *, shift: int = 0) -> dict[str, Any]:
    return {"number": batch["number"] * factor + shift}


def test_a_map_is_known_by_its_code_and_what_it_holds() -> None:
    maps = [
        same,
        words,
        scaled,
        functools.partial(scaled, factor=2),
        functools.partial(scaled, factor=3),
        FailAt(1, Path("a")),
        FailAt(2, Path("a")),
        BatchMap(same, batch_bytes=100),
        lambda batch: [len(one) for one in batch],
        lambda batch: [len(one) for one in batch if one],
    ]
    names = [made.fingerprint for value in maps if (made := as_map(value)) is not None]
    assert len(set(names)) == len(maps)
    assert as_map(functools.partial(scaled, factor=2)).fingerprint == names[3]  # type: ignore[union-attr]


# The plan


def test_a_plan_covers_every_record_once_and_is_the_same_every_time() -> None:
    for length, task_records in ((0, 5), (1, 5), (5, 5), (6, 5), (1000, 7), (1000, 1000), (1000, 10**9)):
        source = ArraySource({"x": np.zeros(length)})
        tasks = plan(source, task_records)
        assert tasks == plan(source, task_records)
        assert [task.number for task in tasks] == list(range(len(tasks)))
        assert {task.tasks for task in tasks} == {len(tasks)}
        assert [i for task in tasks for i in range(task.low, task.high)] == list(range(length))


def test_tasks_end_where_blocks_end_if_those_are_read_as_a_whole(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"x": np.arange(1000)}), tmp_path / "a.parquet", row_group_size=64)
    with pen.open(tmp_path / "a.parquet") as source:
        assert all(task.high % 64 == 0 or task.high == 1000 for task in plan(source, 100))
        assert len(plan(source, 100)) == 8


def test_rows_of_a_chunk_are_exact_for_fixed_and_close_for_varying_records() -> None:
    fixed = ArraySource({"x": np.zeros((1000, 4), np.int32)})
    assert rows_of_chunk(fixed, ["x"], 1600, 2**24) == 100
    assert rows_of_chunk(fixed, ["x"], 1600, 30) == 30
    assert rows_of_chunk(fixed, ["x"], 3, 30) == 1
    varying = ArraySource({"x": np.zeros(5000), "t": ["a" * (i % 100) for i in range(5000)]})
    assert 0.7 * 5000 < rows_of_chunk(varying, ["x", "t"], 5000 * 58, 2**24) < 1.2 * 5000


def test_a_list_of_inputs_is_converted_as_one(tmp_path: Path, processes: Executor) -> None:
    for number in range(5):
        np.save(tmp_path / f"{number}.npy", np.arange(number * 1000, number * 1000 + 900))
    inputs = [tmp_path / f"{number}.npy" for number in (3, 0, 4, 1, 2)]
    pen.convert(inputs, tmp_path / "a.pen", executor=processes, **SMALL)
    expected = np.concatenate([np.arange(n * 1000, n * 1000 + 900) for n in (3, 0, 4, 1, 2)])
    assert np.array_equal(pen.open(tmp_path / "a.pen")["data"][:], expected)
    figures = stats(pen.open(tmp_path / "a.pen"))
    assert figures.unfull_chunks == 1
    assert figures.field_bytes == {"data": 4500 * 8}


def test_verify_and_rebalance_run_in_other_processes(tmp_path: Path, processes: Executor) -> None:
    pen.convert({"number": NUMBERS}, tmp_path / "a.pen", chunk_records=100)
    with pen.open(tmp_path / "a.pen", mode="a") as out:
        out.delete(np.arange(0, 3000, 3))
    before = digest(pen.open(tmp_path / "a.pen"))
    assert pen.verify(tmp_path / "a.pen", executor=processes) == []
    assert pen.rebalance(tmp_path / "a.pen", executor=processes).after.utilisation == 1.0
    assert digest(pen.open(tmp_path / "a.pen")) == before
    chunk = load_manifest(tmp_path / "a.pen").chunks[0]
    os.truncate(tmp_path / "a.pen" / "chunk" / f"{chunk.writer}-{chunk.serial:08x}.zr", 10)
    for generation in (2, 3):
        serial = pen.verify(tmp_path / "a.pen", generation=generation)
        assert pen.verify(tmp_path / "a.pen", generation=generation, executor=processes) == serial
