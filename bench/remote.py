"""What reading from an object store costs: block-shuffled epochs from SeaweedFS on this machine, beside bare range requests for the
same bytes, as many at a time. And how often the bytes leave the bucket where two ranks share a cache, or four are peers.

Server and client share the cores: next to the ratio of the rates are the seconds of CPU that the client takes for a gigabyte. The
server's are not among them; it uses one core at most.

::

    python bench/remote.py [--json FILE] [--quick] [--connections]
"""

import argparse
import io
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import obstore
from obstore.store import S3Store

import penstock as pen
from loader_report import finish, judged, rates
from measure import Spread, interleave, machine, seconds, versions
from penstock.remote import fetch
from penstock.remote.residency import PIECE_BYTES
from penstock.remote.url import url_path
from penstock.report.doctor import Others
from penstock.source import write_rows, write_tokens

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.remote.double import Double
from tests.remote.ranks import ranks
from tests.remote.ranks import records as rank_records
from tests.remote.seaweed import serving

OUT = Path(__file__).parent.parent / "out"
BARE = "LIMIT: bare range requests"
OURS = "penstock Loader"
GOAL = 0.85
BATCH = 4096
WIDTH = 512
"""Values of a record: 2 KiB of float32, or of 4-byte tokens."""


class Case:
    """Records of 2 KiB at a URL, every one of which says its id, read in blocks shuffled four at a time."""

    def __init__(self, name: str, data: Any, field: str, store: S3Store, block: int) -> None:
        self.name, self._data, self._field, self._store, self._block = name, data, field, store, block
        self.pace = data.remote.files[0][0].objects.pace
        self._epochs = 0
        self.cpu_s: dict[str, list[float]] = {BARE: [], OURS: []}

    def epoch(self) -> float:
        """Seconds of an epoch; every record is checked to have come, and its id to be its own."""
        self._epochs += 1
        stream = self._data.shuffle(seed=self._epochs, block=self._block, window=4)
        loader = pen.Loader(stream, BATCH, threads=2, ids="id")
        seen = np.zeros(len(self._data), np.uint8)

        def read() -> None:
            for batch in loader:
                seen[batch["id"]] += batch[self._field][:, 0].view(np.int32) == batch["id"].astype(np.int32)

        took = self._timed(OURS, read)
        assert np.all(seen == 1), "a record is missing, came twice, or is wrong"
        return took

    def bare(self) -> float:
        """Seconds of fetching every byte once."""
        files = [info for _, info in self._data.remote.files]
        jobs = [
            (info.key, start, min(start + PIECE_BYTES, info.size)) for info in files for start in range(0, info.size, PIECE_BYTES)
        ]

        def read() -> None:
            with ThreadPoolExecutor(fetch.CONNECTIONS) as pool:
                got = sum(pool.map(lambda job: len(obstore.get_range(self._store, job[0], start=job[1], end=job[2])), jobs))
            assert got == sum(info.size for info in files)

        return self._timed(BARE, read)

    def _timed(self, name: str, work: Callable[[], object]) -> float:
        """Seconds of some work; those of CPU are noted."""
        before = cpu_s()
        took = seconds(work)
        self.cpu_s[name].append(cpu_s() - before)
        return took

    def check(self) -> None:
        """Compares every byte of an epoch with what was written."""
        for batch in pen.Loader(self._data.shuffle(seed=0, block=self._block, window=4), BATCH, ids="id"):
            assert np.array_equal(batch[self._field].view(np.int32), records(batch["id"])), "wrong bytes"


