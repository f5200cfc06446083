"""Mixtures with caps, token weights, temperatures and amendments, against lists that are counted out."""

from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.order import reference

from penstock.order import Amendment, Mixture, Permutation, Phase, mixture
from penstock.order.layout import STOP_POLICIES
from penstock.order.mixture import tempered

MOST = 2**63 - 1
TAILS = ("keep", "drop", "pad", "wrap")
Drawn = list[tuple[int, int]]


@st.composite
def settings(draw: st.DrawFn) -> dict[str, Any]:
    """A mixture of two or three data sets, without amendments."""
    lengths = draw(st.lists(st.integers(1, 40), min_size=2, max_size=3))
    numbers = st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths)).filter(any)
    caps = st.dictionaries(st.sampled_from([str(k) for k in range(len(lengths))]), st.sampled_from([0, 0.5, 1, 1.7, 2, 4]))
    batch, unit = draw(st.integers(1, 6)), draw(st.sampled_from(["sample", "sample", "batch"]))
    weights = draw(st.none() | numbers | numbers.map(lambda w: [(0, w), (3, [1] * len(w))]))
    return {
        "parts": lengths,
        "weights": weights,
        "stop": draw(st.sampled_from(STOP_POLICIES)),
        "batch_size": batch,
        "unit": unit,
        "period": draw(st.sampled_from([1, 3, 8, 32])),
        "tail": draw(st.sampled_from(TAILS[: 3 if unit == "batch" else 4])),
        "max_epochs": draw(st.none() | caps),
        "seed": draw(st.integers(0, 9)),
    }


@st.composite
def amended(draw: st.DrawFn) -> tuple[Mixture, Mixture]:
    """A mixture, and the same with an amendment or two."""
    given = draw(settings())
    plain = changed = Mixture(**given)
    for step in sorted(draw(st.sets(st.integers(1, 12), min_size=1, max_size=2))):
        added = draw(st.lists(st.integers(1, 30), max_size=2))
        count = len(changed.names) + len(added)
        weights = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count).filter(any))
        caps = draw(st.none() | st.dictionaries(st.sampled_from([str(k) for k in range(count)]), st.sampled_from([0, 0.5, 1, 3])))
        try:
            changed = changed.amend(step, weights=weights, add=added, max_epochs=caps)
        except ValueError as error:
            if not any(words in str(error) for words in ("the run ends", "leaves pieces")):
                raise
    return plain, changed


def epochs_of(mix: Mixture, most: int = 400) -> list[Drawn]:
    """What comes, epoch by epoch, as long as there is something."""
    found: list[Drawn] = []
    while sum(map(len, found)) < most and len(found) < 12:
        length = min(mix.length_of(len(found)), most)
        choice = mix.choose(len(found), 0, length)
        found.append(list(zip(choice.which.tolist(), choice.element.tolist(), strict=True)))
        if length in (0, most):
            break
    return found


def steps_of(mix: Mixture, epochs: list[Drawn]) -> list[Drawn]:
    """Batches, as a loader takes them from epochs."""
    size = mix.batch_size
    lines = [[one for epoch in epochs for one in epoch]] if mix.tail == "wrap" else epochs
    steps = [line[i : i + size] for line in lines for i in range(0, len(line), size)]
    return [step for step in steps if len(step) == size] if mix.tail in ("drop", "wrap") else steps


@given(pair=amended())
def test_an_amended_mixture_is_the_other_one_up_to_its_step(pair: tuple[Mixture, Mixture]) -> None:
    plain, changed = pair
    if not changed.amendments:
        return
    step = changed.amendments[0].step
    before, after = steps_of(plain, epochs_of(plain)), steps_of(changed, epochs_of(changed))
    whole = min(step, len(before) - 1, len(after) - 1)
    assert before[:whole] == after[:whole]


