"""Fields and codecs: every element type, levels, their form in the manifest, and what is refused."""

import base64
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as pen
from penstock import Field, _core
from penstock.formats.collection import write_collection
from penstock.schema import Codec, Schema, codec_from_json, codec_to_json, field_from_json, field_to_json
from penstock.store import stats

CODECS = st.one_of(
    st.just(pen.Raw()),
    st.builds(pen.Deflate, st.integers(1, 12)),
    st.builds(pen.Zstd, st.integers(1, 22), st.none() | st.binary(min_size=1, max_size=50)),
    st.builds(pen.LZ4, st.integers(1, 12)),
)


@given(CODECS)
def test_json_gives_the_codec_back(codec: Codec) -> None:
    assert codec_from_json(codec_to_json(codec)) == codec


BAD_CODEC_JSON: list[Any] = [
    None,
    [],
    "raw",
    {},
    {"name": "raw", "level": 0},
    {"name": "brotli", "level": 1},
    {"name": "deflate"},
    {"name": "deflate", "level": 0},
    {"name": "deflate", "level": 13},
    {"name": "deflate", "level": True},
    {"name": "zstd", "level": 23},
    {"name": "zstd", "level": -1},
    {"name": "zstd", "level": "3"},
    {"name": "lz4", "level": 13},
    {"name": "lz4", "level": 1, "dictionary": ""},
    {"name": "zstd", "level": 3, "dictionary": 5},
    {"name": "zstd", "level": 3, "dictionary": "not base64!"},
    {"name": ["zstd"], "level": 3},
]


