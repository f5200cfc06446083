"""Runs the tests: all of them in three processes at once, or with arguments for pytest, in one.

The files of tests are a queue, those that took longest first (``tests/durations.json``, files that are not in it before all
others); each process takes the next one when it is done with the last, so that all end together. Files that import torch or jax
are a queue of their own: the first process begins with it, the others end with it, so that few processes import them, and most
forks are those of small ones. A process that has grown large is replaced by a new one: hundreds of tests fork, which takes 3 ms of
CPU time with numpy and pyarrow, 11 with torch and jax, and 50 in a process with a gigabyte of its own. A new process takes 5 to 8 s
of CPU time for its imports and servers, so that this happens to processes that hold data, and not to all that have imported torch.
Results go to out/tests-*.xml, CPU time to out/tests-*.cpu (tools/cost.py). Exit code 0 if all passed.

``--processes N`` takes another number of processes: more where other programs take the cores.
``--record`` writes the durations of the last run to ``tests/durations.json``.
"""

import fcntl
import itertools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from cost import Meter

PROCESSES = 3
"""One more than cores: many tests wait for programs that they started."""
OUT = Path("out")
DURATIONS = Path("tests/durations.json")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # others start with every program, and wait by spinning
_ITEM_BYTES = 4
LARGE_BYTES = 700 << 20
HEAVY = re.compile(r"^\s*(?:from|import) (?:torch|jax|accelerate)\b|\bdeliver\.(?:torch|jax)|, \"torch\"\)\]", re.MULTILINE)


class Worker:
    """A plugin of pytest that runs the files whose numbers it reads from pipes, until the last pipe is empty."""

    def __init__(self, pipes: Sequence[int]) -> None:
        self._pipes = pipes
        self._modules: dict[str, pytest.Module] = {}

    def pytest_collection(self, session: pytest.Session) -> bool:
        session.perform_collect(genitems=False)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item | pytest.Collector]) -> None:
        """The files, as modules that are not imported yet: here, as pytest forgets the fixtures of directories that are not looked
        into before their collection ends."""
        if not self._modules:
            self._modules = {module.nodeid: module for module in _modules(items)}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Every test of every file that is taken."""
        for items in self._taken(session):
            session.testscollected += len(items)
            for item, following in itertools.zip_longest(items, items[1:], fillvalue=session):
                # The session in place of a next item: fixtures of the session stay.
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        return True

    def _taken(self, session: pytest.Session) -> Iterator[list[pytest.Item]]:
        # Numbers are read whole: all of them are in the pipe before the first process starts.
        while _own_bytes() < LARGE_BYTES and (number := self._number()):
            items = list(session.genitems(self._modules[_files()[int.from_bytes(number)]]))
            session.config.hook.pytest_collection_modifyitems(session=session, config=session.config, items=items)
            yield items

    def _number(self) -> bytes:
        """That of the next file; nothing when all are taken."""
        return next(filter(None, (os.read(pipe, _ITEM_BYTES) for pipe in self._pipes)), b"")


def _modules(nodes: Iterable[pytest.Item | pytest.Collector]) -> Iterator[pytest.Module]:
    """Those of directories: pytest would list a directory again for every file in it that it was given by name."""
    for node in nodes:
        if isinstance(node, pytest.Module):
            yield node
        elif isinstance(node, pytest.Directory):
            yield from _modules(node.ihook.pytest_make_collect_report(collector=node).result)


def _own_bytes() -> int:
    """Memory that a fork has to look at: not that of mapped files, such as libraries."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * resource.getpagesize()


def run_worker(name: str, pipes: Sequence[int]) -> int:
    """One of the processes."""
    del sys.modules["__main__"].__file__  # processes that tests spawn would run this file again, and import pytest
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests were started in the background
    arguments = ["-p", "no:cacheprovider", f"--junitxml={OUT}/tests-{name}.xml", "-o", "console_output_style=classic"]
    code = int(pytest.main([*arguments, "tests"], plugins=[Worker(pipes), Meter(OUT / f"tests-{name}.cpu")]))
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code  # others took the last ones


def run_all(processes: int = PROCESSES) -> int:
    """All tests, and a line about the time they took."""
    OUT.mkdir(exist_ok=True)
    for old in OUT.glob("tests-*"):
        old.unlink()
    files, durations = _files(), json.loads(DURATIONS.read_text())
    ends = [os.pipe() for _ in range(2)]  # of files with torch or jax, and of all others
    for file in sorted(files, key=lambda file: -durations.get(file, float("inf"))):
        os.write(ends[not HEAVY.search(Path(file).read_text())][1], files.index(file).to_bytes(_ITEM_BYTES))
    for _, end in ends:
        os.close(end)
    pipes = [pipe for pipe, _ in ends]
    began, codes = time.monotonic(), list[int]()
    with tempfile.TemporaryDirectory(prefix="tests-", ignore_cleanup_errors=True) as scratch:
        lines = [
            threading.Thread(target=_run_line, args=(number, pipes if number == 0 else pipes[::-1], scratch, codes))
            for number in range(processes)
        ]
        for line in lines:
            line.start()
        for line in lines:
            line.join()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{processes} processes took {time.monotonic() - began:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of CPU time")
    return max(map(abs, codes))


def _run_line(number: int, pipes: Sequence[int], scratch: str, codes: list[int]) -> None:
    """One process after the other, as long as there are files."""
    # Programs that tests start import penstock: with its bytecode on disk they need half the time.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | ONE_THREAD
    for turn in itertools.count():
        name = f"{number}-{turn}"
        # Sessions of pytest that share a directory remove those of ended ones, and fail where two remove the same.
        environment["PYTEST_DEBUG_TEMPROOT"] = scratch + "/" + name
        Path(environment["PYTEST_DEBUG_TEMPROOT"]).mkdir()
        command = [sys.executable, __file__, "--worker", name, *map(str, pipes)]
        with (OUT / f"tests-{name}.log").open("w") as log:
            codes.append(subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=environment, pass_fds=pipes).returncode)
        print((OUT / f"tests-{name}.log").read_text(), flush=True)
        if not any(map(_bytes_left, pipes)):
            return


def _bytes_left(pipe: int) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def record() -> None:
    """The durations of the last run become those that the next one is planned by."""
    durations: defaultdict[str, float] = defaultdict(float)
    for results in OUT.glob("tests-*.xml"):
        for case in ET.parse(results).iter("testcase"):
            words = case.attrib["classname"].split(".")
            last = next(i for i, word in enumerate(words) if word.startswith("test_"))
            durations["/".join(words[: last + 1]) + ".py"] += float(case.attrib["time"])
    rounded = {file: round(seconds, 1) for file, seconds in sorted(durations.items())}
    DURATIONS.write_text(json.dumps(rounded, indent=0) + "\n")


def _files() -> list[str]:
    return sorted(str(path) for path in Path("tests").rglob("test_*.py"))


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            sys.exit(run_all())
        case ["--processes", number]:
            sys.exit(run_all(int(number)))
        case ["--record"]:
            record()
        case ["--worker", number, *pipes]:
            sys.exit(run_worker(number, [int(pipe) for pipe in pipes]))
        case arguments:
            sys.exit(pytest.main(arguments))
