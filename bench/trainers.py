"""What a trainer's own way to data costs, next to penstock in the same process: start-up, resume, padding, throughput.

Seconds are processor seconds of this process and its threads, so that other work on the machine does not count; throughput is
million tokens per processor second. Loaders run in this process, without workers. Packages that are not installed are left out.

Usage: python bench/trainers.py [--samples 1e8] [--documents 2e4] [--only torch|trl|megatron|olmo|titan|grain] [--json FILE]
"""

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import penstock as pen

LENGTH, BATCH = 2048, 8
FIELDS = ("tokens", "labels", "position", "segment")
LINES: list[dict[str, Any]] = []


def seconds(function: Callable[[], Any]) -> float:
    began = time.process_time()
    function()
    return time.process_time() - began


def tell(trainer: str, what: str, own: float, ours: float, unit: str = "s") -> None:
    LINES.append({"trainer": trainer, "what": what, "own": own, "penstock": ours, "unit": unit})
    print(f"{trainer + ': ' + what:100} {own:>12,.4f} {unit}   penstock {ours:>10,.4f} {unit}", flush=True)


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


def rate(batches: Iterable[Any], count: int, tokens: int = BATCH * LENGTH) -> float:
    """Million tokens per processor second, after a first batch."""
    iterator = iter(batches)
    next(iterator)
    taken = 0

    def run() -> None:
        nonlocal taken
        taken = sum(1 for _ in islice(iterator, count))

    passed = seconds(run)
    return taken * tokens / passed / 1e6


class Corpus:
    """Documents with lengths about as in web text: most are short, some are much longer than a sequence. A Megatron file."""

    def __init__(self, place: Path, documents: int) -> None:
        self.place, self.path = place, place / "web.idx"
        self.lengths = np.clip(np.random.default_rng(1).lognormal(5.5, 1.2, documents), 8, 20 * LENGTH).astype(np.int64)
        self.offsets = np.concatenate([[0], np.cumsum(self.lengths)])
        self.tokens = np.random.default_rng(3).integers(2, 30_000, self.offsets[-1]).astype("u2")
        pen.convert(pen.open({"tokens": pen.Ragged(self.tokens, self.offsets)}), self.path, fields=["tokens"])

    def packs(self, length: int = LENGTH) -> pen.Stream:
        return pen.open(self.path).shuffle(seed=7).pack(length, fields=FIELDS)

    def padding(self, steps: int = 50) -> float:
        """Percent of the tokens."""
        loader = pen.Loader(self.packs(), BATCH)
        chosen = np.linspace(0, len(loader) - 2, steps).astype(int)
        return 100 * float(np.mean([float((loader.batch(step)["segment"] < 0).mean()) for step in chosen]))

    def cut(self) -> tuple[float, float]:
        """Percent of the documents that fit into a sequence and are cut: one behind the other, and by penstock."""
        fits = self.lengths <= LENGTH
        joined = self.offsets[:-1] // LENGTH != (self.offsets[1:] - 1) // LENGTH
        loader, pieces = pen.Loader(self.packs(), BATCH), np.zeros(len(self.lengths), np.int64)
        for step in range(len(loader)):
            for rows in loader.explain(step, documents=True)["documents"]:
                for document in rows:
                    pieces[document[0]] += 1
        assert pieces.all()
        return 100 * float(joined[fits].mean()), 100 * float((pieces[fits] > 1).mean())


def seek(loader: pen.Loader, step: int) -> float:
    """Seconds of a seek and its batch."""

    def run() -> None:
        loader.seek(step)
        next(loader.forever())

    return seconds(run)