@pytest.mark.parametrize("value", BAD_CODEC_JSON, ids=repr)
def test_json_that_is_no_codec_is_refused(value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        codec_from_json(value)


@pytest.mark.parametrize(
    ("kind", "level"), [(pen.Deflate, 0), (pen.Deflate, 13), (pen.Zstd, 0), (pen.Zstd, 23), (pen.LZ4, 0), (pen.LZ4, 13)]
)
def test_level_out_of_range_is_refused(kind: Any, level: int) -> None:
    with pytest.raises(ValueError, match="level must be in"):
        kind(level)


@pytest.mark.parametrize("level", [1.5, "3", True, None])
def test_level_that_is_no_whole_number_is_refused(level: Any) -> None:
    with pytest.raises(TypeError, match="level must be a whole number"):
        pen.Zstd(level)


def test_dictionary_that_is_no_bytes_is_refused() -> None:
    with pytest.raises(TypeError, match="dictionary must be bytes"):
        pen.Zstd(3, "text")  # type: ignore[arg-type]


def test_repr_does_not_print_the_dictionary() -> None:
    assert repr(pen.Zstd(3)) == "Zstd(3)"
    assert repr(pen.Zstd(3, b"12345")) == "Zstd(3, dictionary=5 bytes)"
    assert base64.b64encode(b"12345").decode() in str(codec_to_json(pen.Zstd(3, b"12345")))


RECORDS = st.lists(
    st.one_of(st.binary(max_size=40), st.builds(lambda b, n: b * n, st.binary(min_size=1, max_size=4), st.integers(0, 90)))
)


@given(CODECS.filter(lambda codec: codec != pen.Raw() and getattr(codec, "dictionary", None) is None), RECORDS)
def test_no_record_grows(codec: Codec, records: list[bytes]) -> None:
    values = np.frombuffer(b"".join(records), np.uint8)
    offsets = np.concatenate([[0], np.cumsum([len(r) for r in records])]).astype(np.int64)
    ends = np.empty(len(records), np.uint64)
    stored = _core.encode_records(codec.number, codec.level, b"", values, offsets, ends)
    sizes = np.diff(np.concatenate([[0], ends.astype(np.int64)]))
    assert stored.size == sizes.sum()
    assert all(size <= len(record) for size, record in zip(sizes, records, strict=True))


def _texts(count: int) -> list[str]:
    rng = np.random.default_rng(4)
    words = ["weather", "station", "temperature", "humidity", "pressure", "north", "south"]
    return [
        f'{{"station": {rng.integers(99)}, "{rng.choice(words)}": "{rng.choice(words)} {rng.integers(9)}"}}' for _ in range(count)
    ]


def test_trained_dictionary_shrinks_short_records_and_reads_back(tmp_path: Path) -> None:
    texts = _texts(3000)
    dictionary = pen.train_dictionary(texts[:2000], size=4096)
    assert 0 < len(dictionary) <= 4096
    for name, codec in {"with": pen.Zstd(3, dictionary), "without": pen.Zstd(3)}.items():
        with pen.create(tmp_path / name, {"t": pen.Field.text(codec=codec)}) as out:
            out.extend({"t": texts})
        assert pen.open(tmp_path / name)["t"][:].to_list() == texts
    size = {name: stats(pen.open(tmp_path / name)).stored_bytes for name in ("with", "without")}
    assert size["with"] < 0.8 * size["without"]
    assert pen.open(tmp_path / "with").schema["t"].codec == pen.Zstd(3, dictionary)


def test_dictionary_takes_texts_and_bytes_alike() -> None:
    texts = _texts(500)
    assert pen.train_dictionary(texts, size=1024) == pen.train_dictionary([text.encode() for text in texts], size=1024)


@pytest.mark.parametrize("samples", [[], [b"a"], [b""] * 100], ids=["none", "one", "empty"])
def test_dictionary_of_too_few_samples_is_refused(samples: list[bytes]) -> None:
    with pytest.raises(ValueError, match="no dictionary can be trained"):
        pen.train_dictionary(samples)


def test_dictionary_of_no_size_is_refused() -> None:
    with pytest.raises(ValueError, match="size must be in"):
        pen.train_dictionary(_texts(100), size=10)


ELEMENTS = {
    "bool": np.bool_, "i1": np.int8, "i2": np.int16, "i4": np.int32, "i8": np.int64, "u1": np.uint8, "u2": np.uint16,
    "u4": np.uint32, "u8": np.uint64, "f2": np.float16, "f4": np.float32, "f8": np.float64,
    "c8": np.complex64, "c16": np.complex128,
    "bf16": ml_dtypes.bfloat16, "f8e4m3fn": ml_dtypes.float8_e4m3fn, "f8e4m3b11fnuz": ml_dtypes.float8_e4m3b11fnuz,
    "f8e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip


@pytest.mark.parametrize("element", ELEMENTS)
def test_element_type_has_one_name_however_it_is_given(element: str) -> None:
    dtype = np.dtype(ELEMENTS[element])
    for given_as in (element, dtype, ELEMENTS[element]):
        assert Field(given_as).element == element
        assert Field(given_as).dtype == dtype
    assert Field(element, (3, 2)).stride == 6 * dtype.itemsize


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("codec", [pen.Raw(), pen.Zstd()], ids=repr)
def test_every_bit_of_every_element_type_comes_back(tmp_path: Path, element: str, codec: Any) -> None:
    dtype = np.dtype(ELEMENTS[element])
    bits = np.random.default_rng(5).integers(0, 2 if element == "bool" else 256, (40, 3 * dtype.itemsize), dtype=np.uint8)
    values = bits.view(dtype)
    fields = {"fixed": Field(dtype, (3,), codec=codec), "rag": Field.ragged(dtype, codec=codec)}
    with pen.create(tmp_path / "a.pen", fields) as out:
        out.extend({"fixed": values, "rag": list(values)})
    store = pen.open(tmp_path / "a.pen")
    assert store.schema == fields
    assert store["fixed"][:].dtype == dtype
    assert store["fixed"][:].tobytes() == values.tobytes()
    assert store["rag"][:].values.dtype == dtype
    assert store["rag"][:].values.tobytes() == values.tobytes()
    assert np.asarray(store["fixed"][7]).tobytes() == values[7].tobytes()


def test_big_endian_is_the_same_element_type() -> None:
    assert Field(">f4").element == "f4"
    assert Field(">u8") == Field("u8")


BAD_TYPES = ["O", "U5", "S3", "V8", "M8[s]", "m8[s]", "f16", np.dtype([("a", "i4")]), "nonsense", np.longdouble, object]


@pytest.mark.parametrize("dtype", BAD_TYPES, ids=str)
def test_other_element_types_are_refused(dtype: Any) -> None:
    with pytest.raises(TypeError):
        Field(dtype)
    with pytest.raises(TypeError):
        Field.ragged(dtype)


BAD_SHAPES: list[tuple[Any, type[Exception]]] = [
    ((-1,), ValueError),
    ((1.5,), TypeError),
    (("3",), TypeError),
    ((True,), TypeError),
    ((1,) * 33, ValueError),
    ((2**32,), ValueError),
    ((2**16, 2**16), ValueError),
    (None, TypeError),
]


@pytest.mark.parametrize(("shape", "error"), BAD_SHAPES, ids=repr)
def test_bad_shape_is_refused(shape: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Field("u1", shape)


@pytest.mark.parametrize("ndim", [0, 33, -1])
def test_bad_number_of_dimensions_is_refused(ndim: int) -> None:
    with pytest.raises(ValueError, match="ndim must be in"):
        Field.ragged("f4", ndim)


@pytest.mark.parametrize("codec", ["zstd", 3, pen.Zstd])
def test_codec_that_is_none_is_refused(codec: Any) -> None:
    for make in (lambda: Field("f4", codec=codec), lambda: Field.text(codec=codec), lambda: Field.ragged("f4", codec=codec)):
        with pytest.raises(TypeError, match="codec must be"):
            make()


ANY_FIELD = st.one_of(
    st.builds(
        lambda e, s, c: Field(e, tuple(s), codec=c),
        st.sampled_from(sorted(ELEMENTS)),
        st.lists(st.integers(0, 5), max_size=4),
        CODECS,
    ),
    st.builds(lambda e, n, c: Field.ragged(e, n, codec=c), st.sampled_from(sorted(ELEMENTS)), st.integers(1, 32), CODECS),
    st.builds(lambda c: Field.bytes(codec=c), CODECS),
    st.builds(lambda c: Field.text(codec=c), CODECS),
)


@given(ANY_FIELD, st.integers(0, 4095), st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", fullmatch=True))
def test_json_gives_the_field_back(field: Field, number: int, name: str) -> None:
    assert field_from_json(field_to_json(name, number, field)) == (name, number, field)


@given(ANY_FIELD.filter(lambda field: getattr(field.codec, "dictionary", None) is None))
def test_repr_is_the_code_that_makes_it(field: Field) -> None:
    names = {"Field": Field, "Zstd": pen.Zstd, "LZ4": lambda level: pen.LZ4(level), "Deflate": lambda level: pen.Deflate(level)}
    assert eval(repr(field), names) == field


GOOD = {"name": "x", "number": 0, "kind": "fixed", "codec": {"name": "raw"}, "dtype": "f4", "shape": [2]}
RAGGED = {"name": "x", "number": 0, "kind": "ragged", "codec": {"name": "raw"}, "dtype": "f4", "ndim": 2}
BAD_JSON: list[Any] = [
    None,
    [],
    {},
    GOOD | {"kind": "other"},
    GOOD | {"kind": ["fixed"]},
    GOOD | {"more": 1},
    {k: v for k, v in GOOD.items() if k != "shape"},
    GOOD | {"name": ""},
    GOOD | {"name": 5},
    GOOD | {"name": " x"},
    GOOD | {"name": "x" * 129},
    GOOD | {"name": "x\n"},
    GOOD | {"name": "x\x1b[0m"},
    GOOD | {"name": "\ud800"},
    GOOD | {"name": "u\u0308"},
    GOOD | {"nullable": True},
    GOOD | {"number": -1},
    GOOD | {"number": 4096},
    GOOD | {"number": "0"},
    GOOD | {"number": True},
    GOOD | {"dtype": "O"},
    GOOD | {"dtype": "float32"},
    GOOD | {"dtype": ">f4"},
    GOOD | {"dtype": 4},
    GOOD | {"shape": 2},
    GOOD | {"shape": "2"},
    GOOD | {"shape": [-2]},
    GOOD | {"shape": [1] * 33},
    GOOD | {"shape": [2**31, 2]},
    GOOD | {"shape": [2**62, 2**62, 0]} | {"dtype": "f4", "shape": [2**62, 2**62]},
    GOOD | {"codec": None},
    RAGGED | {"ndim": 0},
    RAGGED | {"ndim": 33},
    RAGGED | {"ndim": "2"},
    RAGGED | {"dtype": None},
]


@pytest.mark.parametrize("value", BAD_JSON, ids=lambda value: str(value)[:100])
def test_json_that_is_no_field_is_refused(value: Any) -> None:
    assert field_from_json(GOOD)[0] == field_from_json(RAGGED)[0] == "x"
    with pytest.raises((ValueError, TypeError)):
        field_from_json(value)


BAD_NAMES = ["", " ", " a", "a ", "a" * 129, "a\n", "a\tb", "a\x00", "a\x7f", "\ud800", "a\u202eb", "a\u200bb", "a\u2028b"]


@pytest.mark.parametrize("name", [*BAD_NAMES, "a\u00a0b", "a\u3000", "\ue000", "a\u0308", 5, None], ids=ascii)
def test_field_name_that_is_none_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="a field name: expected"):
        Schema.make({name: Field("i4")})


GOOD_NAMES = ["a", "a b", "ä", "größe in mm", "画像", "имя", "😀", "a/b", "../x", ".a", "-a", "a,b:c=d", "'\"\\", "画" * 128]


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_field_name_is_any_visible_text(tmp_path: Path, name: str) -> None:
    with pen.create(tmp_path / "a.pen", {name: Field("i4"), "t": Field.text()}) as out:
        out.extend({name: [1, 2], "t": ["x", "y"]})
    store = pen.open(tmp_path / "a.pen")
    assert list(store.schema) == [name, "t"]
    assert store[name][:].tolist() == [1, 2]
    assert store.pick(name)[1] == {name: 2}
    write_collection([tmp_path / "a.pen"], tmp_path / "all.json")
    assert pen.open(tmp_path / "all.json")[name][:].tolist() == [1, 2]
    files = [path.relative_to(tmp_path / "a.pen") for path in (tmp_path / "a.pen").rglob("*") if path.is_file()]
    assert {str(file.parent) for file in files} == {".", "chunk", "manifest"}  # no file takes its name from a field


@given(st.text(st.characters(), min_size=1, max_size=140))
def test_every_name_is_stored_as_it_is_or_refused(name: str) -> None:
    try:
        Schema.make({name: Field("i4")})
    except ValueError:
        with pytest.raises(ValueError, match="a field name"):
            field_from_json(GOOD | {"name": name})
        return
    assert name.encode().decode() == name == name.strip()
    assert field_from_json(GOOD | {"name": name})[0] == name


def test_nullable_is_part_of_the_field_and_is_shown_only_if_true() -> None:
    plain, nullable = Field("u1", (3,)), Field("u1", (3,), nullable=True)
    assert plain != nullable
    assert (repr(plain), repr(nullable)) == ("Field('u1', (3,))", "Field('u1', (3,), nullable=True)")
    assert repr(Field.text(codec=pen.Zstd(3), nullable=True)) == "Field.text(codec=Zstd(3), nullable=True)"
    for field in (nullable, Field.ragged("f4", nullable=True), Field.bytes(nullable=True), Field.text(nullable=True)):
        assert field.nullable
        assert field.with_codec(pen.Zstd()).nullable
        assert not field.with_nullable(False).nullable
        assert field.with_nullable(False) != field
    with pytest.raises(TypeError, match="nullable must be"):
        Field("u1", nullable=1)  # type: ignore[arg-type]


def test_a_record_has_up_to_4_gib_less_a_byte() -> None:
    assert Field("u1", (2**32 - 1,)).stride == 2**32 - 1
    with pytest.raises(ValueError, match="at most 4294967295 bytes"):
        Field("u1", (2**32,))


def test_schema_needs_fields() -> None:
    with pytest.raises(ValueError, match="at least one field"):
        Schema.make({})
    with pytest.raises(ValueError, match="at most 4096"):
        Schema.make({f"f{i}": Field("i4") for i in range(4097)})
    with pytest.raises(TypeError, match="must be a Field"):
        Schema.make({"x": "i4"})  # type: ignore[dict-item]


def test_schema_numbers_fields_in_the_order_given() -> None:
    assert Schema.make({"b": Field("i4"), "a": Field.text()}).numbers == {"b": 0, "a": 1}


def test_fields_are_frozen_and_hashable() -> None:
    assert len({Field("i4"), Field("i4", ()), Field("i4", (1,)), Field.text(), Field.bytes()}) == 4
    with pytest.raises(AttributeError):
        Field("i4").shape = (2,)  # type: ignore[misc]
