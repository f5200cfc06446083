"""Permutation: forward, inverse and runs agree, on both sides of the size where the method changes."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import _core
from penstock.order import Permutation
from penstock.order.permutation import MAX_SEED, Purpose, derive_key, derive_root
from penstock.testing.strategies import seeds

MOST = 2**63 - 1
SIZES = [0, 1, 2, 3, 5, 7, 10, 64, 65, 100, 1000, 1023, 1024, 1025, 4097, 65_535, 65_536, 65_537, 70_000, 2**20 + 1]


@pytest.mark.parametrize("n", SIZES)
def test_permutation_is_a_bijection_with_an_inverse(n):
    p = Permutation(n, key=42)
    whole = p.run(0, n)
    assert np.array_equal(np.bincount(whole, minlength=n), np.ones(n))
    assert np.array_equal(p.forward(np.arange(n)), whole)
    assert np.array_equal(p.inverse(whole), np.arange(n))


@given(n=st.integers(1, 100_000), key=seeds(), data=st.data())
def test_run_forward_and_inverse_agree(n, key, data):
    p = Permutation(n, key=key)
    start = data.draw(st.integers(0, n))
    stop = data.draw(st.integers(start, min(n, start + 300)))
    step = data.draw(st.integers(1, 40))
    run = p.run(start, stop, step)
    assert run.tolist() == [p.forward(k) for k in range(start, stop, step)]
    assert p.inverse(run).tolist() == list(range(start, stop, step))


@given(n=st.integers(65_537, MOST), key=seeds(), data=st.data())
def test_any_size_can_be_undone(n, key, data):
    p = Permutation(n, key=key)
    k = data.draw(st.integers(0, n - 1))
    assert 0 <= p.forward(k) < n
    assert p.inverse(p.forward(k)) == k
    assert p.forward(p.inverse(k)) == k


@pytest.mark.parametrize("n", [2**54 + 1, 2**53 - 1, 2**62, 2**63 - 25, MOST, 4**16 + 1, 4**31 + 1, 3 * 10**18])
def test_sizes_that_break_floats_are_exact(n):
    p = Permutation(n, key=3)
    ends = np.array([0, 1, n // 2, n - 2, n - 1], np.int64)
    assert p.inverse(p.forward(ends)).tolist() == ends.tolist()
    assert p.run(n - 300, n).tolist() == p.forward(np.arange(n - 300, n)).tolist()
    assert len(set(p.run(n - 300, n).tolist())) == 300


@pytest.mark.parametrize("n", [1000, 65_537, 2**40 + 7])
@pytest.mark.parametrize("level", _core.available_simd())
def test_every_instruction_set_gives_the_same(n, level):
    native = _core.Permutation(n, 99, level)
    p = Permutation(n, key=99)
    for start, step, count in ((0, 1, 1000), (17, 3, 300), (n - 900, 1, 900), (n - 900, 7, 129)):
        out = np.empty(count, np.int64)
        native.run(start, step, out)
        places = start + step * np.arange(count)
        assert np.array_equal(out, p.forward(places))
        back = np.empty(count, np.int64)
        native.inverse(out, back)
        assert np.array_equal(back, places)


def test_keys_and_sizes_give_different_permutations():
    found = {tuple(Permutation(n, key=key).run(0, 20).tolist()) for n in (20, 21, 10**6) for key in (0, 1, 2, 2**63, 2**64 - 1)}
    assert len(found) == 15


def test_single_positions_give_plain_numbers():
    p = Permutation(10, key=1)
    assert type(p.forward(3)) is int
    assert type(p.inverse(np.int32(3))) is int
    assert p.forward([3, 3]).tolist() == [p.forward(3)] * 2
    assert p.forward([]).tolist() == []


def test_copies_and_pickles_give_the_same():
    for n in (10, 10**9):
        p = Permutation(n, key=5)
        for other in (copy.copy(p), copy.deepcopy(p), pickle.loads(pickle.dumps(p)), eval(repr(p))):
            assert (other.n, other.key, len(other)) == (n, 5, n)
            assert other.run(0, 10).tolist() == p.run(0, 10).tolist()
        assert len(pickle.dumps(p)) < 200


BAD = [
    (lambda: Permutation(-1, key=1), ValueError, "n must be in [0, ", "-1"),
    (lambda: Permutation(MOST + 1, key=1), ValueError, f"{MOST}]", str(MOST + 1)),
    (lambda: Permutation(1.0, key=1), TypeError, "n must be a whole number", "1.0"),
    (lambda: Permutation(True, key=1), TypeError, "n must be a whole number", "True"),
    (lambda: Permutation(5, key=-1), ValueError, "key must be in [0, ", "-1"),
    (lambda: Permutation(5, key=2**64), ValueError, "18446744073709551615]", str(2**64)),
    (lambda: Permutation(5, key="a"), TypeError, "key must be a whole number", "'a'"),
    (lambda: Permutation(5, key=1).forward(5), IndexError, "[0, 5)", "5"),
    (lambda: Permutation(5, key=1).forward(-1), IndexError, "[0, 5)", "-1"),
    (lambda: Permutation(5, key=1).inverse([0, 7]), IndexError, "[0, 5)", "7"),
    (lambda: Permutation(0, key=1).forward(0), IndexError, "[0, 0)", "0"),
    (lambda: Permutation(5, key=1).forward(1.0), TypeError, "whole numbers", "float64"),
    (lambda: Permutation(5, key=1).forward([[1]]), ValueError, "one-dimensional", "(1, 1)"),
    (lambda: Permutation(5, key=1).run(0, 6), IndexError, "stop <= 5", "stop=6"),
    (lambda: Permutation(5, key=1).run(-1, 2), IndexError, "0 <= start", "start=-1"),
    (lambda: Permutation(5, key=1).run(3, 2), IndexError, "start <= stop", "start=3, stop=2"),
    (lambda: Permutation(5, key=1).run(0, 5, 0), ValueError, "step must be in [1, ", "0"),
]


@pytest.mark.parametrize(("make", "error", "expected", "found"), BAD)
def test_bad_input_is_refused_with_expected_and_found(make, error, expected, found):
    with pytest.raises(error) as caught:
        make()
    assert expected in str(caught.value)
    assert found in str(caught.value)


WORD = 2**64 - 1


def splitmix64(z):
    """The model: Vigna's generator, its first output from the state z."""
    z = (z + 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


@pytest.mark.parametrize(("word", "expected"), [(0, 0xE220A8397B1DCDAF), (1, 0x910A2DEC89025CC1), (42, 0xBDD732262FEB6E95)])
def test_finalizer_gives_the_published_values(word, expected):
    assert splitmix64(word) == expected
    assert _core.finalize((word + 0x9E3779B97F4A7C15) & WORD) == expected


@given(
    seed=st.integers(0, MAX_SEED), epoch=st.integers(0, 2**63 - 1), purpose=st.sampled_from(Purpose), number=st.integers(0, 2**63)
)
def test_key_is_its_family_and_its_number(seed, epoch, purpose, number):
    key = derive_key(seed, epoch, purpose, number)
    assert 0 <= key <= MAX_SEED
    assert key == _core.absorb(derive_root(seed, epoch, purpose), number)
    assert key == derive_key(seed, epoch, purpose, number)


def test_no_two_keys_of_a_neighbourhood_are_equal():
    keys = {
        derive_key(seed, epoch, purpose, number)
        for seed in (*range(12), 2**32, 2**63, MAX_SEED)
        for epoch in (*range(12), 2**32, 2**62)
        for purpose in Purpose
        for number in (*range(6), 2**40)
    }
    assert len(keys) == 15 * 14 * len(Purpose) * 7


@given(seed=st.integers(0, MAX_SEED - 1), epoch=st.integers(0, 2**62), purpose=st.sampled_from(Purpose))
def test_l16_next_epoch_is_not_the_next_seed(seed, epoch, purpose):
    assert derive_key(seed, epoch + 1, purpose) != derive_key(seed + 1, epoch, purpose)
    assert derive_key(seed, epoch, purpose) != derive_key(epoch, seed, purpose) or seed == epoch


@pytest.mark.parametrize("place", ["seed", "epoch", "number"])
def test_one_flipped_bit_changes_half_of_the_key(place):
    base = {"seed": 7, "epoch": 3, "number": 11}
    key = derive_key(purpose=Purpose.SHUFFLE, **base)
    flips = [
        (key ^ derive_key(purpose=Purpose.SHUFFLE, **(base | {place: base[place] ^ (1 << bit)}))).bit_count() for bit in range(62)
    ]
    assert np.mean(flips) == pytest.approx(32, abs=2)
    assert min(flips) > 12


def test_purposes_have_fixed_numbers():
    assert {purpose.name: purpose.value for purpose in Purpose} == {
        "SHUFFLE": 1,
        "RANDOM": 2,
        "BLOCK_SEQUENCE": 3,
        "BLOCK_GROUP": 4,
        "MIXTURE": 5,
        "DESIGN": 6,
        "DESIGN_SEQUENCE": 7,
        "DESIGN_OFFSET": 8,
        "SUBSTITUTE": 9,
        "TRANSFORM": 10,
        "PACK": 11,
        "PACK_GROUPS": 12,
        "SPLIT": 13,
        "WEIGHTED": 14,
        "IMAGE": 15,
        "BUCKET": 16,
    }
