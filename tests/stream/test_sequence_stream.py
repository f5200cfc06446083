"""Tokens as one line of pages, cut into sequences, beside plain lists."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.stream.tokens import make_tokens, naive_line, shuffled_line

import penstock as pen
from penstock.batch import Ragged
from penstock.errors import StateMismatchError
from penstock.formats.array import ArraySource
from penstock.formats.tokens_writer import write_tokens
from penstock.order import BlockShuffle, Random, Sequential, Shuffle
from penstock.stream import RecordStream, SequenceStream, Stream
from penstock.stream.stream import substitute


def rows(stream: Stream, epoch: int) -> list[list[int]]:
    """All sequences of an epoch."""
    found: list[list[int]] = stream.fetch(stream.locate(epoch, range(0, len(stream) * stream.stride, stream.stride)))[
        "tokens"
    ].tolist()
    return found


@pytest.mark.parametrize(("count", "page"), [(100, 1), (100, 4), (100, 7), (97, 8), (97, 100), (16, 16), (16, 7), (5, 4), (1, 1)])
def test_sequences_are_cut_from_the_line_of_pages(tmp_path: Path, count: int, page: int) -> None:
    with make_tokens(tmp_path, count, page) as source:
        for seq_len in (1, 3, 8, 16, 20, 100, 101):
            stream = source.shuffle(seed=5).sequences(seq_len, page=page)
            assert (stream.axis, len(stream)) == (count, count // seq_len)
            order = Shuffle(count // min(page, count), seed=5)
            for epoch in (0, 1, 9):
                line = naive_line(range(count), page, order, epoch)
                assert rows(stream, epoch) == [line[i : i + seq_len] for i in range(0, count - seq_len + 1, seq_len)]


def test_any_start_and_stride_give_their_part_of_the_line(tmp_path: Path) -> None:
    with make_tokens(tmp_path, 97, 8) as source:
        stream = source.shuffle(seed=5).sequences(10, page=8)
        endless = shuffled_line(range(97), 8, 5, 6)
        for start in range(97):
            for step in (10, 20, 30, 7):
                run = range(start, min(97, start + 40), step)
                found = stream.fetch(stream.locate(2, run))["tokens"].tolist()
                assert found == [endless[2 * 97 + p : 2 * 97 + p + 10] for p in run], run


def test_a_sequence_longer_than_the_data_goes_on_through_epochs(tmp_path: Path) -> None:
    with make_tokens(tmp_path, 7, 3) as source:
        stream = source.shuffle(seed=5).sequences(20, page=3)
        assert len(stream) == 0
        endless = shuffled_line(range(7), 3, 5, 12)
        for start in range(7):
            assert stream.fetch(stream.locate(1, range(start, start + 1)))["tokens"].tolist() == [endless[7 + start : 27 + start]]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "int64", "float32"])
def test_token_types_are_kept(tmp_path: Path, dtype: str) -> None:
    with make_tokens(tmp_path, 100, 8, dtype=dtype) as source:
        batch = source.shuffle(seed=1).sequences(10).fetch(source.shuffle(seed=1).sequences(10).locate(0, range(0, 100, 10)))
        assert batch["tokens"].dtype == dtype
        assert batch["tokens"].shape == (10, 10)


def test_shards_are_one_line(tmp_path: Path) -> None:
    with make_tokens(tmp_path, 1000, 16, dtype="uint16", shards="600B") as source:
        stream = source.shuffle(seed=5).sequences(24, page=16)
        line = naive_line(range(1000), 16, Shuffle(62, seed=5), 3)
        assert [t for row in rows(stream, 3) for t in row] == line[: len(stream) * 24]


def test_in_order_the_line_is_the_data(tmp_path: Path) -> None:
    with make_tokens(tmp_path, 97, 8) as source:
        assert [t for row in rows(source.in_order().sequences(4), 7) for t in row] == list(range(96))


def test_other_lengths_are_cut_from_the_same_line(tmp_path: Path) -> None:
    with make_tokens(tmp_path, 96, 8) as source:
        stream = source.shuffle(seed=5).sequences(4)
        flat = [t for row in rows(stream, 1) for t in row]
        for seq_len in (1, 2, 3, 12, 96):
            assert [t for row in rows(stream.sized(seq_len), 1) for t in row] == flat


def test_sequences_of_token_blocks_are_shuffled_one_by_one(tmp_path: Path) -> None:
    """Whole blocks were, so that a batch came from a few places."""
    with make_tokens(tmp_path, 1000, 100) as source:
        for records, order in (
            (source.shuffle(seed=5), Shuffle(100, seed=5)),
            (source.shuffle(seed=5, block=2, window=3, lanes=2), BlockShuffle(100, block=20, window=3, lanes=2, seed=5)),
            (source.sample(seed=5), Random(100, seed=5)),
        ):
            found = rows(records.sequences(10), 3)
            assert found == [list(range(10 * i, 10 * i + 10)) for i in order.indices(3, 0, 100).tolist()]


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("page", [None, 4, 25])
@pytest.mark.sampled(5)
def test_pages_with_banned_blocks_do_not_come(tmp_path: Path, page: int | None, before: bool) -> None:
    with make_tokens(tmp_path, 203, 10) as source:
        records, banned = source.shuffle(seed=5), [3, 20]  # block 20 is the short one at the end
        plain = records.sequences(10, page=page)
        stream = records.without(banned, from_step=1).sequences(10, page=page) if before else plain.without(banned, from_step=1)
        page, order = plain.page, plain.order
        full = 203 // page
        bad = sorted({token // page for token in (*range(30, 40), *range(200, 203))})
        usable = np.array([number for number in bad if number < full])
        loaders = pen.Loader(plain, 3, tail="wrap"), pen.Loader(stream, 3, tail="wrap")
        lines = []
        for epoch in range(2):
            line: list[int] = []
            for place in range(full + 1):
                number = int(order.indices(epoch, place, place + 1)[0]) if place < full else full
                size = page if place < full else 203 - full * page
                number = substitute(5, epoch, place, full, usable) if number in bad else number
                line += range(number * page, number * page + size)
            lines += line
        for step in range(12):
            one, other = (next(loader.forever())["tokens"] for loader in loaders)
            if step == 0:
                assert one.tolist() == other.tolist()
            else:
                assert other.reshape(-1).tolist() == lines[step * 30 : step * 30 + 30]


def test_bans_are_part_of_the_state(tmp_path: Path) -> None:
    with make_tokens(tmp_path, 200, 10) as source:
        with_ban, plain = source.shuffle(seed=5).without([3]).sequences(10), source.shuffle(seed=5).sequences(10)
        for one, other in ((with_ban, plain), (plain, with_ban)):
            with pytest.raises(StateMismatchError, match="ban 0"):
                pen.Loader(one, 2).load_state_dict(pen.Loader(other, 2).state_dict())
            mixed = [pen.mix({"a": stream}, seed=1) for stream in (one, other)]
            with pytest.raises(StateMismatchError, match="a: ban 0"):
                pen.Loader(mixed[0], 2).load_state_dict(pen.Loader(mixed[1], 2).state_dict())


def test_bans_that_leave_no_page_are_refused(tmp_path: Path) -> None:
    with make_tokens(tmp_path, 200, 10) as source, pytest.raises(ValueError, match="every page of tokens has a banned record"):
        source.shuffle(seed=5).without(range(0, 20, 2)).sequences(20)


# Documents


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=30),
    separator=st.sampled_from([[0], [0, 1], [1, 1], [0, 0, 0]]),
    seq_len=st.integers(1, 30),
    seed=st.integers(0, 99),
)
def test_segments_and_positions_are_those_of_a_plain_count(
    lengths: list[int], separator: list[int], seq_len: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    source = ArraySource({"doc": Ragged.from_items([rng.integers(0, 4, n) for n in lengths], dtype="i4")})
    stream = source.shuffle(seed=seed).sequences(seq_len, separator=separator, documents=True)
    order = stream.order.indices(0, 0, len(lengths)).tolist()
    batch = stream.fetch(stream.locate(0, range(0, len(stream) * seq_len, seq_len)))
    assert list(batch) == list(stream.schema) == ["tokens", "segment", "position"]
    marks = [(number, place) for item in order for number, place in ((item, i) for i in range(lengths[item] + len(separator)))]
    for start, segment, position in zip(range(0, stream.axis, seq_len), batch["segment"], batch["position"], strict=False):
        assert list(zip(segment.tolist(), position.tolist(), strict=True)) == seen(marks[start : start + seq_len])
    assert batch["segment"].dtype == batch["position"].dtype == np.int32


def test_documents_of_a_token_file(tmp_path: Path) -> None:
    write_tokens([[5, 6, 7], [8], [], [9, 9]], tmp_path / "a.rox", dtype="uint16", separator=0, block_size=4)
    with pen.open(tmp_path / "a.rox") as source:
        stream = source.in_order().sequences(10, separator=0, documents=True)
        batch = stream.fetch(stream.locate(0, range(0, 1, 10)))
    assert batch["tokens"].tolist() == [[5, 6, 7, 0, 8, 0, 0, 9, 9, 0]]
    assert batch["segment"].tolist() == [[0, 0, 0, 0, 1, 1, 2, 3, 3, 3]]
    assert batch["position"].tolist() == [[0, 1, 2, 3, 0, 1, 0, 0, 1, 2]]


def seen(marks: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Segment and position of tokens that are known by (document, place in it), as far as a sequence shows them."""
    found, number, first = [], -1, 0
    for i, (document, place) in enumerate(marks):
        if i == 0 or document != marks[i - 1][0] or place == 0:
            number, first = number + 1, place
        found.append((number, place - first))
    return found


