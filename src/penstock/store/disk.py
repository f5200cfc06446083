"""Where the records of a store lie on a disk, so that they can be asked for before they are read."""

import numpy as np

from penstock import _core
from penstock.records import DiskRange
from penstock.store.manifest import Manifest, values_of

__all__ = ["disk_ranges"]


def disk_ranges(reader: _core.StoreReader, manifest: Manifest, path: str, ids: range) -> list[DiskRange]:
    """The bytes of all fields of records, run by run of those that lie one after the other. Fields that were changed later, and
    lie elsewhere, are left out.
    """
    firsts = values_of(manifest.segments, "first_id")
    inner = firsts[np.searchsorted(firsts, ids.start, side="right") : np.searchsorted(firsts, ids.stop, side="left")]
    starts = np.concatenate([[ids.start], inner]).astype(np.int64)
    ends = np.concatenate([inner, [ids.stop]]).astype(np.int64)
    found = []
    for field in manifest.numbers.values():
        low, high = reader.page_extents(field, starts), reader.page_extents(field, ends - 1)
        for (chunk, start, _), (same, _, stop) in zip(low.tolist(), high.tolist(), strict=True):
            if chunk == same and start < stop:
                found.append((chunk, start, stop))
    names = {chunk: manifest.chunks[chunk] for chunk in {chunk for chunk, _, _ in found}}
    return [(f"{path}/{names[c].file}", start, stop) for c, start, stop in found]
