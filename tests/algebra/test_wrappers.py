"""Selections, maps, aligned sources and concatenations, over real files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as pen
from penstock.algebra import Concat
from penstock.errors import MissingError, SchemaMismatchError, SourceChangedError
from penstock.formats.array import ArraySource
from penstock.records import Blocks, Source
from penstock.testing import SourceSuite

Record = dict[str, Any]

N = 43
ROWS = np.random.default_rng(3).random((N, 4), np.float32)
LABELS = np.arange(N, dtype=np.int16) * 3
TEXTS = [None if i % 6 == 2 else f"text {i}" * (i % 3) for i in range(N)]
MAYBE = np.ma.MaskedArray(np.arange(N), mask=np.arange(N) % 5 == 4)


def record(i: int) -> Record:
    return {"row": ROWS[i], "text": TEXTS[i], "maybe": None if i % 5 == 4 else np.int64(i)}


def whole() -> ArraySource:
    return ArraySource({"row": ROWS, "text": TEXTS, "maybe": MAYBE})


class TestSelectionOfIds(SourceSuite):
    ids = np.random.default_rng(4).integers(0, N, 60)

    def make(self, directory: Path) -> Source:
        return whole().select(self.ids)

    def records(self) -> list[Record]:
        return [record(i) for i in self.ids]


class TestSelectionOfASlice(SourceSuite):
    def make(self, directory: Path) -> Source:
        np.save(directory / "a.npy", ROWS)
        return pen.open(directory / "a.npy").select(slice(40, 2, -3))

    def records(self) -> list[Record]:
        return [{"data": ROWS[i]} for i in range(40, 2, -3)]


class TestSelectionOfNothing(SourceSuite):
    def make(self, directory: Path) -> Source:
        return whole().select(np.zeros(N, np.bool_))

    def records(self) -> list[Record]:
        return []


def halve(one: Record) -> Record:
    return {"half": one["row"][:2] / 2, "words": one["text"] or "none", "n": one["maybe"]}


class TestMap(SourceSuite):
    def make(self, directory: Path) -> Source:
        fields = {"half": pen.Field("f4", (2,)), "words": pen.Field.text(), "n": pen.Field("i8", nullable=True)}
        return whole().map(halve, schema=fields)

    def records(self) -> list[Record]:
        return [{"half": ROWS[i][:2] / 2, "words": TEXTS[i] or "none", "n": record(i)["maybe"]} for i in range(N)]


class TestMapWithSchema(SourceSuite):
    """Records of other shapes need to be told."""

    def make(self, directory: Path) -> Source:
        return whole().map(repeat, schema={"many": pen.Field.ragged("f4", 2), "raw": pen.Field.bytes()})

    def records(self) -> list[Record]:
        return [{"many": np.repeat(ROWS[i][None], i % 3, axis=0), "raw": ROWS[i].tobytes()} for i in range(N)]


def repeat(one: Record) -> Record:
    at = int(np.flatnonzero((one["row"] == ROWS).all(axis=1))[0])
    return {"many": np.repeat(one["row"][None], at % 3, axis=0), "raw": one["row"].tobytes(), "ignored": 1}


class TestAligned(SourceSuite):
    equal_when_written_again = False

    def make(self, directory: Path) -> Source:
        for name, low, high in (("a", 0, 20), ("b", 20, N)):
            np.save(directory / f"{name}.npy", ROWS[low:high])
        pen.convert({"text": TEXTS, "maybe": MAYBE}, directory / "more.pen")
        return pen.open({"data": f"{directory}/*.npy", "label": LABELS, "more": directory / "more.pen"})

    def records(self) -> list[Record]:
        one = [record(i) for i in range(N)]
        return [{"data": ROWS[i], "label": LABELS[i], "more.text": one[i]["text"], "more.maybe": one[i]["maybe"]} for i in range(N)]


class TestConcatOfStores(SourceSuite):
    equal_when_written_again = False

    def make(self, directory: Path) -> Source:
        for number, (low, high) in enumerate([(0, 17), (17, 17), (17, 40), (40, N)]):
            pen.convert(whole().select(slice(low, high)), directory / f"{number}.pen")
        return pen.open(f"{directory}/*.pen")

    def records(self) -> list[Record]:
        return [record(i) for i in range(N)]


class TestConcatOfDifferentFormats(SourceSuite):
    equal_when_written_again = False

    def make(self, directory: Path) -> Source:
        np.save(directory / "a.npy", ROWS[:20])
        pen.convert({"data": ROWS[20:]}, directory / "b.pen")
        return pen.open([directory / "a.npy", directory / "b.pen"])

    def records(self) -> list[Record]:
        return [{"data": row} for row in ROWS]


class TestConcatOfOpenSources(SourceSuite):
    """More of them than are kept open otherwise."""

    def make(self, directory: Path) -> Source:
        return pen.open([ROWS[i : i + 1] for i in range(N)] * 3)

    def records(self) -> list[Record]:
        return [{"data": row} for row in ROWS] * 3


def test_a_map_is_lazy_and_calls_the_function_once_per_record_read() -> None:
    seen: list[int] = []

    def fn(one: Record) -> Record:
        seen.append(int(one["x"]))
        return {"y": one["x"] + 1}

    source = ArraySource({"x": np.arange(10)}).map(fn, schema={"y": pen.Field("i8")})
    assert seen == []
    assert source[[3, 5]]["y"].tolist() == [4, 6]
    assert seen == [3, 5]


def test_a_map_that_does_not_give_its_fields_is_refused() -> None:
    data = ArraySource({"x": np.arange(10)})
    with pytest.raises(TypeError, match="a dict of fields"):
        data.map(lambda one: one["x"])
    with pytest.raises(ValueError, match="missing in record 0"):
        data.map(lambda one: {"y": None})
    with pytest.raises(ValueError, match="no record"):
        data.select([]).map(lambda one: one)
    with pytest.raises(SchemaMismatchError, match="no field 'y'"):
        data.map(lambda one: {"y": 1} if one["x"] < 5 else {"z": 1})[7]
    with pytest.raises(ValueError, match="'y'"):
        data.map(lambda one: {"y": np.zeros(int(one["x"]) + 1)})[:]


def test_aligned_sources_must_have_one_length() -> None:
    with pytest.raises(SchemaMismatchError, match=r"\{'a': 3, 'b': 4\}"):
        pen.open({"a": ArraySource({"x": np.arange(3)}), "b": np.arange(4)})


def test_aligned_names_must_differ() -> None:
    with pytest.raises(SchemaMismatchError, match=r"'a\.x'"):
        pen.open({"a": whole().select(slice(0, 2)).map(lambda one: {"x": 1, "y": 2}), "a.x": ArraySource({"q": np.arange(2)})})


def test_concatenated_sources_must_have_the_same_fields() -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        pen.open([ArraySource({"x": np.zeros(2), "y": np.zeros(2)}), ArraySource({"x": np.zeros(2, np.float32), "z": np.zeros(2)})])
    assert str(caught.value) == (
        "all parts must have the same fields:\n"
        "  x: Field('f8') in part 0, Field('f4') in part 1\n"
        "  y: Field('f8') in part 0, not there in part 1\n"
        "  z: not there in part 0, Field('f8') in part 1"
    )
    with pytest.raises(SchemaMismatchError, match="order of the fields"):
        pen.open([ArraySource({"x": np.zeros(2), "y": np.zeros(2)}), ArraySource({"y": np.zeros(2), "x": np.zeros(2)})])


def test_a_part_that_changed_is_noticed_when_it_is_opened(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(4))
    pen.convert({"data": np.arange(4)}, tmp_path / "b.pen")
    for content, error in ((np.arange(1, 5), SourceChangedError), (np.arange(5), SourceChangedError), (None, MissingError)):
        source = pen.open([tmp_path / "a.npy", tmp_path / "b.pen"])
        if content is None:
            (tmp_path / "a.npy").unlink()
        else:
            np.save(tmp_path / "a.npy", content)
        with pytest.raises(error, match=r"a\.npy"):
            source[0]
        assert source[4]["data"] == 0
        if content is not None:
            np.save(tmp_path / "a.npy", np.arange(4))


def test_few_parts_are_open_at_a_time(tmp_path: Path) -> None:
    opened: list[int] = []
    closed: list[int] = []

    class Counted(ArraySource):
        def __init__(self, number: int) -> None:
            super().__init__({"x": np.array([number])})
            self.number = number
            opened.append(number)

        def close(self) -> None:
            closed.append(self.number)

    source = Concat.of((str(i), lambda i=i: Counted(i)) for i in range(300))
    assert len(opened) == 300
    assert len(opened) - len(closed) <= 64
    ids = np.random.default_rng(0).permutation(300)
    assert np.array_equal(source["x"][ids], ids)
    assert len(opened) - len(closed) <= 65
    source.close()
    assert len(opened) == len(closed)


def test_blocks_of_counts_and_of_selections() -> None:
    assert [list(b) for b in map(Blocks.of_counts([2, 0, 3]).__getitem__, range(2))] == [[0, 1], [2, 3, 4]]
    assert Blocks.of_counts([]).size == 1
    assert Blocks.of_counts([4, 4, 2]).ends is None
    with pytest.raises(IndexError):
        Blocks(10, 3)[4]
    chosen = Concat.of_sources([ArraySource({"x": np.arange(n)}) for n in (5, 3, 7)]).select(slice(3, 12, 2)).blocks
    assert [list(chosen[i]) for i in range(len(chosen))] == [[0], [1, 2], [3, 4]]
