"""Workloads for injected faults: every format read, every converter and writer run, and commands of the program.

A workload of a reader gives a digest of all that it read. One of a writer has a ``state``: the digest of what can be seen under the
final name, which is one value before and another one after, and never anything else.
"""

import contextlib
import hashlib
import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
from PIL import Image
from tests.array_record import write_array_record

import penstock as pen
from penstock.cli.main import app
from penstock.source import write_collection, write_rows, write_tokens
from penstock.testing.source_suite import digest

COUNT = 24
NOTHING = "nothing"


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    printed: str
    said: str


@dataclass(frozen=True)
class Workload:
    """``run`` gets the directory of the data and one for what is written."""

    name: str
    run: Callable[[Path, Path], object]
    state: Callable[[Path], str] | None = None
    prepare: Callable[[Path], object] | None = None


# The data


def make_data(root: Path) -> None:
    """A file, or several, of every format."""
    rows = np.arange(COUNT * 3, dtype=np.float32).reshape(COUNT, 3)
    for name, low, high in (("a", 0, 10), ("b", 10, COUNT)):
        np.save(root / f"{name}.npy", rows[low:high])
    write_rows(rows, root / "rows", max_shard_rows=10)
    write_tokens([np.arange(40, dtype=np.uint16) + i for i in range(COUNT)], root / "t.rox", block_size=16, max_shard_bytes=1000)
    table = pa.table({"x": list(range(COUNT)), "text": [f"record {i}" for i in range(COUNT)]})
    for name, codec in (("plain", None), ("packed", "zstd")):
        with pa.OSFile(str(root / f"{name}.arrow"), "wb") as sink:
            options = pyarrow.ipc.IpcWriteOptions(compression=codec)
            with pyarrow.ipc.new_file(sink, table.schema, options=options) as writer:
                writer.write_table(table, max_chunksize=8)
    pyarrow.feather.write_feather(table, root / "f.feather", compression="uncompressed")
    pyarrow.parquet.write_table(table, root / "p.parquet", row_group_size=8)
    with h5py.File(root / "plain.h5", "w") as file:
        file["x"] = rows
    with h5py.File(root / "packed.h5", "w") as file:
        file.create_dataset("x", data=rows, chunks=(4, 3), compression="gzip")
    write_array_record(root / "r.array_record", [bytes([number]) * 10 for number in range(COUNT)])
    for number in range(8):
        for folder in ("files", "images"):
            (root / folder / f"label{number % 2}").mkdir(parents=True, exist_ok=True)
        (root / f"files/label{number % 2}/{number}.bin").write_bytes(bytes([number]) * 100)
        Image.fromarray(np.full((4, 5, 3), number, np.uint8)).save(root / f"images/label{number % 2}/{number}.png")
    write_collection([root / "a.npy", root / "b.npy"], root / "c.json")
    make_store(root / "s.pen")


def make_store(path: Path) -> None:
    """Two generations, with something to collect."""
    with pen.create(path, {"x": pen.Field("i8"), "text": pen.Field.text()}, chunk_records=8) as out:
        out.extend({"x": list(range(16)), "text": [f"record {i}" for i in range(16)]})
    with pen.open(path, mode="a") as out:
        out.extend({"x": list(range(16, COUNT)), "text": [f"record {i}" for i in range(16, COUNT)]})
        out.update([3], {"x": [3]})


READ: dict[str, Callable[[Path], Any]] = {
    "npy": lambda root: pen.open([root / "a.npy", root / "b.npy"]),
    "pattern": lambda root: pen.open(str(root / "?.npy")),
    "rows": lambda root: pen.open(root / "rows"),
    "tokens": lambda root: pen.open(root / "t.rox"),
    "arrow": lambda root: pen.open(root / "plain.arrow"),
    "arrow packed": lambda root: pen.open(root / "packed.arrow"),
    "feather": lambda root: pen.open(root / "f.feather"),
    "parquet": lambda root: pen.open(root / "p.parquet"),
    "hdf5": lambda root: pen.open(root / "plain.h5"),
    "hdf5 packed": lambda root: pen.open(root / "packed.h5"),
    "array_record": lambda root: pen.open(root / "r.array_record"),
    "files": lambda root: pen.open(root / "files"),
    "images": lambda root: pen.open(root / "images", decode="image", size=(4, 4)),
    "collection": lambda root: pen.open(root / "c.json"),
    "dict": lambda root: pen.open({"rows": str(root / "rows"), "text": str(root / "f.feather")}),
    "list": lambda root: pen.open([pen.open(root / "plain.arrow"), pen.open(root / "f.feather")]),
    "store": lambda root: pen.open(root / "s.pen"),
    "store direct": lambda root: pen.open(root / "s.pen", io="direct"),
    "rows direct": lambda root: pen.open(root / "rows", io="direct"),
}


# Readers


def read(open_it: Callable[[Path], Any], root: Path) -> str:
    """Everything at once, then in batches of a loader."""
    found = hashlib.sha256()
    with open_it(root) as source:
        found.update(digest(source[:]).encode() + source.fingerprint.encode())
        with pen.Loader(source.shuffle(seed=1), batch_size=7, threads=1) as loader:
            for batch in loader:
                found.update(digest(batch).encode())
    return found.hexdigest()


