"""Texts and ragged arrays as documents in the order of a stream, cut into sequences."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as pen
from penstock import _core
from penstock.batch import Ragged
from penstock.formats.array import ArraySource
from penstock.order import BlockShuffle, Sequential, Shuffle
from penstock.order.permutation import Purpose, derive_root
from penstock.stream.sequence import MARK, DocumentLine, TokenLine

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
        for epoch in (0, 1):
            order = Shuffle(len(TEXTS), seed=5).indices(epoch, 0, len(TEXTS)).tolist()
            line = b"".join((TEXTS[i] or "").encode() + end for i in order)
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
@pytest.mark.sampled(4)
def test_any_span_is_that_part_of_all_records(dtype: str, separator: Any) -> None:
    rng = np.random.default_rng(0)
    lengths = np.concatenate([np.zeros(2 * MARK + 5, np.int64), rng.integers(0, 4, 1500), [0, 0, 50, 0]])
    items = [rng.integers(0, 99, n).astype(dtype) for n in lengths]
    end = np.empty(0, dtype) if separator is None else np.atleast_1d(np.asarray(separator, dtype))
    flat = np.concatenate([piece for item in items for piece in (item, end)])
    line = DocumentLine(ArraySource({"a": Ragged.from_items(items, dtype=dtype)}), None, separator)
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
    assert DocumentLine(source, None, None).num_tokens == 2
    assert DocumentLine(source, "a", 0).num_tokens == 4


def documents_of(lengths: list[int]) -> list[list[int]]:
    """Documents whose tokens are all different."""
    ends = np.cumsum([0, *lengths])
    return [list(range(a, b)) for a, b in pairwise(ends.tolist())]


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=40),
    seq_len=st.integers(1, 30),
    seed=st.integers(0, 9),
    kind=st.sampled_from(["in order", "shuffle", "blocks"]),
    epoch=st.integers(0, 3),
)
def test_sequences_take_whole_documents_in_the_order_of_the_stream(
    lengths: list[int], seq_len: int, seed: int, kind: str, epoch: int
) -> None:
    documents, n = documents_of(lengths), len(lengths)
    source = ArraySource({"doc": Ragged.from_items(documents, dtype="i4")})
    streams = {"in order": source.in_order, "shuffle": lambda: source.shuffle(seed=seed)}
    records = streams.get(kind, lambda: source.shuffle(seed=seed, block=3, window=2))()
    orders = {"in order": Sequential(n), "shuffle": Shuffle(n, seed=seed)}
    order = orders.get(kind, BlockShuffle(n, block=3, window=2, seed=seed))
    stream = records.sequences(seq_len)
    line = [token for i in order.indices(epoch, 0, n).tolist() for token in documents[i]]
    assert stream.axis == len(line)
    found = stream.fetch(stream.locate(epoch, range(0, len(stream) * seq_len, seq_len)))["tokens"]
    assert found.tolist() == [line[i : i + seq_len] for i in range(0, len(line) - seq_len + 1, seq_len)]


def test_many_documents_are_found_across_marks() -> None:
    rng = np.random.default_rng(3)
    documents = documents_of(rng.integers(0, 5, 5 * MARK + 77).tolist())
    stream = ArraySource({"doc": Ragged.from_items(documents, dtype="i4")}).shuffle(seed=4).sequences(100)
    for epoch in (0, 1, 5):
        line = [t for i in Shuffle(len(documents), seed=4).indices(epoch, 0, len(documents)).tolist() for t in documents[i]]
        for first in (0, 37, 5000, len(line) - 300):
            found = stream.fetch(stream.locate(epoch, range(first, first + 201, 100)))["tokens"]
            assert found.reshape(-1).tolist() == line[first : first + 300]


def test_a_small_corpus_is_shuffled_and_a_batch_comes_from_all_over_it() -> None:
    """64 KiB pages of neighbouring documents were permuted, and a corpus smaller than one was not shuffled at all."""
    source = pen.open({"text": [f"{i:04d}" for i in range(1000)]})
    loader = pen.Loader(source.shuffle(seed=7).sequences(4), 100)
    epochs = [np.concatenate([batch["tokens"] for batch in loader]) for _ in range(2)]
    numbers = [[int(bytes(row)) for row in epoch] for epoch in epochs]
    assert all(sorted(epoch) == list(range(1000)) for epoch in numbers)
    assert numbers[0] != numbers[1]
    assert len({number // 50 for number in numbers[0][:100]}) > 15  # of 20 stretches


def naive_instead(seed: int, epoch: int, position: int, banned: list[int], documents: list[list[int]], count: int) -> list[int]:
    """What comes in the place of a banned document."""
    root = _core.absorb(derive_root(seed, epoch, Purpose.SUBSTITUTE), position)
    tokens: list[int] = []
    attempt = 0
    while len(tokens) < count:
        candidate = (_core.absorb(root, attempt) * len(documents)) >> 64
        tokens += documents[candidate] if candidate not in banned else []
        attempt += 1
    return tokens[len(tokens) - count :]


@pytest.mark.parametrize("before", [True, False])
def test_banned_documents_do_not_come_and_nothing_moves(before: bool) -> None:
    documents = documents_of([3, 0, 8, 5, 1, 7, 9, 2, 2, 6])
    source = ArraySource({"doc": Ragged.from_items(documents, dtype="i4")})
    records = source.shuffle(seed=5)
    stream = records.without([2, 5], from_step=2).sequences(6) if before else records.sequences(6).without([2, 5], from_step=2)
    assert stream.plan() != records.sequences(6).plan()
    banned_tokens = set(documents[2]) | set(documents[5])
    plain, loader = pen.Loader(records.sequences(6), 2), pen.Loader(stream, 2)
    for epoch in range(3):
        order = Shuffle(10, seed=5).indices(epoch, 0, 10).tolist()
        line = []
        for position, i in enumerate(order):
            line += naive_instead(5, epoch, position, [2, 5], documents, len(documents[i])) if i in (2, 5) else documents[i]
        for number, (one, other) in enumerate(zip(plain, loader, strict=True)):
            if loader.step - 1 < 2:
                assert one["tokens"].tolist() == other["tokens"].tolist()
            else:
                rows = [line[p : p + 6] for p in range(number * 12, min(number * 12 + 12, 42), 6)]
                assert other["tokens"].tolist() == rows
                assert not banned_tokens & set(other["tokens"].reshape(-1).tolist())


def test_orders_without_a_fixed_number_of_tokens_are_refused() -> None:
    source = ArraySource({"text": ["ab", "c", "def"]})
    with pytest.raises(ValueError, match="another number of tokens in every epoch"):
        source.sample(seed=1).sequences(2)
    with pytest.raises(TypeError, match="cannot be cut into sequences"):
        source.slide(2).sequences(2)
    with pytest.raises(ValueError, match="page is for token blocks"):
        source.shuffle(seed=1).sequences(2, page=4)
    with pytest.raises(ValueError, match="every document that has tokens is banned"):
        ArraySource({"text": ["ab", ""]}).shuffle(seed=1).without([0]).sequences(2)
