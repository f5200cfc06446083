"""What is loaded: records of known content in plain files, and what a contender is asked to do with them.

Needs nothing but numpy, because it is imported in every rival's environment. The first four bytes of a fixed record, and the first
seven letters of a text, are its id; labels are sorted by class. So whatever comes out can be checked, in whatever order.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["CLASSES", "WORKLOADS", "Array", "Batch", "Task", "Texts", "Workload", "epochs", "make"]

Array = npt.NDArray[Any]
Texts = list[Any] | tuple[Array, Array]
"""Records of one batch: buffers one by one, or all values and where each begins and ends."""
Batch = Mapping[str, Array | Texts]

CLASSES = 1000
"""Labels are sorted: the worst case for a shuffle that is not global."""


@dataclass(frozen=True)
class Workload:
    """Records, and how many make a batch. A text has no shape."""

    name: str
    num_records: int
    batch: int
    dtype: str = "u1"
    shape: tuple[int, ...] | None = None
    label: bool = False

    @property
    def is_text(self) -> bool:
        return self.shape is None

    @property
    def record_bytes(self) -> int:
        """Bytes of a fixed record, its label included."""
        return int(np.prod(self.shape or ())) * np.dtype(self.dtype).itemsize + 4 * self.label

    @property
    def num_bytes(self) -> int:
        """Bytes of all records; of texts, about, and compressed."""
        return self.num_records * (1_500 if self.is_text else self.record_bytes)

    def label_of(self, ids: Array) -> Array:
        return (ids * CLASSES // self.num_records).astype(np.int32)

    def cut(self, num_records: int) -> "Workload":
        """The same with fewer records."""
        return replace(self, num_records=min(num_records, self.num_records))


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("tokens", 1_000_000, 256, "u2", (1024,)),
        Workload("images", 20_000, 64, "u1", (224, 224, 3)),
        Workload("small", 4_000_000, 1024, "u1", (128,), label=True),
        Workload("text", 300_000, 256),
    )
}


@dataclass(frozen=True)
class Task:
    """What a contender gets: the records in plain files, a folder of its own, and where and how to begin."""

    workload: Workload
    source: Path
    folder: Path
    variant: str = ""
    start: int = 0
    """The step of epoch 0 to begin with."""
    cold: bool = False
    """Nothing is in memory: use the shuffle that is advised for that."""
    mixed: bool = False
    """Two sources, the first 70 % of the records and the rest, drawn from by 0.7 and 0.3."""

    @property
    def shard_bytes(self) -> int:
        """For formats of many files: 64 MB each, less if there would be fewer than 16."""
        return min(1 << 26, self.workload.num_bytes // 16)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"source": str(self.source), "folder": str(self.folder)}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> "Task":
        shape = plain["workload"]["shape"]
        workload = Workload(**plain["workload"] | {"shape": None if shape is None else tuple(shape)})
        return cls(**plain | {"workload": workload, "source": Path(plain["source"]), "folder": Path(plain["folder"])})

    @property
    def num_steps(self) -> int:
        """Full batches of an epoch."""
        return self.workload.num_records // self.workload.batch

    @property
    def split(self) -> int:
        """Where the second source of a mixture begins."""
        return self.workload.num_records * 7 // 10

    @property
    def parts(self) -> dict[str, range]:
        """The sources by name: one, or the two of a mixture."""
        n = self.workload.num_records
        return {"a": range(self.split), "b": range(self.split, n)} if self.mixed else {"all": range(n)}

    def columns(self) -> dict[str, Array]:
        """The fixed records in plain files, mapped."""
        names = ("x", "label") if self.workload.label else ("x",)
        return {name: np.load(self.source / f"{name}.npy", mmap_mode="r")[: self.workload.num_records] for name in names}

    def texts(self) -> tuple[Array, Array]:
        """The texts in plain files, mapped: all letters, and where each text begins and ends."""
        offsets = np.load(self.source / "offsets.npy")[: self.workload.num_records + 1]
        return np.load(self.source / "values.npy", mmap_mode="r"), offsets

    def frames(self) -> tuple[Array, Array]:
        """The texts compressed one by one by zstd at level 3, mapped: all frames, and where each begins and ends."""
        cuts = np.load(self.source / "cuts.npy")[: self.workload.num_records + 1]
        return np.memmap(self.source / "frames.bin", np.uint8, mode="r"), cuts

    def records(self, part: range) -> Iterator[tuple[bytes, int]]:
        """Records one by one, for writers that take them so: the bytes of x, or the frame of a text, and the label (or 0)."""
        if self.workload.is_text:
            frames, cuts = self.frames()
            for i in part:
                yield frames[cuts[i] : cuts[i + 1]].tobytes(), 0
            return
        columns = self.columns()
        for low in range(part.start, part.stop, 1024):
            high = min(low + 1024, part.stop)
            labels = columns["label"][low:high].tolist() if "label" in columns else [0] * (high - low)
            for row, label in zip(np.ascontiguousarray(columns["x"][low:high]), labels, strict=True):
                yield row.tobytes(), label


def epochs(task: Task) -> Iterator[Array]:
    """Ids of batch after batch without end, by one numpy permutation an epoch: the order of all who have none of their own."""
    size, start = task.workload.batch, task.start
    for epoch in itertools.count():
        order = np.random.default_rng([7, epoch]).permutation(task.workload.num_records)
        for step in range(start, task.num_steps):
            yield order[step * size : (step + 1) * size]
        start = 0


def make(workload: Workload, source: Path) -> None:
    """Write the plain files of a fixed workload."""
    rng, n = np.random.default_rng(1), workload.num_records
    source.mkdir(parents=True, exist_ok=True)
    x = np.lib.format.open_memmap(source / "x.npy", "w+", workload.dtype, (n, *(workload.shape or ())))
    rows = x.reshape(n, -1).view(np.uint8)
    step = max(1, (1 << 26) // rows.shape[1])
    for low in range(0, n, step):
        high = min(n, low + step)
        rows[low:high] = np.frombuffer(rng.bytes((high - low) * rows.shape[1]), np.uint8).reshape(high - low, -1)
        rows[low:high, :4] = np.arange(low, high, dtype=np.uint32).view(np.uint8).reshape(-1, 4)
    x.flush()
    if workload.label:
        np.save(source / "label.npy", workload.label_of(np.arange(n)))
