"""Writes tests/golden/states-v1.json: states that version 1 saved for every kind of stream, and the batches that came next.

::

    PYTHON_OF_VERSION_1 -m tests.golden.make_states            make them again, compare, change nothing
    PYTHON_OF_VERSION_1 -m tests.golden.make_states --force    write them anew: only with penstock 0.1.0

The data is in states-v1/ (files whose bytes depend on the library that wrote them, or hold random names) and in :class:`Data`
(arrays in memory); the folder is written only where there is none. Fingerprints do not depend on where the folder is: the
states are saved from a copy in a temporary one.

A case of states-v1.json::

    {"name": ..., "state": the state at step 0, "at": [{"step", "cursor": of the state saved there, "epochs", "next"}, ...]}

States of one run differ only in step and cursor. ``next`` has the batches that follow in the run that resumes: the value of the
first field for the first samples (of sequences: the first token), a digest of that field, and one of all other fields.
"""

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import penstock as pen
from penstock import Field, Loader, Phase, Shard
from penstock.stream import Stream

HERE = Path(__file__).parent
STATES = HERE / "states-v1.json"
FOLDER = HERE / "states-v1"
NEXT = 2
"""Batches that are kept of every position."""
SHOWN = 5
"""Samples of a batch that one can read."""

WEIGHTS = {"web": 3, "code": 1, "book": 2}
STAGED = [(0, {"web": 1, "code": 1, "book": 1}), (3, {"web": 5, "code": 1, "book": 1}), (6, {"web": 1, "code": 2, "book": 3})]
STOPS = ("first_exhausted", "all_exhausted", "all_exhausted_without_replacement", "forever")
TAILS = ("keep", "drop", "pad", "wrap")


# Data


def doubled(record: Mapping[str, Any]) -> dict[str, Any]:
    """A function to map: its name is in the fingerprint."""
    return {"x": record["x"], "twice": record["x"] * 2}


def named(record: Mapping[str, Any]) -> dict[str, Any]:
    """Another one, which passes missing values on."""
    return {"x": record["x"], "t": record["t"]}


@cache
def texts() -> list[str]:
    """Documents of 400 KB together: six of the pages of 64 KiB in which version 1 shuffled texts."""
    return [f"<{k}>" + "abcdefghijk"[k % 7 :] * (k * k % 197) for k in range(500)]


@cache
def ragged(base: int = 0) -> list[np.ndarray[Any, Any]]:
    """Documents of 40 000 numbers together, in pages of 8192 in version 1: base, base + 1, ..."""
    ends = np.cumsum([k * 7 % 201 for k in range(400)])
    return np.split(np.arange(base, base + int(ends[-1]), dtype=np.int64), ends[:-1])


