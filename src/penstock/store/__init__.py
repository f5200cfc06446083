"""The record store: records with named fields that can be appended, updated, deleted and compacted while others read."""

from penstock.codec import LZ4, Codec, Deflate, Raw, Zstd, train_dictionary
from penstock.schema import Field
from penstock.store.create import append_to, create
from penstock.store.maintenance import Collected, Problem, Rebalanced, Stats, gc, rebalance, stats, verify
from penstock.store.snapshot import Store, ZeroCopy, open_store
from penstock.store.writer import Progress, Writer

__all__ = [
    "LZ4",
    "Codec",
    "Collected",
    "Deflate",
    "Field",
    "Problem",
    "Progress",
    "Raw",
    "Rebalanced",
    "Stats",
    "Store",
    "Writer",
    "ZeroCopy",
    "Zstd",
    "append_to",
    "create",
    "gc",
    "open_store",
    "rebalance",
    "stats",
    "train_dictionary",
    "verify",
]
