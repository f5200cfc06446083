"""A store in a directory of this machine, or of a network filesystem.

Every system call of a writer is in Filesystem: writes only by pwrite, nothing truncated, nothing written through a map.

Every access goes through a descriptor of ``manifest/``, ``chunk/`` or ``redirect/``, opened without following a link: the store of
a stranger cannot lead to the files of another one. A claim keeps them open, so that a writer and gc work in the directories that
they have begun in, whatever is renamed meanwhile. The store itself may be behind a link.
"""

import contextlib
import errno
import fcntl
import os
import socket
import stat
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.errors import (
    ConflictError,
    CorruptError,
    DurabilityError,
    LockedError,
    MissingError,
    PenstockError,
    StoreError,
    UnsupportedFilesystemError,
)
from penstock.store.storage import (
    DIRECTORIES,
    LOCK_NAME,
    MANIFEST_DIRECTORY,
    Claim,
    Found,
    Item,
    Piece,
    Result,
    Storage,
    generation_of,
    new_identity,
    temporary_name,
)
from penstock.system import is_directory, read_error, writing

__all__ = ["Filesystem", "LocalStorage", "Lock", "open_directory"]

_MAX_WRITE = 1 << 30


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


def _release(descriptor: int) -> None:
    """Close a descriptor, of which nothing more depends on whether that works."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


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
            with writing(path, "making the directory"):
                raise error

    def write_new(self, path: Path, pieces: Sequence[Piece], directory: int | None = None) -> None:
        """Create a file that must not exist, write the pieces, and make its bytes durable."""
        descriptor = self._create(path, directory)
        try:
            with writing(path, "writing"):
                for offset, data in pieces:
                    self._write_all(descriptor, _view(data), offset)
            self._sync(descriptor, path)
        finally:
            # After a successful fsync close has nothing left to lose; EINTR and EIO here change nothing on disk.
            _release(descriptor)

    def _create(self, path: Path, directory: int | None) -> int:
        with writing(path, "creating the file"):
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
        with self._opened(path, directory) as descriptor:
            self._sync(descriptor, path)

    @contextlib.contextmanager
    def _opened(self, path: Path, directory: int | None) -> Iterator[int]:
        """A descriptor of a directory: the one that is given, or a new one."""
        if directory is not None:
            yield directory
            return
        with writing(path, "opening the directory"):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            _release(descriptor)

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
            _release(descriptor)
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
                    error.errno,
                    "this file system cannot link files, which commits need; write on a local disk and copy",
                    str(final),
                ) from error
            with writing(final, "publishing"):
                raise

    def remove(self, path: Path, directory: int | None = None) -> None:
        with writing(path, "removing"), contextlib.suppress(FileNotFoundError):
            os.unlink(_name(path, directory), dir_fd=directory)

    def names(self, path: Path, directory: int | None = None) -> list[str]:
        with writing(path, "listing the directory"):
            return sorted(os.listdir(path if directory is None else directory))


_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class LocalStorage(Storage):
    """One writer at a time, by a lock; a commit is a link, and every name is made durable by hand."""

    keep_hours = 24.0
    read_tries = 1
    many_writers = False

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._path, self._files = path, Filesystem()
        self._held: dict[str, int] = {}  # directories that a claim keeps open, by name; "" is the store's own

    def _at(self, name: str) -> tuple[Path, str]:
        """The path of a file of the store, and the name of its directory."""
        return self._path / name, name.rpartition("/")[0]

    def _to_read(self, directory: str) -> AbstractContextManager[int]:
        return self._opened(directory, _reading(self._path / directory, f"{self._path}: there is no penstock store here"))

    def _to_write(self, directory: str) -> AbstractContextManager[int]:
        return self._opened(directory, writing(self._path / directory, "opening the directory"))

    @contextlib.contextmanager
    def _opened(self, directory: str, opening: AbstractContextManager[None]) -> Iterator[int]:
        """A descriptor of its own of a directory of the store; errors of its opening are as ``opening`` translates them."""
        held = self._held.get(directory)
        with opening:
            if held is None:
                descriptor = open_directory(self._path / directory)
            else:
                descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=held)
        try:
            yield descriptor
        finally:
            _release(descriptor)

    def check_directories(self) -> None:
        """CorruptError if one is a link. Files are opened without following one, too; but here all is said at once."""
        for directory in DIRECTORIES:
            with contextlib.suppress(MissingError), self._to_read(directory):
                pass

    def names(self, directory: str) -> list[str]:
        with self._to_read(directory) as opened, _reading(self._path / directory, f"{self._path}: the store is gone"):
            return sorted(os.listdir(opened))

    def read(self, name: str, most: int) -> bytes:
        """All bytes of a regular file; links, fifos and directories are refused without blocking."""
        path, directory = self._at(name)
        with self._to_read(directory) as opened, _regular(path, opened) as (descriptor, info):
            if info.st_size > most:
                raise CorruptError(f"{path}: expected a file of at most {most} bytes, found {info.st_size}")
            data = os.read(descriptor, info.st_size) if info.st_size else b""
            while len(data) < info.st_size and (more := os.read(descriptor, info.st_size - len(data))):
                data += more
            return data

    def read_end(self, name: str, size: int, count: int) -> bytes:
        path, directory = self._at(name)
        with self._to_read(directory) as opened, _regular(path, opened) as (descriptor, info):
            data = os.pread(descriptor, count, size - count) if info.st_size == size else b""
            if len(data) != count:
                raise CorruptError(f"{path}: expected a file of {size} bytes, found {info.st_size}")
            return data

    def each(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        return [work(item) for item in items]

    def listing(self, directory: str) -> list[Found]:
        """The files in a directory of the store, with size and age, sorted by name.

        A copy may have the time of its original, which cannot be told from outside; the time of the last change of the inode can.
        """
        found = []
        with self._to_write(directory) as opened:
            for name in self._files.names(self._path / directory, opened):
                info = self._look(f"{directory}/{name}", opened)
                if info is not None:
                    arrived = max(info.st_mtime, info.st_ctime)
                    found.append(Found(f"{directory}/{name}", info.st_size, info.st_mtime, arrived))
        return found

    def _look(self, name: str, opened: int) -> os.stat_result | None:
        """What is behind a name in an open directory; None if nothing is."""
        path, _ = self._at(name)
        with writing(path, "looking at the file"), contextlib.suppress(FileNotFoundError):
            return os.stat(path.name, dir_fd=opened, follow_symlinks=False)
        return None

    def prepare(self) -> None:
        """Make the directories. A store that was begun and never committed is used again.

        UnsupportedFilesystemError where files cannot be linked: better now than at the first commit.
        """
        if is_directory(self._path) and any(name not in (*DIRECTORIES, LOCK_NAME) for name in self._files.names(self._path)):
            raise StoreError(f"{self._path}: the directory holds other files; choose an empty or new one")
        for place in (self._path, *(self._path / name for name in DIRECTORIES)):
            try:
                self._files.make_directory(place)
            except FileExistsError:
                if not is_directory(place):
                    raise StoreError(f"{place}: expected a directory or nothing, found a file") from None
        if not self.newest_generation(0):
            with self._to_write(MANIFEST_DIRECTORY) as opened:
                self._files.probe_links(self._path / MANIFEST_DIRECTORY / temporary_name(new_identity()), opened)

    def claim(self, *, single_writer: bool) -> Claim:
        """The lock of the store, which keeps other writers out whatever the caller promises; where there are no locks, the promise.

        All directories are opened here, and once.
        """
        with _closed_on_failure() as held:
            with writing(self._path, "opening the directory"):
                held[""] = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for name in DIRECTORIES:
                with writing(self._path / name, "opening the directory"), contextlib.suppress(FileNotFoundError):
                    held[name] = open_directory(self._path / name, held[""])
            lock = Lock(self._path / LOCK_NAME, held, is_needed=not single_writer)
        self._held = held
        return lock

    def write_new(self, name: str, pieces: Sequence[Piece]) -> None:
        path, directory = self._at(name)
        with self._to_write(directory) as opened:
            self._files.write_new(path, pieces, opened)

    def settle(self, directories: Sequence[str], *, is_new: bool) -> None:
        """Sync directories; of a new store its own and the one above it too."""
        for directory in (*directories, *([""] if is_new else [])):
            with self._to_write(directory) as opened:
                self._files.sync_directory(self._path / directory, opened)
        if is_new:
            self._files.sync_directory(self._path.parent)

    def draft(self, temporary: str, data: bytes) -> None:
        try:
            self.write_new(temporary, [(0, data)])
        except BaseException:
            self.discard([temporary])
            raise

    def publish(self, temporary: str, final: str, data: bytes, needs: Mapping[str, int]) -> None:
        """Link the temporary name to the final one, if the files that the manifest needs are there.

        Where no lock keeps gc away, it may have removed them from a transaction that took long.
        """
        path, directory = self._at(final)
        try:
            self._check(needs)
            with self._to_write(directory) as opened:
                self._files.publish(self._path / temporary, path, opened)
        except FileExistsError as error:
            raise ConflictError(f"{path}: another writer committed this generation first") from error
        finally:
            self.discard([temporary])

    def _check(self, needs: Mapping[str, int]) -> None:
        """ConflictError unless files are there with these sizes."""
        for directory in DIRECTORIES:
            mine = {name: size for name, size in needs.items() if self._at(name)[1] == directory}
            with self._to_write(directory) as opened:
                for name, size in mine.items():
                    info = self._look(name, opened)
                    if info is None or not stat.S_ISREG(info.st_mode) or info.st_size != size:
                        found = "nothing" if info is None else f"{info.st_size} bytes"
                        raise ConflictError(
                            f"{self.full(name)}: expected a file of {size} bytes, which this commit needs, found {found}: it was "
                            "removed meanwhile, by gc or by hand; write the records again"
                        )

    def is_current(self, generation: int, digest: str) -> bool:
        return self.newest_generation(generation) == generation

    def newest_generation(self, known: int) -> int:
        return max((g for g in map(generation_of, self.names(MANIFEST_DIRECTORY)) if g is not None), default=0)

    def unlisted(self, listed: Sequence[int]) -> set[int]:
        """None: a listing of a directory is complete."""
        return set()

    def pause(self, tries: int) -> None:
        """There are no conflicts under the lock that waiting would solve."""

    def remove(self, name: str) -> None:
        path, directory = self._at(name)
        with self._to_write(directory) as opened:
            self._files.remove(path, opened)

    def discard(self, names: Sequence[str]) -> None:
        """Remove files that are not needed; the others too where one resists."""
        for name in names:
            with contextlib.suppress(PenstockError):
                self.remove(name)


@contextlib.contextmanager
def _closed_on_failure() -> Iterator[dict[str, int]]:
    """A place for descriptors, which are closed if the block fails."""
    held: dict[str, int] = {}
    try:
        yield held
    except BaseException:
        for descriptor in held.values():
            _release(descriptor)
        raise


@contextlib.contextmanager
def _reading(path: Path, missing: str) -> Iterator[None]:
    """OSError as the exception that a reader gets."""
    try:
        yield
    except PenstockError:
        raise
    except FileNotFoundError as error:
        raise MissingError(missing) from error
    except OSError as error:
        raise read_error(error, path) from error


@contextlib.contextmanager
def _regular(path: Path, directory: int) -> Iterator[tuple[int, os.stat_result]]:
    """A descriptor of a file in a directory; links, fifos and what cannot be read are refused without blocking."""
    with _reading(path, f"{path}: a file of the store is missing"):
        try:
            descriptor = os.open(path.name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV):
                raise CorruptError(f"{path}: expected a file, found something else: {error.strerror}") from error
            raise
        try:
            info = os.fstat(descriptor)
            if not stat.S_ISREG(info.st_mode):
                raise CorruptError(f"{path}: expected a file, found something else")
            yield descriptor, info
        finally:
            _release(descriptor)


class Lock(Claim):
    """One writer at a time on a host, from construction to :meth:`close`; the kernel releases it when the process ends, however it
    ends. The lock is for a friendly message; commits are safe without it.

    ``held`` are descriptors of directories, closed and forgotten together with it; "" is that of the lock. Where files cannot be
    locked: UnsupportedFilesystemError if it ``is_needed``.
    """

    def __init__(self, path: Path, held: dict[str, int], *, is_needed: bool) -> None:
        super().__init__(path)
        self._path, self._held = path, held
        with writing(path, "opening the lock"):
            self._descriptor = os.open(path.name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644, dir_fd=held[""])
        try:
            with writing(path, "locking"):
                self._take(is_needed=is_needed)
        except BaseException:
            self._close()
            raise
        _open_locks.add(self)
        with contextlib.suppress(OSError):  # only a note for others; a full disk must not stop a writer here
            self._write_note()

    def _write_note(self) -> None:
        info = os.fstat(self._descriptor)
        if stat.S_ISREG(info.st_mode) and info.st_nlink == 1:  # a second name would be that of a file of another owner
            note = f"process {self._process} on {socket.gethostname()}".ljust(120) + "\n"
            os.pwrite(self._descriptor, note.encode(), 0)

    def _take(self, *, is_needed: bool) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = ""
            with contextlib.suppress(OSError):
                holder = os.pread(self._descriptor, 200, 0).decode(errors="replace").strip()
            raise LockedError(
                f"{self._path}: another writer is active ({holder or 'unknown'}); wait for it or open the store for reading"
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            if is_needed:
                raise UnsupportedFilesystemError(
                    error.errno,
                    f"this file system cannot lock files, so nothing prevents a second writer: {error.strerror}; mount it "
                    "with locks, write on a local disk and copy, or open with single_writer=True if there is never more than one",
                    str(self._path),
                ) from error

    def close(self) -> None:
        """Release the lock. In a forked child only the child's copy of the descriptor is closed: the parent keeps the lock."""
        if self._descriptor >= 0 and os.getpid() == self._process:
            # A child that lives on would keep the lock through its copy of the descriptor. If this fails, closing does the same.
            with contextlib.suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._close()
        for descriptor in self._held.values():
            _release(descriptor)
        self._held.clear()
        _open_locks.discard(self)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            _release(descriptor)


_open_locks: "weakref.WeakSet[Lock]" = weakref.WeakSet()


def _close_in_child() -> None:
    """A forked child that outlives its parent must not keep the parent's locks."""
    for lock in list(_open_locks):
        lock.close()


os.register_at_fork(after_in_child=_close_in_child)
