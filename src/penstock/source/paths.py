"""Names of files: patterns, directories, lists and prefixes, expanded in one order everywhere."""

import glob
import os
from collections.abc import Iterable
from pathlib import Path

from penstock.errors import EmptyFileError, EmptySourceError, FormatError, MissingError, NoMatchError

__all__ = ["expand", "file_size", "has_pattern", "name_key", "need_file"]


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
        found = sorted((p for p in path.iterdir() if p.suffix.lower() in suffixes and p.is_file()), key=name_key)
        if not found:
            raise NoMatchError(
                f"{path}: expected files named {' or '.join('*' + s for s in suffixes)} in this directory, found none"
            )
        return found
    need_file(path)
    return [path]


def need_file(path: Path) -> None:
    """MissingError or FormatError unless there is a regular file."""
    if not path.exists():
        raise MissingError(f"{path}: there is no such file")
    if not path.is_file():
        raise FormatError(f"{path}: expected a regular file, found {'a directory' if path.is_dir() else 'something else'}")


def file_size(path: Path) -> int:
    """Bytes of a file that must not be empty."""
    need_file(path)
    size = path.stat().st_size
    if size == 0:
        raise EmptyFileError(f"{path}: expected data, found an empty file")
    return size
