"""Damaged .npy, .shard and .rox files, tables of token files, TFRecord files and tar archives: the records they had, other values
where values were damaged, or an error with the path.

    python -m tests.hostile.mutate_rows --count N [--kind npy|shard|rox|idx|...]

Mutants are made by lot: flipped bytes, cuts, inserted, deleted and zeroed extents, numbers at the edges of their ranges, edits of
the text of headers. They are opened and read in forked children with a limit of address space and a deadline. Where a format has
checksums, half of the mutants, and all of tf.Example, get them anew. Otherwise bytes of data that are flipped are other values.
What may not happen is a crash, a hang, an error that is not penstock's or does not name the file, an allocation beyond reason, or
values that are not bytes of the file.
"""

import argparse
import gzip
import os
import random
import signal
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tests.formats import shards, token_files
from tests.hostile import file_changer
from tests.sanitized import limit_address_space

import penstock as pen
from penstock.errors import PenstockError
from penstock.formats import rows, tokens
from penstock.formats.litdata import open_litdata
from penstock.records import Source


@dataclass(frozen=True)
class Target:
    """What is opened where it is not the damaged file itself, how, and the good files next to that."""

    opened: str
    options: Mapping[str, Any] = field(default_factory=dict)
    others: Callable[[], Mapping[str, bytes]] = dict
    open: Callable[..., Source] = pen.open


KINDS = (
    *("npy", "shard", "rox", "idx", "idx scattered", "idx documents", "idx modes", "llm.c"),
    *("ds.index", "ds.metadata", "ds.metadata and index", "ds.loss", "csv.gz", "bin", "json"),
    *("tfrecord", "example", "tar"),
)
EXAMPLE = {"data": pen.Field.bytes(), "label": pen.Field("i8"), "box": pen.Field.ragged("f4"), "codes": pen.Field.ragged("i8")}
TARGETS = {
    "idx": Target("a.idx", {}, lambda: {"a.bin": tokens_image()}),
    "idx scattered": Target("a.idx", {"scattered": True}, lambda: {"a.bin": tokens_image()}),
    "idx documents": Target("a.idx", {"records": "document"}, lambda: {"a.bin": tokens_image()}),
    "idx modes": Target("a.idx", {}, lambda: {"a.bin": tokens_image()}),  # of multimodal data, which is refused
    "llm.c": Target("a.bin", {"block_size": 32}),
    "ds.index": Target("a.ds", {}, lambda: {"a.ds": tokens_image()}),
    "ds.metadata": Target("a.ds", {"block_size": 32}, lambda: {"a.ds": tokens_image()}),
    "ds.metadata and index": Target("a.ds", {}, lambda: {"a.ds": tokens_image(), "a.ds.index": image("ds.index")}),
    "ds.loss": Target("a.ds", {}, lambda: {"a.ds": tokens_image(), "a.ds.index": image("ds.index")}),
    "csv.gz": Target("a.npy", {"documents": True, "dtype": "uint16"}, lambda: {"a.npy": tokens_image()}),
    "bin": Target("", {}, lambda: {"index.json": image("json")}),
    "json": Target("", {}, lambda: {"a.bin": image("bin")}, open_litdata),  # a directory without a good one is a folder of files
    "tfrecord": Target("a.tfrecord"),
    "example": Target("a.tfrecord", {"decode": "example", "schema": EXAMPLE}),
    "tar": Target("a.tar"),
}
NAMES = {"json": "index.json", "llm.c": "a.bin", "example": "a.tfrecord", "ds.metadata and index": "a.ds.metadata"}
NAMES |= {kind: "a.idx" for kind in KINDS if kind.startswith("idx ")}
CHILD_BYTES = 1 << 30
"""What a child may take of address space beyond what it has; mutants have a few kilobytes."""

DEADLINE_S = 300
GROUP = 200
"""Mutants of one child."""

EDGES = [
    edge + step
    for edge in (0, 1 << 7, 1 << 15, 1 << 16, 1 << 31, 1 << 32, 1 << 60, 1 << 61, 1 << 62, 1 << 63)
    for step in (-1, 0, 1)
]
WORDS = [
    b"True",
    b"False",
    b"None",
    b"-1",
    b"0",
    b"99999999999999999999",
    b"(",
    b")",
    b",",
    b"'",
    b"{",
    b"}",
    b"|O",
    b"<f4",
    b">i8",
    b"V9",
]
WORDS += [b"__import__", b"1" * 40, b"(" * 60, b"\n", b"\0", b"\xff", b"1e9", b"0x10", b"1_0", b"'descr'", b"'shape'", b"[[[["]


def tokens_image() -> bytes:
    """The values as tokens."""
    return file_changer.values(1)[:50].tobytes()


def samples() -> list[dict[str, Any]]:
    """Records of tf.Example."""
    return [
        {"data": row.tobytes(), "label": np.int64(-n), "box": row[:3], "codes": np.arange(n % 5) * 300}
        for n, row in enumerate(file_changer.values(1)[:50])
    ]


