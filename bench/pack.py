"""Packing of documents: padding, documents cut, the time to plan and to seek; at the scale of 10^9 documents; through the loader;
and next to other packers.

::

    python bench/pack.py                        # three distributions of lengths: a minute
    python bench/pack.py --documents 1e9        # an index of 10^9 documents under --dir, removed at the end: 2 minutes, 8 GB
    python bench/pack.py --loader               # tokens a second through the Loader, next to sequences: a minute, 0.5 GB
    python bench/pack.py --rivals               # next to TRL, OLMo-core and Grain: 10 minutes (environments: bench/rivals)

Lengths are lognormal: like web pages, code and chats. "padding" is the part of all tokens; "truncation" are documents that fit a
sequence and were cut all the same, in percent of those that fit; "concatenation" is the number of pieces in a sequence. Times to
plan and to seek are processor time, of one thread: planning, with the pieces of all sequences as numpy arrays (4,096 sequences at a
time, as the loader asks for them), for each document; and a seek to 32 sequences in a row whose plan is not kept. As root,
``chrt -r 1`` keeps others away from the caches meanwhile.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import penstock as pen
from measure import Spread, interleave, machine, progress, run_child, table
from pack_rival import PACKERS
from penstock.order import Pack
from rivals.environments import PINS, python_of, reason_missing

DISTRIBUTIONS = {"web": (500, 1.1), "code": (600, 1.6), "chat": (300, 0.8)}
LENGTHS = (2048, 8192, 32768)
SEEKS, BATCH, AT_ONCE = 25, 32, 4096
MANY = 1 << 24
"""Documents above which the index is a file."""


def lengths_of(name: str, count: int) -> np.ndarray:
    median, sigma = DISTRIBUTIONS[name]
    return np.maximum(1, np.random.default_rng(7).lognormal(np.log(median), sigma, count)).astype(np.int64)


def make_pack(lengths: np.ndarray, length: int, split: str, **options: Any) -> Pack:
    """Documents in the order of a global shuffle (``block=1``) unless told otherwise."""
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    return Pack(bounds, length, seed=1, split=split, long="truncate" if split == "never" else "error", **options)


def planned(pack: Pack, epoch: int = 0) -> tuple[float, int, np.ndarray, int]:
    """Planning all sequences of an epoch: seconds; tokens, the number of pieces of every document, and of all."""
    pack.edges(epoch)
    found, seconds = [], 0.0
    for low in range(0, len(pack), AT_ONCE):
        wanted = np.arange(low, min(len(pack), low + AT_ONCE))
        began = time.thread_time()
        pieces = pack.pieces(epoch, wanted)
        seconds += time.thread_time() - began
        found.append((pieces.document.astype(np.int32), int(pieces.count.sum())))
    documents = np.concatenate([document for document, _ in found])
    cuts = np.bincount(documents, minlength=pack.num_documents)
    return seconds, sum(tokens for _, tokens in found), cuts, len(documents)


def seek_ms(pack: Pack, epoch: int = 1) -> float:
    pack.edges(epoch)
    seeks = []
    for number in np.random.default_rng(8).integers(max(1, len(pack) - BATCH), size=SEEKS):
        pack._plans._values = {}
        began = time.thread_time()
        pack.pieces(epoch, np.arange(number, min(len(pack), number + BATCH)))
        seeks.append(time.thread_time() - began)
    return 1e3 * statistics.median(seeks)


def measure(name: str, lengths: np.ndarray, length: int, split: str, block: int) -> str:
    """One line of the table."""
    pack = make_pack(lengths, length, split, block=block)
    sequences = len(pack)
    planned(pack)
    rounds = [planned(pack, epoch) for epoch in (1, 2, 3)]
    nanoseconds = Spread(tuple(1e9 * one[0] / lengths.size for one in rounds))
    _, kept, cuts, pieces = rounds[0]
    fits = lengths <= length
    padding, cut = 100 * (1 - kept / sequences / length), 100 * np.mean(cuts[fits] > 1)
    return (
        f"{name:6} {length:6} {split:7} {block:6} {pack.window:7} {padding:8.3f} {cut:10.3f} {pieces / sequences:13.2f} "
        f"{nanoseconds.min:7.1f} {nanoseconds.median:7.1f} {seek_ms(pack):8.2f}"
    )


def show_table(count: int) -> None:
    """Of the three distributions."""
    print("data   length split    block  window padding% truncation% concatenation     min  median  seek ms   (ns a document)")
    for name in DISTRIBUTIONS:
        lengths = lengths_of(name, count)
        for length in LENGTHS:
            for split in ("fit", "always", "never"):
                for block in (1, 64):
                    print(measure(name, lengths, length, split, block), flush=True)


# 10^9 documents


def write_index(folder: Path, count: int) -> Path:
    """A file of tokens that has no blocks on the disk, and the sidecar that says where its documents are: lengths of web pages."""
    lengths = lengths_of("web", min(count, 1 << 20))
    times, rest = divmod(count, lengths.size)
    tokens = int(lengths.sum()) * times + int(lengths[:rest].sum())
    path = folder / "tokens.bin"
    with path.open("wb") as file:
        file.truncate(2 * tokens)
    time.sleep(3)  # data that was written a moment ago gets no sidecar
    source: Any = pen.open(path, dtype="uint16", check=False)
    ends = np.cumsum(lengths)

    def pieces() -> Iterator[np.ndarray]:
        yield np.zeros(1, np.int64)
        for number in range(times):
            progress(f"writing the index: {number + 1} of {times}")
            yield ends + number * int(ends[-1])
        yield ends[:rest] + times * int(ends[-1])

    source._document_bounds = lambda wanted: pieces()  # what a search would find in tokens
    source.separated(0)
    return path


def show_scale(count: int, folder: Path) -> None:
    """What an index of that number of documents costs: each figure in a fresh process."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="pack-") as name:
        began = time.perf_counter()
        path = write_index(Path(name), count)
        index = next(Path(name).glob(".*.penstock-index"))
        print(
            f"{count:,} documents, an index of {index.stat().st_size / 1e9:.2f} GB, written in {time.perf_counter() - began:.0f} s"
        )
        for state in ("warm", "cold"):
            found = run_child(Path(__file__), "--child", path, "--state", state)
            print(f"{state}: " + ", ".join(f"{key} {value}" for key, value in found.items()), flush=True)


