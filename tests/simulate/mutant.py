"""Mutants: the remote code with one thing broken. Each must be found within the seeds of a test."""

from dataclasses import dataclass
from typing import Any

from tests.mutant import SourceEdit, edited
from tests.simulate.run import installed, run_seed

from penstock.remote import fetch, plan, residency, window

MOST_SEEDS = 2000
"""A mutant that no run of this many shows is missed."""


@dataclass(frozen=True)
class Mutant:
    """A fault, and a seed that shows it: if the drawing of cases changes, another one (``campaign --mutants`` tells)."""

    owner: Any
    name: str
    changes: tuple[tuple[str, str], ...]
    seed: int = 0

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
        window.Window, "release", (("        self.prefetch()\n        self.lock.notify_all()", "        self.prefetch()"),), seed=22
    ),
    "pinned-ranges-are-idle": Mutant(
        residency.Residency, "_note_idle", (("(one.is_kept, one.cost)", "(one.plans > 0 or not one.is_ready, one.cost)"),), seed=4
    ),
    "retry-begins-anew": Mutant(
        fetch._Fetch, "_once", (("(self._position, self._wanted.stop)", "(self._wanted.start, self._wanted.stop)"),), seed=4
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
        seed=4,
    ),
    "etag-is-ignored": Mutant(fetch._Fetch, "_check", (("if not same_etag(answer.etag, wanted.etag):", "if False:"),), seed=87),
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
        seed=83,
    ),
    "plan-forgets-a-range": Mutant(plan.Plan, "_keep", (("_Kept(need, ranges)", "_Kept(need, ranges[1:])"),)),
    "coalescing-loses-a-byte": Mutant(
        residency,
        "_cut",
        (("np.minimum(begins + most, np.repeat(stops, counts))", "np.minimum(begins + most, np.repeat(stops, counts) - 1)"),),
        seed=12,
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
        seed=13,
    ),
    "failed-range-stays": Mutant(
        window.Window, "_arrived", (("            self.residency.remove(one)", "            pass"),), seed=1252
    ),
    "closed-plan-keeps-its-ranges": Mutant(
        plan.Plan, "close", (("                for kept in self._kept:\n                    self._end(kept)\n", ""),)
    ),
    "memory-is-not-counted": Mutant(residency.Residency, "would_fit", (("<= self._limit", "<= self._limit + 4096"),), seed=5),
    "long-body-is-taken": Mutant(
        fetch._Fetch,
        "_take",
        (("if not self._whole and (stop > self._wanted.stop", "if False and (stop > self._wanted.stop"),),
        seed=148,
    ),
}


def find(mutant: Mutant, first: int = 0, most: int = MOST_SEEDS) -> tuple[int, str] | None:
    """The first seed that shows a mutant, and what it shows; None if none does."""
    with edited(mutant.edit), installed():
        for seed in range(first, first + most):
            try:
                run_seed(seed)
            except Exception as error:
                return seed, f"{type(error).__name__}: {error}".splitlines()[0]
    return None
