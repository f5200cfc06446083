"""Design: samples whose probabilities are what they say, whose weights add up, and which no pattern in the data can fool."""

import copy
import pickle
import sys
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli import warm
from tests.effort import count

from penstock.errors import FullPassError, PenstockError
from penstock.order import (
    Design,
    default_budget,
    designed_sampling_mandatory,
    fraction_schedule,
    in_fraction,
)
from penstock.testing import OrderSuite
from penstock.testing.strategies import designs, seeds

MOST = 2**63 - 1
LIMIT = 100_000_000


class TestDesign(OrderSuite):
    is_permutation = False
    repr_evaluates = False  # a design may hold a mass for every record

    def make(self):
        masses = np.arange(1.0, 98.0)
        return [
            Design.simple(0, seed=1),
            Design.simple(1, seed=1),
            Design.full(97),
            Design.simple(97, size=40, seed=3),
            Design.simple(10**12, size=10**6, seed=3),
            Design.simple(MOST, size=MOST - 1, seed=3),
            Design.fraction(1000, 0.25, seed=5),
            Design.stratified(97, strata=10, size=33, seed=7),
            Design.stratified(10**12, strata=4096, size=200, seed=7),
            Design.stratified(97, strata=[40, 0, 50, 7], size=33, seed=7),
            Design.proportional(97, masses=masses, size=33, seed=7),
            Design.proportional(97, masses=[3, 1, 0], strata=[40, 50, 7], size=33, seed=7),
        ]


def whole(design):
    return design.indices(0, 0, len(design))


# Acceptance check 47.


