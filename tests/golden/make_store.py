"""Writes tests/golden/store-v2/: a tiny store with metadata, nullable fields and names beyond ASCII, for later versions to read.

::

    python -m tests.golden.make_store            make stores like the golden ones, compare what they read as, change nothing
    python -m tests.golden.make_store --force    write store-v2 anew: only while this form is not released

tests/golden/store-v1/ was written by penstock 1 with ``write``, with every kind of field and codec, and is never written again: it
says neither what is nullable nor metadata. Its generation 1 appends seven records in chunks of three; generation 2 updates some
fields, deletes two records and appends one. File names are random, so two runs give other files with the same records.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import penstock as pen
from penstock import Field

STORE = Path(__file__).parent / "store-v1"
SECOND_STORE = Path(__file__).parent / "store-v2"
DICTIONARY = b'{"name": "", "colour": "green", "size": 0}' * 2

FIELDS: dict[str, Field] = {
    "bool": Field("bool"),
    "i1": Field("i1"),
    "i2": Field("i2", (2,)),
    "i4": Field("i4"),
    "i8": Field("i8"),
    "u1": Field("u1", (2, 2)),
    "u2": Field("u2"),
    "u4": Field("u4"),
    "u8": Field("u8"),
    "f2": Field("f2"),
    "f4": Field("f4", (3,), codec=pen.Deflate(6)),
    "f8": Field("f8", codec=pen.Zstd(3)),
    "c8": Field("c8"),
    "c16": Field("c16", codec=pen.LZ4(1)),
    "bf16": Field("bf16"),
    "f8e4m3fn": Field("f8e4m3fn"),
    "f8e4m3b11fnuz": Field("f8e4m3b11fnuz"),
    "f8e5m2": Field("f8e5m2"),
    "nothing": Field("f4", (0,)),
    "ragged": Field.ragged("i4"),
    "ragged-2": Field.ragged("u2", 2, codec=pen.LZ4(9)),
    "ragged.3": Field.ragged("f4", 3, codec=pen.Zstd(19)),
    "bytes": Field.bytes(),
    "bytes_deflate": Field.bytes(codec=pen.Deflate(12)),
    "text": Field.text(),
    "text_zstd": Field.text(codec=pen.Zstd(3)),
    "text_dictionary": Field.text(codec=pen.Zstd(3, DICTIONARY)),
}


def record(k: int) -> dict[str, Any]:
    """Record number k: small numbers one can work out in the head. Every third misses what has an odd place in FIELDS."""
    made: dict[str, Any] = {
        "bool": k % 2 == 1,
        "i1": -k,
        "i2": [k, -k],
        "i4": -k * 1000,
        "i8": k * 10**12,
        "u1": [[k, k + 1], [k + 2, 255 - k]],
        "u2": k * 1000,
        "u4": k * 10**8,
        "u8": 2**64 - 1 - k,
        "f2": k / 2,
        "f4": [k, k / 4, -k],
        "f8": k / 10,
        "c8": complex(k, -k),
        "c16": complex(k / 8, k),
        "bf16": k * 2.0,
        "f8e4m3fn": k * 0.5,
        "f8e4m3b11fnuz": k * 0.25,
        "f8e5m2": k * 2.0,
        "nothing": [],
        "ragged": list(range(k)),
        "ragged-2": [[k] * 3] * (k % 3) if k % 3 else np.empty((0, 2), np.uint16),
        "ragged.3": np.full((1, k % 2, 2), k),
        "bytes": bytes(range(k)),
        "bytes_deflate": b"ab" * (k * 10),
        "text": "" if k == 2 else f"Größe {k}",
        "text_zstd": f"again {k} " * k,
        "text_dictionary": f'{{"name": "{k}", "colour": "green", "size": {k}}}',
    }
    return {name: None if k % 3 == 1 and place % 2 == 1 else value for place, (name, value) in enumerate(made.items())}


def write(path: Path) -> None:
    """The store."""
    with pen.create(path, FIELDS, chunk_bytes=65_536, chunk_records=3, threads=1) as out:
        for k in range(7):
            out.append(record(k))
        out.commit()
        out.update([0, 5], {"i4": [77, None], "text_zstd": [None, "updated"]})
        out.delete([1, 6])  # record 5 takes id 1
        out.append(record(7))


SECOND_FIELDS: dict[str, Field] = {
    "größe in mm": Field("f4", (2,), nullable=True),
    "画像": Field.bytes(codec=pen.LZ4()),
    "caption": Field.text(codec=pen.Zstd(3), nullable=True),
    "label": Field("i4"),
}
FIRST_METADATA: dict[str, Any] = {"label": ["cat", "dog"], "origin": "golden: made by hand"}
SECOND_METADATA: dict[str, Any] = {**FIRST_METADATA, "mean": [0.5, -0.25], "größe": {"unit": "mm", "checked": True, "by": None}}


def write_second(path: Path) -> None:
    """The store with metadata. Generation 1 misses nothing; in generation 2 captions and one label do."""
    with pen.create(path, SECOND_FIELDS, chunk_records=3, threads=1, metadata=FIRST_METADATA) as out:
        out.extend(
            {
                "größe in mm": [[k, k / 2] for k in range(4)],
                "画像": [bytes(range(k)) for k in range(4)],
                "caption": [f"Bild {k}" for k in range(4)],
                "label": [k % 2 for k in range(4)],
            }
        )
        out.commit()
        out.extend({"größe in mm": [[4, 2]], "画像": [b"\0\1\2\3"], "caption": [None], "label": [0]})
        out.update([1], {"label": [None]})
        out.metadata = SECOND_METADATA


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--force", action="store_true")
    if parser.parse_args().force:
        shutil.rmtree(SECOND_STORE, ignore_errors=True)
        write_second(SECOND_STORE)
        (SECOND_STORE / "LOCK").unlink()  # says which process wrote it; readers need none
        return 0
    from tests.store.records import digest

    with tempfile.TemporaryDirectory() as directory:
        for kept, make in ((STORE, write), (SECOND_STORE, write_second)):
            make(Path(directory) / kept.name)
            for generation in (1, 2):
                stores = [pen.open(path, generation=generation) for path in (Path(directory) / kept.name, kept)]
                is_same = digest(stores[0]) == digest(stores[1]) and stores[0].metadata == stores[1].metadata
                sys.stdout.write(f"{kept.name}, generation {generation}: {'same' if is_same else 'DIFFERENT'}\n")
                if not is_same:
                    return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
