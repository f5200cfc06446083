"""Pack: golden plans, the plain-Python twin, and what holds for all documents: every token once, sequences that fit, a number of
sequences that never changes.
"""

import json
import os
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden import make_packs
from tests.order import reference

from penstock import _core
from penstock.errors import TruncatedError
from penstock.order import Pack

GOLDEN: list[dict[str, Any]] = json.loads(make_packs.PATH.read_text())


def bounds_of(lengths: list[int], first: int = 0) -> reference.IntArray:
    return first + np.cumsum([0, *lengths]).astype(np.int64)


def make(lengths: list[int], packing: reference.Packing, **changed: Any) -> Pack:
    """The same packing; windows are given in documents."""
    options: dict[str, Any] = {
        "seed": None if packing.seed < 0 else packing.seed,
        "block": packing.block,
        "window": packing.block * packing.window,
        "split": packing.split,
        "extra": packing.extra,
        "multiple_of": packing.multiple,
        "long": "error" if packing.split != "never" else "drop" if packing.drops else "truncate",
    }
    return Pack(bounds_of(lengths), packing.length, **(options | changed))


def sequences(pack: Pack, epoch: int, numbers: Any = None) -> list[list[tuple[int, int, int]]]:
    wanted = np.arange(len(pack)) if numbers is None else numbers
    found = pack.pieces(epoch, wanted)
    triples = list(zip(found.document.tolist(), found.offset.tolist(), found.count.tolist(), strict=True))
    return [triples[low:high] for low, high in zip(found.first[:-1], found.first[1:], strict=True)]


def plain(case: dict[str, Any]) -> list[list[tuple[int, int, int]]]:
    return [[tuple(piece) for piece in one] for one in case["sequences"]]


def test_reference_gives_the_golden_plans():
    assert make_packs.dump(make_packs.make()) == make_packs.PATH.read_text()


@pytest.mark.parametrize("number", range(len(GOLDEN)))
def test_native_plans_are_the_golden_ones(number: int):
    case = GOLDEN[number]
    packing = reference.Packing(**{name: case[name] for name in reference.Packing._fields})
    pack = make(case["lengths"], packing)
    assert sequences(pack, case["epoch"]) == plain(case)
    assert len(pack) == len(case["sequences"])


packings = st.builds(
    lambda units, multiple, **rest: reference.Packing(units * multiple, multiple=multiple, **rest),
    units=st.integers(1, 24),
    multiple=st.sampled_from([1, 1, 2, 3]),
    seed=st.sampled_from([-1, 0, 7, 2**64 - 1]),
    block=st.integers(1, 6),
    window=st.integers(1, 8),
    split=st.sampled_from(["fit", "fit", "always", "never"]),
    extra=st.integers(0, 2),
    drops=st.booleans(),
)
documents = st.lists(st.one_of(st.integers(0, 30), st.integers(0, 3), st.just(24), st.integers(0, 200)), max_size=40)


@given(lengths=documents, packing=packings, epoch=st.integers(0, 5))
def test_native_plans_are_those_of_the_reference(lengths: list[int], packing: reference.Packing, epoch: int):
    assert sequences(make(lengths, packing), epoch) == reference.pack_epoch(lengths, packing, epoch)


