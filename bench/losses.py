"""What logging of losses costs in a step, how fast a log is read, and bad documents that blame must find.

::

    python bench/losses.py                 all of it; about 1.3 GB of disk
    python bench/losses.py --losses 1e7    a smaller log
"""

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

import penstock as pen
from penstock.trace import LossTable, Run, blame_run, find_spikes
from penstock.trace.loss_log import Stretch, block_bytes, head_bytes


def cost_of_logging(path: Path, samples: int, steps: int) -> dict[str, float]:
    """Processor time of a call, flushes included, as a share of a step of 10 ms."""
    loader = pen.Loader(pen.open({"x": np.arange(samples * 64)}).shuffle(seed=7), samples, threads=0, tail="wrap")
    losses = np.random.default_rng(0).random(samples, np.float32)
    log = pen.LossLog(path, loader)
    spent = 0.0
    for step in range(steps):
        loader.seek(step + 1)
        began = time.process_time()
        log(losses)
        spent += time.process_time() - began
    log.close()
    return {"us_per_step": 1e6 * spent / steps, "share_of_10_ms": spent / steps / 0.01}


def write_log(path: Path, losses: int, samples: int, world: int) -> None:
    """A log of a run of several ranks, in blocks of 64 kB as LossLog writes them."""
    loader = pen.Loader(pen.open({"x": np.arange(samples * world * 64)}).shuffle(seed=7), samples * world, tail="wrap")
    stretch = Stretch(loader.state_at(0), "wrap", world, "sample")
    steps, each, rng = losses // (samples * world), 16_000 // samples, np.random.default_rng(0)
    path.mkdir()
    for rank in range(world):
        with (path / f"000001-{rank:05d}.losses").open("wb") as file:
            file.write(head_bytes(stretch, rank))
            for first in range(0, steps, each):
                count = min(each, steps - first)
                file.write(block_bytes(first, [samples] * count, rng.random(count * samples, np.float32)))


def planted(path: Path, documents: int, bad: int) -> dict[str, object]:
    """A bigram model on packed texts, of which some are noise: whether these are the first that blame names."""
    rng = np.random.default_rng(3)
    follows = rng.dirichlet(np.full(64, 0.05), 64)
    sums = follows.cumsum(axis=1)
    state, tokens = rng.integers(0, 64, documents), []
    lengths = rng.integers(8, 96, documents)
    for _ in range(96):
        tokens.append(state)
        state = np.minimum((sums[state] < rng.random(documents)[:, None]).sum(axis=1), 63)
    all_tokens = np.stack(tokens, axis=1).astype(np.uint16)
    texts = [row[:length] for row, length in zip(all_tokens, lengths, strict=True)]
    chosen = rng.choice(documents, bad, replace=False)
    for number in chosen:
        texts[number] = rng.integers(0, 64, max(24, lengths[number])).astype(np.uint16)

    def make() -> pen.Loader:
        return pen.Loader(
            pen.open({"tokens": texts}).shuffle(seed=7).pack(512, fields=("tokens", "segment", "labels")), 16, tail="drop"
        )

    loader, counts = make(), np.ones((64, 64))
    with pen.LossLog(path, loader, per="document") as log:
        for batch in loader:
            labels, segment = batch["labels"], batch["segment"]
            does_count = labels >= 0
            after = np.where(does_count, labels, 0)
            losses = -np.log(counts[batch["tokens"], after] / counts.sum(axis=1)[batch["tokens"]])
            log(pen.trace.segment_losses(losses, segment, does_count))
            np.add.at(counts, (batch["tokens"][does_count], after[does_count]), 1)
    began = time.process_time()
    found = blame_run(Run.open(path, make()))
    names = [suspect.id for suspect in found.suspects[:bad]]
    return {
        "documents": documents,
        "planted": sorted(chosen.tolist()),
        "named_first": names,
        "all_named_first": sorted(names) == sorted(chosen.tolist()),
        "blame_s": time.process_time() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--losses", type=float, default=1e8)
    parser.add_argument("--samples", type=int, default=256, help="samples of a rank's batch")
    given = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="penstock-losses-"))
    try:
        for samples in (8, given.samples, 4096):
            print(json.dumps({"samples": samples, **cost_of_logging(place / f"cost-{samples}", samples, 3000)}))
        write_log(place / "large", int(given.losses), given.samples, 4)
        began, cpu = time.perf_counter(), time.process_time()
        table = LossTable.open(place / "large")
        mean = float(table.mean.mean())
        told = {
            "losses": int(table.num_losses.sum()),
            "read_s": time.perf_counter() - began,
            "read_cpu_s": time.process_time() - cpu,
        }
        spikes = len(find_spikes(table))
        print(json.dumps({**told, "mean": mean, "spikes": spikes, "with_spikes_s": time.perf_counter() - began}))
        print(json.dumps(planted(place / "planted", 50_000, 5)))
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