def test_documents_of_token_blocks_need_a_separator(tmp_path: Path) -> None:
    with make_tokens(tmp_path, 96, 8) as source:
        for separator in (None, [], np.array([], np.uint32)):
            with pytest.raises(ValueError, match="needs the separator"):
                source.in_order().sequences(2, documents=True, separator=separator)


def test_pages_and_steps_are_whole_numbers(tmp_path: Path) -> None:
    with make_tokens(tmp_path, 96, 8) as source:
        with pytest.raises(ValueError, match="page must be"):
            source.shuffle(seed=1).sequences(2, page=0)
        for step in (2.9, "3"):
            with pytest.raises(TypeError, match="from_step"):
                source.shuffle(seed=1).without([1], from_step=step)  # type: ignore[arg-type]


def test_documents_of_texts_need_no_separator() -> None:
    stream = ArraySource({"doc": ["ab", "", "cde"]}).in_order().sequences(5, documents=True)
    batch = stream.fetch(stream.locate(0, range(0, 1)))
    assert (batch["segment"].tolist(), batch["position"].tolist()) == ([[0, 0, 1, 1, 1]], [[0, 1, 0, 1, 2]])


@pytest.mark.parametrize("seq_len", [3, 10, 24])
def test_no_segment_holds_two_documents_where_pages_join(tmp_path: Path, seq_len: int) -> None:
    """Tokens are their own places in the data: within a segment they rise by one, and end with the separator."""
    with make_tokens(tmp_path, 1000, 16) as source:
        for page in (None, 16, 7):
            stream = source.shuffle(seed=3).sequences(seq_len, separator=500, documents=True, page=page)
            batch = stream.fetch(stream.locate(1, range(0, len(stream) * seq_len, seq_len)))
            for tokens, segment, position in zip(*(batch[name].tolist() for name in batch), strict=True):
                for a, b, same, place in zip(tokens[:-1], tokens[1:], np.diff(segment).tolist(), position[1:], strict=True):
                    assert (same == 0) == (b == a + 1 and a != 500)
                    assert (place == 0) == (same == 1)


