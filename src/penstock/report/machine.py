"""What this process may use of the machine: cores, memory, limits of its container; and what it and others take."""

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock import _core

__all__ = [
    "Memory",
    "Others",
    "allowed_cores",
    "available_memory",
    "describe_machine",
    "memory_limit",
    "resident",
    "vector_instructions",
]

_PROC = Path("/proc")
_GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Memory:
    """Bytes of this process in memory: its own, and those of mapped files, which the system takes back when it needs room."""

    own_bytes: int
    mapped_bytes: int

    @property
    def resident_bytes(self) -> int:
        """All of them."""
        return self.own_bytes + self.mapped_bytes


def resident() -> Memory:
    """What is in memory now."""
    fields = _numbers(_PROC / "self" / "status")
    return Memory(fields.get("RssAnon", 0), fields.get("RssFile", 0) + fields.get("RssShmem", 0))


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
    """The most bytes the container may have; None if nobody says."""
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
    """The widest vector instructions in use."""
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
