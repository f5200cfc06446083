"""What a second process is worth to a conversion with a map that keeps a processor busy: texts into tokens, in plain Python.

The same conversion here, on a pool of one process and on one of two, in turns. LIMIT is the bare map on the same pools, without a
store: what the machine gives at that moment. Every store is compared record by record with what the map gives; the goal is judged
on medians.

With ``--text``: what a conversion with a tokenizer costs besides the tokenizer. LIMIT is the bare ``encode_batch`` of the
tokenizers package on the same texts, with its threads, in memory and without a result that is kept; the conversions read a store of
texts and write durable files. Tokens are compared with those of LIMIT, document by document.
"""

import argparse
import multiprocessing
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import penstock as pen
from measure import Spread, interleave, machine, seconds, table, versions, write_json
from penstock.report.doctor import Others
from penstock.source import BatchMap

GOAL, TASKS = 1.6, 16
TEXT_GOAL, VOCABULARY = 0.9, 16_000
WORDS = [f"word{number * number % 9973}" for number in range(5000)]


def tokenise(batch: dict[str, Any]) -> dict[str, Any]:
    """A token per word: slow on purpose, and only in Python."""
    tokens = []
    for text in batch["text"]:
        made = []
        for word in text.split():
            value = 0
            for letter in word:
                value = (value * 31 + ord(letter)) % 65521
            made.append(value)
        tokens.append(np.array(made, np.uint16))
    return {"tokens": tokens}


def make_texts(count: int) -> list[str]:
    """Texts of about 400 letters."""
    rng = np.random.default_rng(0)
    return [" ".join(WORDS[k] for k in rng.integers(0, len(WORDS), 50)) for _ in range(count)]


@contextmanager
def processes(count: int) -> Iterator[Executor]:
    """A pool whose processes run already."""
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
        for job in [pool.submit(make_texts, 2000) for _ in range(2 * count)]:
            job.result()
        yield pool


class Contender:
    """One way to convert; every call is a conversion, and gives its seconds."""

    def __init__(self, source: Path, target: Path, executor: Executor | None, task_records: int) -> None:
        self._source, self._target, self._executor = source, target, executor
        self._map = BatchMap(tokenise, fields={"tokens": pen.Field.ragged("u2")}, task_records=task_records)

    def __call__(self) -> float:
        shutil.rmtree(self._target, ignore_errors=True)
        return seconds(lambda: pen.convert(self._source, self._target, map=self._map, executor=self._executor))

    def check(self) -> None:
        """The store has what the map gives, record by record."""
        with pen.open(self._source) as source, pen.open(self._target) as made:
            for low in range(0, len(source), 5000):
                wanted, found = tokenise(source[low : low + 5000])["tokens"], made[low : low + 5000]["tokens"]
                if len(wanted) != len(found) or any(not np.array_equal(a, b) for a, b in zip(wanted, found, strict=True)):
                    raise RuntimeError(f"{self._target}: records from {low} on are not what the map gives")
            if len(made) != len(source) or made.generation != 1:
                raise RuntimeError(f"{self._target}: expected {len(source)} records in generation 1, found {made!r}")