def messages(data: bytes) -> list[bytes]:
    """The records of a TFRecord file, as far as it has them."""
    found, place = [], 0
    while place + 12 <= len(data):
        size = int.from_bytes(data[place : place + 8], "little")
        found.append(data[place + 12 : place + 12 + size])
        place += size + 16
    return found


def sealed(kind: str, data: bytes) -> bytes:
    """The same with checksums that are right, of as much as can be told."""
    if kind == "tfrecord":
        return shards.tfrecord(messages(data))
    blocks = [bytearray(data[low : low + 512]) for low in range(0, len(data), 512)]
    for block in blocks:
        if len(block) == 512 and block[257:262] == b"ustar":
            block[148:156] = b" " * 8
            block[148:156] = b"%06o\0 " % sum(block)
    return b"".join(blocks)


@cache
def image(kind: str) -> bytes:
    """A good file of 50 records of 16 values, or the table of one."""
    data = file_changer.values(1)[:50]
    documents = list(data.view("<u2"))
    if kind.startswith("idx"):
        documents_at = [*range(0, 51, 5), 50] if kind == "idx documents" else None
        modes = bytes(50) if kind == "idx modes" else b""
        return token_files.megatron_index([16] * 50, np.dtype("<f4"), documents=documents_at) + modes
    if kind == "llm.c":
        return struct.pack("<3i", 20240520, 1, 1600).ljust(1024, b"\0") + data.tobytes()
    if kind.startswith("ds.metadata"):
        return b"gpt2|2\n1600\n1.6 KT\n"
    if kind == "ds.loss":
        return bytes(number % 3 > 0 for number in range(1600))
    if kind == "ds.index":
        return (np.arange(1, 51) * 32).astype("<u8").tobytes()
    if kind == "csv.gz":
        return gzip.compress(b"".join(b"%d,%d,id\n" % (low, low + 32) for low in range(0, 1600, 32)), mtime=0)
    if kind == "bin":
        return token_files.litdata_chunk(documents)
    if kind == "json":
        return token_files.litdata_index([documents], "no_header_numpy:5").replace(b"chunk-0-0.bin", b"a.bin")
    if kind == "tfrecord":
        return shards.tfrecord([row.tobytes() for row in data])
    if kind == "example":
        return shards.tfrecord([shards.example(one) for one in samples()])
    if kind == "tar":
        names = [("d" * 99 + "/" if n == 7 else "") + f"{n}.x" for n in range(50)]
        return shards.tar([(name, row.tobytes()) for name, row in zip(names, data, strict=True)])
    if kind == "shard":
        return rows.HEADER.pack(rows.MAGIC, 50, 16, 0, 0) + data.tobytes()
    if kind == "rox":
        ends = (np.arange(1, 51) * 64).astype("<i8")
        return data.tobytes() + ends.tobytes() + tokens.encode_footer(50, data.nbytes, data.dtype)
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "a.npy"), data)
        return Path(folder, "a.npy").read_bytes()


def structure(kind: str) -> range:
    """The bytes of a file that say how the others are to be read."""
    known = {
        "npy": range(128),
        "shard": range(32),
        "rox": range(len(image("rox")) - 32 - 50 * 8, len(image("rox"))),
        "bin": range(208),
        "llm.c": range(16),
    }
    return known.get(kind, range(len(image(kind))))


def mutate(kind: str, rng: random.Random) -> bytes:
    """A damaged file; half of the damage is done where it matters most."""
    if kind == "example":
        found = messages(image(kind))
        place = rng.randrange(len(found))
        found[place] = mutate_bytes(found[place], range(len(found[place])), rng)
        return shards.tfrecord(found)
    data = mutate_bytes(image(kind), structure(kind), rng)
    return sealed(kind, data) if kind in ("tfrecord", "tar") and rng.random() < 0.5 else data


def mutate_bytes(good: bytes, places: range, rng: random.Random) -> bytes:
    data = bytearray(good)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        at = rng.choice(places) if rng.random() < 0.7 else rng.randrange(len(data) or 1)
        rng.choice(MUTATIONS)(data, min(at, len(data)), rng)
    return bytes(data)


def _flip(data: bytearray, at: int, rng: random.Random) -> None:
    data[at : at + 1] = bytes([rng.randrange(256)])


def _cut(data: bytearray, at: int, rng: random.Random) -> None:
    del data[at:]


def _delete(data: bytearray, at: int, rng: random.Random) -> None:
    del data[at : at + rng.choice([1, 4, 8, 64, 4096])]


def _insert(data: bytearray, at: int, rng: random.Random) -> None:
    data[at:at] = rng.randbytes(rng.choice([1, 4, 8, 64, 4096]))


