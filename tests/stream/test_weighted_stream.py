"""Records drawn by weight: in batches, on ranks, resumed, mixed, banned."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import penstock as pen
from penstock.errors import BatchError, StateMismatchError
from penstock.order import Weighted
from penstock.source import write_tokens

WEIGHTS = np.array([0, 1, 2, 0, 5, 0.5, 0, 1, 9, 3])


def numbered(n: int = 10) -> pen.Source:
    return pen.open({"id": np.arange(n), "score": WEIGHTS[:n], "text": [f"text {i}" for i in range(n)]})


def test_a_source_is_drawn_by_an_array_or_by_a_field():
    for weights in (WEIGHTS, WEIGHTS.tolist(), "score"):
        stream = numbered().sample(seed=3, weights=weights, size=40)
        found = [batch["id"].tolist() for batch in pen.Loader(stream, 16)]
        expected = Weighted(WEIGHTS, seed=3, size=40).indices(0, 0, 40).tolist()
        assert found == [expected[:16], expected[16:32], expected[32:]]
    assert len(numbered().sample(seed=3, weights="score")) == 10


def test_the_weights_of_a_store_at_a_url_are_read_from_its_field(tmp_path: Path):
    found = []
    for path in (tmp_path / "a.pen", "memory://weighted/a.pen"):
        with pen.create(path, {"id": pen.Field("i4"), "score": pen.Field("f4", nullable=True)}) as out:
            out.extend({"id": np.arange(10), "score": WEIGHTS})
        stream = pen.open(path).sample(seed=3, weights="score")
        found.append([batch["id"].tolist() for batch in pen.Loader(stream, 4)])
    assert found[0] == found[1] == [batch["id"].tolist() for batch in pen.Loader(numbered().sample(seed=3, weights=WEIGHTS), 4)]


def test_a_run_resumes_on_other_ranks_and_with_another_batch_size():
    stream = numbered().sample(seed=3, weights="score", size=60)
    whole = [batch["id"].tolist() for batch in pen.Loader(stream, 6)]
    loader = pen.Loader(stream, 6)
    batches = iter(loader)
    assert [next(batches)["id"].tolist() for _ in range(4)] == whole[:4]
    ranks = [pen.Loader(stream, 12, shard=pen.Shard(rank, 3)) for rank in range(3)]
    for rank in ranks:
        rank.load_state_dict(loader.state_dict())
    rest = [[batch["id"].tolist() for batch in rank] for rank in ranks]
    found = [sorted(a + b + c) for a, b, c in zip(*rest, strict=True)]
    assert found == [sorted(one + other) for one, other in zip(whole[4::2], whole[5::2], strict=True)]


@pytest.mark.parametrize(
    "other", [{"weights": WEIGHTS + 0.5}, {"weights": WEIGHTS, "size": 61}, {"weights": WEIGHTS, "seed": 4}, {"weights": None}]
)
def test_a_state_of_other_weights_is_refused(other: dict[str, Any]):
    settings = {"seed": 3, "size": 60} | other
    if other["weights"] is None:
        settings.pop("size")
    loader = pen.Loader(numbered().sample(seed=3, weights=WEIGHTS, size=60), 6)
    next(iter(loader))
    with pytest.raises(StateMismatchError, match=r"order: .*Weighted\(<10 weights"):
        pen.Loader(numbered().sample(**settings), 6).load_state_dict(loader.state_dict())
    same = pen.Loader(numbered().sample(seed=3, weights="score", size=60), 6)
    same.load_state_dict(loader.state_dict())
    assert same.step == 1


def test_records_come_from_mixtures_and_are_explained():
    weighted, plain = numbered().sample(seed=3, weights="score", size=20), numbered().shuffle(seed=1)
    loader = pen.Loader(pen.mix({"a": weighted, "b": plain}, weights={"a": 0.5, "b": 0.5}, seed=5), 8, ids="number")
    drawn: list[int] = []
    for step, batch in enumerate(loader):
        assert np.array_equal(batch["id"], batch["number"])
        drawn += batch["id"][batch["number_source"] == 0].tolist()
        assert str(batch["id"].tolist()[0]) in str(loader.explain(step))
    assert sorted(drawn) == sorted(Weighted(WEIGHTS, seed=3, size=20).indices(0, 0, len(drawn)).tolist())
    assert not {0, 3, 6} & set(drawn)


def test_what_replaces_a_banned_record_is_drawn_by_weight_too():
    stream = numbered().sample(seed=3, weights="score", size=3000).without([8, 4])
    ids = stream.locate(0, range(3000)).ids
    counts = np.bincount(ids, minlength=10)
    assert set(np.flatnonzero(counts).tolist()) == {1, 2, 5, 7, 9}
    expected = np.where(np.isin(np.arange(10), [4, 8]), 0, WEIGHTS)
    expected = expected / expected.sum() * 3000
    some = expected > 0
    assert ((counts - expected)[some] ** 2 / expected[some]).sum() < 25  # 4 degrees of freedom


def test_banning_every_record_that_has_a_weight_is_refused_and_does_not_hang():
    stream = numbered(4).sample(seed=3, weights="score")  # records 1 and 2 have weights
    with pytest.raises(ValueError, match="every record that has a weight is banned"):
        stream.without([1, 2])
    both = stream.without([1]).without([2], from_step=2)
    both.locate(0, range(4), 1)
    with pytest.raises(ValueError, match="every record that has a weight is banned"):
        both.locate(0, range(4), 2)


@pytest.mark.parametrize("weights", [[1, 1e-9, 0, 3e-9], [0, 1e-300, 1, 1e-300]])
def test_where_nearly_all_of_the_weight_is_banned_the_others_are_drawn_by_theirs(weights: list[float]):
    heavy = int(np.argmax(weights))
    stream = numbered(4).sample(seed=3, weights=weights, size=40).without([heavy])
    assert set(stream.locate(0, range(40)).ids.tolist()) == set(np.flatnonzero(weights).tolist()) - {heavy}


def test_a_draw_of_those_that_are_not_banned_is_by_their_weights():
    order = Weighted([1e9, 1, 0, 3], seed=3)
    drawn = [order.draw_but(number << 54, np.array([0])) for number in range(1024)]
    assert np.abs(np.bincount(drawn, minlength=4) - [0, 256, 0, 768]).max() < 30  # the table holds shares of 2**-34


class Unreadable(pen.Source):
    """Records some of which cannot be read."""

    schema: ClassVar[Any] = {"id": pen.Field("i8")}
    fingerprint = "unreadable"

    def __init__(self, bad: set[int]) -> None:
        self._bad = bad

    def __len__(self) -> int:
        return 10

    def _read(self, ids: Any, fields: Any, out: Any) -> Any:
        if self._bad & set(ids.tolist()):
            raise OSError("cannot be read")
        return {"id": ids.copy()}

    def _recipe(self) -> Any:
        return (Unreadable, (self._bad,))


def test_what_replaces_an_unreadable_record_is_drawn_by_weight_too():
    stream = Unreadable({8, 4}).sample(seed=3, weights=WEIGHTS, size=200)
    ids = np.concatenate([batch["id"] for batch in pen.Loader(stream, 20, on_error="skip")])
    assert set(ids.tolist()) == {1, 2, 5, 7, 9}
    nothing = Unreadable({1, 2, 4, 5, 7, 8, 9}).sample(seed=3, weights=WEIGHTS)
    with pytest.raises(BatchError, match="too few records can be read"):
        list(pen.Loader(nothing, 5, on_error="skip"))


def test_sequences_and_packs_are_refused(tmp_path: Path):
    stream = numbered().sample(seed=3, weights="score")
    with pytest.raises(ValueError, match="drawn with replacement"):
        stream.sequences(4, field="text")
    with pytest.raises(ValueError, match="drawn with replacement"):
        stream.pack(8, field="text")
    write_tokens([np.arange(64, dtype=np.uint16)], tmp_path / "a.rox")
    tokens = pen.open(tmp_path / "a.rox")
    with pytest.raises(TypeError, match="cannot be put in the order Weighted"):
        tokens.sample(seed=1, weights=np.ones(len(tokens))).sequences(4)


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"weights": [1, 2]}, ValueError, "expected 10 weights, one per record, got 2"),
        ({"weights": "nothing"}, KeyError, "unknown field 'nothing'"),
        ({"weights": "text"}, TypeError, "one real number per record, field 'text'"),
        ({"size": 5}, ValueError, "size= needs weights="),
        ({"weights": -WEIGHTS}, ValueError, "for record 1"),
    ],
)
def test_what_cannot_be_drawn_by_is_refused(settings: dict[str, Any], error: type[Exception], match: str):
    with pytest.raises(error, match=match):
        numbered().sample(seed=1, **settings)


def test_missing_weights_are_refused_by_their_record():
    data = pen.open({"score": np.ma.MaskedArray([1.0, 2, 3], mask=[0, 0, 1])})
    with pytest.raises(ValueError, match="that of record 2 is missing"):
        data.sample(seed=1, weights="score")
