"""What a user of the store relies on, as black-box checks. (The eighth, killing the writer, is among the crash tests.)"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.cli import warm
from tests.store.records import FIELDS, assert_store, columns, delete, digest, files, flip, is_same, make_records, run_python, write

import penstock as pen
from penstock import Field
from penstock.errors import CorruptError, PenstockError, ReadError
from penstock.store import Codec, Writer, stats

N = 60


def test_check_01_every_field_of_every_record_is_equal_in_a_new_process(tmp_path: Path) -> None:
    records = make_records(N)
    write(tmp_path / "a.pen", records, chunk_bytes=4096)
    assert_store(pen.open(tmp_path / "a.pen"), records)
    code = (
        "import sys, penstock as pen; from tests.store.records import digest; s = pen.open(sys.argv[1]); print(len(s), digest(s))"
    )
    assert run_python(code, tmp_path / "a.pen").split() == [str(N), digest(pen.open(tmp_path / "a.pen"))]


def test_check_02_order_and_duplicates_are_kept_and_ids_out_of_range_raise(tmp_path: Path) -> None:
    records = make_records(N)
    write(tmp_path / "a.pen", records, chunk_records=7)
    store = pen.open(tmp_path / "a.pen")
    for ids in ([3, 3, 0, N - 1], [-1, 0, -N, 5, 5], list(range(N - 1, -1, -1))):
        batch = store[ids]
        for place, wanted in enumerate(ids):
            for name in ("label", "caption"):
                value = batch[name][place]
                assert is_same(None if value is np.ma.masked else value, records[wanted][name])
    for outside in (N, -N - 1, 2**63 - 1, -(2**63), 2**64):
        for key in (outside, [0, outside]):
            with pytest.raises(IndexError):
                store[key]
        with pytest.raises(IndexError):
            store["label"][outside]
        with pytest.raises(IndexError):
            store.view("label")[outside]


CODECS = [pen.Raw(), pen.Deflate(), pen.Deflate(1), pen.Zstd(), pen.Zstd(19), pen.LZ4(), pen.LZ4(9)]


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_check_03_codecs_read_alike_shrink_repetition_and_keep_noise(tmp_path: Path, codec: Codec) -> None:
    rng = np.random.default_rng(3)
    same = np.tile(np.arange(16, dtype=np.int32), (50, 64))
    noise = rng.integers(0, 256, (50, 999), dtype=np.uint8)
    blobs = [rng.bytes(n) for n in range(50)]
    fields = {
        "same": Field("i4", (1024,), codec=codec),
        "noise": Field("u1", (999,), codec=codec),
        "blob": Field.bytes(codec=codec),
    }
    for name, data in {"same": same, "noise": noise, "blob": blobs}.items():
        with pen.create(tmp_path / name, {name: fields[name]}) as out:
            out.extend({name: data})
    assert np.array_equal(pen.open(tmp_path / "same")["same"][:], same)
    assert np.array_equal(pen.open(tmp_path / "noise")["noise"][:], noise)
    assert pen.open(tmp_path / "blob")["blob"][:].to_list() == blobs
    size = {name: sum(files(tmp_path / name).values()) for name in fields}
    assert (size["same"] < same.nbytes / 10) == (codec != pen.Raw())
    assert size["noise"] < noise.nbytes + 4096  # what does not shrink is stored as it is


def test_check_04_empty_missing_and_zero_are_three_results(tmp_path: Path) -> None:
    fields = {
        "text": Field.text(),
        "blob": Field.bytes(codec=pen.Zstd()),
        "rag": Field.ragged("i4"),
        "num": Field("i4"),
        "none": Field("f4", (0,)),
    }
    with pen.create(tmp_path / "a.pen", fields) as out:
        out.append({"text": "", "blob": b"", "rag": [], "num": 0, "none": []})
        out.append({"text": None, "blob": None, "rag": None, "num": None, "none": None})
        out.append({"text": "\0", "blob": b"\0", "rag": [0], "num": 1, "none": []})
    empty, missing, zero = (pen.open(tmp_path / "a.pen")[i] for i in range(3))
    assert (empty["text"], empty["blob"], empty["rag"].tolist(), empty["num"], empty["none"].tolist()) == ("", b"", [], 0, [])
    assert set(missing.values()) == {None}
    assert (zero["text"], zero["blob"], zero["rag"].tolist(), zero["num"], zero["none"].tolist()) == ("\0", b"\0", [0], 1, [])


def test_check_05_update_keeps_the_id_all_others_and_what_open_readers_see(tmp_path: Path) -> None:
    records = make_records(N)
    write(tmp_path / "a.pen", records, chunk_records=8)
    before = pen.open(tmp_path / "a.pen")
    changed = [dict(record) for record in records]
    changed[17] |= {"label": np.int32(-1), "caption": "new"}
    with pen.open(tmp_path / "a.pen", mode="a") as out:
        out.update([17], {"label": [-1], "caption": ["new"]})
    assert_store(pen.open(tmp_path / "a.pen"), changed)
    assert_store(before, records)


def test_check_06_delete_keeps_ids_dense_and_says_what_moved(tmp_path: Path) -> None:
    records = make_records(N)
    write(tmp_path / "a.pen", records, chunk_records=8)
    before = pen.open(tmp_path / "a.pen")
    with pen.open(tmp_path / "a.pen", mode="a") as out:
        moves = out.delete([2, 5])
    assert moves == {N - 2: 2, N - 1: 5}
    left = list(records)
    assert delete(left, [2, 5]) == moves
    after = pen.open(tmp_path / "a.pen")
    assert_store(after, left)
    assert_store(before, records)
    full = stats(after)
    pen.rebalance(tmp_path / "a.pen")
    assert_store(pen.open(tmp_path / "a.pen"), left)
    assert_store(after, left)
    assert stats(pen.open(tmp_path / "a.pen")).stored_bytes < full.stored_bytes
    assert pen.gc(tmp_path / "a.pen", keep=1, keep_hours=0).freed_bytes > 0
    assert_store(pen.open(tmp_path / "a.pen"), left)


def test_check_07_utilisation_is_one_falls_with_deletes_and_returns(tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", {"x": Field("f4", (16,)), "t": Field.text()}, chunk_records=10) as out:
        out.extend({"x": np.ones((100, 16)), "t": ["same"] * 100})
    assert stats(pen.open(tmp_path / "a.pen")).utilisation == 1.0
    with pen.open(tmp_path / "a.pen", mode="a") as out:
        out.delete(range(0, 40))
    # 40 of the last 60 records moved: 6 whole chunks and the holes are what is stored, 60 records are live.
    fallen = stats(pen.open(tmp_path / "a.pen"))
    assert fallen.utilisation == pytest.approx(60 / 100)
    rebalanced = pen.rebalance(tmp_path / "a.pen")
    assert rebalanced.before == fallen
    assert rebalanced.after == stats(pen.open(tmp_path / "a.pen"))
    assert (rebalanced.after.utilisation, rebalanced.after.records, rebalanced.after.redirects) == (1.0, 60, 0)


def test_check_09_an_exception_in_the_block_publishes_nothing(tmp_path: Path) -> None:
    def fail(out: Writer) -> None:
        with out:
            out.extend(columns(make_records(10)))
            out.delete([1])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail(pen.create(tmp_path / "a.pen", FIELDS, chunk_records=2))
    assert files(tmp_path / "a.pen") == {}
    with pytest.raises(PenstockError, match="nothing was ever committed"):
        pen.open(tmp_path / "a.pen")
    records = make_records(N)
    write(tmp_path / "a.pen", records)
    assert_store(pen.open(tmp_path / "a.pen"), records)
    there = files(tmp_path / "a.pen")
    with pytest.raises(ZeroDivisionError):
        fail(pen.open(tmp_path / "a.pen", mode="a"))
    assert files(tmp_path / "a.pen") == there
    assert_store(pen.open(tmp_path / "a.pen"), records)


APPEND_AND_WAIT = """
import os, sys, signal, penstock as pen
from tests.store.records import columns, make_records
out = pen.open(sys.argv[1], mode="a")
out.extend(columns(make_records(50, seed=9)))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_check_10_a_killed_append_leaves_the_old_data_readable(tmp_path: Path) -> None:
    records = make_records(N)
    write(tmp_path / "a.pen", records, chunk_records=8)
    killed = warm.run([sys.executable, "-c", APPEND_AND_WAIT, str(tmp_path / "a.pen")], check=False, cwd=Path(__file__).parents[2])
    assert killed.returncode == -9
    assert_store(pen.open(tmp_path / "a.pen"), records)
    with pen.open(tmp_path / "a.pen", mode="a") as out:
        out.extend(columns(records[:3]))
    assert_store(pen.open(tmp_path / "a.pen"), records + records[:3])