class Data:
    """What the cases read: files of a folder, and arrays that are always the same."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, *names: str) -> Any:
        """Files of the folder."""
        paths = [str(self.folder / name) for name in names]
        return pen.open(paths[0] if len(paths) == 1 else paths)

    def arrays(self, n: int = 100, base: int = 0) -> Any:
        """Records base, base + 1, ..."""
        x = np.arange(base, base + n)
        return pen.open({"x": x, "y": np.stack([x, -x], axis=1).astype(np.float32)})

    def missing(self) -> Any:
        """Records of which some values are missing."""
        x = np.arange(100)
        masked = np.ma.MaskedArray(x * 3, mask=x % 11 == 3)
        return pen.open({"x": x, "m": masked, "t": [None if k % 13 == 5 else f"text {k}" for k in range(100)]})

    def table(self) -> Any:
        """An Arrow table in memory."""
        return pen.open(_table())

    def texts(self) -> Any:
        """Texts in memory."""
        return pen.open({"text": texts()})

    def ragged(self, base: int = 0) -> Any:
        """Arrays of different lengths in memory, next to a fixed field."""
        return pen.open({"x": np.arange(400), "r": ragged(base)})

    def tokens(self) -> Any:
        """1005 tokens in blocks of 16."""
        return self.file("tokens.rox")

    def three(self) -> dict[str, Stream]:
        """Streams to mix."""
        return {
            "web": self.arrays(70, 1000).shuffle(seed=1),
            "code": self.arrays(30, 2000).shuffle(seed=2, block=4, window=3),
            "book": self.arrays(45, 3000).in_order(),
        }

    def two_lines(self, seq_len: int = 8) -> dict[str, Stream]:
        """Shuffled sequences to mix."""
        return {
            "a": self.tokens().shuffle(seed=1).sequences(seq_len),
            "b": self.file("many_000000.rox", "many_000001.rox").in_order().sequences(seq_len),
        }


def _table() -> Any:
    import pyarrow as pa

    names = [None if k % 9 == 4 else f"name {k}" for k in range(100)]
    scores = [None if k % 7 == 2 else k / 2 for k in range(100)]
    lists = [list(range(k % 5)) for k in range(100)]
    return pa.table(
        {"x": pa.array(range(100), pa.int64()), "name": names, "score": scores, "list": pa.array(lists, pa.list_(pa.int32()))}
    )


def write_files(folder: Path) -> None:
    """The files of the cases."""
    import h5py
    import pyarrow.feather
    import pyarrow.parquet

    from penstock.source import write_rows, write_tokens

    folder.mkdir(parents=True)
    x = np.arange(100)
    np.save(folder / "rows.npy", np.stack([x, x * x], axis=1).astype(np.int32))
    write_rows([np.stack([x, -x], axis=1)[:60].astype(np.float32)], folder / "a.shard")
    write_rows([np.stack([x, -x], axis=1)[60:].astype(np.float32)], folder / "b.shard")
    line = np.arange(1, 1006, dtype=np.int32)
    line[12::13] = 0
    write_tokens([line], folder / "tokens.rox", block_size=16)
    write_tokens([np.arange(2001, 2401, dtype=np.int32)], folder / "many_000000.rox", block_size=16)
    write_tokens([np.arange(2401, 2700, dtype=np.int32)], folder / "many_000001.rox", block_size=16)
    with h5py.File(folder / "table.h5", "w") as file:
        file.create_dataset("x", data=x, chunks=(16,), compression="gzip")
        file.create_dataset("y", data=(x / 4).astype(np.float32))
    table = _table()
    pyarrow.parquet.write_table(table, folder / "table.parquet", row_group_size=20)
    pyarrow.feather.write_feather(table, folder / "table.arrow", compression="uncompressed", chunksize=30)
    fields = {"x": Field("i8"), "text": Field.text(codec=pen.Zstd(3))}
    with pen.create(folder / "records.pen", fields, chunk_bytes=65_536, chunk_records=25, threads=1) as out:
        for k in range(100):
            out.append({"x": k, "text": None if k % 17 == 3 else f"record {k} " * (k % 6)})
        out.commit()
        out.delete([7, 50])
    (folder / "records.pen" / "LOCK").unlink()  # says which process wrote it; readers need none


# Cases


@dataclass(frozen=True)
class Case:
    """A run that is saved and resumed. ``epoch`` is what counts as the length of an epoch in steps where it has none."""

    name: str
    make: Callable[[Data], Stream]
    options: dict[str, Any] = field(default_factory=lambda: {"batch_size": 8})
    resumed: dict[str, Any] | None = None  # options of the loader that resumes, if they are others
    epoch: int | None = None

    def loader(self, data: Data, *, resumes: bool, make: Callable[[Data], Stream] | None = None) -> Loader:
        """The loader that saves, or the one that resumes; it reads in the caller's thread."""
        options = self.resumed if resumes and self.resumed is not None else self.options
        return Loader((make or self.make)(data), threads=0, **options)


def cases() -> list[Case]:
    """All cases."""
    made = [*_record_cases(), *_loader_cases(), *_mixture_cases(), *_sequence_cases(), *_document_cases(), *_phase_cases()]
    assert len({case.name for case in made}) == len(made)
    return made


