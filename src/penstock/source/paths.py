"""Names of files: patterns, directories, lists and prefixes, expanded in one order everywhere."""

import errno
import glob
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import EmptyFileError, EmptySourceError, FormatError, MissingError, NoMatchError, PenstockError, ReadError

__all__ = ["expand", "file_size", "file_stat", "has_pattern", "name_key", "need_file", "read_bytes", "reading"]


REMEDIES = {
    errno.EMFILE: "; raise the limit of open files (ulimit -n) or open fewer sources",
    errno.EIO: "; the disk failed: look at the log of the system, and restore the file",
    errno.ESTALE: "; the server has removed or replaced the file: open the data again",
}


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Errors of the system as those of penstock: MissingError where there is no such file, ReadError otherwise."""
    try:
        yield
    except PenstockError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingError(f"{os.fspath(path)}: there is no such file") from error
    except OSError as error:
        code = error.errno or 0
        raise ReadError(code, f"{error.strerror or error}{REMEDIES.get(code, '')}", os.fspath(path)) from error
    except ValueError as error:  # a name with a NUL in it
        raise MissingError(f"{os.fspath(path)!r}: there can be no such file: {error}") from error


def read_bytes(path: Path, start: int, stop: int) -> bytes:
    """Bytes [start, stop) of a regular file; fewer if it ends before."""
    need_file(path)
    with reading(path), path.open("rb") as file:
        file.seek(start)
        return file.read(stop - start)


def has_pattern(path: str) -> bool:
    """Whether a path is a pattern rather than a name."""
    return glob.has_magic(path)


def name_key(path: str | Path) -> list[bytes]:
    """The sorting key of a path: the bytes of its names, level by level. ``s10`` comes before ``s2``."""
    return [os.fsencode(part) for part in Path(path).parts]


def expand(what: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], suffixes: tuple[str, ...]) -> list[Path]:
    """The absolute paths that a file, a pattern, a directory (its files with one of the suffixes) or a list of them stands for.

    A list keeps its order; what a pattern or a directory gives is sorted by the bytes of the names.
    """
    if not isinstance(what, str | os.PathLike):
        found = [path for one in what for path in expand(one, suffixes)]
        if not found:
            raise EmptySourceError("expected at least one file, got an empty list")
        return found
    text = os.fspath(what)
    if has_pattern(text) and not os.path.lexists(text):
        found = sorted(map(Path, glob.glob(text, recursive=True)), key=name_key)
        if not found:
            raise NoMatchError(f"no file matches {text!r} (in {os.getcwd()})")
        return [path.absolute() for path in found]
    path = Path(text).absolute()
    if path.is_dir():
        with reading(path):
            found = sorted((p for p in path.iterdir() if p.suffix.lower() in suffixes and p.is_file()), key=name_key)
        if not found:
            raise NoMatchError(
                f"{path}: expected files named {' or '.join('*' + s for s in suffixes)} in this directory, found none"
            )
        return found
    need_file(path)
    return [path]


def file_stat(path: Path) -> os.stat_result:
    """What the system says of a regular file; MissingError or FormatError unless there is one."""
    with reading(path):
        info = path.stat()
    if not stat.S_ISREG(info.st_mode):
        kind = "a directory" if stat.S_ISDIR(info.st_mode) else "something else"
        raise FormatError(f"{path}: expected a regular file, found {kind}")
    return info


def need_file(path: Path) -> None:
    """MissingError or FormatError unless there is a regular file."""
    file_stat(path)


def file_size(path: Path) -> int:
    """Bytes of a file that must not be empty."""
    size = file_stat(path).st_size
    if size == 0:
        raise EmptyFileError(f"{path}: expected data, found an empty file")
    return size
