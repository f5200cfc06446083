"""A store in a directory of this machine, or of a network filesystem."""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from penstock.errors import ConflictError, CorruptError, MissingError, ReadError, StoreError
from penstock.store.filesystem import Filesystem, Piece, translated
from penstock.store.layout import DIRECTORIES, LOCK_NAME, MANIFEST_DIRECTORY, generation_of
from penstock.store.lock import Lock
from penstock.store.storage import Claim, Found, Item, Result, Storage

__all__ = ["LocalStorage"]


class LocalStorage(Storage):
    """One writer at a time, by a lock; a commit is a link, and every name is made durable by hand."""

    keep_hours = 24.0
    read_tries = 1
    many_writers = False

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._path, self._files = path, Filesystem()

    def names(self, directory: str) -> list[str]:
        """The names in a directory of the store, sorted."""
        try:
            return sorted(os.listdir(self._path / directory))
        except FileNotFoundError as error:
            raise MissingError(f"{self._path}: there is no penstock store here") from error
        except NotADirectoryError as error:
            raise CorruptError(f"{self._path}: expected a directory") from error
        except OSError as error:
            raise ReadError(error.errno, f"{directory}/ cannot be listed: {error.strerror}", str(self._path)) from error

    def read(self, name: str, most: int) -> bytes:
        """All bytes of a regular file; links, fifos and directories are refused without blocking."""
        return _read_file(self._path / name, most)

    def read_end(self, name: str, size: int, count: int) -> bytes:
        """The last bytes of a regular file."""
        return _read_end(self._path / name, size, count)

    def each(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """One after the other."""
        return [work(item) for item in items]

    def listing(self, directory: str) -> list[Found]:
        """The files in a directory of the store, with size and age, sorted by name."""
        found = []
        for name in self._files.names(self._path / directory):
            with translated(self._path / directory / name, "looking at the file"):
                info = os.lstat(self._path / directory / name)
            found.append(Found(f"{directory}/{name}", info.st_size, info.st_mtime))
        return found

    def prepare(self) -> None:
        """Make the directories. A store that was begun and never committed is used again."""
        if self._path.is_dir() and any(name not in (*DIRECTORIES, LOCK_NAME) for name in self._files.names(self._path)):
            raise StoreError(f"{self._path}: the directory holds other files; choose an empty or new one")
        for place in (self._path, *(self._path / name for name in DIRECTORIES)):
            try:
                self._files.make_directory(place)
            except FileExistsError:
                if not place.is_dir():
                    raise StoreError(f"{place}: expected a directory or nothing, found a file") from None

    def claim(self, *, single_writer: bool) -> Claim:
        """The lock of the store; it keeps other writers out whatever the caller promises."""
        return Lock(self._path / LOCK_NAME)

    def write_new(self, name: str, pieces: Sequence[Piece]) -> None:
        """Create a file that must not exist, and make its bytes durable."""
        self._files.write_new(self._path / name, pieces)

    def settle(self, directories: Sequence[str], *, is_new: bool) -> None:
        """Sync directories; of a new store its own and the one above it too."""
        for directory in directories:
            self._files.sync_directory(self._path / directory)
        if is_new:
            self._files.sync_directory(self._path)
            self._files.sync_directory(self._path.parent)

    def draft(self, temporary: str, data: bytes) -> None:
        """Write the manifest under its temporary name."""
        try:
            self._files.write_new(self._path / temporary, [(0, data)])
        except BaseException:
            self.discard([temporary])
            raise

    def publish(self, temporary: str, final: str, data: bytes) -> None:
        """Link the temporary name to the final one."""
        try:
            self._files.publish(self._path / temporary, self._path / final)
        except FileExistsError as error:
            raise ConflictError(f"{self.full(final)}: another writer committed this generation first") from error
        finally:
            self.discard([temporary])

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
        self._files.remove(self._path / name)

    def discard(self, names: Sequence[str]) -> None:
        """Remove files that nobody needs; the others too where one resists."""
        for name in names:
            with contextlib.suppress(StoreError):
                self.remove(name)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A descriptor of a file; links, fifos and what cannot be read are refused without blocking."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise MissingError(f"{path}: a file of the store is missing") from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV):
            raise CorruptError(f"{path}: expected a file, found something else: {error.strerror}") from error
        raise ReadError(error.errno, f"cannot be opened: {error.strerror}", str(path)) from error
    try:
        yield descriptor
    except OSError as error:
        if isinstance(error, ReadError):
            raise
        raise ReadError(error.errno, f"cannot be read: {error.strerror}", str(path)) from error
    finally:
        os.close(descriptor)


def _read_file(path: Path, most: int) -> bytes:
    with _opened(path) as descriptor:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode) or info.st_size > most:
            raise CorruptError(f"{path}: expected a file of at most {most} bytes, found {info.st_size}")
        data = os.read(descriptor, info.st_size) if info.st_size else b""
        while len(data) < info.st_size and (more := os.read(descriptor, info.st_size - len(data))):
            data += more
        return data


def _read_end(path: Path, size: int, count: int) -> bytes:
    with _opened(path) as descriptor:
        info = os.fstat(descriptor)
        data = os.pread(descriptor, count, size - count) if stat.S_ISREG(info.st_mode) and info.st_size == size else b""
        if len(data) != count:
            raise CorruptError(f"{path}: expected a file of {size} bytes, found {info.st_size}")
        return data
