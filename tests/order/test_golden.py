"""P14: the order is what it was: native code, every instruction set, and the reference give the golden values."""

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.effort import is_campaign
from tests.golden import make_order
from tests.order import reference

from penstock import Ragged, _core
from penstock.conversion.reading import bounds_of, hash_values
from penstock.order import (
    BlockShuffle,
    Bucketed,
    Curriculum,
    Design,
    Mixture,
    Phase,
    Random,
    Shuffle,
    Sliding,
    Weighted,
    in_fraction,
)
from penstock.order.balance import deal, room_of_slots
from penstock.order.mixture import STOP_POLICIES
from penstock.order.permutation import Purpose, derive_key, derive_root
from penstock.testing.strategies import mixtures, seeds, weights

GOLDEN: dict[str, list[Any]] = json.loads(make_order.PATH.read_text())
LEVELS = _core.available_simd()


def ints(values: list[int]) -> reference.IntArray:
    return np.array(values, np.int64)


def words(values: list[int]) -> reference.WordArray:
    return np.array(values, np.uint64)


def name(case: dict[str, Any]) -> str:
    return "-".join(f"{key}={value}" for key, value in case.items() if isinstance(value, int) and key not in ("key", "root"))


def test_reference_gives_the_golden_values():
    if is_campaign():
        assert make_order.dump(make_order.make()) == make_order.PATH.read_text()
    else:  # without the last two, of blocks that are a network
        short = GOLDEN | {"block_shuffle": GOLDEN["block_shuffle"][:-2]}
        assert json.loads(make_order.dump(make_order.make(make_order.GEOMETRIES[:-2]))) == short


def test_every_algorithm_has_64_golden_values():
    for algorithm in ("finalize", "absorb", "derive_key"):
        assert len(GOLDEN[algorithm]) == 64
    for algorithm in set(GOLDEN) - {"finalize", "absorb", "derive_key", "epochs"}:
        assert max(len(case.get("positions", case.get("places"))) for case in GOLDEN[algorithm]) >= 64


def test_native_hashes_give_the_golden_values():
    assert [_core.finalize(word) for word, _ in GOLDEN["finalize"]] == [value for _, value in GOLDEN["finalize"]]
    assert [_core.absorb(*words) for *words, _ in GOLDEN["absorb"]] == [value for *_, value in GOLDEN["absorb"]]
    assert [_core.derive_key(*words) for *words, _ in GOLDEN["derive_key"]] == [value for *_, value in GOLDEN["derive_key"]]


@pytest.mark.parametrize("level", LEVELS, ids=str)
@pytest.mark.parametrize("case", GOLDEN["permutation"], ids=name)
def test_native_permutation_gives_the_golden_values(case: dict[str, Any], level: _core.Simd):
    permutation = _core.Permutation(case["n"], case["key"], level)
    positions, images = ints(case["positions"]), ints(case["images"])
    out = np.empty_like(images)
    permutation.forward(positions, out)
    assert out.tolist() == images.tolist()
    permutation.inverse(images, out)
    assert out.tolist() == positions.tolist()


@pytest.mark.parametrize("level", LEVELS, ids=str)
@pytest.mark.parametrize("case", [case for case in GOLDEN["permutation"] if len(case["positions"]) == 64], ids=name)
def test_native_permutation_runs_through_the_golden_values(case: dict[str, Any], level: _core.Simd):
    permutation = _core.Permutation(case["n"], case["key"], level)
    for span in (slice(0, 24), slice(0, 24, 3), slice(48, 64)):
        positions = case["positions"][span]
        out = np.empty(len(positions), np.int64)
        permutation.run(positions[0], positions[1] - positions[0], out)
        assert out.tolist() == case["images"][span]


