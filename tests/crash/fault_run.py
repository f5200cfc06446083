"""FaultRun: runs a plan while system calls fail, obeys the rules of errors, and writes down what happened.

Lines on standard output, each written at once: ``START k``, ``ACK k``, ``FAILED error``, ``POISONED error``, ``STOPPED`` (the same
writer failed again and again), ``UNCERTAIN`` (a rebalance failed) and ``BROKEN what``. After a failure the same writer tries the
same transaction again; after a DurabilityError it must refuse everything.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.crash.plan import Plan, Step
from tests.crash.subject import made
from tests.crash.workload import change, open_writer, say, transactions

import penstock as pen
from penstock.errors import DurabilityError, PenstockError

ATTEMPTS = 4


class FaultRun:
    """One plan, against faults."""

    def __init__(self, plan: Plan, path: Path) -> None:
        self._plan, self._path = plan, path
        self._writer: Any = None
        self._commits = self._acked = 0

    def run(self) -> None:
        for changes, ending in transactions(self._plan):
            if ending.kind == "reopen":
                self._close()
                continue
            if not (self._insist(changes) if ending.kind == "commit" else self._maintain(ending)):
                break
        self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _insist(self, changes: list[Step]) -> bool:
        """Commit with the same writer until it succeeds; stop after some attempts, or when the disk is not to be trusted."""
        self._start()
        for _ in range(ATTEMPTS):
            failure = self._try(lambda: self._commit(changes))
            if failure is None:
                self._ack()
                return True
            if failure is DurabilityError:
                self._must_refuse()
                return False
        say("STOPPED")
        return False

    def _maintain(self, step: Step) -> bool:
        """Rebalance or collect, once: a failure may leave the new generation, which has the same records, or not."""
        self._close()
        if step.kind == "gc":
            return self._try(lambda: pen.gc(self._path, keep=step.count, keep_hours=0)) is None
        self._start()
        if self._try(lambda: pen.rebalance(self._path, threads=1)) is None:
            self._ack()
            return True
        say("UNCERTAIN")
        return False

    def _start(self) -> None:
        self._commits += 1
        say(f"START {self._commits}")

    def _ack(self) -> None:
        self._acked = self._commits
        say(f"ACK {self._commits}")

    def _try(self, work: Callable[[], object]) -> type[Exception] | None:
        """The error that something ends with. Each must be one of penstock's."""
        try:
            work()
        except PenstockError as error:
            say(f"{'POISONED' if isinstance(error, DurabilityError) else 'FAILED'} {type(error).__name__}: {error}")
            if str(self._path.parent) not in str(error):
                say("BROKEN an error that does not say where")
            return type(error)
        except Exception as error:
            say(f"BROKEN an untyped error: {type(error).__name__}: {error}")
            return type(error)
        return None

    def _commit(self, changes: list[Step]) -> None:
        if self._writer is None:
            self._writer = open_writer(self._path, self._plan, is_new=self._acked == 0)
        for step in changes:
            change(self._writer, step)
        self._writer.commit()

    def _must_refuse(self) -> None:
        """A writer whose fsync failed does nothing any more."""
        if self._writer is None:
            return
        calls = (
            lambda: self._writer.extend(made(0, 1)),
            lambda: self._writer.delete([0]),
            lambda: self._writer.abort(),
            lambda: self._writer.commit(),
        )
        for call in calls:
            try:
                call()
            except DurabilityError:
                continue
            except Exception as error:
                say(f"BROKEN a poisoned writer raised {type(error).__name__}: {error}")
            else:
                say("BROKEN a poisoned writer went on")
