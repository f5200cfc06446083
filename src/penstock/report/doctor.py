"""Is this machine fit to train from? One finding for each thing that can hurt, with what to do about it."""

import importlib.util
import os
import platform
import re
import resource
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from penstock.records import Source
from penstock.report.disk import Disk, measure_disk
from penstock.report.machine import allowed_cores, available_memory, memory_limit, vector_instructions
from penstock.report.page_cache import cached_share
from penstock.report.words import counted, percent, size

__all__ = ["Finding", "examine", "files_of"]

_OPTIONAL = (
    ("torch", "torch", "PyTorch tensors", "2.4"),
    ("jax", "jax", "jax.Arrays", "0.4.30"),
    ("h5py", "hdf5", "HDF5 files", "3.10"),
    ("pyarrow", "arrow", "Parquet and Arrow files", "15"),
    ("array_record", "arrayrecord", "ArrayRecord files", "0.5"),
    ("PIL", "image", "folders of images", "10"),
    ("matplotlib", "plot", "plots and pages", "3.8"),
)
_PACKAGES = {"PIL": "pillow"}


@dataclass(frozen=True)
class Finding:
    """``level`` is ok, hurts or breaks; ``found`` is what is there, ``remedy`` what to do, if there is something to do."""

    name: str
    level: str
    found: str
    remedy: str = ""


def examine(paths: Sequence[str | Path] | None = None, source: Source | None = None) -> list[Finding]:
    """Everything about this machine, and about the files and directories that hold the data, if given; ``source`` is that data."""
    files = [] if paths is None else files_of(paths)
    place = next((Path(path).absolute().parent for path in paths or () if Path(path).exists()), Path(tempfile.gettempdir()))
    disk = measure_disk(place)
    found = [*_about_machine(), *_about_disk(disk), *_about_limits(), *_about_versions()]
    return [*found, *_about_data(files, disk, source)] if files else found


def files_of(paths: Sequence[str | Path]) -> list[Path]:
    """The files in directories, and single ones; what is no file of this machine is left out."""
    found: list[Path] = []
    for path in map(Path, paths):
        inside = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path] if path.is_file() else []
        found += inside
    return found


def _about_machine() -> Iterator[Finding]:
    cores, all_cores = allowed_cores(), os.cpu_count() or 1
    told = f"{cores:g} of {all_cores}" if cores < all_cores else f"{cores:g}"
    if cores < 2:
        yield Finding("cores", "hurts", told, "reading competes with the trainer for one core: give the job two or more")
    else:
        yield Finding("cores", "ok", told)
    free, limit = available_memory(), memory_limit()
    within = "" if limit is None else f" within the container's limit of {size(limit)}"
    if free < 512 << 20:
        yield Finding("memory", "hurts", f"{size(free)} free{within}", "close other programs, or give the loader a small prefetch")
    else:
        yield Finding("memory", "ok", f"{size(free)} free{within}")
    simd = vector_instructions()
    if simd == "PLAIN" and platform.machine() in ("x86_64", "AMD64"):
        yield Finding("vector instructions", "hurts", "none", "orders are slower without AVX2; their results are the same")
    else:
        yield Finding("vector instructions", "ok", simd)
    if sys.byteorder != "little" or sys.maxsize < 2**62:
        yield Finding("processor", "breaks", f"{platform.machine()}, {sys.byteorder}-endian", "use a 64-bit little-endian machine")


def _about_disk(disk: Disk) -> Iterator[Finding]:
    if disk.is_network:
        yield Finding(
            "file system",
            "hurts",
            f"{disk.filesystem}, over the network ({disk.path})",
            "single records are slow to read, and stores cannot be written: use a local disk, or shuffle in blocks",
        )
    else:
        yield Finding("file system", "ok", f"{disk.filesystem} ({disk.path})")
    if disk.free_bytes < 1 << 30:
        yield Finding("free space", "hurts", size(disk.free_bytes), "stores and caches need room: free some")
    else:
        yield Finding("free space", "ok", size(disk.free_bytes))
    yield _about_speed(disk)


