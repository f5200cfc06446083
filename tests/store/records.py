"""Records of every kind of field, and what they must read back as: a plain list of dicts with None for what is missing."""

import contextlib
import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli import warm

import penstock as pen
from penstock import Field, Ragged
from penstock.store import Store

Record = dict[str, Any]

FIELDS: dict[str, Field] = {
    "label": Field("i4"),
    "image": Field("u1", (2, 3)),
    "score": Field("f8", (2,), codec=pen.Deflate()),
    "half": Field("bf16", codec=pen.LZ4()),
    "boxes": Field.ragged("f4", 2, codec=pen.LZ4(9)),
    "tokens": Field.ragged("u2"),
    "blob": Field.bytes(codec=pen.Deflate(9)),
    "caption": Field.text(codec=pen.Zstd(3)),
}


def make_records(count: int, *, seed: int = 0) -> list[Record]:
    """Records of FIELDS: full, zero, empty and missing ones."""
    rng = np.random.default_rng(seed)
    return [_record(rng) for _ in range(count)]


def _record(rng: np.random.Generator) -> Record:
    zero = rng.random() < 0.2
    size = int(rng.integers(0, 5))
    made = {
        "label": np.int32(0 if zero else rng.integers(-(2**31), 2**31)),
        "image": np.zeros((2, 3), np.uint8) if zero else rng.integers(0, 256, (2, 3), dtype=np.uint8),
        "score": np.zeros(2) if zero else rng.random(2),
        "half": Field("bf16").dtype.type(0 if zero else rng.integers(-100, 100)),
        "boxes": rng.random((size, 4), np.float32),
        "tokens": rng.integers(0, 2**16, size * 3, dtype=np.uint16),
        "blob": b"" if zero else rng.bytes(size * 7),
        "caption": "" if zero else f"grüße {rng.integers(0, 9)} " * size,
    }
    return {name: None if rng.random() < 0.15 else value for name, value in made.items()}


def columns(records: Sequence[Record], names: Sequence[str] | None = None) -> dict[str, list[Any]]:
    """Records as a batch for ``extend``."""
    return {name: [record[name] for record in records] for name in (names or list(FIELDS))}


def is_same(found: Any, expected: Any) -> bool:
    """Equal in type, shape and bits; None equals only None."""
    if expected is None or found is None:
        return found is None and expected is None
    if isinstance(expected, str | bytes):
        return type(found) is type(expected) and found == expected
    one, other = np.asarray(found), np.asarray(expected)
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def items(column: Any) -> list[Any]:
    """The records of a column of a batch, None where missing."""
    if isinstance(column, Ragged):
        return column.to_list()
    if isinstance(column, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(column).reshape(len(column), -1).any(axis=1) if column.size else np.zeros(len(column), bool)
        return [None if gone else value for gone, value in zip(mask, column.data, strict=True)]
    return list(column)


def assert_batch(batch: Mapping[str, Any], expected: Sequence[Record]) -> None:
    """A batch holds exactly the expected records, for every field it has."""
    for name, column in batch.items():
        found = items(column)
        assert len(found) == len(expected), name
        for place, (one, record) in enumerate(zip(found, expected, strict=True)):
            assert is_same(one, record[name]), f"{name} of record {place}: expected {record[name]!r}, found {one!r}"


def assert_store(store: Store, expected: Sequence[Record]) -> None:
    """A reader has exactly these records: in one batch, one by one, and no more."""
    assert len(store) == len(expected)
    assert_batch(store[:], expected)
    for place in {0, len(expected) // 2, len(expected) - 1} & set(range(len(expected))):
        record = store[place]
        assert list(record) == list(store.schema)
        for name, value in record.items():
            assert is_same(value, expected[place][name])
    for outside in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError):
            store[outside]


def digest(store: Store) -> str:
    """The sha256 of all that a reader sees."""
    made = hashlib.sha256(str(len(store)).encode())
    for name, column in store[:].items():
        made.update(name.encode())
        if isinstance(column, Ragged):
            missing = None if column.present is None or column.present.all() else column.present
            parts = [column.values, column.offsets, column.shapes, missing]
        else:
            parts = [np.ma.getdata(column), np.ma.getmaskarray(column) if np.ma.is_masked(column) else None]
        for part in parts:
            made.update(b"-" if part is None else np.ascontiguousarray(part).tobytes())
    return made.hexdigest()


def write(path: Path, records: Sequence[Record], **options: Any) -> None:
    """A new store of FIELDS with these records."""
    with pen.create(path, FIELDS, **options) as out:
        if records:
            out.extend(columns(records))


def delete(records: list[Record], ids: Sequence[int]) -> dict[int, int]:
    """What deleting means: the last records take the free ids. Changes ``records``; returns {old id: new id}."""
    gone, end = sorted(set(ids)), len(records) - len(set(ids))
    holes = [i for i in gone if i < end]
    movers = [i for i in range(end, len(records)) if i not in set(gone)]
    for hole, mover in zip(holes, movers, strict=True):
        records[hole] = records[mover]
    del records[end:]
    return dict(zip(movers, holes, strict=True))


def files(path: Path) -> dict[str, int]:
    """Every file of a store with its size, except the lock's."""
    return {str(f.relative_to(path)): f.stat().st_size for f in sorted(path.rglob("*")) if f.is_file() and f.name != "LOCK"}


def flip(path: Path, offset: int) -> None:
    """Change one byte of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x5A
    path.write_bytes(data)


@contextlib.contextmanager
def without_fsync() -> Iterator[None]:
    """For tests with thousands of commits that are about what is read, not about power cuts (the crash tests are)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


def run_python(code: str, *arguments: object) -> str:
    """Run code in a new interpreter, from the root of the repository; returns what it printed, and fails if it does."""
    done = warm.run(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def without_addresses(value: object) -> str:
    """The name of a parameter, the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))[:60]
