"""Every system call a writer makes, behind one seam: writes only by pwrite, nothing truncated, nothing written through a map."""

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.errors import DurabilityError, NoSpaceError, StoreError, StorePermissionError, UnsupportedFilesystemError

__all__ = ["Filesystem", "Piece", "translated"]

Piece = tuple[int, bytes | npt.NDArray[np.uint8]]
"""An offset in a file and the bytes that go there."""

_MAX_WRITE = 1 << 30


@contextlib.contextmanager
def translated(path: Path, action: str) -> Iterator[None]:
    """OSError as the exception of penstock that says what to do next."""
    try:
        yield
    except OSError as error:
        kind: type[StoreError] = StoreError
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            kind = NoSpaceError
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            kind = StorePermissionError
        raise kind(error.errno, f"{action} failed: {error.strerror}", str(path)) from error


def _view(data: bytes | npt.NDArray[np.uint8]) -> memoryview:
    return memoryview(data) if isinstance(data, bytes) else data.data


class Filesystem:
    """A directory of the local machine. Safe to use from several threads."""

    def make_directory(self, path: Path) -> None:
        """Make a directory; FileExistsError if it is there."""
        try:
            os.mkdir(path)
        except FileExistsError:
            raise
        except OSError as error:
            with translated(path, "making the directory"):
                raise error

    def write_new(self, path: Path, pieces: Sequence[Piece]) -> None:
        """Create a file that must not exist, write the pieces, and make its bytes durable."""
        with translated(path, "creating the file"):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            with translated(path, "writing"):
                for offset, data in pieces:
                    self._write_all(descriptor, _view(data), offset)
            self._sync(descriptor, path)
        finally:
            # After a successful fsync close has nothing left to lose; EINTR and EIO here change nothing on disk.
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _write_all(self, descriptor: int, data: memoryview, offset: int) -> None:
        while len(data) > 0:
            done = os.pwrite(descriptor, data[:_MAX_WRITE], offset)
            data, offset = data[done:], offset + done

    def _sync(self, descriptor: int, path: Path) -> None:
        try:
            os.fsync(descriptor)
        except OSError as error:
            # The kernel may have dropped the dirty pages: a second fsync would lie. The writer must be given up.
            raise DurabilityError(error.errno, f"fsync failed: {error.strerror}; reopen the store", str(path)) from error

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        with self._opened(path) as descriptor:
            self._sync(descriptor, path)

    @contextlib.contextmanager
    def _opened(self, path: Path) -> Iterator[int]:
        with translated(path, "opening the directory"):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def publish(self, temporary: Path, final: Path) -> None:
        """Give a file its final name, durably; FileExistsError if somebody was first. Never replaces anything.

        The directory is opened first: once the name exists, only its fsync can still fail, and that is a DurabilityError.
        """
        with self._opened(final.parent) as directory:
            self._link(temporary, final)
            self._sync(directory, final.parent)

    def _link(self, temporary: Path, final: Path) -> None:
        try:
            os.link(temporary, final, follow_symlinks=False)
        except FileExistsError:
            raise
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise UnsupportedFilesystemError(
                    error.errno, "this filesystem cannot link files, which commits need; write on a local disk and copy", str(final)
                ) from error
            with translated(final, "publishing the manifest"):
                raise

    def remove(self, path: Path) -> None:
        """Remove a file if it is there."""
        with translated(path, "removing"), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def names(self, path: Path) -> list[str]:
        """The names in a directory, sorted."""
        with translated(path, "listing the directory"):
            return sorted(os.listdir(path))