def _record_cases() -> Iterator[Case]:
    opened: dict[str, Callable[[Data], Any]] = {
        "arrays": lambda d: d.arrays(),
        "missing values": lambda d: d.missing(),
        "ragged": lambda d: d.ragged().select(slice(0, 100)),
        "npy": lambda d: d.file("rows.npy"),
        "store": lambda d: d.file("records.pen"),
        "store of every field": lambda d: pen.open(HERE / "store-v1"),
        "shard": lambda d: d.file("a.shard", "b.shard"),
        "rox": lambda d: d.tokens(),
        "rox files": lambda d: d.file("many_000000.rox", "many_000001.rox"),
        "hdf5": lambda d: d.file("table.h5"),
        "parquet": lambda d: d.file("table.parquet"),
        "arrow": lambda d: d.file("table.arrow"),
        "arrow table": lambda d: d.table(),
        "select": lambda d: d.arrays().select(slice(5, 95, 2)),
        "select ids": lambda d: d.file("rows.npy").select([3, 1, 4, 1, 5, 9, 2, 6]),
        "pick": lambda d: d.file("table.parquet").pick("x", "name"),
        "dict": lambda d: pen.open({"x": np.arange(100), "rows": str(d.folder / "rows.npy")}),
        "list": lambda d: pen.open([str(d.folder / "a.shard"), str(d.folder / "b.shard")]),
        "list of npy": lambda d: pen.open([str(d.folder / "rows.npy")] * 2),
        "map": lambda d: d.arrays().map(doubled),
        "map with missing values": lambda d: d.missing().map(named, schema={"x": Field("i8"), "t": Field.text()}),
        "map of store": lambda d: d.file("records.pen").map(doubled),
    }
    for name, source in opened.items():
        size = {"batch_size": 2 if name in ("store of every field", "select ids") else 8}
        yield Case(f"{name}, in order", lambda d, s=source: s(d).in_order(), size)
        yield Case(f"{name}, shuffled", lambda d, s=source: s(d).shuffle(seed=7), size)
    orders: dict[str, Callable[[Any], Stream]] = {
        "block shuffled": lambda s: s.shuffle(seed=7, block=6),
        "block shuffled in a window": lambda s: s.shuffle(seed=7, block=4, window=3),
        "block shuffled in lanes": lambda s: s.shuffle(seed=7, block=4, window=3, lanes=2),
        "sampled": lambda s: s.sample(seed=7),
        "sliding": lambda s: s.slide(9),
        "sliding by a stride": lambda s: s.slide(7, 3),
        "design, simple": lambda s: s.design(seed=7, size=60),
        "design, fraction": lambda s: s.design(seed=7, fraction=0.3),
        "design, strata": lambda s: s.design(seed=7, size=40, strata=10),
        "design, masses": lambda s: s.design(seed=7, size=40, masses=np.arange(1, 101)),
        "design, full pass": lambda s: s.design(seed=7, size=40, full_pass=True),
        "without": lambda s: s.shuffle(seed=7).without([3, 50, 99]),
        "without from steps on": lambda s: s.shuffle(seed=7).without([3, 50], from_step=4).without(range(10, 20), from_step=15),
        "without, in order": lambda s: s.in_order().without([0, 1, 2], from_step=1),
    }
    for name, order in orders.items():
        yield Case(name, lambda d, o=order: o(d.arrays()))
    yield Case("store, block shuffled in lanes", lambda d: d.file("records.pen").shuffle(seed=7, block=5, window=2, lanes=2))