def _about_speed(disk: Disk) -> Finding:
    if disk.warm_bytes_per_s is None:
        return Finding("disk speed", "ok", "not measured: nothing may be written there")
    warm = f"{size(disk.warm_bytes_per_s)}/s from the page cache"
    if disk.is_memory:
        return Finding("disk speed", "ok", f"{warm}; this file system is memory")
    if disk.cold_bytes_per_s is None:
        return Finding("disk speed", "ok", f"{warm}; the system keeps new files in memory, so the disk itself was not measured")
    told = f"{size(disk.cold_bytes_per_s)}/s from the disk, {warm}"
    if disk.cold_bytes_per_s < 100e6:
        return Finding("disk speed", "hurts", told, "data larger than memory will wait for it: shuffle in blocks")
    return Finding("disk speed", "ok", told)


def _about_limits() -> Iterator[Finding]:
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < 64:
        yield Finding("open files", "breaks", f"at most {files}", f"ulimit -n {min(4096, most) if most > 0 else 4096}")
    elif files != resource.RLIM_INFINITY and files < 1024:
        yield Finding("open files", "hurts", f"at most {files}", "data in many files needs more: ulimit -n 4096")
    else:
        yield Finding("open files", "ok", "no limit" if files == resource.RLIM_INFINITY else f"at most {files:,}")
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY:
        yield Finding("address space", "hurts", f"at most {size(space)}", "files are mapped into it: ulimit -v unlimited")
    else:
        yield Finding("address space", "ok", "no limit")
    yield Finding("/dev/shm", "ok", "not needed: batches stay in one process")


def _about_versions() -> Iterator[Finding]:
    own = ", ".join(f"{name} {metadata.version(name)}" for name in ("penstock", "numpy"))
    yield Finding("versions", "ok", f"{own}, Python {platform.python_version()}")
    for module, extra, what, least in _OPTIONAL:
        package = _PACKAGES.get(module, module)
        if importlib.util.find_spec(module) is None:
            yield Finding(package, "ok", f"not installed; needed for {what}", f"pip install 'penstock[{extra}]'")
            continue
        version = metadata.version(package)
        if _numbers(version) < _numbers(least):
            yield Finding(package, "hurts", f"{version}, made for {least} or newer", f"pip install -U 'penstock[{extra}]'")
        else:
            yield Finding(package, "ok", version)


def _numbers(version: str) -> list[int]:
    return [int(word) for word in re.findall(r"\d+", version.partition("+")[0])[:3]]


def _about_data(files: Sequence[Path], disk: Disk, source: Source | None) -> Iterator[Finding]:
    total, free = sum(file.stat().st_size for file in files), available_memory()
    share = cached_share(files)
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY and total > space:
        yield Finding("data", "breaks", f"{size(total)}, more than the address space of {size(space)}", "ulimit -v unlimited")
    told = "not known" if share is None else f"{percent(share)} of it"
    if total <= free * 0.8:
        yield Finding("data", "ok", f"{size(total)} in {counted(len(files), 'file')}: it fits in memory")
        later = "" if share is None or share > 0.9 else "the first epoch reads the rest from the disk, later ones do not"
        yield Finding("page cache", "ok", told, later)
        yield Finding("shuffle", "ok", "global: every record once, from anywhere")
        return
    blocks = "shuffle in blocks: penstock shuffle-report DATA says which window is enough"
    yield Finding(
        "data", "hurts", f"{size(total)} in {counted(len(files), 'file')}, more than the {size(free)} of free memory", blocks
    )
    if share is None or share > 0.9 or disk.is_memory:
        yield Finding("page cache", "ok", told)
    else:
        yield Finding("page cache", "hurts", told, "every epoch reads the rest from the disk")
    yield Finding("shuffle", "hurts", "a global one reads single records from the disk", _window_for(total, free // 4, source))


def _window_for(total: int, room: int, source: Source | None) -> str:
    """A window whose blocks fit."""
    if source is None or len(source) == 0:
        return f"block= and window=, with {size(room)} in flight at most"
    block = source.blocks.size
    window = max(1, int(room / (total / len(source) * block)))
    return f"block={block}, window={window} keeps {size(room)} in flight, a fourth of the free memory"
