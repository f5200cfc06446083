"""Interrupts at any moment of a loader's life: the program ends, or goes on with right batches, and nothing is left behind.

    python -m tests.hostile.interrupts --count 2000 [--busy 4] [--kind native] [--lines]

Programs are forks of one that has done the imports. Each uses one kind of loader and gets one or two SIGINTs at random moments,
most of them in the first 100 ms; with ``--lines``, at a line of Python that was drawn by lot. A program that *catches* them then
counts its threads, descriptors and children, and reads on, from the same loader and from a new one. One that *ends* by them must
end with KeyboardInterrupt: no abort, no hang, no other traceback, no interrupt that is swallowed.
"""

import argparse
import contextlib
import faulthandler
import gc
import importlib
import json
import linecache
import os
import random
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from tests.remote.double import Double

import penstock as pen
from penstock import process
from penstock.formats.tokens_writer import write_tokens
from penstock.remote.url import url_path

ROOT = Path(__file__).parents[2]
DEADLINE_S = 300
SETTLE_S = 5
BATCH, RECORDS, WIDTH = 32, 200, 1024


@dataclass(frozen=True)
class Case:
    """A program and when it is interrupted: seconds after it begins to use its loader, or a number of lines of Python."""

    kind: str
    ends: bool
    delays: tuple[float, ...]
    lines: tuple[int, ...] = ()


# The programs


def same(batch: Any) -> Any:
    """A transform."""
    return batch


def slowly(batch: Any) -> Any:
    """A transform that takes a moment."""
    time.sleep(0.002)
    return batch


def write_data(folder: Path) -> None:
    """What the loaders read: the first number of a record is its id."""
    rows = np.arange(RECORDS * WIDTH, dtype=np.float32).reshape(RECORDS, WIDTH)
    np.save(folder / "rows.npy", rows)
    write_tokens([np.arange(RECORDS * WIDTH, dtype=np.int32)], folder / "tokens.rox", block_size=WIDTH)
    with pen.create(folder / "texts.pen", {"x": pen.Field("f4"), "text": pen.Field.text()}, chunk_records=64) as out:
        out.extend({"x": rows[:, 0], "text": [f"record {i}" * (i % 5) for i in range(RECORDS)]})


class Program:
    """One kind of loader, and how it is used."""

    def __init__(self, kind: str, folder: Path, endpoint: str) -> None:
        self.kind, self._folder, self._endpoint = kind, folder, endpoint
        self._executor: Executor | None = None
        if kind == "processes":
            self._executor = ProcessPoolExecutor(2)
        elif kind == "executor":
            self._executor = ThreadPoolExecutor(2)
        if self._executor is not None:
            list(self._executor.map(time.sleep, [0.01] * 4))
        self._source = self._open()

    def _open(self) -> Any:
        small = {"window_bytes": "640KiB"}
        if self.kind == "texts":
            return pen.open(self._folder / "texts.pen", threads=1)
        if self.kind == "tokens":
            return pen.open(self._folder / "tokens.rox")
        if self.kind.startswith("memory"):
            place = url_path("memory://interrupts/rows.npy")
            place.objects.put(place.key, (self._folder / "rows.npy").read_bytes())
            return pen.open("memory://interrupts/rows.npy", field="x", **small)
        if self.kind.startswith("server"):
            from tests.remote.options import s3_options

            return pen.open("s3://data/rows.npy", field="x", storage_options=s3_options(self._endpoint), **small)
        return pen.open(self._folder / "rows.npy", threads=1, field="x")

    def _stream(self) -> Any:
        source = self._source
        if self.kind == "tokens":
            return source.shuffle(seed=7).sequences(WIDTH)
        if self.kind == "mixture":
            return pen.mix({"a": source.shuffle(seed=1), "b": source.shuffle(seed=2)}, weights={"a": 2, "b": 1}, seed=3)
        if self.kind == "disk" or self.kind.startswith(("memory", "server")):
            return source.shuffle(seed=7, block=16, window=4)
        return source.shuffle(seed=7)

    def loader(self, **changed: Any) -> pen.Loader:
        """A new loader."""
        options: dict[str, Any] = {"threads": 2}
        if self.kind.endswith("plain"):
            options = {"threads": 0}
        elif self.kind in ("transform", "torch") or self.kind.endswith("-threads"):
            options["transform"] = same
        elif self.kind == "slow":
            options["transform"] = slowly
        elif self.kind == "restart":
            options["restart"] = True
        elif self._executor is not None:
            options = {"executor": self._executor, "transform": slowly}
        return pen.Loader(self._stream(), BATCH, **(options | changed))

    def expected(self) -> list[list[float]]:
        """The batches of three epochs, by the simplest way."""
        loader, found = self.loader(threads=0, executor=None, transform=None, restart=False), list[list[float]]()
        for _ in range(3):
            found += [numbers(batch) for batch in loader]
        return found

    def batches(self, loader: pen.Loader) -> Any:
        """What a program iterates over."""
        if self.kind == "workers":
            from penstock.deliver.torch import DataLoader

            return DataLoader(loader, num_workers=2)
        if self.kind == "torch":
            from penstock.deliver.torch import deliver

            return deliver(loader)
        return loader

    def close(self) -> None:
        """End the executor. An interrupt meanwhile makes those of Python hang, without penstock too: their owner sees to that."""
        if self._executor is not None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            self._executor.shutdown()
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def use(self, loader: pen.Loader, expected: list[list[float]]) -> None:
        """Loops that end, that break off, that are closed; and many short ones."""
        for batch in self.batches(loader):
            check(loader, batch, expected)
        for _ in range(3):
            for batch in self.batches(loader):
                check(loader, batch, expected)
                break
        with loader:
            for _, batch in zip(range(2), self.batches(loader), strict=False):
                check(loader, batch, expected)
        with contextlib.closing(iter(self.batches(loader))) as batches:
            check(loader, next(batches), expected)


