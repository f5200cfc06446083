"""What tests cost in CPU time, their programs included: a plugin of pytest, and a table of what it recorded.

Wall time says little on a machine that others use too. CPU time of a test is that of this process and of the children it has waited
for, from its setup to the end of its teardown; servers that last longer than one test are counted where they end.

``python tools/cost.py [--by folder|file|function|test] [--top N]`` prints the last run (out/tests-*.cpu).
``python tools/cost.py --run ARGUMENTS`` runs pytest with these arguments, and prints what it cost.
"""

import argparse
import resource
import sys
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

OUT = Path("out")


class Meter:
    """A plugin of pytest that appends a line for every test: seconds and name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_text("")
        self._seen = cpu_seconds()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Whatever was used between two tests, such as the collection of a file, is part of the second one."""
        result = yield
        now = cpu_seconds()
        with self._path.open("a") as file:
            file.write(f"{now - self._seen:.4f} {item.nodeid}\n")
        self._seen = now
        return result


def cpu_seconds() -> float:
    """CPU time of this process and of the children that it waited for."""
    used = [resource.getrusage(which) for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def group(nodeid: str, by: str) -> str:
    """The name under which a test is counted."""
    file, _, name = nodeid.partition("::")
    match by:
        case "folder":
            return "/".join(file.split("/")[1:-1]) or file
        case "file":
            return file
        case "function":
            return f"{file}::{name.partition('[')[0]}"
        case "name":  # of tests that many classes inherit
            return name.partition("[")[0].rpartition("::")[2]
    return nodeid


def report(paths: list[Path], by: str, top: int) -> None:
    """The most expensive groups first."""
    seconds, counts = defaultdict[str, float](float), Counter[str]()
    for path in paths:
        for line in path.read_text().splitlines():
            used, _, nodeid = line.partition(" ")
            seconds[group(nodeid, by)] += float(used)
            counts[group(nodeid, by)] += 1
    for name, used in sorted(seconds.items(), key=lambda one: -one[1])[:top]:
        print(f"{used:9.2f} s {counts[name]:6} tests  {name}")
    print(f"{sum(seconds.values()):9.2f} s {sum(counts.values()):6} tests in all")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--by", choices=["folder", "file", "function", "name", "test"], default="file")
    parser.add_argument("--top", type=int, default=50)
    parser.add_argument("--run", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if given.run is None:
        report(sorted(OUT.glob("tests-*.cpu")), given.by, given.top)
        return 0
    OUT.mkdir(exist_ok=True)
    path = OUT / "tests-alone.cpu"
    code = pytest.main(given.run, plugins=[Meter(path)])
    report([path], given.by, given.top)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
