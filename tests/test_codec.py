"""Codecs: their levels, their form in the manifest, and records through them."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as pen
from penstock import _core
from penstock.codec import Codec, codec_from_json, codec_to_json
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


BAD_JSON: list[Any] = [
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


@pytest.mark.parametrize("value", BAD_JSON, ids=repr)
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
