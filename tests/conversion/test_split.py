"""Parts of a source by a hash: disjoint, whole, and the same whatever is appended."""

from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.order import reference

import penstock as pen
from penstock.errors import SchemaMismatchError

PARTS = {"test": 0.1, "val": 0.2, "train": 0.6}


def ids_of(parts: dict[str, pen.Source]) -> dict[str, list[int]]:
    return {name: part["id"][:].tolist() for name, part in parts.items()}


def numbered(length: int) -> pen.Source:
    return pen.open({"id": np.arange(length)})


fractions = st.lists(st.integers(0, 40), min_size=1, max_size=5).map(lambda parts: [part / 200 for part in parts])


@given(length=st.integers(0, 300), more=st.integers(0, 100), fractions=fractions, seed=st.integers(0, 2**64 - 1))
def test_parts_are_those_of_the_reference_disjoint_and_keep_their_records_when_more_are_appended(
    length: int, more: int, fractions: list[float], seed: int
):
    parts = {f"part {number}": fraction for number, fraction in enumerate(fractions)}
    found = ids_of(numbered(length).split(parts, seed=seed))
    numbers = [reference.split_part(reference.split_hash(seed, i), fractions) for i in range(length)]
    assert list(found.values()) == [[i for i in range(length) if numbers[i] == part] for part in range(len(parts))]
    longer = ids_of(numbered(length + more).split(parts, seed=seed))
    assert {name: [i for i in ids if i < length] for name, ids in longer.items()} == found


def test_fractions_of_1_together_cover_everything():
    for parts in (
        {"a": 0.1, "b": 0.2, "c": 0.7},
        {"a": Fraction(1, 3), "b": Fraction(2, 3)},
        {"all": 1},
        {"a": 0, "b": 1.0, "c": 0},
    ):
        assert sorted(chain(*ids_of(numbered(2000).split(parts, seed=3)).values())) == list(range(2000))


def test_fractions_are_right_on_average():
    found = ids_of(numbered(100_000).split(PARTS, seed=11))
    for name, fraction in PARTS.items():
        assert abs(len(found[name]) - 100_000 * fraction) < 5 * (100_000 * fraction * (1 - fraction)) ** 0.5


def test_a_part_depends_on_its_fraction_and_those_before_it_only():
    data = numbered(3000)
    found = ids_of(data.split(PARTS, seed=5))
    grown = ids_of(data.split({"test": 0.1, "val": 0.2, "train": 0.7}, seed=5))
    assert (grown["test"], grown["val"]) == (found["test"], found["val"])
    assert set(found["train"]) < set(grown["train"])
    assert ids_of(data.split({"test": 0.1}, seed=5))["test"] == found["test"]
    assert ids_of(data.split({"other name": 0.1, "rest": 0.5}, seed=5))["other name"] == found["test"]
    assert set(ids_of(data.split({"test": 0.05}, seed=5))["test"]) < set(found["test"])


def test_other_seeds_give_other_parts():
    one, other = (set(ids_of(numbered(3000).split({"a": 0.5}, seed=seed))["a"]) for seed in (1, 2))
    assert 600 < len(one & other) < 900


@given(values=st.lists(st.text(max_size=20), min_size=1, max_size=40), seed=st.integers(0, 99))
def test_a_split_by_a_text_follows_the_value_wherever_it_stands(values: list[str], seed: int):
    numbers = {v: reference.split_part(reference.split_hash(seed, v.encode()), list(PARTS.values())) for v in values}
    for texts in (values, sorted(values)):
        parts = pen.open({"t": texts}).split(PARTS, seed=seed, by="t")
        for number, part in enumerate(parts.values()):
            assert part["t"][:].to_list() == [text for text in texts if numbers[text] == number]


@pytest.mark.parametrize("dtype", ["i1", "i8", "i4", "u2", "u8", "?"])
def test_a_split_by_numbers_does_not_depend_on_their_width(dtype: str):
    values = np.array([0, 1, 1, 0, 1] if dtype == "?" else [0, 1, 100, 7, 100, 3, 99, 64]).astype(dtype)
    signed = np.concatenate([values, [-5, -1]]).astype(dtype) if np.dtype(dtype).kind == "i" else values
    parts = pen.open({"x": signed}).split(PARTS, seed=2, by="x")
    for number, part in enumerate(parts.values()):
        chosen = [
            v for v in signed.tolist() if reference.split_part(reference.split_hash(2, int(v)), list(PARTS.values())) == number
        ]
        assert part["x"][:].tolist() == chosen


def test_a_split_by_the_number_of_a_record_is_the_split_by_its_id():
    data = numbered(500)
    assert ids_of(data.split(PARTS, seed=9, by="id")) == ids_of(data.split(PARTS, seed=9))


