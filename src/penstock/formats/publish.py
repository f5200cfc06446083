"""New files appear whole or not at all, on disk and at URLs.

::

    .penstock-<hash of the target's name>-<random>.tmp/
      lock                    held (flock) by the writer; who can take it knows that the writer is gone
      files/<name>            the new files, made durable one by one

Readers see neither. What a killed writer leaves behind, the next writer to the same target removes.

Objects at URLs as files on this machine, for formats whose packages read nothing else, are such files too, in a directory next to
that of the cache: ``<cache>-files/<digest of URL, version and size>/<name>``. Each is fetched once, by one process, and stays
until somebody removes it. All of them together may have ``cache_bytes``. A directory of several of them, for packages that read
those, has hard links to them: ``<cache>-files/<digest>/<name>/<name below it>``.
"""

import contextlib
import ctypes
import errno
import fcntl
import filecmp
import hashlib
import mmap
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from penstock.argument import byte_size
from penstock.errors import DurabilityError, MissingError, SourceChangedError, UnsupportedFilesystemError
from penstock.fingerprint import fingerprint_of
from penstock.formats.files import RemoteFile
from penstock.process import map_at_once
from penstock.progress import reporting
from penstock.remote.url import UrlPath
from penstock.remote.window import RemoteOptions
from penstock.store.local import Filesystem
from penstock.system import is_file, is_there, names_in, status, writing

__all__ = ["NewFile", "Staging", "copy_directory", "copy_files", "new_file", "put_file", "refuse_existing", "replace_file"]

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def refuse_existing(path: Path, remedy: str) -> None:
    """FileExistsError if there is anything of that name."""
    if is_there(path):
        raise FileExistsError(errno.EEXIST, f"this name exists already; {remedy}", str(path))


def replace_file(path: Path, data: bytes) -> None:
    """Write a file that appears whole and durable, in place of the one that may be there."""
    with Staging(path) as staging:
        file = staging.new_file(path.name)
        file.write(data)
        file.finish()
        staging.publish([path], overwrite=True)


class NewFile:
    """A file under way. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, 0
        with writing(path, "creating the file"):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, data: bytes | bytearray | memoryview | npt.NDArray[np.generic]) -> None:
        """Add bytes at the end."""
        self.size += self.write_at(self.size, data)

    def write_at(self, offset: int, data: bytes | bytearray | memoryview | npt.NDArray[np.generic]) -> int:
        """Put bytes anywhere; returns how many."""
        view = data.reshape(-1).view(np.uint8).data if isinstance(data, np.ndarray) else memoryview(data)
        done = 0
        with writing(self.path, "writing"):
            while done < len(view):
                done += os.pwrite(self._descriptor, view[done:], offset + done)
        return done

    def clear(self) -> None:
        """Begin anew."""
        with writing(self.path, "writing"):
            os.ftruncate(self._descriptor, 0)
        self.size = 0

    def finish(self) -> None:
        """Make the bytes durable, and close the file."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise DurabilityError(error.errno, f"fsync failed: {error.strerror}; nothing was published", str(self.path)) from error
        finally:
            self.close()

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            with contextlib.suppress(OSError):  # after fsync there is nothing left to lose; without it the file is given up
                os.close(descriptor)


