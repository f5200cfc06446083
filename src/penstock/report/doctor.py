"""Is this machine fit to train from? Cores, memory, disk, page cache, limits and versions: a finding for each, with a remedy."""

import ctypes
import errno
import importlib.util
import mmap
import os
import platform
import re
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np

from penstock.native import _core
from penstock.process import PACKAGES
from penstock.records import Source
from penstock.report.formatting import counted, percent, size

_PROC = Path("/proc")
_GROUPS = Path("/sys/fs/cgroup")
SPAN = 64 << 20  # bytes of a file that are looked at in one piece
MOST_SPANS = 64  # pieces that are looked at, evenly spread over all files
TEST_BYTES = 64 << 20  # size of the file that is written to measure a disk
PIECE = 1 << 20
IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}


@dataclass(frozen=True)
class ProcessMemory:
    """Bytes of this process in memory: its own, and those of mapped files, which the system takes back when it needs room."""

    own_bytes: int
    mapped_bytes: int

    @property
    def resident_bytes(self) -> int:
        return self.own_bytes + self.mapped_bytes


def resident() -> ProcessMemory:
    fields = _numbers(_PROC / "self" / "status")
    return ProcessMemory(fields.get("RssAnon", 0), fields.get("RssFile", 0) + fields.get("RssShmem", 0))


def available_memory() -> int:
    """Bytes that can be had without anything being swapped, within the limit of the container."""
    free = _numbers(_PROC / "meminfo").get("MemAvailable", 0)
    limit = memory_limit()
    return free if limit is None else max(0, min(free, limit - _group_memory_used()))


def _numbers(path: Path) -> dict[str, int]:
    """The lines of a file of /proc that hold a number, in bytes."""
    found = {}
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return found