@given(pair=amended())
def test_no_element_comes_twice_and_none_is_left_out(pair: tuple[Mixture, Mixture]) -> None:
    """Every data set's own line: what an amendment deferred comes next, before anything else."""
    for mix in pair:
        drawn = [one for epoch in epochs_of(mix) for one in epoch]
        assert len(set(drawn)) == len(drawn)
        for k in range(len(mix.names)):
            mine = [element for which, element in drawn if which == k]
            ahead = max((s.period * s.unit for run in mix.runs for s in run.plan.segments), default=0)
            missing = set(range(max(mine, default=-1) + 1)) - set(mine)
            assert len(missing) <= ahead * (1 + len(mix.amendments)) + mix.batch_size
        for epoch in range(min(4, len(epochs_of(mix)))):
            if mix.length_of(epoch) <= 400:
                end = mix.given_before(epoch + 1)
                so_far = [one for drawn_in in epochs_of(mix)[: epoch + 1] for one in drawn_in]
                assert [sum(which == k for which, _ in so_far) for k in range(len(end))] == list(end)


@given(pair=amended())
def test_places_are_the_inverse_of_what_comes(pair: tuple[Mixture, Mixture]) -> None:
    mix = pair[1]
    for epoch, drawn in enumerate(epochs_of(mix)[:4]):
        seen = [0] * len(mix.names)
        for position, (which, element) in enumerate(drawn[:200]):
            assert mix.position_of(epoch, which, element) == position
            low, high = mix.span_of(epoch, which)
            assert low <= element < high
            if position % 7 == 0:
                assert mix.num_given(epoch, position) == tuple(seen)
            assert mix.position_of_number(epoch, which, seen[which]) == position
            seen[which] += 1


@given(given=settings())
def test_caps_are_reached_exactly_and_never_passed(given: dict[str, Any]) -> None:
    given["unit"] = "sample"
    mix = Mixture(**given)
    epochs = epochs_of(mix, 2000)
    drawn = [which for epoch in epochs for which, _ in epoch]
    counts = [drawn.count(k) for k in range(len(mix.names))]
    caps = [
        None if name not in (mix.max_epochs or {}) else int(mix.max_epochs[name] * n)
        for name, n in zip(mix.names, given["parts"], strict=True)
    ]
    for count, cap in zip(counts, caps, strict=True):
        assert cap is None or count <= cap
    is_over = not epochs[-1]
    staged = isinstance(given["weights"], list) and isinstance(given["weights"][0], tuple)
    if is_over and not staged and given["stop"] != "first_exhausted":  # every data set that was drawn has reached its cap
        weights = given["parts"] if given["weights"] is None else given["weights"]
        assert all(count == cap for count, cap, weight in zip(counts, caps, weights, strict=True) if weight)


@given(given=settings(), steps=st.sets(st.integers(1, 9), max_size=2), data=st.data())
def test_runs_are_those_of_the_reference(given: dict[str, Any], steps: set[int], data: st.DataObject) -> None:
    """Caps and amendments, epoch by epoch, against a run that is counted out one by one."""
    staged = given["weights"] is not None and isinstance(given["weights"][0], tuple)
    given |= {"unit": "sample", "max_epochs": given["max_epochs"] or {}}
    given["weights"] = given["weights"][0][1] if staged else given["weights"] or given["parts"]
    count = len(given["parts"])
    numbers = st.lists(st.integers(0, 3), min_size=count, max_size=count).filter(any)
    mix, changes = Mixture(**given), []
    for step in sorted(steps):
        weights = data.draw(numbers)
        try:
            mix = mix.amend(step, weights=weights)
        except ValueError as error:
            assert "the run ends" in str(error)  # noqa: PT017
            break
        changes.append(reference.Change(step, weights))
    caps = [
        int(given["max_epochs"][str(k)] * n) if str(k) in given["max_epochs"] else reference.UNCAPPED
        for k, n in enumerate(given["parts"])
    ]
    run = reference.Run(
        given["parts"],
        given["weights"],
        given["stop"],
        given["period"],
        given["batch_size"],
        given["tail"],
        given["seed"],
        caps,
        changes,
    )
    expected = reference.amended_run(run, 4, 150)
    for epoch, drawn in enumerate(expected):
        choice = mix.choose(epoch, 0, min(mix.length_of(epoch), 150 if len(drawn) >= 150 else MOST))
        assert list(zip(choice.which.tolist(), choice.element.tolist(), strict=True))[: len(drawn)] == drawn
        assert len(drawn) >= 150 or mix.length_of(epoch) == len(drawn)