def bench_torch(corpus: Corpus, samples: int) -> None:
    """What Lightning, accelerate and the Trainer of transformers draw from."""
    import torch
    from accelerate import skip_first_batches
    from torchdata.stateful_dataloader import StatefulDataLoader

    from penstock.deliver.torch import Sampler, deliver

    class Data(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return samples

        def __getitem__(self, index: int) -> int:
            return index

    data, skipped = Data(), samples // BATCH // 2
    named = f"torch {torch.__version__.split('+')[0]}"
    theirs = torch.utils.data.distributed.DistributedSampler(data, num_replicas=8, rank=3, seed=7)
    ours = seconds(lambda: next(iter(Sampler(samples, seed=7, shard=pen.Shard(3, 8)))))
    tell(named, f"first id of {samples:,} shuffled, 1 of 8 ranks (DistributedSampler)", seconds(lambda: next(iter(theirs))), ours)
    numbers = pen.Loader(pen.open({"x": np.arange(samples)}).shuffle(seed=7), BATCH)
    plain = torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True)
    own = seconds(lambda: next(iter(skip_first_batches(plain, skipped))))
    told = f"resume at batch {skipped:,} of {samples // BATCH:,}"
    tell(f"accelerate {version('accelerate')}", f"{told} (skip_first_batches)", own, seek(numbers, skipped))
    stateful = StatefulDataLoader(data, batch_size=BATCH, shuffle=True)
    state = next(iter(stateful)) is not None and stateful.state_dict()
    del stateful
    state["_num_yielded"] = skipped  # as after so many batches: the state of its sampler names a number of samples
    state["_sampler_iter_yielded"] = skipped
    if state.get("_sampler_iter_state") is not None:
        state["_sampler_iter_state"]["samples_yielded"] = skipped * BATCH
    again = StatefulDataLoader(data, batch_size=BATCH, shuffle=True)

    def resume() -> None:
        again.load_state_dict(state)
        next(iter(again))

    tell(f"torchdata {version('torchdata')}", f"{told} (StatefulDataLoader)", seconds(resume), seek(numbers, skipped))

    class Memory(torch.utils.data.Dataset[Any]):
        tokens = np.memmap(corpus.path.with_suffix(".bin"), np.uint16, "r")

        def __len__(self) -> int:
            return len(self.tokens) // LENGTH

        def __getitem__(self, index: int) -> Any:
            return torch.from_numpy(self.tokens[index * LENGTH : (index + 1) * LENGTH].astype(np.int64))

    memory = torch.utils.data.DataLoader(Memory(), batch_size=BATCH, shuffle=True)
    sequences = pen.open(corpus.path).shuffle(seed=7).sequences(LENGTH)
    count = min(400, len(memory) - 2)
    own = rate(memory, count)
    tell(
        named,
        f"throughput, shuffled sequences of {LENGTH} from one mapped file (DataLoader)",
        own,
        rate(deliver(pen.Loader(sequences, BATCH)), count),
        "Mtokens/s",
    )


