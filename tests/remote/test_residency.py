"""Which ranges are in memory, against a plain model: sums, eviction, and pages that are freed while others use them."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.remote.residency import PAGE, Extents, LandedFile, Range, Residency

UNIT = 512
SIZES = [24 * UNIT, 64 * UNIT]
LIMIT = 12 * PAGE

wanted = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 63), st.integers(1, 20)), min_size=1, max_size=5)
steps = st.lists(st.tuples(st.sampled_from(["hold", "plan", "release", "fail", "abandon"]), wanted), max_size=25)


class Memory:
    """A landing that remembers which units were expected and not released."""

    def __init__(self) -> None:
        self.units: set[int] = set()

    def expect(self, start: int, stop: int) -> None:
        self.units |= set(range(start // UNIT, stop // UNIT))

    def release(self, start: int, stop: int) -> None:
        self.units -= set(range(start // UNIT, stop // UNIT))

    def drop(self) -> None:
        self.units.clear()


def units(number: int, start: int, stop: int) -> set[tuple[int, int]]:
    return {(number, unit) for unit in range(start // UNIT, stop // UNIT)}


def extents(parts: list[tuple[int, int, int]]) -> tuple[Extents, set[tuple[int, int]]]:
    """Sorted extents without overlaps, and their units."""
    found = {
        (number, unit) for number, start, count in parts for unit in range(start, start + count) if unit < SIZES[number] // UNIT
    }
    table = np.array(sorted(found), np.int64).reshape(-1, 2)
    return (table[:, 0], table[:, 1] * UNIT, (table[:, 1] + 1) * UNIT), found


def check(residency: Residency, memory: list[Memory], whole_files: bool) -> None:
    ranges = [one for number in range(2) for one in residency.ranges_of(number)]
    assert residency.used == sum(one.cost for one in ranges) <= LIMIT
    assert residency.fetching == sum(not one.is_ready for one in ranges)
    kept_files = {one.number for one in ranges if one.is_kept}
    idle = [one for one in ranges if (one.number not in kept_files if whole_files else not one.is_kept)]
    assert residency.idle_bytes == sum(one.cost for one in idle)
    there = [unit for one in ranges for unit in units(one.number, one.start, one.stop)]
    assert len(there) == len(set(there)), "two ranges overlap"
    assert all(unit in memory[number].units for number, unit in there), "memory was freed that a range uses"


@pytest.mark.parametrize("whole_files", [False, True])
@given(steps=steps)
def test_ranges_stay_while_they_are_kept_and_every_sum_is_right(whole_files: bool, steps: list[Any]) -> None:
    memory = [Memory(), Memory()]
    released: list[int] = []
    files = [
        LandedFile(landing, size, whole_files, partial(released.append, number))  # type: ignore[arg-type]
        for number, (landing, size) in enumerate(zip(memory, SIZES, strict=True))
    ]
    residency = Residency(LIMIT, files)
    kept: list[tuple[str, list[Range], set[tuple[int, int]]]] = []
    for action, parts in steps:
        if action == "release" and kept:
            kind, ranges, _ = kept.pop(0)
            for one in ranges:
                residency.change(one, **{kind: -1})
        elif action != "release":
            asked, expected = extents(parts)
            there, new = residency.overlapping(asked), residency.missing(asked, 0)
            found = {unit for one in [*there, *new] for unit in units(one.number, one.start, one.stop)}
            assert expected <= found
            kind = "plans" if action == "plan" else "holds"
            for one in there:
                residency.change(one, **{kind: 1})
            if residency.make_room(sum(one.cost for one in new)):
                residency.add(new)
                if action == "abandon":  # all but the last arrive, nobody wants them any more, and then the last fails
                    for one in new[:-1]:
                        residency.change(one, is_ready=True)
                    for one in there:
                        residency.change(one, **{kind: -1})
                    for one in new[-1:]:
                        residency.remove(one)
                    check(residency, memory, whole_files)
                    continue
                for one in new:
                    if action == "fail":
                        residency.remove(one)
                    residency.change(one, is_ready=True, **{kind: 1})
                kept.append((kind, [*there, *new], expected if action != "fail" else set()))
            else:
                for one in there:
                    residency.change(one, **{kind: -1})
        check(residency, memory, whole_files)
        assert all(number in (0, 1) and unit in memory[number].units for _, _, held in kept for number, unit in held)
    for kind, ranges, _ in kept:
        for one in ranges:
            residency.change(one, **{kind: -1})
    assert residency.idle_bytes == residency.used
    assert residency.make_room(LIMIT)
    assert (residency.used, memory[0].units, memory[1].units) == (0, set(), set())


def test_a_file_whose_last_kept_range_is_removed_can_be_evicted() -> None:
    file = LandedFile(Memory(), 3 * PAGE, is_whole=True)  # type: ignore[arg-type]
    residency = Residency(3 * PAGE, [file, file])
    first, rest = Range(0, 0, PAGE), Range(0, PAGE, 3 * PAGE)
    residency.add([first, rest])
    residency.change(first, is_ready=True)
    before = residency.changes
    residency.remove(rest)
    assert (residency.used, residency.idle_bytes) == (PAGE, PAGE)
    assert residency.changes > before
    assert residency.make_room(3 * PAGE)
    assert residency.used == 0
