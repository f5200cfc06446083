"""How many files data has and how large they are, as far as that is known without reading them."""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.cli.options import places
from penstock.records import Source
from penstock.remote.url import is_url
from penstock.source.paths import expand, has_pattern
from penstock.source.token_file import numbered_shards
from penstock.system import is_directory, is_there, reading, status

__all__ = ["Extent", "extent", "extent_on_disk"]


@dataclass(frozen=True)
class Extent:
    """Files and their bytes."""

    files: int
    bytes: int


def extent(words: Sequence[str], source: Source) -> Extent | None:
    """The files that the words of a command line name; None where that is not known, as of the parts of a collection."""
    if source.remote is not None:
        return Extent(len(source.remote.files), sum(info.size for _, info in source.remote.files))
    paths = places(words)
    return None if any(is_url(path) or path.endswith(".json") for path in paths) else extent_on_disk(paths)


def extent_on_disk(paths: Iterable[str | os.PathLike[str]]) -> Extent:
    """Files, patterns, directories with all that is below them, and prefixes of token shards."""
    found = [status(file) for path in paths for file in _files(os.fspath(path))]
    sizes = [one.st_size for one in found if one is not None and stat.S_ISREG(one.st_mode)]
    return Extent(len(sizes), sum(sizes))


def _files(text: str) -> Iterator[Path]:
    path = Path(text.removeprefix("file://"))
    if has_pattern(text) and not is_there(text):
        for found in expand(text, ()):
            yield from _files(str(found))
    elif is_directory(path):
        yield from _below(path)
    else:
        yield from [path] if is_there(path) else (shard for _, shard in numbered_shards(path))


def _below(path: Path) -> Iterator[Path]:
    """All that is in a directory and below it, without following links to others."""
    with reading(path, "listing the directory"), os.scandir(path) as entries:
        inside = [(Path(entry.path), entry.is_dir(follow_symlinks=False)) for entry in entries]
    for inner, is_folder in inside:
        yield from _below(inner) if is_folder else [inner]
