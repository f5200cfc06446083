"""System calls that fail: whatever call on data fails, and how, the result is right or a typed error that says where.

    python -m tests.hostile.system_faults [--stride N] [--only TEXT] [--part I/N]

prints what was wrong, then the number of faults by workload. Every workload is recorded once; then, for every system call that it
made on a file or directory of the data, and for every error that this call may give, it runs again with that fault. A fault that
hits anything else (a file of the interpreter) does not count. strace counts the calls of every thread apart.
"""

import argparse
import collections
import importlib
import json
import os
import pkgutil
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.crash.trace import run_traced
from tests.hostile.fault_workloads import NOTHING, WORKLOADS, Ended, Workload, make_data, names_in

import penstock.formats
from penstock.errors import PenstockError

HANG_S = 300
MOST_LETTERS = 2000
READ_CODE, WRITE_CODE, FOUND_CODE = 3, 4, 1

ERRORS: dict[str, tuple[str, ...]] = {
    "openat": ("EIO", "EMFILE", "EACCES", "ESTALE", "ENOMEM", "EINTR"),
    **dict.fromkeys(("newfstatat", "fstat", "statx", "readlink"), ("EIO", "EACCES", "ESTALE")),
    **dict.fromkeys(("read", "pread64", "readv", "preadv"), ("EIO", "ESTALE", "EINTR")),
    "lseek": ("EIO",),
    "mmap": ("ENOMEM", "EACCES"),
    **dict.fromkeys(("write", "pwrite64", "writev", "ftruncate"), ("EIO", "ENOSPC", "EINTR")),
    **dict.fromkeys(("fsync", "fdatasync"), ("EIO", "ENOSPC")),
    "flock": ("ENOLCK", "EIO", "EINTR"),
    **dict.fromkeys(("link", "linkat", "rename", "renameat2"), ("EIO", "EACCES", "ENOSPC", "ESTALE")),
    **dict.fromkeys(("unlink", "unlinkat", "rmdir"), ("EIO", "EACCES", "ESTALE")),
    "getdents64": ("EIO", "ESTALE"),
    **dict.fromkeys(("mkdir", "mkdirat"), ("EIO", "EACCES", "ENOSPC")),
    "close": ("EIO", "EINTR"),
    **dict.fromkeys(("statfs", "fstatfs", "fadvise64"), ("EIO",)),
    "io_uring_setup": ("EPERM", "ENOSYS", "EMFILE"),
    "io_uring_enter": ("EINTR", "EAGAIN", "EIO"),
    "fcntl": ("EINVAL",),
}
_LINE = re.compile(r"(\d+) +(\w+)\(")


@dataclass(frozen=True)
class Fault:
    """The k-th call of a thread fails."""

    workload: str
    call: str
    error: str
    when: int


@dataclass(frozen=True)
class Seen:
    """What became of a run: its exit code, the lines of the trace, and ``what`` (see :func:`_in_child`)."""

    code: int
    trace: list[str]
    what: dict[str, object]