def _loader_cases() -> Iterator[Case]:
    """Tails, ranks, other batch sizes."""
    for tail in TAILS:
        yield Case(f"tail {tail}", lambda d: d.arrays().shuffle(seed=3), {"batch_size": 12, "tail": tail})
        for rank in range(2):
            options = {"batch_size": 12, "tail": tail, "shard": Shard(rank, 2)}
            yield Case(f"tail {tail}, rank {rank} of 2", lambda d: d.arrays().shuffle(seed=3), options)
        then = {"batch_size": 6, "tail": tail, "shard": Shard(2, 3)}
        yield Case(
            f"tail {tail}, then half batches on 3 ranks",
            lambda d: d.arrays().shuffle(seed=3),
            {"batch_size": 12, "tail": tail},
            then,
        )
    yield Case(
        "tail wrap, then drop",
        lambda d: d.arrays().shuffle(seed=3),
        {"batch_size": 12, "tail": "wrap"},
        {"batch_size": 16, "tail": "drop"},
    )


def _mixture_cases() -> Iterator[Case]:
    for stop in STOPS:
        epoch = 11 if stop == "forever" else None
        eight = {"batch_size": 8}
        yield Case(f"mix {stop}", lambda d, s=stop: pen.mix(d.three(), seed=5, stop=s), eight, epoch=epoch)
        yield Case(
            f"mix {stop}, weights",
            lambda d, s=stop: pen.mix(d.three(), seed=5, weights=WEIGHTS, stop=s, period=16),
            eight,
            epoch=epoch,
        )
        yield Case(
            f"mix {stop}, weights by step",
            lambda d, s=stop: pen.mix(d.three(), seed=5, weights=STAGED, stop=s, batch_size=8, period=16),
            eight,
            epoch=epoch,
        )
        yield Case(
            f"mix {stop}, unit batch",
            lambda d, s=stop: pen.mix(d.three(), seed=5, weights=WEIGHTS, stop=s, batch_size=8, unit="batch", period=6),
            eight,
            epoch=epoch,
        )
        yield Case(
            f"mix {stop}, unit batch, weights by step",
            lambda d, s=stop: pen.mix(d.three(), seed=5, weights=STAGED, stop=s, batch_size=8, unit="batch", period=6),
            eight,
            epoch=epoch,
        )
    for tail in ("drop", "pad", "wrap"):
        options = {"batch_size": 12, "tail": tail, "shard": Shard(1, 2)}
        yield Case(f"mix, tail {tail}, rank 1 of 2", lambda d: pen.mix(d.three(), seed=5, weights=WEIGHTS), options)
    yield Case(
        "mix, then half batches", lambda d: pen.mix(d.three(), seed=5, weights=WEIGHTS), {"batch_size": 8}, {"batch_size": 4}
    )
    yield Case(
        "mix without",
        lambda d: pen.mix(d.three(), seed=5, weights=WEIGHTS).without({"web": [1, 2, 3], "book": range(20)}, from_step=2),
    )
    yield Case("mix in mix", _nested, {"batch_size": 8})
    yield Case("mix in mix, tail wrap", _nested, {"batch_size": 8, "tail": "wrap"})
    yield Case("mix in mix, weights by step inside", lambda d: _nested(d, weights=STAGED, batch_size=8))
    yield Case("mix in mix, unit batch inside", lambda d: _nested(d, unit="batch", batch_size=8))
    # Settings that version 1 took although they do not fit the loader
    yield Case("mix, a batch size without effect", lambda d: pen.mix(d.three(), seed=5, weights=WEIGHTS, batch_size=3))
    yield Case("mix, weights by sample", lambda d: pen.mix(d.three(), seed=5, weights=STAGED))
    yield Case("mix, unit batch of half the size", lambda d: pen.mix(d.three(), seed=5, unit="batch", batch_size=4))
    yield Case(
        "mix, weights by step, then half batches",
        lambda d: pen.mix(d.three(), seed=5, weights=STAGED, batch_size=8),
        {"batch_size": 8},
        {"batch_size": 4},
    )


