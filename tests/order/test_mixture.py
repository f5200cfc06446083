"""Mixture against naive models: exact quotas, contiguous elements, exact ends, phases that repeat nothing, far seeks."""

import copy
import json
import pickle
import sys
from collections import Counter
from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.cli import warm

from penstock.order import Curriculum, Design, Mixture, Phase, Sequential, Shuffle, Sliding
from penstock.testing import OrderSuite
from penstock.testing.strategies import mixtures, seeds, weights

MOST = 2**63 - 1
STOPS = ("first_exhausted", "all_exhausted", "all_exhausted_without_replacement")


class TestMixture(OrderSuite):
    is_permutation = False
    epochs = (0, 1, 7, 10_005)

    def make(self):
        return [
            Mixture([0], seed=1),
            Mixture([1], seed=1),
            Mixture({"a": 0, "b": 0}, seed=1),
            Mixture({"web": Shuffle(700, seed=1), "code": 300}, weights={"web": 0.7, "code": 0.3}, seed=5),
            Mixture([4, 32], weights=[0.5, 0.5], seed=2, stop="all_exhausted_without_replacement"),
            Mixture([4, Shuffle(97, seed=3), 1], weights=[1, 2, 3], seed=2, stop="all_exhausted", period=16),
            Mixture([50, 60, 70], weights=[(0, [1, 2, 0]), (5, [0, 1, 9])], batch_size=8, seed=2, period=7),
            Mixture([50, 60, 70], weights=[1, 2, 3], batch_size=8, unit="batch", seed=2, stop="all_exhausted"),
            Mixture([500, 900], weights=[1, 3], phases=[Phase(5, 4, 8), Phase(3, 2, 16), Phase(2, 8, 4, weights=[1, 0])], seed=2),
            Mixture([Shuffle(n, seed=n) for n in range(1, 151)], seed=2**64 - 1),
            Mixture([10**11, 10**11], weights=[1, 2], seed=3),
        ]

    def num_records(self, order):
        return sum(part if isinstance(part, int) else len(part) for part in parts_of(order))


class TestEndlessMixture(OrderSuite):
    is_permutation = False
    epochs = (0,)

    def make(self):
        return [Mixture([5, 7], weights=[0.7, 0.3], seed=1, stop="forever")]

    def num_records(self, order):
        return 12


def parts_of(mix):
    return list(mix.parts.values()) if isinstance(mix.parts, dict) else list(mix.parts)


def lengths_of(mix):
    return [part if isinstance(part, int) else len(part) for part in parts_of(mix)]


def count_up(which, num_sets):
    """counts[t][k]: draws of data set k before position t."""
    one_hot = np.zeros((len(which) + 1, num_sets), np.int64)
    one_hot[np.arange(1, len(which) + 1), which] = 1
    return np.cumsum(one_hot, axis=0)


def shares_of(weights):
    """Exact shares; a float stands for the decimal it is written as."""
    exact = [Fraction(str(w)) for w in weights]
    return [w / sum(exact) for w in exact]


def meet(counts, shares):
    """Whether there is a time at which every data set has its quota to within one draw."""
    active = [k for k, share in enumerate(shares) if share > 0]
    return max((counts[k] - 1) / shares[k] for k in active) < min((counts[k] + 1) / shares[k] for k in active)


# The line of each data set.


@given(mix=mixtures())
def test_elements_of_each_data_set_are_one_run_that_goes_on_in_the_next_epoch(mix):
    given_so_far = [0] * len(mix.names)
    for epoch in range(3):
        which, element = mix.choose(epoch, 0, mix.length_of(epoch))
        for k in range(len(mix.names)):
            mine = sorted(element[which == k].tolist())
            assert mine == list(range(given_so_far[k], given_so_far[k] + len(mine)))
            given_so_far[k] += len(mine)


@given(mix=mixtures())
def test_ids_are_those_of_the_data_sets_put_one_after_the_other(mix):
    lengths = lengths_of(mix)
    firsts = [0, *accumulate(lengths)]
    for epoch in (0, 2):
        expected = []
        for k, element in zip(*mix.choose(epoch, 0, mix.length_of(epoch)), strict=True):
            part = parts_of(mix)[k]
            turn, place = divmod(int(element), lengths[k])
            expected.append(firsts[k] + (place if isinstance(part, int) else int(part.at(turn, [place])[0])))
        assert mix.indices(epoch, 0, mix.length_of(epoch)).tolist() == expected


