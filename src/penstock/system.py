"""Calls of the system that fail while something is read: which exception that is, and what to do."""

import errno
import os

from penstock.errors import MissingError, ReadError

__all__ = ["read_error"]

_FILES = "close some files, or raise the limit of open files (ulimit -n)"
_MEMORY = "free some memory, or raise the limit of maps (sysctl vm.max_map_count)"
_REMEDIES = {
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.ENOMEM: _MEMORY,
    errno.EAGAIN: _MEMORY,
    errno.EIO: "the disk or its connection failed: look at the system's log (dmesg), and restore the file from a copy",
    errno.ESTALE: "the file was removed or replaced on its server: open the data anew",
    errno.EACCES: "get the right to read it",
    errno.EPERM: "get the right to read it",
    errno.ENOTCONN: "the filesystem is no longer mounted: mount it again",
    errno.ETIMEDOUT: "the server of the filesystem does not answer: look at the network",
}


def read_error(code: int, path: str) -> ReadError:
    """The exception for a call that failed with this errno; MissingError if the file is not there (any more)."""
    kind = MissingError if code in (errno.ENOENT, errno.ESTALE) else ReadError
    remedy = _REMEDIES.get(code)
    what = os.strerror(code) if code == errno.ENOENT else f"cannot be read: {os.strerror(code)}"
    return kind(code, f"{what}; {remedy}" if remedy else what, path)