def _reader(name: str) -> Workload:
    return Workload(f"read {name}", lambda root, _: read(READ[name], root))


# Writers


def _seen(path: Path) -> str:
    if not path.exists():
        return NOTHING
    if path.suffix == "" and any(file.suffix == ".shard" for file in path.iterdir()):
        return f"{sorted(file.name for file in path.iterdir())} {digest(pen.open(path)[:])}"
    with pen.open(path) as source:
        problems = pen.verify(path) if path.suffix == ".pen" else []
        return f"{problems} {digest(source[:])}" if problems else digest(source[:])


def _tokens_seen(out: Path) -> str:
    names = sorted(file.name for file in out.glob("*.rox"))
    return f"{names} {digest(pen.open(out / 't.rox')[:])}" if names else NOTHING


def _converter(name: str, target: str, **options: Any) -> Workload:
    def run(root: Path, out: Path) -> None:
        with READ[name](root) as source:
            pen.convert(source, out / target, threads=1, **options)

    suffix = Path(target).suffix
    return Workload(f"convert {name} to {suffix}{' in tasks' if options else ''}", run, lambda out: _seen(out / target))


def _convert_on_threads(root: Path, out: Path) -> None:
    with ThreadPoolExecutor(1) as executor:
        pen.convert(root / "p.parquet", out / "d.pen", executor=executor, chunk_records=8)


def _documents() -> list[Any]:
    return [np.arange(30, dtype=np.uint16) + i for i in range(COUNT)]


def _begin_tokens(out: Path) -> None:
    write_tokens(_documents()[:5], out / "t.rox", block_size=16)


def _collect(out: Path) -> str:
    return _seen(out / "s.pen")


def _write_collection(root: Path, out: Path) -> None:
    write_collection([out / "a.npy", out / "b.npy"], out / "c.json")


def _two_arrays(out: Path) -> None:
    np.save(out / "a.npy", np.arange(5))
    np.save(out / "b.npy", np.arange(5, 12))


def _two_arrays_and_an_old_collection(out: Path) -> None:
    _two_arrays(out)
    write_collection([out / "b.npy"], out / "c.json")


WRITERS = [
    *(_converter(name, "d.pen") for name in READ),
    _converter("arrow", "d.pen", chunk_records=8, map=dict),
    Workload("convert on threads", _convert_on_threads, lambda out: _seen(out / "d.pen")),
    _converter("npy", "d.shard"),
    _converter("tokens", "d.rox"),
    Workload("write_rows", lambda _, out: write_rows(np.ones((9, 2)), out / "w.shard"), lambda out: _seen(out / "w.shard")),
    Workload(
        "write_rows directory",
        lambda _, out: write_rows(np.ones((9, 2)), out / "w", max_shard_rows=4, overwrite=True),
        lambda out: _seen(out / "w"),
        lambda out: write_rows(np.zeros((3, 2)), out / "w", max_shard_rows=2),
    ),
    Workload(
        "write_tokens",
        lambda _, out: write_tokens(_documents(), out / "t.rox", block_size=16, max_shard_bytes=1000),
        _tokens_seen,
    ),
    Workload(
        "write_tokens append",
        lambda _, out: write_tokens(_documents(), out / "t.rox", block_size=16, append=True),
        _tokens_seen,
        _begin_tokens,
    ),
    Workload("write_collection", _write_collection, lambda out: _seen(out / "c.json"), _two_arrays),
    Workload("write_collection again", _write_collection, lambda out: _seen(out / "c.json"), _two_arrays_and_an_old_collection),
    Workload(
        "gc", lambda _, out: len(pen.gc(out / "s.pen", keep=1, keep_hours=0).files), _collect, lambda out: make_store(out / "s.pen")
    ),
]


# Commands


def command(*words: str) -> Ended:
    """Run a command here."""
    printed, said, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        try:
            app(list(words), prog_name="penstock")
        except SystemExit as error:
            code = int(error.code or 0)
    return Ended(code, printed.getvalue(), said.getvalue())


def _command(*words: str) -> Callable[[Path, Path], Ended]:
    return lambda root, out: command(*(word.replace("ROOT", str(root)).replace("OUT", str(out)) for word in words))


COMMANDS = [
    *(
        Workload(f"penstock info {name}", _command("info", f"ROOT/{name}", "--json"))
        for name in ("s.pen", "?.npy", "files", "p.parquet")
    ),
    Workload("penstock verify store", _command("verify", "ROOT/s.pen", "--json")),
    Workload("penstock verify npy", _command("verify", "ROOT/a.npy", "--json")),
    Workload("penstock gc", _command("gc", "OUT/s.pen", "--keep", "1", "--json"), _collect, lambda out: make_store(out / "s.pen")),
    Workload("penstock convert", _command("convert", "ROOT/files", "OUT/d.pen", "--json"), lambda out: _seen(out / "d.pen")),
    Workload(
        "penstock convert rows", _command("convert", "ROOT/a.npy", "OUT/d.shard", "--json"), lambda out: _seen(out / "d.shard")
    ),
]

WORKLOADS: dict[str, Workload] = {one.name: one for one in (*map(_reader, READ), *WRITERS, *COMMANDS)}


def names_in(out: Path) -> Iterator[str]:
    """What is right in a directory, with random parts of names left out."""
    return (file.name[:10] for file in sorted(out.iterdir()))
