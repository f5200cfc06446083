"""Mutants: the remote code with one thing broken. Each must be found within the seeds of a test."""

from dataclasses import dataclass
from typing import Any

from tests.mutant import SourceEdit, edited
from tests.simulate.run import installed
from tests.simulate.window import run_seed

from penstock.remote import fetch, plan, residency, window

MOST_SEEDS = {"window": 3000, "loader": 2000}
"""A mutant that no run of this many shows is missed."""


@dataclass(frozen=True)
class Mutant:
    """A fault: a function, and texts of it that become others."""

    owner: Any
    name: str
    changes: tuple[tuple[str, str], ...]

    @property
    def edit(self) -> SourceEdit:
        return SourceEdit(self.owner, self.name, self.changes)


MUTANTS = {
    "arrival-is-not-notified": Mutant(
        window.Window,
        "_serve",
        (
            (
                "                self._arrived(one, error)\n                self.lock.notify_all()",
                "                self._arrived(one, error)",
            ),
        ),
    ),
    "release-is-not-notified": Mutant(
        window.Window, "release", (("        self.prefetch()\n        self.lock.notify_all()", "        self.prefetch()"),)
    ),
    "pinned-ranges-are-idle": Mutant(
        residency.Residency, "_note_idle", (("(one.is_kept, one.cost)", "(one.plans > 0 or not one.is_ready, one.cost)"),)
    ),
    "retry-begins-anew": Mutant(
        fetch._Fetch, "_once", (("(self._position, self._wanted.stop)", "(self._wanted.start, self._wanted.stop)"),)
    ),
    "retry-skips-a-byte": Mutant(
        fetch._Fetch,
        "_failed",
        (
            (
                "        self._tries.failed(failure)\n",
                "        self._tries.failed(failure)\n        self._position += self._position > self._wanted.start\n",
            ),
        ),
    ),
    "etag-is-ignored": Mutant(fetch._Fetch, "_check", (("if not same_etag(answer.etag, wanted.etag):", "if False:"),)),
    "hedge-is-counted-twice": Mutant(
        fetch._Fetch,
        "_begin",
        (
            (
                "        answer = best.result()\n",
                "        answer = best.result()\n        for one in (done | pending) - {best}:\n"
                "            answer[1].extend(one.result()[1])\n",
            ),
        ),
    ),
    "plan-forgets-a-range": Mutant(plan.Plan, "_keep", (("_Kept(need, ranges)", "_Kept(need, ranges[1:])"),)),
    "coalescing-loses-a-byte": Mutant(
        residency,
        "_cut",
        (("np.minimum(begins + most, np.repeat(stops, counts))", "np.minimum(begins + most, np.repeat(stops, counts) - 1)"),),
    ),
    "released-twice": Mutant(
        window.Hold,
        "end",
        (
            (
                "                self._window.release(held, thread)",
                "                self._window.release(held, thread)\n                self._window.release(held, thread)",
            ),
        ),
    ),
    "hold-is-not-ended-after-an-error": Mutant(
        window.Hold,
        "__enter__",
        (
            (
                "        except BaseException:\n            self.end()\n            raise",
                "        except BaseException:\n            raise",
            ),
        ),
    ),
    "failed-range-stays": Mutant(window.Window, "_arrived", (("            self.residency.remove(one)", "            pass"),)),
    "closed-plan-keeps-its-ranges": Mutant(
        plan.Plan, "close", (("                for kept in self._kept:\n                    self._end(kept)\n", ""),)
    ),
    "memory-is-not-counted": Mutant(residency.Residency, "would_fit", (("<= self._limit", "<= self._limit + 4096"),)),
    "long-body-is-taken": Mutant(
        fetch._Fetch, "_take", (("if not self._whole and (stop > self._wanted.stop", "if False and (stop > self._wanted.stop"),)
    ),
    # What loaders do not do, or not often
    "pieces-overlap-by-one": Mutant(residency, "_cut", (("np.minimum(begins + most, ", "np.minimum(begins + most + 1, "),)),
    "plan-forgets-a-need": Mutant(plan.Plan, "prefetch", (("need.last > self._passed and", "need.last > self._passed + 2 and"),)),
    "what-failed-is-asked-for-again": Mutant(window.Window, "_arrived", (("self._failed.add(one.number)", "pass"),)),
    "plan-forgets-what-it-gave-up": Mutant(plan.Plan, "_give_up", (("[*later, kept.need, *(", "[*later, *("),)),
    "plans-keep-what-a-reader-needs": Mutant(
        window.Window, "_free_more", ((" or any(prefetcher.give_up() for prefetcher in self.prefetchers)", ""),)
    ),
    "what-is-idle-in-a-hole-stays": Mutant(window.Window, "_free_more", (("self.residency.evict_idle(near) or ", ""),)),
    "closed-while-it-waits": Mutant(
        window.Window,
        "acquire",
        (("(wanted, until):\n                self._check_wanted(wanted)", "(wanted, until):\n                pass"),),
    ),
    "what-is-held-is-canceled": Mutant(window.Window, "give_back", (("if one.holds or one.plans:", "if one.plans:"),)),
    "holders-wait-for-holders": Mutant(window.Window, "wait_for_room", (("may_wait = not any(", "may_wait = True or any("),)),
    "close-forgets-what-waits": Mutant(window.Window, "close", (("                self._cancel([one])\n", ""),)),
    "close-frees-what-is-held": Mutant(residency.Residency, "drop_unheld", ((" and self._files[number].holds == 0", ""),)),
    "refetch-while-held": Mutant(
        window.Window,
        "refetch",
        (("while residency.is_held(number) and", "while False and"), ("and not residency.is_held(number) and", "and")),
    ),
    "first-hole-is-not-seen": Mutant(residency._FileRanges, "missing", (("(place < 0) | (reach", "(reach"),)),
    "shared-page-is-freed": Mutant(residency._FileRanges, "free_pages", (("            low += PAGE", "            pass"),)),
    "pages-are-not-freed": Mutant(residency.Residency, "remove", (("elif low < high:", "elif False:"),)),
    "file-on-its-way-is-whole": Mutant(
        residency._FileRanges, "is_whole", (("one.start != end or not one.is_ready", "one.start != end"),)
    ),
    "file-on-its-way-is-idle": Mutant(
        residency.Residency, "_note_idle", (("(there.kept > 0, there.cost)", "(there.holds > 0, there.cost)"),)
    ),
    "gap-is-not-bounded": Mutant(residency, "_bridge", (("<= gap)", "<= gap + 8192)"),)),
}

