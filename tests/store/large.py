"""A campaign: records of 1 GiB and more, up to the limit of 4 GiB less a byte, of every kind, raw and compressed.

It needs 5 GB of disk, and memory for one record twice.

::

    python -m tests.store.large            prints a line per case; fails at the first record that is not what was written
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import penstock as pen
from penstock import Field, Ragged
from penstock.schema import MAX_RECORD_BYTES

GIB = 2**30
MARKS = {0: 7, 1: 1, GIB - 1: 3, GIB: 5, -1: 9}
"""Elements that are not 0, by place."""


def cases() -> dict[str, tuple[Field, int]]:
    """The fields, and the elements of the one record of each."""
    return {
        "bytes, raw": (Field.bytes(), GIB + 5),
        "fixed, raw": (Field("u1", (GIB + 5,)), GIB + 5),
        "fixed, zstd": (Field("u1", (GIB + 5,), codec=pen.Zstd(1)), GIB + 5),
        "ragged, deflate": (Field.ragged("u2", codec=pen.Deflate(1)), GIB + 5),
        "bytes, lz4": (Field.bytes(codec=pen.LZ4()), GIB + 5),
        "bytes, lz4, more than it can compress": (Field.bytes(codec=pen.LZ4()), 2 * GIB + 1),
        "bytes, raw, the largest": (Field.bytes(), MAX_RECORD_BYTES),
        "fixed, zstd, the largest": (Field("u1", (MAX_RECORD_BYTES,), codec=pen.Zstd(1)), MAX_RECORD_BYTES),
    }


def column(field: Field, count: int) -> Any:
    """One record."""
    values = np.zeros(count, field.dtype)  # memory is reserved only for the pages with marks
    for place, value in MARKS.items():
        values[place] = value
    if field.is_fixed:
        return values.reshape(1, count)
    return Ragged(values, np.array([0, count]), "bytes" if field.kind == "bytes" else "array")


def check(path: Path, field: Field, count: int, io: str) -> None:
    """Read the record, and look at it."""
    with pen.open(path, io=io, max_record_bytes="4GiB") as data:
        batch = data["x"][:]
        values = batch.reshape(-1) if field.is_fixed else batch.values
        found = {place: int(values[place]) for place in MARKS}
        if values.size != count or found != MARKS or np.count_nonzero(values) != len(MARKS):
            raise AssertionError(f"{field!r}, {io}: expected {count} elements with {MARKS}, found {values.size} with {found}")


def main() -> int:
    """The program."""
    for name, (field, count) in cases().items():
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "a.pen"
            with pen.create(path, {"x": field}, threads=1) as out:
                out.extend({"x": column(field, count)})
            for io in ("map", "pread"):
                check(path, field, count, io)
            assert pen.verify(path) == []
        sys.stdout.write(f"{name}: {count} elements, {time.monotonic() - began:.0f} s\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
