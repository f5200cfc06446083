"""A store in a directory of this machine, or of a network filesystem.

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

from penstock.errors import (
    ConflictError,
    CorruptError,
    ForkedWriterError,
    LockedError,
    MissingError,
    PenstockError,
    StoreError,
    UnsupportedFilesystemError,
)
from penstock.store.filesystem import Filesystem, Piece, open_directory, translated
from penstock.store.format import DIRECTORIES, LOCK_NAME, MANIFEST_DIRECTORY, generation_of, new_identity, temporary_name
from penstock.store.storage import Claim, Found, Item, Result, Storage
from penstock.system import is_directory, read_error

__all__ = ["LocalStorage", "Lock"]

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
        return self._opened(directory, translated(self._path / directory, "opening the directory"))

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
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def check_directories(self) -> None:
        """CorruptError if one is a link. Files are opened without following one, too; but here all is said at once."""
        for directory in DIRECTORIES:
            with contextlib.suppress(MissingError), self._to_read(directory):
                pass

    def names(self, directory: str) -> list[str]:
        """The names in a directory of the store, sorted."""
        with self._to_read(directory) as opened, _reading(self._path / directory, f"{self._path}: the store is gone"):
            return sorted(os.listdir(opened))

    def read(self, name: str, most: int) -> bytes:
        """All bytes of a regular file; links, fifos and directories are refused without blocking."""
        path, directory = self._at(name)
        with self._to_read(directory) as opened:
            return _read_file(path, opened, most)

    def read_end(self, name: str, size: int, count: int) -> bytes:
        """The last bytes of a regular file."""
        path, directory = self._at(name)
        with self._to_read(directory) as opened:
            return _read_end(path, opened, size, count)

    def each(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """One after the other."""
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
        with translated(path, "looking at the file"), contextlib.suppress(FileNotFoundError):
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
            with translated(self._path, "opening the directory"):
                held[""] = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for name in DIRECTORIES:
                with translated(self._path / name, "opening the directory"), contextlib.suppress(FileNotFoundError):
                    held[name] = open_directory(self._path / name, held[""])
            lock = Lock(self._path / LOCK_NAME, held, is_needed=not single_writer)
        self._held = held
        return lock

    def write_new(self, name: str, pieces: Sequence[Piece]) -> None:
        """Create a file that must not exist, and make its bytes durable."""
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
        """Write the manifest under its temporary name."""
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
        """Whether it is the newest."""
        return self.newest_generation(generation) == generation

    def newest_generation(self, known: int) -> int:
        """The highest number among the manifests."""
        return max((g for g in map(generation_of, self.names(MANIFEST_DIRECTORY)) if g is not None), default=0)

    def unlisted(self, listed: Sequence[int]) -> set[int]:
        """None: a listing of a directory is complete."""
        return set()

    def pause(self, tries: int) -> None:
        """There are no conflicts under the lock that waiting would solve."""

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
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
            with contextlib.suppress(OSError):
                os.close(descriptor)
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
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _read_file(path: Path, directory: int, most: int) -> bytes:
    with _regular(path, directory) as (descriptor, info):
        if info.st_size > most:
            raise CorruptError(f"{path}: expected a file of at most {most} bytes, found {info.st_size}")
        data = os.read(descriptor, info.st_size) if info.st_size else b""
        while len(data) < info.st_size and (more := os.read(descriptor, info.st_size - len(data))):
            data += more
        return data


def _read_end(path: Path, directory: int, size: int, count: int) -> bytes:
    with _regular(path, directory) as (descriptor, info):
        data = os.pread(descriptor, count, size - count) if info.st_size == size else b""
        if len(data) != count:
            raise CorruptError(f"{path}: expected a file of {size} bytes, found {info.st_size}")
        return data


class Lock:
    """One writer at a time on a host, from construction to :meth:`close`; the kernel releases it when the process ends, however it
    ends. The lock is for a friendly message; commits are safe without it.

    ``held`` are descriptors of directories, closed and forgotten together with it; "" is that of the lock. Where files cannot be
    locked: UnsupportedFilesystemError if it ``is_needed``.
    """

    def __init__(self, path: Path, held: dict[str, int], *, is_needed: bool) -> None:
        self._path, self._held, self._process = path, held, os.getpid()
        with translated(path, "opening the lock"):
            self._descriptor = os.open(path.name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644, dir_fd=held[""])
        try:
            with translated(path, "locking"):
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
                f"{self._path}: another writer is at work ({holder or 'unknown'}); wait for it or open the store for reading"
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            if is_needed:
                raise UnsupportedFilesystemError(
                    error.errno,
                    f"this filesystem cannot lock files, so that nothing keeps a second writer out: {error.strerror}; mount it "
                    "with locks, write on a local disk and copy, or open with single_writer=True if there is never more than one",
                    str(self._path),
                ) from error

    def check_process(self) -> None:
        """ForkedWriterError in a child: the writer belongs to the process that opened it."""
        if os.getpid() != self._process:
            raise ForkedWriterError(f"{self._path}: this writer belongs to process {self._process}; open another one here")

    def close(self) -> None:
        """Release the lock. In a forked child only the child's copy of the descriptor is closed: the parent keeps the lock."""
        if self._descriptor >= 0 and os.getpid() == self._process:
            # A child that lives on would keep the lock through its copy of the descriptor. If this fails, closing does the same.
            with contextlib.suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._close()
        for descriptor in self._held.values():
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._held.clear()
        _open_locks.discard(self)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)


_open_locks: "weakref.WeakSet[Lock]" = weakref.WeakSet()


def _close_in_child() -> None:
    """A forked child that outlives its parent must not keep the parent's locks."""
    for lock in list(_open_locks):
        lock.close()


os.register_at_fork(after_in_child=_close_in_child)
