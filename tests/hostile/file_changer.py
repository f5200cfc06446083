"""Files that are changed while a loader reads them: every batch is that of the files as they were, or an error says what happened.

    python -m tests.hostile.file_changer --count N

A trial opens files of one format, reads some batches, and then renames, replaces, removes, appends to, cuts, rewrites or patches
the files, while it reads on: between two batches, or in another thread at any moment. No record of the first version is in the
second one.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.formats import shards

import penstock as pen
from penstock.errors import CorruptError, MissingError, PenstockError, SourceChangedError, TruncatedError
from penstock.formats import rows, tokens

WIDTH = 16
ROWS = 2_000
BATCHES_AFTER = 30
DEADLINE_S = 300
FORMATS = ("npy", "shard", "rox", "arrow", "h5", "tfrecord", "tar", "store")
CHANGES = ("rename", "replace", "remove", "append", "cut", "rewrite", "patch")
HARMLESS = frozenset({"rename", "replace", "remove", "append"})
TRUE: dict[str, tuple[type[PenstockError], ...]] = {
    "rename": (MissingError,),
    "replace": (SourceChangedError,),
    "remove": (MissingError,),
    "append": (SourceChangedError,),
    "cut": (TruncatedError,),
    "rewrite": (SourceChangedError, TruncatedError),
    "patch": (SourceChangedError,),
}
"""The errors that say the truth. Of formats with checksums they may also say that the data is corrupt."""

CHECKED = ("store", "tfrecord")


def values(version: int) -> npt.NDArray[np.float32]:
    """The records of a version; the first value of each says which it is."""
    return (np.arange(ROWS * WIDTH, dtype=np.float32) + (version - 1) * 0.25).reshape(ROWS, WIDTH)


@cache
def image(kind: str, version: int) -> bytes:
    """The bytes of a file."""
    data = values(version)
    if kind == "shard":
        return rows.HEADER.pack(rows.MAGIC, ROWS, WIDTH, 0, 0) + data.tobytes()
    if kind == "rox":
        ends = (np.arange(1, ROWS + 1) * WIDTH * 4).astype("<i8")
        return data.tobytes() + ends.tobytes() + tokens.encode_footer(ROWS, data.nbytes, data.dtype)
    if kind == "tfrecord":
        return shards.tfrecord(row.tobytes() for row in data)
    if kind == "tar":
        return shards.tar((f"{number:04}.x", row.tobytes()) for number, row in enumerate(data))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"a.{kind}")
        {"npy": np.save, "arrow": _write_arrow, "h5": _write_hdf5}[kind](path, data)
        return path.read_bytes()


def _write_arrow(path: Path, data: npt.NDArray[np.float32]) -> None:
    import pyarrow as pa

    table = pa.table({"data": pa.FixedSizeListArray.from_arrays(pa.array(data.reshape(-1)), WIDTH)})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def _write_hdf5(path: Path, data: npt.NDArray[np.float32]) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=data, track_times=False)


@dataclass(frozen=True)
class Trial:
    """What is done in one trial."""

    kind: str
    change: str
    io: str = "map"
    touched: bool = True  # whether the files were read before they are changed
    threads: int = 0
    in_thread: bool = False
    cut: float = 0.5  # what is left of a file that is cut

    @classmethod
    def drawn(cls, rng: random.Random) -> "Trial":
        """Any of them."""
        kind = rng.choice(FORMATS)
        io = "map" if kind == "arrow" else rng.choice(["map", "map", "pread", "direct"])
        some = rng.random() < 0.8
        return cls(
            kind, rng.choice(CHANGES), io, some, rng.choice([0, 2]), rng.random() < 0.5, rng.choice([0.0, 0.999, rng.random()])
        )

    def make(self, folder: Path) -> tuple[Path, list[Path], list[bytes]]:
        """What is opened, the files that are changed, and what they become."""
        if self.kind == "store":
            return self._make_store(folder / "a.pen")
        path = folder / f"a.{self.kind}"
        path.write_bytes(image(self.kind, 1))
        return path, [path], [image(self.kind, 2)]

    def _make_store(self, path: Path) -> tuple[Path, list[Path], list[bytes]]:
        with pen.create(path, {"data": pen.Field("f4", (WIDTH,))}, chunk_records=ROWS // 3) as out:
            out.extend({"data": values(1)})
        files = sorted((path / "chunk").iterdir())
        return path, files, [bytes(byte ^ 64 for byte in file.read_bytes()) for file in files]

    def run(self, folder: Path) -> str:
        """How it ended: "right", or the name of an error that says the truth. AssertionError otherwise."""
        path, files, others = self.make(folder)
        for file in files:
            os.utime(file, (1e9, 1e9))  # files are older than the clock of their filesystem is fine
        options: dict[str, Any] = {} if self.kind == "arrow" else {"io": self.io}
        if self.kind == "tar":
            options["fields"] = ["x"]
        with pen.open(path, **options) as source:
            if self.touched:
                check(rows_of(source[:]))
            changer = threading.Thread(target=self.apply, args=(files, others))
            try:
                return self._read(source, changer)
            except PenstockError as error:
                return self._judge(error, files)
            finally:
                if changer.ident is not None:
                    changer.join()

    def _read(self, source: pen.Source, changer: threading.Thread) -> str:
        deadline, is_patch = time.monotonic() + DEADLINE_S, self.change == "patch"
        with pen.Loader(source.shuffle(seed=1), batch_size=50, tail="drop", threads=self.threads) as loader:
            batches: Iterator[Any] = chain.from_iterable(repeat(loader))
            changer.start()
            if not self.in_thread:
                changer.join()
            for number, batch in enumerate(batches):
                check(rows_of(batch), new_too=is_patch and self.io == "map")
                if number >= BATCHES_AFTER and not changer.is_alive() and not (is_patch and time.monotonic() < deadline):
                    break
        assert not is_patch, "the patch was never noticed"
        return "right"

    def _judge(self, error: PenstockError, files: list[Path]) -> str:
        found = error.__cause__ if isinstance(error, pen.errors.BatchError) and error.__cause__ else error
        text = f"{self}: {type(found).__name__}: {found}"
        true = (*TRUE[self.change], *((CorruptError,) if self.kind in CHECKED else ()))
        assert isinstance(found, true), text
        assert not (self.touched and self.change in HARMLESS), text
        assert any(str(file) in str(found) for file in files), text
        return type(found).__name__

    def apply(self, files: list[Path], others: list[bytes]) -> None:
        """Change the files."""
        for file, other in zip(files, others, strict=True):
            getattr(self, f"_{self.change}")(file, other)

    def _rename(self, file: Path, other: bytes) -> None:
        file.rename(file.with_suffix(".aside"))

    def _replace(self, file: Path, other: bytes) -> None:
        file.with_suffix(".new").write_bytes(other)
        file.with_suffix(".new").rename(file)

    def _remove(self, file: Path, other: bytes) -> None:
        file.unlink()

    def _append(self, file: Path, other: bytes) -> None:
        with file.open("ab") as out:
            out.write(other)

    def _cut(self, file: Path, other: bytes) -> None:
        os.truncate(file, int(self.cut * len(other)))

    def _rewrite(self, file: Path, other: bytes) -> None:
        file.write_bytes(other)

    def _patch(self, file: Path, other: bytes) -> None:
        with file.open("r+b") as out:
            out.write(other)


def rows_of(batch: dict[str, Any]) -> npt.NDArray[np.float32]:
    """The only field, which may be one of byte strings."""
    (found,) = batch.values()
    return found.values.view(np.float32).reshape(-1, WIDTH) if isinstance(found, pen.Ragged) else found


def check(found: npt.NDArray[np.float32], *, new_too: bool = False) -> None:
    """That records are those of the first version."""
    if new_too:
        return  # a patch of a mapped file is noticed soon, but not before its first bytes are read
    places = found[:, 0].astype(np.float64) / WIDTH
    assert np.all((places >= 0) & (places < ROWS) & (places == np.floor(places))), "records of no version, or of the second one"
    assert np.array_equal(found, values(1)[places.astype(np.int64)]), "records of two versions"


def attack(trials: list[Trial], report: Callable[[str], object]) -> list[str]:
    """Run trials; returns what was wrong."""
    outcomes, wrong = Counter[str](), list[str]()
    for trial in trials:
        folder = Path(tempfile.mkdtemp(prefix="penstock-changer-"))
        try:
            outcomes[f"{trial.change}: {trial.run(folder)}"] += 1
        except Exception as error:
            wrong.append(f"{trial}: {type(error).__name__}: {error}")
        with suppress(OSError):
            shutil.rmtree(folder)
    for name in sorted(outcomes):
        report(f"{outcomes[name]:6} {name}")
    report(f"{len(trials)} trials, {len(wrong)} wrong")
    return wrong


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    wrong = attack([Trial.drawn(rng) for _ in range(given.count)], lambda text: sys.stdout.write(text + "\n"))
    sys.stdout.writelines(f"{line}\n" for line in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