def _groups() -> Iterator[Path]:
    """The directories of this process's control groups, innermost first."""
    for line in (_PROC / "self" / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        root = _GROUPS / controllers if controllers else _GROUPS
        inner = root / path.lstrip("/")
        yield from (one for one in (inner, *inner.parents) if one == root or root in one.parents)


def _group_values(*names: str) -> Iterator[str]:
    for group in _groups():
        for name in names:
            if (group / name).is_file():
                yield (group / name).read_text().strip()


def memory_limit() -> int | None:
    """The memory limit of the container in bytes; None without one."""
    limits = [int(text) for text in _group_values("memory.max", "memory.limit_in_bytes") if text.isdigit()]
    return min((limit for limit in limits if limit < 1 << 60), default=None)


def _group_memory_used() -> int:
    """Without the page cache, which the system takes back when it needs room."""
    used = [int(text) for text in _group_values("memory.current", "memory.usage_in_bytes") if text.isdigit()]
    lines = [line.split() for text in _group_values("memory.stat") for line in text.splitlines()]
    cached = [int(value) for name, value in lines if name in ("file", "cache")]
    return max(0, used[0] - (cached[0] if cached else 0)) if used else 0


def allowed_cores() -> float:
    """Cores this process may use: those it is bound to, and no more than its container's share of time."""
    bound = float(len(os.sched_getaffinity(0)))
    shares = [text.split() for text in _group_values("cpu.max")]
    quotas = [int(quota) / int(period) for quota, period in shares if quota != "max"]
    for group in _groups():  # the older kind of groups
        files = [group / name for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
        if all(file.is_file() for file in files):
            quota, period = (int(file.read_text()) for file in files)
            quotas += [quota / period] if quota > 0 else []
    return min([bound, *quotas])


def vector_instructions() -> str:
    return _core.available_simd()[-1].name


def describe_machine() -> str:
    """Processor, cores and memory in one line: without these a figure means nothing."""
    memory = _numbers(_PROC / "meminfo").get("MemTotal", 0)
    return f"{_processor()}, {allowed_cores():g} cores, {memory / 1e9:.0f} GB of memory"


def _processor() -> str:
    for line in (_PROC / "cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


class Others:
    """How much of the cores other programs took since this was made."""

    def __init__(self) -> None:
        self._before = self._now()

    def share(self) -> float:
        """Their part of all time of the cores, from 0 to 1; time that a hypervisor took away counts as theirs."""
        total, idle, own = (now - before for now, before in zip(self._now(), self._before, strict=True))
        return min(1.0, max(0.0, (total - idle - own) / total)) if total > 0 else 0.0

    @staticmethod
    def _now() -> tuple[float, float, float]:
        ticks = [int(word) for word in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(ticks), ticks[3] + ticks[4], sum(os.times()[:4]) * os.sysconf("SC_CLK_TCK")


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def cached_share(paths: Sequence[str | Path]) -> float | None:
    """The share of the bytes of files that is in the page cache, from 0 to 1, of a sample of them where they are large; None if
    the system does not say.
    """
    spans = [(path, start) for path in paths for start in range(0, os.path.getsize(path), SPAN)]
    chosen = [spans[k * len(spans) // MOST_SPANS] for k in range(MOST_SPANS)] if len(spans) > MOST_SPANS else spans
    inside = total = 0
    for path, start in chosen:
        found = _cached_pages(path, start)
        if found is None:
            return None
        inside, total = inside + found[0], total + found[1]
    return inside / total if total else None


def _cached_pages(path: str | Path, start: int) -> tuple[int, int] | None:
    """Pages of a span that are in memory, and pages in all."""
    with open(path, "rb") as file:
        size = min(SPAN, os.fstat(file.fileno()).st_size - start)
        if size <= 0:
            return 0, 0
        if not _may_ask(file.fileno()):
            return _try_reading(file.fileno(), start, size)
        with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ, offset=start) as mapped:
            view = np.frombuffer(mapped, np.uint8)
            pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
            failed = _libc.mincore(view.ctypes.data, size, pages.ctypes.data)
            del view
        return None if failed else (int((pages & 1).sum()), pages.size)


def _may_ask(descriptor: int) -> bool:
    """Whether the system tells the truth: of files of others that may not be written it says that all of them is there."""
    return os.fstat(descriptor).st_uid == os.geteuid() or os.access(f"/proc/self/fd/{descriptor}", os.W_OK)


def _try_reading(descriptor: int, start: int, size: int) -> tuple[int, int] | None:
    """A few bytes here and there, only if they are there already."""
    places = [start + size * k // 16 for k in range(16)]
    inside, byte = 0, bytearray(1)
    for place in places:
        try:
            inside += os.preadv(descriptor, [byte], place, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                return None
    return inside, len(places)


def drop_from_cache(descriptor: int) -> None:
    """Ask the system to forget what it keeps of a file; what was written must be on the disk."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


@dataclass(frozen=True)
class Disk:
    """A directory's disk. Speeds are of a small file, read from one end to the other; ``cold_bytes_per_s`` is None where the file
    could not be dropped from the page cache, both are None where nothing may be written.
    """

    path: str
    filesystem: str
    is_network: bool
    is_memory: bool
    free_bytes: int
    cold_bytes_per_s: float | None
    warm_bytes_per_s: float | None


def measure_disk(directory: str | Path) -> Disk:
    """Examine a directory with a temporary file of 64 MB."""
    place = Path(directory).resolve()
    kind, free = filesystem_of(place), os.statvfs(place)
    free_bytes = free.f_bavail * free.f_frsize
    cold = warm = None
    if free_bytes > 4 * TEST_BYTES and os.access(place, os.W_OK):
        cold, warm = _read_speeds(place)
    return Disk(str(place), kind, _core.is_network_filesystem(str(place)), kind in IN_MEMORY, free_bytes, cold, warm)


def _read_speeds(place: Path) -> tuple[float | None, float | None]:
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".penstock-doctor-") as file:
            for _ in range(TEST_BYTES // PIECE):
                file.write(os.urandom(PIECE))
            file.flush()
            os.fsync(file.fileno())
            drop_from_cache(file.fileno())
            is_cold = (cached_share([file.name]) or 0.0) < 0.1
            first, second = _read_s(file.name), _read_s(file.name)
    except OSError:
        return None, None
    return TEST_BYTES / first if is_cold else None, TEST_BYTES / second


def _read_s(path: str) -> float:
    with open(path, "rb", buffering=0) as file:
        piece = bytearray(PIECE)
        began = time.perf_counter()
        while file.readinto(piece):
            pass
        return time.perf_counter() - began


def filesystem_of(path: str | Path) -> str:
    """The kind of file system a path is on, as the list of mounts has it."""
    wanted, best, kind = str(Path(path).resolve()), -1, "unknown"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        mount = before.split()[4].encode().decode("unicode_escape")
        if (wanted == mount or wanted.startswith(mount.rstrip("/") + "/")) and len(mount) >= best:
            best, kind = len(mount), after.split()[0]
    return kind


_OPTIONAL = (
    ("torch", "torch", "PyTorch tensors", "2.4"),
    ("jax", "jax", "jax.Arrays", "0.4.30"),
    ("h5py", "hdf5", "HDF5 files", "3.10"),
    ("pyarrow", "arrow", "Parquet and Arrow files", "15"),
    ("array_record", "arrayrecord", "ArrayRecord files", "0.5"),
    ("PIL", "image", "folders of images", "10"),
    ("matplotlib", "plot", "plots and pages", "3.8"),
)


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
    inside = (sorted(path.rglob("*")) if path.is_dir() else [path] for path in map(Path, paths))
    return [file for files in inside for file in files if file.is_file()]


def _finding(name: str, found: str, *, hurts: str = "", breaks: str = "") -> Finding:
    """What was found is ok unless something hurts or breaks; that text says what to do about it."""
    return Finding(name, "breaks" if breaks else "hurts" if hurts else "ok", found, breaks or hurts)


def _about_machine() -> Iterator[Finding]:
    cores, all_cores = allowed_cores(), os.cpu_count() or 1
    told = f"{cores:g} of {all_cores}" if cores < all_cores else f"{cores:g}"
    remedy = "reading competes with the trainer for one core: give the job two or more"
    yield _finding("cores", told, hurts=remedy if cores < 2 else "")
    free, limit = available_memory(), memory_limit()
    within = "" if limit is None else f" within the container's limit of {size(limit)}"
    remedy = "close other programs, or give the loader a small prefetch"
    yield _finding("memory", f"{size(free)} free{within}", hurts=remedy if free < 512 << 20 else "")
    simd = vector_instructions()
    is_plain = simd == "PLAIN" and platform.machine() in ("x86_64", "AMD64")
    remedy = "orders are slower without AVX2; their results are the same"
    yield _finding("vector instructions", "none" if is_plain else simd, hurts=remedy if is_plain else "")
    if sys.byteorder != "little" or sys.maxsize < 2**62:
        yield _finding("processor", f"{platform.machine()}, {sys.byteorder}-endian", breaks="use a 64-bit little-endian machine")


def _about_disk(disk: Disk) -> Iterator[Finding]:
    where = f"{disk.filesystem}, over the network ({disk.path})" if disk.is_network else f"{disk.filesystem} ({disk.path})"
    remedy = "single records are slow to read, and stores cannot be written: use a local disk, or shuffle in blocks"
    yield _finding("file system", where, hurts=remedy if disk.is_network else "")
    remedy = "stores and caches need room: free some"
    yield _finding("free space", size(disk.free_bytes), hurts=remedy if disk.free_bytes < 1 << 30 else "")
    slow, speed = False, "not measured: nothing may be written there"
    if disk.warm_bytes_per_s is not None:
        speed = f"{size(disk.warm_bytes_per_s)}/s from the page cache"
        if disk.is_memory:
            speed += "; this file system is memory"
        elif disk.cold_bytes_per_s is None:
            speed += "; the system keeps new files in memory, so the disk itself was not measured"
        else:
            slow, speed = disk.cold_bytes_per_s < 100e6, f"{size(disk.cold_bytes_per_s)}/s from the disk, {speed}"
    yield _finding("disk speed", speed, hurts="data larger than memory will wait for it: shuffle in blocks" if slow else "")


def _about_limits() -> Iterator[Finding]:
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        yield _finding("open files", "no limit")
    else:
        breaks = f"ulimit -n {min(4096, most) if most > 0 else 4096}" if files < 64 else ""
        hurts = "data in many files needs more: ulimit -n 4096" if files < 1024 else ""
        yield _finding("open files", f"at most {files:,}", hurts=hurts, breaks=breaks)
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space == resource.RLIM_INFINITY:
        yield _finding("address space", "no limit")
    else:
        yield _finding("address space", f"at most {size(space)}", hurts="files are mapped into it: ulimit -v unlimited")
    yield _finding("/dev/shm", "not needed: batches stay in one process")


def _about_versions() -> Iterator[Finding]:
    own = ", ".join(f"{name} {metadata.version(name)}" for name in ("penstock", "numpy"))
    yield _finding("versions", f"{own}, Python {platform.python_version()}")
    for module, extra, what, least in _OPTIONAL:
        package = PACKAGES.get(module, module)
        if importlib.util.find_spec(module) is None:
            yield Finding(package, "ok", f"not installed; needed for {what}", f"pip install 'penstock[{extra}]'")
            continue
        version = metadata.version(package)
        is_old = _version_numbers(version) < _version_numbers(least)
        told = f"{version}, made for {least} or newer" if is_old else version
        yield _finding(package, told, hurts=f"pip install -U 'penstock[{extra}]'" if is_old else "")


def _version_numbers(version: str) -> list[int]:
    return [int(word) for word in re.findall(r"\d+", version.partition("+")[0])[:3]]


def _about_data(files: Sequence[Path], disk: Disk, source: Source | None) -> Iterator[Finding]:
    total, free, share = sum(file.stat().st_size for file in files), available_memory(), cached_share(files)
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY and total > space:
        yield _finding("data", f"{size(total)}, more than the address space of {size(space)}", breaks="ulimit -v unlimited")
    data, cached = f"{size(total)} in {counted(len(files), 'file')}", "not known" if share is None else f"{percent(share)} of it"
    is_cold = share is not None and share <= 0.9
    if total <= free * 0.8:
        yield _finding("data", f"{data}: it fits in memory")
        later = "the first epoch reads the rest from the disk, later ones do not"
        yield Finding("page cache", "ok", cached, later if is_cold else "")
        yield _finding("shuffle", "global: every record once, from anywhere")
        return
    remedy = "shuffle in blocks: penstock shuffle-report DATA says which window is enough"
    yield _finding("data", f"{data}, more than the {size(free)} of free memory", hurts=remedy)
    remedy = "every epoch reads the rest from the disk"
    yield _finding("page cache", cached, hurts=remedy if is_cold and not disk.is_memory else "")
    yield _finding("shuffle", "a global one reads single records from the disk", hurts=_window_for(total, free // 4, source))


def _window_for(total: int, room: int, source: Source | None) -> str:
    """A window whose blocks fit."""
    if source is None or len(source) == 0:
        return f"block= and window=, with {size(room)} in flight at most"
    block = source.blocks.size
    window = max(1, int(room / (total / len(source) * block)))
    return f"block={block}, window={window} keeps {size(room)} in flight, a fourth of the free memory"
