"""The record store: records with named fields that can be appended, updated, deleted and compacted while others read."""

from penstock.codec import LZ4, Codec, Deflate, Raw, Zstd, train_dictionary
from penstock.schema import Field
from penstock.store.create import append_to, create
from penstock.store.fragment import Receipt, Target, commit_fragments, write_fragment
from penstock.store.maintenance import Collected, Stats, gc, stats
from penstock.store.reader import Store, ZeroCopy, open_store
from penstock.store.rebalance import Rebalanced, rebalance
from penstock.store.verify import Problem, verify
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
    "Receipt",
    "Stats",
    "Store",
    "Target",
    "Writer",
    "ZeroCopy",
    "Zstd",
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
