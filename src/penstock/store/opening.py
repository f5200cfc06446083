"""open: a store for reading or for writing."""

import os
from pathlib import Path
from typing import Literal, overload

from penstock.store.create import append_to
from penstock.store.snapshot import Store, open_store
from penstock.store.writer import Progress, Writer

__all__ = ["open"]


@overload
def open(
    path: str | os.PathLike[str],
    mode: Literal["r"] = "r",
    *,
    generation: int | None = None,
    threads: int | None = None,
    io: str = "auto",
    verify: bool = True,
) -> Store: ...
@overload
def open(
    path: str | os.PathLike[str], mode: Literal["a"], *, threads: int | None = None, progress: Progress | None = None
) -> Writer: ...
def open(
    path: str | os.PathLike[str],
    mode: str = "r",
    *,
    generation: int | None = None,
    threads: int | None = None,
    io: str = "auto",
    verify: bool = True,
    progress: Progress | None = None,
) -> Store | Writer:
    """Open a store for reading (``mode="r"``), at its newest ``generation`` unless one is given, or for writing (``mode="a"``).

    ``io`` is "map" (memory-mapped, for local disks), "pread" (for network filesystems) or "auto". ``verify=False``
    skips the checksum of each page when it is first touched.
    """
    if mode == "a":
        if generation is not None:
            raise ValueError("a writer always goes on from the newest generation")
        return append_to(path, threads=threads or 2, progress=progress)
    if mode != "r":
        raise ValueError(f"mode must be 'r' or 'a', got {mode!r}")
    return open_store(Path(path), generation=generation, threads=threads, io=io, verify=verify)