def child(path: Path, state: str) -> None:
    """Open, plan and seek; prints JSON."""
    index = next(path.parent.glob(".*.penstock-index"))
    descriptor = os.open(index, os.O_RDONLY)
    if state == "cold":
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    else:
        while os.read(descriptor, 1 << 24):
            pass
    os.close(descriptor)
    with tempfile.NamedTemporaryFile(suffix=".bin") as small:  # what is imported when it is first used
        np.zeros(5000, np.uint16).tofile(small.name)
        list(pen.Loader(pen.open(small.name, dtype="uint16", check=False).shuffle(seed=1).pack(16, separator=0), batch_size=BATCH))
    before, clock = _memory(), time.perf_counter
    began = clock()
    stream: Any = pen.open(path, dtype="uint16", check=False).shuffle(seed=1).pack(2048, separator=0, fields=("tokens",))
    opened = clock() - began
    per_epoch = stream.num_samples
    steps = per_epoch // BATCH
    rng = np.random.default_rng(9)

    def seek(epoch: int, step: int) -> float:
        stream.packing._plans._values = {}
        began = clock()
        stream.locate(epoch, range(step * BATCH * 2048, (step + 1) * BATCH * 2048, 2048))
        return clock() - began

    first = [seek(epoch, int(rng.integers(steps))) for epoch in range(3)]
    seeks = sorted(seek(0, int(rng.integers(steps))) for _ in range(400))
    loader = pen.Loader(stream, batch_size=BATCH)
    loads = []
    for step in rng.integers(steps, size=15).tolist():
        began = clock()
        loader.seek(step)
        next(iter(loader))
        loads.append(clock() - began)
    after = _memory()
    print(
        json.dumps(
            {
                "open ms": round(1e3 * opened, 1),
                "first plan of an epoch ms": [round(1e3 * one, 1) for one in first],
                "seek ms, median": round(1e3 * seeks[200], 2),
                "p99": round(1e3 * seeks[396], 2),
                "Loader.seek and its batch ms, median": round(1e3 * statistics.median(loads), 1),
                "memory MB, own": round(after[0] - before[0], 1),
                "memory MB, of maps": round(after[1] - before[1], 1),
                "window": stream.packing.window,
                "block": stream.packing.block,
            }
        )
    )


