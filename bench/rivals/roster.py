"""Who takes part: one line each."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from rivals.environments import PINS, python_of, reason_missing
from worker import Worker

__all__ = ["BENCH", "CONTENDERS", "LIMIT", "OURS", "Contender"]

BENCH = Path(__file__).resolve().parent.parent
FIXED = frozenset({"tokens", "images", "small"})
RECORDS = FIXED | {"text"}
LIMIT, OURS = "limit", "penstock"
SLOW = 250_000
"""Records for those whose writers take a minute per million, or more."""


@dataclass(frozen=True)
class Contender:
    """One row of the comparison."""

    name: str
    label: str
    module: str
    """Of rivals.adapter."""
    can: frozenset[str]
    """Workloads, and "order", that it has an answer to."""
    environment: str = ""
    """Under .rivals; unless given, that of penstock."""
    variant: str = ""
    shuffle: str = "global"
    own_files: bool = True
    """Whether it writes a format of its own, rather than reading the plain files."""
    bulk: int = 1
    """How many times as large as the records its files may be."""
    resume: str = ""
    """How it goes on in the middle of an epoch."""
    most: int | None = None
    """The most records it is given, where writing more takes minutes; fewer are in its favour."""

    @property
    def package(self) -> str:
        """Its pin, or nothing if it is part of this project."""
        return (
            PINS[self.environment].pins[0] if self.environment not in ("", "torch") else "torch==2.13.0" if self.environment else ""
        )

    @property
    def missing(self) -> str | None:
        """Why it cannot take part; None if it can."""
        return reason_missing(self.environment) if self.environment else None

    def start(self, log: Path) -> Worker:
        """A process of its own, in its environment."""
        python = str(python_of(self.environment)) if self.environment else sys.executable
        quiet = {"PYTHONPATH": str(BENCH), "PYTHONWARNINGS": "ignore", "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
        return Worker([python, "-m", "rivals.child", self.module], env=os.environ | quiet, log=log)


CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender(LIMIT, "LIMIT", "limit", RECORDS | {"mixed", "cold"}, own_files=False, shuffle="given"),
        Contender(OURS, "penstock, store", "penstock_loader", RECORDS | {"mixed", "cold", "order"}, resume="state"),
        Contender("penstock-npy", "penstock, .npy", "penstock_loader", FIXED, variant="npy", own_files=False, resume="state"),
        Contender(
            "numpy", "numpy memmap, take", "numpy_take", FIXED | {"order"}, "numpy", own_files=False, resume="rebuild the order"
        ),
        Contender(
            "torch",
            "torch DataLoader",
            "torch_loader",
            FIXED | {"order"},
            "torch",
            "plain",
            own_files=False,
            resume="sampler skips",
        ),
        Contender(
            "torch-getitems",
            "torch DataLoader, __getitems__",
            "torch_loader",
            FIXED,
            "torch",
            "getitems",
            own_files=False,
            resume="sampler skips",
        ),
        Contender("h5py", "h5py", "h5py_set", RECORDS, "h5py", resume="rebuild the order"),
        Contender("lmdb", "lmdb", "lmdb_map", RECORDS, "lmdb", bulk=2, resume="rebuild the order"),
        Contender("grain", "Grain + ArrayRecord", "grain_records", RECORDS | {"mixed", "order"}, "grain", resume="state"),
        Contender(
            "mosaic",
            "MosaicML Streaming",
            "mosaic_streaming",
            RECORDS | {"mixed", "cold", "order"},
            "mosaic",
            resume="state",
            most=SLOW,
        ),
        Contender(
            "litdata",
            "LitData",
            "litdata_chunks",
            RECORDS | {"mixed", "cold"},
            "litdata",
            shuffle="chunks of 64 MB",
            resume="state",
            most=SLOW,
        ),
        Contender(
            "webdataset",
            "WebDataset",
            "webdataset_shards",
            RECORDS | {"mixed", "cold"},
            "webdataset",
            shuffle="shards of 64 MB, buffer of 5,000",
            resume="reads all again",
            most=SLOW,
        ),
        Contender(
            "datasets", "Hugging Face datasets", "datasets_arrow", RECORDS | {"mixed", "cold", "order"}, "datasets", resume="skip"
        ),
        Contender("lance", "Lance", "lance_take", RECORDS, "lance", resume="rebuild the order"),
        Contender("ffcv", "FFCV", "ffcv_loader", FIXED | {"cold"}, "ffcv", most=4 * SLOW),
        Contender("loaderx", "loaderx", "loaderx_store", RECORDS | {"order"}, "loaderx", resume="seek"),
    )
}
"""By name, in the order of the tables before they are sorted."""
