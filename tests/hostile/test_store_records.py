"""Stores whose checksums are right and whose records are not: verify names file, field and record of each."""

import struct
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.store.hostile import (
    Case,
    Spec,
    alias,
    build_redirects,
    crc,
    deflate,
    lz4_run,
    rows_without_bytes,
    set_record,
    write,
    zstd_run,
)

import penstock as pen
from penstock.errors import CorruptError
from penstock.store.column import Column
from penstock.store.reader import ChunkReader

RECORDS: dict[str, tuple[int, int, Callable[[Spec], object]]] = {
    "zstd: no frame": (1, 0, lambda spec: set_record(spec, 1, 0, b"\x00" * 20, 200)),
    "zstd: cut": (1, 1, lambda spec: set_record(spec, 1, 1, zstd_run(b"b", 300)[:-1], 300)),
    "zstd: longer than it says": (1, 1, lambda spec: set_record(spec, 1, 1, zstd_run(b"b", 300), 299)),
    "zstd: a dictionary that is not there": (1, 0, lambda spec: set_record(spec, 1, 0, zstd_run(b"a", 200, dictionary=7), 200)),
    "lz4: an offset before the beginning": (2, 1, lambda spec: set_record(spec, 2, 1, lz4_run(b"\0", 96, offset=9), 96)),
    "lz4: cut": (2, 0, lambda spec: set_record(spec, 2, 0, lz4_run(b"\0", 64)[:-1], 64)),
    "deflate: noise": (3, 1, lambda spec: set_record(spec, 3, 1, b"\xff" * 9, None)),
    "deflate: short": (3, 2, lambda spec: set_record(spec, 3, 2, deflate(b"\x02" * 31), None)),
    "deflate: long": (3, 2, lambda spec: set_record(spec, 3, 2, deflate(b"\x02" * 33), None)),
    "text that is not UTF-8": (1, 2, lambda spec: set_record(spec, 1, 2, b"\xff\xfe\xfd", 3)),
    "a size that is no multiple of the element's": (2, 2, lambda spec: set_record(spec, 2, 2, b"\0" * 31, 31)),
    "a shape that is another": (2, 0, lambda spec: spec.part(2).arrays.update(dims=struct.pack("<8I", 3, 8, 3, 8, 1, 8, 0, 8))),
}
NAMES = ("plain", "text", "grid", "pose", "blob")


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_that_does_not_decode_is_named(name: str, tmp_path: Path) -> None:
    number, record, change = RECORDS[name]
    write(tmp_path / "a.pen", Case(name, change))
    (problem,) = pen.verify(tmp_path / "a.pen")
    assert problem.file.startswith(str(tmp_path / "a.pen" / "chunk"))
    assert f"field '{NAMES[number]}', record {record}" in problem.what
    assert pen.verify(tmp_path / "a.pen", decode=False) == []
    with pen.open(tmp_path / "a.pen") as store, pytest.raises(CorruptError, match=f"record {record}"):
        store.read([record], [NAMES[number]])


def test_the_builder_makes_a_store_in_which_nothing_is_wrong(tmp_path: Path) -> None:
    write(tmp_path / "a.pen", Case("as it is", lambda _: None))
    assert pen.verify(tmp_path / "a.pen") == []


