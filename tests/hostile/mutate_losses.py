"""Mutants of the log of a run, and of certificates: losses are those of their records, or there is a typed error, in little memory.

    python -m tests.hostile.mutate_losses --count N [--seed S]

Three kinds, in turn: bytes of a file of losses damaged, as a disk or a copy may do it; a value of a head or block replaced, with
the right checksums around it, as somebody may do it on purpose; and a value of a certificate replaced. Behind a mutant of the first
kind every loss that is left is the right one. Behind the others commands end, with a result or a typed error.
"""

import argparse
import collections
import copy
import json
import random
import shutil
import struct
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tests.hostile.mutate_notes import NUMBERS, mutate_bytes

import penstock as pen
from penstock.errors import PenstockError
from penstock.native import _core
from penstock.trace import Certificate, Run, blame_run, blame_step, certify, certify_run, compare
from penstock.trace.loss_log import BLOCK, HEAD
from penstock.trace.loss_table import is_missing

MOST_BYTES = 96 << 20
LARGE = (2**20, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 10**18)
TEXTS = (
    "keep",
    "drop",
    "pad",
    "wrap",
    "sample",
    "document",
    "/etc/passwd",
    "http://127.0.0.1:9/x",
    "x" * 1000,
    "attention",
    "text",
)


def make_loader(balance: Any = None, rank: int = 0, tail: str = "keep") -> pen.Loader:
    data = pen.open({"x": np.arange(90), "text": ["a" * (1 + n % 7) for n in range(90)]})
    return pen.Loader(data.shuffle(seed=7), 12, tail=tail, shard=pen.Shard(rank, 2), balance=balance, threads=0)


def crc(data: bytes) -> int:
    return int(_core.crc32c(np.frombuffer(data, np.uint8)))


def parts_of(content: bytes) -> tuple[dict[str, Any], list[tuple[list[int], bytes]]]:
    """The head of a file of losses, and its blocks: (magic, steps, first, losses, each), body."""
    _, length, _ = HEAD.unpack(content[: HEAD.size])
    place = HEAD.size + length + -(HEAD.size + length) % 8
    head, blocks = json.loads(content[HEAD.size : HEAD.size + length]), []
    while place < len(content):
        *numbers, _, _ = BLOCK.unpack(content[place : place + BLOCK.size])
        size = 4 * numbers[3] + (4 * numbers[1] if numbers[4] == 2**32 - 1 else 0)
        blocks.append((numbers, content[place + BLOCK.size : place + BLOCK.size + size]))
        place += BLOCK.size + size
    return head, blocks


def sealed(head: Any, blocks: list[tuple[list[int], bytes]]) -> bytes:
    """A file of losses with the right checksums."""
    text = json.dumps(head).encode()
    content = HEAD.pack(b"PENLOSS1", len(text), crc(text)) + text + bytes(-(HEAD.size + len(text)) % 8)
    for numbers, body in blocks:
        beginning = struct.pack("<IIQII", *numbers) + struct.pack("<I", crc(body))
        content += beginning + struct.pack("<I", crc(beginning)) + body
    return content


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Everything in a JSON value that can be replaced: (container, key)."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from places_in(inner)


def replaced(rng: random.Random, value: Any) -> Any:
    """A copy with something replaced, left out, or added to a number."""
    made = copy.deepcopy(value)
    container, key = rng.choice(list(places_in(made)))
    if isinstance(container, dict) and rng.random() < 0.1:
        del container[key]
    elif isinstance(container[key], int) and rng.random() < 0.3:
        container[key] += rng.choice((-1, 1, 2, 12))
    else:
        container[key] = copy.deepcopy(rng.choice((*NUMBERS, *LARGE, *TEXTS)))
    return made


