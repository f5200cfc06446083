"""Batches and pictures of orders are those of the loader."""

from pathlib import Path

import numpy as np
import pytest
from tests.view.serving import Visitor, routes_of, serving

import penstock as pen
from penstock.order import BlockShuffle
from penstock.view.dataset import NUM_POINTS, SCALE, OrderChoice, label_fields, mix_of, picture_of

GLOBAL = OrderChoice(False, 7, 16, None, None, 1)
SHARP = OrderChoice(False, 7, 16, 4, 2, 1)


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("seed=7", {"seed": 7}),
        ("seed=7&block=8&window=2", {"seed": 7, "block": 8, "window": 2}),
        ("lanes=2", {"seed": 0, "lanes": 2}),
    ],
)
@pytest.mark.parametrize("step", [0, 3, 11])
def test_a_batch_is_that_of_the_loader(visitor: Visitor, store_path: Path, query: str, options: dict[str, int], step: int) -> None:
    found = visitor.json(f"api/batch?{query}&step={step}&batch=16")
    expected = pen.Loader(pen.open(store_path).shuffle(**options), 16).explain(step)
    assert [row["id"] for row in found["rows"]] == expected["ids"].tolist()
    assert (found["epoch"], found["position"], found["samples"], found["steps"]) == (expected["epoch"], expected["position"], 16, 5)


def test_a_large_batch_comes_in_parts(visitor: Visitor) -> None:
    parts = [visitor.json(f"api/batch?batch=70&start={start}&count=30") for start in (0, 30, 60)]
    assert [len(part["rows"]) for part in parts] == [30, 30, 10]
    assert len({row["id"] for part in parts for row in part["rows"]}) == 70


def test_in_order_is_in_order(visitor: Visitor) -> None:
    assert [row["id"] for row in visitor.json("api/batch?order=in-order&step=2&batch=4")["rows"]] == [8, 9, 10, 11]


def test_where_a_record_comes_is_where_it_is_found(visitor: Visitor) -> None:
    (place,) = visitor.json("api/where/33?seed=5&batch=8&epoch=2")["where"]
    batch = visitor.json(f"api/batch?seed=5&batch=8&step={place['step']}")
    assert place["epoch"] == batch["epoch"] == 2
    assert 33 in [row["id"] for row in batch["rows"]]


def test_the_picture_of_a_small_order_has_every_position() -> None:
    source = pen.open({"x": np.arange(200)})
    found = picture_of(source, GLOBAL, 3)
    ids = source.shuffle(seed=7).order.indices(3, 0, 200)
    assert found["points"] == 200
    assert [y * 200 // SCALE for y in found["y"]] == ids.tolist()
    assert sum(found["counts"]) == found["samples"] == 200
    assert found["steps"] == 13


def test_the_picture_of_a_large_order_has_few_points() -> None:
    class Large(type(pen.open({"x": np.arange(1)}))):  # type: ignore[misc]
        def __len__(self) -> int:
            return 10**15

    for choice in (
        GLOBAL,
        OrderChoice(False, 7, 64, 4096, 16, 1),
        OrderChoice(False, 7, 64, 4096, 16, 256),
        OrderChoice(False, 7, 64, 1, 1, 3),
    ):
        found = picture_of(Large({"x": np.arange(1)}), choice, 0)
        assert (found["points"], found["bins"]) == (NUM_POINTS, 64)
        assert sum(found["counts"]) == found["samples"] <= 150_000
        assert np.all(np.diff(found["x"]) >= 0)
        assert np.all(np.bincount(np.array(found["x"]) * 4 // SCALE, minlength=5)[:4] > 0)
        assert max(found["y"]) <= SCALE


def test_a_narrow_window_shows_in_the_picture() -> None:
    """A window of two blocks of 4 lets a group of positions touch few squares; a global shuffle nearly as many as chance."""
    source = pen.open({"x": np.arange(4096)})
    touched = {
        choice: np.count_nonzero(picture_of(source, choice, 0)["counts"])
        for choice in (GLOBAL, OrderChoice(False, 7, 16, 256, 1, 1))
    }
    assert touched[GLOBAL] > 3 * touched[OrderChoice(False, 7, 16, 256, 1, 1)]


def test_class_mix_counts_the_classes_of_batches() -> None:
    source = pen.open({"label": np.arange(640) // 160, "x": np.zeros(640)})
    mixed, narrow = mix_of(source, GLOBAL, 0, "label"), mix_of(source, OrderChoice(True, 0, 16, None, None, 1), 0, "label")
    assert mixed["classes"] == ["0", "1", "2", "3"]
    assert np.allclose(np.sum(mixed["shares"], axis=1), 1, atol=1e-3)
    assert (narrow["in_batch"], narrow["distinct"]) == (1.0, 4)
    assert mixed["in_batch"] > 3.5
    ids = BlockShuffle(640, block=4, window=2, seed=7).indices(0, 0, 16)
    expected = np.bincount(ids // 160, minlength=4) / 16
    assert np.allclose(mix_of(pen.open({"label": np.arange(640) // 160}), SHARP, 0, "label")["shares"][0], expected, atol=1e-3)


def test_many_classes_are_the_largest_few_and_the_others() -> None:
    found = mix_of(pen.open({"label": np.arange(5000) % 100}), GLOBAL, 0, "label")
    assert (len(found["classes"]), len(found["shares"][0]), found["distinct"]) == (10, 11, 100)
    assert len(found["steps"]) == len(found["shares"]) == 48


def test_missing_labels_do_not_count(tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", {"label": pen.Field("i4")}) as out:
        out.extend({"label": [1, None, 2, None]})
    with pen.open(tmp_path / "a.pen") as source:
        assert mix_of(source, OrderChoice(True, 0, 4, None, None, 1), 0, "label")["shares"][0][-2:] == [0.5, 0.5]


def test_label_fields_are_whole_numbers_and_the_named_ones_come_first() -> None:
    source = pen.open(
        {"n": np.arange(3), "x": np.zeros(3), "v": np.zeros((3, 2), int), "my_Label": np.arange(3), "class": np.zeros(3, bool)}
    )
    assert label_fields(source) == ["my_Label", "class", "n"]


def test_no_records_are_no_problem() -> None:
    with serving(routes_of(pen.open({"label": np.empty(0, np.int64)}))) as visitor:
        assert visitor.json("api/about")["data"]["records"] == 0
        assert visitor.json("api/records")["rows"] == []
        assert visitor.json("api/order")["points"] == 0
        assert visitor.json("api/mix")["shares"] == []
        assert visitor.get("api/batch").status == 400
        assert visitor.get("api/record/0").status == 404
