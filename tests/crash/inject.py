"""Inject: makes the k-th system call of a writer fail, or kills the writer there, for every k; then looks at what is left.

    python -m tests.crash.inject [--part I/N] [--stride N]

prints one line of JSON: the number of faults that took place, by kind, and what was wrong after any of them.

strace counts the calls of every thread apart.
"""

import argparse
import collections
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.crash.check import check_store, scratch
from tests.crash.fault_run import FaultRun
from tests.crash.plan import named, states
from tests.crash.trace import run_traced

import penstock as pen

PLANS = ("update", "delete-last", "rebalance-gc")
CALLS = ("pwrite64", "fsync", "linkat", "openat", "unlink", "mkdir")
FAULTS = ("signal=KILL", "error=ENOSPC", "error=ENOSPC+", "error=EIO", "error=EIO+", "error=EINTR")
HANG_S = 300
_ALIASES = {"linkat": "?link,linkat", "unlink": "?unlink,unlinkat", "mkdir": "?mkdir,mkdirat"}


@dataclass(frozen=True)
class Fault:
    """What goes wrong, at which call of which kind. A kind that ends in + goes wrong from there on."""

    plan: str
    call: str
    kind: str
    when: int

    @property
    def rule(self) -> str:
        """The fault as strace takes it."""
        call = _ALIASES.get(self.call, self.call)
        return f"inject={call}:{self.kind.rstrip('+')}:when={self.when}{'+' if self.kind.endswith('+') else ''}"


@dataclass(frozen=True)
class Run:
    """What a run under a fault left behind."""

    lines: list[str]
    code: int
    trace: str

    def last(self, word: str) -> int:
        """The highest number after a word; 0 if it was never said."""
        return max((int(line.split()[1]) for line in self.lines if line.startswith(f"{word} ")), default=0)

    def said(self, word: str) -> bool:
        """Whether a line starts with a word."""
        return any(line.split()[0] == word for line in self.lines)

    @property
    def was_hit(self) -> bool:
        """Whether the fault took place."""
        return "(INJECTED)" in self.trace or self.code == -signal.SIGKILL


def run(fault: Fault, where: Path) -> Run:
    """Run a plan in a child with strace on it."""

    def work() -> None:
        signal.alarm(HANG_S)  # a hang ends with a signal, and is reported as one
        FaultRun(named(fault.plan), where / "s.pen").run()

    log, output = where / "log", where / "trace"
    calls = f"trace={_ALIASES.get(fault.call, fault.call)},fsync,?link,linkat"
    code = run_traced(work, ["-e", calls, "-e", fault.rule], output, log)
    return Run(log.read_text().splitlines(), code, output.read_text())


def problem(fault: Fault, seen: Run, path: Path) -> str | None:
    """What is wrong after a fault, or None."""
    killed = fault.kind == "signal=KILL" and seen.code == -signal.SIGKILL
    if seen.code != 0 and not killed:
        return f"the process ended with {seen.code}: {seen.lines[-2:]}"
    if seen.said("BROKEN"):
        return next(line for line in seen.lines if line.startswith("BROKEN"))
    acked, started = seen.last("ACK"), seen.last("START")
    uncertain = killed or seen.said("POISONED") or seen.said("UNCERTAIN")
    if not seen.said("FAILED") and not uncertain and acked != len(states(named(fault.plan))) - 1:
        return f"the plan ended after {acked} commits without an error: {seen.lines}"
    if fault.kind in ("error=ENOSPC", "error=EINTR") and fault.call != "fsync" and seen.said("STOPPED"):
        return f"the same writer could not go on after one failure: {seen.lines}"
    if fault.call == "fsync" and (again := _after_failed_fsync(seen.trace)):
        return f"after a failed fsync: {again}"
    return check_store(path, states(named(fault.plan)), acked, started if uncertain else acked) or _leftovers(path)


def _after_failed_fsync(trace: str) -> str | None:
    """A commit, or another fsync of the same file, after an fsync that failed for good; None if there was none."""
    failed: set[str] = set()
    for line in trace.splitlines():
        path = match[1] if (match := re.search(r"<(/[^>]*)>", line)) else ""
        if "fsync" in line and "(INJECTED)" in line and "EINTR" not in line:
            failed.add(path)
        elif failed and ("link(" in line or "linkat(" in line or ("fsync(" in line and path in failed)):
            return line
    return None


def _leftovers(path: Path) -> str | None:
    """Files that gc does not find, or finds twice."""
    pen.gc(path, keep=1, keep_hours=0)
    left = pen.gc(path, keep=1, keep_hours=0, dry_run=True).files
    return f"gc left {left}" if left else next((str(p) for p in pen.verify(path)), None)


def campaign(part: int, parts: int, stride: int) -> dict[str, object]:
    """All faults of one part of the table; every ``stride``-th call, beginning with another one in every line of it."""
    taken: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    table = [(plan, call, kind) for plan in PLANS for call in CALLS for kind in FAULTS]
    for number, (plan, call, kind) in list(enumerate(table))[part::parts]:
        for fault in _whens(plan, call, kind, number % stride + 1, stride):
            where = Path(scratch())
            try:
                seen = run(fault, where)
                if not seen.was_hit:
                    break
                taken[kind] += 1
                what = problem(fault, seen, where / "s.pen")
            finally:
                shutil.rmtree(where)
            if what is not None:
                wrong.append(f"{fault}: {what}"[:2000])
    return {"faults": dict(taken), "wrong": wrong}


def _whens(plan: str, call: str, kind: str, first: int, stride: int) -> Iterator[Fault]:
    for when in range(first, 1000, stride):
        yield Fault(plan, call, kind, when)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--stride", type=int, default=1)
    given = parser.parse_args()
    part, parts = map(int, given.part.split("/"))
    _warm_up()
    sys.stdout.write(json.dumps(campaign(part, parts, given.stride)) + "\n")


def _warm_up() -> None:
    """Import whatever is imported late, so that a child opens no files but those of its store."""
    where = Path(scratch())
    try:
        child = os.fork()
        plan = named(PLANS[-1])
        if child:
            os.waitpid(child, 0)
            return
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        FaultRun(plan, where / "s.pen").run()
        os._exit(0)
    finally:
        shutil.rmtree(where, ignore_errors=True)


if __name__ == "__main__":
    main()