@given(lengths=documents, packing=packings, first=st.integers(0, 1000))
def test_every_token_comes_once_an_epoch_in_as_many_sequences(lengths: list[int], packing: reference.Packing, first: int):
    pack = make(lengths, packing)
    shifted = Pack(bounds_of(lengths, first), packing.length, **_options(pack))
    for epoch in (0, 1, 5):
        found = sequences(pack, epoch)
        assert sequences(shifted, epoch) == found
        assert len(found) == len(pack)
        assert pack.edges(epoch)[-1] == len(pack)
        for one in found:
            assert sum(-(-count // packing.multiple) * packing.multiple for _, _, count in one) <= packing.length
            assert all(count > 0 for _, _, count in one)
            assert len({document for document, _, _ in one}) == len(one), "pieces of a sequence are of different documents"
        tokens = Counter((document, offset + k) for one in found for document, offset, count in one for k in range(count))
        assert set(tokens.values()) <= {1}
        expected = {(i, k) for i, length in enumerate(lengths) for k in range(_kept(length + packing.extra, packing))}
        assert set(tokens) == expected


def _options(pack: Pack) -> dict[str, Any]:
    names = ("seed", "block", "window", "split", "extra", "multiple_of", "long")
    return {name: getattr(pack, name) for name in names}


def _kept(tokens: int, packing: reference.Packing) -> int:
    if packing.split != "never" or tokens <= packing.length:
        return tokens
    return 0 if packing.drops else packing.length


@given(lengths=documents, packing=packings, data=st.data())
def test_any_sequences_can_be_asked_for_alone(lengths: list[int], packing: reference.Packing, data: st.DataObject):
    pack = make(lengths, packing)
    whole = sequences(pack, 2)
    numbers = data.draw(st.lists(st.integers(0, len(pack) - 1), max_size=12)) if len(pack) else []
    assert sequences(pack, 2, numbers) == [whole[number] for number in numbers]
    again = pickle.loads(pickle.dumps(pack))
    assert sequences(again, 2, numbers) == [whole[number] for number in numbers]


@given(lengths=documents, packing=packings)
def test_a_document_is_found_where_it_is(lengths: list[int], packing: reference.Packing):
    pack = make(lengths, packing)
    for epoch in (0, 3):
        holding: dict[int, list[int]] = {}
        for number, one in enumerate(sequences(pack, epoch)):
            for document in sorted({document for document, _, _ in one}):
                holding.setdefault(document, []).append(number)
        for document in range(len(lengths)):
            assert pack.sequences_of(epoch, document).tolist() == holding.get(document, [])


@pytest.mark.parametrize("split", ["fit", "always", "never"])
@pytest.mark.parametrize("length", [1, 10, 100])
@pytest.mark.parametrize(
    "lengths", [[], [0], [0, 0, 0], [10], [11], [10] * 30, [9] * 30, [11] * 30, [1], [100_000], [1, 100_000, 1]]
)
@pytest.mark.sampled(4)
def test_degenerate_documents(lengths: list[int], length: int, split: str):
    if split == "never":
        pack = Pack(bounds_of(lengths), length, seed=3, split=split, long="truncate")
        total = sum(min(one, length) for one in lengths)
    else:
        pack = Pack(bounds_of(lengths), length, seed=3, split=split)
        total = sum(lengths)
        assert len(pack) == (0 if total == 0 else -(-total // length) + 1)
    found = sequences(pack, 0)
    assert sum(count for one in found for _, _, count in one) == total
    assert all(sum(count for _, _, count in one) <= length for one in found)


def test_few_documents_that_fit_are_cut_and_little_is_padding():
    rng = np.random.default_rng(5)
    lengths = np.maximum(1, np.exp(rng.normal(np.log(500), 1.1, 60_000))).astype(np.int64)
    pack = Pack(np.concatenate([[0], np.cumsum(lengths)]), 2048, seed=1)
    pieces = pack.pieces(0, np.arange(len(pack)))
    assert 1 - lengths.sum() / (len(pack) * 2048) < 0.002
    per_document = np.bincount(pieces.document, minlength=lengths.size)
    fitting = lengths <= 2048
    assert np.mean(per_document[fitting] > 1) < 0.001
    assert np.all(np.diff(pieces.first) > 0), "no sequence is all padding"


def test_orders_differ_by_seed_and_epoch():
    lengths = list(range(1, 200))
    pack, other = (Pack(bounds_of(lengths), 256, seed=seed, window=40) for seed in (1, 2))
    assert sequences(pack, 0) != sequences(pack, 1)
    assert sequences(pack, 0) != sequences(other, 0)
    whole = Pack(bounds_of(lengths), 256, seed=1, window=40, split="never")
    plans = [sorted(map(sorted, sequences(whole, epoch))) for epoch in (0, 1)]
    assert plans[0] == plans[1], "whole documents keep their company"
    assert sequences(whole, 0) != sequences(whole, 1)


def test_what_cannot_be_is_refused():
    bounds = bounds_of([3, 5])
    with pytest.raises(ValueError, match="document 1 has 5 tokens, a sequence 4"):
        Pack(bounds, 4, split="never")
    with pytest.raises(ValueError, match="split must be one of fit, always, never, got 'often'"):
        Pack(bounds, 4, split="often")
    with pytest.raises(ValueError, match="long must be one of"):
        Pack(bounds, 4, split="never", long="cut")
    with pytest.raises(ValueError, match="none is lost"):
        Pack(bounds, 4, long="drop")
    with pytest.raises(ValueError, match="length must be a multiple of multiple_of=3, got 4"):
        Pack(bounds, 4, multiple_of=3)
    with pytest.raises(ValueError, match="length"):
        Pack(bounds, 2**24 + 1)
    with pytest.raises(TypeError, match="one int64 array"):
        Pack(bounds.astype(np.int32), 4)
    with pytest.raises(IndexError):
        Pack(bounds, 4).pieces(0, [3 + 1])
    with pytest.raises(ValueError, match="rise"):
        Pack(np.array([0, 5, 2, 9]), 4).pieces(0, [0])


def test_blocks_whose_bounds_are_known_are_not_measured_again():
    lengths = [3, 9, 2, 5, 1, 0, 7, 4, 4, 6]
    bounds = bounds_of(lengths)
    pack = Pack(bounds, 8, seed=7, block=3, window=6, extra=2)
    told = Pack(bounds, 8, seed=7, block=3, window=6, extra=2, block_bounds=bounds[[0, 3, 6, 9, 10]])
    for epoch in range(3):
        assert sequences(told, epoch) == sequences(pack, epoch)
    with pytest.raises(ValueError, match="expected the bounds of 4 blocks, got 3"):
        Pack(bounds, 8, block=3, block_bounds=bounds[:3])
    with pytest.raises(ValueError, match="rise"):
        Pack(bounds, 8, block=3, block_bounds=bounds[[0, 6, 3, 9, 10]]).pieces(0, [0])


@pytest.mark.parametrize("split", ["fit", "always"])
@pytest.mark.parametrize("extra", [0, 2])
def test_bounds_that_fall_are_refused(split: str, extra: int):
    pack = Pack(np.array([0, 5, 4, 9]), 4, split=split, extra=extra)
    with pytest.raises(ValueError, match="rise"):
        pack.pieces(0, [0])


def test_bounds_in_a_file_that_is_cut_do_not_end_the_process(tmp_path: Path):
    path = tmp_path / "bounds"
    bounds_of([7] * 100_000).tofile(path)
    packs = [Pack(np.memmap(path, np.int64, "r"), 64, seed=1, block=block, multiple_of=block) for block in (1, 16)]
    first = packs[0].pieces(0, [0])
    os.truncate(path, 4096)
    for pack in packs:
        with pytest.raises(TruncatedError, match="was cut"):
            pack.pieces(1, [0, 900])
    none = np.empty(0, np.int64)
    outputs = [np.empty(len(first.document) + 1, np.int64) for _ in range(4)]
    columns = first.first, np.full_like(first.document, 99_999), first.offset, first.count
    with pytest.raises(TruncatedError, match="was cut"):
        _core.make_pack_runs(*columns, packs[0].bounds, 64, False, False, 1, none, np.empty(2, np.int64), *outputs)


def test_native_outputs_are_never_converted():
    bounds = bounds_of([3, 5])
    plan = _core.PackPlan(bounds, 2, 0, np.zeros(1, np.int64), 8, 1, _core.Split.FIT, False, 1)
    both, good = np.zeros(1, np.int64), [np.empty(plan.num_pieces, np.int64) for _ in range(3)]
    assert plan.num_sequences == 1
    for number in range(3):
        arrays = [array.astype(np.int32) if k == number else array for k, array in enumerate(good)]
        with pytest.raises(TypeError):
            plan.write(both, both, *arrays)
    with pytest.raises(TypeError):
        plan.count(both, np.empty(1, np.int32))
    with pytest.raises(ValueError, match="one length"):
        plan.count(both, np.empty(2, np.int64))
    with pytest.raises(ValueError, match="one length"):
        plan.write(both, both, good[0][:1], *good[1:])
    for start in (-1, 1):
        with pytest.raises(ValueError, match="room for all pieces"):
            plan.write(both, both + start, *good)
    for sequence in (-1, 1):
        with pytest.raises(IndexError):
            plan.write(both + sequence, both, *good)
        with pytest.raises(IndexError):
            plan.count(both + sequence, both.copy())
    rooms = np.array([3, 5])
    with pytest.raises(TypeError):
        _core.pack_edges(rooms, 4, None, 1, np.empty(3, np.float64))
    with pytest.raises(ValueError, match="one length"):
        _core.pack_edges(rooms, 4, None, 1, np.empty(4, np.int64))
    with pytest.raises(ValueError, match="one length"):
        _core.pack_block_rooms(bounds, 1, 0, 4, 1, np.empty(3, np.int64))


def test_runs_of_pieces_that_no_document_has_are_refused():
    bounds, none = bounds_of([3, 5]), np.empty(0, np.int64)

    def runs(first: list[int], document: list[int], offset: list[int], count: list[int]) -> int:
        columns = [np.array(column, np.int64) for column in (first, document, offset, count)]
        outputs = [np.empty(len(document) + len(first) - 1, np.int64) for _ in range(4)]
        return _core.make_pack_runs(*columns, bounds, 8, False, False, 1, none, np.empty(len(first), np.int64), *outputs)

    assert runs([0, 2], [0, 1], [0, 0], [3, 5]) == 2
    for first, document, offset, count in (
        ([0, 2], [0, 1], [0, 0], [3, 6]),
        ([0, 2], [0, 1], [0, 1], [3, 5]),
        ([0, 2], [1, 1], [0, 0], [5, 5]),
        ([0, 2], [0, 1], [-1, 0], [3, 5]),
        ([0, 2], [0, 1], [0, 2**63 - 1], [3, 5]),
        ([0, 2], [0, 1], [0, 0], [3, -5]),
        ([0, 1], [0, 1], [0, 0], [3, 5]),
        ([0, 3], [0, 1], [0, 0], [3, 5]),
        ([1, 0], [0, 1], [0, 0], [3, 5]),
        ([1, 2], [0, 1], [0, 0], [3, 5]),
    ):
        with pytest.raises(ValueError, match="expected"):
            runs(first, document, offset, count)
    for number in (-1, 2):
        with pytest.raises(IndexError):
            runs([0, 1], [number], [0], [1])