def _nested(data: Data, **options: Any) -> Stream:
    inner = pen.mix(data.three(), seed=4, stop="all_exhausted", period=16, **options)
    return pen.mix({"inner": inner, "more": data.arrays(50, 9000).shuffle(seed=8)}, seed=5, weights={"inner": 2, "more": 1})


def _sequence_cases() -> Iterator[Case]:
    """Over .rox: sequences that divide a block of 16 tokens, that do not, and that are longer."""
    orders: dict[str, Callable[[Any], Any]] = {
        "in order": lambda s: s.in_order(),
        "shuffled": lambda s: s.shuffle(seed=7),
        "block shuffled": lambda s: s.shuffle(seed=7, block=3, window=2, lanes=2),
        "sampled": lambda s: s.sample(seed=7),
    }
    for name, order in orders.items():
        for length, size in ((8, 16), (12, 10), (40, 4)):
            yield Case(
                f"sequences of {length}, {name}", lambda d, o=order, n=length: o(d.tokens()).sequences(n), {"batch_size": size}
            )
        yield Case(
            f"sequences of documents, {name}",
            lambda d, o=order: o(d.tokens()).sequences(24, separator=0, documents=True),
            {"batch_size": 6},
        )
        yield Case(
            f"sequences of several files, {name}",
            lambda d, o=order: o(d.file("many_000000.rox", "many_000001.rox")).sequences(20),
            {"batch_size": 4},
        )
    for name in ("in order", "shuffled"):
        for tail in ("drop", "pad", "wrap"):
            for shard in (Shard(), Shard(1, 2)):
                yield Case(
                    f"sequences of 20, {name}, tail {tail}, rank {shard.rank} of {shard.world}",
                    lambda d, o=orders[name]: o(d.tokens()).sequences(20),
                    {"batch_size": 8, "tail": tail, "shard": shard},
                )
        yield Case(
            f"sequences of 20, {name}, then half batches",
            lambda d, o=orders[name]: o(d.tokens()).sequences(20),
            {"batch_size": 8},
            {"batch_size": 4, "shard": Shard(1, 2)},
        )
    yield Case("sequences, sliding", lambda d: d.tokens().slide(4).sequences(20))
    yield Case("sequences, bans that were not respected", lambda d: d.tokens().in_order().without([1, 2]).sequences(20))
    for stop in STOPS:
        yield Case(
            f"mix {stop} of sequences",
            lambda d, s=stop: pen.mix(d.two_lines(), seed=5, stop=s),
            {"batch_size": 16},
            epoch=12 if stop == "forever" else None,
        )
    yield Case(
        "mix of sequences, tail wrap",
        lambda d: pen.mix(d.two_lines(20), seed=5, weights={"a": 1, "b": 2}),
        {"batch_size": 8, "tail": "wrap"},
    )


