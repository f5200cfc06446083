"""Writes tests/golden/foreign/: tiny row shards and token blocks, built byte by byte from the description of their formats.

::

    python -m tests.golden.make_foreign            say whether the files are what this script makes, change nothing
    python -m tests.golden.make_foreign --force    write them anew

Nothing here uses the readers and writers of penstock, which are tested against these files.
"""

import argparse
import struct
import sys
from pathlib import Path

DIRECTORY = Path(__file__).parent / "foreign"


def shard(rows: list[list[float]], width: int) -> bytes:
    """A row shard."""
    header = b"GAMSAE01" + struct.pack("<Q", len(rows)) + struct.pack("<Q", width) + struct.pack("<I", 0) + struct.pack("<I", 0)
    return header + b"".join(struct.pack("<f", value) for row in rows for value in row)


def rox(blocks: list[bytes], dtype: bytes) -> bytes:
    """Token blocks."""
    ends = [sum(map(len, blocks[: i + 1])) for i in range(len(blocks))]
    index = b"".join(struct.pack("<q", end) for end in ends)
    footer = struct.pack("<q", len(blocks)) + struct.pack("<q", sum(map(len, blocks))) + dtype.ljust(8, b"\0") + b"ROXXEL02"
    return b"".join(blocks) + index + footer


FILES: dict[str, bytes] = {
    "rows/a.shard": shard([[0.0, -1.5], [2.0**-149, 3.4028234663852886e38], [float("inf"), float("-inf")]], 2),
    "rows/b.shard": shard([], 2),
    "rows/c.shard": shard([[0.1, 1e-40], [-0.0, 7.0]], 2),
    # The example everybody can check by eye: 6162637c 64657c7c | 04 08 | 02 08 "uint8" ROXXEL02
    "abc.rox": b"abc|de||"
    + bytes.fromhex("0400000000000000 0800000000000000")
    + bytes.fromhex("0200000000000000 0800000000000000")
    + b"uint8\0\0\0ROXXEL02",
    "int32_000000.rox": rox([struct.pack("<3i", 1, 2, 3), struct.pack("<3i", 4, 5, 6)], b"int32"),
    "int32_000001.rox": rox([struct.pack("<3i", -7, 2**31 - 1, -(2**31)), struct.pack("<2i", 8, 0)], b"int32"),
    "swapped.rox": rox([struct.pack(">2i", 1, 2), struct.pack(">2i", 3, -4)], b">i4"),
    "bfloat16.rox": rox([struct.pack("<2H", 0x3F80, 0xC000), struct.pack("<H", 0x7F80)], b"bfloat16"),
}


def main() -> None:
    """Compare, or write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--force", action="store_true")
    force = parser.parse_args().force
    for name, content in FILES.items():
        path = DIRECTORY / name
        if force:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        elif path.read_bytes() != content:
            sys.exit(f"{path} differs from what this script makes")


if __name__ == "__main__":
    main()
