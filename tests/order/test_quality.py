"""The six measures of an order's quality against orders whose answers are known, and their ideals against brute force."""

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats
from tests.effort import count

from penstock.order import BlockShuffle, Sequential, Shuffle
from penstock.order.quality import Setting, chi2_survival, measure


class Fixed:
    """An order given as arrays of ids, one per epoch; later epochs repeat the last."""

    def __init__(self, *epochs):
        self._epochs = [np.asarray(epoch, np.int64) for epoch in epochs]

    def __len__(self):
        return self._epochs[0].size

    def _ids(self, epoch):
        return self._epochs[min(epoch, len(self._epochs) - 1)]

    def indices(self, epoch, start, stop, step=1):
        return self._ids(epoch)[start:stop:step]

    def at(self, epoch, positions):
        return self._ids(epoch)[np.asarray(positions)]

    def positions(self, epoch, ids):
        places = np.empty(len(self), np.int64)
        places[self._ids(epoch)] = np.arange(len(self))
        return places[np.asarray(ids)]


def values(order, epoch=0, **setting):
    return {m.name: m.value for m in measure(order, Setting(**setting), epoch=epoch)}


def ideals(n, **setting):
    return {m.name: m.ideal for m in measure(Sequential(n), Setting(**setting))}


def dealt(n, block):
    """One record of every block, then the next of every block."""
    return np.arange(n).reshape(-1, block).T.ravel()


# Orders with known answers.


def test_there_are_six_measures_that_say_what_they_mean():
    found = measure(Shuffle(100, seed=1), Setting(batch_size=4, block=5))
    assert [m.name for m in found] == ["S1", "S2", "S3", "S4", "S5", "S6"]
    assert all(m.meaning and isinstance(m.value, float) and isinstance(m.ideal, float) for m in found)


def test_identity_has_batches_of_one_block():
    n, block = 1024, 32
    found = values(Sequential(n), batch_size=16, block=block, num_labels=16, world=4, num_batches=1000)
    chance = (block - 1) / (n - 1)
    assert found["S1"] == pytest.approx(1 / chance)
    assert found["S2"] == 0
    assert found["S3"] == 1
    assert found["S4"] == pytest.approx((n - 1) / 15)  # the same batches every epoch
    assert found["S5"] == pytest.approx(1 / chance)
    assert found["S6"] == pytest.approx(1)  # every rank has as many of every label


def test_one_record_of_every_block_in_turn_is_more_even_than_chance():
    n, block = 1024, 64  # 16 blocks
    found = values(Fixed(dealt(n, block)), batch_size=16, block=block, num_labels=16, world=4, num_batches=1000)
    assert found["S1"] == 0
    assert found["S2"] == pytest.approx(4)
    assert found["S3"] == 16
    assert found["S5"] == 0