def bare(texts: list[str], executor: Executor) -> float:
    """The seconds of the map alone."""
    parts = [{"text": texts[low : low + len(texts) // TASKS]} for low in range(0, len(texts), len(texts) // TASKS)]
    return seconds(lambda: list(executor.map(count_tokens, parts)))


def count_tokens(batch: dict[str, Any]) -> int:
    """The map without its result, which would have to travel."""
    return sum(map(len, tokenise(batch)["tokens"]))


# Texts


def corpus(megabytes: float) -> list[str]:
    """Runs of lines of the documentation and the source here, of 1 to 100 lines."""
    root = Path(__file__).parents[1]
    files = [file.read_text() for end in ("md", "py", "h", "cpp") for file in sorted(root.glob(f"[dnst]*/**/*.{end}"))]
    lines, rng, made, size = [text.splitlines(keepends=True) for text in files], random.Random(0), [], 0
    while size < megabytes * 1e6:
        one = rng.choice(lines)
        low = rng.randrange(max(1, len(one)))
        made.append("".join(one[low : low + rng.randint(1, 100)]))
        size += len(made[-1])
    return made


def train(texts: list[str], path: Path) -> None:
    """A tokenizer as those of language models are: BPE over bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))


class Encoding:
    """One way to encode all texts. Every call gives its seconds; those of the processors are kept."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self.busy: list[float] = []

    def __call__(self) -> float:
        before = time.process_time()
        taken = seconds(self._work)
        self.busy.append(time.process_time() - before)
        return taken


def measure_texts(megabytes: float, rounds: int, directory: Path) -> dict[str, Any]:
    """Bare encode_batch against conversions to every kind of target."""
    texts = corpus(megabytes)
    train(texts[:2000], directory / "tokenizer.json")
    pen.convert({"text": texts}, directory / "texts.pen")
    targets = {f"convert to {name}": directory / name for name in ("tokens.rox", "tokens.idx", "tokens.pen")}

    def bare(method: str) -> None:
        getattr(Tokenizer.from_file(str(directory / "tokenizer.json")), method)(texts)

    def convert(target: Path) -> None:
        for old in (target, target.with_suffix(".bin")):
            shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink(missing_ok=True)
        pen.convert(directory / "texts.pen", target, tokenizer=directory / "tokenizer.json")

    ways = {
        "LIMIT, encode_batch": Encoding(partial(bare, "encode_batch")),
        "encode_batch_fast": Encoding(partial(bare, "encode_batch_fast")),
    }
    ways |= {name: Encoding(partial(convert, target)) for name, target in targets.items()}
    spreads = interleave(ways, rounds=rounds, slow_s=120, label="text")
    wanted = [one.ids for one in Tokenizer.from_file(str(directory / "tokenizer.json")).encode_batch(texts)]
    for target in targets.values():
        check_tokens(target, wanted)
    limit, busy = spreads["LIMIT, encode_batch"], Spread(tuple(ways["LIMIT, encode_batch"].busy))
    tokens, rows = sum(map(len, wanted)), []
    for name, way in ways.items():
        found, used = spreads[name], Spread(tuple(way.busy))
        ratios = [f"{limit.median / found.median:.2f}", f"{busy.min / used.min:.2f}"]
        rows.append([name, f"{found.min:.2f} / {found.median:.2f} s", f"{tokens / found.median / 1e6:.2f}", *ratios])
    print(table(["texts into tokens", "min / median", "million tokens/s", "of LIMIT", "of its processor time"], rows))
    print(f"\n{len(texts):,} documents, {tokens:,} tokens, all compared with those of encode_batch")
    return {
        "documents": len(texts),
        "tokens": tokens,
        "seconds": {name: spread.to_json() for name, spread in spreads.items()},
        "processor_seconds": {name: way.busy for name, way in ways.items()},
        "ratio": min(limit.median / spreads[name].median for name in targets),
        "processor_ratio": min(busy.min / min(ways[name].busy) for name in targets),
    }


def check_tokens(target: Path, wanted: list[list[int]]) -> None:
    with pen.open(target) as made:
        found = made["tokens"][:]
    line = np.concatenate([np.array(ids, np.uint16) for ids in wanted])
    if not np.array_equal(np.asarray(found.values).reshape(-1)[: len(line)], line):
        raise RuntimeError(f"{target}: the tokens are not those of encode_batch")
    if target.suffix != ".rox" and found.lengths.tolist() != [len(ids) for ids in wanted]:
        raise RuntimeError(f"{target}: the documents are not those of encode_batch")


def main_of_texts(arguments: argparse.Namespace, directory: Path) -> int:
    others = Others()
    try:
        found = measure_texts(arguments.megabytes, arguments.rounds, directory)
    finally:
        shutil.rmtree(directory)
    met = "met" if found["ratio"] >= TEXT_GOAL else "MISSED"
    print(f"other programs took {others.share():.0%} of the processors")
    print(f"goal: every conversion is at least {TEXT_GOAL} of encode_batch: {found['ratio']:.2f}, {met}")
    print(f"by processor time, which other programs disturb less: {found['processor_ratio']:.2f}")
    if arguments.json:
        write_json(arguments.json, {"machine": machine(), "versions": versions("penstock", "numpy", "tokenizers"), **found})
    return 0 if found["ratio"] >= TEXT_GOAL else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=40_000)
    parser.add_argument("--text", action="store_true", help="texts into tokens instead")
    parser.add_argument("--megabytes", type=float, default=8, help="of texts")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path("out"), help="where the stores are written")
    parser.add_argument("--json", type=Path, help="everything measured goes there")
    arguments = parser.parse_args()
    directory = arguments.dir / "convert"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    if arguments.text:
        return main_of_texts(arguments, directory)
    texts = make_texts(arguments.records)
    pen.convert({"text": texts}, directory / "source.pen")
    others = Others()
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        pools = {"here": None, "one process": stack.enter_context(processes(1)), "two processes": stack.enter_context(processes(2))}
        contenders = {
            name: Contender(directory / "source.pen", directory / f"{name}.pen", pool, max(1, arguments.records // TASKS))
            for name, pool in pools.items()
        }
        limits = {f"LIMIT, {name}": partial(bare, texts, pool) for name, pool in pools.items() if pool is not None}
        spreads = interleave({**contenders, **limits}, rounds=arguments.rounds, slow_s=60, label="convert")
        for contender in contenders.values():
            contender.check()
    one = spreads["one process"]
    rows = [[name, f"{s.min:.2f} / {s.median:.2f} s", f"{one.median / s.median:.2f}"] for name, s in spreads.items()]
    print(table(["conversion", "min / median", "times one process"], rows))
    ratio = one.median / spreads["two processes"].median
    limit = spreads["LIMIT, one process"].median / spreads["LIMIT, two processes"].median
    print(f"\nevery record verified; other programs took {others.share():.0%} of the processors")
    print(f"goal: two processes are at least {GOAL} times as fast as one: {ratio:.2f}, {'met' if ratio >= GOAL else 'MISSED'}")
    print(f"the machine gave the bare map {limit:.2f}")
    if arguments.json:
        figures = {name: spread.to_json() for name, spread in spreads.items()}
        write_json(
            arguments.json,
            {"machine": machine(), "versions": versions("penstock", "numpy"), "seconds": figures, "ratio": ratio, "limit": limit},
        )
    return 0 if ratio >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