def _memory() -> tuple[float, float]:
    """Resident megabytes: anonymous, and pages of files."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) / 1e3, int(lines["RssFile"].split()[0]) / 1e3


# Through the loader


def write_tokens(path: Path, count: int) -> np.ndarray:
    """Tokens of documents like web pages, each ended by a 0; the bounds of the documents."""
    lengths = lengths_of("web", count) + 1
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    tokens = np.random.default_rng(3).integers(1, 50_000, bounds[-1], dtype=np.uint16)
    tokens[bounds[1:] - 1] = 0
    tokens.tofile(path)
    return bounds


def check_batches(stream: Any, path: Path, bounds: np.ndarray, length: int, size: int) -> None:
    """SystemExit unless the first batches of the loader are what the plan says, token by token."""
    tokens = np.memmap(path, np.uint16, "r")
    for step, batch in enumerate(pen.Loader(stream, batch_size=size)):
        picks = stream.locate(0, range(step * size * length, (step + 1) * size * length, length))
        runs = [tokens[max(0, s) : max(0, s) + c] if s >= 0 else np.zeros(c, np.uint16) for s, c in _pairs(picks)]
        expected = {"tokens": np.concatenate(runs)}
        if "segment" in batch:
            segments, positions = [], []
            for first, last in zip(picks.first[:-1], picks.first[1:], strict=True):
                number = 0
                for s, c in _pairs(picks)[first:last]:
                    inner = np.append(0, bounds[(bounds > s) & (bounds < s + c)] - s) if s >= 0 else np.zeros(1, np.int64)
                    sizes = np.diff(np.append(inner, c))
                    segments += [np.repeat(number + np.arange(sizes.size), sizes) if s >= 0 else np.full(c, -1)]
                    positions += [np.concatenate([np.arange(one) for one in sizes]) if s >= 0 else np.zeros(c)]
                    number += sizes.size
            expected |= {"segment": np.concatenate(segments), "position": np.concatenate(positions)}
        for name, values in expected.items():
            if not np.array_equal(batch[name].reshape(-1), values):
                raise SystemExit(f"{stream!r}: wrong {name} at step {step}")
        if step == 20:
            return


def _pairs(picks: Any) -> list[tuple[int, int]]:
    return list(zip(picks.starts.tolist(), picks.counts.tolist(), strict=True))


def show_loader(folder: Path, count: int) -> None:
    """Tokens a second of packs and of sequences, in turns."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="pack-") as name:
        path = Path(name) / "tokens.bin"
        bounds = write_tokens(path, count)
        data = pen.open(path, dtype="uint16", check=False)
        for length, size in ((2048, 32), (8192, 8)):
            for order, stream in (("shuffle", data.shuffle(seed=1)), ("blocks", data.shuffle(seed=1, block=512, window=8))):
                known = ("tokens", "segment", "position")
                streams = {
                    "sequences, tokens": stream.sequences(length),
                    "pack, tokens": stream.pack(length, separator=0, fields=("tokens",)),
                    "sequences, documents": stream.sequences(length, separator=0, documents=True),
                    "pack, documents": stream.pack(length, separator=0, fields=known),
                }
                for one in streams.values():
                    check_batches(one, path, bounds, length, size)
                turns = {key: _turn(pen.Loader(one, batch_size=size).forever()) for key, one in streams.items()}
                turns |= {f"{key}, bare": _bare(data, streams[f"{key}, tokens"], length) for key in ("sequences", "pack")}
                found = interleave(turns, rounds=12, label=f"{length} {order}")
                for kind in ("tokens", "documents", "bare"):
                    pack, plain = found[f"pack, {kind}"], found[f"sequences, {kind}"]
                    ratios = sorted(p / s for p, s in zip(pack.values, plain.values, strict=True))
                    print(
                        f"length {length:5} {order:8} {kind:10} pack {pack.median:6.0f} sequences {plain.median:6.0f} Mtokens/s   "
                        f"ratio {pack.median / plain.median:.2f} (turns {ratios[0]:.2f} to {ratios[-1]:.2f})",
                        flush=True,
                    )


