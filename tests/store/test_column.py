"""Columns: every form in which a user may hand over records, and what is refused because a value would change."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.store.records import without_addresses

import penstock as pen
from penstock import Field, Ragged
from penstock.store.column import guess_field, join_columns, make_column, missing_column

BF16, E4M3, E4M3B11, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3b11fnuz, ml_dtypes.float8_e5m2


def values(field: Field, data: Any) -> Any:
    return make_column("x", field, data).values.view(field.dtype)


FITS: list[tuple[str, Any, list[Any]]] = [
    ("u1", [0, 255], [0, 255]),
    ("u1", np.array([0.0, 255.0]), [0, 255]),
    ("i8", np.array([2**63 - 1], np.uint64), [2**63 - 1]),
    ("u8", [2**64 - 1], [2**64 - 1]),
    ("u8", np.array([5], np.int8), [5]),
    ("f8", np.array([2**53]), [2**53]),
    ("f4", [0.1], [np.float32(0.1)]),  # rounding to the field's precision is what was asked for
    ("f4", [np.inf, -np.inf], [np.inf, -np.inf]),
    ("f2", [1e-9], [0]),
    ("c8", [0.1 + 0.2j], [np.complex64(0.1 + 0.2j)]),
    ("c8", [1], [1]),
    ("bool", [0, 1, True], [False, True, True]),
    ("i4", [True, False], [1, 0]),
    ("bf16", [1, 2.5], [BF16(1), BF16(2.5)]),
    ("bf16", [np.inf], [BF16(np.inf)]),
    ("f4", np.array([1.5], BF16), [1.5]),
    ("f8", np.array([1.5], E5M2), [1.5]),
    ("bf16", np.array([1.5], E4M3), [BF16(1.5)]),
    ("f8e4m3fn", [448.0], [E4M3(448)]),
    ("f8e5m2", [np.inf], [E5M2(np.inf)]),
    ("i4", range(3), [0, 1, 2]),
    ("i4", (7, 8), [7, 8]),
]


@pytest.mark.parametrize(("element", "data", "expected"), FITS, ids=str)
def test_values_that_fit_are_taken(element: str, data: Any, expected: list[Any]) -> None:
    field = Field(element)
    assert values(field, data).tolist() == np.array(expected, field.dtype).tolist()


def test_nan_stays_nan() -> None:
    for element in ("f2", "f4", "f8", "bf16", "f8e4m3fn", "f8e5m2"):
        assert np.isnan(values(Field(element), [np.nan]).astype(np.float64)).all()


LOSES: list[tuple[str, Any]] = [
    ("u1", [256]),
    ("u1", [-1]),
    ("i1", [128]),
    ("u8", [-1]),
    ("u8", np.array([-1], np.int32)),
    ("u4", np.array([-1], np.int32)),
    ("u4", [-1]),
    ("u1", np.array([-1], np.int8)),
    ("i8", np.array([2**63], np.uint64)),
    ("i4", np.array([2**31], np.uint32)),
    ("i1", np.array([200], np.uint8)),
    ("i4", [0.5]),
    ("i4", [np.nan]),
    ("i8", [2.0**63]),
    ("u8", [2.0**64]),
    ("i4", [np.inf]),
    ("f8", np.array([2**53 + 1])),
    ("f8", np.array([2**64 - 1], np.uint64)),
    ("f4", [2**24 + 1]),
    ("f4", [1e300]),
    ("f2", [1e6]),
    ("bool", [2]),
    ("bool", [0.5]),
    ("c8", [1e300 + 0j]),
    ("f4", [1 + 2j]),
    ("i4", [1 + 2j]),
    ("bf16", [1e39]),
    ("bf16", np.array([257])),
    ("f8e4m3fn", [1000.0]),
    ("f8e4m3fn", [np.inf]),
    ("f8e4m3b11fnuz", [np.inf]),
    ("f8e5m2", [1e5]),
    ("i4", [2**70]),
]


@pytest.mark.parametrize(("element", "data"), LOSES, ids=str)
def test_values_that_would_change_are_refused(element: str, data: Any) -> None:
    for field, given_as in ((Field(element), data), (Field.ragged(element), [data]), (Field(element, (1,)), [[data[0]]])):
        with pytest.raises((ValueError, TypeError), match="field 'x'"):
            make_column("x", field, given_as)


WHOLE = hnp.integer_dtypes(endianness="=") | hnp.unsigned_integer_dtypes(endianness="=")


@given(st.data(), WHOLE, WHOLE)
def test_whole_numbers_are_taken_exactly_if_they_fit(data: st.DataObject, source: np.dtype[Any], target: np.dtype[Any]) -> None:
    array = data.draw(hnp.arrays(source, st.integers(1, 4)))
    limits = np.iinfo(target)
    fits = all(limits.min <= int(value) <= limits.max for value in array)
    if fits:
        assert values(Field(target), array).tolist() == array.tolist()
    else:
        with pytest.raises(ValueError, match="do not fit"):
            make_column("x", Field(target), array)


OTHER_KINDS: list[tuple[Field, Any]] = [
    (Field("i4"), ["a"]),
    (Field("i4"), [b"a"]),
    (Field("i4"), np.array([1, None], object)),
    (Field("i8"), np.array(["2020-01-01"], "M8[s]")),
    (Field("i8"), np.array([1], "m8[s]")),
    (Field("bf16"), np.zeros(3, [("a", "f4")])),
    (Field("bf16"), np.zeros(3, "V2")),
    (Field("i4"), (i for i in range(3))),
    (Field("i4"), {1: 2}),
    (Field("i4"), "123"),
    (Field("i4"), 3),
    (Field("i4"), np.array(3)),
    (Field("i4"), None),
    (Field("i4"), [[1, 2], [3]]),
    (Field("i4"), [[1], [2]]),
    (Field("i4", (2,)), [1, 2]),
    (Field("i4", (2,)), [[1, 2, 3]]),
    (Field("i4", (2,)), [None, [1, 2, 3]]),
    (Field("i4", (2,)), np.ma.masked_array([[1, 2]], mask=[[True, False]])),
    (Field("i4"), np.ma.masked_array(3, mask=True)),
    (Field("i4", (2,)), [np.ma.masked_array([1, 2], mask=[True, False])]),
    (Field.ragged("i4"), [np.ma.masked_array([1, 2], mask=[True, False])]),
    (Field.ragged("i4"), 3),
    (Field.ragged("i4"), [1, 2]),
    (Field.ragged("i4"), [[[1]]]),
    (Field.ragged("i4", 2), [[1, 2]]),
    (Field.ragged("i4", 2), Ragged(np.arange(4, dtype=np.int32), np.array([0, 4]))),
    (Field.ragged("i4"), [["a"]]),
    (Field.ragged("i4"), None),
    (Field.text(), [b"bytes"]),
    (Field.text(), [1]),
    (Field.text(), "abc"),
    (Field.text(), ["\ud800"]),
    (Field.bytes(), ["text"]),
    (Field.bytes(), b"abc"),
    (Field.bytes(), [1]),
    (Field.bytes(), [[1, 2]]),
]


@pytest.mark.parametrize(("field", "data"), OTHER_KINDS, ids=without_addresses)
def test_records_of_another_kind_or_shape_are_refused(field: Field, data: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="field 'x'"):
        make_column("x", field, data)


INTS = np.arange(4, dtype=np.int32)
MALFORMED: list[tuple[Field, Ragged]] = [
    (Field.ragged("i4"), Ragged(INTS, np.array([0, 3, 2, 4]))),
    (Field.ragged("i4"), Ragged(INTS, np.array([0, 2, 9]))),
    (Field.ragged("i4"), Ragged(INTS, np.array([-1, 2, 4]))),
    (Field.ragged("i4"), Ragged(INTS, np.array([], np.int64))),
    (Field.ragged("i4"), Ragged(INTS, np.array([0.0, 4.0]))),
    (Field.ragged("i4"), Ragged(INTS, np.array([[0, 4]]))),
    (Field.ragged("i4"), Ragged(INTS.reshape(2, 2), np.array([0, 1, 2]))),
    (Field.ragged("i4"), Ragged(INTS, np.array([0, 2, 4]), present=np.array([True]))),
    (Field.ragged("i4", 2), Ragged(INTS, np.array([0, 4]), shapes=np.array([[3, 3]], np.uint32))),
    (Field.ragged("i4", 2), Ragged(INTS, np.array([0, 4]), shapes=np.array([[4]], np.uint32))),
    (Field.ragged("i4", 2), Ragged(INTS, np.array([0, 4]), shapes=np.array([[2, 2], [2, 2]], np.uint32))),
    (Field.text(), Ragged(np.array([255, 254], np.uint8), np.array([0, 2]), "text")),
    (Field.text(), Ragged(np.frombuffer("ü".encode(), np.uint8), np.array([0, 1, 2]), "text")),
]


@pytest.mark.parametrize(("field", "data"), MALFORMED, ids=lambda value: repr(value)[:70])
def test_malformed_ragged_is_refused_and_the_transaction_goes_on(tmp_path: Path, field: Field, data: Ragged) -> None:
    good = [np.zeros((1,) * field.ndim, np.int32)] if field.kind == "ragged" else ["good"]
    with pen.create(tmp_path / "a.pen", {"x": field}) as out:
        out.extend({"x": good})
        with pytest.raises((TypeError, ValueError), match="field 'x'"):
            out.extend({"x": data})
        assert len(out) == 1
    assert len(pen.open(tmp_path / "a.pen")["x"][:].to_list()) == 1
    assert pen.verify(tmp_path / "a.pen") == []


@pytest.mark.parametrize("codec", [pen.Raw(), pen.Zstd()], ids=repr)
def test_ragged_of_other_integer_types_is_taken(tmp_path: Path, codec: Any) -> None:
    ragged = Ragged(INTS, np.array([0, 2, 4], np.int32), shapes=np.array([[2, 1], [1, 2]]))
    with pen.create(tmp_path / "a.pen", {"x": Field.ragged("i4", 2, codec=codec)}) as out:
        out.extend({"x": ragged})
    assert [item.tolist() for item in pen.open(tmp_path / "a.pen")["x"][:]] == [[[0], [1]], [[2, 3]]]


def test_part_of_a_longer_ragged_is_taken_without_the_rest() -> None:
    column = make_column("x", Field.ragged("i4"), Ragged(np.arange(10, dtype=np.int32), np.array([3, 5, 5, 9])))
    assert column.offsets is not None
    assert column.offsets.tolist() == [0, 8, 8, 24]
    assert column.values.view(np.int32).tolist() == [3, 4, 5, 6, 7, 8]


def test_missing_record_of_a_ragged_takes_no_room(tmp_path: Path) -> None:
    ragged = Ragged(INTS, np.array([0, 2, 4]), present=np.array([True, False]))
    with pen.create(tmp_path / "a.pen", {"x": Field.ragged("i4")}) as out:
        out.extend({"x": ragged})
    batch = pen.open(tmp_path / "a.pen")["x"][:]
    assert [None if item is None else item.tolist() for item in batch] == [[0, 1], None]


def test_big_endian_and_non_contiguous_arrays_keep_their_values() -> None:
    array = np.arange(24, dtype=">i4").reshape(4, 6)
    expected = array[::2, ::3].tolist()
    for data in (array[::2, ::3], np.asfortranarray(array[::2, ::3]), array[::2, ::3].astype("<i8"), array[::2, ::3].tolist()):
        assert values(Field("i4", (2,)), data).reshape(2, 2).tolist() == expected
    assert values(Field("f8"), np.arange(3, dtype=">f8")[::-1]).tolist() == [2, 1, 0]
    assert values(Field.ragged("i4"), [array[0, ::2], array[:, 0]]).tolist() == [0, 2, 4, 0, 6, 12, 18]
    assert values(Field.ragged("i4", 2), [array.T]).tolist() == array.T.ravel().tolist()


@pytest.mark.parametrize(
    ("field", "data"),
    [
        (Field("i4"), []),
        (Field("i4"), np.empty(0, np.int32)),
        (Field("i4"), np.ma.masked_array(np.empty(0, np.int32), mask=np.empty(0, bool))),
        (Field("i4", (2,)), []),
        (Field("i4", (2, 3)), np.empty((0, 2, 3))),
        (Field("i4", (2,)), np.ma.masked_array(np.empty((0, 2), np.int32), mask=np.empty((0, 2), bool))),
        (Field.ragged("f4"), []),
        (Field.ragged("f4", 3), []),
        (Field.text(), []),
        (Field.bytes(), ()),
        (Field.ragged("f4"), Ragged(np.empty(0, np.float32), np.zeros(1, np.int64))),
    ],
    ids=repr,
)
def test_no_records_are_a_column_of_none(field: Field, data: Any) -> None:
    column = make_column("x", field, data)
    assert (column.rows, column.values.size) == (0, 0)


def test_records_without_elements_count() -> None:
    assert make_column("x", Field("f4", (0, 3)), np.empty((5, 0, 3))).rows == 5
    assert make_column("x", Field.ragged("f4", 2), [np.empty((0, 3)), np.empty((2, 0))]).shapes.tolist() == [[0, 3], [2, 0]]  # type: ignore[union-attr]


MISSING: list[tuple[Field, Any, list[bool]]] = [
    (Field("i4"), [1, None, 3], [True, False, True]),
    (Field("i4"), (None,), [False]),
    (Field("i4", (2,)), [None, [1, 2]], [False, True]),
    (Field("i4"), np.ma.masked_array([1, 2], mask=[False, True]), [True, False]),
    (Field("bf16"), np.ma.masked_array(np.ones(2, BF16), mask=[True, False]), [False, True]),
    (Field("bool"), np.ma.masked_array([True, True], mask=[False, True]), [True, False]),
    (Field("i4", (2,)), np.ma.masked_array([[1, 2], [3, 4]], mask=[[1, 1], [0, 0]]), [False, True]),
    (Field("i4"), [1, np.ma.masked], [True, False]),
    (Field("i4", (2,)), list(np.ma.masked_array([[1, 2], [3, 4]], mask=[[1, 1], [0, 0]])), [False, True]),
    (Field.ragged("i4"), [[1], np.ma.masked_array([1, 2], mask=True), np.ma.masked_array([3])], [True, False, True]),
    (Field.ragged("f4"), [[1.0], None], [True, False]),
    (Field.ragged("f4", 2), [None, [[1.0]]], [False, True]),
    (Field.text(), ["a", None], [True, False]),
    (
        Field.bytes(),
        [None, b"a", bytearray(b"b"), memoryview(b"c"), np.frombuffer(b"d", np.uint8)],
        [False, True, True, True, True],
    ),
]


@pytest.mark.parametrize(("field", "data", "present"), MISSING, ids=without_addresses)
def test_none_and_masked_records_are_missing(field: Field, data: Any, present: list[bool]) -> None:
    column = make_column("x", field, data)
    assert column.present is not None
    assert column.present.tolist() == present


def test_type_of_a_list_is_told_from_what_is_not_masked() -> None:
    assert guess_field("x", [np.ma.masked, 1, 2]) == Field("i8", nullable=True)
    assert guess_field("x", [np.ma.masked_array([1, 2]), np.ma.masked_array([3, 4])]) == guess_field("x", [np.ones(2, int)])
    with pytest.raises(ValueError, match="field 'x': a record must be masked as a whole or not at all"):
        guess_field("x", [np.ma.masked_array([1, 2], mask=[True, False])])


def test_masked_array_that_hides_nothing_misses_nothing() -> None:
    assert make_column("x", Field("i4"), np.ma.masked_array([1, 2])).present is None
    assert make_column("x", Field("i4"), np.ma.masked_array([1, 2], mask=[False, False])).present is None


def test_values_under_a_mask_do_not_matter() -> None:
    data = np.ma.masked_array([1e300, 1.0], mask=[True, False])
    assert values(Field("u1"), data).tolist() == [0, 1]


LISTS = st.lists(st.none() | st.lists(st.integers(0, 99), max_size=4), min_size=1, max_size=12)


@given(LISTS, st.data())
def test_parts_and_joins_of_a_column_are_the_column(records: list[list[int] | None], data: st.DataObject) -> None:
    whole = make_column("x", Field.ragged("i4"), records)
    cuts = sorted({0, len(records), *data.draw(st.lists(st.integers(0, len(records)), max_size=4))})
    joined = join_columns([whole.part(low, high) for low, high in pairwise(cuts)])
    assert joined.rows == whole.rows
    assert joined.values.tobytes() == whole.values.tobytes()
    assert joined.offsets is not None
    assert joined.offsets.tolist() == whole.offsets.tolist()  # type: ignore[union-attr]
    present = [True] * len(records) if joined.present is None else joined.present.tolist()
    assert present == [record is not None for record in records]


def test_missing_column_misses_everything() -> None:
    for field in (Field("f4", (3,)), Field.text(), Field.ragged("i2", 2)):
        column = missing_column(field, 4)
        assert column.rows == 4
        assert column.present is not None
        assert not column.present.any()
        assert column.copy().values.tobytes() == column.values.tobytes()
    assert missing_column(Field.ragged("i2", 2), 4).shapes.tolist() == [[0, 0]] * 4  # type: ignore[union-attr]


def test_column_refers_to_the_callers_memory_until_it_is_copied() -> None:
    array = np.arange(4, dtype=np.int32)
    column = make_column("x", Field("i4"), array)
    copied = column.copy()
    array[0] = 99
    assert column.values.view(np.int32)[0] == 99
    assert copied.values.view(np.int32)[0] == 0
