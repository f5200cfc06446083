"""What a trainer's own way to data costs, next to penstock in the same process: start-up, resume, packing, padding.

Seconds are processor seconds of this process and its threads, so that other work on the machine does not count. Packages that are
not installed are left out. Usage: python bench/trainers.py [--records 10000000] [--documents 200000]
"""

import argparse
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import penstock as pen

LENGTH, BATCH = 2048, 8


def seconds(function: Callable[[], Any]) -> float:
    began = time.process_time()
    function()
    return time.process_time() - began


def tell(what: str, own: float, ours: float, unit: str = "s") -> None:
    print(f"{what:72} {own:>12,.4f} {unit}   penstock {ours:>10,.4f} {unit}", flush=True)


@contextmanager
def quiet() -> Iterator[None]:
    """Without what packages print."""
    kept = os.dup(1), os.dup(2)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1), os.dup2(nothing.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept[0], 1), os.dup2(kept[1], 2)


def lengths_of(documents: int) -> Any:
    """Of web text, about: most are short, some are much longer than a sequence."""
    return np.clip(np.random.default_rng(1).lognormal(5.5, 1.2, documents), 8, 20 * LENGTH).astype(np.int64)


def make_packs(path: Path) -> pen.Stream:
    return pen.open(path).shuffle(seed=7).pack(LENGTH, fields=("tokens", "labels", "position", "segment"))


def padding(stream: pen.Stream, steps: int = 50) -> float:
    """Percent of the tokens."""
    loader = pen.Loader(stream, BATCH)
    found = [float((loader.batch(step)["segment"] < 0).mean()) for step in np.linspace(0, len(loader) - 2, steps).astype(int)]
    return 100 * float(np.mean(found))


def torch_sampler(records: int) -> None:
    """What Lightning, accelerate and the Trainer draw from."""
    import torch
    from accelerate import skip_first_batches

    from penstock.deliver.torch import Sampler

    class Data(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return records

        def __getitem__(self, index: int) -> int:
            return index

    data, skipped = Data(), records // BATCH // 2
    theirs = torch.utils.data.distributed.DistributedSampler(data, num_replicas=8, rank=3, seed=7)
    tell(
        f"torch {torch.__version__}: first id of {records:,} shuffled, 1 of 8 ranks",
        seconds(lambda: next(iter(theirs))),
        seconds(lambda: next(iter(Sampler(records, seed=7, shard=pen.Shard(3, 8))))),
    )
    plain = torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True)
    loader = pen.Loader(pen.open({"x": np.arange(records)}).shuffle(seed=7), BATCH)

    def seek() -> None:
        loader.seek(skipped)
        next(loader.forever())

    tell(
        f"accelerate {version('accelerate')}: resume at batch {skipped:,} (skip_first_batches)",
        seconds(lambda: next(iter(skip_first_batches(plain, skipped)))),
        seconds(seek),
    )