@given(mix=mixtures(), epoch=st.integers(0, 3))
def test_position_of_is_the_inverse_of_choose(mix, epoch):
    which, element = mix.choose(epoch, 0, mix.length_of(epoch))
    for position in range(0, mix.length_of(epoch), 1 + mix.length_of(epoch) // 100):
        assert mix.position_of(epoch, int(which[position]), int(element[position])) == position
    for k in range(len(mix.names)):
        mine = element[which == k].tolist()
        outside = [max(mine) + 1, min(mine) - 1] if mine else [0, 5]
        assert [mix.position_of(epoch, k, e) for e in outside if e >= 0] == [None for e in outside if e >= 0]


@given(mix=mixtures(), data=st.data())
def test_any_run_is_a_slice_of_the_whole(mix, data):
    start = data.draw(st.integers(0, mix.length_of(1)))
    stop = data.draw(st.integers(start, mix.length_of(1)))
    step = data.draw(st.integers(1, 9))
    whole, part = mix.choose(1, 0, mix.length_of(1)), mix.choose(1, start, stop, step)
    assert part.which.dtype == np.int32
    assert part.element.dtype == np.int64
    assert part.which.tolist() == whole.which[start:stop:step].tolist()
    assert part.element.tolist() == whole.element[start:stop:step].tolist()


# Quotas.


@given(count=st.integers(1, 6), seed=seeds(), period=st.sampled_from([1, 5, 16, 100]), data=st.data())
def test_quotas_are_met_to_within_one_at_every_period_end(count, seed, period, data):
    drawn = data.draw(weights(count))
    shares = shares_of(drawn)
    assume(min(share for share in shares if share > 0) > Fraction(1, 300))
    mix = Mixture([10**6] * count, weights=drawn, seed=seed, period=period)
    step = mix.plan.segments[0].period
    assert period <= step <= max(period, int(1 / min(share for share in shares if share > 0)) + 1)
    counts = count_up(mix.choose(0, 0, 12 * step).which, count)
    for t in range(0, 12 * step + 1, step):
        assert all(abs(int(counts[t][k]) - t * shares[k]) < 1 for k in range(count))


@given(seed=seeds(), batch=st.integers(1, 8), steps=st.lists(st.integers(1, 30), min_size=1, max_size=4), data=st.data())
def test_quotas_of_staged_weights_are_met_to_within_one(seed, batch, steps, data):
    changes = [0, *accumulate(steps)]
    stages = [(step, data.draw(weights(3))) for step in changes]
    mix = Mixture([10**5] * 3, weights=stages, seed=seed, batch_size=batch, period=8)
    stop = (changes[-1] + 20) * batch
    counts = count_up(mix.choose(0, 0, stop).which, 3)
    for (step, drawn), end in zip(stages, [*changes[1:], changes[-1] + 20], strict=True):
        shares, low, high = shares_of(drawn), step * batch, end * batch
        period = next(segment.period for segment in mix.plan.segments if segment.start == low)
        last = [high] if end != changes[-1] + 20 else []
        for t in [*range(low, high - period + 1, period), *last]:
            assert all(abs(int(counts[t][k] - counts[low][k]) - (t - low) * shares[k]) < 1 for k in range(3))
        assert all(counts[high][k] == counts[low][k] for k in range(3) if shares[k] == 0)


@given(mix=mixtures())
def test_weight_zero_is_never_drawn(mix):
    if mix.weights is None or isinstance(mix.weights[0], tuple):
        mix = Mixture(mix.parts, seed=mix.seed, weights=[1] + [0] * (len(mix.parts) - 1), stop=mix.stop)
    zero = {k for k, weight in enumerate(mix.weights) if weight == 0}
    for epoch in (0, 1):
        assert not zero & set(mix.choose(epoch, 0, mix.length_of(epoch)).which.tolist())


def test_hundreds_of_data_sets_keep_their_quotas():
    sizes = [1000 + 7 * k for k in range(400)]
    drawn = [1 + k % 13 for k in range(400)]
    shares = shares_of(drawn)
    mix = Mixture([Shuffle(n, seed=k) for k, n in enumerate(sizes)], weights=drawn, seed=4)
    step = mix.plan.segments[0].period
    counts = count_up(mix.choose(0, 0, 10 * step).which, 400)
    for t in range(0, 10 * step + 1, step):
        assert all(abs(int(counts[t][k]) - t * shares[k]) < 1 for k in range(400))
    ids = mix.indices(0, 0, len(mix))
    assert len(set(ids.tolist())) == len(mix)


def test_hundreds_of_data_sets_are_used_up_exactly():
    sizes = [1 + k % 29 for k in range(300)]
    mix = Mixture(sizes, weights=[1 + k % 7 for k in range(300)], seed=4, stop="all_exhausted_without_replacement")
    assert len(mix) == sum(sizes)
    assert sorted(mix.indices(0, 0, len(mix)).tolist()) == list(range(sum(sizes)))


def test_periods_are_shuffled_and_differ():
    mix = Mixture([10**6, 10**6], weights=[1, 1], seed=4, period=64)
    which = mix.choose(0, 0, 64 * 100).which.reshape(100, 64)
    assert len({tuple(row) for row in which.tolist()}) == 100
    assert np.all(which.sum(1) == 32)
    assert np.all(np.abs(which.mean(0) - 0.5) < 0.25)  # no slot prefers a data set
    assert not np.array_equal(which, mix.choose(1, 0, 6400).which.reshape(100, 64))


def test_l16_next_epoch_is_not_the_next_seed():
    found = {
        tuple(Mixture([500, 500], weights=[1, 1], seed=seed).choose(epoch, 0, 500).which.tolist())
        for seed in range(8)
        for epoch in range(8)
    }
    assert len(found) == 64


# Ends.


@given(
    lengths=st.lists(st.integers(1, 80), min_size=1, max_size=5), seed=seeds(), period=st.sampled_from([1, 7, 1024]), data=st.data()
)
def test_first_exhausted_ends_exactly_there(lengths, seed, period, data):
    drawn = data.draw(weights(len(lengths)))
    shares = shares_of(drawn)
    mix = Mixture(lengths, weights=drawn, seed=seed, period=period)
    counts = Counter(mix.choose(0, 0, len(mix)).which.tolist())
    active = [k for k, share in enumerate(shares) if share > 0]
    assert any(counts[k] == lengths[k] for k in active)
    assert all(counts[k] <= lengths[k] for k in active)
    assert meet(counts, shares)
    ids = mix.indices(0, 0, len(mix))
    assert len(set(ids.tolist())) == len(mix)  # no record comes twice


@given(
    lengths=st.lists(st.integers(1, 80), min_size=1, max_size=5), seed=seeds(), period=st.sampled_from([1, 7, 1024]), data=st.data()
)
def test_all_exhausted_ends_when_the_last_one_has(lengths, seed, period, data):
    drawn = data.draw(weights(len(lengths)))
    shares = shares_of(drawn)
    active = [k for k, share in enumerate(shares) if share > 0]
    end = max(Fraction(lengths[k]) / shares[k] for k in active)
    assume(end < 20_000)
    mix = Mixture(lengths, weights=drawn, seed=seed, period=period, stop="all_exhausted")
    counts = Counter(mix.choose(0, 0, len(mix)).which.tolist())
    assert all(counts[k] >= lengths[k] for k in active)
    assert meet(counts, shares)
    last = [k for k in active if Fraction(lengths[k]) / shares[k] == end]
    assert any(counts[k] == lengths[k] for k in last)


@given(
    lengths=st.lists(st.integers(0, 80), min_size=1, max_size=5), seed=seeds(), period=st.sampled_from([1, 7, 1024]), data=st.data()
)
def test_without_replacement_every_record_comes_once(lengths, seed, period, data):
    drawn = data.draw(weights(len(lengths)))
    mix = Mixture(lengths, weights=drawn, seed=seed, period=period, stop="all_exhausted_without_replacement")
    counts = Counter(mix.choose(0, 0, len(mix)).which.tolist())
    assert [counts[k] for k in range(len(lengths))] == [n if w > 0 else 0 for n, w in zip(lengths, drawn, strict=True)]
    assert len(set(mix.indices(0, 0, len(mix)).tolist())) == len(mix)


@given(lengths=st.lists(st.integers(1, 10**6), min_size=1, max_size=8), seed=seeds())
def test_without_weights_all_data_sets_end_together(lengths, seed):
    for stop in STOPS:
        assert len(Mixture(lengths, seed=seed, stop=stop)) == sum(lengths)


def test_example_of_the_documentation():
    parts = {"web": Shuffle(700, seed=1), "code": 300}
    mix = Mixture(parts, weights={"web": 0.7, "code": 0.3}, seed=5)
    assert len(mix) == 1000
    assert sorted(mix.indices(0, 0, 1000).tolist()) == list(range(1000))


def test_check_39_the_larger_data_set_is_alone_at_the_end():
    mix = Mixture([4, 32], weights=[0.5, 0.5], seed=8, stop="all_exhausted_without_replacement", batch_size=1, unit="batch")
    which = mix.choose(0, 0, len(mix)).which
    assert len(mix) == 36
    assert np.count_nonzero(which[:8] == 0) == 4
    assert np.all(which[8:] == 1)


def test_shares_are_renormalised_when_a_data_set_ends():
    mix = Mixture([100, 10_000, 10_000], weights=[2, 1, 1], seed=8, stop="all_exhausted_without_replacement", period=16)
    which = mix.choose(0, 0, len(mix)).which
    assert np.count_nonzero(which[:200] == 0) == 100
    rest = count_up(which[200:], 3)
    assert rest[-1][0] == 0
    assert abs(int(rest[1600][1]) - 800) <= 1


def test_all_exhausted_repeats_the_smaller_one_reshuffled():
    mix = Mixture([Shuffle(10, seed=1), 100], weights=[1, 1], seed=8, stop="all_exhausted")
    which, element = mix.choose(0, 0, len(mix))
    small = mix.indices(0, 0, len(mix))[which == 0][np.argsort(element[which == 0])].reshape(10, 10)
    assert all(sorted(turn) == list(range(10)) for turn in small.tolist())
    assert len({tuple(turn) for turn in small.tolist()}) == 10


@given(mix=mixtures())
def test_staged_mixtures_end_by_their_policy(mix):
    lengths = lengths_of(mix)
    unit = mix.batch_size if mix.unit == "batch" else 1
    staged = mix.weights if mix.weights is not None and isinstance(mix.weights[0], tuple) else [(0, mix.weights or lengths)]
    counts = Counter(mix.choose(0, 0, len(mix)).which.tolist())
    last = {k for k, weight in enumerate(staged[-1][1]) if weight > 0}
    ending = [drawn for step, drawn in staged if step * mix.batch_size <= len(mix)][-1]  # the stage in which the epoch ended
    for k, n in enumerate(lengths):
        if mix.stop != "all_exhausted":
            assert counts[k] <= n
        if mix.stop == "all_exhausted" and k in last:
            assert counts[k] >= n
        if mix.stop == "all_exhausted_without_replacement" and ending[k] > 0:
            assert n - counts[k] < unit
    if mix.stop == "first_exhausted":
        assert any(n - counts[k] < unit for k, n in enumerate(lengths))


@pytest.mark.parametrize("unit", ["sample", "batch"])
def test_steps_keep_their_place_where_a_stage_has_run_out(unit):
    settings = {"seed": 1, "stop": "all_exhausted_without_replacement", "unit": unit}
    phases = [Phase(10, batch_size=2, weights=[1, 0]), Phase(10, batch_size=2, seq_len=2, weights=[0, 1])]
    assert len(Mixture([10, 100], phases=phases, **settings)) == 10
    assert len(Mixture([20, 100], phases=phases, **settings)) == 40
    assert len(Mixture([10, 100], weights=[(0, [1, 0]), (10, [0, 1])], batch_size=2, **settings)) == 10
    assert len(Mixture([20, 100], weights=[(0, [1, 0]), (10, [0, 1])], batch_size=2, **settings)) == 120
    first = Mixture([20, 100], phases=phases, **settings).choose(0, 20, 22)
    assert first.which.tolist() == [1, 1]


def test_stage_that_has_run_out_leaves_the_rest_for_the_next_epoch():
    phases = [Phase(10, batch_size=2, weights=[1, 0]), Phase(10, batch_size=2, seq_len=2, weights=[0, 1])]
    mix = Mixture([11, 100], seed=1, phases=[Phase(1, 1, 2, weights=[1, 0]), *phases], stop="all_exhausted_without_replacement")
    assert len(mix) == 10  # one sample of two elements, and nine of one
    assert sorted(mix.choose(1, 0, 10).element.tolist()) == [11, *range(13, 22)]


# Batches.


@given(
    lengths=st.lists(st.integers(1, 120), min_size=1, max_size=4),
    batch=st.integers(1, 9),
    stop=st.sampled_from(STOPS),
    seed=seeds(),
    data=st.data(),
)
def test_unit_batch_draws_whole_batches(lengths, batch, stop, seed, data):
    drawn = data.draw(st.lists(st.integers(1, 5), min_size=len(lengths), max_size=len(lengths)))
    mix = Mixture(lengths, weights=drawn, seed=seed, batch_size=batch, unit="batch", stop=stop)
    which, element = mix.choose(0, 0, len(mix))
    counts = Counter(which.tolist())
    if stop == "all_exhausted_without_replacement":  # every record once: what fills no batch of its own comes last
        assert [counts[k] for k in range(len(lengths))] == lengths
        assert sorted(element[which == 0].tolist()) == list(range(lengths[0]))
        whole = sum(n // batch * batch for n in lengths)
        which, element = which[:whole], element[:whole]
    assert which.size % batch == 0
    assert np.all(which.reshape(-1, batch) == which.reshape(-1, batch)[:, :1])
    assert np.all(np.diff(element.reshape(-1, batch), axis=1) == 1)
    assert np.all(element.reshape(-1, batch)[:, 0] % batch == 0)
    if stop == "first_exhausted":
        assert any(counts[k] == n // batch * batch for k, n in enumerate(lengths))
    if stop == "all_exhausted":
        assert all(counts[k] >= n for k, n in enumerate(lengths))


# Phases.


def phase_lists(num_sets):
    one = st.builds(
        Phase,
        st.integers(0, 8),
        st.integers(1, 5),
        st.integers(1, 9),
        st.none() | weights(num_sets),
    )
    return st.lists(one, min_size=1, max_size=4)


@given(plan=phase_lists(3), seed=seeds(), unit=st.sampled_from(["sample", "batch"]))
def test_check_38_no_element_repeats_across_phases(plan, seed, unit):
    mix = Mixture([5000] * 3, weights=[1, 1, 2], seed=seed, phases=plan, period=8, unit=unit)
    assert len(mix) == sum(phase.steps * phase.batch_size for phase in plan)
    sizes = [phase.seq_len for phase in plan for _ in range(phase.steps * phase.batch_size)]
    for epoch in (0, 1):
        which, element = mix.choose(epoch, 0, mix.length_of(epoch))
        used = [[], [], []]
        for k, first, size in zip(which.tolist(), element.tolist(), sizes, strict=True):
            used[k] += range(first, first + size)
        for mine in used:
            assert sorted(mine) == list(range(len(mine) * epoch, len(mine) * (epoch + 1)))


@given(plan=phase_lists(2), seed=seeds())
def test_quotas_of_every_phase_are_met_to_within_one(plan, seed):
    mix = Mixture([5000] * 2, weights=[1, 3], seed=seed, phases=plan, period=8)
    counts, low = count_up(mix.choose(0, 0, len(mix)).which, 2), 0
    for phase in plan:
        shares, high = shares_of(phase.weights or [1, 3]), low + phase.steps * phase.batch_size
        assert all(abs(int(counts[high][k] - counts[low][k]) - (high - low) * shares[k]) < 1 for k in range(2))
        low = high


@given(plan=phase_lists(2), seed=seeds(), unit=st.sampled_from(["sample", "batch"]))
def test_position_of_finds_every_element_of_every_phase(plan, seed, unit):
    mix = Mixture([5000] * 2, weights=[1, 3], seed=seed, phases=plan, period=8, unit=unit)
    sizes = [phase.seq_len for phase in plan for _ in range(phase.steps * phase.batch_size)]
    which, element = mix.choose(1, 0, mix.length_of(1))
    for position, size in enumerate(sizes):
        for offset in (0, size // 2, size - 1):
            assert mix.position_of(1, int(which[position]), int(element[position]) + offset) == position


def test_position_of_passes_over_a_phase_without_steps():
    mix = Mixture([100, 100], weights=[1, 1], seed=3, phases=[Phase(0, 1, 2), Phase(10, 1, 4)])
    which, element = mix.choose(0, 0, 10)
    assert [mix.position_of(0, int(k), int(e) + 3) for k, e in zip(which, element, strict=True)] == list(range(10))


def test_phases_end_with_the_data():
    mix = Mixture([64, 1000], weights=[1, 1], seed=3, phases=[Phase(100, 1, 8)])
    which, element = mix.choose(0, 0, len(mix))
    assert np.count_nonzero(which == 0) == 8
    assert sorted(element[which == 0].tolist()) == list(range(0, 64, 8))
    assert 15 <= len(mix) <= 17


# Seeks.


@pytest.mark.parametrize("start", [10**7, 10**9, 10**12 + 12_345, 2**60])
def test_seek_far_away_equals_the_periods_laid_out(start):
    drawn, period = [0.5, 0.3, 0.2, 0], 1000
    mix = Mixture([17, Shuffle(1001, seed=1), 5, 9], weights=drawn, seed=6, stop="forever", period=period)
    first = start // period * period
    which, element = mix.choose(0, first, first + 3 * period)
    shares = shares_of(drawn)
    for number in range(3):
        rows = slice(number * period, (number + 1) * period)
        low, high = first + number * period, first + (number + 1) * period
        begins = []
        for k in range(4):
            mine = np.sort(element[rows][which[rows] == k])
            begin = int(mine[0]) if mine.size else 0
            assert mine.tolist() == list(range(begin, begin + mine.size))
            assert abs(begin - low * shares[k]) < 1 + low * Fraction(1, 2**62)
            assert abs(begin + mine.size - high * shares[k]) < 1 + high * Fraction(1, 2**62)
            begins.append(begin)
        assert sum(begins) == low  # everything before has been given by somebody
    some = mix.choose(0, start, start + 50)
    assert some.which.tolist() == which[start - first : start - first + 50].tolist()
    assert some.element.tolist() == element[start - first : start - first + 50].tolist()
    assert mix.at(0, np.arange(start + 49, start - 1, -1)).tolist() == mix.indices(0, start, start + 50).tolist()[::-1]
    assert [mix.position_of(0, int(k), int(e)) for k, e in zip(*some, strict=True)] == list(range(start, start + 50))


def test_positions_far_apart_cost_no_more_than_neighbours():
    program = """
from penstock.order import Mixture, Shuffle
mix = Mixture([5, Shuffle(7, seed=1)], weights=[1, 1], seed=1, stop="forever")
far = [0, 10**15, 3, 10**18]
assert mix.at(0, far).tolist() == [int(mix.indices(0, p, p + 1)[0]) for p in far]
"""
    done = warm.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_staged_weights_may_go_on_for_ever():
    mix = Mixture([10, 10], weights=[(0, [0.5, 0.5]), (100, [0.9, 0.1])], seed=1, stop="forever")
    which = mix.choose(0, 10**9, 10**9 + 10_000).which
    assert abs(np.count_nonzero(which == 0) - 9000) < 110


def test_endless_batches_and_phases_are_laid_out():
    batches = Mixture([10, 10], weights=[1, 1], seed=1, stop="forever", batch_size=64, unit="batch")
    assert len(batches) % 64 == 0
    assert len(set(batches.choose(0, 64 * 10**15, 64 * 10**15 + 64).which.tolist())) == 1
    phased = Mixture([10, 10], weights=[1, 1], seed=1, stop="forever", phases=[Phase(50, 4, 8), Phase(50, 8, 4)])
    assert len(phased) == 600


def test_epoch_beyond_the_last_element_is_refused():
    mix = Mixture([5, 7], weights=[1, 1], seed=1, stop="forever")
    with pytest.raises(ValueError, match=r"epoch 1 .* beyond element 9223372036854775807"):
        mix.choose(1, 0, 1)


def test_largest_lengths_are_exact():
    mix = Mixture([2**62, 2**62 - 1], weights=[1, 1], seed=1)
    which, element = mix.choose(0, 2**62, 2**62 + 1000)
    assert set(which.tolist()) == {0, 1}
    assert [mix.position_of(0, int(k), int(e)) for k, e in zip(which, element, strict=True)] == list(range(2**62, 2**62 + 1000))


def test_tiny_weights_make_long_periods():
    mix = Mixture([10**6, 10**15], weights=[1e-6, 1], seed=1)
    assert len(mix) == pytest.approx(10**12, rel=1e-3)
    which, element = mix.choose(0, 0, 3_000_000)
    assert 2 <= np.count_nonzero(which == 0) <= 4
    assert sorted(element[which == 0].tolist()) == list(range(np.count_nonzero(which == 0)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sequential(10**18),
        lambda: Sequential(10**18, wrap=True),
        lambda: Sliding(10**18, window=4),
        lambda: Sliding(10**18, window=1, stride=3),
        lambda: Shuffle(10**18, seed=1),
        lambda: Mixture([10**18, 10**18], weights=[1, 1], seed=1),
        lambda: Mixture([5, 7], weights=[1, 1], seed=1, stop="forever"),
        lambda: Design.simple(10**18, size=10**18 - 1, seed=1),
        lambda: Design.stratified(10**18, strata=10**9, size=10**18 // 2, seed=1),
    ],
)
def test_strides_across_everything_lose_no_position(make):
    order, step = make(), 10**17
    expected = order.at(0, [k * step for k in range(4)]).tolist()
    assert order.indices(0, 0, 3 * step + 1, step).tolist() == expected
    assert order.indices(0, 0, 3 * step, step).tolist() == expected[:3]
    assert order.indices(0, step, 3 * step + 1, 2 * step).tolist() == expected[1::2]


# Data sets that are orders of part of their records.


@given(seed=seeds(), data=st.data())
def test_ids_of_designs_and_mixtures_as_parts_never_collide(seed, data):
    parts = {
        "design": Design.simple(100, size=data.draw(st.integers(1, 99)), seed=seed),
        "shuffle": Shuffle(30, seed=seed),
        "mixture": Mixture([40, 60], weights=data.draw(weights(2)), seed=seed),
        "strata": Design.stratified(50, strata=7, size=10, seed=seed),
        "windows": Sliding(20, window=3, stride=10),
        "last": 5,
    }
    names = data.draw(st.permutations(list(parts)))
    mix = Mixture([parts[name] for name in names], seed=seed, stop="all_exhausted")
    records = {name: getattr(part, "n", part) for name, part in parts.items()}
    assert mix.n == sum(records.values()) == 305
    firsts = [0, *accumulate(records[name] for name in names)]
    which, element = mix.choose(0, 0, len(mix))
    ids = mix.indices(0, 0, len(mix))
    for k, name in enumerate(names):
        part = Sequential(5) if name == "last" else parts[name]
        mine = ids[which == k] - firsts[k]
        assert mine.min() >= 0
        assert mine.max() < records[name]
        turns, places = np.divmod(element[which == k], len(part))
        assert mine.tolist() == [int(part.at(int(e), [p])[0]) for e, p in zip(turns, places, strict=True)]


def test_mixture_of_mixtures_knows_all_its_records():
    inner = Mixture([10, 1000], weights=[1, 1], seed=1)  # 20 positions over 1010 records
    outer = Mixture([inner, 7, inner], weights=[1, 1, 1], seed=2, stop="all_exhausted_without_replacement")
    assert (inner.n, outer.n, Mixture([outer, outer], seed=3).n) == (1010, 2027, 4054)
    ids = outer.indices(0, 0, len(outer)).tolist()
    assert len(set(ids)) == len(ids) == 47
    assert sorted(i for i in ids if 1010 <= i < 1017) == list(range(1010, 1017))


def test_records_of_all_parts_together_are_limited():
    with pytest.raises(ValueError, match=str(2**63)):
        Mixture([Design.simple(2**62, size=5, seed=1), Design.simple(2**62, size=5, seed=1)], seed=1)


# Values: nothing the caller does later changes a mixture.


def mutable_settings():
    """Mixtures of mutable arguments, and what spoils these arguments."""
    parts, flat = {"a": 70, "b": 30}, {"a": 1, "b": 2}
    yield lambda: Mixture(parts, weights=flat, seed=5), (parts, flat)
    sizes, plain = [70, 30], [1, 2]
    yield lambda: Mixture(sizes, weights=plain, seed=5), (sizes, plain)
    first, second = [1, 2], [2, 1]
    staged = [[0, first], [4, second]]
    yield lambda: Mixture((70, 30), weights=staged, seed=5, batch_size=4), (first, second, staged[0], staged)
    named = {"a": 1, "b": 3}
    pairs = [(0, named), (3, {"b": 1, "a": 0})]
    yield lambda: Mixture({"a": 70, "b": 30}, weights=pairs, seed=5, batch_size=4), (named, pairs)
    own, mine = [3, 1], {"a": 1, "b": 0}
    phases = [Phase(5, 2, weights=own), Phase(5, 2, weights=[1, 1])]
    yield lambda: Mixture([70, 30], phases=phases, seed=5), (own, phases)
    named_phases = [Phase(5, 2, weights=mine)]
    yield lambda: Mixture({"a": 70, "b": 30}, phases=named_phases, seed=5), (mine, named_phases)
    array = np.array([1, 2])
    yield lambda: Mixture([70, 30], weights=array, seed=5), (array,)


def spoil(argument):
    if isinstance(argument, dict):
        argument.update(dict.fromkeys(argument, 99), z=1)
    elif isinstance(argument, list):
        argument.reverse()
        argument.append(argument[0])
    else:
        argument[:] = 99


@pytest.mark.parametrize(("make", "arguments"), list(mutable_settings()))
def test_arguments_changed_afterwards_change_nothing(make, arguments):
    mix = make()
    expected, shown, number = mix.indices(0, 0, len(mix)).tolist(), repr(mix), hash(mix)
    for argument in arguments:
        spoil(argument)
        for same in (mix, pickle.loads(pickle.dumps(mix)), copy.deepcopy(mix)):
            assert same == mix
            assert (repr(same), hash(same)) == (shown, number)
            assert same.indices(0, 0, len(same)).tolist() == expected


@given(mix=mixtures())
def test_equal_mixtures_have_equal_hashes(mix):
    twin = pickle.loads(pickle.dumps(mix))
    assert twin == mix
    assert len({mix, twin}) == 1


def test_mixtures_of_dicts_are_keys_of_dicts():
    mixes = [
        Mixture({"a": 5, "b": 6}, weights={"a": 1, "b": 1}, seed=1),
        Mixture({"a": 5, "b": 6}, weights=[(0, {"a": 1, "b": 1}), (1, {"a": 1, "b": 2})], seed=1),
        Mixture({"a": 5, "b": 6}, phases=[Phase(1, weights={"a": 1, "b": 1})], seed=1),
        Mixture([Mixture({"a": 5}, seed=1), Design.simple(5, size=2, seed=1)], seed=1),
    ]
    assert len(dict.fromkeys([*mixes, *mixes])) == 4


def test_weights_by_step_may_come_from_json():
    staged = [(0, [0.7, 0.3]), (5, [0.1, 0.9])]
    mix = Mixture([700, 300], weights=staged, seed=5, batch_size=8)
    loaded = Mixture([700, 300], weights=json.loads(json.dumps(staged)), seed=5, batch_size=8)
    assert loaded == mix
    assert loaded.indices(0, 0, len(mix)).tolist() == mix.indices(0, 0, len(mix)).tolist()
    named = [(0, {"a": 0.7, "b": 0.3}), (5, {"a": 0.1, "b": 0.9})]
    loaded = Mixture({"a": 700, "b": 300}, weights=json.loads(json.dumps(named)), seed=5, batch_size=8)
    assert loaded.indices(0, 0, len(mix)).tolist() == mix.indices(0, 0, len(mix)).tolist()


# Decimals are what they are written as, here and in phases and designs.


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_epochs_of_a_phase_are_exact_decimals(digits):
    for whole in range(3 * 10**digits):
        epochs = float(f"{whole // 10**digits}.{whole % 10**digits:0{digits}}")
        for length in (10**digits, 7 * 10**digits, 10 ** (digits + 12)):
            assert Phase(epochs=epochs).num_steps(length) == whole * length // 10**digits
            assert Phase(epochs=epochs, batch_size=3, seq_len=2).num_steps(length) == whole * length // 10**digits // 6


def test_seven_tenths_of_ten_are_seven():
    assert Phase(epochs=0.7).num_steps(10) == 7
    assert Phase(epochs=0.29).num_steps(100) == 29
    assert Phase(epochs=1.1).num_steps(10**17) == 11 * 10**16
    assert Phase(epochs=Fraction(1, 3)).num_steps(9) == 3
    assert Phase(epochs=1e-7).num_steps(10**7) == 1
    assert len(Mixture([70, 30], weights=[1, 1], seed=1, phases=[Phase(epochs=0.29)])) == 29


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_fractions_of_a_design_are_exact_decimals(digits):
    for whole in range(10**digits + 1):
        fraction = float(f"{whole // 10**digits}.{whole % 10**digits:0{digits}}")
        for n in (10**digits, 7 * 10**digits, 10 ** (digits + 14)):
            assert len(Design.fraction(n, fraction, seed=1, full_pass=True)) == whole * n // 10**digits


@pytest.mark.parametrize("seed", range(8))
def test_strata_whose_ends_pass_the_last_record_are_drawn_from(seed):
    ids = Design.stratified(MOST, strata=3 * 2**61, size=10, seed=seed).indices(0, 0, 10).tolist()
    assert len(set(ids)) == 10
    assert all(0 <= i < MOST for i in ids)
    assert sum(i < 3 * 2**61 for i in ids) in (7, 8)  # 7.5 expected


@pytest.mark.parametrize("phase", [-1, -2, 2, MOST])
def test_phases_are_counted_from_zero(phase):
    with pytest.raises(IndexError, match=rf"phase must be in \[0, 2\), got {phase}"):
        Curriculum([Phase(5), Phase(3)]).steps_of(phase)


# Arguments.


def test_empty_data_sets_are_legal():
    assert len(Mixture([0, 0], seed=1)) == 0
    assert len(Mixture([0, 10], seed=1)) == 10
    assert len(Mixture([0, 10], weights=[1, 1], seed=1)) == 0
    assert len(Mixture([0, 10], weights=[1, 1], seed=1, stop="all_exhausted_without_replacement")) == 10
    assert len(Mixture([0, 10], weights=[0, 1], seed=1, stop="all_exhausted")) == 10


def test_names_and_order_of_weights_do_not_matter():
    one = Mixture({"a": 70, "b": 30}, weights={"a": 2, "b": 1}, seed=5)
    two = Mixture({"a": 70, "b": 30}, weights={"b": 1, "a": 2}, seed=5)
    three = Mixture([70, 30], weights=[Fraction(2, 3), Fraction(1, 3)], seed=5)
    assert one.names == ("a", "b")
    assert three.names == ("0", "1")
    assert one.indices(0, 0, len(one)).tolist() == two.indices(0, 0, len(two)).tolist() == three.indices(0, 0, len(three)).tolist()


@pytest.mark.parametrize("number", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_numbers_of_numpy_are_numbers(number):
    mix = Mixture(
        [number(100), number(90)], weights=[number(1), number(3)], seed=number(5), batch_size=number(4), period=number(16)
    )
    plain = Mixture([100, 90], weights=[1, 3], seed=5, batch_size=4, period=16)
    assert len(mix) == len(plain)
    assert mix.indices(0, 0, len(mix)).tolist() == plain.indices(0, 0, len(plain)).tolist()
    assert mix.position_of(0, number(1), number(3)) == plain.position_of(0, 1, 3)


def test_weights_may_be_an_array():
    mix = Mixture([100, 100], weights=np.array([0.25, 0.75], np.float32), seed=5)
    assert mix.indices(0, 0, 50).tolist() == Mixture([100, 100], weights=[1, 3], seed=5).indices(0, 0, 50).tolist()


NAMED = {"a": 10, "b": 10}
BAD = [
    (lambda: Mixture([], seed=1), ValueError, "at least one data set", "none"),
    (lambda: Mixture({}, seed=1), ValueError, "at least one data set", "none"),
    (lambda: Mixture([-1], seed=1), ValueError, "length must be in [0, ", "-1"),
    (lambda: Mixture([1.5], seed=1), TypeError, "length must be a whole number", "1.5"),
    (lambda: Mixture([True], seed=1), TypeError, "length must be a whole number", "True"),
    (lambda: Mixture([2**62, 2**62], seed=1), ValueError, str(MOST), str(2**63)),
    (lambda: Mixture([5], seed=-1), ValueError, "seed must be in [0, ", "-1"),
    (lambda: Mixture([5], seed=2**64), ValueError, "18446744073709551615]", str(2**64)),
    (lambda: Mixture([5], seed=1.0), TypeError, "seed must be a whole number", "1.0"),
    (lambda: Mixture([5], seed=1, batch_size=0), ValueError, "batch_size must be in [1, ", "0"),
    (lambda: Mixture([5], seed=1, batch_size=2.0), TypeError, "batch_size must be a whole number", "2.0"),
    (lambda: Mixture([5], seed=1, period=0), ValueError, "period must be in [1, ", "0"),
    (lambda: Mixture([5], seed=1, stop="never"), ValueError, "first_exhausted, all_exhausted", "'never'"),
    (lambda: Mixture([5], seed=1, unit="token"), ValueError, "'sample' or 'batch'", "'token'"),
    (lambda: Mixture([5, 5], weights=[1, -1], seed=1), ValueError, "finite and at least 0", "-1"),
    (lambda: Mixture([5, 5], weights=[1, float("nan")], seed=1), ValueError, "finite and at least 0", "nan"),
    (lambda: Mixture([5, 5], weights=[1, float("inf")], seed=1), ValueError, "finite and at least 0", "inf"),
    (lambda: Mixture([5, 5], weights=[0, 0], seed=1), ValueError, "at least one weight must be above 0", "zeros"),
    (lambda: Mixture([5, 5], weights=[1, "1"], seed=1), TypeError, "must be a number", "'1'"),
    (lambda: Mixture([5, 5], weights=[1, True], seed=1), TypeError, "must be a number", "True"),
    (lambda: Mixture([5, 5], weights=[1, None], seed=1), TypeError, "must be a number", "None"),
    (lambda: Mixture([5, 5], weights=[1], seed=1), ValueError, "expected 2 weights", "1"),
    (lambda: Mixture([5, 5], weights=[1, 1, 1], seed=1), ValueError, "expected 2 weights", "3"),
    (lambda: Mixture(NAMED, weights={"a": 1}, seed=1), ValueError, "['a', 'b']", "missing ['b']"),
    (lambda: Mixture(NAMED, weights={"a": 1, "b": 1, "c": 1}, seed=1), ValueError, "['a', 'b']", "unknown ['c']"),
    (lambda: Mixture(NAMED, weights=[1, 1], seed=1), TypeError, "a dict like the data sets", "(1, 1)"),
    (lambda: Mixture(NAMED, weights={"a": -0.5, "b": 1}, seed=1), ValueError, "'a' must be finite and at least 0", "-0.5"),
    (lambda: Mixture([5, 5], weights=[(1, [1, 1])], seed=1), ValueError, "begin at step 0", "[1]"),
    (lambda: Mixture([5, 5], weights=[(0, [1, 1]), (0, [1, 1])], seed=1), ValueError, "rise", "[0, 0]"),
    (lambda: Mixture([5, 5], weights=[(0, [1, 1]), (9, [1, 1]), (4, [1, 1])], seed=1), ValueError, "rise", "[0, 9, 4]"),
    (lambda: Mixture([5, 5], weights=[(0, [1, 1]), (2, [1, -1])], seed=1), ValueError, "finite and at least 0", "-1"),
    (lambda: Mixture([5, 5], weights=5, seed=1), TypeError, "weights must be a list or a dict", "got 5"),
    (lambda: Mixture([5, 5], weights=0.5, seed=1), TypeError, "weights must be a list or a dict", "got 0.5"),
    (lambda: Mixture([5, 5], weights=[1, 10**400], seed=1), ValueError, f"at most {MOST}", "401 digits"),
    (lambda: Mixture([5, 5], weights=[(0, [1, 1], 3)], seed=1), ValueError, "(step, weights) pairs", "(0, [1, 1], 3)"),
    (lambda: Mixture([5, 5], weights=[(0, [1, 1]), (1,)], seed=1), ValueError, "(step, weights) pairs", "(1,)"),
    (lambda: Mixture([5, 5], weights=[(0, [1, 1]), 7], seed=1), ValueError, "(step, weights) pairs", "7"),
    (lambda: Mixture([5, 5], weights=[(0.5, [1, 1])], seed=1), TypeError, "step must be a whole number", "0.5"),
    (
        lambda: Mixture([5, 5], weights=[(0, [1, 1])], phases=[Phase(1)], seed=1),
        ValueError,
        "exclude each other",
        "weights by step and phases",
    ),
    (lambda: Mixture([5, 5], phases=[3], seed=1), TypeError, "Phase objects", "3"),
    (lambda: Mixture([5, 5], phases=[Phase(1, weights=[1])], seed=1), ValueError, "expected 2 weights", "1"),
    (lambda: Mixture([0, 5], weights=[1, 1], stop="all_exhausted", seed=1), ValueError, "cannot be repeated", "'0' is empty"),
    (lambda: Mixture([0, 5], weights=[1, 1], stop="forever", seed=1), ValueError, "cannot be repeated", "'0' is empty"),
    (lambda: Mixture([5, 5], weights=[1, 2.0**-70], seed=1), ValueError, "2**-62", "smallest weight"),
    (lambda: Mixture([2**62, 5], weights=[2.0**-40, 1], stop="all_exhausted", seed=1), ValueError, str(MOST), "positions"),
    (lambda: Mixture([5, 5], seed=1).position_of(0, 2, 0), ValueError, "which must be in [0, 1]", "2"),
    (lambda: Mixture([5, 5], seed=1).position_of(0, 0, -1), ValueError, "element must be in [0, ", "-1"),
    (lambda: Mixture([5, 5], seed=1).position_of(-1, 0, 0), ValueError, "epoch must be in [0, ", "-1"),
]


@pytest.mark.parametrize(("make", "error", "expected", "found"), BAD)
def test_bad_input_is_refused_with_expected_and_found(make, error, expected, found):
    with pytest.raises(error) as caught:
        make()
    assert expected in str(caught.value)
    assert found in str(caught.value)
