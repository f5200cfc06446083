"""Other packers, each in its environment: what packing the same lengths costs there, and what comes out.

::

    python bench/pack_rival.py NAME CASES.npz

``NAME`` is one of PACKERS. The cases are arrays of lengths, named ``<data>-<sequence length>``. Prints a JSON object: for every
case the processor time in nanoseconds a document, sequences, pieces and tokens in them. Documents longer than a sequence are cut
into pieces before the clock starts, where a packer does not do it itself; tokens are zeros, made before it starts, too.
"""

import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

Result = tuple[float, int, int, int]
"""Seconds, sequences, pieces, tokens."""


def pieces_of(lengths: np.ndarray, length: int) -> np.ndarray:
    """Lengths of documents that are cut where they are longer than a sequence."""
    full, rest = lengths // length, lengths % length
    sizes = np.stack([np.full_like(lengths, length), rest], axis=1).reshape(-1)
    counts = np.stack([full, rest > 0], axis=1).reshape(-1)
    return np.repeat(sizes, counts)


def olmo(lengths: np.ndarray, length: int) -> Result:
    """InstancePacker of OLMo-core over all documents at once."""
    from olmo_core.data.utils import InstancePacker

    sizes = pieces_of(lengths, length)
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    indices = np.stack([bounds[:-1], bounds[1:]], axis=1).astype(np.uint64)
    packer = InstancePacker(length)
    began = time.process_time()
    instances, _, tokens = packer.pack_documents(indices)
    return time.process_time() - began, len(instances), sum(map(len, instances)), int(tokens)


def _table(lengths: np.ndarray) -> Any:
    import pyarrow as pa

    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return pa.table({"input_ids": pa.LargeListArray.from_arrays(offsets, np.zeros(offsets[-1], np.int32))})


def _of_trl(seconds: float, packed: Any) -> Result:
    column = packed["seq_lengths"]
    pieces = [len(one) for one in column.to_pylist()] if hasattr(column, "to_pylist") else [len(one) for one in column]
    tokens = sum(sum(one) for one in (column.to_pylist() if hasattr(column, "to_pylist") else column))
    return seconds, len(pieces), sum(pieces), int(tokens)


def trl(lengths: np.ndarray, length: int) -> Result:
    """_pack_bfd of TRL over all documents at once."""
    from trl.data_utils import _pack_bfd

    table = _table(lengths)
    began = time.process_time()
    packed = _pack_bfd(table, length, "split")
    return _of_trl(time.process_time() - began, packed)


def trl_map(lengths: np.ndarray, length: int) -> Result:
    """pack_dataset of TRL with its defaults: batches of 1,000 documents."""
    from datasets import Dataset, disable_caching, disable_progress_bars
    from trl import pack_dataset

    disable_caching()
    disable_progress_bars()
    dataset = Dataset(_table(lengths))
    began = time.process_time()
    packed = pack_dataset(dataset, length, "bfd_split", {"keep_in_memory": True})
    return _of_trl(time.process_time() - began, packed.with_format("arrow")[:])


def _grain(lengths: np.ndarray, length: int, make: Callable[[Any], Any]) -> Result:
    import grain

    memory = np.zeros(length, np.int32)
    elements = [{"tokens": memory[:size]} for size in lengths.tolist()]
    packed = make(grain.MapDataset.source(elements).to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)))
    found = []
    began = time.process_time()
    for one in packed:
        found.append(one["tokens_segment_ids"])
    seconds = time.process_time() - began
    pieces = sum(int(one.max()) for one in found)
    return seconds, len(found), pieces, sum(int(np.count_nonzero(one)) for one in found)


def grain_fit(which: str, bins: int) -> Callable[[np.ndarray, int], Result]:
    """A packer of Grain with that number of open sequences."""

    def pack(lengths: np.ndarray, length: int) -> Result:
        import grain.experimental

        kind = getattr(grain.experimental, which)
        options = {"length_struct": {"tokens": length}, "num_packing_bins": bins, "shuffle_bins": False}
        return _grain(pieces_of(lengths, length), length, lambda data: kind(data, **options))

    return pack


def grain_concat(lengths: np.ndarray, length: int) -> Result:
    """Concatenated and cut by Grain."""
    import grain.experimental

    sizes = pieces_of(lengths, length)
    return _grain(sizes, length, lambda data: grain.experimental.ConcatThenSplitIterDataset(data, length_struct={"tokens": length}))


PACKERS: dict[str, tuple[str, Callable[[np.ndarray, int], Result]]] = {
    "OLMo-core InstancePacker": ("olmo", olmo),
    "TRL _pack_bfd": ("trl", trl),
    "TRL pack_dataset": ("trl", trl_map),
    "Grain first-fit, 8 bins": ("grain", grain_fit("FirstFitPackIterDataset", 8)),
    "Grain first-fit, 64 bins": ("grain", grain_fit("FirstFitPackIterDataset", 64)),
    "Grain best-fit, 64 bins": ("grain", grain_fit("BestFitPackIterDataset", 64)),
    "Grain concat-then-split": ("grain", grain_concat),
}
"""By name: the environment, and the packer."""


def main() -> None:
    warnings.simplefilter("ignore")
    name, path = sys.argv[1:]
    _, pack = PACKERS[name]
    found = {}
    with np.load(path) as cases:
        for case in cases.files:
            lengths, length = cases[case], int(case.rpartition("-")[2])
            pack(lengths[:500], length)
            seconds, sequences, pieces, tokens = pack(lengths, length)
            found[case] = {"ns": 1e9 * seconds / len(lengths), "sequences": sequences, "pieces": pieces, "tokens": tokens}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