def padded(path: Path, documents: int) -> None:
    """Batches of the collator of transformers, which pads to the longest."""
    lengths = np.minimum(lengths_of(documents), LENGTH)
    shuffled = np.random.default_rng(2).permutation(lengths)[: documents // BATCH * BATCH].reshape(-1, BATCH)
    own = 100 * (1 - shuffled.sum() / (shuffled.max(axis=1) * BATCH).sum())
    tell(f"padding to the longest of {BATCH} documents, truncated to {LENGTH} (transformers)", own, padding(make_packs(path)), "%")


def trl_packing(path: Path, documents: int) -> None:
    """TRL packs a data set before the training; ours is planned when it is read."""
    import datasets
    from trl import pack_dataset

    lengths = np.minimum(lengths_of(documents), LENGTH)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    import pyarrow as pa

    tokens = pa.array(np.zeros(offsets[-1], np.int32))
    data = datasets.Dataset(pa.table({"input_ids": pa.LargeListArray.from_arrays(pa.array(offsets), tokens)}))
    packed: list[Any] = []
    with quiet():
        own = seconds(lambda: packed.append(pack_dataset(data, LENGTH, "bfd")))
    tell(
        f"trl {version('trl')}: packing {documents:,} documents, to the first batch",
        own,
        seconds(lambda: pen.Loader(make_packs(path), BATCH).batch(0)),
    )
    tell("    padding", 100 * (1 - offsets[-1] / (len(packed[0]) * LENGTH)), padding(make_packs(path)), "%")


def megatron_index(path: Path, documents: int) -> None:
    """The document, sample and shuffle indices of a GPTDataset."""
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split

    from penstock.deliver.megatron import Samples

    class Tokenizer:
        eod, pad, vocab_size, unique_identifiers = 0, 1, 30_000, {"name": "none"}

    with quiet(), tempfile.TemporaryDirectory() as cache:
        config = GPTDatasetConfig(
            random_seed=7,
            sequence_length=LENGTH,
            split="1",
            blend=([str(path.with_suffix(""))], None),
            path_to_cache=cache,
            reset_position_ids=True,
            reset_attention_mask=True,
            eod_mask_loss=True,
            tokenizer=Tokenizer(),
            mid_level_dataset_surplus=0.005,
        )

        def build() -> None:
            indexed = IndexedDataset(str(path.with_suffix("")))
            made = GPTDataset(
                indexed, str(path.with_suffix("")), np.arange(documents, dtype=np.int32), 200_000, Split.train, config
            )
            made[0]

        own = seconds(build)
    tell(
        f"megatron-core {version('megatron-core')}: first sample of 200,000, {documents:,} documents",
        own,
        seconds(lambda: Samples(make_packs(path), num_samples=200_000)[0]),
    )


def olmo_indices(records: int) -> None:
    """The global indices that OLMo-core shuffles and writes for every epoch."""
    from olmo_core.data import NumpyFSLDatasetConfig, TokenizerConfig
    from olmo_core.data.collator import DataCollator
    from olmo_core.data.data_loader import NumpyFSLDataLoader

    from penstock.deliver.olmo_core import OlmoDataLoader

    with quiet(), tempfile.TemporaryDirectory() as place:
        path = Path(place) / "tokens.npy"
        with path.open("wb") as file:
            file.truncate(records * 4 * 2)  # sequences of 4 tokens
        tokenizer = TokenizerConfig(vocab_size=100, eos_token_id=0, pad_token_id=1)
        data = NumpyFSLDatasetConfig(
            paths=[str(path)], sequence_length=4, tokenizer=tokenizer, work_dir=place, dtype="uint16"
        ).build()
        own = NumpyFSLDataLoader(data, collator=DataCollator(pad_token_id=1), global_batch_size=32, work_dir=place, num_threads=0)

        def first() -> None:
            own.reshuffle(epoch=1)
            next(iter(own))

        theirs = seconds(first)
        small = {name: np.zeros((records, 4), "u1") for name in ("tokens", "labels", "segment")}
        ours = OlmoDataLoader(pen.open(small).shuffle(seed=7), global_batch_size=32, work_dir=place)

        def our_first() -> None:
            ours.reshuffle(epoch=1)
            next(iter(ours))

        mine = seconds(our_first)
    tell(f"ai2-olmo-core {version('ai2-olmo-core')}: first batch of an epoch of {records:,} sequences", theirs, mine)


def grain_packing(path: Path, documents: int) -> None:
    """First fit, in Grain; best fit over windows, in penstock."""
    import grain

    count = min(documents, 20_000)
    lengths = np.minimum(lengths_of(count), LENGTH)
    source = grain.MapDataset.source(lengths).map(lambda length: {"tokens": np.zeros(length, np.int32)})
    packed = grain.experimental.FirstFitPackIterDataset(
        source.to_iter_dataset(), length_struct={"tokens": LENGTH}, num_packing_bins=32
    )
    rows: list[float] = []

    def run() -> None:
        rows.extend(float((row["tokens_segment_ids"] == 0).mean()) for row in packed)

    own = seconds(run)
    loader = pen.Loader(make_packs(path), 1)
    ours = seconds(lambda: [batch["tokens"] for _, batch in zip(range(len(rows)), loader, strict=False)])
    tell(f"grain {version('grain')}: packing {count:,} documents (first fit, 32 bins)", own, ours)
    tell("    padding", 100 * float(np.mean(rows)), padding(make_packs(path)), "%")


def has(*packages: str) -> bool:
    return all(importlib.util.find_spec(package) is not None for package in packages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--documents", type=int, default=200_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        path, lengths = Path(place) / "web.idx", lengths_of(given.documents)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        tokens = np.random.default_rng(3).integers(2, 30_000, offsets[-1]).astype("u2")
        pen.convert(pen.open({"tokens": pen.Ragged(tokens, offsets)}), path, fields=["tokens"])
        print(f"{given.documents:,} documents, {offsets[-1]:,} tokens; {sys.version.split()[0]}", flush=True)
        if has("torch", "accelerate") and given.records:
            torch_sampler(given.records)
        padded(path, given.documents)
        if has("trl", "datasets"):
            trl_packing(path, given.documents)
        if has("megatron.core"):
            megatron_index(path, given.documents)
        if has("olmo_core"):
            olmo_indices(given.records)
        if has("grain"):
            grain_packing(path, given.documents)


if __name__ == "__main__":
    main()