SEEDS: dict[str, dict[str, int]] = {
    "window": {
        "arrival-is-not-notified": 1,
        "release-is-not-notified": 3,
        "pinned-ranges-are-idle": 11,
        "retry-begins-anew": 4,
        "retry-skips-a-byte": 4,
        "etag-is-ignored": 69,
        "hedge-is-counted-twice": 216,
        "plan-forgets-a-range": 0,
        "coalescing-loses-a-byte": 14,
        "released-twice": 0,
        "hold-is-not-ended-after-an-error": 10,
        "failed-range-stays": 53,
        "closed-plan-keeps-its-ranges": 6,
        "memory-is-not-counted": 9,
        "long-body-is-taken": 8,
        "pieces-overlap-by-one": 14,
        "plan-forgets-a-need": 42,
        "what-failed-is-asked-for-again": 111_051,
        "plan-forgets-what-it-gave-up": 40,
        "plans-keep-what-a-reader-needs": 85,
        "what-is-idle-in-a-hole-stays": 1186,
        "closed-while-it-waits": 1269,
        "what-is-held-is-canceled": 133,
        "holders-wait-for-holders": 286,
        "close-forgets-what-waits": 12,
        "close-frees-what-is-held": 11,
        "refetch-while-held": 39,
        "first-hole-is-not-seen": 4,
        "shared-page-is-freed": 72,
        "pages-are-not-freed": 24,
        "file-on-its-way-is-whole": 41,
        "file-on-its-way-is-idle": 32,
        "gap-is-not-bounded": 24,
    },
    "loader": {
        "arrival-is-not-notified": 0,
        "release-is-not-notified": 23,
        "pinned-ranges-are-idle": 4,
        "retry-begins-anew": 4,
        "retry-skips-a-byte": 4,
        "etag-is-ignored": 87,
        "hedge-is-counted-twice": 83,
        "plan-forgets-a-range": 0,
        "coalescing-loses-a-byte": 12,
        "released-twice": 0,
        "hold-is-not-ended-after-an-error": 13,
        "failed-range-stays": 1955,
        "closed-plan-keeps-its-ranges": 0,
        "memory-is-not-counted": 5,
        "long-body-is-taken": 148,
    },
}
"""The mutants that each kind of case has to find, and a seed that shows them: if the drawing of cases changes, others
(``campaign --mutants`` tells).
"""


def find(mutant: Mutant, kind: str, first: int = 0, most: int | None = None) -> tuple[int, str] | None:
    """The first seed that shows a mutant, and what it shows; None if none does."""
    with edited(mutant.edit), installed():
        for seed in range(first, first + (MOST_SEEDS[kind] if most is None else most)):
            try:
                run_seed(kind, seed)
            except Exception as error:
                return seed, f"{type(error).__name__}: {error}".splitlines()[0]
    return None
