"""Records of varying length through the loader: globally shuffled, warm, next to the bare library and to a plain token file.

::

    python bench/varying.py [--json FILE] [--quick]

Every way is timed in turns with the others, and the last batch of every turn is compared with what was written. A turn is a whole
epoch, not some batches of an endless one: a loader that is left open reads ahead during the turns of the others, and then gives out
what is ready, which measures nothing. On a machine that others use too, the ratios are only as good as the share of the cores that
is printed at the end. "Python threads" is the same loader with a transform that does nothing, which keeps it from
reading natively.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import penstock as pen
from loader import OUT
from loader_report import finish, judged, rates
from measure import Spread, interleave, machine, seconds, versions
from penstock.report.doctor import Others
from penstock.source import write_tokens
from store_case import BARE, Ids, Text
from store_limit import Crew

NATIVE = "penstock Loader"
THREADS = "penstock Loader, Python threads"
TOKEN_FILE = "LIMIT: sequences of a .rox file"
DOCUMENTS = "sequences of documents"
DOCUMENT_THREADS = "sequences of documents, Python threads"
SEQ_LEN = 1024


def same(batch: Any) -> Any:
    return batch


class ShortText(Text):
    """Records of 1 KB on average."""

    name = "1,024 texts of 1 KB, Zstd(3)"

    def make(self) -> pen.Ragged:
        whole = super().make()
        sizes = np.maximum(1, whole.lengths // 3)
        starts, offsets = whole.offsets[:-1], np.concatenate([[0], np.cumsum(sizes)])
        places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], sizes)
        return pen.Ragged(whole.values[places], offsets, "text")


def record_check(field: str, records: pen.Ragged) -> Callable[[Any], None]:
    """Compares a batch of records with what was written."""

    def check(batch: Any) -> None:
        wanted = records.take(np.asarray(batch["row"]))
        assert np.array_equal(batch[field].offsets, wanted.offsets), "wrong lengths"
        assert np.array_equal(batch[field].values, wanted.values), "wrong bytes"

    return check


class Epochs:
    """Seconds per item of whole epochs: it begins with no batch ready, and when it ends no thread goes on."""

    def __init__(self, batches: Iterable[Any], check: Callable[[Any], None], size: Callable[[Any], int]) -> None:
        self._batches, self._check, self._size = batches, check, size
        self()

    def __call__(self) -> float:
        last: list[Any] = []
        items = 0

        def turn() -> None:
            nonlocal items
            for batch in self._batches:
                items += self._size(batch)
                last[:] = [batch]

        took_s = seconds(turn)
        self._check(last[0])
        return took_s / items


def loader_of(stream: Any, batch: int, transform: Any = None) -> pen.Loader:
    return pen.Loader(stream, batch, tail="drop", threads=2, ids="row", transform=transform)


def measure_texts(directory: Path, crew: Crew, rounds: int) -> dict[str, Spread]:
    batch, case = 1024, ShortText(60_000, 1024)
    records = case.make()
    case.write(directory / "store", records)
    frames = crew.encode(3, records.values, records.offsets)
    frames.encode()
    frames.keep(directory / "frames")
    store = pen.open(directory / "store", threads=2)
    decoder, check, ids = frames.decoder(batch), record_check("text", records), Ids(len(store), batch)

    class Bare:
        def __iter__(self) -> Any:
            for number, where in enumerate(ids.addresses):
                values, offsets = decoder(where)
                yield {"text": pen.Ragged(values, offsets), "row": ids[number]}

    order = store.shuffle(seed=3)
    ways = {BARE: Bare(), NATIVE: loader_of(order, batch), THREADS: loader_of(order, batch, same)}
    turns = {name: Epochs(way, check, lambda found: len(found["row"])) for name, way in ways.items()}
    return interleave(turns, rounds=rounds, label=case.name)


def measure_tokens(directory: Path, rounds: int) -> dict[str, Spread]:
    """Time per token. A batch has 256 records of about 1,000 tokens, or 256 sequences."""
    batch, rng = 256, np.random.default_rng(5)
    lengths = rng.integers(500, 1548, 40_000)
    records = pen.Ragged(rng.integers(0, 50_000, lengths.sum()).astype(np.uint16), np.concatenate([[0], np.cumsum(lengths)]))
    pen.convert({"tokens": records}, directory / "store")
    write_tokens([records.values], directory / "all.rox", block_size=SEQ_LEN)
    store, line = pen.open(directory / "store", threads=2), pen.open(directory / "all.rox").shuffle(seed=3).sequences(SEQ_LEN)
    order = store.shuffle(seed=3)
    documents = order.sequences(SEQ_LEN)

    def check_line(found: Any) -> None:
        for tokens, first in zip(found["tokens"], found["row"].tolist(), strict=True):
            assert np.array_equal(tokens, records.values[first : first + SEQ_LEN]), "wrong tokens"

    def check_documents(loader: pen.Loader) -> Callable[[Any], None]:
        """All tokens, which come from where the loader says."""

        def check(found: Any) -> None:
            for tokens, runs in zip(found["tokens"], loader.explain(loader.step - 1)["tokens"], strict=True):
                wanted = np.concatenate([records.values[low:high] for low, high in runs.tolist()])
                assert np.array_equal(tokens, wanted), "wrong tokens"

        return check

    check = record_check("tokens", records)
    loaders = {
        TOKEN_FILE: loader_of(line, batch),
        NATIVE: loader_of(order, batch),
        THREADS: loader_of(order, batch, same),
        DOCUMENTS: loader_of(documents, batch),
        DOCUMENT_THREADS: loader_of(documents, batch, same),
    }
    checks = {TOKEN_FILE: check_line, NATIVE: check, THREADS: check}

    def size(found: Any) -> int:
        return int(found["tokens"].values.size if isinstance(found["tokens"], pen.Ragged) else found["tokens"].size)

    turns = {name: Epochs(one, checks.get(name) or check_documents(one), size) for name, one in loaders.items()}
    return interleave(turns, rounds=rounds, label="tokens")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Records of varying length through the loader, warm, globally shuffled.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("--quick", action="store_true", help="fewer turns")
    options = parser.parse_args(arguments)
    OUT.mkdir(parents=True, exist_ok=True)
    began, others, rounds = time.perf_counter(), Others(), 7 if options.quick else 25
    with tempfile.TemporaryDirectory(prefix="varying-", dir=OUT) as place:
        (texts_at := Path(place) / "texts").mkdir()
        crew = Crew(2, spins=20_000)
        texts = measure_texts(texts_at, crew, rounds)
        crew.close()
        (tokens_at := Path(place) / "tokens").mkdir()
        tokens = measure_tokens(tokens_at, rounds)
    print(f"\n{ShortText.name}\n\n{rates(texts, BARE, 'samples/s')}")
    print(f"\nrecords of about 1,000 tokens (uint16, not compressed), batches of 256\n\n{rates(tokens, TOKEN_FILE, 'tokens/s')}")
    goals = [
        judged("texts: of bare zstd", texts[BARE].median / texts[NATIVE].median, 0.9, at_least=True),
        judged("ragged records: of .rox", tokens[TOKEN_FILE].median / tokens[NATIVE].median, 0.8, at_least=True),
        judged("sequences of documents: of .rox", tokens[TOKEN_FILE].median / tokens[DOCUMENTS].median, 0.6, at_least=True),
    ]
    spreads = {"texts": texts, "tokens": tokens}
    report: dict[str, Any] = {"machine": machine(), "versions": versions("penstock", "numpy")}
    report["reads"] = {case: {name: s.to_json() for name, s in found.items()} for case, found in spreads.items()}
    finish(report, goals, others, began, options.json)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    raise SystemExit(main())