def _document_cases() -> Iterator[Case]:
    """Over texts and ragged arrays."""
    yield Case("texts in order, separator", lambda d: d.texts().in_order().sequences(14000, separator=0), {"batch_size": 2})
    yield Case(
        "texts in order, documents", lambda d: d.texts().in_order().sequences(14000, separator=0, documents=True), {"batch_size": 2}
    )
    yield Case("texts shuffled", lambda d: d.texts().shuffle(seed=7).sequences(14000, separator=0), {"batch_size": 2})
    yield Case("texts shuffled, tail wrap", lambda d: d.texts().shuffle(seed=7).sequences(14000), {"batch_size": 2, "tail": "wrap"})
    yield Case(
        "texts shuffled, documents",
        lambda d: d.texts().shuffle(seed=7).sequences(14000, separator=[0, 1], documents=True),
        {"batch_size": 2},
    )
    yield Case("texts block shuffled", lambda d: d.texts().shuffle(seed=7, block=2, window=2).sequences(14000), {"batch_size": 2})
    yield Case("texts sampled", lambda d: d.texts().sample(seed=7).sequences(14000), {"batch_size": 2})
    yield Case("texts sliding", lambda d: d.texts().slide(2).sequences(14000), {"batch_size": 2})
    yield Case(
        "texts of a store in order", lambda d: d.file("records.pen").in_order().sequences(30, separator=10), {"batch_size": 4}
    )
    yield Case("texts of a store shuffled", lambda d: d.file("records.pen").shuffle(seed=7).sequences(30), {"batch_size": 4})
    yield Case("ragged in order", lambda d: d.ragged().in_order().sequences(300, field="r"), {"batch_size": 12})
    yield Case("ragged shuffled", lambda d: d.ragged().shuffle(seed=7).sequences(300, field="r", separator=-1), {"batch_size": 12})
    yield Case("ragged block shuffled", lambda d: d.ragged().shuffle(seed=7, block=1, window=3).sequences(300), {"batch_size": 12})
    yield Case(
        "ragged shuffled, tail pad, rank 1 of 2",
        lambda d: d.ragged().shuffle(seed=7).sequences(300),
        {"batch_size": 12, "tail": "pad", "shard": Shard(1, 2)},
    )
    yield Case(
        "mix of ragged",
        lambda d: pen.mix(
            {"a": d.ragged().shuffle(seed=1).sequences(300), "b": d.ragged(90_000).in_order().sequences(300)},
            seed=5,
            weights={"a": 2, "b": 1},
        ),
        {"batch_size": 12},
    )


def _phase_cases() -> Iterator[Case]:
    shapes = [Phase(5, batch_size=8, seq_len=8), Phase(6, batch_size=4, seq_len=24), Phase(epochs=2, batch_size=4, seq_len=40)]
    weighted = [Phase(6, batch_size=8, weights=WEIGHTS), Phase(40, batch_size=12, weights={"web": 1, "code": 4, "book": 1})]
    lines = [
        Phase(6, batch_size=8, seq_len=8, weights={"a": 1, "b": 1}),
        Phase(40, batch_size=4, seq_len=20, weights={"a": 3, "b": 1}),
    ]
    plain = {"phases": [Phase(6, batch_size=8), Phase(40, batch_size=12)]}
    yield Case("phases", lambda d: d.arrays().shuffle(seed=7), plain, epoch=11)
    yield Case("phases without", lambda d: d.arrays().shuffle(seed=7).without([3, 4], from_step=9), plain, epoch=11)
    for name in ("in_order", "shuffle"):
        options = {} if name == "in_order" else {"seed": 7}
        yield Case(
            f"phases of tokens, {name}",
            lambda d, n=name, o=options: getattr(d.tokens(), n)(**o).sequences(8),
            {"phases": shapes},
            epoch=9,
        )
        yield Case(
            f"phases of tokens, {name}, rank 1 of 2",
            lambda d, n=name, o=options: getattr(d.tokens(), n)(**o).sequences(8),
            {"phases": shapes, "shard": Shard(1, 2)},
            epoch=9,
        )
    yield Case(
        "phases of tokens, block shuffled",
        lambda d: d.tokens().shuffle(seed=7, block=2, window=2).sequences(8),
        {"phases": shapes},
        epoch=9,
    )
    texts_shapes = [Phase(5, batch_size=2, seq_len=5000), Phase(40, batch_size=2, seq_len=7000)]
    yield Case("phases of texts shuffled", lambda d: d.texts().shuffle(seed=7).sequences(5000), {"phases": texts_shapes}, epoch=9)
    for stop in STOPS:
        yield Case(f"phases of a mix {stop}", lambda d, s=stop: pen.mix(d.three(), seed=5, weights=WEIGHTS, stop=s), plain, epoch=5)
        yield Case(
            f"phases with weights of a mix {stop}",
            lambda d, s=stop: pen.mix(d.three(), seed=5, stop=s),
            {"phases": weighted},
            epoch=5,
        )
    yield Case(
        "phases with weights of a mix of tokens",
        lambda d: pen.mix(d.two_lines(), seed=5, stop="forever"),
        {"phases": lines},
        epoch=9,
    )
    yield Case(
        "phases of a mix forever, unit batch",
        lambda d: pen.mix(d.three(), seed=5, stop="forever", unit="batch"),
        {"phases": weighted},
        epoch=9,
    )