def bench_trl(corpus: Corpus, samples: int) -> None:
    """TRL packs a data set before the training, ours is planned when it is read; transformers pads, or flattens documents."""
    import datasets
    import pyarrow as pa
    import torch
    from transformers import DataCollatorWithFlattening
    from trl import pack_dataset

    from penstock.deliver.huggingface import with_bounds
    from penstock.deliver.torch import deliver

    def rows(lengths: Any, tokens: Any) -> Any:
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        values = pa.array(tokens(offsets[-1]))
        return datasets.Dataset(pa.table({"input_ids": pa.LargeListArray.from_arrays(pa.array(offsets), values)}))

    count = samples // 100
    short = np.random.default_rng(4).integers(1, 64, count)
    with quiet():
        own = seconds(lambda: pack_dataset(rows(short, lambda n: np.zeros(n, np.int32)), LENGTH, "bfd"))
    offsets = np.concatenate([[0], np.cumsum(short)])
    texts = pen.open({"tokens": pen.Ragged(np.zeros(offsets[-1], np.int32), offsets)})
    ours = seconds(lambda: pen.Loader(texts.shuffle(seed=7).pack(LENGTH, fields=FIELDS), BATCH).batch(0))
    tell(f"trl {version('trl')}", f"packing {count:,} documents of 32 tokens, to the first batch (bfd)", own, ours)
    lengths = np.minimum(corpus.lengths, LENGTH)
    with quiet():
        packed = pack_dataset(rows(lengths, lambda n: corpus.tokens[:n].astype(np.int32)), LENGTH, "bfd")
    own = 100 * (1 - lengths.sum() / (len(packed) * LENGTH))
    tell(f"trl {version('trl')}", f"padding of packs of {LENGTH}, longer documents truncated", own, corpus.padding(), "%")
    shuffled = np.random.default_rng(2).permutation(lengths)[: len(lengths) // BATCH * BATCH].reshape(-1, BATCH)
    own = 100 * (1 - shuffled.sum() / (shuffled.max(axis=1) * BATCH).sum())
    named = f"transformers {version('transformers')}"
    tell(named, f"padding to the longest of {BATCH} documents, truncated to {LENGTH}", own, corpus.padding(), "%")
    flattened = torch.utils.data.DataLoader(
        rows(lengths, lambda n: corpus.tokens[:n].astype(np.int32)).with_format("python"),  # what the Trainer makes of a dataset
        batch_size=BATCH,
        shuffle=True,
        collate_fn=DataCollatorWithFlattening(),
    )
    count = min(200, len(flattened) - 2)
    tell(
        named,
        "throughput of padding-free batches (DataCollatorWithFlattening)",
        rate(flattened, count, int(lengths.mean() * BATCH)),
        rate(deliver(pen.Loader(corpus.packs(), BATCH, transform=with_bounds)), min(count, 400)),
        "Mtokens/s",
    )


def bench_megatron(corpus: Corpus, samples: int) -> None:
    """The document, sample and shuffle indices of a GPTDataset; then what it reads."""
    import torch
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split

    from penstock.deliver.megatron import MegatronSamples, MicroBatches

    class Tokenizer:
        eod, pad, vocab_size, unique_identifiers = 0, 1, 30_000, {"name": "none"}

    prefix, named = str(corpus.path.with_suffix("")), f"megatron-core {version('megatron-core')}"

    def build(length: int, count: int, cache: str) -> Any:
        config = GPTDatasetConfig(
            random_seed=7,
            sequence_length=length,
            split="1",
            blend=([prefix], None),
            path_to_cache=cache,
            reset_position_ids=True,
            reset_attention_mask=True,
            eod_mask_loss=True,
            create_attention_mask=False,
            tokenizer=Tokenizer(),
            mid_level_dataset_surplus=0.005,
        )
        indices = np.arange(len(corpus.lengths), dtype=np.int32)
        data = GPTDataset(IndexedDataset(prefix), prefix, indices, count, Split.train, config)
        assert data[0]["tokens"].shape == (length,)
        return data

    length = 8  # files of a sensible size: the work is per sample
    with quiet(), tempfile.TemporaryDirectory() as cache:
        own = seconds(lambda: build(length, samples, cache))
        again = seconds(lambda: build(length, samples, cache))
        built = sum(path.stat().st_size for path in Path(cache).rglob("*") if path.is_file())
    ours = seconds(lambda: MegatronSamples(corpus.packs(length), num_samples=samples)[0])
    tell(named, f"first sample of {samples:,} of {length} tokens (indices of a GPTDataset, {built / 1e6:,.0f} MB)", own, ours)
    ours = seconds(lambda: MegatronSamples(corpus.packs(length), num_samples=samples)[samples // 2])
    tell(named, "resume: sample in the middle, indices found in the cache", again, ours)
    with quiet(), tempfile.TemporaryDirectory() as cache:
        data = build(LENGTH, len(corpus.tokens) // LENGTH - 1, cache)
        own_batches = torch.utils.data.DataLoader(data, batch_size=BATCH)
        count = min(200, len(own_batches) - 2)
        own = rate(own_batches, count)
    dealt = MicroBatches(None, consumed_samples=0, micro_batch_size=BATCH, shard=pen.Shard())
    batches = torch.utils.data.DataLoader(MegatronSamples(corpus.packs(), num_samples=10**9), batch_sampler=dealt)
    tell(named, f"throughput, samples of {LENGTH} with positions and loss mask", own, rate(batches, count), "Mtokens/s")
    cut = corpus.cut()
    tell(named, "documents cut although they fit", *cut, "%")
    tell(named, "padding", 0.0, corpus.padding(), "%")


def bench_olmo(corpus: Corpus, samples: int) -> None:
    """The global indices that OLMo-core shuffles and writes for every epoch; then what it reads."""
    from olmo_core.data import NumpyFSLDatasetConfig, TokenizerConfig
    from olmo_core.data.collator import DataCollator
    from olmo_core.data.data_loader import NumpyFSLDataLoader

    from penstock.deliver.olmo_core import OlmoDataLoader

    named, tokenizer = f"ai2-olmo-core {version('ai2-olmo-core')}", TokenizerConfig(vocab_size=100, eos_token_id=0, pad_token_id=1)
    small = 4

    def make(path: Path, length: int, size: int, place: Path) -> Any:
        config = NumpyFSLDatasetConfig(
            paths=[str(path)], sequence_length=length, tokenizer=tokenizer, work_dir=str(place), dtype="uint16"
        )
        collator = DataCollator(pad_token_id=1)
        return NumpyFSLDataLoader(config.build(), collator=collator, global_batch_size=size, work_dir=place, num_threads=0)

    def first(loader: Any, state: Any = None) -> None:
        if state is not None:
            loader.load_state_dict(state)
        loader.reshuffle(epoch=1)
        next(iter(loader))

    with quiet(), tempfile.TemporaryDirectory(dir=corpus.place) as directory:
        place = Path(directory)
        with (place / "tokens.npy").open("wb") as file:
            file.truncate(samples * small * 2)
        own = make(place / "tokens.npy", small, small * BATCH, place)
        theirs = seconds(lambda: first(own))
        state = {**own.state_dict(), "batches_processed": samples // BATCH // 2}
        if "tokens_processed" in state:
            state["tokens_processed"] = samples // 2 * small
        resumed = seconds(lambda: first(make(place / "tokens.npy", small, small * BATCH, place), state))
        arrays = {name: np.zeros((samples, small), "u1") for name in ("tokens", "labels", "segment")}

        def loader() -> Any:
            return OlmoDataLoader(pen.open(arrays).shuffle(seed=7), global_batch_size=small * BATCH, work_dir=place)

        mine = seconds(lambda: first(loader()))
        half = loader()
        half.loader.seek(samples // BATCH // 2)
        state = {"epoch": 1, "batches_processed": samples // BATCH // 2, "loader": half.loader.state_dict()}
        our_resumed = seconds(lambda: first(loader(), state))
    tell(named, f"first batch of an epoch of {samples:,} sequences (NumpyFSLDataLoader)", theirs, mine)
    tell(named, "resume in the middle of it, indices found on disk", resumed, our_resumed)
    with quiet(), tempfile.TemporaryDirectory(dir=corpus.place) as directory:
        own = make(corpus.path.with_suffix(".bin"), LENGTH, LENGTH * BATCH, Path(directory))
        own.reshuffle(epoch=1)
        count = min(400, len(own) - 2)
        theirs = rate(own, count)
        packed = OlmoDataLoader(corpus.packs(), global_batch_size=LENGTH * BATCH, work_dir=directory)
        packed.reshuffle(epoch=1)
        mine = rate(packed, count)
    tell(named, f"throughput, sequences of {LENGTH} (ours with labels and document lengths)", theirs, mine, "Mtokens/s")


def bench_titan(corpus: Corpus, samples: int) -> None:
    """Texts of a Hugging Face dataset, as torchtitan's own loader reads them, with a tokenizer that only makes a list."""
    import datasets
    import pyarrow as pa
    from torchtitan.hf_datasets import DatasetConfig, text_datasets

    from penstock.deliver.torchtitan import TitanDataLoader

    class Tokenizer:
        def encode(self, text: Any, **rest: Any) -> list[int]:
            return [1, *text, 2]

    named, chosen = f"torchtitan {version('torchtitan')}", {"rows": datasets.Dataset(pa.table({"text": [b""]}))}
    text_datasets.DATASETS["bench"] = DatasetConfig(
        path="none", loader=lambda path: chosen["rows"], sample_processor=lambda row: row["text"]
    )

    def make(length: int) -> Any:
        config = text_datasets.HuggingFaceTextDataLoader.Config(dataset="bench")
        return text_datasets.HuggingFaceTextDataLoader(
            config, dp_world_size=1, dp_rank=0, tokenizer=Tokenizer(), seq_len=length, local_batch_size=BATCH
        )

    size, length = 6, 64
    values = pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), samples, [None, pa.py_buffer(np.ones(samples * size, "u1"))])
    chosen["rows"] = datasets.Dataset(pa.table({"text": values}), fingerprint="bench")

    def resume() -> None:  # in the second epoch, which is shuffled
        loader = make(length)
        state = {"inputs_buffer": [], "labels_buffer": [], "positions_buffer": [], "sample_idx": samples // 2, "epoch": 1}
        loader.dataset.load_state_dict(state)
        next(iter(loader))

    path = corpus.place / "short.bin"
    np.tile(np.array([1] * size + [0], np.uint16), samples).tofile(path)

    def stream(length: int) -> pen.Stream:
        return pen.open(path, dtype="uint16").shuffle(seed=7).pack(length, separator=0, fields=("tokens", "labels", "position"))

    def ours(step: int = 0) -> None:
        loader = TitanDataLoader(
            TitanDataLoader.Config(stream=stream), dp_world_size=1, dp_rank=0, seq_len=length, local_batch_size=BATCH
        )
        loader.loader.seek(step)
        next(iter(loader))

    with quiet():
        started = seconds(lambda: next(iter(make(length))))
    indexed = seconds(ours)
    ours()  # a file that was written just now may still change, so its index was not kept before
    mine = seconds(ours)
    told = f"first batch of {samples:,} texts, not shuffled (ours are; to find where they end, once: {indexed:.2f} s)"
    tell(named, told, started, mine)
    with quiet():
        resumed = seconds(resume)
    an_epoch = samples * (size + 1) // (length * BATCH)
    tell(named, "resume in the middle of the second epoch (shuffled)", resumed, seconds(lambda: ours(an_epoch + an_epoch // 2)))
    del values
    data = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        len(corpus.lengths),
        [None, pa.py_buffer(corpus.offsets), pa.py_buffer((corpus.tokens % 251).astype("u1"))],
    )
    chosen["rows"] = datasets.Dataset(pa.table({"text": data}), fingerprint="corpus")
    count = len(corpus.tokens) // LENGTH // BATCH - 3
    with quiet():
        own = rate(make(LENGTH), min(100, count))
    config = TitanDataLoader.Config(dataset_path=str(corpus.path), seed=7)
    loader = TitanDataLoader(config, dp_world_size=1, dp_rank=0, seq_len=LENGTH, local_batch_size=BATCH)
    tell(
        named, f"throughput, batches of {BATCH} x {LENGTH}, tokenizing not counted", own, rate(loader, min(400, count)), "Mtokens/s"
    )
    tell(named, "documents cut although they fit", *corpus.cut(), "%")
    tell(named, "padding", 0.0, corpus.padding(), "%")


def bench_grain(corpus: Corpus, samples: int) -> None:
    """First fit, in Grain; best fit over windows, in penstock."""
    import grain

    from penstock.deliver.grain import BatchDataset

    named = f"grain {version('grain')}"
    numbers = pen.open({"x": np.arange(samples)})

    def first(dataset: Any) -> None:
        next(iter(dataset))

    def theirs() -> Any:
        return grain.MapDataset.range(samples).shuffle(seed=7).batch(BATCH).to_iter_dataset()

    def resumed(dataset: Any, state: Any) -> None:
        iterator = iter(dataset)
        iterator.set_state(state)
        next(iterator)

    first(grain.MapDataset.range(8).batch(2).to_iter_dataset())  # what is imported at the first use
    mine = seconds(lambda: first(BatchDataset(pen.Loader(numbers.shuffle(seed=7), BATCH))))
    tell(named, f"first batch of {samples:,} shuffled numbers", seconds(lambda: first(theirs())), mine)
    iterator = iter(theirs())
    next(iterator)
    state = iterator.get_state()
    state["next_index"] = samples // BATCH // 2
    loader = pen.Loader(numbers.shuffle(seed=7), BATCH)
    middle = loader.state_at(samples // BATCH // 2)
    own = seconds(lambda: resumed(theirs(), state))
    tell(named, "resume in the middle", own, seconds(lambda: resumed(BatchDataset(loader), middle)))
    lengths = np.minimum(corpus.lengths[:10_000], LENGTH)
    source = grain.MapDataset.source(lengths).map(lambda length: {"tokens": np.zeros(length, np.int32)})
    packed = grain.experimental.FirstFitPackIterDataset(
        source.to_iter_dataset(), length_struct={"tokens": LENGTH}, num_packing_bins=32
    )
    rows: list[float] = []
    own = seconds(lambda: rows.extend(float((row["tokens_segment_ids"] == 0).mean()) for row in packed))
    batches = BatchDataset(pen.Loader(corpus.packs(), 1))
    ours = rate(batches, len(rows), LENGTH)
    told = "throughput of packing, rows one by one (FirstFitPackIterDataset, 32 bins)"
    tell(named, told, len(rows) * LENGTH / own / 1e6, ours, "Mtokens/s")
    tell(named, "padding, longer documents truncated", 100 * float(np.mean(rows)), corpus.padding(), "%")


NEEDED = {
    "torch": ("torch", "accelerate", "torchdata"),
    "trl": ("trl", "datasets", "transformers"),
    "megatron": ("megatron.core",),
    "olmo": ("olmo_core",),
    "titan": ("torchtitan",),
    "grain": ("grain",),
}


def is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=float, default=1e7, help="of the lines about start-up and resume")
    parser.add_argument("--documents", type=float, default=2e4, help="of the lines about throughput and padding")
    parser.add_argument("--only", choices=sorted(NEEDED), action="append")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        corpus = Corpus(Path(place), int(given.documents))
        print(f"{len(corpus.lengths):,} documents, {len(corpus.tokens):,} tokens; Python {sys.version.split()[0]}", flush=True)
        for name, packages in NEEDED.items():
            if name in (given.only or NEEDED) and all(map(is_there, packages)):
                globals()[f"bench_{name}"](corpus, int(given.samples))
    if given.json:
        given.json.write_text(json.dumps(LINES, indent=1))


if __name__ == "__main__":
    main()
