"""Verdicts on orders: a perfect shuffle is called good, blocks of sorted classes are not, and the suggested window is enough."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import penstock as pen
from penstock import report
from penstock.order import BlockShuffle, Random, Sequential, Shuffle
from penstock.report.mixing import Mixing, class_mix, sample_batches, spread_runs
from penstock.report.sections import locality_text

N, BLOCK, BATCH = 1 << 16, 1024, 64


def words(mixing: Mixing) -> dict[str, str]:
    return {verdict.name: verdict.word for verdict in mixing.verdicts}


def test_a_global_shuffle_is_good_in_everything() -> None:
    mixing = report.measure_order(Shuffle(N, seed=7), batch_size=BATCH, world=4)
    assert set(words(mixing).values()) == {"good"}
    assert mixing.share == pytest.approx(1, abs=0.02)


def test_blocks_of_sorted_classes_are_poor_and_a_wider_window_is_better() -> None:
    found = [report.measure_order(BlockShuffle(N, block=BLOCK, window=window, seed=7), batch_size=BATCH) for window in (1, 4, 32)]
    assert [words(one)["S1"] for one in found] == ["poor", "poor", "fair"]
    assert found[0].share < found[1].share < found[2].share < 1
    assert found[0].verdicts[0].told == "records of one block meet in a batch 64.1 times as often as by chance"


def test_the_suggested_window_is_the_smallest_that_reaches_the_target() -> None:
    order = BlockShuffle(N, block=BLOCK, window=1, seed=7)
    mixing = report.measure_order(order, batch_size=BATCH, num_labels=10, target=0.9, record_bytes=100)
    found = mixing.suggestion
    assert found.window is not None
    assert 1 < found.window < 64
    assert (found.records, found.memory_bytes) == (found.window * BLOCK, found.window * BLOCK * 100)

    def share(window: int) -> float:
        labels = report.sorted_labels(N, 10)
        return class_mix(sample_batches(replace(order, window=window), BATCH, 0, labels)) / mixing.ideal_class_mix

    assert share(found.window) == pytest.approx(found.class_mix)
    assert share(found.window) >= 0.9 > share(found.window - 1)


def test_where_no_window_is_enough_a_global_shuffle_is_suggested() -> None:
    mixing = report.measure_order(BlockShuffle(N, block=BLOCK, window=1, seed=7), batch_size=BATCH, target=1.0)
    assert mixing.suggestion.window is None
    assert mixing.suggestion.records == N
    assert "only a global shuffle reaches 100 %" in mixing.section().lead


def test_true_labels_that_are_mixed_already_need_no_window() -> None:
    labels = np.random.default_rng(1).integers(0, 10, N)
    with pen.open({"label": labels}) as data:
        mixing = report.measure_order(
            BlockShuffle(N, block=BLOCK, window=1, seed=7), batch_size=BATCH, labels=report.field_labels(data, "label")
        )
    assert mixing.labels == "10 classes of the data"
    assert mixing.suggestion.window == 1
    assert (words(mixing)["S1"], words(mixing)["S3"]) == ("poor", "good")


def test_ranks_with_lanes_of_their_own_see_other_classes_and_ranks_of_one_lane_do_not() -> None:
    with pen.open({"label": np.arange(N) // 6554}) as data:
        labels = report.field_labels(data, "label")
    for lanes, wanted in ((1, "good"), (4, "poor")):
        order = BlockShuffle(N, block=BLOCK, window=4, lanes=lanes, seed=7)
        assert words(report.measure_order(order, batch_size=BATCH, world=4, labels=labels))["S6"] == wanted
        assert words(report.measure_order(order, batch_size=BATCH, world=4, num_labels=10))["S6"] == wanted


def test_texts_and_missing_values_are_classes() -> None:
    names = ["cat", "dog", None, "cat"] * 64
    with pen.open({"name": names}) as data:
        labels = report.field_labels(data, "name")
    found = labels(np.arange(8))
    assert found.tolist() == [0, 1, 2, 0] * 2


def test_the_label_must_be_one_value_per_record() -> None:
    with pen.open({"x": np.zeros((4, 2))}) as data:
        with pytest.raises(ValueError, match="expected one value per record"):
            report.field_labels(data, "x")
        with pytest.raises(KeyError, match="unknown field 'y'"):
            report.field_labels(data, "y")


@pytest.mark.parametrize("n", [10**12, 2**62])
@pytest.mark.sampled(2)
def test_orders_of_any_length_are_judged(n: int) -> None:
    mixing = report.measure_order(BlockShuffle(n, block=8192, window=16, seed=7), batch_size=32, world=2)
    assert mixing.records == n
    assert len(mixing.heat) == len(mixing.heat[0]) == 64
    assert np.mean(mixing.heat) == pytest.approx(1, abs=0.01)


def test_small_orders_are_judged_too() -> None:
    mixing = report.measure_order(Shuffle(10, seed=1), batch_size=2, num_labels=2)
    assert (len(mixing.heat), len(mixing.classes)) == (10, 5)
    assert all(sum(row) == pytest.approx(1) for row in mixing.classes)


def test_the_heat_map_shows_the_order() -> None:
    heat = np.array(report.measure_order(Sequential(6400), batch_size=10).heat)
    assert np.array_equal(heat, 64 * np.eye(64))


@pytest.mark.parametrize(
    ("order", "options", "wanted"),
    [
        (Shuffle(10, seed=1), {"batch_size": 8}, "expected at least two batches of 8, got 10 records"),
        (Shuffle(100, seed=1), {"batch_size": 8, "target": 2}, "target must be above 0"),
        (Shuffle(100, seed=1), {"batch_size": 1}, "batch_size must be in"),
        (Random(100, seed=1), {"batch_size": 8}, "an order that has every record once"),
    ],
)
def test_what_cannot_be_judged_is_refused(order: object, options: dict[str, float], wanted: str) -> None:
    with pytest.raises((ValueError, TypeError), match=wanted):
        report.measure_order(order, **options)  # type: ignore[arg-type]


def test_runs_are_spread_from_the_first_position_to_the_last() -> None:
    runs = spread_runs(10**12, 16, 1600)
    assert (runs[0], runs[-1]) == (range(100), range(10**12 - 100, 10**12))
    assert all(len(run) == 100 for run in runs)
    assert all(one.stop <= other.start for one, other in pairwise(runs))
    assert spread_runs(1600, 16, 1600) == [range(1600)]
    assert all(one.stop <= other.start for one, other in pairwise(spread_runs(1601, 16, 1600)))


def test_what_is_read_comes_with_advice() -> None:
    def told(order: BlockShuffle | Shuffle | Sequential, **options: object) -> str:
        return locality_text(report.measure_order(order, batch_size=BATCH, **options))  # type: ignore[arg-type]

    block = BlockShuffle(N // 4, block=BLOCK, window=4, seed=7)
    assert told(Sequential(N // 4), block=BATCH).startswith("Every block is read about once")
    assert told(block).startswith("A reader that keeps 4 blocks reads every block about once, one that keeps none ")
    assert "shuffle in blocks" in told(Shuffle(N, seed=7))
    assert "rank 0 of 4" in told(block, world=4)
    assert "rank" not in told(block, world=3)  # batches of 64 cannot be divided: the figures are those of all
    assert told(block, reads_blocks=False).endswith("the disk reads pages, not whole blocks.")


def test_the_page_has_a_table_of_reads() -> None:
    section = report.measure_order(BlockShuffle(N, block=BLOCK, window=1, seed=7), batch_size=BATCH).section()
    tables = [part for part in section.parts if isinstance(part, report.Table)]
    assert tables[1].columns == ("reads", "a batch", "an epoch")
    assert tables[1].rows[2] == ["blocks read, 1 block kept", "0.06", "64"]
