"""What reading foreign formats costs: random rows of 2 KiB, beside the most the machine can do and h5py used well.

::

    python bench/sources.py [--json FILE] [--quick]
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as pen
from measure import Spread, interleave, machine, progress, table, versions, write_json
from penstock.report.doctor import Others
from penstock.source import write_rows
from store_case import Ids, Trial, touch_all
from store_limit import Crew

OUT = Path(__file__).parent.parent / "out"
WIDTH = 512
LIMIT = "LIMIT: C gather, 2 threads"
BATCH = 256
GOALS = {".npy": 0.8, ".shard": 0.8, "Arrow, fixed-size list": 0.8}


def make(directory: Path, rows: int) -> npt.NDArray[np.float32]:
    """The same rows in every format."""
    import h5py
    import pyarrow as pa
    import pyarrow.feather

    plain = np.lib.format.open_memmap(directory / "a.npy", mode="w+", dtype=np.float32, shape=(rows, WIDTH))
    rng = np.random.default_rng(0)
    for low in range(0, rows, 10_000):
        plain[low : low + 10_000] = rng.integers(0, 64, (min(10_000, rows - low), WIDTH)).astype(np.float32)
    plain.flush()
    data: npt.NDArray[np.float32] = np.load(directory / "a.npy", mmap_mode="r")
    write_rows(data, directory / "a.shard")
    column = pa.FixedSizeListArray.from_arrays(pa.array(np.asarray(data).reshape(-1)), WIDTH)
    pyarrow.feather.write_feather(pa.table({"data": column}), directory / "a.feather", compression="uncompressed", chunksize=rows)
    with h5py.File(directory / "a.h5", "w") as file:
        file.create_dataset("contiguous", data=data)
        file.create_dataset("chunked", data=data, chunks=(64, WIDTH))
        file.create_dataset(
            "gzip", data=data[: rows // 8], chunks=(64, WIDTH), compression="gzip", compression_opts=1, shuffle=True
        )
    return data


def plain_views(directory: Path, rows: int) -> dict[str, npt.NDArray[np.float32]]:
    """The rows of each file as one mapped array: what C gathers from. How a file was written decides how its pages lie in memory,
    which makes a difference of a fifth; so every format is compared with a gather from its own file.
    """
    import h5py
    import pyarrow as pa

    with h5py.File(directory / "a.h5") as file:
        place = file["contiguous"].id.get_offset()
    column = pa.ipc.open_file(pa.memory_map(str(directory / "a.feather"))).get_batch(0).column(0)
    offsets = {".npy": ("a.npy", 128), ".shard": ("a.shard", 32), "HDF5, contiguous": ("a.h5", place)}
    shape = (rows, WIDTH)
    views = {
        name: np.asarray(np.memmap(directory / file, np.float32, mode="r", offset=at, shape=shape))
        for name, (file, at) in offsets.items()
    }
    return views | {"Arrow, fixed-size list": column.values.to_numpy().reshape(shape)}


def h5py_used_well(path: Path, name: str) -> Callable[[npt.NDArray[np.int64]], npt.NDArray[Any]]:
    """Ids sorted, every chunk that is touched read once and whole, rows put back into the order asked for."""
    import h5py

    data = h5py.File(path, "r")[name]
    rows = data.chunks[0] if data.chunks else 1

    def read(ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        out = np.empty((ids.size, *data.shape[1:]), data.dtype)
        if rows == 1:
            order = np.argsort(ids)
            wanted, back = np.unique(ids, return_inverse=True)
            out[...] = data[wanted][back]
            return out
        order = np.argsort(ids, kind="stable")
        chunks = ids[order] // rows
        for run in np.split(order, np.flatnonzero(np.diff(chunks)) + 1):
            first = int(ids[run[0]]) // rows * rows
            out[run] = data[first : first + rows][ids[run] - first]
        return out

    return read


def measure(directory: Path, rows: int, rounds: int) -> dict[str, dict[str, Spread]]:
    """Everyone on the same ids, taking turns; HDF5 apart, because it is read in other batches."""
    data = make(directory, rows)
    crew = Crew(2, spins=20_000)
    ids = Ids(rows, BATCH)
    sources = {
        ".npy": pen.open(directory / "a.npy", threads=2),
        ".shard": pen.open(directory / "a.shard", threads=2, field="data"),
        "Arrow, fixed-size list": pen.open(directory / "a.feather", threads=2),
        "HDF5, contiguous": pen.open(directory / "a.h5", threads=2, fields={"data": "contiguous"}),
    }
    each = ids.all()
    for source in sources.values():
        touch_all(source)
    results = {}
    views = plain_views(directory, rows)
    for name, source in sources.items():
        view = views[name]
        view.max()
        gather = crew.gather({"data": view}, BATCH, ahead=False)
        readers: dict[str, Callable[[int], Any]] = {
            LIMIT: lambda number, gather=gather: gather(ids.addresses[number])["data"],
            "numpy arr[ids]": lambda number, view=view: view[each[number]],
            name: lambda number, source=source: source.read(each[number])["data"],
        }
        results[f"{name}: random rows of 2 KiB, batches of 256"] = _turns(readers, ids, data, rounds)
    for kind, count, batch in (("contiguous", rows, 64), ("chunked", rows, 64), ("gzip", rows // 8, 1024)):
        some = Ids(count, batch)
        ours = pen.open(directory / "a.h5", threads=2, fields={"data": kind})
        theirs = h5py_used_well(directory / "a.h5", kind)
        touch_all(ours)
        pair = {
            "h5py used well": lambda number, some=some, theirs=theirs: theirs(some[number]),
            "penstock": lambda number, some=some, ours=ours: ours.read(some[number])["data"],
        }
        results[f"HDF5 {kind}, batches of {batch}"] = _turns(pair, some, data, rounds)
    crew.close()
    return results


def _turns(readers: dict[str, Callable[[int], Any]], ids: Ids, data: npt.NDArray[Any], rounds: int) -> dict[str, Spread]:
    def check(number: int, found: Any) -> None:
        assert np.array_equal(found, data[ids[number]]), f"wrong bytes in batch {number}"

    trials = {name: Trial(reader, ids, check, pass_s=0.05) for name, reader in readers.items()}
    return interleave(trials, rounds=rounds, label="sources")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Random reads of foreign formats.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("--quick", action="store_true", help="a tenth of the data, fewer turns")
    options = parser.parse_args(arguments)
    OUT.mkdir(parents=True, exist_ok=True)
    began, others = time.perf_counter(), Others()
    with tempfile.TemporaryDirectory(prefix="sources-", dir=OUT) as place:
        results = measure(Path(place), 40_000 if options.quick else 400_000, 9 if options.quick else 25)
    goals = []
    for title, spreads in results.items():
        base = next(iter(spreads))
        lines = [
            [name, f"{1 / s.median:,.0f}", f"{spreads[base].median / s.median:.2f}", f"{spreads[base].min / s.min:.2f}"]
            for name, s in spreads.items()
        ]
        print(f"\n{title}\n")
        print(table(["", "rows/s", f"of {base.partition(':')[0]}", "best turns"], lines))
        for name, spread in spreads.items():
            wanted = GOALS.get(name) if base == LIMIT else (1.0 if name == "penstock" else None)
            if wanted is not None:
                ratio = spreads[base].median / spread.median
                goals.append({"what": f"{title}: {name}", "goal": wanted, "ratio": ratio, "met": ratio >= wanted})
    print("\nGoals\n")
    told = [[g["what"], f">= {g['goal']}", f"{g['ratio']:.2f}", "met" if g["met"] else "NOT MET"] for g in goals]
    print(table(["", "goal", "ratio", ""], told))
    print(f"\nother programs took {others.share():.0%} of the cores meanwhile")
    progress(f"took {time.perf_counter() - began:.0f} s", lasting=True)
    if options.json is not None:
        figures = {title: {name: s.to_json() for name, s in spreads.items()} for title, spreads in results.items()}
        kept = versions("penstock", "numpy", "h5py", "pyarrow")
        write_json(options.json, {"machine": machine(), "versions": kept, "seconds_per_row": figures, "goals": goals})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
