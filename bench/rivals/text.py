"""The text workload: 200 B to 20 KB of words a record, its id in front, in plain files and as zstd frames."""

from pathlib import Path

import numpy as np

from rivals.workload import Workload
from store_case import Text
from store_limit import Crew

__all__ = ["make_texts"]


def make_texts(workload: Workload, source: Path) -> None:
    """Write the plain files of a text workload; the frames are those of the bare zstd library at level 3."""
    source.mkdir(parents=True, exist_ok=True)
    records = Text(workload.num_records, workload.batch).make()
    values, offsets = records.values, records.offsets
    digits = (np.arange(workload.num_records)[:, None] // 10 ** np.arange(6, -1, -1) % 10 + ord("0")).astype(np.uint8)
    values[offsets[:-1, None] + np.arange(7)] = digits
    np.save(source / "values.npy", values)
    np.save(source / "offsets.npy", offsets)
    crew = Crew(2, spins=0)
    try:
        frames = crew.encode(3, values, offsets)
        frames.encode()
        frames.keep(source / "frames.bin")
        np.save(source / "cuts.npy", np.concatenate([[0], frames.ends]).astype(np.int64))
    finally:
        crew.close()
