"""Keys: hashed from (seed, epoch, purpose, number), and unrelated wherever one of them differs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import _core
from penstock.order.seed import MAX_SEED, Purpose, derive_key, derive_root

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
    }