class Attack:
    """Runs workloads in forked children, on data that is made once."""

    def __init__(self, where: Path) -> None:
        self._where, self._data = where, where / "data"
        self._data.mkdir()
        for module in pkgutil.iter_modules(penstock.formats.__path__):  # what is imported late opens no files in the children
            importlib.import_module(f"penstock.formats.{module.name}")
        _in_fork(lambda: make_data(self._data))
        self._clean: dict[str, tuple[Seen, str, list[str]]] = {}

    def clean(self, name: str) -> tuple[Seen, str, list[str]]:
        """A run without a fault: what it gave, the state after it, and the names that it left."""
        if name not in self._clean:
            seen, out = self._run(name, "trace=" + ",".join(f"?{call}" for call in ERRORS))
            state, names = self._state(WORKLOADS[name], out), list(names_in(out))
            shutil.rmtree(out)
            assert seen.code == 0, seen
            assert "error" not in seen.what, seen.what
            self._clean[name] = (seen, state, names)
        return self._clean[name]

    def faults(self, name: str) -> Iterator[Fault]:
        """Every fault of a workload, as one run of it shows."""
        counts: collections.Counter[tuple[str, str]] = collections.Counter()
        hit: dict[str, set[int]] = collections.defaultdict(set)
        for line in self.clean(name)[0].trace:
            if (match := _LINE.match(line)) is not None:
                counts[match[1], match[2]] += 1
                if self._is_on_data(line):
                    hit[match[2]].add(counts[match[1], match[2]])
        return (Fault(name, call, error, when) for call, whens in hit.items() for when in sorted(whens) for error in ERRORS[call])

    def inject(self, fault: Fault) -> tuple[bool, str | None]:
        """Whether a fault took place, on data; and what was wrong then."""
        rule = f"inject={fault.call}:error={fault.error}:when={fault.when}"
        seen, out = self._run(fault.workload, f"trace={fault.call}", rule)
        try:
            injected = [line for line in seen.trace if "(INJECTED)" in line]
            if not injected or not all(map(self._is_on_data, injected)):
                return False, None
            return True, self._problem(fault.workload, seen, out)
        finally:
            shutil.rmtree(out)

    def _is_on_data(self, line: str) -> bool:
        return f"<{self._where}" in line or f'"{self._where}' in line or " io_uring_" in line

    def _run(self, name: str, *rules: str) -> tuple[Seen, Path]:
        out, workload = Path(tempfile.mkdtemp(dir=self._where)), WORKLOADS[name]
        if workload.prepare is not None:
            _in_fork(lambda: workload.prepare(out) if workload.prepare else None)
        with tempfile.TemporaryDirectory() as aside:
            log, trace = Path(aside, "log"), Path(aside, "trace")
            options = [word for rule in rules for word in ("-e", rule)]
            code = run_traced(lambda: _in_child(workload, self._data, out), options, trace, log)
            lines = log.read_text().splitlines()
            what = json.loads(lines[-1]) if code == 0 and lines else {"died": log.read_text()[-500:]}
            return Seen(code, trace.read_text(errors="replace").splitlines(), what), out

    def _state(self, workload: Workload, out: Path) -> str:
        return "" if workload.state is None else str(_in_fork(lambda: workload.state(out) if workload.state else ""))

    def _problem(self, name: str, seen: Seen, out: Path) -> str | None:
        workload, (clean, after, names) = WORKLOADS[name], self.clean(name)
        if seen.code != 0:
            return f"ended with {seen.code}: {seen.what}"
        what = seen.what
        if (wrong := _wrong_error(what, str(self._where))) is not None:
            return wrong
        failed = "error" in what
        if not failed and what.get("result") != clean.what.get("result"):
            return f"another result: {what} instead of {clean.what}"
        return None if workload.state is None else self._problem_left(workload, out, after, names, failed=failed)

    def _problem_left(self, workload: Workload, out: Path, after: str, names: list[str], *, failed: bool) -> str | None:
        """What is wrong with what a writer has left; it is run once more if it failed before anything could be seen."""
        before = self._before(workload)
        state = self._state(workload, out)
        if state not in (before, after) or (not failed and state != after):
            return f"half-written: {state} (before: {before}, after: {after}), failed: {failed}"
        if state != after or before == after:
            again = _in_fork(lambda: str(workload.run(self._data, out)))
            if (state := self._state(workload, out)) != after:
                return f"a second run gave {again} and left {state}"
            if list(names_in(out)) != names:
                return f"a second run left {list(names_in(out))}, expected {names}"
        return None

    def _before(self, workload: Workload) -> str:
        out = Path(tempfile.mkdtemp(dir=self._where))
        try:
            if workload.prepare is None:
                return NOTHING
            _in_fork(lambda: workload.prepare(out) if workload.prepare else None)
            return self._state(workload, out)
        finally:
            shutil.rmtree(out)