def test_a_capped_data_set_drops_out_and_the_others_share_its_weight() -> None:
    mix = Mixture(
        {"wiki": 100, "web": 1000, "code": 500},
        weights={"wiki": 2, "web": 2, "code": 1},
        seed=3,
        stop="forever",
        max_epochs={"wiki": 4},
        period=5,
    )
    which = mix.choose(0, 0, 4000).which
    assert (which[:1000] == 0).sum() == 400
    assert not (which[1000:] == 0).any()
    assert (which[1000:] == 1).sum() == 2000


def test_a_run_ends_where_all_data_sets_have_reached_their_caps() -> None:
    mix = Mixture([10, 20], seed=3, stop="forever", max_epochs={"0": 3, "1": 1.5})
    assert (len(mix), mix.is_endless, mix.length_of(1), mix.length_of(7)) == (60, False, 0, 0)
    assert np.bincount(mix.choose(0, 0, 60).which).tolist() == [30, 30]


def test_caps_count_over_all_epochs() -> None:
    mix = Mixture([10, 100], weights=[1, 1], seed=3, max_epochs={"0": 2.5})
    assert [mix.length_of(epoch) for epoch in range(4)] == [20, 20, 105, 100]
    assert mix.given_before(4)[0] == 25


@pytest.mark.parametrize("means", [[100, 50, 10], [Fraction(1001, 7), Fraction(17, 3), 2048]])
def test_token_shares_are_met_at_every_thousand_steps(means: list[Any]) -> None:
    """Within 0.1 %: in a period samples are shuffled, so a step is not always at its end."""
    mix = Mixture([10**6, 10**7, 10**5], weights=[0.5, 0.3, 0.2], tokens=means, seed=3, stop="forever")
    for steps in range(1000, 21_000, 1000):
        tokens = [count * Fraction(mean) for count, mean in zip(mix.num_given(0, steps * 64), means, strict=True)]
        for found, wanted in zip(tokens, [0.5, 0.3, 0.2], strict=True):
            assert abs(found / sum(tokens) - Fraction(str(wanted))) <= Fraction(1, 1000)


def test_equal_means_change_nothing() -> None:
    given: dict[str, Any] = {"weights": [0.3, 0.7], "seed": 3, "stop": "forever"}
    plain, by_tokens = Mixture([10, 20], **given), Mixture([10, 20], tokens=[8, 8], **given)
    assert plain.plan.segments == by_tokens.plan.segments


@pytest.mark.parametrize(
    ("size", "temperature", "expected"),
    [(10**12, 2, 10**6), (10**12, 3.0, 10**4), (7, 1, 7), (123, float("inf"), 1), (0, 5, 0), (2, 2, Fraction("1.414213562373095"))],
)
def test_temperatures_are_exact_decimals(size: int, temperature: float, expected: Any) -> None:
    assert tempered(Fraction(size), temperature) == Fraction(expected)


def test_a_temperature_stands_for_weights() -> None:
    sizes = [10**6, 10**4, 10**2]
    warm = Mixture(sizes, temperature=2, seed=1, stop="forever")
    assert warm.plan.segments == Mixture(sizes, weights=[1000, 100, 10], seed=1, stop="forever").plan.segments
    tokens = Mixture([10**4, 10**4], temperature=2, tokens=[100, 1], seed=1, stop="forever")  # 10^6 and 10^4 tokens: 10 to 1
    assert tokens.plan.segments == Mixture([10**4, 10**4], weights=[1, 10], seed=1, stop="forever").plan.segments


