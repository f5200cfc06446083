"""The record store: records with named fields that can be appended, updated, deleted and compacted while others read."""

from penstock.schema import LZ4, Codec, Deflate, Field, Raw, Zstd, train_dictionary
from penstock.store.fragment import Receipt, Target, commit_fragments, write_fragment
from penstock.store.maintenance import Collected, Problem, Rebalanced, add_field, gc, rebalance, stats, verify
from penstock.store.maintenance import StoreStats as Stats
from penstock.store.reader import Store, ZeroCopy, open_store
from penstock.store.writer import Progress, Writer, append_to, create

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
    "Receipt",
    "Stats",
    "Store",
    "Target",
    "Writer",
    "ZeroCopy",
    "Zstd",
    "add_field",
    "append_to",
    "commit_fragments",
    "create",
    "gc",
    "open_store",
    "rebalance",
    "stats",
    "train_dictionary",
    "verify",
    "write_fragment",
]
