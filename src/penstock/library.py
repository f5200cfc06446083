"""What ``import penstock`` offers, loaded when the first of it is used: numpy and all layers up to plan and losses."""

import penstock.conversion.split
import penstock.source  # noqa: F401 - its layer and those below
from penstock.batch import Ragged
from penstock.conversion.convert import convert
from penstock.errors import PenstockError
from penstock.formats.open import open
from penstock.loader import Loader, verify_resume
from penstock.order import Balance, Phase, Shard
from penstock.records import Source
from penstock.run_plan import plan
from penstock.store import LZ4, Deflate, Field, Raw, Zstd, add_field, create, gc, rebalance, train_dictionary, verify
from penstock.stream import Stream, load_mixture, mix
from penstock.trace import LossLog

__all__ = [
    "LZ4",
    "Balance",
    "Deflate",
    "Field",
    "Loader",
    "LossLog",
    "PenstockError",
    "Phase",
    "Ragged",
    "Raw",
    "Shard",
    "Source",
    "Stream",
    "Zstd",
    "add_field",
    "convert",
    "create",
    "gc",
    "load_mixture",
    "mix",
    "open",
    "plan",
    "rebalance",
    "train_dictionary",
    "verify",
    "verify_resume",
]