def test_records_that_were_replaced_do_not_count_and_those_in_their_place_do(tmp_path: Path) -> None:
    """Record 0 of the text is led to row 2, so that nobody reads row 0; then to row 1, which does not decode."""

    def led_to(row: int, broken: int) -> Callable[[Spec], object]:
        def change(spec: Spec) -> None:
            set_record(spec, 1, broken, b"\x00" * 20, 200)
            spec.redirects = build_redirects({1: [(0, 0, row)]})

        return change

    write(tmp_path / "a.pen", Case("a", led_to(2, 0)))
    assert pen.verify(tmp_path / "a.pen") == []
    write(tmp_path / "b.pen", Case("b", led_to(1, 1)))
    assert [problem.what[:40] for problem in pen.verify(tmp_path / "b.pen")] == [
        "field 'text', record 0 (row 1): the stor",
        "field 'text', record 1 (row 1): the stor",
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Records of every kind in 40 chunks, some changed later, some deleted."""
    fields = {
        "x": pen.Field("i8"),
        "text": pen.Field.text(codec=pen.Zstd(3)),
        "grid": pen.Field.ragged("f4", ndim=2, codec=pen.LZ4()),
        "wave": pen.Field("i2", (50,), codec=pen.Deflate(6)),
    }
    with pen.create(tmp_path / "a.pen", fields, chunk_records=10) as out:
        for first in range(0, 400, 100):
            out.extend(
                {
                    "x": np.arange(first, first + 100),
                    "text": [f"record {first + i} " * 9 for i in range(100)],
                    "grid": [np.ones((i % 4, 3), np.float32) for i in range(100)],
                    "wave": np.full((100, 50), first, np.int16),
                }
            )
        out.commit()
        out.update([3, 250], {"text": ["three", "two hundred and fifty"]})
        out.delete([7, 8, 390])
    return tmp_path / "a.pen"


def test_progress_and_executors_are_as_they_were(path: Path) -> None:
    told: list[tuple[int, int]] = []
    assert pen.verify(path, progress=lambda rows, size: told.append((rows, size))) == []
    with pen.open(path) as store:
        assert told == [(chunk.rows, chunk.size) for chunk in store.manifest.chunks]
    with ThreadPoolExecutor(2) as executor:
        assert pen.verify(path, executor=executor) == []


def test_many_records_are_decoded_in_parts_each_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = sys.modules["penstock.store.maintenance"]
    monkeypatch.setattr(limits, "MOST_BYTES", 300)
    monkeypatch.setattr(limits, "MOST_RECORDS", 4)
    read: dict[str, list[int]] = {}
    real = ChunkReader.read_field

    def watched(self: ChunkReader, name: str, ids: npt.NDArray[np.int64], out: Any) -> Any:
        read.setdefault(name, []).extend(ids.tolist())
        column = real(self, name, ids, out)
        size = column.values.nbytes if isinstance(column, Column) else column.array.nbytes
        assert ids.size <= 4
        assert size <= 300 or ids.size == 1
        return column

    monkeypatch.setattr(ChunkReader, "read_field", watched)
    assert pen.verify(path) == []
    assert {name: sorted(ids) for name, ids in read.items()} == {name: list(range(397)) for name in ("x", "text", "grid", "wave")}


def test_of_very_many_bad_records_of_a_chunk_the_first_are_named(tmp_path: Path) -> None:
    """Bytes that a manifest calls a text."""
    with pen.create(tmp_path / "a.pen", {"x": pen.Field.bytes()}) as out:
        out.extend({"x": [b"fine", *[b"\xff"] * 500]})
    (manifest,) = (tmp_path / "a.pen" / "manifest").glob("*.json")
    line = manifest.read_bytes().split(b"\n")[0].replace(b'"kind":"bytes"', b'"kind":"text"')
    manifest.write_bytes(line + b"\n%08x\n" % crc(line))
    problems = [problem.what for problem in pen.verify(tmp_path / "a.pen")]
    assert len(problems) == 101
    assert problems[0] == "field 'x', record 1 (row 1): the text is not UTF-8"
    assert problems[99:] == ["field 'x', record 100 (row 100): the text is not UTF-8", "more records cannot be read"]


def watch_reads(monkeypatch: pytest.MonkeyPatch, most: int) -> list[tuple[str, int, int]]:
    """Field, first id and number of ids of every read to come; more than ``most`` are an error."""
    read: list[tuple[str, int, int]] = []
    real = ChunkReader.read_field

    def watched(self: ChunkReader, name: str, ids: npt.NDArray[np.int64], out: Any) -> Any:
        read.append((name, int(ids[0]), ids.size))
        assert len(read) <= most
        return real(self, name, ids, out)

    monkeypatch.setattr(ChunkReader, "read_field", watched)
    return read


def test_records_without_bytes_are_tried_once_however_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a few hundred bytes says that it has four billion records of five fields."""
    write(tmp_path / "a.pen", Case("rows without bytes", rows_without_bytes))
    read = watch_reads(monkeypatch, len(NAMES))
    assert pen.verify(tmp_path / "a.pen") == []
    assert read == [(name, 0, 1) for name in NAMES]


def test_records_of_many_small_segments_are_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        tmp_path / "a.pen",
        Case("segments of four records", lambda spec: (alias(spec, 4000), setattr(spec, "redirects", build_redirects({})))),
    )
    read = watch_reads(monkeypatch, len(NAMES))
    assert pen.verify(tmp_path / "a.pen") == []
    assert read == [(name, 0, 4000) for name in NAMES]


def test_a_record_without_bytes_that_cannot_be_read_is_named_for_all(tmp_path: Path) -> None:
    """The manifest says that the four billion records of no bytes have four each."""

    def change(spec: Spec) -> None:
        rows_without_bytes(spec)
        spec.document.append(lambda document: document["fields"][0].update(shape=[4]))

    write(tmp_path / "a.pen", Case("another size", change))
    (problem,) = pen.verify(tmp_path / "a.pen")
    assert "field 'plain', record 0 (row 0): the record has another size than its field" in problem.what