# What a stream says of itself


def test_plans_tell_streams_apart(tmp_path: Path) -> None:
    with make_tokens(tmp_path, 96, 8) as source, make_tokens(tmp_path, 96, 16) as other:
        plans = [
            source.shuffle(seed=1).sequences(8).plan(),
            source.shuffle(seed=1).sequences(8, page=16).plan(),
            source.shuffle(seed=2).sequences(8).plan(),
            source.in_order().sequences(8).plan(),
            other.shuffle(seed=1, block=2).sequences(8).plan(),
            source.shuffle(seed=1).sequences(8, separator=3, documents=True).plan(),
        ]
    assert len({str(plan) for plan in plans}) == len(plans)


def test_streams_survive_pickling(tmp_path: Path) -> None:
    with make_tokens(tmp_path, 97, 8) as source:
        stream = source.shuffle(seed=5).sequences(10, separator=3, documents=True)
        twin = pickle.loads(pickle.dumps(stream))
        assert rows(twin, 2) == rows(stream, 2)
        assert twin.plan() == stream.plan()
        twin.close()


def test_bad_orders_and_fields_are_refused(tmp_path: Path) -> None:
    source = ArraySource({"x": np.arange(9), "a": ["p", "q"] * 4 + ["r"], "b": [b"1"] * 9, "grid": [np.ones((2, 2))] * 9})
    with pytest.raises(ValueError, match="choose field= among"):
        source.in_order().sequences(2)
    with pytest.raises(KeyError, match="unknown field"):
        source.in_order().sequences(2, field="c")
    for field in ("x", "grid"):
        with pytest.raises(ValueError, match="of one dimension"):
            source.in_order().sequences(2, field=field)
    with pytest.raises(ValueError, match="seq_len"):
        source.in_order().sequences(0, field="a")
    with pytest.raises(TypeError, match="cannot be cut into sequences in the order"):
        source.design(seed=1, size=3).sequences(2, field="a")
    assert isinstance(source.in_order().sequences(2, field="a"), SequenceStream)