# What is kept of a batch


def summary(batch: Mapping[str, Any]) -> list[Any]:
    """The first values of the first samples in the first field, a digest of that field, and one of all others."""
    (first, column), *others = batch.items()
    shown = [int(np.ravel(column[i])[0]) for i in range(min(SHOWN, len(column)))]
    return [shown, _digest({first: column}), *([_digest(dict(others))] if others else [])]


def _digest(columns: Mapping[str, Any]) -> str:
    """Of the values: how missing ones are marked does not matter, nor where the items of a Ragged are in its buffer."""
    content = b"".join(name.encode() + _content(column) for name, column in columns.items())
    return hashlib.sha256(content).hexdigest()[:12]


def _content(column: Any) -> bytes:
    if isinstance(column, pen.Ragged):
        items = [item.tolist() if isinstance(item, np.ndarray) else item for item in column]
        return repr((column.kind, column.values.dtype.name, items)).encode()
    missing = np.ma.getmaskarray(column)
    plain = np.where(missing, np.zeros((), column.dtype), np.ma.getdata(column))
    return repr((column.dtype.name, column.shape)).encode() + plain.tobytes() + missing.tobytes()


# Making them


def run(case: Case, data: Data) -> dict[str, Any]:
    """The states of a case, and what came next."""
    with case.loader(data, resumes=False) as loader:
        epoch = case.epoch or len(loader)
        steps = [0, epoch // 2, epoch - 1, epoch, epoch + epoch // 2, 4 * epoch + 1]
        states, batches = [loader.state_dict()], []
        for batch in islice(loader.forever(), steps[-1] + NEXT):
            batches.append(summary(batch))
            states.append(loader.state_dict())
        loader.stream.close()
    at = [_resume(case, data, states[step]) for step in dict.fromkeys(steps) if step < len(states)]
    for one, step in zip(at, dict.fromkeys(steps), strict=False):
        if case.resumed is None and one["next"] != batches[step : step + NEXT]:
            raise AssertionError(f"{case.name}, step {step}: the resumed run differs from the one that was not interrupted")
    rest = [{key: value for key, value in state.items() if key not in ("step", "cursor")} for state in states]
    assert all(other == rest[0] for other in rest)
    return {"name": case.name, "state": states[0], "at": at}


def _resume(case: Case, data: Data, state: dict[str, Any]) -> dict[str, Any]:
    batches, epochs = [], []
    with case.loader(data, resumes=True) as loader:
        loader.load_state_dict(state)
        epochs.append(loader.epoch)
        for batch in islice(loader.forever(), NEXT):
            batches.append(summary(batch))
            epochs.append(loader.epoch)
        loader.stream.close()
    return {"step": state["step"], "cursor": state["cursor"], "epochs": epochs[:-1], "next": batches}


def dump(values: list[dict[str, Any]]) -> str:
    """JSON with a position per line, so that a difference can be read."""

    def text(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"))

    made = (
        f'{{"name":{text(case["name"])},"state":{text(case["state"])},"at":[\n ' + ",\n ".join(map(text, case["at"])) + "]}"
        for case in values
    )
    return "[\n" + ",\n".join(made) + "\n]\n"


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--force", action="store_true")
    force = parser.parse_args().force
    if version("penstock") != "0.1.0":
        sys.exit(f"these are states of penstock 0.1.0, this is {version('penstock')}")
    if force and not FOLDER.exists():
        write_files(FOLDER)
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "copy"
        shutil.copytree(FOLDER, copy)
        made = dump([run(case, Data(copy)) for case in cases()])
    if force:
        STATES.write_text(made)
    elif STATES.read_text() != made:
        sys.exit(f"{STATES} differs from what this script makes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