def mutate_file(rng: random.Random, content: bytes) -> bytes:
    """A value of a head or a block replaced, with the right checksums."""
    head, blocks = parts_of(content)
    if rng.random() < 0.6:
        return sealed(replaced(rng, head), blocks)
    numbers, body = blocks[place := rng.randrange(len(blocks))]
    field = rng.randrange(1, 5)
    value = rng.choice(
        (0, 1, 2, 3, 12, numbers[field] + 1, 2**20, 2**31, 2**32 - 1, *((2**62, 2**63, 2**64 - 1) if field == 2 else ()))
    )
    changed = [*numbers[:field], value, *numbers[field + 1 :]]
    if rng.random() < 0.3:
        body = body[: rng.randrange(len(body) + 1) // 4 * 4]
    return sealed(head, [*blocks[:place], (changed, body), *blocks[place + 1 :]])


class Logs:
    """Logs of runs, of which one file is damaged."""

    def __init__(self, where: Path) -> None:
        self._where = where
        self._loaders = []
        for number, (tail, balance) in enumerate((("keep", None), ("wrap", "text"), ("pad", pen.Balance("text", micro_batches=2)))):
            for rank in range(2):
                loader = make_loader(balance, rank, tail)
                with pen.LossLog(where / f"run{number}", loader, buffer=64, seconds=1e9, data=where / "nowhere.pen") as log:
                    for batch, _ in zip(loader.forever(), range(11), strict=False):
                        log(batch["x"])
                loader.close()
            self._loaders.append(make_loader(tail=tail))

    def attack(self, rng: random.Random, *, forged: bool) -> tuple[str, str]:
        """What a mutant led to, and what was wrong with that."""
        number, here = rng.randrange(len(self._loaders)), self._where / "mutant"
        shutil.copytree(self._where / f"run{number}", here)
        names = sorted(path.name for path in here.iterdir())
        file = here / rng.choice(names)
        content = file.read_bytes()
        file.write_bytes(mutate_file(rng, content) if forged else mutate_bytes(rng, content, content))
        if forged and rng.random() < 0.2:
            file.rename(here / f"{rng.randrange(10**12):06d}-{rng.randrange(10**10):05d}.losses")
        try:
            return self._look(here, self._loaders[number], rng, forged=forged)
        finally:
            shutil.rmtree(here)

    def _look(self, here: Path, loader: pen.Loader, rng: random.Random, *, forged: bool) -> tuple[str, str]:
        try:
            run = Run.open(here, loader)
            wrong = "" if forged else _wrong_losses(run)
            for act in rng.sample([blame_run, certify_run, lambda run: blame_step(run, int(rng.choice(run.table.steps)))], 2):
                act(run)
            if forged:
                Run.open(here, data=loader.stream.parts[0].source)
        except (PenstockError, ValueError, IndexError) as error:
            is_typed = isinstance(error, PenstockError) or "does not say how its stream is made" in str(error)
            is_told = is_typed and str(error).isprintable() and len(str(error)) < 2000
            return "refused", "" if is_told else f"a bad message: {error!r}"
        return "read", wrong


def _wrong_losses(run: Run) -> str:
    for step in run.table.steps.tolist():
        visits = run.visits(step)
        if ((visits.loss != visits.id) & ~is_missing(visits.loss)).any():
            return f"a wrong loss at step {step}"
    return ""


class Certificates:
    """Certificates of which a value is replaced."""

    def __init__(self, where: Path) -> None:
        self._file = where / "certificate.json"
        loader = make_loader()
        self._right = certify(loader, [0, 1, 2, 5, 6], records=True)
        partial = self._right.as_json() | {"partial": [[5, [1], 2]]}
        self._values = [self._right.as_json(), partial, certify(loader, range(9)).as_json()]

    def attack(self, rng: random.Random) -> tuple[str, str]:
        value = replaced(rng, rng.choice(self._values))
        self._file.write_text(json.dumps(value))
        try:
            found = Certificate.load(self._file)
        except PenstockError as error:
            return "refused", "" if str(error).isprintable() and len(str(error)) < 2000 else f"a bad message: {error!r}"
        for pair in ((found, self._right), (self._right, found)):
            compared = compare(*pair)
            if any(not str(reason).isprintable() or len(str(reason)) > 2000 for reason in compared.reasons):
                return "read", f"a bad reason: {compared.reasons!r}"
        return "read", ""


def campaign(count: int, seed: int) -> tuple[collections.Counter[str], list[str]]:
    """What mutants led to, and what was wrong."""
    outcomes: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        logs, certificates = Logs(Path(directory)), Certificates(Path(directory))
        tracemalloc.start()
        try:
            for number in range(count):
                rng = random.Random(f"{seed} {number}")
                kind = ("damaged", "forged", "certificate")[number % 3]
                tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
                try:
                    outcome, fault = certificates.attack(rng) if number % 3 == 2 else logs.attack(rng, forged=number % 3 == 1)
                except Exception as error:
                    outcome, fault = "failed", f"{type(error).__name__}: {error}"
                outcomes[f"{kind} {outcome}"] += 1
                if tracemalloc.get_traced_memory()[1] - before > MOST_BYTES:
                    fault = fault or f"{(tracemalloc.get_traced_memory()[1] - before) >> 20} MiB of memory"
                if fault:
                    wrong.append(f"mutant {number} of seed {seed}: {kind}: {fault[:300]}")
        finally:
            tracemalloc.stop()
    return outcomes, wrong


def main() -> None:
    """The campaign from a shell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    words = parser.parse_args()
    outcomes, wrong = campaign(words.count, words.seed)
    print(dict(outcomes), f"{len(wrong)} wrong", *wrong[:40], sep="\n")  # noqa: T201 - a program
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
