"""P14: the order is what it was: native code, every instruction set, and the reference give the golden values."""

import json
from typing import Any

import numpy as np
import pytest
from tests.golden import make_order
from tests.order import reference

from penstock import _core
from penstock.order import BlockShuffle, Random, Shuffle
from penstock.order.seed import Purpose, derive_key, derive_root

GOLDEN: dict[str, list[Any]] = json.loads(make_order.PATH.read_text())
LEVELS = _core.available_simd()


def ints(values: list[int]) -> reference.IntArray:
    return np.array(values, np.int64)


def words(values: list[int]) -> reference.WordArray:
    return np.array(values, np.uint64)


def name(case: dict[str, Any]) -> str:
    return "-".join(f"{key}={value}" for key, value in case.items() if isinstance(value, int) and key not in ("key", "root"))


def test_reference_gives_the_golden_values():
    assert make_order.dump(make_order.make()) == make_order.PATH.read_text()


def test_every_algorithm_has_64_golden_values():
    for algorithm in ("finalize", "absorb", "derive_key"):
        assert len(GOLDEN[algorithm]) == 64
    for algorithm in ("permutation", "draw", "block_shuffle", "mixture", "systematic", "shuffle", "random"):
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