def _clear(data: bytearray, at: int, rng: random.Random) -> None:
    size = min(rng.choice([1, 4, 8, 64, 4096]), len(data) - at)
    data[at : at + size] = bytes(size)


def _edge(data: bytearray, at: int, rng: random.Random) -> None:
    at -= at % 2
    value = struct.pack("<Q", rng.choice(EDGES) % 2**64)[: rng.choice([1, 2, 4, 8, 8])]
    if at + len(value) <= len(data):
        data[at : at + len(value)] = value


def _word(data: bytearray, at: int, rng: random.Random) -> None:
    word = rng.choice(WORDS)
    data[at : at + rng.choice([0, len(word)])] = word


MUTATIONS: list[Callable[[bytearray, int, random.Random], None]] = [_flip, _cut, _delete, _insert, _clear, _edge, _word]


def expected(kind: str) -> list[bytes]:
    """The values of the fields of a good file."""
    if kind == "example":
        return [b"".join(np.asarray(one[name]).tobytes() for one in samples()) for name in EXAMPLE]
    if kind == "tar":
        return ["".join(("d" * 99 + "/" if n == 7 else "") + f"{n}" for n in range(50)).encode(), tokens_image()]
    return [tokens_image(), image("ds.loss")] if kind == "ds.loss" else [tokens_image()]


def outcome(path: Path, data: bytes, io: str, kind: str) -> str:
    """What becomes of a mutant. AssertionError if it is nothing that may be."""
    path.write_bytes(data)
    target = TARGETS.get(kind, Target(path.name))
    others = target.others()
    for name, content in others.items():
        (path.parent / name).write_bytes(content)
    try:
        with target.open(path.parent / target.opened, io=io, threads=1, **target.options) as source:
            batch = source[:]
            for name, found in batch.items():
                for one in [getattr(found, "values", found)] if kind not in TARGETS else found:
                    if one is None or (kind == "example" and name != "data"):  # numbers have another form in the file
                        continue
                    plain = one.encode() if isinstance(one, str) else one.tobytes() if isinstance(one, np.ndarray) else one
                    swapped = one.byteswap().tobytes() if isinstance(one, np.ndarray) else plain
                    known = [data, *others.values()]
                    assert len(plain) == 0 or any(plain in file or swapped in file for file in known), "values that are not there"
            same = [getattr(found, "values", found).tobytes() for found in batch.values()] == expected(kind)
            return "same" if same else "other values"
    except PenstockError as error:
        text = str(error)
        assert any(name in text for name in (path.name, *others)) or f"{path.parent}/" in text, f"no path: {text}"
        assert len(text) < 1000, f"a message of {len(text)} characters: {text[:200]}"
        assert text.isprintable(), f"not printable: {text!r}"
        return type(error).__name__


def _serve(folder: Path, kind: str, seeds: range, out: int) -> None:
    """In a child: a line for every mutant, before it and after it."""
    limit_address_space(CHILD_BYTES)
    for seed in seeds:
        signal.alarm(DEADLINE_S)
        rng = random.Random(f"{kind} {seed}")
        data = mutate(kind, rng)
        try:
            for name in os.listdir(folder):  # of another kind
                os.unlink(folder / name)
            text = outcome(folder / NAMES.get(kind, f"a.{kind}"), data, rng.choice(["map", "pread"]), kind)
        except BaseException as error:
            text = f"WRONG {type(error).__name__}: {error}".replace("\n", " ")[:500]
        os.write(out, f"{seed} {text}\n".encode())


def attack(kind: str, count: int, first: int = 0) -> tuple[Counter[str], list[str]]:
    """How mutants ended, and what was wrong."""
    outcomes, wrong = Counter[str](), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        for low in range(first, first + count, GROUP):
            seeds = range(low, min(low + GROUP, first + count))
            code, lines = _in_child(Path(folder), kind, seeds)
            outcomes.update(line.split(" ", 1)[1] for line in lines if " WRONG " not in line)
            wrong += [f"{kind} {line}" for line in lines if " WRONG " in line]
            if code != 0 or len(lines) != len(seeds):
                wrong.append(f"{kind} {seeds[min(len(lines), len(seeds) - 1)]} ended the process with {code}")
    return outcomes, wrong


def _in_child(folder: Path, kind: str, seeds: range) -> tuple[int, list[str]]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _serve(folder, kind, seeds, writing)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        lines = file.read().splitlines()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), lines


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--seed", type=int, default=0, help="the first mutant")
    given = parser.parse_args()
    failed = False
    for kind in [given.kind] if given.kind else KINDS:
        outcomes, wrong = attack(kind, given.count, given.seed)
        sys.stdout.write(f"{kind}: {given.count} mutants, {len(wrong)} wrong: {dict(outcomes.most_common())}\n")
        sys.stdout.writelines(f"{line}\n" for line in wrong[:50])
        sys.stdout.flush()
        failed |= bool(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