def test_check_11_no_flipped_byte_gives_a_wrong_value(tmp_path: Path) -> None:
    """Every 107th byte here; every single one among the corruption tests, in a campaign."""
    records = make_records(20)
    write(tmp_path / "a.pen", records, chunk_records=8)
    expected, caught = digest(pen.open(tmp_path / "a.pen")), []
    for name, size in files(tmp_path / "a.pen").items():
        file = tmp_path / "a.pen" / name
        for offset in range(0, size, 107):
            flip(file, offset)
            try:
                found = digest(pen.open(tmp_path / "a.pen"))
            except ReadError as error:
                caught.append((file.name, str(error), pen.verify(tmp_path / "a.pen")))
            else:
                assert found == expected  # a byte between two regions, which holds nothing
            flip(file, offset)
    assert len(caught) > 45
    for name, message, problems in caught:
        assert name in message
        assert any(name in problem.file + problem.what for problem in problems)
    assert digest(pen.open(tmp_path / "a.pen")) == expected


def test_check_12_a_file_shorter_by_a_byte_is_named_with_both_sizes(tmp_path: Path) -> None:
    write(tmp_path / "a.pen", make_records(20), chunk_records=8)
    with pen.open(tmp_path / "a.pen", mode="a") as out:
        out.delete([0])
    newest = sorted(name for name in files(tmp_path / "a.pen") if name.startswith("manifest"))[-1]
    for name, size in files(tmp_path / "a.pen").items():
        if name.startswith("manifest") and name != newest:
            continue
        file = tmp_path / "a.pen" / name
        data = file.read_bytes()
        file.write_bytes(data[:-1])
        with pytest.raises(CorruptError) as caught:
            digest(pen.open(tmp_path / "a.pen"))
        assert file.name in str(caught.value)
        if not name.startswith("manifest"):  # nothing says how long the newest manifest should be: its crc line is cut
            assert str(size) in str(caught.value)
            assert str(size - 1) in str(caught.value)
        file.write_bytes(data)


