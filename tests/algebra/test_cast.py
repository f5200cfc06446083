"""Fields of a source as other types, with every value checked."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import penstock as pen
from penstock.errors import BatchError, CastError
from penstock.records import Source
from penstock.source import write_tokens
from penstock.testing import SourceSuite

N = 37
FIELDS = {
    "x": pen.Field("f8", (2,)),
    "count": pen.Field("i8", nullable=True),
    "tokens": pen.Field.ragged("u4", nullable=True),
    "box": pen.Field.ragged("i2", ndim=2),
    "name": pen.Field.text(),
}
TYPES = {"x": "f4", "count": "u1", "tokens": "u2", "box": "f8"}


def columns() -> dict[str, Any]:
    return {
        "x": np.arange(2 * N).reshape(N, 2) / 8,
        "count": [None if i % 5 == 0 else i for i in range(N)],
        "tokens": [None if i % 7 == 0 else np.arange(i % 4) * 1000 for i in range(N)],
        "box": [np.full((i % 3, 2), -i) for i in range(N)],
        "name": [f"record {i}" for i in range(N)],
    }


def write(path: Any) -> None:
    with pen.create(path, FIELDS) as out:
        out.extend(columns())


class TestCast(SourceSuite):
    equal_when_written_again = False  # stores have identities

    def make(self, directory: Path) -> Source:
        write(directory / "a.pen")
        return pen.open(directory / "a.pen", cast=TYPES)

    def records(self) -> list[dict[str, Any]]:
        given = columns()
        return [
            {
                "x": given["x"][i].astype("f4"),
                "count": None if given["count"][i] is None else np.uint8(given["count"][i]),
                "tokens": None if given["tokens"][i] is None else given["tokens"][i].astype("u2"),
                "box": given["box"][i].astype("f8"),
                "name": given["name"][i],
            }
            for i in range(N)
        ]


def test_the_schema_has_the_new_types_and_all_else(tmp_path: Path):
    write(tmp_path / "a.pen")
    data = pen.open(tmp_path / "a.pen")
    cast = data.cast(TYPES)
    assert list(cast.schema) == list(data.schema)
    assert cast.schema["x"] == pen.Field("f4", (2,))
    assert cast.schema["count"] == pen.Field("u1", nullable=True)
    assert cast.schema["tokens"] == pen.Field.ragged("u2", nullable=True)
    assert cast.schema["box"] == pen.Field.ragged("f8", ndim=2)
    assert cast.schema["name"] == data.schema["name"]
    assert (
        len({data.fingerprint, cast.fingerprint, data.cast({"x": "f4"}).fingerprint, data.cast(TYPES, allow="round").fingerprint})
        == 4
    )
    assert pickle.loads(pickle.dumps(cast)).fingerprint == cast.fingerprint


NUMBERS = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([2**k + d for k in (7, 8, 11, 15, 16, 24, 31, 32, 53, 63) for d in (-1, 0, 1)]),
    st.sampled_from([0.5, -0.5, 1e300, 65504.0, 65520.0, 1e-40, float("nan"), float("inf"), -0.0, 2.0**63, -(2.0**63)]),
    st.floats(width=32),
)
ELEMENTS = ["bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "bf16"]


def fits(value: Any, element: str, *, rounding: bool) -> Any:
    """What a number of Python becomes; None if it does not fit."""
    dtype = pen.Field(element).dtype
    is_float = element in ("f2", "f4", "f8", "bf16")
    if is_float:
        with np.errstate(all="ignore"):
            found = np.asarray(value, np.float64).astype(dtype) if isinstance(value, float) else np.asarray(value).astype(dtype)
        back = float(found)
        if isinstance(value, int):
            return None if not np.isfinite(back) or (not rounding and int(back) != value) else back
        return None if np.isfinite(value) and not np.isfinite(back) else back
    least, most = (0, 1) if element == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if isinstance(value, float):
        if not np.isfinite(value) or (value != int(value) and not rounding):
            return None
        value = round(value)
    return value if least <= value <= most else None


@given(value=NUMBERS, source=st.sampled_from(ELEMENTS), target=st.sampled_from(ELEMENTS), rounding=st.booleans())
def test_a_value_keeps_its_meaning_or_is_refused(value: Any, source: str, target: str, rounding: bool):
    held = fits(value, source, rounding=False)
    assume(held is not None)
    dtype = pen.Field(source).dtype
    array = np.asarray([held], np.float64).astype(dtype) if isinstance(held, float) else np.array([held]).astype(dtype)
    number = float(array[0]) if isinstance(held, float) else int(array[0])
    data = pen.open({"x": array}).cast({"x": target}, allow="round" if rounding else None)
    expected = fits(number, target, rounding=rounding)
    if expected is None:
        with pytest.raises(CastError, match=r"field 'x': record 0 has "):
            data[0]
    else:
        found = data[:1]["x"]
        assert found.dtype == pen.Field(target).dtype
        assert float(found[0]) == expected or (np.isnan(expected) and np.isnan(float(found[0])))
        if not isinstance(expected, float):
            assert int(found[0]) == expected


@pytest.mark.parametrize(
    ("values", "target", "record", "message"),
    [
        (np.array([[1, 2], [3, 300]]), "u1", 1, "has 300, which does not fit u1: cast to a wider type"),
        (np.array([[1.0, 2], [3, 4.5]]), "i8", 1, r"has 4\.5, which does not fit i8: cast with allow='round'"),
        (np.array([2**53 + 1, 2]), "f8", 0, r"has 9007199254740993, which does not fit f8: cast with allow='round'"),
        (np.array([1.0, 1e39]), "f4", 1, r"has 1e\+39, which does not fit f4: cast to a wider type"),
        (np.array([np.nan, 1]), "i4", 0, "has nan, which does not fit i4: cast to a wider type"),
        (np.array([1, 2j]), "f4", 1, "has 2j, which does not fit f4"),
    ],
)
def test_errors_name_field_record_value_and_remedy(values: Any, target: str, record: int, message: str):
    data = pen.open({"x": values}).cast({"x": target})
    with pytest.raises(CastError, match=f"field 'x': record {record} {message}"):
        data.read([record, record])
    good = [i for i in range(len(values)) if i != record]
    assert np.array_equal(data.read(good)["x"], values[good].real)


def test_errors_of_ragged_fields_name_the_record():
    data = pen.open({"x": [np.arange(3), np.arange(0), np.array([5, 70_000]), np.arange(2)]})
    with pytest.raises(CastError, match="record 2 has 70000, which does not fit u2"):
        data.cast({"x": "u2"}).read([3, 1, 0, 2, 1])
    assert data.cast({"x": "u2"})[[3, 1]]["x"][0].tolist() == [0, 1]


def test_what_is_in_the_place_of_missing_values_is_not_looked_at():
    column = np.ma.MaskedArray([1.0, 1e300, np.nan, 4], mask=[0, 1, 1, 0])
    cast = pen.open({"x": column}).cast({"x": "i2"})[:]["x"]
    assert cast.dtype == np.int16
    assert cast.tolist() == [1, None, None, 4]


def test_arrays_given_as_output_are_filled():
    data = pen.open({"x": np.arange(6.0), "y": np.arange(6)}).cast({"x": "i4"})
    out = {"x": np.empty(3, np.int32), "y": np.empty(3, np.int64)}
    batch = data.read([5, 0, 1], out=out)
    assert batch["x"] is out["x"]
    assert out["x"].tolist() == out["y"].tolist() == [5, 0, 1]
    with pytest.raises(ValueError, match="int32"):
        data.read([5, 0, 1], out={"x": np.empty(3)})


def test_casts_are_read_in_selections_lists_dicts_mixtures_and_from_urls(tmp_path: Path):
    for path in (tmp_path / "a.pen", "memory://cast/a.pen"):
        write(path)
    near, far = (pen.open(path).pick("x", "name").cast({"x": "f2"}) for path in (tmp_path / "a.pen", "memory://cast/a.pen"))
    plain = pen.open(tmp_path / "a.pen")
    expected = plain["x"][:].astype("f2")
    for data in (near, far, near.select(slice(None)), pen.open([near, far]).select(range(N)), pen.open({"x": far.pick("x")})):
        batches = list(pen.Loader(data.shuffle(seed=3, block=4, window=2), 8, ids="id"))
        assert all(batch["x"].dtype == np.float16 and np.array_equal(batch["x"], expected[batch["id"]]) for batch in batches)
    mixed = pen.Loader(pen.mix({"a": near.shuffle(seed=1), "b": far.in_order()}, seed=2), 8, ids="id")
    assert all(np.array_equal(batch["x"], expected[batch["id"]]) for batch in mixed)
    assert far.digest() == near.digest()


def test_a_value_that_does_not_fit_is_raised_by_the_loader_or_skipped():
    data = pen.open({"x": np.array([1, 2, 3, 400, 5])}).cast({"x": "u1"})
    with pytest.raises(BatchError) as raised:
        list(pen.Loader(data, 2))
    assert isinstance(raised.value.__cause__, CastError)
    found = np.concatenate([batch["x"] for batch in pen.Loader(data, 2, on_error="skip")])
    assert len(found) == 5
    assert set(found.tolist()) <= {1, 2, 3, 5}


def test_ragged_tokens_are_cast_before_they_are_cut_and_packed(tmp_path: Path):
    documents = [np.arange(i % 6, dtype=np.uint32) + i for i in range(20)]
    data = pen.open({"tokens": documents})
    for make in (lambda s: s.sequences(4), lambda s: s.pack(6)):
        one, other = (list(pen.Loader(make(source.shuffle(seed=3)), 3)) for source in (data, data.cast({"tokens": "i2"})))
        for before, after in zip(one, other, strict=True):
            assert after["tokens"].dtype == np.int16
            assert np.array_equal(before["tokens"], after["tokens"])
    write_tokens([np.arange(64, dtype=np.uint32)], tmp_path / "a.rox")
    with pytest.raises((TypeError, ValueError), match="token"):
        pen.open(tmp_path / "a.rox").cast({"tokens": "i4"}).shuffle(seed=1).sequences(4)


def test_a_cast_is_converted_with_its_types(tmp_path: Path):
    write(tmp_path / "a.pen")
    pen.convert(pen.open(tmp_path / "a.pen").cast(TYPES), tmp_path / "b.pen")
    with pen.open(tmp_path / "b.pen") as data:
        assert {name: field.element for name, field in data.schema.items()} == {**TYPES, "name": "u1"}
        assert data.digest() == pen.open(tmp_path / "a.pen").cast(TYPES).digest()


@pytest.mark.parametrize(
    ("types", "settings", "error", "match"),
    [
        ({}, {}, TypeError, "dict of element types"),
        ("f4", {}, TypeError, "dict of element types"),
        ({"z": "f4"}, {}, KeyError, "unknown fields"),
        ({"name": "f4"}, {}, TypeError, "fields of numbers can be cast, field 'name'"),
        ({"x": "S3"}, {}, TypeError, "element type"),
        ({"x": "f4"}, {"allow": "all"}, ValueError, "allow must be None or 'round'"),
    ],
)
def test_what_cannot_be_cast_is_refused(types: Any, settings: dict[str, Any], error: type[Exception], match: str):
    data = pen.open({"x": np.arange(3), "name": ["a", "b", "c"]})
    with pytest.raises(error, match=match):
        data.cast(types, **settings)


def test_open_refuses_a_cast_for_writing(tmp_path: Path):
    write(tmp_path / "a.pen")
    with pytest.raises(TypeError, match="for reading"):
        pen.open(tmp_path / "a.pen", mode="a", cast={"x": "f4"})  # type: ignore[call-overload]