KINDS = (
    *("native", "plain", "transform", "slow", "texts", "tokens", "mixture", "disk", "restart", "torch", "executor", "processes"),
    *("memory", "memory-plain", "memory-threads", "server", "server-plain", "server-threads", "workers"),
)


def numbers(batch: Any) -> list[float]:
    """What tells batches apart."""
    column = batch["x"] if "x" in batch else batch["tokens"]
    return [float(value) for value in np.asarray(column).reshape(len(column), -1)[:, 0]]


def check(loader: pen.Loader, batch: Any, expected: list[list[float]]) -> None:
    """AssertionError unless it is the batch before the loader's step."""
    assert numbers(batch) == expected[loader.step - 1], f"a wrong batch of step {loader.step - 1}"


# What a program looks at afterwards


def threads() -> list[str]:
    """Threads of this process that are not kept for later calls."""
    crew = {thread for thread, _ in process._crew.threads}
    return sorted(thread.name for thread in threading.enumerate() if thread not in crew)


def tasks() -> list[str]:
    """The same, with native threads; they have no names."""
    return ["thread"] * (len(os.listdir("/proc/self/task")) - len(process._crew.threads))


def files() -> list[str]:
    """Open descriptors."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}").split(":")[0])
    return sorted(found)


def children() -> list[str]:
    """Processes started by this one."""
    return sorted((Path("/proc/self/task") / str(os.getpid()) / "children").read_text().split())


def left(look: Callable[[], list[str]], before: list[str]) -> list[str]:
    """What there is more than before when the time is over; usually nothing, at once."""
    until = time.monotonic() + SETTLE_S
    while (found := Counter(look()) - Counter(before)) and time.monotonic() < until:
        time.sleep(0.005)
    return sorted(found.elements())


def catch(program: Program, begin: Callable[[], None]) -> list[str]:
    """Use a loader, take the interrupts, and say what is wrong then."""
    expected, loader = program.expected(), program.loader()
    program.use(program.loader(), expected)  # what is started once and kept is there now
    gc.collect()
    remote = program.kind.startswith(("memory", "server"))  # obstore has threads and connections of its own
    looks: list[Callable[[], list[str]]] = [threads, children] if remote else [threads, children, tasks, files]
    if not remote and program.kind not in ("executor", "processes"):
        left(tasks, ["thread"])
    before = [look() for look in looks]
    with contextlib.suppress(KeyboardInterrupt), contextlib.suppress(KeyboardInterrupt):
        try:
            begin()
            program.use(loader, expected)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.settrace(None)
    wrong = _left_behind(looks, before)
    for one in (loader, program.loader()):
        program.use(one, expected * 2)
    return wrong + [f"{text}, after reading on" for text in _left_behind(looks, before)]


def _left_behind(looks: list[Callable[[], list[str]]], before: list[list[str]]) -> list[str]:
    gc.collect()
    pairs = [(look.__name__, left(look, old)) for look, old in zip(looks, before, strict=True)]
    return [f"{name} left behind: {new}" for name, new in pairs if new]


def interrupt_at_lines(lines: tuple[int, ...]) -> None:
    """From here on, interrupt the main thread when it has come to so many lines of penstock."""
    left, process = sorted(lines), os.getpid()
    count = 0

    def look(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if "/penstock/" not in frame.f_code.co_filename and "threading.py" not in frame.f_code.co_filename:
            return None
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        # A tracer sees ``with`` again on the way out, where Python does not look for signals.
        if event == "line" and os.getpid() == process and not text.startswith("with "):
            count += 1
            if left and count >= left[0]:
                left.pop(0)
                signal.raise_signal(signal.SIGINT)
        return look

    sys.settrace(look)


# The process that has done the imports, and its forks


def serve(folder: str, endpoint: str, imported: str) -> int:
    """Run a program for each line that comes, in a fork. Answers how it ended."""
    importlib.import_module(imported)
    gc.collect()
    gc.freeze()  # so that programs need not look at what they did not make
    for line in sys.stdin:
        given = json.loads(line)
        case = Case(given["kind"], given["ends"], tuple(given["delays"]), tuple(given["lines"]))
        ready, said = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            return _child(case, Program, (Path(folder), endpoint), ready[1], said[1])
        for end in (ready[1], said[1]):
            os.close(end)
        answer = _watch(child, case, ready[0], said[0])
        for end in (ready[0], said[0]):
            os.close(end)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return 0


def _child(case: Case, make: Any, data: Any, ready: int, said: int) -> int:
    os.setpgid(0, 0)
    for number, end in ((0, os.open(os.devnull, os.O_RDWR)), (1, said), (2, said)):
        os.dup2(end, number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.register(signal.SIGUSR1, all_threads=True)

    def begin() -> None:
        os.write(ready, b"r")
        if case.lines:
            interrupt_at_lines(case.lines)

    program = make(case.kind, *data)
    if case.ends:
        expected, loader = program.expected(), program.loader()
        try:
            begin()
            program.use(loader, expected)
        finally:
            program.close()
        return 0
    wrong = catch(program, begin)
    os.write(2, "".join(f"WRONG {text}\n" for text in wrong).encode())
    os._exit(3 if wrong else 0)


def _watch(child: int, case: Case, ready: int, said: int) -> dict[str, Any]:
    """Interrupt a program; its status, or None if it hangs, and what it said."""
    select.select([ready], [], [], DEADLINE_S)
    for delay in case.delays:
        time.sleep(delay)
        os.kill(child, signal.SIGINT)  # it is there until it was waited for
    text, until, ended = b"", time.monotonic() + DEADLINE_S, (0, 0)
    while ended == (0, 0) and time.monotonic() < until:
        if select.select([said], [], [], 0.01)[0]:
            text += os.read(said, 1 << 16)
        ended = os.waitpid(child, os.WNOHANG)
    if ended == (0, 0):
        os.kill(child, signal.SIGUSR1)  # shows what its threads do
        time.sleep(1)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    while select.select([said], [], [], 0.2)[0] and (more := os.read(said, 1 << 16)):
        text += more
    return {"status": None if ended == (0, 0) else os.waitstatus_to_exitcode(ended[1]), "said": text.decode(errors="replace")}


# The campaign


class Nursery:
    """Starts the programs."""

    def __init__(self, folder: Path, endpoint: str, imported: str) -> None:
        words = [sys.executable, "-m", "tests.hostile.interrupts", "--serve", str(folder), endpoint, imported]
        self._process = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, case: Case) -> dict[str, Any]:
        """How a program ended, and what it said."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(case)) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """No more."""
        self._process.communicate()


@contextlib.contextmanager
def nursery(kinds: Sequence[str] = KINDS) -> Iterator[Callable[[Case], dict[str, Any]]]:
    """Runs programs of some kinds; with the data and the server that they read."""
    with tempfile.TemporaryDirectory() as name, Double() as double, contextlib.ExitStack() as stack:
        write_data(Path(name))
        double.put("rows.npy", (Path(name) / "rows.npy").read_bytes())
        imported = {kind: "penstock.deliver.torch" if kind in ("torch", "workers") else "penstock" for kind in kinds}
        nurseries = {
            module: stack.enter_context(contextlib.closing(Nursery(Path(name), double.endpoint, module)))
            for module in set(imported.values())
        }
        yield lambda case: nurseries[imported[case.kind]].run(case)


OTHER_ERROR = re.compile(r"^[\w.]*(Error|Exception(?! ignored)|Died|Exit)\b.*", re.MULTILINE)


def fault(case: Case, answer: dict[str, Any]) -> str:
    """What is wrong with the end of a program; "" if nothing is."""
    status, said = answer["status"], answer["said"]
    if case.kind == "workers":  # a worker of torch whose reader is gone: multiprocessing shows that, and goes on
        said = re.sub(r"(?s)Traceback[^T]*?resource_sharer.py[^T]*?\nConnectionResetError[^\n]*", "", said)
        # At its end multiprocessing removes the directory of its sockets, into which a worker that ends may still put one.
        said = re.sub(r"(?s)Traceback[^T]*?_remove_temp_dir[^T]*?\nOSError: \[Errno 39\][^\n]*/pymp-[^\n]*", "", said)
    if status is None:
        return "hang"
    if status < 0 and status != -signal.SIGINT:
        return "abort"
    if status not in (0, 3, 130, -signal.SIGINT) or OTHER_ERROR.search(said):
        return "error"
    lost = said.partition("Exception ignored in: ")[2]  # not one in an atexit callback: the program is ending anyway
    # The tracer is called at the end of ``__del__`` too, and Python looks for signals in every call; without it, not there.
    of_tracer = case.lines and re.search(r"in look\n\s+def look\(.*\n[\s^]*KeyboardInterrupt", lost)
    if re.search("/penstock/(?!interrupt.py)", lost) and not of_tracer:
        return "swallowed"
    if status == 3:
        return "leak"
    return "" if case.ends or status == 0 else "uncaught"


def draw(chance: random.Random, kind: str, *, by_lines: bool) -> Case:
    """A case by lot."""
    times = chance.choice([1, 1, 2])
    ends = chance.random() < 0.4
    if by_lines:
        first = chance.randrange(1, 4000)
        return Case(kind, ends, (), (first, first + chance.randrange(1, 200))[:times])
    first_s = chance.choice([chance.random() * 0.02, chance.random() * 0.1, chance.random() * 0.1, chance.random() * 0.5])
    return Case(kind, ends, (first_s, chance.choice([chance.random() * 0.005, chance.random() * 0.05]))[:times])


def campaign(cases: list[Case], *, jobs: int, report: Callable[[str], object]) -> "Counter[str]":
    """Run cases; how many had which fault."""
    queue, found, lock = iter(cases), Counter[str](), threading.Lock()

    def work() -> None:
        with nursery() as run:
            while True:
                with lock:
                    case = next(queue, None)
                if case is None:
                    return
                answer = run(case)
                found[what := fault(case, answer)] += 1
                if what:
                    report(f"{what}: {case} status {answer['status']}\n{answer['said']}")

    crew = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    return found


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--busy", type=int, default=0, help="processes that only use the processor")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--lines", action="store_true", help="interrupt at lines of Python instead of moments")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        return serve(*given.serve)
    chance, kinds = random.Random(given.seed), given.kind or KINDS
    cases = [draw(chance, kinds[number % len(kinds)], by_lines=given.lines) for number in range(given.count)]
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(given.busy)]
    try:
        found = campaign(cases, jobs=given.jobs, report=lambda text: sys.stdout.write(text + "\n"))
    finally:
        for process in busy:
            process.kill()
            process.wait()
    interrupts = sum(len(case.delays) + len(case.lines) for case in cases)
    sys.stdout.write(f"{len(cases)} programs, {interrupts} interrupts: {found.pop('', 0)} good, {dict(found)}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