WATCH = """
import json, sys, penstock as pen
from tests.store.records import digest
for line in sys.stdin:
    store = pen.open(sys.argv[1])
    print(json.dumps([store.generation, len(store), digest(store)]), flush=True)
"""


def test_check_13_two_processes_read_whole_generations_while_one_commits(tmp_path: Path) -> None:
    path, seen = tmp_path / "a.pen", []
    write(path, make_records(10), chunk_records=8)
    command = [sys.executable, "-c", WATCH, str(path)]
    readers = [
        warm.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        for _ in range(2)
    ]
    try:
        truth = {1: [10, digest(pen.open(path))]}
        with pen.open(path, mode="a") as out:
            for number in range(2, 22):
                for reader in readers:  # they open while the next commit is under way
                    print("look", file=reader.stdin, flush=True)
                out.extend(columns(make_records(5, seed=number)))
                out.update([0, number], {"label": [number, -number]})
                assert out.commit() == number
                truth[number] = [len(out), digest(pen.open(path, generation=number))]
                seen += [json.loads(reader.stdout.readline()) for reader in readers]
    finally:
        for reader in readers:
            reader.communicate()
    assert [reader.returncode for reader in readers] == [0, 0]
    for generation, length, found in seen:
        assert [length, found] == truth[generation]
    assert len({generation for generation, _, _ in seen}) > 10


def test_check_14_a_million_labels_take_little_more_than_their_payload(tmp_path: Path) -> None:
    labels = np.random.default_rng(14).integers(-(2**31), 2**31, 1_000_000, dtype=np.int32)
    with pen.create(tmp_path / "a.pen", {"label": Field("i4")}) as out:
        out.extend({"label": labels})
    assert sum(files(tmp_path / "a.pen").values()) <= 1.1 * labels.nbytes
    ids = np.random.default_rng(15).integers(0, labels.size, 8192)
    assert np.array_equal(pen.open(tmp_path / "a.pen")["label"][ids], labels[ids])
