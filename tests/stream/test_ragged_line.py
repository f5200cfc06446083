"""Texts and ragged arrays of a source as one line of tokens."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.stream.tokens import naive_line

import penstock as pen
from penstock.order import Shuffle
from penstock.ragged import Ragged
from penstock.source.array import ArraySource
from penstock.stream.ragged_line import MARK, PAGE_BYTES, RaggedLine
from penstock.stream.sequence import TokenLine

TEXTS = [None if i % 11 == 7 else f"{i}: grüße " * (i % 9) for i in range(3000)]


def text_store(directory: Path) -> Any:
    with pen.create(directory / "text.pen", {"text": pen.Field.text(codec=pen.Zstd()), "number": pen.Field("i4")}) as out:
        out.extend({"text": TEXTS, "number": np.arange(len(TEXTS), dtype=np.int32)})
    return pen.open(directory / "text.pen")


@pytest.mark.parametrize("separator", [None, 0, [13, 10]])
def test_sequences_of_a_store_of_texts(tmp_path: Path, separator: Any) -> None:
    with text_store(tmp_path) as source:
        stream = source.shuffle(seed=5).sequences(1000, separator=separator)
        end = b"" if separator is None else bytes(np.atleast_1d(separator).tolist())
        flat = b"".join((text or "").encode() + end for text in TEXTS)
        assert len(flat) > 2 * PAGE_BYTES
        for epoch in (0, 1):
            line = bytes(naive_line(flat, PAGE_BYTES, Shuffle(len(flat) // PAGE_BYTES, seed=5), epoch))
            found = stream.fetch(stream.locate(epoch, range(0, len(stream) * 1000, 1000)))["tokens"]
            assert found.dtype == np.uint8
            assert found.tobytes() == line[: len(stream) * 1000]


@pytest.mark.parametrize("separator", ["\n", b"\r\n"])
def test_separators_of_texts_may_be_texts(separator: Any) -> None:
    source = ArraySource({"text": ["ab", "", "c"]})
    stream = source.in_order().sequences(1, separator=separator)
    end = separator if isinstance(separator, bytes) else separator.encode()
    found = stream.fetch(stream.locate(0, range(stream.axis)))["tokens"]
    assert found.tobytes() == b"ab" + end + end + b"c" + end


@pytest.mark.parametrize("separator", [300, -1, 0.5])
def test_separators_that_are_no_token_are_refused(separator: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="separator"):
        ArraySource({"text": ["ab", "", "c"]}).in_order().sequences(1, separator=separator)


@pytest.mark.parametrize("dtype", ["u1", "i4", "i8", "f4"])
@pytest.mark.parametrize("separator", [None, 7, [7, 8, 9]])
def test_any_span_is_that_part_of_all_records(dtype: str, separator: Any) -> None:
    rng = np.random.default_rng(0)
    lengths = np.concatenate([np.zeros(2 * MARK + 5, np.int64), rng.integers(0, 4, 1500), [0, 0, 50, 0]])
    items = [rng.integers(0, 99, n).astype(dtype) for n in lengths]
    end = np.empty(0, dtype) if separator is None else np.atleast_1d(np.asarray(separator, dtype))
    flat = np.concatenate([piece for item in items for piece in (item, end)])
    line = RaggedLine(ArraySource({"a": Ragged.from_items(items, dtype=dtype)}), None, separator)
    assert isinstance(line, TokenLine)
    assert line.num_tokens == flat.size
    assert line.dtype == flat.dtype
    starts = np.concatenate([rng.integers(0, flat.size, 200), [0, 0, flat.size - 1, flat.size]])
    counts = np.minimum(rng.integers(0, 300, starts.size), flat.size - starts)
    counts[-4], counts[-2:] = flat.size, [1, 0]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    out = np.empty(offsets[-1], dtype)
    line.read_spans(starts, offsets, out)
    expected = np.concatenate([flat[start : start + count] for start, count in zip(starts, counts, strict=True)])
    assert np.array_equal(out, expected)


def test_the_field_is_found_or_chosen() -> None:
    source = ArraySource({"x": np.arange(2), "a": ["p", "q"]})
    assert RaggedLine(source, None, None).num_tokens == 2
    assert RaggedLine(source, "a", 0).num_tokens == 4
