"""Makes the first inputs of the fuzz targets: small chunks of every kind of field, and small records of every codec.

Run as: python native/fuzz/make_seeds.py OUT, which fills OUT/chunk and OUT/codec.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import penstock as pen
from penstock.native import _core

WORDS = ["a few words, again and again, " * (i % 5) for i in range(9)]
DICTIONARY = pen.train_dictionary([f"sample {i} of a text that is like all others, number {i * i}" for i in range(2000)], size=1024)

FIELDS: dict[str, tuple[pen.Field, list[object]]] = {
    "plain": (pen.Field("u1", (7,)), [[i] * 7 for i in range(9)]),
    "missing": (pen.Field("i4"), [None if i % 3 == 0 else i for i in range(9)]),
    "empty": (pen.Field("f4", (0,)), [[] for _ in range(9)]),
    "zstd": (pen.Field.text(codec=pen.Zstd(3)), list(WORDS)),
    "dictionary": (pen.Field.text(codec=pen.Zstd(3, DICTIONARY)), [None, *WORDS[1:]]),
    "lz4": (pen.Field.ragged("f4", 2, codec=pen.LZ4()), [np.ones((i % 4, 9), np.float32) for i in range(9)]),
    "deflate": (pen.Field("f8", (16,), codec=pen.Deflate()), [[1.0 * i] * 16 for i in range(9)]),
    "bytes": (pen.Field.bytes(), [bytes(i) for i in range(9)]),
}


def write_chunks(out: Path) -> None:
    """One chunk per field, and one of all fields."""
    for names in [*([name] for name in FIELDS), list(FIELDS)]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "seed.pen"
            with pen.create(path, {name: FIELDS[name][0] for name in names}) as writer:
                writer.extend({name: FIELDS[name][1] for name in names})
            (chunk,) = (path / "chunk").iterdir()
            (out / f"{'-'.join(names)[:40]}.zr").write_bytes(chunk.read_bytes())


def write_records(out: Path) -> None:
    """A codec, the decoded size, and the stored bytes."""
    record = np.frombuffer(b"a few words, again and again, " * 20, np.uint8)
    for codec in range(4):
        ends = np.empty(1, np.uint64)
        stored = _core.encode_records(codec, 3, b"", record, np.array([0, record.size]), ends)
        (out / f"codec-{codec}").write_bytes(bytes([codec]) + len(record).to_bytes(4, "little") + stored.tobytes())
        (out / f"codec-{codec}-dictionary").write_bytes(
            bytes([0x80 | codec]) + len(record).to_bytes(4, "little") + stored.tobytes()
        )


if __name__ == "__main__":
    root = Path(sys.argv[1])
    for kind, write in (("chunk", write_chunks), ("codec", write_records)):
        (root / kind).mkdir(parents=True, exist_ok=True)
        write(root / kind)
