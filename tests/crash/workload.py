"""The program the crash proof watches: runs a plan on a store, and says START k and ACK k around every commit.

The lines go out by one write each, so that they stand in the trace of system calls where they belong.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.crash import mutant
from tests.crash.plan import Plan, Step, grown, named
from tests.crash.subject import FIELDS, made

import penstock as pen
from penstock.errors import ConflictError


def say(line: str) -> None:
    """One line on standard output, in one system call."""
    os.write(1, f"{line}\n".encode())


def open_writer(path: Path, plan: Plan, *, is_new: bool) -> Any:
    """The writer of a store."""
    if is_new:
        return pen.create(path, FIELDS, chunk_records=plan.chunk_records, threads=plan.threads)
    return pen.open(path, mode="a", threads=plan.threads)


def change(writer: Any, step: Step) -> None:
    """One change of a transaction."""
    if step.kind == "extend":
        writer.extend(made(step.first, step.count))
    elif step.kind == "update":
        writer.update(list(step.ids), made(step.first, len(step.ids), step.names))
    else:
        writer.delete(list(step.ids))


def transactions(plan: Plan) -> Iterator[tuple[list[Step], Step]]:
    """Changes, and the step that ends them."""
    changes: list[Step] = []
    for step in plan.steps:
        if step.kind in ("extend", "update", "delete"):
            changes.append(step)
        else:
            yield changes, step
            changes = []


class Workload:
    """Runs a plan to its end."""

    def __init__(self, plan: Plan, path: Path) -> None:
        self._plan, self._path = plan, path
        self._writer: Any = None
        self._commits = 0
        self._was_there = any(path.glob("manifest/*.json"))

    def run(self) -> None:
        for changes, ending in transactions(self._plan):
            if ending.kind == "killed-commit":
                self._close()
                self._killed(changes)
                continue
            if changes or ending.kind in ("commit", "abort"):
                self._writer = self._open() if self._writer is None else self._writer
            for step in changes:
                change(self._writer, step)
            getattr(self, "_" + ending.kind)(ending)
        self._close()

    def _open(self) -> Any:
        return open_writer(self._path, self._plan, is_new=self._commits == 0 and not self._was_there)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _start(self) -> None:
        self._commits += 1
        say(f"START {self._commits}")

    def _ack(self) -> None:
        say(f"ACK {self._commits}")

    def _commit(self, step: Step) -> None:
        self._start()
        self._writer.commit()
        self._ack()

    def _abort(self, step: Step) -> None:
        self._writer.abort()

    def _reopen(self, step: Step) -> None:
        self._close()

    def _rebalance(self, step: Step) -> None:
        self._close()
        self._start()
        pen.rebalance(self._path, threads=self._plan.threads)
        self._ack()

    def _grow(self, step: Step) -> None:
        self._close()
        self._start()
        with pen.open(self._path, threads=1) as store:
            there = len(store)
        pen.add_field(self._path, step.names[0], pen.Field("i4"), grown(there), threads=self._plan.threads)
        self._ack()

    def _gc(self, step: Step) -> None:
        self._close()
        with mutant.collecting():
            pen.gc(self._path, keep=step.count, keep_hours=0)

    def _killed(self, changes: list[Step]) -> None:
        """A process that ends between the link of the manifest and the fsync of its directory: visible, but not yet durable."""
        self._start()
        child = os.fork()
        if child == 0:
            fsync = os.fsync

            def fsync_or_die(descriptor: int) -> None:
                if os.readlink(f"/proc/self/fd/{descriptor}") == str(self._path / "manifest"):
                    os.kill(os.getpid(), signal.SIGKILL)
                fsync(descriptor)

            os.fsync = fsync_or_die  # type: ignore[assignment]
            writer = open_writer(self._path, self._plan, is_new=self._commits == 1 and not self._was_there)
            for step in changes:
                change(writer, step)
            writer.commit()
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -signal.SIGKILL:
            raise SystemExit("the writer reached its end without making the manifest directory durable")

    def _race(self, step: Step) -> None:
        """Two writers past every check but the last: the other one links its manifest just before this one does."""
        self._close()
        ours = self._open()
        os.unlink(self._path / "LOCK")  # as on a filesystem that ignores locks
        theirs = self._open()
        ours.extend(made(step.first + 1000, step.count + 1))
        theirs.extend(made(step.first, step.count))
        link = os.link

        def link_second(*arguments: Any, **options: Any) -> None:
            os.link = link
            theirs.commit()
            self._ack()
            link(*arguments, **options)

        os.link = link_second  # type: ignore[assignment]
        self._start()
        try:
            ours.commit()
        except ConflictError:
            pass
        finally:
            ours.close()
            theirs.close()


def main(name: str, where: str, broken: str = "") -> None:
    """Run one plan."""
    path = Path(where)
    if broken:
        mutant.MUTANTS[broken][0](path)
    Workload(named(name), path).run()
