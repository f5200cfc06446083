"""Mutants of what penstock writes for itself, or looks at to tell formats apart: they are noticed, and nothing wrong comes of them.

    python -m tests.hostile.mutate_notes --count N [--seed S]

Three kinds, in turn: the note of an unfinished conversion (bytes damaged, lines lost, doubled, swapped, or of another conversion);
the receipt of a fragment (one value replaced); and the first and last bytes of files without a suffix, or the index of a directory.
A mutant of the first two leads to the right store, or to a typed error and no store. One of the last opens, or is a typed error.
"""

import argparse
import collections
import copy
import json
import random
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.hostile.fault_workloads import make_data

import penstock as pen
from penstock.conversion import convert as convert_module
from penstock.conversion import reading
from penstock.errors import PenstockError
from penstock.store import Target, commit_fragments, write_fragment

COUNT = 60
CHUNK = 10
ALLOWED = (PenstockError, ValueError, TypeError)
NUMBERS = (0, 1, -1, 7, 2**31, 2**32, 2**63, 2**64, 10**30, 1.5, True, None, "x", "", [], {}, [[]], {"a": 1})


class InterruptError(Exception):
    """What ends a conversion in the middle."""


def data() -> dict[str, Any]:
    """What is converted."""
    return {"x": np.arange(COUNT), "text": [f"record {i}" for i in range(COUNT)]}


def begin(path: Path, chunks: int, **options: Any) -> None:
    """A conversion that ends after some chunks."""
    done = 0

    def report(rows: int, size: int) -> None:
        nonlocal done
        done += 1
        if done == chunks:
            raise InterruptError

    try:
        pen.convert(data(), path, chunk_records=CHUNK, threads=1, progress=report, **options)
    except InterruptError:
        return
    raise AssertionError("the conversion got through")


def is_right(path: Path) -> bool:
    """Whether a store has the records, and nothing is wrong with it."""
    with pen.open(path) as store:
        expected = data()
        same = store["x"][:].tolist() == expected["x"].tolist() and list(store["text"][:]) == expected["text"]
    return same and not pen.verify(path)


# Notes


def sealed(text: str) -> bytes:
    """A line of a note with the right checksum."""
    return f"{text} {zlib.crc32(text.encode()):08x}".encode()


def mutate_bytes(rng: random.Random, content: bytes, other: bytes) -> bytes:
    """Damage that a disk, an editor or a copy may do."""
    place, lines = rng.randrange(len(content)), content.split(b"\n")
    kind = rng.randrange(9)
    if kind == 0:
        return content[:place] + bytes([content[place] ^ (1 << rng.randrange(8))]) + content[place + 1 :]
    if kind == 1:
        return content[:place]
    if kind == 2:
        return content[:place] + content[place + rng.randrange(1, 40) :]
    if kind == 3:
        return content[:place] + rng.randbytes(rng.randrange(1, 40)) + content[place:]
    if kind == 4:
        return content[:place] + bytes(min(64, len(content) - place)) + content[place + 64 :]
    first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
    if kind == 5:
        lines[first], lines[second] = lines[second], lines[first]
    elif kind == 6:
        lines.insert(second, lines[first])
    elif kind == 7:
        del lines[first]
    else:
        lines[first] = rng.choice(other.split(b"\n"))
    return b"\n".join(lines)


def mutate_value(rng: random.Random, content: bytes) -> bytes:
    """One value of a receipt replaced, with the right checksum. Which task it is of stays: chunks do not know their place, so that
    whoever forges that makes another store, as one does who replaces the chunks.
    """
    lines = content.split(b"\n")
    places = [number for number, line in enumerate(lines) if line.startswith(b'{"dataset"')]
    place = rng.choice(places)
    value = json.loads(lines[place].rpartition(b" ")[0])
    lines[place] = sealed(json.dumps({**mutate_receipt(rng, value), "task": value["task"]}))
    return b"\n".join(lines)


class Notes:
    """Unfinished conversions, whose notes are damaged."""

    def __init__(self, where: Path) -> None:
        self._where = where
        convert_module.BATCH_BYTES, reading.FIRST_RECORDS = 200, 12  # so that there are receipts of several chunks
        self._options: list[dict[str, Any]] = [{}, {"map": dict}]
        for number, options in enumerate(self._options):
            (where / f"begun{number}").mkdir()
            begin(where / f"begun{number}" / "d.pen", 4, **options)
        (where / "other").mkdir()
        begin(where / "other" / "d.pen", 3)
        self._other = (where / "other" / "d.pen.partial.json").read_bytes()

    def attack(self, rng: random.Random) -> tuple[str, str]:
        """What a mutant led to, and what was wrong with that."""
        number = rng.randrange(len(self._options))
        here = self._where / "mutant"
        shutil.copytree(self._where / f"begun{number}", here)
        note = here / "d.pen.partial.json"
        content = note.read_bytes()
        try:
            note.write_bytes(mutate_value(rng, content) if rng.random() < 0.3 else mutate_bytes(rng, content, self._other))
            return self._convert(here / "d.pen", self._options[number])
        finally:
            shutil.rmtree(here)

    def _convert(self, path: Path, options: dict[str, Any]) -> tuple[str, str]:
        try:
            pen.convert(data(), path, chunk_records=CHUNK, threads=1, **options)
        except PenstockError as error:
            said = "" if str(path.parent) in str(error) and str(error).isprintable() else f"a bad message: {error!r}"
            return "refused", "a store appeared" if path.exists() else said
        return "finished", "" if is_right(path) else "another store"


