"""Names of objects: patterns and prefixes under a URL, expanded as those of files are, from one listing."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from penstock.errors import NoMatchError
from penstock.remote.objects import ObjectInfo
from penstock.remote.url import UrlPath
from penstock.source.paths import has_pattern

__all__ = ["Named", "children", "listing", "matching"]

Named = tuple[UrlPath, ObjectInfo | None]
"""A name and, if it is an object rather than the beginning of the names of others, what the listing says of it."""


def listing(path: UrlPath) -> list[ObjectInfo]:
    """The objects under a URL, without the empty ones that some tools put there to stand for directories."""
    found = path.objects.list(path.key)
    if all(info.size for info in found):
        return found
    directories = {info.key[:at] for info in found for at, letter in enumerate(info.key) if letter == "/"}
    return [info for info in found if info.size or info.key not in directories]


def children(path: UrlPath, listed: Sequence[ObjectInfo] | None = None) -> list[tuple[UrlPath, ObjectInfo]]:
    """The objects right under a URL, as the files of a directory, sorted by the bytes of their names; hidden ones too."""
    depth = len(_names(path.key))
    found = [(_names(info.key), info) for info in (listing(path) if listed is None else listed)]
    direct = [(names[depth], info) for names, info in found if len(names) == depth + 1]
    return [(path / name, info) for name, info in sorted(direct, key=lambda one: one[0].encode())]


def matching(pattern: UrlPath) -> list[Named]:
    """What a pattern stands for: ``*``, ``?`` and ``[...]`` within a name, ``**`` for any number of names. Hidden names match only
    what begins with a dot. Sorted by the bytes of the names, level by level. If there is something of exactly that name, it is
    that alone.
    """
    wanted = _names(pattern.key)
    fixed = next((n for n, part in enumerate(wanted) if has_pattern(part)), len(wanted) - 1)
    root = pattern.parent
    for _ in range(len(wanted) - 1 - fixed):
        root = root.parent
    found: dict[tuple[str, ...], ObjectInfo | None] = {}
    for info in listing(root):
        names = tuple(_names(info.key))
        if list(names[: len(wanted)]) == wanted:
            return [(pattern, info if len(names) == len(wanted) else None)]
        for count in range(fixed + 1, len(names) + 1):
            if _fits(wanted[fixed:], names[fixed:count]):
                found[names[:count]] = info if count == len(names) else found.get(names[:count])
    if not found:
        raise NoMatchError(f"no object matches {str(pattern)!r}")
    ordered = sorted(found, key=lambda names: [name.encode() for name in names])
    return [(root / "/".join(names[fixed:]), found[names]) for names in ordered]


def _names(key: str) -> list[str]:
    return key.split("/") if key else []


def _fits(wanted: Sequence[str], names: Sequence[str]) -> bool:
    """Whether names are what parts of a pattern stand for, as glob has it."""
    if not wanted:
        return not names
    if wanted[0] == "**":
        return _fits(wanted[1:], names) or (bool(names) and not names[0].startswith(".") and _fits(wanted, names[1:]))
    if not names or (names[0].startswith(".") and not wanted[0].startswith(".")):
        return False
    return fnmatchcase(names[0], wanted[0]) and _fits(wanted[1:], names[1:])
