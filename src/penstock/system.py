"""Files that are read: errors of the system as those of penstock, and no error taken for an answer.

``os.path.exists`` says no where the disk gives no answer, and ``glob`` leaves out what it cannot list: data would be taken for less
than it is. All code that looks for data uses the functions here.
"""

import errno
import json
import os
import pathlib
import secrets
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from penstock.errors import (
    AccessDeniedError,
    CorruptError,
    FormatError,
    MissingError,
    NoSpaceError,
    PenstockError,
    ReadError,
    StoreError,
    StorePermissionError,
)
from penstock.native import _core

__all__ = [
    "SIZE",
    "WRITTEN",
    "file_access",
    "file_version",
    "file_versions",
    "is_directory",
    "is_file",
    "is_settled",
    "is_there",
    "names_in",
    "read_error",
    "read_note",
    "reading",
    "reason",
    "status",
    "write_note",
    "writing",
]

IO = ("auto", "map", "pread", "direct")


def file_access(io: str, where: object) -> str:
    """How files are read: by "map", "pread" or "direct", as ``io`` says; for "auto" mapped, except where maps are unsafe.

    ``where`` is the path of one of them; anything else is at a URL (None: in memory), which has no direct reads.
    """
    if io not in IO:
        raise ValueError(f"io must be {', '.join(map(repr, IO[:-1]))} or {IO[-1]!r}, got {io!r}")
    is_local = isinstance(where, pathlib.Path)
    if io == "direct" and not is_local and where is not None:
        raise ValueError("io='direct' is for files on a disk, and data at a URL is read through a window: leave io= out")
    if io != "auto":
        return io
    return "pread" if is_local and _core.is_network_filesystem(str(where)) else "map"


Path = str | bytes | os.PathLike[str]

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_DENIED = (errno.EACCES, errno.EPERM)
_REMEDIES = {
    errno.EMFILE: "close some, or raise the limit of this process with ulimit -n",
    errno.ENFILE: "the whole machine has too many; raise fs.file-max",
    errno.ENOMEM: "free some memory, or raise vm.max_map_count if there are many maps",
    errno.EIO: "the disk or its connection failed: look at the log of the system (dmesg), and restore the file from a copy",
    errno.ESTALE: "the file was removed or replaced on its server; open it again",
    errno.ENOTCONN: "the filesystem is no longer mounted: mount it again",
    errno.ETIMEDOUT: "the server of the filesystem does not answer: look at the network",
}


def reason(error: OSError) -> str:
    """Why a call failed, and what helps."""
    why = " ".join(str(error.strerror or error or type(error).__name__).split())[:300]
    remedy = _REMEDIES.get(error.errno or 0)
    return why if remedy is None else f"{why}; {remedy}"


def read_error(error: OSError, path: Path, action: str = "reading") -> ReadError:
    """An error of the system as the one of penstock that says what to do next."""
    kind: type[ReadError] = ReadError
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        kind = MissingError
    elif error.errno in _DENIED:
        kind = AccessDeniedError
    return kind(error.errno or errno.EIO, f"{action} failed: {reason(error)}", os.fsdecode(path))


@contextmanager
def reading(path: Path, action: str = "reading") -> Iterator[None]:
    """Errors of the system in this block are about this path."""
    try:
        yield
    except PenstockError:
        raise
    except OSError as error:
        raise read_error(error, path, action) from error


@contextmanager
def writing(path: Path, action: str) -> Iterator[None]:
    """Errors of the system in this block are about writing this path."""
    try:
        yield
    except PenstockError:
        raise
    except OSError as error:
        kind: type[StoreError] = StoreError
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            kind = NoSpaceError
        elif error.errno in (*_DENIED, errno.EROFS):
            kind = StorePermissionError
        raise kind(error.errno, f"{action} failed: {reason(error)}", os.fsdecode(path)) from error


def status(path: Path, *, follow: bool = True) -> os.stat_result | None:
    """What is behind a name; None if nothing is. ReadError if the system does not say."""
    with reading(path, "looking at it"):
        try:
            return os.stat(path, follow_symlinks=follow)
        except ValueError:  # a name that no file can have
            return None
        except OSError as error:
            if error.errno in _NOT_THERE:
                return None
            raise


def is_there(path: Path) -> bool:
    """Whether there is anything of that name, if only a link that leads nowhere."""
    return status(path, follow=False) is not None


def is_file(path: Path) -> bool:
    """Whether this is a regular file, or a link to one."""
    found = status(path)
    return found is not None and stat.S_ISREG(found.st_mode)


def is_directory(path: Path) -> bool:
    """Whether this is a directory, or a link to one."""
    found = status(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def names_in(path: str | os.PathLike[str]) -> list[str]:
    """The names in a directory, in any order."""
    with reading(path, "listing the directory"):
        return os.listdir(path)


# Versions of files

SIZE, WRITTEN = 2, 4
"""Where a version has the size, and the end of what only writing changes."""

SETTLED_NS = 2 * 10**9
"""A version can be trusted if the file was changed longer ago than this: clocks of file systems can be coarse."""


def file_version(path: str | os.PathLike[str]) -> tuple[int, ...]:
    """What changes with a file: device, inode, size and times."""
    with reading(path):
        info = os.stat(path)
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def is_settled(version: tuple[int, ...]) -> bool:
    """Whether a file of that version was changed long enough ago."""
    return time.time_ns() - max(version[3:]) > SETTLED_NS


def file_versions(paths: Iterable[str | os.PathLike[str]]) -> tuple[tuple[int, ...], ...] | None:
    """The versions of files; None if one of them was changed a moment ago."""
    found = tuple(map(file_version, paths))
    return found if all(map(is_settled, found)) else None


# Notes: small JSON files with a kind and a version


def read_note(path: str | os.PathLike[str], kind: str, version: int, most_bytes: int) -> dict[str, Any]:
    """What is in a note. FormatError if the file is something else, CorruptError if it has more than ``most_bytes``."""
    with reading(path):
        if os.path.getsize(path) > most_bytes:
            raise CorruptError(f"{path}: expected {kind} in at most {most_bytes} bytes")
        text = pathlib.Path(path).read_bytes()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: expected {kind}, found no JSON: {str(error)[:200]}") from error  # of places, not of data
    if not isinstance(found, dict) or found.get("kind") != kind or found.get("version") != version:
        raise FormatError(f"{path}: expected {kind} of version {version}")
    return found


def write_note(path: str | os.PathLike[str], kind: str, version: int, content: Mapping[str, Any]) -> None:
    """Write a note, all of it or nothing."""
    target, text = pathlib.Path(path), json.dumps({"kind": kind, "version": version, **content}, indent=1)
    temporary = target.with_name(f".{target.name[:100]}-{secrets.token_hex(4)}.tmp")
    with writing(target, "writing"):
        try:
            temporary.write_text(text + "\n")
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
