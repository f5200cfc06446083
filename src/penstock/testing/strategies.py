"""Hypothesis strategies for orders of every kind and size, for properties that must hold for all of them."""

from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from penstock.order import BlockShuffle, Design, Mixture, Order, Random, Sequential, Shuffle, Sliding, Weighted

__all__ = ["block_shuffles", "designs", "lengths", "mixtures", "orders", "permutations", "seeds", "weights"]


def seeds() -> st.SearchStrategy[int]:
    """Any seed: small ones, and both ends of the range."""
    return st.one_of(st.integers(0, 9), st.sampled_from([2**32, 2**63, 2**64 - 1]), st.integers(0, 2**64 - 1))


def lengths(max_length: int = 300) -> st.SearchStrategy[int]:
    return st.integers(0, max_length)


def block_shuffles(max_length: int = 300) -> st.SearchStrategy[BlockShuffle]:
    """Block shuffles with blocks, windows and lanes that do and do not fit the length."""
    return st.builds(
        BlockShuffle,
        lengths(max_length),
        block=st.integers(1, max_length // 4 + 2),
        seed=seeds(),
        window=st.none() | st.integers(1, 20),
        lanes=st.integers(1, 12),
    )


def permutations(max_length: int = 300) -> st.SearchStrategy[Order]:
    """Orders that hold every record exactly once per epoch."""
    return st.one_of(
        st.builds(Sequential, lengths(max_length)),
        st.builds(Shuffle, lengths(max_length), seed=seeds()),
        block_shuffles(max_length),
    )


def weights(count: int) -> st.SearchStrategy[list[Any]]:
    """Weights of ``count`` data sets: floats, whole numbers, fractions and zeros, at least one above 0."""
    floats = st.floats(0.1, 9.9)
    fractions = st.builds(Fraction, st.integers(1, 9), st.integers(1, 9))
    one = st.one_of(st.integers(0, 5), floats, fractions)
    return st.lists(one, min_size=count, max_size=count).filter(any)


@st.composite
def mixtures(draw: st.DrawFn, max_length: int = 60, max_sets: int = 5) -> Mixture:
    """Mixtures of plain lengths and shuffles, of every stop policy and unit, with or without weights by step."""
    count = draw(st.integers(1, max_sets))
    sizes = draw(st.lists(st.integers(1, max_length), min_size=count, max_size=count))
    parts = [draw(st.one_of(st.just(n), st.builds(Shuffle, st.just(n), seed=seeds()))) for n in sizes]
    stop = draw(st.sampled_from(["first_exhausted", "all_exhausted", "all_exhausted_without_replacement"]))
    changes = sorted(draw(st.sets(st.integers(1, 40), max_size=3)))
    staged = [(step, draw(weights(count))) for step in [0, *changes]]
    return Mixture(
        parts,
        seed=draw(seeds()),
        weights=draw(st.sampled_from([None, staged[0][1], staged])),
        stop=stop,
        batch_size=draw(st.integers(1, 6)),
        unit=draw(st.sampled_from(["sample", "batch"])),
        period=draw(st.sampled_from([1, 7, 16, 1024])),
    )


@st.composite
def designs(draw: st.DrawFn, max_length: int = 300) -> Design:
    """Simple, stratified and proportional designs of every size from nothing to everything."""
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=max(1, max_length // 40)))
    n, seed = sum(sizes), draw(seeds())
    size = draw(st.integers(0, n))
    kind = draw(st.sampled_from(["simple", "blocks", "shards", "proportional"]))
    if kind == "simple":
        return Design.simple(n, size=size, seed=seed)
    if kind == "blocks":
        return Design.stratified(n, strata=draw(st.integers(1, 50)), size=size, seed=seed)
    if kind == "shards":
        return Design.stratified(n, strata=sizes, size=size, seed=seed)
    masses = draw(st.lists(st.floats(0, 1e6), min_size=n, max_size=n))
    return Design.proportional(n, masses=masses, size=size, seed=seed)


@st.composite
def weighted(draw: st.DrawFn, max_length: int = 300) -> Weighted:
    """Weights from 0 to very large ones, in epochs of any size."""
    weights = draw(st.lists(st.integers(0, 3) | st.floats(0, 1e300), min_size=1, max_size=min(max_length, 60)).filter(any))
    return Weighted(weights, seed=draw(seeds()), size=draw(st.none() | st.integers(0, max_length)))


def orders(max_length: int = 300) -> st.SearchStrategy[Order]:
    return st.one_of(
        permutations(max_length),
        st.builds(Random, lengths(max_length), seed=seeds()),
        st.builds(Sliding, lengths(max_length), window=st.integers(1, 50), stride=st.none() | st.integers(1, 50)),
        mixtures(),
        designs(max_length),
        weighted(max_length),
    )