def test_records_appended_to_a_store_join_their_parts_and_move_no_other(tmp_path: Path):
    path = tmp_path / "a.pen"
    with pen.create(path, {"id": pen.Field("i8"), "key": pen.Field.bytes()}) as out:
        out.extend({"id": np.arange(400), "key": [b"%d" % (i % 50) for i in range(400)]})
    before = [ids_of(pen.open(path).split(PARTS, seed=1, by=by)) for by in (None, "key")]
    with pen.open(path, mode="a") as out:
        out.extend({"id": np.arange(400, 600), "key": [b"%d" % (i % 50) for i in range(200)]})
    after = [ids_of(pen.open(path).split(PARTS, seed=1, by=by)) for by in (None, "key")]
    assert [{name: [i for i in ids if i < 400] for name, ids in found.items()} for found in after] == before


def test_parts_of_a_store_at_a_url_lists_and_selections_are_split_alike(tmp_path: Path):
    for path in (tmp_path / "a.pen", "memory://split/a.pen"):
        with pen.create(path, {"id": pen.Field("i8"), "key": pen.Field.text()}) as out:
            out.extend({"id": np.arange(300), "key": [f"key {i // 3}" for i in range(300)]})
    near, far = pen.open(tmp_path / "a.pen"), pen.open("memory://split/a.pen")
    halves = pen.open([near.select(slice(0, 100)), far.select(slice(100, 300))])
    for by in (None, "key"):
        found = [ids_of(data.split(PARTS, seed=4, by=by)) for data in (near, far, halves, halves.pick("id", "key"))]
        assert found[1:] == found[:-1]
    backwards = ids_of(near.select(slice(None, None, -1)).split(PARTS, seed=4, by="key"))
    assert {name: sorted(ids) for name, ids in backwards.items()} == ids_of(near.split(PARTS, seed=4, by="key"))


def test_a_part_loads_in_any_order_and_resumes_on_other_ranks():
    train = numbered(500).split({"val": 0.2, "train": 0.8}, seed=3)["train"]
    stream = train.shuffle(seed=7)
    whole = [batch["id"].tolist() for batch in pen.Loader(stream, 10)]
    assert sorted(chain(*whole)) == train["id"][:].tolist()
    loader = pen.Loader(stream, 10)
    batches = iter(loader)
    assert [next(batches)["id"].tolist() for _ in range(5)] == whole[:5]
    state = loader.state_dict()
    ranks = []
    for rank in range(2):
        again = pen.Loader(stream, 10, shard=pen.Shard(rank, 2))
        again.load_state_dict(state)
        ranks.append([batch["id"].tolist() for batch in again])
    assert [sorted(a + b) for a, b in zip(*ranks, strict=True)] == [sorted(batch) for batch in whole[5:]]


def test_missing_values_are_refused_by_their_record():
    data = pen.open({"t": ["a", "b", None, "d"]})
    with pytest.raises(SchemaMismatchError, match=r"'t': record 2 has no value.*select"):
        data.split(PARTS, seed=1, by="t")
    numbers = pen.open({"x": np.ma.MaskedArray([1, 2, 3], mask=[0, 1, 0])})
    with pytest.raises(SchemaMismatchError, match="record 1 has no value"):
        numbers.split(PARTS, seed=1, by="x")
    assert data.split({"all": 1}, seed=1)["all"]["t"][:].to_list() == ["a", "b", None, "d"]


@pytest.mark.parametrize(
    ("parts", "settings", "error", "match"),
    [
        ({}, {}, ValueError, "1 to 65535 parts"),
        ([0.5], {}, TypeError, "dict of fractions"),
        ({"a": 0.5, "b": 0.6}, {}, ValueError, r"at most 1 together, got 1\.1"),
        ({"a": 0.1 + 0.2, "b": 0.7}, {}, ValueError, "Fraction"),
        ({"a": -0.1}, {}, ValueError, r"part 'a': expected a fraction in \[0, 1\]"),
        ({"a": float("nan")}, {}, ValueError, "part 'a'"),
        ({"a": True}, {}, ValueError, "part 'a'"),
        ({"a": "0.5"}, {}, ValueError, "part 'a'"),
        ({7: 0.5}, {}, TypeError, "name of a part"),
        ({"a": 0.5}, {"seed": -1}, ValueError, "seed"),
        ({"a": 0.5}, {"by": "z"}, KeyError, "unknown field 'z'"),
        ({"a": 0.5}, {"by": "f"}, TypeError, r"texts, bytes or whole numbers, field 'f' is Field\('f8'\)"),
        ({"a": 0.5}, {"by": "v"}, TypeError, "whole numbers"),
    ],
)
def test_what_cannot_be_split_is_refused(parts: Any, settings: dict[str, Any], error: type[Exception], match: str):
    data = pen.open({"f": np.zeros(3), "v": np.zeros((3, 2), np.int8)})
    with pytest.raises(error, match=match):
        data.split(parts, **{"seed": 1} | settings)


def test_a_part_may_be_empty():
    parts = pen.open({"id": np.arange(0)}).split({"a": 0.5}, seed=1)
    assert len(parts["a"]) == 0
