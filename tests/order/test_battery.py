"""The permutation battery: penstock's order passes P1 to P13, weak permutations do not. P14 is in test_golden.py."""

import builtins
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from tests.effort import is_campaign
from tests.order import reference

from penstock.argument import IntArray
from penstock.order.permutation import Purpose
from penstock.testing import battery
from penstock.testing.battery import CI_PLAN, SMALL_PLAN, TESTS, Candidate, ShuffleCandidate, Size, Verdict, run_battery


def key_of(seed: int, epoch: int) -> int:
    return reference.derive_key(seed, epoch, Purpose.SHUFFLE)


class Native(ShuffleCandidate):
    """Our shuffle; its cycle walk is counted by the reference, on images checked against the native ones."""

    def walk_lengths(self, n: int, seed: int, positions: IntArray) -> IntArray:
        images, walks = reference.feistel_array(n, key_of(seed, 0), positions)
        assert np.array_equal(images, self.at(n, seed, positions))
        return walks


class Network(Candidate):
    """Our Feistel network alone, with any number of rounds, at every length."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def whole(self, n: int, seed: int, epoch: int = 0) -> IntArray:
        return self.at(n, seed, np.arange(n), epoch)

    def at(self, n: int, seed: int, positions: IntArray, epoch: int = 0) -> IntArray:
        return reference.feistel_array(n, key_of(seed, epoch), positions, self.rounds)[0]


class Congruential(Candidate):
    """An LCG: the affine map i -> a i + c modulo n."""

    def whole(self, n: int, seed: int, epoch: int = 0) -> IntArray:
        return self.at(n, seed, np.arange(n), epoch)

    def at(self, n: int, seed: int, positions: IntArray, epoch: int = 0) -> IntArray:
        return reference.affine(n, key_of(seed, epoch), positions)


class WeakAbove(Network):
    """What penstock would be with fewer rounds: exact tables up to 65,536, a weak network above."""

    def at(self, n: int, seed: int, positions: IntArray, epoch: int = 0) -> IntArray:
        if n <= reference.TABLE_LIMIT:
            return ShuffleCandidate().at(n, seed, positions, epoch)
        return super().at(n, seed, positions, epoch)


class Mistaken(ShuffleCandidate):
    """Ours with one mistake: the last image is wrong, seeds and epochs are added, or every position walks far."""

    def __init__(self, *, repeats: bool = False, adds: bool = False, walk: int = 1) -> None:
        self.repeats, self.adds, self.walk = repeats, adds, walk

    def at(self, n: int, seed: int, positions: IntArray, epoch: int = 0) -> IntArray:
        images = super().at(n, seed + epoch, positions) if self.adds else super().at(n, seed, positions, epoch)
        if self.repeats and n > 60_000:
            images[-1] = images[0]
        return images

    def whole(self, n: int, seed: int, epoch: int = 0) -> IntArray:
        return self.at(n, seed, np.arange(n), epoch)

    def inverse(self, n: int, seed: int, indices: IntArray, epoch: int = 0) -> IntArray:
        return super().inverse(n, seed + epoch, indices) if self.adds else super().inverse(n, seed, indices, epoch)

    def walk_lengths(self, n: int, seed: int, positions: IntArray) -> IntArray:
        return np.where(positions == 0, self.walk, 1)


def fewer(sizes: Sequence[Size], part: int) -> tuple[Size, ...]:
    """A part of the seeds; of long orders at least 6, of others 20, where there are as many."""
    return tuple(Size(size.n, max(min(6 if size.n > 10**5 else 20, size.seeds), size.seeds // part)) for size in sizes)


# Every third short order, of one seed, a fifth of the inverses; all orders of at most 4 records, a tenth of the seeds for tables
# of bits, a fifth for places, steps, ranks, descents and coincidences. In a campaign, all of the plan.
PLAN = (
    CI_PLAN
    if is_campaign()
    else dataclasses.replace(
        CI_PLAN,
        bijection=tuple(n for n in CI_PLAN.bijection if n % 3 == 1 or n > 10**6),
        bijection_seeds=1,
        inverse_positions=20_000,
        orders=tuple(size for size in CI_PLAN.orders if size.n <= 4),
        tables=fewer(CI_PLAN.tables, 10),
        lags=fewer(CI_PLAN.lags, 10),
        places=fewer(CI_PLAN.places, 5),
        steps=fewer(CI_PLAN.steps, 5),
        ranks=fewer(CI_PLAN.ranks, 5),
        descents=fewer(CI_PLAN.descents, 5),
        coincidences=fewer(CI_PLAN.coincidences, 5),
    )
)


def check_passes(test: str, lengths: Sequence[int]) -> None:
    verdicts = run_battery(Native(), PLAN, tests=[test])
    assert {verdict.n for verdict in verdicts} >= set(lengths)
    assert [verdict for verdict in verdicts if not verdict.passed] == []


def test_p1_every_order_is_a_bijection():
    lengths = {*range(2101), *(2**k + shift for k in range(1, 23) for shift in (-1, 0, 1))}  # and with them 4**k + 1
    assert set(CI_PLAN.bijection) >= lengths
    assert CI_PLAN.bijection_seeds == 3
    check_passes("P1", [2**22 + 1])


def test_p2_inverse_undoes_the_order():
    check_passes("P2", [65_536, 65_537, 10**6, 2**32, 2**48, 2**63 - 1])


def test_p3_all_orders_of_few_records_are_equally_frequent():
    check_passes("P3", [size.n for size in PLAN.orders])


def test_p4_every_item_is_equally_often_at_every_position():
    check_passes("P4", [16, 52, 100, 256])


def test_p5_steps_between_neighbours_are_uniform():
    check_passes("P5", [1_000, 10_007, 65_537])


def test_p6_rank_correlation_has_the_mean_and_variance_of_random_orders():
    check_passes("P6", [4_096, 65_537, 10**6])


def test_p7_autocorrelation_is_within_chance():
    check_passes("P7", [1_000, 4_096, 65_536, 10**6, 2**20, 2**20 + 1])


def test_p8_descents_have_the_mean_and_variance_of_random_orders():
    check_passes("P8", [4_096, 65_537, 10**6])


def test_p9_fixed_points_and_agreements_of_epochs_are_poisson():
    check_passes("P9", [1_000, 65_537])


def test_p10_flipping_an_input_or_seed_bit_flips_half_of_the_output_bits():
    check_passes("P10", [2**20])


def test_p11_bits_of_position_and_image_are_independent():
    check_passes("P11", [1_000, 4_096, 65_536, 65_537, 10**6, 2**20, 2**20 + 1])


def test_p12_cycle_walk_is_short():
    check_passes("P12", [2**k + 1 for k in range(16, 25)])


def test_p13_seeds_and_epochs_give_different_orders():
    check_passes("P13", [1_000, 10**6])


CONTROL_PLAN = dataclasses.replace(SMALL_PLAN, ranks=(Size(4_096, 2_000),), steps=(*SMALL_PLAN.steps, Size(65_537, 60)))


NOT_P13 = {"P3", "P5", "P6", "P7", "P8", "P9", "P10", "P11"}


def failed(verdicts: Sequence[Verdict]) -> set[str]:
    return {verdict.test for verdict in verdicts if not verdict.passed}


@pytest.mark.parametrize(
    ("control", "expected"),
    [
        (WeakAbove(4), {"P5"}),
        (Congruential(), NOT_P13 | {"P13"}),
        *([(Network(3), NOT_P13), (Network(4), {"P3", "P5", "P6"})] if is_campaign() else []),
    ],
    ids=["4-rounds-above-the-table", "lcg", *(["3-rounds", "4-rounds"] if is_campaign() else [])],
)
def test_weak_permutations_fail(control: Candidate, expected: set[str]):
    tests = ["P1", "P5", "P13"] if expected == {"P5"} and not is_campaign() else None
    assert failed(run_battery(control, CONTROL_PLAN, tests=tests)) == expected


def test_the_network_alone_fails_only_where_the_table_is_used():
    """Most tests draw thousands of orders, which the reference does slowly: they are run in a campaign."""
    tests = list(TESTS) if is_campaign() else ["P1", "P5", "P10"]
    verdicts = run_battery(Network(8), CONTROL_PLAN, tests=tests)
    expected = {("P3", 5)} if is_campaign() else set()
    assert {(verdict.test, verdict.n) for verdict in verdicts if not verdict.passed} == expected


@pytest.mark.parametrize(
    ("mistake", "expected"),
    [
        ({"repeats": True}, {"P1", "P2"}),
        ({"adds": True}, {"P13"}),
        ({"walk": 17}, {"P12"}),
        ({}, set()),
    ],
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),
)
def test_exact_tests_catch_one_mistake(mistake: Mapping[str, int], expected: set[str]):
    assert failed(run_battery(Mistaken(**mistake), SMALL_PLAN, tests=["P1", "P2", "P12", "P13"])) == expected


class Constant(Candidate):
    """Item 0 is always first: only the place of items gives it away."""

    def whole(self, n: int, seed: int, epoch: int = 0) -> IntArray:
        return np.append(0, 1 + ShuffleCandidate().whole(n - 1, seed, epoch))


def test_p4_catches_an_item_that_never_moves():
    assert failed(run_battery(Constant(), SMALL_PLAN, tests=["P4", "P6", "P11"])) == {"P4"}


def test_points_come_from_the_whole_unless_a_candidate_says_otherwise():
    assert Constant().at(100, 3, np.array([99, 0, 7])).tolist() == Constant().whole(100, 3)[[99, 0, 7]].tolist()


def test_numpy_permutations_pass():
    class Numpy(Candidate):
        def whole(self, n: int, seed: int, epoch: int = 0) -> IntArray:
            return np.random.default_rng([seed, epoch]).permutation(n)

    tests = ["P4", "P5", "P6", "P8", "P9", "P11"]
    assert failed(run_battery(Numpy(), SMALL_PLAN, tests=tests)) == set()


def test_tests_that_a_candidate_cannot_take_are_left_out():
    assert run_battery(Congruential(), SMALL_PLAN, tests=["P2", "P12"]) == []


def test_plans_reach_every_test():
    for plan in (CI_PLAN, SMALL_PLAN):
        short = dataclasses.replace(plan, inverse_positions=1000)
        verdicts = run_battery(Mistaken(), short, tests=["P2", "P12", "P13"])
        assert {verdict.test for verdict in verdicts} == {"P2", "P12", "P13"}
    assert list(TESTS) == [f"P{number}" for number in range(1, 14)]


def test_without_scipy_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    real_import = builtins.__import__

    def no_scipy(name: str, *args: object, **keywords: object) -> object:
        if name.startswith("scipy"):
            raise ImportError(name)
        return real_import(name, *args, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", no_scipy)
    with pytest.raises(ImportError, match=r"pip install penstock\[testing\]"):
        battery.chi_square(1.0, 1)
