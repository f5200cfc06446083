"""Objects at URLs as files on this machine, for formats whose packages read nothing else.

Files are in a directory next to that of the cache, ``<cache>-files/<digest of URL, version and size>/<name>``. Each is fetched
once, by one process, appears whole, and stays until somebody removes it. All of them together may have ``cache_bytes``. A directory
of several of them, for packages that read those, has hard links to them: ``<cache>-files/<digest>/<name>/<name below it>``.
"""

import contextlib
import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.argument import byte_size
from penstock.errors import SourceChangedError
from penstock.fingerprint import fingerprint_of
from penstock.formats.files import RemoteFile
from penstock.formats.publish import Staging
from penstock.process import map_at_once
from penstock.progress import reporting
from penstock.remote.window import RemoteOptions
from penstock.system import is_there, status, writing

__all__ = ["copy_directory", "copy_files"]

PIECE_BYTES = 8 << 20


def copy_files(what: str, files: Sequence[RemoteFile], remote: RemoteOptions) -> list[Path]:
    """The files of objects. ValueError without a cache directory, or if they do not fit into it."""
    first, sizes = files[0], [file.info.size for file in files]
    if remote.cache is None:
        raise ValueError(
            f"{first}: {what} is read by a package that needs files: give cache='a directory' to copy the {sum(sizes):,} bytes to "
            "this machine, or convert it to a store"
        )
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
                raise SourceChangedError(f"{file}: expected {size} bytes, found {new.size}; open it anew")
            new.finish()
            staging.publish([target], overwrite=True)
    return size