@pytest.mark.parametrize("run", [2, 4, 8])
def test_two_blocks_in_runs_are_counted_as_such(run):
    """Batches of 16 hold 8 records of each of two blocks, in runs of so many."""
    n, block = 512, 256
    order = np.arange(n).reshape(2, -1, run).transpose(1, 0, 2).ravel()
    found = values(Fixed(order), batch_size=16, block=block, num_labels=2, world=1, num_batches=1000)
    chance = (block - 1) / (n - 1)
    assert found["S1"] == pytest.approx(2 * 8 * 7 / (16 * 15) / chance)
    assert found["S2"] == pytest.approx(1)
    assert found["S3"] == 2
    assert found["S5"] == pytest.approx((15 - (16 // run - 1)) / 15 / chance)


def test_pairs_that_stay_together_are_seen_in_the_next_epoch():
    """Records 2i and 2i + 1 stay neighbours; pairs are shuffled. Batches of 2: every pair is together again."""
    n, rng = 2000, np.random.default_rng(5)
    epochs = [(2 * rng.permutation(n // 2)[:, None] + [0, 1]).ravel() for _ in range(2)]
    assert values(Fixed(*epochs), batch_size=2, block=2)["S4"] == pytest.approx(n - 1)
    four = values(Fixed(*epochs), batch_size=4, block=2, num_batches=500)
    # Of the 6 pairs in a batch 2 always meet; the other 4 meet where their pairs share a batch of two pairs.
    assert four["S4"] == pytest.approx((2 + 4 / (n / 2 - 1)) / 6 * (n - 1) / 3, rel=0.05)
    assert four["S1"] == pytest.approx(2 / 6 * (n - 1))
    assert four["S5"] == pytest.approx(2 / 3 * (n - 1))


def test_next_epoch_that_parts_every_batch_scores_zero():
    n = 256
    found = values(Fixed(np.arange(n), dealt(n, 16)), batch_size=16, block=4)
    assert found["S4"] == 0


@pytest.mark.parametrize("world", [2, 4, 8])
def test_ranks_with_labels_of_their_own_are_unfair(world):
    """Rank r gets the records of one stretch of the ids."""
    n = 16_384
    unfair = Fixed(dealt(n, n // world))
    setting = {"batch_size": 16, "block": 64, "num_labels": 100, "num_batches": 64}
    assert values(unfair, world=world, **setting)["S6"] < 1e-6
    assert values(Shuffle(n, seed=3), world=world, **setting)["S6"] > 1e-3


def test_rank_that_is_a_little_unfair_is_found_in_much_data():
    n, rng = 2**17, np.random.default_rng(1)
    weight = np.where(np.arange(n) < n // 2, 0.55, 0.45)  # rank 0 has 55 of 100 from the lower half
    mine = np.argsort(-(rng.random(n) < weight).astype(int), kind="stable")
    order = np.stack([rng.permutation(mine[: n // 2]), rng.permutation(mine[n // 2 :])], axis=1).ravel()
    assert values(Fixed(order), batch_size=128, block=64, num_labels=10, world=2)["S6"] < 1e-6


# Ideals.


@pytest.mark.parametrize(
    ("n", "block", "batch"), [(8, 2, 2), (8, 2, 4), (9, 4, 3), (10, 3, 4), (12, 4, 6), (7, 7, 3), (6, 10, 3), (11, 1, 5)]
)
def test_ideal_entropy_is_the_mean_over_all_batches(n, block, batch):
    total = 0.0
    for chosen in combinations(range(n), batch):
        _, counts = np.unique(np.array(chosen) // block, return_counts=True)
        total -= float((counts / batch * np.log2(counts / batch)).sum())
    assert ideals(n, batch_size=batch, block=block)["S2"] == pytest.approx(total / math.comb(n, batch), abs=1e-12)


@pytest.mark.parametrize(("n", "labels", "batch"), [(8, 2, 2), (8, 4, 4), (9, 3, 3), (12, 4, 6), (12, 12, 5), (10, 5, 4)])
def test_ideal_labels_are_the_mean_over_all_batches(n, labels, batch):
    seen = [len({i * labels // n for i in chosen}) for chosen in combinations(range(n), batch)]
    assert ideals(n, batch_size=batch, block=2, num_labels=labels)["S3"] == pytest.approx(np.mean(seen))


@pytest.mark.parametrize(("n", "block", "batch"), [(12, 3, 4), (12, 5, 3), (10, 4, 2), (9, 9, 3)])
def test_chance_of_a_pair_is_the_mean_over_all_orders(n, block, batch):
    """S1 and S5 of many random orders average to their ideal, 1; likewise S4 of pairs of them if batches divide n."""
    rng = np.random.default_rng(7)
    found = [values(Fixed(rng.permutation(n), rng.permutation(n)), batch_size=batch, block=block) for _ in range(count(80, 400))]
    for measured in ("S1", "S5") if n % batch else ("S1", "S4", "S5"):
        column = np.array([f[measured] for f in found])
        assert abs(column.mean() - 1) < 5 * column.std() / math.sqrt(len(column)) + 1e-9


# Orders of the library.


@pytest.mark.parametrize("n", [2**16, 10**6, 10**12])
def test_shuffle_is_close_to_ideal_in_all(n):
    found = measure(Shuffle(n, seed=11), Setting(batch_size=256, block=n // 64, num_labels=100, num_batches=128), epoch=2)
    by_name = {m.name: m for m in found}
    for name, tolerance in (("S1", 0.03), ("S2", 0.01), ("S3", 0.01), ("S5", 0.1)):
        assert by_name[name].value == pytest.approx(by_name[name].ideal, rel=tolerance), name
    pairs = 128 * 256 * 255 / 2 * 255 / (n - 1)  # expected number of reunited pairs
    assert abs(by_name["S4"].value - 1) < 5 / math.sqrt(pairs)
    assert by_name["S6"].value > 1e-3


@pytest.mark.parametrize("window", [1, 4, 16, 64])
def test_block_shuffle_scales_with_its_window(window):
    n, block = 2**18, 2**12  # 64 blocks
    found = values(BlockShuffle(n, block=block, window=window, seed=5), batch_size=128, block=block)
    assert found["S1"] == pytest.approx(64 / window, rel=0.05)
    assert found["S5"] == pytest.approx(64 / window, rel=0.1)
    assert found["S2"] == pytest.approx(math.log2(window), abs=0.5)


def test_p_values_of_fair_ranks_are_spread_as_p_values_are():
    found = [
        values(Shuffle(4000, seed=s), batch_size=8, block=4, num_labels=20, world=2, num_batches=32)["S6"]
        for s in range(count(60, 200))
    ]
    assert sum(p < 0.05 for p in found) <= count(10, 22)  # 3 or 10 expected, and four standard deviations more
    assert min(found) > 1e-5


# Chi squared.


@pytest.mark.parametrize("df", [1, 2, 3, 5, 10, 31, 100, 999, 10_000, 100_000])
def test_chi2_survival_equals_scipy(df):
    spread = math.sqrt(2 * df)
    points = [*np.geomspace(1e-6, 1, 9), *(df + spread * np.linspace(-5, 12, 35)), 2 * df, 10 * df, 100 * df]
    for x in points:
        expected = float(stats.chi2.sf(x, df))
        assert chi2_survival(float(x), df) == pytest.approx(expected, rel=1e-8, abs=1e-280), (x, df)


def test_chi2_survival_at_its_ends():
    assert chi2_survival(0, 3) == 1
    assert chi2_survival(-1, 3) == 1
    assert chi2_survival(1e6, 3) == 0
    assert 0 <= chi2_survival(1e-300, 1) <= 1


# Small and odd.


@pytest.mark.parametrize("n", [4, 5, 6, 7, 9, 16, 33])
@pytest.mark.parametrize("block", [1, 2, 4, 100])
@pytest.mark.parametrize("world", [1, 3, 8, 1000])
@pytest.mark.sampled(5)
def test_small_orders_give_numbers(n, block, world):
    for order in (Sequential(n), Shuffle(n, seed=n)):
        for found in measure(order, Setting(batch_size=2, block=block, world=world), epoch=1):
            assert math.isfinite(found.value), found
            assert math.isfinite(found.ideal), found
            assert found.value >= 0


def test_measuring_again_gives_the_same():
    setting = Setting(batch_size=8, block=4)
    assert measure(Shuffle(999, seed=1), setting, epoch=5) == measure(Shuffle(999, seed=1), setting, epoch=5)


def test_order_of_less_than_two_batches_is_refused():
    with pytest.raises(ValueError, match="at least two batches of 8, got 15 records"):
        measure(Sequential(15), Setting(batch_size=8, block=2))
    assert len(measure(Sequential(16), Setting(batch_size=8, block=2))) == 6


@pytest.mark.parametrize(("name", "least"), [("batch_size", 2), ("block", 1), ("num_labels", 2), ("world", 1), ("num_batches", 1)])
def test_bad_settings_are_refused(name, least):
    good = {"batch_size": 8, "block": 4}
    assert getattr(Setting(**good | {name: np.int8(least)}), name) == least
    with pytest.raises(ValueError, match=rf"{name} must be in \[{least}, .* got {least - 1}"):
        Setting(**good | {name: least - 1})
    for bad in (2.5, "8", None, True):
        with pytest.raises(TypeError, match=f"{name} must be a whole number"):
            Setting(**good | {name: bad})


def test_ranks_that_take_turns_within_blocks_are_even_however_long_the_epoch_is():
    """They are judged over the whole epoch, also where only a part of their records is looked at."""
    order = BlockShuffle(10**6, block=8192, window=16, seed=7)
    assert values(order, batch_size=256, block=8192, world=4)["S6"] > 1e-3