class Staging:
    """The hidden directory in which the new files of one target grow. Leaving the ``with`` block removes it; what was not
    published by then is gone. Not thread-safe.
    """

    def __init__(self, target: Path) -> None:
        self._target, self._files = target, Filesystem()
        self._prefix = f".penstock-{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]}-"
        self._current: NewFile | None = None

    def __enter__(self) -> "Staging":
        for leftover in self._leftovers():
            _remove_if_unused(leftover)
        self._directory, self._lock = self._make_locked()
        try:
            self._files.make_directory(self._directory / "files")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._current is not None:
            self._current.close()
        with contextlib.suppress(OSError):  # which rmtree may raise all the same; what is left, the next writer removes
            shutil.rmtree(self._directory, ignore_errors=True)
        with contextlib.suppress(OSError):  # all that it held is the lock
            os.close(self._lock)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Entered by one process at a time: the others wait. To be entered before the staging itself, by one that can do without
        its own work once the target is there. The lock of a killed process is taken, and removed, by the next.
        """
        path = self._target.parent / f"{self._prefix}alone.tmp"
        with writing(self._target, "locking"):
            lock = _take_lock(path, fcntl.LOCK_EX)
            while os.fstat(lock).st_nlink == 0:  # the one before has removed it
                os.close(lock)
                lock = _take_lock(path, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
            fcntl.flock(lock, fcntl.LOCK_UN)  # also for a child that was forked meanwhile
            os.close(lock)

    def new_file(self, name: str) -> NewFile:
        """Begin a file, the one before being finished."""
        self._current = NewFile(self._directory / "files" / name)
        return self._current

    def path(self, name: str) -> Path:
        """Where a file grows that another writer makes."""
        return self._directory / "files" / name

    def remove(self, directory: Path) -> None:
        """Let a directory next to the target vanish in one step; its files are removed with those of this one."""
        with writing(directory, "removing"):
            os.rename(directory, self._directory / "removed")

    def publish(self, finals: Sequence[Path], *, overwrite: bool = False, again: bool = False) -> None:
        """Give finished files the names under which they were begun, next to the target, one after the other.

        FileExistsError if there is one already. If anything fails, none of the names stays. With ``overwrite`` a file is replaced;
        with ``again``, one of the same bytes is left as it is.
        """
        pairs = [(self._directory / "files" / final.name, final) for final in finals]
        try:
            for temporary, final in pairs:
                if overwrite:
                    self._replace(temporary, final)
                elif not (again and is_file(final) and filecmp.cmp(temporary, final, shallow=False)):
                    self._files.publish(temporary, final)
        except BaseException:
            for temporary, final in pairs:
                if _is_same_file(temporary, final):
                    self._files.remove(final)
            raise

    def publish_directory(self, *, overwrite: bool = False) -> None:
        """Give the directory of all finished files the name of the target; FileExistsError if there is something already.

        With ``overwrite`` a directory is replaced in one step, and the old one removed.
        """
        new = self._directory / "files"
        self._files.sync_directory(new)
        if overwrite and is_there(self._target):
            _exchange(new, self._target)
        else:
            refuse_existing(self._target, "choose another name")
            with writing(self._target, "publishing"):
                os.rename(new, self._target)  # may replace an empty directory that was made just now, but nothing else
        self._files.sync_directory(self._target.parent)

    def _replace(self, temporary: Path, final: Path) -> None:
        with writing(final, "publishing"):
            os.replace(temporary, final)
        self._files.sync_directory(final.parent)

    def _leftovers(self) -> Iterator[Path]:
        with writing(self._target, "listing its directory"):
            names = sorted(os.listdir(self._target.parent))
        for name in names:
            if name.startswith(self._prefix) and name.endswith(".tmp"):
                yield self._target.parent / name

    def _make_locked(self) -> tuple[Path, int]:
        """A new directory and the descriptor of its lock. If a cleanup takes it for a leftover, another one."""
        while True:
            directory = self._target.parent / f"{self._prefix}{secrets.token_hex(8)}.tmp"
            with writing(self._target, "making a directory next to it"):
                os.mkdir(directory)
            with writing(directory, "locking"), contextlib.suppress(FileNotFoundError):
                lock = _take_lock(directory / "lock", fcntl.LOCK_EX)
                if os.fstat(lock).st_nlink > 0:
                    return directory, lock
                os.close(lock)


def _take_lock(path: Path, how: int) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(lock, how)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _remove_if_unused(leftover: Path) -> None:
    """Remove what a killed writer left behind. Without the right to do so it stays, and does no harm."""
    with contextlib.suppress(OSError):
        lock = _take_lock(leftover / "lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(leftover, ignore_errors=True)
        os.close(lock)


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except OSError:
        return False


def _exchange(one: Path, other: Path) -> None:
    """Let two directories swap names in one step. Python knows no call for it, Linux does."""
    library = ctypes.CDLL(None, use_errno=True)
    number = errno.ENOSYS
    if hasattr(library, "renameat2"):
        if library.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
            return
        number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS):
        raise UnsupportedFilesystemError(
            number, "a directory cannot be replaced in one step here; remove it first, or choose another name", str(other)
        )
    with writing(other, "replacing the directory"):
        raise OSError(number, os.strerror(number))


AT_ONCE_BYTES = 64 << 20
"""Objects up to this size are put only if there is none of that name, in one request. Larger ones come in parts, which stores put
without asking, so that is looked at before.
"""


@contextmanager
def new_file(target: Path | UrlPath) -> Iterator[Path]:
    """A path to write a new file to. If the target is at a URL, the file, and before it those written next to it, go there when the
    block is left without an error.
    """
    if isinstance(target, Path):
        yield target
        return
    _refuse_existing(target)
    with tempfile.TemporaryDirectory(prefix="penstock-") as directory:
        yield Path(directory) / target.name
        written = sorted(names_in(directory), key=lambda name: (name == target.name, name))  # of no tokens at all, none
        for name in written:
            _put_new(Path(directory) / name, target.parent / name)


def _refuse_existing(target: UrlPath) -> None:
    try:
        target.objects.head(target.key)
    except MissingError:
        return
    raise FileExistsError(errno.EEXIST, "this name exists already; choose another name", str(target))


def _put_new(local: Path, target: UrlPath) -> None:
    if local.stat().st_size <= AT_ONCE_BYTES and target.objects.supports_put_new():
        if not target.objects.put_new(target.key, local.read_bytes()):
            _refuse_existing(target)
        return
    _refuse_existing(target)
    put_file(local, target)


def put_file(local: Path, target: UrlPath) -> None:
    """Put a file that is not empty at a URL, in parts if it is large, in place of what may be there."""
    with local.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content, memoryview(content) as view:
        target.objects.put(target.key, [view])


PIECE_BYTES = 8 << 20


def copy_files(what: str, files: Sequence[RemoteFile], remote: RemoteOptions) -> list[Path]:
    """The files of objects. ValueError without a cache directory, or if they do not fit into it."""
    first, sizes = files[0], [file.info.size for file in files]
    if remote.cache is None:
        raise ValueError(
            f"{first}: {what} is read by a package that needs files: pass cache='a directory' to copy the {sum(sizes):,} bytes to "
            "this machine, or convert it to a store"
        )
    if remote.peers is not None:
        raise ValueError(f"{first}: {what} is copied as a whole, which peers do not share: open it without peers=")
    most, root = byte_size("cache_bytes", remote.cache_bytes, least=1), _root(remote.cache)
    unknown = next((file for file in files if file.info.etag is None and not file.info.modified), None)
    if unknown is not None:
        raise ValueError(
            f"{unknown}: its server says neither an etag nor a date, so that a copy could be that of an object that was replaced: "
            "copy it to this machine by other means, and open that"
        )
    targets = [_target(root, file) for file in files]
    missing = [number for number, target in enumerate(targets) if not _is_there(target, sizes[number])]
    needed = sum(sizes[number] for number in missing)
    if missing and _bytes_in(root) + needed > most:
        raise ValueError(
            f"{first}: {what} of {needed:,} bytes does not fit into {root}, which may have {most:,} in all: remove files there, or "
            "raise cache_bytes"
        )
    with reporting(needed > 4 * PIECE_BYTES or None, "copy", len(missing)) as report:
        for size in map_at_once(lambda number: _copy(files[number], targets[number]), missing, are_remote=True):
            if report is not None:
                report(1, size)
    return targets


def copy_directory(what: str, name: str, files: Mapping[str, RemoteFile], remote: RemoteOptions) -> Path:
    """A directory of that name with the files of objects, by their names in it; nothing but them was written there by us. One of
    the same first file is the same directory, so that files can be added.
    """
    copies = copy_files(what, list(files.values()), remote)
    assert remote.cache is not None  # or else there are no copies
    directory = _root(remote.cache) / fingerprint_of("directory", str(copies[0]))[:32] / name
    for inner, copy in zip(files, copies, strict=True):
        link = directory / inner
        with writing(link, "linking to it"):
            if is_there(link) and os.path.samefile(link, copy):
                continue
            link.parent.mkdir(parents=True, exist_ok=True)
            temporary = link.with_name(f".{link.name}-{secrets.token_hex(8)}.tmp")
            os.link(copy, temporary)
            os.replace(temporary, link)  # which leaves the first name, where another process was faster
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
    return directory


def _root(cache: str | os.PathLike[str]) -> Path:
    path = Path(os.path.abspath(cache))
    return path.with_name(f"{path.name}-files")


def _target(root: Path, file: RemoteFile) -> Path:
    info = file.info
    version = info.etag if info.etag is not None else info.modified
    return root / fingerprint_of("copied", file.address, version, info.size)[:32] / file.name


def _is_there(target: Path, size: int) -> bool:
    found = status(target, follow=False)
    return found is not None and found.st_size == size


def _bytes_in(root: Path) -> int:
    """Locks of other processes among them may be gone at any time."""
    found = (status(path, follow=False) for path in root.glob("*/*"))
    return sum(one.st_size for one in found if one is not None and stat.S_ISREG(one.st_mode))


def _copy(file: RemoteFile, target: Path) -> int:
    """Fetch a file, unless another process is faster; gives its bytes."""
    with writing(target, "making its directory"):
        target.parent.mkdir(parents=True, exist_ok=True)
    staging = Staging(target)
    size = file.info.size
    with staging.alone():
        if _is_there(target, size):  # another process was first
            return size
        with staging:
            new = staging.new_file(target.name)
            for start in range(0, size, PIECE_BYTES):
                new.write(file.read(start, min(size, start + PIECE_BYTES)))
            if new.size != size:
                raise SourceChangedError(f"{file}: expected {size} bytes, found {new.size}; open it again")
            new.finish()
            staging.publish([target], overwrite=True)
    return size
