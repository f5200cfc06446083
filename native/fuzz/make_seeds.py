"""Makes the first inputs of the fuzz targets: small chunks of every kind of field, records of every codec, pictures of every kind.

Run as: python native/fuzz/make_seeds.py OUT, which fills OUT/chunk, OUT/codec and OUT/image.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

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


def write_pictures(out: Path) -> None:
    """Small pictures of every format and kind of pixels."""
    y, x = np.mgrid[:40, :50]
    colours = Image.fromarray(np.stack([x * 5, y * 6, (x * y) % 256], axis=-1).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    options: dict[str, dict[str, object]] = {
        "baseline.jpg": {"subsampling": 2},
        "full.jpg": {"subsampling": 0, "exif": exif},
        "progressive.jpg": {"progressive": True, "subsampling": 1},
        "restarts.jpg": {"restart_marker_rows": 1},
        "plain.png": {},
        "lossy.webp": {"exif": exif},
        "lossless.webp": {"lossless": True},
    }
    for name, settings in options.items():
        colours.save(out / name, **settings)
    modes = {"L": "jpg", "CMYK": "jpg", "P": "png", "1": "png", "LA": "png", "RGBA": "webp", "I;16": "png"}
    for mode, ending in modes.items():
        (colours.convert("L").convert(mode) if mode == "I;16" else colours.convert(mode)).save(
            out / f"{mode.replace(';', '-')}.{ending}"
        )


if __name__ == "__main__":
    root = Path(sys.argv[1])
    for kind, write in (("chunk", write_chunks), ("codec", write_records), ("image", write_pictures)):
        (root / kind).mkdir(parents=True, exist_ok=True)
        write(root / kind)
