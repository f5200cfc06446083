"""Names of files: patterns, directories, lists and prefixes, expanded in one order everywhere."""

import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator
from fnmatch import translate
from pathlib import Path

from penstock.errors import EmptyFileError, EmptySourceError, FormatError, MissingError, NoMatchError
from penstock.system import is_directory, is_file, is_there, names_in, status

__all__ = ["expand", "file_size", "has_pattern", "matching", "name_key", "need_file"]


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
    if has_pattern(text) and not is_there(text):
        found = sorted(map(Path, matching(text)), key=name_key)
        if not found:
            raise NoMatchError(f"no file matches {text!r} (in {os.getcwd()})")
        return [path.absolute() for path in found]
    path = Path(text).absolute()
    if is_directory(path):
        inside = (path / name for name in names_in(path))
        found = sorted((p for p in inside if p.suffix.lower() in suffixes and is_file(p)), key=name_key)
        if not found:
            raise NoMatchError(
                f"{path}: expected files named {' or '.join('*' + s for s in suffixes)} in this directory, found none"
            )
        return found
    need_file(path)
    return [path]


def matching(pattern: str) -> list[str]:
    """What ``glob.glob(pattern, recursive=True)`` gives, in any order; but a directory that cannot be listed is an error."""
    first, *parts = pattern.split("/")
    found = ["/"] if first == "" else _step([""], first, is_last=not parts)
    for number, part in enumerate(parts):
        found = _step(found, part, is_last=number == len(parts) - 1)
    return found


def _step(places: Iterable[str], part: str, *, is_last: bool) -> list[str]:
    """What one name of a pattern leads to from some places."""
    if part == "":  # of two slashes, or of one at the end, which asks for directories
        return [place for place in places if not is_last or is_directory(place)]
    if part == "**":
        return [deeper for place in places for deeper in _below(place, with_files=is_last) if deeper or not is_last]
    if not has_pattern(part):
        return [one for place in places if is_there(one := os.path.join(place, part))]
    matches = re.compile(translate(part)).match
    return [
        os.path.join(place, name)
        for place in places
        if is_directory(place or ".")
        for name in names_in(place or ".")
        if matches(name) and (part.startswith(".") or not name.startswith("."))
    ]


def _below(place: str, *, with_files: bool) -> Iterator[str]:
    """A directory and all that is in it and below it, without what is hidden."""
    if not is_directory(place or "."):
        return
    yield place
    for name in names_in(place or "."):
        inner = os.path.join(place, name)
        if name.startswith("."):
            continue
        if is_directory(inner):
            yield from _below(inner, with_files=with_files)
        elif with_files:
            yield inner


def need_file(path: Path) -> os.stat_result:
    """What is known of a regular file; MissingError or FormatError if there is none."""
    found = status(path)
    if found is None:
        raise MissingError(f"{path}: there is no such file")
    if not stat.S_ISREG(found.st_mode):
        what = "a directory" if stat.S_ISDIR(found.st_mode) else "something else"
        raise FormatError(f"{path}: expected a regular file, found {what}")
    return found


def file_size(path: Path) -> int:
    """Bytes of a file that must not be empty."""
    size = need_file(path).st_size
    if size == 0:
        raise EmptyFileError(f"{path}: expected data, found an empty file")
    return size