def cpu_s() -> float:
    """CPU seconds of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def records(ids: Any) -> Any:
    """The records with those ids: the id, then numbers that follow from it."""
    ids = np.asarray(ids, np.int64)[:, None]
    return np.where(np.arange(WIDTH) == 0, ids, ids * 7919 + np.arange(WIDTH)).astype(np.int32)


def upload(base: str, options: dict[str, Any], directory: Path, count: int) -> dict[str, str]:
    """The same records as a store, row shards and token blocks."""
    rows = records(np.arange(count))
    pen.convert({"x": rows}, directory / "store", chunk_bytes="16MiB")
    for number, part in enumerate(np.array_split(rows, 8)):
        write_rows(part.view(np.float32), directory / f"rows/part-{number}.shard")
    write_tokens([rows.reshape(-1)], directory / "tokens/all.rox", dtype="i4", block_size=WIDTH, max_shard_bytes="64MB")
    for path in sorted(path for path in directory.rglob("*") if path.is_file() and path.name != "LOCK"):
        target = url_path(f"{base}/{path.relative_to(directory)}", options)
        target.objects.put(target.key, path.read_bytes())
    return {"store": f"{base}/store", "row shards": f"{base}/rows", "token blocks": f"{base}/tokens"}


def measure(case: Case, rounds: int) -> dict[str, Spread]:
    turns: dict[str, Callable[[], float]] = {BARE: case.bare, OURS: case.epoch}
    return interleave(turns, rounds=rounds, label=case.name)


def by_connections(case: Case, rounds: int) -> dict[str, Spread]:
    """Epochs with a fixed number of requests at a time."""

    def epoch(limit: int) -> float:
        grown, fetch.MOST_CONNECTIONS = fetch.MOST_CONNECTIONS, limit
        case.pace.limit = limit
        try:
            return case.epoch()
        finally:
            fetch.MOST_CONNECTIONS = grown

    return interleave({f"{n} at a time": partial(epoch, n) for n in (4, 8, 16, 32, 64)}, rounds=rounds, label=case.name)


def times_fetched(world: int, count: int, directory: Path, *, are_peers: bool) -> float:
    """How often each byte leaves the bucket in an epoch of several ranks with a cache in common, or with one each and as peers."""
    with Double() as bucket:
        keys = [f"x-{number}.npy" for number in range(8)]
        for key, ids in zip(keys, np.split(np.arange(count), len(keys)), strict=True):
            file = io.BytesIO()
            np.save(file, rank_records(ids))
            bucket.put(key, file.getvalue())
        urls = [f"{bucket.http_base}/{key}" for key in keys]
        with ranks(urls, world, are_peers=are_peers, block=1024, cache=str(directory), window_bytes="32MB") as group:
            bucket.clear()
            group.tell("read", *range(world))
            assert group.heard(world) == [f"{rank} read {count // world} of {count // world}" for rank in range(world)]
        sent = sum(one.range[1] - one.range[0] for one in bucket.requests("GET") if one.range is not None)
        return sent / sum(len(bucket.get(key) or b"") for key in keys)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Block-shuffled epochs from an object store on this machine.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("--quick", action="store_true", help="less data, fewer turns")
    parser.add_argument("--connections", action="store_true", help="epochs with 4 to 64 requests at a time, too")
    options = parser.parse_args(arguments)
    OUT.mkdir(parents=True, exist_ok=True)
    began, others = time.perf_counter(), Others()
    count = 65_536 if options.quick else 262_144
    size = count * WIDTH * 4 / 1e6
    goals, report = [], {"machine": machine(), "versions": versions("penstock", "numpy", "obstore"), "epochs": {}}
    with tempfile.TemporaryDirectory(prefix="remote-", dir=OUT) as place, serving(Path(place) / "server") as server:
        (Path(place) / "data/rows").mkdir(parents=True)
        (Path(place) / "data/tokens").mkdir()
        urls = upload(server.url, server.storage_options, Path(place) / "data", count)
        store = S3Store(
            server.url.removeprefix("s3://").split("/")[0], config=server.storage_options, client_options={"allow_http": True}
        )
        for name, url in urls.items():
            with pen.open(url, storage_options=server.storage_options, window_bytes="160MB") as data:
                field = next(iter(data.schema))
                case = Case(name, data, field, store, 8192)
                case.check()
                spreads = measure(case, 5 if options.quick else 9)
                cpu = {n: statistics.median(used) / size * 1e3 for n, used in case.cpu_s.items()}
                more = by_connections(case, 3) if options.connections else {}
            print(f"\n{name}, {size:,.0f} MB\n\n{rates(spreads | more, BARE, 'MB/s', size)}")
            print("\nclient: " + ", ".join(f"{n} {s:.2f} CPU s/GB" for n, s in cpu.items()))
            report["epochs"][name] = {n: s.to_json() for n, s in (spreads | more).items()} | {"cpu_s_per_gb": cpu}
            goals.append(judged(f"{name}: of LIMIT", spreads[BARE].median / spreads[OURS].median, GOAL, at_least=True))
        for title, world, are_peers in (("2 ranks, one cache", 2, False), ("4 peers", 4, True)):
            found = times_fetched(world, 32_768, Path(place) / title, are_peers=are_peers)
            goals.append(judged(f"{title}: bytes sent by the bucket, of the data", round(found, 3), 1.001, at_least=False))
    finish(report, goals, others, began, options.json, " (the server among them)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
