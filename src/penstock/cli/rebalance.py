"""penstock rebalance: a store in full chunks again."""

import time
from dataclasses import asdict
from typing import Any

from penstock.cli.options import AsJson, Storage, StorePath, Threads, storage_options
from penstock.cli.output import console, number, print_json, say, table
from penstock.progress import reporting
from penstock.report.words import size
from penstock.store import Stats
from penstock.store import rebalance as rebalance_store
from penstock.store.format import as_location
from penstock.store.generation import load_manifest

__all__ = ["EXAMPLES", "rebalance"]

EXAMPLES = (
    "penstock rebalance train.pen",
    "penstock rebalance train.pen --threads 8",
    "penstock rebalance s3://bucket/train.pen --json",
)


def rebalance(store: StorePath, threads: Threads = 2, storage: Storage = None, as_json: AsJson = False) -> None:
    """Rewrite a store into full chunks.

    The records are put in the order of their ids, as a new generation. Older generations stay until penstock gc
    removes them. If it is interrupted, the store is what it was.
    """
    location = as_location(store, storage_options(storage))
    records, began = load_manifest(location).length, time.monotonic()
    with reporting(True, "rebalance", records) as report:
        done = rebalance_store(location, threads=threads, progress=report)
    seconds = time.monotonic() - began
    if as_json:
        print_json({"before": _as_json(done.before), "after": _as_json(done.after), "seconds": seconds})
        return
    rows = [(name, _shown(done.before)[name], _shown(done.after)[name]) for name in _shown(done.before)]
    console().print(table(("", "before", "after"), rows, right=("before", "after")))
    say("penstock gc frees what only older generations use, once they are old enough")


def _shown(stats: Stats) -> dict[str, str]:
    return {
        "generation": str(stats.generation),
        "records": number(stats.records),
        "chunks": number(stats.chunks),
        "not full": number(stats.unfull_chunks),
        "stored": size(stats.stored_bytes),
        "in use": f"{stats.utilisation:.0%}",
        "moved fields": number(stats.redirects),
    }


def _as_json(stats: Stats) -> dict[str, Any]:
    return {**asdict(stats), "utilisation": stats.utilisation}