@pytest.mark.parametrize("level", LEVELS, ids=str)
@pytest.mark.parametrize("n", [65_537, 66_049, 10**6, 2**20 + 1, 10**12, 2**62, 2**62 + 1, 2**63 - 1])
def test_native_network_equals_the_reference_on_long_runs(n: int, level: _core.Simd):
    key = reference.derive_key(n, 0, 0)
    permutation = _core.Permutation(n, key, level)
    for start, step, count in ((0, 1, 3_000), (n - 2_999, 1, 2_999), (n // 3, 1, 1), (n // 7, 5, 2_001)):
        out = np.empty(count, np.int64)
        permutation.run(start, step, out)
        positions = start + step * np.arange(count, dtype=np.int64)
        assert np.array_equal(out, reference.feistel_array(n, key, positions)[0])
        back = np.empty_like(out)
        permutation.inverse(out, back)
        assert np.array_equal(back, positions)


@pytest.mark.parametrize(
    ("n", "key"), [(0, 1), (1, 2), (2, 3), (3, 4), (64, 5), (1_001, 6), (65_535, 7), (65_536, make_order.REDRAW_KEY)]
)
def test_native_table_equals_the_reference(n: int, key: int):
    out = np.empty(n, np.int64)
    _core.Permutation(n, key).run(0, 1, out)
    assert out.tolist() == reference.fisher_yates(n, key)


@pytest.mark.parametrize("n", [65_537, 10**12, 2**63 - 1])
def test_scalar_and_vectorised_references_agree(n: int):
    positions = make_order.positions_of(n)
    images = [reference.feistel_forward(n, 5, position) for position in positions]
    assert reference.feistel_array(n, 5, ints(positions))[0].tolist() == images
    assert [reference.feistel_inverse(n, 5, image) for image in images] == positions


@pytest.mark.parametrize("case", GOLDEN["draw"], ids=name)
def test_native_draws_give_the_golden_values(case: dict[str, Any]):
    out = np.empty(64, np.int64)
    _core.random_at(case["n"], case["key"], ints(case["positions"]), out)
    assert out.tolist() == case["draws"]
    _core.random_run(case["n"], case["key"], 0, 1, out[:32])
    assert out[:32].tolist() == case["draws"][:32]


@pytest.mark.parametrize("case", GOLDEN["block_shuffle"], ids=name)
def test_native_block_shuffle_gives_the_golden_values(case: dict[str, Any]):
    sequence = derive_key(case["seed"], case["epoch"], Purpose.BLOCK_SEQUENCE)
    groups = derive_root(case["seed"], case["epoch"], Purpose.BLOCK_GROUP)
    epoch = _core.BlockEpoch(case["n"], case["block"], case["window"], case["lanes"], sequence, groups)
    positions, ids = ints(case["positions"]), ints(case["ids"])
    out = np.empty_like(ids)
    epoch.forward(positions, out)
    assert out.tolist() == ids.tolist()
    epoch.inverse(ids, out)
    assert out.tolist() == positions.tolist()
    epoch.run(0, 1, out[:32])
    assert out[:32].tolist() == case["ids"][:32]


@pytest.mark.parametrize("case", [case for case in GOLDEN["block_shuffle"] if case["window"] * case["block"] < case["n"]], ids=name)
def test_block_shuffle_gives_the_golden_values(case: dict[str, Any]):
    order = BlockShuffle(case["n"], block=case["block"], window=case["window"], lanes=case["lanes"], seed=case["seed"])
    assert order.at(case["epoch"], case["positions"]).tolist() == case["ids"]


@pytest.mark.parametrize("case", GOLDEN["mixture"], ids=["first", "second"])
def test_native_mixture_gives_the_golden_values(case: dict[str, Any]):
    columns = (words([int(segment[key]) for segment in case["segments"]]) for key in ("start", "period", "unit", "counted"))
    edges = np.array([segment["edges"] for segment in case["segments"]], np.uint64)
    before = np.array([segment["before"] for segment in case["segments"]], np.int64)
    which, element = np.empty(len(case["positions"]), np.int32), np.empty(len(case["positions"]), np.int64)
    _core.MixtureLine(*columns, edges, before).at(case["root"], ints(case["positions"]), which, element)
    assert which.tolist() == case["which"]
    assert element.tolist() == case["element"]


@pytest.mark.parametrize("case", GOLDEN["systematic"], ids=name)
def test_native_systematic_gives_the_golden_values(case: dict[str, Any]):
    out = np.empty(64, np.int64)
    _core.systematic(case["n"], case["size"], case["offset"], np.arange(out.size), out)
    assert out.tolist() == case["places"]


@pytest.mark.parametrize("case", GOLDEN["shuffle"], ids=name)
def test_shuffle_gives_the_golden_values(case: dict[str, Any]):
    assert Shuffle(case["n"], seed=case["seed"]).at(case["epoch"], case["positions"]).tolist() == case["ids"]


@pytest.mark.parametrize("case", GOLDEN["random"], ids=name)
def test_random_gives_the_golden_values(case: dict[str, Any]):
    assert Random(case["n"], seed=case["seed"]).at(case["epoch"], case["positions"]).tolist() == case["ids"]


@pytest.mark.parametrize("case", GOLDEN["sliding"], ids=name)
def test_sliding_gives_the_golden_values(case: dict[str, Any]):
    order = Sliding(case["n"], window=case["window"], stride=case["stride"])
    assert len(order) == case["positions"][-1] + 1
    assert order.at(case["epoch"], case["positions"]).tolist() == case["ids"]


@pytest.mark.parametrize("case", GOLDEN["mixture_order"], ids=lambda case: f"{case['seed']}-{case['stop']}")
def test_mixture_gives_the_golden_values(case: dict[str, Any]):
    parts = [part if isinstance(part, int) else Shuffle(part["shuffle"], seed=part["seed"]) for part in case["parts"]]
    settings = {key: case[key] for key in ("weights", "stop", "batch_size", "unit", "period", "seed", "tail") if key in case}
    mix = Mixture(parts, phases=case["phases"] and [Phase(*phase) for phase in case["phases"]], **settings)
    assert mix.length_of(case["epoch"]) == case["length"]
    chosen = [mix.choose(case["epoch"], position, position + 1) for position in case["positions"]]
    assert [int(choice.which[0]) for choice in chosen] == case["which"]
    assert [int(choice.element[0]) for choice in chosen] == case["element"]
    assert mix.at(case["epoch"], case["positions"]).tolist() == case["ids"]
    for position, which, element in zip(case["positions"], case["which"], case["element"], strict=True):
        assert mix.position_of(case["epoch"], which, element) == position


@pytest.mark.parametrize("case", GOLDEN["planned"], ids=lambda case: f"{case['seed']}-{case['stop']}")
def test_mixtures_with_caps_tokens_temperatures_and_amendments_give_the_golden_values(case: dict[str, Any]):
    keys = ("weights", "temperature", "stop", "batch_size", "tail", "period", "seed", "max_epochs")
    settings = {key: case[key] for key in keys if case[key] is not None}
    count, means = len(case["parts"]), case["tokens"] and [Fraction(mean) for mean in case["tokens"]]
    mix = Mixture(case["parts"], tokens=means and means[:count], **settings)
    for step, shares, added in case["amendments"]:
        mix = mix.amend(step, weights=shares, add=added, tokens=means[count : count + len(added)] if means else ())
        count += len(added)
    drawn: list[tuple[int, int, int, int]] = []
    for epoch, length in enumerate(case["lengths"]):
        taken = min(length, 120)
        assert mix.length_of(epoch) == length if length < 120 else mix.length_of(epoch) >= length
        choice = mix.choose(epoch, 0, taken)
        drawn += [(epoch, p, k, e) for p, (k, e) in enumerate(zip(choice.which.tolist(), choice.element.tolist(), strict=True))]
    assert [which for _, _, which, _ in drawn] == case["which"]
    assert [element for _, _, _, element in drawn] == case["element"]
    for epoch, position, which, element in drawn:
        assert mix.position_of(epoch, which, element) == position


@pytest.mark.parametrize("case", GOLDEN["bucketed"], ids=name)
def test_buckets_give_the_golden_values(case: dict[str, Any]):
    n = case["n"]
    lengths = np.arange(n) * 7919 % 97
    order = Bucketed(Shuffle(n, seed=7), lengths, batch_size=case["batch_size"], window=case["window"])
    assert order.at(case["epoch"], case["positions"]).tolist() == case["ids"]
    assert order.positions(case["epoch"], case["ids"]).tolist() == case["positions"]


@pytest.mark.parametrize("case", GOLDEN["deal"], ids=name)
def test_native_dealing_gives_the_golden_values(case: dict[str, Any]):
    room = room_of_slots(len(case["positions"]), case["size"], case["world"], case["micro"])
    order = deal(words(case["positions"]), room, case["micro"])
    found = [part.tolist() for part in np.split(order, np.cumsum(room)[:-1])]
    assert found == [slot for rank in case["slots"] for slot in rank]


@pytest.mark.parametrize("case", GOLDEN["design"], ids=lambda case: f"{case['seed']}-{case['kind']}")
def test_design_gives_the_golden_values(case: dict[str, Any]):
    settings = {key: case[key] for key in ("fraction", "size", "strata", "masses", "seed") if key in case}
    design = getattr(Design, case["kind"])(case["n"], **settings)
    assert len(design) == case["length"]
    assert design.at(3, case["positions"]).tolist() == case["ids"]
    assert [float(design.weights(p, p + 1)[0]) for p in case["positions"]] == case["weights"]


@pytest.mark.parametrize("case", GOLDEN["curriculum"], ids=["long", "short"])
def test_curriculum_gives_the_golden_values(case: dict[str, Any]):
    curriculum = Curriculum([Phase(*phase) for phase in case["phases"]])
    assert len(curriculum) == case["positions"][-1] + 1
    places = [curriculum.place(step) for step in case["positions"]]
    assert [[place.phase, place.step, place.sample, place.element] for place in places] == case["places"]


@pytest.mark.parametrize("case", GOLDEN["epochs"], ids=lambda case: str(case["epochs"]))
def test_phases_in_epochs_give_the_golden_values(case: dict[str, Any]):
    steps = [Phase(epochs=case["epochs"], batch_size=b, seq_len=s).num_steps(length) for length, b, s in case["shapes"]]
    assert steps == case["steps"]


@pytest.mark.parametrize("case", GOLDEN["in_fraction"], ids=lambda case: str(case["fraction"]))
def test_in_fraction_gives_the_golden_values(case: dict[str, Any]):
    assert in_fraction(case["positions"], case["fraction"]).tolist() == case["inside"]


@pytest.mark.parametrize("case", GOLDEN["weighted"], ids=lambda case: str(case["seed"]))
def test_weighted_gives_the_golden_values(case: dict[str, Any]):
    order = Weighted(case["weights"], seed=case["seed"], size=10**12)
    assert order.at(case["epoch"], case["positions"]).tolist() == case["ids"]
    assert order.__getstate__()[0].tolist() == case["table"]


@given(data=st.data(), seed=seeds(), epoch=st.integers(0, 2**63 - 1))
def test_weighted_draws_are_those_of_the_reference(data: st.DataObject, seed: int, epoch: int):
    size = st.floats(0, allow_infinity=False) | st.integers(0, 9).map(float) | st.floats(0.99, 1.01)
    weights = data.draw(st.lists(size, min_size=1, max_size=40).filter(any))
    table = reference.alias_table(weights)
    order = Weighted(weights, seed=seed)
    assert order.__getstate__()[0].tolist() == [list(column) for column in table]
    key = reference.derive_key(seed, epoch, 14)
    drawn = [reference.weighted_draw(table, key, position) for position in range(len(weights))]
    assert order.indices(epoch, 0, len(weights)).tolist() == drawn
    assert order.can_come().tolist() == [weight > 0 for weight in weights]
    word = reference.absorb(seed, epoch)
    assert order.draw(word) == reference.alias_choice(table, word * len(weights) >> 64, reference.absorb(word, 0))


@pytest.mark.parametrize("case", GOLDEN["split"], ids=lambda case: str(case["seed"]))
def test_split_gives_the_golden_values(case: dict[str, Any]):
    hashes = hash_values(derive_root(case["seed"], 0, Purpose.SPLIT), ints(case["positions"]))
    assert hashes.tolist() == case["hashes"]
    bounds = bounds_of({str(number): fraction for number, fraction in enumerate(case["fractions"])})
    parts = np.searchsorted(bounds, hashes, side="right").tolist()
    assert [part if part < len(case["fractions"]) else None for part in parts] == case["parts"]


@pytest.mark.parametrize("case", GOLDEN["split_strings"], ids=lambda case: str(case["seed"]))
def test_split_hashes_of_texts_are_the_golden_values(case: dict[str, Any]):
    texts = Ragged.from_items(case["texts"], dtype="u1", kind="text")
    assert hash_values(derive_root(case["seed"], 0, Purpose.SPLIT), texts).tolist() == case["hashes"]


# The references of mixtures and designs against the library, beyond the golden values.


def line_of(mix: Mixture, lengths: list[int]) -> reference.Line:
    """The reference's line of a mixture of the library."""
    weights = mix.weights or lengths
    if mix.phases is not None:
        shapes = [reference.Shape(phase.steps, phase.batch_size, phase.seq_len, phase.weights) for phase in mix.phases]
        stages = reference.stages_by_phase(shapes, weights, mix.unit == "batch")
    else:
        pairs = weights if isinstance(weights[0], tuple) else [(0, weights)]
        stages = reference.stages_by_step(pairs, mix.batch_size, mix.batch_size if mix.unit == "batch" else 1)
    line = reference.mixture_line(lengths, stages, mix.stop, mix.period)
    if mix.stop == "all_exhausted_without_replacement" and mix.unit == "batch" and mix.phases is None:
        reference.lay_rest(line, lengths)
    return line


def assert_same_plan(mix: Mixture, line: reference.Line):
    found = [(s.start, s.period, s.unit, s.counted, s.edges, s.before) for s in mix.plan.segments]
    assert found == [(s.start, s.period, s.unit, s.counted, s.edges, s.before) for s in line.segments]
    assert [(start.item, start.sample) for start in mix.plan.stages] == [(draw, sample) for draw, sample, _ in line.starts]
    assert (len(mix), mix.plan.num_items, list(mix.plan.given)) == (line.samples, line.draws, line.given)


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=3),
    steps=st.lists(st.integers(1, 30), min_size=1, max_size=3, unique=True),
    size=st.integers(1, 6),
    stop=st.sampled_from(STOP_POLICIES[:-1]),
    unit=st.sampled_from(["sample", "batch"]),
    tail=st.sampled_from(["keep", "drop", "pad", "wrap"]),
    data=st.data(),
)
def test_weights_by_step_count_the_steps_of_the_whole_run(
    lengths: list[int], steps: list[int], size: int, stop: str, unit: str, tail: str, data: st.DataObject
):
    """Every epoch is laid out by the stages that are left when it begins, and each data set goes on where it stood."""
    count = len(lengths)
    weights = st.lists(st.integers(0, 3), min_size=count, max_size=count).filter(any)
    staged = [(step, data.draw(weights)) for step in (0, *sorted(steps))]
    assume(all(lengths) or stop != "all_exhausted")  # what is empty cannot be repeated
    assume(tail != "wrap" or unit == "sample")  # batches of one data set cannot go on in the next epoch
    mix = Mixture(lengths, weights=staged, stop=stop, unit=unit, batch_size=size, tail=tail, seed=3, period=5)
    stages = reference.stages_by_step(staged, size, size if unit == "batch" else 1)
    for epoch in range(8):
        line, before = reference.mixture_epoch(lengths, stages, stop, 5, epoch=epoch, batch_size=size, tail=tail)
        assert (mix.length_of(epoch), list(mix.given_before(epoch))) == (line.samples, before)
        chosen = mix.choose(epoch, 0, line.samples)
        expected = [reference.mixture_choice(line, 3, epoch, position, before) for position in range(line.samples)]
        assert list(zip(chosen.which.tolist(), chosen.element.tolist(), strict=True)) == expected
        for position, (which, element) in enumerate(expected[:20]):
            assert mix.position_of(epoch, which, element) == position


