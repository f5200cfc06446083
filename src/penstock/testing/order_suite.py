"""OrderSuite: the conformance tests that every order inherits.

A subclass says how to make its orders; pytest runs every test below on each of them::

    class TestMine(OrderSuite):
        def make(self):
            return [Mine(0), Mine(1), Mine(97, seed=3), Mine(10**12, seed=3)]

Have an empty order, one of a single record and some awkward sizes among them. ``make`` is called again whenever a test wants an
equal order without a history, so it must give equal orders every time. An order of more than ``whole`` positions is looked at in
a few stretches: at its beginning, in its middle and at its end.
"""

import copy
import hashlib
import pickle
import random
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest

import penstock.order
from penstock.argument import IntArray
from penstock.order import InvertibleOrder, Order, Shard
from penstock.testing.source_suite import run_in_fork

__all__ = ["OrderSuite"]


WORLDS = (1, 2, 3, 4, 8)


class OrderSuite:
    """Inherit, give :meth:`make`, and switch off what the order does not promise."""

    is_permutation: ClassVar[bool] = True
    """Every id of [0, num_records) stands at exactly one position of an epoch."""

    is_bounded: ClassVar[bool] = True
    """Positions past the length are refused (and not wrapped around)."""

    changes_with_epoch: ClassVar[bool] = False
    """Two epochs of a long order differ."""

    repr_evaluates: ClassVar[bool] = True
    """``eval(repr(order)) == order``, with the names of ``penstock.order`` and of the order's own module."""

    epochs: ClassVar[Sequence[int]] = (0, 1, 7, 2**32 + 5)
    """The epochs that are looked at."""

    whole: ClassVar[int] = 3000
    """An epoch of up to this many positions is checked as a whole."""

    def make(self) -> Sequence[Order]:
        """The orders to test: fresh objects, equal in every call."""
        raise NotImplementedError(f"{type(self).__name__} must define make() -> a list of orders")

    def num_records(self, order: Order) -> int:
        """Ids lie in [0, num_records). The length, unless the order says otherwise in ``n``."""
        return int(getattr(order, "n", len(order)))

    # How the tests get their orders.

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One run of every test for each order that ``make`` gives."""
        if "number" in metafunc.fixturenames:
            orders = type(self)().make()
            names = [f"{type(order).__name__}-{len(order)}" for order in orders]
            metafunc.parametrize("number", range(len(orders)), ids=names)

    @pytest.fixture
    def order(self, number: int) -> Order:
        return self.make()[number]

    @pytest.fixture
    def twin(self, number: int) -> Order:
        """An equal order that shares nothing with the first."""
        return self.make()[number]

    def stretches(self, order: Order) -> list[tuple[int, int]]:
        """The parts of an epoch that are looked at: all of it, or beginning, middle and end (of the shortest epoch)."""
        length_of = getattr(order, "length_of", None)
        length, part = len(order) if length_of is None else min(map(length_of, self.epochs)), self.whole // 6
        if length <= self.whole:
            return [(0, length)]
        middle = random.Random(length).randrange(part, length - 2 * part)
        return [(0, part), (middle, middle + part), (length - part, length)]

    def digest(self, order: Order, epochs: Sequence[int] | None = None) -> str:
        result = hashlib.sha256()
        for epoch in self.epochs if epochs is None else epochs:
            for start, stop in self.stretches(order):
                result.update(order.indices(epoch, start, stop).tobytes())
        return result.hexdigest()

    # Shape.

    def test_order_has_the_interface(self, order: Order) -> None:
        assert isinstance(order, Order)
        assert isinstance(len(order), int)
        assert len(order) >= 0

    def test_results_are_fresh_contiguous_int64_arrays(self, order: Order) -> None:
        """One-dimensional, owned by the caller, of the right size."""
        for start, stop in self.stretches(order):
            positions = np.arange(start, stop, dtype=np.int64)
            for step in (1, 3):
                check_array(order.indices(0, start, stop, step), len(range(start, stop, step)))
            found = order.at(0, positions)
            check_array(found, stop - start)
            assert not np.shares_memory(found, positions), "at() returned the caller's own array"
            if isinstance(order, InvertibleOrder):
                back = order.positions(0, found)
                check_array(back, stop - start)
                assert not np.shares_memory(back, found), "positions() returned the caller's own array"

    def test_writing_into_a_result_changes_no_later_result(self, order: Order) -> None:
        for start, stop in self.stretches(order):
            positions = np.arange(start, stop, dtype=np.int64)
            first, picked = order.indices(0, start, stop), order.at(0, positions)
            kept = first.copy()
            first[:] = -1
            picked[:] = -1
            assert np.array_equal(positions, np.arange(start, stop))
            assert np.array_equal(order.indices(0, start, stop), kept)
            assert np.array_equal(order.at(0, positions), kept)

    def test_ids_are_in_range(self, order: Order) -> None:
        for epoch in self.epochs:
            for start, stop in self.stretches(order):
                ids = order.indices(epoch, start, stop)
                assert np.all((ids >= 0) & (ids < self.num_records(order)))

    # Seek: any part is the same as that part of the whole.

    def test_seek_gives_a_slice_of_the_whole(self, order: Order) -> None:
        """An epoch is the concatenation of its parts, wherever it is cut."""
        chance = random.Random(1)
        for epoch in self.epochs:
            for start, stop in self.stretches(order):
                whole = order.indices(epoch, start, stop)
                cuts = sorted(chance.randint(start, stop) for _ in range(9))
                edges = [start, *cuts, stop]
                parts = [order.indices(epoch, low, high) for low, high in pairwise(edges)]
                assert np.array_equal(np.concatenate(parts), whole)

    def test_strided_gives_a_strided_slice_of_the_whole(self, order: Order) -> None:
        chance, epoch = random.Random(2), self.epochs[-1]
        for start, stop in self.stretches(order):
            whole = order.indices(epoch, start, stop)
            for step in (1, 2, 3, 7, 8, 64, max(1, stop - start), stop - start + 1, 2**63 - 1):
                low = chance.randint(start, stop)
                high = chance.randint(low, stop)
                assert np.array_equal(order.indices(epoch, low, high, step), whole[low - start : high - start : step])

    def test_at_gives_the_ids_of_any_positions(self, order: Order) -> None:
        """Reversed, repeated, scattered, as a list, of any integer type."""
        epoch = self.epochs[-1]
        for start, stop in self.stretches(order):
            whole = order.indices(epoch, start, stop)
            chance = np.random.default_rng(3)
            scattered = chance.integers(0, stop - start, size=50 if stop > start else 0)
            for offsets in (np.arange(stop - start), np.arange(stop - start)[::-1], np.repeat(scattered, 2)):
                assert np.array_equal(order.at(epoch, offsets + start), whole[offsets])
            assert np.array_equal(order.at(epoch, [int(p) + start for p in scattered]), whole[scattered])
            assert np.array_equal(order.at(epoch, (scattered + start).astype(np.uint64)), whole[scattered])
            assert np.array_equal(order.at(epoch, []), whole[:0])

    def test_whole_numbers_of_numpy_are_numbers(self, order: Order) -> None:
        """Epoch, start, stop and step may be numpy integers."""
        epoch = self.epochs[-1]
        for start, stop in self.stretches(order):
            expected = order.indices(epoch, start, stop, 2)
            for kind in (np.int64, np.uint64):
                found = order.indices(kind(epoch), kind(start), kind(stop), kind(2))  # type: ignore[arg-type]
                assert np.array_equal(found, expected)
                assert np.array_equal(order.at(kind(epoch), np.arange(start, stop, 2)), expected)  # type: ignore[arg-type]

    # Purity.

    def test_equal_parameters_give_equal_orders(self, order: Order, twin: Order) -> None:
        assert order is not twin
        assert order == twin
        assert order != object()
        assert self.digest(order) == self.digest(twin)

    def test_history_changes_nothing(self, order: Order, twin: Order) -> None:
        """Epochs may be asked for in any order and any number of times."""
        expected = {epoch: self.digest(twin, [epoch]) for epoch in self.epochs}
        for epoch in (*reversed(self.epochs), *self.epochs, self.epochs[0], self.epochs[0]):
            assert self.digest(order, [epoch]) == expected[epoch]

    def test_epochs_differ_if_they_are_to(self, order: Order) -> None:
        """A random order differs in every epoch."""
        if self.changes_with_epoch and len(order) >= 64:
            assert len({self.digest(order, [epoch]) for epoch in self.epochs}) == len(self.epochs)
        else:
            assert self.digest(order, [0]) == self.digest(order, [0])

    def test_threads_may_share_an_order(self, order: Order, twin: Order) -> None:
        """Four threads that ask for different epochs at the same time get what one alone gets."""
        expected = [self.digest(twin, [epoch]) for epoch in self.epochs]
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda epoch: self.digest(order, [epoch]), list(self.epochs) * 8))
        assert found == expected * 8

    def test_copies_and_pickles_are_equal(self, order: Order) -> None:
        unused = pickle.dumps(order)
        expected = self.digest(order)
        for other in (pickle.loads(unused), pickle.loads(pickle.dumps(order)), copy.copy(order), copy.deepcopy(order)):
            assert other == order
            assert len(other) == len(order)
            assert self.digest(other) == expected

    def test_pickle_is_small(self, order: Order) -> None:
        """What is pickled are the parameters, never a table of ids."""
        fresh = len(pickle.dumps(order))
        self.digest(order)
        assert len(pickle.dumps(order)) == fresh

    def test_repr_names_the_parameters(self, order: Order, twin: Order) -> None:
        """An order's repr is of values, and makes the order again."""
        assert repr(order) == repr(twin)
        assert type(order).__name__ in repr(order)
        if self.repr_evaluates:
            names = vars(penstock.order) | vars(sys.modules[type(order).__module__])
            assert eval(repr(order), dict(names)) == order

    def test_forked_child_sees_the_same_order(self, order: Order) -> None:
        """A child made by fork gets the same ids, from an order the parent has used and from a fresh one."""
        expected = self.digest(order)
        assert run_in_fork(lambda: self.digest(order)) == expected
        assert run_in_fork(lambda: self.digest(pickle.loads(pickle.dumps(order)))) == expected

    # Refusals.

    def test_positions_outside_are_refused(self, order: Order) -> None:
        """IndexError below 0, past the length, and for a start after the stop."""
        n = len(order)
        runs = [(-1, 0), (-1, n), (1, 0), (n, n - 1), (0, -1)]
        singles = [-1, -n - 1]
        if self.is_bounded:
            runs += [(0, n + 1), (n, n + 1), (n + 1, n + 1), (0, 2**63), (2**64, 2**64 + 1)]
            singles += [n, n + 1] if n + 1 < 2**63 else []
        for start, stop in runs:
            with pytest.raises(IndexError, match=r"0 <= start <= stop"):
                order.indices(0, start, stop)
        for position in singles:
            with pytest.raises(IndexError, match=str(position)):
                order.at(0, [position])

    def test_positions_that_are_no_whole_numbers_are_refused(self, order: Order) -> None:
        """TypeError for floats, strings, booleans and None; ValueError for anything but one dimension."""
        wrongs: list[Any] = [[0.0], [0.5], np.zeros(1, np.float32), ["0"], [None], [True], np.zeros(1, np.complex128)]
        for wrong in wrongs:
            with pytest.raises(TypeError, match="whole number"):
                order.at(0, wrong)
        for shape in ((1, 1), (0, 0), (2, 3), ()):
            with pytest.raises(ValueError, match="one-dimensional"):
                order.at(0, np.zeros(shape, np.int64))
        for start, stop in ((0.0, 0), (0, 0.0), (None, 0), ("0", 0)):
            with pytest.raises(TypeError):
                order.indices(0, start, stop)  # type: ignore[arg-type]

    def test_bad_epochs_and_steps_are_refused(self, order: Order) -> None:
        """ValueError for an epoch below 0 and a step below 1, TypeError for what is no number."""
        for epoch in (-1, -(2**63), 2**64):
            with pytest.raises(ValueError, match=str(epoch)):
                order.indices(epoch, 0, 0)
            with pytest.raises(ValueError, match=str(epoch)):
                order.at(epoch, [])
        for step in (0, -1):
            with pytest.raises(ValueError, match=f"got {step}"):
                order.indices(0, 0, 0, step)
        for wrong in (0.5, 1.0, None, "1", True):
            with pytest.raises(TypeError, match="whole number"):
                order.indices(wrong, 0, 0)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="whole number"):
                order.at(wrong, [])  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="whole number"):
                order.indices(0, 0, 0, wrong)  # type: ignore[arg-type]

    # Permutations.

    def test_epoch_holds_every_record_once(self, order: Order) -> None:
        """A permutation is a bijection; of a long one, no two positions that are looked at give the same id."""
        if not self.is_permutation:
            assert not isinstance(order, InvertibleOrder), "an order with an inverse is a permutation"
            return
        assert len(order) == self.num_records(order)
        for epoch in self.epochs:
            ids = np.sort(np.concatenate([order.indices(epoch, *stretch) for stretch in self.stretches(order)]))
            assert np.all(np.diff(ids) > 0)
            if len(order) <= self.whole:
                assert np.array_equal(ids, np.arange(len(order)))

    def test_inverse_undoes_the_order(self, order: Order) -> None:
        """``positions`` is the inverse of ``at``, both ways, with repeats and in any order."""
        if not isinstance(order, InvertibleOrder):
            assert not hasattr(order, "positions")
            return
        for epoch in self.epochs:
            for start, stop in self.stretches(order):
                places = np.arange(start, stop)
                assert np.array_equal(order.positions(epoch, order.at(epoch, places)), places)
                assert np.array_equal(order.at(epoch, order.positions(epoch, places)), places)  # the same numbers as ids
                again = np.repeat(places[::-1][:20], 2)
                assert np.array_equal(order.positions(epoch, order.at(epoch, again)), again)

    def test_inverse_refuses_what_is_no_id(self, order: Order) -> None:
        """IndexError outside [0, num_records), TypeError for floats, ValueError for two dimensions and bad epochs."""
        if not isinstance(order, InvertibleOrder):
            assert not hasattr(order, "positions")
            return
        n = self.num_records(order)
        for wrong in (-1, -n - 1, *([n, n + 1] if n + 1 < 2**63 else [])):
            with pytest.raises(IndexError, match=str(wrong)):
                order.positions(0, [wrong])
        with pytest.raises(TypeError, match="whole number"):
            order.positions(0, [0.5])
        with pytest.raises(ValueError, match="one-dimensional"):
            order.positions(0, [[0]])
        with pytest.raises(ValueError, match="-1"):
            order.positions(-1, [])

    # Ranks.

    @pytest.mark.parametrize("batch_size", [1, 5, 8, 64])
    def test_ranks_share_every_batch_without_overlap(self, order: Order, batch_size: int) -> None:
        """Interleaved, the ids of all ranks are the global order, whatever the world size."""
        epoch = self.epochs[-1]
        for start, stop in self.stretches(order):
            stop = min(stop, start + 12 * batch_size, start + 400)
            whole = order.indices(epoch, start, stop)
            for world in WORLDS:
                found = [
                    global_batch(order, epoch, low, min(stop, low + batch_size), world) for low in range(start, stop, batch_size)
                ]
                assert np.array_equal(np.concatenate([whole[:0], *found]), whole)

    def test_world_and_batch_size_may_change_in_mid_epoch(self, order: Order) -> None:
        """Nothing is repeated and nothing lost when a run resumes with other ranks and other batches."""
        chance, epoch = random.Random(4), self.epochs[-1]
        for start, stop in self.stretches(order):
            stop = min(stop, start + 200)
            seen: list[IntArray] = []
            low = start
            while low < stop:
                high = min(stop, low + chance.choice([1, 2, 3, 8, 17, 64]))
                seen.append(global_batch(order, epoch, low, high, chance.choice(WORLDS)))
                low = high
            assert np.array_equal(np.concatenate([np.empty(0, np.int64), *seen]), order.indices(epoch, start, stop))


def global_batch(order: Order, epoch: int, start: int, stop: int, world: int) -> IntArray:
    """The ids of one global batch, put together from what each rank computes alone."""
    runs = [Shard(rank, world).run(start, stop) for rank in range(world)]
    covered = [position for run in runs for position in run]
    assert sorted(covered) == list(range(start, stop))
    batch = np.full(stop - start, -1, np.int64)
    for run in runs:
        batch[[position - start for position in run]] = order.indices(epoch, run.start, run.stop, run.step)
    return batch


def check_array(found: IntArray, size: int) -> None:
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.int64
    assert found.shape == (size,)
    assert found.flags.c_contiguous
    assert found.flags.writeable
