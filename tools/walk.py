"""How far a first batch has to go: the files and functions of penstock that it passes, with and without opening the data.

::

    python -m tools.walk [disk|url|tokens]

Three ways: a shuffled store on a disk, the same store at a URL, and a mixture of tokens with two phases. Threads that are started
on the way count too. Every way is gone in a process of its own, so that nothing is remembered from the one before.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import penstock
import penstock as pen
from penstock.order import Phase
from penstock.remote.url import url_path
from penstock.source import write_tokens

PACKAGE = Path(penstock.__file__).parent
INNER = ("<lambda>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")
VERSION_1 = {"disk": (21, 99), "url": (48, 330), "tokens": (37, 269)}


def functions_passed(walk: Callable[[], object]) -> list[tuple[str, str]]:
    """The functions of penstock that are called, in any thread: file and name. Comprehensions are part of their function."""
    seen: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            seen.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        walk()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    own = (code for code in tuple(seen) if code.co_filename.startswith(f"{PACKAGE}/") and code.co_name not in (*INNER, "<module>"))
    return sorted({(str(Path(code.co_filename).relative_to(PACKAGE)), code.co_qualname) for code in own})


def _store(path: Path) -> None:
    with pen.create(path, {"x": pen.Field("f4", (64,)), "y": pen.Field("i8")}, chunk_records=500) as out:
        out.extend({"x": np.ones((2000, 64), np.float32), "y": np.arange(2000)})


def from_disk(directory: Path) -> Callable[[], pen.Loader]:
    """A store, shuffled."""
    _store(directory / "a.pen")
    return lambda: pen.Loader(pen.open(directory / "a.pen").shuffle(seed=7), 64)


def from_url(directory: Path) -> Callable[[], pen.Loader]:
    """The same, in an object store in memory."""
    _store(directory / "a.pen")
    for file in sorted(path for path in directory.rglob("*") if path.is_file()):
        place = url_path(f"memory://walk/{file.relative_to(directory)}")
        place.objects.put(place.key, file.read_bytes())
    return lambda: pen.Loader(pen.open("memory://walk/a.pen").shuffle(seed=7), 64)


def from_tokens(directory: Path) -> Callable[[], pen.Loader]:
    """Two token files, mixed, in sequences whose length changes."""
    for name in "ab":
        write_tokens([np.arange(200_000, dtype=np.uint16)], directory / f"{name}.rox", block_size=1024)

    def make() -> pen.Loader:
        streams = {name: pen.open(directory / f"{name}.rox").shuffle(seed=7).sequences(128) for name in "ab"}
        mixed = pen.mix(streams, weights={"a": 0.7, "b": 0.3}, seed=1, stop="all_exhausted")
        return pen.Loader(mixed, phases=[Phase(10, batch_size=16, seq_len=64), Phase(10, batch_size=8, seq_len=128)])

    return make


WALKS = {"disk": from_disk, "url": from_url, "tokens": from_tokens}


def walked(name: str) -> Iterator[str]:
    """The functions of a way, a line each; those of the batch itself are marked."""
    with tempfile.TemporaryDirectory() as directory:
        made: list[Any] = []
        make = WALKS[name](Path(directory))
        opening = functions_passed(lambda: made.append(make()))
        batch = functions_passed(lambda: made.append(iter(made[0])) or next(made[1]))
        made[0].close()
    for one in sorted({*opening, *batch}):
        yield f"{'batch' if one in batch else 'open '} {' '.join(one)}"


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("walk", nargs="?", choices=WALKS, help="only this one, function by function")
    options = parser.parse_args(arguments)
    if options.walk is not None:
        print(*walked(options.walk), sep="\n")
        return
    for name in WALKS:
        command = [sys.executable, "-m", "tools.walk", name]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        batch = [line for line in lines if line.startswith("batch")]
        print(f"{name:8} first batch: {_counted(batch)}; with opening: {_counted(lines)}; version 1: {VERSION_1[name]}")


def _counted(lines: list[str]) -> str:
    return f"{len({line.split()[1] for line in lines})} files, {len(lines)} functions"


if __name__ == "__main__":
    main()
