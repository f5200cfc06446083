"""Every system call a writer makes, behind one seam: writes only by pwrite, nothing truncated, nothing written through a map."""

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.errors import (
    CorruptError,
    DurabilityError,
    NoSpaceError,
    PenstockError,
    StoreError,
    StorePermissionError,
    UnsupportedFilesystemError,
)
from penstock.system import reason

__all__ = ["Filesystem", "Piece", "open_directory", "translated"]

Piece = tuple[int, bytes | npt.NDArray[np.uint8]]
"""An offset in a file and the bytes that go there."""

_MAX_WRITE = 1 << 30


@contextlib.contextmanager
def translated(path: Path, action: str) -> Iterator[None]:
    """OSError as the exception of penstock that says what to do next."""
    try:
        yield
    except PenstockError:
        raise
    except OSError as error:
        kind: type[StoreError] = StoreError
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            kind = NoSpaceError
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            kind = StorePermissionError
        raise kind(error.errno, f"{action} failed: {reason(error)}", str(path)) from error


def open_directory(path: Path, above: int | None = None) -> int:
    """A descriptor of a directory, by its last name if that of the directory ``above`` is given; CorruptError if it is a link."""
    try:
        return os.open(_name(path, above), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        found = (
            "a symbolic link, which could lead to another store; link the whole store" if path.is_symlink() else "something else"
        )
        raise CorruptError(f"{path}: expected a directory, found {found}") from error


def _name(path: Path, directory: int | None) -> str | Path:
    """A path as seen from an open directory, or from anywhere."""
    return path if directory is None else path.name


def _view(data: bytes | npt.NDArray[np.uint8]) -> memoryview:
    return memoryview(data) if isinstance(data, bytes) else data.data


class Filesystem:
    """A directory of the local machine. Safe to use from several threads.

    ``directory`` is an open descriptor of the directory of a path: then it counts, whatever its name means by now.
    """

    def make_directory(self, path: Path) -> None:
        """Make a directory; FileExistsError if it is there."""
        try:
            os.mkdir(path)
        except FileExistsError:
            raise
        except OSError as error:
            with translated(path, "making the directory"):
                raise error

    def write_new(self, path: Path, pieces: Sequence[Piece], directory: int | None = None) -> None:
        """Create a file that must not exist, write the pieces, and make its bytes durable."""
        descriptor = self._create(path, directory)
        try:
            with translated(path, "writing"):
                for offset, data in pieces:
                    self._write_all(descriptor, _view(data), offset)
            self._sync(descriptor, path)
        finally:
            # After a successful fsync close has nothing left to lose; EINTR and EIO here change nothing on disk.
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _create(self, path: Path, directory: int | None) -> int:
        with translated(path, "creating the file"):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            return os.open(_name(path, directory), flags, 0o644, dir_fd=directory)

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

    def sync_directory(self, path: Path, directory: int | None = None) -> None:
        """Make the names in a directory durable."""
        with self._opened(path, directory) as descriptor:
            self._sync(descriptor, path)

    @contextlib.contextmanager
    def _opened(self, path: Path, directory: int | None) -> Iterator[int]:
        """A descriptor of a directory: the one that is given, or a new one."""
        if directory is not None:
            yield directory
            return
        with translated(path, "opening the directory"):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def publish(self, temporary: Path, final: Path, directory: int | None = None) -> None:
        """Give a file its final name, durably; FileExistsError if another writer was first. Never replaces anything.

        The directory is opened first: once the name exists, only its fsync can still fail, and that is a DurabilityError. If it is
        given, both names are in it.
        """
        with self._opened(final.parent, directory) as opened:
            self._link(temporary, final, directory)
            self._sync(opened, final.parent)

    def probe_links(self, path: Path, directory: int) -> None:
        """UnsupportedFilesystemError where files cannot be linked, as commits need it; the path must be free, and is again."""
        other = path.with_name(f"{path.name}-link")
        descriptor = self._create(path, directory)
        try:
            self._link(path, other, directory)
        finally:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            for name in (path, other):
                self.remove(name, directory)

    def _link(self, temporary: Path, final: Path, directory: int | None) -> None:
        try:
            one, other = _name(temporary, directory), _name(final, directory)
            os.link(one, other, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        except FileExistsError:
            raise
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise UnsupportedFilesystemError(
                    error.errno, "this filesystem cannot link files, which commits need; write on a local disk and copy", str(final)
                ) from error
            with translated(final, "publishing"):
                raise

    def remove(self, path: Path, directory: int | None = None) -> None:
        """Remove a file if it is there."""
        with translated(path, "removing"), contextlib.suppress(FileNotFoundError):
            os.unlink(_name(path, directory), dir_fd=directory)

    def names(self, path: Path, directory: int | None = None) -> list[str]:
        """The names in a directory, sorted."""
        with translated(path, "listing the directory"):
            return sorted(os.listdir(path if directory is None else directory))