@pytest.mark.parametrize("n", [0, 1, 2, 5, 97, 1000])
@pytest.mark.parametrize("extra", [0, 1, 10**6])
def test_budget_of_everything_is_all_ids_with_weight_one(n, extra):
    sizes = [n // 2, 0, n - n // 2]
    for design in (
        Design.simple(n, size=n + extra, seed=3),
        Design.fraction(n, 1, seed=3),
        Design.stratified(n, strata=7, size=n + extra, seed=3),
        Design.stratified(n, strata=sizes, size=n + extra, seed=3),
        Design.proportional(n, masses=np.linspace(0, 9, n), size=n + extra, seed=3),
        Design.proportional(n, masses=[1, 2, 30], strata=sizes, size=n + extra, seed=3),
        Design.full(n),
    ):
        assert sorted(whole(design).tolist()) == list(range(n))
        assert np.all(design.weights(0, n) == 1.0)


@given(design=designs())
def test_samples_hold_different_ids_and_finite_weights(design):
    ids, weights = whole(design), design.weights(0, len(design))
    assert len(set(ids.tolist())) == len(design)
    assert np.all((ids >= 0) & (ids < design.n))
    assert weights.dtype == np.float64
    assert weights.shape == ids.shape
    assert np.all(np.isfinite(weights) & (weights >= 1.0))


@given(design=designs(), data=st.data())
def test_any_part_of_the_weights_is_a_slice_of_all(design, data):
    start = data.draw(st.integers(0, len(design)))
    stop = data.draw(st.integers(start, len(design)))
    step = data.draw(st.integers(1, 9))
    assert design.weights(start, stop, step).tolist() == design.weights(0, len(design))[start:stop:step].tolist()


@pytest.mark.parametrize("seed", range(20))
def test_weights_add_up_to_the_number_of_records(seed):
    n, masses = 20_000, 1 + np.arange(20_000) % 17
    for design in (
        Design.simple(n, size=1500, seed=seed),
        Design.stratified(n, strata=64, size=1500, seed=seed),
        Design.stratified(n, strata=[12_000, 100, 7900], size=1500, seed=seed),
        Design.proportional(n, masses=masses, size=1500, seed=seed),
        Design.proportional(n, masses=[5, 1, 1], strata=[12_000, 100, 7900], size=1500, seed=seed),
    ):
        assert design.weights(0, 1500).sum() == pytest.approx(n, rel=0.05)


def designs_of(n, seed, masses, size):
    yield Design.simple(n, size=size, seed=seed)
    yield Design.stratified(n, strata=13, size=size, seed=seed)
    yield Design.stratified(n, strata=[n // 3, n // 6, n - n // 3 - n // 6], size=size, seed=seed)
    yield Design.proportional(n, masses=masses, size=size, seed=seed)
    yield Design.proportional(n, masses=[1, 5, 2], strata=[n // 3, n // 6, n - n // 3 - n // 6], size=size, seed=seed)


def test_mean_of_many_weighted_sums_is_the_truth():
    n = 300
    masses = 1 + np.arange(n) % 10.0
    values = 5 + np.sin(np.arange(n)) + masses
    num_seeds = count(120, 1000)
    sums = np.zeros((num_seeds, 5))
    for seed in range(num_seeds):
        for kind, design in enumerate(designs_of(n, seed, masses, 60)):
            sums[seed, kind] = values[whole(design)] @ design.weights(0, 60)
    assert sums.mean(0) == pytest.approx([values.sum()] * 5, rel=0.01)


def test_weights_are_one_over_the_share_of_seeds_that_take_a_record():
    n, size, num_seeds = 60, 18, count(300, 2500)
    masses = 1 + np.arange(n) % 10.0
    taken = np.zeros((5, n))
    claimed = np.zeros((5, n))
    for seed in range(num_seeds):
        for kind, design in enumerate(designs_of(n, seed, masses, size)):
            ids = whole(design)
            taken[kind, ids] += 1
            claimed[kind, ids] = 1 / design.weights(0, size)
    found = taken / num_seeds
    error = np.abs(found - claimed) / np.sqrt(claimed * (1 - claimed) / num_seeds + 1e-12)
    assert np.all(claimed > 0)
    assert claimed.sum(1) == pytest.approx([size] * 5, rel=1e-9)
    assert error.max() < 4.7  # standard errors; one of 300 records exceeds it in 1,300 runs
    assert error.mean() == pytest.approx(0.8, abs=0.1)


def test_probabilities_are_a_tenth_even_and_the_rest_by_mass():
    n, size = 1000, 50
    masses = 1 + np.arange(n) % 10.0
    design = Design.proportional(n, masses=masses, size=size, seed=2)
    expected = size * (0.9 * masses / masses.sum() + 0.1 / n)
    assert 1 / design.weights(0, size) == pytest.approx(expected[whole(design)], rel=1e-6)


def test_heavy_records_are_certain_and_the_rest_share_what_is_left():
    design = Design.proportional(10, masses=[1, 1, 1, 1, 50, 1, 1, 1, 1, 1], size=4, seed=17)
    ids, weights = whole(design), design.weights(0, 4)
    assert 4 in ids
    assert sorted(weights.tolist()) == pytest.approx([1, 3, 3, 3])
    assert weights[ids == 4] == 1.0


def test_even_masses_are_an_even_sample():
    design = Design.proportional(10, masses=[7] * 10, size=4, seed=17)
    assert design.weights(0, 4) == pytest.approx([2.5] * 4)
    zeros = Design.proportional(10, masses=[0] * 10, size=4, seed=17)
    assert zeros.weights(0, 4) == pytest.approx([2.5] * 4)


def test_masses_of_any_magnitude_are_shares():
    for scale in (1e-300, 1e300, 1.7e308):
        design = Design.proportional(4, masses=[scale, scale / 2, scale / 4, scale / 4], size=2, seed=1)
        plain = Design.proportional(4, masses=[4, 2, 1, 1], size=2, seed=1)
        assert design.weights(0, 2) == pytest.approx(plain.weights(0, 2))


def test_same_parameters_same_sample_and_other_seeds_others():
    make = lambda seed: whole(Design.simple(1000, size=100, seed=seed)).tolist()  # noqa: E731
    assert make(1) == make(1)
    assert len({tuple(make(seed)) for seed in range(50)}) == 50


def test_sample_is_the_same_in_every_epoch():
    design = Design.stratified(1000, strata=30, size=100, seed=1)
    assert design.indices(0, 0, 100).tolist() == design.indices(12, 0, 100).tolist()


def test_pattern_of_the_data_does_not_meet_a_pattern_of_the_sample():
    signal = (np.arange(200) % 5 == 0).astype(float)
    estimates = np.zeros((60, 4))
    for seed in range(60):
        made = (
            Design.simple(200, size=40, seed=seed),
            Design.stratified(200, strata=20, size=40, seed=seed),
            Design.stratified(200, strata=[100, 100], size=40, seed=seed),
            Design.proportional(200, masses=np.ones(200), size=40, seed=seed),
        )
        estimates[seed] = [signal[whole(design)] @ design.weights(0, 40) for design in made]
    assert np.all((estimates > 0) & (estimates < 100))  # every fifth record of a systematic sample would say 0 or 200
    assert estimates.mean(0) == pytest.approx([40] * 4, rel=0.15)


# Strata.


@given(n=st.integers(1, 500), strata=st.integers(1, 600), seed=seeds(), data=st.data())
def test_every_block_gives_its_share_to_within_one(n, strata, seed, data):
    size = data.draw(st.integers(1, n))
    count = np.bincount(whole(Design.stratified(n, strata=strata, size=size, seed=seed)) // strata, minlength=-(-n // strata))
    for block, given_ in enumerate(count):
        share = Fraction(size * (min(n, (block + 1) * strata) - block * strata), n)
        assert abs(int(given_) - share) < 1


@given(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(any), seed=seeds(), data=st.data())
def test_every_shard_gives_its_share_to_within_one(sizes, seed, data):
    n = sum(sizes)
    size = data.draw(st.integers(1, n))
    edges = np.concatenate([[0], np.cumsum(sizes)])
    count, _ = np.histogram(whole(Design.stratified(n, strata=sizes, size=size, seed=seed)), bins=np.arange(n + 1))
    for low, high in pairwise(edges):
        assert abs(int(count[low:high].sum()) - Fraction(size * int(high - low), n)) < 1 + Fraction(1, 10**6)


def test_strata_may_be_an_array():
    plain = Design.stratified(97, strata=[40, 50, 7], size=33, seed=7)
    assert whole(Design.stratified(97, strata=np.array([40, 50, 7]), size=33, seed=7)).tolist() == whole(plain).tolist()


@pytest.mark.parametrize("sizes", [[2**31] * 4, [2**31 - 1, 2**31 + 1], [10**10] * 4, [2**40, 1, 2**33, 7]])
def test_strata_of_any_length_give_their_share(sizes):
    n, edges = sum(sizes), np.concatenate([[0], np.cumsum(sizes)])
    for design in (
        Design.stratified(n, strata=sizes, size=1000, seed=3),
        Design.proportional(n, masses=[float(size) for size in sizes], strata=sizes, size=1000, seed=3),
    ):
        ids = whole(design)
        assert len(set(ids.tolist())) == 1000
        count = np.bincount(np.searchsorted(edges, ids, side="right") - 1, minlength=len(sizes))
        assert all(abs(int(c) - 1000 * size / n) < 1.01 for c, size in zip(count, sizes, strict=True))
        assert design.weights(0, 1000).sum() == pytest.approx(n, rel=0.01)


# Simple samples and fractions.


@given(n=st.integers(1, 500), seed=seeds(), data=st.data())
def test_larger_sample_adds_records_to_the_smaller(n, seed, data):
    small = data.draw(st.integers(0, n))
    large = data.draw(st.integers(small, n))
    ids = whole(Design.simple(n, size=large, seed=seed)).tolist()
    assert whole(Design.simple(n, size=small, seed=seed)).tolist() == ids[:small]


def test_all_pairs_of_a_simple_sample_come_equally_often():
    each, found = count(80, 500), np.zeros((6, 6))
    for seed in range(15 * each):
        low, high = sorted(whole(Design.simple(6, size=2, seed=seed)).tolist())
        found[low, high] += 1
    pairs = found[np.triu_indices(6, 1)]
    assert np.sum((pairs - each) ** 2 / each) / 14 < 2.5


@pytest.mark.parametrize(("small", "large"), [(0.1, 0.25), (0, 0.1), (0.25, 1), (Fraction(1, 3), 0.5)])
def test_check_49_smaller_fractions_lie_in_larger(small, large):
    few, many = Design.fraction(10_000, small, seed=3), Design.fraction(10_000, large, seed=3)
    assert set(whole(few).tolist()) <= set(whole(many).tolist())
    assert (len(few), len(many)) == (round(Fraction(small) * 10_000), round(Fraction(large) * 10_000))
    ids = np.arange(10_000)
    assert not np.any(in_fraction(ids, small) & ~in_fraction(ids, large))


def test_check_49_weight_is_one_over_the_fraction():
    assert np.all(Design.fraction(1000, 0.25, seed=3).weights(0, 250) == 4.0)


def test_check_49_hashed_fractions_are_the_golden_ones():
    assert np.flatnonzero(in_fraction(np.arange(40), 0.25)).tolist() == [3, 10, 18, 20, 21, 33]
    assert np.count_nonzero(in_fraction(np.arange(200_000), 0.1)) == 19_991


@pytest.mark.parametrize("fraction", [0, 0.001, 0.1, 0.5, 0.9, 1])
def test_hashed_fraction_is_right_on_average(fraction):
    found = in_fraction(np.arange(200_000), fraction)
    assert found.dtype == np.bool_
    assert np.mean(found) == pytest.approx(fraction, abs=0.004)
    assert np.array_equal(in_fraction(np.arange(200_000)[::-7], fraction), found[::-7])
    if fraction in (0, 1):
        assert np.all(found == fraction)


def test_check_49_schedule_is_the_golden_one():
    assert fraction_schedule(10_000_000, 8) == [1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 1.0]


@given(n=st.integers(0, 10**9), steps=st.integers(0, 30))
def test_schedules_rise_to_everything(n, steps):
    found = fraction_schedule(n, steps)
    assert len(found) == steps
    assert found[-2:] == [1.0] * min(2, steps)
    assert all(0 < low <= high <= 1 for low, high in pairwise(found))
    if n <= 4096:
        assert found == [1.0] * steps
    elif steps > 2:
        assert found[0] == pytest.approx(max(1 / 64, 4096 / n))


# Acceptance check 48.


def test_full_pass_is_refused_from_a_hundred_million_rows_on():
    for make in (
        lambda n, **more: Design.full(n, **more),
        lambda n, **more: Design.simple(n, size=n, seed=1, **more),
        lambda n, **more: Design.simple(n, size=n + 5, seed=1, **more),
        lambda n, **more: Design.fraction(n, 1.0, seed=1, **more),
        lambda n, **more: Design.stratified(n, strata=1000, size=n, seed=1, **more),
    ):
        below = make(LIMIT - 1)
        assert len(below) == LIMIT - 1
        assert np.all(below.weights(0, 10) == 1.0)
        with pytest.raises(FullPassError, match=r"100000000 rows.*full_pass=True") as caught:
            make(LIMIT)
        assert isinstance(caught.value, PenstockError)
        assert isinstance(caught.value, ValueError)
        asked = make(LIMIT, full_pass=True)
        assert len(asked) == LIMIT
        assert np.all(asked.weights(LIMIT - 10, LIMIT) == 1.0)
        assert pickle.loads(pickle.dumps(asked)) == asked


def test_samples_of_large_data_are_never_refused():
    assert len(Design.simple(LIMIT, size=LIMIT - 1, seed=1)) == LIMIT - 1
    assert len(Design.simple(LIMIT, seed=1)) == 2_000_000
    assert len(Design.simple(LIMIT - 1, seed=1)) == LIMIT - 1
    assert len(Design.stratified(10**12, strata=10**6, seed=1)) == 2_000_000
    assert [default_budget(n) for n in (0, 5, LIMIT - 1, LIMIT, 10**12)] == [0, 5, LIMIT - 1, 2_000_000, 2_000_000]
    assert [designed_sampling_mandatory(n) for n in (0, LIMIT - 1, LIMIT)] == [False, False, True]


# Memory and values.


def test_design_over_a_million_millions_needs_no_memory():
    program = """
import numpy as np
from penstock.order import Design

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

def ask(n):
    found = []
    for design in (Design.simple(n, size=n // 2, seed=1), Design.stratified(n, strata=4096, size=n // 2, seed=1)):
        ids = design.indices(0, n // 4, n // 4 + 1000)
        assert len(set(ids.tolist())) == 1000 and ids.min() >= 0 and ids.max() < n
        assert np.all(design.weights(n // 4, n // 4 + 1000) == 2.0)
        found.append(design)
    return found

ask(10**7)
before = resident()
kept = ask(10**12)
print(resident() - before)
"""
    done = warm.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1_000_000


def test_far_part_of_a_huge_sample_is_a_slice_of_its_neighbourhood():
    for design in (Design.simple(10**12, size=10**11, seed=3), Design.stratified(10**12, strata=1000, size=10**11, seed=3)):
        around = design.indices(0, 9 * 10**10 - 300, 9 * 10**10 + 300)
        assert len(set(around.tolist())) == 600
        assert design.indices(0, 9 * 10**10, 9 * 10**10 + 7).tolist() == around[300:307].tolist()
        assert design.at(0, [9 * 10**10 + 5, 9 * 10**10 - 5]).tolist() == around[[305, 295]].tolist()


def test_designs_that_differ_are_unequal():
    ones, other = np.ones(3000), np.ones(3000)
    other[1500] = 7
    nearly = np.ones(3000)
    nearly[0] += 1e-12
    made = [Design.proportional(3000, masses=masses, size=5, seed=1) for masses in (ones, other, nearly)]
    made += [Design.stratified(3000, strata=strata, size=5, seed=1) for strata in (10, 11, [1000, 2000], [2000, 1000])]
    made += [Design.simple(3000, size=size, seed=seed) for size, seed in ((5, 1), (6, 1), (5, 2))]
    long = [[1] * 3000, [1] * 1400 + [2, 0] + [1] * 1598]
    made += [Design.stratified(3000, strata=np.array(strata), size=5, seed=1) for strata in long]
    for k, one in enumerate(made):
        assert [one == two for two in made] == [k == j for j in range(len(made))]
        assert copy.deepcopy(one) == one
        assert hash(copy.copy(one)) == hash(one)


def test_repr_tells_designs_apart():
    made = [Design.simple(100, size=5, seed=1), Design.simple(100, size=5, seed=2), Design.simple(100, size=6, seed=1)]
    made += [Design.stratified(100, strata=strata, size=5, seed=1) for strata in (10, 11, [40, 60], [60, 40])]
    made += [Design.proportional(100, masses=masses, strata=[40, 60], size=5, seed=1) for masses in ([1, 2], [2, 1])]
    assert len({repr(design) for design in made}) == len(made)


def test_later_changes_of_masses_and_strata_change_nothing():
    masses, strata = np.array([1.0, 2.0, 3.0]), [10, 20, 30]
    design = Design.proportional(60, masses=masses, strata=strata, size=20, seed=1)
    same = Design.proportional(60, masses=masses.copy(), strata=list(strata), size=20, seed=1)
    masses[:] = 9
    strata[0] = 11
    assert design == same
    assert whole(pickle.loads(pickle.dumps(design))).tolist() == whole(same).tolist()


@pytest.mark.parametrize("number", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_numbers_of_numpy_are_numbers(number):
    pairs = [
        (Design.simple(number(97), size=number(40), seed=number(3)), Design.simple(97, size=40, seed=3)),
        (Design.fraction(number(97), 0.5, seed=number(3)), Design.fraction(97, 0.5, seed=3)),
        (
            Design.stratified(number(97), strata=number(10), size=number(40), seed=number(3)),
            Design.stratified(97, strata=10, size=40, seed=3),
        ),
        (
            Design.proportional(number(3), masses=[1, 2, 3], size=number(2), seed=number(3)),
            Design.proportional(3, masses=[1, 2, 3], size=2, seed=3),
        ),
    ]
    for found, plain in pairs:
        assert whole(found).tolist() == whole(plain).tolist()
        assert found.weights(0, len(found)).tolist() == plain.weights(0, len(plain)).tolist()
        assert found == plain


def test_fractions_of_numpy_are_numbers():
    assert len(Design.fraction(100, np.float32(0.25), seed=1)) == len(Design.fraction(100, np.float64(0.25), seed=1)) == 25


PLAIN = {"n": 100, "seed": 1, "size": 10}
BAD = [
    (Design.simple, {"n": -1}, ValueError, "n must be in [0, ", "-1"),
    (Design.simple, {"n": 1.0}, TypeError, "n must be a whole number", "1.0"),
    (Design.simple, {"n": True}, TypeError, "n must be a whole number", "True"),
    (Design.simple, {"n": 2**63}, ValueError, f"{MOST}]", str(2**63)),
    (Design.simple, {"seed": -1}, ValueError, "seed must be in [0, ", "-1"),
    (Design.simple, {"seed": 2**64}, ValueError, "18446744073709551615]", str(2**64)),
    (Design.simple, {"seed": 0.5}, TypeError, "seed must be a whole number", "0.5"),
    (Design.simple, {"size": -1}, ValueError, "size must be in [0, ", "-1"),
    (Design.simple, {"size": 2.5}, TypeError, "size must be a whole number", "2.5"),
    (Design.simple, {"size": float("nan")}, TypeError, "size must be a whole number", "nan"),
    (Design.stratified, {"strata": 0}, ValueError, "strata must be in [1, ", "0"),
    (Design.stratified, {"strata": 2.5}, TypeError, "strata must be a whole number", "2.5"),
    (Design.stratified, {"strata": None}, TypeError, "strata must be a whole number", "None"),
    (Design.stratified, {"strata": [50, 49]}, ValueError, "n = 100", "99"),
    (Design.stratified, {"strata": [-50, 150]}, ValueError, "stratum's size must be in [0, ", "-50"),
    (Design.stratified, {"strata": [50.0, 50.0]}, TypeError, "stratum's size must be a whole number", "50.0"),
    (Design.proportional, {"masses": [1, 2]}, ValueError, "expected 100 masses, one per record", "(2,)"),
    (Design.proportional, {"masses": np.ones((10, 10))}, ValueError, "expected 100 masses", "(10, 10)"),
    (Design.proportional, {"masses": [1], "strata": [50, 50]}, ValueError, "expected 2 masses, one per stratum", "(1,)"),
    (Design.proportional, {"masses": [1, 1], "strata": [50, 49]}, ValueError, "n = 100", "99"),
    (Design.proportional, {"masses": [1, -2], "strata": [50, 50]}, ValueError, "finite and at least 0", "-2"),
    (Design.proportional, {"masses": [1, float("nan")], "strata": [50, 50]}, ValueError, "finite and at least 0", "nan"),
    (Design.proportional, {"masses": [1, float("inf")], "strata": [50, 50]}, ValueError, "finite and at least 0", "inf"),
]


@pytest.mark.parametrize(("make", "change", "error", "expected", "found"), BAD)
def test_bad_input_is_refused_with_expected_and_found(make, change, error, expected, found):
    arguments = PLAIN | change
    with pytest.raises(error) as caught:
        make(arguments.pop("n"), **arguments)
    assert expected in str(caught.value)
    assert found in str(caught.value)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, 2, float("nan"), float("inf"), "0.5", None])
def test_bad_fractions_are_refused(fraction):
    for call in (lambda: Design.fraction(10, fraction, seed=1), lambda: in_fraction([1], fraction)):
        with pytest.raises((ValueError, TypeError)) as caught:
            call()
        assert "fraction must be in [0, 1]" in str(caught.value)
        assert repr(fraction) in str(caught.value)


@pytest.mark.parametrize(
    ("call", "error", "found"),
    [
        (lambda: in_fraction([-1], 0.5), IndexError, "-1"),
        (lambda: in_fraction([0.5], 0.5), TypeError, "float64"),
        (lambda: in_fraction([[1]], 0.5), ValueError, "(1, 1)"),
        (lambda: fraction_schedule(-1, 3), ValueError, "-1"),
        (lambda: fraction_schedule(5, -3), ValueError, "-3"),
        (lambda: fraction_schedule(5.0, 3), TypeError, "5.0"),
        (lambda: default_budget(-1), ValueError, "-1"),
        (lambda: designed_sampling_mandatory(1.5), TypeError, "1.5"),
        (lambda: Design.simple(10, size=5, seed=1).weights(0, 6), IndexError, "stop=6"),
        (lambda: Design.simple(10, size=5, seed=1).weights(-1, 5), IndexError, "start=-1"),
        (lambda: Design.simple(10, size=5, seed=1).weights(0, 5, 0), ValueError, "0"),
    ],
)
def test_bad_calls_are_refused_with_what_was_found(call, error, found):
    with pytest.raises(error) as caught:
        call()
    assert found in str(caught.value)
