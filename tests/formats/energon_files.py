"""What Energon keeps next to tar archives, as the tests write it."""

import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import numpy as np

from penstock.formats.webdataset import NAME

SCHEMA = """
CREATE TABLE samples (tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE, sample_index INTEGER NOT NULL,
                      byte_offset INTEGER, byte_size INTEGER);
CREATE TABLE sample_parts (tar_file_id INTEGER, sample_index INTEGER, part_name TEXT, content_byte_offset INTEGER,
                           content_byte_size INTEGER);
"""


def prepare(directory: Path, names: list[str]) -> None:
    """Write what Energon writes."""
    meta = directory / ".nv-meta"
    meta.mkdir()
    with closing(sqlite3.connect(meta / "index.sqlite")) as base:
        base.executescript(SCHEMA)
        counts = {name: index(base, directory / name, number) for number, name in enumerate(names)}
        base.commit()
    (meta / ".info.json").write_text(json.dumps({"energon_version": "7.4.1", "shard_counts": counts}))
    (meta / "split.yaml").write_text("exclude: []\nsplit_parts:\n  train:\n  - b.tar\n  - a.tar\n  val: []\n")


def index(base: sqlite3.Connection, path: Path, number: int) -> int:
    last, offsets = None, list[int]()
    with tarfile.open(path) as archive:
        for member in archive:
            named = NAME.fullmatch(member.name)
            if named is None or not member.isfile():
                continue
            key, part = named.groups()
            if key != last:
                base.execute("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", (number, key, len(offsets), member.offset, 0))
                offsets.append(member.offset)
                last = key
            row = (number, len(offsets) - 1, part, member.offset_data, member.size)
            base.execute("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", row)
        path.with_name(f"{path.name}.idx").write_bytes(np.array([*offsets, archive.offset], "<u8").tobytes())
    return len(offsets)