def _turn(batches: Iterator[Any], seconds: float = 0.15) -> Callable[[], float]:
    """Millions of tokens a second over a while; what was read ahead does not count."""

    def run() -> float:
        until = time.perf_counter() + seconds / 2
        while time.perf_counter() < until:
            next(batches)
        tokens, began = 0, time.perf_counter()
        while time.perf_counter() < began + seconds:
            tokens += next(batches)["tokens"].size
        return tokens / (time.perf_counter() - began) / 1e6

    return run


def _bare(data: Any, stream: Any, length: int, count: int = 512) -> Callable[[], float]:
    """The same for the bare reads of the tokens of sequences, natively by as many threads: no loader can be faster."""
    picks = [stream.locate(0, range(low * length, (low + count) * length, length)) for low in range(0, 8 * count, count)]
    runs = [(one.starts[one.starts >= 0], one.counts[one.starts >= 0]) for one in picks]
    spans = [(starts, np.concatenate([[0], np.cumsum(counts)])) for starts, counts in runs]
    memory = np.empty((8, count * length // 8 + 1), np.uint16)

    def run(seconds: float = 0.15) -> float:
        tokens, began = 0, time.perf_counter()
        while time.perf_counter() < began + seconds:
            for starts, offsets in spans:
                data.read_spans(starts, offsets, memory.reshape(-1)[: offsets[-1]])
                tokens += int(offsets[-1])
        return tokens / (time.perf_counter() - began) / 1e6

    return run


# Next to others


def corpus_lengths() -> np.ndarray:
    """Of the text files of this machine, a token for every four bytes."""
    roots = (Path(sys.base_prefix, "lib"), Path(sys.prefix, "lib"), Path("/usr/share/doc"), Path("/usr/include"))
    suffixes = (".py", ".pyi", ".rst", ".md", ".txt", ".h", ".hpp", ".html", ".c")
    found = [
        os.path.getsize(os.path.join(folder, name))
        for root in roots
        for folder, _, names in sorted(os.walk(root))
        for name in sorted(names)
        if name.endswith(suffixes) and os.path.isfile(os.path.join(folder, name))
    ]
    return np.array([size // 4 for size in found if size >= 4], np.int64)


def concat_and_chunk(lengths: np.ndarray, length: int) -> dict[str, float]:
    """Documents one after the other, cut wherever a sequence ends: by numpy."""
    began = time.process_time()
    ends = np.cumsum(lengths)
    cuts = np.arange(0, ends[-1], length)
    np.searchsorted(ends, cuts, side="right")
    seconds = time.process_time() - began
    inner = (ends - 1) // length - (ends - lengths) // length
    fits = lengths <= length
    return {
        "ns": 1e9 * seconds / lengths.size,
        "sequences": len(cuts),
        "pieces": int((inner + 1).sum()),
        "tokens": int(ends[-1]),
        "truncation": 100 * float(np.mean(inner[fits] > 0)),
    }


def penstock(lengths: np.ndarray, length: int, split: str) -> dict[str, float]:
    pack = make_pack(lengths, length, split)
    planned(pack, 1)
    seconds, tokens, cuts, pieces = min((planned(pack, epoch) for epoch in (0, 2, 3)), key=lambda one: one[0])
    cut = 100 * float(np.mean(cuts[lengths <= length] > 1))
    return {"ns": 1e9 * seconds / lengths.size, "sequences": len(pack), "pieces": pieces, "tokens": tokens, "truncation": cut}


def show_rivals(count: int) -> None:
    """Of every data set and length: all packers."""
    data = {name: lengths_of(name, count) for name in DISTRIBUTIONS} | {"corpus": corpus_lengths()}
    cases = {f"{name}-{length}": lengths for name, lengths in data.items() for length in LENGTHS}
    found: dict[str, dict[str, dict[str, float]]] = {"penstock": {}, 'penstock, split="always"': {}, "concat-and-chunk, numpy": {}}
    for case, lengths in cases.items():
        length = int(case.rpartition("-")[2])
        found["penstock"][case] = penstock(lengths, length, "fit")
        found['penstock, split="always"'][case] = penstock(lengths, length, "always")
        found["concat-and-chunk, numpy"][case] = concat_and_chunk(lengths, length)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.npz"
        np.savez(path, **cases)  # type: ignore[arg-type]
        for name, (environment, _) in PACKERS.items():
            missing = reason_missing(environment)
            if missing is not None:
                print(f"{name}: {missing}")
                continue
            progress(f"{name} ({', '.join(PINS[environment].shared or PINS[environment].pins[:1])})", lasting=True)
            words = [str(python_of(environment)), str(Path(__file__).with_name("pack_rival.py")), name, str(path)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                print(f"{name}: failed: {done.stderr.strip().splitlines()[-1:]}")
                continue
            found[name] = json.loads(done.stdout.splitlines()[-1])
    for case, lengths in cases.items():
        length, own = int(case.rpartition("-")[2]), found["penstock"][case]["ns"]
        rows = []
        for name, results in found.items():
            one = results[case]
            room = one["sequences"] * length
            assert one["tokens"] == lengths.sum(), f"{name} lost tokens"
            truncation = one.get("truncation", found["concat-and-chunk, numpy"][case]["truncation"] if "concat" in name else 0.0)
            rows.append(
                [
                    name,
                    f"{100 * (1 - one['tokens'] / room):.3f}",
                    f"{truncation:.3f}",
                    f"{one['pieces'] / one['sequences']:.2f}",
                    f"{one['ns']:,.0f}",
                    f"{one['ns'] / own:,.1f}",
                ]
            )
        print(f"\n{case.rpartition('-')[0]}, {lengths.size:,} documents, sequences of {length}")
        print(table(["", "padding %", "truncation %", "concatenation", "ns a document", "times penstock"], rows), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--documents", type=lambda text: int(float(text)), default=0, help="how many; an index in a file above 2^24"
    )
    parser.add_argument("--loader", action="store_true")
    parser.add_argument("--rivals", action="store_true")
    parser.add_argument("--dir", type=Path, default=Path("out"), help="where files are made")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--state", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        return child(options.child, options.state)
    options.dir.mkdir(exist_ok=True)
    print(json.dumps(machine()))
    if options.loader:
        show_loader(options.dir, options.documents or 1 << 18)
    elif options.rivals:
        show_rivals(options.documents or 50_000)
    elif options.documents > MANY:
        show_scale(options.documents, options.dir)
    else:
        show_table(options.documents or 1 << 20)
    print(json.dumps({"load_average": machine()["load_average"]}))
    return None


if __name__ == "__main__":
    main()