def test_empty_data_has_no_sequences() -> None:
    for items in ([], ["", ""]):
        source = ArraySource({"doc": Ragged.from_items(items, dtype="u1", kind="text")})
        stream = source.shuffle(seed=1).sequences(4)
        assert (stream.axis, len(stream)) == (0, 0)
        assert stream.fetch(stream.locate(0, range(0)))["tokens"].shape == (0, 4)
    assert Sequential(0).indices(0, 0, 0).size == 0


def test_token_blocks_behind_another_source_are_no_documents(tmp_path: Path) -> None:
    """They would be cut, and get separators, where blocks end."""
    for count in (40, 48):
        with make_tokens(tmp_path, count, 16) as source:
            wrapped = (source.pick("tokens"), source.select(slice(None)), pen.open([source]), pen.open({"x": source}))
            for one in wrapped:
                with pytest.raises(ValueError, match=r"blocks of a token file|of one dimension|choose field"):
                    one.in_order().sequences(20, separator=999)


def test_token_blocks_in_any_part_of_a_list_are_no_documents(tmp_path: Path) -> None:
    documents = pen.open({"tokens": Ragged.from_items([[1, 2, 3], [4]], dtype="u4")})
    with make_tokens(tmp_path, 40, 16) as blocks:
        for parts in ([blocks, documents], [documents, blocks], [documents.select([]), blocks]):
            with pytest.raises(ValueError, match="blocks of a token file"):
                pen.open(parts).in_order().sequences(8, separator=0)
        assert len(pen.open([blocks.select([]), documents]).in_order().sequences(6, separator=0)) == 1


def test_a_map_makes_documents_of_token_blocks_only_by_another_name(tmp_path: Path) -> None:
    with make_tokens(tmp_path, 40, 16) as source:
        same = source.map(dict, schema=source.schema)
        renamed = source.map(lambda one: {"text": one["tokens"]}, schema={"text": source.schema["tokens"]})
        for one in (same, same.map(dict, schema=source.schema), same.pick("tokens"), same.select([0]), pen.open({"x": same})):
            with pytest.raises(ValueError, match="blocks of a token file"):
                one.in_order().sequences(8, separator=0)
        assert len(renamed.in_order().sequences(43, separator=0)) == 1


def test_orders_of_some_of_the_blocks_are_refused(tmp_path: Path) -> None:
    with make_tokens(tmp_path, 160, 16) as source:
        for order in (Shuffle(3, seed=1), Sequential(3)):
            with pytest.raises(TypeError, match="not one of all 10 records"):
                RecordStream(source, order).sequences(8)


def test_many_bans_are_united_once(tmp_path: Path) -> None:
    with make_tokens(tmp_path, 1600, 16) as source:
        stream = source.shuffle(seed=1).without([1, 2], from_step=3).without([2, 90], from_step=7).sequences(8)
        assert stream.bans.at(2).tolist() == []
        assert stream.bans.at(5).tolist() == [1, 2]
        assert stream.bans.at(7).tolist() == [1, 2, 90]
        assert stream.bans.at(8) is stream.bans.at(9)
        assert rows(pickle.loads(pickle.dumps(stream)), 1) == rows(stream, 1)


@pytest.mark.parametrize("length", [5, 6, 7])
def test_a_separator_that_a_sequence_cuts_ends_its_document(length: int, tmp_path: Path) -> None:
    line = np.array([1, 2, 8, 9, 3, 8, 9, 4, 5, 6, 8, 9, 7, 1, 1, 8, 9, 2, 8, 8, 9], np.uint16)
    write_tokens([line], tmp_path / "a.rox", block_size=4)
    ends = [i + 2 for i in range(line.size - 1) if line[i] == 8 and line[i + 1] == 9]
    with pen.open(tmp_path / "a.rox") as data:
        stream = data.in_order().sequences(length, separator=[8, 9], documents=True)
        batch = next(iter(pen.Loader(stream, len(stream), tail="keep")))
    for number, segments in enumerate(batch["segment"].tolist()):
        places = range(number * length, (number + 1) * length)
        assert segments == [sum(places.start < end <= place for end in ends) for place in places]