def test_amendments_begin_with_a_phase_where_sequences_are_long() -> None:
    phases = [Phase(10, batch_size=4, seq_len=8), Phase(10, batch_size=2, seq_len=16)]
    mix = Mixture([4000, 4000], weights=[1, 3], seed=2, phases=phases, stop="forever")
    changed = mix.amend(10, weights=[1, 1, 2], add=[900])
    assert changed.choose(0, 0, 40).element.tolist() == mix.choose(0, 0, 40).element.tolist()
    drawn = [
        (which, element, 8 if i < 40 else 16)
        for i, (which, element) in enumerate(zip(*(part.tolist() for part in changed.choose(0, 0, 60)), strict=True))
    ]
    for k in range(3):
        runs = sorted((element, size) for which, element, size in drawn if which == k)
        assert all(low + size == high for (low, size), (high, _) in pairwise(runs))
    with pytest.raises(ValueError, match="amend at the first step of a phase"):
        mix.amend(5, weights=[1, 1])
    with pytest.raises(ValueError, match="the phases have 20 steps"):
        mix.amend(20, weights=[1, 1])


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Mixture([5], seed=1, max_epochs={"7": 1}), ValueError, "max_epochs must name data sets among"),
        (lambda: Mixture([5], seed=1, max_epochs={"0": -1}), ValueError, "must be a number of at least 0, got -1"),
        (lambda: Mixture([5], seed=1, max_epochs=[1]), TypeError, "max_epochs must be a dict by name"),
        (lambda: Mixture([5], seed=1, temperature=0), ValueError, "temperature must be a number above 0, got 0"),
        (lambda: Mixture([5], seed=1, temperature=2, weights=[1]), ValueError, "exclude each other"),
        (lambda: Mixture([50, 60], seed=1, temperature=1e-9), ValueError, "a temperature of 1e-09 makes a weight"),
        (lambda: Mixture([5], seed=1, max_epochs={"0": float("inf")}), ValueError, "leave out what has no cap"),
        (lambda: Mixture([5, 6], seed=1, tokens=[1]), ValueError, "expected 2 numbers as tokens"),
        (lambda: Mixture([5, 6], seed=1, weights=[1, 1], tokens=[1, 0]), ValueError, "has no tokens"),
        (lambda: Mixture([5], seed=1, amendments=[3]), TypeError, "must be Amendment objects"),
        (lambda: Mixture([5], seed=1).amend(0), ValueError, "step must be"),
        (lambda: Mixture([5], seed=1).amend(3).amend(3), ValueError, "rising steps"),
        (lambda: Mixture([5], seed=1).amend(3, weights=[1, 2]), ValueError, "expected 1 weights"),
        (lambda: Mixture({"a": 5}, seed=1).amend(3, add={"a": 3}), ValueError, "which the mixture has already"),
        (lambda: Mixture({"a": 5}, seed=1).amend(3, add=[3]), TypeError, "like those of the mixture"),
        (lambda: Mixture([5], seed=1).amend(3, weights=[(0, [1])]), ValueError, "hold from its step on"),
        (lambda: Mixture([5], seed=1, stop="forever", max_epochs={"0": 2}).amend(30, add=[3]), ValueError, "the run ends after 10"),
        (lambda: Mixture([5, 10**9], seed=1, weights=[1e-8, 1]).amend(1), ValueError, "use 0 or a larger weight"),
    ],
)  # fmt: skip
def test_bad_amendments_caps_and_temperatures_are_refused(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()


def test_amendments_are_values() -> None:
    weights = {"a": 1.0, "b": 2.0}
    one = Amendment(5, weights=weights, add={"b": 3})
    weights["a"] = 9
    assert one == Amendment(5, weights={"b": 2.0, "a": 1.0}, add={"b": 3})
    assert hash(one) == hash(Amendment(5, add={"b": 3}))
    assert repr(one) == "Amendment(5, weights={'a': 1.0, 'b': 2.0}, add={'b': 3})"


def test_the_nth_place_of_a_period_is_found_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Periods of tiny weights have 10^9 slots: neither their places nor a sorted list of them is held."""
    for n, low, high in ((1, 0, 1), (97, 5, 60), (5000, 0, 5000), (100_000, 99_000, 100_000)):
        slots = Permutation(n, key=n)
        expected = sorted(slots.inverse(np.arange(low, high)).tolist())
        for at_once, ranges in ((7, 3), (64, 1 << 16), (1 << 20, 10)):
            monkeypatch.setattr(mixture, "PLACES_AT_ONCE", max(at_once, n // 50))
            monkeypatch.setattr(mixture, "PLACE_RANGES", ranges)
            for number in (0, (high - low) // 2, high - low - 1):
                assert mixture._smallest(slots, low, high, number) == expected[number]