def _wrong_error(what: dict[str, object], where: str) -> str | None:
    """What is wrong with an error; None if there was none, or one as it should be."""
    if "error" not in what:
        return None
    text = str(what["text"])
    if not what["typed"]:
        return f"a bare {what['error']}: {text[:300]} {what.get('trace', '')}"
    if where not in text:
        return f"{what['error']} does not say where: {text[:300]} {what.get('trace', '')}"
    if len(text) > MOST_LETTERS or not text.isprintable():
        return f"{what['error']} with a text that is no line: {text[:300]!r}"
    return None


def _in_child(workload: Workload, data: Path, out: Path) -> None:
    """Run a workload, and print what became of it as a line of JSON."""
    signal.alarm(HANG_S)  # a hang ends with a signal, and is reported as one
    what: dict[str, object]
    try:
        what = _result(workload.run(data, out), out)
    except BaseException as error:
        trace = "".join(traceback.format_tb(error.__traceback__)[-3:])
        is_typed = isinstance(error, PenstockError | MemoryError)
        text = f"{error} {data}" if isinstance(error, MemoryError) else str(error)
        what = {"error": type(error).__name__, "typed": is_typed, "text": text, "trace": trace[-600:]}
    line = (json.dumps(what) + "\n").encode()
    while line:
        line = line[os.write(1, line) :]


def _result(given: object, out: Path) -> dict[str, object]:
    if not isinstance(given, Ended):
        return {"result": str(given).replace(str(out), "OUT")}
    if given.code == 0:
        found = json.loads(given.printed)
        return {"result": {name: value for name, value in found.items() if name not in ("seconds", "target", "bytes_out", "ratio")}}
    lines = [line for line in given.said.splitlines() if line]
    said = f"{given.said} {given.printed}"
    is_told = bool(lines) and lines[-1].startswith("penstock: ") and given.code in (READ_CODE, WRITE_CODE)
    is_found = given.code == FOUND_CODE and '"problems"' in given.printed
    typed = (is_told or is_found) and "Traceback" not in said
    return {"error": f"exit code {given.code}", "typed": typed, "text": " ".join(said.split())}


def _in_fork(work: Callable[[], object]) -> str:
    """Do something in a child, so that the parent stays a process without threads; returns what it gave, or how it failed."""
    out, inner = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(out)
        signal.alarm(HANG_S)
        try:
            said = str(work())
        except BaseException:
            said = traceback.format_exc()
        os.write(inner, said.encode()[-60000:])
        os._exit(0)
    os.close(inner)
    with open(out, "rb") as file:
        said = file.read().decode(errors="replace")
    os.waitpid(child, 0)
    return said


def campaign(
    names: list[str], stride: int, first: int = 0, report: Callable[[str], object] = str
) -> tuple[dict[str, int], list[str]]:
    """Every ``stride``-th fault: how many took place by workload, and what was wrong, which is also reported at once."""
    counts: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="penstock-faults-") as where:
        attack = Attack(Path(where).resolve())
        number = first
        for name in names:
            for fault in attack.faults(name):
                number += 1
                if number % stride:
                    continue
                is_hit, what = attack.inject(fault)
                counts[name] += is_hit
                if what is not None:
                    wrong.append(f"{fault}: {what}")
                    report(f"WRONG {wrong[-1]}\n")
            report(f"{counts[name]:6d}  {name}\n")
    return dict(counts), wrong


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--part", default="0/1")
    given = parser.parse_args()
    part, parts = map(int, given.part.split("/"))
    names = [name for name in WORKLOADS if re.search(given.only, name)][part::parts]

    def report(line: str) -> None:
        sys.stdout.write(line)
        sys.stdout.flush()

    counts, wrong = campaign(names, given.stride, given.first, report)
    report(f"{sum(counts.values())} faults, {len(wrong)} wrong\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