# Receipts


def mutate_receipt(rng: random.Random, receipt: dict[str, Any]) -> Any:
    """A receipt with one value replaced."""
    made = copy.deepcopy(receipt)
    kind = rng.randrange(4)
    if kind == 0:
        made[rng.choice(list(made))] = rng.choice(NUMBERS)
    elif kind == 1 and made["chunks"]:
        chunk = rng.choice(made["chunks"])
        place = rng.randrange(len(chunk))
        chunk[place] = rng.choice([*NUMBERS, chunk[place] + 1, chunk[place] - 1, chunk[place] ^ (1 << rng.randrange(32))])
    elif kind == 2:
        made.pop(rng.choice(list(made)))
    else:
        name = rng.choice([name for name in made if isinstance(made[name], int)])
        made[name] += rng.choice([-1, 1])
    return made


class Receipts:
    """Fragments of a store, of whose receipts one is damaged."""

    def __init__(self, where: Path) -> None:
        self._path = where / "r.pen"
        self._rows = data()
        with pen.create(self._path, {"x": pen.Field("i8"), "text": pen.Field.text()}, chunk_records=CHUNK) as out:
            target = Target.of(out)
            self._receipts = [write_fragment(target, [self._part(task)], task=task, tasks=3) for task in range(3)]
            out.commit()
        self._template = where / "template.pen"
        shutil.copytree(self._path, self._template)

    def _part(self, task: int) -> dict[str, Any]:
        return {name: column[task * 20 : task * 20 + 20] for name, column in self._rows.items()}

    def attack(self, rng: random.Random) -> tuple[str, str]:
        """What a mutant led to, and what was wrong with that."""
        receipts: list[Any] = list(self._receipts)
        place = rng.randrange(3)
        receipts[place] = mutate_receipt(rng, receipts[place])
        before = set((self._path / "manifest").iterdir())
        try:
            with pen.open(self._path, mode="a", threads=1) as out:
                commit_fragments(out, receipts)
        except ALLOWED as error:
            shown = str(error)
            wrong = "" if shown.isprintable() and len(shown) < 2000 else f"a bad message: {error!r}"
            return "refused", "a generation appeared" if set((self._path / "manifest").iterdir()) != before else wrong
        wrong = "" if is_right(self._path) else f"another store from {receipts[place]}"
        shutil.rmtree(self._path)
        shutil.copytree(self._template, self._path)
        return "committed", wrong


# Formats


class Formats:
    """Files without suffixes, and directories of other tools, whose telling bytes are damaged."""

    def __init__(self, where: Path) -> None:
        self._where = where / "formats"
        self._where.mkdir()
        make_data(self._where)
        names = (
            "a.npy",
            "rows/shard-000000.shard",
            "t_000000.rox",
            "plain.arrow",
            "p.parquet",
            "plain.h5",
            "r.array_record",
            "c.json",
        )
        self._files = [(self._where / name).read_bytes() for name in names]
        self._indices = [b'{"version": 2, "shards": []}', b'{"chunks": [], "config": {}}', b"[" * 10_000, b'{"a": ' * 5_000 + b"1"]

    def attack(self, rng: random.Random) -> tuple[str, str]:
        """What a mutant led to, and what was wrong with that."""
        path = self._where / "mutant"
        if rng.random() < 0.5:
            content = rng.choice(self._files)
            place = rng.choice([rng.randrange(16), len(content) - 1 - rng.randrange(8)])
            path.write_bytes(content[:place] + rng.randbytes(rng.randrange(4)) + content[place + rng.randrange(4) :])
        else:
            content = mutate_bytes(rng, rng.choice(self._indices), b"\xff\n{}\nnull\n[]")
            path.mkdir()
            name = rng.choice(["index.json", "dataset_info.json", "zarr.json", "LOCK", "manifest", "a.tar", "x.npz", ".zgroup"])
            (path / name).write_bytes(content)
            (path / "data.bin").write_bytes(b"data")
        try:
            pen.open(path).close()
        except ALLOWED as error:
            wrong = "" if isinstance(error, PenstockError) and str(path) in str(error) else f"a bad message: {error!r}"
            return "refused", wrong
        finally:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return "opened", ""


def campaign(count: int, seed: int, report: Callable[[str], object] = str) -> tuple[dict[str, int], list[str]]:
    """So many mutants: what they led to, and what was wrong."""
    outcomes: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="penstock-notes-") as name:
        where = Path(name).resolve()
        attacks = (Notes(where), Receipts(where), Formats(where))
        for number in range(count):
            one, rng = attacks[number % len(attacks)], random.Random(seed * 1_000_000 + number)
            try:
                outcome, what = one.attack(rng)
            except Exception as error:
                outcome, what = "failed", f"a bare {type(error).__name__}: {error}"[:500]
            outcomes[f"{type(one).__name__.lower()} {outcome}"] += 1
            if what:
                wrong.append(f"mutant {number} of seed {seed}: {what}")
                report(f"WRONG {wrong[-1]}\n")
    return dict(outcomes), wrong


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    outcomes, wrong = campaign(given.count, given.seed, sys.stdout.write)
    sys.stdout.write("".join(f"{count:6d}  {name}\n" for name, count in sorted(outcomes.items())))
    sys.stdout.write(f"{sum(outcomes.values())} mutants, {len(wrong)} wrong\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