@given(mix=mixtures())
def test_mixtures_are_laid_out_as_the_reference_does(mix: Mixture):
    assert_same_plan(mix, line_of(mix, [part if isinstance(part, int) else len(part) for part in mix.parts]))


@given(data=st.data())
def test_mixtures_with_phases_are_laid_out_as_the_reference_does(data: st.DataObject):
    count = data.draw(st.integers(1, 4))
    lengths = data.draw(st.lists(st.integers(1, 200) | st.integers(2**40, 2**60), min_size=count, max_size=count))
    phase = st.builds(Phase, st.integers(0, 30), st.integers(1, 6), st.integers(1, 9), st.none() | weights(count))
    mix = Mixture(
        lengths,
        seed=1,
        weights=data.draw(st.none() | weights(count)),
        phases=data.draw(st.none() | st.lists(phase, max_size=4)),
        stop=data.draw(st.sampled_from(STOP_POLICIES)),
        unit=data.draw(st.sampled_from(["sample", "batch"])),
        batch_size=data.draw(st.integers(1, 9)),
        period=data.draw(st.sampled_from([1, 7, 16, 1024])),
    )
    assert_same_plan(mix, line_of(mix, lengths))


@given(data=st.data(), seed=seeds(), by_mass=st.booleans(), spread=st.sampled_from([0, 1, 30, 300]))
def test_designs_over_strata_are_those_of_the_reference(data: st.DataObject, seed: int, by_mass: bool, spread: int):
    sizes = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=20))
    n, size = sum(sizes), data.draw(st.integers(0, sum(sizes)))
    masses = [float(f"{m}e{e}") for m, e in data.draw(lists_of(st.tuples(st.integers(0, 99), st.integers(-spread, spread)), sizes))]
    if by_mass:
        design = Design.proportional(n, masses=masses, strata=sizes, size=size, seed=seed)
        expected = reference.expected_by_mass(masses, sizes, size)
    else:
        design = Design.stratified(n, strata=sizes, size=size, seed=seed)
        expected = reference.expected_by_size(sizes, size)
    counts = reference.whole_counts(expected, sizes, size)
    assert sum(counts) == size * 2**32
    ids, weight = reference.design_weighted(counts, sizes, seed, range(size))
    assert design.indices(0, 0, size).tolist() == ids
    assert design.weights(0, size).tolist() == weight


def lists_of(one: st.SearchStrategy[Any], like: list[int]) -> st.SearchStrategy[list[Any]]:
    return st.lists(one, min_size=len(like), max_size=len(like))


@given(n=st.integers(1, 300), block=st.integers(1, 301), seed=seeds(), data=st.data())
def test_designs_over_blocks_are_those_of_the_reference(n: int, block: int, seed: int, data: st.DataObject):
    size = data.draw(st.integers(0, n))
    some = sorted({0, size // 3, size // 2, size - 1} & set(range(size)))
    assert Design.stratified(n, strata=block, size=size, seed=seed).at(0, some).tolist() == (
        reference.design_equal(n, size, block, seed, some) if some else []
    )
    assert Design.simple(n, size=size, seed=seed).at(0, some).tolist() == (
        reference.design_equal(n, size, n, seed, some) if some else []
    )
